//! OPEN, READ, WRITE, FSYNC, and what a close asks for: FLUSH and RELEASE.

use super::replies::{answer, answer_held, answer_or, done, file_flags, reply_data};
use super::signals::hears;
use super::state::{Adapter, close};
use crate::fs::FsResult;
use nfsrdma_channel::{Header, Reply};
use nfsrdma_nfs3::Nfs3;

impl<N: Nfs3> Adapter<N> {
    pub(super) fn open(&self, request: &Header, node: u64, flags: i32, reply: Reply) {
        let (fs, cred) = (self.fs.clone(), self.cred(request, node));
        let (notifier, queued) = (self.notifier.clone(), self.queued.clone());
        let unflushed = !self.posix_locks();
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            let result = fs.open(&cred, node, flags).await;
            if result
                .as_ref()
                .is_ok_and(|opened| opened.attributes_changed)
            {
                let fs = fs.clone();
                queued.until_empty(move || !fs.is_reading(node)).await;
            }
            answer_or(
                reply,
                result,
                |reply, opened| {
                    // Close-to-open: the kernel keeps the size for as long as it was told to,
                    // whatever the answer to OPEN says of its pages.
                    if opened.attributes_changed {
                        // It may have forgotten the inode: so much the better.
                        let _ = notifier.inval_inode(node, -1, 0);
                    }
                    reply.opened(opened.handle, file_flags(&opened, flags, unflushed));
                },
                |opened| close(&fs, opened),
            );
        });
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
        if let Some(data) = self.fs.read_cached(handle, offset, size, flags) {
            reply_data(reply, data);
            return self.send_deferred();
        }
        let fs = self.fs.clone();
        let reply = self.waiting.hold(request, reply);
        let (under_way, queued) = (self.fs.kernel_read(handle, offset), self.queued.clone());
        self.start(async move {
            let found = fs.read(handle, offset, size, flags).await;
            if let Some(under_way) = &under_way
                && under_way.tells_end(&found, size)
            {
                under_way.first().await;
                queued.until_empty(under_way.is_first()).await;
            }
            answer_held(reply, found, reply_data);
            drop(under_way);
        });
    }

    pub(super) fn write(
        &self,
        request: &Header,
        (handle, guessed): (u64, bool),
        offset: u64,
        data: &[u8],
        flags: i32,
        reply: Reply,
    ) {
        if !guessed && let Some(result) = self.fs.write_cached(handle, offset, data, flags) {
            answer(reply, result, Reply::written);
            return self.send_deferred();
        }
        // The reader's buffer is only lent for this call.
        let (fs, data) = (self.fs.clone(), data.to_vec());
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            let result = match guessed {
                true => fs.write_mapped(handle, offset, &data, flags).await,
                false => fs.write(handle, offset, &data, flags).await,
            };
            answer_held(reply, result, Reply::written);
        });
    }

    pub(super) fn flush(&self, request: &Header, handle: u64, owner: u64, reply: Reply) {
        let locked = self.fs.has_locks(handle, owner);
        if !locked && let Some(result) = self.fs.flush_cached(handle) {
            answer(reply, result, done);
            return self.send_deferred();
        }
        let (fs, pid) = (self.fs.clone(), request.pid());
        let reply = self.waiting.hold(request, reply);
        let flush = async move {
            let tell = |result: FsResult<()>| match reply.take() {
                Some(reply) => {
                    // The kernel takes the reply also for a process that ends, whose descriptors
                    // it closes: there is no close(2) to return the error.
                    let heard = result.is_ok() || hears(pid);
                    answer(reply, result, done);
                    heard
                }
                None => false,
            };
            let owner = locked.then_some(owner);
            fs.flush_and_unlock(handle, owner, tell).await;
        };
        match self.fs.locks().filter(|_| locked) {
            Some(locks) => locks.spawn(flush),
            None => self.start(flush),
        }
    }

    pub(super) fn release(&self, request: &Header, handle: u64, flock: Option<u64>, reply: Reply) {
        let fs = self.fs.clone();
        let locked = flock.is_some() || self.fs.has_open_locks(handle);
        let reply = self.waiting.hold(request, reply);
        let release = async move {
            answer_held(reply, fs.release_and_unlock(handle, flock).await, done);
        };
        match self.fs.locks().filter(|_| locked) {
            Some(locks) => locks.spawn(release),
            None => self.start(release),
        }
    }

    pub(super) fn fsync(&self, request: &Header, handle: u64, reply: Reply) {
        let fs = self.fs.clone();
        let reply = self.waiting.hold(request, reply);
        self.start(async move { answer_held(reply, fs.fsync(handle).await, done) });
    }
}
