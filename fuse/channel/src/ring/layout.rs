//! The structures of requests by io_uring: the header buffer of a ring entry (`struct
//! fuse_uring_req_header`) and the command in an SQE of 128 bytes (`struct fuse_uring_cmd_req`), as
//! include/uapi/linux/fuse.h defines them from ABI 7.42 on.
//!
//! | header buffer | bytes | a request | a reply |
//! |---|---|---|---|
//! | `in_out` | 0 to 127 | `struct fuse_in_header` | `struct fuse_out_header` |
//! | `op_in` | 128 to 255 | the first argument of the operation | - |
//! | `ring_ent_in_out` | 256 to 287 | commit id and length of the payload | length of the payload |
//!
//! All other arguments of a request, and the body of a reply, are the payload, in a buffer of its
//! own. No field has the length of the first argument. It is the total length, in `struct
//! fuse_in_header`, minus those of header and payload.

use crate::abi::{IN_HEADER, OUT_HEADER};

/// The size of the header buffer, in bytes.
pub(super) const HEADERS: usize = 288;
/// The offset of the first argument of a request, and the space for it.
const OP_IN: usize = 128;
pub(super) const OP_IN_SIZE: usize = 128;
/// The offsets of the fields of `struct fuse_uring_ent_in_out`, which follow 64 bits of flags.
const COMMIT_ID: usize = 256 + 8;
const PAYLOAD_SIZE: usize = 256 + 16;

/// `enum fuse_uring_cmd`.
pub(super) const REGISTER: u32 = 1;
pub(super) const COMMIT_AND_FETCH: u32 = 2;

/// The fields of the header buffer of a request that has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Arrived {
    /// The number by which the command with the reply names the request.
    pub(super) commit_id: u64,
    /// The request's number.
    pub(super) unique: u64,
    /// The length of the first argument; `None` if the lengths contradict each other.
    pub(super) first_argument: Option<usize>,
    /// The length of the payload, in bytes.
    pub(super) payload: usize,
}

fn u32_at(bytes: &[u8; HEADERS], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_ne_bytes(number)
}

fn u64_at(bytes: &[u8; HEADERS], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(number)
}

/// Decodes the header buffer of a request.
pub(super) fn arrived(headers: &[u8; HEADERS]) -> Arrived {
    let payload = u32_at(headers, PAYLOAD_SIZE) as usize;
    let first_argument = (u32_at(headers, 0) as usize)
        .checked_sub(IN_HEADER)
        .and_then(|arguments| arguments.checked_sub(payload))
        .filter(|&len| len <= OP_IN_SIZE);
    Arrived {
        commit_id: u64_at(headers, COMMIT_ID),
        unique: u64_at(headers, 8),
        first_argument,
        payload,
    }
}

/// `struct fuse_in_header` and the first argument, which is `len` bytes long.
pub(super) fn parts(headers: &[u8; HEADERS], len: usize) -> (&[u8], &[u8]) {
    (&headers[..IN_HEADER], &headers[OP_IN..OP_IN + len])
}

/// Puts the reply to the request `unique` into the header buffer: `error`, which is 0 or a negative
/// errno, and the length of its payload.
pub(super) fn put_reply(headers: &mut [u8; HEADERS], unique: u64, error: i32, payload: u32) {
    let len = OUT_HEADER as u32 + payload;
    headers[..4].copy_from_slice(&len.to_ne_bytes());
    headers[4..8].copy_from_slice(&error.to_ne_bytes());
    headers[8..16].copy_from_slice(&unique.to_ne_bytes());
    headers[PAYLOAD_SIZE..PAYLOAD_SIZE + 4].copy_from_slice(&payload.to_ne_bytes());
}

/// The part of an SQE that belongs to the command: flags, commit id, queue.
pub(super) fn command(commit_id: u64, queue: u16) -> [u8; 80] {
    let mut bytes = [0; 80];
    bytes[8..16].copy_from_slice(&commit_id.to_ne_bytes());
    bytes[16..18].copy_from_slice(&queue.to_ne_bytes());
    bytes
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
