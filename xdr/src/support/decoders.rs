//! A list of all decoders for arbitrary bytes, which property tests and fuzz targets use.

use crate::codec::{Decode, Encode};
use crate::nfs3::*;
use crate::private_data::PrivateData;
use crate::record::RecordReader;
use crate::rpcrdma::Header;
use crate::{mount3, nfs_acl, nlm4, nsm, rpc, rpcbind, rpcsec_gss};

/// A decoder with the name of what it decodes. It panics if it decodes a value that does not
/// survive being encoded and decoded again.
pub type Check = (&'static str, fn(&[u8]));

macro_rules! decoders {
    ($($type:ty),* $(,)?) => {
        &[$((stringify!($type), |bytes| {
            let Ok(value) = <$type>::from_xdr(bytes) else { return };
            let again = value.to_xdr();
            assert!(again.len() <= bytes.len(), "encoding again made it longer");
            assert_eq!(<$type>::from_xdr(&again).as_ref(), Ok(&value));
        }),)*]
    };
}

/// Decoders of types.
pub const TYPES: &[Check] = decoders![
    Void,
    GetattrArgs,
    GetattrRes,
    SetattrArgs,
    SetattrRes,
    LookupArgs<'_>,
    LookupRes,
    AccessArgs,
    AccessRes,
    ReadlinkArgs,
    ReadlinkRes<'_>,
    ReadArgs,
    ReadRes<'_>,
    WriteArgs<'_>,
    WriteRes,
    CreateArgs<'_>,
    CreateRes,
    MkdirArgs<'_>,
    SymlinkArgs<'_>,
    MknodArgs<'_>,
    RemoveArgs<'_>,
    RemoveRes,
    RenameArgs<'_>,
    RenameRes,
    LinkArgs<'_>,
    LinkRes,
    ReaddirArgs,
    ReaddirRes<'_>,
    ReaddirplusArgs,
    ReaddirplusRes<'_>,
    RootArgs,
    FsstatRes,
    FsinfoRes,
    PathconfRes,
    CommitArgs,
    CommitRes,
    Path<'_>,
    mount3::MountArgs<'_>,
    mount3::MountRes,
    mount3::MountList<'_>,
    mount3::Exports<'_>,
    nlm4::LockArgs<'_>,
    nlm4::TestArgs<'_>,
    nlm4::CancelArgs<'_>,
    nlm4::UnlockArgs<'_>,
    nlm4::Res<'_>,
    nlm4::TestRes<'_>,
    nlm4::Notify<'_>,
    nsm::Monitor<'_>,
    nsm::StatRes,
    nsm::StateChange<'_>,
    nsm::HostStatus<'_>,
    nfs_acl::GetaclArgs,
    nfs_acl::GetaclRes,
    nfs_acl::SetaclArgs,
    nfs_acl::SetaclRes,
    rpcbind::Mapping,
    rpcbind::List<rpcbind::Mapping>,
    rpcbind::Binding<'_>,
    rpcbind::List<rpcbind::Binding<'_>>,
    rpc::AuthSys<'_>,
    rpc::Auth<'_>,
    rpc::Call<'_>,
    rpc::Reply<'_>,
    rpcsec_gss::Credential<'_>,
    rpcsec_gss::InitArgs<'_>,
    rpcsec_gss::InitRes<'_>,
    rpcsec_gss::IntegrityBody<'_>,
    rpcsec_gss::PrivacyBody<'_>,
];

/// Decoders that do not belong to an XDR type.
pub const OTHERS: &[Check] = &[
    ("Header", |bytes| {
        let Ok((header, len)) = Header::parse(bytes) else {
            return;
        };
        assert_eq!(header.encoded_len(), len);
        // Only a boolean has several forms.
        let again = [&header.to_xdr(), &bytes[len..]].concat();
        assert_eq!(Header::parse(&again), Ok((header, len)));
    }),
    ("PrivateData", |bytes| {
        if let Some(data) = PrivateData::parse(bytes) {
            assert_eq!(PrivateData::parse(&data.encode()), Some(data));
        }
    }),
    ("RecordReader", |bytes| {
        let mut reader = RecordReader::new(bytes.len(), 16);
        let mut input = bytes;
        while !input.is_empty() && reader.read(&mut input).is_ok() {}
    }),
    ("universal address", |bytes| {
        if let Some(address) = rpcbind::parse_universal_address(bytes) {
            let text = rpcbind::universal_address(&address);
            assert_eq!(
                rpcbind::parse_universal_address(text.as_bytes()),
                Some(address)
            );
        }
    }),
];

/// Runs every decoder over `bytes`.
pub fn decode_with_all(bytes: &[u8]) {
    for (_, check) in TYPES.iter().chain(OTHERS) {
        check(bytes);
    }
}
