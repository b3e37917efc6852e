//! What is checked of each reply and of each name, either way.

use super::api::*;
use crate::transport::Reply as RpcReply;
use nfsrdma_xdr::codec::{Decode, Decoder};
use nfsrdma_xdr::nfs3::*;
use nfsrdma_xdr::rpc::{self, Accepted, Denial, ReplyBody};

/// The server contradicted itself or the call.
pub(super) fn misbehaved<T>(what: impl Into<String>) -> NfsResult<T> {
    Err(NfsError::PeerMisbehaved(what.into()))
}

/// The results in an RPC reply.
pub(crate) fn results<'r, P: Procedure>(reply: &'r RpcReply) -> NfsResult<P::Res<'r>> {
    let mut from = match reply.placed {
        Some(placed) => Decoder::with_placed(reply.message(), placed),
        None => Decoder::new(reply.message()),
    };
    let decoded = |error| NfsError::PeerMisbehaved(format!("reply to {}: {error}", P::NAME));
    let header = rpc::Reply::decode(&mut from).map_err(decoded)?;
    if header.xid != reply.xid {
        return misbehaved("the XIDs of header and message differ");
    }
    accept(&header.body)?;
    // What follows the results is left alone: some servers leave the padding of data that
    // went by a Write chunk in the stream.
    P::Res::decode(&mut from).map_err(decoded)
}

/// An error unless the call was run.
pub(crate) fn accept(body: &ReplyBody<'_>) -> NfsResult<()> {
    let why = match body {
        ReplyBody::Accepted(_, Accepted::Success) => return Ok(()),
        ReplyBody::Accepted(_, Accepted::ProgUnavail) => "it does not have the program".to_owned(),
        ReplyBody::Accepted(_, Accepted::ProgMismatch { low, high }) => {
            format!("it has versions {low} to {high} of the program")
        }
        ReplyBody::Accepted(_, Accepted::ProcUnavail) => {
            "it does not have the procedure".to_owned()
        }
        ReplyBody::Accepted(_, Accepted::GarbageArgs) => {
            "it could not read the arguments".to_owned()
        }
        ReplyBody::Accepted(_, Accepted::SystemErr) => "it had an error of its own".to_owned(),
        ReplyBody::Denied(Denial::RpcMismatch { low, high }) => {
            format!("it speaks RPC versions {low} to {high}")
        }
        ReplyBody::Denied(Denial::AuthError(status)) => {
            let why = format!("it did not accept the credential ({})", status.name());
            return Err(NfsError::Denied(why));
        }
    };
    Err(NfsError::Refused(why))
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
