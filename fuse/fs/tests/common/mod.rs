//! A mount over /dev/fuse on a server in memory.
#![allow(
    unreachable_pub,
    dead_code,
    reason = "each crate of tests uses a part of it"
)]

use nfsrdma_fs::adapter::{self, FuseOptions, Session};
use nfsrdma_fs::fs::{Clock, Fs, FsConfig};
use nfsrdma_memory_server::MemoryServer;
use nfsrdma_rdma::Pool;
use nfsrdma_record::Table;
use nfsrdma_rpcrdma::exec;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// A mount that is unmounted at the end of the test, even if the test fails.
pub struct Mounted {
    session: Option<Session>,
    _runtime: Runtime,
    fs: Arc<Fs<MemoryServer>>,
    pub server: Arc<MemoryServer>,
    pub dir: PathBuf,
}

/// Mounts a server with the files that `fill` creates.
pub fn mount(name: &str, config: FsConfig, fill: impl FnOnce(&Path)) -> Option<Mounted> {
    Some(mount_of(&filled(name, fill)?, name, config))
}

/// A server with the files that `fill` creates; `None` where nothing can be mounted.
pub fn filled(name: &str, fill: impl FnOnce(&Path)) -> Option<Arc<MemoryServer>> {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: there is no /dev/fuse");
        return None;
    }
    let data = std::env::temp_dir().join(format!("nfsrdma-{}-{name}.data", std::process::id()));
    fs::create_dir_all(&data).unwrap();
    fill(&data);
    let server = MemoryServer::new();
    let filled = server.fill(&data);
    fs::remove_dir_all(&data).unwrap();
    filled.unwrap();
    Some(server)
}

/// Mounts a server that may have other mounts.
pub fn mount_of(server: &Arc<MemoryServer>, name: &str, config: FsConfig) -> Mounted {
    mount_with(server, name, config, &FuseOptions::default())
}

/// As [`mount_of`], with options of the mount.
pub fn mount_with(
    server: &Arc<MemoryServer>,
    name: &str,
    config: FsConfig,
    options: &FuseOptions,
) -> Mounted {
    mount_by(Clock::default(), server, name, config, options)
}

/// As [`mount_with`], with caches that go by this clock.
pub fn mount_by(
    clock: Clock,
    server: &Arc<MemoryServer>,
    name: &str,
    config: FsConfig,
    options: &FuseOptions,
) -> Mounted {
    let dir = std::env::temp_dir().join(format!("nfsrdma-{}-{name}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let pool = Pool::new(config.pool_bytes()).unwrap();
    let records = Arc::new(Table::anonymous());
    let fs = Fs::new(server.clone(), server.root(), pool, config, clock, records);
    let runtime = Runtime::new().unwrap();
    let session = adapter::mount(fs.clone(), &dir, options, runtime.handle()).unwrap();
    Mounted {
        _runtime: runtime,
        session: Some(session),
        fs,
        server: server.clone(),
        dir,
    }
}

impl Mounted {
    /// The file system, for calls that do not come from the kernel.
    pub fn fs(&self) -> &Arc<Fs<MemoryServer>> {
        &self.fs
    }

    /// Unmounts and checks that nothing was lost.
    pub fn finish(mut self) {
        let session = self.session.take().unwrap();
        // Whoever looks at the descriptors of all processes in /proc keeps a mount busy for a moment.
        let end = Instant::now() + Duration::from_secs(60);
        while let Err(error) = session.unmount(false) {
            let busy = error.kind() == ErrorKind::ResourceBusy;
            assert!(busy && Instant::now() < end, "{error}");
            sleep(Duration::from_millis(1));
        }
        session.join().unwrap();
        let lost = exec::block_on(self.fs.shutdown());
        assert!(lost.is_empty(), "{lost:?}");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(self.session.take());
        let _ = fs::remove_dir(&self.dir);
    }
}
