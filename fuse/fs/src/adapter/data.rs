//! OPEN, READ, WRITE, FSYNC, and the requests of close(2): FLUSH and RELEASE.
//!
//! READ, WRITE and FLUSH are answered from memory if possible (`read_cached`, `write_cached`,
//! `flush_cached`), before the handler returns. Otherwise the reply is put into `waiting`, where a
//! caller that is killed can be answered at once, and the operation of `Fs` runs as a future.

use super::invalidate::{drop_pages, tell};
use super::replies::{
    Answer, file_flags, reply_data, reply_held, reply_ok, reply_or_undo, reply_with,
};
use super::state::{Adapter, close};
use super::waiting::Held;
use crate::cache::WriteData;
use crate::fs::OpenFile;
use nfsrdma_channel::{Header, Reply, WriteIn};
use nfsrdma_nfs3::Nfs3;

impl<N: Nfs3> Adapter<N> {
    pub(super) fn open(&self, request: &Header, node: u64, flags: i32, reply: Reply) {
        let (fs, cred) = (self.fs.clone(), self.cred(request, node));
        let notifier = self.notifier.clone();
        let unflushed = !self.posix_locks();
        let operation = move |reply: Held| async move {
            let result = fs.open(&cred, node, flags).await;
            // Close-to-open: without this the kernel keeps the old size while its attributes are
            // valid, and longer, whatever the reply to OPEN says of its pages.
            if let Ok(opened) = &result {
                fs.close_earlier(opened.handle).await;
                tell(&notifier, fs.behind_open(opened.handle).await).await;
            }
            reply_or_undo(
                reply,
                result,
                |reply, opened| {
                    reply.opened(opened.handle, file_flags(&opened, flags, unflushed));
                },
                |opened| {
                    if flags & libc::O_TRUNC != 0 {
                        fs.change_unheard(node);
                    }
                    if let Some(opened) = opened {
                        close(&fs, opened);
                    }
                },
            );
        };
        self.change(request, reply, operation);
    }

    pub(super) fn read(
        &self,
        request: &Header,
        handle: u64,
        offset: u64,
        size: u32,
        flags: i32,
        reply: Reply,
    ) {
        let buffered = !OpenFile::is_direct(flags);
        let range = offset..offset.saturating_add(u64::from(size));
        if buffered {
            self.fs.kernel_reads(handle);
        }
        if let Some(data) = self.fs.read_cached(handle, offset, size, flags) {
            reply_data(reply, data);
            return;
        }
        let fs = self.fs.clone();
        let under_way = self.fs.kernel_read(handle, range);
        // It changes nothing, but a READ that the server has put off ends with its caller.
        self.change(request, reply, |reply| async move {
            if buffered && let Some(read) = &under_way {
                read.after_writes().await;
            }
            let found = fs.read(handle, offset, size, flags).await;
            reply_held(reply, found, reply_data);
            drop(under_way);
        });
    }

    pub(super) fn write(&self, request: &Header, to: &WriteIn, data: WriteData<'_>, reply: Reply) {
        let WriteIn {
            handle,
            offset,
            flags,
            ..
        } = *to;
        if to.cached {
            return self.write_mapped(request, handle, offset, data, reply);
        }
        let (pid, range) = (
            request.pid(),
            offset..offset.saturating_add(data.len() as u64),
        );
        // A request that came again is judged by the operation.
        let write = || self.fs.write_cached(handle, offset, data, flags);
        let write = || match flags & libc::O_APPEND {
            0 => write(),
            _ => self.fs.caller(request.original(), false).run_now(write),
        };
        if !request.resent()
            && let Some(result) = write()
        {
            reply_with(reply, result, Reply::written);
            return;
        }
        // A write that waits for memory must not hold one of the last buffers.
        let copy = !OpenFile::is_direct(flags) && self.fs.is_short_of_buffers();
        let (fs, data) = (self.fs.clone(), data.keep(copy));
        let waits = fs.kernel_write(handle, range.clone());
        let (waiting, node) = (self.notifier.clone(), request.nodeid);
        self.change(request, reply, |reply| async move {
            let mut answer = Answer::new(reply, pid);
            let write = fs.write(handle, offset, &data, flags, || answer.is_got());
            let result = write.await;
            // READs that wait for this WRITE hold locks of pages that are to be dropped.
            drop(waits);
            if OpenFile::is_direct(flags) && result.is_ok() && fs.may_have_pages(handle) {
                // The kernel drops the pages before an O_DIRECT write, and after one that the program waits
                // for, but not after an asynchronous one (io_submit(2)): what was read meanwhile would stay.
                fs.kernel_reads_answered(node).await;
                drop_pages(&waiting, node, range).await;
            }
            answer.give(result, Reply::written);
        });
    }

    /// WRITE of pages of a mapping. It is not known whose they are: the handle is a guess, and it does
    /// not matter that the caller is killed.
    fn write_mapped(
        &self,
        request: &Header,
        handle: u64,
        offset: u64,
        data: WriteData<'_>,
        reply: Reply,
    ) {
        if let Some(result) = self.fs.write_mapped_cached(handle, offset, data) {
            reply_with(reply, result, Reply::written);
            return;
        }
        let fs = self.fs.clone();
        let data = data.keep(fs.is_short_of_buffers());
        let reply = self.waiting.hold(request, reply);
        self.start(move || async move {
            let written = fs.write_mapped(handle, offset, &data).await;
            reply_held(reply, written, Reply::written);
        });
    }

    pub(super) fn flush(&self, request: &Header, handle: u64, owner: u64, reply: Reply) {
        let releasing = self.fs.flushing(handle, owner);
        let locked = releasing.is_some();
        if !locked && let Some(result) = self.fs.flush_cached(handle) {
            reply_with(reply, result, reply_ok);
            return;
        }
        let (fs, pid) = (self.fs.clone(), request.pid());
        let reply = self.waiting.hold(request, reply);
        let flush = move || async move {
            let mut answer = Answer::new(reply, pid);
            let gets = || answer.is_got_by_close();
            let result = fs.flush(handle, owner, locked, gets).await;
            answer.give(result, reply_ok);
            drop(releasing);
        };
        match self.fs.locks().filter(|_| locked) {
            Some(locks) => locks.spawn(flush()),
            None => self.start(flush),
        }
    }

    pub(super) fn release(&self, request: &Header, handle: u64, flock: Option<u64>, reply: Reply) {
        let fs = self.fs.clone();
        let releasing = self.fs.closing(handle, flock);
        let locked = !releasing.is_empty();
        let reply = self.waiting.hold(request, reply);
        let release = move || async move {
            reply_held(
                reply,
                fs.release_and_unlock(handle, releasing).await,
                reply_ok,
            );
        };
        match self.fs.locks().filter(|_| locked) {
            Some(locks) => locks.spawn(release()),
            None => self.start(release),
        }
    }

    pub(super) fn fsync(&self, request: &Header, handle: u64, reply: Reply) {
        let (fs, pid) = (self.fs.clone(), request.pid());
        let reply = self.waiting.hold(request, reply);
        self.start(move || async move {
            let mut answer = Answer::new(reply, pid);
            let result = fs.fsync(handle, || answer.is_got()).await;
            answer.give(result, reply_ok);
        });
    }
}
