//! Operations whose caller does not wait for them any more.
//!
//! A process that is killed gets its answer at once, and its operation goes on without it, because
//! a call that was sent will be carried out by the server. But after that answer other programs
//! proceed, and may change the same objects. So the operation must not begin any further change: it
//! would undo their later ones.
//!
//! Therefore an operation that changes something runs [for a caller](Caller::run), and before each
//! change it asks whether that caller [has left](is_abandoned). A task that it spawns, such as the
//! write-back of a file, has no caller and always completes. A part that the operation itself has
//! to complete runs [regardless].

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

tokio::task_local! {
    static CALLER: Caller;
}

/// The caller that waits for an operation. All clones stand for the same caller.
#[derive(Debug, Clone, Default)]
pub struct Caller(Arc<AtomicBool>);

impl Caller {
    /// Marks the caller as gone: it gets its answer now, before the operation has ended.
    pub fn leave(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Runs an operation for this caller.
    pub fn run<F: Future>(self, operation: F) -> impl Future<Output = F::Output> {
        CALLER.scope(self, operation)
    }
}

/// Whether the caller of the operation that is being polled on this thread has left.
pub fn is_abandoned() -> bool {
    CALLER
        .try_with(|caller| caller.0.load(Ordering::Acquire))
        .unwrap_or(false)
}

/// Runs a part of an operation that has to be done even if the caller has left.
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
