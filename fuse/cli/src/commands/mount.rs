//! The command `mount`: checks, connects, and mounts; [`service`](crate::mount::service) goes on.

use crate::cli::MountArgs;
use crate::commands::{remount, unmount};
use crate::failure::{Exit, Failure};
use crate::ipc::{control, exit_watch, flush_request};
use crate::mount::connect::{Plan, connect};
use crate::mount::daemon::{self, Reporter, Side};
use crate::mount::locking::{self, Chosen};
use crate::mount::log::Log;
use crate::mount::mount_point::{self, MountPoint};
use crate::mount::service::{Service, Signals};
use crate::mount::{fuse_mount, nfsmount_conf, privileges, settings, summary, utab};
use crate::options::Options;
use crate::options::mount_source::MountSource;
use crate::{mounts, output, stats};
use nfsrdma_fs::adapter::{self, OwnMount};
use nfsrdma_fs::fs::Fs;
use nfsrdma_nfs3::Nfs3Client;
use nfsrdma_nfs3::mount::Mounted;
use nfsrdma_rdma::Pool;
use rustix::process::geteuid;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tracing::{debug, error, info, warn};

/// Runs `mount`. In the background it returns as soon as the mount works, with a line to print, if
/// any; in the foreground it returns when the mount has ended.
pub(crate) fn run(args: &MountArgs, notice: impl FnMut(&str)) -> Result<Option<String>, Failure> {
    let mut notice = notice;
    let options = Options::parse(&args.options)?;
    let nofail = options.nofail;
    match mount(args, &options, &mut notice) {
        Err(failure) if nofail && failure.exit == Exit::Failed => {
            notice(&format!("{failure} (nofail)"));
            Ok(None)
        }
        result => result,
    }
}

fn mount(
    args: &MountArgs,
    options: &Options,
    notice: &mut dyn FnMut(&str),
) -> Result<Option<String>, Failure> {
    for name in &options.ignored {
        notice(&format!("option '{name}' is passed over"));
    }
    if options.remount {
        return remount::run(&args.dir, options, &args.options).map(|()| None);
    }
    let spec = MountSource::parse(&args.spec)?;
    let (text, passed_over) = nfsmount_conf::apply(&spec.host, &args.dir, &args.options)?;
    passed_over.iter().for_each(|line| notice(line));
    let options = Options::parse_with_port(&text, spec.port)?;
    let point = mount_point::check(&args.dir, &spec.source())?;
    daemon::allow_descriptors()?;
    if let Some(log) = &args.log {
        point.has_outside(log)?;
    }
    drop(fuse_mount::open_device(Path::new(fuse_mount::DEVICE))?);
    if args.fake {
        if args.verbose > 0 {
            notice(&format!("options: {}", settings::wanted(&options)));
        }
        return Ok(None);
    }
    let plan = Plan {
        spec,
        point,
        options,
        options_given: args.options.clone(),
        verbose: args.verbose > 0,
        quiet: args.quiet,
    };
    let name = plan.name();
    let log = || Log::install(args.foreground, args.verbose, args.log.as_deref(), &name);
    if args.foreground {
        return serve(&plan, &log()?, Reporter::foreground()).map(|()| None);
    }
    match daemon::fork_off(notice)? {
        Side::Parent(outcome) => outcome.map(|line| (!line.is_empty()).then_some(line)),
        Side::Child(mut reporter) => {
            let served = match log() {
                Ok(log) => serve(&plan, &log, reporter),
                Err(failure) => {
                    reporter.failure(&failure);
                    Err(failure)
                }
            };
            std::process::exit(served.map_or_else(|failure| failure.exit as i32, |()| 0))
        }
    }
}

/// Makes the mount and serves it to its end.
fn serve(plan: &Plan, log: &Log, mut reporter: Reporter) -> Result<(), Failure> {
    nfsrdma_fs::adapter::heap::limit_arenas();
    let begun = begin(plan, log, &mut reporter);
    match begun {
        Ok((runtime, service)) => {
            let result = runtime.block_on(service.run());
            runtime.shutdown_timeout(Duration::from_secs(1));
            result
        }
        Err(failure) => {
            if !reporter.is_foreground() && !reporter.reports() {
                // With `bg`, the parent returned long ago, and only the log is left to report to.
                error!("{failure}");
            }
            reporter.failure(&failure);
            Err(failure)
        }
    }
}

/// The error for threads, descriptors or signal handlers that the system does not give.
fn system(error: std::io::Error) -> Failure {
    Failure::new(
        Exit::System,
        format!("cannot start the mount's threads: {error}"),
    )
}

/// Connects, and chooses who keeps the locks. A signal interrupts both.
async fn reach_server(
    plan: &Plan,
    log: &Log,
    reporter: &mut Reporter,
    pool: &Pool,
) -> Result<(Mounted, String, Chosen, Signals), Failure> {
    let mut signals = Signals::new(reporter.is_foreground(), log).map_err(system)?;
    let connecting = async {
        let (mounted, reason) = connect(plan, log, reporter, pool).await?;
        let server = mounted.description.server.ip();
        let locks = locking::choose(server, &plan.options, mounted.client.tap()).await?;
        Ok::<_, Failure>((mounted, reason, locks))
    };
    let (mounted, reason, locks) = tokio::select! {
        connected = connecting => connected?,
        name = signals.next() => {
            return Err(Failure::new(
                Exit::Interrupted,
                format!(
                    "mounting {} was interrupted by {name}: nothing is mounted; mount again",
                    plan.spec
                ),
            ));
        }
    };
    Ok((mounted, reason, locks, signals))
}

/// Reports to the parent process that the mount works.
fn report(
    plan: &Plan,
    log: &Log,
    reporter: &mut Reporter,
    mounted: &Mounted,
    options: &Options,
    reason: &str,
) -> Result<(), Failure> {
    let line = summary::line(&plan.spec, &plan.point.path, &mounted.description);
    if plan.verbose {
        reporter.notice(&format!("{}; {reason}", mounted.description));
        reporter.notice(&format!(
            "options: {}",
            settings::effective(options, &mounted.client)
        ));
    }
    if reporter.is_foreground() {
        output::notice(&line);
    } else {
        let told = if plan.quiet { "" } else { &line };
        reporter.success(told).map_err(system)?;
        log.detach();
    }
    Ok(())
}

fn begin(plan: &Plan, log: &Log, reporter: &mut Reporter) -> Result<(Runtime, Service), Failure> {
    daemon::mark_io_flusher();
    daemon::ignore_other_signals();
    // Capabilities belong to a thread, so this must happen before there are others.
    privileges::give_up();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("nfsrdma-rt")
        .enable_all()
        .build()
        .map_err(system)?;
    let metrics = plan
        .options
        .metrics
        .as_ref()
        .map(|at| stats::metrics::listen(at, "metrics="))
        .transpose()?;
    let mut config = settings::file_system(&plan.options);
    let pool = Pool::new(settings::pool_bytes(&plan.options, &config))
        .map_err(|error| Failure::new(Exit::System, error.to_string()))?;
    let connected = runtime.block_on(reach_server(plan, log, reporter, &pool));
    let (mounted, reason, locks, signals) = match connected {
        Ok(connected) => connected,
        Err(failure) => {
            // This does not wait for a connection attempt that is under way.
            runtime.shutdown_background();
            return Err(failure);
        }
    };
    config.name_max = mounted.name_max();
    let fs = Fs::new(Arc::new(mounted.client.clone()), mounted.root, pool, config);
    let point = cleared(plan, reporter)?;
    let device = fuse_mount::attach(&point, &plan.spec.source(), &plan.options)?;
    let probe = Arc::new(device.try_clone().map_err(system)?);
    let fuse = settings::fuse(&plan.spec, &plan.options, locks.local);
    let options = Options {
        local_lock: Some(locks.local),
        ..plan.options.clone()
    };
    if let Some(locks) = &locks.locks {
        fs.set_locks(locks.clone());
    }
    let (dir, tasks) = (&plan.point.path, runtime.handle());
    let served = adapter::adopt(&fs, device, &fuse).and_then(|channel| {
        let own = OwnMount::on(dir);
        adapter::serve(fs.clone(), channel, own, &fuse, tasks, &mut |_, _| Ok(()))
    });
    let session = Arc::new(served.map_err(|error| {
        let _ = unmount::detach(dir);
        let message = format!("the kernel does not accept the FUSE mount: {error}");
        Failure::new(Exit::System, message)
    })?);
    let own = session.own_mount().id();
    let mount = mounts::all()
        .ok()
        .and_then(|all| all.into_iter().find(|mount| mount.id == own));
    if geteuid().is_root() {
        enter_in_utab(plan);
    }
    raise_read_ahead(mount.as_ref(), &fs, plan.options.fs.readahead_bytes as u64);
    let notifier = mount
        .as_ref()
        .and_then(|mount| exit_watch::ExitNotifier::listen(&mount.device).ok());
    let source = Arc::new(stats::Source::new(
        &mounted,
        fs.clone(),
        &plan.spec.source(),
        &plan.point.path,
        &options,
    ));
    let control = mount.and_then(|mount| {
        let _inside = runtime.enter();
        let answer = answer_sync(fs.clone(), probe, source.clone().answer());
        control::Control::start(&mount.device, log.answer(answer))
            .inspect_err(|error| warn!("no statistics: {error}"))
            .ok()
    });
    if let Some(listener) = metrics {
        runtime.spawn(stats::metrics::serve(listener, source.render()));
    }
    report(plan, log, reporter, &mounted, &options, &reason)?;
    info!("mounted: {}; {reason}", mounted.description);
    let service = Service {
        mounted,
        fs,
        session,
        signals,
        notifier,
        control,
        name: plan.name(),
        source: plan.spec.source(),
        lost: Vec::new(),
        given_up: None,
    };
    Ok((runtime, service))
}

/// The mount point without dead mounts. They are taken away only now that the server has answered:
/// in the bare directory, programs would write to another file system.
fn cleared(plan: &Plan, reporter: &mut Reporter) -> Result<MountPoint, Failure> {
    let mut point = plan.point.clone();
    while let Some(dead) = point.dead.take() {
        let line = dead.replaced(&mounts::all().unwrap_or_default());
        unmount::detach_exactly(&point.path, dead.id)?;
        let _ = utab::remove(dead.source.as_bytes(), &point.path);
        reporter.notice(&line);
        info!("{line}");
        point = mount_point::check(&point.path, &plan.spec.source())?;
    }
    Ok(point)
}

/// Makes umount(8) find our helper: see [`utab`].
fn enter_in_utab(plan: &Plan) {
    if let Err(error) = utab::add(&plan.spec.source(), &plan.point.path) {
        debug!("umount(8) will not find its helper: /run/mount/utab: {error}");
    }
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

/// Sets the kernel's readahead in sysfs, which needs root. INIT cannot ask for more than 128 KiB, so
/// `fs` reads ahead where this fails.
fn raise_read_ahead(mount: Option<&mounts::Mount>, fs: &Fs<Nfs3Client>, bytes: u64) {
    let Some(mount) = mount else { return };
    let kib = (bytes >> 10).min(u64::from(u32::MAX)) as u32;
    match adapter::set_read_ahead(&mount.device, kib) {
        Ok(()) => fs.kernel_reads_ahead(),
        Err(error) => debug!("the kernel's read-ahead stays as it is: {error}"),
    }
}
