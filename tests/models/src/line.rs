//! Writers that wait for room in a line: nobody waits while there is room, whoever leaves.

use nfsrdma_fs::cache::{Line, Turn};
use nfsrdma_rpcrdma::exec::block_on;
use nfsrdma_shuttle::Mutex;
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;
use std::sync::Arc;

const LIMIT: usize = 4;

#[derive(Default)]
struct Room {
    line: Line,
    used: Mutex<usize>,
}

impl Room {
    /// As for dirty data, anything fits where there is nothing.
    fn take(&self, len: usize) -> bool {
        let mut used = self.used.lock();
        let fits = *used == 0 || *used + len <= LIMIT;
        if fits {
            *used += len;
        }
        fits
    }

    fn give(&self, len: usize) {
        *self.used.lock() -= len;
        self.line.call();
    }

    /// As in `Fs::write_by`. False if the caller was killed meanwhile.
    async fn wait(&self, len: usize) -> bool {
        let mut turn: Option<Turn<'_>> = None;
        while !self.take(len) {
            match &mut turn {
                Some(_) if thread_rng().gen_bool(0.2) => return false,
                Some(turn) => turn.called().await,
                None => turn = Some(self.line.join()),
            }
        }
        true
    }
}

/// Each write gets room or is given up, though only the first of the line is woken.
pub fn each_writer_gets_room() {
    let room = Arc::new(Room::default());
    let writers: Vec<_> = (0..4)
        .map(|_| {
            let room = room.clone();
            thread::spawn(move || {
                for _ in 0..3 {
                    let len = thread_rng().gen_range(1..=LIMIT + 1);
                    if block_on(room.wait(len)) {
                        thread::yield_now();
                        room.give(len);
                    }
                }
            })
        })
        .collect();
    for writer in writers {
        assert!(writer.join().is_ok());
    }
    assert_eq!(*room.used.lock(), 0);
}
