//! The buffer pool: no byte has two owners, and no block is lost.

use nfsrdma_rdma::buf::{Buf, BufMut, MIN_BLOCK, Pool};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::mpsc;
use shuttle::thread;

/// Marks the ends of a buffer.
fn mark(buf: &mut BufMut, with: u8) {
    let last = buf.len() - 1;
    buf[0] = with;
    buf[last] = with;
}

fn check(buf: &Buf, with: u8) {
    assert_eq!((buf[0], buf[buf.len() - 1]), (with, with), "two owners");
}

/// Threads allocate blocks, pass them on, share them and free them.
pub fn blocks_have_one_owner() {
    let Ok(pool) = Pool::new(1) else {
        panic!("no memory for the pool");
    };
    let capacity = pool.capacity();
    let (give, take) = mpsc::channel::<(Buf, u8)>();
    let makers: Vec<_> = (1..=3u8)
        .map(|number| {
            let (pool, give) = (pool.clone(), give.clone());
            thread::spawn(move || {
                for turn in 0..4u8 {
                    let len = MIN_BLOCK << thread_rng().gen_range(0..10);
                    // Others may use the whole pool, so this may fail.
                    let Some(mut buf) = pool.alloc(len) else {
                        thread::yield_now();
                        continue;
                    };
                    let with = number * 16 + turn;
                    mark(&mut buf, with);
                    let hold = thread_rng().gen_bool(0.5).then(|| buf.keep_alive());
                    thread::yield_now();
                    let shared = buf.freeze();
                    check(&shared, with);
                    let part = shared.slice(..1);
                    let _ = give.send((shared, with));
                    drop(hold);
                    thread::yield_now();
                    assert_eq!(part[0], with, "memory was reused while shared");
                }
            })
        })
        .collect();
    drop(give);
    let taker = thread::spawn(move || {
        while let Ok((buf, with)) = take.recv() {
            check(&buf, with);
            match buf.try_into_mut() {
                // Nobody else has a part of it, so it may be written to.
                Ok(mut own) => {
                    mark(&mut own, 0xff);
                    thread::yield_now();
                    check(&own.freeze(), 0xff);
                }
                Err(shared) => check(&shared, with),
            }
        }
    });
    for thread in makers.into_iter().chain([taker]) {
        assert!(thread.join().is_ok());
    }
    assert_eq!(pool.free_bytes(), capacity, "a block is lost");
    let whole = pool.alloc(nfsrdma_rdma::buf::MAX_BLOCK);
    assert!(whole.is_some(), "the pieces do not make a whole again");
}
