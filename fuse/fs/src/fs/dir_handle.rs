//! An open directory, and the entries at hand that the server gave for it (`dir.rs`).

use super::clock::Nanos;
use super::error::{FsError, FsResult};
use super::inode::{Inode, Stamp};
use crate::sync::Mutex;
use crate::sync::atomic::AtomicU16;
use nfsrdma_nfs3::{Cred, DirPage, NfsError};
use nfsrdma_xdr::nfs3::{FileType, Verifier};
use std::collections::HashSet;
use std::hash::RandomState;
use std::sync::Arc;
use tokio::sync::Notify;

#[derive(Debug)]
pub struct DirHandle {
    pub(super) inode: Arc<Inode>,
    pub(super) cred: Cred,
    pub(super) place: Mutex<Place>,
    pub(super) hasher: RandomState,
    /// Notified when a page that was requested ahead has arrived.
    pub(super) arrived: Notify,
    /// See [`Inode::open_handled`].
    pub(super) drops: AtomicU16,
}

impl DirHandle {
    pub(super) fn new(inode: Arc<Inode>, cred: Cred, drops: u16) -> Self {
        DirHandle {
            inode,
            cred,
            place: Mutex::default(),
            hasher: RandomState::new(),
            arrived: Notify::new(),
            drops: AtomicU16::new(drops),
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
    /// Whether `given` has all names given. False if the first ones came from the kernel's cache.
    pub(super) complete: bool,
    /// Hashes of the names given since the beginning of the listing.
    pub(super) given: Vec<u64>,
    /// After a listing started over (NFS3ERR_BAD_COOKIE): hashes of the names to leave out.
    pub(super) skip: Option<HashSet<u64>>,
    /// How often the listing has started over since it last had a new name.
    pub(super) vain_restarts: u32,
    /// Positions at which pages began since the reader last set the position (seekdir(3)).
    pub(super) starts: HashSet<u64>,
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
}

/// The error for cookies that lead back to an earlier position: the listing would never end.
pub(super) fn going_round() -> FsError {
    NfsError::PeerMisbehaved("a directory whose positions repeat".into()).into()
}

impl Part {
    /// Whether `cookie` is the position after an entry of this part, or after all of it.
    pub(super) fn reaches(&self, cookie: u64) -> bool {
        self.next == cookie || self.entries.iter().any(|entry| entry.cookie == cookie)
    }

    /// The index at which to go on from `cookie`; an error if several positions have this cookie,
    /// which happens with servers whose cookies are short hashes.
    fn find(&self, cookie: u64) -> Option<FsResult<usize>> {
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
