//! What the process of a mount needs besides the connection, the file system and the session, whether
//! it has made the mount or goes on with it: its threads, its sockets, its metrics.

use crate::failure::{Exit, Failure};
use crate::ipc::keeper::Keeper;
use crate::ipc::upgrade_request::{self, Upgradable};
use crate::ipc::{control, exit_watch, flush_request, sleep_request};
use crate::mount::connect::Plan;
use crate::mount::locking::Chosen;
use crate::mount::log::Log;
use crate::mount::record::{MountIdentity, Record};
use crate::mount::service::{Service, Signals};
use crate::mount::{daemon, privileges, remount, settings};
use crate::options::{Options, Restart};
use crate::stats::{self, Life};
use nfsrdma_fs::adapter::{self, Channel, FuseOptions, OwnMount};
use nfsrdma_fs::fs::{Clock, Fs, FsConfig};
use nfsrdma_nfs3::Nfs3Client;
use nfsrdma_nfs3::mount::Mounted;
use nfsrdma_rdma::Pool;
use nfsrdma_record::Table;
use parking_lot::Mutex;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tokio::runtime::Runtime;
use tracing::warn;

/// The name of the listener for metrics at the holder.
const METRICS: &str = "metrics";

/// What the file system is made of before the server is asked.
pub(crate) struct Prepared {
    config: FsConfig,
    pub(crate) pool: Pool,
}

/// Makes this process, which has one thread, one that serves or holds a mount. What it forks is one, too.
pub(crate) fn confine(options: &Options) {
    // Before the capability that it needs is given up.
    daemon::mark_io_flusher();
    daemon::ignore_other_signals();
    // Capabilities belong to a thread, so this must happen before there are others.
    privileges::give_up(options.has_kerberos());
}

/// Prepares this process, which has one thread, to serve a mount.
pub(crate) fn prepare(options: &Options) -> Result<Runtime, Failure> {
    adapter::heap::limit_arenas();
    confine(options);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("nfsrdma-rt")
        .enable_all()
        .build()
        .map_err(Failure::no_threads)
}

/// Threads of a mount besides its workers and those of its connections: the main one, two of tokio (`nfsrdma-rt`),
/// `nfsrdma-timer`, and `life` with restart=; for a moment `inval-now` and `notify`, `hold`, `journal` or `upgrade`.
const OTHER_THREADS: usize = 8;

/// Fails if the threads of a mount cannot be started. What can be started beside the process that serves can be started
/// after it, too.
pub(crate) fn try_threads(options: &Options) -> io::Result<()> {
    let hold = Mutex::new(());
    thread::scope(|scope| {
        let _all = hold.lock();
        for _ in 0..options.workers() + options.connections() as usize + OTHER_THREADS {
            thread::Builder::new().spawn_scoped(scope, || drop(hold.lock()))?;
        }
        Ok(())
    })
}

fn new_pool(options: &Options, bytes: usize) -> Result<Pool, Failure> {
    if options.restart == Some(Restart::Data) {
        match Pool::in_memfd(bytes) {
            Ok(pool) => return Ok(pool),
            Err(error) => {
                warn!(
                    "written data would be lost in a crash of this program, as with restart=files: {error}"
                )
            }
        }
    }
    Pool::new(bytes).map_err(|error| Failure::new(Exit::System, error.to_string()))
}

/// The listener that the option `metrics` asks for: a successor has that of the process before.
pub(crate) fn metrics(
    options: &Options,
    keeper: &Keeper,
) -> Result<Option<stats::metrics::Listener>, Failure> {
    let Some(at) = &options.metrics else {
        return Ok(None);
    };
    let kept = keeper.take(METRICS).map(|fd| stats::metrics::kept(at, fd));
    if let Some(Ok(listener)) = kept {
        return Ok(Some(listener));
    }
    let listener = stats::metrics::listen(at, "metrics=")?;
    keeper.keep_listener(METRICS, listener.as_fd());
    Ok(Some(listener))
}

/// What serves the mount, before the kernel's requests are read.
pub(crate) struct Begun {
    pub(crate) table: Arc<Table>,
    pub(crate) pool: Pool,
    pub(crate) mounted: Mounted,
    pub(crate) locks: Chosen,
    pub(crate) fs: Arc<Fs<Nfs3Client>>,
    pub(crate) signals: Signals,
    pub(crate) metrics: Option<stats::metrics::Listener>,
    pub(crate) keeper: Keeper,
}

/// The kernel's side of the mount.
pub(crate) struct Kernel {
    pub(crate) channel: Channel,
    /// A descriptor of the mount's device.
    pub(crate) device: Arc<OwnedFd>,
    pub(crate) mount: MountIdentity,
    pub(crate) life: Life,
    /// What a successor is told, if there may be one.
    pub(crate) record: Option<Record>,
}

impl Prepared {
    /// With the pool that another process has had, if there is one.
    pub(crate) fn new(options: &Options, pool: Option<Pool>) -> Result<Self, Failure> {
        let config = settings::file_system(options);
        let pool = match pool {
            Some(pool) => pool,
            None => new_pool(options, settings::pool_bytes(options, &config))?,
        };
        Ok(Prepared { config, pool })
    }

    /// The file system has the objects of `table`, which may be those of a process that has ended.
    pub(crate) fn begin(
        mut self,
        mounted: Mounted,
        table: Table,
        locks: Chosen,
        signals: Signals,
        metrics: Option<stats::metrics::Listener>,
        keeper: Keeper,
    ) -> Begun {
        self.config.name_max = mounted.name_max();
        let table = Arc::new(table);
        let client = Arc::new(mounted.client.clone());
        let (root, clock) = (mounted.root, Clock::default());
        let pool = self.pool.clone();
        let fs = Fs::new(client, root, pool, self.config, clock, table.clone());
        if table.generation() > 1 {
            // If this process fails to go on with the mount, the next one has to find all of it: records are
            // freed by whoever serves, and not because a process ends.
            std::mem::forget((fs.clone(), locks.locks.clone()));
        }
        Begun {
            table,
            pool: self.pool,
            mounted,
            locks,
            fs,
            signals,
            metrics,
            keeper,
        }
    }
}

impl Begun {
    /// The options, with what was found out about locks.
    pub(crate) fn options(&self, plan: &Plan) -> Options {
        Options {
            local_lock: Some(self.locks.local),
            ..plan.options.clone()
        }
    }

    /// The settings of the adapter.
    pub(crate) fn fuse(&self, plan: &Plan) -> FuseOptions {
        settings::fuse(&plan.options, self.locks.local)
    }

    /// Opens the sockets by which commands find this process, and reads requests.
    pub(crate) fn serve(
        self,
        plan: &Plan,
        log: &Log,
        runtime: &Runtime,
        kernel: Kernel,
    ) -> io::Result<Service> {
        let (options, fuse) = (self.options(plan), self.fuse(plan));
        let Begun { fs, keeper, .. } = self;
        if let Some(locks) = self.locks.locks {
            fs.set_locks(locks);
        }
        let inside = runtime.enter();
        // Before any request for a lock is answered.
        fs.restore();
        fs.go_on_with_locks();
        drop(inside);
        let device = kernel.mount.device.as_deref();
        let session = adapter::serve(
            fs.clone(),
            kernel.channel,
            OwnMount::with_id(&plan.point.path, kernel.mount.id),
            &fuse,
            runtime.handle(),
            &mut |name, device| keeper.keep(name, device),
        )?;
        let session = Arc::new(session);
        let notifier =
            device.and_then(|device| exit_watch::ExitNotifier::begin(device, &keeper).ok());
        let source = Arc::new(stats::Source::new(
            &self.mounted,
            fs.clone(),
            &plan.spec.source(),
            &plan.point.path,
            &options,
            kernel.life,
            keeper.held(),
        ));
        let _inside = runtime.enter();
        let answer = answer_sync(fs.clone(), kernel.device, source.clone().answer());
        let upgradable = Arc::new(Upgradable {
            fs: fs.clone(),
            session: session.clone(),
            held: keeper.held().cloned(),
            busy: Default::default(),
        });
        let answer = sleep_request::answer(fs.clone(), self.mounted.client.clone(), answer);
        let answer = upgrade_request::answer(upgradable.clone(), log.answer(answer));
        let answer = remount::answer(upgradable, plan.text.clone(), kernel.record, answer);
        let control = device.and_then(|device| {
            control::Control::start_kept(device, answer, &keeper)
                .inspect_err(|error| warn!("no statistics: {error}"))
                .ok()
        });
        if let Some(listener) = self.metrics {
            runtime.spawn(stats::metrics::serve(listener, source.render()));
        }
        if let Some(held) = keeper.held() {
            held.serving()?;
        }
        Ok(Service {
            mounted: self.mounted,
            fs,
            session,
            signals: self.signals,
            notifier,
            control,
            name: plan.name(),
            source: plan.spec.source(),
            lost: Vec::new(),
            given_up: None,
        })
    }
}

/// Serves the mount to its end.
pub(crate) fn run(runtime: Runtime, service: Service) -> Result<(), Failure> {
    let result = runtime.block_on(service.run());
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

/// Answers [`flush_request::SYNC`] before `next`.
fn answer_sync(
    fs: Arc<Fs<Nfs3Client>>,
    device: Arc<OwnedFd>,
    next: control::Answer,
) -> control::Answer {
    Arc::new(move |request| match request {
        flush_request::SYNC => Some(control::ControlReply::Feed(flush_request::feed(
            fs.clone(),
            device.clone(),
        ))),
        _ => next(request),
    })
}
