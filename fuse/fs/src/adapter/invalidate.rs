//! Takes from the kernel what it must not believe any longer, from threads of its own.
//!
//! FUSE_NOTIFY_INVAL_INODE of data waits for locks of pages. A READ request holds such a lock
//! until it is answered, so the thread that notifies must not be one that answers requests. Of
//! attributes it waits for nothing, and has a thread to itself so as not to wait for data.
//!
//! Each notification makes the kernel ignore the attributes in replies to requests that it has
//! sent before (it compares versions), and the new end of the file in a short READ. It then
//! goes on with the size it had: what lies between the two ends reads as zeros, or read(2) ends
//! at a size that stat(2) has already shown otherwise. So the kernel is left to learn of the
//! change by the reply that brought it, or by the next: GETATTR with other times makes it drop
//! its pages (FUSE_AUTO_INVAL_DATA). A notification of data follows after [`PAUSE`], while no
//! READ of the file is under way, and only if the kernel has not been told meanwhile
//! ([`Fs::kernel_is_behind`]). One of attributes follows at once, or as soon as no READ of the
//! file is under way. For both the kernel's queue must be empty as well, which may hold a READ
//! ([`super::queued`]).
//!
//! Of a directory that somebody else has changed the kernel is told to ask again for each name that
//! is not believed here any more. That waits for the directory's lock, which whoever changes names
//! in it holds until it is answered, so it has a thread, too.
//!
//! Pages that lack what a program wrote ([`Fs::stale_pages`]) are notified of at once, unless a READ has
//! waited for long: the kernel has given the file a newer version with the WRITE already.
//!
//! What waits is a set of inode numbers, at most one for each inode the kernel knows.

use super::queued::Queued;
use crate::fs::{Fs, KernelCache};
use nfsrdma_channel::Notifier;
use nfsrdma_nfs3::Nfs3;
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between a change and the notification of data.
const PAUSE: Duration = Duration::from_millis(50);
/// Until READs that are under way are looked at again, before attributes are notified of.
const PAUSE_OF_READS: Duration = Duration::from_millis(5);
/// Times that READs under way put off a notification of data, and of attributes.
const MOST_PAUSES: u32 = 20;
const MOST_PAUSES_OF_ATTRIBUTES: u32 = 200;
/// Data are not notified of while a READ has waited longer for the server than this. The
/// notification would wait with it, and umount(2) for the notification.
const SILENCE: Duration = Duration::from_millis(500);
/// Names of one directory that are notified of before it is the turn of the next.
const MOST_NAMES: usize = 1024;
/// Threads that notify of data. Each may wait for a READ of one inode.
const DATA_THREADS: usize = 4;
/// The same for pages that lack what was written.
const PAGE_THREADS: usize = 2;

#[derive(Debug, Default)]
struct QueueState {
    /// Inode numbers that wait, and the same in order: when, and how often put off before.
    nodes: BTreeSet<u64>,
    order: VecDeque<(Instant, u64, u32)>,
    ended: bool,
}

/// Inode numbers for threads to notify of.
#[derive(Debug)]
struct Queue {
    pause: Duration,
    state: Mutex<QueueState>,
    more: Condvar,
}

impl Queue {
    fn new(pause: Duration) -> Arc<Self> {
        Arc::new(Queue {
            pause,
            state: Mutex::default(),
            more: Condvar::new(),
        })
    }

    /// `tries`: how often it was put off.
    fn put(&self, node: u64, tries: u32) {
        let mut state = self.state.lock();
        if !state.ended && state.nodes.insert(node) {
            let pause = match tries {
                0 => self.pause,
                _ => self.pause.max(PAUSE_OF_READS),
            };
            let due = Instant::now() + pause;
            let at = state.order.partition_point(|(other, ..)| *other <= due);
            state.order.insert(at, (due, node, tries));
            self.more.notify_one();
        }
    }

    /// The next that is due, or `None` at the end.
    fn take(&self) -> Option<(u64, u32)> {
        let mut state = self.state.lock();
        loop {
            if state.ended {
                return None;
            }
            let now = Instant::now();
            match state.order.front().copied() {
                Some((due, node, tries)) if due <= now => {
                    state.order.pop_front();
                    state.nodes.remove(&node);
                    return Some((node, tries));
                }
                Some((due, ..)) => {
                    self.more.wait_for(&mut state, due - now);
                }
                None => self.more.wait(&mut state),
            }
        }
    }

    fn stop(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        state.order.clear();
        self.more.notify_all();
    }
}

/// What the file system is given of it.
struct Queues {
    attributes: Arc<Queue>,
    data: Arc<Queue>,
    names: Arc<Queue>,
    pages: Arc<Queue>,
}

impl KernelCache for Queues {
    fn invalidate_attributes(&self, nodeid: u64) {
        self.attributes.put(nodeid, 0);
    }

    fn invalidate_data(&self, nodeid: u64) {
        self.data.put(nodeid, 0);
    }

    fn drop_pages(&self, nodeid: u64) {
        self.pages.put(nodeid, 0);
    }

    fn expire_names(&self, nodeid: u64) {
        self.names.put(nodeid, 0);
    }
}

/// Has the kernel drop all pages of a file. Waits for locks of pages.
pub(super) fn drop_all_pages<N: Nfs3>(fs: Arc<Fs<N>>, notifier: &Notifier, node: u64) {
    fs.pages_dropped(node);
    drop(fs);
    // The kernel may have forgotten the inode, or the mount be gone.
    let _ = notifier.inval_inode(node, 0, 0);
}

/// The threads.
#[derive(Debug)]
pub(super) struct Invalidator {
    queues: [Arc<Queue>; 4],
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Invalidator {
    /// Starts them, for `fs` to use.
    pub(super) fn start<N: Nfs3>(
        fs: &Arc<Fs<N>>,
        notifier: Notifier,
        queued: &Arc<Queued>,
    ) -> io::Result<Self> {
        let queues = [Duration::ZERO, PAUSE, PAUSE, Duration::ZERO].map(Queue::new);
        let this = Invalidator {
            queues: queues.clone(),
            threads: Mutex::default(),
        };
        let attributes = std::iter::once((&queues[0], "inval-attr", false));
        let data = std::iter::repeat_n((&queues[1], "inval-data", true), DATA_THREADS);
        for (queue, name, of_data) in attributes.chain(data) {
            let (queue, notifier, queued) = (queue.clone(), notifier.clone(), queued.clone());
            let fs = Arc::downgrade(fs);
            let serve = move || {
                while let Some((node, tries)) = queue.take() {
                    // Offset and length of what is dropped: no data, or all. The kernel may have
                    // forgotten the inode, or the mount be gone.
                    let Some(fs) = fs.upgrade() else { return };
                    let most = match of_data {
                        true => MOST_PAUSES,
                        false => MOST_PAUSES_OF_ATTRIBUTES,
                    };
                    // The queue first: what it held is under way by then.
                    let early =
                        tries < most && (!queued.is_empty_blocking() || fs.may_miss_end(node, 0));
                    if early || of_data && fs.is_kernel_reading_for(node, SILENCE) {
                        queue.put(node, tries.saturating_add(1));
                    } else if !of_data {
                        drop(fs);
                        let _ = notifier.inval_inode(node, -1, 0);
                    } else if fs.kernel_is_behind(node) {
                        drop_all_pages(fs, &notifier, node);
                    }
                }
            };
            this.spawn(name, serve)?;
        }
        let [attributes, data, names, pages] = queues;
        for _ in 0..PAGE_THREADS {
            let (queue, notifier, fs) = (pages.clone(), notifier.clone(), Arc::downgrade(fs));
            let serve = move || {
                while let Some((node, _)) = queue.take() {
                    let Some(fs) = fs.upgrade() else { return };
                    if fs.is_kernel_reading_for(node, SILENCE) {
                        queue.put(node, 1);
                        continue;
                    }
                    let stale = fs.stale_pages(node);
                    drop(fs);
                    if let Some(stale) = stale {
                        let (from, bytes) = (stale.offset() as i64, stale.length() as i64);
                        // The kernel may have forgotten the inode, and its pages.
                        let _ = notifier.inval_inode(node, from, bytes);
                    }
                }
            };
            this.spawn("inval-pages", serve)?;
        }
        let (queue, fs_of_names) = (names.clone(), Arc::downgrade(fs));
        let serve = move || {
            while let Some((node, _)) = queue.take() {
                let Some(fs) = fs_of_names.upgrade() else {
                    return;
                };
                let outdated = fs.names_to_expire(node, MOST_NAMES);
                drop(fs);
                // A kernel that cannot would take away what is mounted below them.
                if notifier.can_expire() {
                    for name in &outdated {
                        // The kernel may have forgotten it.
                        let _ = notifier.expire_entry(node, name);
                    }
                }
                if outdated.len() == MOST_NAMES {
                    queue.put(node, 0);
                }
            }
        };
        this.spawn("expire-names", serve)?;
        fs.set_kernel_cache(Box::new(Queues {
            attributes,
            data,
            names,
            pages,
        }));
        Ok(this)
    }

    fn spawn(&self, name: &str, serve: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(serve)?;
        self.threads.lock().push(thread);
        Ok(())
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
