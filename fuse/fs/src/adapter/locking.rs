//! GETLK, SETLK and SETLKW, where locks go to the server.
//!
//! A notification makes the kernel write back or drop a file's pages around a lock. In the kernel
//! it waits for pages that are being read, and as long as it waits umount(2) does, too
//! (`fc->killsb`), and no signal ends the thread that sends it. With a silent server that is for
//! ever: READs of read-ahead outlive the process they were made for. So it is sent when the READs
//! under way are answered, and that is waited for where a signal ends the wait.

use super::invalidate::drop_all_pages;
use super::queued::Queued;
use super::replies::{reply_held, reply_ok};
use super::state::Adapter;
use super::waiting::Held;
use crate::fs::{Fs, SetLock};
use crate::locks::{Mode, Tested};
use nfsrdma_channel::{self as channel, Header, Reply};
use nfsrdma_nfs3::Nfs3;
use std::sync::Arc;
use std::time::Duration;

/// Where the kernel reads a file all the time: how often READs that have come meanwhile are waited
/// for, and the pause before they are looked for.
const MOST_ROUNDS: u32 = 8;
const PAUSE: Duration = Duration::from_millis(1);

/// Returns when no READ of a file is seen under way, nor a request in the kernel's queue, or the
/// server has answered [`MOST_ROUNDS`] of them.
async fn reads_answered<N: Nfs3>(fs: &Arc<Fs<N>>, queued: &Queued, node: u64) {
    for _ in 0..MOST_ROUNDS {
        fs.kernel_reads_answered(node).await;
        // The queue first: what it held is under way by then.
        if queued.is_empty().await && !fs.is_kernel_reading(node) {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

impl<N: Nfs3> Adapter<N> {
    /// F_GETLK.
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

    /// Takes or gives back a lock, in the runtime: there is no hurry where others are waited for.
    pub(super) fn setlk(&self, request: &Header, node: u64, of: SetLock, reply: Reply) {
        let Some(locks) = self.fs.locks().cloned() else {
            return reply.error(libc::ENOSYS);
        };
        let (fs, notifier) = (self.fs.clone(), self.notifier.clone());
        let (queued, undoing) = (self.queued.clone(), locks.clone());
        // An unlock comes with `wait`, too, unless it says LOCK_NB or F_SETLK. Interrupted, it would
        // leave the lock held.
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
                // Others may read from then on, also where an exclusive lock becomes a shared one.
                // What was written by way of a mapping is in the kernel: it writes dirty pages
                // back before it drops them, by requests that other threads answer.
                let (notifier, dropping) = (notifier.clone(), fs.clone());
                let flush = move || drop_all_pages(dropping, &notifier, node);
                let flushed = async {
                    reads_answered(&fs, &queued, node).await;
                    let _ = tokio::task::spawn_blocking(flush).await;
                };
                tokio::select! {
                    () = flushed => {}
                    () = interrupt.wait() => {}
                }
            }
            let Some(granted) = fs.set_lock(of, &interrupt, answer).await else {
                return;
            };
            // It is held, and a signal that the caller survives is too late.
            let free = tokio::select! {
                biased;
                () = reads_answered(&fs, &queued, node) => true,
                () = interrupt.killed() => false,
            };
            if free {
                // It takes locks of pages: not on a thread that others wait for.
                let cached = fs.clone();
                let drop_cached = move || {
                    drop_all_pages(cached.clone(), &notifier, node);
                    // The kernel may know some of them no more.
                    cached.expire_names_beside(node, |dir, name| {
                        let _ = notifier.expire_entry(dir, name);
                    });
                };
                let _ = tokio::task::spawn_blocking(drop_cached).await;
                if let Some(reply) = reply.take().and_then(Held::take) {
                    return reply.ok();
                }
            }
            // Who asked for it was killed meanwhile, and has its answer; the open file may live on.
            undoing.undo(granted).await;
        });
    }
}

/// A lock as the kernel asks for it.
pub(super) fn set_lock(
    handle: u64,
    owner: u64,
    flock: bool,
    wait: bool,
    lock: &channel::Lock,
) -> SetLock {
    SetLock {
        handle,
        owner,
        flock,
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

/// What is in the way, as the kernel wants it.
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
