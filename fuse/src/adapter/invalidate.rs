//! Takes from the kernel what it must not believe any longer, from threads of its own.
//!
//! FUSE_NOTIFY_INVAL_INODE of data waits for locks of pages. A READ request holds such a lock
//! until it is answered, so the thread that notifies must not be one that answers requests. Of
//! attributes it waits for nothing, and has a thread to itself so as not to wait for data.
//!
//! Each notification makes the kernel ignore the attributes in the replies to requests that it
//! has sent before (fuse_change_attributes compares versions), although it returns them to
//! stat(2). It then asks again at the next use. If a second notification followed for the same
//! change, it could meet just that second request: stat(2) would have shown the new size, and
//! read(2) would end at the old one. So one change is one notification: that of data, which
//! tells of attributes, too, unless all threads for data are busy.
//!
//! What waits is a set of inode numbers, at most one for each inode the kernel knows.

use crate::fs::{Fs, KernelCache};
use nfsrdma_channel::Notifier;
use nfsrdma_client::nfs::Nfs3;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Threads that notify of data. Each may wait for a READ of one inode.
const DATA_THREADS: usize = 4;

#[derive(Debug, Default)]
struct QueueState {
    /// Inode numbers that wait.
    nodes: BTreeSet<u64>,
    /// Threads that wait for one.
    idle: usize,
    ended: bool,
}

/// Inode numbers for threads to notify of.
#[derive(Debug, Default)]
struct Queue {
    state: Mutex<QueueState>,
    more: Condvar,
}

impl Queue {
    /// Returns whether a thread is free to take it at once.
    fn put(&self, node: u64) -> bool {
        let mut state = self.state.lock();
        if !state.ended && state.nodes.insert(node) {
            self.more.notify_one();
        }
        state.nodes.len() <= state.idle
    }

    /// The next, or `None` at the end.
    fn take(&self) -> Option<u64> {
        let mut state = self.state.lock();
        loop {
            if state.ended {
                return None;
            }
            if let Some(node) = state.nodes.pop_first() {
                return Some(node);
            }
            state.idle += 1;
            self.more.wait(&mut state);
            state.idle -= 1;
        }
    }

    fn stop(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        state.nodes.clear();
        self.more.notify_all();
    }
}

/// What the file system is given of it.
struct Queues {
    attributes: Arc<Queue>,
    data: Arc<Queue>,
}

impl KernelCache for Queues {
    fn invalidate_attributes(&self, nodeid: u64) {
        self.attributes.put(nodeid);
    }

    fn invalidate_data(&self, nodeid: u64) {
        if !self.data.put(nodeid) {
            // Which may take a while.
            self.attributes.put(nodeid);
        }
    }
}

/// The threads.
#[derive(Debug)]
pub(super) struct Invalidator {
    queues: [Arc<Queue>; 2],
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Invalidator {
    /// Starts them, for `fs` to use.
    pub(super) fn start<N: Nfs3>(fs: &Arc<Fs<N>>, notifier: Notifier) -> io::Result<Self> {
        let queues = [Arc::new(Queue::default()), Arc::new(Queue::default())];
        let this = Invalidator {
            queues: queues.clone(),
            threads: Mutex::default(),
        };
        // Offset and length of what is dropped: no data, or all.
        let attributes = std::iter::once((&queues[0], "inval-attr", -1));
        let data = std::iter::repeat_n((&queues[1], "inval-data", 0), DATA_THREADS);
        for (queue, name, offset) in attributes.chain(data) {
            let (queue, notifier) = (queue.clone(), notifier.clone());
            let thread = std::thread::Builder::new()
                .name(name.into())
                .spawn(move || {
                    while let Some(node) = queue.take() {
                        // The kernel may have forgotten the inode, or the mount be gone.
                        let _ = notifier.inval_inode(node, offset, 0);
                    }
                })?;
            this.threads.lock().push(thread);
        }
        let [attributes, data] = queues;
        fs.set_kernel_cache(Box::new(Queues { attributes, data }));
        Ok(this)
    }

    /// Ends them; the mount is gone, so that nothing in the kernel holds them up.
    pub(super) fn stop(&self) {
        self.queues.iter().for_each(|queue| queue.stop());
        for thread in self.threads.lock().drain(..) {
            // It ends by itself; a panic there has been reported.
            let _ = thread.join();
        }
    }
}

impl Drop for Invalidator {
    fn drop(&mut self) {
        self.queues.iter().for_each(|queue| queue.stop());
    }
}
