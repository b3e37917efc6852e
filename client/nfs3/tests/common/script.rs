//! What a test has the server do: what it announces, and what becomes of each call.

use nfsrdma_xdr::private_data::PrivateData;
use nfsrdma_xdr::rpcrdma::{Body, ChunkLists, Header};

/// A call as it arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Counts connections from 0.
    pub connection: u32,
    /// Counts calls of the server from 0.
    pub number: usize,
    pub header: Header,
    /// The whole RPC message, chunks put back.
    pub message: Vec<u8>,
    pub program: u32,
    pub procedure: u32,
}

/// What to do with a call.
pub enum Act {
    Answer,
    /// Answer JUKEBOX without running the call.
    JukeBox,
    Silence,
    Hangup,
    RunThenHangup,
    /// Send these instead of an answer.
    Send(Vec<Vec<u8>>),
    /// Send these, then answer.
    SendThenAnswer(Vec<Vec<u8>>),
    /// Change the answer's header and Payload stream.
    Tamper(Box<dyn Fn(&mut Header, &mut Vec<u8>)>),
    /// Ignore a Write chunk: data inline.
    DataInline,
    /// The XID in the RPC message is not the header's.
    WrongXid,
}

/// Changes the chunk lists and the Payload stream of an answer.
pub fn tamper(change: impl Fn(&mut ChunkLists, &mut Vec<u8>) + 'static) -> Act {
    Act::Tamper(Box::new(move |header, payload| {
        if let Body::Msg(chunks) | Body::NoMsg(chunks) = &mut header.body {
            change(chunks, payload);
        }
    }))
}

pub type Script = dyn Fn(&Seen) -> Act + Send + Sync;

/// What the server announces and grants.
#[derive(Clone)]
pub struct Manners {
    pub private_data: Option<PrivateData>,
    /// From the second connection on, if something else.
    pub later_private_data: Option<PrivateData>,
    pub grant: u32,
    /// Use Send With Invalidate when one handle was offered.
    pub invalidate: bool,
    pub rtmax: u32,
}

impl Default for Manners {
    fn default() -> Self {
        Manners {
            private_data: Some(PrivateData {
                remote_invalidation: true,
                send_size: 65_536,
                receive_size: 65_536,
            }),
            later_private_data: None,
            grant: 64,
            invalidate: true,
            rtmax: 1 << 20,
        }
    }
}
