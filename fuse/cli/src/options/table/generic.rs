//! Options of mount(8) and the VFS. As there, the last of two contradicting ones counts.

use super::super::AccessTime;
use super::super::draft::{Draft, Outcome};
use super::super::entry::{Entry, accept, flag, value};

pub(super) static TABLE: &[Entry] = &[
    // The last option counts.
    flag!("defaults", |_, _| Ok(())),
    flag!("ro", |d, _| {
        d.options.vfs.read_only = true;
        Ok(())
    }),
    flag!("rw", |d, _| {
        d.options.vfs.read_only = false;
        Ok(())
    }),
    flag!("suid", |d, _| {
        d.options.vfs.suid = true;
        Ok(())
    }),
    flag!("nosuid", |d, _| {
        d.options.vfs.suid = false;
        Ok(())
    }),
    flag!("dev", |d, _| {
        d.dev = true;
        d.options.vfs.dev = true;
        Ok(())
    }),
    flag!("nodev", |d, _| {
        d.options.vfs.dev = false;
        Ok(())
    }),
    flag!("exec", |d, _| {
        d.options.vfs.exec = true;
        Ok(())
    }),
    flag!("noexec", |d, _| {
        d.options.vfs.exec = false;
        Ok(())
    }),
    flag!("symfollow", |d, _| {
        d.options.vfs.symfollow = true;
        Ok(())
    }),
    flag!("nosymfollow", |d, _| {
        d.options.vfs.symfollow = false;
        Ok(())
    }),
    flag!("sync", |d, _| {
        d.options.vfs.sync = true;
        Ok(())
    }),
    flag!("async", |d, _| {
        d.options.vfs.sync = false;
        Ok(())
    }),
    flag!("dirsync", |d, _| {
        d.options.vfs.dirsync = true;
        Ok(())
    }),
    flag!("atime", |d, _| {
        d.options.vfs.access_time = AccessTime::Relative;
        Ok(())
    }),
    flag!("noatime", |d, _| {
        d.options.vfs.access_time = AccessTime::Never;
        Ok(())
    }),
    flag!("relatime", |d, _| {
        d.options.vfs.access_time = AccessTime::Relative;
        Ok(())
    }),
    flag!("norelatime", |_, _| Ok(())),
    flag!("strictatime", |d, _| {
        d.options.vfs.access_time = AccessTime::Always;
        Ok(())
    }),
    flag!("nostrictatime", |_, _| Ok(())),
    flag!("diratime", |d, _| {
        d.options.vfs.dir_access_time = true;
        Ok(())
    }),
    flag!("nodiratime", |d, _| {
        d.options.vfs.dir_access_time = false;
        Ok(())
    }),
    flag!("user", user),
    flag!("users", user),
    flag!("owner", owner),
    flag!("group", owner),
    // SELinux shows it where it labels the files.
    accept!("seclabel"),
    value!("context", CONTEXT, context),
    value!("fscontext", CONTEXT, context),
    value!("defcontext", CONTEXT, context),
    value!("rootcontext", CONTEXT, context),
    // The server maintains access times, so there are none to delay here.
    accept!("lazytime"),
    accept!("nolazytime"),
    accept!("iversion"),
    accept!("noiversion"),
    accept!("mand"),
    accept!("nomand"),
    accept!("silent"),
    accept!("loud"),
    accept!("nouser"),
    accept!("noowner"),
    accept!("nogroup"),
    accept!("auto"),
    accept!("noauto"),
    accept!("_netdev"),
    accept!("comment"),
    accept!("quota"),
    accept!("noquota"),
    accept!("usrquota"),
    accept!("grpquota"),
    flag!("nofail", |d, _| {
        d.options.nofail = true;
        Ok(())
    }),
    flag!("fail", |d, _| {
        d.options.nofail = false;
        Ok(())
    }),
    flag!("sloppy", |d, _| {
        d.options.sloppy = true;
        Ok(())
    }),
    flag!("remount", |d, _| {
        d.options.remount = true;
        Ok(())
    }),
];

const CONTEXT: &str = "a security context";

/// A context for SELinux. It is quoted again, because it may contain commas.
fn context(d: &mut Draft, name: &'static str, value: &str) -> Outcome {
    if value.is_empty() || value.contains(['"', '\\']) {
        return d.bad(name, CONTEXT);
    }
    d.claim(name, value)?;
    let word = format!("{name}=\"{value}\"");
    if !d.options.security_contexts.contains(&word) {
        d.options.security_contexts.push(word);
    }
    Ok(())
}

/// user and users imply noexec, nosuid and nodev, unless a later option says otherwise (mount(8)).
fn user(d: &mut Draft, _: &str) -> Outcome {
    d.options.vfs.exec = false;
    owner(d, "")
}

/// owner and group imply nosuid and nodev (mount(8)).
fn owner(d: &mut Draft, _: &str) -> Outcome {
    d.options.vfs.suid = false;
    d.options.vfs.dev = false;
    Ok(())
}
