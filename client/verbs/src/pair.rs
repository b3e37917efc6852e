//! The posting half of a connection.
//!
//! Each request becomes one or more work requests of the device, whose lists name memory of the
//! pool's region. They are queued in `Work`, which posts as many as the device has room for.
//! `expose` opens each buffer to the peer by one of three means: a type 2 memory window bound under
//! a new key, a registration for this exposure, or the region that is open while the connection
//! lives. `invalidate` unbinds windows by a posted request, whose completion returns the memory;
//! without windows the memory is returned at once. A window that the peer has invalidated (Send
//! with Invalidate) needs no request.

use crate::sys::{Device, Domain, Queue, Region, Remote, Window};
use crate::work::{By, Exposed, Op, Owed, Work};
use crate::wr::{Bind, Sge, Sges, Wr};
use crate::{cm, error};
use nfsrdma_rdma::buf::{KeepAlive, MAX_BLOCK};
use nfsrdma_rdma::{
    Buf, BufMut, Capabilities, Error, EventFd, Exposure, Handle, Invalidation, Memory, Pool,
    Protection, QueuePair, RemoteSegment, Result, Segs, WorkId, WorkRequest,
};
use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// All resources of one connection. The fields are dropped in order.
pub(crate) struct Core {
    pub(crate) work: Mutex<Work>,
    pub(crate) queue: Arc<Queue>,
    /// The region of the pool, for local use.
    pub(crate) arena: Region,
    pub(crate) domain: Arc<Domain>,
    pub(crate) id: Arc<cm::Id>,
    pub(crate) pool: Pool,
    pub(crate) device: Device,
    pub(crate) sge: usize,
    pub(crate) send_depth: usize,
    pub(crate) capabilities: Capabilities,
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
    /// Why the connection ended; the first reason is kept.
    pub(crate) reason: Mutex<Option<Error>>,
    /// Wakes the poller.
    pub(crate) event: EventFd,
    pub(crate) woken: AtomicBool,
}

/// The parts that a request becomes.
struct Parts {
    before: SmallVec<[(Wr, Sges); 1]>,
    last: (Wr, Sges),
    regions: Vec<Region>,
    /// A copy of the data if the list is too long for the device.
    copy: Option<Buf>,
}

impl Core {
    /// Ends the connection for this reason, unless it has ended before.
    pub(crate) fn end(&self, reason: Error) {
        {
            let mut present = self.reason.lock();
            if present.is_some() {
                return;
            }
            *present = Some(reason);
        }
        {
            // Disconnecting also uses the queue pair, so the poller must not destroy it meanwhile:
            // the kernel would refuse that, and keep it.
            let _pair = self.work.lock();
            self.id.disconnect();
        }
        self.event.notify();
    }

    /// The scatter or gather element for bytes of the arena.
    fn sge(&self, at: *const u8, len: usize) -> Result<Sge> {
        let base = self.pool.base().as_ptr() as usize;
        let inside = (at as usize)
            .checked_sub(base)
            .is_some_and(|from| from + len <= self.pool.capacity());
        if !inside {
            return Err(Error::Misuse(
                "a buffer that is not of the connection's pool",
            ));
        }
        Ok(Sge {
            at: at as u64,
            len: len as u32,
            lkey: self.arena.lkey(),
        })
    }

    fn gather(&self, bufs: &[Buf]) -> Result<Sges> {
        bufs.iter()
            .filter(|buf| !buf.is_empty())
            .map(|buf| self.sge(buf.as_raw_ptr(), buf.len()))
            .collect()
    }

    fn parts(&self, request: &mut WorkRequest) -> Result<Parts> {
        match request {
            WorkRequest::Send {
                data, invalidate, ..
            } => {
                let len: usize = data.iter().map(|buf| buf.len()).sum();
                if len > self.capabilities.max_message {
                    return Err(Error::Misuse("a Send larger than max_message"));
                }
                let mut sges = self.gather(data)?;
                let mut copy = None;
                if sges.len() > self.sge {
                    let whole = self.copied(data, len)?;
                    sges = smallvec![self.sge(whole.as_raw_ptr(), len)?];
                    copy = Some(whole);
                }
                let invalidate = invalidate.map(|handle| handle.0);
                Ok(Parts {
                    before: SmallVec::new(),
                    last: (Wr::Send { invalidate }, sges),
                    regions: Vec::new(),
                    copy,
                })
            }
            WorkRequest::Write { source, target, .. } => {
                if source.iter().map(|buf| buf.len()).sum::<usize>() != target.length as usize {
                    return Err(Error::Misuse(
                        "a Write whose target is not as long as its source",
                    ));
                }
                let sges = self.gather(source)?;
                Ok(split(&sges, self.sge, |at| Wr::Write {
                    at: target.offset.wrapping_add(at),
                    rkey: target.handle.0,
                }))
            }
            WorkRequest::Read { sink, source, .. } => {
                if sink.iter().map(|buf| buf.len()).sum::<usize>() != source.length as usize {
                    return Err(Error::Misuse(
                        "a Read whose sink is not as long as its source",
                    ));
                }
                if self.capabilities.max_reads_out == 0 {
                    return Err(Error::Misuse("a Read where none was negotiated"));
                }
                let mut regions = Vec::new();
                let mut sges = self.scatter(sink, &mut regions)?;
                if sges.is_empty() {
                    // Some devices require a sink even for zero bytes.
                    sges.push(self.sge(self.pool.base().as_ptr(), 0)?);
                }
                let most = self.sge.min(self.device.max_sge_rd);
                let mut parts = split(&sges, most, |at| Wr::Read {
                    at: source.offset.wrapping_add(at),
                    rkey: source.handle.0,
                });
                parts.regions = regions;
                Ok(parts)
            }
        }
    }

    fn scatter(&self, sink: &mut [BufMut], regions: &mut Vec<Region>) -> Result<Sges> {
        let mut sges = Sges::new();
        for buf in sink.iter_mut().filter(|buf| !buf.is_empty()) {
            let mut sge = self.sge(buf.as_mut_ptr(), buf.len())?;
            if self.device.iwarp {
                // RFC 5040 section 4.4: the peer writes to the sink, so on iWARP it needs a region
                // that is open to the peer, for this Read only.
                // SAFETY: the memory belongs to the arena, which outlives the connection; it
                // belongs to the request until that is done, and so does the region.
                let region = unsafe {
                    let at = buf.as_mut_ptr();
                    Region::register(&self.domain, at, buf.len(), Remote::Write, false)
                };
                let region = region
                    .map_err(|error| error::local("cannot register the sink of a Read", error))?;
                sge.lkey = region.lkey();
                regions.push(region);
            }
            sges.push(sge);
        }
        Ok(sges)
    }

    fn copied(&self, data: &[Buf], len: usize) -> Result<Buf> {
        let mut whole = (len <= MAX_BLOCK)
            .then(|| self.pool.alloc(len))
            .flatten()
            .ok_or_else(|| {
                Error::local(
                    format!("no room in the buffer pool to gather a message of {len} bytes"),
                    std::io::ErrorKind::OutOfMemory.into(),
                )
            })?;
        let mut at = 0;
        for buf in data {
            whole[at..at + buf.len()].copy_from_slice(buf);
            at += buf.len();
        }
        Ok(whole.freeze())
    }

    /// Takes or makes windows for `count` buffers.
    fn windows(&self, count: usize) -> Result<Vec<Window>> {
        let mut windows = {
            let mut work = self.work.lock();
            let keep = work.windows.len().saturating_sub(count);
            work.windows.split_off(keep)
        };
        while windows.len() < count {
            match Window::new(&self.domain) {
                Ok(window) => windows.push(window),
                Err(error) => {
                    self.work.lock().windows.append(&mut windows);
                    return Err(error::local("cannot make a memory window", error));
                }
            }
        }
        Ok(windows)
    }

    /// Opens each buffer to the peer. Returns its segments, how each was made accessible, and the
    /// bindings to post.
    #[allow(clippy::type_complexity, reason = "used once")]
    fn open(
        &self,
        places: &[(*mut u8, usize, KeepAlive)],
        remote: Remote,
    ) -> Result<(Segs<RemoteSegment>, Vec<By>, Vec<Op>)> {
        let mut segments = Segs::new();
        let mut by = Vec::with_capacity(places.len());
        let mut ops = Vec::new();
        let mut windows = match self.capabilities.protection {
            Protection::Window => self.windows(places.len())?,
            _ => Vec::new(),
        };
        for (at, len, _) in places {
            self.sge(*at, *len)?;
            let (rkey, opened) = match self.capabilities.protection {
                Protection::Registration | Protection::Handle => {
                    // SAFETY: the memory belongs to the arena and stays in the Exposure; a
                    // KeepAlive stored with the region prevents its reuse.
                    let region =
                        unsafe { Region::register(&self.domain, *at, *len, remote, false) };
                    let region = region.map_err(|error| {
                        error::local("cannot register memory for one request", error)
                    })?;
                    (region.rkey(), By::Region(region))
                }
                Protection::Window => {
                    let window = windows.pop().expect("one was made for each buffer");
                    let rkey = window.next_rkey(random());
                    ops.push(Op {
                        wr: Wr::Bind(Bind::new(
                            &window,
                            &self.arena,
                            rkey,
                            (*at as u64, *len as u64),
                            remote,
                        )),
                        sges: Sges::new(),
                        owed: Owed::Nothing,
                    });
                    (rkey, By::Window(window, true))
                }
            };
            segments.push(RemoteSegment {
                handle: Handle(rkey),
                length: *len as u32,
                offset: *at as u64,
            });
            by.push(opened);
        }
        Ok((segments, by, ops))
    }
}

/// An unpredictable byte.
fn random() -> u8 {
    let mut byte = [0];
    // Without entropy the key still differs from the last one.
    let _ = getrandom::fill(&mut byte);
    byte[0]
}

/// Splits a list into requests of at most `most` elements; `wr` gets the offset of each.
fn split(sges: &[Sge], most: usize, wr: impl Fn(u64) -> Wr) -> Parts {
    let mut at = 0;
    let mut parts: SmallVec<[(Wr, Sges); 1]> = SmallVec::new();
    for chunk in sges.chunks(most.max(1)) {
        parts.push((wr(at), chunk.into()));
        at += chunk.iter().map(|sge| u64::from(sge.len)).sum::<u64>();
    }
    let last = parts.pop().unwrap_or_else(|| (wr(0), Sges::new()));
    Parts {
        before: parts,
        last,
        regions: Vec::new(),
        copy: None,
    }
}

/// The posting half of a connection.
pub(crate) struct Poster(pub(crate) Arc<Core>);

impl QueuePair for Poster {
    fn capabilities(&self) -> &Capabilities {
        &self.0.capabilities
    }

    fn local_addr(&self) -> SocketAddr {
        self.0.local
    }

    fn peer_addr(&self) -> SocketAddr {
        self.0.peer
    }

    fn post_receive(&self, id: WorkId, mut buf: BufMut) -> Result<()> {
        let core = &*self.0;
        let sge = core.sge(buf.as_mut_ptr(), buf.len())?;
        let mut work = core.work.lock();
        // SAFETY: the arena's region names `buf`, and outlives the queue pair.
        let accepted = unsafe { work.receive(id, buf, sge) };
        if work.pair.is_none() || work.broken {
            core.event.notify();
        }
        accepted.ok_or(Error::QueueFull)
    }

    fn post(&self, batch: &mut Vec<WorkRequest>) -> Result<()> {
        let core = &*self.0;
        let mut work = core.work.lock();
        let ended = work.pair.is_none() || work.broken;
        let mut accepted = 0;
        let mut outcome = Ok(());
        let mut prepared: SmallVec<[Parts; 4]> = SmallVec::new();
        for request in batch.iter_mut() {
            if !ended && work.posted >= core.send_depth {
                outcome = Err(Error::QueueFull);
                break;
            }
            match core.parts(request) {
                Ok(parts) => prepared.push(parts),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
            work.posted += 1;
            accepted += 1;
        }
        for (request, parts) in batch.drain(..accepted).zip(prepared) {
            let owed = match request {
                WorkRequest::Send {
                    id, data, signaled, ..
                } => {
                    let data = parts.copy.map_or(data, |copy| smallvec![copy]);
                    match signaled {
                        true => Owed::Sent(id, data),
                        false => Owed::Silence(data),
                    }
                }
                WorkRequest::Write {
                    id,
                    source,
                    signaled,
                    ..
                } => match signaled {
                    true => Owed::Written(id, source),
                    false => Owed::Silence(source),
                },
                WorkRequest::Read { id, sink, .. } => Owed::Read(id, parts.regions, sink),
            };
            let before = parts.before.into_iter().map(|(wr, sges)| Op {
                wr,
                sges,
                owed: Owed::Nothing,
            });
            let (wr, sges) = parts.last;
            work.queue(before.chain([Op { wr, sges, owed }]));
        }
        // SAFETY: every list names the arena, whose region outlives the queue pair, or regions in
        // the request; and the request owns the buffers it names.
        unsafe { work.pump() };
        if work.pair.is_none() || work.broken {
            core.event.notify();
        }
        outcome
    }

    fn expose(&self, mut memory: Memory) -> std::result::Result<Exposure, (Error, Memory)> {
        let core = &*self.0;
        let (remote, places): (_, SmallVec<[_; 4]>) = match &mut memory {
            Memory::Sink(bufs) => (
                Remote::Write,
                bufs.iter_mut()
                    .map(|buf| (buf.as_mut_ptr(), buf.len(), buf.keep_alive()))
                    .collect(),
            ),
            Memory::Source(bufs) => (
                Remote::Read,
                bufs.iter()
                    .map(|buf| (buf.as_raw_ptr().cast_mut(), buf.len(), buf.keep_alive()))
                    .collect(),
            ),
        };
        if places.is_empty() || places.iter().any(|(_, len, _)| *len == 0) {
            return Err((Error::Misuse("an exposure of no bytes"), memory));
        }
        if places.len() > core.capabilities.max_segments {
            return Err((Error::Misuse("an exposure of too much"), memory));
        }
        let (segments, by, ops) = match core.open(&places, remote) {
            Ok(opened) => opened,
            Err(error) => return Err((error, memory)),
        };
        let mut work = core.work.lock();
        for ((segment, by), (.., alive)) in segments.iter().zip(by).zip(places) {
            let exposed = Exposed { by, _alive: alive };
            work.exposed.insert(segment.handle.0, exposed);
        }
        work.queue(ops);
        // SAFETY: bindings have no lists; their windows are in `exposed` now, and the arena's
        // region outlives them.
        unsafe { work.pump() };
        Ok(Exposure::new(segments, memory))
    }

    //= RFC 8166, Section 4.5.4
    //# After a Requester has received a reply, if it is unable to invalidate a memory region due to
    //# an unrecoverable problem, the Requester MUST close the connection to protect that memory
    //# from Responder access before the associated RPC transaction is complete.
    fn invalidate(&self, id: WorkId, exposure: Exposure) -> Invalidation {
        let core = &*self.0;
        let mut work = core.work.lock();
        let mut bound = Vec::new();
        let mut keys: SmallVec<[u32; 4]> = SmallVec::new();
        let mut closed = Vec::new();
        for segment in exposure.segments() {
            let exposed = work.exposed.remove(&segment.handle.0);
            let exposed = exposed.expect("an exposure of this connection");
            match exposed.by {
                By::Window(window, true) => {
                    bound.push(window);
                    keys.push(segment.handle.0);
                }
                By::Window(window, false) => work.windows.push(window),
                By::Region(_) | By::Nothing => closed.push(exposed),
            }
        }
        if bound.is_empty() || work.pair.is_none() {
            drop(work);
            drop((bound, closed));
            // SAFETY: regions and windows are gone, or were unbound already.
            return Invalidation::Done(unsafe { exposure.into_memory() });
        }
        let mut owed = Some(Owed::Invalidated(id, exposure, bound));
        let count = keys.len();
        let ops = keys.into_iter().enumerate().map(|(n, rkey)| Op {
            wr: Wr::Invalidate { rkey },
            sges: Sges::new(),
            owed: match n + 1 == count {
                true => owed.take().unwrap_or(Owed::Nothing),
                false => Owed::Nothing,
            },
        });
        let ops: SmallVec<[Op; 4]> = ops.collect();
        work.queue(ops);
        // SAFETY: invalidations have no lists.
        unsafe { work.pump() };
        if work.broken {
            core.event.notify();
        }
        Invalidation::Posted
    }

    fn wake(&self) {
        self.0.woken.store(true, Ordering::Release);
        self.0.event.notify();
    }

    fn disconnect(&self) {
        self.0.end(Error::LinkLost("disconnected".to_owned()));
    }
}
