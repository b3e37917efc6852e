//! Requests that wait for the server, and callers that are killed meanwhile.
//!
//! A process cannot die, not even of SIGKILL, before its request is answered. So the reply to a
//! waiting request is put into a [`Table`], from which it is taken by the operation that has a
//! result, or by a task that answers EINTR for a caller that is being killed. The operation
//! itself goes on: a change at the server is made completely or not at all, and written data is
//! still written back. But it begins no further change ([`abandon`](nfsrdma_rpcrdma::abandon)).
//!
//! The kernel sends FUSE_INTERRUPT, once for each request, when its caller gets a signal, even one that has a
//! handler. /proc shows whether the signal is fatal. The kernel does not report a second signal, a process that
//! exits, and signals for requests that a process waits for in another way (O_DIRECT); so callers of old requests are
//! checked periodically as well. A caller outside this PID namespace cannot be checked: a signal to it counts as
//! fatal if the request is not answered soon after.

use super::pending_replies::{self, Look, OnSignal, Pace, Refuse, Table};
use super::signals::{Caller, caller};
use crate::locks::Interrupt;
use nfsrdma_channel::{Header, Reply};
use nfsrdma_rpcrdma::abandon;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// The pause between two checks, and how long a request waits before its caller is checked. signal(7) promises that
/// SIGKILL ends a process: it makes one request after the other to close its files, and waits so long for each.
const PERIOD: Duration = Duration::from_millis(50);
/// The most callers that one check looks at without a new signal. Each takes two files of /proc, about
/// 30 microseconds.
const MOST_LOOKS: usize = 64;
/// How long a process that exits waits for its data to be written, as close(2) promises with NFS. No
/// signal can be seen that would end this wait.
const EXIT_PATIENCE: Duration = Duration::from_secs(30);
/// How long after a signal a caller waits that is not visible, so that one with a handler gets its answer
/// (signal(7): a signal that is caught does not interrupt a file system call).
const UNSEEN_PATIENCE: Duration = Duration::from_millis(500);

impl Refuse for Reply {
    fn refuse(self) {
        self.error(libc::EINTR);
    }
}

/// The requests that wait.
#[derive(Debug, Default)]
pub(super) struct Waiting(Arc<Table<Reply>>);

/// A reply in the table. If it is dropped without an answer, it answers EIO. `take` returns the reply,
/// unless the caller was killed and is answered already.
pub(super) type Held = pending_replies::Held<Reply>;

impl Waiting {
    /// Puts the reply of `request` into the table.
    pub(super) fn hold(&self, request: &Header, reply: Reply) -> Held {
        self.0.hold(request.pid(), request.unique, reply)
    }

    /// As [`Waiting::hold`], for a request that ends when its caller gets a signal: any (`any`), or
    /// a fatal one.
    pub(super) fn hold_interruptible(
        &self,
        request: &Header,
        reply: Reply,
        any: bool,
    ) -> (Held, Arc<Interrupt>) {
        let interrupt = Arc::new(Interrupt::default());
        let on_signal = match any {
            true => OnSignal::Any(interrupt.clone()),
            false => OnSignal::Kill(interrupt.clone()),
        };
        (self.hold_with(request, reply, on_signal), interrupt)
    }

    /// As [`Waiting::hold`], for an operation that changes something and runs for `caller`, which leaves if
    /// it is killed.
    pub(super) fn hold_for_change(
        &self,
        request: &Header,
        reply: Reply,
        caller: abandon::Caller,
    ) -> Held {
        self.hold_with(request, reply, OnSignal::Leave(caller))
    }

    fn hold_with(&self, request: &Header, reply: Reply, on_signal: OnSignal) -> Held {
        let (pid, unique) = (request.pid(), request.unique);
        self.0.hold_with(pid, unique, reply, Some(on_signal))
    }

    /// The caller of the request `unique` got a signal.
    pub(super) fn interrupt(&self, unique: u64) {
        self.0.interrupt(unique);
    }

    /// Checks callers, and does not end. It calls `before` before a caller is let go, whose operation
    /// goes on without it.
    pub(super) async fn watch(self: Arc<Self>, before: impl Fn()) {
        let pace = Pace {
            period: PERIOD,
            most: MOST_LOOKS,
        };
        let goes = |look: &Look| let_go(&caller(look.pid), look).then(&before).is_some();
        self.0.run(&pace, sleep, goes).await;
    }
}

/// Whether a caller in this state is let go.
fn let_go(caller: &Caller, look: &Look) -> bool {
    match caller {
        Caller::Killed => true,
        Caller::Exiting => look.age >= EXIT_PATIENCE,
        Caller::Alive => false,
        Caller::Gone => look.signalled.is_some_and(|since| since >= UNSEEN_PATIENCE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(age: Duration, signalled: Option<Duration>) -> Look {
        Look {
            pid: 1,
            age,
            signalled,
        }
    }

    #[test]
    fn who_is_let_go() {
        let long = Duration::from_secs(3600);
        assert!(let_go(&Caller::Killed, &look(PERIOD, None)));
        assert!(let_go(
            &Caller::Killed,
            &look(Duration::ZERO, Some(Duration::ZERO))
        ));
        assert!(!let_go(&Caller::Alive, &look(long, Some(long))));
        assert!(!let_go(&Caller::Gone, &look(long, None)));
        assert!(!let_go(&Caller::Exiting, &look(PERIOD, None)));
        assert!(let_go(&Caller::Exiting, &look(EXIT_PATIENCE, None)));
    }

    #[test]
    fn a_caller_that_cannot_be_seen_is_let_go_some_time_after_a_signal() {
        let long = Duration::from_secs(3600);
        assert!(!let_go(&Caller::Gone, &look(long, Some(Duration::ZERO))));
        assert!(let_go(&Caller::Gone, &look(long, Some(UNSEEN_PATIENCE))));
    }
}
