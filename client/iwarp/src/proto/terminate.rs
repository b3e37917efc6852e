//! A rule the peer broke, as the Terminate that tells it.

use crate::wire::rdmap::{READ_REQUEST, Terminate, TerminateCode, TerminatedHeader};

/// Ends the stream: which rule, and the headers of the segment that broke it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Named by RFC 5040, 5041 or 5044.
    pub code: TerminateCode,
    /// Length and header of the segment.
    pub segment: Option<(u16, TerminatedHeader)>,
    /// The RDMA Read Request header, if it was one.
    pub read_request: Option<[u8; READ_REQUEST]>,
}

impl Fault {
    /// A fault of no particular segment.
    pub fn new(code: TerminateCode) -> Self {
        Fault {
            code,
            segment: None,
            read_request: None,
        }
    }

    /// The message to send, with the headers RFC 5040 Figure 10 asks for.
    pub fn terminate(&self) -> Terminate {
        Terminate {
            code: self.code,
            segment: self.segment.filter(|_| self.code.includes_ddp()),
            read_request: self.read_request.filter(|_| self.code.includes_rdma()),
        }
    }
}
