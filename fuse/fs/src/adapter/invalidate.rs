//! Notifies the kernel of what it must no longer cache, on threads of their own.
//!
//! FUSE_NOTIFY_INVAL_INODE for data waits for page locks. A READ request holds such a lock until it
//! is answered, so a thread that notifies must not be one that answers requests. A notification for
//! attributes waits for nothing, and has a thread to itself so that it does not wait for data.
//!
//! If somebody else has changed a file, the kernel drops its pages before it is given attributes or an
//! open file that show the change ([`tell`]). If nobody asks for them, it is notified after [`PAUSE`].
//!
//! If somebody else has changed a directory, the kernel is notified of each name that is no longer
//! valid here. That waits for the directory's lock, which a request that changes a name holds until
//! it is answered, so it has a thread of its own, too.
//!
//! The queues hold inode numbers, each at most one for each inode that the kernel knows.

use crate::fs::{Behind, Fs, KernelCache};
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

/// How long the notification for a change of data is left to a reply that shows the change.
const PAUSE: Duration = Duration::from_millis(50);
/// No such notification is sent while a READ has waited for the server longer than this: the
/// notification would wait for the READ, and umount(2) for the notification.
const SILENCE: Duration = Duration::from_millis(500);
/// If a directory has more outdated names than this, others may be notified before all of its names.
const LEAST_NAMES: usize = 1024;
#[derive(Debug, Default)]
struct QueueState {
    /// The inode numbers in the queue; `order`: when each is due.
    nodes: BTreeSet<u64>,
    order: VecDeque<(Instant, u64)>,
    ended: bool,
}

/// A queue of inode numbers for a thread that notifies.
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

    /// Adds an inode number, if it is not in the queue.
    fn put(&self, node: u64) {
        let mut state = self.state.lock();
        if !state.ended && state.nodes.insert(node) {
            state.order.push_back((Instant::now() + self.pause, node));
            self.more.notify_one();
        }
    }

    /// Waits for the next inode number that is due; `None` after [`Queue::stop`].
    fn take(&self) -> Option<u64> {
        let mut state = self.state.lock();
        loop {
            if state.ended {
                return None;
            }
            let now = Instant::now();
            match state.order.front().copied() {
                Some((due, node)) if due <= now => {
                    state.order.pop_front();
                    state.nodes.remove(&node);
                    return Some(node);
                }
                Some((due, _)) => {
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
}

impl KernelCache for Queues {
    fn invalidate_attributes(&self, nodeid: u64) {
        self.attributes.put(nodeid);
    }

    fn invalidate_data(&self, nodeid: u64) {
        self.data.put(nodeid);
    }

    fn expire_names(&self, nodeid: u64) {
        self.names.put(nodeid);
    }
}

/// The two ways to notify the kernel.
#[derive(Debug, Clone)]
pub(super) struct Notifiers {
    pub(super) now: Notifier,
    /// Waits for page locks.
    pub(super) waiting: WaitingNotifier,
}

/// Tells the kernel of changes by somebody else, before it is given attributes of `node`.
pub(super) async fn tell_behind<N: Nfs3>(fs: &Arc<Fs<N>>, notifiers: &Notifiers, node: u64) {
    tell(notifiers, fs.behind_attributes(node).await).await;
}

/// Tells the kernel of a change by somebody else, before the reply that shows it.
pub(super) async fn tell(notifiers: &Notifiers, behind: Option<Behind>) {
    let Some(behind) = behind else { return };
    if behind.has_pages() || behind.end.is_some() {
        let waiting = notifiers.waiting.clone();
        apart(move || tell_now(&waiting, behind)).await;
    } else {
        let _ = notifiers.now.inval_inode(behind.nodeid(), -1, 0);
        behind.told();
    }
}

/// The same, on a thread that may wait for page locks.
fn tell_now(waiting: &WaitingNotifier, behind: Behind) {
    // An error means that the kernel has forgotten the inode, or that the mount is gone.
    let _ = waiting.changed(behind.nodeid(), behind.end);
    behind.told();
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
    queues: [Arc<Queue>; 3],
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Invalidator {
    /// Starts the threads, and makes `fs` use them.
    pub(super) fn start<N: Nfs3>(fs: &Arc<Fs<N>>, notifiers: Notifiers) -> io::Result<Self> {
        let (notifier, waiting) = (notifiers.now, notifiers.waiting);
        let [attributes, data, names] = [Duration::ZERO, PAUSE, Duration::ZERO].map(Queue::new);
        let this = Invalidator {
            queues: [attributes.clone(), data.clone(), names.clone()],
            threads: Mutex::default(),
        };
        let (queue, of_data) = (data.clone(), waiting.clone());
        let fs_of_data = Arc::downgrade(fs);
        let serve = move || {
            while let Some(node) = queue.take() {
                let Some(fs) = fs_of_data.upgrade() else {
                    return;
                };
                if fs.is_kernel_reading_for(node, SILENCE) {
                    queue.put(node);
                } else if let Some(behind) = fs.old_pages(node) {
                    drop(fs);
                    tell_now(&of_data, behind);
                }
            }
        };
        this.spawn("inval-data", serve)?;
        let queue = attributes.clone();
        let serve = move || {
            while let Some(node) = queue.take() {
                let _ = notifier.inval_inode(node, -1, 0);
            }
        };
        this.spawn("inval-attr", serve)?;
        let (queue, fs_of_names) = (names.clone(), Arc::downgrade(fs));
        let serve = move || {
            while let Some(node) = queue.take() {
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
                    queue.put(node);
                }
            }
        };
        this.spawn("expire-names", serve)?;
        fs.set_kernel_cache(Box::new(Queues {
            attributes,
            data,
            names,
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
