//! Random operations on a server whose results have the right form and false contents: sizes, times,
//! types, handles, counts, cookies, verifiers and limits. No operation may panic or call without end.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use nfsrdma_fs::fs::{Clock, Found, Fs, FsConfig, ROOT};
use nfsrdma_memory_server::MemoryServer;
use nfsrdma_nfs3::{
    Acls, CreateMode, Cred, Credential, DirPage, Limits, Made, Nfs3, NfsError, NfsResult, ReadDone,
    SetLists, Special, WriteDone,
};
use nfsrdma_rdma::contract::Segs;
use nfsrdma_rdma::{Buf, BufMut, Pool};
use nfsrdma_rpcrdma::exec::block_on;
use nfsrdma_xdr::nfs3::*;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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

    fn attributes(&self, mut of: Attributes) -> Attributes {
        if !self.lies() {
            return of;
        }
        let which = self.random.lock().u8(0..12);
        match which {
            0 => {
                let kinds = FileType::ALL;
                of.kind = kinds[self.random.lock().usize(..kinds.len())];
            }
            1 => of.mode = self.odd() as u32,
            2 => of.nlink = self.odd() as u32,
            3 => of.uid = self.odd() as u32,
            4..=6 => of.size = self.odd(),
            7 => of.used = self.odd(),
            8 => of.fsid = self.odd(),
            9 => of.fileid = self.odd(),
            10 => of.mtime = self.time(),
            _ => of.ctime = self.time(),
        }
        of
    }

    fn maybe(&self, of: Option<Attributes>) -> Option<Attributes> {
        match self.lies() {
            true => None,
            false => of.map(|of| self.attributes(of)),
        }
    }

    fn wcc(&self, mut of: WccData) -> WccData {
        of.after = self.maybe(of.after);
        if self.lies() {
            of.before = None;
        } else if self.lies() {
            of.before = Some(WccAttributes {
                size: self.odd(),
                mtime: self.time(),
                ctime: self.time(),
            });
        }
        of
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

    fn verifier(&self, of: Verifier) -> Verifier {
        match self.lies() {
            true => Verifier(self.odd().to_be_bytes()),
            false => of,
        }
    }

    fn page(&self, of: NfsResult<DirPage>) -> NfsResult<DirPage> {
        let mut page = of?;
        page.dir = self.maybe(page.dir);
        page.verifier = self.verifier(page.verifier);
        if self.lies() {
            page.eof = !page.eof;
        }
        if self.lies() {
            page.entries.clear();
        }
        for entry in &mut page.entries {
            if self.lies() {
                entry.cookie = self.odd();
            }
            if self.lies() {
                entry.fileid = self.odd();
            }
            if self.lies() {
                let name = NAMES[self.random.lock().usize(..NAMES.len())];
                entry.name = name.as_bytes().into();
            }
            entry.attributes = self.maybe(entry.attributes);
            entry.handle = entry.handle.map(|handle| self.handle(handle));
        }
        Ok(page)
    }

    fn made(&self, of: NfsResult<Made>) -> NfsResult<Made> {
        let of = of?;
        Ok(Made {
            object: match self.lies() {
                true => None,
                false => of.object.map(|object| self.handle(object)),
            },
            attributes: self.maybe(of.attributes),
            dir: self.wcc(of.dir),
        })
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

impl Nfs3 for Liar {
    async fn getattr(&self, cred: &Cred, object: &FileHandle) -> NfsResult<Attributes> {
        let done = self.answer(self.honest.getattr(cred, object)).await?;
        Ok(self.attributes(done))
    }

    async fn setattr(
        &self,
        cred: &Cred,
        object: &FileHandle,
        new: &SetAttributes,
        guard: Option<Time>,
    ) -> NfsResult<WccData> {
        let call = self.honest.setattr(cred, object, new, guard);
        Ok(self.wcc(self.answer(call).await?))
    }

    async fn lookup(
        &self,
        cred: &Cred,
        dir: &FileHandle,
        name: &[u8],
    ) -> NfsResult<nfsrdma_nfs3::Found> {
        let found = self.answer(self.honest.lookup(cred, dir, name)).await?;
        Ok(nfsrdma_nfs3::Found {
            object: self.handle(found.object),
            attributes: self.maybe(found.attributes),
            dir: self.maybe(found.dir),
        })
    }

    async fn access(
        &self,
        cred: &Cred,
        object: &FileHandle,
        wanted: u32,
    ) -> NfsResult<(u32, Option<Attributes>)> {
        let call = self.honest.access(cred, object, wanted);
        let (granted, attributes) = self.answer(call).await?;
        Ok((granted, self.maybe(attributes)))
    }

    async fn readlink(
        &self,
        cred: &Cred,
        symlink: &FileHandle,
    ) -> NfsResult<(Vec<u8>, Option<Attributes>)> {
        let (path, of) = self.answer(self.honest.readlink(cred, symlink)).await?;
        Ok((path, self.maybe(of)))
    }

    async fn read(
        &self,
        cred: &Cred,
        file: &FileHandle,
        offset: u64,
        sink: Segs<BufMut>,
    ) -> NfsResult<ReadDone> {
        let call = self.honest.read(cred, file, offset, sink);
        let mut done = self.answer(call).await?;
        done.attributes = self.maybe(done.attributes);
        if self.lies() {
            let room: usize = done.data.iter().map(|buf| buf.len()).sum();
            done.count = self.random.lock().u32(0..=room as u32);
        }
        if self.lies() {
            done.eof = !done.eof;
        }
        Ok(done)
    }

    async fn write(
        &self,
        cred: &Cred,
        file: &FileHandle,
        offset: u64,
        data: Segs<Buf>,
        stable: Stable,
    ) -> NfsResult<WriteDone> {
        let call = self.honest.write(cred, file, offset, data, stable);
        let mut done = self.answer(call).await?;
        done.wcc = self.wcc(done.wcc);
        done.verifier = self.verifier(done.verifier);
        if self.lies() && done.count > 0 {
            done.count = self.random.lock().u32(1..=done.count);
        }
        if self.lies() {
            done.committed = Stable::ALL[self.random.lock().usize(..3)];
        }
        Ok(done)
    }

    async fn commit(
        &self,
        cred: &Cred,
        file: &FileHandle,
        offset: u64,
        count: u32,
    ) -> NfsResult<(WccData, Verifier)> {
        let call = self.honest.commit(cred, file, offset, count);
        let (wcc, verifier) = self.answer(call).await?;
        Ok((self.wcc(wcc), self.verifier(verifier)))
    }

    async fn create(
        &self,
        cred: &Cred,
        dir: &FileHandle,
        name: &[u8],
        mode: CreateMode,
        attributes: &SetAttributes,
    ) -> NfsResult<Made> {
        let call = self.honest.create(cred, dir, name, mode, attributes);
        self.made(self.answer(call).await)
    }

    async fn mkdir(
        &self,
        cred: &Cred,
        dir: &FileHandle,
        name: &[u8],
        attributes: &SetAttributes,
    ) -> NfsResult<Made> {
        let call = self.honest.mkdir(cred, dir, name, attributes);
        self.made(self.answer(call).await)
    }

    async fn symlink(
        &self,
        cred: &Cred,
        dir: &FileHandle,
        name: &[u8],
        target: &[u8],
        attributes: &SetAttributes,
    ) -> NfsResult<Made> {
        let call = self.honest.symlink(cred, dir, name, target, attributes);
        self.made(self.answer(call).await)
    }

    async fn mknod(
        &self,
        cred: &Cred,
        dir: &FileHandle,
        name: &[u8],
        special: Special,
        attributes: &SetAttributes,
    ) -> NfsResult<Made> {
        let call = self.honest.mknod(cred, dir, name, special, attributes);
        self.made(self.answer(call).await)
    }

    async fn remove(&self, cred: &Cred, dir: &FileHandle, name: &[u8]) -> NfsResult<WccData> {
        let done = self.answer(self.honest.remove(cred, dir, name)).await;
        Ok(self.wcc(done?))
    }

    async fn rmdir(&self, cred: &Cred, dir: &FileHandle, name: &[u8]) -> NfsResult<WccData> {
        let done = self.answer(self.honest.rmdir(cred, dir, name)).await;
        Ok(self.wcc(done?))
    }

    async fn rename(
        &self,
        cred: &Cred,
        from_dir: &FileHandle,
        from: &[u8],
        to_dir: &FileHandle,
        to: &[u8],
    ) -> NfsResult<RenameWcc> {
        let call = self.honest.rename(cred, from_dir, from, to_dir, to);
        let done = self.answer(call).await?;
        Ok(RenameWcc {
            from_dir: self.wcc(done.from_dir),
            to_dir: self.wcc(done.to_dir),
        })
    }

    async fn link(
        &self,
        cred: &Cred,
        file: &FileHandle,
        dir: &FileHandle,
        name: &[u8],
    ) -> NfsResult<LinkWcc> {
        let done = self.answer(self.honest.link(cred, file, dir, name)).await?;
        Ok(LinkWcc {
            attributes: self.maybe(done.attributes),
            dir: self.wcc(done.dir),
        })
    }

    async fn readdir(
        &self,
        cred: &Cred,
        dir: &FileHandle,
        cookie: u64,
        verifier: Verifier,
        count: u32,
    ) -> NfsResult<DirPage> {
        let call = self.honest.readdir(cred, dir, cookie, verifier, count);
        self.page(self.answer(call).await)
    }

    async fn readdirplus(
        &self,
        cred: &Cred,
        dir: &FileHandle,
        cookie: u64,
        verifier: Verifier,
        dircount: u32,
        maxcount: u32,
    ) -> NfsResult<DirPage> {
        let call = self
            .honest
            .readdirplus(cred, dir, cookie, verifier, dircount, maxcount);
        self.page(self.answer(call).await)
    }

    async fn fsstat(&self, cred: &Cred, object: &FileHandle) -> NfsResult<FsstatOk> {
        let mut done = self.answer(self.honest.fsstat(cred, object)).await?;
        (done.total_bytes, done.free_files) = (self.odd(), self.odd());
        Ok(done)
    }

    async fn fsinfo(&self, cred: &Cred, object: &FileHandle) -> NfsResult<FsinfoOk> {
        self.answer(self.honest.fsinfo(cred, object)).await
    }

    async fn pathconf(&self, cred: &Cred, object: &FileHandle) -> NfsResult<PathconfOk> {
        self.answer(self.honest.pathconf(cred, object)).await
    }

    fn has_acl(&self) -> bool {
        true
    }

    async fn getacl(
        &self,
        cred: &Cred,
        object: &FileHandle,
        directory: bool,
    ) -> NfsResult<(Option<Attributes>, Acls)> {
        let call = self.honest.getacl(cred, object, directory);
        let (of, acls) = self.answer(call).await?;
        Ok((self.maybe(of), acls))
    }

    async fn setacl(
        &self,
        cred: &Cred,
        object: &FileHandle,
        acls: &Acls,
        lists: SetLists,
    ) -> NfsResult<Option<Attributes>> {
        let call = self.honest.setacl(cred, object, acls, lists);
        Ok(self.maybe(self.answer(call).await?))
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
        let root = server.honest.root();
        Run {
            fs: Fs::with_clock(server.clone(), root, pool, config, Clock::manual()),
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
                if let Ok(Found::Is(entry)) = found {
                    self.nodes.push(entry.nodeid);
                }
            }
            3 => drop(block_on(fs.unlink(&cred, dir, name))),
            4 => drop(block_on(fs.rmdir(&cred, dir, name, |_| async {}))),
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
                    drop(block_on(fs.write(file, offset, &bytes[..], flags)));
                }
            }
            6 => drop(block_on(fs.fsync(file))),
            _ => {
                self.files.retain(|(open, _)| *open != file);
                drop(block_on(fs.flush(file, || true)));
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
