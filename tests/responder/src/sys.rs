//! System calls that no crate offers in the form needed here: file system identities of a thread,
//! file handles, and access checks of a descriptor.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Most bytes of a kernel file handle (Linux MAX_HANDLE_SZ).
const MAX_HANDLE: usize = 128;

#[repr(C)]
struct RawHandle {
    bytes: u32,
    kind: i32,
    data: [u8; MAX_HANDLE],
}

/// The kernel's handle of an object in its file system, which is independent of any path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct KernelHandle {
    /// The file system's own type of handle.
    pub(crate) kind: i32,
    /// Bytes that only the file system can interpret.
    pub(crate) data: Vec<u8>,
}

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

/// The handle of the object that `fd` refers to.
pub(crate) fn handle_of(fd: BorrowedFd<'_>) -> io::Result<KernelHandle> {
    let mut raw = RawHandle {
        bytes: MAX_HANDLE as u32,
        kind: 0,
        data: [0; MAX_HANDLE],
    };
    let mut mount: libc::c_int = 0;
    // SAFETY: `raw` has room for the `bytes` it announces, the path is a constant C string,
    // and both out pointers live through the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            fd.as_raw_fd(),
            c"".as_ptr(),
            &raw mut raw,
            &raw mut mount,
            libc::AT_EMPTY_PATH,
        )
    })?;
    let len = (raw.bytes as usize).min(MAX_HANDLE);
    Ok(KernelHandle {
        kind: raw.kind,
        data: raw.data[..len].to_vec(),
    })
}

/// Opens the object of a handle, on the mount of `mount`. Needs CAP_DAC_READ_SEARCH.
pub(crate) fn open_handle(
    mount: BorrowedFd<'_>,
    handle: &KernelHandle,
    flags: libc::c_int,
) -> io::Result<OwnedFd> {
    if handle.data.len() > MAX_HANDLE {
        return Err(io::Error::from_raw_os_error(libc::ESTALE));
    }
    let mut raw = RawHandle {
        bytes: handle.data.len() as u32,
        kind: handle.kind,
        data: [0; MAX_HANDLE],
    };
    raw.data[..handle.data.len()].copy_from_slice(&handle.data);
    // SAFETY: `raw` holds `bytes` bytes and lives through the call.
    let fd = check(unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            mount.as_raw_fd(),
            &raw mut raw,
            flags,
        )
    })?;
    // SAFETY: the kernel just gave this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

/// Whether the calling thread's file system identity may access the object of `fd` with `mode`
/// (`R_OK`, `W_OK`, `X_OK`).
pub(crate) fn may_access(fd: BorrowedFd<'_>, mode: libc::c_int) -> io::Result<()> {
    access_at(fd, c"", mode, libc::AT_EACCESS | libc::AT_EMPTY_PATH)
}

/// Calls fchmodat2(2) for the object of `fd`. Its number is the same on all machines that Rust compiles
/// for; libc does not have it for 64-bit ARM.
pub(crate) fn change_mode(fd: BorrowedFd<'_>, mode: u32) -> io::Result<()> {
    const FCHMODAT2: libc::c_long = 452;
    // SAFETY: the path is a constant C string.
    check(unsafe {
        libc::syscall(
            FCHMODAT2,
            fd.as_raw_fd(),
            c"".as_ptr(),
            mode,
            libc::AT_EMPTY_PATH,
        )
    })
    .map(drop)
}

fn access_at(
    dir: BorrowedFd<'_>,
    path: &CStr,
    mode: libc::c_int,
    flags: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the path is a C string that lives through the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_faccessat2,
            dir.as_raw_fd(),
            path.as_ptr(),
            mode,
            flags,
        )
    })
    .map(drop)
}

/// Sets the calling thread's file system user, group and supplementary groups. (The C
/// library's `setgroups` would change every thread, so the system calls are made directly.)
pub(crate) fn set_thread_identity(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
    // SAFETY: `groups` is valid for `len` reads of gid_t, which is u32 on Linux.
    check(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) })?;
    for (call, id) in [(libc::SYS_setfsgid, gid), (libc::SYS_setfsuid, uid)] {
        // SAFETY: no memory is involved. The call reports the previous id and never fails
        // visibly, so asking again (with an invalid id) tells whether it took effect.
        let now = unsafe {
            libc::syscall(call, id);
            libc::syscall(call, u32::MAX)
        };
        if now as u32 != id {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
    }
    Ok(())
}
