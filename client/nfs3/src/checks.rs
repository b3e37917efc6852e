//! What is checked of each reply and of each name, either way.

use super::api::*;
use nfsrdma_xdr::nfs3::*;

/// The server contradicted itself or the call.
pub(super) fn misbehaved<T>(what: impl Into<String>) -> NfsResult<T> {
    Err(NfsError::PeerMisbehaved(what.into()))
}

/// A name to send: a component (RFC 1813 leaves more open than a directory can hold).
pub(super) fn component(name: &[u8]) -> NfsResult<Name<'_>> {
    match Name(name) {
        name if name.is_component() => Ok(name),
        Name(long) if long.len() > NAME_MAX => Err(NfsError::Status(Status::NameTooLong)),
        _ => Err(NfsError::Status(Status::Inval)),
    }
}

pub(super) fn at<'a>(dir: &FileHandle, name: &'a [u8]) -> NfsResult<DirOp<'a>> {
    Ok(DirOp {
        dir: *dir,
        name: component(name)?,
    })
}

/// A handle from the server. ("nfs_fh3" has no lower bound; an empty one names nothing.)
pub(super) fn handle(handle: FileHandle) -> NfsResult<FileHandle> {
    if handle.as_bytes().is_empty() {
        return misbehaved("an empty file handle");
    }
    Ok(handle)
}

pub(super) fn made(created: Created) -> NfsResult<Made> {
    Ok(Made {
        object: created.object.map(handle).transpose()?,
        attributes: created.attributes,
        dir: created.dir,
    })
}

pub(super) fn entry(
    fileid: u64,
    name: Name<'_>,
    cookie: u64,
    attributes: Option<Attributes>,
    object: Option<FileHandle>,
) -> NfsResult<DirEntry> {
    if !name.is_component() {
        return misbehaved("a directory entry's name is empty or has a slash or NUL");
    }
    Ok(DirEntry {
        fileid,
        name: name.0.into(),
        cookie,
        attributes,
        handle: object.filter(|h| !h.as_bytes().is_empty()),
    })
}
