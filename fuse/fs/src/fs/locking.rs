//! SETLK, GETLK, and what of locks ends with a file that is closed.
//!
//! Locks are a boundary of the cache, as with Linux's client: who takes one sees what others
//! wrote before they gave it back. So everything written is on stable storage before a lock is
//! given back (or asked for), and after one is taken nothing is valid that was cached before:
//! times of files are too coarse to tell two writers of the same instant apart. That includes the
//! names beside the file (`beside`).

use super::Fs;
use super::error::{FsError, FsResult};
use super::inode::Inode;
use super::open_file::OpenFile;
use crate::locks::{
    ByteRange, Granted, Interrupt, LockError, LockFile, Locks, Mode, Owner, Request as LockRequest,
    Tested,
};
use nfsrdma_nfs3::Nfs3;
use nfsrdma_xdr::nfs3::FileType;
use std::sync::Arc;

/// A lock that a program asks for.
#[derive(Debug, Clone, Copy)]
pub struct SetLock {
    pub handle: u64,
    /// The kernel's number of the owner; numbers of flock(2) are apart.
    pub owner: u64,
    pub flock: bool,
    /// Both ends included.
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

/// Not longer than the program waits.
async fn unless<T>(interrupt: &Interrupt, work: impl Future<Output = T>) -> FsResult<T> {
    tokio::select! {
        done = work => Ok(done),
        () = interrupt.wait() => Err(LockError::Interrupted.into()),
    }
}

impl<N: Nfs3> Fs<N> {
    /// Has locks go to a server. Once, before the mount is served.
    pub fn set_locks(&self, locks: Arc<Locks>) {
        let _ = self.locks.set(locks);
    }

    /// The locks that go to the server.
    pub fn locks(&self) -> Option<&Arc<Locks>> {
        self.locks.get()
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

    /// Whether data of `inode` are to be written.
    fn is_unsafe(&self, inode: &Inode) -> bool {
        inode.data().is_some_and(|data| {
            data.with(|inner| inner.write_back().is_under_way() || !inner.is_safe())
        })
    }

    /// Takes or gives back a lock. Everything but a lock that was taken is handed to `answer` as
    /// soon as it is known, though the future goes on while something is to be cleared up. A lock
    /// that was taken is returned, and nothing was handed over: the kernel must drop what it has
    /// cached of the file before the program goes on.
    ///
    /// A signal ends the wait for a lock, and not that for an unlock: who gets EINTR would hold
    /// it still. If it is killed, it has its answer, and this goes on without it.
    pub async fn set_lock(
        self: &Arc<Self>,
        of: SetLock,
        interrupt: &Interrupt,
        answer: impl FnOnce(FsResult<()>) + Send,
    ) -> Option<Granted> {
        let Some(locks) = self.locks.get() else {
            answer(Err(FsError::NotSupported));
            return None;
        };
        let request = self.lock_request(&of, of.mode.unwrap_or(Mode::Read));
        let (file, request) = match request {
            Ok(request) => request,
            Err(error) => {
                answer(Err(error));
                return None;
            }
        };
        let inode = &file.inode;
        if self.is_unsafe(inode) {
            // Those who wrote get an error by fsync or close.
            let flush = self.write_back(inode, true);
            let flushed = match of.mode {
                Some(_) => unless(interrupt, flush).await,
                None => {
                    flush.await;
                    Ok(())
                }
            };
            if let Err(error) = flushed {
                answer(Err(error));
                return None;
            }
        }
        if of.mode.is_none() {
            let answer = |result: Result<(), LockError>| answer(result.map_err(Into::into));
            let (id, owner) = (request.file.id, request.owner);
            locks.unlock(id, owner, request.range, answer).await;
            return None;
        }
        if of.mode == Some(Mode::Write) && !file.can_write() {
            // fcntl(2) has been refused by the kernel; the server would refuse flock(2), too.
            answer(Err(LockError::BadFile.into()));
            return None;
        }
        let told = |result: Result<(), LockError>| {
            if let Err(error) = result {
                answer(Err(error.into()));
            }
        };
        let granted = locks.lock(&request, interrupt, told).await;
        if granted.is_some() {
            self.forget_cached(inode);
            self.forget_names_beside(inode);
            // The lock is held, whatever GETATTR says: the next operation asks again.
            let _ = unless(interrupt, self.fetch(&file.cred, inode)).await;
        }
        granted
    }

    /// Invalidates all that is cached of the contents.
    fn forget_cached(&self, inode: &Inode) {
        if let Some(data) = inode.data() {
            data.with(|inner| inner.invalidate());
        }
        let mut state = inode.state.lock();
        state.renew_epoch();
        state.expire();
    }

    /// F_GETLK: the lock that is in the way.
    pub async fn get_lock(
        self: &Arc<Self>,
        of: SetLock,
        interrupt: &Interrupt,
    ) -> FsResult<Option<Tested>> {
        let locks = self.locks.get().ok_or(FsError::NotSupported)?;
        let (_, request) = self.lock_request(&of, of.mode.ok_or(FsError::Invalid)?)?;
        Ok(locks.test(&request, interrupt).await?)
    }

    /// Whether an open file may be written to, also by way of a mapping.
    pub fn may_write(&self, handle: u64) -> bool {
        self.file(handle).is_ok_and(|file| file.can_write())
    }

    /// Whether a process that closes a file has POSIX locks on it, or waits for some.
    pub fn has_locks(&self, handle: u64, owner: u64) -> bool {
        let Some(locks) = self.locks.get() else {
            return false;
        };
        let file = self.file(handle);
        file.is_ok_and(|file| locks.concerns(file.inode.nodeid, Owner::Posix(owner)))
    }

    /// Whether locks were asked for by this open file, and not given back when it was closed.
    pub fn has_open_locks(&self, handle: u64) -> bool {
        let Some(locks) = self.locks.get() else {
            return false;
        };
        let file = self.file(handle);
        file.is_ok_and(|file| locks.concerns_open(file.inode.nodeid, handle))
    }

    /// A process closed a file: its POSIX locks on it are gone, by whatever descriptor it took
    /// them (fcntl(2)).
    pub(super) async fn close_locks(&self, inode: &Inode, handle: u64, owner: u64) -> FsResult<()> {
        let Some(locks) = self.locks.get() else {
            return Ok(());
        };
        let owner = Owner::Posix(owner);
        locks.forget_open(inode.nodeid, handle, owner);
        Ok(locks.unlock_all(inode.nodeid, owner).await?)
    }

    /// Who has locks by an open file that is about to be gone, before its number can be another's.
    pub(super) fn owners_by_open(
        &self,
        inode: &Inode,
        handle: u64,
        flock: Option<u64>,
    ) -> Vec<Owner> {
        let locks = self.locks.get();
        locks.map_or_else(Vec::new, |locks| {
            locks.take_open(inode.nodeid, handle, flock)
        })
    }

    /// An open file is gone, and with it the locks that belong to it.
    pub(super) async fn release_locks(&self, inode: &Inode, owners: Vec<Owner>) {
        let Some(locks) = self.locks.get() else {
            return;
        };
        for owner in owners {
            // Nobody hears of a lock that was lost.
            let _ = locks.unlock_all(inode.nodeid, owner).await;
        }
    }

    /// Whether what is read or written by an open file was protected by a lock that is lost.
    pub(super) fn check_locks(&self, file: &OpenFile, handle: u64) -> FsResult<()> {
        match self.locks.get() {
            Some(locks) if locks.is_lost(file.inode.nodeid, handle) => Err(LockError::Lost.into()),
            _ => Ok(()),
        }
    }

    /// The server has restarted, to judge by a verifier.
    pub(super) fn suspect_locks(&self) {
        self.shared.stats.verifier_changes.add(1);
        if let Some(locks) = self.locks.get() {
            locks.suspect();
        }
    }
}
