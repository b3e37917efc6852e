//! One owner's locks on one file ([`Holding`]), and what is asked of them.
//!
//! The gate of a holding lets only one request at a time change its locks, so that table and server agree.
//! It has each lock recorded for the process that goes on with the mount if this one dies ([`Kept`]).

use super::kept::Kept;
use super::lock_table::{FileId, Owner};
use super::range::{ByteRange, Mode};
use crate::credential;
use nfsrdma_nfs3::Cred;
use nfsrdma_nfs3::nlm::LockTarget;
use nfsrdma_record::{Lock, Record, Region};
use nfsrdma_xdr::nfs3::FileHandle;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::Notify;

/// A file, as the table and the server identify it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockFile {
    pub id: FileId,
    pub handle: FileHandle,
    /// The inode number, for log messages.
    pub fileid: u64,
}

/// A request for a lock.
#[derive(Debug, Clone)]
pub struct Request {
    pub file: LockFile,
    pub owner: Owner,
    pub range: ByteRange,
    pub mode: Mode,
    pub wait: bool,
    /// The caller's process, which F_GETLK returns to others.
    pub pid: u32,
    /// The number of the open file through which the lock is requested.
    pub open: u64,
    /// The credential of whoever opened the file: the server checks whether it may read or write.
    pub cred: Cred,
}

/// One owner's locks on one file. It exists while a lock is held, requested or being restored.
#[derive(Debug)]
pub(super) struct Holding {
    pub(super) file: LockFile,
    pub(super) owner: Owner,
    pub(super) svid: u32,
    /// The credential of the last granted request, preferably for an exclusive lock: for calls that
    /// are made without a request.
    cred: Mutex<(Cred, Mode)>,
    pub(super) gate: Arc<tokio::sync::Mutex<()>>,
    /// Notified when the server calls back that it granted a lock to this owner, so that a waiting
    /// request repeats LOCK.
    pub(super) granted: Notify,
    pub(super) state: Mutex<HoldingState>,
    records: Arc<Region<Lock>>,
}

#[derive(Debug, Default)]
pub(super) struct HoldingState {
    /// The number of requests and restorations under way.
    pub(super) uses: usize,
    /// The open files through which locks were requested, and the last of them.
    pub(super) opens: BTreeSet<u64>,
    open: u64,
    pub(super) pid: u32,
    /// What the server was told of this machine.
    pub(super) machine_state: u32,
    /// The server lost one of the locks: requests fail until the owner has released all of them.
    pub(super) lost: Option<Record<Lock>>,
    /// The ranges that are being released ([`Releasing`](super::releasing::Releasing)).
    pub(super) releasing: Vec<ByteRange>,
    kept: Kept,
}

impl Holding {
    pub(super) fn new(
        file: LockFile,
        owner: Owner,
        svid: u32,
        cred: &Cred,
        records: Arc<Region<Lock>>,
    ) -> Self {
        Holding {
            file,
            owner,
            svid,
            cred: Mutex::new((cred.clone(), Mode::Read)),
            gate: Arc::default(),
            granted: Notify::new(),
            state: Mutex::default(),
            records,
        }
    }

    pub(super) fn cred(&self) -> Cred {
        self.cred.lock().0.clone()
    }

    /// Notes the credential of a granted request.
    pub(super) fn granted_by(&self, by: &Cred, mode: Mode) {
        let mut cred = self.cred.lock();
        if mode >= cred.1 {
            *cred = (by.clone(), mode);
        }
    }

    /// Notes the process that asks for a lock and the open file through which it does, and the state number of this machine.
    pub(super) fn asked_by(&self, (pid, open): (u32, u64), machine_state: u32) {
        let mut of = self.state.lock();
        (of.pid, of.open, of.machine_state) = (pid, open, machine_state);
        of.opens.insert(open);
    }

    pub(super) fn target(&self, range: ByteRange) -> LockTarget {
        let (offset, length) = range.to_wire();
        LockTarget {
            file: self.file.handle,
            svid: self.svid,
            offset,
            length,
        }
    }

    fn lock(&self, of: &HoldingState, standing: u8) -> Lock {
        let mut lock = Lock::new(self.file.handle, credential::kept(&self.cred()));
        (lock.nodeid, lock.fileid) = (self.file.id, self.file.fileid);
        (lock.flock, lock.owner) = match self.owner {
            Owner::Posix(owner) => (0, owner),
            Owner::Flock(owner) => (1, owner),
        };
        (lock.svid, lock.pid, lock.open) = (self.svid, of.pid, of.open);
        lock.machine_state = of.machine_state;
        lock.standing = standing;
        lock
    }

    /// Keeps what the server has granted, or unlocked (`None`).
    pub(super) fn keep(&self, range: ByteRange, mode: Option<Mode>) {
        let mut of = self.state.lock();
        let lock = self.lock(&of, Lock::HELD);
        of.kept.set(range, mode, |range, mode| {
            self.records.alloc(of_range(lock.clone(), range, mode))
        });
    }

    /// Goes on with what another process has kept.
    pub(super) fn adopt(&self, range: ByteRange, mode: Mode, found: Record<Lock>) {
        let mut of = self.state.lock();
        let lock = self.lock(&of, Lock::HELD);
        let mut found = Some(found);
        of.kept.set(range, Some(mode), |part, as_| {
            // It is another one if that process died during a change.
            let same = found.take_if(|_| (part, as_) == (range, mode));
            same.unwrap_or_else(|| self.records.alloc(of_range(lock.clone(), part, as_)))
        });
    }

    /// Until what this returns is dropped, nobody knows how the server has locked a range: if this process
    /// dies, the next one makes it what it knows. To be called before the server is asked.
    pub(super) fn unsure(&self, range: ByteRange) -> Record<Lock> {
        let lock = self.lock(&self.state.lock(), Lock::UNSURE);
        self.records.alloc(of_range(lock, range, Mode::Read))
    }

    /// As [`Holding::unsure`], for a request.
    pub(super) fn asked(&self, request: &Request) -> Record<Lock> {
        let standing = match request.wait {
            true => Lock::QUEUED,
            false => Lock::UNSURE,
        };
        let mut lock = self.lock(&self.state.lock(), standing);
        lock.cred = credential::kept(&request.cred);
        (lock.pid, lock.open) = (request.pid, request.open);
        self.records
            .alloc(of_range(lock, request.range, request.mode))
    }

    /// The server has lost a lock.
    pub(super) fn lose(&self) {
        let mut of = self.state.lock();
        if of.lost.is_none() {
            let lock = self.lock(&of, Lock::LOST);
            let lock = of_range(lock, ByteRange::ALL, Mode::Read);
            of.lost = Some(self.records.alloc(lock));
        }
    }
}

fn of_range(mut lock: Lock, range: ByteRange, mode: Mode) -> Lock {
    (lock.start, lock.end) = (range.start, range.end);
    lock.exclusive = u8::from(mode == Mode::Write);
    lock
}
