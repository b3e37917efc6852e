//! Numbers (svid) for lock owners, from blocks that no other mount of the machine uses.

use super::lock_table::Owner;
use nfsrdma_nfs3::nlm::{SVID_BLOCK, SvidBlock};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;

/// Has the name of a block kept beyond the life of the process.
pub struct KeepBlock(pub Box<dyn Fn(&SvidBlock) + Send + Sync>);

impl Default for KeepBlock {
    fn default() -> Self {
        KeepBlock(Box::new(|_| {}))
    }
}

impl fmt::Debug for KeepBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeepBlock")
    }
}

/// The numbers of the owners that are in use.
#[derive(Debug, Default)]
pub(super) struct Svids {
    blocks: Vec<SvidBlock>,
    /// The number of each owner, and how often it is in use.
    owners: HashMap<Owner, (u32, usize)>,
    used: HashSet<u32>,
    /// The next number to try, over all blocks, so that a number is used again as late as possible.
    next: usize,
    keep: KeepBlock,
}

impl Svids {
    /// `blocks`: those of a process that has died.
    pub(super) fn new(blocks: Vec<SvidBlock>, keep: KeepBlock) -> Self {
        Svids {
            blocks,
            keep,
            ..Svids::default()
        }
    }

    /// Counts one more use of the number that `owner` had in a process that has died.
    pub(super) fn restore(&mut self, owner: Owner, svid: u32) {
        self.owners.entry(owner).or_insert((svid, 0)).1 += 1;
        self.used.insert(svid);
    }

    /// The number of `owner`; counts one more use.
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

    /// Counts one use less; the number is free after the last.
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

    /// A number that no owner has.
    fn fresh(&mut self) -> io::Result<u32> {
        let block = SVID_BLOCK as usize;
        // At least half of the numbers stay unused: see `next`.
        if self.used.len() * 2 >= self.blocks.len() * block {
            let block = SvidBlock::claim()?;
            (self.keep.0)(&block);
            self.blocks.push(block);
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
