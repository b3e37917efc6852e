//! READDIR and READDIRPLUS (RFC 1813 sections 3.3.16 and 3.3.17).
//!
//! A cookie is the file system's own position after an entry (ext4: a hash of the name). So it
//! stays valid while others add and remove names, in directories of any size, and the verifier
//! never changes. It only distinguishes these cookies from other kinds.

use super::export::open_component;
use super::{FileSystem, Identity, Inode, Result, status};
use nfsrdma_xdr::codec::roundup;
use nfsrdma_xdr::nfs3::{
    Attributes, DirList, Entry, EntryPlus, FHSIZE, FileHandle, Name, ReaddirArgs, ReaddirRes,
    ReaddirplusArgs, ReaddirplusRes, Reply, Status, Verifier,
};
use rustix::fs::{OFlags, RawDir, SeekFrom};
use std::mem::MaybeUninit;

/// READDIR's preferred size, in bytes.
pub(super) const DTPREF: u32 = 65536;
/// The verifier for "cookies are positions of this file system", version 1.
const COOKIES: Verifier = Verifier(*b"position");
/// Most bytes of one reply.
const REPLY_MAX: u32 = 1 << 20;
/// Size of the attributes, verifier, end of entries, and eof.
const FRAME: usize = 4 + 84 + 8 + 4 + 4;
/// Size of "another entry", fileid, name length, and cookie.
const ENTRY: usize = 4 + 8 + 4 + 8;
/// Most that READDIRPLUS adds: attributes and a handle.
const PLUS: usize = 4 + 84 + 4 + 4 + FHSIZE;

/// The size of a kernel entry with a short name, in bytes.
const DIRENT: usize = 32;
/// Least and most bytes of entries asked of the kernel at a time. The longest name fits.
const NAMES_MIN: usize = 2048;
const NAMES_MAX: usize = 32 * 1024;

/// An entry as it was read.
#[derive(Debug)]
struct Found {
    fileid: u64,
    name: Vec<u8>,
    cookie: u64,
}

/// A listing that owns the names, which are borrowed for encoding.
#[derive(Debug)]
pub struct Listing<E> {
    dir: Option<Attributes>,
    entries: Vec<(Found, E)>,
    eof: bool,
}

impl<E> Listing<E> {
    fn list<'a, T>(&'a self, entry: impl Fn(&'a Found, &'a E) -> T) -> DirList<T> {
        DirList {
            dir: self.dir,
            verifier: COOKIES,
            entries: self.entries.iter().map(|(f, e)| entry(f, e)).collect(),
            eof: self.eof,
        }
    }
}

/// The result of READDIR.
pub type Names = Reply<Listing<()>, Option<Attributes>>;
/// The result of READDIRPLUS.
pub type Objects = Reply<Listing<(Option<Attributes>, Option<FileHandle>)>, Option<Attributes>>;

/// The results of READDIR for encoding, which borrow the names.
pub fn names(found: &Names) -> ReaddirRes<'_> {
    match found {
        Reply::Ok(listing) => Reply::Ok(listing.list(|f, ()| Entry {
            fileid: f.fileid,
            name: Name(&f.name),
            cookie: f.cookie,
        })),
        Reply::Fail(status, dir) => Reply::Fail(*status, *dir),
    }
}

/// The results of READDIRPLUS for encoding, which borrow the names.
pub fn objects(found: &Objects) -> ReaddirplusRes<'_> {
    match found {
        Reply::Ok(listing) => Reply::Ok(listing.list(|f, &(attributes, handle)| EntryPlus {
            fileid: f.fileid,
            name: Name(&f.name),
            cookie: f.cookie,
            attributes,
            handle,
        })),
        Reply::Fail(status, dir) => Reply::Fail(*status, *dir),
    }
}

impl FileSystem {
    pub fn readdir(&self, who: &Identity, args: &ReaddirArgs) -> Names {
        let mut left = room(args.count);
        let names = left;
        self.list(
            who,
            &args.dir,
            args.cookie,
            args.verifier,
            names,
            |_, found| {
                let size = ENTRY + roundup(found.name.len());
                left = left.checked_sub(size)?;
                Some(())
            },
        )
    }

    pub fn readdirplus(&self, who: &Identity, args: &ReaddirplusArgs) -> Objects {
        let mut left = room(args.maxcount);
        let mut names_left = args.dircount.min(REPLY_MAX) as usize;
        let mut first = true;
        // Entries that do not fit are read again for the next call. If this asks for too few, the
        // kernel is called twice.
        let names = (left / (ENTRY + PLUS + 8) + 2) * DIRENT;
        self.list(
            who,
            &args.dir,
            args.cookie,
            args.verifier,
            names,
            |dir, found| {
                let size = ENTRY + roundup(found.name.len());
                // "dircount" counts fileids, names and cookies. It is a hint: one entry is returned
                // however small it is, so that a listing makes progress.
                names_left = match names_left.checked_sub(size) {
                    Some(left) => left,
                    None if first => 0,
                    None => return None,
                };
                left = left.checked_sub(size + PLUS)?;
                first = false;
                Some(self.entry(who, dir, &found.name))
            },
        )
    }

    /// Attributes and handle of an entry, or neither: `None` if the name is gone or is a mount
    /// point.
    fn entry(
        &self,
        who: &Identity,
        dir: &Inode,
        name: &[u8],
    ) -> (Option<Attributes>, Option<FileHandle>) {
        let inode = match name {
            b".." => self.parent(dir),
            b"." => self.resolve(&dir.handle),
            name => return self.entry_below(who, dir, name).unwrap_or_default(),
        };
        match inode.and_then(|i| Ok((self.attributes(&i)?, i.handle))) {
            Ok((attributes, handle)) => (Some(attributes), Some(handle)),
            Err(_) => (None, None),
        }
    }

    /// Like [`FileSystem::child`], but does not fill the cache, because a large directory would
    /// evict everything else.
    fn entry_below(
        &self,
        who: &Identity,
        dir: &Inode,
        name: &[u8],
    ) -> Result<(Option<Attributes>, Option<FileHandle>)> {
        // Looking up ".." may have used the server's identity.
        self.assume(who)?;
        let fd = open_component(dir.fd(), name).map_err(status::of)?;
        let (inode, stat) = self.identify(dir.export, fd, Some((dir, name)))?;
        Ok((Some(self.attributes_at(&inode, &stat)?), Some(inode.handle)))
    }

    /// Reads entries from `cookie` on until `take` returns `None`. Reads roughly as many as the
    /// kernel puts into `names` bytes.
    fn list<E>(
        &self,
        who: &Identity,
        handle: &FileHandle,
        cookie: u64,
        verifier: Verifier,
        names: usize,
        take: impl FnMut(&Inode, &Found) -> Option<E>,
    ) -> Reply<Listing<E>, Option<Attributes>> {
        let dir = match self.resolve(handle) {
            Ok(dir) => dir,
            Err(status) => return Reply::Fail(status, None),
        };
        match self.read_entries(who, &dir, cookie, verifier, names, take) {
            Ok((entries, eof)) => Reply::Ok(Listing {
                dir: self.post(&dir),
                entries,
                eof,
            }),
            Err(status) => Reply::Fail(status, self.post(&dir)),
        }
    }

    fn read_entries<E>(
        &self,
        who: &Identity,
        dir: &Inode,
        cookie: u64,
        verifier: Verifier,
        names: usize,
        mut take: impl FnMut(&Inode, &Found) -> Option<E>,
    ) -> Result<(Vec<(Found, E)>, bool)> {
        if !dir.is_directory() {
            return Err(Status::NotDir);
        }
        if cookie != 0 && verifier != COOKIES {
            return Err(Status::BadCookie);
        }
        self.assume(who)?;
        let fd = dir.open(OFlags::RDONLY | OFlags::DIRECTORY)?;
        if cookie != 0 {
            i64::try_from(cookie).map_err(|_| Status::BadCookie)?;
            rustix::fs::seek(&fd, SeekFrom::Start(cookie)).map_err(|_| Status::BadCookie)?;
        }
        let root = self.export(dir).is_root(dir);
        let mut buffer = [MaybeUninit::uninit(); NAMES_MAX];
        let buffer = &mut buffer[..names.clamp(NAMES_MIN, NAMES_MAX)];
        let mut raw = RawDir::new(fd, buffer);
        let mut entries = Vec::new();
        while let Some(entry) = raw.next() {
            let entry = entry.map_err(status::of)?;
            let name = entry.file_name().to_bytes();
            // Clients must not see the directory above the root.
            let (shown, number) = match name {
                b".." if root => (&b"."[..], dir.key().1),
                _ => (name, entry.ino()),
            };
            let found = Found {
                fileid: self.variants.fileid_of_entry(
                    self.export(dir),
                    dir,
                    shown,
                    entry.file_type(),
                    number,
                ),
                name: name.to_vec(),
                cookie: entry.next_entry_cookie(),
            };
            match take(dir, &found) {
                Some(more) => entries.push((found, more)),
                // An empty list without eof would make clients loop for ever.
                None if entries.is_empty() => return Err(Status::TooSmall),
                None => return Ok((entries, false)),
            }
        }
        Ok((entries, true))
    }
}

/// The bytes that are left for entries in results of at most `count`.
fn room(count: u32) -> usize {
    (count.min(REPLY_MAX) as usize).saturating_sub(FRAME)
}
