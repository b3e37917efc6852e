//! SETLK and GETLK, and the locks that end when a file is closed.
//!
//! As with Linux's client, a program that takes a lock sees what others wrote before they released it. So all written
//! data is on stable storage before a lock is released or requested, and whatever was cached is invalid after one is
//! taken: the times of files are too coarse to show whether somebody else wrote at the same moment. This includes the
//! names in the directory of the file (`sibling_names`).

use super::error::{FsError, FsResult};
use super::file::FileData;
use super::inode::Inode;
use super::objects::Objects;
use super::open_file::OpenFile;
use super::outdated::drop_outdated;
use crate::locks::{
    ByteRange, Interrupt, LockError, LockFile, Locks, Mode, Owner, Releasing,
    Request as LockRequest, Tested,
};
use nfsrdma_nfs3::Nfs3;
use nfsrdma_xdr::nfs3::FileType;
use std::collections::HashMap;
use std::sync::Arc;

/// A request of a program to lock or unlock.
#[derive(Debug, Clone, Copy)]
pub struct SetLock {
    pub handle: u64,
    /// The kernel's number of the owner. POSIX locks and flock(2) have separate numbers.
    pub owner: u64,
    pub flock: bool,
    /// The first and the last byte.
    pub start: u64,
    pub end: u64,
    /// `None` unlocks.
    pub mode: Option<Mode>,
    pub wait: bool,
    pub pid: u32,
}

impl SetLock {
    fn owner(&self) -> Owner {
        match self.flock {
            true => Owner::Flock(self.owner),
            false => Owner::Posix(self.owner),
        }
    }

    fn range(&self) -> FsResult<ByteRange> {
        match self.flock {
            true => Ok(ByteRange::ALL),
            false => ByteRange::new(self.start, self.end).ok_or(FsError::Invalid),
        }
    }
}

/// Runs `work` until it is done or the program is interrupted.
async fn unless<T>(interrupt: &Interrupt, work: impl Future<Output = T>) -> FsResult<T> {
    tokio::select! {
        done = work => Ok(done),
        () = interrupt.wait() => Err(LockError::Interrupted.into()),
    }
}

impl<N: Nfs3> Objects<N> {
    /// Makes locks be taken at the server. Call it once, before the mount is served.
    pub fn set_locks(self: &Arc<Self>, locks: Arc<Locks>) {
        let fs = Arc::downgrade(self);
        locks
            .log
            .find_paths(Box::new(move |fileids| match fs.upgrade() {
                Some(fs) => fs.names.paths(fileids.iter().copied()),
                None => HashMap::new(),
            }));
        let _ = self.locks.set(locks);
    }

    /// The locks of the mount, if they are taken at the server.
    pub fn locks(&self) -> Option<&Arc<Locks>> {
        self.locks.get()
    }

    /// Goes on with the locks of a process that has died, when this one serves the mount.
    pub fn go_on_with_locks(&self) {
        if let Some(locks) = self.locks.get() {
            locks.go_on(|handle| self.file(handle).is_ok());
        }
    }

    fn lock_request(&self, of: &SetLock, mode: Mode) -> FsResult<(Arc<OpenFile>, LockRequest)> {
        let file = self.file(of.handle)?;
        let inode = &file.inode;
        if inode.kind != FileType::Regular {
            return Err(FsError::Invalid);
        }
        let request = LockRequest {
            file: LockFile {
                id: inode.nodeid,
                handle: inode.handle,
                fileid: inode.fileid,
            },
            owner: of.owner(),
            range: of.range()?,
            mode,
            wait: of.wait,
            pid: of.pid,
            open: of.handle,
            cred: file.cred.clone(),
        };
        Ok((file, request))
    }

    /// Takes or releases a lock. Returns true if one was taken, without calling `answer`: the
    /// kernel must drop what it has cached of the file before the program goes on. Any other result
    /// is passed to `answer` as soon as it is known, though the future may still have to clean up.
    ///
    /// `known` is ready when every FLUSH and RELEASE that the kernel had made before is known
    /// ([`Objects::closing`], [`Objects::flushing`]).
    ///
    /// A signal ends the wait for a lock, but not for an unlock: a program that got EINTR would
    /// still hold the lock. If the program is killed, it is answered and the unlock goes on.
    pub async fn set_lock(
        self: &Arc<Self>,
        of: SetLock,
        interrupt: &Interrupt,
        known: impl Future<Output = ()> + Send,
        answer: impl FnOnce(FsResult<()>) + Send,
    ) -> bool {
        let Some(locks) = self.locks.get() else {
            answer(Err(FsError::NotSupported));
            return false;
        };
        let request = self.lock_request(&of, of.mode.unwrap_or(Mode::Read));
        let (file, request) = match request {
            Ok(request) => request,
            Err(error) => {
                answer(Err(error));
                return false;
            }
        };
        let inode = &file.inode;
        let at_rest = |data: &Arc<FileData>| data.with(|inner| inner.is_at_rest());
        if !inode.data().is_none_or(at_rest) {
            // The open files that wrote get an error at fsync(2) or close(2).
            let flushed = match of.mode {
                Some(_) => {
                    let flush = self.write_back_for(&file.cred, inode, file.can_write());
                    unless(interrupt, flush).await.and_then(|flushed| flushed)
                }
                None => {
                    if self.write_back(inode, true).await.is_some() {
                        self.give_up_with_lock(&file.cred, inode);
                    }
                    Ok(())
                }
            };
            if let Err(error) = flushed {
                answer(Err(error));
                return false;
            }
        }
        if of.mode.is_none() {
            let answer = |result: Result<(), LockError>| answer(result.map_err(Into::into));
            let (id, owner) = (request.file.id, request.owner);
            locks.unlock(id, owner, request.range, answer).await;
            return false;
        }
        if of.mode == Some(Mode::Write) && !file.can_write() {
            // The kernel has refused fcntl(2) already, and the server would refuse flock(2).
            answer(Err(LockError::BadFile.into()));
            return false;
        }
        let told = |result: Result<(), LockError>| {
            if let Err(error) = result {
                answer(Err(error.into()));
            }
        };
        let granted = locks.lock(&request, interrupt, known, told).await;
        if granted {
            self.forget_cached(inode);
            self.forget_names_beside(inode);
            // The lock is held even if GETATTR fails: the next operation repeats it.
            let _ = unless(interrupt, self.fetch(&file.cred, inode)).await;
        }
        granted
    }

    /// Invalidates the cached contents and attributes.
    fn forget_cached(&self, inode: &Inode) {
        {
            let mut state = inode.state.lock();
            state.renew_epoch();
            state.expire();
        }
        if let Some(data) = inode.data() {
            data.with(|inner| drop_outdated(inner, inode));
        }
    }

    /// F_GETLK: a lock that conflicts with the requested one.
    pub async fn get_lock(
        self: &Arc<Self>,
        of: SetLock,
        interrupt: &Interrupt,
    ) -> FsResult<Option<Tested>> {
        let locks = self.locks.get().ok_or(FsError::NotSupported)?;
        let (_, request) = self.lock_request(&of, of.mode.ok_or(FsError::Invalid)?)?;
        Ok(locks.test(&request, interrupt).await?)
    }

    /// Whether an open file may be written to, possibly through a mapping.
    pub fn may_write(&self, handle: u64) -> bool {
        self.file(handle).is_ok_and(|file| file.can_write())
    }

    /// What an unlock request is to release. Call it before anything else of the request: if its caller
    /// is killed meanwhile, another process that has the same open file can ask for the lock, and must
    /// not lose it to this unlock.
    pub fn unlocking(&self, of: &SetLock) -> Option<Releasing> {
        let (locks, None) = (self.locks.get()?, of.mode) else {
            return None;
        };
        let file = self.file(of.handle).ok()?;
        locks.releasing(file.inode.nodeid, of.owner(), of.range().ok()?)
    }

    /// The POSIX locks of a process that closes a file, which FLUSH is to release; `None` if it has
    /// none there and waits for none. Call it before anything else of FLUSH, so that whoever asks
    /// for a lock afterwards finds out.
    pub fn flushing(&self, handle: u64, owner: u64) -> Option<Releasing> {
        let locks = self.locks.get()?;
        let file = self.file(handle).ok()?;
        locks.releasing(file.inode.nodeid, Owner::Posix(owner), ByteRange::ALL)
    }

    /// The locks that end with an open file; `flock` is its owner for flock(2). Call it before
    /// anything else of RELEASE: the file's number can be used again afterwards, and whoever asks
    /// for a lock has to find out.
    pub fn closing(&self, handle: u64, flock: Option<u64>) -> Vec<Releasing> {
        let (Some(locks), Ok(file)) = (self.locks.get(), self.file(handle)) else {
            return Vec::new();
        };
        let node = file.inode.nodeid;
        let is_open = |other| {
            let other = self.file(other);
            other.is_ok_and(|other| other.inode.nodeid == node)
        };
        locks.close_open(node, handle, flock, is_open)
    }

    /// A process closed a file: releases its POSIX locks on it, through whichever descriptor it
    /// took them (fcntl(2)).
    pub(super) async fn close_locks(&self, inode: &Inode, handle: u64, owner: u64) -> FsResult<()> {
        let Some(locks) = self.locks.get() else {
            return Ok(());
        };
        let owner = Owner::Posix(owner);
        locks.forget_open(inode.nodeid, handle, owner);
        match locks.unlock_all(inode.nodeid, owner).await {
            // The server refused it, which the log says: close(2) does not fail because of that.
            Ok(()) | Err(LockError::NoLocks) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Releases the locks of an open file that is released.
    pub(super) async fn release_locks(&self, inode: &Inode, all: Vec<Releasing>) {
        let Some(locks) = self.locks.get() else {
            return;
        };
        for releasing in all {
            // No program waits for this result.
            let _ = locks.unlock_all(inode.nodeid, releasing.owner()).await;
        }
    }
}

#[cfg(test)]
#[path = "locking_tests.rs"]
mod tests;
