//! The kernel's read-ahead of a mount.

use std::io;

/// Sets the kernel's read-ahead for the mount of a device (`major:minor`), in KiB. INIT cannot raise it
/// above 128 KiB; the mount's entry in sysfs can, where its owner may write.
///
/// The device is to be taken from the table of mounts. stat(2) would ask this process: if it is killed
/// before it answers, it waits for itself for ever.
pub fn set_read_ahead(device: &str, kib: u32) -> io::Result<()> {
    std::fs::write(
        format!("/sys/class/bdi/{device}/read_ahead_kb"),
        format!("{kib}\n"),
    )
}
