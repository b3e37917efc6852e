//! Waiters of two mounts, and of several threads of a process: when no program holds a lock for ever,
//! each of them gets its lock, and the server keeps none.

use super::super::fake_server::{FakeServer, locks_of, request};
use super::*;
use std::future::ready;
use std::time::Duration;
use tokio::task::JoinSet;

const FILE: u64 = 1;
const MOUNTS: usize = 2;
const OWNERS: u64 = 3;
const THREADS: usize = 2;
const STEPS: usize = 15;

/// A thread locks one range after another, and holds none when it waits, so that programs make no
/// circle. But threads of one owner have each other's locks, and unlock each other's ranges.
async fn thread(locks: Arc<Locks>, number: u64, flock: bool, mut random: fastrand::Rng) {
    let owner = match flock {
        true => Owner::Flock(number),
        false => Owner::Posix(number),
    };
    for _ in 0..STEPS {
        let (a, b) = (random.u64(0..8), random.u64(0..8));
        let range = match flock {
            true => ByteRange::ALL,
            false => ByteRange::new(a.min(b), a.max(b)).unwrap(),
        };
        let mode = match random.u32(0..3) {
            0 => Mode::Read,
            _ => Mode::Write,
        };
        let asked = Request {
            owner,
            wait: true,
            ..request(number, range, mode)
        };
        let interrupt = Interrupt::default();
        let patience = match random.u32(0..4) {
            0 => Duration::from_millis(random.u64(0..300)),
            _ => Duration::from_secs(100_000),
        };
        let signal = async {
            tokio::time::sleep(patience).await;
            interrupt.fire();
            std::future::pending::<()>().await;
        };
        let mut told = None;
        let granted = locks.lock(&asked, &interrupt, ready(()), |of| told = Some(of));
        tokio::select! {
            _ = granted => {}
            () = signal => {}
        }
        let told = told.expect("an answer");
        let expected = [
            Ok(()),
            Err(LockError::Interrupted),
            Err(LockError::Deadlock),
        ];
        assert!(expected.contains(&told), "{told:?}");
        tokio::time::sleep(Duration::from_millis(random.u64(0..200))).await;
        locks.unlock(FILE, owner, range, drop).await;
    }
}

async fn run(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let server = Arc::new(FakeServer::default());
    server.known.lock().queues = random.u32(0..4) > 0;
    let flock = random.u32(0..4) == 0;
    let mounts: Vec<_> = (0..MOUNTS).map(|_| locks_of(&server)).collect();
    let mut threads = JoinSet::new();
    for (at, locks) in mounts.iter().enumerate() {
        for number in 0..OWNERS {
            for _ in 0..THREADS {
                let number = number + at as u64 * OWNERS;
                threads.spawn(thread(locks.clone(), number, flock, random.fork()));
            }
        }
    }
    while let Some(ended) = threads.join_next().await {
        ended.unwrap();
    }
    let known = server.known.lock();
    assert!(known.held.is_empty() && known.queue.is_empty(), "{known:?}");
    assert!(mounts.iter().all(|locks| locks.is_unused()));
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_gets_its_lock() {
    for seed in 0..40 {
        println!("seed {seed}");
        let limit = Duration::from_secs(3600);
        let run = tokio::time::timeout(limit, run(seed));
        run.await.expect("it hangs");
    }
}
