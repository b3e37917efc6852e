//! `nfsrdma mount --dead`: mounts again what is in /etc/fstab and whose process has ended. A program
//! of its own makes each mount, as `nfsrdma mount` does, so that none waits for the server of another.

use crate::failure::{Exit, Failure};
use crate::mount::fstab_line::{Line, unescaped};
use crate::mount::mount_point::is_dead;
use crate::mounts::{self, FSTYPE, Mount};
use crate::options::mount_source::MountSource;
use crate::output::{self, without_number};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::mpsc;

/// The dead mounts that are on top of their directories.
fn dead() -> io::Result<Vec<Mount>> {
    let mut seen = HashSet::new();
    let mut all = mounts::all()?;
    all.reverse();
    all.retain(|mount| seen.insert(mount.dir.clone()) && mount.fstype == FSTYPE);
    all.reverse();
    let (tell, told) = mpsc::channel();
    for mount in all {
        let tell = tell.clone();
        std::thread::Builder::new().spawn(move || {
            if is_dead(&mount) == Some(true) {
                let _ = tell.send(mount);
            }
        })?;
    }
    drop(tell);
    let mut found: Vec<Mount> = told.iter().collect();
    found.sort_by_key(|mount| mount.id);
    Ok(found)
}

/// Starts a program that mounts again as the line in `table` says. `None` if there is no line for it.
fn start(mount: &Mount, table: &[u8]) -> Option<io::Result<Child>> {
    let lines = table.split(|&byte| byte == b'\n');
    let line = lines.filter_map(Line::parse).find(|line| {
        matches!(line.kind, b"nfsrdma" | b"fuse.nfsrdma")
            && mounts::resolve(Path::new(&unescaped(&line.dir))).is_ok_and(|dir| dir == mount.dir)
            && MountSource::parse(&unescaped(&line.source))
                .is_ok_and(|spec| spec.source() == mount.source.as_bytes())
    })?;
    let mut program = Command::new("/proc/self/exe");
    program
        .arg0("nfsrdma")
        .args(["mount", "-o"])
        .arg(OsStr::from_bytes(&line.options))
        .arg("--")
        .args([&mount.source, mount.dir.as_os_str()]);
    Some(program.spawn())
}

pub(crate) fn run() -> Result<(), Failure> {
    let system = |error: io::Error| {
        let why = without_number(&error);
        Failure::new(
            Exit::System,
            format!("cannot look for dead mounts: {why}; mount /proc"),
        )
    };
    let table = std::fs::read("/etc/fstab").unwrap_or_default();
    let mut failed = Vec::new();
    let mut started = Vec::new();
    for mount in dead().map_err(system)? {
        let dir = mount.dir.display().to_string();
        match start(&mount, &table) {
            Some(child) => started.push((dir, child)),
            None => {
                output::message(format_args!(
                    "{dir} has no line in /etc/fstab: mount {} there as before, which replaces the dead mount",
                    mount.source.to_string_lossy()
                ));
                failed.push(dir);
            }
        }
    }
    for (dir, child) in started {
        if !child
            .and_then(|mut child| child.wait())
            .is_ok_and(|status| status.success())
        {
            failed.push(dir);
        }
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(Failure::failed(format!(
            "dead mounts are left on {}: the lines above say why",
            failed.join(", ")
        ))),
    }
}
