//! What the link and the server allow: the same calls to the server, without the kernel and FUSE, on
//! connections as the mount has them.

use super::place::{Stop, Term};
use super::through::{Extent, PAGE, fill};
use super::timing::Times;
use crate::failure::{Exit, Failure};
use crate::mount::{provider, settings};
use crate::options::Options;
use crate::options::mount_source::MountSource;
use nfsrdma_nfs3::{
    CreateMode, Cred, Mounted, Nfs3, NfsError, NfsResult, Transport, own_credential,
};
use nfsrdma_rdma::contract::Segs;
use nfsrdma_rdma::{Buf, Pool};
use nfsrdma_xdr::nfs3::{FileHandle, SetAttributes, Stable};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Calls under way for large data.
const DEPTH: u64 = 8;

/// What was measured without FUSE.
#[derive(Debug, Default)]
pub(super) struct Wire {
    pub(super) credits: u32,
    /// The provider's description of a connection.
    pub(super) link: String,
    pub(super) provider: String,
    /// A call with a small reply, which is the way there and back.
    pub(super) null: Times,
    pub(super) getattr: Times,
    pub(super) read_4k: Times,
    /// A WRITE that is stable when it is answered.
    pub(super) sync_4k: Times,
    /// A WRITE that is not, and its COMMIT.
    pub(super) commit_4k: Times,
    pub(super) create: Times,
    pub(super) remove: Times,
    pub(super) write_mb_s: f64,
    pub(super) read_mb_s: f64,
}

/// The connections, and the directory of the benchmark.
struct Bench {
    mounted: Arc<Mounted>,
    cred: Cred,
    pool: Pool,
    dir: FileHandle,
    extent: Extent,
    stop: Stop,
}

/// Measures in the directory `below` the root of the export, where the file `large` is.
pub(super) async fn measure(
    spec: &MountSource,
    options: &Options,
    below: &Path,
    extent: Extent,
    stop: &Stop,
) -> Result<Wire, Failure> {
    let target = settings::target(spec);
    let chosen = provider::choose(options, &target.host)?;
    let bytes = settings::pool_bytes(options, &settings::file_system(options));
    let pool = Pool::new(bytes).map_err(|e| Failure::new(Exit::System, e.to_string()))?;
    let client = settings::client(options);
    let mounted = nfsrdma_nfs3::connect(&target, &client, chosen.provider.clone(), pool.clone());
    let mounted = Arc::new(mounted.await.map_err(|error| chosen.failed(error))?);
    let measured = on(&mounted, pool, below, extent, stop).await;
    mounted.unmount().await;
    measured.map_err(|error| {
        Failure::failed(format!(
            "a call of the measurement failed at the server: {error}"
        ))
    })
}

async fn on(
    mounted: &Arc<Mounted>,
    pool: Pool,
    below: &Path,
    extent: Extent,
    stop: &Stop,
) -> NfsResult<Wire> {
    let cred = own_credential();
    let mut dir = mounted.root;
    for name in below.iter().map(OsStr::as_bytes) {
        dir = mounted.client.lookup(&cred, &dir, name).await?.object;
    }
    let bench = Bench {
        mounted: mounted.clone(),
        cred,
        pool,
        dir,
        extent,
        stop: stop.clone(),
    };
    let described = mounted.description.as_ref();
    let mut wire = Wire {
        credits: described.map_or(0, |of| of.credits),
        link: described.map(|of| of.link.clone()).unwrap_or_default(),
        provider: mounted.client.provider().to_owned(),
        ..Wire::default()
    };
    let name = b"wire";
    let new = SetAttributes {
        mode: Some(0o600),
        ..SetAttributes::default()
    };
    let client = &mounted.client;
    let made = client.create(&bench.cred, &bench.dir, name, CreateMode::Unchecked, &new);
    let file = made.await?.object;
    let file = file.ok_or_else(|| NfsError::PeerMisbehaved("CREATE gave no handle".into()))?;
    let measured = bench.files(&file, &mut wire).await;
    // The mount may not see its name, so it is removed here also after a failure.
    let removed = client.remove(&bench.cred, &bench.dir, name).await;
    measured?;
    removed?;
    bench.names(&mut wire).await?;
    Ok(wire)
}

/// Makes calls one after the other, and times each.
async fn each<F>(
    times: &mut Times,
    most: usize,
    term: &Term,
    mut call: impl FnMut(usize) -> F,
) -> NfsResult<()>
where
    F: Future<Output = NfsResult<()>>,
{
    for number in 0..most {
        if term.is_over() {
            break;
        }
        let begun = Instant::now();
        call(number).await?;
        times.add(begun.elapsed());
    }
    Ok(())
}

impl Bench {
    /// A fourth of the time of a measurement through the mount: these calls vary less.
    fn term(&self) -> Term {
        self.stop.within(self.extent.time / 4)
    }

    fn buffer(&self, size: usize) -> NfsResult<Buf> {
        let buffer = self.pool.alloc(size);
        let mut buffer = buffer.ok_or_else(|| NfsError::Local("no memory".into()))?;
        fill(&mut buffer);
        Ok(buffer.freeze())
    }

    async fn files(&self, file: &FileHandle, wire: &mut Wire) -> NfsResult<()> {
        let (client, cred) = (&self.mounted.client, &self.cred);
        let most = self.extent.small;
        each(&mut wire.null, most, &self.term(), |_| client.null(cred)).await?;
        let getattr = |_| async { client.getattr(cred, &self.dir).await.map(drop) };
        each(&mut wire.getattr, most, &self.term(), getattr).await?;
        wire.write_mb_s = self.write(file).await?;
        wire.read_mb_s = self.read(file).await?;
        let page = self.buffer(PAGE)?;
        let read = |number: usize| async move {
            let sink = self.pool.alloc(PAGE);
            let sink = sink.ok_or_else(|| NfsError::Local("no memory".into()))?;
            // The first MiB was written whatever the time allowed.
            let at = (number * 7 % 256 * PAGE) as u64;
            client
                .read(cred, file, at, Segs::from_iter([sink]))
                .await
                .map(drop)
        };
        each(&mut wire.read_4k, most, &self.term(), read).await?;
        let write = |number: usize, stable| {
            let (data, at) = (Segs::from_iter([page.clone()]), (number % 16 * PAGE) as u64);
            client.write(cred, file, at, data, stable)
        };
        let synced = |number| {
            let written = write(number, Stable::FileSync);
            async { written.await.map(drop) }
        };
        each(&mut wire.sync_4k, most, &self.term(), synced).await?;
        let committed = |number| {
            let written = write(number, Stable::Unstable);
            async {
                written.await?;
                client.commit(cred, file, 0, 0).await.map(drop)
            }
        };
        each(&mut wire.commit_4k, most, &self.term(), committed).await
    }

    /// Makes and removes empty files.
    async fn names(&self, wire: &mut Wire) -> NfsResult<()> {
        let (client, cred, dir) = (&self.mounted.client, &self.cred, &self.dir);
        let name = |number: usize| format!("wire-{number}").into_bytes();
        let new = SetAttributes::default();
        let create = |number| {
            let new = &new;
            async move {
                let name = name(number);
                let made = client.create(cred, dir, &name, CreateMode::Unchecked, new);
                made.await.map(drop)
            }
        };
        let created = each(&mut wire.create, self.extent.small, &self.term(), create).await;
        // All of them are removed, whatever the time.
        let term = Stop::never().within(Duration::from_secs(3600));
        let made = wire.create.count() + usize::from(created.is_err());
        let remove =
            |number| async move { client.remove(cred, dir, &name(number)).await.map(drop) };
        let removed = each(&mut wire.remove, made, &term, remove).await;
        created.and(removed)
    }

    /// Runs calls of `size` bytes, several at a time, until `bytes` have been moved or time is over. Returns
    /// the bytes.
    async fn stream<F>(
        &self,
        size: u64,
        bytes: u64,
        call: impl Fn(u64) -> F + Clone + Send + 'static,
    ) -> NfsResult<u64>
    where
        F: Future<Output = NfsResult<()>> + Send + 'static,
    {
        let next = Arc::new(AtomicU64::new(0));
        let term = self.stop.within(self.extent.time / 2);
        let mut tasks = JoinSet::new();
        for _ in 0..DEPTH {
            let (next, term, call) = (next.clone(), term.clone(), call.clone());
            tasks.spawn(async move {
                let mut moved = 0;
                loop {
                    let at = next.fetch_add(size, Relaxed);
                    // The first one is moved whatever the time.
                    if at + size > bytes || (at > 0 && term.is_over()) {
                        return Ok::<u64, NfsError>(moved);
                    }
                    call(at).await?;
                    moved += size;
                }
            });
        }
        let mut moved = 0;
        while let Some(task) = tasks.join_next().await {
            moved += task.map_err(|error| NfsError::Local(error.to_string()))??;
        }
        Ok(moved)
    }

    async fn write(&self, file: &FileHandle) -> NfsResult<f64> {
        let size = self.mounted.client.limits().wtmax as usize;
        let (data, file) = (self.buffer(size)?, *file);
        let (mounted, cred) = (self.mounted.clone(), self.cred.clone());
        let begun = Instant::now();
        let call = move |at| {
            let (mounted, cred) = (mounted.clone(), cred.clone());
            let data = Segs::from_iter([data.clone()]);
            async move {
                let write = mounted
                    .client
                    .write(&cred, &file, at, data, Stable::Unstable);
                write.await.map(drop)
            }
        };
        let moved = self
            .stream(size as u64, self.extent.large_bytes / 2, call)
            .await?;
        self.mounted.client.commit(&self.cred, &file, 0, 0).await?;
        Ok(moved as f64 / 1e6 / begun.elapsed().as_secs_f64())
    }

    async fn read(&self, file: &FileHandle) -> NfsResult<f64> {
        let written = self.mounted.client.getattr(&self.cred, file).await?.size;
        let size = u64::from(self.mounted.client.limits().rtmax).min(written.max(1));
        let (mounted, cred, pool) = (self.mounted.clone(), self.cred.clone(), self.pool.clone());
        let file = *file;
        let begun = Instant::now();
        let call = move |at| {
            let (mounted, cred, pool) = (mounted.clone(), cred.clone(), pool.clone());
            async move {
                let sink = pool.alloc(size as usize);
                let sink = sink.ok_or_else(|| NfsError::Local("no memory".into()))?;
                let read = mounted
                    .client
                    .read(&cred, &file, at, Segs::from_iter([sink]));
                read.await.map(drop)
            }
        };
        let moved = self.stream(size, written, call).await?;
        Ok(moved as f64 / 1e6 / begun.elapsed().as_secs_f64())
    }
}
