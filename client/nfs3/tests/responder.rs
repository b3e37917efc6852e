//! Mounts of `nfsrdma-responder` over soft-iWARP.

use nfsrdma_iwarp::{IwarpOptions, IwarpProvider};
use nfsrdma_nfs3::{ClientOptions, MountProtocol, MountTarget, Mounted, TransportOptions};
use nfsrdma_nfs3::{Cred, Credential, Nfs3};
use nfsrdma_rdma::Pool;
use nfsrdma_test_support::{Launch, Responder, build_responder};
use nfsrdma_xdr::nfs3::*;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;
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
