//! The RDMAP opcode, which is in the part of the DDP control field that is reserved for the upper
//! layer (RFC 5040 section 4.1).

/// RDMAP opcodes (RFC 5040 Figure 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// RDMA Write.
    Write = 0,
    /// RDMA Read Request.
    ReadRequest = 1,
    /// RDMA Read Response.
    ReadResponse = 2,
    /// Send.
    Send = 3,
    /// Send with Invalidate.
    SendInvalidate = 4,
    /// Send with Solicited Event.
    SendSolicited = 5,
    /// Send with Solicited Event and Invalidate.
    SendSolicitedInvalidate = 6,
    /// Terminate.
    Terminate = 7,
}

impl Opcode {
    /// Decodes an opcode; 8 to 15 are reserved.
    pub fn from_bits(bits: u8) -> Option<Self> {
        use Opcode::*;
        [
            Write,
            ReadRequest,
            ReadResponse,
            Send,
            SendInvalidate,
            SendSolicited,
            SendSolicitedInvalidate,
            Terminate,
        ]
        .get(usize::from(bits))
        .copied()
    }

    //= RFC 5040, Section 4.1
    //# Figure 4, "RDMA Usage of DDP Fields", MUST be used to define the value of the Tagged flag
    //# that is handed to the DDP layer for each RDMA Message.
    //# Figure 4 defines the value of the RDMA Opcode field that MUST be used for each RDMA Message.
    /// Whether its segments are tagged.
    pub fn is_tagged(self) -> bool {
        matches!(self, Opcode::Write | Opcode::ReadResponse)
    }

    /// Whether the header names an STag to invalidate.
    pub fn invalidates(self) -> bool {
        matches!(
            self,
            Opcode::SendInvalidate | Opcode::SendSolicitedInvalidate
        )
    }
}
