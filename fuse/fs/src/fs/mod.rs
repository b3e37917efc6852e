//! The file system over [`Nfs3`].
//!
//! Each group of operations has a file of its own; this file holds the type [`Fs`] and what all
//! groups use. Operations are futures that never block a thread; `nfsrdma_rpcrdma::exec` polls
//! them. Functions named `*_cached` answer at once from memory, or return `None`.

mod access;
mod acl;
mod appends;
mod attribute_cache;
mod attributes;
mod change_context;
mod changes;
mod changing;
mod clock;
mod config;
mod create;
mod digest;
mod dir;
mod dir_handle;
mod direct_append;
mod direct_write;
mod error;
mod export;
mod failures;
mod file;
mod flushes;
mod inode;
mod inode_flags;
mod inode_table;
mod kernel_pages;
mod kernel_read;
mod link;
mod listings;
mod locking;
mod lookup;
mod losing;
mod mapping;
mod names;
mod open;
mod open_file;
mod opening;
mod outdated;
mod paths;
mod pending_opens;
mod read;
mod read_after_write;
mod releases;
mod remove;
mod rename;
mod search;
mod set_id;
mod sibling_names;
mod squash;
mod stats;
mod sweeps;
mod sync;
mod unsafe_files;
mod unwritten;
mod waiting_writes;
mod write;
mod write_failure;
mod write_place;
mod writer;

pub use acl::NewMode;
pub use change_context::KernelCache;
pub use clock::Clock;
pub use config::{FsConfig, LookupCache, Permissions};
pub use dir_handle::{DirHandle, Listed, Listing};
pub use error::{FsError, FsResult};
pub use inode::{Inode, ROOT};
pub use kernel_pages::Behind;
pub use locking::SetLock;
pub use lookup::Found;
pub use open_file::{OpenFile, Opened};
pub use paths::Paths;
pub use unsafe_files::Hold;
pub use unwritten::Unwritten;
pub use writer::WaitingCaller;

use crate::cache::{Budget, Lent, Line};
use crate::locks::Locks;
use crate::sync::atomic::{AtomicBool, AtomicUsize};
use crate::sync::{Mutex, RwLock};
use change_context::ChangeContext;
use clock::{Nanos, nanos};
use failures::FailureLog;
use file::{FileData, Shared};
use inode::{Asked, Stamp, Times};
use inode_table::Table;
use listings::Listings;
use names::Names;
use nfsrdma_nfs3::{Driver, Limits, Nfs3, NfsError};
use nfsrdma_rdma::Pool;
use nfsrdma_rpcrdma::throttle::Throttle;
use nfsrdma_xdr::nfs3::{Attributes, FileHandle, FileType, NAME_MAX, Status};
use pending_opens::PendingOpens;
use releases::Releases;
use slab::Slab;
use std::collections::{BTreeSet, HashMap};
use std::hash::RandomState;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use sweeps::Sweeps;
use tokio::sync::Notify;
use unsafe_files::UnsafeFiles;
use unwritten::LostData;

/// What the kernel is given for a name or an object.
#[derive(Debug, Clone)]
pub struct Entry {
    pub nodeid: u64,
    pub attributes: Attributes,
    /// How long the attributes are valid.
    pub attr_ttl: Duration,
    /// How long the name is valid.
    pub entry_ttl: Duration,
}

/// A mounted export. All operations may run at the same time from any thread.
#[derive(Debug)]
pub struct Fs<N> {
    nfs: Arc<N>,
    pool: Pool,
    config: FsConfig,
    clock: Clock,
    table: Table,
    names: Names,
    listings: Mutex<Listings>,
    shared: Arc<Shared>,
    files: RwLock<Slab<Arc<OpenFile>>>,
    /// The numbers of the files that are open for writing, by node.
    writable: Mutex<HashMap<u64, BTreeSet<u64>>>,
    dirs: RwLock<Slab<Arc<DirHandle>>>,
    /// Files with data that is not safe at the server, by [`FileData::id`].
    unsafe_files: Mutex<UnsafeFiles>,
    /// The id in `unsafe_files` at which the next [`Fs::relieve`] begins.
    relieved: AtomicU64,
    /// When the pool last gave unused memory back to the system.
    rested: AtomicU64,
    /// Write-back of files that have been dirty for too long.
    sweeps: Mutex<Sweeps>,
    /// Lost data of which no program got the error; reported at the unmount.
    lost: Mutex<LostData>,
    /// The failed WRITEs that were logged, and those that wait for the next line.
    failures: Mutex<FailureLog>,
    next_file: AtomicU64,
    silly_number: AtomicU64,
    /// The random keys from which hidden names are made.
    silly_keys: RandomState,
    opening: PendingOpens,
    /// How many hidden names are being removed, by directory: RMDIR waits for them.
    removals: Mutex<HashMap<u64, usize>>,
    /// RMDIR waits for these as well.
    releases: Releases,
    removed: Notify,
    fsid_known: AtomicBool,
    export: export::Export,
    /// Replies about objects of another type.
    other_types: Mutex<Throttle<Duration>>,
    /// Hidden names that could not be removed.
    hidden_stay: Mutex<Throttle<Duration>>,
    readdirplus: AtomicBool,
    root_squash: Mutex<squash::RootSquashes>,
    superuser: squash::Superuser,
    /// The mount is being shut down: data that cannot be written is reported at the unmount even if
    /// an open file has the error, because no program will fetch it.
    closing: AtomicBool,
    /// The kernel sends no more requests ([`Fs::end_of_requests`]).
    ended: AtomicBool,
    change_context: ChangeContext,
    /// The locks of the mount, if they are taken at the server.
    locks: OnceLock<Arc<Locks>>,
}

impl<N: Nfs3> Fs<N> {
    /// The number of calls that wait to be sent together ([`nfsrdma_rpcrdma::exec::deferring`]).
    pub fn deferred(&self) -> u32 {
        self.nfs.deferred()
    }

    /// The connections, to be polled by event loops.
    pub fn drivers(&self) -> Vec<Driver> {
        self.nfs.drivers()
    }

    /// Sends the calls that [`Fs::deferred`] counts.
    pub fn send_deferred(&self) {
        self.nfs.kick();
    }

    /// A file system for the export whose root directory is `root`. Buffers come from `pool`, which
    /// the connection has registered; see [`FsConfig::pool_bytes`] for its size.
    pub fn new(nfs: Arc<N>, root: FileHandle, pool: Pool, config: FsConfig) -> Arc<Self> {
        Self::with_clock(nfs, root, pool, config, Clock::default())
    }

    /// As [`Fs::new`], with a clock for the caches.
    pub fn with_clock(
        nfs: Arc<N>,
        root: FileHandle,
        pool: Pool,
        config: FsConfig,
        clock: Clock,
    ) -> Arc<Self> {
        let table = Table::new();
        table.insert_root(Arc::new(Inode::new(ROOT, root, FileType::Directory, 0)));
        Arc::new(Fs {
            table,
            names: Names::new(config.name_entries),
            listings: Mutex::new(Listings::new(config.name_entries)),
            shared: Arc::new(Shared {
                budget: Budget::new(config.cache_bytes),
                lent: Lent::new(config.cache_bytes / 4),
                dirty: AtomicUsize::new(0),
                uncommitted: AtomicUsize::new(0),
                writes: AtomicUsize::new(0),
                calls: AtomicUsize::new(nfs.calls_at_a_time()),
                busy: AtomicUsize::new(0),
                freed: Notify::new(),
                writers: Line::default(),
                stats: stats::Stats::default(),
            }),
            files: RwLock::default(),
            writable: Mutex::default(),
            dirs: RwLock::default(),
            unsafe_files: Mutex::default(),
            lost: Mutex::default(),
            failures: Mutex::default(),
            relieved: AtomicU64::new(0),
            rested: AtomicU64::new(0),
            sweeps: Mutex::default(),
            next_file: AtomicU64::new(1),
            silly_number: AtomicU64::new(0),
            silly_keys: RandomState::new(),
            opening: PendingOpens::default(),
            removals: Mutex::default(),
            releases: Releases::default(),
            removed: Notify::new(),
            fsid_known: AtomicBool::new(false),
            export: export::Export::default(),
            other_types: Mutex::default(),
            hidden_stay: Mutex::default(),
            closing: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            change_context: ChangeContext::default(),
            locks: OnceLock::new(),
            readdirplus: AtomicBool::new(config.readdirplus),
            root_squash: Mutex::default(),
            superuser: squash::Superuser::default(),
            nfs,
            pool,
            config,
            clock,
        })
    }

    /// Counters since the mount, as (name, value).
    pub fn statistics(&self) -> Vec<(&'static str, u64)> {
        let mut list = self.shared.stats.list();
        list.push(("cache_bytes", self.shared.budget.used() as u64));
        list.push((
            "dirty_bytes",
            self.shared.dirty.load(std::sync::atomic::Ordering::Relaxed) as u64,
        ));
        list.push(("inodes", self.table.len() as u64));
        if let Some(locks) = self.locks.get() {
            list.extend(locks.statistics());
        }
        list
    }

    fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Whether attributes of files are valid for any time.
    pub fn keeps_attributes(&self) -> bool {
        !self.config.acregmax.is_zero()
    }

    /// The longest name at the server, in bytes.
    pub fn name_max(&self) -> u32 {
        self.config.name_max
    }

    fn limits(&self) -> Limits {
        self.nfs.limits()
    }

    fn inode(&self, nodeid: u64) -> FsResult<Arc<Inode>> {
        self.table.get(nodeid).ok_or(FsError::UnknownInode)
    }

    fn times(&self, kind: FileType) -> Times {
        let c = &self.config;
        let (min, max) = match kind {
            FileType::Directory => (c.acdirmin, c.acdirmax),
            _ => (c.acregmin, c.acregmax),
        };
        Times {
            min: nanos(min),
            max: nanos(max.max(min)),
        }
    }

    /// The cached data of `inode`; creates it if there is none.
    fn data<'a>(&self, inode: &'a Arc<Inode>) -> &'a Arc<FileData> {
        inode.data_or(|| {
            let id = self
                .next_file
                .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let epoch = inode.state.lock().epoch;
            FileData::new(id, epoch, &self.shared)
        })
    }

    /// Applies the attributes in the reply to a call that was sent at `stamp`. Returns true if the
    /// reply may be older than the attributes already known: file data in it must not be cached.
    fn apply_post_op_attr(
        &self,
        inode: &Arc<Inode>,
        stamp: Stamp,
        attributes: Option<&Attributes>,
    ) -> bool {
        let Some(attributes) = attributes else {
            return false;
        };
        if attributes.kind != inode.kind {
            // A handle names one object for ever, and an object keeps its type.
            if let Some(more) = self
                .other_types
                .lock()
                .event(Duration::from_nanos(self.now()))
            {
                let paths = self.names.paths([inode.fileid].into_iter());
                let path = paths.get(&inode.fileid).map_or("an object", String::as_str);
                tracing::warn!(
                    "the server says that {path} (file {}) is of another type than before, which it must not \
                     say of one handle, and {more} more such answers: see the server's log",
                    inode.fileid
                );
            }
            return false;
        }
        inode.mark_valid();
        self.export.answered();
        if inode.nodeid == ROOT && !self.fsid_known.load(Ordering::Relaxed) {
            self.table.set_fsid(attributes.fsid);
            self.fsid_known.store(true, Ordering::Relaxed);
        }
        let outcome = {
            let mut state = inode.state.lock();
            state.apply(stamp, attributes, self.now(), self.times(inode.kind))
        };
        self.follow(inode, outcome);
        outcome.ambiguous
    }

    /// Notes what an error of a call on `inode` shows (a stale handle, a refusal), and converts it.
    fn note_error(&self, inode: &Inode, error: NfsError) -> FsError {
        match error {
            NfsError::Status(Status::Stale | Status::BadHandle) => {
                inode.mark_stale();
                self.export.refused();
            }
            NfsError::Status(Status::Access | Status::Perm) => self.superuser.refused(),
            _ => {}
        }
        error.into()
    }

    /// The attributes that programs see: the newest known ones, with the size extended to the end
    /// of the data that the server does not have yet. `heard` is used only if none are known, since
    /// its reply may be older than a WRITE that has ended, and the kernel truncates its pages when
    /// it is given a size that is too small.
    fn visible_attributes(&self, inode: &Inode, heard: Attributes) -> Attributes {
        // This must be read before the attributes; see `unwritten_end`.
        let end = inode.unwritten_end();
        let mut state = inode.state.lock();
        let newest = state.attributes().copied().unwrap_or(heard);
        let size = newest.size.max(end);
        let _ = inode.record_told(&mut state, size);
        let nlink = inode.visible_links(&state, &newest);
        Attributes {
            size,
            nlink,
            fileid: self.table.visible_fileid(&newest),
            ..newest
        }
    }

    fn attr_ttl(&self, inode: &Inode, now: Nanos) -> Duration {
        // The times of a dirty file are not final before the server has the data; and the number of
        // links changes when the hidden name is removed, of which the kernel does not know.
        if inode.is_dirty() || inode.hidden_links.load(Ordering::Relaxed) > 0 {
            return Duration::ZERO;
        }
        Duration::from_nanos(inode.state.lock().fresh_for(now))
    }

    /// How long the kernel may use a name in `dir` without a LOOKUP.
    fn entry_ttl(&self, dir: &Inode, now: Nanos) -> Duration {
        match self.config.lookup_cache {
            LookupCache::None => Duration::ZERO,
            _ if !self.kernel_may_keep_names(dir) => Duration::ZERO,
            _ if *dir.names_asked.lock() != Asked::No => Duration::ZERO,
            LookupCache::All | LookupCache::Positive => self.attr_ttl(dir, now),
        }
    }

    /// The reply to the kernel for a name in `dir` that leads to `inode`.
    fn entry(&self, dir: &Inode, inode: &Inode, attributes: Attributes) -> Entry {
        let now = self.now();
        inode.named_in.store(dir.nodeid, Ordering::Relaxed);
        Entry {
            nodeid: inode.nodeid,
            attributes: self.visible_attributes(inode, attributes),
            attr_ttl: self.attr_ttl(inode, now),
            entry_ttl: self.entry_ttl(dir, now),
        }
    }
}

fn check_name(name: &[u8]) -> FsResult<()> {
    if name.len() > NAME_MAX {
        return Err(FsError::NameTooLong);
    }
    if name.is_empty() || name.iter().any(|&b| b == b'/' || b == 0) {
        return Err(FsError::Invalid);
    }
    Ok(())
}
