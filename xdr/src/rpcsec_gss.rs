//! RPCSEC_GSS version 1: RPC calls under a GSS-API context (RFC 2203).
//!
//! Nothing here knows a mechanism: tokens, MICs and wrapped bodies are opaque. They are secrets or
//! depend on some, so `Debug` shows only their lengths.
//!
//! A call is the header up to the end of its [`Credential`] ([`SignedHeader`]), a verifier with the
//! MIC of these bytes ([`verifier`]), and a body that depends on the [`Service`]:
//!
//! | service | body |
//! | --- | --- |
//! | none | arguments or results |
//! | integrity | [`IntegrityBody`]: (sequence number, arguments or results) and their MIC |
//! | privacy | [`PrivacyBody`]: the same pair, wrapped |

use crate::codec::{self, Decode, DecodeError, Decoder, Encode, Encoder, roundup};
use crate::codec::{xdr_enum, xdr_struct};
use crate::rpc::{self, Auth, MAX_AUTH_LEN, flavor};
use std::fmt;

/// RPCSEC_GSS_VERS_1, the only version here and in Linux (RFC 2203 section 5.1).
pub const VERSION: u32 = 1;
/// MAXSEQ: sequence numbers are below it (RFC 2203 section 5.3.3.1). A context that has used all
/// must be replaced.
pub const MAX_SEQUENCE: u32 = 0x8000_0000;
/// Encoded length of a credential without its handle: version, procedure, sequence number, service
/// and the handle's length.
const CREDENTIAL_HEAD_LEN: usize = 20;
/// Longest context handle in bytes: a credential's body has at most [`MAX_AUTH_LEN`].
pub const MAX_HANDLE_LEN: usize = MAX_AUTH_LEN - CREDENTIAL_HEAD_LEN;
/// Longest context token that is accepted, in bytes. The ticket of an Active Directory user in many
/// groups has some ten thousand.
pub const MAX_TOKEN_LEN: usize = 64 << 10;
/// Longest MIC in bytes: it must fit a verifier.
pub const MAX_MIC_LEN: usize = MAX_AUTH_LEN;
/// Longest body of arguments or results that is accepted under integrity or privacy, in bytes: the
/// longest READ and WRITE, with what surrounds their data.
pub const MAX_BODY_LEN: usize = crate::nfs3::IO_MAX + (64 << 10);
/// Bytes of an [`IntegrityBody`] before the arguments or results: a length and the sequence number.
pub const INTEGRITY_HEAD_LEN: usize = 8;

/// gss_major of a context that is complete (RFC 2203 appendix A).
pub const GSS_S_COMPLETE: u32 = 0;
/// gss_major of a context for which the server expects another token (RFC 2203 appendix A).
pub const GSS_S_CONTINUE_NEEDED: u32 = 1;

/// Pseudo flavors of Kerberos V5, by which MOUNT names mechanism and service (RFC 2623 section
/// 2.3). They are not in RPC headers, where the flavor is [`flavor::RPCSEC_GSS`].
pub mod pseudo_flavor {
    /// Calls are authenticated.
    pub const KRB5: u32 = 390_003;
    /// Arguments and results have integrity.
    pub const KRB5I: u32 = 390_004;
    /// Arguments and results are private.
    pub const KRB5P: u32 = 390_005;
}

xdr_enum! {
    /// rpc_gss_proc_t: what a call does with the context (RFC 2203 section 5).
    Procedure {
        Data = 0,
        Init = 1,
        ContinueInit = 2,
        Destroy = 3,
    }
}

xdr_enum! {
    /// rpc_gss_service_t: how arguments and results are protected (RFC 2203 section 5).
    Service {
        None = 1,
        Integrity = 2,
        Privacy = 3,
    }
}

impl Service {
    /// The pseudo flavor of Kerberos V5 with this service.
    pub const fn pseudo_flavor(self) -> u32 {
        match self {
            Service::None => pseudo_flavor::KRB5,
            Service::Integrity => pseudo_flavor::KRB5I,
            Service::Privacy => pseudo_flavor::KRB5P,
        }
    }

    /// The service that a pseudo flavor of Kerberos V5 stands for; none for others.
    pub const fn of_pseudo_flavor(flavor: u32) -> Option<Self> {
        match flavor {
            pseudo_flavor::KRB5 => Some(Service::None),
            pseudo_flavor::KRB5I => Some(Service::Integrity),
            pseudo_flavor::KRB5P => Some(Service::Privacy),
            _ => None,
        }
    }
}

/// Borrowed opaque data of at most `MAX` bytes, of which `Debug` shows the length. Encoding does
/// not check the bound.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Opaque<'a, const MAX: usize>(pub &'a [u8]);

impl<const MAX: usize> fmt::Debug for Opaque<'_, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} B", self.0.len())
    }
}

impl<const MAX: usize> Encode for Opaque<'_, MAX> {
    fn encode(&self, to: &mut Encoder) {
        to.opaque(self.0);
    }
}

impl<'a, const MAX: usize> Decode<'a> for Opaque<'a, MAX> {
    fn decode(from: &mut Decoder<'a>) -> codec::Result<Self> {
        Ok(Opaque(from.opaque("RPCSEC_GSS data", MAX)?))
    }
}

/// A context handle, which the server chose.
pub type Handle<'a> = Opaque<'a, MAX_HANDLE_LEN>;
/// A token that the mechanism made while a context is established.
pub type Token<'a> = Opaque<'a, MAX_TOKEN_LEN>;

/// rpc_gss_cred_t: the body of a credential (RFC 2203 section 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credential<'a> {
    pub procedure: Procedure,
    /// Below [`MAX_SEQUENCE`]; without a meaning while a context is established.
    pub sequence: u32,
    /// Without a meaning while a context is established.
    pub service: Service,
    /// Empty in INIT (RFC 2203 section 5.2.2).
    pub handle: Handle<'a>,
}

impl<'a> Credential<'a> {
    /// The credential of the first call of a context.
    pub const INIT: Credential<'static> = Credential {
        procedure: Procedure::Init,
        sequence: 0,
        service: Service::None,
        handle: Opaque(&[]),
    };

    /// The credential of a call under an established context.
    pub fn data(sequence: u32, service: Service, handle: &'a [u8]) -> Self {
        Credential {
            procedure: Procedure::Data,
            sequence,
            service,
            handle: Opaque(handle),
        }
    }

    /// The credential of the NULL call that ends a context (RFC 2203 section 5.4).
    pub fn destroy(sequence: u32, handle: &'a [u8]) -> Self {
        Credential {
            procedure: Procedure::Destroy,
            ..Credential::data(sequence, Service::None, handle)
        }
    }

    /// The credential of a call's header, if its flavor is RPCSEC_GSS. A server answers an error
    /// with AUTH_BADCRED.
    pub fn of(credential: &Auth<'a>) -> Option<codec::Result<Self>> {
        match *credential {
            Auth::Other { flavor, body } if flavor == flavor::RPCSEC_GSS => {
                Some(Credential::from_xdr(body))
            }
            _ => None,
        }
    }

    /// Encoded length.
    pub fn encoded_len(&self) -> usize {
        CREDENTIAL_HEAD_LEN + roundup(self.handle.0.len())
    }

    /// Appends flavor, length and body: the opaque_auth of a header.
    pub fn encode_auth(&self, to: &mut Encoder) {
        to.u32(flavor::RPCSEC_GSS);
        to.u32(self.encoded_len() as u32);
        self.encode(to);
    }
}

impl Encode for Credential<'_> {
    // version, gss_proc, seq_num, service, handle
    fn encode(&self, to: &mut Encoder) {
        to.u32(VERSION);
        self.procedure.encode(to);
        to.u32(self.sequence);
        self.service.encode(to);
        self.handle.encode(to);
    }
}

impl<'a> Decode<'a> for Credential<'a> {
    fn decode(from: &mut Decoder<'a>) -> codec::Result<Self> {
        match from.u32()? {
            VERSION => {}
            value => {
                return Err(DecodeError::Undefined {
                    what: "RPCSEC_GSS version",
                    value,
                });
            }
        }
        let procedure = Procedure::decode(from)?;
        let sequence = from.u32()?;
        let service = match (procedure, from.u32()?) {
            // "The seq_num and service fields are undefined and both must be ignored by the server"
            // (RFC 2203 section 5.2.2).
            (Procedure::Init | Procedure::ContinueInit, value) => {
                Service::try_from(value).unwrap_or(Service::None)
            }
            (_, value) => Service::try_from(value)?,
        };
        Ok(Credential {
            procedure,
            sequence,
            service,
            handle: Handle::decode(from)?,
        })
    }
}

/// The bytes of a call that its verifier's MIC covers: "from the XID to the end of the credential"
/// (RFC 2203 section 5.3.1). A server finds them by [`rpc::Call::signed_len`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignedHeader<'a> {
    pub xid: u32,
    pub program: u32,
    pub version: u32,
    pub procedure: u32,
    pub credential: Credential<'a>,
}

impl SignedHeader<'_> {
    /// Encoded length.
    pub fn encoded_len(&self) -> usize {
        rpc::CALL_HEAD_LEN + 8 + self.credential.encoded_len()
    }
}

impl Encode for SignedHeader<'_> {
    fn encode(&self, to: &mut Encoder) {
        rpc::encode_call_head(self.xid, self.program, self.version, self.procedure, to);
        self.credential.encode_auth(to);
    }
}

/// The verifier with a MIC: in a call, of the header's bytes before it; in a reply, of the call's
/// sequence number in XDR (RFC 2203 sections 5.3.1 and 5.3.3.2), or of the window when a context is
/// complete (section 5.2.3.1).
pub fn verifier(mic: &[u8]) -> Auth<'_> {
    Auth::Other {
        flavor: flavor::RPCSEC_GSS,
        body: mic,
    }
}

/// The MIC in a verifier; none with another flavor.
pub fn mic_of<'a>(verifier: &Auth<'a>) -> Option<&'a [u8]> {
    match *verifier {
        Auth::Other { flavor, body } if flavor == flavor::RPCSEC_GSS => Some(body),
        _ => None,
    }
}

xdr_struct! {
    /// rpc_gss_init_arg: the argument of INIT and CONTINUE_INIT, which are calls of the procedure
    /// NULL (RFC 2203 section 5.2.2).
    #[derive(Copy)]
    InitArgs<'a> { token: Token<'a>, }
}

xdr_struct! {
    /// rpc_gss_init_res: the results of INIT and CONTINUE_INIT (RFC 2203 section 5.2.3.1).
    #[derive(Copy)]
    InitRes<'a> {
        handle: Handle<'a>,
        /// [`GSS_S_COMPLETE`], [`GSS_S_CONTINUE_NEEDED`], or an error.
        major: u32,
        minor: u32,
        /// How many sequence numbers up to the highest the server accepts.
        window: u32,
        token: Token<'a>,
    }
}

xdr_struct! {
    /// rpc_gss_integ_data: the body of a call or reply with integrity (RFC 2203 section 5.3.2.2).
    #[derive(Copy)]
    IntegrityBody<'a> {
        /// The sequence number and the arguments or results ([`split`]).
        data: Opaque<'a, MAX_BODY_LEN>,
        /// The MIC of `data`.
        mic: Opaque<'a, MAX_MIC_LEN>,
    }
}

xdr_struct! {
    /// rpc_gss_priv_data: the body of a call or reply with privacy (RFC 2203 section 5.3.2.3).
    #[derive(Copy)]
    PrivacyBody<'a> {
        /// What was made of the sequence number and the arguments or results ([`split`]).
        wrapped: Opaque<'a, MAX_BODY_LEN>,
    }
}

/// Splits rpc_gss_data_t, which was protected, into the sequence number, which must be that of the
/// header (RFC 2203 section 5.3.2.2), and the arguments or results.
pub fn split(data: &[u8]) -> codec::Result<(u32, &[u8])> {
    let mut from = Decoder::new(data);
    Ok((from.u32()?, from.rest()))
}

/// What an [`IntegrityBody`] has before `len` bytes of arguments or results, a multiple of four.
/// The MIC covers the last four of these bytes and what follows; it comes at the end, as opaque.
pub fn integrity_head(sequence: u32, len: usize) -> [u8; INTEGRITY_HEAD_LEN] {
    debug_assert_eq!(len % 4, 0, "XDR has whole words");
    let mut head = [0; INTEGRITY_HEAD_LEN];
    head[..4].copy_from_slice(&(4 + len as u32).to_be_bytes());
    head[4..].copy_from_slice(&sequence.to_be_bytes());
    head
}

/// Encoded length of a verifier with a MIC of `mic` bytes.
pub const fn verifier_len(mic: usize) -> usize {
    8 + roundup(mic)
}

/// Encoded length of `len` bytes of arguments or results with integrity.
pub const fn integrity_len(len: usize, mic: usize) -> usize {
    INTEGRITY_HEAD_LEN + roundup(len) + 4 + roundup(mic)
}

/// Encoded length of `len` bytes of arguments or results with privacy, to which wrapping adds
/// `overhead` bytes.
pub const fn privacy_len(len: usize, overhead: usize) -> usize {
    4 + roundup(4 + roundup(len) + overhead)
}

#[cfg(test)]
mod tests;
