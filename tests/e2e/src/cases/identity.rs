//! Calls have the rights of their callers.

use crate::place::Place;
use crate::sys;
use anyhow::{Result, bail, ensure};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Runs a shell line as another user. Returns whether it succeeded.
fn as_user(dir: &Path, uid: u32, gid: u32, groups: &[u32], line: &str) -> Result<bool> {
    let groups = groups.to_vec();
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(line).current_dir(dir);
    command.stderr(std::process::Stdio::null());
    // SAFETY: only system calls between fork and exec, on memory prepared before.
    unsafe {
        command.pre_exec(move || {
            if libc::setgroups(groups.len(), groups.as_ptr()) != 0
                || libc::setgid(gid) != 0
                || libc::setuid(uid) != 0
            {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        })
    };
    Ok(command.status()?.success())
}

pub(crate) fn identity(place: &Place) -> Result<()> {
    // SAFETY: has no precondition.
    if unsafe { libc::geteuid() } != 0 {
        return Err(sys::Skipped("only root can act as other users".into()).into());
    }
    let dir = &place.mounted;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
    if !as_user(dir, 4001, 4002, &[], "true")? {
        return Err(
            sys::Skipped("other users may not enter the mount (allow_other)".into()).into(),
        );
    }
    let open = dir.join("open");
    fs::create_dir(&open)?;
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777))?;
    ensure!(as_user(
        &open,
        4001,
        4002,
        &[],
        "echo mine > file && mkdir sub && ln -s x link"
    )?);
    for name in ["file", "sub", "link"] {
        let meta = fs::symlink_metadata(open.join(name))?;
        ensure!(
            (meta.uid(), meta.gid()) == (4001, 4002),
            "{name} belongs to {}:{}",
            meta.uid(),
            meta.gid()
        );
    }
    let private = dir.join("private");
    fs::write(&private, "secret")?;
    fs::set_permissions(&private, fs::Permissions::from_mode(0o600))?;
    ensure!(
        !as_user(dir, 4001, 4002, &[], "cat private")?,
        "another user read a private file"
    );
    let group = dir.join("group");
    fs::write(&group, "for the group")?;
    chown(&group, Some(4009), Some(4010))?;
    fs::set_permissions(&group, fs::Permissions::from_mode(0o640))?;
    ensure!(
        as_user(dir, 4001, 4002, &[4003, 4010], "cat group >/dev/null")?,
        "a supplementary group opens the file"
    );
    ensure!(
        !as_user(dir, 4001, 4002, &[4003], "cat group")?,
        "without the group it stays shut"
    );
    ensure!(
        as_user(dir, 4009, 4002, &[], "cat group >/dev/null")?,
        "its owner reads it"
    );
    ensure!(
        as_user(dir, 4001, 4002, &[4010], "test -r group && ! test -w group")?,
        "access() tells the same"
    );
    ensure!(
        !as_user(dir, 4001, 4002, &[], "chmod 777 private || rm -f private")?,
        "another user changed a file of root's"
    );
    if private.exists() {
        Ok(())
    } else {
        bail!("another user removed root's file")
    }
}
