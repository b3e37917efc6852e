//! `-o remount`: changes the flags that the VFS keeps, and options of the process that serves the mount, which
//! another process then goes on with. All other options need a new mount.

use crate::commands::upgrade;
use crate::failure::Failure;
use crate::ipc::control;
use crate::mount::fuse_mount;
use crate::mount::remount::{InForce, OPTIONS};
use crate::mounts::{self, Mount};
use crate::options::remount::{changing, joined, merged, why_it_lasts};
use crate::options::{Options, Permissions, VfsFlags};
use crate::output::without_number;
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount_remount};
use std::path::Path;

/// Changes the mount on `dir` to have `options`, which were parsed from `text`.
pub(crate) fn run(dir: &Path, options: &Options, text: &str) -> Result<(), Failure> {
    let shown = dir.display();
    let failed = |message: String| Failure::failed(message);
    let (path, found) = mounts::find(dir)?;
    let current = in_force(&found);
    let changed = changes(current.as_deref().unwrap_or_default(), text).map_err(|why| {
        let unknown = match current {
            Some(_) => "",
            None => " (the mount's process could not be asked for the options in force)",
        };
        Failure::usage(format!("{why}{unknown}"))
    })?;
    if !changed.is_empty() {
        upgrade::remount(dir, &found, &joined(changed))?;
    }
    let mut flags = fuse_mount::flags(&options.vfs);
    flags.remove(TIMES);
    flags |= access_times(&found.flags, text);
    if keeps_devices_closed(current.as_deref().unwrap_or_default(), text) {
        flags |= MountFlags::NODEV;
    }
    mount_remount(&path, flags, "").map_err(|errno| match errno {
        Errno::PERM => Failure::usage("not permitted to remount: be root"),
        Errno::BUSY => failed(format!(
            "{shown} has files open for writing: close them before making it read-only"
        )),
        errno => failed(format!(
            "cannot remount {shown}: {}; unmount, and mount again",
            without_number(&errno.into())
        )),
    })
}

/// Makes the mount read-only, and changes nothing else of it. Fails while a file there is open for
/// writing.
pub(crate) fn make_read_only(dir: &Path, mount: &Mount) -> Result<(), Errno> {
    let has = |name| mount.flags.split(',').any(|flag| flag == name);
    let mut flags = MountFlags::RDONLY | access_times(&mount.flags, "");
    for (name, flag) in [
        ("nosuid", MountFlags::NOSUID),
        ("nodev", MountFlags::NODEV),
        ("noexec", MountFlags::NOEXEC),
        ("nosymfollow", MountFlags::NOSYMFOLLOW),
    ] {
        if has(name) {
            flags |= flag;
        }
    }
    // BIND: the flags of this mount, not those of the file system, such as `sync`.
    mount_remount(dir, flags | MountFlags::BIND, "")
}

/// The flags for access times.
const TIMES: MountFlags = MountFlags::NOATIME
    .union(MountFlags::RELATIME)
    .union(MountFlags::STRICTATIME)
    .union(MountFlags::NODIRATIME);

/// The flags for access times: those of `current`, as in the table of mounts, with what the options
/// in `wanted` say. One is always set, since without any Linux keeps what is in force, also if the
/// options ask for its default.
fn access_times(current: &str, wanted: &str) -> MountFlags {
    let has = |name| current.split(',').any(|flag| flag == name);
    let mut times = match (has("noatime"), has("relatime")) {
        (true, _) => MountFlags::NOATIME,
        (_, true) => MountFlags::RELATIME,
        _ => MountFlags::STRICTATIME,
    };
    let mut directories = match has("nodiratime") {
        true => MountFlags::NODIRATIME,
        false => MountFlags::empty(),
    };
    for word in wanted.split(',') {
        match word {
            "atime" | "relatime" => times = MountFlags::RELATIME,
            "noatime" => times = MountFlags::NOATIME,
            "strictatime" => times = MountFlags::STRICTATIME,
            "diratime" => directories = MountFlags::empty(),
            "nodiratime" => directories = MountFlags::NODIRATIME,
            _ => {}
        }
    }
    times | directories
}

/// The options that `mount` has.
fn in_force(mount: &Mount) -> Option<String> {
    let answer = control::ask(&mount.device, mount.owner, OPTIONS).ok()?;
    let answer: InForce = serde_json::from_slice(&answer).ok()?;
    Some(answer.options)
}

/// The options of `wanted` that the process which serves the mount has to change: none, if flags of the VFS change
/// only. mount(8) repeats the options of fstab and of /proc/mounts in `wanted`. The error is a sentence, if it is
/// something that cannot change.
fn changes(current: &str, wanted: &str) -> Result<Vec<String>, String> {
    let lasting = |text: &str| {
        let options = Options::parse(text).map_err(|error| error.to_string())?;
        Ok::<_, String>(Options {
            vfs: VfsFlags {
                sync: options.vfs.sync,
                dirsync: options.vfs.dirsync,
                ..Options::default().vfs
            },
            allow_other: Some(fuse_mount::allow_other(&options)),
            permissions: Some(fuse_mount::permissions(&options)),
            remount: false,
            nofail: false,
            sloppy: false,
            ignored: Vec::new(),
            ..options
        })
    };
    let before = lasting(current)?;
    let (changed, others) = changing(wanted);
    let kept = |word: &str| lasting(&merged(current, word)).map(|after| after == before);
    if !kept(&joined(others.clone()))? {
        // Some say nothing alone.
        let word = others.iter().find(|word| !kept(word).unwrap_or(true));
        let word = word.map_or(wanted, String::as_str);
        let why = why_it_lasts(word);
        return Err(format!(
            "a remount does not change '{word}', because {why}: unmount and mount for that"
        ));
    }
    match kept(&joined(changed.clone()))? {
        true => Ok(Vec::new()),
        false => Ok(changed),
    }
}

/// Whether device files must stay closed because the kernel does not check their modes. The mount
/// may have got `permissions=server` from its first options, which a remount need not repeat.
fn keeps_devices_closed(current: &str, wanted: &str) -> bool {
    Options::parse(&merged(current, wanted))
        .is_ok_and(|options| options.permissions == Some(Permissions::Server) && !options.vfs.dev)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What has to change, or the first option that cannot.
    fn told(current: &str, wanted: &str) -> String {
        match changes(current, wanted) {
            Ok(words) => joined(words),
            Err(why) => format!("not {}", why.split('\'').nth(1).unwrap()),
        }
    }

    #[test]
    fn what_can_change() {
        assert_eq!(told("", "remount,ro,nosuid,noatime"), "");
        assert_eq!(told("", "remount,soft,ro"), "soft");
        assert_eq!(told("", "remount,sync"), "not sync");
        assert_eq!(told("", "remount,soft,rsize=4K"), "not rsize=4K");
    }

    #[test]
    fn what_is_in_force_may_be_repeated() {
        let told = |wanted: &str| told("rw,soft,nconnect=2,allow_other", wanted);
        assert_eq!(told("remount,ro"), "");
        // Options from fstab, followed by those from /proc/mounts.
        assert_eq!(told("rw,soft,nconnect=2,_netdev,remount,ro"), "");
        assert_eq!(
            told("rw,relatime,user_id=0,group_id=0,allow_other,remount,ro"),
            ""
        );
        assert_eq!(told("remount,soft,nconnect=3"), "soft,nconnect=3");
        assert_eq!(told("remount,hard"), "hard");
        assert_eq!(told("remount,noac"), "not noac");
        assert_eq!(told("remount,noallow_other"), "not noallow_other");
    }

    #[test]
    fn permissions_may_be_repeated_in_either_spelling() {
        let of_kernel = "rw,user_id=0,group_id=0,default_permissions,allow_other,remount,ro";
        assert_eq!(told("allow_other", of_kernel), "");
        let repeated = told(
            "allow_other,permissions=server",
            "remount,permissions=server,ro",
        );
        assert_eq!(repeated, "");
        for (current, wanted) in [
            ("allow_other", "permissions=server"),
            ("noallow_other", "permissions=kernel"),
        ] {
            let said = told(current, &format!("remount,{wanted}"));
            assert_eq!(said, format!("not {wanted}"));
        }
        assert!(keeps_devices_closed("permissions=server", "remount,ro"));
        assert!(!keeps_devices_closed(
            "permissions=server,dev",
            "remount,ro"
        ));
        assert!(!keeps_devices_closed("", "remount,ro"));
    }

    #[test]
    fn what_fuse_shows_is_not_for_mounting() {
        assert!(Options::parse("user_id=0").is_err());
        assert!(Options::parse("remount,user_id=0,max_read=4096").is_ok());
    }
}
