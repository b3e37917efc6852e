//! Replies, as transports send them.

use nfsrdma_rdma::Buf;
use nfsrdma_xdr::codec::{Encode, Encoder};
use nfsrdma_xdr::rpc::{self, Denial};

/// Bytes at the front of each reply that are reserved for the transport.
pub const HEADROOM: usize = 4;

/// An RPC reply: `head`, then `payload` and its padding, then `rest`.
#[derive(Debug)]
pub struct Reply {
    /// [`HEADROOM`] bytes for the transport, then the encoded reply.
    pub head: Vec<u8>,
    /// A DDP-eligible result, which comes last in every procedure that has one.
    pub payload: Option<Buf>,
    /// What is a part of the message in any case: of protected results, which may not be reduced.
    pub rest: Vec<Buf>,
}

impl Reply {
    /// A reply that is `head`.
    pub(super) fn whole(head: Vec<u8>) -> Self {
        Reply {
            head,
            payload: None,
            rest: Vec::new(),
        }
    }

    /// A reply from the duplicate-request cache.
    pub fn cached(bytes: &[u8]) -> Self {
        Reply::whole(bytes.to_vec())
    }

    /// The reply to a call that is refused.
    pub(super) fn denied(xid: u32, denial: Denial) -> Self {
        let mut out = Encoder::new(vec![0; HEADROOM]);
        rpc::Reply::denied(xid, denial).encode(&mut out);
        Reply::whole(out.into_vec())
    }
}
