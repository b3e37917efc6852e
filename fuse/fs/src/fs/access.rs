//! ACCESS: the server decides who may do what.
//!
//! Its answers are kept for each credential, for as long as the attributes that arrived with them are valid and as long as mode,
//! owner, group and ctime stay the same. An answer that a change by this mount may have overtaken is not kept.

use super::attributes::LATELY;
use super::config::Permissions;
use super::error::{FsError, FsResult};
use super::inode::{Inode, Stamp};
use super::objects::Objects;
use super::search::is_current;
use nfsrdma_nfs3::{Cred, Nfs3};
use nfsrdma_xdr::nfs3::{Attributes, access};
use std::sync::Arc;

/// All rights of a file, asked for together so that the answer serves later requests too.
const FILE: u32 = access::READ | access::MODIFY | access::EXTEND | access::EXECUTE;
const DIR: u32 = access::READ | access::LOOKUP | access::MODIFY | access::EXTEND | access::DELETE;

/// The bits of ACCESS for a mask of access(2).
fn wanted(inode: &Inode, mask: i32) -> u32 {
    let mut bits = 0;
    if mask & libc::R_OK != 0 {
        bits |= access::READ;
    }
    if mask & libc::W_OK != 0 {
        bits |= access::MODIFY | access::EXTEND;
        if inode.is_dir() {
            bits |= access::DELETE;
        }
    }
    if mask & libc::X_OK != 0 {
        bits |= if inode.is_dir() {
            access::LOOKUP
        } else {
            access::EXECUTE
        };
    }
    bits
}

/// The flag by which the kernel marks an OPEN for execve(2) (`FMODE_EXEC`). Programs cannot set it:
/// open(2) ignores it, and openat2(2) refuses it.
const OPEN_FOR_EXECVE: i32 = 0x20;

/// The bits of ACCESS for the flags of an OPEN.
pub(super) fn wanted_to_open(flags: i32) -> u32 {
    if flags & OPEN_FOR_EXECVE != 0 {
        // Only the kernel reads the file; the program needs no right to (RFC 1813 section 4.4).
        return access::EXECUTE;
    }
    let mut wanted = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => access::READ,
        libc::O_WRONLY => access::MODIFY,
        _ => access::READ | access::MODIFY,
    };
    if flags & libc::O_TRUNC != 0 {
        wanted |= access::MODIFY;
    }
    wanted
}

fn judge(wanted: u32, granted: u32) -> FsResult<()> {
    if granted & wanted == wanted {
        Ok(())
    } else {
        Err(FsError::AccessDenied)
    }
}

impl<N: Nfs3> Objects<N> {
    /// access(2) and chdir(2), from memory. A refusal counts only if the attributes came lately: the
    /// right may have been given at the server since.
    pub fn access_cached(&self, cred: &Cred, nodeid: u64, mask: i32) -> Option<FsResult<()>> {
        let inode = self.table.get(nodeid)?;
        let wanted = wanted(&inode, mask);
        let now = self.now();
        let judged = {
            let state = inode.state.lock();
            state.fresh(now)?;
            if wanted == 0 {
                return Some(Ok(()));
            }
            let granted = state.granted(cred, wanted, now)?;
            let judged = judge(wanted, granted);
            if judged.is_err() && state.age(now) >= LATELY {
                return None;
            }
            judged
        };
        self.shared.stats.access_hits.add(1);
        Some(judged)
    }

    pub async fn access(&self, cred: &Cred, nodeid: u64, mask: i32) -> FsResult<()> {
        let inode = self.inode(nodeid)?;
        let wanted = wanted(&inode, mask);
        if wanted == 0 {
            return self.fetch(cred, &inode).await.map(|_| ());
        }
        self.ask_access(cred, &inode, wanted).await.map(|_| ())
    }

    /// Checks whether `cred` may write, for truncate(2), which has no open file. SETATTR does not
    /// check it for owners, who may truncate any of their files (RFC 1813 section 4.4).
    pub async fn may_truncate(&self, cred: &Cred, nodeid: u64) -> FsResult<()> {
        if self.config.permissions == Permissions::Kernel {
            return Ok(());
        }
        let inode = self.inode(nodeid)?;
        let asked = self.ask_access(cred, &inode, access::MODIFY);
        asked.await.map(|_| ())
    }

    /// Sends ACCESS. The attributes in its reply, which are returned, are applied, so this also revalidates.
    pub(super) async fn ask_access(
        &self,
        cred: &Cred,
        inode: &Arc<Inode>,
        wanted: u32,
    ) -> FsResult<Option<Attributes>> {
        self.shared.stats.access_misses.add(1);
        let all = wanted | if inode.is_dir() { DIR } else { FILE };
        let (stamp, before) = (Stamp::now(), inode.state.lock().attributes().copied());
        match self.nfs.access(cred, &inode.handle, all).await {
            Ok((granted, attributes)) => {
                self.apply_post_op_attr(inode, stamp, attributes.as_ref());
                if attributes.is_none() {
                    self.fetch(cred, inode).await?;
                }
                let now = self.now();
                let mut state = inode.state.lock();
                // The answer counts for the attributes of its reply, or, without those, for what was
                // known before and still holds. A change by this mount may have been made after the
                // answer, and an ACL within the same tick of the server's clock shows in no attribute.
                let of = attributes.or(before);
                let current = of.is_some_and(|of| is_current(&state, &of));
                if current && state.undisturbed(stamp) {
                    let until = now + state.fresh_for(now);
                    state.grant(cred, all, granted, until);
                }
                drop(state);
                if granted & wanted != wanted {
                    self.superuser.refused();
                }
                judge(wanted, granted).map(|()| attributes)
            }
            Err(error) => Err(self.note_error(inode, error)),
        }
    }
}
