//! FUSE: the only place that names `fuser`.

mod bdi;
mod convert;
mod credentials;
mod filesystem;
mod invalidate;
mod replies;
mod signals;
mod table;
mod unmount;
mod waiting;

pub use bdi::set_read_ahead;
pub use filesystem::negotiate;

use crate::fs::Fs;
use credentials::Credentials;
use filesystem::Adapter;
use fuser::{MountOption, SessionACL};
use invalidate::Invalidator;
use nfsrdma_client::nfs::Nfs3;
use parking_lot::{Condvar, Mutex};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use waiting::Waiting;

/// Who may use the mount besides root's own view of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Access {
    /// The user who mounted, and nobody else.
    #[default]
    Owner,
    /// Everybody (`allow_other`).
    All,
    /// The user who mounted, and root (`allow_root`).
    RootAndOwner,
}

/// Options of the FUSE mount itself.
#[derive(Debug, Clone)]
pub struct FuseOptions {
    /// Shown as the mount's source, `server:/export`.
    pub source: String,
    /// Shown after `fuse.` as the type.
    pub subtype: String,
    pub access: Access,
    /// Threads that read requests, each with a cloned descriptor.
    pub threads: usize,
    /// Requests the kernel may have in flight in the background (read-ahead, direct I/O).
    pub max_background: u16,
    /// Largest WRITE request of the kernel, in bytes.
    pub max_write: u32,
    /// Generic mount options by their mount(8) names: `ro nodev nosuid noexec noatime dirsync
    /// sync`; others are handed to the kernel as they are.
    pub options: Vec<String>,
}

impl Default for FuseOptions {
    fn default() -> Self {
        FuseOptions {
            source: "nfsrdma".into(),
            subtype: "nfsrdma".into(),
            access: Access::Owner,
            threads: 2,
            max_background: 64,
            max_write: 1 << 20,
            options: Vec::new(),
        }
    }
}

/// A mount being served. Dropping it unmounts, lazily if it is busy.
#[derive(Debug)]
pub struct Session {
    background: Mutex<Option<fuser::BackgroundSession>>,
    ticker: Mutex<Option<JoinHandle<()>>>,
    interrupts: Mutex<Option<JoinHandle<()>>>,
    waiting: Arc<Waiting>,
    invalidator: Invalidator,
    stop: Arc<(Mutex<bool>, Condvar)>,
    dir: PathBuf,
}

/// Mounts `fs` on `dir` and serves it from threads of its own. Returns when the kernel has
/// accepted the mount.
pub fn mount<N: Nfs3>(fs: Arc<Fs<N>>, dir: &Path, options: &FuseOptions) -> io::Result<Session> {
    let dir = dir.canonicalize()?;
    let mut config = config(options);
    config.mount_options = vec![
        MountOption::FSName(options.source.clone()),
        MountOption::Subtype(options.subtype.clone()),
    ];
    config
        .mount_options
        .extend(options.options.iter().map(|option| mount_option(option)));
    let waiting = Arc::new(Waiting::default());
    let adapter = adapter(&fs, &waiting, options, None);
    let notifier = adapter.notifier.clone();
    let background = fuser::spawn_mount(adapter, &dir, &config)?;
    let _ = notifier.set(background.notifier());
    let invalidator = Invalidator::start(&fs, background.notifier())?;
    start(fs, waiting, invalidator, background, dir)
}

/// Mounts another file system with the same session, threads and options: to tell what FUSE
/// costs from what this one does.
pub fn mount_other(
    filesystem: impl fuser::Filesystem,
    dir: &Path,
    options: &FuseOptions,
) -> io::Result<fuser::BackgroundSession> {
    let mut config = config(options);
    config.mount_options = vec![
        MountOption::FSName(options.source.clone()),
        MountOption::Subtype(options.subtype.clone()),
    ];
    fuser::spawn_mount(filesystem, dir, &config)
}

/// The same for a FUSE descriptor that the caller has mounted on `dir` already (with the type,
/// source and flags of its choice); of `options`, only access, threads and sizes count.
/// Returns when INIT is answered.
pub fn serve<N: Nfs3>(
    fs: Arc<Fs<N>>,
    device: OwnedFd,
    dir: &Path,
    options: &FuseOptions,
) -> io::Result<Session> {
    let config = config(options);
    let acl = config.acl;
    let waiting = Arc::new(Waiting::default());
    let queue = device.try_clone()?;
    let adapter = adapter(&fs, &waiting, options, Some(queue));
    let notifier = adapter.notifier.clone();
    let session = fuser::Session::from_fd(adapter, device, acl, config)?;
    let _ = notifier.set(session.notifier());
    let invalidator = Invalidator::start(&fs, session.notifier())?;
    start(fs, waiting, invalidator, session.spawn()?, dir.to_owned())
}

fn config(options: &FuseOptions) -> fuser::Config {
    let mut config = fuser::Config::default();
    config.n_threads = Some(options.threads.max(1));
    config.clone_fd = true;
    config.acl = match options.access {
        Access::Owner => SessionACL::Owner,
        Access::All => SessionACL::All,
        Access::RootAndOwner => SessionACL::RootAndOwner,
    };
    config
}

fn adapter<N: Nfs3>(
    fs: &Arc<Fs<N>>,
    waiting: &Arc<Waiting>,
    options: &FuseOptions,
    queue: Option<OwnedFd>,
) -> Adapter<N> {
    Adapter {
        fs: fs.clone(),
        waiting: waiting.clone(),
        credentials: Credentials::default(),
        notifier: Arc::default(),
        options: options.clone(),
        queue,
    }
}

fn start<N: Nfs3>(
    fs: Arc<Fs<N>>,
    waiting: Arc<Waiting>,
    invalidator: Invalidator,
    background: fuser::BackgroundSession,
    dir: PathBuf,
) -> io::Result<Session> {
    let stop = Arc::new((Mutex::new(false), Condvar::new()));
    let ticker = {
        let stop = stop.clone();
        std::thread::Builder::new()
            .name("write-back".into())
            .spawn(move || tick(&fs, &stop))?
    };
    let interrupts = waiting.watch()?;
    Ok(Session {
        background: Mutex::new(Some(background)),
        interrupts: Mutex::new(Some(interrupts)),
        waiting,
        invalidator,
        ticker: Mutex::new(Some(ticker)),
        stop,
        dir,
    })
}

/// Writes back what is old, once a second until told to stop.
fn tick<N: Nfs3>(fs: &Arc<Fs<N>>, stop: &(Mutex<bool>, Condvar)) {
    let mut stopped = stop.0.lock();
    while !*stopped {
        stop.1.wait_for(&mut stopped, Duration::from_secs(1));
        parking_lot::MutexGuard::unlocked(&mut stopped, || fs.tick());
    }
}

fn mount_option(name: &str) -> MountOption {
    match name {
        "ro" => MountOption::RO,
        "rw" => MountOption::RW,
        "dev" => MountOption::Dev,
        "nodev" => MountOption::NoDev,
        "suid" => MountOption::Suid,
        "nosuid" => MountOption::NoSuid,
        "exec" => MountOption::Exec,
        "noexec" => MountOption::NoExec,
        "atime" => MountOption::Atime,
        "noatime" => MountOption::NoAtime,
        "dirsync" => MountOption::DirSync,
        "sync" => MountOption::Sync,
        "async" => MountOption::Async,
        "default_permissions" => MountOption::DefaultPermissions,
        other => MountOption::CUSTOM(other.into()),
    }
}

impl Session {
    /// Whether the mount is gone, by umount(8) or by [`Session::unmount`].
    pub fn is_finished(&self) -> bool {
        self.background
            .lock()
            .as_ref()
            .is_none_or(|session| session.guard.is_finished())
    }

    /// Unmounts. EBUSY if somebody uses the mount, which then goes on; `lazy` takes it out of
    /// sight at once and ends it with its last user. Flush with `Fs::shutdown` afterwards.
    pub fn unmount(&self, lazy: bool) -> io::Result<()> {
        unmount::unmount(&self.dir, lazy)
    }

    /// Waits for the threads, which end with the mount. Blocks.
    pub fn join(&self) -> io::Result<()> {
        let session = self.background.lock().take();
        let result = session.map_or(Ok(()), fuser::BackgroundSession::join);
        self.stop_threads();
        result
    }

    fn stop_threads(&self) {
        *self.stop.0.lock() = true;
        self.stop.1.notify_all();
        self.waiting.stop();
        self.invalidator.stop();
        for thread in [&self.ticker, &self.interrupts] {
            if let Some(thread) = thread.lock().take() {
                // It ends by itself; a panic there has been reported.
                let _ = thread.join();
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(session) = self.background.lock().take() {
            if !session.guard.is_finished() {
                // The program did not wait for the mount's end: leave none behind.
                let _ = unmount::unmount(&self.dir, true);
            }
            drop(session);
        }
        self.stop_threads();
    }
}
