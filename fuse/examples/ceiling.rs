//! Mounts a file system that lives in memory: what FUSE, the adapter and the caches allow
//! without a network. `ceiling DIR [CACHE_MIB [DATA]]`, until it is unmounted; it begins empty,
//! or with a copy of the directory DATA.

use nfsrdma_fuse::adapter::{self, FuseOptions};
use nfsrdma_fuse::fs::{Fs, FsConfig};
use nfsrdma_fuse::memory::MemoryServer;
use nfsrdma_rdma::Pool;
use std::path::PathBuf;

fn main() -> anyhow::Result<()> {
    let mut words = std::env::args().skip(1);
    let Some(dir) = words.next().map(PathBuf::from) else {
        anyhow::bail!("usage: ceiling DIR [CACHE_MIB [DATA]]");
    };
    let cache: usize = words.next().map_or(Ok(256), |word| word.parse())?;
    let config = FsConfig {
        cache_bytes: cache << 20,
        ..FsConfig::default()
    };
    let server = MemoryServer::new();
    if let Some(data) = words.next() {
        server.fill(data.as_ref())?;
    }
    let pool = Pool::new(config.pool_bytes())?;
    let fs = Fs::new(server.clone(), server.root(), pool, config);
    let session = adapter::mount(fs.clone(), &dir, &FuseOptions::default())?;
    if let Err(error) = adapter::set_read_ahead(&dir, 4096) {
        eprintln!("the kernel's read-ahead stays as it is: {error}");
    }
    session.join()?;
    for (name, value) in fs.statistics() {
        println!("{name} {value}");
    }
    Ok(())
}
