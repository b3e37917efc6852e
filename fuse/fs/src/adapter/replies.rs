//! Answers FUSE requests with the results of the file system.
//!
//! A reply that a killed caller no longer gets is *unheard*: `undo` takes back references and open files,
//! and the functions named `*_unheard` mark what the kernel has as out of date and notify it.

use super::convert::attributes;
use super::signals::{Caller, caller};
use super::waiting::Held;
use crate::fs::{Entry, FsResult, Opened};
use nfsrdma_channel::abi::fopen;
use nfsrdma_channel::{self as channel, Reply};
use nfsrdma_rdma::Buf;
use nfsrdma_rdma::contract::Segs;
use nfsrdma_xdr::nfs3::Attributes;
use smallvec::SmallVec;
use std::time::Duration;

pub(super) fn reply_with<T>(reply: Reply, result: FsResult<T>, ok: impl FnOnce(Reply, T)) {
    match result {
        Ok(value) => ok(reply, value),
        Err(error) => reply.error(error.errno()),
    }
}

/// Answers a request that waited. If its caller was killed meanwhile, the kernel does not get the
/// result: `undo` takes back what it stands for (a reference to a node, an open file). It is given
/// `None` if the request failed, which the server may have carried out nevertheless: the reply was
/// lost and the call sent again, or a later call failed.
pub(super) fn reply_or_undo<T>(
    reply: Held,
    result: FsResult<T>,
    ok: impl FnOnce(Reply, T),
    undo: impl FnOnce(Option<T>),
) {
    match reply.take() {
        Some(reply) => reply_with(reply, result, ok),
        None => undo(result.ok()),
    }
}

/// As [`reply_or_undo`], for results that need not be taken back.
pub(super) fn reply_held<T>(reply: Held, result: FsResult<T>, ok: impl FnOnce(Reply, T)) {
    reply_or_undo(reply, result, ok, drop);
}

/// The reply to a request that reports errors of writing: the operation asks whether the caller gets it
/// before an error counts as told.
pub(super) struct Answer {
    held: Option<Held>,
    taken: Option<Reply>,
    /// The thread of the caller.
    pid: u32,
}

impl Answer {
    pub(super) fn new(reply: Held, pid: u32) -> Self {
        Answer {
            held: Some(reply),
            taken: None,
            pid,
        }
    }

    pub(super) fn give<T>(mut self, result: FsResult<T>, ok: impl FnOnce(Reply, T)) {
        self.take();
        if let Some(reply) = self.taken {
            reply_with(reply, result, ok);
        }
    }

    /// Whether the caller still waits. If so, it waits until the reply is given.
    fn take(&mut self) -> bool {
        if let Some(held) = self.held.take() {
            self.taken = held.take();
        }
        self.taken.is_some()
    }

    /// Whether the caller gets the result, as far as this can be seen: it is not being killed.
    pub(super) fn is_got(&mut self) -> bool {
        self.take() && caller(self.pid) != Caller::Killed
    }

    /// As [`Answer::is_got`], of a close: the kernel also takes the reply where it closes the descriptors
    /// of a process that ends, and then no close(2) returns the error.
    pub(super) fn is_got_by_close(&mut self) -> bool {
        self.take() && caller(self.pid) == Caller::Alive
    }
}

pub(super) fn reply_ok(reply: Reply, (): ()) {
    reply.ok();
}

/// An entry in the kernel's form.
pub(super) fn channel_entry(entry: &Entry) -> channel::Entry {
    let attr = attributes(&entry.attributes);
    channel::Entry::new(entry.nodeid, entry.entry_ttl, entry.attr_ttl, attr)
}

pub(super) fn reply_entry(reply: Reply, entry: Entry) {
    reply.entry(&channel_entry(&entry));
}

/// Answers that a name does not exist. The kernel may cache that for `ttl`: node id 0.
pub(super) fn reply_absent(reply: Reply, ttl: Duration) {
    if ttl.is_zero() {
        return reply.error(libc::ENOENT);
    }
    reply.entry(&channel::Entry::absent(ttl, channel::Attr::default()));
}

pub(super) fn reply_attributes(reply: Reply, (of, ttl): (Attributes, Duration)) {
    reply.attr(ttl, &attributes(&of));
}

/// Answers with data. The kernel copies it from the cached blocks into its pages.
pub(super) fn reply_data(reply: Reply, data: Segs<Buf>) {
    match &data[..] {
        [one] => reply.data(one),
        parts => {
            let slices: SmallVec<[&[u8]; 32]> = parts.iter().map(|part| &part[..]).collect();
            reply.slices(&slices);
        }
    }
}

/// The flags of the reply to OPEN. `unflushed`: FLUSH is needed only for written data, not for
/// locks.
pub(super) fn file_flags(opened: &Opened, flags: i32, unflushed: bool) -> u32 {
    let mut answer = 0;
    if opened.keep_cache {
        answer |= fopen::KEEP_CACHE;
    }
    if unflushed && flags & libc::O_ACCMODE == libc::O_RDONLY {
        answer |= fopen::NOFLUSH;
    }
    answer
}
