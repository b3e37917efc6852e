//! The posting half of a connection.
//!
//! A request is queued and sent as far as the socket accepts it, by the posting thread itself
//! unless another thread is already sending (after `post_later`, at the next flush). `expose`
//! enters memory into the table of STags. `invalidate` removes it and waits for a placement that is
//! under way, which lasts at most one system call. So an invalidation is always complete at once
//! (`Invalidation::Done`), and no completion follows. Once the connection has ended, requests are
//! accepted and complete as flushed.

use super::{Shared, end, flushed_receive, no_random};
use crate::driver::region::{Region, Sink};
use crate::proto::stag::Access;
use nfsrdma_rdma::{
    BufMut, Capabilities, Error, Exposure, Handle, Invalidation, Memory, QueuePair, RemoteSegment,
    Result, WorkId, WorkRequest,
};
use smallvec::smallvec;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The posting half of a connection.
pub(crate) struct IwarpQueuePair(pub(crate) Arc<Shared>);

impl QueuePair for IwarpQueuePair {
    fn capabilities(&self) -> &Capabilities {
        &self.0.capabilities
    }

    fn local_addr(&self) -> SocketAddr {
        self.0.local
    }

    fn peer_addr(&self) -> SocketAddr {
        self.0.peer
    }

    fn post_receive(&self, id: WorkId, buf: BufMut) -> Result<()> {
        let mut receives = self.0.receives.lock();
        if receives.used >= receives.depth {
            return Err(Error::QueueFull);
        }
        if !receives.closed {
            receives.used += 1;
            receives.posted.push_back((id, buf));
            return Ok(());
        }
        drop(receives);
        let mut state = self.0.state.lock();
        if !state.abandoned {
            self.0.receives.lock().used += 1;
            state.other_done.push_back(flushed_receive(id, buf));
        }
        Ok(())
    }

    fn post(&self, batch: &mut Vec<WorkRequest>) -> Result<()> {
        let mut result = Ok(());
        let mut state = self.0.state.lock();
        let mut requests = std::mem::take(batch).into_iter();
        for request in requests.by_ref() {
            if let Err((error, refused)) = self.0.post_one(&mut state, request) {
                batch.push(*refused);
                result = Err(error);
                break;
            }
        }
        batch.extend(requests);
        state.flush_if_ended();
        drop(state);
        self.0.pump();
        result
    }

    fn kick(&self) {
        self.0.pump();
    }

    fn post_later(&self, request: WorkRequest) -> Result<()> {
        let mut state = self.0.state.lock();
        let posted = self.0.post_one(&mut state, request);
        state.flush_if_ended();
        posted.map_err(|(error, _)| error)
    }

    //= RFC 5040, Section 8.1.1
    //# An RNIC MUST provide a mechanism for the ULP to establish and revoke the association of a
    //# ULP Buffer to an STag and TO range.
    //# An RNIC MUST provide a mechanism for the ULP to establish and revoke read, write, or read
    //# and write access to the ULP Buffer referenced by an STag.
    //= RFC 5041, Section 8.3
    //# DDP MUST provide a mechanism for the ULP to establish and revoke the TO range associated
    //# with the ULP Buffer referenced by the STag.
    //# DDP MUST provide a mechanism for the ULP to establish and revoke STag validity.
    //= RFC 5041, Section 8.3.1
    //# An RNIC MUST provide a mechanism for the ULP to establish and revoke the association of a
    //# ULP Buffer to an STag and TO range.
    //# An RNIC MUST provide a mechanism for the ULP to establish and revoke read, write, or read
    //# and write access to the ULP Buffer referenced by an STag.
    fn expose(&self, mut memory: Memory) -> std::result::Result<Exposure, (Error, Memory)> {
        let empty = match &memory {
            Memory::Sink(bufs) => bufs.is_empty() || bufs.iter().any(|b| b.is_empty()),
            Memory::Source(bufs) => bufs.is_empty() || bufs.iter().any(|b| b.is_empty()),
        };
        if empty {
            return Err((Error::Misuse("an empty buffer exposed"), memory));
        }
        let len = memory.len();
        let Ok(length) = u32::try_from(len) else {
            return Err((Error::Misuse("4 GiB or more exposed at once"), memory));
        };
        let (access, region) = match &mut memory {
            Memory::Sink(bufs) => (Access::Write, Region::Sink(Sink::new(bufs))),
            Memory::Source(bufs) => (Access::Read, Region::Source(bufs.clone())),
        };
        let inserted = self
            .0
            .stags
            .lock()
            .insert(access, len as u64, Arc::new(region));
        match inserted {
            Ok(Some((stag, offset))) => Ok(Exposure::new(
                smallvec![RemoteSegment {
                    handle: Handle(stag),
                    length,
                    offset,
                }],
                memory,
            )),
            Ok(None) => {
                let ended = self.0.state.lock().ended.clone();
                let closing = || self.0.closing.lock().clone();
                let error = ended
                    .or_else(closing)
                    .unwrap_or_else(|| Error::LinkLost("the connection is ending".into()));
                Err((error, memory))
            }
            Err(e) => Err((no_random(e), memory)),
        }
    }

    fn invalidate(&self, _id: WorkId, exposure: Exposure) -> Invalidation {
        for segment in exposure.segments() {
            let removed = self.0.stags.lock().remove(segment.handle.0, segment.offset);
            if let Some(region) = removed {
                end(&region);
            }
        }
        // SAFETY: no table contains the STag any more, and `end` (called here, or by the thread
        // that removed the STag) returned only when no writer was left. Bytes of a source that are
        // still to be sent are held by their own reference and cannot change.
        Invalidation::Done(unsafe { exposure.into_memory() })
    }

    fn wake(&self) {
        self.0.woken.store(true, Ordering::SeqCst);
        self.0.notify();
    }

    fn disconnect(&self) {
        self.0
            .close(Error::LinkLost("disconnected on this side".into()));
        self.0.close_stags();
        let _ = self.0.socket.shutdown(Shutdown::Both);
    }
}
