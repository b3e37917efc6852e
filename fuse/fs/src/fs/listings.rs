//! The names that listings have shown, of objects that the kernel was not given.
//!
//! A program that goes through a directory (du, tar, `rm -r`) looks up each name that it was given,
//! while it has the directory open. Mostly the kernel got only the names; then these look-ups are
//! answered from what the listing has shown. So a listed name is kept until nobody has the directory
//! open, or it is in the cache of names: because the kernel was given the object, or because
//! something newer is known of the name. The names of a directory belong to one epoch of its contents.
//!
//! The kernel keeps the names, too, and a program may list the directory again without a request. A
//! few names are therefore kept longer than the directory is open. Where they are not, the kernel is
//! to list the directory from the server.

use super::inode::Inode;
use std::collections::HashMap;
use std::sync::Arc;

/// How many names are kept of directories that nobody has open.
const KEPT: usize = 1 << 13;

pub(super) type Nodes = HashMap<Box<[u8]>, Arc<Inode>>;

/// The names of one directory.
#[derive(Debug, Default)]
struct Listing {
    /// How often the directory is open.
    open: u32,
    epoch: u64,
    names: Nodes,
}

#[derive(Debug)]
pub(super) struct Listings {
    /// By node.
    dirs: HashMap<u64, Listing>,
    /// The names of all, and those of directories that nobody has open.
    count: usize,
    unused: usize,
    most: usize,
    /// Names that are not kept any more. To free very many takes long, so that is done apart.
    dropped: Vec<Nodes>,
}

impl Listings {
    /// For at most so many names.
    pub(super) fn new(most: usize) -> Self {
        Listings {
            dirs: HashMap::new(),
            count: 0,
            unused: 0,
            most,
            dropped: Vec::new(),
        }
    }

    pub(super) fn opened(&mut self, dir: u64) {
        let listing = self.dirs.entry(dir).or_default();
        if listing.open == 0 {
            self.unused -= listing.names.len();
        }
        listing.open += 1;
    }

    /// Returns the directories whose names are not kept any more.
    pub(super) fn closed(&mut self, dir: u64) -> Vec<u64> {
        let Some(listing) = self.dirs.get_mut(&dir) else {
            return Vec::new();
        };
        listing.open = listing.open.saturating_sub(1);
        if listing.open > 0 {
            return Vec::new();
        }
        self.unused += listing.names.len();
        if listing.names.is_empty() {
            self.dirs.remove(&dir);
        }
        if self.unused <= KEPT {
            return Vec::new();
        }
        self.count -= std::mem::take(&mut self.unused);
        let unused = self.dirs.extract_if(|_, listing| listing.open == 0);
        let (dirs, names): (_, Vec<_>) = unused.map(|(dir, of)| (dir, of.names)).unzip();
        self.dropped.extend(names);
        dirs
    }

    /// The names that are to be freed.
    pub(super) fn take_dropped(&mut self) -> Vec<Nodes> {
        std::mem::take(&mut self.dropped)
    }

    /// A listing has shown a name. Returns what is not needed any more.
    pub(super) fn put(
        &mut self,
        dir: u64,
        epoch: u64,
        name: &[u8],
        inode: &Arc<Inode>,
    ) -> (Nodes, Option<Arc<Inode>>) {
        let Some(listing) = self.dirs.get_mut(&dir).filter(|of| of.open > 0) else {
            return Default::default();
        };
        let outdated = match std::mem::replace(&mut listing.epoch, epoch) == epoch {
            true => Nodes::new(),
            false => std::mem::take(&mut listing.names),
        };
        self.count -= outdated.len();
        let old = match self.count < self.most {
            true => {
                self.count += 1;
                listing.names.insert(name.into(), inode.clone())
            }
            false => listing.names.remove(name),
        };
        self.count -= usize::from(old.is_some());
        (outdated, old)
    }

    /// What a name in a directory that is open leads to.
    pub(super) fn get(&self, dir: u64, epoch: u64, name: &[u8]) -> Option<Arc<Inode>> {
        let listing = self.dirs.get(&dir)?;
        let holds = listing.open > 0 && listing.epoch == epoch;
        listing.names.get(name).filter(|_| holds).cloned()
    }

    /// Something newer is known of the name. Returns what it led to.
    pub(super) fn take(&mut self, dir: u64, name: &[u8]) -> Option<Arc<Inode>> {
        let listing = self.dirs.get_mut(&dir)?;
        let old = listing.names.remove(name)?;
        self.count -= 1;
        if listing.open == 0 {
            self.unused -= 1;
            if listing.names.is_empty() {
                self.dirs.remove(&dir);
            }
        }
        Some(old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nfsrdma_xdr::nfs3::{FileHandle, FileType};

    fn inode(number: u64) -> Arc<Inode> {
        let handle = FileHandle::new(&number.to_ne_bytes()).unwrap();
        Arc::new(Inode::new(number, handle, FileType::Regular, number))
    }

    #[test]
    fn names_are_kept_while_their_directory_is_open_and_a_few_longer() {
        let mut listings = Listings::new(usize::MAX);
        let (one, few, many) = (inode(1), KEPT / 2, KEPT + 1);
        for (dir, count) in [(7, few), (8, many)] {
            listings.opened(dir);
            for n in 0..count {
                let (outdated, old) = listings.put(dir, 3, &n.to_ne_bytes(), &one);
                assert!(outdated.is_empty() && old.is_none());
            }
        }
        assert!(listings.get(7, 3, &1usize.to_ne_bytes()).is_some());
        assert!(listings.get(7, 4, &1usize.to_ne_bytes()).is_none());
        assert!(listings.closed(7).is_empty());
        assert!(listings.get(7, 3, &1usize.to_ne_bytes()).is_none());
        listings.opened(7);
        assert!(listings.get(7, 3, &1usize.to_ne_bytes()).is_some());
        assert!(listings.closed(7).is_empty());
        // Two have this one open.
        listings.opened(8);
        assert!(listings.closed(8).is_empty());
        assert!(listings.take(8, &1usize.to_ne_bytes()).is_some());
        assert!(listings.take(8, &1usize.to_ne_bytes()).is_none());
        let mut dirs = listings.closed(8);
        dirs.sort();
        assert_eq!(dirs, [7, 8]);
        let dropped = listings.take_dropped();
        let names: usize = dropped.iter().map(|names| names.len()).sum();
        assert_eq!(names, few + many - 1);
        assert!(listings.take_dropped().is_empty());
        assert_eq!((listings.count, listings.unused), (0, 0));
        assert!(listings.dirs.is_empty());
        // Nobody has it open any more, so the reply came too late.
        listings.put(8, 3, b"late", &one);
        assert_eq!(listings.count, 0);
    }

    #[test]
    fn names_of_another_epoch_go_and_there_is_room_for_so_many() {
        let mut listings = Listings::new(10);
        let one = inode(1);
        listings.opened(7);
        for n in 0..20u8 {
            listings.put(7, 3, &[n], &one);
        }
        assert!(listings.get(7, 3, &[9]).is_some() && listings.get(7, 3, &[10]).is_none());
        // Where there is no room for what is newer, what was known goes.
        assert!(listings.put(7, 3, &[9], &one).1.is_some());
        assert!(listings.get(7, 3, &[9]).is_none());
        assert_eq!(listings.count, 9);
        assert_eq!(listings.put(7, 4, b"new", &one).0.len(), 9);
        assert_eq!(listings.count, 1);
        assert!(listings.closed(7).is_empty());
        assert!(listings.take(7, b"new").is_some());
        assert!(listings.dirs.is_empty() && listings.unused == 0);
    }
}
