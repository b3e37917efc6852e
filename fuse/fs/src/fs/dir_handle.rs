//! An open directory, and the entries at hand that the server gave for it (`dir.rs`).

use super::clock::Nanos;
use super::error::{FsError, FsResult};
use super::inode::{Inode, Stamp};
use crate::sync::Mutex;
use nfsrdma_nfs3::{Cred, EntryName, NfsError};
use nfsrdma_record::{Open, Record};
use nfsrdma_xdr::nfs3::{FileType, Verifier};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::oneshot;

#[derive(Debug)]
pub struct DirHandle {
    pub(super) inode: Arc<Inode>,
    pub(super) cred: Cred,
    pub(super) place: Mutex<Place>,
    /// Freed with the last reference.
    record: Record<Open>,
}

impl DirHandle {
    pub(super) fn new(inode: Arc<Inode>, cred: Cred, record: Record<Open>) -> Self {
        DirHandle {
            inode,
            cred,
            place: Mutex::default(),
            record,
        }
    }

    /// The number by which the kernel names it.
    pub(super) fn handle(&self) -> u64 {
        self.record.number()
    }

    /// The number of the request that opened it.
    pub(super) fn request(&self) -> u64 {
        self.record.unique
    }
}

/// Where a listing is.
#[derive(Debug, Default)]
pub(super) struct Place {
    /// The page after the part at hand, requested before the kernel needs it: its position, and where
    /// it arrives.
    pub(super) ahead: Option<(u64, oneshot::Receiver<FsResult<Part>>)>,
    /// One of them was of no use, because the directory changes while it is listed: no more are
    /// requested ahead.
    pub(super) ahead_is_vain: bool,
    pub(super) part: Option<Arc<Part>>,
    /// The cookie verifier of the pages listed through this handle.
    pub(super) verifier: Option<Verifier>,
    /// How many pages were read since the reader last set the position (seekdir(3)).
    pages: u64,
    /// The end of the last of them whose number is a power of two.
    mark: Option<u64>,
}

impl Place {
    /// The reader sets the position.
    pub(super) fn sought(&mut self) {
        (self.pages, self.mark) = (0, None);
    }

    /// A page was read, and the next one begins at `next`. Fails if the listing goes round in a loop
    /// of pages; it passes the mark as soon as the loop is not longer than the way before the mark.
    pub(super) fn goes_on(&mut self, next: u64) -> FsResult<()> {
        if self.mark == Some(next) {
            return Err(going_round());
        }
        self.pages += 1;
        if self.pages.is_power_of_two() {
            self.mark = Some(next);
        }
        Ok(())
    }
}

/// Consecutive entries: a page.
#[derive(Debug)]
pub(super) struct Part {
    /// Position before the first entry.
    pub(super) start: u64,
    pub(super) entries: Vec<Listed>,
    /// Position after the last entry, at which the next page is requested.
    pub(super) next: u64,
    pub(super) eof: bool,
    /// How many of the entries the kernel has taken, with those before them.
    pub(super) taken: AtomicUsize,
    /// When the page was requested.
    pub(super) asked: Nanos,
    /// The same in the order of events.
    pub(super) stamp: Stamp,
    /// The directory's epoch at that time.
    pub(super) epoch: u64,
}

/// A directory that somebody has listed and closed, and its entries, if one page has them all.
#[derive(Debug)]
pub(super) struct Closed {
    pub(super) inode: Arc<Inode>,
    pub(super) cred: Cred,
    pub(super) whole: Arc<Part>,
}

/// One entry. It has no inode if it is `.` or `..`, or if it could not be looked up.
#[derive(Debug)]
pub struct Listed {
    pub name: EntryName,
    pub fileid: u64,
    /// `None` if the type is not known.
    pub kind: Option<FileType>,
    /// Position after this entry.
    pub cookie: u64,
    pub(super) inode: Option<Arc<Inode>>,
}

/// Entries from a position on.
#[derive(Debug)]
pub struct Listing {
    pub(super) dir: Arc<Inode>,
    pub(super) part: Arc<Part>,
    pub(super) from: usize,
}

impl Listing {
    pub fn entries(&self) -> &[Listed] {
        &self.part.entries[self.from..]
    }

    /// The kernel took so many of the entries.
    pub fn taken(&self, count: usize) {
        self.part.taken.store(self.from + count, Ordering::Relaxed);
    }
}

/// The error for cookies that lead back to an earlier position: the listing would never end.
fn going_round() -> FsError {
    NfsError::misbehaved("a directory whose positions repeat").into()
}

impl Part {
    /// The index at which to go on from `cookie`; an error if several positions have this cookie,
    /// which happens with servers whose cookies are short hashes.
    fn find(&self, cookie: u64) -> Option<FsResult<usize>> {
        // After the last entry, the end of the directory is the end: there is nothing to read from
        // an earlier position with the same cookie, as of a hard link where cookies are fileids.
        let taken = self.taken.load(Ordering::Relaxed);
        if self.eof
            && taken == self.entries.len()
            && self
                .entries
                .last()
                .is_some_and(|entry| entry.cookie == cookie)
        {
            return Some(Ok(taken));
        }
        let mut places = (1..)
            .zip(&self.entries)
            .filter(|(_, entry)| entry.cookie == cookie)
            .map(|(place, _)| place);
        Some(match (places.next(), self.start == cookie) {
            (Some(place), start) => {
                if places.next().is_some() || start {
                    Err(going_round())
                } else {
                    Ok(place)
                }
            }
            (None, true) => Ok(0),
            (None, false) => return None,
        })
    }
}

/// Entries from position `offset` on, if they are in the part at hand.
pub(super) fn listing(dir: &DirHandle, offset: u64) -> Option<FsResult<Listing>> {
    let part = dir.place.lock().part.clone()?;
    let from = match part.find(offset)? {
        Ok(from) => from,
        Err(error) => return Some(Err(error)),
    };
    (from < part.entries.len() || part.eof).then(|| {
        Ok(Listing {
            dir: dir.inode.clone(),
            part,
            from,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_the_end_though_its_cookie_was_there_before() {
        let entries = [7, 8, 7].map(|cookie| Listed {
            name: EntryName::from_slice(b"n"),
            fileid: cookie,
            kind: None,
            cookie,
            inode: None,
        });
        let part = Part {
            start: 0,
            entries: entries.into(),
            next: 7,
            eof: true,
            taken: AtomicUsize::new(3),
            asked: 0,
            stamp: Stamp::mark(),
            epoch: 0,
        };
        assert!(matches!(part.find(7), Some(Ok(3))));
        assert!(matches!(part.find(8), Some(Ok(2))));
        // The kernel has not taken all: it is not known from where it goes on.
        part.taken.store(1, Ordering::Relaxed);
        assert!(matches!(part.find(7), Some(Err(_))));
    }
}
