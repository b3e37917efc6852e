use super::super::fake_server::{CONFIG, FakeServer, counter, lock, locks_of, range, request};
use super::*;
use nfsrdma_rpcrdma::rpc::Credential;
use std::sync::atomic::Ordering;
use tokio::task::JoinSet;

/// A server, and what holds a lock of it.
async fn holding() -> (Arc<FakeServer>, Arc<Locks>) {
    let server = Arc::new(FakeServer::default());
    let lasting = Lasting::default();
    let locks = Locks::start(server.clone(), CONFIG, lasting, Handle::current());
    lock(&locks, &request(1, range(0, 9), Mode::Write)).await;
    (server, locks)
}

#[tokio::test]
async fn a_server_that_ends_each_connection_is_not_called_without_end() {
    const TURNS: usize = 100_000;
    let (server, locks) = holding().await;
    let told = Arc::downgrade(&server);
    server.after(move |_, _| {
        if let Some(told) = told.upgrade() {
            told.disconnect();
        }
    });
    server.disconnect();
    for _ in 0..TURNS {
        tokio::task::yield_now().await;
    }
    // A recovery makes a few calls, each of which takes a few turns.
    let calls = server.known.lock().callers.len();
    assert!((2..TURNS / 200).contains(&calls), "{calls} calls");
    assert_eq!(counter(&locks, "locks_lost"), 0);
    assert_eq!(counter(&locks, "locks_held"), 1);
}

#[tokio::test]
async fn each_lock_is_asked_for_by_who_opened_the_file() {
    let by = |uid, mut request: super::super::holding::Request| {
        request.cred = Arc::new(Credential {
            uid,
            gid: 0,
            groups: Vec::new(),
        });
        request.open = uid.into();
        request
    };
    let server = Arc::new(FakeServer::default());
    let locks = locks_of(&server);
    let callers = || std::mem::take(&mut server.known.lock().callers);
    // A process opened the file as two different users.
    let (read, write) = (lock_call(Mode::Read, false), lock_call(Mode::Write, false));
    lock(&locks, &by(1, request(1, range(0, 9), Mode::Read))).await;
    lock(&locks, &by(2, request(1, range(20, 29), Mode::Write))).await;
    lock(&locks, &by(1, request(1, range(40, 49), Mode::Read))).await;
    assert_eq!(callers(), [(1, read), (2, write), (1, read)]);
    // Reclaims are sent with the credential of the user who may write.
    server.known.lock().restart(true);
    locks.recover().await;
    let claimed = callers();
    assert_eq!(claimed.len(), 3);
    assert!(claimed.iter().all(|(uid, _)| *uid == 2), "{claimed:?}");
}

fn reclaims(server: &FakeServer) -> usize {
    let known = server.known.lock();
    let reclaims = |call: &LockCall| matches!(call, LockCall::Lock { reclaim: true, .. });
    known.callers.iter().filter(|(_, of)| reclaims(of)).count()
}

#[tokio::test(start_paused = true)]
async fn locks_are_claimed_once_for_each_grace_period() {
    let (server, locks) = holding().await;
    for period in 1..3 {
        server.known.lock().restart(true);
        let asking = tokio::spawn({
            let (locks, at) = (locks.clone(), 100 * period);
            async move { lock(&locks, &request(2, range(at, at), Mode::Write)).await }
        });
        tokio::time::sleep(Duration::from_secs(90)).await;
        // The server granted the first, so there is nothing to claim again.
        assert_eq!(reclaims(&server), period as usize);
        server.known.lock().grace = false;
        asking.await.unwrap();
        locks
            .unlock_all(1, super::super::Owner::Posix(2))
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_secs(90)).await;
    }
    assert_eq!(counter(&locks, "locks_lost"), 0);
}

/// Each recovery is beside LOCKs that were under way when it began, whose grants it may have missed.
#[tokio::test(start_paused = true)]
async fn who_locks_all_the_time_makes_no_recoveries_without_end() {
    let (server, locks) = holding().await;
    let mut busy = JoinSet::new();
    for owner in 2..6 {
        let locks = locks.clone();
        busy.spawn(async move {
            let range = range(10 * owner, 10 * owner);
            for _ in 0..1000 {
                lock(&locks, &request(owner, range, Mode::Write)).await;
                let all = locks.unlock_all(1, super::super::Owner::Posix(owner));
                all.await.unwrap();
            }
        });
    }
    server.yields.store(20, Ordering::Relaxed);
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    server.disconnect();
    while let Some(ended) = busy.join_next().await {
        ended.unwrap();
    }
    // At most five locks were held in each of them.
    let calls = reclaims(&server);
    assert!((1..=10).contains(&calls), "{calls} reclaims");
    assert_eq!(counter(&locks, "locks_lost"), 0);
}
