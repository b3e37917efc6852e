//! What an error means for a call that was sent more than once.
//!
//! A server without an entry in its duplicate request cache (after a restart, or because the entry
//! is old) runs a retransmitted call again. Since the first transmission has had its effect, MKDIR
//! is then answered with EXIST, and RENAME with NOENT. If the object looks like what the call
//! creates, the call counts as successful; in doubt the error is returned. An exclusive CREATE
//! needs none of this: the server recognises its verifier (RFC 1813 section 3.3.8).

use crate::api::{Cred, Made, Nfs3, NfsError};
use crate::client::Nfs3Client;
use nfsrdma_xdr::nfs3::*;

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

    /// After NOT_SYNC for a guarded SETATTR: whether the attributes are those that it sets.
    pub(crate) async fn set_before(
        &self,
        cred: &Cred,
        object: &FileHandle,
        new: &SetAttributes,
    ) -> Option<WccData> {
        let is = self.getattr(cred, object).await.ok()?;
        let time = |new: SetTime, is: Time| match new {
            SetTime::To(time) => time == is,
            SetTime::Keep | SetTime::ToServerTime => true,
        };
        let set = new.mode.is_none_or(|mode| mode == is.mode & 0o7777)
            && new.uid.is_none_or(|uid| uid == is.uid)
            && new.gid.is_none_or(|gid| gid == is.gid)
            && new.size.is_none_or(|size| size == is.size)
            && time(new.atime, is.atime)
            && time(new.mtime, is.mtime);
        set.then_some(WccData {
            before: None,
            after: Some(is),
        })
    }
}

/// The properties of an object that a call creates.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expected<'a> {
    kind: FileType,
    mode: Option<u32>,
    /// Symbolic links only.
    target: Option<&'a [u8]>,
}

impl<'a> Expected<'a> {
    pub(crate) fn new(kind: FileType, mode: Option<u32>) -> Self {
        Expected {
            kind,
            mode,
            target: None,
        }
    }

    pub(crate) fn symlink(target: &'a [u8]) -> Self {
        Expected {
            kind: FileType::Symlink,
            mode: None,
            target: Some(target),
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
        is.kind == self.kind && owner && mode && untouched
    }
}
