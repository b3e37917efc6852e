//! Closing the descriptors of RDMA devices that were removed.
//!
//! The kernel takes most devices from their users when a driver goes. Its software devices it
//! does not: `rdma link delete` waits until nobody has the device open. librdmacm keeps each
//! device open that it has ever used, and looks for dead ones only when it meets a new one.
//! So, once the last connection of a device that is gone has ended, its descriptors are
//! replaced by ones that refer to nothing; librdmacm closes those in its own time.

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
    /// That of commands, then that of events; with what each of them is.
    fds: [(RawFd, PathBuf); 2],
    /// There as long as the device is.
    sysfs: PathBuf,
    /// Identifiers that use it.
    users: usize,
}

static OPEN_DEVICES: Mutex<Vec<OpenDevice>> = Mutex::new(Vec::new());

/// What a descriptor refers to.
fn target_of(fd: RawFd) -> Option<PathBuf> {
    let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
    let text = link.to_str()?;
    Some(text.strip_suffix(" (deleted)").unwrap_or(text).into())
}

/// An identifier uses a device; the value is for [`release`].
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
            // What had these numbers before is closed.
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

/// An identifier that used the device of this descriptor, if any, is gone.
pub(crate) fn release(command: Option<RawFd>) {
    let mut devices = OPEN_DEVICES.lock();
    let mine = |device: &&mut OpenDevice| Some(device.fds[0].0) == command;
    if let Some(device) = devices.iter_mut().find(mine) {
        device.users = device.users.saturating_sub(1);
    }
    close_removed(&mut devices);
}

/// Looks for devices that are gone and used by nobody.
fn close_removed(devices: &mut Vec<OpenDevice>) {
    devices.retain(|device| {
        if device.users > 0 || device.sysfs.exists() {
            return true;
        }
        for (fd, was) in &device.fds {
            // Closed by librdmacm, and perhaps another's now.
            if target_of(*fd).as_ref() == Some(was) {
                replace(*fd);
            }
        }
        tracing::info!(device = %device.sysfs.display(), "released an RDMA device that is gone");
        false
    });
}

/// Makes a descriptor refer to an eventfd, which knows none of a device's requests.
fn replace(fd: RawFd) {
    let Ok(nothing) = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) else {
        return;
    };
    // SAFETY: the descriptor is open, and librdmacm's; nobody of ours uses its device any more.
    // It is never dropped here: librdmacm closes it.
    let mut replaced = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd) });
    // It closes what `fd` was. If that fails, everything stays as it is.
    let _ = dup3(&nothing, &mut replaced, DupFlags::CLOEXEC);
}
