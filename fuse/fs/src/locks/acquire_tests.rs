use super::super::fake_server::{CONFIG, FakeServer, lock, locks_of, range, request};
use super::super::manager::LockConfig;
use super::*;
use std::future::ready;
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
        assert!(granted.await.is_none());
        assert_eq!(result, Some(Err(LockError::Interrupted)));
        let mode = if shared { Mode::Read } else { Mode::Write };
        let state = locks.state.lock();
        let pieces = state.table.pieces(1, Owner::Posix(1), range(0, 9));
        let svid = state.holdings[&(1, Owner::Posix(1))].svid;
        assert!(server.known.lock().has(svid, range(0, 9), mode));
        assert_eq!(pieces, [(range(0, 9), Some(mode))], "shared: {shared}");
    }
}

/// A `soft` mount limits how long a process waits for the server, not for a lock of another process.
#[tokio::test(start_paused = true)]
async fn the_limit_of_a_soft_mount_begins_when_the_turn_has_come() {
    const LIMIT: Duration = Duration::from_secs(10);
    let server = Arc::new(FakeServer::default());
    let soft = LockConfig {
        patience: Some((LIMIT, true)),
        ..CONFIG
    };
    let locks = Locks::new(server.clone(), soft, None, Handle::current());
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
