//! Mounts a file system in memory, to measure what FUSE allows. `ceiling DIR [DATA [SPARE_MIB]]`
//! serves it until it is unmounted. It begins empty, or with a copy of the directory DATA.
//!
//! It has the negotiated flags of `nfsrdma`, but no cache, no network
//! and no futures. A read is answered by one writev(2) from the memory of the file, and a write is
//! one copy into it. All of this memory is touched before the mount (SPARE_MIB of it for data that
//! will be written), so that the clearing of new memory is not measured.

use nfsrdma_channel::abi::fopen;
use nfsrdma_channel::{
    Attr, Channel, Directory, Entry, Handler, Header, Landing, Operation, ReadResult, Reader,
    Reply, Request, SetAttr, Statfs, TimeOrNow, WriteIn,
};
use nfsrdma_fs::adapter::{self, FuseOptions};
use parking_lot::{Mutex, RwLock};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::mount::{MountFlags, mount};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long names and attributes are valid; nobody else changes them.
const TTL: Duration = Duration::from_secs(600);
/// A file that grows beyond this moves to the spare memory.
const LARGE: usize = 1 << 20;

type Named = BTreeMap<OsString, u64>;
/// The entries of a directory for a listing, by position.
type Listed = Arc<Vec<(OsString, u64)>>;

struct Node {
    of: Mutex<Attr>,
    data: RwLock<Vec<u8>>,
    names: RwLock<Named>,
}

struct Memory {
    nodes: RwLock<HashMap<u64, Arc<Node>>>,
    listings: Mutex<HashMap<u64, Listed>>,
    next: AtomicU64,
    /// Memory for one large file, which was touched already.
    spare: Mutex<Option<Vec<u8>>>,
}

fn touched(bytes: usize) -> Vec<u8> {
    let mut memory = vec![1; bytes];
    memory.clear();
    memory
}

impl Memory {
    fn new(spare: usize) -> Self {
        let memory = Memory {
            nodes: RwLock::default(),
            listings: Mutex::default(),
            next: AtomicU64::new(1),
            spare: Mutex::new((spare > 0).then(|| touched(spare))),
        };
        memory.add(libc::S_IFDIR | 0o755, 0, 0);
        memory
    }

    fn add(&self, mode: u32, uid: u32, gid: u32) -> (u64, Arc<Node>) {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let now = since_1970(SystemTime::now());
        let of = Attr {
            fileid: id,
            seconds: [now.as_secs(); 3],
            nanoseconds: [now.subsec_nanos(); 3],
            mode,
            nlink: 1 + u32::from(mode & libc::S_IFMT == libc::S_IFDIR),
            uid,
            gid,
            blksize: 4096,
            ..Attr::default()
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
            if !found.is_dir() && !found.is_file() {
                continue;
            }
            let (id, node) = self.add(found.mode(), found.uid(), found.gid());
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

    fn node(&self, id: u64) -> Result<Arc<Node>, i32> {
        self.nodes.read().get(&id).cloned().ok_or(libc::ENOENT)
    }

    fn child(&self, parent: u64, name: &OsStr) -> Result<Attr, i32> {
        let id = self.node(parent)?.names.read().get(name).copied();
        let node = self.node(id.ok_or(libc::ENOENT)?)?;
        let of = *node.of.lock();
        Ok(of)
    }

    fn make(&self, request: &Header, parent: u64, name: &OsStr, mode: u32) -> Result<Attr, i32> {
        let dir = self.node(parent)?;
        let mut names = dir.names.write();
        if names.contains_key(name) {
            return Err(libc::EEXIST);
        }
        let (id, node) = self.add(mode, request.uid(), request.gid());
        names.insert(name.to_owned(), id);
        let of = *node.of.lock();
        Ok(of)
    }

    fn remove(&self, parent: u64, name: &OsStr) -> Result<(), i32> {
        let dir = self.node(parent)?;
        let mut names = dir.names.write();
        let id = *names.get(name).ok_or(libc::ENOENT)?;
        let node = self.node(id)?;
        if !node.names.read().is_empty() {
            return Err(libc::ENOTEMPTY);
        }
        names.remove(name);
        self.nodes.write().remove(&id);
        self.resize(&mut node.data.write(), 0);
        Ok(())
    }

    /// Sets the length of a file to `size` bytes; new bytes are zero.
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

    /// The entries of a directory; a new list if the listing begins.
    fn listed(&self, node: u64, offset: u64) -> Result<Listed, i32> {
        let mut listings = self.listings.lock();
        if offset > 0
            && let Some(known) = listings.get(&node)
        {
            return Ok(known.clone());
        }
        let names = self.node(node)?;
        let names = names.names.read();
        let all: Listed = Arc::new(names.iter().map(|(n, id)| (n.clone(), *id)).collect());
        listings.insert(node, all.clone());
        Ok(all)
    }
}

fn entry(of: Attr) -> Entry {
    Entry::new(of.fileid, TTL, TTL, of)
}

/// Answers with a result: by `ok`, or with the errno.
fn answer<T>(reply: Reply, result: Result<T, i32>, ok: impl FnOnce(Reply, T)) {
    match result {
        Ok(value) => ok(reply, value),
        Err(errno) => reply.error(errno),
    }
}

impl Handler for Memory {
    type Buffer = Vec<u8>;

    fn buffer(&self, _: usize) -> Option<Vec<u8>> {
        None
    }

    fn write(&self, header: &Header, to: &WriteIn, data: Vec<u8>, reply: Reply) {
        let (header, to, data) = (*header, *to, &data[..]);
        let operation = Operation::Write { to, data };
        self.handle(&Request { header, operation }, reply);
    }

    fn handle(&self, request: &Request<'_>, reply: Reply) {
        let (header, node) = (&request.header, request.header.nodeid);
        match request.operation {
            Operation::Lookup { name } => answer(reply, self.child(node, name), tell_entry),
            Operation::Getattr { .. } => answer(reply, self.node(node), |reply, node| {
                reply.attr(TTL, &node.of.lock());
            }),
            Operation::Setattr { to } => answer(reply, self.setattr(node, &to), |reply, of| {
                reply.attr(TTL, &of);
            }),
            Operation::Mkdir { name, mode, .. } => {
                let mode = libc::S_IFDIR | mode & 0o7777;
                answer(reply, self.make(header, node, name, mode), tell_entry);
            }
            Operation::Create { name, mode, .. } => {
                let made = self.make(header, node, name, mode);
                answer(reply, made, |reply, of| {
                    reply.created(&entry(of), of.fileid, fopen::KEEP_CACHE);
                });
            }
            Operation::Unlink { name } | Operation::Rmdir { name } => {
                answer(reply, self.remove(node, name), |reply, ()| reply.ok());
            }
            Operation::Open { flags } => {
                let mut answered = fopen::KEEP_CACHE;
                if flags & libc::O_ACCMODE == libc::O_RDONLY {
                    answered |= fopen::NOFLUSH;
                }
                answer(reply, self.open(node, flags), |reply, ()| {
                    reply.opened(node, answered);
                });
            }
            Operation::Read { offset, size, .. } => {
                answer(reply, self.node(node), |reply, node| {
                    let data = node.data.read();
                    let from = data.len().min(offset as usize);
                    let to = data.len().min(from + size as usize);
                    reply.data(&data[from..to]);
                })
            }
            Operation::Write { to, data } => {
                let written = self.put(node, to.offset as usize, data);
                answer(reply, written, |reply, ()| reply.written(data.len() as u32));
            }
            Operation::Flush { .. } | Operation::Release { .. } | Operation::Fsync { .. } => {
                reply.ok();
            }
            Operation::Opendir { .. } => reply.opened(node, fopen::CACHE_DIR),
            Operation::Readdir { offset, size, .. } => {
                let mut entries = Directory::new(size);
                let listed = self.list(node, offset, |name, of, next| {
                    entries.add(of.fileid, next, of.mode, name)
                });
                answer(reply, listed, |reply, ()| reply.data(entries.bytes()));
            }
            Operation::Readdirplus { offset, size, .. } => {
                let mut entries = Directory::new(size);
                let listed = self.list(node, offset, |name, of, next| {
                    entries.add_plus(&entry(of), next, name)
                });
                answer(reply, listed, |reply, ()| reply.data(entries.bytes()));
            }
            Operation::Releasedir { .. } => {
                self.listings.lock().remove(&node);
                reply.ok();
            }
            Operation::Statfs => reply.statfs(&Statfs {
                blocks: 1 << 30,
                bfree: 1 << 29,
                bavail: 1 << 29,
                files: 1 << 30,
                ffree: 1 << 29,
                bsize: 4096,
                namelen: 255,
                frsize: 4096,
                ..Statfs::default()
            }),
            _ => reply.error(libc::ENOSYS),
        }
    }

    fn forget(&self, _: u64, _: u64) {}

    fn interrupt(&self, _: u64) {}
}

fn tell_entry(reply: Reply, of: Attr) {
    reply.entry(&entry(of));
}

fn since_1970(at: SystemTime) -> Duration {
    at.duration_since(UNIX_EPOCH).unwrap_or_default()
}

impl Memory {
    fn setattr(&self, node: u64, to: &SetAttr) -> Result<Attr, i32> {
        let now = since_1970(SystemTime::now());
        let time = |of: TimeOrNow| match of {
            TimeOrNow::At {
                seconds,
                nanoseconds,
            } => (seconds as u64, nanoseconds),
            TimeOrNow::Now => (now.as_secs(), now.subsec_nanos()),
        };
        let node = self.node(node)?;
        if let Some(size) = to.size {
            self.resize(&mut node.data.write(), size as usize);
        }
        let mut of = node.of.lock();
        if let Some(mode) = to.mode {
            of.mode = of.mode & libc::S_IFMT | mode & 0o7777;
        }
        of.uid = to.uid.unwrap_or(of.uid);
        of.gid = to.gid.unwrap_or(of.gid);
        of.size = to.size.unwrap_or(of.size);
        for (at, to) in [to.atime, to.mtime].into_iter().enumerate() {
            if let Some(to) = to {
                (of.seconds[at], of.nanoseconds[at]) = time(to);
            }
        }
        Ok(*of)
    }

    fn open(&self, node: u64, flags: i32) -> Result<(), i32> {
        let node = self.node(node)?;
        if flags & libc::O_TRUNC != 0 {
            self.resize(&mut node.data.write(), 0);
            node.of.lock().size = 0;
        }
        Ok(())
    }

    fn put(&self, node: u64, from: usize, bytes: &[u8]) -> Result<(), i32> {
        let node = self.node(node)?;
        let to = from + bytes.len();
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
        let now = since_1970(SystemTime::now());
        (of.seconds[1], of.nanoseconds[1]) = (now.as_secs(), now.subsec_nanos());
        Ok(())
    }

    /// Passes entries from `offset` on to `take`, until it returns false.
    fn list(
        &self,
        node: u64,
        offset: u64,
        mut take: impl FnMut(&[u8], Attr, u64) -> bool,
    ) -> Result<(), i32> {
        let listed = self.listed(node, offset)?;
        for (at, (name, id)) in listed.iter().enumerate().skip(offset as usize) {
            let Ok(node) = self.node(*id) else {
                continue;
            };
            let of = *node.of.lock();
            if !take(name.as_bytes(), of, at as u64 + 1) {
                break;
            }
        }
        Ok(())
    }
}

/// Answers requests until the mount is gone.
fn read_all(mut reader: Reader, memory: &Memory) -> io::Result<()> {
    let mut landing = Landing::default();
    loop {
        match reader.read(memory, &mut landing)? {
            ReadResult::Handled => {}
            ReadResult::Empty => {
                poll(&mut [PollFd::new(&reader, PollFlags::IN)], None)?;
            }
            ReadResult::Ended => return Ok(()),
        }
    }
}

/// Mounts on `dir`, as root.
fn mount_on(dir: &Path) -> io::Result<OwnedFd> {
    let device = OwnedFd::from(File::options().read(true).write(true).open("/dev/fuse")?);
    let fd = device.as_raw_fd();
    let data = CString::new(format!("fd={fd},rootmode=40000,user_id=0,group_id=0"))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("nfsrdma", dir, "fuse.nfsrdma", flags, data.as_c_str())?;
    Ok(device)
}

fn main() -> anyhow::Result<()> {
    let mut words = std::env::args().skip(1);
    let Some(dir) = words.next().map(PathBuf::from) else {
        anyhow::bail!("usage: ceiling DIR [DATA [SPARE_MIB]]");
    };
    let data = words.next();
    let spare: usize = words.next().map_or(Ok(0), |word| word.parse())?;
    let memory = Memory::new(spare << 20);
    if let Some(data) = data {
        let root = memory
            .node(nfsrdma_channel::abi::ROOT_ID)
            .map_err(|_| io::Error::other("no root"))?;
        memory.fill(&root, data.as_ref())?;
    }
    let memory = Arc::new(memory);
    let reader = || {
        let memory = memory.clone();
        move |reader| read_all(reader, &memory)
    };
    let wanted = adapter::wanted(&FuseOptions::default(), 0);
    let channel = Channel::adopt(mount_on(&dir)?, wanted)?;
    let serving = channel.serve_loops(vec![reader(), reader()], &mut |_, _| Ok(()))?;
    serving.join()?;
    Ok(())
}
