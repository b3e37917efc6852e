//! Compares the NFSv3, MOUNT, portmap and RPC codecs with the independent crate `nfs3_types`: it
//! decodes our encodings completely and encodes the same bytes, which we decode as the same value.
//! Fields that could be exchanged unnoticed are compared one by one.

use nfs3_types::xdr_codec::{Pack, Unpack};
use nfs3_types::{
    mount as their_mount, nfs3 as theirs, portmap as their_portmap, rpc as their_rpc,
};
use nfsrdma_xdr::codec::{Decode, Encode};
use nfsrdma_xdr::nfs3::*;
use nfsrdma_xdr::support::strategies;
use nfsrdma_xdr::{mount3, rpc, rpcbind};
use proptest::prelude::*;

/// Decodes all of `bytes` as a value of its type.
fn unpack<T: Unpack>(bytes: &[u8]) -> T {
    let mut input = bytes;
    let (value, taken) = T::unpack(&mut input).expect("they read what we write");
    assert_eq!(taken, bytes.len(), "they count the same bytes");
    assert!(input.is_empty(), "they read to the end");
    value
}

fn pack(value: &impl Pack) -> Vec<u8> {
    let mut bytes = Vec::new();
    value.pack(&mut bytes).expect("they write what they read");
    bytes
}

macro_rules! agree {
    ($($strategy:ident: $ours:ty = $theirs:ty),* $(,)?) => {
        proptest! {
            $(
                #[test]
                fn $strategy(value in strategies::$strategy()) {
                    let bytes = value.to_xdr();
                    let back = pack(&unpack::<$theirs>(&bytes));
                    prop_assert_eq!(&back, &bytes);
                    let decoded = <$ours>::from_xdr(&back);
                    prop_assert_eq!(decoded.as_ref(), Ok(&value));
                }
            )*
        }
    };
}

agree! {
    status: Status = theirs::nfsstat3,
    file_type: FileType = theirs::ftype3,
    stable: Stable = theirs::stable_how,
    set_time: SetTime = theirs::set_atime,
    wcc_data: WccData = theirs::wcc_data,
    getattr_args: GetattrArgs = theirs::GETATTR3args,
    getattr_res: GetattrRes = theirs::GETATTR3res,
    setattr_args: SetattrArgs = theirs::SETATTR3args,
    setattr_res: SetattrRes = theirs::SETATTR3res,
    lookup_args: LookupArgs<'_> = theirs::LOOKUP3args<'_>,
    lookup_res: LookupRes = theirs::LOOKUP3res,
    access_args: AccessArgs = theirs::ACCESS3args,
    access_res: AccessRes = theirs::ACCESS3res,
    readlink_args: ReadlinkArgs = theirs::READLINK3args,
    readlink_res: ReadlinkRes<'_> = theirs::READLINK3res<'_>,
    read_args: ReadArgs = theirs::READ3args,
    read_res: ReadRes<'_> = theirs::READ3res<'_>,
    write_args: WriteArgs<'_> = theirs::WRITE3args<'_>,
    write_res: WriteRes = theirs::WRITE3res,
    create_args: CreateArgs<'_> = theirs::CREATE3args<'_>,
    create_res: CreateRes = theirs::CREATE3res,
    mkdir_args: MkdirArgs<'_> = theirs::MKDIR3args<'_>,
    symlink_args: SymlinkArgs<'_> = theirs::SYMLINK3args<'_>,
    // Their type has no form for what MKNOD cannot create.
    mknod_special: MknodWhat = theirs::mknoddata3,
    remove_args: RemoveArgs<'_> = theirs::REMOVE3args<'_>,
    remove_res: RemoveRes = theirs::REMOVE3res,
    rename_args: RenameArgs<'_> = theirs::RENAME3args<'_, '_>,
    rename_res: RenameRes = theirs::RENAME3res,
    link_args: LinkArgs<'_> = theirs::LINK3args<'_>,
    link_res: LinkRes = theirs::LINK3res,
    readdir_args: ReaddirArgs = theirs::READDIR3args,
    readdir_res: ReaddirRes<'_> = theirs::READDIR3res<'_>,
    readdirplus_args: ReaddirplusArgs = theirs::READDIRPLUS3args,
    readdirplus_res: ReaddirplusRes<'_> = theirs::READDIRPLUS3res<'_>,
    root_args: RootArgs = theirs::FSSTAT3args,
    fsstat_res: FsstatRes = theirs::FSSTAT3res,
    fsinfo_res: FsinfoRes = theirs::FSINFO3res,
    pathconf_res: PathconfRes = theirs::PATHCONF3res,
    commit_args: CommitArgs = theirs::COMMIT3args,
    commit_res: CommitRes = theirs::COMMIT3res,
    mount_args: mount3::MountArgs<'_> = their_mount::dirpath<'_>,
    mount_res: mount3::MountRes = their_mount::mountres3<'_>,
    mount_list: mount3::MountList<'_> = their_mount::mountlist<'_, '_>,
    exports: mount3::Exports<'_> = their_mount::exports<'_, '_>,
    mapping: rpcbind::Mapping = their_portmap::mapping,
    mappings: rpcbind::List<rpcbind::Mapping> = their_portmap::pmaplist,
    auth_sys: rpc::AuthSys<'_> = their_rpc::auth_unix,
}

proptest! {
    /// Their flavors end at 3 and their auth_stat at 7; larger values are replaced by ones that
    /// they know.
    #[test]
    fn rpc_headers(call in strategies::call(), reply in strategies::rpc_reply()) {
        let known = |auth| match auth {
            rpc::Auth::Other { flavor: 4.., body } => {
                rpc::Auth::Other { flavor: rpc::flavor::SHORT, body }
            }
            auth => auth,
        };
        let call = rpc::Call {
            credential: known(call.credential),
            verifier: known(call.verifier),
            ..call
        };
        let back = pack(&unpack::<their_rpc::rpc_msg<'_, '_>>(&call.to_xdr()));
        prop_assert_eq!(rpc::Call::from_xdr(&back), Ok(call));
        let body = match reply.body {
            rpc::ReplyBody::Accepted(verifier, status) => {
                rpc::ReplyBody::Accepted(known(verifier), status)
            }
            rpc::ReplyBody::Denied(rpc::Denial::AuthError(status)) if status as u32 > 7 => {
                rpc::ReplyBody::Denied(rpc::Denial::AuthError(rpc::AuthStat::Failed))
            }
            body => body,
        };
        let reply = rpc::Reply { body, ..reply };
        let back = pack(&unpack::<their_rpc::rpc_msg<'_, '_>>(&reply.to_xdr()));
        prop_assert_eq!(rpc::Reply::from_xdr(&back), Ok(reply));
    }
}

/// All names, numbers and flag values.
#[test]
fn constants() {
    assert_eq!((PROGRAM, VERSION), (theirs::PROGRAM, theirs::VERSION));
    assert_eq!(mount3::PROGRAM, their_mount::PROGRAM);
    assert_eq!(mount3::VERSION, their_mount::VERSION);
    assert_eq!(rpcbind::PROGRAM, their_portmap::PROGRAM);
    assert_eq!(rpcbind::portmap::VERSION, their_portmap::VERSION);
    for number in ProcedureNumber::ALL {
        let them = theirs::NFS_PROGRAM::try_from(*number as u32).unwrap();
        assert_eq!(format!("NFSPROC3_{}", number.label()), them.to_string());
    }
    let status = Status::ALL.iter().map(|status| {
        let them: theirs::nfsstat3 = unpack(&status.to_xdr());
        (status.name(), them.to_string())
    });
    for (ours, them) in status {
        let them = them
            .trim_start_matches("NFS3ERR_")
            .trim_start_matches("NFS3_");
        let plain = them.replace('_', "").replace("ACCES", "ACCESS");
        assert_eq!(ours.to_uppercase(), plain);
    }
    let ours = [
        access::READ,
        access::LOOKUP,
        access::MODIFY,
        access::EXTEND,
        access::DELETE,
        access::EXECUTE,
        fsf::LINK,
        fsf::SYMLINK,
        fsf::HOMOGENEOUS,
        fsf::CANSETTIME,
    ];
    let them = [
        theirs::ACCESS3_READ,
        theirs::ACCESS3_LOOKUP,
        theirs::ACCESS3_MODIFY,
        theirs::ACCESS3_EXTEND,
        theirs::ACCESS3_DELETE,
        theirs::ACCESS3_EXECUTE,
        theirs::FSF3_LINK,
        theirs::FSF3_SYMLINK,
        theirs::FSF3_HOMOGENEOUS,
        theirs::FSF3_CANSETTIME,
    ];
    assert_eq!(ours, them);
}
