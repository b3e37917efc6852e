//! GETACL and SETACL of NFS_ACL version 3. The ACLs are those of the exported file system, whose
//! kernel code checks and inherits them.

use super::attributes::stat;
use super::{FileSystem, Identity, Inode, Result, inode::proc_path, status};
use nfsrdma_xdr::nfs_acl::{AclEntry, AclLists, GetaclArgs, GetaclOk, GetaclRes, SetaclRes, mask};
use nfsrdma_xdr::nfs3::{FileHandle, Reply, Status};
use nfsrdma_xdr::posix_acl::{ACCESS_NAME, DEFAULT_NAME, PosixAcl};
use rustix::fs::XattrFlags;
use rustix::io::Errno;

/// Longest value that is read, which is more than the entries of any file system need.
const VALUE_MAX: usize = 64 * 1024;

/// The ACLs of a SETACL. As with Linux's server, an empty or missing list removes the ACL.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewAcls {
    pub access: PosixAcl,
    pub default: PosixAcl,
}

impl NewAcls {
    /// Decodes the arguments; `None` for arguments that Linux's server does not decode.
    pub fn decode(lists: &AclLists) -> Option<Self> {
        let list = |bit, count, entries: &[AclEntry], default| {
            if lists.mask & bit == 0 {
                return Some(PosixAcl::default());
            }
            if count as usize != entries.len() {
                return None;
            }
            PosixAcl::from_wire(entries, default).ok()
        };
        if lists.mask & !mask::ALL != 0 {
            return None;
        }
        Some(NewAcls {
            access: list(mask::ACL, lists.acl_count, &lists.acl, false)?,
            default: list(
                mask::DEFAULT_ACL,
                lists.default_count,
                &lists.default_acl,
                true,
            )?,
        })
    }
}

impl FileSystem {
    pub fn getacl(&self, args: &GetaclArgs) -> GetaclRes {
        let inode = match self.resolve(&args.object) {
            Ok(inode) => inode,
            Err(status) => return Reply::Fail(status, None),
        };
        if args.mask & !mask::ALL != 0 {
            return Reply::Fail(Status::Inval, self.post(&inode));
        }
        match self.server(|| lists(&inode, args.mask)) {
            Ok(lists) => Reply::Ok(GetaclOk {
                attributes: self.post(&inode),
                lists,
            }),
            Err(status) => Reply::Fail(status, self.post(&inode)),
        }
    }

    pub fn setacl(&self, who: &Identity, object: &FileHandle, new: &NewAcls) -> SetaclRes {
        let inode = match self.resolve(object) {
            Ok(inode) => inode,
            Err(status) => return Reply::Fail(status, None),
        };
        let change = self.begin(&inode, false);
        let done = self.assume(who).and_then(|()| {
            set(&inode, ACCESS_NAME, &new.access)?;
            match inode.is_directory() || !new.default.is_empty() {
                true => set(&inode, DEFAULT_NAME, &new.default),
                false => Ok(()),
            }
        });
        let after = self.end(change, &inode).after;
        match done {
            Ok(()) => Reply::Ok(after),
            Err(status) => Reply::Fail(status, after),
        }
    }
}

/// The ACL of `inode` in the extended attribute `name`, if it has one.
fn get(inode: &Inode, name: &str) -> Result<Option<PosixAcl>> {
    let mut value = vec![0; VALUE_MAX];
    match rustix::fs::getxattr(proc_path(inode.fd()), name, &mut value[..]) {
        Ok(len) => match PosixAcl::from_xattr(&value[..len]) {
            Ok(acl) => Ok(Some(acl)),
            Err(_) => Err(Status::Io),
        },
        // The object has no ACL, or this kind of object or file system has none.
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(error) => Err(status::of(error)),
    }
}

fn set(inode: &Inode, name: &str, acl: &PosixAcl) -> Result<()> {
    let path = proc_path(inode.fd());
    if acl.is_empty() {
        return match rustix::fs::removexattr(path, name) {
            Ok(()) | Err(Errno::NODATA) => Ok(()),
            Err(error) => Err(status::of(error)),
        };
    }
    rustix::fs::setxattr(path, name, &acl.to_xattr(), XattrFlags::empty()).map_err(status::of)
}

fn lists(inode: &Inode, asked: u32) -> Result<AclLists> {
    let stat = stat(inode.fd())?;
    let mut lists = AclLists {
        mask: asked,
        ..AclLists::default()
    };
    if asked & (mask::ACL | mask::ACL_COUNT) != 0 {
        let acl = get(inode, ACCESS_NAME)?.unwrap_or_else(|| PosixAcl::of_mode(stat.st_mode));
        let entries = acl.to_wire(false, stat.st_uid, stat.st_gid);
        lists.acl_count = entries.len() as u32;
        if asked & mask::ACL != 0 {
            lists.acl = entries;
        }
    }
    if asked & (mask::DEFAULT_ACL | mask::DEFAULT_ACL_COUNT) != 0
        && let Some(acl) = get(inode, DEFAULT_NAME)?
    {
        let entries = acl.to_wire(true, stat.st_uid, stat.st_gid);
        lists.default_count = entries.len() as u32;
        if asked & mask::DEFAULT_ACL != 0 {
            lists.default_acl = entries;
        }
    }
    Ok(lists)
}
