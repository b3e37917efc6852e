//! System calls that the standard library lacks, and small helpers.

use anyhow::{Context, Result, bail};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

/// The reason why a case was not run. It is reported and counted, and is no error.
#[derive(Debug)]
pub(crate) struct Skipped(pub String);

impl std::fmt::Display for Skipped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skipped {}

/// Ends the case as skipped unless `program` can be run.
pub(crate) fn need(program: &str) -> Result<()> {
    match Command::new(program).arg("--version").output() {
        Ok(_) => Ok(()),
        Err(_) => Err(Skipped(format!("{program} is not installed")).into()),
    }
}

fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes()).context("a path without NUL")
}

fn check(result: libc::c_int, what: &str, path: &Path) -> Result<()> {
    if result == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error()).with_context(|| format!("{what} {}", path.display()))
}

pub(crate) fn mknod(path: &Path, mode: u32, device: u64) -> Result<()> {
    let c = c_path(path)?;
    // SAFETY: a C string that lives through the call.
    check(
        unsafe { libc::mknod(c.as_ptr(), mode, device) },
        "mknod",
        path,
    )
}

pub(crate) fn rename_with(from: &Path, to: &Path, flags: u32) -> io::Result<()> {
    let from = CString::new(from.as_os_str().as_bytes())?;
    let to = CString::new(to.as_os_str().as_bytes())?;
    // SAFETY: C strings that live through the call.
    let result = unsafe {
        libc::renameat2(
            libc::AT_FDCWD,
            from.as_ptr(),
            libc::AT_FDCWD,
            to.as_ptr(),
            flags,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

pub(crate) fn access(path: &Path, mode: i32) -> io::Result<()> {
    let c = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a C string that lives through the call.
    if unsafe { libc::access(c.as_ptr(), mode) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Sets access and modification times, `(seconds, nanoseconds)` each.
pub(crate) fn set_times(path: &Path, atime: (i64, i64), mtime: (i64, i64)) -> Result<()> {
    let c = c_path(path)?;
    let times = [
        libc::timespec {
            tv_sec: atime.0,
            tv_nsec: atime.1,
        },
        libc::timespec {
            tv_sec: mtime.0,
            tv_nsec: mtime.1,
        },
    ];
    // SAFETY: a C string and an array of two that live through the call.
    let result = unsafe { libc::utimensat(libc::AT_FDCWD, c.as_ptr(), times.as_ptr(), 0) };
    check(result, "utimensat", path)
}

pub(crate) fn statvfs(path: &Path) -> Result<libc::statvfs> {
    let c = c_path(path)?;
    // SAFETY: all-zero is a valid statvfs; the pointers live through the call.
    let mut out: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let result = unsafe { libc::statvfs(c.as_ptr(), &mut out) };
    check(result, "statvfs", path)?;
    Ok(out)
}

/// A mapping of the first bytes of a file, which is unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    at: *mut libc::c_void,
    len: usize,
}

impl Mapping {
    pub(crate) fn new(file: &File, len: usize, shared: bool) -> Result<Self> {
        let kind = if shared {
            libc::MAP_SHARED
        } else {
            libc::MAP_PRIVATE
        };
        // SAFETY: a fresh mapping of a descriptor that is open.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                kind,
                file.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error()).context("mmap");
        }
        Ok(Mapping { at, len })
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is `len` bytes long and only this value refers to it.
        unsafe { std::slice::from_raw_parts_mut(self.at.cast(), self.len) }
    }

    pub(crate) fn sync(&self) -> Result<()> {
        // SAFETY: the mapping made above.
        if unsafe { libc::msync(self.at, self.len, libc::MS_SYNC) } != 0 {
            return Err(io::Error::last_os_error()).context("msync");
        }
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping made above, no longer referred to.
        unsafe { libc::munmap(self.at, self.len) };
    }
}

/// Page-aligned memory for O_DIRECT.
#[derive(Debug)]
pub(crate) struct Aligned {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    pub(crate) fn new(len: usize) -> Self {
        let memory = vec![0; len + 4096];
        let start = memory.as_ptr().align_offset(4096);
        Aligned { memory, start, len }
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

/// Runs a program to its end. Fails with its output if the program fails.
pub(crate) fn program(directory: &Path, name: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(name)
        .args(arguments)
        .current_dir(directory)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .output()
        .with_context(|| format!("running {name}"))?;
    if !output.status.success() {
        bail!(
            "{name} {} ended with {}: {}{}",
            arguments.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Fails unless `result` is the given error.
pub(crate) fn expect_errno<T: std::fmt::Debug>(
    what: &str,
    result: io::Result<T>,
    errno: i32,
) -> Result<()> {
    match result {
        Ok(value) => bail!("{what} succeeded ({value:?}) instead of errno {errno}"),
        Err(error) if error.raw_os_error() == Some(errno) => Ok(()),
        Err(error) => bail!("{what} gave {error} instead of errno {errno}"),
    }
}
