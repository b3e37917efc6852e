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

/// Checks a handle from the server: `nfs_fh3` has no minimum length, but an empty one is useless.
pub(crate) fn handle(handle: FileHandle) -> NfsResult<FileHandle> {
    if handle.as_bytes().is_empty() {
        return misbehaved("an empty file handle");
    }
    Ok(handle)
}

pub(crate) fn made(created: Created) -> NfsResult<Made> {
    Ok(Made {
        object: created.object.map(handle).transpose()?,
        attributes: created.attributes,
        dir: created.dir,
    })
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
        handle: object.filter(|h| !h.as_bytes().is_empty()),
    }
}
