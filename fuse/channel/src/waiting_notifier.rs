//! Notifications that wait for locks, sent by threads that have tables of descriptors of their own.
//!
//! FUSE_NOTIFY_INVAL_INODE for data waits for page locks, and FUSE_NOTIFY_INVAL_ENTRY for the lock
//! of a directory. Requests hold these locks until this process answers them. If it is killed
//! meanwhile, its requests would end when /dev/fuse is closed; but the threads of a process share
//! their descriptors, which stay open until the last thread has ended, and that one waits for the
//! requests: a process that nobody can kill, with a mount that hangs for ever. So the threads that
//! send these notifications share no descriptors. Each has only a device that nobody reads requests
//! from. When the other threads have ended, the devices that they read from are closed, the requests
//! fail, and these threads end as well.
//!
//! Nothing that they do may need another descriptor, neither directly nor by waking a thread.

use super::device::Device;
use super::notify::Notifier;
use super::own_table;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::{self, ThreadId};
use std::time::Duration;

/// How long one thread is kept for further notifications: seldom are there two at the same time.
const IDLE: Duration = Duration::from_secs(10);

/// What to tell the kernel.
#[derive(Debug)]
enum Notification {
    Pages { nodeid: u64, offset: i64, len: i64 },
    Changed { nodeid: u64, end: Option<(u64, u8)> },
    Names { parent: u64, names: Vec<Box<[u8]>> },
}

impl Notification {
    fn send(&self, notifier: &Notifier) -> io::Result<()> {
        match self {
            Notification::Pages {
                nodeid,
                offset,
                len,
            } => notifier.inval_inode(*nodeid, *offset, *len),
            Notification::Changed { nodeid, end } => notifier.changed(*nodeid, *end),
            Notification::Names { parent, names } => {
                for name in names {
                    // An error means that the kernel does not know the name.
                    let _ = notifier.expire_entry(*parent, name);
                }
                Ok(())
            }
        }
    }
}

/// Sends notifications that wait for locks. The caller waits, too, on a thread that can be killed.
#[derive(Debug, Clone)]
pub struct WaitingNotifier(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// A device of its own, where the kernel has that.
    device: Arc<Device>,
    expire: bool,
    idle: Arc<Idle>,
    /// The kernel, or a filter of system calls, gives threads no tables of their own.
    refused: AtomicBool,
}

/// The thread that has nothing to do, if there is one.
type Idle = Mutex<Option<Worker>>;

/// A thread that sends notifications. It ends when this is dropped.
#[derive(Debug)]
struct Worker {
    id: ThreadId,
    orders: Sender<Notification>,
    results: Receiver<io::Result<()>>,
}

impl WaitingNotifier {
    /// `expire`: whether the kernel knows FUSE_EXPIRE_ONLY.
    pub fn new(device: &Arc<Device>, expire: bool) -> Self {
        let own = device.try_clone().map(Arc::new);
        WaitingNotifier(Arc::new(Shared {
            device: own.unwrap_or_else(|_| device.clone()),
            expire,
            idle: Arc::default(),
            refused: AtomicBool::new(false),
        }))
    }

    /// Makes the kernel drop the pages of a file from `offset` on, `len` bytes, or all if `len` is
    /// not positive, and its attributes. Waits for locks of these pages.
    pub fn drop_pages(&self, nodeid: u64, offset: i64, len: i64) -> io::Result<()> {
        self.send(Notification::Pages {
            nodeid,
            offset,
            len,
        })
    }

    /// As [`Notifier::changed`].
    pub fn changed(&self, nodeid: u64, end: Option<(u64, u8)>) -> io::Result<()> {
        self.send(Notification::Changed { nodeid, end })
    }

    /// Whether the kernel can expire names ([`Notifier::can_expire`]).
    pub fn can_expire(&self) -> bool {
        self.0.expire
    }

    /// Makes the kernel look names up again before they are used. Waits for the directory's lock.
    pub fn expire_entries(&self, parent: u64, names: Vec<Box<[u8]>>) {
        // Names have no errors.
        let _ = self.send(Notification::Names { parent, names });
    }

    fn send(&self, notification: Notification) -> io::Result<()> {
        let idle = self.0.idle.lock().take();
        let worker = match idle {
            Some(worker) => worker,
            None => match self.0.start() {
                Ok(worker) => worker,
                // Sent, but by a thread that keeps the other descriptors open.
                Err(_) => return notification.send(&self.0.notifier()),
            },
        };
        let ended = || io::Error::other("the thread for notifications has ended");
        worker.orders.send(notification).map_err(|_| ended())?;
        let result = worker.results.recv().map_err(|_| ended())?;
        self.0.idle.lock().get_or_insert(worker);
        result
    }
}

impl Shared {
    fn notifier(&self) -> Notifier {
        Notifier::new(self.device.clone(), self.expire)
    }

    /// Starts a thread. Fails if there is none to be had, or no table of descriptors for it.
    fn start(&self) -> io::Result<Worker> {
        if self.refused.load(Relaxed) {
            return Err(Errno::NOSYS.into());
        }
        let (orders, ordered) = channel::<Notification>();
        let (tell, results) = channel();
        // `self` keeps the descriptor open until the thread has told that it has its own.
        let (raw, expire) = (self.device.as_fd().as_raw_fd(), self.expire);
        let idle = Arc::downgrade(&self.idle);
        let serve = move || {
            // SAFETY: open, as said above.
            let device = unsafe { BorrowedFd::borrow_raw(raw) };
            let notifier = match own_table::with_only(device) {
                Ok(own) => Notifier::new(Arc::new(own.into()), expire),
                Err(error) => return drop(tell.send(Err(error))),
            };
            if tell.send(Ok(())).is_err() {
                return;
            }
            loop {
                match ordered.recv_timeout(IDLE) {
                    Ok(notification) => {
                        if tell.send(notification.send(&notifier)).is_err() {
                            return;
                        }
                    }
                    Err(RecvTimeoutError::Timeout) if !is_over(&idle) => {}
                    Err(_) => return,
                }
            }
        };
        let thread = thread::Builder::new().name("notify".into());
        let id = thread.spawn(serve)?.thread().id();
        let ready = results.recv();
        ready
            .map_err(|_| io::Error::other("the thread has ended"))?
            .inspect_err(|error| {
                self.refused.store(true, Relaxed);
                tracing::debug!("threads that notify share their descriptors: {error}");
            })?;
        Ok(Worker {
            id,
            orders,
            results,
        })
    }
}

/// Whether this thread, which has waited for long, is the idle one, and so no order is coming. Then
/// nobody finds it any more.
fn is_over(idle: &Weak<Idle>) -> bool {
    let Some(idle) = idle.upgrade() else {
        return true;
    };
    let this = thread::current().id();
    let found = idle.lock().take_if(|worker| worker.id == this);
    found.is_some()
}

#[cfg(test)]
#[path = "waiting_notifier_tests.rs"]
mod tests;
