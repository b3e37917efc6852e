//! Calls for a request that another process has begun, which died before it answered: the server may have
//! run them.

use crate::common::data::cred;
use crate::common::*;
use nfsrdma_memory_server::{Fate, Op};
use nfsrdma_nfs3::{CreateMode, Mounted, Nfs3, NfsError, NfsResult, Special};
use nfsrdma_rpcrdma::abandon::Caller;
use nfsrdma_xdr::nfs3::*;
use std::collections::HashSet;
use std::future::Future;

async fn mounted() -> (Server, Mounted) {
    let server = Server::plain();
    server.memory.change_file("", 0, &[], Some(0o777));
    let (mounted, _pool) = server.mount(&options()).await;
    (server, mounted)
}

/// `call` as a part of the request of this number, for the first time.
async fn first<T>(number: u64, call: impl Future<Output = T>) -> T {
    Caller::of(number, false).run(call).await
}

/// The same for a request that comes again.
async fn again<T>(number: u64, call: impl Future<Output = T>) -> T {
    Caller::of(number, true).run(call).await
}

fn is<T>(result: NfsResult<T>, status: Status) -> bool {
    matches!(result, Err(NfsError::Status(s)) if s == status)
}

fn mode(mode: u32) -> SetAttributes {
    SetAttributes {
        mode: Some(mode),
        ..SetAttributes::default()
    }
}

/// Each call was run for the first request. For the one that comes again it succeeds, for another one it
/// fails.
#[tokio::test]
async fn a_call_that_was_run_succeeds_again() {
    let (server, mounted) = mounted().await;
    let (client, top, who) = (&mounted.client, &mounted.root, &cred());
    let new = mode(0o750);
    macro_rules! once {
        ($call:expr, $status:ident) => {
            first(2, $call).await.unwrap();
            again(2, $call).await.unwrap();
            assert!(is(first(4, $call).await, Status::$status));
            assert!(is($call.await, Status::$status));
        };
    }
    once!(client.mkdir(who, top, b"d", &new), Exist);
    once!(client.rmdir(who, top, b"d"), NoEnt);
    once!(client.symlink(who, top, b"l", b"there", &new), Exist);
    once!(client.mknod(who, top, b"p", Special::Fifo, &new), Exist);
    let (guarded, exclusive) = (CreateMode::Guarded, CreateMode::Exclusive);
    once!(client.create(who, top, b"g", guarded, &new), Exist);
    once!(client.create(who, top, b"x", exclusive, &new), Exist);
    let file = server.memory.handle("x").unwrap();
    once!(client.link(who, &file, top, b"y"), Exist);
    once!(client.rename(who, top, b"y", top, b"z"), NoEnt);
    once!(client.remove(who, top, b"z"), NoEnt);
    let guard = Some(client.getattr(who, &file).await.unwrap().ctime);
    once!(client.setattr(who, &file, &mode(0o640), guard), NotSync);
    mounted.unmount().await;
}

/// What was not run is run.
#[tokio::test]
async fn a_call_that_was_not_run_is_run_again() {
    let (server, mounted) = mounted().await;
    let (client, top, who) = (&mounted.client, &mounted.root, &cred());
    let new = mode(0o640);
    let exclusive = CreateMode::Exclusive;
    let made = again(2, client.create(who, top, b"f", exclusive, &new)).await;
    let file = made.unwrap().object.unwrap();
    assert_eq!(server.memory.handle("f"), Some(file));
    again(4, client.link(who, &file, top, b"g")).await.unwrap();
    let rename = client.rename(who, top, b"g", top, b"h");
    again(6, rename).await.unwrap();
    again(8, client.remove(who, top, b"h")).await.unwrap();
    assert_eq!(server.memory.handle("h"), None);
    again(10, client.mkdir(who, top, b"d", &new)).await.unwrap();
    again(12, client.rmdir(who, top, b"d")).await.unwrap();
    assert_eq!(server.memory.handle("d"), None);
    mounted.unmount().await;
}

/// What another client has made meanwhile is not what the request has made.
#[tokio::test]
async fn what_others_made_is_not_taken_for_ones_own() {
    let (server, mounted) = mounted().await;
    let (client, top, who) = (&mounted.client, &mounted.root, &cred());
    let (other, _pool) = server.mount(&options()).await;
    let (theirs, exclusive) = (&other.client, CreateMode::Exclusive);
    let new = mode(0o644);
    // A lock, as of the same program by the same user: with a number, and with a verifier of chance.
    let lock = theirs.create(who, top, b"lock", exclusive, &new);
    first(77, lock).await.unwrap();
    let lock = client.create(who, top, b"lock", exclusive, &new);
    assert!(is(again(2, lock).await, Status::Exist));
    theirs
        .create(who, top, b"other", exclusive, &new)
        .await
        .unwrap();
    let lock = client.create(who, top, b"other", exclusive, &new);
    assert!(is(again(4, lock).await, Status::Exist));

    theirs.mkdir(who, top, b"d", &mode(0o700)).await.unwrap();
    let public = mode(0o755);
    let made = client.mkdir(who, top, b"d", &public);
    assert!(is(again(6, made).await, Status::Exist));
    theirs.symlink(who, top, b"l", b"a", &new).await.unwrap();
    let made = client.symlink(who, top, b"l", b"b", &new);
    assert!(is(again(8, made).await, Status::Exist));
    let file = server.memory.handle("lock").unwrap();
    let linked = client.link(who, &file, top, b"other");
    assert!(is(again(10, linked).await, Status::Exist));
    let renamed = client.rename(who, top, b"none", top, b"nothing");
    assert!(is(again(12, renamed).await, Status::NoEnt));
    other.unmount().await;
    mounted.unmount().await;
}

/// The process died between CREATE and SETATTR: the server recognises the verifier.
#[tokio::test]
async fn an_exclusive_create_is_finished_again() {
    let (server, mounted) = mounted().await;
    let (client, top, who) = (&mounted.client, &mounted.root, &cred());
    server.memory.set_hook(|op, _| match op {
        Op::Setattr => Fate::Refused(Status::Io),
        _ => Fate::Done,
    });
    let (exclusive, new) = (CreateMode::Exclusive, mode(0o604));
    let made = first(2, client.create(who, top, b"f", exclusive, &new)).await;
    assert!(matches!(made, Err(NfsError::Unfinished(Status::Io))));
    server.memory.set_hook(|_, _| Fate::Done);
    let made = again(2, client.create(who, top, b"f", exclusive, &new)).await;
    assert_eq!(made.unwrap().attributes.unwrap().mode, 0o604);
    mounted.unmount().await;
}

/// The mark is in the atime, in the second of the CREATE. Without a number there is none.
#[tokio::test]
async fn the_mark_of_an_exclusive_create() {
    let (_server, mounted) = mounted().await;
    let (client, top, who) = (&mounted.client, &mounted.root, &cred());
    let (exclusive, new) = (CreateMode::Exclusive, mode(0o644));
    let mut marks = HashSet::new();
    for number in 2..6 {
        let name = number.to_string();
        let made = client.create(who, top, name.as_bytes(), exclusive, &new);
        let is = first(number, made).await.unwrap().attributes.unwrap();
        assert!(is.ctime.seconds - is.atime.seconds <= 1);
        assert_eq!(is.mtime.seconds, is.ctime.seconds);
        assert_eq!(is.atime.nanoseconds % 1000, 0);
        marks.insert(is.atime.nanoseconds);
    }
    assert_eq!(marks.len(), 4);
    let made = client.create(who, top, b"g", exclusive, &new).await;
    let is = made.unwrap().attributes.unwrap();
    assert_eq!(is.atime, is.mtime);
    mounted.unmount().await;
}
