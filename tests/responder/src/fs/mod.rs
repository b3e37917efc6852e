//! The file system behind the NFS procedures: exports, objects by handle, and the work of
//! each procedure in the name of its caller.
//!
//! Every object is reached through a descriptor opened with `O_PATH | O_NOFOLLOW`, and every
//! name is one component looked up in such a descriptor, so no symbolic link is followed
//! and nothing outside an export is reached whatever others do to the tree meanwhile.

pub mod acl;
pub mod attr;
mod attributes;
pub mod dir;
mod export;
pub mod file;
pub mod handle;
pub mod identity;
pub mod info;
mod inode;
mod lock;
pub mod modify;
mod overlay;
mod search;
pub mod status;
mod sync;
pub mod variants;

pub use attributes::DOORS;
pub use export::{Export, ExportSpec};
pub use identity::{Identity, Mapping};
pub use inode::Inode;
pub use status::Result;

use crate::sys;
use attributes::stat;
use export::open_component;
use handle::Key;
use inode::Cache;
use nfsrdma_xdr::nfs3::{Attributes, FileHandle, Status, Verifier, WccAttributes, WccData};
use overlay::Overlay;
use parking_lot::{Mutex, MutexGuard, RwLock};
use rustix::fs::Stat;
use search::Places;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use sync::SyncTime;
use variants::{PreOp, Variants};

/// How often to retry opening a handle after ENOMEM, and the pause before each attempt.
const ENOMEM_TRIES: usize = 50;
const ENOMEM_PAUSE: Duration = Duration::from_millis(1);

/// The settings of the file system.
#[derive(Debug, Clone)]
pub struct Settings {
    pub exports: Vec<ExportSpec>,
    pub key: Key,
    pub mapping: Mapping,
    /// Largest READ and WRITE, in bytes.
    pub rtmax: u32,
    pub wtmax: u32,
    /// Largest file size, in bytes; `None` is the limit of the exported file system.
    pub max_file_size: Option<u64>,
    /// Whether to keep UNSTABLE data in memory until COMMIT.
    pub fake_unstable: bool,
    /// Most objects that are kept open.
    pub cache_size: usize,
    /// Habits of other servers.
    pub variants: variants::Settings,
}

/// The number of locks that keep other changes out of "before", change and "after".
const LOCKS: usize = 64;

/// The exported file systems.
#[derive(Debug)]
pub struct FileSystem {
    exports: Vec<Export>,
    settings: Settings,
    cache: Cache,
    places: Places,
    locks: [Mutex<()>; LOCKS],
    overlay: Option<Overlay>,
    /// Recent durations of fsync.
    pub(crate) syncs: SyncTime,
    /// Changes whenever uncommitted data may have been lost (RFC 1813 section 3.3.7). A WRITE holds
    /// it from accepting data until the verifier is in its reply, so that a restart falls between
    /// calls.
    write_verifier: RwLock<Verifier>,
    variants: Variants,
}

/// A change of an object in progress. Other changes by this server wait, unless the settings ask
/// for attributes that are taken apart from the change.
#[derive(Debug)]
struct Change<'a> {
    lock: MutexGuard<'a, ()>,
    before: Option<WccAttributes>,
}

fn new_verifier() -> io::Result<Verifier> {
    let mut verifier = [0; 8];
    getrandom::fill(&mut verifier).map_err(|e| io::Error::other(e.to_string()))?;
    Ok(Verifier(verifier))
}

impl FileSystem {
    /// Opens the exports.
    pub fn new(settings: Settings) -> io::Result<Self> {
        let mut exports: Vec<Export> = Vec::new();
        for spec in &settings.exports {
            let export = Export::open(spec).map_err(|e| {
                io::Error::new(
                    e.kind(),
                    format!("cannot export {}: {e}", spec.dir.display()),
                )
            })?;
            if exports
                .iter()
                .any(|e| e.name == export.name || e.id == export.id)
            {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!(
                        "two exports are called {}",
                        String::from_utf8_lossy(&export.name)
                    ),
                ));
            }
            exports.push(export);
        }
        Ok(FileSystem {
            exports,
            cache: Cache::new(settings.cache_size),
            places: Places::default(),
            locks: [const { Mutex::new(()) }; LOCKS],
            overlay: settings.fake_unstable.then(Overlay::default),
            syncs: SyncTime::default(),
            write_verifier: RwLock::new(new_verifier()?),
            variants: Variants::new(&settings.variants),
            settings,
        })
    }

    /// The exports, in the order given.
    pub fn exports(&self) -> &[Export] {
        &self.exports
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The imitated habits of other servers, which can be changed.
    pub fn variants(&self) -> &Variants {
        &self.variants
    }

    /// Does what a restart does to the file system: drops UNSTABLE data held in memory, and changes
    /// the write verifier.
    pub fn restart(&self) -> io::Result<()> {
        let mut verifier = self.write_verifier.write();
        *verifier = new_verifier()?;
        if let Some(overlay) = &self.overlay {
            overlay.forget_all();
        }
        Ok(())
    }

    /// Closes descriptors that nobody has used for `idle`. They occupy the space of removed files,
    /// and prevent programs from being executed on this machine.
    pub fn close_idle(&self, idle: Duration) {
        self.cache.expire(idle);
    }

    /// The handle of the root of the export called `path`, or of a directory below one.
    pub fn mount(&self, path: &[u8]) -> Result<FileHandle> {
        let path = trim(path);
        let (index, rest) = self
            .exports
            .iter()
            .enumerate()
            .filter_map(|(i, e)| Some((i, below(path, trim(&e.name))?)))
            // The export with the longest name, since exports may be nested.
            .min_by_key(|(_, rest)| rest.len())
            .ok_or(Status::Access)?;
        self.settings.mapping.assume(&Identity::SERVER)?;
        let mut inode = self.adopt(index, self.exports[index].open_root()?, None)?.0;
        for name in rest
            .split(|&b| b == b'/')
            .filter(|c| !c.is_empty() && *c != b".")
        {
            if name == b".." {
                return Err(Status::Access);
            }
            inode = self.child(&inode, name)?.0;
            if !inode.is_directory() {
                return Err(Status::NotDir);
            }
        }
        Ok(inode.handle)
    }

    /// The number of the export that has the object, and whether the object is its root. Afterwards
    /// the calling thread may have the server's identity.
    pub fn export_of(&self, handle: &FileHandle) -> Result<(usize, bool)> {
        let inode = self.resolve(handle)?;
        Ok((inode.export, self.export(&inode).is_root(&inode)))
    }

    /// The largest size of a file in the file system of `inode`.
    fn max_file_size(&self, inode: &Inode) -> u64 {
        let most = self.export(inode).max_file_size;
        self.settings
            .max_file_size
            .map_or(most, |max| max.min(most))
    }

    fn export(&self, inode: &Inode) -> &Export {
        &self.exports[inode.export]
    }

    /// The object that a handle names. Afterwards the calling thread may have the server's
    /// identity, so take the caller's next.
    fn resolve(&self, handle: &FileHandle) -> Result<Arc<Inode>> {
        if let Some(inode) = self.cache.get(handle) {
            return Ok(inode);
        }
        let (id, object) = self.settings.key.open(handle).ok_or(Status::BadHandle)?;
        let index = self
            .exports
            .iter()
            .position(|e| e.id == id)
            // The handle was made with this key, but its export does not exist any more.
            .ok_or(Status::Stale)?;
        self.settings.mapping.assume(&Identity::SERVER)?;
        let export = &self.exports[index];
        let fd = self.open_object(index, &object)?;
        let stat = stat(fd.as_fd())?;
        if stat.st_nlink == 0 || stat.st_dev != export.device {
            return Err(Status::Stale);
        }
        let inode = Arc::new(Inode::new(index, *handle, fd.into(), &stat));
        // A directory that was moved out of the export must not be used. Its path shows that.
        if inode.is_directory() && !export.contains(inode.fd())? {
            return Err(Status::Stale);
        }
        Ok(self.cache.insert(inode))
    }

    fn open_object(&self, index: usize, object: &sys::KernelHandle) -> Result<OwnedFd> {
        let export = &self.exports[index];
        if let Some(mount) = &export.mount
            && object.kind >= 0
            && self.settings.mapping.privileged
        {
            match open_when_made(mount.as_fd(), object) {
                Ok(fd) => return Ok(fd),
                // This is not permitted here (a container without CAP_DAC_READ_SEARCH), or not
                // supported by the file system. The object is found by name instead.
                Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EOPNOTSUPP)) => {}
                Err(e) => return Err(status::of_io(e)),
            }
        }
        self.places.find(export, object).ok_or(Status::Stale)
    }

    /// The inode of an object that was just opened as `name` in `parent`, and its stat.
    fn identify(
        &self,
        index: usize,
        fd: impl Into<Arc<OwnedFd>>,
        place: Option<(&Inode, &[u8])>,
    ) -> Result<(Arc<Inode>, Stat)> {
        let fd = fd.into();
        let stat = stat(fd.as_fd())?;
        let object = search::identify(fd.as_fd(), &stat)?;
        let id = self.exports[index].id;
        let key = &self.settings.key;
        let handle = key.seal(id, &object).ok_or(Status::ServerFault)?;
        let by_name = object.kind < 0 || !self.settings.mapping.privileged;
        if let Some((parent, name)) = place
            && by_name
            && let Some((_, parent)) = key.open(&parent.handle)
        {
            self.places.remember(id, object, parent, name);
        }
        if let Some(inode) = self.cache.get(&handle) {
            return Ok((inode, stat));
        }
        Ok((Arc::new(Inode::new(index, handle, fd, &stat)), stat))
    }

    /// Like [`FileSystem::identify`], and keeps the object open.
    fn adopt(
        &self,
        index: usize,
        fd: impl Into<Arc<OwnedFd>>,
        place: Option<(&Inode, &[u8])>,
    ) -> Result<(Arc<Inode>, Stat)> {
        let (inode, stat) = self.identify(index, fd, place)?;
        Ok((self.cache.insert(inode), stat))
    }

    /// Looks up one component with the calling thread's identity.
    fn child(&self, dir: &Inode, name: &[u8]) -> Result<(Arc<Inode>, Stat)> {
        let fd = open_component(dir.fd(), name).map_err(status::of)?;
        self.adopt(dir.export, fd, Some((dir, name)))
    }

    /// The current attributes; STALE if the object has no name any more.
    fn attributes(&self, inode: &Inode) -> Result<Attributes> {
        self.attributes_at(inode, &stat(inode.fd())?)
    }

    /// The attributes from a stat that was just taken.
    fn attributes_at(&self, inode: &Inode, stat: &Stat) -> Result<Attributes> {
        if stat.st_nlink == 0 {
            self.cache.forget(&inode.handle);
            return Err(Status::Stale);
        }
        Ok(self.attributes_of(inode, stat))
    }

    fn attributes_of(&self, inode: &Inode, stat: &Stat) -> Attributes {
        let mut attributes = attributes::from_stat(self.export(inode).fsid, stat);
        if let Some(overlay) = &self.overlay {
            overlay.adjust(inode.handle, &mut attributes);
        }
        self.variants.show_times(inode.key(), &mut attributes);
        attributes.fileid = self.variants.fileid(self.export(inode), inode, stat.st_ino);
        attributes
    }

    /// Post-op attributes, which are optional: `None` on any failure.
    fn post(&self, inode: &Inode) -> Option<Attributes> {
        self.attributes(inode).ok()
    }

    /// Attributes for the "before" of wcc_data. Must be taken under the object's lock.
    fn before(&self, inode: &Inode) -> Option<WccAttributes> {
        let now = self.attributes(inode).ok()?;
        Some(WccAttributes {
            size: now.size,
            mtime: now.mtime,
            ctime: now.ctime,
        })
    }

    /// The pre-operation attributes, if the settings ask for taking them some time before the
    /// change.
    fn before_apart(&self, inode: &Inode) -> Option<WccAttributes> {
        let gap = self.variants.gap()?;
        let before = self.before(inode);
        std::thread::sleep(gap);
        before
    }

    /// The pre-operation attributes that the reply shows: `apart`, the current ones, or none.
    fn pre_op(
        &self,
        apart: Option<WccAttributes>,
        inode: &Inode,
        write: bool,
    ) -> Option<WccAttributes> {
        match self.variants.pre_op() {
            PreOp::Never => None,
            PreOp::NotForWrite if write => None,
            PreOp::NotAtomic => apart,
            PreOp::Always | PreOp::NotForWrite => self.before(inode),
        }
    }

    /// Begins a change of `inode`. `write` is true for WRITE and COMMIT.
    fn begin(&self, inode: &Inode, write: bool) -> Change<'_> {
        let apart = self.before_apart(inode);
        let lock = self.lock(inode);
        Change {
            before: self.pre_op(apart, inode, write),
            lock,
        }
    }

    /// Ends a change of `inode`, whether it was made or not.
    fn end(&self, change: Change<'_>, inode: &Inode) -> WccData {
        let Change { lock, before } = change;
        let mut lock = Some(lock);
        self.gap_after(&mut lock);
        WccData {
            before,
            after: self.post(inode),
        }
    }

    /// Lets other changes in before the attributes after a change are taken, if the settings ask
    /// for that.
    fn gap_after<T>(&self, locks: &mut Option<T>) {
        if let Some(gap) = self.variants.gap() {
            locks.take();
            std::thread::sleep(gap);
        }
    }

    /// Keeps out other changes of `inode` by this server, so that the "before" and "after" of
    /// wcc_data enclose a single change.
    fn lock(&self, inode: &Inode) -> MutexGuard<'_, ()> {
        self.locks[stripe(inode)].lock()
    }

    /// [`FileSystem::lock`] for two objects.
    fn lock_two(&self, a: &Inode, b: &Inode) -> (MutexGuard<'_, ()>, Option<MutexGuard<'_, ()>>) {
        let (a, b) = (stripe(a), stripe(b));
        let first = self.locks[a.min(b)].lock();
        // In ascending order, so that two renames never wait for each other.
        let second = (a != b).then(|| self.locks[a.max(b)].lock());
        (first, second)
    }

    /// Gives the thread the caller's identity.
    fn assume(&self, who: &Identity) -> Result<()> {
        self.settings.mapping.assume(who)
    }

    /// Runs `work` with the server's identity.
    fn server<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.settings.mapping.assume(&Identity::SERVER)?;
        work()
    }

    /// Checks that `who` may use `inode` in `mode`. With `owner`, the owner is always permitted, as
    /// by a descriptor from the creation of a read-only file.
    fn check(&self, who: &Identity, inode: &Inode, mode: i32, owner: bool) -> Result<()> {
        if self.settings.mapping.privileged && who.uid == 0 && mode & libc::X_OK == 0 {
            return Ok(());
        }
        self.assume(who)?;
        let error = match sys::may_access(inode.fd(), mode) {
            Ok(()) => return Ok(()),
            Err(e) => e,
        };
        let own = match self.settings.mapping.privileged {
            true => who.uid,
            false => rustix::process::geteuid().as_raw(),
        };
        match error.raw_os_error() {
            Some(libc::EACCES) if owner && stat(inode.fd())?.st_uid == own => Ok(()),
            _ => Err(status::of_io(error)),
        }
    }
}

/// Opens an object by the kernel's handle, and retries after ENOMEM. For the handle of a removed
/// file, Linux returns ENOMEM while another file with the same inode number is being made (seen on
/// ext4, Linux 6.18), and ESTALE afterwards.
fn open_when_made(mount: BorrowedFd<'_>, object: &sys::KernelHandle) -> io::Result<OwnedFd> {
    for _ in 0..ENOMEM_TRIES {
        match sys::open_handle(mount, object, libc::O_PATH | libc::O_CLOEXEC) {
            Err(e) if e.raw_os_error() == Some(libc::ENOMEM) => {
                std::thread::sleep(ENOMEM_PAUSE);
            }
            other => return other,
        }
    }
    sys::open_handle(mount, object, libc::O_PATH | libc::O_CLOEXEC)
}

fn stripe(inode: &Inode) -> usize {
    inode.key().1 as usize % LOCKS
}

/// Removes slashes at the end.
fn trim(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&b| b != b'/').map_or(0, |at| at + 1);
    &path[..end]
}

/// The part of `path` below `root`.
fn below<'a>(path: &'a [u8], root: &[u8]) -> Option<&'a [u8]> {
    let rest = path.strip_prefix(root)?;
    (rest.is_empty() || rest[0] == b'/').then_some(rest)
}
