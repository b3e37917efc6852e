//! The client without FUSE and without caches: READs straight to the server. What the wire,
//! the provider, the requester and the server allow.

use anyhow::{Context, Result, anyhow};
use nfsrdma_iwarp::{IwarpOptions, IwarpProvider};
use nfsrdma_nfs3::{ClientOptions, MountTarget, Mounted};
use nfsrdma_nfs3::{Cred, Credential, Nfs3, Transport};
use nfsrdma_rdma::Pool;
use nfsrdma_rdma::contract::Segs;
use nfsrdma_xdr::nfs3::{FileHandle, Stable};
use serde::Serialize;
use std::sync::Arc;
use std::time::Instant;

/// READs in flight for sequential reading.
const STREAM_DEPTH: usize = 8;

/// What was measured.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Figures {
    pub(crate) read_1m_mb_s: f64,
    pub(crate) write_1m_mb_s: f64,
    pub(crate) read_4k_d1_per_s: f64,
    pub(crate) read_4k_d32_per_s: f64,
    pub(crate) getattr_per_s: f64,
}

/// Where the server is.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    /// `SERVER:/EXPORT`.
    pub(crate) target: String,
    pub(crate) port: u16,
    pub(crate) mountport: u16,
}

/// Runs `depth` tasks of `count` calls together; calls a second.
async fn together<F, W>(depth: usize, count: usize, work: W) -> Result<f64>
where
    F: Future<Output = Result<()>> + Send + 'static,
    W: Fn(usize) -> F + Clone + Send + 'static,
{
    let begin = Instant::now();
    let tasks: Vec<_> = (0..depth)
        .map(|first| {
            let work = work.clone();
            let (give, take) = tokio::sync::oneshot::channel();
            // As the file system does: a reply's thread goes on with what waited for it.
            nfsrdma_rpcrdma::exec::spawn(async move {
                let mut result = Ok(());
                for n in (first..count).step_by(depth) {
                    result = work(n).await;
                    if result.is_err() {
                        break;
                    }
                }
                let _ = give.send(result);
            });
            take
        })
        .collect();
    for task in tasks {
        task.await.context("a task was dropped")??;
    }
    Ok(count as f64 / begin.elapsed().as_secs_f64())
}

async fn read(
    mounted: Arc<Mounted>,
    pool: Pool,
    cred: Cred,
    file: FileHandle,
    at: u64,
    size: usize,
) -> Result<()> {
    let sink = Segs::from_iter([pool.alloc(size).context("a buffer")?]);
    let done = mounted.client.read(&cred, &file, at, sink).await?;
    anyhow::ensure!(done.count as usize == size, "READ gave {}", done.count);
    Ok(())
}

/// Measures on the file `large` of `bytes` bytes.
pub(crate) fn measure(server: &Server, bytes: u64, reads: usize) -> Result<Figures> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let pool = Pool::new(64 << 20)?;
        let target = MountTarget::parse(&server.target).map_err(|e| anyhow!(e))?;
        let options = ClientOptions {
            port: server.port,
            mountport: Some(server.mountport),
            ..ClientOptions::default()
        };
        // As a mount has it by default.
        let provider = Arc::new(IwarpProvider::new(IwarpOptions {
            crc: true,
            ..IwarpOptions::default()
        }));
        let mounted = nfsrdma_nfs3::connect(&target, &options, provider, pool.clone()).await?;
        let mounted = Arc::new(mounted);
        let cred: Cred = Arc::new(Credential {
            uid: 0,
            gid: 0,
            groups: Vec::new(),
        });
        let root = mounted.root;
        let file = mounted.client.lookup(&cred, &root, b"large").await?.object;
        let reading = |size: usize, spread: bool| {
            let (mounted, pool, cred) = (mounted.clone(), pool.clone(), cred.clone());
            let pages = bytes / size as u64;
            move |n: usize| {
                let page = match spread {
                    true => (n as u64).wrapping_mul(7919 * 31 + 2) % pages,
                    false => n as u64 % pages,
                };
                read(
                    mounted.clone(),
                    pool.clone(),
                    cred.clone(),
                    file,
                    page * size as u64,
                    size,
                )
            }
        };
        let size = (mounted.client.limits().rtmax as usize).min(1 << 20);
        let stream = together(
            STREAM_DEPTH,
            (bytes / size as u64) as usize,
            reading(size, false),
        );
        let read_1m_mb_s = stream.await? * size as f64 / 1e6;
        let read_4k_d1_per_s = together(1, reads, reading(4096, true)).await?;
        let read_4k_d32_per_s = together(32, reads * 2, reading(4096, true)).await?;
        let getattr = {
            let (mounted, cred) = (mounted.clone(), cred.clone());
            move |_| {
                let (mounted, cred) = (mounted.clone(), cred.clone());
                async move {
                    mounted.client.getattr(&cred, &root).await?;
                    Ok(())
                }
            }
        };
        let getattr_per_s = together(1, reads, getattr).await?;
        let write_1m_mb_s = write(&mounted, &pool, &cred, bytes).await?;
        mounted.unmount().await;
        Ok(Figures {
            read_1m_mb_s,
            write_1m_mb_s,
            read_4k_d1_per_s,
            read_4k_d32_per_s,
            getattr_per_s,
        })
    })
}

async fn write(mounted: &Arc<Mounted>, pool: &Pool, cred: &Cred, bytes: u64) -> Result<f64> {
    use nfsrdma_nfs3::CreateMode;
    let client = &mounted.client;
    let root = mounted.root;
    let scratch = client.lookup(cred, &root, b"scratch").await?.object;
    let made = client
        .create(
            cred,
            &scratch,
            b"wire",
            CreateMode::Unchecked,
            &Default::default(),
        )
        .await?;
    let file = made.object.context("CREATE gave no handle")?;
    let size = (client.limits().wtmax as usize).min(1 << 20);
    let mut source = pool.alloc(size).context("a buffer")?;
    source.fill(0x5a);
    let source = source.freeze();
    let begin = Instant::now();
    let work = {
        let (mounted, cred) = (mounted.clone(), cred.clone());
        move |n: usize| {
            let (mounted, cred) = (mounted.clone(), cred.clone());
            let data = Segs::from_iter([source.clone()]);
            async move {
                let at = (n * size) as u64;
                let call = mounted
                    .client
                    .write(&cred, &file, at, data, Stable::Unstable);
                let done = call.await?;
                anyhow::ensure!(done.count as usize == size, "WRITE took {}", done.count);
                Ok(())
            }
        }
    };
    let count = (bytes / size as u64) as usize;
    together(STREAM_DEPTH, count, work).await?;
    client.commit(cred, &file, 0, 0).await?;
    let seconds = begin.elapsed().as_secs_f64();
    client.remove(cred, &scratch, b"wire").await?;
    Ok((count * size) as f64 / 1e6 / seconds)
}
