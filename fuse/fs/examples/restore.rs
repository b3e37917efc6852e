//! Measures how long a process takes that goes on with a mount: `restore [NODES]`. The table has that many
//! nodes which the kernel knows (1,000,000), and one open file. Prints the processor time of each step, and
//! the memory that the process has then.

use anyhow::{Context, Result};
use nfsrdma_fs::fs::{Clock, Fs, FsConfig};
use nfsrdma_memory_server::MemoryServer;
use nfsrdma_rdma::Pool;
use nfsrdma_record::{Credential, Node, Open, Table};
use nfsrdma_rpcrdma::exec::block_on;
use nfsrdma_xdr::nfs3::{FileHandle, FileType};
use rustix::time::{ClockId, clock_gettime};
use std::io::stdin;
use std::mem::forget;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The program is its own successor.
const SUCCESSOR: &str = "successor";

fn handle(of: u64) -> Result<FileHandle> {
    let bytes = [of, !of, of >> 3, 1, 2, 3].map(u64::to_ne_bytes);
    FileHandle::new(&bytes.concat()).context("a handle")
}

/// What a process leaves.
fn leave(nodes: u64) -> Result<()> {
    let table = Table::create()?;
    let cred = Credential::new(0, 0, &[]);
    for of in 0..nodes {
        let kind = if of == 0 {
            FileType::Directory
        } else {
            FileType::Regular
        };
        let node = table.nodes().alloc(Node::new(handle(of)?, kind as u8, of));
        node.lookups.store(1, Ordering::Relaxed);
        if of == nodes / 2 {
            let open = Open::new(node.number(), 8, libc::O_RDWR as u32, false, cred);
            forget(table.opens().alloc(open));
        }
        forget(node);
    }
    let fd = table.fd().context("a table in a memfd")?;
    let status = Command::new(std::env::current_exe()?)
        .arg(SUCCESSOR)
        .stdin(Stdio::from(fd.try_clone_to_owned()?))
        .status()?;
    anyhow::ensure!(status.success(), "the successor: {status}");
    Ok(())
}

struct Steps {
    last: [f64; 2],
}

impl Steps {
    fn now() -> [f64; 2] {
        [ClockId::ProcessCPUTime, ClockId::Monotonic].map(|clock| {
            let now = clock_gettime(clock);
            now.tv_sec as f64 * 1e3 + now.tv_nsec as f64 / 1e6
        })
    }

    fn ends(&mut self, step: &str) {
        let now = Self::now();
        let [cpu, passed] = [0, 1].map(|clock| now[clock] - self.last[clock]);
        println!("{step:<12} {cpu:>8.1} ms of processor time in {passed:>8.1} ms");
        self.last = now;
    }
}

fn succeed() -> Result<()> {
    let memory = stdin().as_fd().try_clone_to_owned()?;
    let server = MemoryServer::new();
    let config = FsConfig::default();
    let pool = Pool::new(config.pool_bytes())?;
    let first = Steps::now();
    let mut steps = Steps { last: first };
    let table = Table::open(memory)?;
    steps.ends("open");
    let opened = table.opens().peek(|open| (open.handle, open.nodeid));
    let &(_, nodeid) = opened.first().context("an open file")?;
    let (root, clock) = (handle(0)?, Clock::default());
    let fs = Fs::new(server, root, pool, config, clock, Arc::new(table));
    steps.ends("nodes");
    fs.restore();
    steps.ends("open files");
    // The server in memory does not know the handle, which is an answer, too.
    let cred = Arc::new(nfsrdma_nfs3::Credential {
        uid: 0,
        gid: 0,
        groups: Vec::new(),
    });
    let _ = block_on(fs.getattr(&cred, nodeid, true));
    steps.ends("first call");
    steps.last = first;
    steps.ends("all");
    for line in std::fs::read_to_string("/proc/self/status")?.lines() {
        if line.starts_with("Rss") {
            println!("{line}");
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    match std::env::args().nth(1) {
        Some(word) if word == SUCCESSOR => succeed(),
        number => leave(number.map_or(Ok(1_000_000), |number| number.parse())?),
    }
}
