//! Stores to a shared mapping of a file.
//!
//! They are made by way of /proc/self/mem. There, a store behind the end of the file, which another
//! client may have cut, is an error, while an ordinary store would cause SIGBUS.

use nix::libc;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// At least the page size of all supported machines.
const PAGE: u64 = 65536;

/// A mapping, which is unmapped when dropped.
struct Mapping {
    at: *mut libc::c_void,
    len: usize,
}

impl Mapping {
    fn new(file: &File, offset: u64, len: usize) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let (shared, fd) = (libc::MAP_SHARED, file.as_raw_fd());
        // SAFETY: a fresh mapping at an address of the kernel's choice, which nothing here refers
        // to but by number.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), len, access, shared, fd, offset as i64) };
        match at == libc::MAP_FAILED {
            true => Err(io::Error::last_os_error()),
            false => Ok(Mapping { at, len }),
        }
    }

    fn sync(&self) -> io::Result<()> {
        // SAFETY: the range is the mapping's.
        match unsafe { libc::msync(self.at, self.len, libc::MS_SYNC) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping's, and is used no more.
        unsafe { libc::munmap(self.at, self.len) };
    }
}

/// Stores `data` at `offset` of the file, which must be open for reading and writing, and calls
/// msync(2).
pub(crate) fn write(file: &File, offset: u64, data: &[u8]) -> io::Result<()> {
    let start = offset / PAGE * PAGE;
    let within = (offset - start) as usize;
    let mapping = Mapping::new(file, start, within + data.len())?;
    let memory = OpenOptions::new().write(true).open("/proc/self/mem")?;
    memory.write_all_at(data, mapping.at as u64 + within as u64)?;
    mapping.sync()
}
