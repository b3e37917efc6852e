//! Who waits for an operation: callers that do not wait any more, and requests that come again.
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
//!
//! A process that serves requests may die before it answers, and its successor gets the request again.
//! What the request changes may have been changed already. The successor cannot know, as whoever sends a
//! call again cannot know whether the server has run it; so an error of a call for a request that
//! [comes again](is_resent) means the same as that of a call that is sent again.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

tokio::task_local! {
    static CALLER: Caller;
}

/// The caller that waits for an operation. All clones stand for the same caller.
#[derive(Debug, Clone, Default)]
pub struct Caller {
    gone: Arc<AtomicBool>,
    request: Option<Request>,
}

/// A request that comes again if this process dies before it is answered.
#[derive(Debug, Clone, Copy)]
struct Request {
    number: u64,
    resent: bool,
}

impl Caller {
    /// The caller of a request that comes again, as `resent`, if this process dies before it is answered.
    /// It has the same `number` then, which is that of no other request of any client.
    pub fn of(number: u64, resent: bool) -> Self {
        Caller {
            gone: Arc::default(),
            request: Some(Request { number, resent }),
        }
    }

    /// Marks the caller as gone: it gets its answer now, before the operation has ended.
    pub fn leave(&self) {
        self.gone.store(true, Ordering::Release);
    }

    /// Runs an operation for this caller.
    pub fn run<F: Future>(self, operation: F) -> impl Future<Output = F::Output> {
        CALLER.scope(self, operation)
    }

    /// The same for an operation that does not wait.
    pub fn run_now<R>(self, operation: impl FnOnce() -> R) -> R {
        CALLER.sync_scope(self, operation)
    }
}

/// Whether the caller of the operation that is being polled on this thread has left.
pub fn is_abandoned() -> bool {
    CALLER
        .try_with(|caller| caller.gone.load(Ordering::Acquire))
        .unwrap_or(false)
}

fn request() -> Option<Request> {
    CALLER.try_with(|caller| caller.request).ok().flatten()
}

/// Whether a process that has died since may have carried out the operation that is being polled on this
/// thread, or a part of it.
pub fn is_resent() -> bool {
    request().is_some_and(|request| request.resent)
}

/// The number of the request ([`Caller::of`]) whose operation is being polled on this thread, if it
/// would come again.
pub fn number() -> Option<u64> {
    request().map(|request| request.number)
}

/// Runs a part of an operation that has to be done even if the caller has left.
pub fn regardless<F: Future>(part: F) -> impl Future<Output = F::Output> {
    let caller = Caller {
        gone: Arc::default(),
        request: request(),
    };
    CALLER.scope(caller, part)
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

    #[test]
    fn an_operation_sees_its_own_request() {
        let seen = || (number(), is_resent());
        assert_eq!(seen(), (None, false));
        block_on(Caller::of(3, true).run(async {
            assert_eq!(seen(), (Some(3), true));
            assert_eq!(regardless(async { seen() }).await, (Some(3), true));
            let first = Caller::of(4, false).run(async { seen() });
            assert_eq!(first.await, (Some(4), false));
            let other = Caller::default().run(async { seen() });
            assert_eq!(other.await, (None, false));
        }));
        assert_eq!(seen(), (None, false));
    }
}
