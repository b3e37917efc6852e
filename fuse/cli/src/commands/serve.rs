//! The hidden command `serve`: goes on with the mount of a process that has died, or that ends when this one
//! is ready for it (an upgrade). The holder runs it.

use crate::commands::mount::status;
use crate::failure::{Exit, Failure};
use crate::holder::client::Held;
use crate::holder::protocol::Why;
use crate::ipc::keeper::{DEVICES, FUSE, Keeper, PLAN, POOL, REQUESTS, TABLE};
use crate::ipc::upgrade_request::UNSAFE;
use crate::mount::begun::{self, Kernel, Prepared};
use crate::mount::connect::Plan;
use crate::mount::locking;
use crate::mount::log::Log;
use crate::mount::record::{Record, now_ns};
use crate::mount::service::{Service, Signals};
use crate::mount::{provider, settings};
use crate::stats::Life;
use nfsrdma_fs::adapter::{self, Channel, Features};
use nfsrdma_fs::fs::{has_data, pool_of};
use nfsrdma_nfs3::mount;
use nfsrdma_rdma::pool_len;
use nfsrdma_record::{Refused, Table};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use tokio::runtime::Runtime;
use tracing::{error, info, warn};

/// Serves the mount to its end. `held` is the descriptor of the holder.
pub(crate) fn run(held: RawFd, beside: bool) -> Result<(), Failure> {
    // SAFETY: the holder has passed this descriptor to this process, and nothing else here knows it.
    let held = unsafe { OwnedFd::from_raw_fd(held) };
    let held = Held::begin(held).map_err(Failure::no_threads)?;
    let begun = begin(&held, beside);
    let (runtime, service) = begun.inspect_err(|failure| {
        error!("{failure}");
        if beside {
            // Without effect if the mount is this process's already.
            held.refuse(Why::new(libc::EIO, &*failure.message));
        }
    })?;
    let served = begun::run(runtime, service);
    if let Err(failure) = &served {
        error!("{failure}");
    }
    // Only now: without this word, the holder tries again.
    held.bye(status(&served));
    served
}

fn begin(held: &Held, beside: bool) -> Result<(Runtime, Service), Failure> {
    let keeper = Keeper::of_successor(held.clone()).map_err(Failure::no_threads)?;
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
    resume(&record, &plan, &log, keeper, beside)
}

/// Prepares to answer the kernel's requests, without waiting for the server.
fn resume(
    record: &Record,
    plan: &Plan,
    log: &Log,
    keeper: Keeper,
    beside: bool,
) -> Result<(Runtime, Service), Failure> {
    let runtime = begun::prepare(&plan.options)?;
    let by_holder = keeper.held().and_then(Held::signals);
    let inside = runtime.enter();
    let signals =
        Signals::new(plan.args.foreground, log, by_holder).map_err(Failure::no_threads)?;
    drop(inside);
    let target = settings::target(&plan.spec);
    let provider = provider::choose(&plan.options, &target.host)?.provider;
    let requests = keeper.take(REQUESTS);
    let known = requests.as_ref().map_or(Ok(()), Channel::check_requests);
    known.map_err(|why| Failure::new(Exit::Internal, why.to_string()))?;
    if beside {
        // Later it would be a crash.
        begun::try_threads(&plan.options).map_err(Failure::no_threads)?;
    }
    let (table, prepared) = memory(plan, &keeper, beside)?;
    let mounted = mount::resume(
        &target,
        &settings::client_with(&plan.options, &target.host, runtime.handle()),
        &record.found,
        provider,
        prepared.pool.clone(),
    );
    let mounted = mounted.map_err(|why| Failure::new(Exit::Internal, why))?;
    // Nothing that is mounted ends for that.
    let metrics = begun::metrics(&plan.options, &keeper).unwrap_or_else(|failure| {
        warn!("{failure}");
        None
    });
    let life = Life {
        mounted_ns: record.mounted_ns,
        started_ns: now_ns(),
        restarts: table.generation() - 1,
        upgrades: table.upgrades(),
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
            channel: adapter::resume(devices, features, requests)?,
            device: Arc::new(copy),
            mount: record.mount.clone(),
            life,
            record: Some(record.clone()),
        };
        begun.serve(plan, log, &runtime, kernel)
    });
    let service = served.map_err(|error| {
        Failure::new(
            Exit::System,
            format!("cannot serve the mount of a process that has ended: {error}"),
        )
    })?;
    match beside {
        true => info!("upgraded: nfsrdma {} goes on", env!("CARGO_PKG_VERSION")),
        false => warn!("the process that served this mount has died: this one goes on"),
    }
    Ok((runtime, service))
}

/// What the other process has left, and the pool: the one of that process, or another one if the options want it.
fn memory(plan: &Plan, keeper: &Keeper, beside: bool) -> Result<(Table, Prepared), Failure> {
    let kept = keeper.take(POOL);
    let resized = kept.as_ref().is_some_and(|pool| is_resized(pool, plan));
    let old = keeper.held().filter(|_| beside);
    // Before the other process is gone: memory for another pool may not be to be had.
    let fresh = match &kept {
        Some(_) if !resized => None,
        // There may be data in the other one.
        Some(_) if !beside => Prepared::new(&plan.options, None).ok(),
        _ => Some(Prepared::new(&plan.options, None)?),
    };
    let table = table(keeper.needed(TABLE)?, old, resized)?;
    let prepared = match (fresh, kept) {
        (Some(fresh), kept) if kept.is_none() || !has_data(&table) => {
            if let Some(pool) = fresh.pool.fd() {
                keeper.keep(POOL, pool).map_err(Failure::no_threads)?;
            }
            fresh
        }
        (_, kept) => {
            let pool = kept.map(|pool| pool_of(pool, &table)).transpose();
            let pool = pool.map_err(|error| Failure::new(Exit::System, error.to_string()))?;
            Prepared::new(&plan.options, pool)?
        }
    };
    Ok((table, prepared))
}

/// Whether the options want a pool of another size, as after a remount.
fn is_resized(pool: &OwnedFd, plan: &Plan) -> bool {
    let config = settings::file_system(&plan.options);
    let wanted = pool_len(settings::pool_bytes(&plan.options, &config));
    let found = rustix::fs::fstat(pool).map(|stat| stat.st_size as usize);
    wanted.is_ok_and(|wanted| found != Ok(wanted))
}

/// What the other process has left. If that one still serves, it is waited for and killed here; until then nothing is
/// changed. `resized`: there is to be another pool, so there must be no data in the one that there is.
fn table(memory: OwnedFd, beside: Option<&Held>, resized: bool) -> Result<Table, Failure> {
    let refused = |why: Refused| Failure::new(Exit::Internal, why.to_string());
    let Some(held) = beside else {
        let table = Table::open(memory).map_err(refused)?;
        table.begin();
        return Ok(table);
    };
    let copy = memory.try_clone().map_err(Failure::no_threads)?;
    Table::check(copy).map_err(refused)?;
    held.ready().map_err(Failure::no_threads)?;
    let table = Table::open(memory).map_err(refused)?;
    if table.unsafe_files() > 0 || resized && has_data(&table) {
        let why = "the server does not have all data yet";
        held.refuse(Why::new(UNSAFE, why));
        return Err(Failure::failed(why));
    }
    held.take_over().map_err(Failure::no_threads)?;
    table.begin();
    table.note_upgrade();
    Ok(table)
}
