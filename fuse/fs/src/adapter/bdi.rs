//! The kernel's read-ahead of a mount.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Sets the kernel's read-ahead for the mount at `dir`, in KiB. INIT cannot raise it above
/// 128 KiB; the mount's entry in sysfs can, where its owner may write. The entry is found by
/// the device number of `dir`, so the mount must answer GETATTR already.
pub fn set_read_ahead(dir: &Path, kib: u32) -> io::Result<()> {
    let device = std::fs::metadata(dir)?.dev();
    let (major, minor) = (libc::major(device), libc::minor(device));
    std::fs::write(
        format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"),
        format!("{kib}\n"),
    )
}
