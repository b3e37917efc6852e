//! Options of FUSE, and of the process that serves the mount.

use super::super::draft::{Draft, Outcome};
use super::super::entry::*;
use super::super::{MetricsAt, Permissions, Restart};

pub(super) static SECTION: Section = Section {
    title: "FUSE",
    lasts: "the kernel is told of it once",
    entries: &[
        Entry {
            forms: "allow_other noallow_other",
            default: "`allow_other` if root mounts, else `noallow_other`",
            help: "let users other than the one who mounted in; for a plain user this needs \
            `user_allow_other` in /etc/fuse.conf",
            ..switch!(allow_other)
        },
        Entry {
            forms: "permissions=kernel|server",
            default: "`kernel` with `allow_other,sec=sys`, else `server`",
            help: "who checks permissions when a system call makes no call to the server: the local \
            kernel, by modes and ACLs, or only the server, which is then asked for each user \
            (ACCESS). The server checks each call in any case.\n\n`server` is for exports that \
            map users (`all_squash`), or whose ACLs cannot be read (no NFS_ACL). It costs a \
            request to this program for each component of a path, and nobody checks who opens \
            devices, FIFOs and sockets: the mount is `nodev` unless `dev` is given. See \
            [COHERENCE.md](COHERENCE.md)",
            ..choice!(
                permissions,
                "kernel" => Some(Permissions::Kernel),
                "server" => Some(Permissions::Server)
            )
        },
        Entry {
            forms: "default_permissions",
            help: "the name of `permissions=kernel` in FUSE and in /proc/mounts",
            action: Action::Set(|d, _, _| {
                d.options.permissions = Some(Permissions::Kernel);
                d.claim("permissions", "kernel")
            }),
            ..Entry::NONE
        },
        Entry {
            forms: "workers=N",
            default: "one for each CPU, up to 4",
            help: "event loops, 1 to 16. Each reads requests of the kernel, sends the calls, receives \
            the replies on its own connection, and answers, all on one thread. The first one \
            does all the work as long as it can; the others join it under load",
            show: |o, n, w| w.value(n, o.workers()),
            ..number!(1..=16, workers)
        },
        Entry {
            forms: "restart=no|files|data",
            default: "`data` for root's mounts in the background, from Linux 6.9 on, if only root \
            can replace the program; else `no`",
            help: "what happens when the program that serves the mount dies (a crash, an OOM kill). With \
            `no` every call fails until the mount is made again. With `files` a small process keeps \
            the mount and starts the program again: calls wait for it, and open files, \
            directories and working directories go on. Data that were written and not yet sent \
            are lost; the next fsync(2) or close(2) of each open file says so once (EIO), and the \
            log does. With `data` they are kept, in memory that both have, and sent. Locks are kept, too. \
            `nfsrdma upgrade` exchanges the program of such a mount",
            ..choice!(
                restart,
                "no" => Some(Restart::No),
                "files" => Some(Restart::Files),
                "data" => Some(Restart::Data)
            )
        },
        accept(
            "threads=N",
            "accepted, without effect: `workers` is the number of threads that serve requests",
        ),
        Entry {
            forms: "metrics=PORT metrics=ADDRESS:PORT metrics=unix:/PATH",
            default: "none",
            takes: "PORT, ADDRESS:PORT, [IPV6]:PORT or unix:/PATH, of at most 107 bytes",
            help: "serve Prometheus text at `http://ADDRESS:PORT/metrics`, by default on 127.0.0.1, \
            or on a Unix socket that only its owner may open (mode 0600) and that is removed \
            with the mount (the path has at most 107 bytes, without commas and quotes); each \
            mount needs an address of its own. `nfsrdma metrics` serves those of all mounts",
            action: Action::Set(metrics),
            show: |o, n, w| w.some(n, o.metrics.as_ref()),
            ..Entry::NONE
        },
    ],
};

fn metrics(d: &mut Draft, name: &'static str, value: &str) -> Outcome {
    let at = match value.parse() {
        // As an option it has no commas or quotes.
        Ok(MetricsAt::Unix(_)) if value.contains([',', '"']) => return d.bad(),
        Ok(MetricsAt::Tcp(address)) if address.port() == 0 => return d.bad(),
        Ok(at) => at,
        Err(_) => return d.bad(),
    };
    d.claim(name, &at)?;
    d.options.metrics = Some(at);
    Ok(())
}
