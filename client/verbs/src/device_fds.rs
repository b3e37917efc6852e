//! Closing the descriptors of RDMA devices that were removed.
//!
//! When a driver is removed, the kernel takes most devices away from their users, but not its
//! software devices: `rdma link delete` waits until no process has the device open. librdmacm keeps
//! every device open that it has used, and looks for removed ones only when it meets a new one. So
//! when the last connection of a removed device has ended, its descriptors are replaced by
//! descriptors of an eventfd; librdmacm closes those at some later time.

use parking_lot::Mutex;
use rdma_sys as ib;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{DupFlags, dup3};
use std::ffi::CStr;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;

/// A device that librdmacm has open.
struct OpenDevice {
    /// The descriptors for commands and for events, each with the file that it refers to.
    fds: [(RawFd, PathBuf); 2],
    /// A path that exists as long as the device.
    sysfs: PathBuf,
    /// Number of identifiers that use the device.
    users: usize,
}

static OPEN_DEVICES: Mutex<Vec<OpenDevice>> = Mutex::new(Vec::new());

/// The file that a descriptor refers to.
fn target_of(fd: RawFd) -> Option<PathBuf> {
    let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
    let text = link.to_str()?;
    Some(text.strip_suffix(" (deleted)").unwrap_or(text).into())
}

/// Counts an identifier that uses a device. The value is the argument of [`release`].
///
/// # Safety
/// The context is open.
pub(crate) unsafe fn acquire(context: *mut ib::ibv_context) -> Option<RawFd> {
    // SAFETY: the caller vouches for the context; its device's path is a C string.
    let (fds, sysfs) = unsafe {
        let path = CStr::from_ptr((*(*context).device).dev_path.as_ptr());
        let fds = [(*context).cmd_fd, (*context).async_fd];
        (fds, PathBuf::from(path.to_string_lossy().into_owned()))
    };
    let mut devices = OPEN_DEVICES.lock();
    let fds = [(fds[0], target_of(fds[0])?), (fds[1], target_of(fds[1])?)];
    let command = fds[0].0;
    match devices
        .iter_mut()
        .find(|h| h.fds == fds && h.sysfs == sysfs)
    {
        Some(device) => device.users += 1,
        None => {
            // An earlier device with these numbers is closed.
            devices.retain(|h| h.fds[0].0 != command);
            devices.push(OpenDevice {
                fds,
                sysfs,
                users: 1,
            });
        }
    }
    Some(command)
}

/// An identifier is gone, which used the device of this descriptor, if any.
pub(crate) fn release(command: Option<RawFd>) {
    let mut devices = OPEN_DEVICES.lock();
    let mine = |device: &&mut OpenDevice| Some(device.fds[0].0) == command;
    if let Some(device) = devices.iter_mut().find(mine) {
        device.users = device.users.saturating_sub(1);
    }
    close_removed(&mut devices);
}

/// Replaces the descriptors of devices that are removed and not in use.
fn close_removed(devices: &mut Vec<OpenDevice>) {
    devices.retain(|device| {
        if device.users > 0 || device.sysfs.exists() {
            return true;
        }
        for (fd, was) in &device.fds {
            // librdmacm may have closed it, and another file may have the number now.
            if target_of(*fd).as_ref() == Some(was) {
                replace(*fd);
            }
        }
        tracing::info!(device = %device.sysfs.display(), "released an RDMA device that is gone");
        false
    });
}

/// Makes a descriptor refer to an eventfd, which does not understand a device's requests.
fn replace(fd: RawFd) {
    let Ok(nothing) = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) else {
        return;
    };
    // SAFETY: the descriptor is open and belongs to librdmacm; this process no longer uses its
    // device. It is never dropped here, because librdmacm closes it.
    let mut replaced = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd) });
    // dup3 closes what `fd` was. If it fails, nothing changes.
    let _ = dup3(&nothing, &mut replaced, DupFlags::CLOEXEC);
}
