//! A table: its making, and its opening by the next process.

use crate::chunk::Mapping;
use crate::head::{HEAD, Head, KINDS, MAGIC, Shared, VERSION, allocate, offset};
use crate::kinds::{Extent, Hidden, Lock, Node, Open};
use crate::region::{Damaged, Region};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, memfd_create};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The order of the kinds in a table.
const NODES: usize = 0;
const OPENS: usize = 1;
const HIDDEN: usize = 2;
const LOCKS: usize = 3;
const EXTENTS: usize = 4;
const SIZES: [u32; KINDS] = [
    size_of::<Node>() as u32,
    size_of::<Open>() as u32,
    size_of::<Hidden>() as u32,
    size_of::<Lock>() as u32,
    size_of::<Extent>() as u32,
];

/// Why a table cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error("the saved state of the mount was not made by nfsrdma")]
    NotATable,
    #[error(
        "the saved state of the mount has format {found}, and this program reads format {VERSION} only: unmount, and mount again"
    )]
    Version { found: u32 },
    #[error(
        "the saved state of the mount has records of other sizes than this program has: unmount, and mount again"
    )]
    Sizes,
    #[error("the saved state of the mount is not complete")]
    Truncated,
    #[error("the saved state of the mount is damaged")]
    Damaged,
    #[error("cannot read the saved state of the mount: {0}")]
    Io(#[from] io::Error),
}

impl From<Damaged> for Refused {
    fn from(_: Damaged) -> Self {
        Refused::Damaged
    }
}

/// The records of a mount.
#[derive(Debug)]
pub struct Table {
    shared: Arc<Shared>,
    generation: u32,
    nodes: Arc<Region<Node>>,
    opens: Arc<Region<Open>>,
    hidden: Arc<Region<Hidden>>,
    locks: Arc<Region<Lock>>,
    extents: Arc<Region<Extent>>,
}

impl Table {
    /// A table in the memory of this process only.
    pub fn anonymous() -> Self {
        let mapping = Mapping::anonymous(HEAD).expect("there is memory for a page");
        Self::made(mapping, None)
    }

    /// A table in a memfd; see [`Table::fd`].
    pub fn create() -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = match memfd_create("nfsrdma-table", flags | MemfdFlags::NOEXEC_SEAL) {
            // Linux before 6.3.
            Err(Errno::INVAL) => memfd_create("nfsrdma-table", flags),
            made => made,
        }?;
        allocate(&fd, 0, HEAD as u64)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK)?;
        let mapping = Mapping::of_file(fd.as_fd(), 0, HEAD, true)?;
        Ok(Self::made(mapping, Some(fd)))
    }

    fn made(mapping: Mapping, fd: Option<OwnedFd>) -> Self {
        let mut key = [0; 16];
        let random = getrandom::fill(&mut key);
        random.expect("the kernel has random numbers");
        let head = mapping.place::<Head>(0).as_ptr();
        // SAFETY: the mapping is as large as a head, and nobody else has it.
        unsafe {
            (*head).magic = MAGIC;
            (*head).version = VERSION;
            (*head).sizes = SIZES;
            (*head).key = key;
            (*head).fsid = AtomicU64::new(u64::MAX);
        }
        let shared = Arc::new(Shared::new(mapping, fd, 0));
        shared.head().generation.store(1, Ordering::Relaxed);
        Table {
            generation: 1,
            nodes: Arc::new(Region::new(&shared, NODES)),
            opens: Arc::new(Region::new(&shared, OPENS)),
            hidden: Arc::new(Region::new(&shared, HIDDEN)),
            locks: Arc::new(Region::new(&shared, LOCKS)),
            extents: Arc::new(Region::new(&shared, EXTENTS)),
            shared,
        }
    }

    /// The table that another process has made, and does not use any more. Its records are handed out by
    /// [`Region::restore`].
    ///
    /// Nothing is changed: the other process can go on with it as long as this one does not use it, and has not
    /// said that it does ([`Table::begin`]).
    pub fn open(fd: OwnedFd) -> Result<Self, Refused> {
        Self::opened(Self::checked(fd)?)
    }

    /// Whether this program can go on with a table, which its process still uses: of the same format.
    pub fn check(fd: OwnedFd) -> Result<(), Refused> {
        Self::checked(fd).map(drop)
    }

    fn checked(fd: OwnedFd) -> Result<Shared, Refused> {
        let size = fstat(&fd).map_err(io::Error::from)?.st_size as u64;
        if size < HEAD as u64 {
            return Err(Refused::Truncated);
        }
        let mapping = Mapping::of_file(fd.as_fd(), 0, HEAD, true)?;
        let shared = Shared::new(mapping, Some(fd), 0);
        let head = shared.head();
        if head.magic != MAGIC {
            return Err(Refused::NotATable);
        }
        if head.version != VERSION {
            let found = head.version;
            return Err(Refused::Version { found });
        }
        if head.sizes != SIZES {
            return Err(Refused::Sizes);
        }
        Ok(shared)
    }

    fn opened(mut shared: Shared) -> Result<Self, Refused> {
        let head = shared.head();
        let size = match &shared.fd {
            Some(fd) => fstat(fd).map_err(io::Error::from)?.st_size as u64,
            None => 0,
        };
        let kinds = head.chunks.iter().map(|kind| kind.load(Ordering::Acquire));
        let kinds: Vec<u8> = kinds.take_while(|&kind| kind != 0).collect();
        if size < offset(kinds.len()) {
            return Err(Refused::Truncated);
        }
        let generation = head.generation.load(Ordering::Relaxed).wrapping_add(1);
        shared.has(kinds.len());
        let shared = Arc::new(shared);
        let mut nodes = Region::new(&shared, NODES);
        let mut opens = Region::new(&shared, OPENS);
        let mut hidden = Region::new(&shared, HIDDEN);
        let mut locks = Region::new(&shared, LOCKS);
        let mut extents = Region::new(&shared, EXTENTS);
        for (chunk, kind) in kinds.into_iter().enumerate() {
            let (mapping, held) = shared.chunk(chunk)?;
            match usize::from(kind) - 1 {
                NODES => nodes.found(mapping, held)?,
                OPENS => opens.found(mapping, held)?,
                HIDDEN => hidden.found(mapping, held)?,
                LOCKS => locks.found(mapping, held)?,
                EXTENTS => extents.found(mapping, held)?,
                _ => return Err(Refused::Damaged),
            }
        }
        // The root, which is made before anything is served.
        if !nodes.has_first() {
            return Err(Refused::Truncated);
        }
        Ok(Table {
            generation,
            nodes: Arc::new(nodes),
            opens: Arc::new(opens),
            hidden: Arc::new(hidden),
            locks: Arc::new(locks),
            extents: Arc::new(extents),
            shared,
        })
    }

    /// This process uses the table from now on.
    pub fn begin(&self) {
        let generation = &self.shared.head().generation;
        generation.store(self.generation, Ordering::Relaxed);
    }

    /// How many files have data that would be lost with the process that has used the table before. To be called before
    /// [`Region::restore`].
    pub fn unsafe_files(&self) -> usize {
        let mut files = 0;
        self.nodes
            .each(|node| files += usize::from(node.unsafe_.load(Ordering::Relaxed) != 0));
        files
    }

    /// Of the files that the kernel has forgotten, by node and fileid, those of which an earlier process may have lost
    /// data. They are known until the records of nodes are restored.
    pub fn lost_and_forgotten(&self) -> Vec<(u64, u64)> {
        let is = |node: &Node| {
            let known = node.lookups.load(Ordering::Relaxed) > 0;
            !known && node.unsafe_.load(Ordering::Relaxed) != 0
        };
        let of = |node: &Node| is(node).then_some((node.nodeid, node.fileid));
        self.nodes.peek(of).into_iter().flatten().collect()
    }

    /// The memfd, for whoever keeps the table beyond the life of this process; `None` if there is none.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.shared.fd.as_ref().map(AsFd::as_fd)
    }

    /// Which process of the mount this is: 1 for the one that made the table.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// This process has taken the table over from one that was alive.
    pub fn note_upgrade(&self) {
        self.shared.head().upgrades.fetch_add(1, Ordering::Relaxed);
    }

    /// How many of the processes have taken it over from one that was alive.
    pub fn upgrades(&self) -> u32 {
        self.shared.head().upgrades.load(Ordering::Relaxed)
    }

    /// Random bytes, made with the table.
    pub fn key(&self) -> [u8; 16] {
        self.shared.head().key
    }

    /// Keeps what the kernel and the first process have agreed on.
    pub fn set_features(&self, features: [u64; 4]) {
        let words = &self.shared.head().features;
        for (word, feature) in words.iter().zip(features) {
            word.store(feature, Ordering::Relaxed);
        }
    }

    pub fn features(&self) -> [u64; 4] {
        let words = self.shared.head().features.each_ref();
        words.map(|word| word.load(Ordering::Relaxed))
    }

    /// Keeps the file system of the export's root, by which visible inode numbers go.
    pub fn set_fsid(&self, fsid: u64) {
        self.shared.head().fsid.store(fsid, Ordering::Relaxed);
    }

    /// `None`: it is not known.
    pub fn fsid(&self) -> Option<u64> {
        let fsid = self.shared.head().fsid.load(Ordering::Relaxed);
        (fsid != u64::MAX).then_some(fsid)
    }

    /// The objects that the kernel may know. The first one made is the root.
    pub fn nodes(&self) -> &Arc<Region<Node>> {
        &self.nodes
    }

    /// Open files and directories.
    pub fn opens(&self) -> &Arc<Region<Open>> {
        &self.opens
    }

    pub fn hidden(&self) -> &Arc<Region<Hidden>> {
        &self.hidden
    }
    /// What is locked at the server, or may be.
    pub fn locks(&self) -> &Arc<Region<Lock>> {
        &self.locks
    }

    /// Data that the server may not have on stable storage.
    pub fn extents(&self) -> &Arc<Region<Extent>> {
        &self.extents
    }
}
