//! Every procedure against `nfsrdma-responder` over soft-iWARP: an independent server with
//! real files.

use nfsrdma_iwarp::{IwarpOptions, IwarpProvider};
use nfsrdma_nfs3::{
    ClientOptions, MountProtocol, MountTarget, Mounted, TransportOptions, WriteChunk,
};
use nfsrdma_nfs3::{CreateMode, Cred, Credential, Nfs3, NfsError, Special, Transport};
use nfsrdma_rdma::contract::Segs;
use nfsrdma_rdma::{ConnectParams, Connection, Listener, Pool, Provider, Result as RdmaResult};
use nfsrdma_test_support::{Launch, Responder, build_responder};
use nfsrdma_xdr::nfs3::*;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tempfile::TempDir;

/// The responder, exporting a new directory.
struct Server {
    responder: Responder,
    dir: TempDir,
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
            dir,
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

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251 + seed) as u8).collect()
}

async fn write(mounted: &Mounted, pool: &Pool, file: &FileHandle, bytes: &[u8]) {
    let step = mounted.client.limits().wtmax as usize;
    for (i, part) in bytes.chunks(step).enumerate() {
        let pieces = part.chunks(64 << 10).map(|piece| {
            let mut buf = pool.alloc(piece.len()).unwrap();
            buf.copy_from_slice(piece);
            buf.freeze()
        });
        let data: Segs<_> = pieces.collect();
        let at = (i * step) as u64;
        let cred = cred();
        let done = mounted
            .client
            .write(&cred, file, at, data, Stable::Unstable);
        assert_eq!(done.await.unwrap().count as usize, part.len());
    }
    mounted.client.commit(&cred(), file, 0, 0).await.unwrap();
}

async fn read(mounted: &Mounted, pool: &Pool, file: &FileHandle, len: usize) -> Vec<u8> {
    let step = mounted.client.limits().rtmax as usize;
    let mut all = Vec::new();
    while all.len() < len {
        let want = step.min(len - all.len());
        let mut sink = Segs::new();
        let mut left = want;
        while left > 0 {
            sink.push(pool.alloc(left.min(64 << 10)).unwrap());
            left -= left.min(64 << 10);
        }
        let at = all.len() as u64;
        let done = mounted.client.read(&cred(), file, at, sink).await.unwrap();
        let bytes: Vec<u8> = done.data.iter().flat_map(|b| b.to_vec()).collect();
        assert!(done.count > 0, "the file is longer");
        all.extend_from_slice(&bytes[..done.count as usize]);
    }
    all
}

fn mode(mode: u32) -> SetAttributes {
    SetAttributes {
        mode: Some(mode),
        ..SetAttributes::default()
    }
}

/// READ, WRITE, SETATTR, GETATTR, LOOKUP and ACCESS of the file `f` in `d`.
async fn contents_and_attributes(
    mounted: &Mounted,
    pool: &Pool,
    dir: &Path,
    d: &FileHandle,
    f: &FileHandle,
) {
    let (client, cred) = (&mounted.client, &cred());
    for (seed, len) in [1, 4095, 4096, 65_537, 1_048_573, 1_300_000]
        .into_iter()
        .enumerate()
    {
        let bytes = pattern(len, seed);
        write(mounted, pool, f, &bytes).await;
        assert!(std::fs::read(dir.join("d/f")).unwrap() == bytes, "{len}");
        assert!(read(mounted, pool, f, len).await == bytes, "{len}");
        let truncate = SetAttributes {
            size: Some(0),
            ..SetAttributes::default()
        };
        client.setattr(cred, f, &truncate, None).await.unwrap();
    }
    let attributes = client.getattr(cred, f).await.unwrap();
    assert_eq!((attributes.kind, attributes.size), (FileType::Regular, 0));
    let stale = Time {
        seconds: 1,
        nanoseconds: 1,
    };
    let guarded = client.setattr(cred, f, &mode(0o600), Some(stale)).await;
    assert!(matches!(guarded, Err(NfsError::Status(Status::NotSync))));
    let found = client.lookup(cred, d, b"f").await.unwrap();
    assert_eq!(found.object, *f);
    let (granted, _) = client
        .access(cred, f, access::READ | access::MODIFY)
        .await
        .unwrap();
    assert_eq!(granted, access::READ | access::MODIFY);
}

/// SYMLINK, READLINK, MKNOD, LINK, RENAME and REMOVE.
async fn names(mounted: &Mounted, dir: &Path, d: &FileHandle, f: &FileHandle) {
    let (client, cred, root) = (&mounted.client, &cred(), &mounted.root);
    let target: Vec<u8> = pattern(3000, 5).iter().map(|b| b'a' + b % 26).collect();
    let set = SetAttributes::default();
    let link = client
        .symlink(cred, d, b"l", &target, &set)
        .await
        .unwrap()
        .object
        .unwrap();
    assert_eq!(client.readlink(cred, &link).await.unwrap().0, target);
    client
        .mknod(cred, d, b"p", Special::Fifo, &mode(0o600))
        .await
        .unwrap();
    assert!(
        std::fs::metadata(dir.join("d/p"))
            .unwrap()
            .file_type()
            .is_fifo()
    );
    client.link(cred, f, d, b"f2").await.unwrap();
    assert_eq!(std::fs::metadata(dir.join("d/f")).unwrap().nlink(), 2);
    client.rename(cred, d, b"f2", root, b"f3").await.unwrap();
    assert!(dir.join("f3").exists() && !dir.join("d/f2").exists());
    client.remove(cred, root, b"f3").await.unwrap();
}

/// READDIR and READDIRPLUS of a large directory. Returns its names.
async fn listings(mounted: &Mounted, dir: &Path, d: &FileHandle) -> BTreeSet<Vec<u8>> {
    let (client, cred) = (&mounted.client, &cred());
    let mut expected: BTreeSet<Vec<u8>> = BTreeSet::new();
    for i in 0..500 {
        let name = format!("entry-with-a-longer-name-{i:06}");
        std::fs::write(dir.join("d").join(&name), b"").unwrap();
        expected.insert(name.into_bytes());
    }
    expected.extend([&b"."[..], b"..", b"f", b"x", b"l", b"p"].map(<[u8]>::to_vec));
    for plus in [false, true] {
        let mut listed = BTreeSet::new();
        let (mut cookie, mut verifier) = (0, Verifier::default());
        loop {
            let page = match plus {
                false => client.readdir(cred, d, cookie, verifier, 8192).await,
                true => {
                    client
                        .readdirplus(cred, d, cookie, verifier, 8192, 32_768)
                        .await
                }
            };
            let page = page.unwrap();
            verifier = page.verifier;
            for entry in &page.entries {
                assert!(listed.insert(entry.name.to_vec()), "an entry comes once");
                cookie = entry.cookie;
                assert!(!plus || entry.attributes.is_some());
            }
            if page.eof {
                break;
            }
        }
        assert_eq!(listed, expected);
    }
    expected
}

/// Calls all 22 procedures at least once, and compares each result with the real directory.
async fn everything(mounted: &Mounted, pool: &Pool, dir: &Path) {
    let client = &mounted.client;
    let (cred, root) = (&cred(), &mounted.root);
    client.null(cred).await.unwrap();
    let made = client.mkdir(cred, root, b"d", &mode(0o755)).await.unwrap();
    let d = made.object.unwrap();
    assert!(dir.join("d").is_dir());
    let made = client
        .create(cred, &d, b"f", CreateMode::Guarded, &mode(0o640))
        .await
        .unwrap();
    let f = made.object.unwrap();
    let again = client
        .create(cred, &d, b"f", CreateMode::Guarded, &mode(0o640))
        .await;
    assert!(matches!(again, Err(NfsError::Status(Status::Exist))));
    client
        .create(
            cred,
            &d,
            b"f",
            CreateMode::Unchecked,
            &SetAttributes::default(),
        )
        .await
        .unwrap();
    let made = client
        .create(cred, &d, b"x", CreateMode::Exclusive, &mode(0o600))
        .await
        .unwrap();
    assert_eq!(made.attributes.unwrap().mode & 0o7777, 0o600);
    contents_and_attributes(mounted, pool, dir, &d, &f).await;
    names(mounted, dir, &d, &f).await;
    let expected = listings(mounted, dir, &d).await;
    assert!(client.fsstat(cred, root).await.unwrap().total_bytes > 0);
    assert!(client.fsinfo(cred, root).await.unwrap().rtmax > 0);
    assert_eq!(client.pathconf(cred, root).await.unwrap().name_max, 255);
    let full = client.rmdir(cred, root, b"d").await;
    assert!(matches!(full, Err(NfsError::Status(Status::NotEmpty))));
    for name in expected.iter().filter(|name| !name.starts_with(b".")) {
        client.remove(cred, &d, name).await.unwrap();
    }
    client.rmdir(cred, root, b"d").await.unwrap();
    assert!(!dir.join("d").exists());
    let gone = client.lookup(cred, root, b"d").await;
    assert!(matches!(gone, Err(NfsError::Status(Status::NoEnt))));
}

#[tokio::test]
async fn all_procedures_with_every_transport_setting() {
    for (server_inline, inline) in [
        ("1024", 1024),
        ("4096", 4096),
        ("65536", 65_536),
        ("1024", 65_536),
    ] {
        let server = Server::start(&["--inline", server_inline]);
        for credits in [1, 64] {
            for (size, write_chunk) in [
                (4096, WriteChunk::PositionZero),
                (65_536, WriteChunk::Reduced),
                (1 << 20, WriteChunk::PositionZero),
                (1 << 20, WriteChunk::Reduced),
            ] {
                let options = ClientOptions {
                    rsize: Some(size),
                    wsize: Some(size),
                    transport: TransportOptions {
                        inline,
                        credits,
                        write_chunk,
                        ..server.options().transport
                    },
                    ..server.options()
                };
                let (mounted, pool) = server.mount(&options).await;
                everything(&mounted, &pool, server.dir.path()).await;
                let stats = mounted.client.stats();
                // The counters of NFS_ACL follow them.
                let of_nfs = &stats.procedures[..ProcedureNumber::COUNT];
                for (number, procedure) in of_nfs.iter().enumerate() {
                    assert!(procedure.calls > 0, "procedure {number} was not called");
                }
                let connection = &stats.connections[0];
                assert_eq!((connection.open_registrations, connection.connects), (0, 1));
                assert_eq!((connection.discards, connection.violations), (0, 0));
                mounted.unmount().await;
            }
        }
    }
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
        assert_eq!(mounted.root_attributes.kind, FileType::Directory);
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

/// Waits until each connection was made `times` times; one that carries no call is made later.
async fn connected(mounted: &Mounted, times: u64) {
    let all = || mounted.client.stats().connections;
    for _ in 0..600 {
        if all().iter().all(|c| c.connects >= times) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("not all connections were made {times} times: {:?}", all());
}

#[tokio::test]
async fn calls_survive_restarts_of_the_server() {
    let mut server = Server::start(&[]);
    let options = ClientOptions {
        transport: TransportOptions {
            timeo: Duration::from_secs(5),
            nconnect: 2,
            ..server.options().transport
        },
        ..server.options()
    };
    let (mounted, pool) = server.mount(&options).await;
    let root = mounted.root;
    let (user, set) = (cred(), mode(0o644));
    let made = mounted
        .client
        .create(&user, &root, b"f", CreateMode::Unchecked, &set);
    let f = made.await.unwrap().object.unwrap();
    let bytes = pattern(3_000_000, 9);
    write(&mounted, &pool, &f, &bytes).await;
    connected(&mounted, 1).await;
    for round in 1..=3 {
        server.responder.kill().unwrap();
        let starting = async {
            // While calls wait for the server.
            tokio::time::sleep(Duration::from_millis(300)).await;
            server.responder.start_again().unwrap();
        };
        let (reading, ()) = tokio::join!(
            async {
                let (client, pool, f, len) = (&mounted, &pool, &f, bytes.len());
                tokio::time::timeout(Duration::from_secs(60), read(client, pool, f, len)).await
            },
            starting
        );
        assert!(reading.expect("answered after the restart") == bytes);
        connected(&mounted, round + 1).await;
    }
    mounted.client.shutdown();
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
        nfsrdma_rpcrdma::exec::deferring(|| {
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
