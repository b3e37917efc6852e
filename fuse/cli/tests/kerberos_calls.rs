//! Calls of NFS under contexts of Kerberos, from a user's ticket to files of that user: helpers, the
//! transport over soft-iWARP, and the responder in a real realm.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use nfsrdma::kerberos::driver::Helpers;
use nfsrdma::kerberos::establish::Kerberos;
use nfsrdma_iwarp::{IwarpOptions, IwarpProvider};
use nfsrdma_nfs3::options::{Flavor, Mechanism};
use nfsrdma_nfs3::{ClientOptions, CreateMode, Cred, Credential, MountTarget, Nfs3};
use nfsrdma_rdma::Pool;
use nfsrdma_rdma::contract::Segs;
use nfsrdma_rpcrdma::security::Service;
use nfsrdma_test_support::{Launch, Realm, build_responder, in_realm};
use nfsrdma_xdr::nfs3::{SetAttributes, Stable};
use rustix::process::geteuid;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The user with alice's ticket, and who she is at the server.
const HERE: u32 = 1001;
const THERE: u32 = 1007;

#[test]
fn calls_are_made_under_contexts() {
    if !geteuid().is_root() {
        println!("skipped: only root makes contexts of other users");
        return;
    }
    let prepare = |realm: &mut Realm| {
        let cache = realm.cache(HERE);
        realm.kinit("alice", "1h", &cache).unwrap();
        chown(&cache, Some(HERE), Some(HERE)).unwrap();
        build_responder().unwrap();
        Vec::new()
    };
    in_realm("calls_are_made_under_contexts", prepare, |place| {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap();
        for service in Service::ALL {
            let task = with(place.to_owned(), *service, runtime.handle().clone());
            runtime.block_on(task);
        }
    });
}

async fn with(place: PathBuf, service: Service, runtime: tokio::runtime::Handle) {
    let name = format!("export-{}", service.pseudo_flavor());
    let export = place.join(&name);
    fs::create_dir(&export).unwrap();
    fs::set_permissions(&export, fs::Permissions::from_mode(0o755)).unwrap();
    chown(&export, Some(THERE), Some(THERE)).unwrap();
    let keytab = place.join("krb5.keytab").to_str().unwrap().to_owned();
    let responder = Launch::new(
        &build_responder().unwrap(),
        format!("/export={}", export.display()),
        &place.join(format!("state-{name}")),
    )
    .arguments(["--mount-port", "0", "--sec", "sys:krb5:krb5i:krb5p"])
    .arguments(["--keytab", &keytab])
    .arguments(["--principal", &format!("alice={THERE}:{THERE}")])
    .start()
    .unwrap();

    let mut helpers = Helpers::new("nfs@localhost");
    helpers.program = env!("CARGO_BIN_EXE_nfsrdma").into();
    helpers.keytab = keytab;
    helpers.directories = Vec::new();
    helpers.config = std::env::var_os("KRB5_CONFIG").map(PathBuf::from);
    let kerberos = Kerberos::new(helpers, responder.nfs, runtime);
    let options = ClientOptions {
        port: responder.rdma,
        mountport: Some(responder.mount),
        resvport: false,
        flavors: vec![Flavor::Kerberos(service)],
        mechanism: Some(Mechanism(Arc::new(kerberos))),
        ..ClientOptions::default()
    };
    let pool = Pool::new(64 << 20).unwrap();
    let target = MountTarget::parse("127.0.0.1:/export").unwrap();
    let provider = Arc::new(IwarpProvider::new(IwarpOptions::default()));
    let mounted = nfsrdma_nfs3::connect(&target, &options, provider, pool.clone())
        .await
        .unwrap();

    let user = |uid| -> Cred {
        Arc::new(Credential {
            uid,
            gid: uid,
            groups: Vec::new(),
        })
    };
    let (alice, nobody) = (user(HERE), user(HERE + 1));
    let client = &mounted.client;
    let usual = SetAttributes::default();
    let root = &mounted.root;
    let made = client.create(&alice, root, b"file", CreateMode::Unchecked, &usual);
    let file = made.await.unwrap().object.unwrap();
    let data: Vec<u8> = (0..300_000u32).map(|at| (at % 251) as u8).collect();
    let pieces = data.chunks(64 << 10).map(|piece| {
        let mut buf = pool.alloc(piece.len()).unwrap();
        buf.copy_from_slice(piece);
        buf.freeze()
    });
    let pieces: Segs<_> = pieces.collect();
    let wrote = client.write(&alice, &file, 0, pieces, Stable::FileSync);
    assert_eq!(wrote.await.unwrap().count as usize, data.len());
    let mut sink = Segs::new();
    for _ in 0..5 {
        sink.push(pool.alloc(64 << 10).unwrap());
    }
    let read = client.read(&alice, &file, 0, sink).await.unwrap();
    let bytes: Vec<u8> = read.data.iter().flat_map(|buf| buf.to_vec()).collect();
    assert!(bytes[..read.count as usize] == data[..], "{service:?}");

    assert_is(&export.join("file"), THERE, &data);
    let refused = client.getattr(&nobody, &mounted.root).await;
    assert!(refused.is_err(), "a user without a ticket");
    mounted.unmount().await;
}

fn assert_is(path: &Path, uid: u32, data: &[u8]) {
    assert_eq!(fs::metadata(path).unwrap().uid(), uid);
    assert!(fs::read(path).unwrap() == data);
}
