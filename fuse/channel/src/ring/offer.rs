//! Whether the kernel offers requests by io_uring (FUSE_OVER_IO_URING, Linux 6.14).
//!
//! This is asked, and the rings are set up, before a mount is made: once INIT has agreed on
//! io_uring, the mount serves nobody until all queues are registered. The module parameter
//! `enable_uring` tells whether the kernel has it and whether root has switched it on; a probe
//! tells whether io_uring has the command. Each reason for a refusal names its remedy
//! ([`RingRefused`]).

use super::answer::Shared;
use super::{Ring, Uring};
use io_uring::{IoUring, Probe, cqueue, opcode, squeue};
use rustix::io::Errno;
use std::fmt;
use std::fs;
use std::io;

/// Of the module `fuse`: whether INIT offers FUSE_OVER_IO_URING.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Entries of a ring's submission queue; if more are wanted at a time, they are submitted in
/// several steps. Twice as many completions fit, and the kernel keeps those that do not.
const SUBMISSIONS: u32 = 512;

/// Why there is no ring.
#[derive(Debug)]
pub enum RingRefused {
    /// The kernel is older than 6.14, or built without CONFIG_FUSE_IO_URING.
    NotBuilt,
    /// `enable_uring` of the module `fuse` is off.
    SwitchedOff,
    /// INIT does not offer it, though the switch is on.
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

/// What the file of `enable_uring` says; `None` if there is none.
fn switch() -> Option<bool> {
    let text = fs::read_to_string(SWITCH).ok()?;
    Some(matches!(text.trim(), "Y" | "1"))
}

/// As many rings, if the kernel seems to offer what they need.
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

/// The thread that enables the ring is the only one that submits, and completions are made while
/// it waits: then requests are copied by that thread when it is ready for them, and nothing
/// interrupts it.
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
