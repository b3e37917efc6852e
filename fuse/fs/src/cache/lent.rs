//! Blocks that the kernel's page cache has as well ("lent" blocks).
//!
//! Data that was read for a program stays in the kernel's page cache, until this client writes to
//! the file, which makes the kernel drop its pages. Meanwhile a second copy here is of little use,
//! takes memory, and would evict blocks of which there is no other copy. So lent blocks may take
//! only a part of the budget; beyond it the oldest are dropped first.

use crate::sync::Mutex;
use std::collections::VecDeque;
use std::sync::Weak;

/// While few blocks are cached, entries, whose blocks may be gone, may add up to this many times
/// the limit.
const SLACK: usize = 4;

/// The lent blocks of all files, oldest first.
#[derive(Debug)]
pub struct Lent<T> {
    limit: usize,
    queue: Mutex<Queue<T>>,
}

#[derive(Debug)]
struct Queue<T> {
    blocks: VecDeque<(Weak<T>, u64, u32)>,
    bytes: usize,
}

impl<T> Lent<T> {
    /// Lent blocks may take `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Lent {
            limit,
            queue: Mutex::new(Queue {
                blocks: VecDeque::new(),
                bytes: 0,
            }),
        }
    }

    /// The block of `owner` at `offset`, of `len` bytes, was read for a program.
    pub fn add(&self, owner: Weak<T>, offset: u64, len: u32) {
        let mut queue = self.queue.lock();
        queue.blocks.push_back((owner, offset, len));
        queue.bytes += len as usize;
    }

    /// The next block to drop, if there are too many. `used`: the bytes of all cached blocks. If
    /// these are within the limit, only surplus entries are removed, whose blocks may be gone.
    pub fn next(&self, used: usize) -> Option<(Weak<T>, u64)> {
        let mut queue = self.queue.lock();
        let full = used > self.limit;
        loop {
            let most = match full {
                true => self.limit,
                false => self.limit.saturating_mul(SLACK),
            };
            if queue.bytes <= most {
                return None;
            }
            let (owner, offset, len) = queue.blocks.pop_front()?;
            queue.bytes -= len as usize;
            if full {
                return Some((owner, offset));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn the_oldest_are_let_go_when_there_are_too_many() {
        let lent = Lent::new(100);
        let owner = Arc::new(());
        for offset in 0..3 {
            lent.add(Arc::downgrade(&owner), offset, 50);
        }
        assert_eq!(lent.next(150).unwrap().1, 0);
        assert!(lent.next(150).is_none(), "they fit");
    }

    #[test]
    fn nothing_is_let_go_while_little_is_used_and_the_list_stays_short() {
        let lent = Lent::new(100);
        let owner = Arc::new(());
        for offset in 0..1000 {
            lent.add(Arc::downgrade(&owner), offset, 50);
            assert!(lent.next(100).is_none());
        }
        assert!(lent.queue.lock().blocks.len() <= 8);
        assert_eq!(lent.next(101).unwrap().1, 992);
    }
}
