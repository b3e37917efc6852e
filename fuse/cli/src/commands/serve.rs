//! The hidden command `serve`: goes on with the mount of a process that has died. The holder runs it.

use crate::commands::mount::status;
use crate::failure::{Exit, Failure};
use crate::holder::client::Held;
use crate::ipc::keeper::{DEVICES, FUSE, Keeper, PLAN, POOL, TABLE};
use crate::mount::begun::{self, Kernel, system};
use crate::mount::connect::Plan;
use crate::mount::locking;
use crate::mount::log::Log;
use crate::mount::record::{Record, now_ns};
use crate::mount::service::{Service, Signals};
use crate::mount::{provider, settings};
use crate::stats::Life;
use nfsrdma_fs::adapter::{self, Features};
use nfsrdma_fs::fs::pool_of;
use nfsrdma_nfs3::mount::{self, Mounted};
use nfsrdma_rdma::Pool;
use nfsrdma_record::Table;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use tokio::runtime::Runtime;
use tracing::{error, warn};

/// Serves the mount to its end. `held` is the descriptor of the holder.
pub(crate) fn run(held: RawFd) -> Result<(), Failure> {
    // SAFETY: the holder has passed this descriptor to this process, and nothing else here knows it.
    let held = unsafe { OwnedFd::from_raw_fd(held) };
    let held = Held::begin(held).map_err(system)?;
    let (runtime, service) = begin(&held).inspect_err(|failure| error!("{failure}"))?;
    let served = begun::run(runtime, service);
    if let Err(failure) = &served {
        error!("{failure}");
    }
    // Only now: without this word, the holder tries again.
    held.bye(status(&served));
    served
}

fn begin(held: &Held) -> Result<(Runtime, Service), Failure> {
    let keeper = Keeper::of_successor(held.clone()).map_err(system)?;
    let record = Record::read(keeper.needed(PLAN)?)?;
    let plan = record.plan()?;
    let args = &plan.args;
    let log = Log::install(
        args.foreground,
        args.verbose,
        args.log.as_deref(),
        &plan.name(),
    )?;
    if !args.foreground {
        log.detach();
    }
    resume(&record, &plan, &log, keeper)
}

/// Prepares to answer the kernel's requests, without waiting for the server.
fn resume(
    record: &Record,
    plan: &Plan,
    log: &Log,
    keeper: Keeper,
) -> Result<(Runtime, Service), Failure> {
    let table = Table::open(keeper.needed(TABLE)?)
        .map_err(|refused| Failure::new(Exit::Internal, refused.to_string()))?;
    let pool = keeper.take(POOL).map(|pool| pool_of(pool, &table));
    let pool = pool.transpose();
    let pool = pool.map_err(|error| Failure::new(Exit::System, error.to_string()))?;
    let (runtime, prepared) = begun::prepare(&plan.options, pool)?;
    // The process that has died may hold the address a moment longer. Nothing that is mounted ends for that.
    let metrics = begun::metrics(&plan.options).unwrap_or_else(|failure| {
        warn!("{failure}");
        None
    });
    let by_holder = keeper.held().and_then(Held::signals);
    let inside = runtime.enter();
    let signals = Signals::new(plan.args.foreground, log, by_holder).map_err(system)?;
    drop(inside);
    let mounted = resume_client(record, plan, &prepared.pool)?;
    let life = Life {
        mounted_ns: record.mounted_ns,
        started_ns: now_ns(),
        restarts: table.generation() - 1,
    };
    let features = Features::from(table.features());
    let inside = runtime.enter();
    let locks = locking::resume(
        mounted.server.ip(),
        record.local_lock,
        &plan.options,
        mounted.client.tap(),
        &table,
        &keeper,
    );
    drop(inside);
    let begun = prepared.begin(mounted, table, locks, signals, metrics, keeper);
    let device = begun.keeper.needed(FUSE)?;
    let served = device.try_clone().and_then(|copy| {
        let mut devices = vec![device];
        devices.extend(begun.keeper.take_all(DEVICES));
        let kernel = Kernel {
            channel: adapter::resume(devices, features, &begun.fuse(plan))?,
            device: Arc::new(copy),
            mount: record.mount.clone(),
            life,
        };
        begun.serve(plan, log, &runtime, kernel)
    });
    let service = served.map_err(|error| {
        Failure::new(
            Exit::System,
            format!("cannot serve the mount of a process that has ended: {error}"),
        )
    })?;
    warn!("the process that served this mount has died: this one goes on");
    Ok((runtime, service))
}

fn resume_client(record: &Record, plan: &Plan, pool: &Pool) -> Result<Mounted, Failure> {
    let (target, options) = (
        settings::target(&plan.spec),
        settings::client(&plan.options),
    );
    let chosen = provider::choose(&plan.options, &target.host)?;
    let resumed = mount::resume(
        &target,
        &options,
        &record.found,
        chosen.provider,
        pool.clone(),
    );
    resumed.map_err(|why| Failure::new(Exit::Internal, why))
}
