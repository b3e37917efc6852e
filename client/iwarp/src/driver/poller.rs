//! The polling half of a connection: reads the socket inside [`CompletionQueue::poll`].
//!
//! The thread that waits for a completion also receives it, so nothing is handed over between
//! threads. Bytes go from the socket into a stage, where `Receiver` parses the FPDUs. Payload that
//! is in the stage already is copied to its destination; if 4 KiB or more of a segment are still to
//! come, the next readv(2) puts them there directly: into the memory behind the STag, whose lock is
//! held meanwhile so that nothing is placed after an invalidation (RFC 5040 section 8.1.1), or into
//! the posted Receive. Before it sleeps, the thread announces that, and others wake it only then.

mod close_reason;
mod ending;

use self::close_reason::{CloseReason, Lingering};
use super::region::{Region, source_slices};
use super::shared::Shared;
use super::sys;
use crate::proto::rx::{Event, Receiver, Step};
use crate::wire::ddp::TAGGED_HEADER;
use crate::wire::mpa::LENGTH_FIELD;
use nfsrdma_rdma::{
    Armed, Attempts, Completion, CompletionQueue, Error, Handle, Instant, Result, Segs, Spin, Wait,
};
use smallvec::{SmallVec, smallvec};
use std::io::{self, IoSliceMut, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Staging for headers and small FPDUs.
const STAGE: usize = 256 * 1024;
/// An incomplete FPDU of up to this many bytes moves to the front of the stage: copying it
/// costs less than cache misses further on.
const MOVE_MAX: usize = 8 * 1024;
/// Read at a time when big payload may follow: what lands here of it is copied.
const STAGE_READ: usize = 2 * 1024;
/// Payload of at least this many bytes is received in place.
const DIRECT_MIN: usize = 4096;
/// FPDUs below this come many to a read.
const SMALL_FPDU: usize = 16 * 1024;
/// System calls before [`CompletionQueue::poll`] looks at deadlines again.
const ROUNDS: usize = 32;
/// Rounds after which a connection that is being closed is not read any further.
const LAST_ROUNDS: usize = 64;

/// Bytes received and not yet used.
struct Stage {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Stage {
    fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    fn compact(&mut self) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end - self.start <= MOVE_MAX || self.start > STAGE / 2 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }
}

/// Why receiving stopped.
enum Stop {
    /// The socket has no more for now.
    Drained,
    /// There are completions, or enough was done for one round.
    Pause,
}

/// What to receive next.
enum Next {
    /// Into the stage; at least this many bytes are needed.
    Stage,
    /// Straight to tagged memory.
    Region(Arc<Region>, usize, usize),
    /// Straight into the posted Receive.
    Send,
}

/// The polling half.
pub(crate) struct IwarpCompletionQueue {
    shared: Arc<Shared>,
    rx: Receiver<Arc<Region>>,
    stage: Stage,
    /// Payload of the last tagged segment, to guess the next.
    last_payload: usize,
    responses: bool,
    /// The socket had no more when it was read last.
    drained: bool,
    /// No receiving once the connection ended.
    over: bool,
    lingering: Option<Lingering>,
    spin: Spin,
    attempts: Attempts,
}

impl IwarpCompletionQueue {
    pub(crate) fn new(shared: Arc<Shared>, rx: Receiver<Arc<Region>>, spin: Duration) -> Self {
        IwarpCompletionQueue {
            shared,
            rx,
            stage: Stage {
                bytes: vec![0; STAGE].into(),
                start: 0,
                end: 0,
            },
            last_payload: 0,
            responses: false,
            drained: false,
            over: false,
            lingering: None,
            spin: Spin::new(spin),
            attempts: Attempts::default(),
        }
    }

    /// Uses the staged bytes; says what to receive next.
    fn consume(&mut self, out: &mut Vec<Completion>) -> std::result::Result<Next, CloseReason> {
        loop {
            if self.stage.filled().is_empty() && self.rx.is_between_fpdus() {
                return Ok(Next::Stage);
            }
            let (used, step) = self.rx.step(&*self.shared, self.stage.filled())?;
            self.stage.start += used;
            match step {
                Step::Need(_) => return Ok(Next::Stage),
                Step::Place { region, at, len } => {
                    let n = len.min(self.stage.filled().len());
                    if n > 0 {
                        let Region::Sink(sink) = &*region else {
                            return Err(self.rx.region_gone().into());
                        };
                        let Some(mut writer) = sink.lock() else {
                            return Err(self.rx.region_gone().into());
                        };
                        let mut from = self.stage.start;
                        for slice in writer.slices(at, n) {
                            let bytes = &self.stage.bytes[from..from + slice.len()];
                            slice.copy_from_slice(bytes);
                            self.rx.placed(bytes);
                            from += slice.len();
                        }
                        drop(writer);
                        self.stage.start = from;
                    }
                    self.last_payload = len;
                    if n < len {
                        if len - n < DIRECT_MIN {
                            return Ok(Next::Stage);
                        }
                        return Ok(Next::Region(region, at + n, len - n));
                    }
                }
                Step::PlaceSend { len } => {
                    let n = len.min(self.stage.filled().len());
                    let from = self.stage.start;
                    self.rx.send_space()[..n].copy_from_slice(&self.stage.bytes[from..from + n]);
                    self.stage.start += n;
                    self.rx.send_filled(n);
                    if n < len {
                        if len - n < DIRECT_MIN {
                            return Ok(Next::Stage);
                        }
                        return Ok(Next::Send);
                    }
                }
                Step::Event(event) => self.handle(event, out)?,
            }
        }
    }

    fn handle(
        &mut self,
        event: Event<Arc<Region>>,
        out: &mut Vec<Completion>,
    ) -> std::result::Result<(), CloseReason> {
        match event {
            Event::Placed | Event::Rtr => {}
            Event::Received {
                id,
                buf,
                len,
                invalidated,
            } => {
                let mut receives = self.shared.receives.lock();
                receives.used = receives.used.saturating_sub(1);
                drop(receives);
                out.push(Completion::Received {
                    id,
                    buf,
                    len,
                    invalidated: invalidated.map(Handle),
                });
            }
            Event::ReadDone => {
                self.shared.read_done();
                // A Read Request may have waited for its turn.
                self.responses = true;
            }
            Event::ReadRequest(request, source) => {
                //= RFC 5040, Section 4.4
                //# This field MUST be copied, without interpretation, from the RDMA Read Request
                //# into the corresponding RDMA Read Response; this field allows the Data Sink to
                //# place the returning data.
                let data = match source.as_ref().map(|(region, at)| (&**region, *at)) {
                    Some((Region::Source(bufs), at)) => {
                        source_slices(bufs, at, request.length as usize)
                    }
                    _ => Segs::new(),
                };
                let mut state = self.shared.state.lock();
                state
                    .queue
                    .post_response(request.sink_stag, request.sink_offset, data);
                self.responses = true;
            }
            //= RFC 5040, Section 5.4
            //# The RDMAP layer MUST Deliver the Terminate Message to the ULP.
            Event::Terminated(terminate) => {
                return Err(CloseReason::Error(Error::PeerReported(
                    terminate.code.to_string(),
                )));
            }
        }
        Ok(())
    }

    /// Reads from the socket once.
    fn read(
        &mut self,
        next: &Next,
    ) -> std::result::Result<(io::Result<usize>, usize), CloseReason> {
        let (trailer, last) = self.rx.after_payload();
        let in_place = !matches!(next, Next::Stage);
        self.stage.compact();
        let room = STAGE - self.stage.end;
        // After a segment that is not its message's last, the next one's header follows, and
        // its payload is received in place in turn. Otherwise read a little ahead, or a lot
        // if the peer sends small FPDUs.
        let ahead = if in_place && !last {
            trailer + LENGTH_FIELD + TAGGED_HEADER
        } else if self.last_payload >= SMALL_FPDU {
            STAGE_READ
        } else {
            STAGE / 4
        };
        let stage = &mut self.stage.bytes[self.stage.end..][..ahead.min(room)];
        let mut socket = &self.shared.socket;
        Ok(match next {
            Next::Stage => {
                let asked = stage.len();
                let result = socket.read(stage);
                if let Ok(n) = result {
                    self.stage.end += n;
                }
                (result, asked)
            }
            Next::Region(region, at, len) => {
                let Region::Sink(sink) = &**region else {
                    return Err(self.rx.region_gone().into());
                };
                let Some(mut writer) = sink.lock() else {
                    return Err(self.rx.region_gone().into());
                };
                let asked = len + stage.len();
                let mut slices: SmallVec<[IoSliceMut<'_>; 9]> = writer
                    .slices(*at, *len)
                    .into_iter()
                    .map(IoSliceMut::new)
                    .collect();
                slices.push(IoSliceMut::new(stage));
                let result = socket.read_vectored(&mut slices);
                drop(slices);
                if let Ok(n) = result {
                    for slice in writer.slices(*at, n.min(*len)) {
                        self.rx.placed(slice);
                    }
                    self.stage.end += n.saturating_sub(*len);
                }
                (result, asked)
            }
            Next::Send => {
                let space = self.rx.send_space();
                let len = space.len();
                let asked = len + stage.len();
                let result =
                    socket.read_vectored(&mut [IoSliceMut::new(space), IoSliceMut::new(stage)]);
                if let Ok(n) = result {
                    self.rx.send_filled(n.min(len));
                    self.stage.end += n.saturating_sub(len);
                }
                (result, asked)
            }
        })
    }

    fn receive(&mut self, out: &mut Vec<Completion>) -> std::result::Result<Stop, CloseReason> {
        let before = out.len();
        let fpdus = self.rx.fpdus();
        self.drained = false;
        for _ in 0..ROUNDS {
            let next = self.consume(out)?;
            if fpdus == 0 && self.rx.fpdus() > 0 {
                self.first_fpdu();
            }
            if self.responses {
                self.responses = false;
                self.shared.pump();
            }
            if out.len() > before {
                return Ok(Stop::Pause);
            }
            match self.read(&next)? {
                //= RFC 5041, Section 3
                //# For a specific LLP Stream, the LLP MUST provide a mechanism to indicate that the
                //# LLP Stream has been gracefully torn down.
                //# For a specific LLP Connection, the LLP MUST provide a mechanism to indicate that
                //# the LLP Connection has been gracefully torn down.
                (Ok(0), _) => {
                    return Err(CloseReason::Error(Error::LinkLost(
                        "closed by the peer".into(),
                    )));
                }
                (Ok(n), asked) if n < asked => {
                    // Short: the socket is empty. Use what came and wait for more.
                    self.drained = true;
                    self.consume(out)?;
                    if fpdus == 0 && self.rx.fpdus() > 0 {
                        self.first_fpdu();
                    }
                    if self.responses {
                        self.responses = false;
                        self.shared.pump();
                    }
                    return Ok(if out.len() > before {
                        Stop::Pause
                    } else {
                        Stop::Drained
                    });
                }
                (Ok(_), _) => {}
                (Err(e), _) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.drained = true;
                    return Ok(Stop::Drained);
                }
                (Err(e), _) if e.kind() == io::ErrorKind::Interrupted => {}
                (Err(e), _) => return Err(CloseReason::Error(link_lost(&e))),
            }
        }
        Ok(Stop::Pause)
    }

    /// The peer is there: a responder may send from now on.
    fn first_fpdu(&mut self) {
        let mut state = self.shared.state.lock();
        state.queue.release();
        state.nudge = None;
        drop(state);
        self.shared.pump();
    }

    /// Announces that this thread is going to sleep. Whether it may, because nothing happened
    /// that it was not woken for, and when to look after the nudge.
    fn may_sleep(&self) -> (bool, Option<Instant>) {
        let shared = &*self.shared;
        shared.sleeping.store(true, Ordering::SeqCst);
        // Whoever changed something before it could see `sleeping` did not wake us.
        let state = shared.state.lock();
        let idle = state.work_done.is_empty() && state.other_done.is_empty();
        let nudge = state.nudge.as_ref().and_then(|n| n.deadline());
        drop(state);
        let stay = idle
            && !shared.woken.load(Ordering::SeqCst)
            && !shared.is_closing.load(Ordering::SeqCst);
        (stay, nudge)
    }

    /// Sleeps until there is something to do.
    fn sleep(&mut self, until: Option<Instant>) -> Result<()> {
        let shared = &*self.shared;
        let (stay, nudge) = self.may_sleep();
        let result = if stay {
            let until = Instant::first(until, nudge);
            let blocked = shared.tx_blocked.load(Ordering::SeqCst);
            sys::wait(shared.socket.as_fd(), blocked, &shared.event, until)
        } else {
            Ok(sys::Ready::default())
        };
        shared.sleeping.store(false, Ordering::SeqCst);
        let ready = result.map_err(|e| Error::local("cannot wait for the connection", e))?;
        if ready.event {
            shared.event.clear();
        }
        if ready.writable {
            shared.pump();
        }
        Ok(())
    }

    fn check_nudge(&mut self) {
        let mut state = self.shared.state.lock();
        let due = state
            .nudge
            .as_mut()
            .is_some_and(|nudge| nudge.is_due(Instant::now()));
        if due {
            tracing::debug!("no answer to the first Send: nudging the peer");
            state.queue.post_rtr(crate::proto::handshake::Rtr::Write);
            drop(state);
            self.shared.pump();
        }
    }
}

fn link_lost(error: &io::Error) -> Error {
    Error::LinkLost(error.to_string())
}

impl CompletionQueue for IwarpCompletionQueue {
    fn poll(&mut self, out: &mut Vec<Completion>, wait: Wait) -> Result<()> {
        let before = out.len();
        let mut waiting = false;
        // The socket was empty when it was read last: sleeping tells as well, with one call less.
        let may_skip = self.drained && wait != Wait::No;
        let mut attempt = may_skip;
        let mut skip = may_skip && !self.attempts.is_due();
        loop {
            self.shared.take_completions(out);
            if !self.over && self.shared.is_closing.load(Ordering::SeqCst) {
                // Sending failed or we were asked to: but what has arrived counts.
                let error = self.shared.closing.lock().clone();
                let mut reported = None;
                for _ in 0..LAST_ROUNDS {
                    match self.receive(out) {
                        Ok(Stop::Pause) => {}
                        Ok(Stop::Drained) => break,
                        Err(CloseReason::Error(e @ Error::PeerReported(_))) => {
                            reported = Some(e);
                            break;
                        }
                        Err(_) => break,
                    }
                }
                let end = reported
                    .or(error)
                    .unwrap_or_else(|| Error::LinkLost("the connection is ending".into()));
                self.finish(CloseReason::Error(end));
            }
            if !self.over && !skip {
                let stop = self.receive(out);
                if attempt {
                    self.attempts.made(!matches!(stop, Ok(Stop::Drained)));
                }
                if let Err(end) = stop {
                    self.finish(end);
                } else {
                    if self.shared.tx_blocked.load(Ordering::SeqCst) && wait == Wait::No {
                        self.shared.pump();
                    }
                    if matches!(stop, Ok(Stop::Pause)) && out.len() == before {
                        self.shared.take_completions(out);
                        if out.len() == before && !self.shared.woken.load(Ordering::SeqCst) {
                            if self.shared.tx_blocked.load(Ordering::SeqCst) {
                                self.shared.pump();
                            }
                            if !expired(wait) {
                                continue;
                            }
                        }
                    }
                }
            }
            (attempt, skip) = (false, false);
            if !self.linger(wait) {
                return Ok(());
            }
            self.shared.take_completions(out);
            let woken = self.shared.woken.swap(false, Ordering::SeqCst);
            if self.over {
                let ended = self.shared.state.lock().ended.clone();
                return Err(ended.unwrap_or_else(|| Error::LinkLost("ended".into())));
            }
            if out.len() > before || woken {
                if out.len() > before {
                    self.spin.found(Instant::now);
                }
                return Ok(());
            }
            self.check_nudge();
            if expired(wait) {
                return Ok(());
            }
            let now = Instant::now();
            if !waiting {
                waiting = true;
                self.spin.begin(now);
            }
            if self.spin.again(now) {
                // Polite: whoever we wait for may need this CPU.
                std::thread::yield_now();
                continue;
            }
            let until = match wait {
                Wait::Until(at) => Some(at),
                _ => None,
            };
            self.sleep(until)?;
        }
    }

    fn descriptors(&self) -> Option<Segs<BorrowedFd<'_>>> {
        let shared = &*self.shared;
        Some(smallvec![shared.socket.as_fd(), shared.event.as_fd()])
    }

    fn arm(&mut self) -> Armed {
        if let Some(lingering) = self.lingering.as_ref().filter(|_| self.drained) {
            return Armed::Idle(Some(lingering.until));
        }
        if self.over || !self.drained {
            return Armed::Ready;
        }
        match self.may_sleep() {
            (true, nudge) => {
                // Whoever filled the socket may have said so after the edge that tells of room:
                // trying once more is what the next edge follows.
                if self.shared.tx_blocked.load(Ordering::SeqCst) {
                    self.shared.pump();
                }
                Armed::Idle(nudge)
            }
            (false, _) => {
                self.disarm();
                Armed::Ready
            }
        }
    }

    fn disarm(&mut self) {
        self.shared.sleeping.store(false, Ordering::SeqCst);
    }
}

fn expired(wait: Wait) -> bool {
    match wait {
        Wait::No => true,
        Wait::Until(at) => Instant::now() >= at,
        Wait::Forever => false,
    }
}

impl Drop for IwarpCompletionQueue {
    fn drop(&mut self) {
        self.stop_lingering();
        if !self.over {
            self.finish(CloseReason::Error(Error::LinkLost("disconnected".into())));
        }
        let mut state = self.shared.state.lock();
        state.abandoned = true;
        let dropped = (
            std::mem::take(&mut state.work_done),
            std::mem::take(&mut state.other_done),
        );
        drop(state);
        drop(dropped);
    }
}
