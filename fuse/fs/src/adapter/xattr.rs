//! Extended attributes; the only ones are those of ACLs.

use super::replies::{reply_held, reply_ok, reply_or_undo, reply_with};
use super::state::Adapter;
use nfsrdma_channel::{Header, Reply};
use nfsrdma_nfs3::Nfs3;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Answers GETXATTR and LISTXATTR: with the bytes, or with their number if the caller asks for that
/// (`size` 0).
fn reply_bytes(reply: Reply, bytes: &[u8], size: u32) {
    match u32::try_from(bytes.len()) {
        Ok(len) if size == 0 => reply.xattr_size(len),
        Ok(len) if len <= size => reply.data(bytes),
        _ => reply.error(libc::ERANGE),
    }
}

impl<N: Nfs3> Adapter<N> {
    pub(super) fn getxattr(
        &self,
        request: &Header,
        node: u64,
        name: &OsStr,
        size: u32,
        reply: Reply,
    ) {
        let tell = move |reply, value: Vec<u8>| reply_bytes(reply, &value, size);
        if let Some(known) = self.fs.getxattr_cached(node, name.as_bytes()) {
            reply_with(reply, known, tell);
            return;
        }
        let (fs, cred, name) = (self.fs.clone(), self.cred(request, node), name.to_owned());
        let reply = self.waiting.hold(request, reply);
        self.start(move || async move {
            reply_held(reply, fs.getxattr(&cred, node, name.as_bytes()).await, tell);
        });
    }

    pub(super) fn listxattr(&self, request: &Header, node: u64, size: u32, reply: Reply) {
        let (fs, cred) = (self.fs.clone(), self.cred(request, node));
        let reply = self.waiting.hold(request, reply);
        self.start(move || async move {
            let names = fs.listxattr(&cred, node).await;
            reply_held(reply, names, |reply, names| {
                reply_bytes(reply, &names, size)
            });
        });
    }

    pub(super) fn setxattr(
        &self,
        request: &Header,
        node: u64,
        name: &OsStr,
        value: &[u8],
        flags: u32,
        reply: Reply,
    ) {
        let (fs, cred, name) = (self.fs.clone(), self.cred(request, node), name.to_owned());
        let value = value.to_vec();
        self.change(request, reply, move |reply| async move {
            let name = name.as_bytes();
            let set = fs.setxattr(&cred, node, name, &value, flags).await;
            // The kernel may have asked for the list before it was changed.
            reply_or_undo(reply, set, reply_ok, |_| fs.change_unheard(node));
        });
    }

    pub(super) fn removexattr(&self, request: &Header, node: u64, name: &OsStr, reply: Reply) {
        let (fs, cred, name) = (self.fs.clone(), self.cred(request, node), name.to_owned());
        self.change(request, reply, move |reply| async move {
            let removed = fs.removexattr(&cred, node, name.as_bytes()).await;
            reply_or_undo(reply, removed, reply_ok, |_| fs.change_unheard(node));
        });
    }
}
