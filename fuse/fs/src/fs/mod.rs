//! The file system over [`Nfs3`].
//!
//! Its rooms are four structs, each with methods in several files ([`Fs`] has the list); a file
//! calls only files below it. Operations are futures that never block a thread; `nfsrdma_rpcrdma::exec` polls
//! them. Functions named `*_cached` answer at once from memory, or return `None`.
//!
//! # Which locks may nest
//!
//! No mutex is held over an await, and hardly any is taken while another one is. (A file's `flush_turn` and
//! the mount's `writers` are turns, held over awaits.) Who holds the left one may take those to its right, in
//! this order; readers check that, no tool. `State` is that of [`inode`].
//!
//! | Held | Then |
//! | --- | --- |
//! | [`UnsafeFiles`](unsafe_files::UnsafeFiles) | `FileState`; the reference to the mount (`OwnMount` of the adapter) |
//! | `FileState`, the data of one file ([`file`]) | `State`; the server's limits; the list of files of [`Budget`]; the pool's free buffers; the [`Ticketless`](ticketless::Ticketless) users |
//! | a part of the [`names`] | `State`, the attributes of one object ([`inode`]); the handles of the [table](inode_table) |
//! | the handles of the table, its nodes | its nodes; the `State` of a new object |
//! | what is [lost](unwritten) | the error of the file ([`err_seq`]) |
//! | a throttle of log lines | [`names`] |
//! | the locks of a mount ([`crate::locks`]) | those of one owner and file, then its credential; the journal of locks |
//! | any | the free slots of the [records](nfsrdma_record), when one is made or dropped |

mod access;
mod acl;
mod attribute_cache;
mod attributes;
mod changing;
mod clock;
mod config;
mod create;
mod dir;
mod dir_handle;
mod direct_write;
mod entry;
mod err_seq;
mod error;
mod export;
mod file;
mod files;
mod find;
mod flush;
mod giving_up;
mod handles;
mod hidden;
mod inode;
mod inode_flags;
mod inode_names;
mod inode_pages;
mod inode_table;
mod kept_data;
mod kernel_cache;
mod kernel_pages;
mod kernel_read;
mod life;
mod link;
mod locking;
mod lookup;
mod losing;
mod mapping;
mod memory;
#[cfg(test)]
#[path = "tests/mounted.rs"]
mod mounted;
mod names;
mod objects;
mod open;
mod open_file;
mod opening;
mod outdated;
mod paths;
mod read;
mod records;
mod remove;
mod rename;
mod requests;
mod restore;
mod search;
mod server;
mod setattr;
mod sibling_names;
mod squash;
mod stats;
mod sync;
mod ticketless;
mod under_way;
mod unsafe_files;
mod unwritten;
mod write;
mod write_failure;

pub use acl::NewMode;
pub use clock::Clock;
pub use config::{AttributeTimes, FsConfig, LookupCache, Permissions};
pub use dir_handle::{DirHandle, Listed, Listing};
pub use entry::Entry;
pub use error::{FsError, FsResult};
pub use inode::{Inode, ROOT};
pub use kept_data::{has_data, pool_of};
pub use kernel_cache::KernelCache;
pub use kernel_pages::Behind;
pub use locking::SetLock;
pub use lookup::Found;
pub use open_file::{OpenFile, Opened};
pub use paths::Paths;
pub use unsafe_files::Hold;
pub use unwritten::Unwritten;

use crate::cache::Budget;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicUsize};
use dir_handle::Closed;
use file::Shared;
use files::Files;
use handles::Handles;
use nfsrdma_nfs3::Nfs3;
use nfsrdma_rdma::Pool;
use nfsrdma_rpcrdma::throttle::Throttle;
use nfsrdma_xdr::nfs3::FileHandle;
use objects::Objects;
use server::Server;
use std::hash::RandomState;
use std::ops::Deref;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;

/// A mounted export: its names, and through the rooms below its open files, its objects and the server.
/// All operations may run at the same time from any thread.
///
/// Each room is a struct that owns the next one below and passes on to it what it does not know itself
/// (by `Deref`): [`Server`], [`Files`], [`Objects`], `Fs`. So a room can call what is below it as its own,
/// and nothing that is above.
#[derive(Debug)]
pub struct Fs<N> {
    below: Arc<Objects<N>>,
    dirs: Handles<DirHandle>,
    /// What was listed of the directory that was closed last.
    listed_last: Mutex<Option<Closed>>,
    /// When the pool last gave unused memory back to the system.
    rested: AtomicU64,
    silly_number: AtomicU64,
    /// The random keys from which hidden names are made.
    silly_keys: RandomState,
    /// The directory of each hidden name, for RMDIR.
    hidden_names: Mutex<Vec<Weak<u64>>>,
    /// Hidden names that could not be removed.
    hidden_stay: Mutex<Throttle<Duration>>,
    readdirplus: AtomicBool,
    root_squash: Mutex<squash::RootSquashes>,
}

impl<N> Deref for Fs<N> {
    type Target = Arc<Objects<N>>;

    fn deref(&self) -> &Arc<Objects<N>> {
        &self.below
    }
}

impl<N: Nfs3> Fs<N> {
    /// A file system for the export whose root directory is `root`. Buffers come from `pool`, which
    /// the connection has registered; see [`FsConfig::pool_bytes`] for its size. If a process has served the
    /// mount before, its `records` tell which inodes the kernel knows from it.
    pub fn new(
        nfs: Arc<N>,
        root: FileHandle,
        pool: Pool,
        config: FsConfig,
        clock: Clock,
        records: Arc<nfsrdma_record::Table>,
    ) -> Arc<Self> {
        let shared = Arc::new(Shared {
            budget: Budget::new(config.cache_bytes),
            dirty: AtomicUsize::new(0),
            uncommitted: AtomicUsize::new(0),
            writes: AtomicUsize::new(0),
            calls: AtomicUsize::new(nfs.calls_at_a_time()),
            busy: AtomicUsize::new(0),
            freed: Notify::new(),
            writers: tokio::sync::Mutex::default(),
            room: Notify::new(),
            ticketless: ticketless::Ticketless::default(),
            stats: stats::Stats::default(),
        });
        let files = Files::new(Server::new(nfs, pool, config, clock, shared), records);
        files.table.insert_root(root);
        Arc::new(Fs {
            dirs: Handles::default(),
            listed_last: Mutex::default(),
            rested: AtomicU64::new(0),
            silly_number: AtomicU64::new(0),
            silly_keys: RandomState::new(),
            hidden_names: Mutex::default(),
            hidden_stay: Mutex::default(),
            readdirplus: AtomicBool::new(files.config.readdirplus),
            root_squash: Mutex::default(),
            below: Arc::new(Objects::new(files)),
        })
    }
}
