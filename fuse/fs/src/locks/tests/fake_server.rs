//! A lock server in memory, for tests: it can restart, has grace periods, and calls a hook
//! of the test after it has run a call.

use super::config::{Kinds, Lasting, LockConfig};
use super::holding::{LockFile, Request};
use super::interrupt::Interrupt;
use super::lock_table::Owner;
use super::manager::Locks;
use super::range::{ByteRange, Mode, RangeSet};
use nfsrdma_nfs3::Cred;
use nfsrdma_nfs3::nlm::{
    Done, LockAnswer, LockCall, LockFuture, LockHolder, LockServer, LockTarget, Status,
};
use nfsrdma_rpcrdma::rpc::Credential;
use nfsrdma_rpcrdma::rpc::plain::PlainError;
use nfsrdma_xdr::nfs3::FileHandle;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;

/// The state of the server.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// The locks of its only file, by svid.
    pub(crate) held: BTreeMap<u32, RangeSet>,
    pub(super) grace: bool,
    /// Calls are run, and not answered.
    pub(super) silent: bool,
    /// Calls wait to be run until [`FakeServer::run_late`].
    pub(super) slow: bool,
    pub(super) late: Vec<(Cred, LockTarget, LockCall)>,
    /// A blocking LOCK that conflicts is queued, and its lock is taken as soon as it is free; nobody is
    /// called back.
    pub(super) queues: bool,
    pub(super) queue: Vec<(u32, ByteRange, Mode)>,
    /// The uid of each caller, and its call.
    pub(super) callers: Vec<(u32, LockCall)>,
}

impl Known {
    pub(super) fn restart(&mut self, grace: bool) {
        self.held.clear();
        self.queue.clear();
        self.grace = grace;
    }

    pub(super) fn lock(&mut self, svid: u32, range: ByteRange, mode: Option<Mode>) {
        self.held.entry(svid).or_default().set(range, mode);
        self.held.retain(|_, set| !set.is_empty());
        let free = |of: &(u32, ByteRange, Mode)| self.conflict(of.0, of.1, of.2).is_none();
        if let Some(at) = self.queue.iter().position(free) {
            let (svid, range, mode) = self.queue.remove(at);
            self.lock(svid, range, Some(mode));
        }
    }

    pub(super) fn has(&self, svid: u32, range: ByteRange, mode: Mode) -> bool {
        let set = self.held.get(&svid);
        set.is_some_and(|set| set.pieces(range) == [(range, Some(mode))])
    }

    pub(super) fn conflict(&self, svid: u32, range: ByteRange, mode: Mode) -> Option<LockHolder> {
        let mut others = self.held.iter().filter(|(other, _)| **other != svid);
        others.find_map(|(&svid, set)| {
            let (range, mode) = set.conflict(range, mode)?;
            let (offset, length) = range.to_wire();
            Some(LockHolder {
                exclusive: mode == Mode::Write,
                svid,
                offset,
                length,
            })
        })
    }

    fn run(&mut self, cred: &Cred, target: &LockTarget, call: LockCall) -> LockAnswer {
        let range = ByteRange::from_wire(target.offset, target.length);
        let mode = |exclusive| if exclusive { Mode::Write } else { Mode::Read };
        let mut answer = LockAnswer {
            status: Status::Granted,
            holder: None,
        };
        self.callers.push((cred.uid, call));
        let reclaims = matches!(call, LockCall::Lock { reclaim: true, .. });
        match call {
            _ if self.grace != reclaims => answer.status = Status::DeniedGracePeriod,
            LockCall::Test { exclusive } => {
                answer.holder = self.conflict(target.svid, range, mode(exclusive));
                if answer.holder.is_some() {
                    answer.status = Status::Denied;
                }
            }
            LockCall::Lock {
                exclusive, block, ..
            } => {
                let asked = (target.svid, range, mode(exclusive));
                self.queue.retain(|of| *of != asked);
                match self.conflict(target.svid, range, mode(exclusive)) {
                    Some(_) if block && self.queues => {
                        self.queue.push(asked);
                        answer.status = Status::Blocked;
                    }
                    Some(_) => answer.status = Status::Denied,
                    None => self.lock(target.svid, range, Some(mode(exclusive))),
                }
            }
            LockCall::Cancel { exclusive } => {
                let cancelled = (target.svid, range, mode(exclusive));
                self.queue.retain(|of| *of != cancelled);
            }
            LockCall::Unlock => self.lock(target.svid, range, None),
        }
        answer
    }
}

type Hook = Box<dyn FnMut(&mut Known, LockCall) + Send>;

pub(crate) struct FakeServer {
    pub(crate) known: Mutex<Known>,
    suspicions: watch::Sender<u64>,
    after: Mutex<Option<Hook>>,
    /// How often a call yields to other tasks before it is answered.
    pub(super) yields: AtomicUsize,
}

impl fmt::Debug for FakeServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.known.lock().fmt(f)
    }
}

impl Default for FakeServer {
    fn default() -> Self {
        FakeServer {
            known: Mutex::default(),
            suspicions: watch::channel(0).0,
            after: Mutex::default(),
            yields: AtomicUsize::new(1),
        }
    }
}

impl FakeServer {
    /// Sets what happens after each call was run, and before it is answered.
    pub(super) fn after(&self, hook: impl FnMut(&mut Known, LockCall) + Send + 'static) {
        *self.after.lock() = Some(Box::new(hook));
    }

    /// Runs the calls that wait.
    pub(super) fn run_late(&self) {
        let mut known = self.known.lock();
        for (cred, target, call) in std::mem::take(&mut known.late) {
            known.run(&cred, &target, call);
        }
    }

    /// Makes the connection end.
    pub(super) fn disconnect(&self) {
        self.suspicions.send_modify(|count| *count += 1);
    }
}

impl LockServer for FakeServer {
    fn call<'a>(
        &'a self,
        cred: &'a Cred,
        target: &'a LockTarget,
        call: LockCall,
    ) -> LockFuture<'a> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            if self.known.lock().slow {
                let waits = (cred.clone(), *target, call);
                self.known.lock().late.push(waits);
                return std::future::pending().await;
            }
            let (answer, silent) = {
                let mut known = self.known.lock();
                let answer = known.run(cred, target, call);
                if let Some(hook) = &mut *self.after.lock() {
                    hook(&mut known, call);
                }
                (answer, known.silent)
            };
            if silent {
                tokio::time::sleep(Duration::from_secs(1)).await;
                return Err(PlainError::TimedOut);
            }
            // Other callers may get their answers first.
            for _ in 0..self.yields.load(Ordering::Relaxed) {
                tokio::task::yield_now().await;
            }
            Ok(answer)
        })
    }

    fn settled(&self) -> Done<'_> {
        Box::pin(async { self.run_late() })
    }

    fn null(&self) -> Pin<Box<dyn Future<Output = Result<(), PlainError>> + Send + '_>> {
        Box::pin(async { Ok(()) })
    }

    fn suspicions(&self) -> watch::Receiver<u64> {
        self.suspicions.subscribe()
    }
}

pub(super) const CONFIG: LockConfig = LockConfig {
    kinds: Kinds {
        posix: true,
        flock: true,
    },
    patience: None,
};

/// A request of process `owner`.
pub(super) fn request(owner: u64, range: ByteRange, mode: Mode) -> Request {
    Request {
        file: LockFile {
            id: 1,
            handle: FileHandle::new(b"f").unwrap(),
            fileid: 1,
        },
        owner: Owner::Posix(owner),
        range,
        mode,
        wait: false,
        pid: owner as u32,
        open: owner,
        cred: Arc::new(Credential {
            uid: 0,
            gid: 0,
            groups: Vec::new(),
        }),
    }
}

pub(super) async fn lock(locks: &Arc<Locks>, request: &Request) {
    let mut result = None;
    locks
        .lock(request, &Interrupt::default(), ready(()), |of| {
            result = Some(of);
        })
        .await;
    assert_eq!(result, Some(Ok(())));
}

pub(super) fn counter(locks: &Locks, name: &str) -> u64 {
    let all = locks.statistics();
    all.iter().find(|(of, _)| *of == name).unwrap().1
}

pub(super) fn range(start: u64, end: u64) -> ByteRange {
    ByteRange::new(start, end).unwrap()
}

pub(crate) fn locks_of(server: &Arc<FakeServer>) -> Arc<Locks> {
    Locks::new(
        server.clone(),
        CONFIG,
        Lasting::default(),
        Handle::current(),
    )
}
