//! Calls that have ended, kept with their slots so that the next calls need no allocation.

use super::call::{Call, CallFuture, Payload, Registrations, Slot};
use super::secured::Secured;
use super::suspect::Suspicion;
use crate::protocol::Shape;
use crate::rpc::{Retry, RetryPolicy};
use crate::sync::Mutex;
use nfsrdma_rdma::{Buf, Instant};
use nfsrdma_xdr::rpcrdma::ChunkLists;
use std::collections::VecDeque;
use std::sync::Arc;

/// What distinguishes a new call.
pub(super) struct New {
    pub(super) xid: u32,
    pub(super) pid: u32,
    pub(super) procedure: usize,
    pub(super) shape: Shape,
    pub(super) message: Buf,
    pub(super) unregistered: Option<Box<[u8]>>,
    pub(super) payload: Payload,
    pub(super) secured: Option<Box<Secured>>,
    pub(super) started: Instant,
    pub(super) sequence: u64,
}

/// The calls of a transport that can be used again.
#[derive(Debug)]
pub(super) struct Calls {
    policy: RetryPolicy,
    /// Largest number of calls kept.
    keep: usize,
    /// The one that ended first is used first: the caller has most likely taken its reply.
    free: Mutex<VecDeque<Box<Call>>>,
}

impl Calls {
    pub(super) fn new(policy: RetryPolicy, keep: usize) -> Self {
        Calls {
            policy,
            keep,
            free: Mutex::default(),
        }
    }

    /// A new call, and the future of its reply.
    pub(super) fn begin(&self, new: New) -> (Box<Call>, CallFuture) {
        let kept = self.free.lock().pop_front();
        let Some(mut call) = kept else {
            let call = self.first(new);
            let waiter = CallFuture(call.slot.clone());
            return (call, waiter);
        };
        match Arc::get_mut(&mut call.slot) {
            Some(slot) => slot.reset(),
            // Its caller has not taken the reply yet.
            None => call.slot = Slot::new(),
        }
        // Field by field: most of a call is room for registrations, and is empty here.
        call.xid = new.xid;
        call.pid = new.pid;
        call.procedure = new.procedure;
        call.message = new.message;
        call.unregistered = new.unregistered;
        call.shape = new.shape;
        call.payload = new.payload;
        call.secured = new.secured;
        call.retry = Retry::new(&self.policy, new.started);
        call.started = new.started;
        call.sent = None;
        call.transmissions = 0;
        call.sequence = new.sequence;
        call.starved = false;
        call.given_up = false;
        call.suspicion = Suspicion::default();
        call.discarded = None;
        call.bounced = false;
        let waiter = CallFuture(call.slot.clone());
        (call, waiter)
    }

    /// A call of which nothing was kept.
    fn first(&self, new: New) -> Box<Call> {
        Box::new(Call {
            xid: new.xid,
            pid: new.pid,
            procedure: new.procedure,
            message: new.message,
            unregistered: new.unregistered,
            shape: new.shape,
            payload: new.payload,
            secured: new.secured,
            slot: Slot::new(),
            retry: Retry::new(&self.policy, new.started),
            started: new.started,
            sent: None,
            transmissions: 0,
            sequence: new.sequence,
            starved: false,
            given_up: false,
            suspicion: Suspicion::default(),
            discarded: None,
            record: None,
            offer: ChunkLists::default(),
            registrations: Registrations::default(),
            bounced: false,
            header: None,
        })
    }

    /// Keeps a call that has ended, without what it held.
    pub(super) fn end(&self, mut call: Box<Call>) {
        call.payload = Payload::None;
        call.unregistered = None;
        call.secured = None;
        call.header = None;
        call.record = None;
        call.registrations = Registrations::default();
        let mut free = self.free.lock();
        if free.len() < self.keep {
            free.push_back(call);
        }
    }
}
