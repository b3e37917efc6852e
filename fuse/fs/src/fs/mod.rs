//! The file system over [`Nfs3`].
//!
//! One file for each group of operations; this one holds what they share. Operations are
//! futures that never block, run by `nfsrdma_rpcrdma::exec`. Those named `*_cached` answer at
//! once from memory, or not at all.

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
mod error;
mod failures;
mod file;
mod fill_gaps;
mod inode;
mod inode_table;
mod kernel_pages;
mod kernel_read;
mod link;
mod locking;
mod lookup;
mod mapping;
mod names;
mod open;
mod open_file;
mod opening;
mod paths;
mod pending_opens;
mod read;
mod remove;
mod rename;
mod search;
mod set_id;
mod sibling_names;
mod squash;
mod stale_pages;
mod stats;
mod sweeps;
mod sync;
mod unsafe_files;
mod unwritten;
mod write;
mod writer;

pub use acl::NewMode;
pub use change_context::KernelCache;
pub use clock::Clock;
pub use config::{FsConfig, LookupCache, Permissions};
pub use dir_handle::{DirHandle, Listed, Listing};
pub use error::{FsError, FsResult};
pub use inode::{Inode, ROOT};
pub use kernel_read::ReadEnd;
pub use locking::SetLock;
pub use lookup::Found;
pub use open::Opened;
pub use open_file::OpenFile;
pub use paths::Paths;
pub use unsafe_files::Hold;
pub use unwritten::Unwritten;

use crate::cache::{Budget, Lent};
use crate::locks::Locks;
use crate::sync::atomic::{AtomicBool, AtomicUsize};
use crate::sync::{Mutex, RwLock};
use change_context::ChangeContext;
use clock::{Nanos, nanos};
use failures::FailureLog;
use file::{FileData, Shared};
use inode::{Asked, Stamp, Times};
use inode_table::Table;
use names::Names;
use nfsrdma_nfs3::{Driver, Limits, Nfs3, NfsError};
use nfsrdma_rdma::Pool;
use nfsrdma_xdr::nfs3::{Attributes, FileHandle, FileType, NAME_MAX, Status};
use pending_opens::PendingOpens;
use slab::Slab;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use sweeps::Sweeps;
use tokio::sync::Notify;
use unsafe_files::UnsafeFiles;

/// What the kernel is given for a name or an object.
#[derive(Debug, Clone)]
pub struct Entry {
    pub nodeid: u64,
    pub attributes: Attributes,
    /// How long the attributes are valid.
    pub attr_ttl: Duration,
    /// How long the name is.
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
    shared: Arc<Shared>,
    files: RwLock<Slab<Arc<OpenFile>>>,
    dirs: RwLock<Slab<Arc<DirHandle>>>,
    /// Files with data that is not safe at the server, by [`FileData::id`].
    unsafe_files: Mutex<UnsafeFiles>,
    /// The first of them to look at when memory is short.
    relieved: AtomicU64,
    /// When unused memory was last given back.
    rested: AtomicU64,
    /// Write-back of old data.
    sweeps: Mutex<Sweeps>,
    /// Data lost after its file was closed.
    lost: Mutex<Vec<Unwritten>>,
    /// Which failed WRITEs were logged.
    failures: Mutex<FailureLog>,
    next_file: AtomicU64,
    silly_number: AtomicU64,
    opening: PendingOpens,
    /// Hidden files being removed, by directory, for rmdir to wait for.
    removals: Mutex<HashMap<u64, usize>>,
    removed: Notify,
    fsid_known: AtomicBool,
    readdirplus: AtomicBool,
    root_squash: Mutex<squash::RootSquashes>,
    superuser: squash::Superuser,
    /// Being shut down: what cannot be written is listed even if a program gets the error.
    closing: AtomicBool,
    /// No program waits for an answer any longer.
    ended: AtomicBool,
    change_context: ChangeContext,
    /// Locks that go to the server, if there are any.
    locks: OnceLock<Arc<Locks>>,
}

impl<N: Nfs3> Fs<N> {
    /// Calls that wait to be sent with others ([`nfsrdma_rpcrdma::exec::deferring`]).
    pub fn deferred(&self) -> u32 {
        self.nfs.deferred()
    }

    /// The connections, for event loops to poll.
    pub fn drivers(&self) -> Vec<Driver> {
        self.nfs.drivers()
    }

    /// Sends them.
    pub fn send_deferred(&self) {
        self.nfs.kick();
    }

    /// The export whose root directory is `root`. Buffers come from `pool`, which is the one
    /// the connection registered; see [`FsConfig::pool_bytes`] for its size.
    pub fn new(nfs: Arc<N>, root: FileHandle, pool: Pool, config: FsConfig) -> Arc<Self> {
        Self::with_clock(nfs, root, pool, config, Clock::default())
    }

    /// The same with the caches' clock given.
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
            shared: Arc::new(Shared {
                budget: Budget::new(config.cache_bytes),
                lent: Lent::new(config.cache_bytes / 4),
                dirty: AtomicUsize::new(0),
                uncommitted: AtomicUsize::new(0),
                writes: AtomicUsize::new(0),
                calls: AtomicUsize::new(nfs.calls_at_a_time()),
                busy: AtomicUsize::new(0),
                freed: Notify::new(),
                stats: stats::Stats::default(),
            }),
            files: RwLock::default(),
            dirs: RwLock::default(),
            unsafe_files: Mutex::default(),
            lost: Mutex::default(),
            failures: Mutex::default(),
            relieved: AtomicU64::new(0),
            rested: AtomicU64::new(0),
            sweeps: Mutex::default(),
            next_file: AtomicU64::new(1),
            silly_number: AtomicU64::new(0),
            opening: PendingOpens::default(),
            removals: Mutex::default(),
            removed: Notify::new(),
            fsid_known: AtomicBool::new(false),
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

    /// The cached data of `inode`, made if need be.
    fn data<'a>(&self, inode: &'a Arc<Inode>) -> &'a Arc<FileData> {
        inode.data_or(|| {
            let id = self
                .next_file
                .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            FileData::new(id, &self.shared)
        })
    }

    /// Applies the attributes in the reply to a call that was sent at `stamp`. Returns whether
    /// they, and contents that arrived with them, may be older than what is known.
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
            // A handle stands for one object for ever: this is not about that one.
            tracing::warn!(fileid = inode.fileid, kind = ?attributes.kind, "an object of another type");
            return false;
        }
        inode.mark_valid();
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

    /// Takes in what an error of a call on `inode` shows: a stale handle, or a refusal.
    fn note_error(&self, inode: &Inode, error: NfsError) -> FsError {
        match error {
            NfsError::Status(Status::Stale | Status::BadHandle) => inode.mark_stale(),
            NfsError::Status(Status::Access | Status::Perm) => self.superuser.refused(),
            _ => {}
        }
        error.into()
    }

    /// The attributes as programs are to see them: with data that is not at the server yet.
    /// `heard` may be older than what is known: its reply may be from before a WRITE that has
    /// ended. A size that is too small for a moment would have the kernel truncate its pages.
    fn visible_attributes(&self, inode: &Inode, heard: Attributes) -> Attributes {
        // Before the attributes.
        let end = inode.unwritten_end();
        let mut state = inode.state.lock();
        let newest = state.attributes().copied().unwrap_or(heard);
        let size = newest.size.max(end);
        if state.record_told(size) {
            self.pages_dropped_of(inode);
        }
        let nlink = inode.visible_links(&newest);
        Attributes {
            size,
            nlink,
            fileid: self.table.visible_fileid(&newest),
            ..newest
        }
    }

    fn attr_ttl(&self, inode: &Inode, now: Nanos) -> Duration {
        // Only the server can tell the times that data not written yet will give the file, and
        // the number of links changes when the hidden name goes, which the kernel does not see.
        if inode.is_dirty() || inode.hidden_links.load(Ordering::Relaxed) > 0 {
            return Duration::ZERO;
        }
        Duration::from_nanos(inode.state.lock().fresh_for(now))
    }

    /// How long the kernel may believe a name in `dir`.
    fn entry_ttl(&self, dir: &Inode, now: Nanos) -> Duration {
        match self.config.lookup_cache {
            LookupCache::None => Duration::ZERO,
            _ if !self.kernel_may_keep_names(dir) => Duration::ZERO,
            _ if *dir.names_asked.lock() != Asked::No => Duration::ZERO,
            LookupCache::All | LookupCache::Positive => self.attr_ttl(dir, now),
        }
    }

    /// What to tell the kernel of `inode` as a name in `dir`.
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
