//! An open directory, and the entries at hand that the server gave for it (`dir.rs`).

use super::clock::Nanos;
use super::error::{FsError, FsResult};
use super::inode::{Inode, Stamp};
use crate::sync::Mutex;
use nfsrdma_nfs3::{Cred, DirPage, NfsError};
use nfsrdma_xdr::nfs3::{FileType, Verifier};
use std::collections::HashSet;
use std::hash::RandomState;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Notify;

/// The most names and positions that are remembered for all listings together. Each takes some 8 to
/// 20 bytes, a directory may have millions of names, and a user may have very many of its listings.
const MOST_REMEMBERED: usize = 4 << 20;

/// How many there are.
static REMEMBERED: AtomicUsize = AtomicUsize::new(0);

/// What one listing has in [`REMEMBERED`].
#[derive(Debug, Default)]
struct Remembered(usize);

impl Remembered {
    /// It has so many now. Returns how many all have.
    fn set(&mut self, now: usize) -> usize {
        // It wraps around where there are less than before.
        let more = now.wrapping_sub(std::mem::replace(&mut self.0, now));
        let before = REMEMBERED.fetch_add(more, Ordering::Relaxed);
        before.wrapping_add(more)
    }
}

impl Drop for Remembered {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[derive(Debug)]
pub struct DirHandle {
    pub(super) inode: Arc<Inode>,
    pub(super) cred: Cred,
    pub(super) place: Mutex<Place>,
    pub(super) hasher: RandomState,
    /// Notified when a page that was requested ahead has arrived.
    pub(super) arrived: Notify,
}

impl DirHandle {
    pub(super) fn new(inode: Arc<Inode>, cred: Cred) -> Self {
        DirHandle {
            inode,
            cred,
            place: Mutex::default(),
            hasher: RandomState::new(),
            arrived: Notify::new(),
        }
    }
}

/// A page as the server gave it, when it was requested, and the directory's epoch at that time.
pub(super) type Page = (DirPage, Stamp, u64);

/// The page after the part at hand, requested before the kernel needs it.
#[derive(Debug)]
pub(super) struct Ahead {
    pub(super) cookie: u64,
    /// The number of the request, by which its reply is recognized: the listing may have begun
    /// again since.
    pub(super) number: u64,
    /// `None` until the reply arrives. With it, the time of its arrival.
    pub(super) page: Option<(Nanos, FsResult<Page>)>,
}

#[derive(Debug, Default)]
pub(super) struct Place {
    pub(super) ahead: Option<Ahead>,
    /// How many pages were requested ahead so far.
    pub(super) asked_ahead: u64,
    /// One of them was of no use, because the directory changes while it is listed: no more are
    /// requested ahead.
    pub(super) ahead_is_vain: bool,
    pub(super) part: Option<Arc<Part>>,
    /// The cookie verifier of the pages listed through this handle.
    pub(super) verifier: Option<Verifier>,
    /// Whether `given` has all names given. False if the first ones came from the kernel's cache, or
    /// if there were too many of them.
    pub(super) complete: bool,
    /// Hashes of the names given since the beginning of the listing, if it has all of them.
    pub(super) given: Vec<u64>,
    /// After a listing started over (NFS3ERR_BAD_COOKIE): hashes of the names to leave out.
    pub(super) skip: Option<HashSet<u64>>,
    /// How often the listing has started over since it last had a new name.
    pub(super) vain_restarts: u32,
    /// Positions at which pages began since the reader last set the position (seekdir(3)), or since
    /// there were too many of them.
    pub(super) starts: HashSet<u64>,
    remembered: Remembered,
}

impl Place {
    /// Before the first entry; `asked_ahead` as in the field.
    pub(super) fn beginning(asked_ahead: u64) -> Self {
        Place {
            complete: true,
            asked_ahead,
            ..Place::default()
        }
    }

    /// The name with this hash is given.
    pub(super) fn give(&mut self, hash: u64) {
        if self.complete {
            self.given.push(hash);
        }
    }

    /// Call after each page: counts what is remembered, and forgets it if all listings together
    /// remember too much. Then the listing cannot start over (NFS3ERR_BAD_COOKIE).
    pub(super) fn limit(&mut self) {
        if self.count() > MOST_REMEMBERED {
            self.complete = false;
            self.given = Vec::new();
            self.starts = HashSet::new();
            self.count();
        }
    }

    /// Returns how many names and positions all listings together remember.
    fn count(&mut self) -> usize {
        self.remembered.set(self.given.len() + self.starts.len())
    }
}

/// Consecutive entries: a page, without the names that are left out.
#[derive(Debug)]
pub(super) struct Part {
    /// Position before the first entry.
    pub(super) start: u64,
    /// False if the listing started over, so that the server was not asked for entries after
    /// `start`.
    pub(super) asked: bool,
    pub(super) entries: Vec<Listed>,
    /// Position after the last entry, at which the next page is requested.
    pub(super) next: u64,
    pub(super) eof: bool,
    /// How many of the entries the kernel has taken, with those before them.
    pub(super) taken: AtomicUsize,
    /// When the page was requested.
    pub(super) stamp: Stamp,
    /// The directory's epoch at that time.
    pub(super) epoch: u64,
}

/// One entry. It has no inode if it is `.` or `..`, or if it could not be looked up.
#[derive(Debug)]
pub struct Listed {
    pub name: Box<[u8]>,
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
pub(super) fn going_round() -> FsError {
    NfsError::misbehaved("a directory whose positions repeat").into()
}

impl Part {
    /// Whether `cookie` is the position after an entry of this part, or after all of it.
    pub(super) fn reaches(&self, cookie: u64) -> bool {
        self.next == cookie || self.entries.iter().any(|entry| entry.cookie == cookie)
    }

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
                if places.next().is_some() || (start && self.asked) {
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
            name: Box::new(*b"n"),
            fileid: cookie,
            kind: None,
            cookie,
            inode: None,
        });
        let part = Part {
            start: 0,
            asked: true,
            entries: entries.into(),
            next: 7,
            eof: true,
            taken: AtomicUsize::new(3),
            stamp: Stamp::mark(),
            epoch: 0,
        };
        assert!(matches!(part.find(7), Some(Ok(3))));
        assert!(matches!(part.find(8), Some(Ok(2))));
        // The kernel has not taken all: it is not known from where it goes on.
        part.taken.store(1, Ordering::Relaxed);
        assert!(matches!(part.find(7), Some(Err(_))));
    }

    #[test]
    fn many_listings_of_a_large_directory_remember_little() {
        let mut places = Vec::new();
        for _ in 0..100 {
            let mut place = Place::beginning(0);
            for page in 0..1000 {
                place.starts.insert(page);
                (0..100).for_each(|name| place.give(page * 100 + name));
                place.limit();
            }
            places.push(place);
        }
        let names: usize = places.iter().map(|place| place.given.capacity()).sum();
        // A Vec has room for up to twice its length.
        assert!(names <= 2 * MOST_REMEMBERED, "{names}");
        let whole = places.iter().filter(|place| place.complete);
        assert!((20..50).contains(&whole.count()));
        for place in &places {
            assert!(place.complete || place.given.is_empty());
        }
        drop(places);
        let mut place = Place::beginning(0);
        place.give(1);
        place.limit();
        assert!(place.complete, "there is room again");
    }
}
