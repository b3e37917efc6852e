//! LOOKUP, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK
//! (RFC 1813 sections 3.3.3 and 3.3.8 to 3.3.15).

use super::attr::timespec;
use super::attributes::{self, MODE_BITS, stat};
use super::{FileSystem, Identity, Inode, Result, inode::proc_path, search, status};
use nfsrdma_xdr::nfs3::{
    Attributes, CreateArgs, CreateHow, CreateRes, Created, DirOp, FileHandle, LinkArgs, LinkRes,
    LinkWcc, LookupArgs, LookupOk, LookupRes, MkdirArgs, MknodArgs, MknodWhat, Name, RemoveArgs,
    RemoveRes, RenameArgs, RenameRes, RenameWcc, Reply, SetAttributes, SetTime, SpecData, Status,
    SymlinkArgs, Time, Verifier, WccData,
};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, Timestamps};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Checks a name that can be made or removed: one component, but neither `.` nor `..`.
fn plain<'a>(name: Name<'a>, dots: Status) -> Result<&'a [u8]> {
    match name.0 {
        b"." | b".." => Err(dots),
        _ if name.0.len() > nfsrdma_xdr::nfs3::NAME_MAX => Err(Status::NameTooLong),
        _ if !name.is_component() => Err(Status::Inval),
        name => Ok(name),
    }
}

fn mode(new: &SetAttributes, default: u32) -> Mode {
    Mode::from_raw_mode(new.mode.unwrap_or(default) & MODE_BITS)
}

/// The times that an exclusive CREATE sets on the file, derived from its verifier: 31 bits each,
/// which every file system can store.
fn times_of(verifier: Verifier) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = verifier.0;
    let half = |bytes| u32::from_be_bytes(bytes) & 0x7fff_ffff;
    (half([a, b, c, d]), half([e, f, g, h]))
}

/// The object that was made, and its stat if nothing was changed after that was taken.
type Made = (Arc<Inode>, Option<Stat>);

impl FileSystem {
    pub fn lookup(&self, who: &Identity, args: &LookupArgs<'_>) -> LookupRes {
        let dir = match self.resolve(&args.what.dir) {
            Ok(dir) => dir,
            Err(status) => return Reply::Fail(status, None),
        };
        let found = self.find(who, &dir, args.what.name);
        match found {
            Ok((object, attributes)) => Reply::Ok(LookupOk {
                object,
                attributes: Some(attributes),
                dir: self.post(&dir),
            }),
            Err(status) => Reply::Fail(status, self.post(&dir)),
        }
    }

    fn find(
        &self,
        who: &Identity,
        dir: &Arc<Inode>,
        name: Name<'_>,
    ) -> Result<(FileHandle, Attributes)> {
        if !dir.is_directory() {
            return Err(Status::NotDir);
        }
        match name.0 {
            b"." | b".." => {
                self.check(who, dir, libc::X_OK, false)?;
                let found = match name.0 {
                    b"." => dir.clone(),
                    _ => self.parent(dir)?,
                };
                Ok((found.handle, self.attributes(&found)?))
            }
            _ => {
                let name = plain(name, Status::Inval)?;
                self.assume(who)?;
                let (found, stat) = self.child(dir, name)?;
                Ok((found.handle, self.attributes_at(&found, &stat)?))
            }
        }
    }

    /// The directory above `dir`, or `dir` itself at the root of its export.
    pub(super) fn parent(&self, dir: &Inode) -> Result<Arc<Inode>> {
        let export = self.export(dir);
        if export.is_root(dir) {
            return self.resolve(&dir.handle);
        }
        let fd = self.server(|| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::openat(dir.fd(), c"..", flags, Mode::empty()).map_err(status::of)
        })?;
        // Somebody may have moved the directory out of the export.
        if !export.contains(fd.as_fd())? {
            return Err(Status::Stale);
        }
        Ok(self.adopt(dir.export, fd, None)?.0)
    }

    /// Runs `make` in the directory, and answers with the object that it made.
    fn create_in(
        &self,
        who: &Identity,
        at: &DirOp<'_>,
        make: impl FnOnce(&Arc<Inode>, &[u8]) -> Result<Made>,
    ) -> CreateRes {
        let dir = match self.resolve(&at.dir) {
            Ok(dir) => dir,
            Err(status) => return Reply::Fail(status, WccData::default()),
        };
        let change = self.begin(&dir, false);
        let made = (|| {
            if !dir.is_directory() {
                return Err(Status::NotDir);
            }
            let name = plain(at.name, Status::Exist)?;
            self.assume(who)?;
            let made = make(&dir, name)?;
            Ok(made)
        })();
        let wcc = self.end(change, &dir);
        match made {
            Ok((made, stat)) => Reply::Ok(Created {
                object: Some(made.handle),
                attributes: match stat {
                    Some(stat) => self.attributes_at(&made, &stat).ok(),
                    None => self.post(&made),
                },
                dir: wcc,
            }),
            Err(status) => Reply::Fail(status, wcc),
        }
    }

    /// Sets the attributes that the creation of an object did not set. Only the superuser gives
    /// objects away. For others the requested owner is ignored, because it is the caller.
    fn finished(
        &self,
        who: &Identity,
        (made, stat): (Arc<Inode>, Stat),
        new: &SetAttributes,
    ) -> Result<Made> {
        let mut rest = SetAttributes { mode: None, ..*new };
        let superuser = self.settings.mapping.privileged && who.uid == 0;
        if !superuser || rest.uid == Some(stat.st_uid) {
            rest.uid = None;
        }
        if rest.gid == Some(stat.st_gid) {
            rest.gid = None;
        }
        // If the creation dropped a set-id bit, or a directory's default ACL masked it, it is not
        // forced. It is set only if the caller may set it.
        if rest.uid.is_some() || rest.gid.is_some() {
            rest.mode = new.mode;
        }
        // A new file is empty already, and the kernel would count truncating it as another change.
        if rest.size == Some(0) && stat.st_size == 0 {
            rest.size = None;
        }
        if rest == SetAttributes::default() {
            return Ok((made, Some(stat)));
        }
        self.set(who, &made, &rest)?;
        Ok((made, None))
    }

    pub fn create(&self, who: &Identity, args: &CreateArgs<'_>) -> CreateRes {
        self.create_in(who, &args.at, |dir, name| match &args.how {
            CreateHow::Unchecked(new) => match self.create_file(dir, name, mode(new, 0o666)) {
                Err(Status::Exist) => self.existing(who, dir, name, new.size),
                made => self.finished(who, made?, new),
            },
            CreateHow::Guarded(new) => {
                let made = self.create_file(dir, name, mode(new, 0o666))?;
                self.finished(who, made, new)
            }
            CreateHow::Exclusive(verifier) => self.create_exclusive(who, dir, name, *verifier),
        })
    }

    fn create_file(&self, dir: &Inode, name: &[u8], mode: Mode) -> Result<(Arc<Inode>, Stat)> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW;
        let fd = rustix::fs::openat(dir.fd(), name, flags | OFlags::CLOEXEC, mode)
            .map_err(status::of)?;
        let fd = Arc::new(fd);
        let (inode, stat) = self.adopt(dir.export, fd.clone(), Some((dir, name)))?;
        inode.keep_writer(fd);
        Ok((inode, stat))
    }

    /// UNCHECKED for an existing name: only the size is set.
    fn existing(
        &self,
        who: &Identity,
        dir: &Arc<Inode>,
        name: &[u8],
        size: Option<u64>,
    ) -> Result<Made> {
        let (inode, _) = self.child(dir, name)?;
        if inode.is_directory() {
            return Err(Status::Exist);
        }
        if let Some(size) = size
            && inode.is_regular()
        {
            let new = SetAttributes {
                size: Some(size),
                ..Default::default()
            };
            // The lock of the name is held. The lock of the file is not needed, because the reply
            // has no wcc_data of the file.
            self.set(who, &inode, &new)?;
        }
        Ok((inode, None))
    }

    /// As [`FileSystem::create_file`] without any mode, but the file has `times` before it has its
    /// name: if this program is killed, the name is there with them, or not at all. Not every file
    /// system can do that; then the times come afterwards.
    fn create_with_times(
        &self,
        dir: &Inode,
        name: &[u8],
        times: &Timestamps,
    ) -> Result<(Arc<Inode>, Stat)> {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let fd = match rustix::fs::openat(dir.fd(), c".", flags, Mode::empty()) {
            Ok(fd) => Arc::new(fd),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                return self.create_file(dir, name, Mode::empty());
            }
            Err(errno) => return Err(status::of(errno)),
        };
        rustix::fs::futimens(&*fd, times).map_err(status::of)?;
        let (path, follow) = (proc_path(fd.as_fd()), AtFlags::SYMLINK_FOLLOW);
        rustix::fs::linkat(rustix::fs::CWD, path, dir.fd(), name, follow).map_err(status::of)?;
        let (inode, stat) = self.adopt(dir.export, fd.clone(), Some((dir, name)))?;
        inode.keep_writer(fd);
        Ok((inode, stat))
    }

    /// EXCLUSIVE (section 3.3.8). The verifier is stored in the times of the file, so that a
    /// retransmission is recognised, also by the next process after this one was killed. The client
    /// sets the times afterwards anyway.
    fn create_exclusive(
        &self,
        who: &Identity,
        dir: &Arc<Inode>,
        name: &[u8],
        verifier: Verifier,
    ) -> Result<Made> {
        let (atime, mtime) = times_of(verifier);
        let at = |seconds| {
            SetTime::To(Time {
                seconds,
                nanoseconds: 0,
            })
        };
        let times = SetAttributes {
            atime: at(atime),
            mtime: at(mtime),
            ..Default::default()
        };
        let first = Timestamps {
            last_access: timespec(times.atime)?,
            last_modification: timespec(times.mtime)?,
        };
        match self.create_with_times(dir, name, &first) {
            Ok(made) => self.finished(who, made, &times),
            Err(Status::Exist) => {
                let (found, _) = self.child(dir, name)?;
                match self.created_by(&found, (atime, mtime))? {
                    true => Ok((found, None)),
                    false => Err(Status::Exist),
                }
            }
            Err(status) => Err(status),
        }
    }

    pub fn mkdir(&self, who: &Identity, args: &MkdirArgs<'_>) -> CreateRes {
        self.create_in(who, &args.at, |dir, name| {
            let new = &args.attributes;
            rustix::fs::mkdirat(dir.fd(), name, mode(new, 0o777)).map_err(status::of)?;
            let (made, mut now) = self.child(dir, name)?;
            // mkdir(2) drops requested set-id bits.
            let asked = new.mode.unwrap_or(0) & 0o6000;
            if asked != 0 && now.st_mode & asked != asked {
                let bits = SetAttributes {
                    mode: new.mode,
                    ..Default::default()
                };
                self.set(who, &made, &bits)?;
                now = stat(made.fd())?;
            }
            self.finished(who, (made, now), &SetAttributes { size: None, ..*new })
        })
    }

    /// SYMLINK. `path` has the bytes of the link.
    pub fn symlink(&self, who: &Identity, args: &SymlinkArgs<'_>, path: &[u8]) -> CreateRes {
        self.create_in(who, &args.at, |dir, name| {
            if path.is_empty() || path.contains(&0) {
                return Err(Status::Inval);
            }
            rustix::fs::symlinkat(path, dir.fd(), name).map_err(status::of)?;
            let made = self.child(dir, name)?;
            let new = SetAttributes {
                size: None,
                ..args.attributes
            };
            self.finished(who, made, &new)
        })
    }

    pub fn mknod(&self, who: &Identity, args: &MknodArgs<'_>) -> CreateRes {
        self.create_in(who, &args.at, |dir, name| {
            let none = SpecData::default();
            let (kind, new, device) = match &args.what {
                MknodWhat::Character(new, device) => (FileType::CharacterDevice, new, *device),
                MknodWhat::Block(new, device) => (FileType::BlockDevice, new, *device),
                MknodWhat::Socket(new) => (FileType::Socket, new, none),
                MknodWhat::Fifo(new) => (FileType::Fifo, new, none),
                MknodWhat::Other(_) => return Err(Status::BadType),
            };
            let device = rustix::fs::makedev(device.major, device.minor);
            rustix::fs::mknodat(dir.fd(), name, kind, mode(new, 0o666), device)
                .map_err(status::of)?;
            let made = self.child(dir, name)?;
            self.finished(who, made, &SetAttributes { size: None, ..*new })
        })
    }

    pub fn remove(&self, who: &Identity, args: &RemoveArgs<'_>) -> RemoveRes {
        self.unlink(who, &args.what, AtFlags::empty())
    }

    pub fn rmdir(&self, who: &Identity, args: &RemoveArgs<'_>) -> RemoveRes {
        self.unlink(who, &args.what, AtFlags::REMOVEDIR)
    }

    fn unlink(&self, who: &Identity, what: &DirOp<'_>, flags: AtFlags) -> RemoveRes {
        let dir = match self.resolve(&what.dir) {
            Ok(dir) => dir,
            Err(status) => return Reply::Fail(status, WccData::default()),
        };
        let mut victim = None;
        let change = self.begin(&dir, false);
        let done = (|| {
            if !dir.is_directory() {
                return Err(Status::NotDir);
            }
            let name = plain(what.name, Status::Inval)?;
            self.assume(who)?;
            victim = self.victim(&dir, name);
            rustix::fs::unlinkat(dir.fd(), name, flags).map_err(status::of)
        })();
        let wcc = self.end(change, &dir);
        if done.is_ok() {
            self.bury(&dir, victim);
        }
        match done {
            Ok(()) => Reply::Ok(wcc),
            Err(status) => Reply::Fail(status, wcc),
        }
    }

    /// Opens the object that has `name`, to hold it while it is removed or replaced.
    fn victim(&self, dir: &Inode, name: &[u8]) -> Option<OwnedFd> {
        super::open_component(dir.fd(), name).ok()
    }

    /// Forgets an object in the export of `dir` whose name was removed, if that was its last name.
    fn bury(&self, dir: &Inode, victim: Option<OwnedFd>) {
        let Some(fd) = victim else { return };
        let Ok(stat) = stat(fd.as_fd()) else { return };
        if stat.st_nlink > 0 && attributes::kind(&stat) != nfsrdma_xdr::nfs3::FileType::Directory {
            return;
        }
        let id = self.export(dir).id;
        let object = search::identify(fd.as_fd(), &stat).ok();
        let handle = object.and_then(|object| self.settings.key.seal(id, &object));
        // An object that has no handle any more is recognised by its link count at its next use.
        if let Some(handle) = handle {
            self.cache.forget(&handle);
            if let Some(overlay) = &self.overlay {
                overlay.forget(handle);
            }
        }
    }

    pub fn rename(&self, who: &Identity, args: &RenameArgs<'_>) -> RenameRes {
        let dirs = self
            .resolve(&args.from.dir)
            .and_then(|from| Ok((from, self.resolve(&args.to.dir)?)));
        let (from, to) = match dirs {
            Ok(dirs) => dirs,
            Err(status) => return Reply::Fail(status, RenameWcc::default()),
        };
        let mut victim = None;
        let apart = (self.before_apart(&from), self.before_apart(&to));
        let mut locks = Some(self.lock_two(&from, &to));
        let before = (
            self.pre_op(apart.0, &from, false),
            self.pre_op(apart.1, &to, false),
        );
        let done = (|| {
            if from.export != to.export {
                return Err(Status::XDev);
            }
            if !from.is_directory() || !to.is_directory() {
                return Err(Status::NotDir);
            }
            let old = plain(args.from.name, Status::Inval)?;
            let new = plain(args.to.name, Status::Inval)?;
            self.assume(who)?;
            victim = self.victim(&to, new);
            rustix::fs::renameat(from.fd(), old, to.fd(), new).map_err(|errno| match errno {
                // Some file systems return this for a target directory with entries.
                Errno::EXIST => Status::NotEmpty,
                errno => status::of(errno),
            })
        })();
        self.gap_after(&mut locks);
        let wcc = RenameWcc {
            from_dir: WccData {
                before: before.0,
                after: self.post(&from),
            },
            to_dir: WccData {
                before: before.1,
                after: self.post(&to),
            },
        };
        drop(locks);
        match done {
            Ok(()) => {
                self.bury(&to, victim);
                Reply::Ok(wcc)
            }
            Err(status) => Reply::Fail(status, wcc),
        }
    }

    pub fn link(&self, who: &Identity, args: &LinkArgs<'_>) -> LinkRes {
        let both = self
            .resolve(&args.file)
            .and_then(|file| Ok((file, self.resolve(&args.link.dir)?)));
        let (file, dir) = match both {
            Ok(both) => both,
            Err(status) => return Reply::Fail(status, LinkWcc::default()),
        };
        let change = self.begin(&dir, false);
        let done = (|| {
            if file.export != dir.export {
                return Err(Status::XDev);
            }
            if !dir.is_directory() {
                return Err(Status::NotDir);
            }
            if file.is_directory() {
                return Err(Status::IsDir);
            }
            let name = plain(args.link.name, Status::Exist)?;
            self.assume(who)?;
            // This follows the descriptor's entry in /proc, which is the object itself, even if
            // that is a symbolic link. (Linking a descriptor directly needs a privilege.)
            let path = proc_path(file.fd());
            rustix::fs::linkat(
                rustix::fs::CWD,
                path,
                dir.fd(),
                name,
                AtFlags::SYMLINK_FOLLOW,
            )
            .map_err(status::of)
        })();
        let wcc = LinkWcc {
            attributes: self.post(&file),
            dir: self.end(change, &dir),
        };
        match done {
            Ok(()) => Reply::Ok(wcc),
            Err(status) => Reply::Fail(status, wcc),
        }
    }
}
