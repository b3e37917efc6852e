//! What was found in the table of mounts, until the table changes.
//!
//! LOOKUPs that the server refuses depend on the table, and some servers refuse many. Where there are
//! thousands of mounts, reading it takes milliseconds. So it is read again only after poll(2) has told
//! of a change (proc(5), "/proc/pid/mounts").

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::{self, File};

/// The mounts of this mount namespace, one in each line.
pub(super) const TABLE: &str = "/proc/self/mountinfo";

/// A fact that follows from the table.
#[derive(Debug, Default)]
pub(super) struct TableFact {
    /// The table, opened to hear of changes, and the fact.
    known: Mutex<Option<(File, bool)>>,
}

impl TableFact {
    /// The fact as the table is now, which `of` finds in it; `None` if it cannot be read.
    pub(super) fn get(&self, of: impl FnOnce(&[u8]) -> bool) -> Option<bool> {
        let mut known = self.known.lock();
        if let Some((table, fact)) = &*known
            && !has_changed(table)
        {
            return Some(*fact);
        }
        // Opened before it is read, so that no change in between is missed.
        let table = match known.take() {
            Some((table, _)) => table,
            None => File::open(TABLE).ok()?,
        };
        let fact = of(&fs::read(TABLE).ok()?);
        *known = Some((table, fact));
        Some(fact)
    }
}

/// Whether the table has changed since this was last asked. The kernel reports that as a priority
/// event, once.
fn has_changed(table: &File) -> bool {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut table = [PollFd::new(table, PollFlags::PRI)];
    !matches!(poll(&mut table, Some(&now)), Ok(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read_again_only_when_it_has_changed() {
        let fact = TableFact::default();
        let mut read = 0;
        for _ in 0..1000 {
            let found = fact.get(|table| {
                read += 1;
                !table.is_empty()
            });
            assert_eq!(found, Some(true));
        }
        // Others may mount something meanwhile.
        assert!((1..100).contains(&read), "it was read {read} times");
    }
}
