//! The adapter between FUSE and [`Fs`]: makes the mount, runs its threads, and turns the kernel's
//! requests into operations of the file system, by way of [`nfsrdma_channel`].
//!
//! [`adopt`] negotiates INIT, and [`resume`] takes a mount over from a process that has ended. [`serve`]
//! starts what a mount needs: the workers, which are event loops that read requests and poll the connections to the
//! server; and tasks of tokio that send notifications to the kernel (`invalidate`), look after killed callers
//! (`waiting`), and call [`Fs::tick`] each second. `dispatch` hands each request to the file for its group of
//! operations. A request that memory can answer is answered on the thread that read it; for any other the reply is
//! kept in `waiting`, and the operation becomes a future. Dropping the [`Session`] unmounts.

mod attributes;
mod convert;
mod credentials;
mod data;
mod listeners;

mod directories;
mod dispatch;
pub mod heap;
mod invalidate;
mod locking;
mod names;
#[allow(
    unreachable_pub,
    missing_debug_implementations,
    reason = "others see it only where tests/models runs it"
)]
mod pending_replies;
mod proc;
mod queued;
mod replies;
mod signals;
mod state;
mod unmount;
mod waiting;
mod worker;
mod xattr;

pub use nfsrdma_channel::{Channel, Features, Keep, own_table};
#[cfg(feature = "shuttle")]
pub use pending_replies::{Pace, Refuse, Table};
pub use unmount::{OwnMount, by_helper, mount_id};

use crate::fs::Fs;
use nfsrdma_channel::abi::init;
use nfsrdma_channel::{Serving, Wanted};
use nfsrdma_nfs3::Nfs3;
use parking_lot::Mutex;
use queued::Queued;
use state::Adapter;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use waiting::Waiting;
use worker::{Worker, Workers};

/// Options of the FUSE mount itself.
#[derive(Debug, Clone)]
pub struct FuseOptions {
    /// Event loops that read requests and poll the connections, each with a cloned descriptor; at
    /// least 1.
    pub workers: usize,
    /// Requests the kernel may have in flight in the background (read-ahead, direct I/O).
    pub max_background: u16,
    /// Largest WRITE request of the kernel, in bytes.
    pub max_write: u32,
    /// The kernel checks permissions (`default_permissions`), by the ACLs where there are any.
    pub kernel_checks: bool,
    /// POSIX locks and those of flock(2) come here; else the kernel has them.
    pub posix_locks: bool,
    pub flock_locks: bool,
}

impl Default for FuseOptions {
    fn default() -> Self {
        FuseOptions {
            workers: 2,
            max_background: 64,
            max_write: 1 << 20,
            kernel_checks: false,
            posix_locks: false,
            flock_locks: false,
        }
    }
}

/// A mount being served. Dropping it unmounts, lazily if it is busy.
#[derive(Debug)]
pub struct Session {
    serving: Mutex<Option<Serving>>,
    /// Closed when the threads that serve have ended.
    served: watch::Receiver<()>,
    tasks: Mutex<JoinSet<()>>,
    mount: Arc<OwnMount>,
    workers: Arc<Workers>,
}

/// Negotiates INIT for a FUSE descriptor that the caller has mounted.
pub fn adopt<N: Nfs3>(fs: &Fs<N>, device: OwnedFd, options: &FuseOptions) -> io::Result<Channel> {
    let wanted = wanted(options, flags(fs, options));
    Channel::adopt(device, wanted)
}

/// Takes a mount over from a process that has ended ([`Channel::resume`]).
pub fn resume(
    devices: Vec<OwnedFd>,
    features: Features,
    requests: Option<OwnedFd>,
) -> io::Result<Channel> {
    Channel::resume(devices, features, requests)
}

/// The INIT flags that depend on the file system.
fn flags<N: Nfs3>(fs: &Fs<N>, options: &FuseOptions) -> u64 {
    acl_flags(fs, options) | page_flags(fs)
}

/// The INIT flags that a mount with ACLs asks for in addition.
fn acl_flags<N: Nfs3>(fs: &Fs<N>, options: &FuseOptions) -> u64 {
    if !fs.has_acl() {
        return 0;
    }
    match kernel_checks_acls(fs, options) {
        true => init::DONT_MASK | init::POSIX_ACL,
        false => init::DONT_MASK,
    }
}

/// Whether the kernel checks permissions by ACLs.
pub fn kernel_checks_acls<N: Nfs3>(fs: &Fs<N>, options: &FuseOptions) -> bool {
    options.kernel_checks && fs.has_acl()
}

/// Pages are dropped when they are told to be (see `fs::kernel_pages`). With the other flag the kernel
/// drops them itself at every other mtime, but asks for attributes that have expired at each read(2): on
/// a mount where they always have (`noac`), each read asks the server.
fn page_flags<N: Nfs3>(fs: &Fs<N>) -> u64 {
    match fs.keeps_attributes() {
        true => init::EXPLICIT_INVAL_DATA,
        false => init::AUTO_INVAL_DATA,
    }
}

/// What is wanted of the kernel, with these flags of INIT in addition.
pub fn wanted(options: &FuseOptions, more: u64) -> Wanted {
    Wanted {
        flags: more
            | init::ATOMIC_O_TRUNC
            | init::DO_READDIRPLUS
            | init::READDIRPLUS_AUTO
            | init::ASYNC_DIO
            | init::PARALLEL_DIROPS
            | init::CACHE_SYMLINKS
            // The server clears set-id bits. With extended attributes the kernel also asks for
            // `security.capability` at each write(2), unless the second flag lets it remember that
            // there is none.
            | init::HANDLE_KILLPRIV
            | init::HANDLE_KILLPRIV_V2
            // Without one of these the kernel keeps that kind of locks by itself.
            | if options.posix_locks { init::POSIX_LOCKS } else { 0 }
            | if options.flock_locks { init::FLOCK_LOCKS } else { 0 },
        max_write: options.max_write,
        max_background: options.max_background,
        masked: masked(std::env::var_os("NFSRDMA_MASK").as_deref()),
    }
}

/// For tests: what newer kernels have and this one is taken not to have, as an older one.
fn masked(feature: Option<&OsStr>) -> u64 {
    match feature.map(OsStr::as_encoded_bytes) {
        Some(b"resend") => init::HAS_RESEND,
        _ => 0,
    }
}

/// Serves `mount` from threads of its own, and tasks in `runtime`. To be called after [`Fs::restore`]. `keep` gets each
/// descriptor from which requests are read, other than that of `channel` itself ([`Channel::serve_loops`]). Does not
/// unmount if it fails.
pub fn serve<N: Nfs3>(
    fs: Arc<Fs<N>>,
    channel: Channel,
    mount: OwnMount,
    options: &FuseOptions,
    runtime: &Handle,
    keep: Keep<'_>,
) -> io::Result<Session> {
    let mount = Arc::new(mount);
    let own = mount.clone();
    fs.set_hold(Box::new(move |on| own.hold(on)));
    let queued = Queued::new(channel.device(), options.workers);
    let notifier = channel.notifier();
    let mut tasks = JoinSet::new();
    invalidate::start(&fs, &notifier, &mut tasks, runtime);
    let waiting = Arc::new(Waiting::default());
    let requests = Arc::new(AtomicU64::new(0));
    let (end, served) = watch::channel(());
    let adapter = Adapter {
        fs: fs.clone(),
        waiting: waiting.clone(),
        credentials: Arc::default(),
        notifier,
        queued,
        mount: mount.clone(),
        requests: requests.clone(),
        _served: end,
    };
    let workers = Workers::new(options.workers)?;
    let loops = workers_of(&workers, options.workers, Arc::new(adapter))?
        .into_iter()
        .map(|worker| |reader| worker.run(reader));
    let serving = channel.serve_loops(loops.collect(), keep)?;
    let own = fs.clone();
    tasks.spawn_on(waiting.watch(move || own.hold_unsafe()), runtime);
    let own = fs.clone();
    tasks.spawn_on(async move { own.know_outside().await }, runtime);
    tasks.spawn_on(tick(fs, requests, workers.clone()), runtime);
    Ok(Session {
        serving: Mutex::new(Some(serving)),
        served,
        tasks: Mutex::new(tasks),
        mount,
        workers,
    })
}

/// As many event loops, with the connections spread over them.
fn workers_of<N: Nfs3>(
    all: &Arc<Workers>,
    number: usize,
    adapter: Arc<Adapter<N>>,
) -> io::Result<Vec<Worker<N>>> {
    let mut shares: Vec<Vec<_>> = (0..number).map(|_| Vec::new()).collect();
    for (index, driver) in adapter.fs.drivers().into_iter().enumerate() {
        shares[index % number].push(driver);
    }
    let workers = shares.into_iter().enumerate();
    workers
        .map(|(number, drivers)| Worker::new(all, number, adapter.clone(), drivers))
        .collect()
}

/// Once a second: writes back what is old, and gives unused memory back. Does not end.
async fn tick<N: Nfs3>(fs: Arc<Fs<N>>, requests: Arc<AtomicU64>, workers: Arc<Workers>) {
    let (mut rest, mut seen) = (heap::Rest::default(), Vec::new());
    loop {
        sleep(Duration::from_secs(1)).await;
        workers.look_after(&mut seen);
        fs.tick();
        if rest.due(requests.load(Ordering::Relaxed)) {
            fs.forget_stale_names();
            heap::give_back();
        }
    }
}

impl Session {
    /// Whether the mount is gone, by umount(8) or by [`Session::unmount`].
    pub fn is_finished(&self) -> bool {
        self.serving
            .lock()
            .as_ref()
            .is_none_or(Serving::is_finished)
    }

    /// Unmounts. EBUSY if somebody uses the mount, which then goes on; `lazy` takes it out of
    /// sight at once and ends it with its last user. Flush with `Fs::shutdown` afterwards.
    pub fn unmount(&self, lazy: bool) -> io::Result<()> {
        self.mount.unmount(lazy)
    }

    /// Reads no more requests of the kernel, or goes on with it: who makes one waits.
    pub fn pause(&self, paused: bool) {
        self.workers.pause(paused);
    }

    /// The mount itself.
    pub fn own_mount(&self) -> &Arc<OwnMount> {
        &self.mount
    }

    /// Waits for the end of the mount; [`Session::join`] does not take long afterwards.
    pub async fn ended(&self) {
        let mut served = self.served.clone();
        // Nothing is ever sent.
        let _ = served.changed().await;
    }

    /// Waits for the threads, which end with the mount. Blocks.
    pub fn join(&self) -> io::Result<()> {
        let serving = self.serving.lock().take();
        let result = serving.map_or(Ok(()), Serving::join);
        self.mount.release();
        self.tasks.lock().abort_all();
        result
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(serving) = self.serving.lock().take() {
            if !serving.is_finished() {
                // The program did not wait for the mount's end: leave none behind.
                let _ = self.mount.unmount(true);
            }
            drop(serving);
        }
    }
}
