//! Notifies the kernel of what it must no longer cache.
//!
//! FUSE_NOTIFY_INVAL_INODE for data waits for page locks. A READ request holds such a lock until it
//! is answered, so a thread that notifies must not be one that answers requests ([`apart`]). A
//! notification for attributes waits for nothing.
//!
//! If somebody else has changed a file, the kernel drops its pages before it is given attributes or an
//! open file that show the change ([`tell`]). If nobody asks for them, it is notified after [`PAUSE`].
//!
//! If somebody else has changed a directory, the kernel is notified of each name that is no longer valid here. That
//! waits for the directory's lock, which a request that changes a name holds until it is answered.
//!
//! For each of the three a task takes inode numbers from a queue, which holds at most one for each
//! inode that the kernel knows.

use crate::fs::{Behind, Fs, KernelCache};
use nfsrdma_channel::Notifier;
use nfsrdma_nfs3::Nfs3;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::mem;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// How long the notification for a change of data is left to a reply that shows the change. A program
/// that does not ask sees the change so much later than the attributes expire, by which nfs(5) goes.
const PAUSE: Duration = Duration::from_millis(50);
/// The directories of which names expire at the same time. Some may be locked for as long as a server puts a REMOVE off.
const DIRECTORIES: usize = 16;

/// Inode numbers for a task that notifies.
#[derive(Debug, Default)]
struct Queue {
    nodes: Mutex<BTreeSet<u64>>,
    more: Notify,
}

impl Queue {
    /// Adds an inode number, if it is not in the queue.
    fn put(&self, node: u64) {
        if self.nodes.lock().insert(node) {
            self.more.notify_one();
        }
    }

    /// Waits until there are some, and takes those that there are after a pause.
    async fn take(&self, pause: Duration) -> BTreeSet<u64> {
        self.more.notified().await;
        if !pause.is_zero() {
            sleep(pause).await;
        }
        mem::take(&mut *self.nodes.lock())
    }
}

/// The queues, as the file system uses them.
#[derive(Debug)]
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

/// Tells the kernel of changes by somebody else, before it is given attributes of `node`. False if
/// there was nothing to tell.
pub(super) async fn tell_behind<N: Nfs3>(fs: &Arc<Fs<N>>, notifier: &Notifier, node: u64) -> bool {
    if !fs.is_behind(node) {
        return false;
    }
    // Boxed, because it is rare, and its state is large.
    Box::pin(async {
        let behind = fs.behind_attributes(node).await;
        let any = behind.is_some();
        tell(notifier, behind).await;
        any
    })
    .await
}

/// Tells the kernel of a change by somebody else, before the reply that shows it.
pub(super) async fn tell(notifier: &Notifier, behind: Option<Behind>) {
    let Some(behind) = behind else { return };
    if behind.has_pages() || behind.end.is_some() {
        tell_apart(notifier, behind).await;
    } else {
        let _ = notifier.inval_inode(behind.nodeid(), -1, 0);
        behind.told();
    }
}

/// The same, on threads that may wait for page locks. False if there is no thread to be had.
async fn tell_apart(notifier: &Notifier, behind: Behind) -> bool {
    let (node, end) = (behind.nodeid(), behind.end);
    apart(
        notifier,
        move |notifier| {
            // An error means that the kernel has forgotten the inode, or that the mount is gone.
            let _ = notifier.changed(node, end);
        },
        || behind.told(),
    )
    .await
}

/// Makes the kernel drop the pages of `range`.
pub(super) async fn drop_pages(notifier: &Notifier, node: u64, range: Range<u64>) {
    let (from, len) = (range.start as i64, (range.end - range.start) as i64);
    let drop_pages = move |notifier: &Notifier| {
        // An error means that the kernel has forgotten the inode and its pages.
        let _ = notifier.inval_inode(node, from, len);
    };
    apart(notifier, drop_pages, || {}).await;
}

/// Sends what waits for locks ([`Notifier::apart`]), and waits for it, and for `then`, which may wake others. False if
/// there is no thread to be had.
async fn apart(
    notifier: &Notifier,
    send: impl Fn(&Notifier) + Send + Sync + 'static,
    then: impl FnOnce() + Send + 'static,
) -> bool {
    let (over, ended) = oneshot::channel();
    let notifier = notifier.clone();
    let work = move || {
        notifier.apart(send);
        then();
        // Whoever waited may have been killed.
        let _ = over.send(());
    };
    let thread = std::thread::Builder::new().name("inval-now".into());
    let started = thread.spawn(work).is_ok();
    if started {
        // An error means that the thread has ended.
        let _ = ended.await;
    }
    started
}

/// Makes the kernel look these names of the directory `node` up again.
async fn expire(notifier: Notifier, node: u64, names: Arc<[Box<[u8]>]>) {
    loop {
        let names = names.clone();
        let send = move |notifier: &Notifier| {
            for name in &*names {
                // An error means that the kernel does not know the name.
                let _ = notifier.expire_entry(node, name);
            }
        };
        if apart(&notifier, send, || {}).await {
            return;
        }
        sleep(PAUSE).await;
    }
}

/// Starts the tasks that send notifications, and makes `fs` use them.
pub(super) fn start<N: Nfs3>(
    fs: &Arc<Fs<N>>,
    notifier: &Notifier,
    tasks: &mut JoinSet<()>,
    runtime: &Handle,
) {
    let queues = Queues {
        attributes: Arc::default(),
        data: Arc::default(),
        names: Arc::default(),
    };
    let (queue, now) = (queues.attributes.clone(), notifier.clone());
    let attributes = async move {
        loop {
            for node in queue.take(Duration::ZERO).await {
                let _ = now.inval_inode(node, -1, 0);
            }
        }
    };
    tasks.spawn_on(attributes, runtime);
    let (queue, of_data) = (queues.data.clone(), fs.clone());
    let waiting = notifier.clone();
    let data = async move {
        let (one_at_a_time, mut waits) = (Arc::new(Semaphore::new(1)), JoinSet::new());
        loop {
            for node in queue.take(PAUSE).await {
                let (fs, waiting, turn) = (of_data.clone(), waiting.clone(), one_at_a_time.clone());
                let again = queue.clone();
                waits.spawn(async move {
                    // The notification would wait for a READ that the server does not answer, and
                    // umount(2) for the notification.
                    fs.kernel_reads_answered(node).await;
                    let _turn = turn.acquire().await;
                    if let Some(behind) = fs.old_pages(node)
                        && !tell_apart(&waiting, behind).await
                    {
                        again.put(node);
                    }
                });
            }
            while waits.try_join_next().is_some() {}
        }
    };
    tasks.spawn_on(data, runtime);
    let (queue, of_names) = (queues.names.clone(), fs.clone());
    let waiting = notifier.clone();
    let names = async move {
        let (some_at_a_time, mut waits) = (Arc::new(Semaphore::new(DIRECTORIES)), JoinSet::new());
        loop {
            for node in queue.take(Duration::ZERO).await {
                let turn = some_at_a_time.clone().acquire_owned().await;
                let outdated = of_names.names_to_expire(node);
                // A kernel without this notification would unmount what is mounted below.
                if waiting.can_expire() && !outdated.is_empty() {
                    let told = expire(waiting.clone(), node, outdated.into());
                    waits.spawn(async move {
                        told.await;
                        drop(turn);
                    });
                }
            }
            while waits.try_join_next().is_some() {}
        }
    };
    tasks.spawn_on(names, runtime);
    fs.set_kernel_cache(Box::new(queues));
}
