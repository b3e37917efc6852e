//! Whether the kernel offers requests by io_uring (FUSE_OVER_IO_URING, Linux 6.14).
//!
//! This is checked, and the rings are set up, before a mount is made, because once INIT has agreed
//! on io_uring, the mount serves no request until all queues are registered. The module parameter
//! `enable_uring` shows whether the kernel has the feature and whether root has switched it on; a
//! probe shows whether io_uring has the command. The message of each refusal says what can be done
//! ([`RingRefused`]).

use super::answer::Shared;
use super::{Ring, Uring};
use io_uring::{IoUring, Probe, cqueue, opcode, squeue};
use rustix::io::Errno;
use std::fmt;
use std::fs;
use std::io;

/// The parameter of the module `fuse` that decides whether INIT offers FUSE_OVER_IO_URING.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// The size of a ring's submission queue. If it is full, it is submitted first. The completion
/// queue has twice this size, and the kernel keeps completions that do not fit.
const SUBMISSIONS: u32 = 512;

/// Why there is no ring.
#[derive(Debug)]
pub enum RingRefused {
    /// The kernel is older than 6.14, or built without CONFIG_FUSE_IO_URING.
    NotBuilt,
    /// `enable_uring` of the module `fuse` is off.
    SwitchedOff,
    /// INIT does not offer it, although `enable_uring` is on.
    NotOffered,
    /// io_uring_setup(2) failed.
    Setup(io::Error),
}

impl fmt::Display for RingRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RingRefused::NotBuilt => f.write_str(
                "this kernel has no FUSE over io_uring (Linux 6.14 or newer with CONFIG_FUSE_IO_URING has)",
            ),
            RingRefused::SwitchedOff => write!(f, "it is switched off: root can do `echo Y > {SWITCH}`"),
            RingRefused::NotOffered => f.write_str("the kernel does not offer it"),
            RingRefused::Setup(error) => {
                write!(f, "io_uring_setup: {error} (see the sysctl kernel.io_uring_disabled)")
            }
        }
    }
}

impl std::error::Error for RingRefused {}

/// The value of `enable_uring`; `None` if there is no such parameter.
fn switch() -> Option<bool> {
    let text = fs::read_to_string(SWITCH).ok()?;
    Some(matches!(text.trim(), "Y" | "1"))
}

/// Sets up `number` rings, if the kernel seems to offer what they need.
pub fn rings(number: usize) -> Result<Vec<Ring>, RingRefused> {
    match switch() {
        None => return Err(RingRefused::NotBuilt),
        Some(false) => return Err(RingRefused::SwitchedOff),
        Some(true) => {}
    }
    (0..number).map(|_| ring()).collect()
}

fn ring() -> Result<Ring, RingRefused> {
    let uring = setup().map_err(RingRefused::Setup)?;
    let mut probe = Probe::new();
    uring
        .submitter()
        .register_probe(&mut probe)
        .map_err(RingRefused::Setup)?;
    if !probe.is_supported(opcode::UringCmd80::CODE) {
        return Err(RingRefused::Setup(Errno::OPNOTSUPP.into()));
    }
    let shared = Shared::new().map_err(RingRefused::Setup)?;
    Ok(Ring::new(uring, shared))
}

/// Sets up an io_uring. Only the thread that enables it submits, and completions are made only
/// while that thread waits. So the thread copies requests when it is ready for them, and is not
/// interrupted.
fn setup() -> io::Result<Uring> {
    IoUring::<squeue::Entry128, cqueue::Entry>::builder()
        .dontfork()
        .setup_r_disabled()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_submit_all()
        .build(SUBMISSIONS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_name_the_remedy() {
        let shown = RingRefused::SwitchedOff.to_string();
        assert!(
            shown.contains("echo Y > /sys/module/fuse/parameters/enable_uring"),
            "{shown}"
        );
        let shown = RingRefused::Setup(Errno::PERM.into()).to_string();
        assert!(shown.contains("kernel.io_uring_disabled"), "{shown}");
    }
}
