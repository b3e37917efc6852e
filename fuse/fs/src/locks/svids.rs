//! Numbers for lock owners, out of blocks that no other mount of the machine has.

use super::lock_table::Owner;
use nfsrdma_nfs3::nlm::{SVID_BLOCK, SvidBlock};
use std::collections::{HashMap, HashSet};
use std::io;

/// Which owner has which number, as long as it is in use.
#[derive(Debug, Default)]
pub(super) struct Svids {
    blocks: Vec<SvidBlock>,
    /// Number and uses.
    owners: HashMap<Owner, (u32, usize)>,
    used: HashSet<u32>,
    /// Counts through all blocks, so that a number is used again as late as possible.
    next: usize,
}

impl Svids {
    /// The number of `owner`, one use more.
    pub(super) fn take(&mut self, owner: Owner) -> io::Result<u32> {
        if let Some((svid, uses)) = self.owners.get_mut(&owner) {
            *uses += 1;
            return Ok(*svid);
        }
        let svid = self.fresh()?;
        self.used.insert(svid);
        self.owners.insert(owner, (svid, 1));
        Ok(svid)
    }

    /// One use less.
    pub(super) fn give_back(&mut self, owner: Owner) {
        let Some((svid, uses)) = self.owners.get_mut(&owner) else {
            return;
        };
        *uses -= 1;
        if *uses == 0 {
            self.used.remove(svid);
            self.owners.remove(&owner);
        }
    }

    /// A number that no owner has, which stays so for a moment only.
    pub(super) fn fresh(&mut self) -> io::Result<u32> {
        let block = SVID_BLOCK as usize;
        // Half of them are kept unused: see `next`.
        if self.used.len() * 2 >= self.blocks.len() * block {
            self.blocks.push(SvidBlock::claim()?);
        }
        loop {
            let at = self.next % (self.blocks.len() * block);
            self.next = at + 1;
            let svid = self.blocks[at / block].first() + (at % block) as u32;
            if !self.used.contains(&svid) {
                return Ok(svid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_an_owner_s_own_as_long_as_it_is_used() {
        let mut svids = Svids::default();
        let first = svids.take(Owner::Posix(1)).unwrap();
        assert_eq!(svids.take(Owner::Posix(1)).unwrap(), first);
        let flock = svids.take(Owner::Flock(1)).unwrap();
        assert_ne!(flock, first);
        svids.give_back(Owner::Posix(1));
        assert_eq!(svids.take(Owner::Posix(1)).unwrap(), first);
        svids.give_back(Owner::Posix(1));
        svids.give_back(Owner::Posix(1));
        assert_ne!(svids.take(Owner::Posix(1)).unwrap(), first);
        let many: HashSet<_> = (10..30_000)
            .map(|n| svids.take(Owner::Posix(n)).unwrap())
            .collect();
        assert_eq!(many.len(), 29_990);
        assert!(!many.contains(&flock));
    }
}
