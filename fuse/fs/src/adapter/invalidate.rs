//! Notifies the kernel of what it must no longer cache, on threads of their own.
//!
//! FUSE_NOTIFY_INVAL_INODE for data waits for page locks. A READ request holds such a lock until it
//! is answered, so a thread that notifies must not be one that answers requests. A notification for
//! attributes waits for nothing, and has a thread to itself so that it does not wait for data.
//!
//! Each notification makes the kernel ignore the attributes in replies to requests that it has sent
//! before (it compares versions), and the new end of the file in a short READ. It then goes on with
//! the old size: the bytes between the two ends read as zeros, or read(2) ends at another size than
//! stat(2) has shown. So it is better if the reply that showed the change, or the next one, tells
//! the kernel: a GETATTR with other times makes it drop its pages (FUSE_AUTO_INVAL_DATA). A
//! notification for data is sent only after [`PAUSE`], while no READ of the file is under way, and
//! if no reply has told the kernel meanwhile ([`Fs::kernel_is_behind`]). One for attributes is sent
//! at once, or as soon as no READ of the file is under way. For both, the kernel's queue, which may
//! hold a READ, must be empty as well ([`super::queued`]).
//!
//! If somebody else has changed a directory, the kernel is notified of each name that is no longer
//! valid here. That waits for the directory's lock, which a request that changes a name holds until
//! it is answered, so it has a thread of its own, too.
//!
//! Pages that lack written data ([`Fs::stale_pages`]) are notified at once, unless a READ has
//! waited for long: the WRITE has given the file a newer version already.
//!
//! The queues hold inode numbers, each at most one for each inode that the kernel knows.

use super::queued::Queued;
use crate::fs::{Fs, KernelCache};
use nfsrdma_channel::{Notifier, WaitingNotifier};
use nfsrdma_nfs3::Nfs3;
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// The time between a change and its notification for data.
const PAUSE: Duration = Duration::from_millis(50);
/// The time after which a notification for attributes that READs have delayed is tried again.
const PAUSE_OF_READS: Duration = Duration::from_millis(5);
/// How often READs under way can delay a notification for data, and one for attributes.
const MOST_PAUSES: u32 = 20;
const MOST_PAUSES_OF_ATTRIBUTES: u32 = 200;
/// No notification for data is sent while a READ has waited for the server longer than this: the
/// notification would wait for the READ, and umount(2) for the notification.
const SILENCE: Duration = Duration::from_millis(500);
/// If a directory has more outdated names than this, others may be notified before all of its names.
const LEAST_NAMES: usize = 1024;
/// The threads that send notifications for data. Each may wait for a READ of one inode.
const DATA_THREADS: usize = 4;
/// The threads that send notifications for pages that lack written data.
const PAGE_THREADS: usize = 2;

#[derive(Debug, Default)]
struct QueueState {
    /// The inode numbers in the queue; `order`: when each is due, and how often it was delayed.
    nodes: BTreeSet<u64>,
    order: VecDeque<(Instant, u64, u32)>,
    ended: bool,
}

/// A queue of inode numbers for the threads that notify.
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

    /// Adds an inode number, if it is not in the queue. `tries`: how often it was delayed.
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

    /// Waits for the next inode number that is due; `None` after [`Queue::stop`].
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

/// The queues, as the file system uses them.
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

/// Makes the kernel drop all pages of a file, by a notification that `send` makes. Waits for page
/// locks.
pub(super) fn drop_all_pages<N: Nfs3>(
    fs: Arc<Fs<N>>,
    node: u64,
    send: impl FnOnce() -> io::Result<()>,
) {
    fs.pages_dropped(node);
    drop(fs);
    // An error means that the kernel has forgotten the inode, or that the mount is gone.
    let _ = send();
}

/// An open has found a change by somebody else: makes the kernel know the new size before the program
/// goes on (see [`WaitingNotifier::changed`]).
pub(super) async fn tell_change<N: Nfs3>(
    fs: &Arc<Fs<N>>,
    waiting: WaitingNotifier,
    node: u64,
    handle: u64,
) {
    let end = fs.end_unknown_to_kernel(handle).await;
    let fs = fs.clone();
    apart(move || drop_all_pages(fs, node, || waiting.changed(node, end))).await;
}

/// Makes the kernel drop the pages of `range`.
pub(super) async fn drop_pages(waiting: WaitingNotifier, node: u64, range: Range<u64>) {
    let (from, len) = (range.start as i64, (range.end - range.start) as i64);
    apart(move || {
        // An error means that the kernel has forgotten the inode and its pages.
        let _ = waiting.drop_pages(node, from, len);
    })
    .await;
}

/// Runs what waits for page locks on a thread of its own, and waits for it.
async fn apart(work: impl FnOnce() + Send + 'static) {
    let (over, ended) = oneshot::channel();
    let work = move || {
        work();
        // Whoever waited may have been killed.
        let _ = over.send(());
    };
    if std::thread::Builder::new()
        .name("inval-now".into())
        .spawn(work)
        .is_ok()
    {
        // An error means that the thread has ended.
        let _ = ended.await;
    }
}

/// The threads that send notifications.
#[derive(Debug)]
pub(super) struct Invalidator {
    queues: [Arc<Queue>; 4],
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Invalidator {
    /// Starts the threads, and makes `fs` use them.
    pub(super) fn start<N: Nfs3>(
        fs: &Arc<Fs<N>>,
        (notifier, waiting): (Notifier, WaitingNotifier),
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
            let (queue, queued) = (queue.clone(), queued.clone());
            let (notifier, waiting) = (notifier.clone(), waiting.clone());
            let fs = Arc::downgrade(fs);
            let serve = move || {
                while let Some((node, tries)) = queue.take() {
                    let Some(fs) = fs.upgrade() else { return };
                    let most = match of_data {
                        true => MOST_PAUSES,
                        false => MOST_PAUSES_OF_ATTRIBUTES,
                    };
                    // The queue is checked first: READs that it held are known as under way then.
                    let early = tries < most && (!queued.is_empty() || fs.may_miss_end(node, 0));
                    if early || of_data && fs.is_kernel_reading_for(node, SILENCE) {
                        queue.put(node, tries.saturating_add(1));
                    } else if !of_data {
                        drop(fs);
                        let _ = notifier.inval_inode(node, -1, 0);
                    } else if fs.kernel_is_behind(node) {
                        drop_all_pages(fs, node, || waiting.drop_pages(node, 0, 0));
                    }
                }
            };
            this.spawn(name, serve)?;
        }
        let [attributes, data, names, pages] = queues;
        for _ in 0..PAGE_THREADS {
            let (queue, waiting, fs) = (pages.clone(), waiting.clone(), Arc::downgrade(fs));
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
                        // An error means that the kernel has forgotten the inode and its pages.
                        let _ = waiting.drop_pages(node, from, bytes);
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
                let outdated = fs.names_to_expire(node, LEAST_NAMES);
                drop(fs);
                let more = outdated.len() >= LEAST_NAMES;
                // A kernel without this notification would unmount what is mounted below.
                if waiting.can_expire() {
                    waiting.expire_entries(node, outdated);
                }
                if more {
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

    /// Ends the threads. Call it when the mount is gone, so that they do not wait in the kernel.
    pub(super) fn stop(&self) {
        self.queues.iter().for_each(|queue| queue.stop());
        for thread in self.threads.lock().drain(..) {
            // A panic of the thread has been reported already.
            let _ = thread.join();
        }
    }
}

impl Drop for Invalidator {
    fn drop(&mut self) {
        self.queues.iter().for_each(|queue| queue.stop());
    }
}
