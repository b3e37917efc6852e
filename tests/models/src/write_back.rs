//! Write-back: data between a program's write and the server's stable storage, while other programs
//! write, read and flush, and the server restarts or refuses.

use nfsrdma_fs::fs::{Clock, Found, Fs, FsConfig, FsResult, ROOT};
use nfsrdma_memory_server::{Fate, MemoryServer, Op};
use nfsrdma_nfs3::{Cred, Credential, Limits};
use nfsrdma_rdma::Pool;
use nfsrdma_record::Table;
use nfsrdma_rpcrdma::exec::block_on;
use nfsrdma_xdr::nfs3::Status;
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;
use std::collections::BTreeMap;
use std::sync::Arc;
// The bookkeeping of the test must not use the scheduler.
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

const RW: i32 = libc::O_RDWR;
/// The length of a write: less than a page, so that blocks and WRITEs are shared.
const LEN: u64 = 1500;
const WRITERS: u64 = 2;
const PLACES: u64 = 4;
/// The initial length of the file.
const PLANTED: u64 = 700;

/// A file that is written to, with the bookkeeping.
struct World {
    server: Arc<MemoryServer>,
    pool: Pool,
    fs: Arc<Fs<MemoryServer>>,
    clock: Clock,
    cred: Cred,
    node: u64,
    /// The end of all completed writes.
    reached: AtomicU64,
    /// The number of calls that the server is still to refuse, and that it has refused.
    refusals: AtomicU64,
    refused: AtomicU64,
}

/// A server that answers in small calls from threads of its own.
pub(crate) fn server() -> Arc<MemoryServer> {
    let limits = Limits {
        rtmax: 4096,
        wtmax: 4096,
        dtpref: 4096,
        max_file_size: 1 << 40,
    };
    MemoryServer::with(limits, 2)
}

/// A client's file system with limits below the size of a file, its pool, and the node of the file
/// `f`.
pub(crate) fn mount(
    server: &Arc<MemoryServer>,
    clock: &Clock,
    cred: &Cred,
) -> (Arc<Fs<MemoryServer>>, Pool, u64) {
    let config = FsConfig {
        cache_bytes: 8 << 10,
        dirty_bytes: 8 << 10,
        dirty_file_bytes: 6 << 10,
        readahead_bytes: 8 << 10,
        ..FsConfig::default()
    };
    let pool = match Pool::new(4 << 20) {
        Ok(pool) => pool,
        Err(error) => panic!("{error}"),
    };
    let (root, clock) = (server.root(), clock.clone());
    let records = Arc::new(Table::anonymous());
    let fs = Fs::new(server.clone(), root, pool.clone(), config, clock, records);
    let Ok(Found::Is(entry)) = block_on(fs.lookup(cred, ROOT, b"f")) else {
        panic!("the file is not found");
    };
    (fs, pool, entry.nodeid)
}

pub(crate) fn superuser() -> Cred {
    Arc::new(Credential {
        uid: 0,
        gid: 0,
        groups: Vec::new(),
    })
}

/// read(2) of an open file.
pub(crate) fn read(fs: &Arc<Fs<MemoryServer>>, handle: u64, offset: u64, len: u64) -> Vec<u8> {
    let data = match fs.read_cached(handle, offset, len as u32, RW) {
        Some(data) => data,
        None => match block_on(fs.read(handle, offset, len as u32, RW)) {
            Ok(data) => data,
            Err(error) => panic!("read: {error}"),
        },
    };
    data.iter().flat_map(|part| part.to_vec()).collect()
}

/// write(2) to an open file, which reports errors of what was written before.
pub(crate) fn write(
    fs: &Arc<Fs<MemoryServer>>,
    handle: u64,
    offset: u64,
    bytes: &[u8],
) -> FsResult<()> {
    let result = match fs.write_cached(handle, offset, bytes, RW) {
        Some(done) => done,
        None => block_on(fs.write(handle, offset, bytes, RW, || true)),
    };
    assert_eq!(result? as usize, bytes.len());
    Ok(())
}

/// close(2), which reports errors.
pub(crate) fn close(fs: &Arc<Fs<MemoryServer>>, handle: u64) -> FsResult<()> {
    let result = match fs.flush_cached(handle) {
        Some(done) => done,
        None => block_on(fs.flush(handle, 0, false, || true)),
    };
    let _ = block_on(fs.release(handle));
    result
}

/// Waits until all memory is free, which happens when its last user is done.
pub(crate) fn all_comes_back(pool: &Pool) {
    while pool.free_bytes() < pool.capacity() {
        thread::yield_now();
    }
}

impl World {
    fn new(refusals: u64) -> Arc<World> {
        let server = server();
        server.plant("f", &[1; PLANTED as usize]);
        if thread_rng().gen_bool(0.5) {
            server.stop_clock();
        }
        let (clock, cred) = (Clock::manual(), superuser());
        let (fs, pool, node) = mount(&server, &clock, &cred);
        Arc::new(World {
            server,
            pool,
            fs,
            clock,
            cred,
            node,
            reached: AtomicU64::new(PLANTED),
            refusals: AtomicU64::new(refusals),
            refused: AtomicU64::new(0),
        })
    }

    fn refuse_some(self: &Arc<Self>) {
        let world = Arc::downgrade(self);
        self.server.set_hook(move |op, _| {
            let Some(world) = world.upgrade() else {
                return Fate::Done;
            };
            let concerned = matches!(op, Op::Write | Op::Commit);
            if concerned && world.refusals.load(SeqCst) > 0 && thread_rng().gen_bool(0.4) {
                world.refusals.fetch_sub(1, SeqCst);
                world.refused.fetch_add(1, SeqCst);
                return Fate::Refused(Status::NoSpc);
            }
            Fate::Done
        });
    }

    fn open(&self) -> u64 {
        match block_on(self.fs.open(&self.cred, self.node, RW)) {
            Ok(opened) => opened.handle,
            Err(error) => panic!("open: {error}"),
        }
    }

    fn read(&self, handle: u64, offset: u64, len: u64) -> Vec<u8> {
        read(&self.fs, handle, offset, len)
    }

    fn size(&self) -> u64 {
        let (fs, revalidate) = (&self.fs, thread_rng().gen_bool(0.5));
        if thread_rng().gen_bool(0.4) {
            return match block_on(fs.lookup(&self.cred, ROOT, b"f")) {
                Ok(Found::Is(entry)) => {
                    fs.forget(entry.nodeid, 1);
                    entry.attributes.size
                }
                other => panic!("lookup: {other:?}"),
            };
        }
        if let Some((attributes, _)) = fs.getattr_cached(self.node, revalidate) {
            return attributes.size;
        }
        match block_on(fs.getattr(&self.cred, self.node, revalidate)) {
            Ok((attributes, _)) => attributes.size,
            Err(error) => panic!("getattr: {error}"),
        }
    }

    /// Checks that the file is never shown shorter than it was written.
    fn look(&self, handle: u64) {
        let reached = self.reached.load(SeqCst);
        if thread_rng().gen_bool(0.5) {
            let size = self.size();
            assert!(size >= reached, "{size} bytes shown of {reached}");
        } else {
            let offset = thread_rng().gen_range(0..reached);
            let got = self.read(handle, offset, 3000).len() as u64;
            let least = (reached - offset).min(3000);
            assert!(got >= least, "{got} bytes at {offset}, not {least}");
        }
    }
}

/// A program that writes to its own places through its own descriptor.
struct Writer {
    world: Arc<World>,
    number: u64,
    handle: u64,
    /// The last value written to each place.
    own: BTreeMap<u64, u8>,
    /// An error was reported at write, fsync or close, so data may be missing.
    told: bool,
}

impl Writer {
    fn hear<T, E: std::fmt::Debug>(&mut self, what: &str, result: Result<T, E>) {
        if let Err(error) = result {
            let refused = self.world.refused.load(SeqCst);
            assert!(refused > 0, "{what}: {error:?}, and nothing was refused");
            self.told = true;
        }
    }

    fn write(&mut self, with: u8) {
        let place = thread_rng().gen_range(0..PLACES);
        let offset = (place * WRITERS + self.number) * LEN;
        let bytes = [with; LEN as usize];
        let result = write(&self.world.fs, self.handle, offset, &bytes);
        self.hear("write", result);
        self.own.insert(offset, with);
        self.world.reached.fetch_max(offset + LEN, SeqCst);
    }

    fn check(&self, what: &str, there: &[u8]) {
        for (&offset, &with) in &self.own {
            let range = offset as usize..(offset + LEN) as usize;
            let part = there.get(range).unwrap_or_default();
            assert!(
                part == [with; LEN as usize],
                "{what}: writer {} at {offset}",
                self.number
            );
        }
    }

    fn sync(&mut self) {
        let result = block_on(self.world.fs.fsync(self.handle, || true));
        self.hear("fsync", result);
        if !self.told {
            let durable = self.world.server.durable("f");
            self.check("after fsync", &durable.unwrap_or_default());
        }
    }

    fn run(mut self) -> Writer {
        for turn in 0..4 {
            match thread_rng().gen_range(0..6) {
                0 => self.sync(),
                1 if self.world.refused.load(SeqCst) + self.world.refusals.load(SeqCst) == 0 => {
                    let all = self.world.read(self.handle, 0, LEN * WRITERS * PLACES);
                    self.check("read", &all);
                }
                _ => self.write(16 * (self.number as u8 + 1) + turn),
            }
        }
        let world = self.world.clone();
        let result = close(&world.fs, self.handle);
        self.hear("close", result);
        if !self.told {
            let durable = world.server.durable("f");
            self.check("after close", &durable.unwrap_or_default());
        }
        self
    }
}

fn run(refusals: u64, restarts: u64) {
    let world = World::new(refusals);
    world.refuse_some();
    let writers: Vec<_> = (0..WRITERS)
        .map(|number| {
            let writer = Writer {
                world: world.clone(),
                number,
                handle: world.open(),
                own: BTreeMap::new(),
                told: false,
            };
            thread::spawn(move || writer.run())
        })
        .collect();
    let mut others = Vec::new();
    if refusals == 0 {
        let world = world.clone();
        others.push(thread::spawn(move || {
            let handle = world.open();
            (0..4).for_each(|_| world.look(handle));
            assert!(block_on(world.fs.release(handle)).is_ok());
        }));
    }
    // Background activity.
    let unasked = world.clone();
    others.push(thread::spawn(move || {
        let mut restarts = restarts;
        for _ in 0..4 {
            if restarts > 0 && thread_rng().gen_bool(0.5) {
                restarts -= 1;
                unasked.server.restart();
            }
            unasked.clock.advance(Duration::from_secs(6));
            unasked.fs.tick();
            thread::yield_now();
        }
    }));
    let writers: Vec<_> = writers.into_iter().map(|w| w.join()).collect();
    for other in others {
        assert!(other.join().is_ok());
    }
    let lost = block_on(world.fs.shutdown());
    let refused = world.refused.load(SeqCst);
    assert!(lost.is_empty() || refused > 0, "lost: {lost:?}");
    world.server.restart();
    let there = world.server.contents("f").unwrap_or_default();
    for writer in writers {
        let Ok(writer) = writer else {
            panic!("a writer failed");
        };
        if !writer.told {
            writer.check("at the end", &there);
        }
    }
    let dirty = |(name, count)| name == "dirty_bytes" && count != 0;
    assert!(!world.fs.statistics().into_iter().any(dirty), "dirty");
    let pool = world.pool.clone();
    drop(world);
    all_comes_back(&pool);
}

/// After fsync and close, written data is at the server, whatever that loses meanwhile. Nobody gets
/// an error, and nobody sees the file shorter than it was written.
pub fn what_is_written_is_kept() {
    run(0, 2);
}

/// If the server refuses WRITE or COMMIT, every program whose data is lost gets an error.
pub fn what_is_lost_is_told() {
    run(2, 1);
}

/// The writers of several files take more than the limit of dirty data. Nothing but the ends of
/// WRITEs wakes those that wait.
pub fn writers_of_many_files_get_room() {
    const NAMES: [&str; 3] = ["f", "g", "h"];
    const LENGTH: usize = 3000;
    const WRITES: u64 = 3;
    let server = server();
    for name in NAMES {
        server.plant(name, b"");
    }
    let (clock, cred) = (Clock::manual(), superuser());
    let (fs, pool, _) = mount(&server, &clock, &cred);
    let writers: Vec<_> = (1u8..)
        .zip(NAMES)
        .map(|(with, name)| {
            let (fs, cred) = (fs.clone(), cred.clone());
            let Ok(Found::Is(entry)) = block_on(fs.lookup(&cred, ROOT, name.as_bytes())) else {
                panic!("the file is not found");
            };
            thread::spawn(move || {
                let Ok(opened) = block_on(fs.open(&cred, entry.nodeid, RW)) else {
                    panic!("the file is not opened");
                };
                for turn in 0..WRITES {
                    let offset = turn * LENGTH as u64;
                    assert!(write(&fs, opened.handle, offset, &[with; LENGTH]).is_ok());
                }
                assert!(close(&fs, opened.handle).is_ok());
            })
        })
        .collect();
    for writer in writers {
        assert!(writer.join().is_ok());
    }
    for (with, name) in (1u8..).zip(NAMES) {
        let all = vec![with; LENGTH * WRITES as usize];
        assert_eq!(server.durable(name), Some(all));
    }
    assert!(block_on(fs.shutdown()).is_empty());
    drop(fs);
    all_comes_back(&pool);
}
