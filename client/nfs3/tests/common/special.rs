//! MKNOD, RMDIR and SETATTR of the server in memory.

use super::{Files, attributes, handle_of};
use nfsrdma_xdr::codec::{Decode, Encode, Encoder};
use nfsrdma_xdr::nfs3::*;
use std::collections::BTreeMap;

#[derive(Default)]
pub struct Special {
    pub nodes: BTreeMap<Vec<u8>, FileType>,
    /// Mode and ctime, in seconds, of what was changed.
    pub set: BTreeMap<Vec<u8>, (u32, u32)>,
}

impl Special {
    /// The attributes of a file that SETATTR changed.
    fn changed(&self, handle: &FileHandle) -> Option<Attributes> {
        let name = handle.as_bytes().strip_prefix(b"f:")?;
        let &(mode, seconds) = self.set.get(name)?;
        let mut now = attributes(FileType::Regular, 0, 2);
        (now.mode, now.ctime.seconds) = (mode, seconds);
        Some(now)
    }
}

/// Runs a call if it is for here.
pub(super) fn run(procedure: u32, args: &[u8], files: &mut Files, to: &mut Encoder) -> bool {
    let wcc = WccData::default;
    match procedure {
        Getattr::NUMBER => {
            let args = GetattrArgs::from_xdr(args).unwrap();
            let Some(attributes) = files.special.changed(&args.object) else {
                return false;
            };
            GetattrRes::Ok(GetattrOk { attributes }).encode(to);
        }
        Setattr::NUMBER => {
            let args = SetattrArgs::from_xdr(args).unwrap();
            let name = args.object.as_bytes().strip_prefix(b"f:").unwrap().to_vec();
            let is = attributes(FileType::Regular, 0, 2);
            let (mode, ctime) = *files
                .special
                .set
                .entry(name.clone())
                .or_insert((is.mode, is.ctime.seconds));
            if args.guard.is_some_and(|guard| guard.seconds != ctime) {
                SetattrRes::Fail(Status::NotSync, wcc()).encode(to);
                return true;
            }
            let new = (args.new.mode.unwrap_or(mode), ctime + 1);
            files.special.set.insert(name, new);
            SetattrRes::Ok(wcc()).encode(to);
        }
        Lookup::NUMBER => {
            let args = LookupArgs::from_xdr(args).unwrap();
            let Some(kind) = files.special.nodes.get(args.what.name.0) else {
                return false;
            };
            LookupRes::Ok(LookupOk {
                object: handle_of(args.what.name.0),
                attributes: Some(attributes(*kind, 0, 4)),
                dir: None,
            })
            .encode(to);
        }
        Mknod::NUMBER => {
            let args = MknodArgs::from_xdr(args).unwrap();
            let name = args.at.name.0;
            let kind = match args.what {
                MknodWhat::Character(..) => FileType::Character,
                MknodWhat::Block(..) => FileType::Block,
                MknodWhat::Socket(_) => FileType::Socket,
                MknodWhat::Fifo(_) => FileType::Fifo,
                MknodWhat::Other(kind) => panic!("MKNOD of {kind:?}"),
            };
            if files.special.nodes.contains_key(name) {
                CreateRes::Fail(Status::Exist, wcc()).encode(to);
                return true;
            }
            files.special.nodes.insert(name.to_vec(), kind);
            CreateRes::Ok(Created {
                object: Some(handle_of(name)),
                attributes: None,
                dir: wcc(),
            })
            .encode(to);
        }
        Rmdir::NUMBER => {
            let args = RemoveArgs::from_xdr(args).unwrap();
            match files.dirs.remove(args.what.name.0) {
                true => RemoveRes::Ok(wcc()),
                false => RemoveRes::Fail(Status::NoEnt, wcc()),
            }
            .encode(to);
        }
        _ => return false,
    }
    true
}
