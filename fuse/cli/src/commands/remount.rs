//! `-o remount`: changes the flags that the VFS keeps. All other options need a new mount.

use crate::cli::{self, Command};
use crate::failure::Failure;
use crate::ipc::exit_watch::ExitWatch;
use crate::mount::fuse_mount;
use crate::mounts::{self, Mount};
use crate::options::{Options, Permissions, VfsFlags};
use crate::output::without_number;
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount_remount};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

/// Changes the flags of the mount on `dir` to those of `options`, which were parsed from `text`.
pub(crate) fn run(dir: &Path, options: &Options, text: &str) -> Result<(), Failure> {
    let shown = dir.display();
    let failed = |message: String| Failure::failed(message);
    let (path, found) = mounts::find(dir)?;
    let current = given(&found);
    if !changes_flags_only(current.as_deref().unwrap_or_default(), text) {
        let unknown = match current {
            Some(_) => "",
            None => " (the mount's process could not be asked for the options in force)",
        };
        return Err(Failure::usage(format!(
            "a remount changes ro, nosuid, nodev, noexec and access-time flags only: unmount and mount for the rest{unknown}"
        )));
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

/// The options that the process serving `mount` was started with.
fn given(mount: &Mount) -> Option<String> {
    let pid = ExitWatch::connect(&mount.device, mount.owner).ok()?.pid()?;
    match command_of(pid)? {
        Command::Mount(args) => Some(args.options),
        // It has taken the mount over, and its holder was started with the options.
        Command::Serve { .. } => match command_of(parent_of(pid)?)? {
            Command::Mount(args) => Some(args.options),
            _ => None,
        },
        _ => None,
    }
}

fn command_of(pid: i32) -> Option<Command> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words = line.strip_suffix(b"\0")?.split(|&byte| byte == 0);
    let words = words.map(|word| OsString::from_vec(word.to_vec()));
    cli::parse(words.collect()).ok()
}

fn parent_of(pid: i32) -> Option<i32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    parent?.trim().parse().ok()
}

/// Whether `wanted` changes nothing of `current` but flags that the VFS keeps. mount(8) repeats the
/// options of fstab and of /proc/mounts in `wanted`.
fn changes_flags_only(current: &str, wanted: &str) -> bool {
    let lasting = |text: &str| {
        let options = Options::parse(text).ok()?;
        Some(Options {
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
    let before = lasting(current);
    before.is_some() && before == lasting(&format!("{current},{wanted}"))
}

/// Whether device files must stay closed because the kernel does not check their modes. The mount
/// may have got `permissions=server` from its first options, which a remount need not repeat.
fn keeps_devices_closed(current: &str, wanted: &str) -> bool {
    Options::parse(&format!("{current},{wanted}"))
        .is_ok_and(|options| options.permissions == Some(Permissions::Server) && !options.vfs.dev)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_change() {
        let only = |text: &str| changes_flags_only("", text);
        assert!(only("remount,ro,nosuid,noatime"));
        assert!(!only("remount,soft"));
        assert!(!only("remount,sync"));
        assert!(!only("remount,rsize=4K"));
    }

    #[test]
    fn what_is_in_force_may_be_repeated() {
        let only = |text: &str| changes_flags_only("rw,soft,nconnect=2,allow_other", text);
        assert!(only("remount,ro"));
        // Options from fstab, followed by those from /proc/mounts.
        assert!(only("rw,soft,nconnect=2,_netdev,remount,ro"));
        assert!(only(
            "rw,relatime,user_id=0,group_id=0,allow_other,remount,ro"
        ));
        assert!(!only("remount,nconnect=3"));
        assert!(!only("remount,hard"));
        assert!(!only("remount,noac"));
        assert!(!only("remount,noallow_other"));
    }

    #[test]
    fn permissions_may_be_repeated_in_either_spelling() {
        assert!(changes_flags_only(
            "allow_other",
            "rw,user_id=0,group_id=0,default_permissions,allow_other,remount,ro"
        ));
        assert!(changes_flags_only(
            "allow_other,permissions=server",
            "remount,permissions=server,ro"
        ));
        assert!(!changes_flags_only(
            "allow_other",
            "remount,permissions=server"
        ));
        assert!(!changes_flags_only(
            "noallow_other",
            "remount,permissions=kernel"
        ));
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

    #[test]
    fn access_times_change_as_told_and_stay_otherwise() {
        for (current, wanted, expected) in [
            ("rw,noatime", "remount,relatime", MountFlags::RELATIME),
            ("rw,noatime", "remount,atime", MountFlags::RELATIME),
            ("rw,noatime", "remount,ro", MountFlags::NOATIME),
            ("rw", "remount,ro", MountFlags::STRICTATIME),
            ("rw,noatime,nodiratime", "diratime", MountFlags::NOATIME),
            (
                "rw,nodiratime,relatime",
                "remount,noatime",
                MountFlags::NOATIME | MountFlags::NODIRATIME,
            ),
        ] {
            assert_eq!(
                access_times(current, wanted),
                expected,
                "{current} {wanted}"
            );
        }
    }

    #[test]
    fn only_our_mounts() {
        let options = Options::parse("remount,ro").unwrap();
        let failure = run(Path::new("/"), &options, "remount,ro").unwrap_err();
        let said = failure.message;
        assert!(
            said.starts_with("/ is not an nfsrdma mount but one of type "),
            "{said}"
        );
    }
}
