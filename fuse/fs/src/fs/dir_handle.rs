//! An open directory, and the entries that the server gave through it.

use super::error::{FsError, FsResult};
use super::inode::{Inode, Stamp};
use crate::sync::Mutex;
use nfsrdma_nfs3::{Cred, DirPage, NfsError};
use nfsrdma_xdr::nfs3::{FileType, Verifier};
use std::collections::HashSet;
use std::hash::RandomState;
use std::sync::Arc;
use tokio::sync::Notify;

/// An open directory.
#[derive(Debug)]
pub struct DirHandle {
    pub(super) inode: Arc<Inode>,
    pub(super) cred: Cred,
    pub(super) place: Mutex<Place>,
    pub(super) hasher: RandomState,
    /// A page asked for ahead is there.
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

/// A page as the server gave it, when it was asked for, and the directory's epoch then.
pub(super) type Page = (DirPage, Stamp, u64);

/// The page behind the part at hand, asked for before the kernel wants it.
#[derive(Debug)]
pub(super) struct Ahead {
    pub(super) cookie: u64,
    /// Which asking of this handle: the listing may have begun again since.
    pub(super) number: u64,
    /// `None`: on its way.
    pub(super) page: Option<FsResult<Page>>,
}

#[derive(Debug, Default)]
pub(super) struct Place {
    pub(super) ahead: Option<Ahead>,
    /// Pages asked for ahead so far.
    pub(super) asked_ahead: u64,
    /// One of them was of no use: the directory is changed while it is listed.
    pub(super) ahead_is_vain: bool,
    pub(super) part: Option<Arc<Part>>,
    /// Of the pages listed through this handle.
    pub(super) verifier: Option<Verifier>,
    /// Whether `given` holds every name given: not if the kernel's cache gave the first ones.
    pub(super) complete: bool,
    /// Hashes of the names given since the beginning.
    pub(super) given: Vec<u64>,
    /// After the server lost its place: names not to give again.
    pub(super) skip: Option<HashSet<u64>>,
    /// Positions where pages began, since the reader last went to a place of its own choice.
    pub(super) starts: HashSet<u64>,
}

/// Consecutive entries.
#[derive(Debug)]
pub(super) struct Part {
    /// Position before the first entry.
    pub(super) start: u64,
    /// Whether that is what the server was asked for: not after it lost its place.
    pub(super) asked: bool,
    pub(super) entries: Vec<Listed>,
    /// Position after the last entry, for the server.
    pub(super) next: u64,
    pub(super) eof: bool,
}

/// One entry, with its inode (not for `.` and `..`, and for what could not be looked up).
#[derive(Debug)]
pub struct Listed {
    pub name: Box<[u8]>,
    pub fileid: u64,
    /// `None`: not known.
    pub kind: Option<FileType>,
    /// Position after it.
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

/// The server's positions lead back to where the reader was: a listing would never end.
pub(super) fn going_round() -> FsError {
    NfsError::PeerMisbehaved("a directory whose positions repeat".into()).into()
}

impl Part {
    /// Whether a reader who has taken some of this part, or all, goes on from `cookie`.
    pub(super) fn reaches(&self, cookie: u64) -> bool {
        self.next == cookie || self.entries.iter().any(|entry| entry.cookie == cookie)
    }

    /// Where to go on from `cookie`; an error if that may be more than one place. (Servers
    /// that make cookies of short hashes do that by accident: only who has to go on from such
    /// a one is troubled.)
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

/// Entries from position `offset` on, if they are at hand.
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
