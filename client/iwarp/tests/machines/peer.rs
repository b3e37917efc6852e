//! One end of a stream, in memory.

use nfsrdma_iwarp::proto::host::{Host, PendingRead};
use nfsrdma_iwarp::proto::queue::{SendQueue, Token};
use nfsrdma_iwarp::proto::rx::{Event, Receiver, Step};
use nfsrdma_iwarp::proto::segment::{Segmenter, Slices};
use nfsrdma_iwarp::proto::stag::{Access, Denied, StagTable};
use nfsrdma_iwarp::proto::terminate::Fault;
use nfsrdma_iwarp::wire::mpa::{CRC_FIELD, Crc, padding};
use nfsrdma_iwarp::wire::rdmap::{ReadRequest, Terminate};
use nfsrdma_rdma::{Buf, BufMut, Completion, Pool, Segs, WorkId};
use smallvec::smallvec;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

pub(crate) type Region = Rc<RefCell<Vec<u8>>>;

/// The memory, Receives and queues of one end.
pub(crate) struct Side {
    pub(crate) stags: RefCell<StagTable<Region>>,
    pub(crate) receives: RefCell<VecDeque<(WorkId, BufMut)>>,
    pub(crate) queue: RefCell<SendQueue>,
}

impl Host for Side {
    type Region = Region;

    fn tagged(
        &self,
        stag: u32,
        access: Access,
        offset: u64,
        len: u64,
    ) -> Result<(Region, usize), Denied> {
        self.stags.borrow().check(stag, access, offset, len)
    }

    fn take_receive(&self) -> Option<(WorkId, BufMut)> {
        self.receives.borrow_mut().pop_front()
    }

    fn invalidate(&self, stag: u32) -> bool {
        self.stags.borrow_mut().remove_by_peer(stag).is_some()
    }

    fn pending_read(&self) -> Option<PendingRead> {
        self.queue.borrow().pending_read()
    }

    fn responses_due(&self) -> usize {
        self.queue.borrow().responses_due()
    }
}

/// What an end received or completed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Got {
    Message(Vec<u8>, Option<u32>),
    ReadDone,
    Terminated(Terminate),
    Rtr,
}

/// One end of a stream: its state machines, and bytes that are not yet used.
pub(crate) struct Peer {
    pub(crate) pool: Pool,
    pub(crate) side: Side,
    pub(crate) rx: Receiver<Region>,
    pub(crate) segmenter: Segmenter,
    pub(crate) staged: Vec<u8>,
    pub(crate) got: Vec<Got>,
    pub(crate) completions: VecDeque<Completion>,
    /// How many bytes of payload are placed at a time.
    pub(crate) place_step: usize,
}

pub(crate) const READS: usize = 3;

impl Peer {
    pub(crate) fn new(pool: &Pool, crc: bool, fpdu: usize) -> Self {
        Peer {
            pool: pool.clone(),
            side: Side {
                stags: RefCell::default(),
                receives: RefCell::default(),
                queue: RefCell::new(SendQueue::new(1000, READS, false)),
            },
            rx: Receiver::new(crc, READS),
            segmenter: Segmenter::new(crc, false, fpdu),
            staged: Vec::new(),
            got: Vec::new(),
            completions: VecDeque::new(),
            place_step: usize::MAX,
        }
    }

    pub(crate) fn buf(&self, data: &[u8]) -> Buf {
        let mut buf = self.pool.alloc(data.len()).unwrap();
        buf.copy_from_slice(data);
        buf.freeze()
    }

    pub(crate) fn post_receive(&self, len: usize) {
        let buf = self.pool.alloc(len).unwrap();
        self.side.receives.borrow_mut().push_back((WorkId(0), buf));
    }

    pub(crate) fn expose(&self, access: Access, data: Vec<u8>) -> (u32, u64, Region) {
        let region = Rc::new(RefCell::new(data));
        let len = region.borrow().len() as u64;
        let (stag, base) = self
            .side
            .stags
            .borrow_mut()
            .insert(access, len, region.clone())
            .unwrap()
            .unwrap();
        (stag, base, region)
    }

    /// Starts an RDMA Read of `len` bytes of the peer into new memory.
    pub(crate) fn read(&self, len: u32, source_stag: u32, source_offset: u64) -> Region {
        let (sink_stag, sink_offset, region) = self.expose(Access::ReadSink, vec![0; len as usize]);
        self.side.queue.borrow_mut().post_read(
            WorkId(7),
            Segs::new(),
            ReadRequest {
                sink_stag,
                sink_offset,
                length: len,
                source_stag,
                source_offset,
            },
        );
        region
    }

    pub(crate) fn send(&self, data: &[u8], invalidate: Option<u32>) {
        let data = smallvec![self.buf(data)];
        self.side
            .queue
            .borrow_mut()
            .post_send(WorkId(1), data, invalidate, true);
    }

    /// Takes at most `max` bytes of what is to be sent.
    pub(crate) fn output(&mut self, max: usize) -> Vec<u8> {
        let bytes = self.hand_over(max);
        self.handed_over(bytes.len());
        bytes
    }

    /// The first half of [`Peer::output`]: the bytes are on the wire, but the system call that sent
    /// them has not returned yet.
    pub(crate) fn hand_over(&mut self, max: usize) -> Vec<u8> {
        if self.segmenter.is_empty() {
            let queue = &self.side.queue;
            self.segmenter
                .fill(4000, 64, || queue.borrow_mut().next_message());
        }
        let mut slices = Slices::new();
        let (_, responses) = self.segmenter.gather(&mut slices, 1024);
        let mut bytes: Vec<u8> = slices.iter().flat_map(|s| s.iter().copied()).collect();
        drop(slices);
        bytes.truncate(max);
        self.side.queue.borrow_mut().handing_over(responses);
        bytes
    }

    /// The second half of [`Peer::output`]: the system call has returned.
    pub(crate) fn handed_over(&mut self, len: usize) {
        let mut done: Vec<Token> = Vec::new();
        self.segmenter.advance(len, &mut done);
        let mut queue = self.side.queue.borrow_mut();
        queue.handed_over();
        for token in done {
            queue.sent(token);
        }
        queue.complete(&mut self.completions);
    }

    /// Processes bytes of the stream.
    pub(crate) fn input(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.staged.extend_from_slice(bytes);
        loop {
            let (used, step) = self.rx.step(&self.side, &self.staged)?;
            self.staged.drain(..used);
            match step {
                Step::Need(n) => {
                    assert!(n > self.staged.len(), "asks for more than there is");
                    assert!(n <= 256, "only headers and control messages are staged");
                    return Ok(());
                }
                Step::Place { region, at, len } => {
                    let n = len.min(self.staged.len()).min(self.place_step);
                    region.borrow_mut()[at..at + n].copy_from_slice(&self.staged[..n]);
                    self.rx.placed(&self.staged[..n]);
                    self.staged.drain(..n);
                    if self.staged.is_empty() {
                        return Ok(());
                    }
                }
                Step::PlaceSend { len } => {
                    let n = len.min(self.staged.len()).min(self.place_step);
                    self.rx.send_space()[..n].copy_from_slice(&self.staged[..n]);
                    self.rx.send_filled(n);
                    self.staged.drain(..n);
                    if self.staged.is_empty() {
                        return Ok(());
                    }
                }
                Step::Event(event) => self.event(event),
            }
        }
    }

    fn event(&mut self, event: Event<Region>) {
        let mut queue = self.side.queue.borrow_mut();
        match event {
            Event::Placed => {}
            Event::Rtr => self.got.push(Got::Rtr),
            Event::Received {
                buf,
                len,
                invalidated,
                ..
            } => self
                .got
                .push(Got::Message(buf[..len].to_vec(), invalidated)),
            Event::ReadDone => {
                assert!(queue.read_done().is_some(), "a response has its request");
                self.got.push(Got::ReadDone);
            }
            Event::ReadRequest(request, source) => {
                let data: Vec<u8> = source.map_or(Vec::new(), |(region, at)| {
                    region.borrow()[at..at + request.length as usize].to_vec()
                });
                let data = smallvec![self.buf(&data)];
                queue.post_response(request.sink_stag, request.sink_offset, data);
            }
            Event::Terminated(terminate) => self.got.push(Got::Terminated(terminate)),
        }
    }
}

/// Removes the markers from a stream of FPDUs, and checks each of them: an independent receiver for
/// the rules of RFC 5044 section 4.3.
pub(crate) fn without_markers(stream: &[u8], crc: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let mut at = 0;
    let marker = |at: usize| u32::from_be_bytes(stream[at..at + 4].try_into().unwrap());
    while at < stream.len() {
        let begin = at;
        if at % 512 == 0 {
            assert_eq!(marker(at), 0, "between two FPDUs, at {at}");
            at += 4;
        }
        let header = at;
        let mut take = |len: usize| {
            let mut bytes = Vec::new();
            while bytes.len() < len {
                if at % 512 == 0 {
                    assert_eq!(marker(at) as usize, at - header, "in an FPDU, at {at}");
                    at += 4;
                }
                bytes.push(stream[at]);
                at += 1;
            }
            bytes
        };
        let mut fpdu = take(2);
        let ulpdu = usize::from(u16::from_be_bytes([fpdu[0], fpdu[1]]));
        fpdu.extend(take(ulpdu + padding(ulpdu)));
        let field = take(CRC_FIELD);
        assert_eq!(at % 4, 0);
        let wanted = if crc {
            Crc::of(&stream[begin..at - CRC_FIELD])
        } else {
            [0; 4]
        };
        assert_eq!(
            field, wanted,
            "markers are covered by the CRC of their FPDU"
        );
        let plain = if crc { Crc::of(&fpdu) } else { [0; 4] };
        fpdu.extend(plain);
        out.extend(fpdu);
    }
    out
}
