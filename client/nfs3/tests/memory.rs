//! Calls that find no memory for a while: they wait, and no caller gets an error.

use crate::common::data::*;
use crate::common::*;
use nfsrdma_nfs3::Recovery;
use nfsrdma_nfs3::{Nfs3, NfsError, Transport};
use nfsrdma_rdma_testing::drain;
use nfsrdma_rdma_testing::fault::{Plan, When};
use nfsrdma_rpcrdma::stats::ConnectionStats;
use nfsrdma_xdr::nfs3::*;
use std::time::Duration;

#[tokio::test]
async fn an_empty_pool_delays_calls_and_fails_none() {
    let server = Server::plain();
    let (mounted, pool) = server.mount(&options()).await;
    for n in 0..200 {
        server.plant(format!("file-{n}").as_bytes(), b"");
    }
    let taken = drain(&pool);
    assert_eq!(pool.free_bytes(), 0);
    let client = mounted.client.clone();
    let root = mounted.root;
    // The Reply chunk needs memory; so does the path of a symbolic link.
    let list = tokio::spawn(async move {
        let (cred, plain) = (cred(), SetAttributes::default());
        let (list, link) = tokio::join!(
            client.readdir(&cred, &root, 0, Verifier::default(), 32_768),
            client.symlink(&cred, &root, b"l", b"to", &plain),
        );
        (list.map(|page| page.entries.len()), link.map(|_| ()))
    });
    // Calls that need memory do not complete while there is none.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!list.is_finished(), "{:?}", list.await);
    assert_eq!(
        server.calls::<Readdir>().len() + server.calls::<Symlink>().len(),
        0
    );
    drop(taken);
    let (list, link) = list.await.unwrap();
    assert!(list.unwrap() >= 200);
    link.unwrap();
    assert_eq!(mounted.client.stats().connections[0].retransmits, 0);
    leaves_nothing(mounted, pool).await;
}

/// A READ already has its memory, which may be what the other call waits for.
#[tokio::test]
async fn a_call_without_memory_does_not_hold_up_those_that_have_it() {
    let server = Server::plain();
    let f = server.plant(b"f", &pattern(20_000, 3));
    let (mounted, pool) = server.mount(&options()).await;
    let sinks: Vec<_> = (0..3).map(|_| sink(&pool, 20_000, 4096)).collect();
    let taken = drain(&pool);
    let (client, root) = (mounted.client.clone(), mounted.root);
    let list = tokio::spawn(async move {
        let who = cred();
        let list = client.readdir(&who, &root, 0, Verifier::default(), 32_768);
        list.await.map(|page| page.entries.len())
    });
    until("the listing waits", || {
        mounted.client.stats().connections[0].waiting > 0
    })
    .await;
    let mut done = Vec::new();
    for sink in sinks {
        let cred = cred();
        let read = mounted.client.read(&cred, &f, 0, sink);
        let read = tokio::time::timeout(Duration::from_secs(60), read);
        done.push(read.await.unwrap().unwrap());
    }
    assert!(done.iter().all(|done| done.count == 20_000));
    assert!(!list.is_finished());
    drop((taken, done));
    assert!(list.await.unwrap().unwrap() >= 1);
    leaves_nothing(mounted, pool).await;
}

#[tokio::test]
async fn a_soft_mount_waits_for_memory_as_long_as_for_the_server() {
    let server = Server::plain();
    let options = options_with(|t| {
        t.recovery = Recovery::Soft;
        t.timeo = Duration::from_secs(1);
        t.retrans = 1;
    });
    let (mounted, pool) = server.mount(&options).await;
    let taken = drain(&pool);
    let cred = cred();
    let list = mounted
        .client
        .readdir(&cred, &mounted.root, 0, Verifier::default(), 32_768);
    let error = list.await.map(|_| ()).unwrap_err();
    assert!(matches!(error, NfsError::GivenUp), "{error:?}");
    drop(taken);
    leaves_nothing(mounted, pool).await;
}

#[tokio::test]
async fn registrations_that_fail_are_tried_again() {
    let server = Server::plain();
    let f = server.plant(b"f", &pattern(20_000, 3));
    let plan = Plan {
        fail_expose: When::Every(3),
        ..Plan::default()
    };
    let (mounted, pool) = server.mount_faulty(plan).await;
    for turn in 0..20 {
        let data = pattern(20_000, turn);
        write(&mounted, &pool, &f, &data, 4096).await;
        assert_eq!(read(&mounted, &pool, &f, 20_000, 4096).await, data);
    }
    assert_eq!(mounted.client.stats().connections[0].connects, 1);
    leaves_nothing(mounted, pool).await;
}

/// A provider may return the memory of calls long after their connection was lost. The calls wait
/// until then, and are sent again.
#[tokio::test]
async fn calls_whose_memory_a_lost_connection_gives_back_late_are_sent_again() {
    let server = Server::plain();
    let f = server.plant(b"f", &pattern(20_000, 3));
    let plan = Plan {
        drop_after_post: When::At(4),
        delay: Duration::from_millis(300),
        ..Plan::default()
    };
    let (mounted, pool) = server.mount_faulty(plan).await;
    // If a reply arrives before its connection is lost, nothing has to be sent again.
    let met = |counters: &ConnectionStats| counters.connects > 1 && counters.retransmits > 0;
    for turn in 0..100 {
        let data = pattern(20_000, turn);
        write(&mounted, &pool, &f, &data, 4096).await;
        assert_eq!(read(&mounted, &pool, &f, 20_000, 4096).await, data);
        if turn >= 6 && met(&mounted.client.stats().connections[0]) {
            break;
        }
    }
    let counters = &mounted.client.stats().connections[0];
    assert!(met(counters), "{counters:?}");
    leaves_nothing(mounted, pool).await;
}

/// An operation that waits for memory gives up when the mount has been idle for some time, because
/// then no memory can come back.
#[tokio::test]
async fn a_mount_is_not_idle_while_the_memory_of_its_calls_is_given_back() {
    let device = Device {
        posted_invalidation: true,
        ..Device::default()
    };
    let server = Server::start(device, Manners::default(), |_| Act::Answer);
    let f = server.plant(b"f", &pattern(20_000, 3));
    let plan = Plan {
        delay: Duration::from_millis(300),
        ..Plan::default()
    };
    let (mounted, pool) = server.mount_faulty(plan).await;
    let client = mounted.client.clone();
    let ended = || client.stats().procedures[Read::NUMBER as usize].calls;
    let reading = read(&mounted, &pool, &f, 20_000, 4096);
    let watching = async {
        until("the server has the call", || {
            !server.calls::<Read>().is_empty()
        })
        .await;
        until("the mount is idle", || client.is_idle()).await;
        assert_eq!(ended(), 1, "idle, and the call has not ended");
    };
    let (data, ()) = tokio::join!(reading, watching);
    assert_eq!(data, pattern(20_000, 3));
    drop(client);
    leaves_nothing(mounted, pool).await;
}

/// The number of calls that wait for a credit is not bounded: they must leave the pool alone.
#[tokio::test]
async fn calls_that_wait_for_a_credit_leave_the_pool_alone() {
    let server = Server::scripted::<Getattr>(|_, n| match n {
        0 => Act::Answer,
        _ => Act::Silence,
    });
    let (mounted, pool) = server.mount(&options()).await;
    let before = pool.free_bytes();
    let number = pool.capacity() / 4096;
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..number {
        let (client, root) = (mounted.client.clone(), mounted.root);
        callers.spawn(async move { client.getattr(&cred(), &root).await.map(|_| ()) });
    }
    until("all calls wait", || {
        let connection = &mounted.client.stats().connections[0];
        (connection.waiting + connection.in_flight) as usize == number
    })
    .await;
    let taken = before - pool.free_bytes();
    assert!(taken <= pool.capacity() / 8, "{taken} bytes of the pool");
    callers.shutdown().await;
    leaves_nothing(mounted, pool).await;
}
