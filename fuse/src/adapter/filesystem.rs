//! FUSE requests as calls of the file system.
//!
//! What memory can answer is answered on the thread that read the request. The rest becomes a
//! future that starts on this thread and answers on the one that gets the server's reply.

use super::FuseOptions;
use super::convert::{entry_attributes, errno, kind, set_time};
use super::credentials::Credentials;
use super::replies::{
    answer, answer_held, answer_or, done, file_flags, tell_absent, tell_attributes, tell_data,
    tell_entry,
};
use super::waiting::{Held, Waiting};
use crate::fs::{Entry, Found, Fs, FsResult, Opened};
use fuser::{
    AccessFlags, BsdFileFlags, Errno, FileAttr, FileHandle, Filesystem, FopenFlags, Generation,
    u64, InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek,
    ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use nfsrdma_client::exec;
use nfsrdma_client::nfs::{Cred, Nfs3};
use nfsrdma_xdr::nfs3::{FsstatOk, SetAttributes};
use nix::poll::{PollFd, PollFlags, PollTimeout};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(super) struct Adapter<N> {
    pub(super) fs: Arc<Fs<N>>,
    pub(super) credentials: Credentials,
    pub(super) waiting: Arc<Waiting>,
    /// Tells the kernel what it must not believe any more; there once the mount is.
    pub(super) notifier: Arc<OnceLock<fuser::Notifier>>,
    pub(super) options: FuseOptions,
    /// The FUSE device, to see whether there are more requests.
    pub(super) queue: Option<OwnedFd>,
}

/// Calls sent together, at most.
const MOST_DEFERRED: u32 = 16;

/// Whether the kernel has a request that nobody has read.
fn has_request(device: &OwnedFd) -> bool {
    let mut poll = [PollFd::new(device.as_fd(), PollFlags::POLLIN)];
    nix::poll::poll(&mut poll, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
        && poll[0]
            .revents()
            .is_some_and(|events| events == PollFlags::POLLIN)
}

/// Tells the kernel what is wanted of it.
pub fn negotiate(config: &mut KernelConfig, options: &FuseOptions) {
    for wanted in [
        InitFlags::FUSE_ATOMIC_O_TRUNC,
        InitFlags::FUSE_AUTO_INVAL_DATA,
        InitFlags::FUSE_DO_READDIRPLUS,
        InitFlags::FUSE_READDIRPLUS_AUTO,
        InitFlags::FUSE_ASYNC_DIO,
        InitFlags::FUSE_PARALLEL_DIROPS,
        InitFlags::FUSE_CACHE_SYMLINKS,
        // The server clears set-id bits (RFC 1813 section 4.8 leaves it to it).
        InitFlags::FUSE_HANDLE_KILLPRIV,
    ] {
        // An older kernel may lack one: it then does without.
        let _ = config.add_capabilities(wanted);
    }
    let _ = config.set_max_write(options.max_write);
    let most = config.set_max_readahead(u32::MAX).err();
    if let Some(most) = most {
        let _ = config.set_max_readahead(most);
    }
    let _ = config.set_max_background(options.max_background);
}

impl<N: Nfs3> Adapter<N> {
    fn cred(&self, request: &Header) -> Cred {
        self.credentials.of(request)
    }

    /// Runs an operation: now, and where it waits for the server, on the thread that gets the
    /// answer.
    fn start(&self, operation: impl Future<Output = ()> + Send + 'static) {
        match self.queue {
            Some(_) => exec::deferring(|| exec::spawn(operation)),
            None => exec::spawn(operation),
        }
        self.settle();
    }

    /// A request is dealt with. If the kernel has another one, its calls may go out together
    /// with those of this one; otherwise this is the moment to send them. (The kernel's other
    /// request may need no call and end elsewhere, as FUSE_INTERRUPT does: then the next reply
    /// sends them.)
    fn settle(&self) {
        let deferred = self.fs.deferred();
        if deferred > 0
            && (deferred >= MOST_DEFERRED || !self.queue.as_ref().is_some_and(has_request))
        {
            self.fs.send_deferred();
        }
    }
}

/// Closes a file that nobody got to know.
fn close<N: Nfs3>(fs: &Arc<Fs<N>>, opened: Opened) {
    let fs = fs.clone();
    exec::spawn(async move {
        // Nothing was written through it: there is no error to tell.
        let _ = fs.release(opened.handle).await;
    });
}

impl<N: Nfs3> Filesystem for Adapter<N> {
    fn init(&mut self, _: &Header, config: &mut KernelConfig) -> io::Result<()> {
        negotiate(config, &self.options);
        Ok(())
    }

    fn lookup(&self, request: &Header, parent: u64, name: &OsStr, reply: Reply) {
        let tell = |reply, found| match found {
            Found::Is(entry) => tell_entry(reply, entry),
            Found::Absent(ttl) => tell_absent(reply, ttl),
        };
        if let Some(known) = self.fs.lookup_cached(parent, name.as_bytes()) {
            tell(reply, known);
            return self.settle();
        }
        let (fs, cred, name) = (self.fs.clone(), self.cred(request), name.to_owned());
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            let found = fs.lookup(&cred, parent, name.as_bytes()).await;
            answer_or(reply, found, tell, |found| {
                if let Found::Is(entry) = found {
                    fs.forget(entry.nodeid, 1);
                }
            });
        });
    }

    fn forget(&self, _: &Header, node: u64, count: u64) {
        self.fs.forget(node, count);
        self.settle();
    }

    fn getattr(
        &self,
        request: &Header,
        node: u64,
        handle: Option<u64>,
        reply: Reply,
    ) {
        // With a handle the kernel asks for itself; stat(2) and fstat(2) come without.
        let revalidate = handle.is_some();
        if let Some(known) = self.fs.getattr_cached(node, revalidate) {
            tell_attributes(reply, node, known);
            return self.settle();
        }
        let (fs, cred) = (self.fs.clone(), self.cred(request));
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            let result = fs.getattr(&cred, node, revalidate).await;
            answer_held(reply, result, |reply, of| {
                tell_attributes(reply, node, of)
            });
        });
    }

    fn setattr(
        &self,
        request: &Header,
        node: u64,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<u64>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: Reply,
    ) {
        let (atime, mtime) = match (set_time(atime), set_time(mtime)) {
            (Ok(atime), Ok(mtime)) => (atime, mtime),
            (Err(error), _) | (_, Err(error)) => return reply.error(errno(&error)),
        };
        let new = SetAttributes {
            mode: mode.map(|mode| mode & 0o7777),
            uid,
            gid,
            size,
            atime,
            mtime,
        };
        let (fs, cred) = (self.fs.clone(), self.cred(request));
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            let result = fs.setattr(&cred, node, &new).await;
            answer_held(reply, result, |reply, of| {
                tell_attributes(reply, node, of)
            });
        });
    }

    fn readlink(&self, request: &Header, node: u64, reply: Reply) {
        let (fs, cred) = (self.fs.clone(), self.cred(request));
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            let result = fs.readlink(&cred, node).await;
            answer_held(reply, result, |reply, path| reply.data(&path));
        });
    }

    fn mknod(
        &self,
        request: &Header,
        parent: u64,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: Reply,
    ) {
        let (fs, cred, name) = (self.fs.clone(), self.cred(request), name.to_owned());
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            let result = fs.mknod(&cred, parent, name.as_bytes(), mode, rdev).await;
            answer_entry(reply, result, &fs);
        });
    }

    fn mkdir(
        &self,
        request: &Header,
        parent: u64,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: Reply,
    ) {
        let (fs, cred, name) = (self.fs.clone(), self.cred(request), name.to_owned());
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            let result = fs.mkdir(&cred, parent, name.as_bytes(), mode).await;
            answer_entry(reply, result, &fs);
        });
    }

    fn unlink(&self, request: &Header, parent: u64, name: &OsStr, reply: Reply) {
        let (fs, cred, name) = (self.fs.clone(), self.cred(request), name.to_owned());
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            answer_held(
                reply,
                fs.unlink(&cred, parent, name.as_bytes()).await,
                done,
            );
        });
    }

    fn rmdir(&self, request: &Header, parent: u64, name: &OsStr, reply: Reply) {
        let (fs, cred, name) = (self.fs.clone(), self.cred(request), name.to_owned());
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            answer_held(
                reply,
                fs.rmdir(&cred, parent, name.as_bytes()).await,
                done,
            );
        });
    }

    fn symlink(
        &self,
        request: &Header,
        parent: u64,
        name: &OsStr,
        target: &Path,
        reply: Reply,
    ) {
        let (fs, cred, name) = (self.fs.clone(), self.cred(request), name.to_owned());
        let target = target.as_os_str().to_owned();
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            let result = fs
                .symlink(&cred, parent, name.as_bytes(), target.as_bytes())
                .await;
            answer_entry(reply, result, &fs);
        });
    }

    fn rename(
        &self,
        request: &Header,
        parent: u64,
        name: &OsStr,
        new_parent: u64,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: Reply,
    ) {
        let (fs, cred) = (self.fs.clone(), self.cred(request));
        let (name, new_name) = (name.to_owned(), new_name.to_owned());
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            let from = (parent, name.as_bytes());
            let to = (new_parent, new_name.as_bytes());
            answer_held(reply, fs.rename(&cred, from, to, flags.bits()).await, done);
        });
    }

    fn link(
        &self,
        request: &Header,
        node: u64,
        parent: u64,
        name: &OsStr,
        reply: Reply,
    ) {
        let (fs, cred, name) = (self.fs.clone(), self.cred(request), name.to_owned());
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            let result = fs.link(&cred, node, parent, name.as_bytes()).await;
            answer_entry(reply, result, &fs);
        });
    }

    fn open(&self, request: &Header, node: u64, flags: i32, reply: Reply) {
        let (fs, cred) = (self.fs.clone(), self.cred(request));
        let notifier = self.notifier.clone();
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            let result = fs.open(&cred, node, flags).await;
            answer_or(
                reply,
                result,
                |reply, opened| {
                    // Close-to-open: the kernel keeps the size for as long as it was told to,
                    // whatever the answer to OPEN says of its pages.
                    if opened.attributes_changed
                        && let Some(notifier) = notifier.get()
                    {
                        // It may have forgotten the inode: so much the better.
                        let _ = notifier.inval_inode(node, -1, 0);
                    }
                    reply.opened(opened.handle, file_flags(&opened, flags));
                },
                |opened| close(&fs, opened),
            );
        });
    }

    fn read(
        &self,
        request: &Header,
        _: u64,
        handle: u64,
        offset: u64,
        size: u32,
        flags: i32,
        _: Option<LockOwner>,
        reply: Reply,
    ) {
        if let Some(data) = self.fs.read_cached(handle, offset, size, flags) {
            tell_data(reply, data);
            return self.settle();
        }
        let fs = self.fs.clone();
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            answer_held(
                reply,
                fs.read(handle, offset, size, flags).await,
                tell_data,
            );
        });
    }

    fn write(
        &self,
        request: &Header,
        _: u64,
        handle: u64,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: i32,
        _: Option<LockOwner>,
        reply: Reply,
    ) {
        if let Some(result) = self.fs.write_cached(handle, offset, data, flags) {
            answer(reply, result, Reply::written);
            return self.settle();
        }
        // The reader's buffer is only lent for this call.
        let (fs, data) = (self.fs.clone(), data.to_vec());
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            let result = fs.write(handle, offset, &data, flags).await;
            answer_held(reply, result, Reply::written);
        });
    }

    fn flush(
        &self,
        request: &Header,
        _: u64,
        handle: u64,
        _: LockOwner,
        reply: Reply,
    ) {
        if let Some(result) = self.fs.flush_cached(handle) {
            answer(reply, result, done);
            return self.settle();
        }
        let fs = self.fs.clone();
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            let tell = |result| match reply.take() {
                Some(reply) => {
                    answer(reply, result, done);
                    true
                }
                None => false,
            };
            fs.flush(handle, tell).await;
        });
    }

    fn release(
        &self,
        request: &Header,
        _: u64,
        handle: u64,
        _: i32,
        _: Option<LockOwner>,
        _: bool,
        reply: Reply,
    ) {
        let fs = self.fs.clone();
        let reply = self.waiting.hold(request, reply);
        self.start(async move { answer_held(reply, fs.release(handle).await, done) });
    }

    fn fsync(&self, request: &Header, _: u64, handle: u64, _: bool, reply: Reply) {
        let fs = self.fs.clone();
        let reply = self.waiting.hold(request, reply);
        self.start(async move { answer_held(reply, fs.fsync(handle).await, done) });
    }

    fn opendir(&self, request: &Header, node: u64, _: i32, reply: Reply) {
        let (fs, cred) = (self.fs.clone(), self.cred(request));
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            let result = fs.opendir(&cred, node).await;
            answer_or(
                reply,
                result,
                |reply, opened| {
                    let mut flags = FopenFlags::FOPEN_CACHE_DIR;
                    if opened.keep_cache {
                        flags |= FopenFlags::FOPEN_KEEP_CACHE;
                    }
                    reply.opened(opened.handle, flags);
                },
                |opened| {
                    let _ = fs.releasedir(opened.handle);
                },
            );
        });
    }

    fn readdir(
        &self,
        request: &Header,
        _: u64,
        handle: u64,
        offset: u64,
        reply: Reply,
    ) {
        let tell = |reply: Reply, listing: crate::fs::Listing| {
            for entry in listing.entries() {
                let name = OsStr::from_bytes(&entry.name);
                if reply.add(u64(entry.fileid), entry.cookie, kind(entry.kind), name) {
                    break;
                }
            }
            reply.ok();
        };
        if let Some(known) = self.fs.readdir_cached(handle, offset) {
            answer(reply, known, tell);
            return self.settle();
        }
        let fs = self.fs.clone();
        let reply = self.waiting.hold(request, reply);
        self.start(async move { answer_held(reply, fs.readdir(handle, offset).await, tell) });
    }

    fn readdirplus(
        &self,
        request: &Header,
        _: u64,
        handle: u64,
        offset: u64,
        reply: Reply,
    ) {
        if let Some(known) = self.fs.readdir_cached(handle, offset) {
            answer(reply, known, |reply, listing| {
                tell_plus(&self.fs, reply, &listing)
            });
            return self.settle();
        }
        let fs = self.fs.clone();
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            let result = fs.readdir(handle, offset).await;
            answer_held(reply, result, |reply, listing| {
                tell_plus(&fs, reply, &listing)
            });
        });
    }

    fn releasedir(
        &self,
        _: &Header,
        _: u64,
        handle: u64,
        _: i32,
        reply: Reply,
    ) {
        answer(reply, self.fs.releasedir(handle), done);
        self.settle();
    }

    fn fsyncdir(&self, _: &Header, _: u64, handle: u64, _: bool, reply: Reply) {
        answer(reply, self.fs.fsyncdir(handle), done);
        self.settle();
    }

    fn statfs(&self, request: &Header, node: u64, reply: Reply) {
        let (fs, cred) = (self.fs.clone(), self.cred(request));
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            answer_held(
                reply,
                fs.statfs(&cred, node).await,
                |reply, stat: FsstatOk| {
                    const UNIT: u64 = 4096;
                    reply.statfs(
                        stat.total_bytes / UNIT,
                        stat.free_bytes / UNIT,
                        stat.available_bytes / UNIT,
                        stat.total_files,
                        stat.free_files,
                        UNIT as u32,
                        255,
                        UNIT as u32,
                    );
                },
            );
        });
    }

    fn access(&self, request: &Header, node: u64, mask: AccessFlags, reply: Reply) {
        let cred = self.cred(request);
        if let Some(known) = self.fs.access_cached(&cred, node, mask.bits()) {
            answer(reply, known, done);
            return self.settle();
        }
        let fs = self.fs.clone();
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            answer_held(reply, fs.access(&cred, node, mask.bits()).await, done);
        });
    }

    fn create(
        &self,
        request: &Header,
        parent: u64,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: Reply,
    ) {
        let (fs, cred, name) = (self.fs.clone(), self.cred(request), name.to_owned());
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            let result = fs
                .create(&cred, parent, name.as_bytes(), mode, flags)
                .await;
            answer_or(
                reply,
                result,
                |reply, (entry, opened)| {
                    reply.created(
                        &entry.attr_ttl.min(entry.entry_ttl),
                        &entry_attributes(&entry),
                        Generation(entry.generation),
                        opened.handle,
                        file_flags(&opened, flags),
                    );
                },
                |(entry, opened)| {
                    fs.forget(entry.nodeid, 1);
                    close(&fs, opened);
                },
            );
        });
    }

    // What NFSv3 does not have. ENOSYS makes the kernel answer by itself from then on:
    // EOPNOTSUPP, or its own way (copy_file_range by copying, lseek by the size).

    fn setxattr(
        &self,
        _: &Header,
        _: u64,
        _: &OsStr,
        _: &[u8],
        _: i32,
        _: u32,
        reply: Reply,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn getxattr(&self, _: &Header, _: u64, _: &OsStr, _: u32, reply: Reply) {
        reply.error(Errno::ENOSYS);
    }

    fn listxattr(&self, _: &Header, _: u64, _: u32, reply: Reply) {
        reply.error(Errno::ENOSYS);
    }

    fn removexattr(&self, _: &Header, _: u64, _: &OsStr, reply: Reply) {
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        _: &Header,
        _: u64,
        _: u64,
        _: fuser::IoctlFlags,
        _: u32,
        _: &[u8],
        _: u32,
        reply: Reply,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn fallocate(
        &self,
        _: &Header,
        _: u64,
        _: u64,
        _: u64,
        _: u64,
        _: i32,
        reply: Reply,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn lseek(&self, _: &Header, _: u64, _: u64, _: i64, _: i32, reply: Reply) {
        reply.error(Errno::ENOSYS);
    }

    fn copy_file_range(
        &self,
        _: &Header,
        _: u64,
        _: u64,
        _: u64,
        _: u64,
        _: u64,
        _: u64,
        _: u64,
        _: fuser::CopyFileRangeFlags,
        reply: Reply,
    ) {
        reply.error(Errno::ENOSYS);
    }
}

fn tell_plus<N: Nfs3>(fs: &Fs<N>, mut reply: Reply, listing: &crate::fs::Listing) {
    for listed in listing.entries() {
        let name = OsStr::from_bytes(&listed.name);
        let entry = fs.listed_entry(listing, listed);
        let full = match &entry {
            Some(entry) => reply.add(
                u64(entry.nodeid),
                listed.cookie,
                name,
                &entry.attr_ttl.min(entry.entry_ttl),
                &entry_attributes(entry),
                Generation(entry.generation),
            ),
            // The kernel takes no look-up from `.` and `..`; an entry that changed meanwhile
            // is left for it to look up.
            None if matches!(&*listed.name, b"." | b"..") => {
                let of = dot(listed.fileid);
                reply.add(
                    of.ino,
                    listed.cookie,
                    name,
                    &Duration::ZERO,
                    &of,
                    Generation(0),
                )
            }
            None => false,
        };
        if full {
            if let Some(entry) = entry {
                fs.forget(entry.nodeid, 1);
            }
            break;
        }
    }
    reply.ok();
}

/// Answers with an entry; forgets it if nobody is there to take it.
fn answer_entry<N: Nfs3>(reply: Held, result: FsResult<Entry>, fs: &Fs<N>) {
    answer_or(reply, result, tell_entry, |entry| {
        fs.forget(entry.nodeid, 1)
    });
}

fn dot(fileid: u64) -> FileAttr {
    FileAttr {
        ino: u64(fileid),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: fuser::FileType::Directory,
        perm: 0o755,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}
