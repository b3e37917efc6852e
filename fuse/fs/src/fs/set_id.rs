//! Set-id bits that a WRITE leaves.
//!
//! A server clears the set-id bits of a file when a user other than root writes to it or changes its
//! size. WRITE and SETATTR of an open file are made in the name of who opened it, though. If that was
//! root, and the descriptor was handed to another user, the bits would stay, and this user could put
//! any program into the place of one that runs as root. The kernel says of each write(2) and
//! ftruncate(2) whether its caller may keep the bits (FUSE_WRITE_KILL_SUIDGID and
//! FATTR_KILL_SUIDGID, linux/fuse.h). If not, a SETATTR clears them first.

use super::changing::not_abandoned;
use super::error::{FsError, FsResult};
use super::inode::{Inode, Kind};
use super::objects::Objects;
use super::open_file::OpenFile;
use nfsrdma_nfs3::{Cred, Nfs3};
use nfsrdma_xdr::nfs3::{Attributes, FileType, SetAttributes, Status};
use std::sync::Arc;

const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
const GROUP_EXECUTES: u32 = 0o010;

/// SETATTRs for one write, the last of which is sent without a guard.
const GUARDED_TRIES: u32 = 8;

/// Whether a file is known to have set-id bits.
fn has_set_id(inode: &Inode) -> bool {
    let state = inode.state.lock();
    let known = state.attributes();
    inode.kind == FileType::Regular
        && known.is_some_and(|known| known.mode & (SET_UID | SET_GID) != 0)
}

/// The mode of a file after `writer` has written to it. The set-gid bit of a file that its group may
/// not execute is that of mandatory locks, and stays for who is in the group.
fn written_by(file: &Attributes, writer: &Cred) -> u32 {
    let is_member = writer.gid == file.gid || writer.groups.contains(&file.gid);
    let clears_gid = file.mode & GROUP_EXECUTES != 0 || !is_member;
    let cleared = SET_UID | if clears_gid { SET_GID } else { 0 };
    file.mode & 0o7777 & !cleared
}

/// Whether a write by `writer` clears any bit of the file.
fn is_cleared_by(file: &Attributes, writer: &Cred) -> bool {
    written_by(file, writer) != file.mode & 0o7777
}

impl<N: Nfs3> Objects<N> {
    /// Whether the server would leave set-id bits that the file has, whoever writes to it by
    /// `handle`.
    pub fn leaves_set_id(&self, handle: u64) -> bool {
        let leaves = |file: &Arc<OpenFile>| file.cred.uid == 0 && has_set_id(&file.inode);
        self.files.look(handle, leaves).unwrap_or(false)
    }

    /// Clears the set-id bits that a write by `writer` clears, in the name of who opened the file.
    ///
    /// SETATTR sets the whole mode. So that it does not undo a chmod(2) of somebody else, it is
    /// guarded by the ctime that came with the mode (RFC 1813 section 3.3.2), and the mode is asked
    /// for again if the server answers NFS3ERR_NOT_SYNC.
    pub async fn clear_set_id(self: &Arc<Self>, handle: u64, writer: &Cred) -> FsResult<()> {
        let file = self.file(handle)?;
        let inode = &file.inode;
        // Mostly known. If there is nothing to clear, the write need not wait for earlier data.
        let known = inode.state.lock().attributes().copied();
        if !known.is_some_and(|known| is_cleared_by(&known, writer)) {
            let known = self.fetch(&file.cred, inode).await?;
            if !is_cleared_by(&known, writer) {
                return Ok(());
            }
        }
        let data = inode.data();
        // A WRITE or COMMIT in between would change the ctime.
        let _exclusive = self.exclusively(inode, data).await;
        for tries in 1.. {
            let known = self.fetch(&file.cred, inode).await?;
            if !is_cleared_by(&known, writer) {
                break;
            }
            let new = SetAttributes {
                mode: Some(written_by(&known, writer)),
                ..SetAttributes::default()
            };
            // A file that changes all the time, or a server whose ctime does, must not keep the
            // bits.
            let guard = (tries < GUARDED_TRIES).then_some(known.ctime);
            not_abandoned()?;
            self.not_ended()?;
            let set = self.send_setattr(&file.cred, inode, &new, Kind::Metadata, guard);
            match set.await {
                Err(error) if guard.is_some() && error.status() == Some(Status::NotSync) => {}
                // The server squashes root, so the WRITE itself clears the bits.
                Err(error) if is_refusal(&error) => break,
                result => return result.map(|_| ()),
            }
        }
        Ok(())
    }
}

fn is_refusal(error: &FsError) -> bool {
    matches!(error.status(), Some(Status::Perm | Status::Access))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::attribute_cache::model::attributes;
    use nfsrdma_nfs3::Credential;

    #[test]
    fn a_write_clears_the_bits_that_it_clears_on_a_local_file_system() {
        let writer = |gid, groups: &[u32]| {
            let (uid, groups) = (1, groups.to_vec());
            Arc::new(Credential { uid, gid, groups })
        };
        let file = |mode| Attributes {
            mode,
            gid: 7,
            ..attributes(1, 1)
        };
        let (stranger, member) = (writer(1, &[]), writer(1, &[7]));
        for who in [&stranger, &member, &writer(7, &[])] {
            assert_eq!(written_by(&file(0o4755), who), 0o755);
            assert_eq!(written_by(&file(0o6711), who), 0o711);
            assert_eq!(written_by(&file(0o1644), who), 0o1644);
        }
        assert_eq!(written_by(&file(0o2644), &stranger), 0o644);
        assert_eq!(written_by(&file(0o2644), &member), 0o2644);
        assert_eq!(written_by(&file(0o6644), &member), 0o2644);
    }
}
