//! The limit of the page cache: clean blocks can be dropped, and the sum is right.

use nfsrdma_fs::cache::{Budget, Evict};
use nfsrdma_shuttle::Mutex;
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

const BLOCK: usize = 4096;
const LIMIT: usize = 4 * BLOCK;

/// The blocks of a file: offset, and whether each is in use or dirty.
struct File {
    id: u64,
    this: Weak<File>,
    budget: Arc<Budget<File>>,
    blocks: Mutex<BTreeMap<u64, bool>>,
}

impl File {
    /// Updates the budget as `FileData::with` does.
    fn with(&self, change: impl FnOnce(&mut BTreeMap<u64, bool>) -> Vec<u64>) {
        let mut blocks = self.blocks.lock();
        let before = blocks.len() * BLOCK;
        let fresh = change(&mut blocks);
        self.budget.account(before, blocks.len() * BLOCK);
        drop(blocks);
        self.budget.add(self.id, &self.this, fresh);
    }
}

impl Evict for File {
    fn evict(&self, offset: u64) -> Option<usize> {
        let mut blocks = self.blocks.lock();
        let freed = match blocks.get(&offset) {
            None => None,
            // It is reported when it is on stable storage.
            Some(true) => None,
            Some(false) => {
                blocks.remove(&offset);
                Some(BLOCK)
            }
        };
        drop(blocks);
        self.budget.account(freed.unwrap_or(0), 0);
        freed
    }
}

/// Makes all dirty blocks clean. Returns their offsets.
fn cleaned(blocks: &mut BTreeMap<u64, bool>) -> Vec<u64> {
    let dirty = blocks.iter_mut().filter(|(_, busy)| **busy);
    dirty
        .map(|(&at, busy)| {
            *busy = false;
            at
        })
        .collect()
}

/// Threads fill, dirty, clean and truncate files, while others make room.
pub fn every_clean_block_can_be_dropped() {
    let budget = Arc::new(Budget::new(LIMIT));
    let files: Vec<_> = (0..2)
        .map(|id| {
            Arc::new_cyclic(|this| File {
                id,
                this: this.clone(),
                budget: budget.clone(),
                blocks: Mutex::new(BTreeMap::new()),
            })
        })
        .collect();
    let users: Vec<_> = (0..3)
        .map(|_| {
            let (files, budget) = (files.clone(), budget.clone());
            thread::spawn(move || {
                for _ in 0..6 {
                    let mut random = thread_rng();
                    let file = &files[random.gen_range(0..2)];
                    let offset = random.gen_range(0..4) * BLOCK as u64;
                    match random.gen_range(0..5) {
                        0 | 1 => file.with(|blocks| {
                            let busy = random.gen_bool(0.3);
                            let before = blocks.insert(offset, busy);
                            let turns = !busy && before != Some(false);
                            turns.then_some(offset).into_iter().collect()
                        }),
                        2 => file.with(cleaned),
                        3 => file.with(|blocks| {
                            blocks.retain(|at, _| *at < offset);
                            Vec::new()
                        }),
                        _ => {
                            budget.make_room(2 * BLOCK);
                        }
                    }
                    // At most all blocks of both files; a sum below zero would be larger.
                    assert!(budget.used() <= 8 * BLOCK, "{} bytes", budget.used());
                }
            })
        })
        .collect();
    for user in users {
        assert!(user.join().is_ok());
    }
    let cached = || -> usize { files.iter().map(|f| f.blocks.lock().len() * BLOCK).sum() };
    assert_eq!(budget.used(), cached(), "the sum is wrong");
    for file in &files {
        file.with(cleaned);
    }
    // A block that the budget does not know would stay for ever, and writers would wait for it.
    budget.reclaim(usize::MAX);
    assert_eq!((budget.used(), cached()), (0, 0), "blocks nobody can drop");
}
