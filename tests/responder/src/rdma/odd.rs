//! Habits of other servers over RDMA, for tests of clients: those seen of NFS-Ganesha 6.5 with
//! ntirpc 6.3, and mistakes of a broken server.

use super::plan::Targets;
use crate::rpc::Reply;
use clap::ValueEnum;
use nfsrdma_rdma::{Buf, BufMut, Pool};
use nfsrdma_xdr::codec::{Encode, padding};
use nfsrdma_xdr::nfs3::{PROGRAM, ProcedureNumber};
use nfsrdma_xdr::rpcrdma::{Body, Header, Segment, WriteChunk};
use std::sync::atomic::{AtomicBool, Ordering};

/// A habit by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Habit {
    /// READ: the Write chunk comes back with as many bytes more as the length has over a
    /// multiple of four (NFS-Ganesha)
    ReadSurplus,
    /// READLINK: the path comes inline, the Write chunk unused; longer than any Receive if
    /// need be (NFS-Ganesha)
    ReadlinkInline,
    /// What a Position Zero Read chunk holds beyond wtmax bytes is overwritten (NFS-Ganesha)
    PositionZeroLimit,
    /// The first READ whose data go into a Write chunk is answered with a chunk longer than
    /// the one offered
    LyingChunk,
    /// Each READ whose data go into a Write chunk is answered like that
    LyingChunks,
    /// Each Write chunk comes back in another shape: its last used segment split in two, with an
    /// empty segment at the end, and followed by an empty chunk
    SplitChunks,
    /// The first READDIRPLUS or READDIR whose reply goes into a Reply chunk has another XID
    /// there than in the transport header
    WrongXid,
    /// FIFOs have a type that NFSv3 does not define (doors of illumos)
    UnknownTypes,
}

/// The habits in force.
#[derive(Debug, Clone, Copy, Default)]
pub struct Odd {
    read_surplus: bool,
    readlink_inline: bool,
    pub(super) position_zero_limit: bool,
    lying_chunk: bool,
    lying_chunks: bool,
    split_chunks: bool,
    wrong_xid: bool,
    /// A bit for the number of each procedure.
    hang_up_over: u32,
}

/// Whether the wrong length or XID was sent; that is done once in this process.
static LIED: AtomicBool = AtomicBool::new(false);
static MISNAMED: AtomicBool = AtomicBool::new(false);

impl Odd {
    /// Makes the set of habits, with the procedures over which to hang up.
    pub fn new(habits: &[Habit], hang_up_over: &[ProcedureNumber]) -> Self {
        let has = |habit| habits.contains(&habit);
        Odd {
            read_surplus: has(Habit::ReadSurplus),
            readlink_inline: has(Habit::ReadlinkInline),
            position_zero_limit: has(Habit::PositionZeroLimit),
            lying_chunk: has(Habit::LyingChunk),
            lying_chunks: has(Habit::LyingChunks),
            split_chunks: has(Habit::SplitChunks),
            wrong_xid: has(Habit::WrongXid),
            hang_up_over: hang_up_over
                .iter()
                .fold(0, |bits, number| bits | 1 << *number as u32),
        }
    }

    /// Whether a habit depends on the procedure.
    pub(super) fn is_any(&self) -> bool {
        self.read_surplus || self.readlink_inline || self.wrong_xid || self.hang_up_over != 0
    }

    pub(super) fn hangs_up_over(&self, procedure: Option<u32>) -> bool {
        procedure.is_some_and(|number| number < 32 && self.hang_up_over >> number & 1 == 1)
    }

    /// Changes a reply to what such a server would send, and returns the inline threshold to use.
    pub(super) fn change(
        &self,
        procedure: Option<u32>,
        targets: &Targets,
        mut reply: Reply,
        inline: usize,
    ) -> (Reply, usize) {
        let is = |number: ProcedureNumber| procedure == Some(number as u32);
        if self.read_surplus
            && is(ProcedureNumber::Read)
            && let Some(payload) = &reply.payload
            && let Some(chunk) = targets.writes.first()
            && chunk.len() >= (payload.len() + payload.len() % 4) as u64
            && let Some(longer) = lengthened(payload, payload.len() % 4)
        {
            reply.payload = Some(longer);
        }
        if self.readlink_inline
            && is(ProcedureNumber::Readlink)
            && let Some(payload) = reply.payload.take()
        {
            reply.head.extend_from_slice(&payload);
            reply
                .head
                .extend_from_slice(&[0; 3][..padding(payload.len())]);
            if targets.reply.is_none() {
                return (reply, usize::MAX);
            }
        }
        let lists = is(ProcedureNumber::Readdir) || is(ProcedureNumber::Readdirplus);
        if self.wrong_xid
            && lists
            && targets.reply.is_some()
            && reply.head.len() > inline
            && !MISNAMED.swap(true, Ordering::SeqCst)
        {
            reply.head[crate::rpc::HEADROOM] ^= 1;
        }
        (reply, inline)
    }

    /// Makes the returned Write chunk longer than the offered one, or gives it another shape.
    pub(super) fn lie(&self, targets: &Targets, header: &mut Vec<u8>) {
        let lies = self.lying_chunk || self.lying_chunks;
        let Some(offered) = targets.writes.first().filter(|_| lies || self.split_chunks) else {
            return;
        };
        let Ok((mut parsed, _)) = Header::parse(header) else {
            return;
        };
        let (Body::Msg(chunks) | Body::NoMsg(chunks)) = &mut parsed.body else {
            return;
        };
        let Some(chunk) = chunks.writes.first_mut() else {
            return;
        };
        if let Some(segment) = chunk.segments.first_mut()
            && (self.lying_chunks || self.lying_chunk && !LIED.swap(true, Ordering::SeqCst))
        {
            segment.length = u32::try_from(offered.len() + 4).unwrap_or(u32::MAX);
        }
        if self.split_chunks
            && let Some(at) = chunk.segments.iter().rposition(|s| s.length > 1)
        {
            let whole = chunk.segments[at];
            let half = whole.length / 2;
            chunk.segments[at].length = half;
            chunk.segments.insert(at + 1, second_part(whole, half));
            chunk.segments.push(second_part(whole, whole.length));
            chunks.writes.push(WriteChunk::default());
        }
        *header = parsed.to_xdr();
    }
}

/// What is left of a segment behind its first bytes.
fn second_part(whole: Segment, first: u32) -> Segment {
    Segment {
        handle: whole.handle,
        length: whole.length - first,
        offset: whole.offset.wrapping_add(u64::from(first)),
    }
}

/// A copy of the bytes with some zeros appended.
fn lengthened(payload: &Buf, more: usize) -> Option<Buf> {
    let len = payload.len() + more;
    let mut longer = Pool::new(len.max(4096)).ok()?.alloc(len)?;
    longer.fill(0);
    longer[..payload.len()].copy_from_slice(payload);
    Some(longer.freeze())
}

/// The NFS procedure of a call.
pub(super) fn procedure(message: &[u8]) -> Option<u32> {
    let word = |at: usize| {
        let bytes = message.get(at..at + 4)?;
        Some(u32::from_be_bytes(bytes.try_into().ok()?))
    };
    (word(12)? == PROGRAM).then(|| word(20)).flatten()
}

/// Overwrites the bytes of a message behind `len`, as if another call had been read into the same
/// memory.
pub(super) fn overrun(message: &mut [BufMut], len: usize) {
    let mut at = 0;
    for piece in message {
        let from = len.saturating_sub(at).min(piece.len());
        at += piece.len();
        piece[from..].fill(0xdb);
    }
}
