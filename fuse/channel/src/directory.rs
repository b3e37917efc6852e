//! Encodes the entries of a directory for the replies to READDIR and READDIRPLUS.
//!
//! The request has the size of the kernel's buffer. The kernel requests an entry that does not fit
//! again, with the position after the last one that did. Entries begin at multiples of eight bytes.

use super::out::{Entry, EntryBody};
use zerocopy::{Immutable, IntoBytes};

const ALIGN: usize = 8;

/// What comes before the name of an entry (`fuse_dirent`).
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct EntryHead {
    fileid: u64,
    offset: u64,
    name_len: u32,
    kind: u32,
}

/// The kernel does not accept longer names.
const NAME_MAX: usize = 4095;

#[derive(Debug)]
struct Buffer {
    bytes: Vec<u8>,
    size: usize,
}

impl Buffer {
    fn new(size: u32) -> Self {
        // The kernel's buffer has only some pages: a larger size is not needed.
        let size = (size as usize).min(16 << 20);
        Buffer {
            bytes: Vec::with_capacity(size.min(1 << 17)),
            size,
        }
    }

    /// Whether `len` more bytes fit, with their padding.
    fn fits(&self, len: usize) -> bool {
        len.next_multiple_of(ALIGN) <= self.size - self.bytes.len()
    }

    fn dirent(&mut self, fileid: u64, offset: u64, mode: u32, name: &[u8]) {
        let head = EntryHead {
            fileid,
            offset,
            name_len: name.len() as u32,
            // The types of dirent(3) are the file type bits of the mode.
            kind: (mode & 0o170_000) >> 12,
        };
        self.bytes.extend_from_slice(head.as_bytes());
        self.bytes.extend_from_slice(name);
        let len = self.bytes.len().next_multiple_of(ALIGN);
        self.bytes.resize(len, 0);
    }
}

/// Entries for READDIR.
#[derive(Debug)]
pub struct Directory(Buffer);

impl Directory {
    /// Entries of at most `size` bytes, which is in the request.
    pub fn new(size: u32) -> Self {
        Directory(Buffer::new(size))
    }

    /// Adds an entry: its inode number, the position after it, a mode with its type, and its name.
    /// False if it does not fit.
    #[must_use]
    pub fn add(&mut self, fileid: u64, offset: u64, mode: u32, name: &[u8]) -> bool {
        let fits = name.len() <= NAME_MAX && self.0.fits(24 + name.len());
        if fits {
            self.0.dirent(fileid, offset, mode, name);
        }
        fits
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0.bytes
    }
}

/// Entries for READDIRPLUS, each with the reply to a LOOKUP. The kernel counts each as a look-up,
/// except those with node id 0.
#[derive(Debug)]
pub struct DirectoryPlus(Buffer);

impl DirectoryPlus {
    /// Entries of at most `size` bytes, which is in the request.
    pub fn new(size: u32) -> Self {
        DirectoryPlus(Buffer::new(size))
    }

    /// Whether an entry with this name fits.
    #[must_use]
    pub fn fits(&self, name: &[u8]) -> bool {
        name.len() <= NAME_MAX && self.0.fits(152 + name.len())
    }

    /// Adds an entry: what its name leads to, the position after it, and its name. Inode number and
    /// type are those of the attributes. False if it does not fit.
    #[must_use]
    pub fn add(&mut self, entry: &Entry, offset: u64, name: &[u8]) -> bool {
        let fits = self.fits(name);
        if fits {
            let body = EntryBody::from(entry);
            self.0.bytes.extend_from_slice(body.as_bytes());
            let attr = &entry.attr;
            self.0.dirent(attr.fileid, offset, attr.mode, name);
        }
        fits
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0.bytes
    }
}
