//! GETLK, SETLK and SETLKW, where locks go to the server.

use super::replies::{answer_held, done};
use super::state::Adapter;
use super::waiting::Held;
use crate::fs::SetLock;
use crate::locks::{Interrupt, Mode, Tested};
use nfsrdma_channel::{self as channel, Header, Reply};
use nfsrdma_nfs3::Nfs3;

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
            answer_held(reply, found, |reply, found| reply.lock(&tested(found)));
        });
    }

    /// Takes or gives back a lock, in the runtime: there is no hurry where others are waited for.
    pub(super) fn setlk(&self, request: &Header, node: u64, of: SetLock, reply: Reply) {
        let Some(locks) = self.fs.locks().cloned() else {
            return reply.error(libc::ENOSYS);
        };
        let (fs, notifier) = (self.fs.clone(), self.notifier.clone());
        let (reply, interrupt) = self.waiting.hold_interruptible(request, reply, of.wait);
        locks.spawn(async move {
            let mut reply = Some(reply);
            let answer = |result| {
                if let Some(reply) = reply.take() {
                    answer_held(reply, result, done);
                }
            };
            if !fs.set_lock(of, &interrupt, answer).await {
                return;
            }
            // It waits for pages that READs hold: not on a thread that others wait for.
            let cached = fs.clone();
            let drop_cached = move || {
                let _ = notifier.inval_inode(node, 0, 0);
                // The kernel may know some of them no more.
                cached.expire_names_beside(node, |dir, name| {
                    let _ = notifier.expire_entry(dir, name);
                });
            };
            let _ = tokio::task::spawn_blocking(drop_cached).await;
            match reply.and_then(Held::take) {
                Some(reply) => reply.ok(),
                // Who asked for it was killed meanwhile; the open file may live on.
                None => {
                    let unlock = SetLock { mode: None, ..of };
                    fs.set_lock(unlock, &Interrupt::default(), |_| {}).await;
                }
            }
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
