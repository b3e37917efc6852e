//! The running lock manager: its table, the thread that sends due calls, and test commands.

use super::record::RecordFile;
use super::send::{self, Target};
use super::table::{Action, CallerAddress, Host, LockMode, LockRequest, LockTable, Owner, Policy};
use crate::workers::Workers;
use nfsrdma_xdr::codec::{Decode, Decoder, Encode, Text};
use nfsrdma_xdr::nfs3::FileHandle;
use nfsrdma_xdr::nlm4::{Granted, GrantedMsg, Lock, Res, Status, TestArgs};
use nfsrdma_xdr::nsm::{self, StateChange};
use nfsrdma_xdr::procedure::Procedure;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// The number of threads that call clients back.
const SENDERS: usize = 4;
/// Most calls to clients under way or queued. Further callbacks are repeated later.
const SENDING_MAX: u64 = 1024;
/// Procedures of NSM have smaller numbers.
const MONITOR_PROCEDURES: usize = 7;

/// The settings of the lock manager.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Whether NLM and NSM are not served at all.
    pub off: bool,
    pub policy: Policy,
    pub client_lock_port: Option<u16>,
    /// The directory for the record of hosts to notify after a restart; `None` keeps none.
    pub state_dir: Option<PathBuf>,
}

/// A running lock manager.
#[derive(Debug)]
pub struct LockService {
    settings: Settings,
    table: Mutex<LockTable>,
    /// Signalled when the table changes, and at the end.
    changed: Condvar,
    stopping: AtomicBool,
    record: Option<RecordFile>,
    senders: Workers,
    sending: AtomicU64,
    /// The server's name in callbacks and notifications.
    name: Vec<u8>,
    /// For tests: calls are neither executed nor answered.
    silent: AtomicBool,
    /// For tests: procedures whose calls are not executed, and answered with a status.
    answers: Mutex<HashMap<u32, u32>>,
    monitor_calls: [AtomicU64; MONITOR_PROCEDURES],
}

impl LockService {
    /// Starts with the record of an earlier process. [`LockService::run`] does the sending.
    pub fn start(settings: Settings) -> io::Result<Arc<Self>> {
        let record = settings.state_dir.as_deref().map(RecordFile::in_directory);
        let (state, known) = match &record {
            Some(record) => record.load()?,
            None => (1, Vec::new()),
        };
        let table = LockTable::start(settings.policy.clone(), Instant::now(), state, known);
        if let Some(record) = &record {
            record.save(table.state(), &table.hosts())?;
        }
        Ok(Arc::new(LockService {
            senders: Workers::start(if settings.off { 1 } else { SENDERS })?,
            settings,
            table: Mutex::new(table),
            changed: Condvar::new(),
            stopping: AtomicBool::new(false),
            record,
            sending: AtomicU64::new(0),
            name: host_name(),
            silent: AtomicBool::new(false),
            answers: Mutex::default(),
            monitor_calls: [const { AtomicU64::new(0) }; MONITOR_PROCEDURES],
        }))
    }

    /// Whether there is a lock manager.
    pub fn is_on(&self) -> bool {
        !self.settings.off
    }

    /// Calls `work` with the table and the current time.
    pub fn with<T>(&self, work: impl FnOnce(&mut LockTable, Instant) -> T) -> T {
        let mut table = self.table.lock();
        let before = self.remembered(&table);
        let done = work(&mut table, Instant::now());
        if let Some(record) = &self.record
            && let Some(after) = self.remembered(&table)
            && before.as_ref() != Some(&after)
            && let Err(error) = record.save(after.0, &after.1)
        {
            tracing::warn!(%error, "hosts to be told of a restart are not remembered");
        }
        drop(table);
        self.changed.notify_all();
        done
    }

    fn remembered(
        &self,
        table: &LockTable,
    ) -> Option<(u32, std::collections::BTreeSet<std::net::IpAddr>)> {
        self.record.as_ref()?;
        Some((table.state(), table.hosts()))
    }

    /// Sends due calls until [`LockService::stop`].
    pub fn run(self: &Arc<Self>) {
        let mut table = self.table.lock();
        while !self.stopping.load(Ordering::Relaxed) {
            for action in table.poll(Instant::now()) {
                self.carry_out(action);
            }
            match table.next_poll() {
                Some(next) => {
                    self.changed.wait_until(&mut table, next);
                }
                None => self.changed.wait(&mut table),
            }
        }
    }

    /// Ends [`LockService::run`] and the calls that it sends.
    pub fn stop(&self) {
        {
            let _table: MutexGuard<'_, LockTable> = self.table.lock();
            self.stopping.store(true, Ordering::Relaxed);
        }
        self.changed.notify_all();
        self.senders.stop();
    }

    /// Makes a call to a client on another thread.
    fn send(self: &Arc<Self>, work: impl FnOnce(&Arc<Self>) -> io::Result<()> + Send + 'static) {
        if self.sending.fetch_add(1, Ordering::Relaxed) >= SENDING_MAX {
            self.sending.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let service = self.clone();
        self.senders.submit(move || {
            if !service.stopping.load(Ordering::Relaxed)
                && let Err(error) = work(&service)
            {
                tracing::info!(%error, "a client was not reached");
            }
            service.sending.fetch_sub(1, Ordering::Relaxed);
        });
    }

    fn carry_out(self: &Arc<Self>, action: Action) {
        match action {
            Action::Grant {
                id,
                request,
                address,
                oh,
                sync,
            } => self.send(move |service| service.call_back(id, &request, address, &oh, sync)),
            Action::Notify { host, state } => self.send(move |service| {
                let at = Target::of::<nsm::Notify>(SocketAddr::new(host, 0), true);
                let change = StateChange {
                    name: Text(&service.name),
                    state,
                };
                service.call(at, None, &change.to_xdr())?;
                service.with(|table, _| table.notified(host));
                Ok(())
            }),
        }
    }

    fn call_back(
        &self,
        id: u64,
        request: &LockRequest,
        address: CallerAddress,
        oh: &[u8],
        sync: bool,
    ) -> io::Result<()> {
        let cookie = id.to_be_bytes();
        let args = TestArgs {
            cookie: Text(&cookie),
            exclusive: request.exclusive,
            lock: Lock {
                caller_name: Text(&self.name),
                file: request.file,
                owner: Text(oh),
                svid: request.owner.svid,
                offset: request.range.start,
                length: request.range.length(),
            },
        }
        .to_xdr();
        let port = self.settings.client_lock_port;
        if !sync {
            let at = Target::of::<GrantedMsg>(address.source, address.udp);
            return self.call(at, port, &args).map(drop);
        }
        let at = Target::of::<Granted>(address.source, address.udp);
        let results = self.call(at, port, &args)?;
        let res = Res::decode(&mut Decoder::new(&results)).map_err(io::Error::other)?;
        self.granted_answer(address.source, &cookie, res.status);
        Ok(())
    }

    /// Calls a client at a known port, or at the one that its rpcbind names.
    fn call(&self, mut at: Target, port: Option<u16>, args: &[u8]) -> io::Result<Vec<u8>> {
        let port = match port {
            Some(port) => port,
            None => send::look_up(&at)?
                .ok_or_else(|| io::Error::other("the client did not register the program"))?,
        };
        at.address.set_port(port);
        send::call(&at, args)
    }

    /// Handles a client's answer to GRANTED or GRANTED_MSG.
    pub(crate) fn granted_answer(&self, from: SocketAddr, cookie: &[u8], status: Status) {
        let Ok(id) = cookie.try_into().map(u64::from_be_bytes) else {
            return;
        };
        // The client is asked again later.
        if status == Status::DeniedGracePeriod {
            return;
        }
        let took = status != Status::Denied;
        self.with(|table, now| table.granted_answer(now, from.ip(), id, took));
    }

    /// Drops all locks, as a restart does, and notifies the hosts that had some.
    pub fn restart(&self) {
        self.with(|table, now| table.restart(now));
    }

    /// For tests: takes a lock as another client would.
    pub fn lock_for_script(
        &self,
        file: FileHandle,
        exclusive: bool,
        range: super::ranges::Range,
    ) -> Status {
        let request = LockRequest {
            file,
            owner: SCRIPT,
            exclusive,
            range,
        };
        self.with(|table, now| table.lock(now, &request, LockMode::default()))
    }

    /// For tests: releases such a lock.
    pub fn unlock_for_script(&self, file: FileHandle, range: super::ranges::Range) -> Status {
        self.with(|table, now| table.unlock(now, &file, SCRIPT, range))
    }

    /// Sets whether calls are neither executed nor answered.
    pub fn set_silent(&self, silent: bool) {
        self.silent.store(silent, Ordering::Relaxed);
    }

    /// Sets the status that calls of a procedure get; `None`: as they deserve.
    pub fn set_answer(&self, procedure: u32, status: Option<u32>) {
        let mut answers = self.answers.lock();
        match status {
            Some(status) => answers.insert(procedure, status),
            None => answers.remove(&procedure),
        };
    }

    pub(crate) fn answer(&self, procedure: u32) -> Option<u32> {
        self.answers.lock().get(&procedure).copied()
    }

    /// Returns whether to execute a call that came.
    pub(crate) fn arrive(&self) -> bool {
        !self.silent.load(Ordering::Relaxed)
    }

    /// Counts a call of NSM.
    pub(crate) fn monitor_call(&self, procedure: u32) {
        if let Some(count) = self.monitor_calls.get(procedure as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The number of calls of each procedure of NSM.
    pub fn monitor_calls(&self) -> impl Iterator<Item = (&'static str, u64)> {
        const NAMES: [&str; MONITOR_PROCEDURES] = [
            nsm::Null::NAME,
            nsm::Stat::NAME,
            nsm::Mon::NAME,
            nsm::Unmon::NAME,
            nsm::UnmonAll::NAME,
            nsm::SimulateCrash::NAME,
            nsm::Notify::NAME,
        ];
        let counts = self.monitor_calls.iter();
        let counts = counts.map(|count| count.load(Ordering::Relaxed));
        NAMES.into_iter().zip(counts)
    }
}

/// The owner of locks that commands take.
const SCRIPT: Owner = Owner {
    host: Host::Script,
    svid: 1,
};

/// This machine's name for callbacks and notifications. No client relies on it.
fn host_name() -> Vec<u8> {
    let name = std::fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim_ascii().to_vec()
}
