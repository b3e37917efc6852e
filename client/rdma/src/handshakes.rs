//! The handshakes that a provider has under way, for a process that is about to end.
//!
//! A process that ends closes its sockets. Linux's siw loses its listener if a TCP connection ends
//! before it was accepted, so that no client can connect until the server is started again. So
//! whoever ends first waits a moment for the peers' answers.

use parking_lot::{Condvar, Mutex};
use std::time::Duration;

/// The longest wait for the answers of peers. One that is in order answers within milliseconds.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Counts the connections whose peer has not answered the request to connect.
#[derive(Debug, Default)]
pub struct Handshakes {
    under_way: Mutex<usize>,
    none: Condvar,
}

/// A handshake under way, until it is dropped.
#[derive(Debug)]
pub struct Handshake<'a>(&'a Handshakes);

impl Handshakes {
    /// A handshake begins.
    pub fn begin(&self) -> Handshake<'_> {
        *self.under_way.lock() += 1;
        Handshake(self)
    }

    /// Waits until no handshake is under way, for at most a second. Returns whether none is.
    pub fn wait(&self) -> bool {
        let mut under_way = self.under_way.lock();
        let some = |under_way: &mut usize| *under_way > 0;
        self.none.wait_while_for(&mut under_way, some, LONGEST_WAIT);
        *under_way == 0
    }
}

impl Drop for Handshake<'_> {
    fn drop(&mut self) {
        let mut under_way = self.0.under_way.lock();
        *under_way -= 1;
        if *under_way == 0 {
            self.0.none.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_ends_with_the_last_handshake() {
        let handshakes = Handshakes::default();
        assert!(handshakes.wait());
        let (first, second) = (handshakes.begin(), handshakes.begin());
        drop(first);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| handshakes.wait());
            drop(second);
            assert!(waiting.join().unwrap());
        });
    }

    #[test]
    fn a_peer_that_does_not_answer_ends_the_wait_as_well() {
        let handshakes = Handshakes::default();
        let _silent = handshakes.begin();
        assert!(!handshakes.wait());
    }
}
