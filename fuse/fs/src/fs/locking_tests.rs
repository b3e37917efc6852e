use super::super::mounted::{RW, cred, with_file};
use super::*;
use crate::locks::fake_server::{FakeServer, locks_of};
use nfsrdma_memory_server::Op;
use std::future::{poll_fn, ready};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// Begins to run a future.
async fn begin<F: Future>(mut future: std::pin::Pin<&mut F>) {
    poll_fn(|cx| {
        assert!(future.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
}

/// Two processes have the same open file. One is killed while its unlock waits for data that is
/// being written; then the other one takes the lock.
#[tokio::test(start_paused = true)]
async fn an_unlock_that_goes_on_without_its_caller_takes_no_lock_that_was_taken_since() {
    let ((server, fs, node), lockd) = (with_file(b""), Arc::new(FakeServer::default()));
    fs.set_locks(locks_of(&lockd));
    let handle = fs.open(&cred(0), node, RW).await.unwrap().handle;
    let request = |mode| SetLock {
        handle,
        owner: 1,
        flock: true,
        start: 0,
        end: 0,
        mode,
        wait: true,
        pid: 1,
    };
    let set = async |of: SetLock| {
        let told = |result: FsResult<()>| result.unwrap();
        fs.set_lock(of, &Interrupt::default(), ready(()), told)
            .await
    };
    assert!(set(request(Some(Mode::Write))).await);
    fs.write(handle, 0, &b"data"[..], RW, || true)
        .await
        .unwrap();
    server.keep(Some(Op::Write));
    let mut syncing = pin!(fs.fsync(handle, || true));
    begin(syncing.as_mut()).await;
    let releasing = fs.unlocking(&request(None));
    let mut unlocking = pin!(set(request(None)));
    begin(unlocking.as_mut()).await;
    server.keep(None);
    syncing.await.unwrap();
    let mut again = pin!(set(request(Some(Mode::Write))));
    let early = tokio::time::timeout(Duration::from_secs(1), again.as_mut()).await;
    assert!(!unlocking.await);
    drop(releasing);
    if early.is_err() {
        assert!(again.await);
    }
    assert_eq!(lockd.known.lock().held.len(), 1, "the lock is held");
}

/// Whoever takes the lock must see what the server has, and be able to write to the file.
#[tokio::test(start_paused = true)]
async fn a_lock_is_had_by_others_than_whose_data_is_kept_without_a_ticket() {
    let ((server, fs, node), lockd) = (with_file(b""), Arc::new(FakeServer::default()));
    fs.set_locks(locks_of(&lockd));
    let by_root = fs.open(&cred(0), node, RW).await.unwrap().handle;
    let by_user = fs.open(&cred(1000), node, RW).await.unwrap().handle;
    let set = async |handle, mode| {
        let of = SetLock {
            handle,
            owner: handle,
            flock: false,
            start: 0,
            end: 0,
            mode,
            wait: true,
            pid: 1,
        };
        let mut told = 0;
        let answer = |result: FsResult<()>| told = result.map_or_else(|e| e.errno(), |()| 0);
        let interrupt = Interrupt::default();
        fs.set_lock(of, &interrupt, ready(()), answer).await;
        told
    };
    // Written under a lock, it is not written when another holder may have written.
    assert_eq!(set(by_user, Some(Mode::Write)).await, 0);
    fs.write(by_user, 0, b"late", RW, || true).await.unwrap();
    server.set_expired(&[1000]);
    assert_eq!(set(by_user, None).await, 0);
    server.set_expired(&[]);
    let told = fs.fsync(by_user, || true).await;
    assert_eq!(told.unwrap_err().errno(), libc::EKEYEXPIRED);
    assert_eq!(server.durable("f").unwrap(), b"");
    fs.write(by_user, 0, b"kept", RW, || true).await.unwrap();
    server.set_expired(&[1000]);
    for (handle, errno) in [(by_user, libc::EKEYEXPIRED), (by_root, 0)] {
        assert_eq!(set(handle, Some(Mode::Write)).await, errno);
    }
    assert_eq!(fs.lost().len(), 1);
}
