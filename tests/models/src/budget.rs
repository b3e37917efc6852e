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
    this: Weak<File>,
    budget: Arc<Budget<File>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    blocks: BTreeMap<u64, bool>,
    listed: Option<u64>,
}

impl File {
    /// Updates the budget as `FileData::with` does.
    fn with(&self, change: impl FnOnce(&mut BTreeMap<u64, bool>)) {
        let mut state = self.state.lock();
        let before = state.blocks.len() * BLOCK;
        change(&mut state.blocks);
        self.budget.account(before, state.blocks.len() * BLOCK);
        let has_clean = state.blocks.values().any(|busy| !busy);
        match (has_clean, state.listed) {
            (true, None) => state.listed = Some(self.budget.add(&self.this)),
            (false, Some(number)) => {
                state.listed = None;
                self.budget.forget(number);
            }
            _ => {}
        }
    }
}

impl Evict for File {
    fn evict(&self) {
        self.with(|blocks| blocks.retain(|_, busy| *busy));
    }
}

/// Makes all dirty blocks clean.
fn cleaned(blocks: &mut BTreeMap<u64, bool>) {
    blocks.values_mut().for_each(|busy| *busy = false);
}

/// Threads fill, dirty, clean and truncate files, while others make room.
pub fn every_clean_block_can_be_dropped() {
    let budget = Arc::new(Budget::new(LIMIT));
    let files: Vec<_> = (0..2)
        .map(|_| {
            Arc::new_cyclic(|this| File {
                this: this.clone(),
                budget: budget.clone(),
                state: Mutex::default(),
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
                            blocks.insert(offset, random.gen_bool(0.3));
                        }),
                        2 => file.with(cleaned),
                        3 => file.with(|blocks| blocks.retain(|at, _| *at < offset)),
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
    let of = |file: &Arc<File>| file.state.lock().blocks.len() * BLOCK;
    let cached = || -> usize { files.iter().map(of).sum() };
    assert_eq!(budget.used(), cached(), "the sum is wrong");
    for file in &files {
        file.with(cleaned);
    }
    // A block that the budget does not know would stay for ever, and writers would wait for it.
    budget.reclaim(usize::MAX);
    assert_eq!((budget.used(), cached()), (0, 0), "blocks nobody can drop");
}
