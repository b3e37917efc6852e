//! What is measured: processes that mount something in the foreground.

use anyhow::{Context, Result, bail};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A file system to mount.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) name: String,
    /// Shell words; `{dir}` becomes the mount point. `None`: the exported data themselves.
    pub(crate) command: Option<String>,
}

/// A mounted target, unmounted when dropped.
#[derive(Debug)]
pub(crate) struct Mounted {
    pub(crate) dir: PathBuf,
    child: Option<Child>,
    /// Time from starting the command to the mount being there.
    pub(crate) mount_time: Duration,
}

/// What the process used.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    pub(crate) cpu_seconds: f64,
    pub(crate) peak_bytes: u64,
    /// Of the server.
    pub(crate) server_seconds: f64,
    /// Of the program that makes the system calls.
    pub(crate) program_seconds: f64,
}

fn is_mounted(dir: &Path) -> bool {
    let wanted = format!(" {} ", dir.display());
    fs::read_to_string("/proc/self/mountinfo").is_ok_and(|m| m.lines().any(|l| l.contains(&wanted)))
}

impl Target {
    pub(crate) fn mount(&self, point: &Path, data: &Path) -> Result<Mounted> {
        let Some(command) = &self.command else {
            return Ok(Mounted {
                dir: data.to_path_buf(),
                child: None,
                mount_time: Duration::ZERO,
            });
        };
        fs::create_dir_all(point)?;
        let line = format!(
            "exec {}",
            command.replace("{dir}", &point.to_string_lossy())
        );
        let log = fs::File::create(point.with_extension("log"))?;
        let begin = Instant::now();
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", &line])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        // A mount with unwritten data would wait for its server for ever.
        end_with_this_process(&mut command);
        let child = command
            .spawn()
            .with_context(|| format!("starting {line}"))?;
        let mut mounted = Mounted {
            dir: point.to_path_buf(),
            child: Some(child),
            mount_time: Duration::ZERO,
        };
        while begin.elapsed() < Duration::from_secs(20) {
            if is_mounted(point) {
                mounted.mount_time = begin.elapsed();
                // The first call may still wait for the process behind it.
                fs::read_dir(point).with_context(|| format!("listing {}", point.display()))?;
                return Ok(mounted);
            }
            if let Some(status) = mounted
                .child
                .as_mut()
                .and_then(|c| c.try_wait().transpose())
            {
                let said = fs::read_to_string(point.with_extension("log")).unwrap_or_default();
                bail!(
                    "{}: ended with {} before mounting: {said}",
                    self.name,
                    status?
                );
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        bail!("{}: no mount within 20 seconds", self.name)
    }
}

impl Mounted {
    /// CPU time and peak memory of the mounting process until now, and of the one that serves in its place (`restart=`).
    pub(crate) fn usage(&self) -> Usage {
        let Some(pid) = self.child.as_ref().map(Child::id) else {
            return Usage::default();
        };
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children = children.unwrap_or_default();
        let children = children
            .split_whitespace()
            .filter_map(|pid| pid.parse().ok());
        let mut all = usage(pid);
        for child in children.map(usage) {
            all.cpu_seconds += child.cpu_seconds;
            all.peak_bytes += child.peak_bytes;
        }
        all
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else {
            return;
        };
        let _ = Command::new("umount")
            .arg(&self.dir)
            .stderr(Stdio::null())
            .status();
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(10) {
            if let Ok(Some(_)) = child.try_wait() {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = Command::new("umount")
            .arg("-l")
            .arg(&self.dir)
            .stderr(Stdio::null())
            .status();
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Has the program killed when this process ends, however it ends.
fn end_with_this_process(command: &mut Command) {
    // SAFETY: prctl is async-signal-safe, and nothing is allocated between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
}

/// CPU time of a process's threads, to the nanosecond (proc(5), schedstat), in seconds. Threads
/// that have ended are not in it.
pub(crate) fn cpu_seconds(pid: u32) -> f64 {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return 0.0;
    };
    let nanoseconds = threads.flatten().filter_map(|thread| {
        let line = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        line.split(' ').next()?.parse::<u64>().ok()
    });
    nanoseconds.sum::<u64>() as f64 / 1e9
}

/// CPU time of this process and of the programs it has waited for, in seconds.
pub(crate) fn own_cpu_seconds() -> f64 {
    let of = |who| {
        // SAFETY: zeros are a valid rusage.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: `usage` is ours and outlives the call.
        unsafe { libc::getrusage(who, &mut usage) };
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        seconds(usage.ru_utime) + seconds(usage.ru_stime)
    };
    of(libc::RUSAGE_SELF) + of(libc::RUSAGE_CHILDREN)
}

/// CPU time of a process and its waited-for children, and its peak resident memory.
pub(crate) fn usage(pid: u32) -> Usage {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The fields after the command name, which may hold spaces, in parentheses.
    let fields: Vec<u64> = stat
        .rsplit_once(") ")
        .map(|(_, rest)| rest.split(' ').map(|f| f.parse().unwrap_or(0)).collect())
        .unwrap_or_default();
    // SAFETY: has no precondition.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as f64;
    let cpu: u64 = fields.iter().skip(11).take(4).sum();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let peak = status
        .lines()
        .find_map(|l| l.strip_prefix("VmHWM:"))
        .and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok())
        .unwrap_or(0);
    Usage {
        cpu_seconds: cpu as f64 / ticks,
        peak_bytes: peak << 10,
        ..Usage::default()
    }
}
