//! The objects of the server and what is known of them: attributes, cached data, and data that is on its
//! way to the server. This room does not know which files are open, and no name but for messages.
//!
//! What the server says of an object comes in by [`Files::apply_post_op_attr`] and
//! [`Change`](super::changing::Change), and goes out by [`Files::visible_attributes`].

use super::clock::Nanos;
use super::error::{FsError, FsResult};
use super::export::Export;
use super::file::FileData;
use super::inode::Inode;
use super::inode_table::Table;
use super::kept_data::write_back_of;
use super::kernel_cache::KernelCache;
use super::names::Names;
use super::open_file::OpenFile;
use super::server::Server;
use super::squash::Superuser;
use super::unsafe_files::UnsafeFiles;
use super::unwritten::{LostData, log_lost};
use crate::cache::WriteData;
use crate::locks::{LockError, Locks};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicUsize};
use nfsrdma_nfs3::{Nfs3, NfsError};
use nfsrdma_rpcrdma::throttle::Throttle;
use nfsrdma_xdr::nfs3::{Attributes, FsstatOk, Status};
use std::collections::HashSet;
use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::Notify;

#[derive(Debug)]
pub struct Files<N> {
    server: Server<N>,
    /// What outlives this process.
    pub(super) records: Arc<nfsrdma_record::Table>,
    pub(super) table: Table,
    /// The rooms above keep it; here it gives the paths for messages.
    pub(super) names: Names,
    /// Files with data that is not safe at the server, by their nodes.
    pub(super) unsafe_files: Mutex<UnsafeFiles>,
    /// Lost data of which no program got the error; reported at the unmount.
    pub(super) lost: Mutex<LostData>,
    /// WRITEs and COMMITs that failed.
    pub(super) failures: Mutex<Throttle<Duration>>,
    pub(super) fsid_known: AtomicBool,
    pub(super) export: Export,
    pub(super) superuser: Superuser,
    /// The last reply to FSSTAT.
    pub(super) space: Mutex<Option<FsstatOk>>,
    pub(super) kernel: OnceLock<Box<dyn KernelCache>>,
    /// Notified when a hidden name was removed, or a call that might remove a last name has ended.
    pub(super) removed: Notify,
    /// The locks of the mount, if they are taken at the server.
    pub(super) locks: OnceLock<Arc<Locks>>,
}

/// What is asked of the server is asked of the room below.
impl<N> Deref for Files<N> {
    type Target = Server<N>;

    fn deref(&self) -> &Server<N> {
        &self.server
    }
}

impl<N: Nfs3> Files<N> {
    pub(super) fn new(server: Server<N>, records: Arc<nfsrdma_record::Table>) -> Self {
        let with_data: HashSet<u64> = records
            .extents()
            .peek(|data| data.nodeid)
            .into_iter()
            .collect();
        // Nobody else tells of these: what the kernel knows, or has data, is told of when it is restored.
        let mut lost = records.lost_and_forgotten();
        lost.retain(|(node, _)| !with_data.contains(node));
        log_lost(lost.into_iter().map(|(_, fileid)| fileid));
        let table = Table::new(records.nodes(), &with_data);
        let fsid = records.fsid();
        if let Some(fsid) = fsid {
            table.set_fsid(fsid);
        }
        Files {
            table,
            records,
            names: Names::new(server.config.name_entries),
            unsafe_files: Mutex::default(),
            lost: Mutex::default(),
            failures: Mutex::default(),
            fsid_known: AtomicBool::new(fsid.is_some()),
            export: Export::default(),
            superuser: Superuser::default(),
            space: Mutex::default(),
            kernel: OnceLock::new(),
            removed: Notify::new(),
            locks: OnceLock::new(),
            server,
        }
    }

    /// Counters since the mount, as (name, value).
    pub fn statistics(&self) -> Vec<(&'static str, u64)> {
        let mut list = self.shared.stats.list();
        list.push(("cache_bytes", self.shared.budget.used() as u64));
        list.push((
            "dirty_bytes",
            self.shared.dirty.load(Ordering::Relaxed) as u64,
        ));
        list.push(("inodes", self.table.len() as u64));
        if let Some(locks) = self.locks.get() {
            list.extend(locks.statistics());
        }
        list
    }

    /// The memory of written data that may not be on stable storage, in bytes.
    pub fn unsafe_bytes(&self) -> u64 {
        let bytes = |counter: &AtomicUsize| counter.load(Ordering::Relaxed) as u64;
        bytes(&self.shared.dirty) + bytes(&self.shared.uncommitted)
    }

    /// Whether another process goes on with the mount if this one dies.
    pub fn outlives_process(&self) -> bool {
        self.records.fd().is_some()
    }

    pub(super) fn inode(&self, nodeid: u64) -> FsResult<Arc<Inode>> {
        self.table.get(nodeid).ok_or(FsError::UnknownInode)
    }

    /// The cached data of `inode`; creates it if there is none.
    pub(super) fn data<'a>(&self, inode: &'a Arc<Inode>) -> &'a Arc<FileData> {
        inode.data_or(|| {
            let epoch = inode.state.lock().epoch;
            let write_back = write_back_of(inode, &self.pool, &self.records);
            FileData::new(epoch, write_back, &self.shared)
        })
    }

    /// Notes what an error of a call on `inode` shows (a stale handle, a refusal), and converts it.
    pub(super) fn note_error(&self, inode: &Inode, error: NfsError) -> FsError {
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

    /// The attributes that programs see: the newest known ones, with the size extended to the end of the data that
    /// the server does not have yet. `heard` is used only if none are known, since its reply may be older than a
    /// WRITE that has ended, and the kernel truncates its pages when it is given a size that is too small.
    pub(super) fn visible_attributes(&self, inode: &Inode, heard: Attributes) -> Attributes {
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

    pub(super) fn attr_ttl(&self, inode: &Inode, now: Nanos) -> Duration {
        // The times of a dirty file are not final before the server has the data; and the number of
        // links changes when the hidden name is removed, of which the kernel does not know.
        if inode.is_dirty() || inode.hidden_links.load(Ordering::Relaxed) > 0 {
            return Duration::ZERO;
        }
        Duration::from_nanos(inode.state.lock().fresh_for(now))
    }

    /// The part of `data` at `offset` that fits into the server's largest file (FSINFO, RFC 1813
    /// section 3.3.19); an error if that is none (write(2), EFBIG).
    pub(super) fn below_the_limit<'a>(
        &self,
        offset: u64,
        data: WriteData<'a>,
    ) -> FsResult<WriteData<'a>> {
        let room = self.limits().max_file_size.saturating_sub(offset);
        if room == 0 && !data.is_empty() {
            return Err(FsError::TooLarge);
        }
        Ok(data.first(usize::try_from(room).unwrap_or(usize::MAX)))
    }

    /// Fails if a lock that was taken through this open file is lost.
    pub(super) fn check_locks(&self, file: &OpenFile, handle: u64) -> FsResult<()> {
        match self.locks.get() {
            Some(locks) if locks.is_lost(file.inode.nodeid, handle) => Err(LockError::Lost.into()),
            _ => Ok(()),
        }
    }

    /// A write verifier shows that the server has restarted and may have lost the locks.
    pub(super) fn suspect_locks(&self) {
        self.shared.stats.verifier_changes.add(1);
        if let Some(locks) = self.locks.get() {
            locks.suspect();
        }
    }
}
