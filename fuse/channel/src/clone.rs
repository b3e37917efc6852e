//! FUSE_DEV_IOC_CLONE: another descriptor for a mount, with a queue of its own.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Setter, ioctl, opcode};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// `_IOR(229, 0, uint32_t)`.
const CLONE: rustix::ioctl::Opcode = opcode::read::<u32>(229, 0);

/// Opens /dev/fuse once more for the mount of `device`.
pub(crate) fn clone(device: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let new = rustix::fs::open("/dev/fuse", flags, Mode::empty())?;
    let source = device.as_raw_fd() as u32;
    // SAFETY: the request reads one u32, the number of the descriptor to clone, through the
    // pointer it is given, though its code says otherwise; `Setter` points to a u32.
    let request = unsafe { Setter::<CLONE, u32>::new(source) };
    // SAFETY: `request` is FUSE_DEV_IOC_CLONE as above, which changes no memory of ours.
    unsafe { ioctl(&new, request) }?;
    Ok(new)
}

/// Whether `error` means that the request is not known, as in qemu's emulation of another processor
/// (ENOSYS) and in kernels before 4.2 (ENOTTY).
pub(crate) fn is_unknown(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOSYS | Errno::NOTTY)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_request_that_is_unknown_is_done_without() {
        for (code, unknown) in [
            (Errno::NOSYS, true),
            (Errno::NOTTY, true),
            (Errno::INVAL, false),
        ] {
            assert_eq!(is_unknown(&io::Error::from(code)), unknown, "{code}");
        }
        assert!(!is_unknown(&io::Error::other("not of the system")));
    }
}
