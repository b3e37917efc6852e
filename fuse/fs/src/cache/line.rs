//! Callers that wait for room below a limit which they share, in the order in which they came.
//!
//! Whoever gives room back does not know who can use it. Were all callers woken, each end of a WRITE
//! would cost as much as there are callers, and all but few of them would find no room. So
//! [`Line::call`] wakes only the first. If it finds room, it leaves the line, and thereby calls the
//! next, until one finds none: that one stays the first, and is called when room is given back
//! again. A caller that cannot go on for another reason must leave the line, because it would keep
//! the others waiting.

use crate::sync::Mutex;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

/// A caller in the line.
#[derive(Debug, Default)]
struct Place {
    /// It was called and has not looked since.
    called: bool,
    waker: Option<Waker>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    places: BTreeMap<u64, Place>,
}

/// The callers that wait.
#[derive(Debug, Default)]
pub struct Line {
    state: Mutex<State>,
}

/// A caller's place in a [`Line`]. Dropping this leaves the line.
#[derive(Debug)]
pub struct Turn<'a> {
    line: &'a Line,
    number: u64,
}

impl Line {
    /// Joins the end of the line. Look for room once more after this: what was given back before
    /// has called others.
    pub fn join(&self) -> Turn<'_> {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.places.insert(number, Place::default());
        Turn { line: self, number }
    }

    /// Room was given back, or the first caller has something to do for it. Not to be called with a
    /// lock held: the caller may run at once, on this thread.
    pub fn call(&self) {
        let waker = {
            let mut state = self.state.lock();
            let first = state.places.values_mut().next();
            first.and_then(|first| {
                first.called = true;
                first.waker.take()
            })
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Turn<'_> {
    /// Waits until this caller was called since it joined, or since this returned last.
    pub async fn called(&mut self) {
        poll_fn(|context| self.poll_called(context)).await;
    }

    fn poll_called(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.line.state.lock();
        let place = state.places.get_mut(&self.number);
        let place = place.expect("a turn has a place until it is dropped");
        if std::mem::take(&mut place.called) {
            return Poll::Ready(());
        }
        place.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let place = self.line.state.lock().places.remove(&self.number);
        // Outside the lock, because this may drop a caller's future.
        drop(place);
        self.line.call();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn only_the_first_is_woken_and_leaving_calls_the_next() {
        let line = Line::default();
        let woken = Arc::new(Count::default());
        let waker = Waker::from(woken.clone());
        let mut context = Context::from_waker(&waker);
        let count = || woken.0.load(Ordering::Relaxed);
        let mut turns: Vec<_> = (0..100).map(|_| line.join()).collect();
        for turn in &mut turns {
            assert!(turn.poll_called(&mut context).is_pending());
        }
        line.call();
        line.call();
        assert_eq!(count(), 1);
        // It finds no room, and stays the first.
        assert!(turns[0].poll_called(&mut context).is_ready());
        assert!(turns[0].poll_called(&mut context).is_pending());
        line.call();
        assert_eq!(count(), 2);
        // One in the middle leaves, as when its caller goes on for another reason.
        drop(turns.remove(50));
        drop(turns.remove(0));
        assert_eq!(count(), 3);
        assert!(turns[1].poll_called(&mut context).is_pending());
        assert!(turns[0].poll_called(&mut context).is_ready());
        drop(turns);
        line.call();
    }
}
