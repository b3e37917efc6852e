//! The life of a mount: checks, connection, mount, service, flush, end.

use super::cli::MountArgs;
use super::daemon::{self, Reporter, Side};
use super::failure::{Exit, Failure, Patience};
use super::log::Log;
use super::options::Options;
use super::spec::Spec;
use super::{attach, control, mounts, presence, privileges, provider, remount, settings, stats};
use crate::adapter::{self, Session};
use crate::fs::{Fs, Unwritten};
use nfsrdma_client::mount::{self, Mounted};
use nfsrdma_client::nfs::client::Nfs3Client;
use nfsrdma_rdma::Pool;
use std::path::{Path, PathBuf};
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
/// Between two words about the last flush.
const PROGRESS: Duration = Duration::from_millis(200);

/// Everything decided before the server is asked.
#[derive(Debug)]
struct Plan {
    spec: Spec,
    dir: PathBuf,
    options: Options,
    verbose: bool,
    /// Without the summary line.
    quiet: bool,
}

/// Runs `mount`. Returns a line to print, if any, when the mount works (in the foreground:
/// when it has ended).
pub(super) fn run(args: &MountArgs, notice: impl FnMut(&str)) -> Result<Option<String>, Failure> {
    let mut notice = notice;
    let options = Options::parse(&args.options)?;
    let nofail = options.nofail;
    match mount(args, options, &mut notice) {
        Err(failure) if nofail && failure.exit == Exit::Failed => {
            notice(&format!("{failure} (nofail)"));
            Ok(None)
        }
        result => result,
    }
}

fn mount(
    args: &MountArgs,
    mut options: Options,
    notice: &mut dyn FnMut(&str),
) -> Result<Option<String>, Failure> {
    for name in &options.ignored {
        notice(&format!("option '{name}' is passed over"));
    }
    if options.remount {
        return remount::run(&args.dir, &options, &args.options).map(|()| None);
    }
    let spec = Spec::parse(&args.spec)?;
    if let Some(port) = spec.port {
        options.port = port;
    }
    let dir = mounts::check_point(&args.dir, &spec.source())?;
    drop(attach::open_device(Path::new(attach::DEVICE))?);
    if args.fake {
        return Ok(None);
    }
    let plan = Plan {
        spec,
        dir,
        options,
        verbose: args.verbose > 0,
        quiet: args.quiet,
    };
    let log = || Log::install(args.foreground, args.verbose, args.log.as_deref());
    if args.foreground {
        return serve(&plan, &log()?, Reporter::foreground()).map(|()| None);
    }
    match daemon::fork_off(notice)? {
        Side::Parent(outcome) => outcome.map(|line| (!line.is_empty()).then_some(line)),
        Side::Child(reporter) => {
            let status = match log().and_then(|log| serve(&plan, &log, reporter)) {
                Ok(()) => 0,
                Err(failure) => failure.exit as i32,
            };
            std::process::exit(status)
        }
    }
}

/// The signals that end a mount.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    /// In the background a hang-up concerns nobody.
    heed_hang_up: bool,
}

impl Signals {
    fn new(heed_hang_up: bool) -> std::io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            heed_hang_up,
        })
    }

    /// The name of the next one.
    async fn next(&mut self) -> &'static str {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = self.hang_up.recv() => if self.heed_hang_up { return "SIGHUP" },
            }
        }
    }
}

/// Makes the mount and serves it to its end.
fn serve(plan: &Plan, log: &Log, mut reporter: Reporter) -> Result<(), Failure> {
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
                error!("{}: {failure}", plan.spec);
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
    /// What could not be written, a line each.
    lost: Vec<String>,
}

fn begin(plan: &Plan, log: &Log, reporter: &mut Reporter) -> Result<(Runtime, Service), Failure> {
    daemon::mark_io_flusher();
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
    let (mounted, reason, signals) = runtime.block_on(async {
        let mut signals = Signals::new(reporter.is_foreground()).map_err(system)?;
        let (mounted, reason) = tokio::select! {
            connected = connect(plan, log, reporter, &pool) => connected?,
            name = signals.next() => {
                return Err(Failure::new(
                    Exit::Interrupted,
                    format!("mounting {} was interrupted by {name}", plan.spec),
                ));
            }
        };
        Ok((mounted, reason, signals))
    })?;
    let fs = Fs::new(Arc::new(mounted.client.clone()), mounted.root, pool, config);
    let device = attach::attach(&plan.dir, &plan.spec.source(), &plan.options)?;
    let fuse = settings::fuse(&plan.spec, &plan.options);
    let session = match adapter::serve(fs.clone(), device, &plan.dir, &fuse) {
        Ok(session) => Arc::new(session),
        Err(error) => {
            let _ = super::unmount::detach(&plan.dir);
            return Err(Failure::new(
                Exit::System,
                format!("the kernel does not accept the FUSE mount: {error}"),
            ));
        }
    };
    let mount = mounts::on_top_of(&plan.dir).ok().flatten();
    let presence = mount
        .as_ref()
        .and_then(|mount| presence::Presence::announce(&mount.device).ok());
    let source = Arc::new(stats::Source::new(
        &mounted,
        fs.clone(),
        &plan.spec.source(),
        &plan.dir,
        &plan.options,
    ));
    let control = mount.and_then(|mount| {
        let _inside = runtime.enter();
        control::Control::start(&mount.device, log.answer(source.clone().answer()))
            .inspect_err(|error| warn!("no statistics of {}: {error}", plan.spec))
            .ok()
    });
    if let Some(listener) = metrics {
        runtime.spawn(stats::metrics::serve(listener, source));
    }
    raise_read_ahead(plan);
    let line = summary(plan, &mounted, &reason);
    if plan.verbose {
        reporter.notice(&format!(
            "options: {}",
            settings::effective(&plan.options, &mounted.client)
        ));
    }
    if reporter.is_foreground() {
        println!("{line}");
    } else {
        let told = if plan.quiet { "" } else { &line };
        reporter.success(told).map_err(system)?;
        log.detach();
    }
    info!("{line}");
    let service = Service {
        mounted,
        fs,
        session,
        signals,
        presence,
        control,
        name: format!("{} on {}", plan.spec, plan.dir.display()),
        lost: Vec::new(),
    };
    Ok((runtime, service))
}

/// INIT cannot ask for more than 128 KiB; the device's entry in sysfs can, for root.
fn raise_read_ahead(plan: &Plan) {
    let kib = (plan.options.readahead >> 10).min(u64::from(u32::MAX)) as u32;
    if let Err(error) = adapter::set_read_ahead(&plan.dir, kib) {
        debug!("the kernel's read-ahead stays as it is: {error}");
    }
}

/// The one line that says what was mounted how.
fn summary(plan: &Plan, mounted: &Mounted, reason: &str) -> String {
    format!(
        "{} mounted on {}: {}; {reason}",
        plan.spec,
        plan.dir.display(),
        mounted.description
    )
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
    loop {
        let failure = match attempt(plan, pool).await {
            Ok(connected) => return Ok(connected),
            Err(failure) => failure,
        };
        let wait = match failure.patience {
            Patience::Useful => true,
            Patience::IfAsked => options.background || options.retry.is_some(),
            Patience::Useless => false,
        };
        if !wait || start.elapsed() + pause > limit {
            return Err(failure);
        }
        if options.background && reporter.reports() {
            let line = format!(
                "{failure}; trying on in the background to mount {} on {}",
                plan.spec,
                plan.dir.display()
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
        warn!("{}: {failure}; trying again in {pause:?}", plan.spec);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// One try: the mount, and why it is by this provider.
async fn attempt(plan: &Plan, pool: &Pool) -> Result<(Mounted, String), Failure> {
    let options = &plan.options;
    let client = settings::client(options)?;
    let target = settings::target(&plan.spec, options)?;
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
        let mut signalled = 0;
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
                    info!("{}: {name}: unmounting", self.name);
                    if signalled > 1 || !self.unmount().await {
                        break (Ok(Ok(())), None);
                    }
                }
            }
        };
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!("{}: {error}", self.name),
            Err(error) => error!("{}: {error}", self.name),
        }
        self.fs.end_of_requests();
        self.last_flush(presence.as_mut()).await;
        let lost = std::mem::take(&mut self.lost);
        if let Some(presence) = &mut presence
            && !lost.is_empty()
        {
            presence.tell_lost(&(lost.join("\n") + "\n"));
        }
        // The end of the process closes it, not the end of this function: memory and threads are
        // still to be given back, and others wait for all of that.
        std::mem::forget(presence);
        let farewell = tokio::time::timeout(FAREWELL, self.mounted.unmount()).await;
        if farewell.is_err() {
            debug!("{}: the server did not answer UMNT", self.name);
        }
        // Whoever listens has heard the last flush, too.
        self.mounted.client.tap().close();
        if let Some(feeds) = feeds {
            feeds.finish().await;
        }
        info!("{}: ended", self.name);
        if lost.is_empty() {
            return Ok(());
        }
        Err(Failure::new(
            Exit::Failed,
            format!("{}: data were lost:\n{}", self.name, lost.join("\n")),
        ))
    }

    /// Flushes, and tells whoever waits for the end how much is left.
    async fn last_flush(&mut self, mut presence: Option<&mut presence::Presence>) {
        let fs = self.fs.clone();
        let flush = self.flush();
        tokio::pin!(flush);
        loop {
            tokio::select! {
                () = &mut flush => return,
                () = tokio::time::sleep(PROGRESS) => {
                    let dirty = fs.statistics().into_iter().find(|(name, _)| *name == "dirty_bytes");
                    if let (Some(presence), Some((_, bytes))) = (presence.as_mut(), dirty) {
                        presence.tell(bytes);
                    }
                }
            }
        }
    }

    /// Unmounts, or detaches a mount in use. False if neither is possible.
    async fn unmount(&mut self) -> bool {
        match self.unmount_by(false).await {
            Ok(()) => return true,
            Err(error) => info!(
                "{}: {error}: flushing and detaching; ends with its last user",
                self.name
            ),
        }
        self.flush().await;
        match self.unmount_by(true).await {
            Ok(()) => true,
            Err(error) => {
                error!("{}: cannot unmount: {error}", self.name);
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

    /// Writes everything back; a signal ends the wait. What cannot be written is told.
    async fn flush(&mut self) {
        let lost = tokio::select! {
            lost = self.fs.shutdown() => lost,
            name = self.signals.next() => {
                self.fs.unsaved(&format!("{name} came before the server's answer"))
            }
        };
        for unwritten in lost {
            let Unwritten {
                fileid,
                name,
                range,
                ranges,
                bytes,
                reason,
            } = unwritten;
            let name = name.as_deref().unwrap_or("name not known");
            let what = match ranges {
                1 => "bytes".to_owned(),
                _ => format!("{bytes} bytes in {ranges} ranges of bytes"),
            };
            let line = format!(
                "{what} {} to {} of {name} (file {fileid}) are lost: {reason}",
                range.start, range.end
            );
            if !self.lost.contains(&line) {
                error!("{}: {line}", self.name);
                self.lost.push(line);
            }
        }
    }
}
