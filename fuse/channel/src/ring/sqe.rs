//! The SQEs of the commands REGISTER and COMMIT_AND_FETCH.

use super::layout::{self, COMMIT_AND_FETCH, REGISTER};
use io_uring::squeue::Entry128;
use io_uring::{opcode, types};
use std::os::fd::RawFd;

/// The number of iovecs of REGISTER: headers and payload.
const IOVECS: u32 = 2;
/// The offset of `len` in `struct io_uring_sqe`.
const LEN: usize = 24;

/// Sets the field `len` of an SQE, which the crate `io_uring` cannot do for this command.
fn set_len(sqe: &mut Entry128, len: u32) {
    const { assert!(size_of::<Entry128>() == 128) };
    let bytes = std::ptr::from_mut(sqe).cast::<u8>();
    // SAFETY: `Entry128` is `repr(C)`, 128 bytes long and laid out as the kernel's `struct
    // io_uring_sqe`, with integers only; `len` is 32 bits wide at byte 24, which is aligned to 4.
    unsafe { bytes.add(LEN).cast::<u32>().write(len) };
}

/// Gives an entry to a queue and waits for a request. `iovecs`: the address of the iovecs of its
/// buffers.
pub(super) fn register(device: RawFd, queue: u16, iovecs: u64, user_data: u64) -> Entry128 {
    let mut sqe = opcode::UringCmd80::new(types::Fd(device), REGISTER)
        .cmd(layout::command(0, queue))
        .addr(Some(iovecs))
        .build()
        .user_data(user_data);
    set_len(&mut sqe, IOVECS);
    sqe
}

/// Replies to a request, and waits for the next one.
pub(super) fn commit_and_fetch(
    device: RawFd,
    queue: u16,
    commit_id: u64,
    user_data: u64,
) -> Entry128 {
    opcode::UringCmd80::new(types::Fd(device), COMMIT_AND_FETCH)
        .cmd(layout::command(commit_id, queue))
        .build()
        .user_data(user_data)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(sqe: &Entry128) -> [u8; 128] {
        // SAFETY: as in `set_len`.
        unsafe { *std::ptr::from_ref(sqe).cast::<[u8; 128]>() }
    }

    /// IORING_OP_URING_CMD is 46. The fields of the SQE are opcode, flags, ioprio, fd, cmd_op and
    /// padding, addr, len, flags, user_data, and from byte 48 on the command.
    #[test]
    #[cfg(target_endian = "little")]
    #[rustfmt::skip]
    fn register_by_bytes() {
        let sqe = bytes(&register(5, 1, 0x0102_0304_0506_0708, 7));
        assert_eq!(sqe[..48], [
            46, 0, 0, 0,  5, 0, 0, 0,
            1, 0, 0, 0,   0, 0, 0, 0,
            8, 7, 6, 5,   4, 3, 2, 1,
            2, 0, 0, 0,   0, 0, 0, 0,
            7, 0, 0, 0,   0, 0, 0, 0,
            0, 0, 0, 0,   0, 0, 0, 0,
        ]);
        assert_eq!(sqe[48..72], [
            0, 0, 0, 0,   0, 0, 0, 0,
            0, 0, 0, 0,   0, 0, 0, 0,
            1, 0, 0, 0,   0, 0, 0, 0,
        ]);
        assert_eq!(sqe[72..], [0; 56]);
    }

    #[test]
    #[cfg(target_endian = "little")]
    #[rustfmt::skip]
    fn commit_by_bytes() {
        let sqe = bytes(&commit_and_fetch(5, 3, 0x1122, 9));
        assert_eq!(sqe[..48], [
            46, 0, 0, 0,  5, 0, 0, 0,
            2, 0, 0, 0,   0, 0, 0, 0,
            0, 0, 0, 0,   0, 0, 0, 0,
            0, 0, 0, 0,   0, 0, 0, 0,
            9, 0, 0, 0,   0, 0, 0, 0,
            0, 0, 0, 0,   0, 0, 0, 0,
        ]);
        assert_eq!(sqe[48..72], [
            0, 0, 0, 0,   0, 0, 0, 0,
            0x22, 0x11, 0, 0, 0, 0, 0, 0,
            3, 0, 0, 0,   0, 0, 0, 0,
        ]);
        assert_eq!(sqe[72..], [0; 56]);
    }
}
