//! Requests that wait for the server, and callers that are killed meanwhile.
//!
//! A process whose request sits here cannot die before it is answered, not even of SIGKILL. So
//! the reply of a waiting request lies in a [`Table`], for whoever comes first: the operation
//! with its result, or a thread that answers EINTR for a caller that is being killed. The
//! operation itself goes on: what it changes at the server is done or not done whole, and what
//! was written is still written back. What it has not begun to change, it does not begin any more
//! ([`abandon`](nfsrdma_rpcrdma::abandon)).
//!
//! The kernel sends FUSE_INTERRUPT, once for a request, when its caller gets a signal, also one
//! that has a handler. Whether the caller dies of it is seen in /proc. The kernel says nothing
//! of a second signal, of a process that exits, and of requests that a process waits for in
//! another way (O_DIRECT); so callers of old requests are looked at from time to time as well.
//! Of a caller outside this PID namespace nothing can be seen: a signal counts as deadly if the
//! request is not answered soon after it.

use super::pending_replies::{self, Look, OnSignal, Pace, Refuse, Table};
use super::signals::{Caller, caller};
use crate::locks::Interrupt;
use nfsrdma_channel::{Header, Reply};
use nfsrdma_rpcrdma::abandon;
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
/// A caller that cannot be seen waits so long after a signal.
const UNSEEN_PATIENCE: Duration = Duration::from_millis(500);

impl Refuse for Reply {
    fn refuse(self) {
        self.error(libc::EINTR);
    }
}

/// Requests that wait.
#[derive(Debug, Default)]
pub(super) struct Waiting(Arc<Table<Reply>>);

/// A reply in the table. Dropped without an answer, it answers EIO.
pub(super) type Held = pending_replies::Held<Reply>;

impl Waiting {
    /// Puts the reply of `request` into the table.
    pub(super) fn hold(&self, request: &Header, reply: Reply) -> Held {
        self.0.hold(request.pid(), request.unique, reply)
    }

    /// The same for a request that ends when its caller gets a signal: of whatever kind (`any`),
    /// or one to die of.
    pub(super) fn hold_interruptible(
        &self,
        request: &Header,
        reply: Reply,
        any: bool,
    ) -> (Held, Arc<Interrupt>) {
        let interrupt = Arc::new(Interrupt::default());
        let fired = interrupt.clone();
        let held = self.hold_with(request, reply, any, move |killed| match killed {
            true => fired.kill(),
            false => fired.fire(),
        });
        (held, interrupt)
    }

    /// The same for an operation that changes something, which is to run for the caller returned.
    pub(super) fn hold_for_change(
        &self,
        request: &Header,
        reply: Reply,
    ) -> (Held, abandon::Caller) {
        let caller = abandon::Caller::default();
        let leaving = caller.clone();
        let held = self.hold_with(request, reply, false, move |_| leaving.leave());
        (held, caller)
    }

    fn hold_with(
        &self,
        request: &Header,
        reply: Reply,
        any: bool,
        call: impl Fn(bool) + Send + Sync + 'static,
    ) -> Held {
        let call = Box::new(call);
        let on_signal = Some(OnSignal { any, call });
        self.0
            .hold_with(request.pid(), request.unique, reply, on_signal)
    }

    /// The caller of the request `unique` got a signal.
    pub(super) fn interrupt(&self, unique: u64) {
        self.0.interrupt(unique);
    }

    /// Starts the thread that looks after callers. `before` is called before one is let go: what
    /// it waits for goes on without it.
    pub(super) fn watch(&self, before: impl Fn() + Send + 'static) -> io::Result<JoinHandle<()>> {
        let table = self.0.clone();
        let pace = Pace {
            patience: PATIENCE,
            period: PERIOD,
            haste: HASTE,
            alert: ALERT,
        };
        std::thread::Builder::new()
            .name("interrupts".into())
            .spawn(move || {
                table.run(&pace, |look| {
                    let over = let_go(&caller(look.pid), look);
                    if over {
                        before();
                    }
                    over
                });
            })
    }

    /// Ends that thread.
    pub(super) fn stop(&self) {
        self.0.stop();
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
        assert!(let_go(&Caller::Killed, &look(PATIENCE, None)));
        assert!(let_go(
            &Caller::Killed,
            &look(Duration::ZERO, Some(Duration::ZERO))
        ));
        assert!(!let_go(&Caller::Alive, &look(long, Some(long))));
        assert!(!let_go(&Caller::Gone, &look(long, None)));
        assert!(!let_go(&Caller::Exiting, &look(PATIENCE, None)));
        assert!(let_go(&Caller::Exiting, &look(EXIT_PATIENCE, None)));
    }

    #[test]
    fn a_caller_that_cannot_be_seen_is_let_go_some_time_after_a_signal() {
        let long = Duration::from_secs(3600);
        assert!(!let_go(&Caller::Gone, &look(long, Some(Duration::ZERO))));
        assert!(let_go(&Caller::Gone, &look(long, Some(UNSEEN_PATIENCE))));
    }
}
