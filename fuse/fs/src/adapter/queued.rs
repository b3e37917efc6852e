//! Requests that the kernel has queued and no event loop has read yet.
//!
//! The kernel notes a version when it makes a READ, and ignores the end of file in the reply if
//! the inode has got a newer one meanwhile: by a notification, or by the end of file in the reply
//! to another READ. It then goes on with the size it had, and what lies between the two ends
//! reads as zeros. So before a notification, and before a reply with a false end
//! ([`crate::fs::ReadEnd`]), READs that are under way are waited for. Those that were read are
//! known ([`crate::fs::Fs::is_reading`]); of those that wait in the queue, for as long as it takes
//! a busy machine to run an event loop, poll(2) tells only that something waits. So the queue is
//! seen empty first, then the READs are looked at: what was queued before has been read by then.
//!
//! A READ that the kernel makes between that and the notification, or the reply, is not seen. It
//! may do so just then: the reply to one READ has a program go on to the next. Therefore a pause
//! after the last READ counts as READs under way, and a READ of read-ahead behind the end is not
//! answered by an end at all, but by an error ([`Queued::is_read_ahead`]).

use nfsrdma_channel::Device;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use parking_lot::{Condvar, Mutex};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Between two looks at the queue.
const PAUSE: Duration = Duration::from_millis(1);

/// The last release of Linux of which is known that a FUSE file has no large folios.
const LAST_WITHOUT_FOLIOS: (u32, u32) = (6, 18);

/// Whether the kernel has a request that nobody has read.
pub(super) fn has_request(device: &Device) -> bool {
    let mut poll = [PollFd::new(device.as_fd(), PollFlags::POLLIN)];
    nix::poll::poll(&mut poll, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
        && poll[0]
            .revents()
            .is_some_and(|events| events == PollFlags::POLLIN)
}

/// What is waited for beside the empty queue.
type Condition = Box<dyn Fn() -> bool + Send>;

struct Waiter {
    until: Instant,
    condition: Condition,
    wake: oneshot::Sender<()>,
}

#[derive(Default)]
struct State {
    waiters: Vec<Waiter>,
    ended: bool,
}

struct Shared {
    device: Arc<Device>,
    state: Mutex<State>,
    more: Condvar,
}

/// The queue of a mount. A thread looks at it, from the first time that somebody waits: only where
/// others change files.
pub(super) struct Queued {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The kernel reads so much, a page, where it reads just what a program waits for. `None` if
    /// it may be more.
    page: Option<u64>,
}

impl Queued {
    pub(super) fn new(device: &Arc<Device>) -> Arc<Self> {
        let shared = Arc::new(Shared {
            device: device.clone(),
            state: Mutex::default(),
            more: Condvar::new(),
        });
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
        let release = release.ok().and_then(|text| release_of(&text));
        let by_page = release.is_some_and(|release| release <= LAST_WITHOUT_FOLIOS);
        let auxv = std::fs::read("/proc/self/auxv").unwrap_or_default();
        Arc::new(Queued {
            shared,
            thread: Mutex::default(),
            page: page_size(&auxv).filter(|_| by_page),
        })
    }

    /// Whether a READ of `size` bytes into the page cache is surely one of read-ahead. If such a
    /// READ fails, no program is told (fuse_readpages_end): whoever gets to one of its pages finds
    /// it without data, and the kernel makes a READ of this page. It makes those in the order in
    /// which the program reads, and each with the version of that moment, so that none comes
    /// before the READ of the end.
    ///
    /// What a program waits for is read by the page (fuse_read_folio), as long as pages are not
    /// parts of larger folios. In releases of Linux in which they may be, nothing is sure.
    pub(super) fn is_read_ahead(&self, size: u32) -> bool {
        self.page.is_some_and(|page| u64::from(size) > page)
    }

    /// Whether the queue is empty at this moment.
    pub(super) fn is_empty(&self) -> bool {
        !has_request(&self.shared.device)
    }

    /// Returns when the queue was seen empty, and `condition` true after it; or after `most`.
    pub(super) async fn until_empty(
        &self,
        most: Duration,
        condition: impl Fn() -> bool + Send + 'static,
    ) {
        if self.shared.is_quiet(&condition) {
            return;
        }
        let (wake, woken) = oneshot::channel();
        {
            let mut state = self.shared.state.lock();
            if state.ended || !self.has_thread() {
                return;
            }
            state.waiters.push(Waiter {
                until: Instant::now() + most,
                condition: Box::new(condition),
                wake,
            });
        }
        self.shared.more.notify_one();
        // An error is the end of the mount.
        let _ = woken.await;
    }

    /// Starts the thread if it is not there. False if the machine has none left: then nothing is
    /// waited for, as if the time were up.
    fn has_thread(&self) -> bool {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let looking = self.shared.clone();
            *thread = std::thread::Builder::new()
                .name("queued".into())
                .spawn(move || looking.run())
                .ok();
        }
        thread.is_some()
    }
}

/// The first two numbers of a release of Linux.
fn release_of(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next()?.parse().ok();
    Some((next()?, next()?))
}

/// The size of a page, of the pairs of words that the kernel gives a process (AT_PAGESZ).
fn page_size(auxv: &[u8]) -> Option<u64> {
    let mut words = auxv
        .chunks_exact(size_of::<usize>())
        .filter_map(|word| word.try_into().ok().map(usize::from_ne_bytes));
    while let (Some(kind), Some(value)) = (words.next(), words.next()) {
        if kind == libc::AT_PAGESZ as usize {
            return Some(value as u64);
        }
    }
    None
}

impl Shared {
    /// In this order: see the head of this file.
    fn is_quiet(&self, condition: impl Fn() -> bool) -> bool {
        !has_request(&self.device) && condition()
    }

    fn run(&self) {
        let mut state = self.state.lock();
        while !state.ended {
            if state.waiters.is_empty() {
                self.more.wait(&mut state);
                continue;
            }
            self.more.wait_for(&mut state, PAUSE);
            let mut waiters = std::mem::take(&mut state.waiters);
            drop(state);
            let mut ready = Vec::new();
            for waiter in std::mem::take(&mut waiters) {
                if Instant::now() >= waiter.until || self.is_quiet(&waiter.condition) {
                    ready.push(waiter.wake);
                } else {
                    waiters.push(waiter);
                }
            }
            // Each goes on here, on this thread. Who gave up does not wait any more.
            for wake in ready {
                let _ = wake.send(());
            }
            state = self.state.lock();
            state.waiters.append(&mut waiters);
        }
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        let waiters = {
            let mut state = self.shared.state.lock();
            state.ended = true;
            std::mem::take(&mut state.waiters)
        };
        self.shared.more.notify_all();
        drop(waiters);
        if let Some(thread) = self.thread.get_mut().take()
            // A request that waited may be the last to know of this.
            && thread.thread().id() != std::thread::current().id()
        {
            // It ends by itself; a panic there has been reported.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
mod tests {
    use super::{page_size, release_of};

    #[test]
    fn releases_of_linux() {
        assert_eq!(release_of("6.1.0-18-amd64"), Some((6, 1)));
        assert_eq!(release_of("6.18.44"), Some((6, 18)));
        assert_eq!(release_of("7.0-rc1"), Some((7, 0)));
        assert_eq!(release_of("unknown"), None);
    }

    #[test]
    fn the_page_of_this_machine() {
        let auxv = std::fs::read("/proc/self/auxv").unwrap();
        let page = page_size(&auxv).unwrap();
        assert!(page >= 4096 && page.is_power_of_two(), "{page}");
        assert_eq!(page_size(&auxv[..7]), None);
    }
}
