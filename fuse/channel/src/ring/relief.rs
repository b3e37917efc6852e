//! Requests that wait in the kernel for an entry, though entries are free.
//!
//! The kernel gives a waiting request to an entry that comes back with a reply to another one,
//! and to no entry that is newly registered: a new one gets what is asked next. So where all
//! entries of a queue were taken, by a burst of requests for locks that others have, those that
//! came after them, such as the one that unlocks, might wait for ever. A thread on the CPU of the
//! queue then makes requests of its own, which get free entries and are answered at once, and
//! each of these entries takes a waiting request along.

use super::Rounds;
use rustix::fs::fstatvfs;
use rustix::process::Pid;
use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

/// Requests for one queue, at most.
const MOST: u32 = 4096;

impl Rounds {
    /// Whether requests of some queue may wait in the kernel though entries are free.
    pub fn is_starved(&self) -> bool {
        !self.0.starved.lock().is_empty()
    }

    /// Gets them out; `root` is on the mount. It may wait as long as requests do, and moves the
    /// calling thread to other CPUs meanwhile.
    pub fn relieve(&self, root: BorrowedFd<'_>) {
        let thread = gettid();
        let Ok(before) = sched_getaffinity(Some(thread)) else {
            return;
        };
        let tid = Pid::as_raw(Some(thread)) as u32;
        self.0.relief.store(tid, Ordering::Relaxed);
        let queues = self.0.starved.lock().clone();
        for queue in queues {
            let mut cpu = CpuSet::new();
            if usize::from(queue) >= CpuSet::MAX_CPU {
                continue;
            }
            cpu.set(queue.into());
            if sched_setaffinity(Some(thread), &cpu).is_err() {
                continue;
            }
            for _ in 0..MOST {
                // Always a request to this process, which answers with an error.
                let _ = fstatvfs(root);
                if !self.0.starved.lock().contains(&queue) {
                    break;
                }
            }
        }
        self.0.relief.store(0, Ordering::Relaxed);
        let _ = sched_setaffinity(Some(thread), &before);
    }
}
