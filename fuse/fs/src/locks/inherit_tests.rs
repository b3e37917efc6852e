use super::super::config::Lasting;
use super::super::fake_server::{CONFIG, FakeServer, Known, counter, lock, range, request};
use super::super::holding::Request;
use super::*;
use nfsrdma_record::{Node, Table};
use nfsrdma_xdr::nfs3::FileHandle;
use std::cell::Cell;
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
fn what_was_held_is_held_without_a_call_unless_it_was_closed() {
    let mut mount = Mount::new();
    mount.serve(async |locks| lock(&locks, &request(1, range(0, 9), Mode::Write)).await);
    let before = mount.known().held.clone();
    calls(&mut mount.known());
    mount.serve(async |locks| {
        rest(&locks).await;
        assert_eq!(counter(&locks, "locks_held"), 1);
    });
    let asked = calls(&mut mount.known());
    assert_eq!(asked, ["TEST"], "whether the server has restarted");
    assert_eq!(mount.known().held, before);
    let closed = Request {
        owner: Owner::Flock(1),
        open: CLOSED,
        ..request(9, range(40, 49), Mode::Write)
    };
    mount.serve(async |locks| lock(&locks, &closed).await);
    mount.serve(async |locks| {
        rest(&locks).await;
        assert_eq!(locks.unlock_all(1, Owner::Posix(1)).await, Ok(()));
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
