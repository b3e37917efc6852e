//! Random operations on a server whose results have the right form and false contents: sizes, times,
//! types, handles, counts, cookies, verifiers and limits. No operation may panic or call without end.

use nfsrdma_fs::fs::{self, Clock, Fs, FsConfig, ROOT};
use nfsrdma_memory_server::MemoryServer;
use nfsrdma_nfs3::{
    Acls, CreateMode, Cred, Credential, DirPage, Found, Limits, Made, Nfs3, NfsError, NfsResult,
    ReadDone, SetLists, Special, Transport, WriteDone,
};
use nfsrdma_rdma::contract::Segs;
use nfsrdma_rdma::{Buf, BufMut, Pool};
use nfsrdma_record::Table;
use nfsrdma_rpcrdma::exec::block_on;
use nfsrdma_xdr::nfs3::*;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// More calls than any operation needs, with files of at most [`SPACE`] bytes.
const MOST_CALLS: u64 = 200_000;
const SPACE: u64 = 1 << 20;
const NAMES: [&str; 6] = ["a", "b", "c", "d", "dir", "link"];

const ODD: [u64; 12] = [
    0,
    1,
    4095,
    4096,
    (1 << 31) - 1,
    u32::MAX as u64,
    1 << 32,
    1 << 62,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];

struct Liar {
    honest: Arc<MemoryServer>,
    random: Mutex<fastrand::Rng>,
    /// One of so many results is false.
    one_of: u32,
    calls: AtomicU64,
}

impl Liar {
    fn called(&self) {
        let calls = self.calls.fetch_add(1, Relaxed);
        assert!(calls < MOST_CALLS, "an operation calls without end");
    }

    fn lies(&self) -> bool {
        self.random.lock().u32(0..self.one_of) == 0
    }

    fn odd(&self) -> u64 {
        let mut random = self.random.lock();
        match random.u8(0..4) {
            0 => random.u64(..),
            _ => ODD[random.usize(..ODD.len())],
        }
    }

    fn time(&self) -> Time {
        Time {
            seconds: self.odd() as u32,
            nanoseconds: self.odd() as u32,
        }
    }

    /// A handle of another object, or one that the server does not know.
    fn handle(&self, of: FileHandle) -> FileHandle {
        if !self.lies() {
            return of;
        }
        let pick = self.random.lock().usize(..NAMES.len() + 2);
        match NAMES.get(pick) {
            Some(name) => self.honest.handle(name).unwrap_or(of),
            None if pick == NAMES.len() => self.honest.root(),
            None => FileHandle::new(&[9; 64]).unwrap(),
        }
    }

    /// An honest result, or an error status.
    async fn answer<T>(&self, call: impl Future<Output = NfsResult<T>>) -> NfsResult<T> {
        self.called();
        let result = call.await;
        if self.lies() && self.lies() {
            let statuses = Status::ALL;
            let status = statuses[self.random.lock().usize(1..statuses.len())];
            return Err(NfsError::Status(status));
        }
        result
    }
}

/// A result that a [`Liar`] may change.
trait Lie {
    fn told_by(self, liar: &Liar) -> Self;
}

impl Lie for Attributes {
    fn told_by(mut self, liar: &Liar) -> Self {
        if !liar.lies() {
            return self;
        }
        let which = liar.random.lock().u8(0..12);
        match which {
            0 => {
                let kinds = FileType::ALL;
                self.kind = kinds[liar.random.lock().usize(..kinds.len())];
            }
            1 => self.mode = liar.odd() as u32,
            2 => self.nlink = liar.odd() as u32,
            3 => self.uid = liar.odd() as u32,
            4..=6 => self.size = liar.odd(),
            7 => self.used = liar.odd(),
            8 => self.fsid = liar.odd(),
            9 => self.fileid = liar.odd(),
            10 => self.mtime = liar.time(),
            _ => self.ctime = liar.time(),
        }
        self
    }
}

impl Lie for Option<Attributes> {
    fn told_by(self, liar: &Liar) -> Self {
        match liar.lies() {
            true => None,
            false => self.map(|attributes| attributes.told_by(liar)),
        }
    }
}

impl Lie for WccData {
    fn told_by(mut self, liar: &Liar) -> Self {
        self.after = self.after.told_by(liar);
        if liar.lies() {
            self.before = None;
        } else if liar.lies() {
            self.before = Some(WccAttributes {
                size: liar.odd(),
                mtime: liar.time(),
                ctime: liar.time(),
            });
        }
        self
    }
}

impl Lie for RenameWcc {
    fn told_by(self, liar: &Liar) -> Self {
        RenameWcc {
            from_dir: self.from_dir.told_by(liar),
            to_dir: self.to_dir.told_by(liar),
        }
    }
}

impl Lie for LinkWcc {
    fn told_by(self, liar: &Liar) -> Self {
        LinkWcc {
            attributes: self.attributes.told_by(liar),
            dir: self.dir.told_by(liar),
        }
    }
}

impl Lie for Verifier {
    fn told_by(self, liar: &Liar) -> Self {
        match liar.lies() {
            true => Verifier(liar.odd().to_be_bytes()),
            false => self,
        }
    }
}

impl Lie for Found {
    fn told_by(self, liar: &Liar) -> Self {
        Found {
            object: liar.handle(self.object),
            attributes: self.attributes.told_by(liar),
            dir: self.dir.told_by(liar),
        }
    }
}

impl Lie for Made {
    fn told_by(self, liar: &Liar) -> Self {
        Made {
            object: match liar.lies() {
                true => None,
                false => self.object.map(|object| liar.handle(object)),
            },
            attributes: self.attributes.told_by(liar),
            dir: self.dir.told_by(liar),
        }
    }
}

impl Lie for ReadDone {
    fn told_by(mut self, liar: &Liar) -> Self {
        self.attributes = self.attributes.told_by(liar);
        if liar.lies() {
            let room: usize = self.data.iter().map(|buf| buf.len()).sum();
            self.count = liar.random.lock().u32(0..=room as u32);
        }
        if liar.lies() {
            self.eof = !self.eof;
        }
        self
    }
}

impl Lie for WriteDone {
    fn told_by(mut self, liar: &Liar) -> Self {
        self.wcc = self.wcc.told_by(liar);
        self.verifier = self.verifier.told_by(liar);
        if liar.lies() && self.count > 0 {
            self.count = liar.random.lock().u32(1..=self.count);
        }
        if liar.lies() {
            self.committed = Stable::ALL[liar.random.lock().usize(..3)];
        }
        self
    }
}

impl Lie for DirPage {
    fn told_by(mut self, liar: &Liar) -> Self {
        self.dir = self.dir.told_by(liar);
        self.verifier = self.verifier.told_by(liar);
        if liar.lies() {
            self.eof = !self.eof;
        }
        if liar.lies() {
            self.entries.clear();
        }
        for entry in &mut self.entries {
            if liar.lies() {
                entry.cookie = liar.odd();
            }
            if liar.lies() {
                entry.fileid = liar.odd();
            }
            if liar.lies() {
                let name = NAMES[liar.random.lock().usize(..NAMES.len())];
                entry.name = name.as_bytes().into();
            }
            entry.attributes = entry.attributes.told_by(liar);
            entry.handle = entry.handle.map(|handle| liar.handle(handle));
        }
        self
    }
}

impl Lie for FsstatOk {
    fn told_by(mut self, liar: &Liar) -> Self {
        (self.total_bytes, self.free_files) = (liar.odd(), liar.odd());
        self
    }
}

impl<A: Lie, B: Lie> Lie for (A, B) {
    fn told_by(self, liar: &Liar) -> Self {
        (self.0.told_by(liar), self.1.told_by(liar))
    }
}

macro_rules! honest {
    ($($type:ty),*) => {
        $(impl Lie for $type {
            fn told_by(self, _: &Liar) -> Self {
                self
            }
        })*
    };
}

honest!(u32, Vec<u8>, Acls, FsinfoOk, PathconfOk);

macro_rules! liar {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) -> $results:ty;)*) => {
        impl Nfs3 for Liar {
            $(
                async fn $name(&self, cred: &Cred $(, $arg: $type)*) -> NfsResult<$results> {
                    let results = self.answer(self.honest.$name(cred $(, $arg)*)).await?;
                    Ok(results.told_by(self))
                }
            )*
        }
    };
}

nfsrdma_nfs3::procedures!(liar);

impl Transport for Liar {
    fn has_acl(&self) -> bool {
        true
    }

    fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Send {
        self.honest.sleep(time)
    }

    fn limits(&self) -> Limits {
        const SIZES: [u32; 6] = [512, 513, 4095, 4096, 100_000, 1 << 20];
        let mut limits = self.honest.limits();
        if self.lies() {
            limits.rtmax = SIZES[self.random.lock().usize(..SIZES.len())];
            limits.wtmax = SIZES[self.random.lock().usize(..SIZES.len())];
        }
        if self.lies() {
            limits.max_file_size = self.odd().clamp(1, i64::MAX as u64);
        }
        limits
    }
}

struct Run {
    fs: Arc<Fs<Liar>>,
    server: Arc<Liar>,
    random: fastrand::Rng,
    cred: Cred,
    /// What the kernel knows: nodes with the references that it has, and open files.
    nodes: Vec<u64>,
    files: Vec<(u64, i32)>,
}

impl Run {
    fn new(seed: u64) -> Self {
        let honest = MemoryServer::new();
        for name in &NAMES[..4] {
            honest.plant(name, &vec![7; 100_000]);
        }
        let mut random = fastrand::Rng::with_seed(seed);
        let server = Arc::new(Liar {
            one_of: [3, 10, 60][random.usize(..3)],
            random: Mutex::new(random.fork()),
            honest,
            calls: AtomicU64::new(0),
        });
        let config = FsConfig {
            cache_bytes: 8 << 20,
            dirty_bytes: 4 << 20,
            dirty_file_bytes: 2 << 20,
            ..FsConfig::default()
        };
        let pool = Pool::new(config.pool_bytes()).unwrap();
        let (root, records) = (server.honest.root(), Arc::new(Table::anonymous()));
        Run {
            fs: Fs::new(server.clone(), root, pool, config, Clock::manual(), records),
            server,
            random,
            cred: Arc::new(Credential {
                uid: 0,
                gid: 0,
                groups: Vec::new(),
            }),
            nodes: vec![ROOT],
            files: Vec::new(),
        }
    }

    fn node(&mut self) -> u64 {
        self.nodes[self.random.usize(..self.nodes.len())]
    }

    fn name(&mut self) -> &'static [u8] {
        NAMES[self.random.usize(..NAMES.len())].as_bytes()
    }

    fn offset(&mut self) -> u64 {
        match self.random.u8(0..8) {
            0 => i64::MAX as u64 - SPACE + self.random.u64(..SPACE),
            _ => self.random.u64(..SPACE),
        }
    }

    fn file(&mut self) -> Option<(u64, i32)> {
        let last = self.files.len();
        (last > 0).then(|| self.files[self.random.usize(..last)])
    }

    fn names(&mut self) {
        let (cred, fs) = (self.cred.clone(), self.fs.clone());
        let (dir, name, other) = (self.node(), self.name(), self.name());
        match self.random.u8(0..8) {
            0..=2 => {
                let cached = fs.lookup_cached(dir, name, 0, || cred.clone());
                let found = match cached {
                    Some(found) => Ok(found),
                    None => block_on(fs.lookup(&cred, dir, name)),
                };
                if let Ok(fs::Found::Is(entry)) = found {
                    self.nodes.push(entry.nodeid);
                }
            }
            3 => drop(block_on(fs.unlink(&cred, dir, name))),
            4 => drop(block_on(fs.rmdir(&cred, dir, name))),
            5 => {
                let to = self.node();
                drop(block_on(fs.rename(&cred, (dir, name), (to, other), 0)));
            }
            6 => {
                let made = match self.random.bool() {
                    true => block_on(fs.mkdir(&cred, dir, name, 0o755)),
                    false => block_on(fs.symlink(&cred, dir, name, b"target")),
                };
                self.nodes.extend(made.map(|entry| entry.nodeid));
            }
            _ => {
                let node = self.node();
                let linked = block_on(fs.link(&cred, node, dir, name));
                self.nodes.extend(linked.map(|entry| entry.nodeid));
            }
        }
    }

    fn opens(&mut self) {
        let (cred, fs) = (self.cred.clone(), self.fs.clone());
        let (node, name) = (self.node(), self.name());
        let direct = [0, 0, libc::O_DIRECT, libc::O_APPEND];
        let flags = libc::O_RDWR | direct[self.random.usize(..4)];
        match self.random.bool() {
            true => {
                let opened = block_on(fs.open(&cred, node, flags));
                self.files
                    .extend(opened.map(|opened| (opened.handle, flags)));
            }
            false => {
                let flags = flags | libc::O_CREAT;
                if let Ok((entry, opened)) = block_on(fs.create(&cred, node, name, 0o644, flags)) {
                    self.nodes.push(entry.nodeid);
                    self.files.push((opened.handle, flags));
                }
            }
        }
    }

    fn data(&mut self) {
        let fs = self.fs.clone();
        let Some((file, flags)) = self.file() else {
            return;
        };
        let (offset, len) = (self.offset(), self.random.usize(1..150_000));
        match self.random.u8(0..8) {
            0..=2 => {
                if fs.read_cached(file, offset, len as u32, flags).is_none() {
                    drop(block_on(fs.read(file, offset, len as u32, flags)));
                }
            }
            3..=5 => {
                let bytes = vec![1; len];
                if fs.write_cached(file, offset, &bytes[..], flags).is_none() {
                    drop(block_on(fs.write(file, offset, &bytes[..], flags, || true)));
                }
            }
            6 => drop(block_on(fs.fsync(file, || true))),
            _ => {
                self.files.retain(|(open, _)| *open != file);
                drop(block_on(fs.flush(file, 0, false, || true)));
                drop(block_on(fs.release(file)));
            }
        }
    }

    fn others(&mut self) {
        let (cred, fs, node) = (self.cred.clone(), self.fs.clone(), self.node());
        match self.random.u8(0..8) {
            0 => {
                if fs.getattr_cached(node, false).is_none() {
                    drop(block_on(fs.getattr(&cred, node, false)));
                }
            }
            1 => {
                let size = match self.random.bool() {
                    true => Some(self.offset()),
                    false => None,
                };
                let new = SetAttributes {
                    size,
                    mode: Some(0o600),
                    ..SetAttributes::default()
                };
                drop(block_on(fs.setattr(&cred, node, &new, true)));
            }
            2 => drop(block_on(fs.readlink(&cred, node))),
            3 => drop(block_on(fs.statfs(&cred, node))),
            4 => drop(block_on(fs.access(&cred, node, libc::R_OK | libc::W_OK))),
            5 => drop(block_on(fs.listxattr(&cred, node))),
            _ => self.list(node),
        }
    }

    fn list(&mut self, node: u64) {
        let (cred, fs) = (self.cred.clone(), self.fs.clone());
        let Ok(opened) = block_on(fs.opendir(&cred, node)) else {
            return;
        };
        let mut offset = 0;
        // As many as a program would hardly wait for.
        for _ in 0..1000 {
            let listing = match fs.readdir_cached(opened.handle, offset) {
                Some(known) => known,
                None => block_on(fs.readdir(opened.handle, offset)),
            };
            let Ok(listing) = listing else { break };
            for entry in listing.entries() {
                if let Some(entry) = fs.listed_entry(&listing, entry) {
                    self.nodes.push(entry.nodeid);
                }
                offset = entry.cookie;
            }
            if listing.entries().is_empty() {
                break;
            }
        }
        fs.releasedir(opened.handle).unwrap();
    }

    fn step(&mut self) {
        self.server.calls.store(0, Relaxed);
        match self.random.u8(0..10) {
            0..=2 => self.names(),
            3 => self.opens(),
            4..=6 => self.data(),
            7 | 8 => self.others(),
            _ => {
                self.fs.tick();
                if self.nodes.len() > 20 {
                    let node = self
                        .nodes
                        .swap_remove(self.random.usize(1..self.nodes.len()));
                    self.fs.forget(node, 1);
                }
            }
        }
    }
}

#[test]
fn no_lie_makes_an_operation_panic_or_go_on_for_ever() {
    let runs = std::env::var("LIES").map_or(60, |runs| runs.parse().unwrap());
    for seed in 0..runs {
        println!("seed {seed}");
        let mut run = Run::new(seed);
        for _ in 0..300 {
            run.step();
        }
        run.server.calls.store(0, Relaxed);
        block_on(run.fs.shutdown());
    }
}
