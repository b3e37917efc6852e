//! Requests that the kernel has queued and no event loop has read yet.
//!
//! poll(2) tells only that there are some. So what must come after an earlier request of another kind waits until
//! the queue is empty and no event loop holds a request that it has not handled ([`Queued::taking`]).
//!
//! A lock that would be refused waits until the RELEASE of the lock in its way would be known. That
//! came to the queue before it, so it has been read, but maybe by another event loop, which has not
//! handled it yet ([`Queued::until_handled`]). (The kernel holds it back while `max_background`
//! requests are under way for which no program waits. Then it is missed.)

use nfsrdma_channel::Device;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// The pause between two checks of the queue: the kernel promises no notice of a queue that is empty.
const PAUSE: Duration = Duration::from_millis(1);

/// Whether the kernel's queue has a request.
fn has_request(device: &Device) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(device.as_fd(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
        && fds[0].revents() == PollFlags::IN
}

/// The event loops that take requests. The number of each is odd while it may have taken a request
/// and not handled it yet, and changes with each round.
struct Loops(Box<[AtomicU64]>);

impl Loops {
    fn new(number: usize) -> Self {
        Loops((0..number).map(|_| AtomicU64::new(0)).collect())
    }

    /// Those in a round, with the number of the round.
    fn busy(&self) -> Vec<(usize, u64)> {
        let now = self.0.iter().map(|of| of.load(Ordering::SeqCst));
        now.enumerate().filter(|(_, of)| of % 2 == 1).collect()
    }

    fn are_idle(&self) -> bool {
        self.0.iter().all(|of| of.load(Ordering::SeqCst) % 2 == 0)
    }

    /// Whether these rounds are over.
    fn are_over(&self, rounds: &[(usize, u64)]) -> bool {
        rounds
            .iter()
            .all(|&(number, of)| self.0[number].load(Ordering::SeqCst) != of)
    }
}

/// While this lives, an event loop takes requests from the queue.
pub(super) struct Taking<'a>(&'a AtomicU64);

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// The kernel's queue of a mount.
pub(super) struct Queued {
    device: Arc<Device>,
    loops: Loops,
}

impl Queued {
    /// `loops` is the number of event loops.
    pub(super) fn new(device: &Arc<Device>, loops: usize) -> Arc<Self> {
        Arc::new(Queued {
            device: device.clone(),
            loops: Loops::new(loops),
        })
    }

    /// Call before the event loop with this number takes requests.
    pub(super) fn taking(&self, number: usize) -> Taking<'_> {
        let round = &self.loops.0[number];
        round.fetch_add(1, Ordering::SeqCst);
        Taking(round)
    }

    /// Whether the queue is empty, and all requests that it held are handled. The order matters: a
    /// round begins before a request is taken from the queue.
    pub(super) fn is_empty(&self) -> bool {
        !has_request(&self.device) && self.loops.are_idle()
    }

    /// Waits until all requests that were read before this call are handled, but for `most` at most.
    pub(super) async fn until_handled(&self, most: Duration) {
        let rounds = self.loops.busy();
        let until = Instant::now() + most;
        while !self.loops.are_over(&rounds) && Instant::now() < until {
            sleep(PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_rounds_are_not_waited_for() {
        let loops = Loops::new(3);
        let begin = |number: usize| {
            loops.0[number].fetch_add(1, Ordering::SeqCst);
            Taking(&loops.0[number])
        };
        assert!(loops.are_idle() && loops.busy().is_empty());
        let (one, two) = (begin(0), begin(2));
        let busy = loops.busy();
        assert_eq!(busy, [(0, 1), (2, 1)]);
        drop(one);
        let again = begin(0);
        assert!(!loops.are_over(&busy) && !loops.are_idle());
        drop(two);
        assert!(loops.are_over(&busy), "the first loop is in its next round");
        assert_eq!(loops.busy(), [(0, 3)]);
        drop(again);
        assert!(loops.are_idle());
    }
}
