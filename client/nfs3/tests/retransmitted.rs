//! Calls that are not idempotent, sent twice because the connection ended before the reply, to a
//! server without a duplicate request cache. What others have done is not taken for the call's own
//! doing. (That it has the result of one call where the server has run it: `test_lost_replies_*` of
//! tests/system/reliability.)

use crate::common::data::leaves_nothing;
use crate::common::*;
use nfsrdma_nfs3::{CreateMode, Nfs3, NfsError, Special};
use nfsrdma_rdma_testing::fault::{Plan, When};
use nfsrdma_xdr::nfs3::*;
use std::time::Duration;

/// A server that hangs up before it runs the first call of `P`.
fn clumsy<P: Procedure>() -> Server {
    Server::scripted::<P>(|_, n| match n {
        0 => Act::Hangup,
        _ => Act::Answer,
    })
}

/// Creates a directory before the test.
async fn mkdir_at(server: &Server, name: &[u8]) {
    let (memory, plain) = (&server.memory, SetAttributes::default());
    let made = memory.mkdir(&root(), &memory.root(), name, &plain).await;
    made.unwrap();
}

fn is<T>(result: Result<T, NfsError>, status: Status) -> bool {
    matches!(result, Err(NfsError::Status(s)) if s == status)
}

#[tokio::test]
async fn a_directory_of_somebody_else_exists() {
    let server = clumsy::<Mkdir>();
    mkdir_at(&server, b"d").await;
    let (mounted, _pool) = server.mount(&options()).await;
    let private = SetAttributes {
        mode: Some(0o700),
        ..SetAttributes::default()
    };
    let result = mounted
        .client
        .mkdir(&root(), &mounted.root, b"d", &private)
        .await;
    assert!(is(result, Status::Exist));
    mounted.unmount().await;
}

#[tokio::test]
async fn a_link_to_elsewhere_exists() {
    let plain = SetAttributes::default();
    let server = clumsy::<Symlink>();
    let (who, top) = (root(), server.memory.root());
    let elsewhere = server
        .memory
        .symlink(&who, &top, b"l", b"elsewhere", &plain);
    elsewhere.await.unwrap();
    let (mounted, _pool) = server.mount(&options()).await;
    let result = mounted
        .client
        .symlink(&root(), &mounted.root, b"l", b"there", &plain)
        .await;
    assert!(is(result, Status::Exist));
    mounted.unmount().await;
}

#[tokio::test]
async fn a_file_with_contents_exists() {
    let plain = SetAttributes::default();
    let who = root();
    let server = clumsy::<Create>();
    server.plant(b"f", b"contents");
    let (mounted, _pool) = server.mount(&options()).await;
    let result = mounted
        .client
        .create(&who, &mounted.root, b"f", CreateMode::Guarded, &plain);
    assert!(is(result.await, Status::Exist));
    mounted.unmount().await;
}

#[tokio::test]
async fn a_name_that_nobody_took_is_not_there() {
    let who = root();
    let server = clumsy::<Rename>();
    let (mounted, _pool) = server.mount(&options()).await;
    let top = &mounted.root;
    let result = mounted.client.rename(&who, top, b"a", top, b"b").await;
    assert!(is(result, Status::NoEnt));
    mounted.unmount().await;
}

#[tokio::test]
async fn a_name_of_another_file_exists() {
    let who = root();
    let server = clumsy::<Link>();
    let file = server.plant(b"a", b"");
    server.plant(b"b", b"");
    let (mounted, _pool) = server.mount(&options()).await;
    let result = mounted.client.link(&who, &file, &mounted.root, b"b").await;
    assert!(is(result, Status::Exist));
    mounted.unmount().await;
}

#[tokio::test]
async fn an_object_of_another_kind_exists() {
    let plain = SetAttributes::default();
    let server = clumsy::<Mknod>();
    let (who, top) = (root(), server.memory.root());
    let socket = server
        .memory
        .mknod(&who, &top, b"n", Special::Socket, &plain);
    socket.await.unwrap();
    let (mounted, _pool) = server.mount(&options()).await;
    let (client, top, who) = (&mounted.client, &mounted.root, root());
    let made = client.mknod(&who, top, b"n", Special::Fifo, &plain).await;
    assert!(is(made, Status::Exist));
    mounted.unmount().await;
}

#[tokio::test]
async fn attributes_that_somebody_else_set_are_not_those() {
    let new = SetAttributes {
        mode: Some(0o600),
        ..SetAttributes::default()
    };
    let server = clumsy::<Setattr>();
    let file = server.plant(b"f", b"");
    let before = server.memory.getattr(&root(), &file).await.unwrap();
    let guard = Some(before.ctime);
    server.memory.change_file("f", 0, &[], Some(0o640));
    let (mounted, _pool) = server.mount(&options()).await;
    let result = mounted.client.setattr(&root(), &file, &new, guard).await;
    assert!(is(result, Status::NotSync));
    mounted.unmount().await;
}

/// Runs the first call of `P` and hangs up, answers the second with JUKEBOX, and runs later ones.
fn forgetful_and_busy<P: Procedure>() -> Server {
    Server::scripted::<P>(|_, n| match n {
        0 => Act::RunThenHangup,
        1 => Act::JukeBox,
        _ => Act::Answer,
    })
}

/// A call answered with NFS3ERR_JUKEBOX is made again as a new one. It counts as retransmitted if
/// any of these calls was.
#[tokio::test]
async fn a_call_put_off_after_it_was_sent_twice_has_the_result_of_one() {
    let (who, plain) = (root(), SetAttributes::default());

    let server = forgetful_and_busy::<Mkdir>();
    let (mounted, _pool) = server.mount(&options()).await;
    let (client, top) = (&mounted.client, &mounted.root);
    let made = client.mkdir(&who, top, b"d", &plain).await;
    assert_eq!(made.unwrap().object, server.memory.handle("d"));
    let again = client.mkdir(&who, top, b"d", &plain).await;
    assert!(is(again, Status::Exist), "sent once: an honest EXIST");
    mounted.unmount().await;

    let server = forgetful_and_busy::<Create>();
    let (mounted, _pool) = server.mount(&options()).await;
    let (client, top) = (&mounted.client, &mounted.root);
    let made = client.create(&who, top, b"f", CreateMode::Guarded, &plain);
    assert_eq!(made.await.unwrap().object, server.memory.handle("f"));
    mounted.unmount().await;

    let server = forgetful_and_busy::<Rename>();
    server.plant(b"a", b"1");
    let (mounted, _pool) = server.mount(&options()).await;
    let (client, top) = (&mounted.client, &mounted.root);
    client.rename(&who, top, b"a", top, b"b").await.unwrap();
    assert_eq!(server.contents("b"), b"1");
    mounted.unmount().await;

    let server = forgetful_and_busy::<Link>();
    let file = server.plant(b"a", b"");
    let (mounted, _pool) = server.mount(&options()).await;
    let (client, top) = (&mounted.client, &mounted.root);
    client.link(&who, &file, top, b"b").await.unwrap();
    mounted.unmount().await;

    let server = forgetful_and_busy::<Remove>();
    server.plant(b"a", b"");
    let (mounted, _pool) = server.mount(&options()).await;
    let (client, top) = (&mounted.client, &mounted.root);
    client.remove(&who, top, b"a").await.unwrap();
    mounted.unmount().await;
}

#[tokio::test]
async fn a_call_only_put_off_was_sent_once() {
    let (who, plain) = (root(), SetAttributes::default());
    let server = Server::scripted::<Mkdir>(|_, n| match n {
        0 => Act::JukeBox,
        _ => Act::Answer,
    });
    mkdir_at(&server, b"d").await;
    let (mounted, _pool) = server.mount(&options()).await;
    let made = mounted.client.mkdir(&who, &mounted.root, b"d", &plain);
    assert!(is(made.await, Status::Exist));
    mounted.unmount().await;
}

/// The first connection ended before the call was sent: EXIST is honest, whatever is there.
#[tokio::test]
async fn a_call_that_was_never_sent_was_not_run() {
    let server = Server::plain();
    // Too long to be inline, so memory is registered for it.
    let target = [b'x'; 4000];
    let (who, plain) = (root(), SetAttributes::default());
    let (memory, top) = (&server.memory, server.memory.root());
    let there = memory.symlink(&who, &top, b"l", &target, &plain);
    there.await.unwrap();
    let plan = Plan {
        drop_at_expose: When::At(1),
        ..Plan::default()
    };
    let (mounted, pool) = server.mount_faulty(plan).await;
    let (client, top) = (&mounted.client, &mounted.root);
    // The first registration of the connection is its Reply chunk.
    let list = client.readdir(&who, top, 0, Verifier::default(), 32_768);
    list.await.unwrap();
    let result = client.symlink(&who, top, b"l", &target, &plain).await;
    assert!(mounted.client.stats().connections[0].connects > 1);
    assert!(is(result, Status::Exist));
    leaves_nothing(mounted, pool).await;
}

/// Whoever learns late that a call could not be posted must not touch the call any more if its
/// connection was lost meanwhile: it is under way on the next one.
#[tokio::test]
async fn a_call_that_was_refused_on_a_lost_connection_is_sent_once_on_the_next() {
    let server = Server::scripted::<Getattr>(|seen, _| {
        if seen.connection > 0 {
            // The answer arrives after the refusal.
            std::thread::sleep(Duration::from_millis(1500));
        }
        Act::Answer
    });
    let plan = Plan {
        queue_full: When::At(20),
        queue_full_late: Duration::from_millis(700),
        ..Plan::default()
    };
    let (mounted, pool) = server.mount_faulty(plan).await;
    let connects = || mounted.client.stats().connections[0].connects;
    let who = root();
    for _ in 0..40 {
        if connects() > 1 {
            break;
        }
        let found = mounted.client.getattr(&who, &mounted.root).await;
        found.unwrap();
    }
    assert_eq!(connects(), 2);
    let calls = server.calls::<Getattr>();
    let mut sent: Vec<_> = calls
        .iter()
        .map(|call| (call.connection, call.header.xid))
        .collect();
    sent.sort_unstable();
    sent.dedup();
    assert_eq!(sent.len(), calls.len(), "a call was sent twice");
    leaves_nothing(mounted, pool).await;
}
