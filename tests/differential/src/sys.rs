//! System calls as the kernel defines them, without emulation by the C library.

use std::ffi::CStr;
use std::io;

/// A result, or an errno.
pub(crate) type Sys<T = i64> = Result<T, i32>;

fn errno() -> i32 {
    io::Error::last_os_error()
        .raw_os_error()
        .unwrap_or(libc::EIO)
}

/// Pointers among the arguments come from references that live until the call returns, and are
/// accompanied by their lengths. Each wrapper below ensures that.
macro_rules! syscall {
    ($number:ident $(, $argument:expr)* $(,)?) => {{
        // SAFETY: see the macro's description.
        let result = unsafe { libc::syscall(libc::$number $(, $argument)*) };
        if result < 0 { Err(errno()) } else { Ok(result) }
    }};
}

pub(crate) fn openat(dir: i32, path: &CStr, flags: i32, mode: u32) -> Sys<i32> {
    syscall!(SYS_openat, dir, path.as_ptr(), flags, mode).map(|fd| fd as i32)
}

pub(crate) fn close(fd: i32) -> Sys {
    syscall!(SYS_close, fd)
}

pub(crate) fn dup(fd: i32) -> Sys<i32> {
    syscall!(SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, 3).map(|fd| fd as i32)
}

pub(crate) fn read(fd: i32, out: &mut [u8]) -> Sys {
    syscall!(SYS_read, fd, out.as_mut_ptr(), out.len())
}

pub(crate) fn pread(fd: i32, out: &mut [u8], at: i64) -> Sys {
    syscall!(SYS_pread64, fd, out.as_mut_ptr(), out.len(), at)
}

pub(crate) fn readv(fd: i32, a: &mut [u8], b: &mut [u8]) -> Sys {
    let parts = [a, b].map(|part| libc::iovec {
        iov_base: part.as_mut_ptr().cast(),
        iov_len: part.len(),
    });
    syscall!(SYS_readv, fd, parts.as_ptr(), parts.len())
}

pub(crate) fn write(fd: i32, data: &[u8]) -> Sys {
    syscall!(SYS_write, fd, data.as_ptr(), data.len())
}

pub(crate) fn pwrite(fd: i32, data: &[u8], at: i64) -> Sys {
    syscall!(SYS_pwrite64, fd, data.as_ptr(), data.len(), at)
}

fn io_vector(part: &[u8]) -> libc::iovec {
    libc::iovec {
        iov_base: part.as_ptr().cast_mut().cast(),
        iov_len: part.len(),
    }
}

pub(crate) fn writev(fd: i32, a: &[u8], b: &[u8]) -> Sys {
    let parts = [io_vector(a), io_vector(b)];
    syscall!(SYS_writev, fd, parts.as_ptr(), parts.len())
}

pub(crate) fn pwritev2(fd: i32, data: &[u8], at: i64, flags: i32) -> Sys {
    let parts = [io_vector(data)];
    syscall!(
        SYS_pwritev2,
        fd,
        parts.as_ptr(),
        parts.len(),
        at,
        0usize,
        flags
    )
}

pub(crate) fn lseek(fd: i32, offset: i64, whence: i32) -> Sys {
    syscall!(SYS_lseek, fd, offset, whence)
}

/// The flags of an open file.
pub(crate) fn flags(fd: i32) -> Sys<i32> {
    syscall!(SYS_fcntl, fd, libc::F_GETFL).map(|flags| flags as i32)
}

pub(crate) fn truncate(path: &CStr, len: i64) -> Sys {
    syscall!(SYS_truncate, path.as_ptr(), len)
}

pub(crate) fn ftruncate(fd: i32, len: i64) -> Sys {
    syscall!(SYS_ftruncate, fd, len)
}

pub(crate) fn fallocate(fd: i32, mode: i32, at: i64, len: i64) -> Sys {
    syscall!(SYS_fallocate, fd, mode, at, len)
}

pub(crate) fn copy_file_range(
    from: i32,
    mut from_at: i64,
    to: i32,
    mut to_at: i64,
    len: usize,
) -> Sys {
    syscall!(
        SYS_copy_file_range,
        from,
        &raw mut from_at,
        to,
        &raw mut to_at,
        len,
        0u32
    )
}

pub(crate) fn sendfile(to: i32, from: i32, mut at: i64, len: usize) -> Sys {
    syscall!(SYS_sendfile, to, from, &raw mut at, len)
}

pub(crate) fn fsync(fd: i32) -> Sys {
    syscall!(SYS_fsync, fd)
}

pub(crate) fn fdatasync(fd: i32) -> Sys {
    syscall!(SYS_fdatasync, fd)
}

pub(crate) fn sync_file_range(fd: i32) -> Sys {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    syscall!(SYS_sync_file_range, fd, 0i64, 0i64, flags)
}

pub(crate) fn mkdirat(dir: i32, path: &CStr, mode: u32) -> Sys {
    syscall!(SYS_mkdirat, dir, path.as_ptr(), mode)
}

pub(crate) fn mknodat(dir: i32, path: &CStr, mode: u32, device: (u32, u32)) -> Sys {
    syscall!(
        SYS_mknodat,
        dir,
        path.as_ptr(),
        mode,
        libc::makedev(device.0, device.1)
    )
}

pub(crate) fn symlinkat(target: &CStr, dir: i32, path: &CStr) -> Sys {
    syscall!(SYS_symlinkat, target.as_ptr(), dir, path.as_ptr())
}

pub(crate) fn readlinkat(dir: i32, path: &CStr, out: &mut [u8]) -> Sys {
    syscall!(
        SYS_readlinkat,
        dir,
        path.as_ptr(),
        out.as_mut_ptr(),
        out.len()
    )
}

pub(crate) fn linkat(from: (i32, &CStr), to: (i32, &CStr), flags: i32) -> Sys {
    syscall!(
        SYS_linkat,
        from.0,
        from.1.as_ptr(),
        to.0,
        to.1.as_ptr(),
        flags
    )
}

pub(crate) fn unlinkat(dir: i32, path: &CStr, flags: i32) -> Sys {
    syscall!(SYS_unlinkat, dir, path.as_ptr(), flags)
}

pub(crate) fn renameat2(from: (i32, &CStr), to: (i32, &CStr), flags: u32) -> Sys {
    syscall!(
        SYS_renameat2,
        from.0,
        from.1.as_ptr(),
        to.0,
        to.1.as_ptr(),
        flags
    )
}

pub(crate) fn fchmodat(dir: i32, path: &CStr, mode: u32) -> Sys {
    syscall!(SYS_fchmodat, dir, path.as_ptr(), mode)
}

pub(crate) fn fchmod(fd: i32, mode: u32) -> Sys {
    syscall!(SYS_fchmod, fd, mode)
}

pub(crate) fn fchownat(dir: i32, path: &CStr, owner: (u32, u32), flags: i32) -> Sys {
    syscall!(SYS_fchownat, dir, path.as_ptr(), owner.0, owner.1, flags)
}

pub(crate) fn fchown(fd: i32, owner: (u32, u32)) -> Sys {
    syscall!(SYS_fchown, fd, owner.0, owner.1)
}

fn timespecs(times: [(i64, i64); 2]) -> [libc::timespec; 2] {
    times.map(|(tv_sec, tv_nsec)| libc::timespec { tv_sec, tv_nsec })
}

pub(crate) fn utimensat(dir: i32, path: &CStr, times: [(i64, i64); 2], flags: i32) -> Sys {
    let times = timespecs(times);
    syscall!(SYS_utimensat, dir, path.as_ptr(), times.as_ptr(), flags)
}

pub(crate) fn futimens(fd: i32, times: [(i64, i64); 2]) -> Sys {
    let times = timespecs(times);
    syscall!(SYS_utimensat, fd, std::ptr::null::<u8>(), times.as_ptr(), 0)
}

pub(crate) fn faccessat2(dir: i32, path: &CStr, mode: i32, flags: i32) -> Sys {
    syscall!(SYS_faccessat2, dir, path.as_ptr(), mode, flags)
}

pub(crate) fn statx(dir: i32, path: &CStr, flags: i32, mask: u32) -> Sys<libc::statx> {
    // SAFETY: a structure of integers, for which zero is a value.
    let mut out: libc::statx = unsafe { std::mem::zeroed() };
    syscall!(SYS_statx, dir, path.as_ptr(), flags, mask, &raw mut out).map(|_| out)
}

pub(crate) fn statfs(path: &CStr) -> Sys<libc::statfs> {
    // SAFETY: a structure of integers, for which zero is a value.
    let mut out: libc::statfs = unsafe { std::mem::zeroed() };
    syscall!(SYS_statfs, path.as_ptr(), &raw mut out).map(|_| out)
}

pub(crate) fn getdents(fd: i32, out: &mut [u8]) -> Sys {
    syscall!(SYS_getdents64, fd, out.as_mut_ptr(), out.len())
}

pub(crate) fn chdir(path: &CStr) -> Sys {
    syscall!(SYS_chdir, path.as_ptr())
}

pub(crate) fn fchdir(fd: i32) -> Sys {
    syscall!(SYS_fchdir, fd)
}

pub(crate) fn setxattr(path: &CStr, name: &CStr, value: &[u8]) -> Sys {
    syscall!(
        SYS_setxattr,
        path.as_ptr(),
        name.as_ptr(),
        value.as_ptr(),
        value.len(),
        0
    )
}

pub(crate) fn fsetxattr(fd: i32, name: &CStr, value: &[u8]) -> Sys {
    let (at, len) = (value.as_ptr(), value.len());
    syscall!(SYS_fsetxattr, fd, name.as_ptr(), at, len, 0)
}

pub(crate) fn fgetxattr(fd: i32, name: &CStr, out: &mut [u8]) -> Sys {
    let (at, len) = (out.as_mut_ptr(), out.len());
    syscall!(SYS_fgetxattr, fd, name.as_ptr(), at, len)
}

pub(crate) fn getxattr(path: &CStr, name: &CStr, out: &mut [u8]) -> Sys {
    syscall!(
        SYS_getxattr,
        path.as_ptr(),
        name.as_ptr(),
        out.as_mut_ptr(),
        out.len()
    )
}

pub(crate) fn listxattr(path: &CStr, out: &mut [u8]) -> Sys {
    syscall!(SYS_listxattr, path.as_ptr(), out.as_mut_ptr(), out.len())
}

pub(crate) fn removexattr(path: &CStr, name: &CStr) -> Sys {
    syscall!(SYS_removexattr, path.as_ptr(), name.as_ptr())
}

pub(crate) fn flock(fd: i32, operation: i32) -> Sys {
    syscall!(SYS_flock, fd, operation)
}

pub(crate) fn fcntl_lock(fd: i32, command: i32, lock: &mut libc::flock) -> Sys {
    syscall!(SYS_fcntl, fd, command, std::ptr::from_mut(lock))
}

pub(crate) fn umask(mask: u32) -> Sys {
    syscall!(SYS_umask, mask)
}

/// Takes the ids of a user. The saved user id stays 0, so that the groups can be changed later;
/// effective capabilities follow the effective user id.
pub(crate) fn become_user(uid: u32, gid: u32, groups: &[u32]) -> Sys {
    syscall!(SYS_setresuid, u32::MAX, 0u32, u32::MAX)?;
    syscall!(SYS_setgroups, groups.len(), groups.as_ptr())?;
    syscall!(SYS_setresgid, gid, gid, gid)?;
    syscall!(SYS_setresuid, uid, uid, 0u32)?;
    // Otherwise a process that changed its ids may not open its own /proc/self/fd.
    syscall!(SYS_prctl, libc::PR_SET_DUMPABLE, 1u64, 0u64, 0u64, 0u64)
}

/// Makes this process end with its parent, however that ends.
pub(crate) fn die_with_parent() -> Sys {
    syscall!(
        SYS_prctl,
        libc::PR_SET_PDEATHSIG,
        libc::SIGKILL as u64,
        0u64,
        0u64,
        0u64
    )
}

/// Writing to a FIFO without a reader must be an error, and must not end the process.
pub(crate) fn ignore_sigpipe() {
    // SAFETY: ignoring a signal runs no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

/// A mapped part of a file, which is unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    at: *mut libc::c_void,
    len: usize,
}

impl Mapping {
    pub(crate) fn new(fd: i32, at: i64, len: usize, shared: bool, write: bool) -> Sys<Self> {
        let access = libc::PROT_READ | if write { libc::PROT_WRITE } else { 0 };
        let kind = if shared {
            libc::MAP_SHARED
        } else {
            libc::MAP_PRIVATE
        };
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), len, access, kind, fd, at) };
        if address == libc::MAP_FAILED {
            return Err(errno());
        }
        Ok(Mapping { at: address, len })
    }

    /// Makes the kernel copy the bytes to the file `memory`. A page that cannot be read is then an
    /// error (EFAULT), and causes no SIGBUS.
    pub(crate) fn read(&self, memory: i32, offset: usize, len: usize) -> Sys {
        assert!(offset + len <= self.len, "inside the mapping");
        // SAFETY: the range lies in the mapping; the kernel checks each page it reads.
        let from = unsafe { self.at.cast::<u8>().add(offset) };
        syscall!(SYS_pwrite64, memory, from, len, 0i64)
    }

    /// The reverse direction, only for a mapping made with `write`.
    pub(crate) fn write(&self, memory: i32, offset: usize, len: usize) -> Sys {
        assert!(offset + len <= self.len, "inside the mapping");
        // SAFETY: the range lies in the mapping, to which nothing else refers.
        let to = unsafe { self.at.cast::<u8>().add(offset) };
        syscall!(SYS_pread64, memory, to, len, 0i64)
    }

    pub(crate) fn msync(&self) -> Sys {
        syscall!(SYS_msync, self.at, self.len, libc::MS_SYNC)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nothing borrowed from it is left.
        unsafe { libc::munmap(self.at, self.len) };
    }
}

pub(crate) fn memory_file() -> Sys<i32> {
    syscall!(
        SYS_memfd_create,
        c"differential".as_ptr(),
        libc::MFD_CLOEXEC
    )
    .map(|fd| fd as i32)
}

/// Runs a file in a process of its own. The result is its exit status, or 1000 plus the number of a
/// signal.
pub(crate) fn spawn(dir: i32, path: &CStr) -> Sys {
    let mut ends = [0i32; 2];
    syscall!(SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC)?;
    // SAFETY: this program has one thread, so the child may go on; it calls only the kernel.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let arguments = [path.as_ptr(), std::ptr::null()];
        let environment = [std::ptr::null::<libc::c_char>()];
        // A program of random bytes may run for ever. SAFETY: no memory is involved.
        unsafe { libc::alarm(2) };
        let result = syscall!(
            SYS_execveat,
            dir,
            path.as_ptr(),
            arguments.as_ptr(),
            environment.as_ptr(),
            0
        );
        let code = result.err().unwrap_or(0);
        let _ = write(ends[1], &code.to_ne_bytes());
        // SAFETY: ends the child at once, without what the parent registered.
        unsafe { libc::_exit(0) };
    }
    let _ = close(ends[1]);
    let mut code = [0u8; 4];
    let n = read(ends[0], &mut code);
    let _ = close(ends[0]);
    if child < 0 {
        return Err(libc::EAGAIN);
    }
    let mut status = 0;
    syscall!(SYS_wait4, child, &raw mut status, 0, std::ptr::null::<u8>())?;
    if n == Ok(4) {
        return Err(i32::from_ne_bytes(code));
    }
    Ok(match libc::WIFEXITED(status) {
        true => i64::from(libc::WEXITSTATUS(status)),
        false => 1000 + i64::from(libc::WTERMSIG(status)),
    })
}
