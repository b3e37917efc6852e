//! Mounts a file system that lives in memory: what FUSE allows. `ceiling DIR [DATA [SPARE_MIB]]`,
//! until it is unmounted; it begins empty, or with a copy of the directory DATA.
//!
//! It has the session, the threads and the negotiated flags of `nfsrdma`, and below them
//! nothing: no cache, no network, no future. A read is answered by one `writev` from where the
//! file lies, a write is one copy to where it lies. All of that memory is touched before the
//! mount (SPARE_MIB of it for what is going to be written), as the clearing of fresh memory is
//! not FUSE's time.

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request,
    TimeOrNow, WriteFlags,
};
use nfsrdma_fuse::adapter::{self, FuseOptions};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long the kernel believes what it is told, which nobody else changes.
const TTL: Duration = Duration::from_secs(600);
/// A file that grows beyond this moves to the spare memory.
const LARGE: usize = 1 << 20;

type Named = BTreeMap<OsString, u64>;
/// A directory as it is listed: what is in `Named` by position.
type Listed = Arc<Vec<(OsString, u64)>>;

struct Node {
    of: Mutex<FileAttr>,
    data: RwLock<Vec<u8>>,
    names: RwLock<Named>,
}

struct Memory {
    nodes: RwLock<HashMap<u64, Arc<Node>>>,
    listings: Mutex<HashMap<u64, Listed>>,
    next: AtomicU64,
    /// Touched memory for one large file.
    spare: Mutex<Option<Vec<u8>>>,
    options: FuseOptions,
}

fn touched(bytes: usize) -> Vec<u8> {
    let mut memory = vec![1; bytes];
    memory.clear();
    memory
}

impl Memory {
    fn new(spare: usize, options: FuseOptions) -> Self {
        let memory = Memory {
            nodes: RwLock::default(),
            listings: Mutex::default(),
            next: AtomicU64::new(1),
            spare: Mutex::new((spare > 0).then(|| touched(spare))),
            options,
        };
        memory.add(FileType::Directory, 0o755, 0, 0);
        memory
    }

    fn add(&self, kind: FileType, perm: u16, uid: u32, gid: u32) -> (u64, Arc<Node>) {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let now = SystemTime::now();
        let of = FileAttr {
            ino: INodeNo(id),
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1 + u32::from(kind == FileType::Directory),
            uid,
            gid,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        };
        let node = Arc::new(Node {
            of: Mutex::new(of),
            data: RwLock::default(),
            names: RwLock::default(),
        });
        self.nodes.write().insert(id, node.clone());
        (id, node)
    }

    /// Copies directories and regular files.
    fn fill(&self, dir: &Node, from: &Path) -> io::Result<()> {
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            let found = entry.metadata()?;
            let kind = if found.is_dir() {
                FileType::Directory
            } else if found.is_file() {
                FileType::RegularFile
            } else {
                continue;
            };
            let perm = (found.mode() & 0o7777) as u16;
            let (id, node) = self.add(kind, perm, found.uid(), found.gid());
            if found.is_dir() {
                self.fill(&node, &entry.path())?;
            } else {
                let data = fs::read(entry.path())?;
                node.of.lock().size = data.len() as u64;
                *node.data.write() = data;
            }
            dir.names.write().insert(entry.file_name(), id);
        }
        Ok(())
    }

    fn node(&self, id: INodeNo) -> Result<Arc<Node>, Errno> {
        self.nodes.read().get(&id.0).cloned().ok_or(Errno::ENOENT)
    }

    fn child(&self, parent: INodeNo, name: &OsStr) -> Result<FileAttr, Errno> {
        let id = self.node(parent)?.names.read().get(name).copied();
        let node = self.node(INodeNo(id.ok_or(Errno::ENOENT)?))?;
        let of = *node.of.lock();
        Ok(of)
    }

    fn make(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        kind: FileType,
        mode: u32,
    ) -> Result<FileAttr, Errno> {
        let dir = self.node(parent)?;
        let mut names = dir.names.write();
        if names.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        let perm = (mode & 0o7777) as u16;
        let (id, node) = self.add(kind, perm, request.uid(), request.gid());
        names.insert(name.to_owned(), id);
        let of = *node.of.lock();
        Ok(of)
    }

    fn remove(&self, parent: INodeNo, name: &OsStr) -> Result<(), Errno> {
        let dir = self.node(parent)?;
        let mut names = dir.names.write();
        let id = *names.get(name).ok_or(Errno::ENOENT)?;
        let node = self.node(INodeNo(id))?;
        if !node.names.read().is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        names.remove(name);
        self.nodes.write().remove(&id);
        self.resize(&mut node.data.write(), 0);
        Ok(())
    }

    /// Makes room for `size` bytes and sets the length, to zeros where it grows.
    fn resize(&self, data: &mut Vec<u8>, size: usize) {
        if size > data.capacity() && size > LARGE {
            let mut spare = self.spare.lock();
            if let Some(mut larger) = spare.take_if(|spare| spare.capacity() >= size) {
                larger.extend_from_slice(data);
                *data = larger;
            }
        }
        data.resize(size, 0);
        if size == 0 && data.capacity() > LARGE {
            *self.spare.lock() = Some(std::mem::take(data));
        }
    }

    /// The directory's entries from `offset` on: id of the entry, cookie behind it, name.
    fn listed(&self, node: INodeNo, offset: u64) -> Result<Listed, Errno> {
        let mut listings = self.listings.lock();
        if offset > 0
            && let Some(known) = listings.get(&node.0)
        {
            return Ok(known.clone());
        }
        let names = self.node(node)?;
        let names = names.names.read();
        let all: Listed = Arc::new(names.iter().map(|(n, id)| (n.clone(), *id)).collect());
        listings.insert(node.0, all.clone());
        Ok(all)
    }
}

macro_rules! done {
    ($result:expr, $reply:ident, $value:pat => $ok:expr) => {
        match $result {
            Ok($value) => $ok,
            Err(error) => $reply.error(error),
        }
    };
}

impl Filesystem for Memory {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        adapter::negotiate(config, &self.options);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        done!(self.child(parent, name), reply, of => reply.entry(&TTL, &of, Generation(0)));
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        done!(self.node(node), reply, node => reply.attr(&TTL, &node.of.lock()));
    }

    fn setattr(
        &self,
        _: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let time = |of: TimeOrNow| match of {
            TimeOrNow::SpecificTime(at) => at,
            TimeOrNow::Now => SystemTime::now(),
        };
        let node = match self.node(node) {
            Ok(node) => node,
            Err(error) => return reply.error(error),
        };
        if let Some(size) = size {
            self.resize(&mut node.data.write(), size as usize);
        }
        let mut of = node.of.lock();
        of.perm = mode.map_or(of.perm, |mode| (mode & 0o7777) as u16);
        of.uid = uid.unwrap_or(of.uid);
        of.gid = gid.unwrap_or(of.gid);
        of.size = size.unwrap_or(of.size);
        of.atime = atime.map_or(of.atime, time);
        of.mtime = mtime.map_or(of.mtime, time);
        reply.attr(&TTL, &of);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        let made = self.make(request, parent, name, FileType::Directory, mode);
        done!(made, reply, of => reply.entry(&TTL, &of, Generation(0)));
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let made = self.make(request, parent, name, FileType::RegularFile, mode);
        done!(made, reply, of => reply.created(
            &TTL, &of, Generation(0), FileHandle(of.ino.0), FopenFlags::FOPEN_KEEP_CACHE
        ));
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done!(self.remove(parent, name), reply, () => reply.ok());
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done!(self.remove(parent, name), reply, () => reply.ok());
    }

    fn open(&self, _: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let node_found = match self.node(node) {
            Ok(node) => node,
            Err(error) => return reply.error(error),
        };
        if flags.0 & libc::O_TRUNC != 0 {
            self.resize(&mut node_found.data.write(), 0);
            node_found.of.lock().size = 0;
        }
        let mut answer = FopenFlags::FOPEN_KEEP_CACHE;
        if flags.0 & libc::O_ACCMODE == libc::O_RDONLY {
            answer |= FopenFlags::FOPEN_NOFLUSH;
        }
        reply.opened(FileHandle(node.0), answer);
    }

    fn read(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let node = match self.node(node) {
            Ok(node) => node,
            Err(error) => return reply.error(error),
        };
        let data = node.data.read();
        let from = data.len().min(offset as usize);
        let to = data.len().min(from + size as usize);
        reply.data(&data[from..to]);
    }

    fn write(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        bytes: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let node = match self.node(node) {
            Ok(node) => node,
            Err(error) => return reply.error(error),
        };
        let (from, to) = (offset as usize, offset as usize + bytes.len());
        let mut data = node.data.write();
        if from == data.len() && to <= data.capacity() {
            data.extend_from_slice(bytes);
        } else {
            if to > data.len() {
                self.resize(&mut data, to);
            }
            data[from..to].copy_from_slice(bytes);
        }
        let size = data.len() as u64;
        drop(data);
        let mut of = node.of.lock();
        of.size = size;
        of.mtime = SystemTime::now();
        reply.written(bytes.len() as u32);
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn opendir(&self, _: &Request, node: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(node.0), FopenFlags::FOPEN_CACHE_DIR);
    }

    fn readdir(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = match self.listed(node, offset) {
            Ok(listed) => listed,
            Err(error) => return reply.error(error),
        };
        for (at, (name, id)) in listed.iter().enumerate().skip(offset as usize) {
            let kind = match self.node(INodeNo(*id)) {
                Ok(node) => node.of.lock().kind,
                Err(_) => continue,
            };
            if reply.add(INodeNo(*id), at as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn readdirplus(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let listed = match self.listed(node, offset) {
            Ok(listed) => listed,
            Err(error) => return reply.error(error),
        };
        for (at, (name, id)) in listed.iter().enumerate().skip(offset as usize) {
            let Ok(node) = self.node(INodeNo(*id)) else {
                continue;
            };
            let of = *node.of.lock();
            if reply.add(of.ino, at as u64 + 1, name, &TTL, &of, Generation(0)) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.listings.lock().remove(&node.0);
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(1 << 30, 1 << 29, 1 << 29, 1 << 30, 1 << 29, 4096, 255, 4096);
    }
}

fn main() -> anyhow::Result<()> {
    let mut words = std::env::args().skip(1);
    let Some(dir) = words.next().map(PathBuf::from) else {
        anyhow::bail!("usage: ceiling DIR [DATA [SPARE_MIB]]");
    };
    let data = words.next();
    let spare: usize = words.next().map_or(Ok(0), |word| word.parse())?;
    let options = FuseOptions::default();
    let memory = Memory::new(spare << 20, options.clone());
    if let Some(data) = data {
        let root = memory
            .node(INodeNo(1))
            .map_err(|_| io::Error::other("no root"))?;
        memory.fill(&root, data.as_ref())?;
    }
    let session = adapter::mount_other(memory, &dir, &options)?;
    if let Err(error) = adapter::set_read_ahead(&dir, 4096) {
        eprintln!("the kernel's read-ahead stays as it is: {error}");
    }
    session.join()?;
    Ok(())
}
