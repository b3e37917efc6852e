//! Operations whose caller does not wait for them any more.
//!
//! A process that is killed gets its answer at once, and the operation it was in goes on without
//! it: a call that was sent is the server's to carry out. But with that answer other programs go
//! on, too, and they change what the killed one was about to change. What an operation has not begun
//! to change by then, it must not begin: it would undo what came later.
//!
//! So an operation that changes something runs [for a caller](Caller::run), and asks before each
//! change whether that one [has left](is_abandoned). What it starts as a task of its own, such as the
//! write-back of a file, has no caller and is done whoever waits; what it does itself and has to
//! complete, it does [regardless].

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

tokio::task_local! {
    static CALLER: Caller;
}

/// Who waits for an operation.
#[derive(Debug, Clone, Default)]
pub struct Caller(Arc<AtomicBool>);

impl Caller {
    /// It gets its answer now, before the operation has ended.
    pub fn leave(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Runs an operation for it.
    pub fn run<F: Future>(self, operation: F) -> impl Future<Output = F::Output> {
        CALLER.scope(self, operation)
    }
}

/// Whether the caller of the operation that this thread is at has left.
pub fn is_abandoned() -> bool {
    CALLER
        .try_with(|caller| caller.0.load(Ordering::Acquire))
        .unwrap_or(false)
}

/// Does a part of an operation that has to be done whoever waits for it.
pub fn regardless<F: Future>(part: F) -> impl Future<Output = F::Output> {
    CALLER.scope(Caller::default(), part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::block_on;

    #[test]
    fn an_operation_sees_its_own_caller() {
        let (gone, here) = (Caller::default(), Caller::default());
        gone.leave();
        assert!(!is_abandoned());
        block_on(gone.clone().run(async {
            assert!(is_abandoned());
            assert!(!regardless(async { is_abandoned() }).await);
            assert!(!here.run(async { is_abandoned() }).await);
            assert!(is_abandoned());
        }));
        assert!(!is_abandoned());
    }
}
