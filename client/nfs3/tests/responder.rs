//! Mounts of `nfsrdma-responder` over soft-iWARP, and calls that are put off.

use nfsrdma_iwarp::{IwarpOptions, IwarpProvider};
use nfsrdma_nfs3::{ClientOptions, MountProtocol, MountTarget, Mounted, TransportOptions};
use nfsrdma_nfs3::{Cred, Credential, Nfs3, Transport};
use nfsrdma_rdma::{ConnectParams, Connection, Listener, Pool, Provider, Result as RdmaResult};
use nfsrdma_test_support::{Launch, Responder, build_responder};
use nfsrdma_xdr::nfs3::*;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The responder, exporting a new directory.
struct Server {
    responder: Responder,
    _dir: TempDir,
    _state: TempDir,
}

impl Server {
    fn start(arguments: &[&str]) -> Self {
        let (dir, state) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let export = format!("/export={}", dir.path().display());
        let responder = Launch::new(&build_responder().unwrap(), export, state.path())
            .arguments(["--mount-port", "0", "--no-root-squash"])
            .arguments(arguments)
            .start();
        Server {
            responder: responder.unwrap(),
            _dir: dir,
            _state: state,
        }
    }

    fn options(&self) -> ClientOptions {
        ClientOptions {
            port: self.responder.rdma,
            mountport: Some(self.responder.mount),
            resvport: false,
            transport: TransportOptions {
                connect_timeout: Duration::from_secs(20),
                ..TransportOptions::default()
            },
            ..ClientOptions::default()
        }
    }

    async fn mount(&self, options: &ClientOptions) -> (Mounted, Pool) {
        let pool = Pool::new(64 << 20).unwrap();
        let target = MountTarget::parse("127.0.0.1:/export").unwrap();
        let provider = Arc::new(IwarpProvider::new(IwarpOptions::default()));
        let mounted = nfsrdma_nfs3::connect(&target, options, provider, pool.clone()).await;
        (mounted.unwrap(), pool)
    }
}

fn cred() -> Cred {
    let own = std::fs::metadata("/proc/self").unwrap();
    Arc::new(Credential {
        uid: own.uid(),
        gid: own.gid(),
        groups: vec![],
    })
}

//= RFC 8267, Section 5.1
//= type=test
//# To enable interoperation of these protocols when NFS/RDMA is [...]
#[tokio::test]
async fn mount_over_rdma_and_by_tcp_and_refusals() {
    let server = Server::start(&[]);
    let rdma = ClientOptions {
        mountproto: MountProtocol::Rdma,
        mountport: None,
        ..server.options()
    };
    for options in [server.options(), rdma] {
        let (mounted, pool) = server.mount(&options).await;
        let root = mounted.client.getattr(&cred(), &mounted.root).await;
        assert_eq!(root.unwrap().kind, FileType::Directory);
        mounted.unmount().await;
        let target = MountTarget::parse("127.0.0.1:/nothing").unwrap();
        let provider = Arc::new(IwarpProvider::new(IwarpOptions::default()));
        let error = nfsrdma_nfs3::connect(&target, &options, provider, pool)
            .await
            .unwrap_err();
        assert_eq!(error.step, nfsrdma_nfs3::mount::Step::Export, "{error}");
    }
}

/// Passes everything on, and counts how often the end of a process waited for answers.
#[derive(Debug, Default)]
struct Watched {
    provider: IwarpProvider,
    awaited: AtomicUsize,
}

impl Provider for Watched {
    fn name(&self) -> &'static str {
        self.provider.name()
    }

    fn connect(&self, peer: SocketAddr, params: &ConnectParams) -> RdmaResult<Connection> {
        self.provider.connect(peer, params)
    }

    fn await_answers(&self) -> bool {
        self.awaited.fetch_add(1, Relaxed);
        self.provider.await_answers()
    }

    fn listen(&self, local: SocketAddr) -> RdmaResult<Box<dyn Listener>> {
        self.provider.listen(local)
    }
}

/// Linux's siw loses its listener if a connection ends before it was accepted.
#[tokio::test]
async fn whoever_ends_a_mount_waits_for_connections_that_are_being_made() {
    let server = Server::start(&[]);
    let pool = Pool::new(64 << 20).unwrap();
    let target = MountTarget::parse("127.0.0.1:/export").unwrap();
    let watched = Arc::new(Watched::default());
    let options = server.options();
    let connecting = nfsrdma_nfs3::connect(&target, &options, watched.clone(), pool);
    let mounted = connecting.await.unwrap();
    let before = watched.awaited.load(Relaxed);
    mounted.unmount().await;
    assert_eq!(watched.awaited.load(Relaxed), before + 1);
}

/// With the server away, under a name that nobody resolves, and with a mountd that nobody answers for.
#[tokio::test]
async fn a_mount_is_gone_on_with_by_its_record_alone() {
    let mut server = Server::start(&[]);
    let (mounted, pool) = server.mount(&server.options()).await;
    let text = serde_json::to_string(&mounted.found()).unwrap();
    mounted.client.shutdown();
    server.responder.kill().unwrap();
    let target = MountTarget::parse("no-such-host.invalid:/export").unwrap();
    let options = ClientOptions {
        mountport: Some(1),
        ..server.options()
    };
    let found = serde_json::from_str(&text).unwrap();
    let provider = Arc::new(IwarpProvider::new(IwarpOptions::default()));
    let resumed = nfsrdma_nfs3::mount::resume(&target, &options, &found, provider, pool).unwrap();
    assert_eq!(resumed.client.limits(), mounted.client.limits());
    assert_eq!(resumed.found(), found);
    let (user, root) = (cred(), resumed.root);
    let mut waiting = std::pin::pin!(resumed.client.getattr(&user, &root));
    let failed = || resumed.client.stats().connections[0].connect_failures;
    while failed() == 0 {
        let pause = Duration::from_millis(10);
        assert!(tokio::time::timeout(pause, &mut waiting).await.is_err());
    }
    server.responder.start_again().unwrap();
    assert_eq!(waiting.await.unwrap().kind, FileType::Directory);
    resumed.unmount().await;
}

/// Deferred calls are sent by the flush, or when the next reply arrives.
#[tokio::test(flavor = "multi_thread")]
async fn calls_put_off_are_sent() {
    let responder = Server::start(&[]);
    let (mounted, _pool) = responder.mount(&responder.options()).await;
    let client = mounted.client.clone();
    let root = mounted.root;
    for flush in [true, false] {
        let mut answers = Vec::new();
        nfsrdma_rpcrdma::exec::deferring(Instant::now(), || {
            for _ in 0..48 {
                let (give, take) = tokio::sync::oneshot::channel();
                let client = client.clone();
                nfsrdma_rpcrdma::exec::spawn(async move {
                    let _ = give.send(client.getattr(&cred(), &root).await);
                });
                answers.push(take);
            }
        });
        if flush {
            client.kick();
            assert_eq!(client.deferred(), 0);
        }
        for answer in answers {
            let attributes = answer.await.unwrap().unwrap();
            assert_eq!(attributes.kind, FileType::Directory);
        }
    }
    mounted.unmount().await;
}
