//! Requests that wait for the server, and callers that are killed meanwhile.
//!
//! A process whose request sits here cannot die before it is answered, not even of SIGKILL,
//! and `fuser` does not hand out FUSE_INTERRUPT. So the reply of a waiting request lies in a
//! [`Table`], for whoever comes first: the operation with its result, or a thread that looks
//! after requests older than [`PATIENCE`] and answers EINTR for a caller that is being
//! killed. The operation itself goes on: what it changes at the server is done or not done
//! whole, and what was written is still written back.

use super::replies::{AnyReply, Holdable};
use super::signals::{Caller, caller};
use super::table::{self, Pace, Table};
use fuser::Request;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// A request waits so long before its caller is looked at.
const PATIENCE: Duration = Duration::from_millis(500);
/// Pause between two looks.
const PERIOD: Duration = Duration::from_millis(250);
/// The same two, for a while after a caller was let go: dying, it closes its files, which are
/// further requests.
const HASTE: Duration = Duration::from_millis(50);
/// How long that is.
const ALERT: Duration = Duration::from_secs(3);
/// A process that ends of itself waits so long for what it wrote: no signal reaches it any
/// more that could be seen here.
const EXIT_PATIENCE: Duration = Duration::from_secs(30);

/// Requests that wait.
#[derive(Debug, Default)]
pub(super) struct Waiting(Arc<Table<AnyReply>>);

/// A reply in the table. Dropped without an answer, it answers EIO, as `fuser` does.
#[derive(Debug)]
pub(super) struct Held<R> {
    held: table::Held<AnyReply>,
    kind: std::marker::PhantomData<fn() -> R>,
}

impl<R: Holdable> Held<R> {
    /// The reply, unless the caller was killed and has its answer.
    pub(super) fn take(self) -> Option<R> {
        R::unhold(self.held.take()?)
    }
}

impl Waiting {
    /// Puts the reply of `request` into the table.
    pub(super) fn hold<R: Holdable>(&self, request: &Request, reply: R) -> Held<R> {
        Held {
            held: self.0.hold(request.pid(), reply.hold()),
            kind: std::marker::PhantomData,
        }
    }

    /// Starts the thread that looks after callers.
    pub(super) fn watch(&self) -> io::Result<JoinHandle<()>> {
        let table = self.0.clone();
        let pace = Pace {
            patience: PATIENCE,
            period: PERIOD,
            haste: HASTE,
            alert: ALERT,
        };
        std::thread::Builder::new()
            .name("interrupts".into())
            .spawn(move || table.run(&pace, |pid, age| let_go(&caller(pid), age)))
    }

    /// Ends that thread.
    pub(super) fn stop(&self) {
        self.0.stop();
    }
}

/// Whether a caller in this state is let go, its request having waited for `age`.
fn let_go(caller: &Caller, age: Duration) -> bool {
    match caller {
        Caller::Killed => true,
        Caller::Exiting => age >= EXIT_PATIENCE,
        Caller::Alive | Caller::Gone => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_let_go() {
        let long = Duration::from_secs(3600);
        assert!(let_go(&Caller::Killed, PATIENCE));
        assert!(!let_go(&Caller::Alive, long));
        assert!(!let_go(&Caller::Gone, long));
        assert!(!let_go(&Caller::Exiting, PATIENCE));
        assert!(let_go(&Caller::Exiting, EXIT_PATIENCE));
    }
}
