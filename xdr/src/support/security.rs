//! Strategies for values of RPCSEC_GSS.

use super::strategies::bytes;
use crate::rpcsec_gss::{self, Opaque};
use proptest::prelude::*;
use proptest::sample::select;

/// Tokens and bodies are longer than what tests need.
fn opaque<const MAX: usize>() -> impl Strategy<Value = Opaque<'static, MAX>> {
    bytes(MAX.min(600)).prop_map(Opaque)
}

pub fn gss_credential() -> impl Strategy<Value = rpcsec_gss::Credential<'static>> {
    let procedure = select(rpcsec_gss::Procedure::ALL);
    let service = select(rpcsec_gss::Service::ALL);
    (procedure, any::<u32>(), service, opaque()).prop_map(
        |(procedure, sequence, service, handle)| rpcsec_gss::Credential {
            procedure,
            sequence,
            service,
            handle,
        },
    )
}

pub fn gss_signed_header() -> impl Strategy<Value = rpcsec_gss::SignedHeader<'static>> {
    (any::<[u32; 4]>(), gss_credential()).prop_map(
        |([xid, program, version, procedure], credential)| rpcsec_gss::SignedHeader {
            xid,
            program,
            version,
            procedure,
            credential,
        },
    )
}

pub fn gss_init_args() -> impl Strategy<Value = rpcsec_gss::InitArgs<'static>> {
    opaque().prop_map(|token| rpcsec_gss::InitArgs { token })
}

pub fn gss_init_res() -> impl Strategy<Value = rpcsec_gss::InitRes<'static>> {
    (opaque(), any::<[u32; 3]>(), opaque()).prop_map(|(handle, [major, minor, window], token)| {
        rpcsec_gss::InitRes {
            handle,
            major,
            minor,
            window,
            token,
        }
    })
}

pub fn gss_integrity_body() -> impl Strategy<Value = rpcsec_gss::IntegrityBody<'static>> {
    (opaque(), opaque()).prop_map(|(data, mic)| rpcsec_gss::IntegrityBody { data, mic })
}

pub fn gss_privacy_body() -> impl Strategy<Value = rpcsec_gss::PrivacyBody<'static>> {
    opaque().prop_map(|wrapped| rpcsec_gss::PrivacyBody { wrapped })
}
