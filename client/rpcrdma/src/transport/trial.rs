//! Sending suspected calls alone ([`super::suspect`] has the rule).
//!
//! A trial has to prove that the server ends the connection over this very call. So no other call
//! is in flight during the trial, and on a connection that has brought no reply yet, a NULL must be
//! answered first.
//!
//! | trial is  | others wait | until                                                               |
//! | --------- | ----------- | ------------------------------------------------------------------- |
//! | draining  | yes         | no call is under way                                                |
//! | probing   | yes         | a NULL is answered: the connection works                            |
//! | alone     | yes         | the suspect is answered, [`SOON`] passed, or the connection ended   |

use super::call::{Call, Payload, plain_header};
use super::calls::New;
use super::link::{Admission, Link, State, Trial};
use super::marshal::encoded;
use super::suspect::{ConnectionEnd, SOON, Suspicion, Verdict};
use crate::protocol::Shape;
use nfsrdma_rdma::Instant;
use nfsrdma_xdr::rpc::{Auth, CallTemplate};
use nfsrdma_xdr::rpcrdma::MIN_HEADER_LEN;

impl State {
    /// Advances the trial as far as possible, and returns what may be sent now.
    pub(super) fn turn(&mut self, now: Instant) -> Admission {
        loop {
            let in_use = self.machine.used() > 0;
            match self.trial {
                None if self.suspect_due(now).is_some() => self.trial = Some(Trial::Draining),
                None => return Admission::Anybody,
                Some(Trial::Draining | Trial::Probing) if in_use => return Admission::Nobody,
                Some(Trial::Probing) => self.trial = Some(Trial::Draining),
                Some(Trial::Draining) => {
                    let Some(at) = self.suspect_due(now) else {
                        self.trial = None;
                        continue;
                    };
                    if !self.machine.reserve() {
                        return Admission::Nobody;
                    }
                    if !self.machine.is_proven() {
                        self.trial = Some(Trial::Probing);
                        return Admission::Probe;
                    }
                    let Some(call) = self.suspects.remove(at) else {
                        self.machine.cancel();
                        continue;
                    };
                    let (xid, since) = (call.xid, now);
                    self.trial = Some(Trial::Alone { xid, since });
                    return Admission::Suspect(call);
                }
                Some(Trial::Alone { since, .. }) => {
                    if in_use && now.saturating_duration_since(since) < SOON {
                        return Admission::Nobody;
                    }
                    self.trial = None;
                }
            }
        }
    }

    fn suspect_due(&self, now: Instant) -> Option<usize> {
        self.suspects
            .iter()
            .position(|call| call.suspicion.is_due(now))
    }

    /// An attempt to connect failed, so the call is not at fault: clears all calls of suspicion.
    pub(super) fn acquit(&mut self) {
        for mut call in std::mem::take(&mut self.suspects) {
            call.suspicion = Suspicion::default();
            self.waiting.push_front(call);
        }
        for call in &mut self.waiting {
            call.suspicion = Suspicion::default();
        }
    }
}

impl Link {
    /// The connection ended while `call` was under way on it.
    pub(super) fn judge(
        &self,
        call: &mut Call,
        trial: Option<Trial>,
        by_peer: bool,
        in_flight: usize,
        now: Instant,
    ) -> Verdict {
        let end = ConnectionEnd {
            by_peer,
            alone: in_flight == 1
                && matches!(trial, Some(Trial::Alone { xid, .. }) if xid == call.xid),
            after: call
                .sent
                .map_or(SOON, |sent| now.saturating_duration_since(sent)),
        };
        let timeo = self.shared.policy.timeo;
        call.suspicion.connection_ended(end, timeo, now)
    }

    /// A NULL call without a caller.
    pub(super) fn probe(&self) -> Box<Call> {
        let now = Instant::now();
        let xid = self.shared.xids.take();
        let program = &self.shared.program;
        let template = CallTemplate::new(program.number, program.version, Auth::None);
        let bytes: Box<[u8]> = encoded(
            |to| {
                plain_header(xid, self.shared.credits, to);
                template.encode(xid, 0, to);
            },
            |bytes| bytes.into(),
        );
        let (call, caller) = self.shared.calls.begin(New {
            pid: 0,
            xid,
            procedure: 0,
            shape: Shape {
                head: bytes.len() - MIN_HEADER_LEN,
                ..Shape::default()
            },
            message: self.shared.marshaller.no_bytes(),
            unregistered: Some(bytes),
            payload: Payload::None,
            secured: None,
            started: now,
            sequence: 0,
        });
        drop(caller);
        call
    }
}
