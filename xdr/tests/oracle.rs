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

fn same_time(ours: Time, theirs: theirs::nfstime3) -> bool {
    (ours.seconds, ours.nanoseconds) == (theirs.seconds, theirs.nseconds)
}

fn option<T: Pack + Unpack>(theirs: theirs::Nfs3Option<T>) -> Option<T> {
    match theirs {
        theirs::Nfs3Option::Some(value) => Some(value),
        theirs::Nfs3Option::None => None,
    }
}

proptest! {
    #[test]
    fn fields_of_attributes(ours in strategies::attributes()) {
        let them: theirs::fattr3 = unpack(&ours.to_xdr());
        prop_assert_eq!(ours.kind as u32, them.type_ as u32);
        prop_assert_eq!(
            (ours.mode, ours.nlink, ours.uid, ours.gid),
            (them.mode, them.nlink, them.uid, them.gid)
        );
        prop_assert_eq!(
            (ours.size, ours.used, ours.fsid, ours.fileid),
            (them.size, them.used, them.fsid, them.fileid)
        );
        prop_assert_eq!(
            (ours.rdev.major, ours.rdev.minor),
            (them.rdev.specdata1, them.rdev.specdata2)
        );
        prop_assert!(same_time(ours.atime, them.atime));
        prop_assert!(same_time(ours.mtime, them.mtime));
        prop_assert!(same_time(ours.ctime, them.ctime));
    }

    #[test]
    fn fields_of_wcc_attributes(ours in strategies::wcc_attributes()) {
        let them: theirs::wcc_attr = unpack(&ours.to_xdr());
        prop_assert_eq!(ours.size, them.size);
        prop_assert!(same_time(ours.mtime, them.mtime));
        prop_assert!(same_time(ours.ctime, them.ctime));
    }

    #[test]
    fn fields_of_set_attributes(ours in strategies::set_attributes()) {
        let them: theirs::sattr3 = unpack(&ours.to_xdr());
        prop_assert_eq!(
            (ours.mode, ours.uid, ours.gid, ours.size),
            (option(them.mode), option(them.uid), option(them.gid), option(them.size))
        );
        let atime = match them.atime {
            theirs::set_atime::DONT_CHANGE => ours.atime == SetTime::Keep,
            theirs::set_atime::SET_TO_SERVER_TIME => ours.atime == SetTime::ToServerTime,
            theirs::set_atime::SET_TO_CLIENT_TIME(them) =>
                matches!(ours.atime, SetTime::To(time) if same_time(time, them)),
        };
        let mtime = match them.mtime {
            theirs::set_mtime::DONT_CHANGE => ours.mtime == SetTime::Keep,
            theirs::set_mtime::SET_TO_SERVER_TIME => ours.mtime == SetTime::ToServerTime,
            theirs::set_mtime::SET_TO_CLIENT_TIME(them) =>
                matches!(ours.mtime, SetTime::To(time) if same_time(time, them)),
        };
        prop_assert!(atime && mtime);
    }

    #[test]
    fn fields_of_lookup_ok(ours in strategies::lookup_ok()) {
        let them: theirs::LOOKUP3resok = unpack(&ours.to_xdr());
        prop_assert_eq!(ours.object.as_bytes(), them.object.data.as_ref());
        let fileid = |a: Option<Attributes>| a.map(|a| a.fileid);
        let their_fileid = |a| option::<theirs::fattr3>(a).map(|a| a.fileid);
        prop_assert_eq!(fileid(ours.attributes), their_fileid(them.obj_attributes));
        prop_assert_eq!(fileid(ours.dir), their_fileid(them.dir_attributes));
    }

    #[test]
    fn fields_of_read_and_write(read in strategies::read_ok(), write in strategies::write_args()) {
        let them: theirs::READ3resok<'_> = unpack(&read.to_xdr());
        prop_assert_eq!((read.count, read.eof), (them.count, them.eof));
        prop_assert_eq!(read.data, nfsrdma_xdr::codec::Payload::Inline(them.data.as_ref()));
        let them: theirs::WRITE3args<'_> = unpack(&write.to_xdr());
        prop_assert_eq!((write.offset, write.count), (them.offset, them.count));
        prop_assert_eq!(write.stable as u32, them.stable as u32);
        prop_assert_eq!(write.data, nfsrdma_xdr::codec::Payload::Inline(them.data.as_ref()));
    }

    #[test]
    fn fields_of_rename_and_link(
        rename in strategies::rename_args(), link in strategies::link_args(),
    ) {
        let them: theirs::RENAME3args<'_, '_> = unpack(&rename.to_xdr());
        prop_assert_eq!(rename.from.dir.as_bytes(), them.from.dir.data.as_ref());
        prop_assert_eq!(rename.from.name.0, them.from.name.as_ref());
        prop_assert_eq!(rename.to.dir.as_bytes(), them.to.dir.data.as_ref());
        prop_assert_eq!(rename.to.name.0, them.to.name.as_ref());
        let them: theirs::LINK3args<'_> = unpack(&link.to_xdr());
        prop_assert_eq!(link.file.as_bytes(), them.file.data.as_ref());
        prop_assert_eq!(link.link.dir.as_bytes(), them.link.dir.data.as_ref());
    }

    #[test]
    fn fields_of_directories(
        args in strategies::readdirplus_args(), entry in strategies::entry_plus(),
    ) {
        let them: theirs::READDIRPLUS3args = unpack(&args.to_xdr());
        prop_assert_eq!(args.cookie, them.cookie);
        prop_assert_eq!(args.verifier.0, them.cookieverf.0);
        prop_assert_eq!((args.dircount, args.maxcount), (them.dircount, them.maxcount));
        let them: theirs::entryplus3<'_> = unpack(&entry.to_xdr());
        prop_assert_eq!((entry.fileid, entry.cookie), (them.fileid, them.cookie));
        prop_assert_eq!(entry.name.0, them.name.as_ref());
    }

    #[test]
    fn fields_of_file_systems(
        stat in strategies::fsstat_ok(), info in strategies::fsinfo_ok(),
        conf in strategies::pathconf_ok(),
    ) {
        let them: theirs::FSSTAT3resok = unpack(&stat.to_xdr());
        prop_assert_eq!(
            (stat.total_bytes, stat.free_bytes, stat.available_bytes),
            (them.tbytes, them.fbytes, them.abytes)
        );
        prop_assert_eq!(
            (stat.total_files, stat.free_files, stat.available_files, stat.invarsec),
            (them.tfiles, them.ffiles, them.afiles, them.invarsec)
        );
        let them: theirs::FSINFO3resok = unpack(&info.to_xdr());
        prop_assert_eq!(
            (info.rtmax, info.rtpref, info.rtmult, info.wtmax, info.wtpref, info.wtmult),
            (them.rtmax, them.rtpref, them.rtmult, them.wtmax, them.wtpref, them.wtmult)
        );
        prop_assert_eq!(
            (info.dtpref, info.max_file_size, info.properties),
            (them.dtpref, them.maxfilesize, them.properties)
        );
        prop_assert!(same_time(info.time_delta, them.time_delta));
        let them: theirs::PATHCONF3resok = unpack(&conf.to_xdr());
        prop_assert_eq!((conf.link_max, conf.name_max), (them.linkmax, them.name_max));
        prop_assert_eq!(
            (conf.no_trunc, conf.chown_restricted, conf.case_insensitive, conf.case_preserving),
            (them.no_trunc, them.chown_restricted, them.case_insensitive, them.case_preserving)
        );
    }

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

    #[test]
    fn fields_of_credentials(ours in strategies::auth_sys()) {
        let them: their_rpc::auth_unix = unpack(&ours.to_xdr());
        prop_assert_eq!((ours.stamp, ours.uid, ours.gid), (them.stamp, them.uid, them.gid));
        prop_assert_eq!(ours.machine, them.machinename.as_ref());
        prop_assert_eq!(&ours.groups[..], &them.gids[..]);
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
