//! The records of an owner's locks on a file, from which another process goes on if this one dies.
//!
//! At each moment they give the locks before a change, or those after it, if they are entered in the order in
//! which they were made: what is new is recorded before anything is freed. Only an unlock of a part of a
//! range may look as if it had not been made; whoever asked for it has had no answer then, and its range has
//! a record of its own ([`Holding::unsure`](super::holding::Holding::unsure)).

use super::range::{ByteRange, Mode, RangeSet};
use nfsrdma_record::{Lock, Record};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct Kept {
    set: RangeSet,
    /// By their first bytes.
    records: BTreeMap<u64, Record<Lock>>,
}

impl Kept {
    /// Locks a range in a mode, or unlocks it.
    pub(super) fn set(
        &mut self,
        range: ByteRange,
        mode: Option<Mode>,
        mut record: impl FnMut(ByteRange, Mode) -> Record<Lock>,
    ) {
        let before: Vec<_> = self.set.near(range).collect();
        self.set.set(range, mode);
        let after: Vec<_> = self.set.near(range).collect();
        let new = after.iter().filter(|of| !before.contains(of));
        let new: Vec<_> = new
            .map(|&(range, mode)| (range.start, record(range, mode)))
            .collect();
        for (range, _) in before.iter().filter(|of| !after.contains(of)) {
            self.records.remove(&range.start);
        }
        self.records.extend(new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nfsrdma_record::{Credential, Table};
    use nfsrdma_xdr::nfs3::FileHandle;
    use proptest::prelude::*;

    const BYTES: u64 = 20;

    type Bytes = [Option<Mode>; BYTES as usize];

    fn bytes_of(set: &RangeSet) -> Bytes {
        let mut bytes = [None; BYTES as usize];
        for (range, mode) in set.iter() {
            bytes[range.start as usize..=range.end as usize].fill(Some(mode));
        }
        bytes
    }

    /// What the next process finds now.
    fn found(table: &Table) -> Bytes {
        let fd = table.fd().unwrap().try_clone_to_owned().unwrap();
        let mut all = Table::open(fd).unwrap().locks().restore();
        all.sort_by_key(|lock| lock.number() >> 32);
        let mut set = RangeSet::default();
        for lock in all {
            let mode = [Mode::Read, Mode::Write][usize::from(lock.exclusive)];
            set.set(ByteRange::new(lock.start, lock.end).unwrap(), Some(mode));
            std::mem::forget(lock);
        }
        bytes_of(&set)
    }

    proptest! {
        #[test]
        fn whenever_the_process_dies_each_byte_is_as_before_a_change_or_after(
            steps in prop::collection::vec((0..BYTES, 0..BYTES, 0..3usize), 0..30),
        ) {
            let table = Table::create().unwrap();
            let root = nfsrdma_record::Node::new(FileHandle::new(b"r").unwrap(), 2, 1);
            let _root = table.nodes().alloc(root);
            let (mut kept, mut set) = (Kept::default(), RangeSet::default());
            for (a, b, number) in steps {
                let mode = [None, Some(Mode::Read), Some(Mode::Write)][number];
                let range = ByteRange::new(a.min(b), a.max(b)).unwrap();
                let before = bytes_of(&set);
                set.set(range, mode);
                let after = bytes_of(&set);
                let check = || {
                    let now = found(&table);
                    assert!((0..BYTES as usize).all(|at| now[at] == before[at] || now[at] == after[at]));
                };
                kept.set(range, mode, |range, mode| {
                    check();
                    let cred = Credential::new(0, 0, &[]);
                    let mut lock = Lock::new(FileHandle::new(b"f").unwrap(), cred);
                    (lock.start, lock.end) = (range.start, range.end);
                    lock.exclusive = u8::from(mode == Mode::Write);
                    let record = table.locks().alloc(lock);
                    check();
                    record
                });
                prop_assert_eq!(found(&table), after);
            }
        }
    }
}
