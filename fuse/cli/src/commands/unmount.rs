//! The command `umount`: unmounts, and waits until the serving process has written everything and
//! has ended. It also cancels attempts to mount that are still going on.

use crate::cli::UnmountArgs;
use crate::commands::remount;
use crate::failure::{Exit, Failure};
use crate::ipc::exit_watch::{ExitOutcome, ExitWatch};
use crate::ipc::flush_request::{self, Outcome};
use crate::ipc::{client, pending};
use crate::mount::utab;
use crate::mounts::{self, Mount};
use crate::options::mount_source::MountSource;
use crate::output;
use crate::stats::text::bytes;
use indicatif::{ProgressBar, ProgressStyle};
use nfsrdma_fs::adapter::{self, mount_id};
use nfsrdma_rpcrdma::words::counted;
use rustix::fs::{Mode, OFlags, open, openat};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::geteuid;
use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long to wait for the last flush of the serving process. It goes on without us after that.
const LAST_FLUSH: Duration = Duration::from_secs(600);
/// The same after a forced unmount, which is meant for servers that do not answer.
const FORCED_FLUSH: Duration = Duration::from_secs(5);
/// A wait that is longer is explained.
const LONG: Duration = Duration::from_secs(5);
/// How long a process whose connection was aborted, or that was killed, may take to release its mount.
const RELEASED: Duration = Duration::from_secs(2);

/// Runs `umount`. Returns when the mount is gone and its process has ended.
pub(crate) fn run(args: &UnmountArgs) -> Result<(), Failure> {
    let shown = args.dir.display();
    let (dir, mount) = match mounts::find(&args.dir) {
        Ok(found) => found,
        Err(failure) => {
            if let Ok(dir) = mounts::resolve(&args.dir)
                && cancel_pending(&args.dir, &dir)?
            {
                return Ok(());
            }
            // The attempt may have succeeded since the first look.
            mounts::find(&args.dir).map_err(|_| failure)?
        }
    };
    let source = mount.source.to_string_lossy().into_owned();
    let verbose = |text: &str| {
        if args.verbose > 0 {
            output::message(format_args!("{source} on {shown}: {text}"));
        }
    };
    // An earlier `umount -f` of a busy mount ended the session; the server may not answer.
    let (watch, limit) = match ExitWatch::connect(&mount.device, mount.owner) {
        Ok(watch) if args.force => (Ok(watch), FORCED_FLUSH),
        Ok(watch) => (Ok(watch), LAST_FLUSH),
        Err(first) => (
            ExitWatch::connect_last(&mount.device, mount.owner)
                .map_err(|last| if serves(&first) { first } else { last }),
            FORCED_FLUSH,
        ),
    };
    if args.force {
        abort(&dir, &mount);
    }
    verbose("unmounting");
    let pid = watch.as_ref().ok().and_then(ExitWatch::pid);
    if let Err(failure) = take_away(args, &dir, &mount, pid) {
        let busy = is_busy(&failure, &dir);
        if busy && args.read_only && remount::make_read_only(&dir, &mount).is_ok() {
            output::message(format_args!("{shown} is in use: it is read-only now"));
            return Ok(());
        }
        return Err(failure);
    }
    // This fails without permission; the serving process removes the entry as well.
    let _ = utab::remove(mount.source.as_bytes(), &dir);
    // A lazy unmount is complete only when the last user has left, which nobody waits for.
    let watch = match (args.lazy, watch) {
        (true, _) => {
            verbose("detached; ends with its last user");
            return Ok(());
        }
        (false, Err(error)) if serves(&error) => return Err(unreachable(&args.dir, &error)),
        (false, Err(_)) => {
            verbose("unmounted; no process served it any longer");
            return Ok(());
        }
        (false, Ok(watch)) => watch,
    };
    match ask_for_sync(&mount, pid, limit) {
        Outcome::Answered(answer) if answer.connected => {
            if !answer.lost.is_empty() {
                return Err(lost(&args.dir, answer.lost));
            }
            let written = if answer.in_use {
                "programs there have files open"
            } else {
                "all data are at the server"
            };
            let place = match others_of(&mount) {
                dirs if dirs.is_empty() => {
                    "goes on in another mount namespace, which has a copy of it".to_owned()
                }
                dirs => format!(
                    "is mounted on {} as well: unmount that, too",
                    dirs.join(", ")
                ),
            };
            output::message(format_args!(
                "{shown} is unmounted here, and its file system {place}; {written}"
            ));
            return Ok(());
        }
        Outcome::TimedOut => return Err(still_writing(&args.dir)),
        Outcome::Answered(_) | Outcome::NoAnswer => {}
    }
    match wait(&mount, watch, limit) {
        ExitOutcome::Exited(said) if said.is_empty() => {
            verbose("unmounted; all data are at the server");
            Ok(())
        }
        ExitOutcome::Exited(said) => Err(lost(&args.dir, lines(&said))),
        ExitOutcome::Killed(said) => Err(killed(&args.dir, lines(&said))),
        ExitOutcome::TimedOut => Err(still_writing(&args.dir)),
    }
}

/// Ends the attempts to mount something on `dir`. Returns false if there are none.
fn cancel_pending(shown: &Path, dir: &Path) -> Result<bool, Failure> {
    let cancelled = pending::cancel(dir).map_err(|error| client::failure(shown, error))?;
    for pending in &cancelled {
        output::message(format_args!(
            "no longer tries to mount {} on {}",
            pending.source,
            shown.display()
        ));
    }
    Ok(!cancelled.is_empty())
}

fn lines(said: &str) -> Vec<String> {
    said.lines().map(str::to_owned).collect()
}

fn lost(dir: &Path, lines: Vec<String>) -> Failure {
    let failure = Failure::failed(format!(
        "{} is unmounted, but data were lost:",
        dir.display()
    ));
    Failure { lines, ..failure }
}

/// The error for a process that ended before it had told which data are lost.
fn killed(dir: &Path, lines: Vec<String>) -> Failure {
    let failure = Failure::failed(format!(
        "{} is unmounted, but its process was killed before all data were known to be at the server: see its log, and \
         'journalctl -k' for who killed it",
        dir.display()
    ));
    Failure { lines, ..failure }
}

/// Whether there may be a process, although it cannot be asked because of this error. Who is not
/// permitted to ask (another user, with the option `users`) is told nothing of the owner's data.
fn serves(error: &io::Error) -> bool {
    !matches!(
        error.kind(),
        ErrorKind::NotFound | ErrorKind::ConnectionRefused | ErrorKind::PermissionDenied
    )
}

/// The error for a process that cannot be asked.
fn unreachable(dir: &Path, error: &io::Error) -> Failure {
    Failure::failed(format!(
        "{} is unmounted, but its process cannot be asked whether all data are at the server ({error}): see its log",
        dir.display()
    ))
}

fn still_writing(dir: &Path) -> Failure {
    let dir = dir.display();
    Failure::failed(format!(
        "{dir} is unmounted, but its process is still writing data: see the log"
    ))
}

/// Unmounts. A mount with unwritten data is kept busy by its process. So after EBUSY the process is
/// asked to write everything, which is then at the server before the mount is gone.
fn take_away(
    args: &UnmountArgs,
    dir: &Path,
    mount: &Mount,
    pid: Option<i32>,
) -> Result<(), Failure> {
    let flags = [
        (args.force, UnmountFlags::FORCE),
        (args.lazy, UnmountFlags::DETACH),
    ]
    .iter()
    .filter(|(on, _)| *on)
    .fold(UnmountFlags::NOFOLLOW, |all, &(_, flag)| all | flag);
    let unmount = || match unmount_exactly(dir, mount.id, flags) {
        Ok(()) => Ok(Ok(())),
        Err(Errno::BUSY) => Ok(Err(Errno::BUSY)),
        Err(Errno::PERM) if !geteuid().is_root() => by_helper(dir, args.lazy).map(Ok),
        Err(errno) => Err(explain(dir, errno)),
    };
    let attempt = || match unmount() {
        Err(failure) if is_busy(&failure, dir) => Ok(Err(Errno::BUSY)),
        result => result,
    };
    if attempt()?.is_ok() {
        return Ok(());
    }
    let within = |limit: Duration| {
        let begin = Instant::now();
        loop {
            match attempt() {
                Ok(Ok(())) => return Ok(()),
                _ if is_gone(mount) => return Ok(()),
                Err(failure) => return Err(failure),
                Ok(Err(_)) if begin.elapsed() >= limit => return Err(explain(dir, Errno::BUSY)),
                Ok(Err(_)) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    };
    if args.force {
        // Its connection was aborted. The process releases the mount as soon as it notices.
        return within(RELEASED);
    }
    match ask_for_sync(mount, pid, LAST_FLUSH) {
        Outcome::Answered(answer) if answer.in_use => Err(explain(dir, Errno::BUSY)),
        Outcome::TimedOut => Err(not_taken(dir)),
        Outcome::Answered(_) => within(Duration::ZERO),
        // The process has ended, and has perhaps unmounted before. If it was killed, the kernel closes its
        // descriptors one after the other: the one that keeps the mount busy may come after the socket.
        Outcome::NoAnswer if pid.is_some() => within(RELEASED),
        Outcome::NoAnswer => within(Duration::ZERO),
    }
}

/// Whether the mount is in this mount namespace no longer.
fn is_gone(mount: &Mount) -> bool {
    mounts::all().is_ok_and(|all| all.iter().all(|other| other.id != mount.id))
}

/// Where the file system of this mount, which is gone, is mounted as well (`mount --bind`).
fn others_of(mount: &Mount) -> Vec<String> {
    let all = mounts::all().unwrap_or_default().into_iter();
    let others = all.filter(|other| other.device == mount.device && other.id != mount.id);
    others
        .map(|other| other.dir.display().to_string())
        .collect()
}

/// Opens the directory that the mount with this ID is in, and its root.
fn open_exactly(dir: &Path, id: u64) -> Result<(OwnedFd, &OsStr, OwnedFd), Errno> {
    let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else {
        return Err(Errno::INVAL);
    };
    let path = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = open(parent, path, Mode::empty())?;
    let root = openat(&parent, name, path | OFlags::NOFOLLOW, Mode::empty())?;
    if mount_id(&root).ok() != Some(id) {
        // Another mount covers it, or it is gone.
        return Err(Errno::STALE);
    }
    Ok((parent, name, root))
}

/// Calls umount(2) for the mount with this ID on `dir`. The parent directory is opened first, so
/// that nobody can make the path lead elsewhere between the comparison and the call.
fn unmount_exactly(dir: &Path, id: u64, flags: UnmountFlags) -> Result<(), Errno> {
    let (parent, name, root) = open_exactly(dir, id)?;
    // It would keep the mount busy.
    drop(root);
    let path = Path::new("/proc/self/fd").join(parent.as_raw_fd().to_string());
    rustix::mount::unmount(path.join(name), flags)
}

/// Shows a progress bar while `work`, which lasts `limit` at most, reports bytes left to write. If
/// it lasts, a line says what is waited for.
fn with_bar<T>(mount: &Mount, limit: Duration, work: impl FnOnce(&mut dyn FnMut(u64)) -> T) -> T {
    let mut bar: Option<ProgressBar> = None;
    let begin = Instant::now();
    let mut told = limit <= LONG;
    let result = work(&mut |left| {
        let bar = bar.get_or_insert_with(|| progress_bar(left));
        bar.set_length(bar.length().unwrap_or(0).max(left));
        bar.set_position(bar.length().unwrap_or(0) - left);
        if begin.elapsed() >= LONG && !std::mem::replace(&mut told, true) {
            bar.suspend(|| output::message(what_waits(mount, left, limit)));
        }
    });
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    result
}

/// The line for an unmount that takes long.
fn what_waits(mount: &Mount, left: u64, limit: Duration) -> String {
    let source = MountSource::parse(&mount.source);
    let server = source.map_or_else(|_| "the server".to_owned(), |source| source.host);
    format!(
        "{}: {} are not safe at {server} after {} s, and are waited for, {} at most; with -l the mount goes at \
         once, and its process goes on writing; with -f programs that wait for {server} get errors, too",
        mount.dir.display(),
        match left {
            0 => "the last data".to_owned(),
            left => bytes(left),
        },
        LONG.as_secs(),
        counted(limit.as_secs() / 60, "minute")
    )
}

/// Waits for the end of the serving process.
fn wait(mount: &Mount, watch: ExitWatch, limit: Duration) -> ExitOutcome {
    with_bar(mount, limit, |progress| watch.wait(limit, progress))
}

/// Waits until the serving process has written everything.
fn ask_for_sync(mount: &Mount, pid: Option<i32>, limit: Duration) -> Outcome {
    with_bar(mount, limit, |progress| {
        flush_request::ask(mount, pid, limit, progress)
    })
}

/// A progress bar for `bytes`. It draws nothing if standard error is not a terminal.
fn progress_bar(bytes: u64) -> ProgressBar {
    let bar = ProgressBar::new(bytes);
    const FORM: &str = "writing data: {binary_bytes} of {binary_total_bytes} [{bar:30}] {eta} left";
    if let Ok(style) = ProgressStyle::with_template(FORM) {
        bar.set_style(style.progress_chars("## "));
    }
    bar
}

/// The error for data that the server has not taken in the longest time that is waited.
fn not_taken(dir: &Path) -> Failure {
    let dir = dir.display();
    Failure::failed(format!(
        "{dir} has data that its server does not take: unmount when the server answers again, or detach it with \
         'nfsrdma umount -l {dir}': its process goes on writing"
    ))
}

fn is_busy(failure: &Failure, dir: &Path) -> bool {
    failure.message == explain(dir, Errno::BUSY).message
}

fn explain(dir: &Path, errno: Errno) -> Failure {
    let dir = dir.display();
    match errno {
        Errno::BUSY => Failure::failed(format!(
            "{dir} is in use: see who by 'fuser -vm {dir}', or detach it with 'nfsrdma umount -l {dir}'"
        )),
        Errno::STALE => Failure::failed(format!(
            "{dir} is not the same mount any longer: look with findmnt, and try again"
        )),
        Errno::PERM => Failure::usage(format!(
            "not permitted to unmount {dir}: only root and the user who mounted it may"
        )),
        _ => Failure::failed(format!(
            "cannot unmount {dir}: {}; 'nfsrdma umount -l {dir}' detaches it",
            output::without_number(&errno.into())
        )),
    }
}

/// Aborts the kernel's connection to the serving process (fuse(4), "control filesystem"), so that
/// nothing waits for that process any more. Root and the user who mounted may do this.
fn abort(dir: &Path, mount: &Mount) {
    // As long as its root is open, the kernel does not give its number to another FUSE mount.
    let Ok(_open) = open_exactly(dir, mount.id) else {
        return;
    };
    let Some((_, minor)) = mount.device.split_once(':') else {
        return;
    };
    // Where this fails, MNT_FORCE has the same effect for root.
    let _ = std::fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1");
}

fn by_helper(dir: &Path, lazy: bool) -> Result<(), Failure> {
    adapter::by_helper(dir, lazy).map_err(|error| match error.kind() {
        ErrorKind::ResourceBusy => explain(dir, Errno::BUSY),
        ErrorKind::PermissionDenied if error.raw_os_error().is_none() => explain(dir, Errno::PERM),
        ErrorKind::Other => Failure::failed(format!(
            "cannot unmount {0}: {error}; 'nfsrdma umount -l {0}' detaches it",
            dir.display()
        )),
        _ => Failure::new(
            Exit::System,
            format!("cannot run fusermount3: {error}; install the package fuse3"),
        ),
    })
}

/// Unmounts a mount that nobody serves.
pub(crate) fn detach(dir: &Path) -> Result<(), Failure> {
    detached(
        dir,
        rustix::mount::unmount(dir, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW),
    )
}

/// The same, unless another mount is on `dir` by now.
pub(crate) fn detach_exactly(dir: &Path, id: u64) -> Result<(), Failure> {
    detached(
        dir,
        unmount_exactly(dir, id, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW),
    )
}

fn detached(dir: &Path, result: Result<(), Errno>) -> Result<(), Failure> {
    match result {
        Err(Errno::PERM) => by_helper(dir, true),
        other => other.map_err(|errno| explain(dir, errno)),
    }
}
