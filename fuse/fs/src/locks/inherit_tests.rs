use super::super::config::Lasting;
use super::super::fake_server::{CONFIG, FakeServer, Known, counter, lock, range, request};
use super::super::holding::Request;
use super::super::interrupt::Interrupt;
use super::*;
use nfsrdma_record::{Node, Table};
use nfsrdma_xdr::nfs3::FileHandle;
use std::cell::Cell;
use std::future::ready;
use std::time::Duration;
use tokio::runtime::{Builder, Handle};

/// The svid of an owner on another machine.
const OTHER: u32 = 7;
/// An open file that is not open any more when the next process begins.
const CLOSED: u64 = 5;

/// A mount at a server.
struct Mount {
    server: Arc<FakeServer>,
    table: Table,
}

impl Mount {
    fn new() -> Self {
        let table = Table::create().unwrap();
        let root = Node::new(FileHandle::new(b"r").unwrap(), 2, 1);
        std::mem::forget(table.nodes().alloc(root));
        let server = Arc::new(FakeServer::default());
        Mount { server, table }
    }

    /// A process serves the mount, and dies when `work` is done: nothing of it ends in order.
    fn serve<F: Future>(&mut self, work: impl FnOnce(Arc<Locks>) -> F) {
        let fd = self.table.fd().unwrap().try_clone_to_owned().unwrap();
        self.table = Table::open(fd).unwrap();
        let lasting = Lasting {
            records: self.table.locks().clone(),
            ..Lasting::default()
        };
        let paused = Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build();
        let runtime = paused.unwrap();
        runtime.block_on(async {
            let locks = Locks::start(self.server.clone(), CONFIG, lasting, Handle::current());
            locks.go_on(|open| open != CLOSED);
            work(locks.clone()).await;
            std::mem::forget(locks);
        });
        std::mem::forget(runtime);
    }

    fn known(&self) -> parking_lot::MutexGuard<'_, Known> {
        self.server.known.lock()
    }
}

/// What is under way when the process dies.
async fn under_way(work: impl Future + Send + 'static) {
    let mut work = Box::pin(work);
    tokio::select! {
        biased;
        _ = &mut work => panic!("it is done"),
        () = tokio::time::sleep(Duration::from_millis(500)) => {}
    }
    std::mem::forget(work);
}

fn asks(locks: &Arc<Locks>, request: Request) -> impl Future<Output = ()> + 'static {
    let locks = locks.clone();
    async move { lock(&locks, &request).await }
}

/// Waits until the background work has ended.
async fn rest(locks: &Arc<Locks>) {
    let mut running = locks.running.subscribe();
    running.wait_for(|of| *of == 0).await.unwrap();
}

fn calls(known: &mut Known) -> Vec<&'static str> {
    let name = |call| match call {
        LockCall::Test { .. } => "TEST",
        LockCall::Lock { .. } => "LOCK",
        LockCall::Cancel { .. } => "CANCEL",
        LockCall::Unlock => "UNLOCK",
    };
    let calls = std::mem::take(&mut known.callers);
    calls.into_iter().map(|(_, call)| name(call)).collect()
}

#[test]
fn what_was_held_is_held_by_the_same_owners_without_a_call() {
    let mut mount = Mount::new();
    let flock = Request {
        owner: Owner::Flock(1),
        open: CLOSED,
        ..request(9, range(40, 49), Mode::Write)
    };
    let open = Request {
        open: 6,
        ..flock.clone()
    };
    mount.serve(async |locks| {
        lock(&locks, &request(1, range(0, 9), Mode::Write)).await;
        lock(&locks, &request(1, range(4, 5), Mode::Read)).await;
        lock(&locks, &request(2, range(20, 29), Mode::Read)).await;
        lock(&locks, &request(3, range(20, 24), Mode::Read)).await;
        lock(&locks, &open).await;
        assert_eq!(locks.unlock_all(1, Owner::Posix(3)).await, Ok(()));
    });
    let before = mount.known().held.clone();
    assert_eq!(before.len(), 3);
    calls(&mut mount.known());
    mount.serve(async |locks| {
        rest(&locks).await;
        assert_eq!(counter(&locks, "locks_held"), 5);
        let (interrupt, mut result) = (Interrupt::default(), None);
        let rival = request(4, range(5, 5), Mode::Write);
        let tested = locks.test(&rival, &interrupt).await;
        assert_eq!(tested.unwrap().unwrap().pid, 1);
        let refused = locks.lock(&rival, &interrupt, ready(()), |of| result = Some(of));
        assert!(!refused.await && result.unwrap().is_err());
    });
    let mut known = mount.known();
    assert_eq!(
        calls(&mut known),
        ["TEST"],
        "it asks whether the server has restarted"
    );
    assert_eq!(known.held, before);
    drop(known);
    mount.serve(async |locks| {
        assert_eq!(locks.unlock_all(1, Owner::Flock(1)).await, Ok(()));
        lock(&locks, &flock).await;
    });
    // The next one, too.
    mount.serve(async |locks| {
        rest(&locks).await;
        assert_eq!(locks.unlock_all(1, Owner::Posix(1)).await, Ok(()));
        assert_eq!(locks.unlock_all(1, Owner::Posix(2)).await, Ok(()));
        assert!(locks.is_unused());
    });
    assert!(mount.known().held.is_empty());
}

#[test]
fn a_lock_that_was_asked_for_is_there_once_or_not_at_all() {
    for resent in [false, true] {
        let mut mount = Mount::new();
        let server = mount.server.clone();
        let upgrade = || request(1, range(0, 9), Mode::Write);
        mount.serve(async |locks| {
            lock(&locks, &request(1, range(3, 4), Mode::Read)).await;
            server.known.lock().silent = true;
            under_way(asks(&locks, upgrade())).await;
        });
        mount.known().silent = false;
        let svid = *mount.known().held.keys().next().unwrap();
        assert!(mount.known().has(svid, range(0, 9), Mode::Write));
        mount.serve(async |locks| {
            if resent {
                lock(&locks, &upgrade()).await;
            }
            rest(&locks).await;
            assert_eq!(counter(&locks, "locks_held"), 1);
        });
        let expected = match resent {
            false => (range(3, 4), Mode::Read),
            true => (range(0, 9), Mode::Write),
        };
        let known = mount.known();
        let held: Vec<_> = known
            .held
            .iter()
            .flat_map(|(of, set)| set.iter().map(|one| (*of, one)))
            .collect();
        assert_eq!(held, [(svid, expected)]);
    }
}

#[test]
fn a_lock_that_the_server_takes_after_the_process_has_died_is_released() {
    let mut mount = Mount::new();
    let server = mount.server.clone();
    mount.serve(async |locks| {
        server.known.lock().slow = true;
        under_way(asks(&locks, request(1, range(0, 9), Mode::Write))).await;
        server.known.lock().slow = false;
        assert_eq!(server.known.lock().late.len(), 1);
    });
    mount.serve(async |locks| rest(&locks).await);
    server.run_late();
    assert!(mount.known().held.is_empty());
}

#[test]
fn a_program_that_waited_is_granted_the_lock_once_and_later() {
    for resent in [false, true] {
        let mut mount = Mount::new();
        mount.known().queues = true;
        mount.known().lock(OTHER, range(0, 9), Some(Mode::Write));
        let waits = || Request {
            wait: true,
            ..request(1, range(0, 9), Mode::Write)
        };
        mount.serve(async |locks| under_way(asks(&locks, waits())).await);
        assert_eq!(mount.known().queue.len(), 1);
        let server = mount.server.clone();
        mount.serve(async |locks| {
            if !resent {
                return rest(&locks).await;
            }
            let waiting = tokio::spawn(asks(&locks, waits()));
            tokio::time::sleep(Duration::from_secs(5)).await;
            assert!(!waiting.is_finished());
            server.known.lock().lock(OTHER, range(0, 9), None);
            waiting.await.unwrap();
            assert_eq!(locks.unlock_all(1, Owner::Posix(1)).await, Ok(()));
            rest(&locks).await;
        });
        let mut known = mount.known();
        assert!(known.queue.is_empty());
        known.lock(OTHER, range(0, 9), None);
        assert!(known.held.is_empty(), "{resent}");
    }
}

#[test]
fn an_unlock_that_nobody_waits_for_is_made() {
    let mut mount = Mount::new();
    let (server, svid) = (mount.server.clone(), Cell::new(0));
    mount.serve(async |locks| {
        lock(&locks, &request(1, range(0, 9), Mode::Write)).await;
        svid.set(*server.known.lock().held.keys().next().unwrap());
        // It is never answered, and the server runs it, and then has the lock again, as if it had not.
        server.known.lock().silent = true;
        let this = locks.clone();
        under_way(async move { this.unlock_all(1, Owner::Posix(1)).await }).await;
    });
    mount.known().silent = false;
    let svid = svid.get();
    mount.known().lock(svid, range(0, 9), Some(Mode::Write));
    mount.serve(async |locks| {
        rest(&locks).await;
        assert!(locks.is_unused());
    });
    assert!(mount.known().held.is_empty());
}

#[test]
fn a_restart_of_the_server_that_nobody_saw_is_noticed_and_locks_are_claimed() {
    for grace in [false, true] {
        let mut mount = Mount::new();
        mount.serve(async |locks| {
            for owner in 0..3 {
                lock(&locks, &request(owner, range(owner, owner), Mode::Write)).await;
            }
        });
        let before = mount.known().held.clone();
        mount.known().restart(grace);
        mount.serve(async |locks| {
            rest(&locks).await;
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert_eq!(counter(&locks, "locks_lost"), 0);
        });
        assert_eq!(mount.known().held, before, "{grace}");
    }
}

#[test]
fn a_lost_lock_is_told_by_the_next_process() {
    let mut mount = Mount::new();
    let server = mount.server.clone();
    mount.serve(async |locks| {
        lock(&locks, &request(1, range(0, 9), Mode::Write)).await;
        {
            let mut known = server.known.lock();
            known.restart(false);
            known.lock(OTHER, range(0, 0), Some(Mode::Write));
        }
        locks.recover().await;
        assert!(locks.is_lost(1, 1));
    });
    mount.serve(async |locks| {
        assert!(locks.is_lost(1, 1));
        locks.unlock_all(1, Owner::Posix(1)).await.unwrap_err();
        assert!(!locks.is_lost(1, 1));
    });
    mount.serve(async |locks| assert!(!locks.is_lost(1, 1) && locks.is_unused()));
}
