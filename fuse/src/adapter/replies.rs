//! Replies: their kinds, and the file system's results as FUSE wants them.

use super::convert::{attributes, entry_attributes, errno};
use super::table::Refuse;
use super::waiting::Held;
use crate::fs::{Entry, FsResult, Opened, ROOT};
use fuser::{
    Errno, FileAttr, FopenFlags, Generation, INodeNo, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite,
};
use nfsrdma_rdma::Buf;
use nfsrdma_rdma::contract::Segs;
use nfsrdma_xdr::nfs3::Attributes;
use std::cell::RefCell;
use std::time::{Duration, UNIX_EPOCH};

/// A reply that can be an error, and can lie in the table of those that wait.
pub(super) trait Holdable: Sized {
    fn refuse(self, error: Errno);
    fn hold(self) -> AnyReply;
    fn unhold(any: AnyReply) -> Option<Self>;
}

/// Declares the sum of all kinds of reply.
macro_rules! kinds {
    ($($reply:ident),*) => {
        /// Any reply.
        #[derive(Debug)]
        #[expect(clippy::enum_variant_names, reason = "each is named after the type it holds")]
        pub(super) enum AnyReply { $($reply($reply)),* }

        impl Refuse for AnyReply {
            fn refuse(self) {
                match self { $(AnyReply::$reply(reply) => reply.error(Errno::EINTR)),* }
            }
        }

        $(impl Holdable for $reply {
            fn refuse(self, error: Errno) { self.error(error); }

            fn hold(self) -> AnyReply { AnyReply::$reply(self) }

            fn unhold(any: AnyReply) -> Option<Self> {
                match any {
                    AnyReply::$reply(reply) => Some(reply),
                    _ => None,
                }
            }
        })*
    };
}

kinds!(
    ReplyEntry,
    ReplyAttr,
    ReplyData,
    ReplyEmpty,
    ReplyOpen,
    ReplyWrite,
    ReplyStatfs,
    ReplyCreate,
    ReplyDirectory,
    ReplyDirectoryPlus
);

pub(super) fn answer<T, R: Holdable>(reply: R, result: FsResult<T>, ok: impl FnOnce(R, T)) {
    match result {
        Ok(value) => ok(reply, value),
        Err(error) => reply.refuse(errno(&error)),
    }
}

/// Answers a request that waited. If its caller was killed meanwhile, nobody takes what the
/// result stands for (a look-up, an open file): `undo` gives it back.
pub(super) fn answer_or<T, R: Holdable>(
    reply: Held<R>,
    result: FsResult<T>,
    ok: impl FnOnce(R, T),
    undo: impl FnOnce(T),
) {
    match (reply.take(), result) {
        (Some(reply), result) => answer(reply, result, ok),
        (None, Ok(value)) => undo(value),
        (None, Err(_)) => {}
    }
}

/// The same for results that stand for nothing.
pub(super) fn answer_held<T, R: Holdable>(
    reply: Held<R>,
    result: FsResult<T>,
    ok: impl FnOnce(R, T),
) {
    answer_or(reply, result, ok, drop);
}

pub(super) fn done(reply: ReplyEmpty, (): ()) {
    reply.ok();
}

pub(super) fn tell_entry(reply: ReplyEntry, entry: Entry) {
    reply.entry_with_ttls(
        &entry.attr_ttl,
        &entry.entry_ttl,
        &entry_attributes(&entry),
        Generation(entry.generation),
    );
}

/// FUSE's way to say that there is nothing, to be believed for a time: node 0.
pub(super) fn tell_absent(reply: ReplyEntry, ttl: Duration) {
    if ttl.is_zero() {
        return reply.error(Errno::ENOENT);
    }
    let nothing = FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: fuser::FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    };
    reply.entry(&ttl, &nothing, Generation(0));
}

/// The number stat(2) shows for a node. The root's node is always 1, its fileid is not.
pub(super) fn shown_ino(node: u64, of: &Attributes) -> u64 {
    if node == ROOT { of.fileid } else { node }
}

pub(super) fn tell_attributes(reply: ReplyAttr, node: u64, (of, ttl): (Attributes, Duration)) {
    reply.attr(&ttl, &attributes(shown_ino(node, &of), &of));
}

pub(super) fn tell_data(reply: ReplyData, data: Segs<Buf>) {
    thread_local! {
        /// Where data of several blocks is put together: one reply is one slice.
        static GATHER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    match &data[..] {
        [] => reply.data(&[]),
        [one] => reply.data(one),
        several => GATHER.with_borrow_mut(|all| {
            all.clear();
            several.iter().for_each(|part| all.extend_from_slice(part));
            reply.data(all);
        }),
    }
}

pub(super) fn file_flags(opened: &Opened, flags: i32) -> FopenFlags {
    let mut answer = FopenFlags::empty();
    if opened.keep_cache {
        answer |= FopenFlags::FOPEN_KEEP_CACHE;
    }
    if flags & libc::O_ACCMODE == libc::O_RDONLY {
        answer |= FopenFlags::FOPEN_NOFLUSH;
    }
    answer
}
