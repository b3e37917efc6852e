//! `umount`.

use super::cli::UnmountArgs;
use super::failure::{Exit, Failure};
use super::mounts::{self, FSTYPE, Mount};
use super::presence::{End, Watch};
use indicatif::{ProgressBar, ProgressStyle};
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use nix::unistd::geteuid;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// How long to wait for the serving process; what it still does then concerns only itself.
const LAST_FLUSH: Duration = Duration::from_secs(600);
/// The same after a forced unmount, which is for servers that do not answer.
const FORCED_FLUSH: Duration = Duration::from_secs(5);

/// Runs `umount`: returns when the mount is gone and its process has ended.
pub(super) fn run(args: &UnmountArgs) -> Result<(), Failure> {
    let shown = args.dir.display();
    let none = || {
        Failure::new(
            Exit::Usage,
            format!("{shown} is not an nfsrdma mount: see 'findmnt -t {FSTYPE}'"),
        )
    };
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => none(),
        _ => Failure::new(Exit::Failed, format!("cannot unmount {shown}: {error}")),
    };
    let dir = mounts::resolve(&args.dir).map_err(failed)?;
    let mount = mounts::on_top_of(&dir)
        .map_err(failed)?
        .filter(|mount| mount.fstype == FSTYPE)
        .ok_or_else(none)?;
    // Who was aborted before, when the mount was in use, flushes for a server that may not answer.
    let (watch, limit) = match Watch::connect(&mount.device) {
        Ok(watch) if args.force => (Ok(watch), FORCED_FLUSH),
        Ok(watch) => (Ok(watch), LAST_FLUSH),
        Err(_) => (
            Watch::connect_last(&mount.device, mount.owner),
            FORCED_FLUSH,
        ),
    };
    if args.force {
        abort(&mount);
    }
    let flags = [
        (args.force, MntFlags::MNT_FORCE),
        (args.lazy, MntFlags::MNT_DETACH),
    ]
    .iter()
    .filter(|(on, _)| *on)
    .fold(MntFlags::UMOUNT_NOFOLLOW, |all, &(_, flag)| all | flag);
    match umount2(&dir, flags) {
        Ok(()) => {}
        Err(Errno::EPERM) if !geteuid().is_root() => by_helper(&dir, args.lazy)?,
        Err(errno) => return Err(explain(&dir, errno)),
    }
    // A lazy unmount ends when its last user does.
    let (false, Ok(watch)) = (args.lazy, watch) else {
        return Ok(());
    };
    match wait(watch, limit, mount.owner) {
        End::Gone(said) if said.is_empty() => Ok(()),
        End::Gone(said) => Err(Failure::new(
            Exit::Failed,
            format!(
                "{shown} is unmounted, but data were lost:\n{}",
                said.trim_end()
            ),
        )),
        End::NotYet => Err(Failure::new(
            Exit::Failed,
            format!("{shown} is unmounted, but its process is still writing data: see the log"),
        )),
    }
}

/// Waits for the end of the process. A bar shows what is left, if standard error is a terminal
/// and the process has something to say about it.
fn wait(watch: Watch, limit: Duration, owner: Option<u32>) -> End {
    let mut bar: Option<ProgressBar> = None;
    let ended = watch.wait(limit, owner, |left| {
        let bar = bar.get_or_insert_with(|| progress_bar(left));
        bar.set_length(bar.length().unwrap_or(0).max(left));
        bar.set_position(bar.length().unwrap_or(0) - left);
    });
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    ended
}

/// Draws nothing where standard error is no terminal.
fn progress_bar(bytes: u64) -> ProgressBar {
    let bar = ProgressBar::new(bytes);
    const FORM: &str = "writing data: {binary_bytes} of {binary_total_bytes} [{bar:30}] {eta} left";
    if let Ok(style) = ProgressStyle::with_template(FORM) {
        bar.set_style(style.progress_chars("## "));
    }
    bar
}

fn explain(dir: &Path, errno: Errno) -> Failure {
    let dir = dir.display();
    match errno {
        Errno::EBUSY => Failure::new(
            Exit::Failed,
            format!(
                "{dir} is in use: see who by 'fuser -vm {dir}', or detach it with 'nfsrdma umount -l {dir}'"
            ),
        ),
        Errno::EPERM => Failure::new(
            Exit::Usage,
            format!("not permitted to unmount {dir}: only root and the user who mounted it may"),
        ),
        _ => Failure::new(
            Exit::Failed,
            format!("cannot unmount {dir}: {}", errno.desc()),
        ),
    }
}

/// Ends the kernel's connection to the serving process (fuse(4), "control filesystem"), so
/// that nothing waits for it any more. Root and the mounting user may.
fn abort(mount: &Mount) {
    let Some((_, minor)) = mount.device.split_once(':') else {
        return;
    };
    // Without it MNT_FORCE does the same, for root.
    let _ = std::fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1");
}

fn by_helper(dir: &Path, lazy: bool) -> Result<(), Failure> {
    let output = Command::new("fusermount3")
        .arg(if lazy { "-uz" } else { "-u" })
        .arg("--")
        .arg(dir)
        .output()
        .map_err(|error| {
            Failure::new(
                Exit::System,
                format!("cannot run fusermount3: {error}; install the package fuse3"),
            )
        })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(if said.contains("busy") {
        explain(dir, Errno::EBUSY)
    } else if said.contains("not permitted") || said.contains("not found in /etc/mtab") {
        explain(dir, Errno::EPERM)
    } else {
        Failure::new(
            Exit::Failed,
            format!("cannot unmount {}: {}", dir.display(), said.trim()),
        )
    })
}

/// Takes away a mount that nobody serves.
pub(super) fn detach(dir: &Path) -> Result<(), Failure> {
    match umount2(dir, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
        Err(Errno::EPERM) => by_helper(dir, true),
        other => other.map_err(|errno| explain(dir, errno)),
    }
}
