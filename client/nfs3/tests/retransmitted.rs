//! Calls that are not idempotent, sent twice because the connection ended before the reply, to a
//! server without a duplicate request cache. What others have done is not taken for the call's own
//! doing. (That it has the result of one call where the server has run it: `test_lost_replies` of
//! tests/system/reliability.)

use crate::common::data::leaves_nothing;
use crate::common::*;
use nfsrdma_nfs3::{CreateMode, Nfs3, Nfs3Client, NfsError, Special};
use nfsrdma_rdma_testing::fault::{Plan, When};
use nfsrdma_xdr::nfs3::*;
use std::time::Duration;

/// Creates a directory before the test.
async fn mkdir_at(server: &Server, name: &[u8]) {
    let (memory, plain) = (&server.memory, SetAttributes::default());
    let made = memory.mkdir(&root(), &memory.root(), name, &plain).await;
    made.unwrap();
}

fn is<T>(result: Result<T, NfsError>, status: Status) -> bool {
    matches!(result, Err(NfsError::Status(s)) if s == status)
}

/// The result of what `call` does on a mount of the server.
async fn on_mount<T>(server: &Server, call: impl AsyncFnOnce(&Nfs3Client, &FileHandle) -> T) -> T {
    let (mounted, _pool) = server.mount(&options()).await;
    let result = call(&mounted.client, &mounted.root).await;
    mounted.unmount().await;
    result
}

/// The status of a call that the server gets on the second connection, after `before` was done at the server.
async fn told<P: Procedure, B, T: std::fmt::Debug>(
    before: impl AsyncFnOnce(&Server) -> B,
    call: impl AsyncFnOnce(&Nfs3Client, &FileHandle, B) -> Result<T, NfsError>,
) -> Status {
    let server = Server::at_first::<P, _>([Act::Hangup]);
    let made = before(&server).await;
    match on_mount(&server, async |client, top| call(client, top, made).await).await {
        Err(NfsError::Status(status)) => status,
        other => panic!("{}: {other:?}", P::NAME),
    }
}

#[tokio::test]
async fn what_others_have_done_is_not_the_calls_own_doing() {
    let (who, plain) = (&root(), &SetAttributes::default());
    let mode = |mode| SetAttributes {
        mode: Some(mode),
        ..SetAttributes::default()
    };
    let directory = told::<Mkdir, _, _>(
        async |server| mkdir_at(server, b"d").await,
        async |client, top, ()| client.mkdir(who, top, b"d", &mode(0o700)).await,
    );
    assert_eq!(directory.await, Status::Exist, "of somebody else");
    let link = told::<Symlink, _, _>(
        async |server| {
            let (memory, top) = (&server.memory, server.memory.root());
            let elsewhere = memory.symlink(who, &top, b"l", b"elsewhere", plain);
            elsewhere.await.unwrap();
        },
        async |client, top, ()| client.symlink(who, top, b"l", b"there", plain).await,
    );
    assert_eq!(link.await, Status::Exist, "to elsewhere");
    let file = told::<Create, _, _>(
        async |server| server.plant(b"f", b"contents"),
        async |client, top, _| {
            let guarded = CreateMode::Guarded;
            client.create(who, top, b"f", guarded, plain).await
        },
    );
    assert_eq!(file.await, Status::Exist, "with contents");
    let rename = told::<Rename, _, _>(
        async |_| (),
        async |client, top, ()| client.rename(who, top, b"a", top, b"b").await,
    );
    assert_eq!(rename.await, Status::NoEnt, "nobody took the name");
    let name = told::<Link, _, _>(
        async |server| [b"a", b"b"].map(|name| server.plant(name, b""))[0],
        async |client, top, file| client.link(who, &file, top, b"b").await,
    );
    assert_eq!(name.await, Status::Exist, "of another file");
    let socket = told::<Mknod, _, _>(
        async |server| {
            let (memory, top) = (&server.memory, server.memory.root());
            let socket = memory.mknod(who, &top, b"n", Special::Socket, plain);
            socket.await.unwrap();
        },
        async |client, top, ()| client.mknod(who, top, b"n", Special::Fifo, plain).await,
    );
    assert_eq!(socket.await, Status::Exist, "of another kind");
}

/// Runs the first call of `P` and hangs up, answers the second with JUKEBOX, and runs later ones.
fn forgetful_and_busy<P: Procedure>() -> Server {
    Server::at_first::<P, _>([Act::RunThenHangup, Act::JukeBox])
}

/// A call answered with NFS3ERR_JUKEBOX is made again as a new one. It counts as retransmitted if
/// any of these calls was.
#[tokio::test]
async fn a_call_put_off_after_it_was_sent_twice_has_the_result_of_one() {
    let (who, plain) = (root(), SetAttributes::default());

    let server = forgetful_and_busy::<Mkdir>();
    let (made, again) = on_mount(&server, async |client, top| {
        let made = client.mkdir(&who, top, b"d", &plain).await;
        (made, client.mkdir(&who, top, b"d", &plain).await)
    })
    .await;
    assert_eq!(made.unwrap().object, server.memory.handle("d"));
    assert!(is(again, Status::Exist), "sent once: an honest EXIST");

    let server = forgetful_and_busy::<Create>();
    let made = on_mount(&server, async |client, top| {
        let guarded = CreateMode::Guarded;
        client.create(&who, top, b"f", guarded, &plain).await
    });
    assert_eq!(made.await.unwrap().object, server.memory.handle("f"));

    let server = forgetful_and_busy::<Rename>();
    server.plant(b"a", b"1");
    let renamed = on_mount(&server, async |client, top| {
        client.rename(&who, top, b"a", top, b"b").await
    });
    renamed.await.unwrap();
    assert_eq!(server.contents("b"), b"1");

    let server = forgetful_and_busy::<Link>();
    let file = server.plant(b"a", b"");
    let linked = on_mount(&server, async |client, top| {
        client.link(&who, &file, top, b"b").await
    });
    linked.await.unwrap();

    let server = forgetful_and_busy::<Remove>();
    server.plant(b"a", b"");
    let removed = on_mount(&server, async |client, top| {
        client.remove(&who, top, b"a").await
    });
    removed.await.unwrap();
}

#[tokio::test]
async fn a_call_only_put_off_was_sent_once() {
    let (who, plain) = (root(), SetAttributes::default());
    let server = Server::at_first::<Mkdir, _>([Act::JukeBox]);
    mkdir_at(&server, b"d").await;
    let made = on_mount(&server, async |client, top| {
        client.mkdir(&who, top, b"d", &plain).await
    });
    assert!(is(made.await, Status::Exist));
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
