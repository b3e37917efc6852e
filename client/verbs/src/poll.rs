//! The polling half of a connection: completions, connection events, the end.
//!
//! A thread that waits spins for some microseconds where that pays ([`nfsrdma_rdma::Spin`]), and
//! then sleeps on three descriptors: the completion channel, the connection manager's channel, and
//! an eventfd by which other threads wake it. An event loop waits for the same three in its own
//! way. When the connection ends, for whatever reason, the device has two seconds to return the
//! posted work as flushed completions. Then the queue pair is destroyed, which takes all memory
//! from the device, and the rest is flushed here.

use crate::pair::Core;
use crate::sys::{Done, status_text};
use crate::wait::readable;
use crate::work::{Whose, whose};
use nfsrdma_rdma::{Armed, Completion, CompletionQueue, Error, Instant, Result, Segs, Spin, Wait};
use rdma_sys::ibv_wc_status as status;
use smallvec::smallvec;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long the device has to give back what it was given, after the end, before the queue
/// pair is taken from it.
const GRACE: Duration = Duration::from_secs(2);
/// The most to spin before sleeping: more than an answer over a fast network takes, less than
/// a wake-up on another processor.
const MOST_SPIN: Duration = Duration::from_micros(50);

/// The polling half.
pub(crate) struct Poller {
    core: Arc<Core>,
    done: Vec<Done>,
    spin: Spin,
    /// Since when the end is under way.
    ending: Option<Instant>,
    ended: Option<Error>,
    /// Whether what was flushed with the end, or `ended` itself, was returned.
    told: bool,
    /// An event was asked for, for a loop.
    armed: bool,
    /// What came before that: the next poll's.
    early: Vec<Completion>,
    /// A poll left the connection manager's events where they are.
    unread: bool,
}

impl Poller {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Poller {
            core,
            done: Vec::with_capacity(64),
            spin: Spin::holding_cpu(MOST_SPIN),
            ending: None,
            ended: None,
            told: false,
            armed: false,
            early: Vec::new(),
            unread: false,
        }
    }

    /// Takes what the device has completed; whether there was anything.
    fn gather(&mut self, out: &mut Vec<Completion>) -> bool {
        let mut any = false;
        loop {
            self.done.clear();
            let count = self.core.queue.take(&mut self.done);
            any |= count > 0;
            if count > 0 {
                self.handle(out);
            }
            if count < 32 {
                return any;
            }
        }
    }

    fn handle(&mut self, out: &mut Vec<Completion>) {
        let mut failure = None;
        let mut flushed = false;
        let mut work = self.core.work.lock();
        for done in self.done.drain(..) {
            let success = done.status == status::IBV_WC_SUCCESS;
            let mine = match whose(done.wr_id) {
                Whose::Send(number) => {
                    work.complete(number, success, out);
                    true
                }
                Whose::Receive(number) => {
                    let message = success.then_some((done.len, done.invalidated));
                    work.received(number, message, out);
                    false
                }
            };
            if done.status == status::IBV_WC_WR_FLUSH_ERR {
                flushed = true;
            } else if !success && failure.is_none() {
                failure = Some(failed(done.status, mine));
            }
        }
        // SAFETY: as for `Poster::post`, which queued what is left.
        unsafe { work.pump() };
        work.take_flushed(out);
        drop(work);
        if let Some(failure) = failure {
            self.core.end(failure);
        }
        if flushed {
            self.ending.get_or_insert_with(Instant::now);
        }
    }

    /// Looks for the reasons to end, and ends.
    fn ending(&mut self, out: &mut Vec<Completion>) {
        if self.ended.is_some() {
            return;
        }
        let (drained, broken, refusal) = {
            let mut work = self.core.work.lock();
            work.take_flushed(out);
            (work.drained(), work.broken, work.refusal.take())
        };
        if let Some(error) = refusal {
            // An event that says more is there already, or none comes.
            self.events();
            self.core.end(refused(&error));
        }
        if self.core.reason.lock().is_some() || broken {
            self.ending.get_or_insert_with(Instant::now);
        }
        let Some(since) = self.ending else {
            return;
        };
        // Work was flushed, and the reason is not known: the event that has it may be under way.
        self.events();
        let late = since.elapsed() >= GRACE;
        if self.core.reason.lock().is_none() && (late || drained) {
            let what = "the connection broke, as it does when a peer breaks a rule";
            self.core.end(Error::LinkLost(what.to_owned()));
        }
        if !drained && !late {
            return;
        }
        let mut work = self.core.work.lock();
        work.end();
        work.take_flushed(out);
        drop(work);
        self.ended = self.core.reason.lock().clone();
    }

    /// Takes the connection manager's events.
    fn events(&mut self) {
        self.unread = false;
        loop {
            match self.core.id.channel().next() {
                Ok(Some(event)) => {
                    if let Some(reason) = event.end() {
                        self.core.end(reason);
                    }
                    if event.is_removal() {
                        // The device is gone: it gives nothing back.
                        let past = Instant::now().checked_sub(GRACE);
                        self.ending = past.or(Some(Instant::now()));
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    let text = format!("no more connection events: {error}");
                    return self.core.end(Error::LinkLost(text));
                }
            }
        }
    }

    /// Takes what has completed, and the events that told an event loop of it.
    fn gather_events(&mut self, out: &mut Vec<Completion>) {
        let came = !self.early.is_empty();
        out.append(&mut self.early);
        let came = self.gather(out) || came;
        if std::mem::take(&mut self.armed) && came {
            self.core.queue.clear_events();
        }
    }

    /// Sleeps until something happens or `until`.
    fn sleep(&mut self, out: &mut Vec<Completion>, until: Option<Instant>) -> Result<()> {
        let broken = |error: std::io::Error| Error::LinkLost(format!("cannot wait: {error}"));
        if self.ended.is_some() {
            // Nothing but the event is left.
            let [notified] = readable([self.core.event.as_fd()], until).map_err(broken)?;
            if notified {
                self.core.event.clear();
            }
            return Ok(());
        }
        self.core.queue.arm().map_err(broken)?;
        // What came before arming gives no event.
        if self.gather(out) {
            return Ok(());
        }
        let until = match (self.ending, until) {
            (Some(since), Some(until)) => Some(until.min(since + GRACE)),
            (Some(since), None) => Some(since + GRACE),
            (None, until) => until,
        };
        let fds = [
            self.core.queue.as_fd(),
            self.core.id.channel().as_fd(),
            self.core.event.as_fd(),
        ];
        let [completions, events, notified] = readable(fds, until).map_err(broken)?;
        if completions {
            self.core.queue.clear_events();
        }
        if events {
            self.events();
        }
        if notified {
            self.core.event.clear();
        }
        Ok(())
    }
}

impl CompletionQueue for Poller {
    fn poll(&mut self, out: &mut Vec<Completion>, wait: Wait) -> Result<()> {
        let before = out.len();
        let mut waiting = false;
        loop {
            if self.ended.is_none() {
                self.gather_events(out);
                if wait == Wait::No {
                    match out.len() == before {
                        true => self.events(),
                        false => self.unread = true,
                    }
                }
            } else {
                self.core.work.lock().take_flushed(out);
            }
            self.ending(out);
            if let Some(error) = &self.ended {
                // What was flushed with the end goes first, once: who keeps posting has to
                // learn of it, too.
                let first = !std::mem::replace(&mut self.told, true);
                if first && out.len() > before {
                    return Ok(());
                }
                return Err(error.clone());
            }
            let woken = self.core.woken.swap(false, Ordering::Acquire);
            if out.len() > before {
                if waiting {
                    self.spin.found(Instant::now);
                }
                return Ok(());
            }
            if woken {
                if wait == Wait::No {
                    self.core.event.clear();
                }
                return Ok(());
            }
            let now = Instant::now();
            let until = match wait {
                Wait::No => return Ok(()),
                Wait::Until(at) if now >= at => return Ok(()),
                Wait::Until(at) => Some(at),
                Wait::Forever => None,
            };
            if !std::mem::replace(&mut waiting, true) {
                self.spin.begin(now);
            }
            if self.ending.is_none() && self.spin.again(now) {
                std::hint::spin_loop();
                continue;
            }
            if let Err(error) = self.sleep(out, until) {
                self.core.end(error);
            }
        }
    }

    fn descriptors(&self) -> Option<Segs<BorrowedFd<'_>>> {
        let core = &*self.core;
        Some(smallvec![
            core.queue.as_fd(),
            core.id.channel().as_fd(),
            core.event.as_fd(),
        ])
    }

    fn arm(&mut self) -> Armed {
        if self.ended.is_some() || self.core.woken.load(Ordering::Acquire) {
            return Armed::Ready;
        }
        if let Err(error) = self.core.queue.arm() {
            let what = format!("cannot wait: {error}");
            self.core.end(Error::LinkLost(what));
            return Armed::Ready;
        }
        self.armed = true;
        // What came before arming gives no event, and of what a poll left there was one already.
        if self.unread {
            self.events();
        }
        let mut early = std::mem::take(&mut self.early);
        self.gather(&mut early);
        self.early = early;
        match (self.early.is_empty(), self.ending) {
            (false, _) => Armed::Ready,
            (true, Some(since)) => Armed::Idle(Some(since + GRACE)),
            (true, None) => Armed::Idle(None),
        }
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.core.end(Error::LinkLost("disconnected".to_owned()));
        self.core.work.lock().abandon();
    }
}

/// What it means that the device takes no more requests.
fn refused(error: &std::io::Error) -> Error {
    let why = match error.raw_os_error() {
        // The kernel serves a descriptor to the credentials it was opened with, and no others.
        Some(libc::EACCES) => "; a thread that took another identity cannot use it",
        _ => "",
    };
    Error::LinkLost(format!("the RDMA device refuses work: {error}{why}"))
}

/// What a failed completion says about whose fault it was. `mine`: of the send queue.
fn failed(status: status::Type, mine: bool) -> Error {
    let text = status_text(status);
    match (status, mine) {
        // rdma_rxe says the second.
        (status::IBV_WC_LOC_LEN_ERR | status::IBV_WC_LOC_QP_OP_ERR, false) => {
            Error::PeerMisbehaved("a Send longer than the Receive".to_owned())
        }
        (status::IBV_WC_RNR_RETRY_EXC_ERR, _) => {
            Error::PeerReported("no Receive was posted for a Send".to_owned())
        }
        (
            status::IBV_WC_REM_INV_REQ_ERR
            | status::IBV_WC_REM_ACCESS_ERR
            | status::IBV_WC_REM_OP_ERR
            | status::IBV_WC_REM_ABORT_ERR
            | status::IBV_WC_REM_INV_RD_REQ_ERR,
            _,
        ) => Error::PeerReported(text),
        (status::IBV_WC_RETRY_EXC_ERR | status::IBV_WC_RESP_TIMEOUT_ERR, _) => {
            Error::LinkLost(format!("the peer does not answer: {text}"))
        }
        _ => Error::LinkLost(format!("the RDMA device reports: {text}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_name_whose_fault_they_are() {
        use Error::{LinkLost, PeerMisbehaved, PeerReported};
        let is = |code, mine| failed(code, mine);
        assert!(matches!(
            is(status::IBV_WC_LOC_LEN_ERR, false),
            PeerMisbehaved(_)
        ));
        assert!(matches!(is(status::IBV_WC_LOC_LEN_ERR, true), LinkLost(_)));
        assert!(matches!(
            is(status::IBV_WC_REM_ACCESS_ERR, true),
            PeerReported(_)
        ));
        assert!(matches!(
            is(status::IBV_WC_RNR_RETRY_EXC_ERR, true),
            PeerReported(_)
        ));
        assert!(matches!(
            is(status::IBV_WC_RETRY_EXC_ERR, true),
            LinkLost(_)
        ));
    }
}
