//! Encodes the entries of a directory for the replies to READDIR and READDIRPLUS.
//!
//! The request has the size of the kernel's buffer. The kernel requests an entry that does not fit
//! again, with the position after the last one that did. Entries begin at multiples of eight bytes.

use super::out::Entry;
use zerocopy::{Immutable, IntoBytes};

const ALIGN: usize = 8;
/// The kernel does not accept longer names.
const NAME_MAX: usize = 4095;

/// What comes before the name of an entry (`fuse_dirent`).
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct EntryHead {
    fileid: u64,
    offset: u64,
    name_len: u32,
    kind: u32,
}

/// Entries of one kind.
#[derive(Debug)]
pub struct Directory {
    bytes: Vec<u8>,
    size: usize,
}

impl Directory {
    /// Entries of at most `size` bytes, which is in the request.
    pub fn new(size: u32) -> Self {
        // The kernel's buffer has only some pages: a larger size is not needed.
        let size = (size as usize).min(16 << 20);
        Directory {
            bytes: Vec::with_capacity(size.min(1 << 17)),
            size,
        }
    }

    /// Whether an entry with this name fits that has so many bytes in front of it.
    fn has_room(&self, head: usize, name: &[u8]) -> bool {
        let len = (head + name.len()).next_multiple_of(ALIGN);
        name.len() <= NAME_MAX && len <= self.size - self.bytes.len()
    }

    /// Adds an entry for READDIR: its inode number, the position after it, a mode with its type, and its name.
    /// False if it does not fit.
    #[must_use]
    pub fn add(&mut self, fileid: u64, offset: u64, mode: u32, name: &[u8]) -> bool {
        let head = EntryHead {
            fileid,
            offset,
            name_len: name.len() as u32,
            // The types of dirent(3) are the file type bits of the mode.
            kind: (mode & 0o170_000) >> 12,
        };
        let fits = self.has_room(size_of::<EntryHead>(), name);
        if fits {
            self.bytes.extend_from_slice(head.as_bytes());
            self.bytes.extend_from_slice(name);
            let len = self.bytes.len().next_multiple_of(ALIGN);
            self.bytes.resize(len, 0);
        }
        fits
    }

    /// Whether [`Directory::add_plus`] would add an entry with this name.
    #[must_use]
    pub fn fits_plus(&self, name: &[u8]) -> bool {
        self.has_room(size_of::<(Entry, EntryHead)>(), name)
    }

    /// Adds an entry for READDIRPLUS: what its name leads to, which the kernel counts as a look-up unless the node id is
    /// 0; the position after it, and its name. Inode number and type are those of the attributes. False if it does not
    /// fit.
    #[must_use]
    pub fn add_plus(&mut self, entry: &Entry, offset: u64, name: &[u8]) -> bool {
        let fits = self.fits_plus(name);
        if fits {
            self.bytes.extend_from_slice(entry.as_bytes());
            let _ = self.add(entry.attr.fileid, offset, entry.attr.mode, name);
        }
        fits
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
