//! One change at a time of each directory, and of each object's attributes.
//!
//! The kernel locks an inode while it waits for the answer to a change of it, so there mostly is one
//! anyway. But a caller that is killed is answered at once, and its call may still be on its way: a
//! server runs calls in any order, and may be slow with one. The removal of a name by a program that
//! was killed must not hit the file that another program has put there since. So the next change of
//! the inode waits until the call has ended. (Linux's client does not wait.)

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::Notify;

/// The inodes of a change: one, or the two directories of a RENAME.
pub(super) type Nodes = [u64; 2];

/// An inode that is being changed, or that changes wait for.
#[derive(Debug, Default)]
struct Inode {
    taken: bool,
    /// The number of changes that wait for it. They are notified one at a time, in their order.
    waiting: usize,
    free: Arc<Notify>,
}

/// Those inodes. One that is not taken and has changes that wait for it has notified one of them.
#[derive(Debug, Default)]
struct Inodes(HashMap<u64, Inode>);

impl Inodes {
    /// Takes `nodes`, or returns the first that is not free: that is taken, or, unless this change
    /// was notified (`is_next`), that others wait for.
    fn take(&mut self, nodes: Nodes, is_next: bool) -> Result<(), u64> {
        let is_busy = |of: &Inode| of.taken || of.waiting > 0 && !is_next;
        for node in nodes {
            if self.0.get(&node).is_some_and(is_busy) {
                return Err(node);
            }
        }
        for node in nodes {
            self.0.entry(node).or_default().taken = true;
        }
        Ok(())
    }

    /// Notifies the next change that waits for `node`, if that is not taken.
    fn pass_on(&mut self, node: u64) {
        match self.0.get(&node) {
            Some(of) if of.taken => {}
            Some(of) if of.waiting > 0 => of.free.notify_one(),
            _ => drop(self.0.remove(&node)),
        }
    }

    /// A change waits for `node` no longer.
    fn leave(&mut self, node: u64) {
        if let Some(of) = self.0.get_mut(&node) {
            of.waiting -= 1;
        }
    }
}

/// The inodes that are being changed.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<Inodes>);

/// While this lives, no other change of its inodes begins.
#[derive(Debug)]
pub(super) struct Turn {
    turns: Arc<Turns>,
    nodes: Nodes,
}

/// A change waits for this inode.
struct Place<'a> {
    turns: &'a Turns,
    node: u64,
    left: bool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !self.left {
            let mut inodes = self.turns.0.lock();
            inodes.leave(self.node);
            inodes.pass_on(self.node);
        }
    }
}

impl Turns {
    /// Begins a change of `nodes`, unless one of them is being changed, or others wait for it.
    pub(super) fn try_take(self: &Arc<Self>, nodes: Nodes) -> Option<Turn> {
        self.0.lock().take(nodes, false).ok()?;
        Some(self.turn(nodes))
    }

    fn turn(self: &Arc<Self>, nodes: Nodes) -> Turn {
        let turns = self.clone();
        Turn { turns, nodes }
    }

    /// Begins a change of `nodes` once no other one is under way.
    ///
    /// Who waits is notified only when an inode of its own is free, and alone: a user may have
    /// thousands of threads that wait to truncate one file.
    pub(super) async fn take(self: &Arc<Self>, nodes: Nodes) -> Turn {
        let mut called: Option<Place<'_>> = None;
        loop {
            let (place, free) = {
                let mut inodes = self.0.lock();
                let node = called.as_mut().map(|place| {
                    place.left = true;
                    inodes.leave(place.node);
                    place.node
                });
                let taken = inodes.take(nodes, node.is_some());
                if let Some(node) = node {
                    // The other inode of this change may not be free.
                    inodes.pass_on(node);
                }
                let Err(node) = taken else {
                    return self.turn(nodes);
                };
                let busy = inodes.0.entry(node).or_default();
                busy.waiting += 1;
                let (turns, left) = (&**self, false);
                (Place { turns, node, left }, busy.free.clone())
            };
            free.notified().await;
            called = Some(place);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut inodes = self.turns.0.lock();
        for node in self.nodes {
            if let Some(of) = inodes.0.get_mut(&node) {
                of.taken = false;
            }
        }
        inodes.pass_on(self.nodes[0]);
        if self.nodes[1] != self.nodes[0] {
            inodes.pass_on(self.nodes[1]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::{Pin, pin};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Wake, Waker};

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
        assert!(turns.0.lock().0.is_empty());
    }

    /// Changes that wait, each with the number of times that it was woken.
    struct Waiting<'a> {
        change: Pin<Box<dyn Future<Output = Turn> + 'a>>,
        woken: Arc<Woken>,
    }

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Waiting<'_> {
        fn new(turns: &Arc<Turns>, nodes: Nodes) -> Waiting<'_> {
            let change = Box::pin(turns.take(nodes));
            let woken = Arc::default();
            Waiting { change, woken }
        }

        /// A change that cannot begin yet.
        fn begun(turns: &Arc<Turns>, nodes: Nodes) -> Waiting<'_> {
            let mut waiting = Self::new(turns, nodes);
            assert!(waiting.poll().is_none());
            waiting
        }

        fn poll(&mut self) -> Option<Turn> {
            let waker = Waker::from(self.woken.clone());
            match self.change.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(turn) => Some(turn),
                Poll::Pending => None,
            }
        }

        fn woken(&self) -> usize {
            self.woken.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn of_thousands_that_wait_for_an_inode_one_is_woken_when_that_is_free_and_none_by_others() {
        let turns = Arc::new(Turns::default());
        let mut first = turns.try_take([1, 1]).unwrap();
        let mut waiting: Vec<_> = (0..1000).map(|_| Waiting::begun(&turns, [1, 1])).collect();
        let woken = |waiting: &[Waiting<'_>]| waiting.iter().map(Waiting::woken).sum::<usize>();
        for node in 2..1000 {
            drop(turns.try_take([node, node]).unwrap());
        }
        assert_eq!(
            woken(&waiting),
            0,
            "other inodes are none of their business"
        );
        for at in 0..waiting.len() {
            drop(first);
            assert_eq!(woken(&waiting), at + 1);
            assert!(turns.try_take([1, 1]).is_none(), "others came first");
            first = waiting[at].poll().expect("they take turns");
        }
        drop(first);
        drop(waiting);
        assert!(turns.0.lock().0.is_empty());
    }

    #[test]
    fn who_is_woken_and_cannot_begin_lets_the_next_one_begin() {
        let turns = Arc::new(Turns::default());
        let (one, two) = (turns.try_take([1, 1]), turns.try_take([2, 2]));
        let mut both = Waiting::begun(&turns, [1, 2]);
        let mut next = Waiting::begun(&turns, [1, 1]);
        let given_up = Waiting::begun(&turns, [1, 1]);
        drop(one);
        assert!(both.poll().is_none(), "the second inode is taken");
        drop(next.poll().expect("the first one is free"));
        assert_eq!(given_up.woken(), 1);
        drop(given_up);
        drop(turns.try_take([1, 1]).expect("nobody waits for it"));
        drop(two);
        drop(both.poll().expect("both are free"));
        assert!(turns.0.lock().0.is_empty());
    }

    #[test]
    fn all_changes_begin_in_some_order_though_some_give_up() {
        let mut random = 1u32;
        let mut below = |most: u32| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 16) % most
        };
        for _ in 0..500 {
            let turns = Arc::new(Turns::default());
            let (mut held, mut waiting) = (Vec::new(), Vec::new());
            for _ in 0..30 {
                let nodes = [u64::from(below(4)), u64::from(below(4))];
                match turns.try_take(nodes) {
                    Some(turn) => held.push(turn),
                    // One that gave up after it was notified may have left that to this one.
                    None => {
                        let mut of = Waiting::new(&turns, nodes);
                        match of.poll() {
                            Some(turn) => held.push(turn),
                            None => waiting.push(of),
                        }
                    }
                }
                if below(3) == 0 && !held.is_empty() {
                    held.swap_remove(below(held.len() as u32) as usize);
                }
                if below(8) == 0 && !waiting.is_empty() {
                    waiting.swap_remove(below(waiting.len() as u32) as usize);
                }
            }
            while !waiting.is_empty() || !held.is_empty() {
                held.pop();
                // Only those that were woken go on.
                while let Some(at) = waiting.iter().position(|of| of.woken() > 0) {
                    let mut of = waiting.swap_remove(at);
                    of.woken.0.store(0, Ordering::Relaxed);
                    match of.poll() {
                        Some(turn) => held.push(turn),
                        None => waiting.push(of),
                    }
                }
                assert!(!held.is_empty() || waiting.is_empty(), "nobody goes on");
            }
            assert!(turns.0.lock().0.is_empty());
        }
    }
}
