//! Habits of other servers over RDMA, for tests of clients: those seen of NFS-Ganesha 6.5 with
//! ntirpc 6.3.

use super::plan::Targets;
use crate::rpc::Reply;
use clap::ValueEnum;
use nfsrdma_rdma::BufMut;
use nfsrdma_xdr::codec::padding;
use nfsrdma_xdr::nfs3::{PROGRAM, ProcedureNumber};

/// A habit by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Habit {
    /// READLINK: the path comes inline, the Write chunk unused; longer than any Receive if
    /// need be (NFS-Ganesha)
    ReadlinkInline,
    /// What a Position Zero Read chunk holds beyond wtmax bytes is overwritten (NFS-Ganesha)
    PositionZeroLimit,
    /// FIFOs have a type that NFSv3 does not define (doors of illumos)
    UnknownTypes,
}

/// The habits in force.
#[derive(Debug, Clone, Copy, Default)]
pub struct Odd {
    readlink_inline: bool,
    pub(super) position_zero_limit: bool,
}

impl Odd {
    /// Makes the set of habits.
    pub fn new(habits: &[Habit]) -> Self {
        Odd {
            readlink_inline: habits.contains(&Habit::ReadlinkInline),
            position_zero_limit: habits.contains(&Habit::PositionZeroLimit),
        }
    }

    /// Whether a habit depends on the procedure.
    pub(super) fn is_any(&self) -> bool {
        self.readlink_inline
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
        (reply, inline)
    }
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
