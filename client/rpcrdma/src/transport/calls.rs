//! Calls that have ended, kept with their slots so that the next calls need no allocation.

use super::call::{Call, CallFuture, Payload, Registrations, Slot};
use super::suspect::Suspicion;
use crate::protocol::Shape;
use crate::rpc::{Retry, RetryPolicy};
use crate::sync::Mutex;
use nfsrdma_rdma::Buf;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// What distinguishes a new call.
pub(super) struct New {
    pub(super) xid: u32,
    pub(super) pid: u32,
    pub(super) procedure: usize,
    pub(super) shape: Shape,
    pub(super) head: Buf,
    pub(super) unregistered: Option<Box<[u8]>>,
    pub(super) payload: Payload,
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
        let call = match kept {
            Some(mut call) => {
                let slot = match Arc::get_mut(&mut call.slot) {
                    Some(slot) => {
                        slot.reset();
                        call.slot.clone()
                    }
                    // Its caller has not taken the reply yet.
                    None => Slot::new(),
                };
                *call = self.call(new, slot);
                call
            }
            None => Box::new(self.call(new, Slot::new())),
        };
        let waiter = CallFuture(call.slot.clone());
        (call, waiter)
    }

    fn call(&self, new: New, slot: Arc<Slot>) -> Call {
        Call {
            xid: new.xid,
            pid: new.pid,
            procedure: new.procedure,
            head: new.head,
            unregistered: new.unregistered,
            shape: new.shape,
            payload: new.payload,
            slot,
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
            registrations: Registrations::default(),
            bounced: false,
            header: None,
        }
    }

    /// Keeps a call that has ended, without what it held.
    pub(super) fn end(&self, mut call: Box<Call>) {
        call.payload = Payload::None;
        call.unregistered = None;
        call.header = None;
        call.record = None;
        let mut free = self.free.lock();
        if free.len() < self.keep {
            free.push_back(call);
        }
    }
}
