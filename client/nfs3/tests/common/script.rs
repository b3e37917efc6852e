//! What a test makes the server do: what it announces, and how it handles each call.

use nfsrdma_xdr::private_data::PrivateData;
use nfsrdma_xdr::rpcrdma::{Body, ChunkLists, Header};

/// A call as it arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Number of the connection, from 0.
    pub connection: u32,
    pub header: Header,
    /// The whole RPC message, with its chunks put back in place.
    pub message: Vec<u8>,
    pub program: u32,
    pub procedure: u32,
}

/// How to handle a call.
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
    Tamper(Box<dyn Fn(&mut Header, &mut Vec<u8>) + Send>),
    /// Ignore the Write chunk and send the data inline.
    DataInline,
    /// Send an RPC message whose XID differs from the header's.
    WrongXid,
}

/// Changes the chunk lists and the Payload stream of an answer.
pub fn tamper(change: impl Fn(&mut ChunkLists, &mut Vec<u8>) + Send + 'static) -> Act {
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
    /// Announced from the second connection on, if it differs.
    pub later_private_data: Option<PrivateData>,
    pub grant: u32,
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
        }
    }
}
