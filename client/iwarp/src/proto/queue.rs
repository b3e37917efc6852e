//! The send side of a connection: work requests from posting to completion. No I/O.
//!
//! Requests start in the order of posting. An RDMA Read that would exceed the ORD waits, and so do
//! the requests behind it. Responses to the peer's RDMA Reads alternate with them. Completions are
//! in the order of posting (RFC 5040 section 5.5); an RDMA Read completes when its response is
//! complete.

use super::handshake::Rtr;
use super::host::PendingRead;
use crate::wire::rdmap::{ReadRequest, Terminate};
use nfsrdma_rdma::{Buf, BufMut, Completion, Memory, Segs, WorkId};
use std::collections::VecDeque;

/// A message to send.
#[derive(Debug)]
pub enum Message {
    /// Send, or Send With Invalidate.
    Send {
        /// The work request.
        token: Token,
        /// The message.
        data: Segs<Buf>,
        /// STag of the peer.
        invalidate: Option<u32>,
    },
    //= RFC 5041, Section 5.2
    //# The ULP at the Data Source MUST specify the STag and the initial TO when the ULP Message is
    //# handed to DDP.
    /// RDMA Write.
    Write {
        /// The work request.
        token: Token,
        /// The data.
        data: Segs<Buf>,
        /// STag of the peer.
        stag: u32,
        /// Offset there.
        offset: u64,
    },
    /// RDMA Read Request.
    ReadRequest {
        /// The work request.
        token: Token,
        /// The header of the request.
        request: ReadRequest,
    },
    /// RDMA Read Response.
    Response {
        /// STag of the peer.
        stag: u32,
        /// Offset there.
        offset: u64,
        /// The data.
        data: Segs<Buf>,
    },
    /// The first message of a peer-to-peer stream.
    Rtr(Rtr),
    /// The last message of the stream.
    Terminate(Terminate),
}

/// What a message belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token {
    /// The work request of this number.
    Work(u64),
    /// A response to an RDMA Read of the peer.
    Response,
    /// The Terminate: no message may follow.
    Terminate,
    /// Nothing.
    None,
}

/// The kind of a work request, with the memory that its completion returns.
#[derive(Debug)]
enum Kind {
    Send,
    Write,
    Read(Segs<BufMut>),
}

#[derive(Debug)]
struct Entry {
    id: WorkId,
    kind: Kind,
    signaled: bool,
    done: bool,
}

/// The queues of a connection's sending side.
#[derive(Debug)]
pub struct SendQueue {
    work: VecDeque<Message>,
    responses: VecDeque<Message>,
    urgent: Option<Message>,
    terminated: bool,
    //= RFC 5044, Section 7.1.2
    //# MPA Responder mode implementations MUST receive and validate at least one FPDU before
    //# sending any FPDUs or Markers.
    /// Whether this responder must not send yet, because it has received no FPDU.
    held: bool,
    response_turn: bool,
    responses_due: usize,
    /// How many of `responses_due` the current system call may send completely.
    responses_leaving: usize,
    reads: VecDeque<PendingRead>,
    /// Of the work requests, none for an RTR message.
    read_tokens: VecDeque<Option<u64>>,
    reads_out: usize,
    order: VecDeque<Entry>,
    first: u64,
    /// Work requests that count against `depth`.
    used: usize,
    depth: usize,
}

impl SendQueue {
    /// A queue for `depth` work requests at once, and `reads_out` RDMA Reads among them (ORD).
    pub fn new(depth: usize, reads_out: usize, held: bool) -> Self {
        SendQueue {
            work: VecDeque::new(),
            responses: VecDeque::new(),
            urgent: None,
            terminated: false,
            held,
            response_turn: false,
            responses_due: 0,
            responses_leaving: 0,
            reads: VecDeque::new(),
            read_tokens: VecDeque::new(),
            reads_out,
            order: VecDeque::new(),
            first: 0,
            used: 0,
            depth,
        }
    }

    /// Whether another work request may be posted.
    pub fn has_room(&self) -> bool {
        self.used < self.depth
    }

    fn push(&mut self, id: WorkId, kind: Kind, signaled: bool) -> Token {
        let number = self.first + self.order.len() as u64;
        self.order.push_back(Entry {
            id,
            kind,
            signaled,
            done: false,
        });
        self.used += 1;
        Token::Work(number)
    }

    /// Queues a Send.
    pub fn post_send(
        &mut self,
        id: WorkId,
        data: Segs<Buf>,
        invalidate: Option<u32>,
        signaled: bool,
    ) {
        let token = self.push(id, Kind::Send, signaled);
        self.work.push_back(Message::Send {
            token,
            data,
            invalidate,
        });
    }

    /// Queues an RDMA Write.
    pub fn post_write(
        &mut self,
        id: WorkId,
        data: Segs<Buf>,
        stag: u32,
        offset: u64,
        signaled: bool,
    ) {
        let token = self.push(id, Kind::Write, signaled);
        self.work.push_back(Message::Write {
            token,
            data,
            stag,
            offset,
        });
    }

    //= RFC 5040, Section 5.2
    //# The RDMA Read operation MUST consist of a single RDMA Read Request Message and a single RDMA
    //# Read Response Message.
    /// Queues an RDMA Read into `sink`, to which `request` refers.
    pub fn post_read(&mut self, id: WorkId, sink: Segs<BufMut>, request: ReadRequest) {
        let token = self.push(id, Kind::Read(sink), true);
        self.work.push_back(Message::ReadRequest { token, request });
    }

    //= RFC 5040, Section 5.2.1
    //# MUST respond with a zero-length RDMA Read Response Message.
    //= RFC 5040, Section 5.2.2
    //# The Data Source MUST ensure that a sufficient number of Untagged Buffers are available on
    //# the RDMA Read Request Queue (Queue with DDP Queue Number 1) to support the maximum number of
    //# RDMA Read Requests negotiated by the ULP.
    //# A single RDMA Read Response Message MUST write to one remote Tagged Buffer.
    /// Queues the response to an RDMA Read Request.
    pub fn post_response(&mut self, stag: u32, offset: u64, data: Segs<Buf>) {
        self.responses_due += 1;
        self.responses
            .push_back(Message::Response { stag, offset, data });
    }

    /// Queues an RTR message before all messages that were not started.
    pub fn post_rtr(&mut self, rtr: Rtr) {
        if !self.terminated {
            self.urgent.get_or_insert(Message::Rtr(rtr));
        }
    }

    //= RFC 5040, Section 5.4
    //# After sending a Terminate Message on an RDMAP Stream, the Local Peer MUST NOT send any more
    //# Messages on that specific RDMAP Stream.
    //= RFC 5040, Section 7.1
    //# If more than one error is detected on incoming RDMA Messages, before the Terminate Message
    //# can be sent, then the first RDMA Message (and its associated DDP Segment) that experienced
    //# an error MUST be captured by the Terminate Message, in accordance with rules 2 and 3 above.
    /// Queues a Terminate; no other message is sent any more.
    pub fn post_terminate(&mut self, terminate: Terminate) {
        if !self.terminated {
            self.terminated = true;
            self.urgent = Some(Message::Terminate(terminate));
            self.work.clear();
            self.responses.clear();
        }
    }

    /// The peer has sent its first FPDU.
    pub fn release(&mut self) {
        self.held = false;
    }

    /// Number of the peer's RDMA Read Requests that are certainly outstanding: those whose last
    /// response byte cannot have reached the peer yet. A peer that has the whole response may send
    /// its next request at once, even before the system call that sent the response returns here.
    pub fn responses_due(&self) -> usize {
        self.responses_due.saturating_sub(self.responses_leaving)
    }

    /// The last bytes of this many responses are about to be handed to the transport. This holds
    /// until [`SendQueue::handed_over`].
    pub fn handing_over(&mut self, responses: usize) {
        self.responses_leaving = responses;
    }

    /// The transport has taken what it had room for; [`SendQueue::sent`] names the messages.
    pub fn handed_over(&mut self) {
        self.responses_leaving = 0;
    }

    /// The RDMA Read of ours whose response is expected next.
    pub fn pending_read(&self) -> Option<PendingRead> {
        self.reads.front().copied()
    }

    //= RFC 5040, Section 5.1
    //# The Data Source RDMAP layer MUST issue RDMA Write Messages to the DDP layer in the order
    //# they were submitted by the ULP.
    //= RFC 5040, Section 5.2.1
    //# The Local Peer MUST pass to the DDP layer RDMA Read Request Messages in the order they were
    //# submitted by the ULP.
    //# The Remote Peer MUST process the RDMA Read Request Messages in the order they were sent.
    //= RFC 5040, Section 5.2.2
    //# The Data Source RDMAP layer MUST pass RDMA Read Response Messages to the DDP layer, in the
    //# order that the RDMA Read Request Messages were received by the RDMAP layer, at the Data
    //# Source.
    //= RFC 5040, Section 5.3
    //# The Local Peer MUST issue Send Message Type Messages in the order they were submitted by the
    //# ULP.
    //= RFC 5040, Section 5.5
    //# The RDMAP layer MUST submit RDMA Messages to the DDP layer in the order the RDMA Operations
    //# are submitted to the RDMAP layer by the ULP.
    //# If more than one outstanding RDMA Read Request Messages are supported by both peers, the
    //# RDMA Read Response Messages MUST be submitted to the DDP layer on the Remote Peer in the
    //# order the RDMA Read Request Messages were Delivered by DDP, but the actual read of the
    //# buffer contents MAY take place in any order at the Remote Peer.
    //= RFC 5041, Section 5.3
    //# MUST transmit DDP Messages in the order they were submitted to the DDP layer,
    /// The next message to send. Work requests keep their order, as responses do; both alternate.
    #[inline]
    pub fn next_message(&mut self) -> Option<Message> {
        if self.urgent.is_some()
            && let Some(urgent) = self.urgent.take()
        {
            if let Message::Rtr(Rtr::Read) = urgent {
                self.reads.push_back(PendingRead::EMPTY);
                self.read_tokens.push_back(None);
            }
            return Some(urgent);
        }
        if self.held || self.terminated {
            return None;
        }
        let blocked = match self.work.front() {
            None => true,
            //= RFC 5040, Section 6.1
            //# For outbound RDMA Read Requests, the RDMAP layer MUST NOT exceed the maximum number
            //# of outstanding, outbound RDMA Read Requests that were negotiated between the ULP and
            //# the Local Peer's RDMAP layer.
            Some(Message::ReadRequest { .. }) => self.reads.len() >= self.reads_out,
            Some(_) => false,
        };
        let respond = !self.responses.is_empty() && (self.response_turn || blocked);
        self.response_turn = !respond;
        if respond {
            return self.responses.pop_front();
        }
        if blocked {
            return None;
        }
        let message = self.work.pop_front();
        if let Some(Message::ReadRequest {
            token: Token::Work(number),
            request,
        }) = &message
        {
            self.reads.push_back(PendingRead {
                stag: request.sink_stag,
                offset: request.sink_offset,
                len: u64::from(request.length),
            });
            self.read_tokens.push_back(Some(*number));
        }
        message
    }

    //= RFC 5040, Section 5.5
    //# A Send or RDMA Write Message MUST NOT be considered Complete at the Local Peer (Data Source)
    //# until it has been successfully completed at the DDP layer.
    //# An RDMA Read operation MUST NOT be Completed at the Local Peer until the DDP layer Delivers
    //# the associated incoming RDMA Read Response Message.
    /// A message was completely handed to the transport.
    pub fn sent(&mut self, token: Token) {
        match token {
            Token::Work(number) => {
                // An RDMA Read completes with its response (rule 19), not with its request.
                if let Some(entry) = self.entry(number)
                    && !matches!(entry.kind, Kind::Read(_))
                {
                    self.done(number);
                }
            }
            Token::Response => self.responses_due = self.responses_due.saturating_sub(1),
            Token::Terminate | Token::None => {}
        }
    }

    //= RFC 5040, Section 5.5
    //# RDMA Read Response Messages MUST be Delivered to the ULP at the Remote Peer after they are
    //# Delivered to RDMAP by DDP and in the order that the they were Delivered to RDMAP.
    /// The response to the oldest RDMA Read is complete. Returns its sink's STag and offset.
    pub fn read_done(&mut self) -> Option<PendingRead> {
        if let Some(number) = self.read_tokens.pop_front()? {
            self.done(number);
        }
        self.reads.pop_front()
    }

    fn entry(&mut self, number: u64) -> Option<&mut Entry> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.order.get_mut(at)
    }

    fn done(&mut self, number: u64) {
        if let Some(entry) = self.entry(number) {
            entry.done = true;
            if !entry.signaled {
                self.used -= 1;
            }
        }
    }

    //= RFC 5040, Section 5.5
    //# RDMA Operations MUST be Completed at the Local Peer in the order that they were submitted by
    //# the ULP.
    /// Appends the completions that are due, in the order of posting. Each takes room in the queue
    /// until [`SendQueue::polled`].
    pub fn complete(&mut self, out: &mut VecDeque<Completion>) {
        while self.order.front().is_some_and(|e| e.done) {
            let Some(entry) = self.order.pop_front() else {
                return;
            };
            self.first += 1;
            let id = entry.id;
            match entry.kind {
                Kind::Read(sink) => out.push_back(Completion::Read { id, sink }),
                Kind::Send if entry.signaled => out.push_back(Completion::Sent { id }),
                Kind::Write if entry.signaled => out.push_back(Completion::Written { id }),
                _ => {}
            }
        }
    }

    /// Completes everything that is posted, as flushed unless it was done.
    pub fn flush(&mut self, out: &mut VecDeque<Completion>) {
        self.complete(out);
        self.work.clear();
        self.responses.clear();
        self.urgent = None;
        self.reads.clear();
        self.read_tokens.clear();
        while let Some(entry) = self.order.pop_front() {
            self.first += 1;
            if !entry.signaled {
                self.used -= usize::from(!entry.done);
                continue;
            }
            let memory = match entry.kind {
                Kind::Read(sink) => Some(Memory::Sink(sink)),
                _ => None,
            };
            out.push_back(Completion::Flushed {
                id: entry.id,
                memory,
            });
        }
    }

    /// `count` completions of work requests were given to the caller.
    pub fn polled(&mut self, count: usize) {
        self.used = self.used.saturating_sub(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::rdmap::TerminateCode;

    fn request(n: u32) -> ReadRequest {
        ReadRequest {
            sink_stag: n,
            sink_offset: 0,
            length: 10,
            source_stag: 0,
            source_offset: 0,
        }
    }

    fn ids(out: &VecDeque<Completion>) -> Vec<u64> {
        out.iter()
            .map(|c| match c {
                Completion::Sent { id }
                | Completion::Written { id }
                | Completion::Read { id, .. }
                | Completion::Flushed { id, .. } => id.0,
                other => panic!("{other:?}"),
            })
            .collect()
    }

    //= RFC 5040, Section 5.5
    //= type=test
    //# A Send or RDMA Write Message MUST NOT be [...]
    //# RDMA Operations MUST be Completed at the Local Peer [...]
    //# An RDMA Read operation MUST NOT be Completed at [...]
    //# This simplifies Local Peer Completion processing for RDMA Reads [...]
    #[test]
    fn completions_keep_the_order_of_posting() {
        let mut queue = SendQueue::new(8, 8, false);
        queue.post_read(WorkId(1), Segs::new(), request(1));
        queue.post_send(WorkId(2), Segs::new(), None, true);
        queue.post_send(WorkId(3), Segs::new(), None, false);
        queue.post_write(WorkId(4), Segs::new(), 0, 0, true);
        let mut out = VecDeque::new();
        while let Some(message) = queue.next_message() {
            match message {
                Message::Send { token, .. }
                | Message::Write { token, .. }
                | Message::ReadRequest { token, .. } => queue.sent(token),
                other => panic!("{other:?}"),
            }
        }
        queue.complete(&mut out);
        assert!(out.is_empty(), "the Read is not done");
        assert_eq!(queue.read_done().unwrap().stag, 1);
        queue.complete(&mut out);
        assert_eq!(ids(&out), [1, 2, 4]);
    }

    //= RFC 5040, Section 6.1
    //= type=test
    //# For outbound RDMA Read Requests, the RDMAP layer MUST [...]
    #[test]
    fn reads_are_limited() {
        let mut queue = SendQueue::new(8, 2, false);
        for n in 1..=3 {
            queue.post_read(WorkId(n), Segs::new(), request(n as u32));
        }
        queue.post_send(WorkId(4), Segs::new(), None, true);
        assert!(queue.next_message().is_some());
        assert!(queue.next_message().is_some());
        assert!(queue.next_message().is_none(), "ORD is 2");
        queue.read_done();
        assert!(matches!(
            queue.next_message(),
            Some(Message::ReadRequest { .. })
        ));
        assert!(matches!(queue.next_message(), Some(Message::Send { .. })));
    }

    #[test]
    fn depth_counts_what_the_contract_says() {
        let mut queue = SendQueue::new(2, 0, false);
        queue.post_send(WorkId(1), Segs::new(), None, true);
        queue.post_send(WorkId(2), Segs::new(), None, false);
        assert!(!queue.has_room());
        queue.sent(Token::Work(0));
        assert!(!queue.has_room(), "signaled: until polled");
        queue.sent(Token::Work(1));
        assert!(queue.has_room(), "unsignaled: until done");
        queue.polled(1);
        queue.post_send(WorkId(3), Segs::new(), None, true);
        queue.post_send(WorkId(4), Segs::new(), None, true);
        assert!(!queue.has_room());
    }

    #[test]
    fn responses_and_work_take_turns() {
        let mut queue = SendQueue::new(8, 0, false);
        for n in 0..3 {
            queue.post_send(WorkId(n), Segs::new(), None, true);
            queue.post_response(n as u32, 0, Segs::new());
        }
        let mut kinds = String::new();
        while let Some(message) = queue.next_message() {
            kinds.push(match message {
                Message::Send { .. } => 's',
                Message::Response { .. } => 'r',
                other => panic!("{other:?}"),
            });
        }
        assert_eq!(kinds, "srsrsr");
        assert_eq!(queue.responses_due(), 3);
    }

    #[test]
    fn a_held_stream_opens_with_its_peer() {
        let mut queue = SendQueue::new(8, 0, true);
        queue.post_send(WorkId(1), Segs::new(), None, true);
        assert!(queue.next_message().is_none());
        queue.release();
        assert!(queue.next_message().is_some());
    }

    //= RFC 5040, Section 5.4
    //= type=test
    //# After sending a Terminate Message on an RDMAP Stream, [...]
    //= RFC 5040, Section 7.1
    //= type=test
    //# If more than one error is detected on incoming [...]
    #[test]
    fn nothing_follows_a_terminate() {
        let mut queue = SendQueue::new(8, 1, false);
        queue.post_send(WorkId(1), Segs::new(), None, true);
        queue.post_read(WorkId(2), Segs::new(), request(2));
        queue.post_response(1, 0, Segs::new());
        let told = |code| Terminate {
            code,
            segment: None,
            read_request: None,
        };
        queue.post_terminate(told(TerminateCode::DDP_INVALID_STAG));
        // A second fault has no effect.
        queue.post_terminate(told(TerminateCode::DDP_TO_WRAP));
        match queue.next_message() {
            Some(Message::Terminate(t)) => assert_eq!(t.code, TerminateCode::DDP_INVALID_STAG),
            other => panic!("{other:?}"),
        }
        assert!(queue.next_message().is_none());
        queue.post_send(WorkId(3), Segs::new(), None, true);
        queue.post_response(1, 0, Segs::new());
        queue.post_rtr(Rtr::Write);
        assert!(queue.next_message().is_none(), "not what is posted later");
    }

    #[test]
    fn flush_owes_only_what_completes() {
        let mut queue = SendQueue::new(8, 1, false);
        queue.post_send(WorkId(1), Segs::new(), None, false);
        queue.post_send(WorkId(2), Segs::new(), None, true);
        queue.post_read(WorkId(3), Segs::new(), request(3));
        let mut out = VecDeque::new();
        queue.flush(&mut out);
        assert_eq!(ids(&out), [2, 3]);
        queue.polled(2);
        assert_eq!(queue.used, 0);
    }
}
