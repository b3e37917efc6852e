//! The work that is under way on one connection, and what each request owns.
//!
//! Requests pass through three places: the backlog (accepted, but not yet posted because the
//! device's queue is full), the device's send queue, and the completions. A send queue completes in
//! order, so the completion of a request implies that all unsignaled ones before it are complete;
//! but not RDMA Reads, which siw completes later than requests posted after them.

use crate::sys::{Pair, Region, Window};
use crate::wr::{self, Sge, Sges, Wr};
use nfsrdma_rdma::buf::KeepAlive;
use nfsrdma_rdma::{Buf, BufMut, Completion, Exposure, Memory, Segs, WorkId};
use smallvec::{SmallVec, smallvec};
use std::collections::{HashMap, VecDeque};
use std::io;

/// Largest number of requests posted to the device in one call.
const CHAIN: usize = 32;

/// The completion of a request, and what is kept until then.
pub(crate) enum Owed {
    /// No completion: a binding, or any but the last part of a larger request.
    Nothing,
    /// No completion: an unsignaled Send or Write.
    Silence(#[allow(dead_code, reason = "kept for the device")] Segs<Buf>),
    Sent(
        WorkId,
        #[allow(dead_code, reason = "kept for the device")] Segs<Buf>,
    ),
    Written(
        WorkId,
        #[allow(dead_code, reason = "kept for the device")] Segs<Buf>,
    ),
    /// With the regions of a sink, where the peer must have access to it.
    Read(WorkId, Vec<Region>, Segs<BufMut>),
    Invalidated(WorkId, Exposure, Vec<Window>),
}

/// A request in the device's terms.
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

/// Memory that the peer can access under one handle.
pub(crate) struct Exposed {
    pub(crate) by: By,
    /// Dropped after the region or window.
    pub(crate) _alive: KeepAlive,
}

/// How memory is made accessible.
pub(crate) enum By {
    /// By its own registration.
    Region(#[allow(dead_code, reason = "ends when dropped")] Region),
    /// By a window; true while it is bound.
    Window(Window, bool),
    /// Not accessible any more, because the connection ended.
    Nothing,
}

/// The queues of one connection. Its fields are dropped in order: with the queue pair the device
/// releases all memory.
pub(crate) struct Work {
    /// `None` after the end.
    pub(crate) pair: Option<Pair>,
    backlog: VecDeque<Op>,
    /// Requests posted to the device, each with its number and whether it is signaled.
    sent: VecDeque<(u64, bool, Op)>,
    receives: VecDeque<(u64, WorkId, BufMut)>,
    /// Exposed memory by handle and, where buffers share one, by address.
    pub(crate) exposed: HashMap<u32, Exposed>,
    pub(crate) windows: Vec<Window>,
    /// Completions of requests that were flushed outside of the poller.
    flushed: Vec<Completion>,
    next: u64,
    /// Number of unsignaled requests since the last signaled one.
    silent: usize,
    /// Number of requests that count against the send depth.
    pub(crate) posted: usize,
    sizes: Sizes,
    /// Whether the device refuses requests.
    pub(crate) broken: bool,
    /// The reason for that, until it is fetched.
    pub(crate) refusal: Option<io::Error>,
    /// Whether the completion queue was dropped, so that nobody fetches completions.
    pub(crate) unpolled: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    /// Number of requests that the device's send queue holds.
    pub(crate) slots: usize,
    /// One request in so many is signaled, so that the buffers of unsignaled ones are returned.
    pub(crate) signal_every: usize,
    pub(crate) receives: usize,
}

/// The queue that a completion belongs to, with the request's number.
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

    /// Accepts requests, in order; `pump` posts them to the device.
    pub(crate) fn queue(&mut self, ops: impl IntoIterator<Item = Op>) {
        self.backlog.extend(ops);
    }

    /// Posts as many requests as the device has room for.
    ///
    /// # Safety
    /// The lists of all queued requests name memory of regions that outlive the queue pair, or
    /// memory that the request itself owns.
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
            // SAFETY: the caller vouches for the lists; the windows of bindings are in `exposed` or
            // later in the backlog, and only this place uses them.
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

    /// Posts a Receive; `None` if too many are posted.
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

    /// Completes a request as flushed, because the connection ended.
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
                // SAFETY: the windows, which were the only access, are freed (now or by `end`).
                let memory = Some(unsafe { exposure.into_memory() });
                Completion::Flushed { id, memory }
            }
        };
        self.give(flushed);
    }

    /// The request with this number is complete, and so are those before it: all of them if it is a
    /// Read, else all except Reads.
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

    /// The Receive with this number received a message of `len` bytes, or was flushed.
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
        let exposed = invalidated.and_then(|rkey| self.exposed.get_mut(&rkey));
        if let Some(By::Window(_, bound)) = exposed.map(|exposed| &mut exposed.by) {
            *bound = false;
        }
        let len = len.min(buf.len());
        out.push(Completion::Received {
            id,
            buf,
            len,
            invalidated: invalidated.map(nfsrdma_rdma::Handle),
        });
    }

    /// Whether the device has no work left that completes.
    pub(crate) fn drained(&self) -> bool {
        self.receives.is_empty() && !self.sent.iter().any(|(_, signaled, _)| *signaled)
    }

    /// Frees windows and queue pair, and flushes the remaining requests. The connection must have
    /// ended, so that the device does not work on it.
    pub(crate) fn end(&mut self) {
        // Windows first: a bound one references its queue pair, and rdma_rxe waits for it.
        for exposed in self.exposed.values_mut() {
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

    /// Fetches the completions of flushed requests.
    pub(crate) fn take_flushed(&mut self, out: &mut Vec<Completion>) {
        out.append(&mut self.flushed);
    }

    /// The completion queue was dropped.
    pub(crate) fn abandon(&mut self) {
        self.unpolled = true;
        self.end();
        self.flushed.clear();
    }
}
