//! A soft-iWARP stream after the handshake, in both roles.
//!
//! The peer cannot guess an STag, and neither can a fuzzer. So small numbers in the input stand for
//! valid STags, and the harness replaces them.

use nfsrdma_iwarp::proto::handshake::Rtr;
use nfsrdma_iwarp::proto::host::{Host, PendingRead};
use nfsrdma_iwarp::proto::queue::{SendQueue, Token};
use nfsrdma_iwarp::proto::rx::{Event, Receiver, Step};
use nfsrdma_iwarp::proto::segment::{Segmenter, Slices};
use nfsrdma_iwarp::proto::stag::{Access, Denied, StagTable};
use nfsrdma_iwarp::proto::terminate::Fault;
use nfsrdma_iwarp::wire::ddp::{Tagged, Untagged};
use nfsrdma_iwarp::wire::mpa::{Crc, padding};
use nfsrdma_iwarp::wire::rdmap::{Opcode, ReadRequest};
use nfsrdma_rdma::{BufMut, Completion, Pool, Segs, WorkId};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// Size of each region, in bytes.
const AREA: usize = 300;
/// Most RDMA Reads in each direction.
const READS: usize = 3;
/// Size of each Receive in bytes, and of those for captured streams.
const RECEIVE: usize = 200;
const LARGE_RECEIVE: usize = 4096;
/// The initial bytes of a region.
const FILL: u8 = 0xa5;

/// Memory that may be registered.
struct Region {
    access: Access,
    bytes: RefCell<Vec<u8>>,
    stag: u32,
    base: u64,
    /// Whether it has not been invalidated.
    open: Cell<bool>,
}

struct Side {
    stags: RefCell<StagTable<usize>>,
    regions: Vec<Rc<Region>>,
    receives: RefCell<VecDeque<(WorkId, BufMut)>>,
    queue: RefCell<SendQueue>,
}

impl Side {
    /// Replaces a number in the input by a real STag and offset.
    fn real(&self, stag: u32, offset: u64) -> (u32, u64) {
        match self.regions.get(stag as usize) {
            Some(region) => (region.stag, region.base.wrapping_add(offset)),
            None => (stag, offset),
        }
    }
}

impl Host for Side {
    type Region = usize;

    fn tagged(
        &self,
        stag: u32,
        access: Access,
        offset: u64,
        len: u64,
    ) -> Result<(usize, usize), Denied> {
        let (stag, offset) = self.real(stag, offset);
        let found = self.stags.borrow().check(stag, access, offset, len)?;
        let region = &self.regions[found.0];
        assert!(
            region.open.get(),
            "access to memory whose registration is over"
        );
        assert_eq!(region.access, access, "access of a kind not granted");
        assert!(found.1 + len as usize <= AREA, "access outside the region");
        Ok(found)
    }

    fn take_receive(&self) -> Option<(WorkId, BufMut)> {
        self.receives.borrow_mut().pop_front()
    }

    fn invalidate(&self, stag: u32) -> bool {
        let (stag, _) = self.real(stag, 0);
        let Some(region) = self.stags.borrow_mut().remove_by_peer(stag) else {
            return false;
        };
        assert!(
            self.regions[region].open.replace(false),
            "invalidated twice"
        );
        true
    }

    fn pending_read(&self) -> Option<PendingRead> {
        self.queue.borrow().pending_read()
    }

    fn responses_due(&self) -> usize {
        self.queue.borrow().responses_due()
    }
}

/// One end of the stream, with its invariants.
struct End {
    pool: Pool,
    side: Side,
    rx: Receiver<usize>,
    segmenter: Segmenter,
    staged: Vec<u8>,
    /// The number of Receives that were posted and have not completed.
    receives_out: usize,
    /// The number of work requests whose completion is due.
    work: usize,
    completions: VecDeque<Completion>,
}

impl End {
    fn new(pool: &Pool, crc: bool, initiator: bool) -> Option<Self> {
        let mut stags = StagTable::default();
        let kinds = [
            Access::Write,
            Access::Read,
            Access::ReadSink,
            Access::Write,
            Access::Read,
            Access::ReadSink,
        ];
        let mut regions = Vec::new();
        for (number, access) in kinds.into_iter().enumerate() {
            let (stag, base) = stags.insert(access, AREA as u64, number).ok()??;
            regions.push(Rc::new(Region {
                access,
                bytes: RefCell::new(vec![FILL; AREA]),
                stag,
                base,
                open: Cell::new(true),
            }));
        }
        let mut end = End {
            pool: pool.clone(),
            side: Side {
                stags: RefCell::new(stags),
                regions,
                receives: RefCell::default(),
                // The initiator sends first (RFC 5044 section 7.1.1).
                queue: RefCell::new(SendQueue::new(64, READS, !initiator)),
            },
            rx: Receiver::new(crc, READS),
            segmenter: Segmenter::new(crc, false, 1460),
            staged: Vec::new(),
            receives_out: 0,
            work: 0,
            completions: VecDeque::new(),
        };
        if initiator {
            end.side.queue.get_mut().post_rtr(Rtr::Fpdu);
        }
        end.post_receive(RECEIVE);
        Some(end)
    }

    fn post_receive(&mut self, len: usize) {
        if let Some(buf) = self.pool.alloc(len) {
            self.receives_out += 1;
            let id = WorkId(self.receives_out as u64);
            self.side.receives.borrow_mut().push_back((id, buf));
        }
    }

    /// An RDMA Read from the peer into a sink of this side.
    fn read(&mut self, sink: u32, length: u32) {
        let queue = self.side.queue.get_mut();
        if !queue.has_room() {
            return;
        }
        self.work += 1;
        let request = ReadRequest {
            sink_stag: sink,
            sink_offset: 0,
            length,
            source_stag: 1,
            source_offset: 0,
        };
        queue.post_read(WorkId(7), Segs::new(), request);
    }

    fn send(&mut self, len: usize) {
        let Some(buf) = self.pool.alloc(len) else {
            return;
        };
        let queue = self.side.queue.get_mut();
        if queue.has_room() {
            self.work += 1;
            let data = Segs::from_iter([buf.freeze()]);
            queue.post_send(WorkId(8), data, None, true);
        }
    }

    /// Sends the pending output.
    fn output(&mut self) {
        loop {
            if self.segmenter.is_empty() {
                let queue = &self.side.queue;
                self.segmenter
                    .fill(4000, 64, || queue.borrow_mut().next_message());
            }
            let mut slices = Slices::new();
            self.segmenter.gather(&mut slices, 1024);
            let len: usize = slices.iter().map(|s| s.len()).sum();
            drop(slices);
            let mut done: Vec<Token> = Vec::new();
            self.segmenter.advance(len, &mut done);
            let queue = self.side.queue.get_mut();
            done.into_iter().for_each(|token| queue.sent(token));
            queue.complete(&mut self.completions);
            if len == 0 {
                return;
            }
        }
    }

    /// Receives bytes in pieces of `step`.
    fn feed(&mut self, bytes: &[u8], step: usize) -> Option<Fault> {
        bytes.chunks(step).find_map(|piece| self.input(piece).err())
    }

    fn input(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.staged.extend_from_slice(bytes);
        loop {
            let (used, step) = self.rx.step(&self.side, &self.staged)?;
            self.staged.drain(..used);
            match step {
                Step::Need(n) => {
                    assert!(n > self.staged.len(), "asks for what is there");
                    assert!(n <= 256, "only headers are kept");
                    return Ok(());
                }
                Step::Place { region, at, len } => {
                    let region = &self.side.regions[region];
                    if !region.open.get() {
                        return Err(self.rx.region_gone());
                    }
                    assert!(region.access != Access::Read, "a source is written to");
                    let n = len.min(self.staged.len());
                    let piece = &self.staged[..n];
                    region.bytes.borrow_mut()[at..at + n].copy_from_slice(piece);
                    self.rx.placed(piece);
                    self.staged.drain(..n);
                }
                Step::PlaceSend { len } => {
                    let n = len.min(self.staged.len());
                    self.rx.send_space()[..n].copy_from_slice(&self.staged[..n]);
                    self.rx.send_filled(n);
                    self.staged.drain(..n);
                }
                Step::Event(event) => self.event(event),
            }
            if self.staged.is_empty() {
                return Ok(());
            }
        }
    }

    fn event(&mut self, event: Event<usize>) {
        let queue = self.side.queue.get_mut();
        queue.release();
        match event {
            Event::Placed | Event::Rtr | Event::Terminated(_) => {}
            Event::Received { buf, len, .. } => {
                assert!(len <= buf.len(), "more than the Receive holds");
                self.receives_out -= 1;
            }
            Event::ReadDone => assert!(queue.read_done().is_some(), "a response to nothing"),
            Event::ReadRequest(request, source) => {
                let mut data = Segs::new();
                if let Some((region, at)) = source {
                    let region = &self.side.regions[region];
                    assert_eq!(region.access, Access::Read, "no source is read");
                    let len = request.length as usize;
                    assert!(at + len <= AREA, "reads outside the region");
                    let Some(buf) = self.pool.alloc(len) else {
                        return;
                    };
                    data.push(buf.freeze());
                }
                queue.post_response(request.sink_stag, request.sink_offset, data);
                assert!(queue.responses_due() <= READS, "more Reads than agreed");
            }
        }
    }

    /// Ends the connection: everything that was posted completes exactly once.
    fn finish(mut self, fault: Option<Fault>) {
        if let Some(fault) = fault {
            self.side.queue.get_mut().post_terminate(fault.terminate());
            self.segmenter.abandon_open();
        }
        self.output();
        let partial = usize::from(self.rx.take_partial().is_some());
        let left = self.side.receives.get_mut().len();
        assert_eq!(self.receives_out, left + partial, "a Receive is lost");
        self.side.queue.get_mut().flush(&mut self.completions);
        assert_eq!(self.completions.len(), self.work, "a completion is lost");
        for region in &self.side.regions {
            let whole = region.bytes.borrow().iter().all(|b| *b == FILL);
            assert!(region.access != Access::Read || whole, "a source changed");
        }
    }
}

/// Takes bytes from the front of the input, and zeros after its end.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        first
    }

    fn bytes(&mut self, n: usize) -> &'a [u8] {
        let (now, later) = self.0.split_at(n.min(self.0.len()));
        self.0 = later;
        now
    }

    /// A number that is mostly near the right one, and sometimes any number.
    fn near(&mut self, right: u64) -> u64 {
        match self.byte() {
            n if n < 160 => right,
            n if n < 200 => right.wrapping_add(u64::from(n - 160)),
            n if n < 240 => right.wrapping_sub(u64::from(n - 199)),
            n => u64::MAX << (n - 240),
        }
    }
}

fn fpdu(header: &[u8], payload: &[u8], crc: bool, damage: u8) -> Vec<u8> {
    let ulpdu = header.len() + payload.len();
    let mut bytes = (ulpdu as u16).to_be_bytes().to_vec();
    bytes.extend_from_slice(header);
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len() + padding(ulpdu), 0);
    let field = if crc { Crc::of(&bytes) } else { [0; 4] };
    bytes.extend_from_slice(&field);
    if damage > 250 {
        let at = usize::from(damage) % bytes.len();
        bytes[at] ^= 1 << (damage % 8);
    }
    bytes
}

/// The next FPDU of a peer that knows the protocol, but violates it. `msn` has the numbers of Sends
/// and of Read Requests.
fn segment(input: &mut Input<'_>, msn: &mut [u32; 2], sent: &mut u32, crc: bool) -> Vec<u8> {
    let kind = input.byte();
    let last = kind & 0x80 == 0;
    let length = usize::from(input.byte()).min(RECEIVE + 20);
    let stag = u32::from(input.byte() % 8);
    let header = match kind % 8 {
        0 | 1 => {
            let opcode = match kind % 8 {
                0 => Opcode::Write,
                _ => Opcode::ReadResponse,
            };
            let offset = input.near(u64::from(kind & 0x70));
            let header = Tagged {
                last,
                opcode,
                stag,
                offset,
            };
            header.emit().to_vec()
        }
        2 => {
            let request = ReadRequest {
                sink_stag: 9,
                sink_offset: 0,
                length: input.near(40) as u32,
                source_stag: stag,
                source_offset: input.near(0),
            };
            let header = Untagged {
                last: true,
                opcode: Opcode::ReadRequest,
                invalidate: 0,
                queue: input.near(1) as u32,
                msn: input.near(u64::from(msn[1])) as u32,
                offset: 0,
            };
            msn[1] = msn[1].wrapping_add(1);
            return fpdu(&header.emit(), &request.emit(), crc, input.byte());
        }
        n => {
            let opcode = match n {
                3 => Opcode::Terminate,
                4 => Opcode::SendInvalidate,
                5 => Opcode::SendSolicited,
                6 => Opcode::SendSolicitedInvalidate,
                _ => Opcode::Send,
            };
            let header = Untagged {
                last,
                opcode,
                invalidate: stag,
                queue: input.near(if n == 3 { 2 } else { 0 }) as u32,
                msn: input.near(u64::from(if n == 3 { 1 } else { msn[0] })) as u32,
                offset: input.near(u64::from(if n == 3 { 0 } else { *sent })) as u32,
            };
            *sent = if last { 0 } else { *sent + length as u32 };
            msn[0] = msn[0].wrapping_add(u32::from(last));
            header.emit().to_vec()
        }
    };
    let mut payload = input.bytes(length).to_vec();
    payload.resize(length, 0x5a);
    fpdu(&header, &payload, crc, input.byte())
}

/// A stream whose role and kind depend on the first byte: bytes as they are, or segments made from
/// them. Work of this side comes in between.
pub fn stream(bytes: &[u8]) {
    thread_local! {
        static POOL: Option<Pool> = Pool::new(4 << 20).ok();
    }
    let mut input = Input(bytes);
    let mode = input.byte();
    let (crc, initiator, raw) = (mode & 1 != 0, mode & 2 != 0, mode & 4 != 0);
    let step = usize::from(mode >> 3) * 7 + 1;
    let Some(pool) = POOL.with(Option::clone) else {
        return;
    };
    let Some(mut end) = End::new(&pool, crc, initiator) else {
        return;
    };
    let (mut msn, mut sent) = ([1, 1], 0);
    let mut fault = None;
    if raw {
        end.side.receives.get_mut().clear();
        end.receives_out = 0;
        (0..4).for_each(|_| end.post_receive(LARGE_RECEIVE));
        fault = end.feed(input.0, step);
        return end.finish(fault);
    }
    while !input.0.is_empty() && fault.is_none() {
        let command = input.byte();
        match command % 16 {
            0 => end.post_receive(RECEIVE),
            1 => end.read(
                2 + 3 * u32::from(command >> 7),
                u32::from(command >> 4) * 30,
            ),
            2 => end.send(usize::from(command) * 4),
            3 => end.output(),
            4 => {
                // This side ends a registration, whatever is arriving.
                let region = &end.side.regions[usize::from(command >> 4) % 6];
                let mut stags = end.side.stags.borrow_mut();
                if stags.remove(region.stag, region.base).is_some() {
                    region.open.set(false);
                }
            }
            _ => {
                let bytes = segment(&mut input, &mut msn, &mut sent, crc);
                fault = end.feed(&bytes, step);
            }
        }
    }
    end.finish(fault);
}
