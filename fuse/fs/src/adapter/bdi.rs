//! The kernel's read-ahead of a mount.

use super::unmount::OwnMount;
use std::io;

/// Sets the kernel's read-ahead for a mount, in KiB. INIT cannot raise it above 128 KiB; the mount's
/// entry in sysfs can, where its owner may write.
pub fn set_read_ahead(mount: &OwnMount, kib: u32) -> io::Result<()> {
    let device = mount.device()?;
    std::fs::write(
        format!("/sys/class/bdi/{device}/read_ahead_kb"),
        format!("{kib}\n"),
    )
}
