//! FUSE requests as calls of the file system.
//!
//! What memory can answer is answered on the thread that read the request. The rest becomes a
//! future that starts on this thread and answers on the one that gets the server's reply.

use super::convert::{kind, set_time};
use super::credentials::{self, Credentials};
use super::locking::set_lock;
use super::replies::{
    answer, answer_held, answer_or, channel_entry, done, file_flags, tell_absent, tell_attributes,
    tell_data, tell_entry,
};
use super::signals::hears;
use super::waiting::{Held, Waiting};
use crate::fs::{Entry, Found, Fs, FsResult, NewMode, Opened};
use nfsrdma_channel::abi::fopen;
use nfsrdma_channel::{
    self as channel, Attr, Directory, DirectoryPlus, Handler, Header, Notifier, Operation, Reply,
    Request, SetAttr, Statfs,
};
use nfsrdma_nfs3::{Cred, Nfs3};
use nfsrdma_rpcrdma::exec;
use nfsrdma_rpcrdma::tap::caller;
use nfsrdma_xdr::nfs3::{FsstatOk, SetAttributes};
use nix::poll::{PollFd, PollFlags, PollTimeout};
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub(super) struct Adapter<N> {
    pub(super) fs: Arc<Fs<N>>,
    pub(super) credentials: Arc<Credentials>,
    pub(super) waiting: Arc<Waiting>,
    /// Tells the kernel what it must not believe any more.
    pub(super) notifier: Notifier,
    pub(super) sending: Sending,
    /// Requests that came, and inodes the kernel forgot.
    pub(super) requests: Arc<AtomicU64>,
    /// The kernel leaves the umask to this side.
    pub(super) applies_umask: bool,
}

/// When calls leave.
pub(super) enum Sending {
    /// Each by itself.
    AtOnce,
    /// Together with those of the kernel's next requests, if it has some already: the device is
    /// asked.
    Together(Arc<channel::Device>),
    /// At the end of a round of the event loop.
    ByRound,
}

/// Calls sent together, at most.
const MOST_DEFERRED: u32 = 16;

/// Whether the kernel has a request that nobody has read.
fn has_request(device: &Arc<channel::Device>) -> bool {
    let mut poll = [PollFd::new(device.as_fd(), PollFlags::POLLIN)];
    nix::poll::poll(&mut poll, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
        && poll[0]
            .revents()
            .is_some_and(|events| events == PollFlags::POLLIN)
}

impl<N: Nfs3> Adapter<N> {
    /// A new object's mode and the umask that is still to be applied to it.
    fn masked(&self, bits: u32, umask: u32) -> NewMode {
        match self.applies_umask {
            true => NewMode {
                bits,
                umask: umask & 0o777,
            },
            false => bits.into(),
        }
    }

    /// The credential of a request about `node`.
    pub(super) fn cred(&self, request: &Header, node: u64) -> Cred {
        match request.uid() == 0 && self.fs.is_superuser(node) {
            true => self.credentials.superuser(request.gid()),
            false => self.credentials.of(request),
        }
    }

    /// Whether POSIX locks go to the server, and end when a file is closed, also one that was
    /// opened for reading.
    fn posix_locks(&self) -> bool {
        self.fs.locks().is_some_and(|locks| locks.kinds().posix)
    }

    /// Runs an operation: now, and where it waits for the server, on the thread that gets the
    /// answer.
    pub(super) fn start(&self, operation: impl Future<Output = ()> + Send + 'static) {
        match self.sending {
            Sending::Together(_) => exec::deferring(|| exec::spawn(operation)),
            Sending::AtOnce | Sending::ByRound => exec::spawn(operation),
        }
        self.settle();
    }

    /// A request is dealt with. If the kernel has another one, its calls may go out together
    /// with those of this one; otherwise this is the moment to send them. (The kernel's other
    /// request may need no call and end elsewhere, as FUSE_INTERRUPT does: then the next reply
    /// sends them.)
    pub(super) fn settle(&self) {
        let Sending::Together(device) = &self.sending else {
            return;
        };
        let deferred = self.fs.deferred();
        if deferred > 0 && (deferred >= MOST_DEFERRED || !has_request(device)) {
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

impl<N: Nfs3> Handler for Adapter<N> {
    fn handle(&self, request: &Request<'_>, reply: Reply) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        caller::with(request.header.pid(), || self.dispatch(request, reply));
    }

    fn forget(&self, node: u64, count: u64) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.fs.forget(node, count);
        self.settle();
    }

    fn interrupt(&self, unique: u64) {
        self.waiting.interrupt(unique);
    }
}

/// The operations, each after the request of its name.
impl<N: Nfs3> Adapter<N> {
    fn dispatch(&self, request: &Request<'_>, reply: Reply) {
        let (header, node) = (&request.header, request.header.nodeid);
        match request.operation {
            Operation::Lookup { name } => self.lookup(header, node, name, reply),
            Operation::Getattr { handle } => self.getattr(header, node, handle, reply),
            Operation::Setattr(to) => self.setattr(header, node, &to, reply),
            Operation::Readlink => self.readlink(header, node, reply),
            Operation::Symlink { name, target } => self.symlink(header, node, name, target, reply),
            Operation::Mknod {
                name,
                mode,
                rdev,
                umask,
            } => {
                let mode = self.masked(mode, umask);
                self.mknod(header, node, name, mode, rdev, reply);
            }
            Operation::Mkdir { name, mode, umask } => {
                let mode = self.masked(mode, umask);
                self.mkdir(header, node, name, mode, reply);
            }
            Operation::Unlink { name } => self.unlink(header, node, name, reply),
            Operation::Rmdir { name } => self.rmdir(header, node, name, reply),
            Operation::Rename {
                name,
                new_parent,
                new_name,
                flags,
            } => self.rename(header, (node, name), (new_parent, new_name), flags, reply),
            Operation::Link { node: of, name } => self.link(header, of, node, name, reply),
            Operation::Open { flags } => self.open(header, node, flags, reply),
            Operation::Read {
                handle,
                offset,
                size,
                flags,
                ..
            } => self.read(header, handle, offset, size, flags, reply),
            Operation::Write {
                handle,
                offset,
                data,
                cached,
                flags,
                ..
            } => {
                // Of a mapping; the handle is a guess then.
                let guessed = cached && !self.fs.is_only_open_file(handle);
                self.write(header, (handle, guessed), offset, data, flags, reply)
            }
            Operation::Flush { handle, lock_owner } => {
                self.flush(header, handle, lock_owner, reply)
            }
            Operation::Release {
                handle,
                flock_owner,
                ..
            } => self.release(header, handle, flock_owner, reply),
            Operation::Getlk {
                handle,
                owner,
                lock,
                flock,
            } => self.getlk(header, set_lock(handle, owner, flock, false, &lock), reply),
            Operation::Setlk {
                handle,
                owner,
                lock,
                flock,
                wait,
            } => self.setlk(
                header,
                node,
                set_lock(handle, owner, flock, wait, &lock),
                reply,
            ),
            Operation::Fsync { handle, .. } => self.fsync(header, handle, reply),
            Operation::Opendir { .. } => self.opendir(header, node, reply),
            Operation::Readdir {
                handle,
                offset,
                size,
            } => self.readdir(header, handle, offset, size, reply),
            Operation::Readdirplus {
                handle,
                offset,
                size,
            } => self.readdirplus(header, handle, offset, size, reply),
            Operation::Releasedir { handle, .. } => self.releasedir(handle, reply),
            Operation::Fsyncdir { handle, .. } => self.fsyncdir(handle, reply),
            Operation::Statfs => self.statfs(header, node, reply),
            Operation::Access { mask } => self.access(header, node, mask, reply),
            Operation::Create {
                name,
                mode,
                umask,
                flags,
            } => {
                let mode = self.masked(mode, umask);
                self.create(header, node, name, mode, flags, reply);
            }
            // Where there are none, ENOSYS has the kernel not ask again.
            Operation::Getxattr { name, size } if self.fs.has_acl() => {
                self.getxattr(header, node, name, size, reply);
            }
            Operation::Listxattr { size } if self.fs.has_acl() => {
                self.listxattr(header, node, size, reply);
            }
            Operation::Setxattr { name, value, flags } if self.fs.has_acl() => {
                self.setxattr(header, node, name, value, flags, reply);
            }
            Operation::Removexattr { name } if self.fs.has_acl() => {
                self.removexattr(header, node, name, reply);
            }
            // What NFSv3 does not have. ENOSYS makes the kernel answer by itself from then on:
            // EOPNOTSUPP, or its own way (copy_file_range by copying, lseek by the size).
            _ => reply.error(libc::ENOSYS),
        }
    }

    fn lookup(&self, request: &Header, parent: u64, name: &OsStr, reply: Reply) {
        let tell = |reply, found| match found {
            Found::Is(entry) => tell_entry(reply, entry),
            Found::Absent(ttl) => tell_absent(reply, ttl),
        };
        let (uid, cred) = (request.uid(), || self.cred(request, parent));
        if let Some(known) = self.fs.lookup_cached(parent, name.as_bytes(), uid, cred) {
            tell(reply, known);
            return self.settle();
        }
        let (fs, cred, name) = (self.fs.clone(), self.cred(request, parent), name.to_owned());
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

    fn getattr(&self, request: &Header, node: u64, handle: Option<u64>, reply: Reply) {
        // With a handle the kernel asks for itself; stat(2) and fstat(2) come without.
        let revalidate = handle.is_some();
        if let Some(known) = self.fs.getattr_cached(node, revalidate) {
            tell_attributes(reply, known);
            return self.settle();
        }
        let (fs, cred) = (self.fs.clone(), credentials::user_of(request));
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            let result = fs.getattr(&cred, node, revalidate).await;
            answer_held(reply, result, tell_attributes);
        });
    }

    fn setattr(&self, request: &Header, node: u64, to: &SetAttr, reply: Reply) {
        let new = SetAttributes {
            mode: to.mode.map(|mode| mode & 0o7777),
            uid: to.uid,
            gid: to.gid,
            size: to.size,
            atime: set_time(to.atime),
            mtime: set_time(to.mtime),
        };
        // ftruncate(2) is the right of the descriptor, whoever has it now.
        let opener = to.size.and(to.handle).and_then(|open| self.fs.opener(open));
        let by_name = to.size.is_some() && opener.is_none();
        let (fs, cred) = (
            self.fs.clone(),
            opener.unwrap_or_else(|| self.cred(request, node)),
        );
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            let result = match by_name {
                true => fs.may_truncate(&cred, node).await,
                false => Ok(()),
            };
            let result = match result {
                Ok(()) => fs.setattr(&cred, node, &new, by_name).await,
                Err(error) => Err(error),
            };
            answer_held(reply, result, tell_attributes);
        });
    }

    fn readlink(&self, request: &Header, node: u64, reply: Reply) {
        let (fs, cred) = (self.fs.clone(), self.cred(request, node));
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
        mode: NewMode,
        rdev: u32,
        reply: Reply,
    ) {
        let (fs, cred, name) = (self.fs.clone(), self.cred(request, parent), name.to_owned());
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            let result = fs.mknod(&cred, parent, name.as_bytes(), mode, rdev).await;
            answer_entry(reply, result, &fs);
        });
    }

    fn mkdir(&self, request: &Header, parent: u64, name: &OsStr, mode: NewMode, reply: Reply) {
        let (fs, cred, name) = (self.fs.clone(), self.cred(request, parent), name.to_owned());
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            let result = fs.mkdir(&cred, parent, name.as_bytes(), mode).await;
            answer_entry(reply, result, &fs);
        });
    }

    fn unlink(&self, request: &Header, parent: u64, name: &OsStr, reply: Reply) {
        let (fs, cred, name) = (self.fs.clone(), self.cred(request, parent), name.to_owned());
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            answer_held(reply, fs.unlink(&cred, parent, name.as_bytes()).await, done);
        });
    }

    fn rmdir(&self, request: &Header, parent: u64, name: &OsStr, reply: Reply) {
        let (fs, cred, name) = (self.fs.clone(), self.cred(request, parent), name.to_owned());
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            answer_held(reply, fs.rmdir(&cred, parent, name.as_bytes()).await, done);
        });
    }

    fn symlink(&self, request: &Header, parent: u64, name: &OsStr, target: &OsStr, reply: Reply) {
        let (fs, cred, name) = (self.fs.clone(), self.cred(request, parent), name.to_owned());
        let target = target.to_owned();
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
        from: (u64, &OsStr),
        to: (u64, &OsStr),
        flags: u32,
        reply: Reply,
    ) {
        let (fs, cred) = (self.fs.clone(), self.cred(request, from.0));
        let (name, new_name) = (from.1.to_owned(), to.1.to_owned());
        let (parent, new_parent) = (from.0, to.0);
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            let from = (parent, name.as_bytes());
            let to = (new_parent, new_name.as_bytes());
            answer_held(reply, fs.rename(&cred, from, to, flags).await, done);
        });
    }

    fn link(&self, request: &Header, node: u64, parent: u64, name: &OsStr, reply: Reply) {
        let (fs, cred, name) = (self.fs.clone(), self.cred(request, parent), name.to_owned());
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            let result = fs.link(&cred, node, parent, name.as_bytes()).await;
            answer_entry(reply, result, &fs);
        });
    }

    fn open(&self, request: &Header, node: u64, flags: i32, reply: Reply) {
        let (fs, cred) = (self.fs.clone(), self.cred(request, node));
        let notifier = self.notifier.clone();
        let unflushed = !self.posix_locks();
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            let result = fs.open(&cred, node, flags).await;
            answer_or(
                reply,
                result,
                |reply, opened| {
                    // Close-to-open: the kernel keeps the size for as long as it was told to,
                    // whatever the answer to OPEN says of its pages.
                    if opened.attributes_changed {
                        // It may have forgotten the inode: so much the better.
                        let _ = notifier.inval_inode(node, -1, 0);
                    }
                    reply.opened(opened.handle, file_flags(&opened, flags, unflushed));
                },
                |opened| close(&fs, opened),
            );
        });
    }

    fn read(
        &self,
        request: &Header,
        handle: u64,
        offset: u64,
        size: u32,
        flags: i32,
        reply: Reply,
    ) {
        if let Some(data) = self.fs.read_cached(handle, offset, size, flags) {
            tell_data(reply, data);
            return self.settle();
        }
        let fs = self.fs.clone();
        let reply = self.waiting.hold(request, reply);
        let under_way = self.fs.kernel_read(handle, offset);
        self.start(async move {
            let found = fs.read(handle, offset, size, flags).await;
            if let Some(under_way) = &under_way {
                under_way.in_turn(&found, size).await;
            }
            answer_held(reply, found, tell_data);
            drop(under_way);
        });
    }

    fn write(
        &self,
        request: &Header,
        (handle, guessed): (u64, bool),
        offset: u64,
        data: &[u8],
        flags: i32,
        reply: Reply,
    ) {
        if !guessed && let Some(result) = self.fs.write_cached(handle, offset, data, flags) {
            answer(reply, result, Reply::written);
            return self.settle();
        }
        // The reader's buffer is only lent for this call.
        let (fs, data) = (self.fs.clone(), data.to_vec());
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            let result = match guessed {
                true => fs.write_mapped(handle, offset, &data, flags).await,
                false => fs.write(handle, offset, &data, flags).await,
            };
            answer_held(reply, result, Reply::written);
        });
    }

    fn flush(&self, request: &Header, handle: u64, owner: u64, reply: Reply) {
        let locked = self.fs.has_locks(handle, owner);
        if !locked && let Some(result) = self.fs.flush_cached(handle) {
            answer(reply, result, done);
            return self.settle();
        }
        let (fs, pid) = (self.fs.clone(), request.pid());
        let reply = self.waiting.hold(request, reply);
        let flush = async move {
            let tell = |result: FsResult<()>| match reply.take() {
                Some(reply) => {
                    // The kernel takes the reply also for a process that ends, whose descriptors
                    // it closes: there is no close(2) to return the error.
                    let heard = result.is_ok() || hears(pid);
                    answer(reply, result, done);
                    heard
                }
                None => false,
            };
            let owner = locked.then_some(owner);
            fs.flush_and_unlock(handle, owner, tell).await;
        };
        match self.fs.locks().filter(|_| locked) {
            Some(locks) => locks.spawn(flush),
            None => self.start(flush),
        }
    }

    fn release(&self, request: &Header, handle: u64, flock: Option<u64>, reply: Reply) {
        let fs = self.fs.clone();
        let locked = flock.is_some() || self.fs.has_open_locks(handle);
        let reply = self.waiting.hold(request, reply);
        let release = async move {
            answer_held(reply, fs.release_and_unlock(handle, flock).await, done);
        };
        match self.fs.locks().filter(|_| locked) {
            Some(locks) => locks.spawn(release),
            None => self.start(release),
        }
    }

    fn fsync(&self, request: &Header, handle: u64, reply: Reply) {
        let fs = self.fs.clone();
        let reply = self.waiting.hold(request, reply);
        self.start(async move { answer_held(reply, fs.fsync(handle).await, done) });
    }

    fn opendir(&self, request: &Header, node: u64, reply: Reply) {
        let (fs, cred) = (self.fs.clone(), self.cred(request, node));
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            let result = fs.opendir(&cred, node).await;
            answer_or(
                reply,
                result,
                |reply, opened| {
                    let mut flags = fopen::CACHE_DIR;
                    if opened.keep_cache {
                        flags |= fopen::KEEP_CACHE;
                    }
                    reply.opened(opened.handle, flags);
                },
                |opened| {
                    let _ = fs.releasedir(opened.handle);
                },
            );
        });
    }

    fn readdir(&self, request: &Header, handle: u64, offset: u64, size: u32, reply: Reply) {
        let tell = move |reply: Reply, listing: crate::fs::Listing| {
            let mut entries = Directory::new(size);
            for entry in listing.entries() {
                if !entries.add(
                    entry.fileid,
                    entry.cookie,
                    entry.kind.map_or(0, kind),
                    &entry.name,
                ) {
                    break;
                }
            }
            reply.data(entries.bytes());
        };
        self.fs.listing_without_attributes(handle);
        if let Some(known) = self.fs.readdir_cached(handle, offset) {
            answer(reply, known, tell);
            return self.settle();
        }
        let fs = self.fs.clone();
        let reply = self.waiting.hold(request, reply);
        self.start(async move { answer_held(reply, fs.readdir(handle, offset).await, tell) });
    }

    fn readdirplus(&self, request: &Header, handle: u64, offset: u64, size: u32, reply: Reply) {
        self.fs.listing_with_attributes(handle, offset);
        if let Some(known) = self.fs.readdir_cached(handle, offset) {
            answer(reply, known, |reply, listing| {
                tell_plus(&self.fs, reply, size, &listing)
            });
            return self.settle();
        }
        let fs = self.fs.clone();
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            let result = fs.readdir(handle, offset).await;
            answer_held(reply, result, |reply, listing| {
                tell_plus(&fs, reply, size, &listing)
            });
        });
    }

    fn releasedir(&self, handle: u64, reply: Reply) {
        answer(reply, self.fs.releasedir(handle), done);
        self.settle();
    }

    fn fsyncdir(&self, handle: u64, reply: Reply) {
        answer(reply, self.fs.fsyncdir(handle), done);
        self.settle();
    }

    fn statfs(&self, request: &Header, node: u64, reply: Reply) {
        let (fs, cred) = (self.fs.clone(), credentials::user_of(request));
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            answer_held(
                reply,
                fs.statfs(&cred, node).await,
                |reply, stat: FsstatOk| {
                    const UNIT: u64 = 4096;
                    reply.statfs(&Statfs {
                        blocks: stat.total_bytes / UNIT,
                        bfree: stat.free_bytes / UNIT,
                        bavail: stat.available_bytes / UNIT,
                        files: stat.total_files,
                        ffree: stat.free_files,
                        bsize: UNIT as u32,
                        namelen: 255,
                        frsize: UNIT as u32,
                    });
                },
            );
        });
    }

    fn access(&self, request: &Header, node: u64, mask: i32, reply: Reply) {
        let cred = self.cred(request, node);
        if let Some(known) = self.fs.access_cached(&cred, node, mask) {
            answer(reply, known, done);
            return self.settle();
        }
        let fs = self.fs.clone();
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            answer_held(reply, fs.access(&cred, node, mask).await, done);
        });
    }

    fn create(
        &self,
        request: &Header,
        parent: u64,
        name: &OsStr,
        mode: NewMode,
        flags: i32,
        reply: Reply,
    ) {
        let (fs, cred, name) = (self.fs.clone(), self.cred(request, parent), name.to_owned());
        let unflushed = !self.posix_locks();
        let reply = self.waiting.hold(request, reply);
        self.start(async move {
            let result = fs.create(&cred, parent, name.as_bytes(), mode, flags).await;
            answer_or(
                reply,
                result,
                |reply, (entry, opened)| {
                    reply.created(
                        &channel_entry(&entry),
                        opened.handle,
                        file_flags(&opened, flags, unflushed),
                    );
                },
                |(entry, opened)| {
                    fs.forget(entry.nodeid, 1);
                    close(&fs, opened);
                },
            );
        });
    }
}

fn tell_plus<N: Nfs3>(fs: &Fs<N>, reply: Reply, size: u32, listing: &crate::fs::Listing) {
    let mut entries = DirectoryPlus::new(size);
    for listed in listing.entries() {
        let entry = fs.listed_entry(listing, listed);
        let told = match &entry {
            Some(entry) => channel_entry(entry),
            // `.` and `..`, of which the kernel takes no look-up, and what has no attributes
            // yet: the kernel looks it up when it wants more than name and type.
            None => unlooked(listed),
        };
        if !entries.add(&told, listed.cookie, &listed.name) {
            if let Some(entry) = entry {
                fs.forget(entry.nodeid, 1);
            }
            break;
        }
    }
    reply.data(entries.bytes());
}

/// Answers with an entry; forgets it if nobody is there to take it.
fn answer_entry<N: Nfs3>(reply: Held, result: FsResult<Entry>, fs: &Fs<N>) {
    answer_or(reply, result, tell_entry, |entry| {
        fs.forget(entry.nodeid, 1)
    });
}

/// An entry of a listing that is no look-up: number and, if it is known, type only.
fn unlooked(listed: &crate::fs::Listed) -> channel::Entry {
    channel::Entry {
        attr: Attr {
            fileid: listed.fileid,
            mode: listed.kind.map_or(0, kind),
            ..Attr::NONE
        },
        ..channel::Entry::absent(Duration::ZERO)
    }
}
