//! GETLK, SETLK and SETLKW, if locks are taken at the server.
//!
//! Before a lock is released and after one is taken, a notification makes the kernel write back and
//! drop the file's pages. The notification blocks in the kernel until all READs of those pages are
//! answered. No signal ends this, and umount(2) blocks with it (`fc->killsb`). If the server is silent,
//! both last for ever, because READs of read-ahead do not end with their process. So the READs under way
//! are awaited first, which a signal can interrupt, and then the notification is sent.

use super::queued::Queued;
use super::replies::{reply_held, reply_ok};
use super::state::Adapter;
use super::waiting::Held;
use crate::fs::{Fs, SetLock};
use crate::locks::{Mode, RELEASED_WITHIN, Tested};
use nfsrdma_channel::{self as channel, Header, LockIn, Reply};
use nfsrdma_nfs3::Nfs3;
use std::sync::Arc;
use std::time::Duration;

/// If the kernel reads a file all the time: how often READs that have arrived meanwhile are
/// awaited, and the pause before that.
const MOST_ROUNDS: u32 = 8;
const PAUSE: Duration = Duration::from_millis(1);

/// Waits until no READ of a file is under way and no request is in the kernel's queue, but for
/// [`MOST_ROUNDS`] rounds of READs at most.
async fn reads_answered<N: Nfs3>(fs: &Arc<Fs<N>>, queued: &Queued, node: u64) {
    for _ in 0..MOST_ROUNDS {
        fs.kernel_reads_answered(node).await;
        // The queue is checked first: READs that it held are known as under way then.
        if queued.is_empty() && !fs.is_kernel_reading(node) {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits until every RELEASE of a file is known whose close(2) returned before this call: longer than a
/// moment only if the file is being read, and no longer than for the release itself. The kernel queues a RELEASE in the order of requests, so it has been
/// read, and another event loop may be about to handle it. Or the open file was being read ahead:
/// then the kernel queues it when the last of those READs is answered.
async fn releases_known<N: Nfs3>(fs: &Arc<Fs<N>>, queued: &Queued, node: u64) {
    queued.until_handled(RELEASED_WITHIN).await;
    reads_answered(fs, queued, node).await;
}

impl<N: Nfs3> Adapter<N> {
    pub(super) fn getlk(&self, request: &Header, of: SetLock, reply: Reply) {
        let Some(locks) = self.fs.locks().cloned() else {
            return reply.error(libc::ENOSYS);
        };
        let fs = self.fs.clone();
        let (reply, interrupt) = self.waiting.hold_interruptible(request, reply, false);
        locks.spawn(async move {
            let found = fs.get_lock(of, &interrupt).await;
            reply_held(reply, found, |reply, found| reply.lock(&tested(found)));
        });
    }

    /// Takes or releases a lock. It runs in the runtime of the locks, not on an event loop.
    pub(super) fn setlk(&self, request: &Header, node: u64, of: SetLock, reply: Reply) {
        let Some(locks) = self.fs.locks().cloned() else {
            return reply.error(libc::ENOSYS);
        };
        // It waits for locks, but handing it to a thread that shares no descriptors, too, would halve
        // the number of locks that a program takes in a second.
        let (fs, notifier) = (self.fs.clone(), self.notifier.clone());
        let queued = self.queued.clone();
        let (releasing, handle) = (fs.unlocking(&of), of.handle);
        // An unlock has `wait` set, too, except with LOCK_NB or F_SETLK. If it were interrupted,
        // the lock would stay held.
        let any = of.wait && of.mode.is_some();
        let (reply, interrupt) = self.waiting.hold_interruptible(request, reply, any);
        locks.spawn(async move {
            let mut reply = Some(reply);
            let answer = |result| {
                if let Some(reply) = reply.take() {
                    reply_held(reply, result, reply_ok);
                }
            };
            if of.mode != Some(Mode::Write) && fs.may_write(of.handle) {
                // Others may read after this, also when an exclusive lock becomes a shared one.
                // Data written through a mapping is still in the kernel, which writes dirty pages
                // back before it drops them, by requests that other threads answer.
                let notifier = notifier.clone();
                let flush = move || {
                    // An error means that the kernel has forgotten the inode.
                    let _ = notifier.inval_inode(node, 0, 0);
                };
                let flushed = async {
                    reads_answered(&fs, &queued, node).await;
                    let _ = tokio::task::spawn_blocking(flush).await;
                };
                tokio::select! {
                    () = flushed => {}
                    () = interrupt.wait() => {}
                }
            }
            let known = releases_known(&fs, &queued, node);
            let granted = fs.set_lock(of, &interrupt, known, answer).await;
            drop(releasing);
            if !granted {
                return;
            }
            // The lock is held now, until its process or its open file ends. So only a signal that kills
            // the caller matters, which does not wait for what is dropped.
            let dropped = async {
                reads_answered(&fs, &queued, node).await;
                let Some(behind) = fs.behind_lock(handle).await else {
                    return;
                };
                // This waits for page locks, so it must not run on a thread that others wait for.
                let cached = fs.clone();
                let drop_cached = move || {
                    let _ = notifier.changed(node, behind.end);
                    behind.told();
                    // The kernel may no longer know some of the names.
                    cached.expire_names_beside(node, |dir, name| {
                        let _ = notifier.expire_entry(dir, name);
                    });
                };
                let _ = tokio::task::spawn_blocking(drop_cached).await;
            };
            tokio::select! {
                biased;
                () = interrupt.killed() => {}
                () = dropped => {}
            }
            if let Some(reply) = reply.take().and_then(Held::take) {
                reply.ok();
            }
        });
    }
}

/// The request of the kernel in the file system's form.
pub(super) fn set_lock(of: &LockIn, wait: bool) -> SetLock {
    let lock = &of.lock;
    SetLock {
        handle: of.handle,
        owner: of.owner,
        flock: of.flock,
        start: lock.start,
        end: lock.end,
        mode: match lock.kind as i32 {
            libc::F_RDLCK => Some(Mode::Read),
            libc::F_WRLCK => Some(Mode::Write),
            _ => None,
        },
        wait,
        pid: lock.pid,
    }
}

/// A conflicting lock in the kernel's form.
fn tested(found: Option<Tested>) -> channel::Lock {
    match found {
        Some(found) => channel::Lock {
            start: found.range.start,
            end: found.range.end,
            kind: match found.mode {
                Mode::Read => libc::F_RDLCK as u32,
                Mode::Write => libc::F_WRLCK as u32,
            },
            pid: found.pid,
        },
        None => channel::Lock {
            start: 0,
            end: 0,
            kind: libc::F_UNLCK as u32,
            pid: 0,
        },
    }
}
