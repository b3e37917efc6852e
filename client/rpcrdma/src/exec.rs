//! Runs futures on the threads that make them ready.
//!
//! [`spawn`] polls a future at once, on the caller's thread, and each wake-up polls it again on the
//! thread that woke it. So a file system call is marshalled and posted by the thread that read the
//! request, and finished by the thread that received the reply, without a hand-over in between.
//! Waking a thread on another CPU costs 25 to 30 us, more than all protocol work of a small call.
//!
//! A future run this way must never block. A wake-up that comes while the thread polls another
//! future waits until that poll has returned: stacks do not grow, and a lock that the outer future
//! holds is not taken twice.

use crate::abandon::Caller;
use crate::place::Place;
use crate::sync::atomic::{AtomicU8, Ordering};
use crate::sync::thread::{self, Thread};
use crate::sync::{Mutex, thread_cell};
use crate::tap::caller;
use nfsrdma_rdma::Instant;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use tokio::task::unconstrained;

const IDLE: u8 = 0;
const QUEUED: u8 = 1;
const RUNNING: u8 = 2;
/// Woken while running: to be polled once more.
const AGAIN: u8 = 3;
const DONE: u8 = 4;

struct Task {
    /// The process on whose behalf the task runs, inherited from the task that spawned it.
    pid: u32,
    /// The caller of the operation that it is, if it is one.
    caller: Option<Caller>,
    state: AtomicU8,
    future: Mutex<Place>,
}

struct Queue {
    /// Whether the thread is inside `drain` or `batch`, which runs what is queued.
    draining: bool,
    tasks: VecDeque<Arc<Task>>,
    /// Tasks that are done, kept for other futures.
    done: Vec<Arc<Task>>,
}

impl Queue {
    const fn new() -> Self {
        Queue {
            draining: false,
            tasks: VecDeque::new(),
            done: Vec::new(),
        }
    }
}

/// How many tasks that are done a thread keeps.
const KEPT: usize = 64;

thread_cell! {
    /// The tasks that this thread is to run next.
    static QUEUE: RefCell<Queue> = const { RefCell::new(Queue::new()) };
}
thread_cell! {
    /// While this thread is inside [`deferring`]: when that began.
    static ROUND: Cell<Option<Instant>> = const { Cell::new(None) };
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let mut state = self.state.load(Ordering::Acquire);
        loop {
            let next = match state {
                IDLE => QUEUED,
                RUNNING => AGAIN,
                _ => return,
            };
            match self
                .state
                .compare_exchange_weak(state, next, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(IDLE) => return schedule(self),
                Ok(_) => return,
                Err(now) => state = now,
            }
        }
    }
}

impl Task {
    fn run(self: &Arc<Self>) {
        let waker = Waker::from(self.clone());
        let mut context = Context::from_waker(&waker);
        loop {
            self.state.store(RUNNING, Ordering::Release);
            let mut place = self.future.lock();
            let Some(future) = place.future() else {
                return;
            };
            // A task of tokio may have woken this one. With that task's budget used up, each poll would
            // wake this one again and get no further.
            let mut future = unconstrained(future);
            let mut poll = || Pin::new(&mut future).poll(&mut context);
            let poll = || match &self.caller {
                Some(caller) => caller.clone().run_now(poll),
                None => poll(),
            };
            if caller::with(self.pid, poll).is_ready() {
                // From now on it cannot be woken.
                self.state.store(DONE, Ordering::Release);
                place.clear();
                return;
            }
            drop(place);
            if self
                .state
                .compare_exchange(RUNNING, IDLE, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
            {
                return;
            }
        }
    }
}

fn schedule(task: Arc<Task>) {
    let task = QUEUE.with_borrow_mut(|queue| {
        if queue.draining {
            queue.tasks.push_back(task);
            return None;
        }
        queue.draining = true;
        Some(task)
    });
    if let Some(task) = task {
        drain(Some(task));
    }
}

/// Keeps a task that is done for another future, and takes the next one that is queued. If there is none, the
/// thread is no longer inside `drain`.
fn following(done: Option<Arc<Task>>) -> Option<Arc<Task>> {
    QUEUE.with_borrow_mut(|queue| {
        if let Some(task) = done
            && queue.done.len() < KEPT
        {
            queue.done.push(task);
        }
        let next = queue.tasks.pop_front();
        queue.draining = next.is_some();
        next
    })
}

/// Runs `first`, what is queued, and everything that becomes ready on this thread meanwhile.
fn drain(first: Option<Arc<Task>>) {
    /// Leaves the thread usable if a future panics.
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            let left = QUEUE.with_borrow_mut(|queue| {
                queue.draining = false;
                match queue.tasks.is_empty() {
                    true => VecDeque::new(),
                    false => std::mem::take(&mut queue.tasks),
                }
            });
            drop(left);
        }
    }
    let leave = Leave;
    let mut next = first.or_else(|| following(None));
    while let Some(mut task) = next {
        task.run();
        let mut done = None;
        // No waker is left that could wake the next future in its place.
        if let Some(ended) = Arc::get_mut(&mut task)
            && ended.future.get_mut().is_empty()
        {
            ended.caller = None;
            done = Some(task);
        }
        next = following(done);
    }
    std::mem::forget(leave);
}

/// Runs `future` to completion, starting now on this thread. Inside another future that is run
/// here, it starts when that one has returned from its poll.
pub fn spawn(future: impl Future<Output = ()> + Send + 'static) {
    spawn_for(None, || future);
}

/// Like [`spawn`], for the future that `make` returns, which is made where it stays: it may be large. It
/// runs for `caller` ([`Caller::run`]).
#[inline]
pub fn spawn_for<F>(caller: Option<Caller>, make: impl FnOnce() -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut task = kept();
    if let Some(new) = Arc::get_mut(&mut task) {
        new.caller = caller;
        new.future.get_mut().put(make);
        schedule(task);
    }
}

/// A task without a future, to which nothing else refers.
fn kept() -> Arc<Task> {
    let pid = caller::current();
    let mut done = QUEUE.with_borrow_mut(|queue| queue.done.pop());
    if let Some(task) = done.as_mut().and_then(Arc::get_mut) {
        task.pid = pid;
        *task.state.get_mut() = QUEUED;
    }
    done.unwrap_or_else(|| {
        Arc::new(Task {
            pid,
            caller: None,
            state: AtomicU8::new(QUEUED),
            future: Mutex::default(),
        })
    })
}

/// Runs `body` and defers wake-ups until it returns: for threads that complete many calls at once.
pub fn batch<T>(body: impl FnOnce() -> T) -> T {
    let outermost = QUEUE.with_borrow_mut(|queue| !std::mem::replace(&mut queue.draining, true));
    let result = body();
    if outermost {
        drain(None);
    }
    result
}

/// Runs `body`, a round of an event loop that begins at `now`. Small calls that it makes need not be
/// sent at once, so that one system call can send many. The caller must call
/// [`Engine::kick`](crate::transport::Engine::kick) afterwards.
pub fn deferring<T>(now: Instant, body: impl FnOnce() -> T) -> T {
    struct Leave(Option<Instant>);
    impl Drop for Leave {
        fn drop(&mut self) {
            ROUND.set(self.0);
        }
    }
    let _leave = Leave(ROUND.replace(Some(now)));
    body()
}

/// Whether this thread is inside [`deferring`].
pub(crate) fn is_deferring() -> bool {
    ROUND.get().is_some()
}

/// The time. Inside [`deferring`], where nothing waits, it is the time at which the round began: to read
/// the clock costs as much as a hundred instructions, and each operation asks for the time ten times.
#[inline]
pub fn now() -> Instant {
    ROUND.get().unwrap_or_else(Instant::now)
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks this thread until `future` is ready. Must not be called inside a future run by [`spawn`].
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;
    use tokio::sync::oneshot;

    #[test]
    fn a_task_is_finished_by_the_thread_that_wakes_it() {
        let (give, take) = oneshot::channel::<u32>();
        let (tell, told) = mpsc::channel();
        let spawner = std::thread::current().id();
        spawn(async move {
            tell.send((std::thread::current().id(), 0)).unwrap();
            let value = take.await.unwrap();
            tell.send((std::thread::current().id(), value)).unwrap();
        });
        assert_eq!(told.recv().unwrap(), (spawner, 0));
        let other = std::thread::spawn(move || {
            give.send(7).unwrap();
            std::thread::current().id()
        })
        .join()
        .unwrap();
        assert_eq!(told.recv().unwrap(), (other, 7));
    }

    #[test]
    fn a_wake_up_inside_a_batch_waits_for_its_end() {
        let (give, take) = oneshot::channel::<()>();
        let (tell, told) = mpsc::channel();
        let after = tell.clone();
        spawn(async move {
            take.await.unwrap();
            tell.send("task").unwrap();
        });
        batch(|| {
            give.send(()).unwrap();
            after.send("batch").unwrap();
        });
        assert_eq!(told.recv().unwrap(), "batch");
        assert_eq!(told.recv().unwrap(), "task");
    }

    #[test]
    fn many_threads_wake_one_task_and_nothing_is_lost() {
        use std::sync::atomic::AtomicUsize;
        let left = Arc::new(AtomicUsize::new(0));
        for _ in 0..200 {
            let (give, mut take) = tokio::sync::mpsc::unbounded_channel::<u32>();
            let left = left.clone();
            spawn(async move {
                let mut sum = 0;
                while let Some(value) = take.recv().await {
                    sum += value;
                }
                left.fetch_add(sum as usize, Ordering::Relaxed);
            });
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    let give = give.clone();
                    scope.spawn(move || (0..10).for_each(|_| give.send(1).unwrap()));
                }
            });
        }
        assert_eq!(left.load(Ordering::Relaxed), 200 * 40);
    }

    #[test]
    fn a_task_that_nothing_can_wake_is_dropped_and_wakes_others() {
        struct WakesWhenDropped(Waker);
        impl Drop for WakesWhenDropped {
            fn drop(&mut self) {
                self.0.wake_by_ref();
            }
        }
        let (tell, told) = mpsc::channel();
        spawn(std::future::poll_fn(move |context| {
            let _ = tell.send(context.waker().clone());
            Poll::Pending
        }));
        let other = WakesWhenDropped(told.recv().unwrap());
        spawn(async move {
            let _other = other;
            std::future::pending().await
        });
        assert!(told.try_recv().is_ok(), "the other one is polled again");
    }

    #[test]
    fn time_stands_still_inside_a_round() {
        let (then, later) = (Instant::now(), Duration::from_secs(5));
        let seen = deferring(then, || (now(), deferring(then + later, now), now()));
        assert_eq!(seen, (then, then + later, then));
        assert!(!is_deferring() && now() < then + later);
    }

    #[test]
    fn block_on_waits() {
        let (give, take) = oneshot::channel::<u32>();
        let giver = std::thread::spawn(move || give.send(3).unwrap());
        assert_eq!(block_on(take).unwrap(), 3);
        giver.join().unwrap();
    }
}
