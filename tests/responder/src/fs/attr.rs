//! GETATTR, SETATTR and ACCESS (RFC 1813 sections 3.3.1, 3.3.2, 3.3.4).

use super::attributes::{MODE_BITS, stat};
use super::variants::PreOp;
use super::{FileSystem, Identity, Inode, Result, inode::proc_path, status};
use crate::sys;
use nfsrdma_xdr::nfs3::{
    AccessArgs, AccessOk, AccessRes, FileType, GetattrArgs, GetattrOk, GetattrRes, Reply,
    SetAttributes, SetTime, SetattrArgs, SetattrRes, Status, Void, access,
};
use rustix::fs::{AtFlags, Gid, Mode, Timespec, Timestamps, Uid};
use std::sync::atomic::{AtomicBool, Ordering};

impl FileSystem {
    pub fn getattr(&self, args: &GetattrArgs) -> GetattrRes {
        match self.resolve(&args.object).and_then(|i| self.attributes(&i)) {
            Ok(attributes) => Reply::Ok(GetattrOk { attributes }),
            Err(status) => Reply::Fail(status, Void {}),
        }
    }

    pub fn setattr(&self, who: &Identity, args: &SetattrArgs) -> SetattrRes {
        let inode = match self.resolve(&args.object) {
            Ok(inode) => inode,
            Err(status) => return Reply::Fail(status, Default::default()),
        };
        let change = self.begin(&inode, false);
        let now = match self.variants.pre_op() {
            PreOp::Always | PreOp::NotForWrite => change.before,
            PreOp::Never | PreOp::NotAtomic => self.before(&inode),
        };
        let done = match (args.guard, &now) {
            // The guard is compared with the current ctime (section 3.3.2).
            (Some(guard), Some(now)) if guard != now.ctime => Err(Status::NotSync),
            (_, None) => Err(Status::Stale),
            _ => self.set(who, &inode, &args.new),
        };
        let wcc = self.end(change, &inode);
        match done {
            Ok(()) => Reply::Ok(wcc),
            Err(status) => Reply::Fail(status, wcc),
        }
    }

    /// Applies `new` as `who`.
    pub(super) fn set(&self, who: &Identity, inode: &Inode, new: &SetAttributes) -> Result<()> {
        if let Some(size) = new.size {
            self.set_size(who, inode, size)?;
        }
        self.assume(who)?;
        if new.uid.is_some() || new.gid.is_some() {
            let uid = valid(new.uid)?.map(Uid::from_raw);
            let gid = valid(new.gid)?.map(Gid::from_raw);
            rustix::fs::chownat(inode.fd(), c"", uid, gid, AtFlags::EMPTY_PATH)
                .map_err(status::of)?;
        }
        // The mode is set after the owner, because a change of the owner clears the set-id bits.
        if let Some(mode) = new.mode
            && inode.kind != FileType::Symlink
        {
            set_mode(inode, mode & MODE_BITS)?;
        }
        if (new.atime, new.mtime) != (SetTime::Keep, SetTime::Keep) {
            let times = Timestamps {
                last_access: timespec(new.atime)?,
                last_modification: timespec(new.mtime)?,
            };
            rustix::fs::utimensat(inode.fd(), c"", &times, AtFlags::EMPTY_PATH)
                .map_err(status::of)?;
            let by_client = |time| match time {
                SetTime::To(time) => Some(time),
                SetTime::Keep | SetTime::ToServerTime => None,
            };
            self.variants
                .client_set(inode.key(), by_client(new.atime), by_client(new.mtime));
            if let Some(overlay) = &self.overlay
                && new.mtime != SetTime::Keep
            {
                overlay.discard_change_time(inode.handle);
            }
        }
        Ok(())
    }

    fn set_size(&self, who: &Identity, inode: &Inode, size: u64) -> Result<()> {
        match inode.kind {
            FileType::Regular => {}
            FileType::Directory => return Err(Status::IsDir),
            _ => return Err(Status::Inval),
        }
        if size > self.max_file_size(inode) {
            return Err(Status::FBig);
        }
        self.check(who, inode, libc::W_OK, true)?;
        let writer = self.writer(inode)?;
        self.assume(who)?;
        rustix::fs::ftruncate(&*writer, size).map_err(status::of)?;
        if let Some(overlay) = &self.overlay {
            overlay.truncate(inode.handle, size);
        }
        Ok(())
    }

    /// ACCESS. The result is only advice: each call is checked when it comes.
    pub fn access(&self, who: &Identity, args: &AccessArgs) -> AccessRes {
        let inode = match self.resolve(&args.object) {
            Ok(inode) => inode,
            Err(status) => return Reply::Fail(status, None),
        };
        let attributes = match self.attributes(&inode) {
            Ok(attributes) => attributes,
            Err(status) => return Reply::Fail(status, None),
        };
        if let Err(status) = self.assume(who) {
            return Reply::Fail(status, Some(attributes));
        }
        let may = |mode| sys::may_access(inode.fd(), mode).is_ok();
        let directory = inode.is_directory();
        // The meaning of each bit for a directory and for other objects (section 3.3.4).
        let read = access::READ;
        let write = match directory {
            true => access::MODIFY | access::EXTEND | access::DELETE,
            false => access::MODIFY | access::EXTEND,
        };
        let execute = match directory {
            true => access::LOOKUP,
            false => access::EXECUTE,
        };
        let granted = [
            (read, libc::R_OK),
            (write, libc::W_OK),
            (execute, libc::X_OK),
        ]
        .into_iter()
        .filter(|&(bits, mode)| args.access & bits != 0 && may(mode))
        .fold(0, |all, (bits, _)| all | bits);
        Reply::Ok(AccessOk {
            attributes: Some(attributes),
            access: granted & args.access,
        })
    }

    /// Whether an exclusive CREATE with `times` made this file (see CREATE).
    pub(super) fn created_by(&self, inode: &Inode, times: (u32, u32)) -> Result<bool> {
        let stat = stat(inode.fd())?;
        Ok(inode.is_regular()
            && stat.st_size == 0
            && stat.st_atime == i64::from(times.0)
            && stat.st_mtime == i64::from(times.1))
    }
}

/// Sets the mode. fchmod(2) does not accept an `O_PATH` descriptor. fchmodat2(2) does, but only
/// since Linux 6.6; before that, the descriptor's entry in /proc is used.
fn set_mode(inode: &Inode, mode: u32) -> Result<()> {
    static IS_NEW: AtomicBool = AtomicBool::new(true);
    if IS_NEW.load(Ordering::Relaxed) {
        match sys::change_mode(inode.fd(), mode) {
            // A sandbox that does not know the call may refuse it with another error.
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
                if e.raw_os_error() == Some(libc::ENOSYS) {
                    IS_NEW.store(false, Ordering::Relaxed);
                }
            }
            result => return result.map_err(status::of_io),
        }
    }
    let (path, mode) = (proc_path(inode.fd()), Mode::from_raw_mode(mode));
    rustix::fs::chmodat(rustix::fs::CWD, path, mode, AtFlags::empty()).map_err(status::of)
}

/// Rejects the ids that mean "keep" to the kernel.
fn valid(id: Option<u32>) -> Result<Option<u32>> {
    match id {
        Some(u32::MAX) => Err(Status::Inval),
        id => Ok(id),
    }
}

pub(super) fn timespec(time: SetTime) -> Result<Timespec> {
    let (tv_sec, tv_nsec) = match time {
        SetTime::Keep => (0, rustix::fs::UTIME_OMIT),
        SetTime::ToServerTime => (0, rustix::fs::UTIME_NOW),
        SetTime::To(t) if t.nanoseconds >= 1_000_000_000 => return Err(Status::Inval),
        SetTime::To(t) => (i64::from(t.seconds), i64::from(t.nanoseconds)),
    };
    Ok(Timespec { tv_sec, tv_nsec })
}
