use super::super::config::{Lasting, LockConfig};
use super::super::fake_server::{CONFIG, FakeServer, lock, locks_of, range, request};
use super::*;
use std::future::ready;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::runtime::Handle;

/// The svid of an owner on another machine.
const OTHER: u32 = 7;

#[tokio::test]
async fn a_downgrade_that_is_interrupted_leaves_what_the_server_has() {
    for shared in [false, true] {
        let server = Arc::new(FakeServer::default());
        let locks = locks_of(&server);
        lock(&locks, &request(1, range(0, 9), Mode::Write)).await;
        let interrupt = Arc::new(Interrupt::default());
        // A signal arrives after the server has run the call, when another owner may share the
        // lock.
        server.yields.store(100, Ordering::Relaxed);
        let (signal, mut done) = (interrupt.clone(), false);
        server.after(move |known, call| {
            if call == lock_call(Mode::Read, false) && !done {
                done = true;
                signal.fire();
                if shared {
                    known.lock(OTHER, range(5, 5), Some(Mode::Read));
                }
            }
        });
        let mut result = None;
        let downgrade = request(1, range(0, 9), Mode::Read);
        let granted = locks.lock(&downgrade, &interrupt, ready(()), |of| result = Some(of));
        assert!(!granted.await);
        assert_eq!(result, Some(Err(LockError::Interrupted)));
        let mode = if shared { Mode::Read } else { Mode::Write };
        let state = locks.state.lock();
        let pieces = state.table.pieces(1, Owner::Posix(1), range(0, 9));
        let svid = state.holdings[&(1, Owner::Posix(1))].svid;
        assert!(server.known.lock().has(svid, range(0, 9), mode));
        assert_eq!(pieces, [(range(0, 9), Some(mode))], "shared: {shared}");
    }
}

const LIMIT: Duration = Duration::from_secs(10);

/// A `softerr` mount.
fn soft() -> (Arc<FakeServer>, Arc<Locks>) {
    let server = Arc::new(FakeServer::default());
    let soft = LockConfig {
        patience: Some((LIMIT, true)),
        ..CONFIG
    };
    let locks = Locks::new(server.clone(), soft, Lasting::default(), Handle::current());
    (server, locks)
}

/// The result of a request, which a program waits for.
async fn told(locks: &Arc<Locks>, request: Request) -> Result<(), LockError> {
    let (locks, (tell, told)) = (locks.clone(), tokio::sync::oneshot::channel());
    tokio::spawn(async move {
        let interrupt = Interrupt::default();
        let reply = |of| tell.send(of).unwrap();
        locks.lock(&request, &interrupt, ready(()), reply).await;
    });
    let told = tokio::time::timeout(LIMIT * 4, told).await;
    told.expect("the program waits for ever").unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_soft_mount_gives_a_lock_up_behind_an_unlock_or_a_recovery_without_an_answer() {
    let (server, locks) = soft();
    lock(&locks, &request(1, range(0, 9), Mode::Write)).await;
    lock(&locks, &request(2, range(20, 29), Mode::Write)).await;
    server.known.lock().silent = true;
    let (tell, unlocked) = tokio::sync::oneshot::channel();
    let unlocking = locks.clone();
    tokio::spawn(async move {
        let reply = |of| tell.send(of).unwrap();
        let all = ByteRange::ALL;
        unlocking.unlock(1, Owner::Posix(1), all, reply).await;
    });
    assert_eq!(unlocked.await.unwrap(), Err(LockError::TimedOut));
    for wait in [false, true] {
        let again = Request {
            wait,
            ..request(1, range(0, 9), Mode::Write)
        };
        assert_eq!(told(&locks, again).await, Err(LockError::TimedOut));
    }
    let recovering = locks.clone();
    tokio::spawn(async move { recovering.recover().await });
    tokio::time::sleep(LIMIT).await;
    let other = request(3, range(50, 59), Mode::Write);
    assert_eq!(told(&locks, other.clone()).await, Err(LockError::TimedOut));
    server.known.lock().silent = false;
    assert_eq!(told(&locks, other).await, Ok(()));
    let again = request(1, range(0, 9), Mode::Write);
    assert_eq!(told(&locks, again).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_soft_mount_gives_up_to_convert_a_lock_of_flock() {
    let (server, locks) = soft();
    let flock = |owner, mode| Request {
        owner: Owner::Flock(owner),
        ..request(owner, ByteRange::ALL, mode)
    };
    lock(&locks, &flock(1, Mode::Read)).await;
    lock(&locks, &flock(2, Mode::Read)).await;
    server.known.lock().silent = true;
    for wait in [false, true] {
        let convert = Request {
            wait,
            ..flock(1, Mode::Write)
        };
        assert_eq!(told(&locks, convert).await, Err(LockError::TimedOut));
    }
    server.known.lock().silent = false;
    tokio::time::sleep(LIMIT).await;
    assert_eq!(server.known.lock().held.len(), 2, "as in the table");
    assert_eq!(locks.state.lock().table.len(), 2);
}

/// A `soft` mount limits how long a process waits for the server, not for a lock of another process.
#[tokio::test(start_paused = true)]
async fn the_limit_of_a_soft_mount_begins_when_the_turn_has_come() {
    let (server, locks) = soft();
    lock(&locks, &request(1, range(0, 9), Mode::Write)).await;
    let waiting = {
        let locks = locks.clone();
        tokio::spawn(async move {
            let request = Request {
                wait: true,
                ..request(2, range(0, 9), Mode::Write)
            };
            lock(&locks, &request).await;
        })
    };
    tokio::time::sleep(LIMIT * 2).await;
    server.known.lock().grace = true;
    locks.unlock_all(1, Owner::Posix(1)).await.unwrap();
    tokio::time::sleep(LIMIT / 2).await;
    server.known.lock().restart(false);
    waiting.await.unwrap();
}

/// Another thread of a waiter's process takes a part of the lock that the server has granted before the
/// waiter knows. What is left must not keep out somebody for whom the waiter waits.
#[tokio::test(start_paused = true)]
async fn what_another_thread_leaves_of_a_lock_keeps_nobody_out() {
    for downgrades in [false, true] {
        let server = Arc::new(FakeServer::default());
        server.known.lock().queues = true;
        let [here, there] = [(); 2].map(|()| locks_of(&server));
        lock(&there, &request(2, range(0, 9), Mode::Write)).await;
        lock(&here, &request(1, range(20, 29), Mode::Write)).await;
        let waits = |of: Request| Request { wait: true, ..of };
        let first = waits(request(1, range(0, 9), Mode::Write));
        let waiting = tokio::spawn({
            let here = here.clone();
            async move { told(&here, first).await }
        });
        while server.known.lock().queue.is_empty() {
            tokio::task::yield_now().await;
        }
        // The waiter asks again after a pause, which does not end while others have something to do.
        there.unlock_all(1, Owner::Posix(2)).await.unwrap();
        assert!(server.known.lock().queue.is_empty(), "it is granted");
        let mode = match downgrades {
            true => Mode::Read,
            false => Mode::Write,
        };
        let part = request(1, range(5, 9), mode);
        match downgrades {
            true => lock(&here, &part).await,
            false => here.unlock(1, part.owner, part.range, drop).await,
        }
        lock(&there, &request(2, range(5, 9), mode)).await;
        let rest = waits(request(2, range(0, 4), Mode::Write));
        assert_eq!(told(&there, rest).await, Ok(()), "downgrades: {downgrades}");
        there.unlock_all(1, Owner::Posix(2)).await.unwrap();
        assert_eq!(waiting.await.unwrap(), Ok(()));
        here.unlock_all(1, Owner::Posix(1)).await.unwrap();
        assert!(server.known.lock().held.is_empty());
    }
}
