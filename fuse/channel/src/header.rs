//! The header of each request (`struct fuse_in_header`).

use super::abi::{self, UNIQUE_RESEND};
use super::fields::Malformed;
use zerocopy::FromBytes;

/// `struct fuse_in_header`.
#[derive(FromBytes)]
#[repr(C)]
struct Fixed {
    len: u32,
    opcode: u32,
    unique: u64,
    nodeid: u64,
    uid: u32,
    gid: u32,
    pid: u32,
    extensions: u16,
    _padding: u16,
}

/// The header of a request: its operation, its number, the node and the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub opcode: u32,
    /// The number of the request, which the reply has as well, and INTERRUPT. If the kernel has resent the request,
    /// this differs from [`Header::original`].
    pub unique: u64,
    pub nodeid: u64,
    uid: u32,
    gid: u32,
    pid: u32,
    /// A process that has ended had read it, as the journal has it.
    pub(crate) replayed: bool,
}

impl Header {
    /// The filesystem user id of the caller.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// The filesystem group id of the caller.
    pub fn gid(&self) -> u32 {
        self.gid
    }

    /// The calling thread's id in the PID namespace of the mount; 0 if it has none there, or if the
    /// request comes from the kernel itself.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether a process that has ended had read this request, and may have executed it
    /// ([`Channel::resume`](super::Channel::resume)).
    pub fn resent(&self) -> bool {
        self.unique & UNIQUE_RESEND != 0 || self.replayed
    }

    /// The number that the request had when it was read first.
    pub fn original(&self) -> u64 {
        self.unique & !UNIQUE_RESEND
    }

    /// Decodes the header, and returns it with the arguments of the operation.
    pub fn parse(bytes: &[u8]) -> Result<(Header, &[u8]), Malformed> {
        let (header, extensions, body) = Header::parse_first(bytes, bytes.len())?;
        let end = body.len().checked_sub(extensions);
        Ok((header, &body[..end.ok_or(Malformed::Truncated)?]))
    }

    /// Decodes the header from the `first` bytes of a request of `read` bytes. Returns it with the
    /// length of the extensions at the end of the request, and the bytes of `first` after the
    /// header.
    pub(crate) fn parse_first(
        first: &[u8],
        read: usize,
    ) -> Result<(Header, usize, &[u8]), Malformed> {
        let (all, rest) = Fixed::read_from_prefix(first).map_err(|_| Malformed::Truncated)?;
        let header = Header {
            opcode: all.opcode,
            unique: all.unique,
            nodeid: abi::of_file_system(all.nodeid),
            uid: all.uid,
            gid: all.gid,
            pid: all.pid,
            replayed: false,
        };
        if all.len as usize != read {
            return Err(Malformed::Length);
        }
        // The extensions, in units of eight bytes, follow the arguments of the operation.
        Ok((header, usize::from(all.extensions) * 8, rest))
    }
}
