//! Checks of the names that are sent, and of what the server returns.

use crate::api::{DirEntry, Made, NfsError, NfsResult};
use nfsrdma_xdr::nfs3::*;

/// The error for a server that contradicts itself or the call.
pub(crate) fn misbehaved<T>(what: impl Into<String>) -> NfsResult<T> {
    Err(NfsError::misbehaved(what))
}

/// Checks a name to be sent: it must be a component, although RFC 1813 does not require that.
pub(crate) fn component(name: &[u8]) -> NfsResult<Name<'_>> {
    match Name(name) {
        name if name.is_component() => Ok(name),
        Name(long) if long.len() > NAME_MAX => Err(NfsError::Status(Status::NameTooLong)),
        _ => Err(NfsError::Status(Status::Inval)),
    }
}

pub(crate) fn at<'a>(dir: &FileHandle, name: &'a [u8]) -> NfsResult<DirOp<'a>> {
    Ok(DirOp {
        dir: *dir,
        name: component(name)?,
    })
}

/// A handle from the server, if it can be used: `nfs_fh3` has no minimum length, but an empty one is
/// useless, and one that is too long has been decoded as an empty one.
fn usable(handle: FileHandle) -> Option<FileHandle> {
    Some(handle).filter(|handle| !handle.as_bytes().is_empty())
}

pub(crate) fn handle(handle: FileHandle) -> NfsResult<FileHandle> {
    match usable(handle) {
        Some(handle) => Ok(handle),
        None => misbehaved("a file handle that is empty or longer than 64 bytes"),
    }
}

/// Without a handle that can be used, the new object is looked up.
pub(crate) fn made(created: Created) -> Made {
    Made {
        object: created.object.and_then(usable),
        attributes: created.attributes,
        dir: created.dir,
    }
}

pub(crate) fn entry(
    fileid: u64,
    name: Name<'_>,
    cookie: u64,
    attributes: Option<Attributes>,
    object: Option<FileHandle>,
) -> DirEntry {
    DirEntry {
        fileid,
        name: name.0.into(),
        cookie,
        attributes,
        handle: object.and_then(usable),
    }
}
