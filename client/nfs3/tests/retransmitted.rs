//! Calls that are not idempotent, sent twice because the connection ended before the reply,
//! to a server that remembers no calls.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::*;
use nfsrdma_nfs3::{CreateMode, Cred, Credential, Nfs3, NfsError, Special};
use nfsrdma_xdr::nfs3::*;
use std::sync::Arc;

fn cred() -> Cred {
    Arc::new(Credential {
        uid: 0,
        gid: 0,
        groups: vec![],
    })
}

/// A server that runs the first call of `P` and hangs up instead of answering.
fn forgetful<P: Procedure>() -> Server {
    Server::scripted::<P>(|_, n| match n {
        0 => Act::RunThenHangup,
        _ => Act::Answer,
    })
}

/// A server that hangs up before it runs the first call of `P`.
fn clumsy<P: Procedure>() -> Server {
    Server::scripted::<P>(|_, n| match n {
        0 => Act::Hangup,
        _ => Act::Answer,
    })
}

fn is<T>(result: Result<T, NfsError>, status: Status) -> bool {
    matches!(result, Err(NfsError::Status(s)) if s == status)
}

#[tokio::test]
async fn mkdir() {
    let plain = SetAttributes::default();
    let server = forgetful::<Mkdir>();
    let (mounted, _pool) = server.mount(&options()).await;
    let (client, root) = (&mounted.client, &mounted.root);
    let made = client.mkdir(&cred(), root, b"d", &plain).await.unwrap();
    assert_eq!(made.object, Some(handle_of(b"d")));
    // Sent once: an honest EXIST.
    assert!(is(
        client.mkdir(&cred(), root, b"d", &plain).await,
        Status::Exist
    ));
    mounted.unmount().await;

    // Sent twice, but what is there is something else.
    let server = clumsy::<Mkdir>();
    server.files.lock().dirs.insert(b"d".to_vec());
    let (mounted, _pool) = server.mount(&options()).await;
    let private = SetAttributes {
        mode: Some(0o700),
        ..plain
    };
    let result = mounted
        .client
        .mkdir(&cred(), &mounted.root, b"d", &private)
        .await;
    assert!(is(result, Status::Exist));
    mounted.unmount().await;
}

#[tokio::test]
async fn symlink() {
    let plain = SetAttributes::default();
    let server = forgetful::<Symlink>();
    let (mounted, _pool) = server.mount(&options()).await;
    let (client, root) = (&mounted.client, &mounted.root);
    client
        .symlink(&cred(), root, b"l", b"there", &plain)
        .await
        .unwrap();
    let again = client.symlink(&cred(), root, b"l", b"there", &plain).await;
    assert!(is(again, Status::Exist));
    mounted.unmount().await;

    let server = clumsy::<Symlink>();
    let elsewhere = (b"l".to_vec(), b"elsewhere".to_vec());
    server.files.lock().links.extend([elsewhere]);
    let (mounted, _pool) = server.mount(&options()).await;
    let result = mounted
        .client
        .symlink(&cred(), &mounted.root, b"l", b"there", &plain)
        .await;
    assert!(is(result, Status::Exist));
    mounted.unmount().await;
}

#[tokio::test]
async fn guarded_create() {
    let plain = SetAttributes::default();
    let server = forgetful::<Create>();
    let (mounted, _pool) = server.mount(&options()).await;
    let (client, root) = (&mounted.client, &mounted.root);
    let who = cred();
    client
        .create(&who, root, b"f", CreateMode::Guarded, &plain)
        .await
        .unwrap();
    let again = client
        .create(&who, root, b"f", CreateMode::Guarded, &plain)
        .await;
    assert!(is(again, Status::Exist));
    mounted.unmount().await;

    // A file with contents is not the one made.
    let server = clumsy::<Create>();
    let full = (b"f".to_vec(), b"contents".to_vec());
    server.files.lock().files.extend([full]);
    let (mounted, _pool) = server.mount(&options()).await;
    let result = mounted
        .client
        .create(&who, &mounted.root, b"f", CreateMode::Guarded, &plain);
    assert!(is(result.await, Status::Exist));
    mounted.unmount().await;
}

#[tokio::test]
async fn rename() {
    let server = forgetful::<Rename>();
    server.plant(b"a", b"1".to_vec());
    let (mounted, _pool) = server.mount(&options()).await;
    let (client, root) = (&mounted.client, &mounted.root);
    let who = cred();
    client.rename(&who, root, b"a", root, b"b").await.unwrap();
    assert_eq!(server.files.lock().files[&b"b"[..]], b"1");
    let again = client.rename(&who, root, b"a", root, b"b").await;
    assert!(is(again, Status::NoEnt));
    mounted.unmount().await;

    // Sent twice, and nothing has the new name: it never happened.
    let server = clumsy::<Rename>();
    let (mounted, _pool) = server.mount(&options()).await;
    let root = &mounted.root;
    let result = mounted.client.rename(&who, root, b"a", root, b"b").await;
    assert!(is(result, Status::NoEnt));
    mounted.unmount().await;
}

#[tokio::test]
async fn link() {
    let server = forgetful::<Link>();
    server.plant(b"a", vec![]);
    let (mounted, _pool) = server.mount(&options()).await;
    let (client, root) = (&mounted.client, &mounted.root);
    let who = cred();
    let file = handle_of(b"a");
    client.link(&who, &file, root, b"b").await.unwrap();
    let again = client.link(&who, &file, root, b"b").await;
    assert!(is(again, Status::Exist));
    mounted.unmount().await;

    // Another file has the name.
    let server = clumsy::<Link>();
    let other = (b"b".to_vec(), handle_of(b"other"));
    server.files.lock().aliases.extend([other]);
    let (mounted, _pool) = server.mount(&options()).await;
    let result = mounted.client.link(&who, &file, &mounted.root, b"b").await;
    assert!(is(result, Status::Exist));
    mounted.unmount().await;
}

#[tokio::test]
async fn mknod() {
    let plain = SetAttributes::default();
    let device = SpecData { major: 1, minor: 3 };
    for special in [
        Special::Fifo,
        Special::Socket,
        Special::Block(device),
        Special::Character(device),
    ] {
        let server = forgetful::<Mknod>();
        let (mounted, _pool) = server.mount(&options()).await;
        let (client, root) = (&mounted.client, &mounted.root);
        let who = cred();
        let made = client.mknod(&who, root, b"n", special, &plain).await;
        assert_eq!(made.unwrap().object, Some(handle_of(b"n")));
        let again = client.mknod(&who, root, b"n", special, &plain).await;
        assert!(is(again, Status::Exist));
        mounted.unmount().await;
    }

    // Sent twice, but what is there is something else.
    let server = clumsy::<Mknod>();
    let socket = (b"n".to_vec(), FileType::Socket);
    server.files.lock().special.nodes.extend([socket]);
    let (mounted, _pool) = server.mount(&options()).await;
    let (client, root, who) = (&mounted.client, &mounted.root, cred());
    let made = client.mknod(&who, root, b"n", Special::Fifo, &plain).await;
    assert!(is(made, Status::Exist));
    mounted.unmount().await;
}

#[tokio::test]
async fn rmdir() {
    let server = forgetful::<Rmdir>();
    server.files.lock().dirs.insert(b"d".to_vec());
    let (mounted, _pool) = server.mount(&options()).await;
    let (client, root) = (&mounted.client, &mounted.root);
    client.rmdir(&cred(), root, b"d").await.unwrap();
    assert!(server.files.lock().dirs.is_empty());
    let again = client.rmdir(&cred(), root, b"d").await;
    assert!(is(again, Status::NoEnt));
    mounted.unmount().await;
}

#[tokio::test]
async fn guarded_setattr() {
    let new = SetAttributes {
        mode: Some(0o600),
        ..SetAttributes::default()
    };
    // The ctime of everything there, before.
    let guard = Some(Time {
        seconds: 1,
        nanoseconds: 2,
    });
    let file = handle_of(b"f");
    let server = forgetful::<Setattr>();
    let (mounted, _pool) = server.mount(&options()).await;
    let client = &mounted.client;
    let wcc = client.setattr(&cred(), &file, &new, guard).await.unwrap();
    assert_eq!(wcc.after.unwrap().mode, 0o600);
    // Sent once: an honest NOT_SYNC.
    let again = client.setattr(&cred(), &file, &new, guard).await;
    assert!(is(again, Status::NotSync));
    mounted.unmount().await;

    // Sent twice, but somebody else made it something else.
    let server = clumsy::<Setattr>();
    let changed = (b"f".to_vec(), (0o640, 7));
    server.files.lock().special.set.extend([changed]);
    let (mounted, _pool) = server.mount(&options()).await;
    let result = mounted.client.setattr(&cred(), &file, &new, guard).await;
    assert!(is(result, Status::NotSync));
    mounted.unmount().await;
}
