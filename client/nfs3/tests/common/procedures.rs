//! What the server in memory does for a call.

use super::{Files, Manners, ROOT, attributes, handle_of, special};
use nfsrdma_xdr::codec::{Decode, Encode, Encoder, Payload};
use nfsrdma_xdr::mount3;
use nfsrdma_xdr::nfs3::*;
use nfsrdma_xdr::rpc::Call;
use parking_lot::Mutex;

/// Runs a call: results, and the DDP-eligible result if it is to be placed.
pub(super) fn run(
    files: &Mutex<Files>,
    call: &Call<'_>,
    args: &[u8],
    placed: bool,
    manners: &Manners,
) -> (Vec<u8>, Vec<u8>) {
    let mut to = Encoder::default();
    let mut data = Vec::new();
    let mut files = files.lock();
    if call.program == mount3::PROGRAM {
        if call.procedure == 1 {
            mount3::MountRes::Ok(mount3::Mounted {
                root: FileHandle::new(ROOT).unwrap(),
                flavors: [1].into_iter().collect(),
            })
            .encode(&mut to);
        }
        return (to.into_vec(), data);
    }
    let name_of = |handle: &FileHandle| handle.as_bytes().strip_prefix(b"f:").map(<[u8]>::to_vec);
    let dir = Some(attributes(FileType::Directory, 4096, 1));
    if special::run(call.procedure, args, &mut files, &mut to) {
        return (to.into_vec(), data);
    }
    match call.procedure {
        0 => {}
        1 => {
            let args = GetattrArgs::from_xdr(args).unwrap();
            let found = match name_of(&args.object) {
                None => Some(attributes(FileType::Directory, 4096, 1)),
                Some(name) => files
                    .files
                    .get(&name)
                    .map(|f| attributes(FileType::Regular, f.len(), 2)),
            };
            match found {
                Some(attributes) => GetattrRes::Ok(GetattrOk { attributes }),
                None => GetattrRes::Fail(Status::Stale, Void {}),
            }
            .encode(&mut to);
        }
        3 => {
            let args = LookupArgs::from_xdr(args).unwrap();
            let name = args.what.name.0;
            let other = files.aliases.get(name).copied();
            let kind = if files.dirs.contains(name) {
                Some(FileType::Directory)
            } else if files.links.contains_key(name) {
                Some(FileType::Symlink)
            } else {
                other.map(|_| FileType::Regular)
            };
            match files.files.get(name) {
                None if kind.is_some() => LookupRes::Ok(LookupOk {
                    object: other.unwrap_or(handle_of(name)),
                    attributes: kind.map(|kind| attributes(kind, 0, 3)),
                    dir,
                }),
                Some(file) => LookupRes::Ok(LookupOk {
                    object: handle_of(args.what.name.0),
                    attributes: Some(attributes(FileType::Regular, file.len(), 2)),
                    dir,
                }),
                None => LookupRes::Fail(Status::NoEnt, dir),
            }
            .encode(&mut to);
        }
        5 => {
            let args = ReadlinkArgs::from_xdr(args).unwrap();
            match files.links.get(&name_of(&args.symlink).unwrap()) {
                Some(path) => {
                    if placed {
                        data = path.clone();
                    }
                    let path = match placed {
                        true => Payload::Placed(path.len() as u32),
                        false => Payload::Inline(path),
                    };
                    ReadlinkRes::Ok(ReadlinkOk {
                        attributes: None,
                        path,
                    })
                }
                None => ReadlinkRes::Fail(Status::Stale, None),
            }
            .encode(&mut to);
        }
        6 => {
            let args = ReadArgs::from_xdr(args).unwrap();
            match files.files.get(&name_of(&args.file).unwrap()) {
                Some(file) => {
                    let from = file.len().min(args.offset as usize);
                    let till = file.len().min(from + args.count as usize);
                    let bytes = &file[from..till];
                    if placed {
                        data = bytes.to_vec();
                    }
                    let length = bytes.len() as u32;
                    ReadRes::Ok(ReadOk {
                        attributes: None,
                        count: length,
                        eof: till == file.len(),
                        data: match placed {
                            true => Payload::Placed(length),
                            false => Payload::Inline(bytes),
                        },
                    })
                }
                None => ReadRes::Fail(Status::Stale, None),
            }
            .encode(&mut to);
        }
        7 => {
            let args = WriteArgs::from_xdr(args).unwrap();
            let Payload::Inline(bytes) = args.data else {
                panic!("put together before")
            };
            assert_eq!(bytes.len(), args.count as usize);
            let file = files.files.entry(name_of(&args.file).unwrap()).or_default();
            let end = args.offset as usize + bytes.len();
            if file.len() < end {
                file.resize(end, 0);
            }
            file[args.offset as usize..end].copy_from_slice(bytes);
            WriteRes::Ok(WriteOk {
                wcc: WccData::default(),
                count: args.count,
                committed: args.stable,
                verifier: Verifier([7; 8]),
            })
            .encode(&mut to);
        }
        10 => {
            let args = SymlinkArgs::from_xdr(args).unwrap();
            let Payload::Inline(path) = args.path else {
                panic!("put together before")
            };
            if files.links.contains_key(args.at.name.0) {
                CreateRes::Fail(Status::Exist, WccData::default()).encode(&mut to);
                return (to.into_vec(), data);
            }
            files.links.insert(args.at.name.0.to_vec(), path.to_vec());
            CreateRes::Ok(Created {
                object: Some(handle_of(args.at.name.0)),
                attributes: None,
                dir: WccData::default(),
            })
            .encode(&mut to);
        }
        12 => {
            let args = RemoveArgs::from_xdr(args).unwrap();
            match files.files.remove(args.what.name.0) {
                Some(_) => RemoveRes::Ok(WccData::default()),
                None => RemoveRes::Fail(Status::NoEnt, WccData::default()),
            }
            .encode(&mut to);
        }
        8 => {
            let args = CreateArgs::from_xdr(args).unwrap();
            let name = args.at.name.0;
            match (files.files.contains_key(name), &args.how) {
                (true, CreateHow::Guarded(_)) => CreateRes::Fail(Status::Exist, WccData::default()),
                _ => {
                    files.files.entry(name.to_vec()).or_default();
                    CreateRes::Ok(Created {
                        object: Some(handle_of(name)),
                        attributes: None,
                        dir: WccData::default(),
                    })
                }
            }
            .encode(&mut to);
        }
        9 => {
            let args = MkdirArgs::from_xdr(args).unwrap();
            match files.dirs.insert(args.at.name.0.to_vec()) {
                true => CreateRes::Ok(Created {
                    object: Some(handle_of(args.at.name.0)),
                    attributes: None,
                    dir: WccData::default(),
                }),
                false => CreateRes::Fail(Status::Exist, WccData::default()),
            }
            .encode(&mut to);
        }
        14 => {
            let args = RenameArgs::from_xdr(args).unwrap();
            match files.files.remove(args.from.name.0) {
                Some(file) => {
                    files.files.insert(args.to.name.0.to_vec(), file);
                    RenameRes::Ok(RenameWcc::default())
                }
                None => RenameRes::Fail(Status::NoEnt, RenameWcc::default()),
            }
            .encode(&mut to);
        }
        15 => {
            let args = LinkArgs::from_xdr(args).unwrap();
            let name = args.link.name.0.to_vec();
            match files.aliases.contains_key(&name) {
                true => LinkRes::Fail(Status::Exist, LinkWcc::default()),
                false => {
                    files.aliases.insert(name, args.file);
                    LinkRes::Ok(LinkWcc::default())
                }
            }
            .encode(&mut to);
        }
        16 => {
            let args = ReaddirArgs::from_xdr(args).unwrap();
            let mut room = args.count as usize - 104;
            let mut entries = Vec::new();
            let mut eof = true;
            for (i, name) in files.files.keys().enumerate().skip(args.cookie as usize) {
                let cost = 28 + name.len().next_multiple_of(4);
                if cost > room {
                    eof = false;
                    break;
                }
                room -= cost;
                entries.push(Entry {
                    fileid: 2,
                    name: Name(name),
                    cookie: i as u64 + 1,
                });
            }
            ReaddirRes::Ok(DirList {
                dir,
                verifier: Verifier::default(),
                entries,
                eof,
            })
            .encode(&mut to);
        }
        19 => FsinfoRes::Ok(FsinfoOk {
            attributes: dir,
            rtmax: manners.rtmax,
            rtpref: manners.rtmax,
            rtmult: 1,
            wtmax: manners.rtmax,
            wtpref: manners.rtmax,
            wtmult: 1,
            dtpref: 32768,
            max_file_size: 1 << 40,
            time_delta: Time::default(),
            properties: 0,
        })
        .encode(&mut to),
        20 => PathconfRes::Ok(PathconfOk {
            attributes: dir,
            link_max: 1,
            name_max: 255,
            no_trunc: true,
            chown_restricted: true,
            case_insensitive: false,
            case_preserving: true,
        })
        .encode(&mut to),
        other => panic!("procedure {other} is not for this server"),
    }
    (to.into_vec(), data)
}
