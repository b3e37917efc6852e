//! One change at a time of each directory, and of each object's attributes.
//!
//! The kernel locks an inode while it waits for the answer to a change of it, so there mostly is one
//! anyway. But a caller that is killed is answered at once, and its call may still be on its way: a
//! server runs calls in any order, and may be slow with one. The removal of a name by a program that
//! was killed must not hit the file that another program has put there since. So the next change of
//! the inode waits until the call has ended. (Linux's client does not wait.)

use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use tokio::sync::Notify;

/// The inodes of a change: one, or the two directories of a RENAME.
pub(super) type Nodes = [u64; 2];

/// The inodes that are being changed.
#[derive(Debug, Default)]
pub(super) struct Turns {
    taken: Mutex<HashSet<u64>>,
    ended: Notify,
}

/// While this lives, no other change of its inodes begins.
#[derive(Debug)]
pub(super) struct Turn {
    turns: Arc<Turns>,
    nodes: Nodes,
}

impl Turns {
    /// Begins a change of `nodes`, unless one of them is being changed.
    pub(super) fn try_take(self: &Arc<Self>, nodes: Nodes) -> Option<Turn> {
        let mut taken = self.taken.lock();
        if nodes.iter().any(|node| taken.contains(node)) {
            return None;
        }
        taken.extend(nodes);
        let turns = self.clone();
        Some(Turn { turns, nodes })
    }

    /// Begins a change of `nodes` once no other one is under way.
    pub(super) async fn take(self: &Arc<Self>, nodes: Nodes) -> Turn {
        loop {
            // From here on, each end is noticed.
            let ended = self.ended.notified();
            if let Some(turn) = self.try_take(nodes) {
                return turn;
            }
            ended.await;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut taken = self.turns.taken.lock();
        for node in &self.nodes {
            taken.remove(node);
        }
        drop(taken);
        self.turns.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    #[test]
    fn a_change_waits_for_another_of_one_of_its_inodes_only() {
        let turns = Arc::new(Turns::default());
        let first = turns.try_take([1, 1]).unwrap();
        drop(turns.try_take([2, 3]).unwrap());
        assert!(turns.try_take([1, 1]).is_none());
        assert!(turns.try_take([2, 1]).is_none());
        let mut next = pin!(turns.take([2, 1]));
        let mut context = Context::from_waker(Waker::noop());
        assert!(next.as_mut().poll(&mut context).is_pending());
        // What waits has taken nothing.
        drop(turns.try_take([2, 2]).unwrap());
        drop(first);
        let Poll::Ready(second) = next.as_mut().poll(&mut context) else {
            panic!("the first change has ended");
        };
        assert!(turns.try_take([2, 2]).is_none());
        drop(second);
        assert!(turns.taken.lock().is_empty());
    }
}
