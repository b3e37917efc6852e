//! The life of a mount: checks, connection, mount, service, flush, end.

use super::cli::MountArgs;
use super::daemon::{self, Reporter, Side};
use super::failure::{Exit, Failure, Patience};
use super::log::Log;
use super::mounts::MountPoint;
use super::options::Options;
use super::pending::{Announcement, Pending};
use super::spec::Spec;
use super::{
    attach, control, fstab, locking, mounts, nfsmount_conf, output, presence, privileges, provider,
    remount, settings, stats, summary, sync, utab,
};
use nfsrdma_fs::adapter::{self, Session};
use nfsrdma_fs::fs::{Fs, Unwritten};
use nfsrdma_nfs3::Nfs3Client;
use nfsrdma_nfs3::mount::{self, Mounted};
use nfsrdma_rdma::Pool;
use nix::unistd::geteuid;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{debug, error, info, warn};

/// nfs(5), `retry`: how long a mount goes on trying, in the foreground and in the background.
const FOREGROUND_RETRY: Duration = Duration::from_secs(2 * 60);
const BACKGROUND_RETRY: Duration = Duration::from_secs(10_000 * 60);
/// Longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// For taking leave of the server, whose answer does not matter.
const FAREWELL: Duration = Duration::from_secs(5);
/// Between two tries to leave a mount point on which another mount lies.
const COVERED: Duration = Duration::from_secs(1);

/// Everything decided before the server is asked.
#[derive(Debug)]
struct Plan {
    spec: Spec,
    point: MountPoint,
    options: Options,
    options_given: String,
    verbose: bool,
    /// Without the summary line.
    quiet: bool,
}

impl Plan {
    /// The mount in the log.
    fn name(&self) -> String {
        format!("{} on {}", self.spec, self.point.path.display())
    }
}

/// Runs `mount`. Returns a line to print, if any, when the mount works (in the foreground:
/// when it has ended).
pub(super) fn run(args: &MountArgs, notice: impl FnMut(&str)) -> Result<Option<String>, Failure> {
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
    let spec = Spec::parse(&args.spec)?;
    let (text, passed_over) = nfsmount_conf::apply(&spec.host, &args.dir, &args.options)?;
    passed_over.iter().for_each(|line| notice(line));
    let options = Options::parse_with_port(&text, spec.port)?;
    let point = mounts::check_point(&args.dir, &spec.source())?;
    drop(attach::open_device(Path::new(attach::DEVICE))?);
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

/// The signals that end a mount, and SIGHUP, which opens its log anew.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    /// The terminal that SIGHUP tells the end of is the mount's own.
    on_terminal: bool,
    log: Log,
}

impl Signals {
    fn new(foreground: bool, log: &Log) -> std::io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            on_terminal: foreground && !log.has_file(),
            log: log.clone(),
        })
    }

    /// The name of the next one.
    async fn next(&mut self) -> &'static str {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = self.hang_up.recv() => match self.on_terminal {
                    true => return "SIGHUP",
                    false => self.log.reopen(),
                },
            }
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
                // With `bg` the parent has gone long ago.
                error!("{failure}");
            }
            reporter.failure(&failure);
            Err(failure)
        }
    }
}

/// A mount at work.
struct Service {
    mounted: Mounted,
    fs: Arc<Fs<Nfs3Client>>,
    session: Arc<Session>,
    signals: Signals,
    /// Kept for whoever waits for this process: see [`presence`].
    presence: Option<presence::Presence>,
    control: Option<control::Control>,
    name: String,
    /// The mount's source, for /run/mount/utab.
    source: Vec<u8>,
    /// What could not be written, a line each.
    lost: Vec<String>,
}

fn begin(plan: &Plan, log: &Log, reporter: &mut Reporter) -> Result<(Runtime, Service), Failure> {
    daemon::mark_io_flusher();
    daemon::ignore_other_signals();
    // While there is one thread.
    privileges::give_up();
    let system = |error: std::io::Error| {
        Failure::new(
            Exit::System,
            format!("cannot start the mount's threads: {error}"),
        )
    };
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
        .map(stats::metrics::listen)
        .transpose()?;
    let config = settings::file_system(&plan.options);
    let pool = Pool::new(settings::pool_bytes(&plan.options, &config))
        .map_err(|error| Failure::new(Exit::System, error.to_string()))?;
    let connected = runtime.block_on(async {
        let mut signals = Signals::new(reporter.is_foreground(), log).map_err(system)?;
        let connecting = async {
            let (mounted, reason) = connect(plan, log, reporter, &pool).await?;
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
    });
    let (mounted, reason, locks, signals) = match connected {
        Ok(connected) => connected,
        Err(failure) => {
            // A connection attempt under way is not waited for.
            runtime.shutdown_background();
            return Err(failure);
        }
    };
    let fs = Fs::new(Arc::new(mounted.client.clone()), mounted.root, pool, config);
    let device = attach::attach(&plan.point, &plan.spec.source(), &plan.options)?;
    let probe = Arc::new(device.try_clone().map_err(system)?);
    let fuse = settings::fuse(&plan.spec, &plan.options, locks.local);
    let options = Options {
        local_lock: Some(locks.local),
        ..plan.options.clone()
    };
    if let Some(locks) = &locks.locks {
        fs.set_locks(locks.clone());
    }
    let session = match adapter::serve(fs.clone(), device, &plan.point.path, &fuse) {
        Ok(session) => Arc::new(session),
        Err(error) => {
            let _ = super::unmount::detach(&plan.point.path);
            return Err(Failure::new(
                Exit::System,
                format!("the kernel does not accept the FUSE mount: {error}"),
            ));
        }
    };
    let own = session.own_mount().id();
    let mount = mounts::all()
        .ok()
        .and_then(|all| all.into_iter().find(|mount| mount.id == own));
    if geteuid().is_root() {
        enter_in_utab(plan);
    }
    let presence = mount
        .as_ref()
        .and_then(|mount| presence::Presence::announce(&mount.device).ok());
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
    raise_read_ahead(plan);
    let line = summary::line(&plan.spec, &plan.point.path, &mounted.description);
    if plan.verbose {
        reporter.notice(&format!("{}; {reason}", mounted.description));
        reporter.notice(&format!(
            "options: {}",
            settings::effective(&options, &mounted.client)
        ));
    }
    if reporter.is_foreground() {
        output::notice(&line);
    } else {
        let told = if plan.quiet { "" } else { &line };
        reporter.success(told).map_err(system)?;
        log.detach();
    }
    info!("mounted: {}; {reason}", mounted.description);
    let service = Service {
        mounted,
        fs,
        session,
        signals,
        presence,
        control,
        name: plan.name(),
        source: plan.spec.source(),
        lost: Vec::new(),
    };
    Ok((runtime, service))
}

/// For umount(8), which else does not know of our helper.
fn enter_in_utab(plan: &Plan) {
    if let Err(error) = utab::add(&plan.spec.source(), &plan.point.path) {
        debug!("umount(8) will not find its helper: /run/mount/utab: {error}");
    }
}

/// Takes it out again, if no younger mount of the same export is there.
fn leave_utab(source: &[u8], dir: &Path) {
    let again = mounts::all().is_ok_and(|all| {
        all.iter()
            .any(|mount| mount.dir == dir && mount.source.as_bytes() == source)
    });
    if !again && let Err(error) = utab::remove(source, dir) {
        debug!("/run/mount/utab: {error}");
    }
}

/// Answers [`sync::SYNC`] before `next`.
fn answer_sync(
    fs: Arc<Fs<Nfs3Client>>,
    device: Arc<OwnedFd>,
    next: control::Answer,
) -> control::Answer {
    Arc::new(move |request| match request {
        sync::SYNC => Some(control::Said::Feed(sync::feed(fs.clone(), device.clone()))),
        _ => next(request),
    })
}

/// INIT cannot ask for more than 128 KiB; the device's entry in sysfs can, for root.
fn raise_read_ahead(plan: &Plan) {
    let kib = (plan.options.readahead >> 10).min(u64::from(u32::MAX)) as u32;
    if let Err(error) = adapter::set_read_ahead(&plan.point.path, kib) {
        debug!("the kernel's read-ahead stays as it is: {error}");
    }
}

/// Connects, again and again as `retry`, `bg` and `fg` say; also gives why by this provider.
async fn connect(
    plan: &Plan,
    log: &Log,
    reporter: &mut Reporter,
    pool: &Pool,
) -> Result<(Mounted, String), Failure> {
    let options = &plan.options;
    let start = Instant::now();
    let limit = match (options.retry, options.background) {
        (Some(limit), _) => limit,
        (None, true) => BACKGROUND_RETRY,
        (None, false) => FOREGROUND_RETRY,
    };
    let mut pause = Duration::from_secs(1);
    let mut announced: Option<Announcement> = None;
    loop {
        let outcome = tokio::select! {
            outcome = attempt(plan, pool) => outcome,
            () = cancelled(announced.as_ref()) => return Err(was_cancelled(plan)),
        };
        let failure = match outcome {
            Ok(connected) => {
                if let Some(announced) = announced {
                    announced.stop().await;
                }
                return Ok(connected);
            }
            Err(failure) => failure,
        };
        let wait = match failure.patience {
            Patience::Useful => true,
            Patience::IfAsked => options.background || options.retry.is_some(),
            Patience::Useless => false,
        };
        if !wait || start.elapsed() + pause > limit {
            return Err(with_hint(failure, &plan.point.path));
        }
        if options.background && reporter.reports() {
            let line = format!(
                "{failure}; trying on in the background to mount {} on {}",
                plan.spec,
                plan.point.path.display()
            );
            reporter.success(&line).map_err(|error| {
                Failure::new(
                    Exit::System,
                    format!("cannot go to the background: {error}"),
                )
            })?;
            log.detach();
        } else if pause == Duration::from_secs(1) && reporter.reports() {
            reporter.notice(&format!(
                "{failure}; trying again for {} minutes (retry=0 gives up at once)",
                limit.as_secs() / 60
            ));
        }
        warn!("{failure}; trying again in {pause:?}");
        let announced = announced.get_or_insert_with(|| announce(plan, start));
        announced.failed(&failure.message);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = announced.cancelled() => return Err(was_cancelled(plan)),
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// A server that cannot be reached is one that is tried too early, perhaps.
fn with_hint(mut failure: Failure, dir: &Path) -> Failure {
    if failure.patience != Patience::Useless && fstab::lacks_netdev(dir) {
        failure.message += "; its line in /etc/fstab lacks _netdev, so that it is mounted before the network is up";
    }
    failure
}

/// Lets others see what is being tried, and cancel it.
fn announce(plan: &Plan, since: Instant) -> Announcement {
    let pending = Pending {
        pid: std::process::id(),
        source: String::from_utf8_lossy(&plan.spec.source()).into_owned(),
        directory: plan.point.path.to_string_lossy().into_owned(),
        options: plan.options_given.clone(),
        background: plan.options.background,
        ..Pending::default()
    };
    Announcement::new(pending, since)
}

async fn cancelled(announced: Option<&Announcement>) {
    match announced {
        Some(announced) => announced.cancelled().await,
        None => std::future::pending().await,
    }
}

fn was_cancelled(plan: &Plan) -> Failure {
    Failure::new(
        Exit::Interrupted,
        format!(
            "mounting {} on {} was cancelled by 'nfsrdma umount'",
            plan.spec,
            plan.point.path.display()
        ),
    )
}

/// One try: the mount, and why it is by this provider.
async fn attempt(plan: &Plan, pool: &Pool) -> Result<(Mounted, String), Failure> {
    let options = &plan.options;
    let client = settings::client(options);
    let target = settings::target(&plan.spec);
    let chosen = provider::choose(options, &target.host)?;
    let mounted = mount::connect(&target, &client, chosen.provider.clone(), pool.clone()).await;
    let mounted = mounted.map_err(|error| chosen.failed(error))?;
    Ok((mounted, chosen.reason))
}

impl Service {
    /// Serves until the mount is gone, by umount(8) or by a signal; flushes; takes leave.
    async fn run(mut self) -> Result<(), Failure> {
        let session = self.session.clone();
        let mut presence = self.presence.take();
        let control = self.control.take();
        let mut feeds = None;
        let runtime = tokio::runtime::Handle::current();
        let mut ended = tokio::task::spawn_blocking(move || {
            let outcome = session.join();
            // Before a new mount can have the device number.
            let feeds = control.map(|control| runtime.block_on(control.stop()));
            if let Some(presence) = &mut presence {
                presence.retire();
            }
            (outcome, presence, feeds)
        });
        let (mut signalled, mut covered) = (0, false);
        let (outcome, mut presence) = loop {
            tokio::select! {
                joined = &mut ended => match joined {
                    Ok((outcome, presence, rest)) => {
                        feeds = rest;
                        break (Ok(outcome), presence);
                    }
                    Err(error) => break (Err(error), None),
                },
                name = self.signals.next() => {
                    signalled += 1;
                    info!("{name}: unmounting");
                    if signalled > 1 {
                        break (Ok(Ok(())), None);
                    }
                    covered = !self.leave().await;
                }
                () = tokio::time::sleep(COVERED), if covered => {
                    covered = self.unmount_by(true).await.is_err();
                }
            }
        };
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!("{error}"),
            Err(error) => error!("{error}"),
        }
        self.fs.end_of_requests();
        self.last_flush(presence.as_mut()).await;
        let lost = std::mem::take(&mut self.lost);
        if let Some(presence) = &mut presence
            && !lost.is_empty()
        {
            presence.tell_lost(&(lost.join("\n") + "\n"));
        }
        leave_utab(&self.source, self.session.own_mount().dir());
        // The end of the process closes it, not the end of this function: memory and threads are
        // still to be given back, and others wait for all of that.
        if let Some(presence) = &mut presence {
            presence.hide();
        }
        std::mem::forget(presence);
        self.give_back_locks().await;
        let farewell = tokio::time::timeout(FAREWELL, self.mounted.unmount()).await;
        if farewell.is_err() {
            debug!("the server did not answer UMNT");
        }
        // Whoever listens has heard the last flush, too.
        self.mounted.client.tap().close();
        if let Some(feeds) = feeds {
            feeds.finish().await;
        }
        info!("ended");
        if lost.is_empty() {
            return Ok(());
        }
        Err(Failure::new(
            Exit::Failed,
            format!("{}: data were lost:\n{}", self.name, lost.join("\n")),
        ))
    }

    /// Whoever held a lock has closed its file; the server may not have answered.
    async fn give_back_locks(&self) {
        if let Some(locks) = self.fs.locks() {
            let left = locks.finish(FAREWELL).await;
            if left > 0 {
                warn!(
                    "{}: the server of locks does not answer: it has {left} of ours still",
                    self.name
                );
            }
        }
    }

    /// Flushes, and tells whoever waits for the end how much is left.
    async fn last_flush(&mut self, mut presence: Option<&mut presence::Presence>) {
        let fs = self.fs.clone();
        let flush = self.flush();
        tokio::pin!(flush);
        loop {
            tokio::select! {
                () = &mut flush => return,
                () = tokio::time::sleep(sync::PROGRESS) => {
                    let dirty = fs.statistics().into_iter().find(|(name, _)| *name == "dirty_bytes");
                    if let (Some(presence), Some((_, bytes))) = (presence.as_mut(), dirty) {
                        presence.tell(bytes);
                    }
                }
            }
        }
    }

    /// Unmounts; a mount in use is flushed and detached, and served on for its users. False if
    /// neither is possible now, as with another mount on top: then it is served on as well.
    async fn leave(&mut self) -> bool {
        match self.unmount_by(false).await {
            Ok(()) => return true,
            Err(error) => {
                info!("{error}: flushing and detaching; ends with its last user");
            }
        }
        self.flush_in_use().await;
        match self.unmount_by(true).await {
            Ok(()) => true,
            Err(error) => {
                error!(
                    "cannot unmount: {error}; goes on until that is possible, or until the next signal"
                );
                false
            }
        }
    }

    async fn unmount_by(&self, lazy: bool) -> std::io::Result<()> {
        let session = self.session.clone();
        tokio::task::spawn_blocking(move || session.unmount(lazy))
            .await
            .map_err(std::io::Error::other)?
    }

    /// Writes back what is written so far, of a mount that goes on; a signal ends the wait.
    async fn flush_in_use(&mut self) {
        let fs = self.fs.clone();
        tokio::select! {
            () = fs.write_back_all() => {}
            name = self.signals.next() => {
                let unsaved = fs.unsaved(&format!("{name} came before the server's answer"));
                self.note_lost(unsaved);
            }
        }
    }

    /// Writes everything back when the mount is gone; a signal ends the wait.
    async fn flush(&mut self) {
        let lost = tokio::select! {
            lost = self.fs.shutdown() => lost,
            name = self.signals.next() => {
                self.fs.unsaved(&format!("{name} came before the server's answer"))
            }
        };
        self.note_lost(lost);
    }

    /// What cannot be written is in the log, and in what the process says at its end.
    fn note_lost(&mut self, lost: Vec<Unwritten>) {
        for line in lost.iter().map(sync::lost_line) {
            if !self.lost.contains(&line) {
                error!("{line}");
                self.lost.push(line);
            }
        }
    }
}
