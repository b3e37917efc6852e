//! The state of the lock manager, without I/O: locks, waiters, the grace period, and hosts
//! to notify of a restart. Time is an argument; [`LockTable::poll`] returns what to send.
//!
//! It behaves as Linux's lockd. An owner is a client's address and an svid, whatever its `oh` and
//! its caller's name are. A LOCK that may block is answered with BLOCKED, and as soon as its range
//! is free it is taken for the client (or never, as by lockd of Linux 6.12). The client is then
//! called back until it answers.

use super::ranges::{FileLocks, Range};
use clap::ValueEnum;
use nfsrdma_xdr::nfs3::FileHandle;
use nfsrdma_xdr::nlm4::Status;
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// The time between two callbacks about one lock.
const CALLBACK_INTERVAL: Duration = Duration::from_secs(5);
/// Most callbacks about one lock.
const CALLBACKS_MAX: u32 = 60;
/// The first pause before another SM_NOTIFY to a host that did not answer. It doubles each time.
const NOTIFY_PAUSE: Duration = Duration::from_secs(2);
/// Most SM_NOTIFYs to one host after one restart.
const NOTIFY_MAX: u32 = 9;
/// Most hosts whose state is remembered, or that have to be notified of a restart.
const HOSTS_MAX: usize = 4096;
/// Most locks and waiters together.
const LOCKS_MAX: usize = 65536;

/// How a client learns that a lock it waits for is granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum CallbackStyle {
    /// By GRANTED_MSG at once, as Linux 6.1 does.
    #[default]
    Callback,
    /// By GRANTED at once, whose reply is the client's answer.
    CallbackSync,
    /// Not at all, and the lock is not taken for it: it has to ask again, as with Linux 6.12.
    Never,
    /// The lock is taken for it at once, and it is called back some seconds later, as Linux 7.3 does.
    Takes,
}

/// The settings of locks.
#[derive(Debug, Clone)]
pub struct Policy {
    /// How long after a restart only reclaims are granted.
    pub grace: Duration,
    pub style: CallbackStyle,
    /// Whether to answer DEADLCK to a LOCK that would wait for itself.
    pub detect_deadlocks: bool,
    /// Whether TEST sees exclusive locks only, as in Linux 6.12.117.
    pub blind_test: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            grace: Duration::ZERO,
            style: CallbackStyle::default(),
            detect_deadlocks: true,
            blind_test: false,
        }
    }
}

/// A host that has locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    Client(IpAddr),
    /// The host of locks that commands take, as if by another client.
    Script,
}

/// The owner of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner {
    pub host: Host,
    pub svid: u32,
}

/// Where and how a client is called back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallerAddress {
    /// The address from which its call came.
    pub source: SocketAddr,
    pub udp: bool,
}

/// The lock that a call asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockRequest {
    pub file: FileHandle,
    pub owner: Owner,
    pub exclusive: bool,
    pub range: Range,
}

/// How a LOCK is to be handled.
#[derive(Debug, Clone, Default)]
pub struct LockMode {
    pub block: bool,
    pub reclaim: bool,
    /// Whether the client is notified of a restart.
    pub monitored: bool,
    /// Where, and with which `oh`, the client is called back; `None` if it does not wait.
    pub caller: Option<(CallerAddress, Vec<u8>)>,
}

#[derive(Debug)]
struct Callbacks {
    next: Instant,
    count: u32,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    request: LockRequest,
    address: CallerAddress,
    oh: Vec<u8>,
    /// Set when the lock was taken for the waiter, which does not know it yet.
    granted: Option<Callbacks>,
}

#[derive(Debug)]
struct Notification {
    host: IpAddr,
    next: Instant,
    pause: Duration,
    count: u32,
}

/// A call that is to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// GRANTED or GRANTED_MSG. Pass the answer to [`LockTable::granted_answer`] with this id.
    Grant {
        id: u64,
        request: LockRequest,
        address: CallerAddress,
        oh: Vec<u8>,
        sync: bool,
    },
    /// SM_NOTIFY. Call [`LockTable::notified`] when it is answered.
    Notify { host: IpAddr, state: u32 },
}

/// All locks and waiters of a server.
#[derive(Debug)]
pub struct LockTable {
    pub policy: Policy,
    files: HashMap<FileHandle, FileLocks<Owner>>,
    /// In the order of arrival.
    waiters: Vec<Waiter>,
    next_id: u64,
    /// The NSM state number, which is odd and changes with each restart.
    state: u32,
    grace_until: Option<Instant>,
    monitored: BTreeSet<IpAddr>,
    notifications: Vec<Notification>,
    /// The last state number that each client reported.
    client_states: HashMap<IpAddr, u32>,
}

impl LockTable {
    /// The table of a server that starts, with the hosts and state number from before.
    pub fn start(policy: Policy, now: Instant, state: u32, known: Vec<IpAddr>) -> Self {
        let mut table = LockTable {
            policy,
            files: HashMap::new(),
            waiters: Vec::new(),
            // Cookies of different runs differ.
            next_id: u64::from(state) << 32,
            state,
            grace_until: None,
            monitored: known.into_iter().take(HOSTS_MAX).collect(),
            notifications: Vec::new(),
            client_states: HashMap::new(),
        };
        table.restart(now);
        table
    }

    /// Drops everything but the hosts that have to be notified.
    pub fn restart(&mut self, now: Instant) {
        self.files.clear();
        self.waiters.clear();
        // It is odd while the host is up. An even one is left by a restart that was interrupted.
        self.state = (self.state | 1).wrapping_add(2);
        self.next_id = u64::from(self.state) << 32;
        self.grace_until = (!self.policy.grace.is_zero()).then(|| now + self.policy.grace);
        for host in std::mem::take(&mut self.monitored) {
            self.notifications.retain(|pending| pending.host != host);
            self.notifications.push(Notification {
                host,
                next: now,
                pause: NOTIFY_PAUSE,
                count: 0,
            });
        }
        for pending in &mut self.notifications {
            (pending.next, pending.pause, pending.count) = (now, NOTIFY_PAUSE, 0);
        }
    }

    /// The NSM state number.
    pub fn state(&self) -> u32 {
        self.state
    }

    /// The hosts to notify of the next restart, which have to be remembered until then.
    pub fn hosts(&self) -> BTreeSet<IpAddr> {
        let pending = self.notifications.iter().map(|pending| pending.host);
        self.monitored.iter().copied().chain(pending).collect()
    }

    /// Whether only reclaims are granted.
    pub fn in_grace(&self, now: Instant) -> bool {
        self.grace_until.is_some_and(|until| now < until)
    }

    /// Whether the file has a lock or a waiter. Then it need not be looked up.
    pub fn has_file(&self, file: &FileHandle) -> bool {
        self.files.contains_key(file)
            || self
                .waiters
                .iter()
                .any(|waiter| waiter.request.file == *file)
    }

    /// TEST: returns the conflicting lock.
    pub fn test(&self, now: Instant, request: &LockRequest) -> Result<(), TestFailure> {
        if self.in_grace(now) {
            return Err(TestFailure::Grace);
        }
        let asked = LockRequest {
            exclusive: request.exclusive && !self.policy.blind_test,
            ..*request
        };
        match self.conflict(&asked) {
            Some((owner, exclusive, range)) => Err(TestFailure::Held {
                svid: owner.svid,
                exclusive,
                range,
            }),
            None => Ok(()),
        }
    }

    fn conflict(&self, request: &LockRequest) -> Option<(Owner, bool, Range)> {
        let locks = self.files.get(&request.file)?;
        let held = locks
            .conflicts(request.owner, request.exclusive, request.range)
            .next()?;
        Some((held.owner, held.exclusive, held.range))
    }

    /// LOCK and NM_LOCK.
    pub fn lock(&mut self, now: Instant, request: &LockRequest, mode: LockMode) -> Status {
        // In the grace period only reclaims are granted, and after it none.
        if mode.reclaim != self.in_grace(now) {
            return Status::DeniedGracePeriod;
        }
        if self.conflict(request).is_none() {
            if self.used() >= LOCKS_MAX {
                return Status::DeniedNoLocks;
            }
            self.forget_waiters(|waiter| same_lock(waiter, request));
            self.take(request);
            if let (true, Host::Client(address)) = (mode.monitored, request.owner.host)
                && self.monitored.len() < HOSTS_MAX
            {
                self.monitored.insert(address);
            }
            // A downgrade may let waiters in.
            self.grant(now, &request.file);
            return Status::Granted;
        }
        let Some((address, oh)) = mode.caller.filter(|_| mode.block && !mode.reclaim) else {
            return Status::Denied;
        };
        if self.policy.detect_deadlocks && self.would_deadlock(request) {
            return Status::Deadlock;
        }
        if let Some(waiter) = self.waiters.iter_mut().find(|w| same_lock(w, request)) {
            // The same call came again, and keeps its place.
            (waiter.address, waiter.oh, waiter.granted) = (address, oh, None);
            return Status::Blocked;
        }
        if self.used() >= LOCKS_MAX {
            return Status::DeniedNoLocks;
        }
        self.next_id += 1;
        self.waiters.push(Waiter {
            id: self.next_id,
            request: *request,
            address,
            oh,
            granted: None,
        });
        Status::Blocked
    }

    fn used(&self) -> usize {
        let held: usize = self.files.values().map(|locks| locks.held().len()).sum();
        held + self.waiters.len()
    }

    fn take(&mut self, request: &LockRequest) {
        self.files.entry(request.file).or_default().lock(
            request.owner,
            request.exclusive,
            request.range,
        );
    }

    fn forget_waiters(&mut self, meant: impl Fn(&Waiter) -> bool) {
        self.waiters.retain(|waiter| !meant(waiter));
    }

    /// Whether a lock for which `request` would wait depends on the owner of `request`.
    fn would_deadlock(&self, request: &LockRequest) -> bool {
        let blockers = |request: &LockRequest| {
            let locks = self.files.get(&request.file).into_iter();
            let (owner, exclusive, range) = (request.owner, request.exclusive, request.range);
            locks
                .flat_map(move |locks| locks.conflicts(owner, exclusive, range))
                .map(|held| held.owner)
                .collect::<Vec<_>>()
        };
        let mut to_visit = blockers(request);
        let mut visited = Vec::new();
        while let Some(owner) = to_visit.pop() {
            if owner == request.owner {
                return true;
            }
            if visited.contains(&owner) {
                continue;
            }
            visited.push(owner);
            let waits =
                |waiter: &&Waiter| waiter.request.owner == owner && waiter.granted.is_none();
            for waiter in self.waiters.iter().filter(waits) {
                to_visit.extend(blockers(&waiter.request));
            }
        }
        false
    }

    /// Takes the locks that waiters of a file can have now, in the order of arrival.
    fn grant(&mut self, now: Instant, file: &FileHandle) {
        let first = match self.policy.style {
            CallbackStyle::Never => return,
            CallbackStyle::Takes => now + CALLBACK_INTERVAL,
            CallbackStyle::Callback | CallbackStyle::CallbackSync => now,
        };
        // A lock taken for a waiter may be a downgrade, which lets in earlier waiters.
        while let Some(at) = self.waiters.iter().position(|waiter| {
            let waits = waiter.request.file == *file && waiter.granted.is_none();
            waits && self.conflict(&waiter.request).is_none()
        }) {
            let request = self.waiters[at].request;
            self.take(&request);
            self.waiters[at].granted = Some(Callbacks {
                next: first,
                count: 0,
            });
        }
    }

    /// Handles the removal of locks of a file.
    fn released(&mut self, now: Instant, file: &FileHandle) {
        self.grant(now, file);
        if self.files.get(file).is_some_and(|l| l.held().is_empty()) {
            self.files.remove(file);
        }
    }

    /// CANCEL of a waiting LOCK. If its lock was taken meanwhile, DENIED: the client must unlock.
    pub fn cancel(&mut self, now: Instant, request: &LockRequest) -> Status {
        if self.in_grace(now) {
            return Status::DeniedGracePeriod;
        }
        let Some(at) = self.waiters.iter().position(|w| same_lock(w, request)) else {
            return Status::Granted;
        };
        match self.waiters.remove(at).granted {
            None => Status::Granted,
            Some(_) => Status::Denied,
        }
    }

    /// UNLOCK of the owner's locks in the range, of which there may be none.
    pub fn unlock(
        &mut self,
        now: Instant,
        file: &FileHandle,
        owner: Owner,
        range: Range,
    ) -> Status {
        if self.in_grace(now) {
            return Status::DeniedGracePeriod;
        }
        self.forget_waiters(|waiter| {
            let overlaps =
                waiter.request.range.start <= range.end && range.start <= waiter.request.range.end;
            waiter.request.file == *file
                && waiter.request.owner == owner
                && (waiter.request.range == range || overlaps && waiter.granted.is_some())
        });
        if let Some(locks) = self.files.get_mut(file) {
            locks.unlock(owner, range);
            self.released(now, file);
        }
        Status::Granted
    }

    /// The answer to the callback with `id`, from the address to which it was sent. `took` says
    /// whether the client still wants the lock.
    pub fn granted_answer(&mut self, now: Instant, from: IpAddr, id: u64, took: bool) {
        let known = |waiter: &Waiter| waiter.id == id && waiter.address.source.ip() == from;
        let Some(at) = self
            .waiters
            .iter()
            .position(|waiter| known(waiter) && waiter.granted.is_some())
        else {
            return;
        };
        let LockRequest {
            file, owner, range, ..
        } = self.waiters.remove(at).request;
        if !took && let Some(locks) = self.files.get_mut(&file) {
            locks.unlock(owner, range);
            self.released(now, &file);
        }
    }

    /// FREE_ALL: drops all locks of a client.
    pub fn free_all(&mut self, now: Instant, host: Host) {
        self.forget_waiters(|waiter| waiter.request.owner.host == host);
        let files: Vec<FileHandle> = self.files.keys().copied().collect();
        for file in files {
            let locks = self.files.get_mut(&file);
            if locks.is_some_and(|locks| locks.unlock_all(|owner| owner.host == host)) {
                self.released(now, &file);
            }
        }
    }

    /// SM_NOTIFY from a client: if the state number is new, its locks are dropped.
    pub fn client_restarted(&mut self, now: Instant, client: IpAddr, state: u32) {
        if self.client_states.get(&client) == Some(&state) {
            return;
        }
        if self.client_states.len() >= HOSTS_MAX {
            self.client_states.clear();
        }
        self.client_states.insert(client, state);
        self.free_all(now, Host::Client(client));
    }

    /// Records that a host was notified of the restart.
    pub fn notified(&mut self, host: IpAddr) {
        self.notifications.retain(|pending| pending.host != host);
    }

    /// Returns the calls that are due.
    pub fn poll(&mut self, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        let sync = self.policy.style == CallbackStyle::CallbackSync;
        for waiter in &mut self.waiters {
            let Some(callbacks) = waiter.granted.as_mut().filter(|c| c.next <= now) else {
                continue;
            };
            callbacks.next = now + CALLBACK_INTERVAL;
            callbacks.count += 1;
            actions.push(Action::Grant {
                id: waiter.id,
                request: waiter.request,
                address: waiter.address,
                oh: waiter.oh.clone(),
                sync,
            });
        }
        self.forget_waiters(|w| w.granted.as_ref().is_some_and(|c| c.count > CALLBACKS_MAX));
        for pending in self.notifications.iter_mut().filter(|p| p.next <= now) {
            pending.next = now + pending.pause;
            pending.pause *= 2;
            pending.count += 1;
            actions.push(Action::Notify {
                host: pending.host,
                state: self.state,
            });
        }
        self.notifications.retain(|p| p.count <= NOTIFY_MAX);
        actions
    }

    /// The time at which [`LockTable::poll`] has the next call.
    pub fn next_poll(&self) -> Option<Instant> {
        let callbacks = self
            .waiters
            .iter()
            .filter_map(|w| Some(w.granted.as_ref()?.next));
        callbacks
            .chain(self.notifications.iter().map(|pending| pending.next))
            .min()
    }

    /// Formats all locks and waiters for people.
    pub fn describe(&self) -> String {
        let who = |owner: Owner| match owner.host {
            Host::Client(address) => format!("{address}/{}", owner.svid),
            Host::Script => format!("script/{}", owner.svid),
        };
        let kind = |exclusive| if exclusive { "exclusive" } else { "shared" };
        let range = |range: Range| match range.length() {
            0 => format!("{}-", range.start),
            _ => format!("{}-{}", range.start, range.end),
        };
        let held = self.files.values().flat_map(FileLocks::held).map(|held| {
            format!(
                "held:{}:{}:{}",
                who(held.owner),
                kind(held.exclusive),
                range(held.range)
            )
        });
        let waiting = self.waiters.iter().map(|waiter| {
            let LockRequest {
                owner,
                exclusive,
                range: wanted,
                ..
            } = waiter.request;
            let what = match waiter.granted {
                Some(_) => "granted",
                None => "waiting",
            };
            format!(
                "{what}:{}:{}:{}",
                who(owner),
                kind(exclusive),
                range(wanted)
            )
        });
        held.chain(waiting).collect::<Vec<_>>().join(" ")
    }
}

/// Why TEST does not report that the lock is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TestFailure {
    Grace,
    Held {
        svid: u32,
        exclusive: bool,
        range: Range,
    },
}

fn same_lock(waiter: &Waiter, request: &LockRequest) -> bool {
    waiter.request == *request
}
