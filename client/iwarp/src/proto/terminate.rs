//! A violation of the protocol by the peer, and the Terminate that reports it.

use crate::wire::rdmap::{READ_REQUEST, Terminate, TerminateCode, TerminatedHeader};

/// A fault, which ends the stream: its code, and the headers of the segment that caused it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// The code that RFC 5040, 5041 or 5044 define for it.
    pub code: TerminateCode,
    /// Length and header of the segment.
    pub segment: Option<(u16, TerminatedHeader)>,
    /// The RDMA Read Request header, if the segment had one.
    pub read_request: Option<[u8; READ_REQUEST]>,
}

impl Fault {
    /// A fault that no particular segment caused.
    pub fn new(code: TerminateCode) -> Self {
        Fault {
            code,
            segment: None,
            read_request: None,
        }
    }

    /// The message to send, with the headers that RFC 5040 Figure 10 requires.
    pub fn terminate(&self) -> Terminate {
        Terminate {
            code: self.code,
            segment: self.segment.filter(|_| self.code.includes_ddp()),
            read_request: self.read_request.filter(|_| self.code.includes_rdma()),
        }
    }
}
