//! Code that threads share, built once more over Shuttle, which runs its threads one at a
//! time in orders of its choice. The sources are those of the crates: only `sync` is another.
//!
//! A model is a function that Shuttle runs again and again; `tests/` runs each for seconds.
//! `NFSRDMA_SCHEDULES` sets how often. A failure prints a schedule that `shuttle::replay`
//! takes.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "a part of what the sources offer is used here"
)]

pub mod budget;
pub mod engine;
pub mod pool;
mod sync;
pub mod two_clients;
pub mod waiting;
pub mod write_back;

// What the sources built here name in their own crates, and in each other's.
pub(crate) use nfsrdma_rdma::{Error, Result};
pub(crate) use rpcrdma::{error, options, protocol, rpc, stats};
extern crate self as nfsrdma_rpcrdma;

#[path = "../../../client/rpcrdma/src/exec.rs"]
mod exec;
#[path = "../../../client/rpcrdma/src/tap/mod.rs"]
mod tap;
#[allow(unused_imports, reason = "what the crate shows to others")]
#[path = "../../../client/rpcrdma/src/transport/mod.rs"]
mod transport;

#[path = "../../../client/rdma/src/buf.rs"]
mod buf;

#[allow(unused_imports, reason = "what the crate shows to others")]
#[path = "../../../fuse/fs/src/cache/mod.rs"]
mod cache;
#[allow(unused_imports, reason = "what the crate shows to others")]
#[path = "../../../fuse/fs/src/fs/mod.rs"]
mod fs;
#[allow(unused_imports, reason = "what the crate shows to others")]
#[path = "../../../fuse/fs/src/locks/mod.rs"]
mod locks;
#[allow(
    unused_imports,
    reason = "its own `sync`, in whose place this crate's is used"
)]
#[path = "../../memory-server/src/lib.rs"]
mod memory;

#[path = "../../../fuse/fs/src/adapter/table.rs"]
mod table;

/// Runs `body` in `often` orders of its threads, times what `NFSRDMA_SCHEDULES` says: half
/// of them at random, half with few changes of thread at the worst places.
pub fn explore(often: usize, body: impl Fn() + Send + Sync + 'static) {
    let times = std::env::var("NFSRDMA_SCHEDULES").ok();
    let times: usize = times.and_then(|n| n.parse().ok()).unwrap_or(1);
    let mut config = shuttle::Config::new();
    // More is a thread that waits for what does not come.
    config.max_steps = shuttle::MaxSteps::FailAfter(200_000);
    config.stack_size = 256 * 1024;
    let body = std::sync::Arc::new(body);
    let half = (often * times).div_ceil(2);
    let random = shuttle::scheduler::RandomScheduler::new(half);
    let again = body.clone();
    shuttle::Runner::new(random, config.clone()).run(move || again());
    let few = shuttle::scheduler::PctScheduler::new(3, half);
    shuttle::Runner::new(few, config).run(move || body());
}
