//! What is under way on one connection, and to whom it belongs.
//!
//! Requests go through three places: the backlog (accepted, and not with the device yet,
//! because its queue is full), the device's send queue, and the completions. A send queue
//! completes in order, so the completion of one request tells of all unsignaled ones before it;
//! but not of RDMA Reads, which siw completes later than what was posted after them.

use crate::sys::{Pair, Region, Window};
use crate::wr::{self, Sge, Sges, Wr};
use nfsrdma_rdma::buf::KeepAlive;
use nfsrdma_rdma::{Buf, BufMut, Completion, Exposure, Memory, Segs, WorkId};
use smallvec::{SmallVec, smallvec};
use std::collections::{HashMap, VecDeque};
use std::io;

/// How many requests are handed to the device in one call, at most.
const CHAIN: usize = 32;

/// What is owed when a request is done, and what is kept until then.
pub(crate) enum Owed {
    /// Nothing: a binding, or all but the last part of something larger.
    Nothing,
    /// The end of an unsignaled Send or Write.
    Silence(#[allow(dead_code, reason = "kept for the device")] Segs<Buf>),
    Sent(
        WorkId,
        #[allow(dead_code, reason = "kept for the device")] Segs<Buf>,
    ),
    Written(
        WorkId,
        #[allow(dead_code, reason = "kept for the device")] Segs<Buf>,
    ),
    /// The regions are those of a sink that a peer has to have access to.
    Read(WorkId, Vec<Region>, Segs<BufMut>),
    Invalidated(WorkId, Exposure, Vec<Window>),
}

/// A request as the device sees it.
pub(crate) struct Op {
    pub(crate) wr: Wr,
    pub(crate) sges: Sges,
    pub(crate) owed: Owed,
}

impl Op {
    fn needs_signal(&self) -> bool {
        match self.owed {
            Owed::Nothing | Owed::Silence(_) => false,
            Owed::Sent(..) | Owed::Written(..) | Owed::Read(..) | Owed::Invalidated(..) => true,
        }
    }
}

/// Memory under one handle.
pub(crate) struct Exposed {
    pub(crate) by: By,
    /// After the region or window, which is dropped first.
    pub(crate) _alive: KeepAlive,
}

/// What makes it accessible.
pub(crate) enum By {
    /// A registration of its own.
    Region(#[allow(dead_code, reason = "ends when dropped")] Region),
    /// A window, and whether it is bound still.
    Window(Window, bool),
    /// The region that is open for the connection's life.
    Connection,
    /// Nothing any more: the connection ended.
    Nothing,
}

/// The queues of one connection. Dropped in the order of the fields: with the queue pair the
/// device lets go of all memory.
pub(crate) struct Work {
    /// None after the end.
    pub(crate) pair: Option<Pair>,
    backlog: VecDeque<Op>,
    /// With the device, with their numbers and whether they are signaled.
    sent: VecDeque<(u64, bool, Op)>,
    receives: VecDeque<(u64, WorkId, BufMut)>,
    /// By handle and, where they share one, by address.
    pub(crate) exposed: HashMap<(u32, u64), SmallVec<[Exposed; 1]>>,
    pub(crate) windows: Vec<Window>,
    /// Flushed outside of the poller.
    flushed: Vec<Completion>,
    next: u64,
    /// Unsignaled requests since the last signaled one.
    silent: usize,
    /// Requests that count against the send depth.
    pub(crate) posted: usize,
    sizes: Sizes,
    /// The device refuses requests.
    pub(crate) broken: bool,
    /// Why, until somebody asked.
    pub(crate) refusal: Option<io::Error>,
    /// The completion queue is gone: nobody will fetch anything.
    pub(crate) unpolled: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    /// Requests the device's send queue holds.
    pub(crate) slots: usize,
    /// Of unsignaled requests, one in so many is signaled, so that buffers return.
    pub(crate) signal_every: usize,
    pub(crate) receives: usize,
}

/// Whose number a completion carries.
pub(crate) enum Whose {
    Send(u64),
    Receive(u64),
}

pub(crate) fn whose(wr_id: u64) -> Whose {
    match wr_id & 1 {
        0 => Whose::Send(wr_id >> 1),
        _ => Whose::Receive(wr_id >> 1),
    }
}

impl Work {
    pub(crate) fn new(pair: Pair, sizes: Sizes) -> Self {
        Work {
            pair: Some(pair),
            backlog: VecDeque::new(),
            sent: VecDeque::new(),
            receives: VecDeque::new(),
            exposed: HashMap::new(),
            windows: Vec::new(),
            flushed: Vec::new(),
            next: 0,
            silent: 0,
            posted: 0,
            sizes,
            broken: false,
            refusal: None,
            unpolled: false,
        }
    }

    /// Takes requests over, in order; `pump` gives them to the device.
    pub(crate) fn queue(&mut self, ops: impl IntoIterator<Item = Op>) {
        self.backlog.extend(ops);
    }

    /// Gives the device what it has room for.
    ///
    /// # Safety
    /// The lists of all queued requests name memory of regions that outlive the queue pair,
    /// and memory that the request itself owns.
    pub(crate) unsafe fn pump(&mut self) {
        loop {
            let room = self.sizes.slots.saturating_sub(self.sent.len());
            let count = room.min(self.backlog.len()).min(CHAIN);
            let pair = match &self.pair {
                Some(pair) if !self.broken => pair,
                _ => {
                    let refused: Vec<Op> = self.backlog.drain(..).collect();
                    return refused.into_iter().for_each(|op| self.flush(op));
                }
            };
            if count == 0 {
                return;
            }
            let mut silent = self.silent;
            let signals: SmallVec<[bool; CHAIN]> = (0..count)
                .map(|n| {
                    silent += 1;
                    let signaled = self.backlog[n].needs_signal()
                        || silent >= self.sizes.signal_every
                        || n + 1 == room;
                    if signaled {
                        silent = 0;
                    }
                    signaled
                })
                .collect();
            let next = self.next;
            let requests = self
                .backlog
                .iter()
                .zip(&signals)
                .enumerate()
                .map(|(n, (op, &signaled))| ((next + n as u64) << 1, &op.wr, &op.sges, signaled));
            // SAFETY: the caller vouches for the lists; windows of bindings are in `exposed`
            // or further back in the backlog, and this is the only place that uses them.
            let (accepted, outcome) = unsafe { wr::post(pair, requests) };
            self.silent = silent;
            for signaled in signals.into_iter().take(accepted) {
                let op = self.backlog.pop_front().expect("it was posted");
                self.sent.push_back((self.next, signaled, op));
                self.next += 1;
            }
            if let Err(error) = outcome {
                tracing::debug!(%error, "the device refuses work");
                self.broken = true;
                self.refusal.get_or_insert(error);
            }
        }
    }

    /// Posts a Receive; `None` if there are too many.
    ///
    /// # Safety
    /// `sge` names `buf`, in a region that outlives the queue pair.
    pub(crate) unsafe fn receive(&mut self, id: WorkId, buf: BufMut, sge: Sge) -> Option<()> {
        let pair = match &self.pair {
            Some(pair) if !self.broken => pair,
            _ => {
                let memory = Some(Memory::Sink(smallvec![buf]));
                self.give(Completion::Flushed { id, memory });
                return Some(());
            }
        };
        if self.receives.len() >= self.sizes.receives {
            return None;
        }
        // SAFETY: as the caller says; `buf` is kept below.
        let outcome = unsafe { wr::post_receive(pair, self.next << 1 | 1, sge) };
        match outcome {
            Ok(()) => {
                self.receives.push_back((self.next, id, buf));
                self.next += 1;
            }
            Err(error) => {
                tracing::debug!(%error, "the device refuses a Receive");
                self.broken = true;
                self.refusal.get_or_insert(error);
                let memory = Some(Memory::Sink(smallvec![buf]));
                self.give(Completion::Flushed { id, memory });
            }
        }
        Some(())
    }

    fn give(&mut self, completion: Completion) {
        if !self.unpolled {
            self.flushed.push(completion);
        }
    }

    /// What the end of the connection means for a request.
    fn flush(&mut self, op: Op) {
        let flushed = match op.owed {
            Owed::Nothing | Owed::Silence(_) => return,
            Owed::Sent(id, _) | Owed::Written(id, _) => Completion::Flushed { id, memory: None },
            Owed::Read(id, regions, sink) => {
                drop(regions);
                let memory = Some(Memory::Sink(sink));
                Completion::Flushed { id, memory }
            }
            Owed::Invalidated(id, exposure, windows) => {
                drop(windows);
                // SAFETY: the windows, the only access there was, are freed (now or by `end`).
                let memory = Some(unsafe { exposure.into_memory() });
                Completion::Flushed { id, memory }
            }
        };
        self.give(flushed);
    }

    /// The request with this number is done, and so are those before it: all of them if it is
    /// a Read, else all but Reads.
    pub(crate) fn complete(&mut self, number: u64, success: bool, out: &mut Vec<Completion>) {
        let is_read = |op: &Op| matches!(op.wr, Wr::Read { .. });
        let end = self.sent.partition_point(|(n, ..)| *n <= number);
        let whole = match end.checked_sub(1) {
            Some(last) => is_read(&self.sent[last].2),
            None => return,
        };
        let mut at = 0;
        for _ in 0..end {
            if !whole && is_read(&self.sent[at].2) {
                at += 1;
                continue;
            }
            let (n, _, op) = self.sent.remove(at).expect("it is inside");
            if n == number && !success {
                if let Owed::Silence(_) = op.owed {
                    self.posted = self.posted.saturating_sub(1);
                }
                self.flush(op);
                continue;
            }
            match op.owed {
                Owed::Nothing => continue,
                Owed::Silence(_) => {}
                Owed::Sent(id, _) => out.push(Completion::Sent { id }),
                Owed::Written(id, _) => out.push(Completion::Written { id }),
                Owed::Read(id, regions, sink) => {
                    drop(regions);
                    out.push(Completion::Read { id, sink });
                }
                Owed::Invalidated(id, exposure, windows) => {
                    self.windows.extend(windows);
                    // SAFETY: the invalidation of each window has completed.
                    let memory = unsafe { exposure.into_memory() };
                    out.push(Completion::Invalidated { id, memory });
                    continue;
                }
            }
            self.posted = self.posted.saturating_sub(1);
        }
    }

    /// The Receive with this number got a message of `len` bytes, or nothing.
    pub(crate) fn received(
        &mut self,
        number: u64,
        message: Option<(usize, Option<u32>)>,
        out: &mut Vec<Completion>,
    ) {
        let Some(at) = self.receives.iter().position(|(n, ..)| *n == number) else {
            return;
        };
        let Some((_, id, buf)) = self.receives.remove(at) else {
            return;
        };
        let Some((len, invalidated)) = message else {
            let memory = Some(Memory::Sink(smallvec![buf]));
            return self.give(Completion::Flushed { id, memory });
        };
        let exposed = invalidated.and_then(|rkey| self.exposed.get_mut(&(rkey, 0)));
        for exposed in exposed.into_iter().flatten() {
            if let By::Window(_, bound) = &mut exposed.by {
                *bound = false;
            }
        }
        let len = len.min(buf.len());
        out.push(Completion::Received {
            id,
            buf,
            len,
            invalidated: invalidated.map(nfsrdma_rdma::Handle),
        });
    }

    /// Whether the device owes nothing any more.
    pub(crate) fn drained(&self) -> bool {
        self.receives.is_empty() && !self.sent.iter().any(|(_, signaled, _)| *signaled)
    }

    /// Takes windows and queue pair away, and flushes what is left. The connection was ended
    /// before, so that the device does no work for it.
    pub(crate) fn end(&mut self) {
        // Windows first: a bound one holds on to its queue pair, and rdma_rxe waits for it.
        for exposed in self.exposed.values_mut().flatten() {
            if let By::Window(..) = exposed.by {
                exposed.by = By::Nothing;
            }
        }
        let requests = self.sent.iter_mut().map(|(_, _, op)| op);
        for op in requests.chain(&mut self.backlog) {
            if let Owed::Invalidated(_, _, windows) = &mut op.owed {
                windows.clear();
            }
        }
        self.windows.clear();
        self.pair = None;
        let sent = std::mem::take(&mut self.sent);
        let backlog = std::mem::take(&mut self.backlog);
        for op in sent.into_iter().map(|(_, _, op)| op).chain(backlog) {
            self.flush(op);
        }
        for (_, id, buf) in std::mem::take(&mut self.receives) {
            let memory = Some(Memory::Sink(smallvec![buf]));
            self.give(Completion::Flushed { id, memory });
        }
    }

    /// What was flushed.
    pub(crate) fn take_flushed(&mut self, out: &mut Vec<Completion>) {
        out.append(&mut self.flushed);
    }

    /// The completion queue is gone.
    pub(crate) fn abandon(&mut self) {
        self.unpolled = true;
        self.end();
        self.flushed.clear();
    }
}
