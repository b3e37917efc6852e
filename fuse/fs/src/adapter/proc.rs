//! Files of /proc that describe callers, by the thread ids in their requests.
//!
//! The kernel gives these ids as the PID namespace of the mount has them. If /proc was mounted in
//! another one, as after `unshare --pid` without `--mount-proc`, the same number there is another
//! thread, whose groups and signals say nothing of the caller. Then no caller is visible.

use rustix::fs::{Mode, OFlags};
use rustix::path::DecInt;
use smallvec::SmallVec;
use std::fs::File;
use std::io;
use std::sync::OnceLock;

/// Whether /proc names this process by the id that it has itself.
fn is_of_this_namespace() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        let own = std::fs::read_link("/proc/self");
        own.is_ok_and(|own| own.as_os_str() == std::process::id().to_string().as_str())
    })
}

/// Opens a file that describes the thread `tid`, without an allocation: this is done for most requests.
pub(super) fn open(tid: u32, name: &str) -> io::Result<File> {
    if !is_of_this_namespace() {
        return Err(io::ErrorKind::NotFound.into());
    }
    // An id has at most 10 digits, a name here at most 6 letters. (`write!` takes 500 instructions.)
    let mut path = SmallVec::<[u8; 32]>::from_slice(b"/proc/");
    path.extend_from_slice(DecInt::new(tid).as_bytes());
    path.push(b'/');
    path.extend_from_slice(name.as_bytes());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(&path[..], flags, Mode::empty())?;
    Ok(file.into())
}

/// Reads a file that describes the thread `tid`.
pub(super) fn read(tid: u32, name: &str) -> io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    io::Read::read_to_end(&mut open(tid, name)?, &mut contents)?;
    Ok(contents)
}
