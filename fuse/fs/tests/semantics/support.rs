//! A file system on a server in memory, with blocking calls.

use nfsrdma_fs::fs::{Clock, Entry, Found, Fs, FsConfig, FsError, FsResult, ROOT, pool_of};
use nfsrdma_memory_server::{Fate, MemoryServer, Op};
use nfsrdma_nfs3::{Cred, Credential, Limits};
use nfsrdma_rdma::Pool;
use nfsrdma_record::Table;
use nfsrdma_rpcrdma::exec::block_on;
use nfsrdma_xdr::nfs3::{Attributes, SetAttributes};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

pub(crate) const RW: i32 = libc::O_RDWR;

pub(crate) fn cred(uid: u32) -> Cred {
    Arc::new(Credential {
        uid,
        gid: uid,
        groups: Vec::new(),
    })
}

/// One mount, used as root, with a clock that stands still.
pub(crate) struct Mount {
    pub(crate) fs: Arc<Fs<MemoryServer>>,
    pub(crate) server: Arc<MemoryServer>,
    pub(crate) clock: Clock,
    pub(crate) cred: Cred,
    pub(crate) pool: Pool,
    pub(crate) records: Arc<Table>,
    config: FsConfig,
}

/// A server that takes READs and WRITEs of `io` bytes, gives pages of directories of `dtpref`, and answers by so many
/// threads, or at once.
pub(crate) fn server_of(io: u32, dtpref: u32, workers: usize) -> Arc<MemoryServer> {
    let limits = Limits {
        rtmax: io,
        wtmax: io,
        dtpref,
        max_file_size: 1 << 40,
    };
    MemoryServer::with(limits, workers)
}

pub(crate) fn with_size(size: u64) -> SetAttributes {
    SetAttributes {
        size: Some(size),
        ..SetAttributes::default()
    }
}

pub(crate) fn with_mode(mode: u32) -> SetAttributes {
    SetAttributes {
        mode: Some(mode),
        ..SetAttributes::default()
    }
}

pub(crate) fn small() -> FsConfig {
    FsConfig {
        cache_bytes: 8 << 20,
        dirty_bytes: 4 << 20,
        dirty_file_bytes: 2 << 20,
        ..FsConfig::default()
    }
}

impl Mount {
    pub(crate) fn new() -> Self {
        Self::of(&MemoryServer::new(), small())
    }

    pub(crate) fn of(server: &Arc<MemoryServer>, config: FsConfig) -> Self {
        let pool = Pool::new(config.pool_bytes()).unwrap();
        Self::with(server, config, Table::create().unwrap(), pool)
    }

    /// One whose data outlives the process.
    pub(crate) fn keeping() -> Self {
        let config = small();
        let pool = Pool::in_memfd(config.pool_bytes()).unwrap();
        Self::with(&MemoryServer::new(), config, Table::create().unwrap(), pool)
    }

    fn with(server: &Arc<MemoryServer>, config: FsConfig, records: Table, pool: Pool) -> Self {
        let (clock, records) = (Clock::manual(), Arc::new(records));
        Mount {
            fs: Fs::new(
                server.clone(),
                server.root(),
                pool.clone(),
                config.clone(),
                clock.clone(),
                records.clone(),
            ),
            pool,
            server: server.clone(),
            clock,
            cred: cred(0),
            records,
            config,
        }
    }

    /// The process is killed, and another one goes on with the mount.
    pub(crate) fn killed(self) -> Self {
        let pool = self.pool.fd().map(|fd| fd.try_clone_to_owned().unwrap());
        let bytes = self.config.pool_bytes();
        self.killed_with(|records| match pool {
            Some(pool) => pool_of(pool, records).unwrap(),
            None => Pool::new(bytes).unwrap(),
        })
    }

    /// The same, and what was in the pool is gone.
    pub(crate) fn killed_without_data(self) -> Self {
        let bytes = self.config.pool_bytes();
        self.killed_with(|_| Pool::in_memfd(bytes).unwrap())
    }

    fn killed_with(self, pool: impl FnOnce(&Table) -> Pool) -> Self {
        let (server, config) = (self.server.clone(), self.config.clone());
        let table = self.records.fd().unwrap().try_clone_to_owned().unwrap();
        // Nothing is freed or ended by it.
        std::mem::forget(self);
        let records = Table::open(table).unwrap();
        let pool = pool(&records);
        let next = Self::with(&server, config, records, pool);
        next.fs.restore();
        next
    }

    pub(crate) fn lookup_in(&self, dir: u64, name: &str) -> FsResult<Option<Entry>> {
        let found = match self
            .fs
            .lookup_cached(dir, name.as_bytes(), 0, || self.cred.clone())
        {
            Some(known) => known,
            None => block_on(self.fs.lookup(&self.cred, dir, name.as_bytes()))?,
        };
        Ok(match found {
            Found::Is(entry) => Some(entry),
            Found::Absent(_) => None,
        })
    }

    pub(crate) fn lookup(&self, name: &str) -> Option<Entry> {
        self.lookup_in(ROOT, name).unwrap()
    }

    pub(crate) fn node(&self, name: &str) -> u64 {
        self.lookup(name).unwrap().nodeid
    }

    pub(crate) fn create(&self, name: &str) -> (u64, u64) {
        let flags = RW | libc::O_CREAT | libc::O_EXCL;
        let (entry, opened) =
            block_on(
                self.fs
                    .create(&self.cred, ROOT, name.as_bytes(), 0o644, flags),
            )
            .unwrap();
        (entry.nodeid, opened.handle)
    }

    pub(crate) fn open(&self, node: u64, flags: i32) -> FsResult<u64> {
        block_on(self.fs.open(&self.cred, node, flags)).map(|opened| opened.handle)
    }

    pub(crate) fn write(&self, handle: u64, offset: u64, data: &[u8]) -> FsResult<()> {
        let done = match self.fs.write_cached(handle, offset, data, RW) {
            Some(done) => done,
            None => block_on(self.fs.write(handle, offset, data, RW, || true)),
        };
        assert_eq!(done? as usize, data.len());
        Ok(())
    }

    pub(crate) fn read(&self, handle: u64, offset: u64, len: u32) -> FsResult<Vec<u8>> {
        self.fs.kernel_reads(handle);
        let data = match self.fs.read_cached(handle, offset, len, RW) {
            Some(data) => data,
            None => block_on(self.fs.read(handle, offset, len, RW))?,
        };
        Ok(data.iter().flat_map(|part| part.to_vec()).collect())
    }

    pub(crate) fn stat(&self, node: u64) -> FsResult<Attributes> {
        if let Some(known) = self.fs.getattr_cached(node, false) {
            return Ok(known.0);
        }
        block_on(self.fs.getattr(&self.cred, node, false)).map(|known| known.0)
    }

    pub(crate) fn truncate(&self, node: u64, size: u64) -> FsResult<()> {
        block_on(self.fs.setattr(&self.cred, node, &with_size(size), false)).map(|_| ())
    }

    pub(crate) fn flush(&self, handle: u64) -> FsResult<()> {
        match self.fs.flush_cached(handle) {
            Some(done) => done,
            None => block_on(self.fs.flush(handle, 0, false, || true)),
        }
    }

    pub(crate) fn fsync(&self, handle: u64) -> FsResult<()> {
        block_on(self.fs.fsync(handle, || true))
    }

    pub(crate) fn release(&self, handle: u64) {
        block_on(self.fs.release(handle)).unwrap();
    }

    /// close(2), with its result.
    pub(crate) fn close(&self, handle: u64) -> FsResult<()> {
        let result = self.flush(handle);
        self.release(handle);
        result
    }

    pub(crate) fn unlink(&self, name: &str) -> FsResult<()> {
        block_on(self.fs.unlink(&self.cred, ROOT, name.as_bytes()))
    }

    pub(crate) fn rename(&self, from: &str, to: &str) -> FsResult<()> {
        block_on(self.fs.rename(
            &self.cred,
            (ROOT, from.as_bytes()),
            (ROOT, to.as_bytes()),
            0,
        ))
    }

    /// All names of a directory, for a program that takes `step` entries at a time.
    pub(crate) fn list(&self, node: u64, step: usize, between: impl FnMut(usize)) -> Vec<String> {
        self.try_list(node, step, between).unwrap()
    }

    pub(crate) fn try_list(
        &self,
        node: u64,
        step: usize,
        mut between: impl FnMut(usize),
    ) -> FsResult<Vec<String>> {
        let opened = block_on(self.fs.opendir(&self.cred, node))?;
        let mut names = Vec::new();
        let mut offset = 0;
        loop {
            let listing = match self.fs.readdir_cached(opened.handle, offset) {
                Some(known) => known?,
                None => block_on(self.fs.readdir(opened.handle, offset))?,
            };
            if listing.entries().is_empty() {
                break;
            }
            let taken = &listing.entries()[..step.min(listing.entries().len())];
            for entry in taken {
                names.push(String::from_utf8(entry.name.to_vec()).unwrap());
                offset = entry.cookie;
            }
            listing.taken(taken.len());
            assert!(names.len() < 1_000_000, "a listing without end");
            between(names.len());
        }
        self.fs.releasedir(opened.handle)?;
        names.retain(|name| name != "." && name != "..");
        Ok(names)
    }

    /// What becomes of all calls of `of` from now on.
    pub(crate) fn fate(&self, of: Op, fate: Fate) {
        self.server.set_hook(move |op, _| match op == of {
            true => fate,
            false => Fate::Done,
        });
    }

    pub(crate) fn count(&self, name: &str) -> u64 {
        let list = self.fs.statistics();
        list.iter().find(|(known, _)| *known == name).unwrap().1
    }
}

/// Operations that do not hang take less than this.
pub(crate) const HANG: Duration = Duration::from_secs(60);

pub(crate) fn until(what: &str, over: impl Fn() -> bool) {
    let begun = Instant::now();
    while !over() {
        assert!(begun.elapsed() < HANG, "never: {what}");
        thread::yield_now();
    }
}

pub(crate) fn errno<T>(result: FsResult<T>) -> i32 {
    match result {
        Ok(_) => 0,
        Err(error) => FsError::errno(&error),
    }
}
