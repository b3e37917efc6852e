//! Options of mount(8) and the VFS. As there, the last of two contradicting ones counts.

use super::super::draft::{Draft, Outcome};
use super::super::entry::*;
use super::super::{AccessTime, Permissions};

pub(super) static SECTION: Section = Section {
    title: "Of mount(8) and fstab(5)",
    lasts: "the kernel is told of it once",
    entries: &[
        Entry {
            forms: "defaults",
            help: "nothing by itself",
            action: Action::Set(|_, _, _| Ok(())),
            ..Entry::NONE
        },
        Entry {
            forms: "ro rw",
            help: "read-only, read-write",
            action: Action::Set(|d, n, _| {
                d.options.vfs.read_only = n == "ro";
                Ok(())
            }),
            show: |o, _, w| w.flag(if o.vfs.read_only { "ro" } else { "rw" }),
            ..Entry::NONE
        },
        Entry {
            forms: "suid nosuid dev nodev exec noexec",
            help: "as in mount(8); a mount by a plain user is always `nosuid` and `nodev`",
            action: Action::Set(|d, n, _| {
                let vfs = &mut d.options.vfs;
                match n {
                    "suid" | "nosuid" => vfs.suid = n == "suid",
                    "exec" | "noexec" => vfs.exec = n == "exec",
                    _ => vfs.dev = n == "dev",
                }
                d.dev |= n == "dev";
                Ok(())
            }),
            show: |o, _, w| {
                let asked = o.vfs.dev && o.permissions == Some(Permissions::Server);
                w.flag_if(!o.vfs.suid, "nosuid");
                w.flag_if(!o.vfs.dev, "nodev");
                w.flag_if(asked, "dev");
                w.flag_if(!o.vfs.exec, "noexec");
            },
            ..Entry::NONE
        },
        Entry {
            forms: "symfollow nosymfollow",
            help: "follow symbolic links or not (Linux 5.10; only root)",
            action: Action::Set(|d, n, _| {
                d.options.vfs.symfollow = n == "symfollow";
                Ok(())
            }),
            show: |o, _, w| w.flag_if(!o.vfs.symfollow, "nosymfollow"),
            ..Entry::NONE
        },
        Entry {
            forms: "sync async dirsync",
            help: "with `sync` each write(2) waits until its data is on stable storage, with `async` \
            data is written behind. `dirsync` changes nothing here: calls that change a \
            directory always wait for the server",
            action: Action::Set(|d, n, _| {
                match n {
                    "dirsync" => d.options.vfs.dirsync = true,
                    _ => d.options.vfs.sync = n == "sync",
                }
                Ok(())
            }),
            show: |o, _, w| {
                w.flag_if(o.vfs.sync && !o.noac, "sync");
                w.flag_if(o.vfs.dirsync, "dirsync");
            },
            ..Entry::NONE
        },
        Entry {
            forms: "atime noatime relatime norelatime strictatime nostrictatime diratime nodiratime",
            help: "flags of the local mount; the server keeps the times of access, and reading from a \
            cache does not change them. A plain user's mount honours `noatime` only",
            action: Action::Set(|d, n, _| {
                let vfs = &mut d.options.vfs;
                match n {
                    "atime" | "relatime" => vfs.access_time = AccessTime::Relative,
                    "noatime" => vfs.access_time = AccessTime::Never,
                    "strictatime" => vfs.access_time = AccessTime::Always,
                    "diratime" | "nodiratime" => vfs.dir_access_time = n == "diratime",
                    _ => {}
                }
                Ok(())
            }),
            show: |o, _, w| {
                w.flag(match o.vfs.access_time {
                    AccessTime::Always => "strictatime",
                    AccessTime::Relative => "relatime",
                    AccessTime::Never => "noatime",
                });
                w.flag_if(!o.vfs.dir_access_time, "nodiratime");
            },
            ..Entry::NONE
        },
        Entry {
            forms: "context=CONTEXT fscontext=CONTEXT defcontext=CONTEXT rootcontext=CONTEXT",
            takes: "a security context",
            help: "contexts for SELinux, as in mount(8); ignored where the kernel has no SELinux, and \
            by a plain user's mount",
            action: Action::Set(context),
            show: |o, _, w| {
                for context in &o.security_contexts {
                    w.flag(context);
                }
            },
            ..Entry::NONE
        },
        accept("seclabel", "accepted: SELinux shows it in /proc/mounts"),
        Entry {
            forms: "user users owner group",
            help: "who may mount by fstab. `user` and `users` imply `noexec`, `nosuid` and `nodev`, \
            the others `nosuid` and `nodev`, as in mount(8). As mount(8) gives up root's \
            identity before it calls the helper, fusermount3(1) makes such a mount: the \
            directory must belong to the user, or be writable for them and not sticky; only \
            that user sees the mount, unless `allow_other` is given; only that user and root \
            may unmount it, with `users` too; and the server must take calls from unprivileged \
            ports, which Linux's refuses unless the export has the option `insecure`: see \
            [MIGRATION.md](MIGRATION.md#mounts-by-plain-users)",
            action: Action::Set(|d, n, _| {
                let vfs = &mut d.options.vfs;
                vfs.exec &= !matches!(n, "user" | "users");
                (vfs.suid, vfs.dev) = (false, false);
                Ok(())
            }),
            ..Entry::NONE
        },
        accept(
            "nouser noowner nogroup auto noauto _netdev comment=TEXT x-* quota noquota usrquota grpquota",
            "for other programs; accepted",
        ),
        // The server maintains access times, so there are none to delay here.
        accept(
            "lazytime nolazytime iversion noiversion mand nomand silent loud",
            "accepted, without effect",
        ),
        Entry {
            forms: "nofail fail",
            help: "with `nofail` a mount that fails is reported, but the exit status is 0",
            action: Action::Set(|d, n, _| {
                d.options.nofail = n == "nofail";
                Ok(())
            }),
            ..Entry::NONE
        },
        Entry {
            forms: "sloppy",
            help: "pass over options that are not known or cannot be honoured, with a message (`mount \
            -s` is the same). `sec` and `xprtsec` are an exception: who asks for protection of \
            the data gets no mount without it. Wrong values of known options are still errors",
            action: Action::Set(|d, _, _| {
                d.options.sloppy = true;
                Ok(())
            }),
            ..Entry::NONE
        },
        Entry {
            forms: "remount",
            help: "change `ro`, `nosuid`, `nodev`, `noexec` and the access-time flags of a mount. With \
            `restart=files` or `data` also `acregmin`, `acregmax`, `acdirmin`, `acdirmax`, \
            `actimeo`, `cto`, `nocto`, `lookupcache`, `rdirplus`, `nordirplus`, `cache`, \
            `dirty`, `readahead`, `hard`, `soft`, `softerr`, `timeo`, `retrans` and `nconnect`: \
            another process goes on with the mount, and programs wait for some tenths of a second. All \
            other options need a new mount",
            action: Action::Set(|d, _, _| {
                d.options.remount = true;
                Ok(())
            }),
            ..Entry::NONE
        },
    ],
};

/// A context for SELinux. It is quoted again, because it may contain commas.
fn context(d: &mut Draft, name: &'static str, value: &str) -> Outcome {
    if value.contains(['"', '\\']) {
        return d.bad();
    }
    d.claim(name, value)?;
    let word = format!("{name}=\"{value}\"");
    if !d.options.security_contexts.contains(&word) {
        d.options.security_contexts.push(word);
    }
    Ok(())
}
