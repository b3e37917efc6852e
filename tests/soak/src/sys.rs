//! System calls the standard library lacks.

use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// A shared mapping of the first bytes of a file, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    at: *mut libc::c_void,
    len: usize,
}

impl Mapping {
    pub(crate) fn new(file: &File, len: usize, write: bool) -> Result<Self> {
        let access = libc::PROT_READ | if write { libc::PROT_WRITE } else { 0 };
        // SAFETY: a fresh mapping at an address of the kernel's choice, of an open descriptor.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                access,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error()).context("mmap");
        }
        Ok(Mapping { at, len })
    }

    pub(crate) fn read(&self, offset: usize, out: &mut [u8]) {
        assert!(offset + out.len() <= self.len, "inside the mapping");
        // SAFETY: checked to lie in the mapping, which `self` keeps; the file is no shorter.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.at.cast::<u8>().add(offset),
                out.as_mut_ptr(),
                out.len(),
            );
        }
    }

    /// Only of a mapping made with `write`.
    pub(crate) fn write(&self, offset: usize, data: &[u8]) {
        assert!(offset + data.len() <= self.len, "inside the mapping");
        // SAFETY: as in `read`; made writable.
        unsafe {
            std::ptr::copy_nonoverlapping(
                data.as_ptr(),
                self.at.cast::<u8>().add(offset),
                data.len(),
            );
        }
    }

    pub(crate) fn sync(&self) -> Result<()> {
        // SAFETY: the whole mapping, which `self` keeps.
        if unsafe { libc::msync(self.at, self.len, libc::MS_SYNC) } != 0 {
            return Err(io::Error::last_os_error()).context("msync");
        }
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made by mmap with this length, and nothing refers to it any more.
        unsafe { libc::munmap(self.at, self.len) };
    }
}

/// A buffer that starts at a page, as O_DIRECT wants it.
#[derive(Debug)]
pub(crate) struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    pub(crate) fn new(len: usize) -> Self {
        let bytes = vec![0; len + 4096];
        let start = bytes.as_ptr().align_offset(4096);
        Aligned { bytes, start, len }
    }
}

impl std::ops::Deref for Aligned {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

impl std::ops::DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

pub(crate) fn signal(pid: u32, number: i32) -> Result<()> {
    // SAFETY: no memory is involved.
    if unsafe { libc::kill(pid as libc::pid_t, number) } != 0 {
        bail!("signal {number} to {pid}: {}", io::Error::last_os_error());
    }
    Ok(())
}

/// Ends with this process's parent, however that ends.
pub(crate) fn die_with_parent() {
    // SAFETY: no memory is involved.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}
