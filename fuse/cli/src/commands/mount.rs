//! The command `mount`: checks, connects, and mounts; [`service`](crate::mount::service) goes on.

use crate::cli::MountArgs;
use crate::commands::remount;
use crate::commands::unmount;
use crate::failure::{Exit, Failure};
use crate::holder::Program;
use crate::holder::client::Held;
use crate::holder::run::{self as holder, Side};
use crate::ipc::keeper::{FUSE, Keeper, PLAN, POOL, REQUESTS, TABLE};
use crate::mount::apart::Apart;
use crate::mount::begun::{self, Begun, Kernel, Prepared};
use crate::mount::connect::{Plan, connect};
use crate::mount::daemon::{self, Forked, Reporter};
use crate::mount::locking::{self, Chosen};
use crate::mount::log::Log;
use crate::mount::mount_point::{self, MountPoint};
use crate::mount::record::{Facts, MountIdentity, Record, now_ns};
use crate::mount::service::{Service, Signals};
use crate::mount::{fuse_mount, memory_limit, nfsmount_conf, settings, summary, utab};
use crate::options::mount_source::MountSource;
use crate::options::{Options, Restart};
use crate::stats::Life;
use crate::{mounts, output};
use nfsrdma_fs::adapter::{self, OwnMount};
use nfsrdma_nfs3::Description;
use nfsrdma_nfs3::mount::Mounted;
use nfsrdma_rdma::Pool;
use nfsrdma_record::Table;
use rustix::process::geteuid;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use tokio::runtime::Runtime;
use tracing::{debug, error, info};

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
    let (mut text, passed_over) = nfsmount_conf::apply(&spec.host, &args.dir, &args.options)?;
    passed_over.iter().for_each(|line| notice(line));
    let mut options = Options::parse_with_port(&text, spec.port)?;
    if options.restart.is_none() {
        let (restart, word) = choose_restart(args);
        options.restart = Some(restart);
        // A successor reads this.
        text.push_str(word);
    }
    let outlives = options.restart != Some(Restart::No);
    if args.namespace.is_some() && outlives {
        // The program would be started again from the other namespace, whose files may be anybody's.
        return Err(Failure::new(
            Exit::Usage,
            "restart= does not work with -N: leave it out, also in nfsmount.conf",
        ));
    }
    // `mount -a` calls the helper again for a mount that shows a directory of its file system.
    if args.helper
        && let Some(line) = mount_point::is_mounted(&args.dir, &spec.source())
    {
        notice(&line);
        return Ok(None);
    }
    let point = mount_point::check(&args.dir, &spec.source())?;
    daemon::allow_descriptors(outlives)?;
    if let Some(log) = &args.log {
        point.has_outside(log)?;
    }
    drop(fuse_mount::open_device(Path::new(fuse_mount::DEVICE))?);
    if let Some(line) = memory_limit::fit(&mut options, &mut text) {
        notice(&line);
    }
    if args.fake {
        if args.verbose > 0 {
            notice(&format!("options: {}", settings::wanted(&options)));
        }
        return Ok(None);
    }
    let plan = Plan {
        args: args.clone(),
        spec,
        point,
        options,
        text,
    };
    let name = plan.name();
    let log = || Log::install(args.foreground, args.verbose, args.log.as_deref(), &name);
    if args.foreground {
        let reporter = Reporter::foreground();
        return held(&plan, reporter, log).map(|()| None);
    }
    match daemon::fork_off(notice)? {
        Forked::Parent(outcome) => outcome.map(|line| (!line.is_empty()).then_some(line)),
        Forked::Child(reporter) => {
            let served = held(&plan, reporter, log);
            std::process::exit(served.map_or_else(|failure| failure.exit as i32, |()| 0))
        }
    }
}

/// What outlives the program if no option says so, and that option. A mount of root's does, unless somebody watches it:
/// who runs it in the foreground, as services and containers do, is to know of its end.
fn choose_restart(args: &MountArgs) -> (Restart, &'static str) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let can = args.namespace.is_none()
        && gives_requests_again(&release)
        && daemon::allow_descriptors(true).is_ok()
        && nobody_else_may_change_it().unwrap_or(false);
    match can && !args.foreground && geteuid().is_root() {
        true => (Restart::Data, ",restart=data"),
        false => (Restart::No, ",restart=no"),
    }
}

/// Whether root alone may put another program in the place of this one, which would be started as root.
fn nobody_else_may_change_it() -> io::Result<bool> {
    let program = std::env::current_exe()?;
    let of_root = |path: &Path, harmless: u32| {
        let found = std::fs::metadata(path)?;
        let by_others = found.mode() & 0o022 != 0 && found.mode() & harmless == 0;
        Ok::<_, io::Error>(found.uid() == 0 && !by_others)
    };
    // In a sticky directory nobody else may replace it.
    Ok(of_root(&program, 0)? && of_root(program.parent().unwrap_or(&program), 0o1000)?)
}

/// Whether a kernel gives requests again that were read and not answered, by its release: since Linux 6.9. Others need
/// a journal of the requests, which costs something.
fn gives_requests_again(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next().and_then(|number| number.parse::<u32>().ok());
    (next(), next()) >= (Some(6), Some(9))
}

/// The exit status of the command.
pub(super) fn status(served: &Result<(), Failure>) -> u8 {
    served
        .as_ref()
        .map_or_else(|failure| failure.exit as u8, |()| 0)
}

/// Makes the mount and serves it to its end. With `restart=` that is done by a child, and this process
/// becomes its holder.
fn held(
    plan: &Plan,
    mut reporter: Reporter,
    log: impl Fn() -> Result<Log, Failure>,
) -> Result<(), Failure> {
    let held = match plan.options.restart {
        None | Some(Restart::No) => None,
        Some(Restart::Files | Restart::Data) => {
            let held;
            (held, reporter) = split(plan, reporter, &log)?;
            reporter.set_holder(held.clone());
            Some(held)
        }
    };
    let served = match log() {
        Ok(log) => serve(plan, &log, &mut reporter, held.clone()),
        Err(failure) => {
            reporter.failure(&failure);
            Err(failure)
        }
    };
    if let Some(held) = held {
        held.bye(status(&served));
    }
    served
}

/// Forks, and returns in the daemon. This process becomes its holder, and ends when the mount has ended.
fn split(
    plan: &Plan,
    reporter: Reporter,
    log: impl Fn() -> Result<Log, Failure>,
) -> Result<(Held, Reporter), Failure> {
    let words = vec![plan.args.spec.clone(), plan.point.path.clone().into()];
    let program = Program::of_holder(words).map_err(Failure::no_threads)?;
    begun::confine(&plan.options);
    match holder::split(program).map_err(Failure::no_threads)? {
        Side::Daemon(held) => Ok((held, reporter)),
        Side::Holder(holder) => {
            // The daemon has it.
            drop(reporter);
            // The daemon reports if it cannot be opened.
            let log = log().ok();
            let status = holder.run(|| {
                log.iter().for_each(Log::detach);
                daemon::outlive_parent();
                daemon::leave_terminal()
            });
            std::process::exit(status.into())
        }
    }
}

fn serve(
    plan: &Plan,
    log: &Log,
    reporter: &mut Reporter,
    held: Option<Held>,
) -> Result<(), Failure> {
    match begin(plan, log, reporter, Keeper::new(held)) {
        Ok((runtime, service)) => begun::run(runtime, service),
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

/// Connects, and chooses who keeps the locks. A signal interrupts both.
async fn reach_server(
    plan: &Plan,
    log: &Log,
    reporter: &mut Reporter,
    pool: &Pool,
    (table, keeper): (&Table, &Keeper),
) -> Result<(Mounted, String, Chosen, Signals), Failure> {
    let by_holder = keeper.held().and_then(Held::signals);
    let mut signals =
        Signals::new(reporter.is_foreground(), log, by_holder).map_err(Failure::no_threads)?;
    let connecting = async {
        let (mounted, reason) = connect(plan, log, reporter, pool).await?;
        let (server, tap) = (mounted.server.ip(), mounted.client.tap());
        let locks = locking::choose(server, &plan.options, tap, table, keeper).await?;
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
    description: &Description,
    details: [String; 2],
) -> Result<(), Failure> {
    let line = summary::line(&plan.spec, &plan.point.path, description);
    if plan.args.verbose > 0 {
        details.iter().for_each(|line| reporter.notice(line));
    }
    if reporter.is_foreground() {
        output::notice(&line);
    } else {
        let quiet = plan.args.helper && plan.args.verbose == 0;
        let told = if quiet { "" } else { &line };
        reporter.success(told).map_err(Failure::no_threads)?;
        log.detach();
    }
    Ok(())
}

fn begin(
    plan: &Plan,
    log: &Log,
    reporter: &mut Reporter,
    keeper: Keeper,
) -> Result<(Runtime, Service), Failure> {
    let runtime = begun::prepare(&plan.options)?;
    let prepared = Prepared::new(&plan.options, None)?;
    let metrics = begun::metrics(&plan.options, &keeper)?;
    let table = match keeper.held() {
        Some(_) => Table::create().map_err(Failure::no_threads)?,
        None => Table::anonymous(),
    };
    let kept = (&table, &keeper);
    let connected = runtime.block_on(reach_server(plan, log, reporter, &prepared.pool, kept));
    let (mounted, reason, locks, signals) = match connected {
        Ok(connected) => connected,
        Err(failure) => {
            // This does not wait for a connection attempt that is under way.
            runtime.shutdown_background();
            return Err(failure);
        }
    };
    let Some(description) = mounted.description.clone() else {
        return Err(Failure::new(Exit::Internal, "the mount has no description"));
    };
    let begun = prepared.begin(mounted, table, locks, signals, metrics, keeper);
    let details = [
        format!("{description}; {reason}"),
        format!(
            "options: {}",
            settings::effective(&begun.options(plan), &begun.mounted.client)
        ),
    ];
    let point = cleared(plan, reporter)?;
    let acls = adapter::kernel_checks_acls(&begun.fs, &begun.fuse(plan));
    let attached = fuse_mount::attach(&point, &plan.spec.source(), &plan.options, acls)?;
    let kernel = greet(plan, &begun, attached);
    let served = kernel.and_then(|kernel| begun.serve(plan, log, &runtime, kernel));
    let service = served.map_err(|error| {
        if top(plan).is_some_and(|mount| mount.is_ours()) {
            let _ = unmount::detach(&plan.point.path);
        }
        let message = format!("the kernel does not accept the FUSE mount: {error}");
        Failure::new(Exit::System, message)
    })?;
    if geteuid().is_root() {
        enter_in_utab(plan);
    }
    report(plan, log, reporter, &description, details)?;
    info!("mounted: {description}; {reason}");
    Ok((runtime, service))
}

/// Answers the kernel's INIT, after which the mount is on its directory. Has everything kept that a successor needs.
fn greet(
    plan: &Plan,
    begun: &Begun,
    (device, apart): (OwnedFd, Option<Apart>),
) -> io::Result<Kernel> {
    let keeper = &begun.keeper;
    let copy = Arc::new(device.try_clone()?);
    let mut channel = adapter::adopt(&begun.fs, device, &begun.fuse(plan))?;
    if let Some(apart) = apart {
        apart.show(&channel)?;
    }
    keeper.keep(FUSE, copy.as_fd())?;
    let id = OwnMount::on(&plan.point.path).id();
    let own = mounts::all()
        .ok()
        .and_then(|all| all.into_iter().find(|mount| mount.id == id));
    let mount = MountIdentity {
        id,
        device: own.map(|mount| mount.device),
    };
    let life = Life {
        mounted_ns: now_ns(),
        started_ns: now_ns(),
        restarts: 0,
        upgrades: 0,
    };
    let mut record = None;
    if let Some(table) = begun.table.fd() {
        channel.keep_requests(|fd| keeper.keep(REQUESTS, fd))?;
        begun.table.set_features((*channel.features()).into());
        keeper.keep(TABLE, table)?;
        if let Some(pool) = begun.pool.fd() {
            keeper.keep(POOL, pool)?;
        }
        let facts = Facts {
            found: begun.mounted.found(),
            provider: begun.mounted.client.provider(),
            local_lock: begun.locks.local,
            mount: mount.clone(),
            mounted_ns: life.mounted_ns,
        };
        let known = Record::new(plan, facts)?;
        keeper.keep(PLAN, known.written()?.as_fd())?;
        record = Some(known);
    }
    Ok(Kernel {
        channel,
        device: copy,
        mount,
        life,
        record,
    })
}

/// The mount point without dead mounts. They are taken away only now that the server has answered:
/// in the bare directory, programs would write to another file system.
fn cleared(plan: &Plan, reporter: &mut Reporter) -> Result<MountPoint, Failure> {
    let mut point = plan.point.clone();
    while let Some(dead) = point.dead.take() {
        let line = mounts::replaced(&dead, &mounts::all().unwrap_or_default());
        unmount::detach_exactly(&point.path, dead.id)?;
        let _ = utab::remove(dead.source.as_bytes(), &point.path);
        reporter.notice(&line);
        info!("{line}");
        point = mount_point::check(&point.path, &plan.spec.source())?;
    }
    Ok(point)
}

/// The topmost mount on the directory.
fn top(plan: &Plan) -> Option<mounts::Mount> {
    mounts::on_top_of(&plan.point.path).ok().flatten()
}

/// Makes umount(8) find our helper: see [`utab`].
fn enter_in_utab(plan: &Plan) {
    let root = top(plan).map_or("/".into(), |mount| mount.root);
    if let Err(error) = utab::add(&plan.spec.source(), &root, &plan.point.path) {
        debug!("umount(8) will not find its helper: /run/mount/utab: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_give_requests_again() {
        for release in ["6.9.0", "6.18.44-fc-v657", "7.0-rc1", "10.1"] {
            assert!(gives_requests_again(release), "{release}");
        }
        for release in ["6.8.0-49-generic", "5.14.0-503.el9", "4.19", "6", "", "x"] {
            assert!(!gives_requests_again(release), "{release}");
        }
    }
}
