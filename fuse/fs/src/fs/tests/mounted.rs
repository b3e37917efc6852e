//! A mount of a server in memory, for the tests of single files.

use super::{Clock, Found, Fs, FsConfig, ROOT};
use nfsrdma_memory_server::MemoryServer;
use nfsrdma_nfs3::{Cred, Credential};
use nfsrdma_rdma::Pool;
use nfsrdma_record::Table;
use nfsrdma_rpcrdma::exec::block_on;
use std::sync::Arc;

pub(super) const RW: i32 = libc::O_RDWR;

pub(super) fn cred(uid: u32) -> Cred {
    let groups = Vec::new();
    Arc::new(Credential {
        uid,
        gid: uid,
        groups,
    })
}

/// A server with the file `f`, which everybody may write; and a mount of it with the file's node.
pub(super) fn with_file(contents: &[u8]) -> (Arc<MemoryServer>, Arc<Fs<MemoryServer>>, u64) {
    let server = MemoryServer::new();
    server.plant("f", contents);
    server.change_file("f", 0, &[], Some(0o666));
    let config = FsConfig::default();
    let pool = Pool::new(config.pool_bytes()).unwrap();
    let (clock, records) = (Clock::default(), Arc::new(Table::anonymous()));
    let fs = Fs::new(server.clone(), server.root(), pool, config, clock, records);
    let Found::Is(entry) = block_on(fs.lookup(&cred(0), ROOT, b"f")).unwrap() else {
        panic!("f is not there");
    };
    (server, fs, entry.nodeid)
}
