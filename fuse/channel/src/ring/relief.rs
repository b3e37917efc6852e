//! Requests that wait in the kernel for an entry although entries are free.
//!
//! The kernel gives a waiting request to an entry that comes back with a reply, but not to an entry
//! that is newly registered, which gets the next new request. So if all entries of a queue were
//! taken, by many requests for locks that others have, the requests that came after these, such as
//! an unlock, might wait for ever. A thread on the CPU of the queue then makes requests of its own.
//! These get free entries and are answered at once, and each of these entries then takes a waiting
//! request.

use super::Rounds;
use rustix::fs::fstatvfs;
use rustix::process::Pid;
use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

/// The most requests that are made for one queue.
const MOST: u32 = 4096;

impl Rounds {
    /// Whether requests of a queue may wait in the kernel although entries are free.
    pub fn is_starved(&self) -> bool {
        !self.0.starved.lock().is_empty()
    }

    /// Frees such requests; `root` is a descriptor on the mount. It may wait as long as other
    /// requests, and moves the calling thread to other CPUs meanwhile.
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
                // This always makes a request, which this process answers with an error.
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
