use super::super::error::LockError;
use super::super::fake_server::{FakeServer, counter, lock, locks_of, request};
use super::super::interrupt::Interrupt;
use super::super::range::Mode;
use super::*;
use nfsrdma_nfs3::nlm::LockCall;
use std::future::ready;
use std::sync::atomic::Ordering;
use tokio::task::JoinHandle;
use tokio::time::Instant;

const FILE: FileId = 1;

/// A request of flock(2) by the owner with this number, through this open file.
fn flock(owner: u64, open: u64) -> Request {
    Request {
        owner: Owner::Flock(owner),
        open,
        ..request(owner, ByteRange::ALL, Mode::Write)
    }
}

/// Asks for a lock in the background.
fn asking(
    locks: &Arc<Locks>,
    request: Request,
    known: impl Future<Output = ()> + Send + 'static,
) -> JoinHandle<Result<(), LockError>> {
    let locks = locks.clone();
    tokio::spawn(async move {
        let (interrupt, mut result) = (Interrupt::default(), None);
        let tell = |of| result = Some(of);
        locks.lock(&request, &interrupt, known, tell).await;
        result.unwrap()
    })
}

/// Owner 1 asks for a lock in the background, until it is killed.
fn asking_until(locks: &Arc<Locks>, killed: &Arc<Interrupt>) -> JoinHandle<bool> {
    let (locks, killed) = (locks.clone(), killed.clone());
    tokio::spawn(async move { locks.lock(&flock(1, 1), &killed, ready(()), drop).await })
}

/// Lets all tasks go as far as they can without the time going on.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_held_is_refused_at_once_without_the_server() {
    let locks = locks_of(&Arc::new(FakeServer::default()));
    let (low, high) = (
        ByteRange::new(0, 9).unwrap(),
        ByteRange::new(10, 19).unwrap(),
    );
    lock(&locks, &request(1, low, Mode::Write)).await;
    // The release of another owner's does not matter.
    lock(&locks, &request(3, high, Mode::Write)).await;
    let others = locks.releasing(FILE, Owner::Posix(3), ByteRange::ALL);
    let (calls, since) = (counter(&locks, "lock_calls"), Instant::now());
    let asked = asking(&locks, request(2, low, Mode::Write), ready(()));
    assert_eq!(asked.await.unwrap(), Err(LockError::WouldBlock));
    assert_eq!(since.elapsed(), Duration::ZERO);
    assert_eq!(counter(&locks, "lock_calls"), calls);
    drop(others);
}

#[tokio::test(start_paused = true)]
async fn other_ranges_do_not_matter_and_the_wait_has_an_end() {
    let locks = locks_of(&Arc::new(FakeServer::default()));
    let (low, high) = (
        ByteRange::new(0, 9).unwrap(),
        ByteRange::new(10, 19).unwrap(),
    );
    lock(&locks, &request(1, low, Mode::Write)).await;
    lock(&locks, &request(1, high, Mode::Write)).await;
    let releasing = locks.releasing(FILE, Owner::Posix(1), high);
    let since = Instant::now();
    let asked = asking(&locks, request(2, low, Mode::Read), ready(()));
    assert_eq!(asked.await.unwrap(), Err(LockError::WouldBlock));
    assert_eq!(since.elapsed(), Duration::ZERO);
    let asked = asking(&locks, request(2, high, Mode::Read), ready(()));
    assert_eq!(asked.await.unwrap(), Err(LockError::WouldBlock));
    assert!(since.elapsed() >= RELEASED_WITHIN, "virtual time");
    drop(releasing);
}

#[tokio::test(start_paused = true)]
async fn a_signal_ends_the_wait_for_a_release() {
    let locks = locks_of(&Arc::new(FakeServer::default()));
    lock(&locks, &flock(1, 1)).await;
    let _releasing = locks.close_open(FILE, 1, Some(1), |_| false);
    let interrupt = Interrupt::default();
    interrupt.fire();
    let mut result = None;
    let tell = |of| result = Some(of);
    locks.lock(&flock(2, 2), &interrupt, ready(()), tell).await;
    assert_eq!(result, Some(Err(LockError::Interrupted)));
}

/// F_OFD_GETLK takes no lock, so it keeps none of whoever had its number before.
#[tokio::test(start_paused = true)]
async fn who_only_tests_keeps_no_lock_of_an_open_file_that_had_its_number() {
    let locks = locks_of(&Arc::new(FakeServer::default()));
    let of_open = |open| Request {
        open,
        ..request(1, ByteRange::ALL, Mode::Write)
    };
    lock(&locks, &of_open(1)).await;
    let (other, interrupt) = (of_open(2), Interrupt::default());
    let tested = locks.test(&other, &interrupt);
    assert_eq!(tested.await, Ok(None));
    assert_eq!(locks.close_open(FILE, 1, None, |open| open == 2).len(), 1);
}

/// The server refuses UNLOCK in its grace period, and has the lock until it is asked again.
#[tokio::test(start_paused = true)]
async fn a_lock_that_was_released_in_a_grace_period_is_free_when_it_is_over() {
    let server = Arc::new(FakeServer::default());
    let locks = locks_of(&server);
    lock(&locks, &flock(1, 1)).await;
    server.known.lock().grace = true;
    locks.unlock_all(FILE, Owner::Flock(1)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(400)).await;
    let asked = asking(&locks, flock(2, 2), ready(()));
    tokio::time::sleep(Duration::from_millis(300)).await;
    server.known.lock().grace = false;
    assert_eq!(asked.await.unwrap(), Ok(()));
}

/// A refusal may arrive when the release of the lock in its way has ended.
#[tokio::test(start_paused = true)]
async fn a_refusal_that_arrives_after_the_release_is_not_the_last_word() {
    let server = Arc::new(FakeServer::default());
    let locks = locks_of(&server);
    let killed = Arc::new(Interrupt::default());
    server.yields.store(1000, Ordering::Relaxed);
    let first = asking_until(&locks, &killed);
    settle().await;
    killed.kill();
    settle().await;
    let slow = Arc::downgrade(&server);
    server.after(move |_, call| {
        let asks = matches!(call, LockCall::Lock { .. });
        let yields = if asks { 2000 } else { 1 };
        slow.upgrade()
            .unwrap()
            .yields
            .store(yields, Ordering::Relaxed);
    });
    let asked = asking(&locks, flock(2, 2), ready(()));
    assert_eq!(asked.await.unwrap(), Ok(()));
    assert_eq!(counter(&locks, "lock_calls"), 3);
    assert!(!first.await.unwrap());
}

/// The process has ended when its request begins: nothing would release what it locks.
#[tokio::test(start_paused = true)]
async fn a_request_whose_caller_was_killed_before_it_began_asks_for_nothing() {
    let locks = locks_of(&Arc::new(FakeServer::default()));
    let killed = Interrupt::default();
    killed.kill();
    for wait in [false, true] {
        for _ in 0..100 {
            let mut result = None;
            let tell = |of| result = Some(of);
            let wanted = Request {
                wait,
                ..flock(1, 1)
            };
            locks.lock(&wanted, &killed, ready(()), tell).await;
            assert_eq!(result, Some(Err(LockError::Interrupted)));
        }
    }
    assert_eq!(counter(&locks, "lock_calls"), 0);
}

/// Whoever handles the signal may do so after the next request was sent.
#[tokio::test(start_paused = true)]
async fn a_release_that_began_and_ended_behind_a_refused_request_is_seen() {
    let server = Arc::new(FakeServer::default());
    let locks = locks_of(&server);
    let killed = Arc::new(Interrupt::default());
    server.yields.store(300, Ordering::Relaxed);
    let first = asking_until(&locks, &killed);
    settle().await;
    server.yields.store(2000, Ordering::Relaxed);
    let asked = asking(&locks, flock(2, 2), ready(()));
    settle().await;
    assert_eq!(counter(&locks, "lock_calls"), 2);
    server.yields.store(1, Ordering::Relaxed);
    killed.kill();
    assert!(!first.await.unwrap());
    assert!(!asked.is_finished(), "its refusal is under way");
    assert_eq!(asked.await.unwrap(), Ok(()));
}
