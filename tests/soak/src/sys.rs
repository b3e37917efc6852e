//! System calls that the standard library lacks.

use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;

/// A shared mapping of the first bytes of a file, which is unmapped when dropped.
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

    /// Makes the kernel copy the bytes through a file in memory. A page that cannot be read is then
    /// an error of the call (EFAULT), and causes no SIGBUS.
    pub(crate) fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        assert!(offset + out.len() <= self.len, "inside the mapping");
        let by_way = memory()?;
        let mut done = 0;
        while done < out.len() {
            // SAFETY: the kernel checks each page it reads; the range was checked to lie in
            // the mapping, which `self` keeps.
            let n = unsafe {
                libc::pwrite(
                    by_way.as_raw_fd(),
                    self.at.cast::<u8>().add(offset + done).cast(),
                    out.len() - done,
                    done as libc::off_t,
                )
            };
            done += moved(n).context("reading a mapping")?;
        }
        by_way.read_exact_at(out, 0)?;
        Ok(())
    }

    /// The reverse direction, only for a mapping made with `write`.
    pub(crate) fn write(&self, offset: usize, data: &[u8]) -> Result<()> {
        assert!(offset + data.len() <= self.len, "inside the mapping");
        let by_way = memory()?;
        by_way.write_all_at(data, 0)?;
        let mut done = 0;
        while done < data.len() {
            // SAFETY: as in `read`; nothing else refers to the mapping's bytes.
            let n = unsafe {
                libc::pread(
                    by_way.as_raw_fd(),
                    self.at.cast::<u8>().add(offset + done).cast(),
                    data.len() - done,
                    done as libc::off_t,
                )
            };
            done += moved(n).context("writing to a mapping")?;
        }
        Ok(())
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

fn moved(n: isize) -> Result<usize> {
    match n {
        0 => bail!("nothing was copied"),
        n => usize::try_from(n).map_err(|_| io::Error::last_os_error().into()),
    }
}

/// A file in memory.
fn memory() -> Result<File> {
    // SAFETY: a C string; the descriptor is new and nobody else's.
    unsafe {
        let fd = libc::memfd_create(c"copy".as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 {
            return Err(io::Error::last_os_error()).context("memfd_create");
        }
        Ok(File::from_raw_fd(fd))
    }
}

/// A buffer that begins at a page boundary, as O_DIRECT needs it.
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

/// Makes this process end with its parent, however that ends.
pub(crate) fn die_with_parent() {
    // SAFETY: no memory is involved.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}
