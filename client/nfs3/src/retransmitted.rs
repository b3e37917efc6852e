//! What an error means for a call that was sent more than once.
//!
//! A server without an entry in its duplicate request cache (after a restart, or because the entry
//! is old) runs a retransmitted call again. Since the first transmission has had its effect, MKDIR
//! is then answered with EXIST, and RENAME with NOENT. If the object looks like what the call
//! creates, the call counts as successful; in doubt the error is returned. An exclusive CREATE
//! needs none of this: the server recognises its verifier (RFC 1813 section 3.3.8).
//!
//! If the process that served a request has died before it answered, another one gets the request again
//! ([`abandon`](nfsrdma_rpcrdma::abandon)). Its calls are judged in the same way. But the exclusive CREATE
//! may have been finished then by its SETATTR, which overwrites the verifier; a mark is left instead
//! (`create.rs`).

use crate::api::{Cred, Made, Nfs3, NfsError};
use crate::client::Nfs3Client;
use nfsrdma_rpcrdma::abandon::is_resent;
use nfsrdma_rpcrdma::transport::Reply as RpcReply;
use nfsrdma_xdr::nfs3::*;

/// Whether the server may have run the call before the one that it has answered: the call was sent more
/// than once, or it is of a request that comes again.
pub(crate) fn may_have_run(reply: &RpcReply) -> bool {
    reply.retransmitted || is_resent()
}

impl Nfs3Client {
    /// After EXIST for a call that creates an object: returns the object there, if it can be the
    /// one that the call created.
    pub(crate) async fn made_before(
        &self,
        cred: &Cred,
        at: DirOp<'_>,
        expected: Expected<'_>,
    ) -> Option<Made> {
        let found = self.lookup(cred, &at.dir, at.name.0).await.ok()?;
        let attributes = match found.attributes {
            Some(attributes) => attributes,
            None => self.getattr(cred, &found.object).await.ok()?,
        };
        if !expected.fits(cred, &attributes) {
            return None;
        }
        if let Some(target) = expected.target {
            let (path, _) = self.readlink(cred, &found.object).await.ok()?;
            if path != target {
                return None;
            }
        }
        Some(Made {
            object: Some(found.object),
            attributes: Some(attributes),
            dir: WccData {
                before: None,
                after: found.dir,
            },
        })
    }

    /// After EXIST for LINK: whether `name` is a link to `file`.
    pub(crate) async fn linked_before(
        &self,
        cred: &Cred,
        file: &FileHandle,
        dir: &FileHandle,
        name: &[u8],
    ) -> bool {
        matches!(self.lookup(cred, dir, name).await, Ok(found) if found.object == *file)
    }

    /// After NOENT for RENAME: whether the old name is gone and the new name exists.
    pub(crate) async fn renamed_before(
        &self,
        cred: &Cred,
        from: (&FileHandle, &[u8]),
        to: (&FileHandle, &[u8]),
    ) -> bool {
        let gone = self.lookup(cred, from.0, from.1).await;
        matches!(gone, Err(NfsError::Status(Status::NoEnt)))
            && self.lookup(cred, to.0, to.1).await.is_ok()
    }
}

/// The properties of an object that a call creates.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expected<'a> {
    kind: FileType,
    mode: Option<u32>,
    /// Symbolic links only.
    target: Option<&'a [u8]>,
    /// The nanoseconds of the atime.
    mark: Option<u32>,
}

impl<'a> Expected<'a> {
    pub(crate) fn new(kind: FileType, mode: Option<u32>) -> Self {
        Expected {
            kind,
            mode,
            target: None,
            mark: None,
        }
    }

    /// A file of an exclusive CREATE, with the mark that its SETATTR leaves.
    pub(crate) fn marked(mark: u32) -> Self {
        Expected {
            mark: Some(mark),
            ..Expected::new(FileType::Regular, None)
        }
    }

    pub(crate) fn symlink(target: &'a [u8]) -> Self {
        Expected {
            target: Some(target),
            ..Expected::new(FileType::Symlink, None)
        }
    }

    fn fits(&self, cred: &Cred, is: &Attributes) -> bool {
        // Servers may map root to another user (RFC 1813 section 4.4), and may clear the set-id
        // bits or set the group ID bit of everything in a directory.
        let owner = is.uid == cred.uid || cred.uid == 0;
        let mode = self.mode.is_none_or(|mode| mode & 0o777 == is.mode & 0o777);
        let untouched = match self.kind {
            FileType::Regular => is.size == 0,
            // Its name and its own `.`; the `..` of a subdirectory would count, too.
            FileType::Directory => is.nlink <= 2,
            _ => true,
        };
        let marked = self.mark.is_none_or(|mark| mark == is.atime.nanoseconds);
        is.kind == self.kind && owner && mode && untouched && marked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Credential;

    fn attributes(kind: FileType) -> Attributes {
        let time = |seconds| Time {
            seconds,
            nanoseconds: 5,
        };
        Attributes {
            kind,
            mode: 0o2640,
            nlink: 1,
            uid: 7,
            gid: 8,
            size: 0,
            used: 0,
            rdev: Default::default(),
            fsid: 1,
            fileid: 2,
            atime: time(1),
            mtime: time(2),
            ctime: time(3),
        }
    }

    /// What another user has made is not what the call made; root's objects may belong to anybody.
    #[test]
    fn an_object_fits_its_owner() {
        let expected = Expected::new(FileType::Regular, Some(0o640));
        let by = |uid| {
            Cred::new(Credential {
                uid,
                gid: 8,
                groups: Vec::new(),
            })
        };
        let is = attributes(FileType::Regular);
        assert!(expected.fits(&by(7), &is) && expected.fits(&by(0), &is));
        assert!(!expected.fits(&by(8), &is));
        let written = Attributes { size: 1, ..is };
        assert!(!expected.fits(&by(7), &written));
        assert!(!expected.fits(&by(7), &attributes(FileType::Socket)));
    }
}
