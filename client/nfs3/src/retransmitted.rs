//! What an error means for a call that was sent more than once.
//!
//! A server that lost its duplicate-request cache (by restarting, or by its age) runs a call
//! again whose reply was lost, and answers as if the caller had asked for what it just got:
//! MKDIR is answered EXIST, RENAME NOENT. Where the object looks like what the call makes,
//! it is taken for that; in doubt the error stands. An exclusive CREATE needs none of this:
//! its verifier tells the server (RFC 1813 section 3.3.8).

use crate::api::{Cred, Made, Nfs3, NfsError};
use crate::client::Nfs3Client;
use nfsrdma_xdr::nfs3::*;

impl Nfs3Client {
    /// EXIST for a call that makes something: the object there, if that can be the one it
    /// made.
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

    /// EXIST for LINK: whether `name` is `file`.
    pub(crate) async fn linked_before(
        &self,
        cred: &Cred,
        file: &FileHandle,
        dir: &FileHandle,
        name: &[u8],
    ) -> bool {
        matches!(self.lookup(cred, dir, name).await, Ok(found) if found.object == *file)
    }

    /// NOENT for RENAME: whether the old name is gone and the new one there.
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

    /// NOT_SYNC for a guarded SETATTR: whether the attributes are those it sets.
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

/// What a call that makes something makes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expected<'a> {
    kind: FileType,
    mode: Option<u32>,
    /// Of a symbolic link.
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
        // Servers give root's things to another user (RFC 1813 section 4.4), and set-id bits
        // to nobody or everything in a directory.
        let owner = is.uid == cred.uid || cred.uid == 0;
        let mode = self.mode.is_none_or(|mode| mode & 0o777 == is.mode & 0o777);
        let untouched = match self.kind {
            FileType::Regular => is.size == 0,
            // Itself, and its name or its parent's count: no directory in it.
            FileType::Directory => is.nlink <= 2,
            _ => true,
        };
        is.kind == self.kind && owner && mode && untouched
    }
}
