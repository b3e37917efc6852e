//! Blocks that the kernel has, too.
//!
//! What was read for a program stays in the kernel's page cache. Until this client writes to
//! the file, which makes the kernel drop its pages, a second copy here is of little use; it
//! would push out what nobody else has, and fill ever more memory. So such blocks may take a
//! part of the budget only, oldest out first.

use crate::sync::Mutex;
use std::collections::VecDeque;
use std::sync::Weak;

/// Entries of blocks that are gone may outnumber the others by so much.
const SLACK: usize = 4;

/// Blocks of all files that were read for programs, oldest first.
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
    /// At most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Lent {
            limit,
            queue: Mutex::new(Queue {
                blocks: VecDeque::new(),
                bytes: 0,
            }),
        }
    }

    /// The block of `owner` at `offset` was read.
    pub fn add(&self, owner: Weak<T>, offset: u64, len: u32) {
        let mut queue = self.queue.lock();
        queue.blocks.push_back((owner, offset, len));
        queue.bytes += len as usize;
    }

    /// The next block to let go, if there are too many. `used`: bytes of all blocks, those of
    /// others included; while these are few, what is here may be gone already.
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
