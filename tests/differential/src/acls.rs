//! Calls that set, show and remove access control lists.

use crate::acl_attribute::{attribute, value};
use crate::call::{Call, Place};
use crate::observe;
use crate::sys::{self, Sys};
use crate::worker::{Worker, c_string, raw};

/// More than the size of an ACL with some hundred entries.
const LONGEST: usize = 1024;

/// Skips an ACL for an object with the set-gid bit whose group is none of the user's. NFS_ACL
/// replaces both ACLs, also one that a local file system leaves alone, and setting an access ACL
/// clears the bit.
fn keeps_set_gid(uid: u32, found: Sys<libc::statx>) -> Sys<()> {
    match found {
        Ok(stat) if uid != 0 && stat.stx_mode & 0o2000 != 0 => Err(libc::ECANCELED),
        _ => Ok(()),
    }
}

impl Worker {
    fn place_keeps_set_gid(&self, place: &Place) -> Sys<()> {
        let path = self.at(place)?.1;
        let found = sys::statx(libc::AT_FDCWD, &path, 0, libc::STATX_BASIC_STATS);
        keeps_set_gid(self.uid, found)
    }

    pub(crate) fn acls(&mut self, call: &Call) -> Sys<(i64, String)> {
        let done = |result: Sys<i64>| result.map(|n| (n, String::new()));
        let shown = |out: &[u8], n: i64| (n, observe::bytes(&out[..n as usize]));
        let mut out = vec![0; LONGEST];
        match *call {
            Call::Setacl {
                ref place,
                default,
                ref entries,
            } => {
                self.place_keeps_set_gid(place)?;
                let path = self.at(place)?.1;
                done(sys::setxattr(&path, attribute(default), &value(entries)))
            }
            Call::Fsetacl {
                slot,
                default,
                ref entries,
            } => {
                let fd = self.fd(slot);
                let mask = libc::STATX_BASIC_STATS;
                keeps_set_gid(self.uid, sys::statx(fd, c"", libc::AT_EMPTY_PATH, mask))?;
                done(sys::fsetxattr(fd, attribute(default), &value(entries)))
            }
            Call::Fgetacl { slot, default } => {
                let n = sys::fgetxattr(self.fd(slot), attribute(default), &mut out)?;
                Ok(shown(&out, n))
            }
            Call::Removexattr {
                ref place,
                ref name,
            } => {
                if name.starts_with("system.") {
                    self.place_keeps_set_gid(place)?;
                }
                done(sys::removexattr(&self.at(place)?.1, &c_string(raw(name))?))
            }
            Call::Getxattr {
                ref place,
                ref name,
            } => {
                let n = sys::getxattr(&self.at(place)?.1, &c_string(raw(name))?, &mut out)?;
                Ok(shown(&out, n))
            }
            Call::Listxattr { ref place } => {
                let n = sys::listxattr(&self.at(place)?.1, &mut out)?;
                // Other attributes exist on the local side only.
                let acls = out[..n as usize]
                    .split_inclusive(|&byte| byte == 0)
                    .filter(|name| name.starts_with(b"system.posix_acl_"));
                let mut names: Vec<_> = acls.map(|name| name.escape_ascii().to_string()).collect();
                names.sort();
                Ok((names.len() as i64, names.concat()))
            }
            _ => Err(libc::ENOSYS),
        }
    }
}
