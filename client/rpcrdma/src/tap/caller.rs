//! The process on whose behalf a call is made, as reported to listeners.
//!
//! A file system operation is a future that [`exec`](crate::exec) polls on whichever thread makes
//! it ready, and all its calls start inside such a poll. So [`exec`](crate::exec) sets the calling
//! process for the thread while it polls, and each RPC records it when it starts. Work that does
//! not belong to an operation has the process id 0.

use std::cell::Cell;

thread_local! {
    static PID: Cell<u32> = const { Cell::new(0) };
}

/// The process that this thread's current operation is for, or 0 if there is none.
pub fn current() -> u32 {
    PID.get()
}

/// Runs `work` on behalf of process `pid`.
pub fn with<T>(pid: u32, work: impl FnOnce() -> T) -> T {
    /// Restores the previous process, also when `work` panics.
    struct Before(u32);
    impl Drop for Before {
        fn drop(&mut self) {
            PID.set(self.0);
        }
    }
    let _before = Before(PID.replace(pid));
    work()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Poll;

    #[test]
    fn the_caller_is_known_inside_and_forgotten_outside() {
        assert_eq!(current(), 0);
        let inner = with(7, || (current(), with(8, current), current()));
        assert_eq!((inner, current()), ((7, 8, 7), 0));
        let panicked = std::panic::catch_unwind(|| with(9, || panic!("on purpose")));
        assert!(panicked.is_err() && current() == 0);
    }

    #[test]
    fn a_task_takes_its_caller_along() {
        let (first, seen) = std::sync::mpsc::channel();
        let (wake, woken) = std::sync::mpsc::channel::<std::task::Waker>();
        with(5, || {
            let mut waited = false;
            crate::exec::spawn(async move {
                let _ = first.send(current());
                std::future::poll_fn(|context| match std::mem::replace(&mut waited, true) {
                    true => Poll::Ready(()),
                    false => {
                        let _ = wake.send(context.waker().clone());
                        Poll::Pending
                    }
                })
                .await;
                let _ = first.send(current());
            });
        });
        let waker = woken.recv().unwrap();
        std::thread::spawn(move || with(6, || waker.wake()))
            .join()
            .unwrap();
        assert_eq!((seen.recv(), seen.recv()), (Ok(5), Ok(5)));
        assert_eq!(current(), 0);
    }
}
