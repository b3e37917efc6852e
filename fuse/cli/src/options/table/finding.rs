//! Options of the MOUNT service, and of attempts to mount.

use super::super::MountProtocol;
use super::super::draft::{Draft, MAX_SECONDS, Outcome, PORT};
use super::super::entry::*;
use super::kernel::{ADDRESS, address};
use std::time::Duration;

pub(super) static SECTION: Section = Section {
    title: "Finding the export",
    lasts: "the export has been found",
    entries: &[
        Entry {
            forms: "bg fg",
            default: "`fg`",
            help: "what happens if the server does not answer the first attempt: with `fg` the \
            command goes on trying until `retry` is over; with `bg` it returns with success, and a \
            process in the background goes on, which `nfsrdma stats` lists and `nfsrdma umount` \
            ends. In fstab, systemd needs `nofail,retry=10000,x-systemd.mount-timeout=infinity` in \
            place of `bg`",
            ..toggle!(background, "bg")
        },
        Entry {
            forms: "retry=MINUTES",
            default: "2 with `fg`, 10000 with `bg`",
            takes: "a number of minutes",
            help: "how long to try a server that does not answer or refuses connections (systemd \
            stops after 90 s); `0` gives up at once. The same holds while DNS does not answer; a \
            name that it does not know is tried again only with `bg` or `retry`",
            action: Action::Set(|d, n, v| {
                let minutes = d.number(v, 0..=MAX_SECONDS / 60)?;
                d.options.retry = Some(Duration::from_secs(minutes * 60));
                d.claim(n, minutes)
            }),
            show: |o, n, w| w.some(n, o.retry.map(|retry| retry.as_secs() / 60)),
            ..Entry::NONE
        },
        Entry {
            forms: "mounthost=HOST",
            default: "the server",
            takes: "a host",
            help: "another host that answers MOUNT",
            action: Action::Set(|d, n, v| {
                let plain = |c: char| c.is_ascii_alphanumeric() || ".-_:%".contains(c);
                if !v.chars().all(plain) {
                    return d.bad();
                }
                d.options.client.mounthost = Some(v.into());
                d.claim(n, v)
            }),
            show: |o, n, w| w.some(n, o.client.mounthost.as_ref()),
            ..Entry::NONE
        },
        Entry {
            forms: "mountaddr=ADDRESS",
            default: "the server's",
            takes: ADDRESS,
            help: "as `mounthost`, if `mounthost` is not given and `addr=` has another address. The \
            kernel's client shows this option in /proc/mounts",
            action: Action::Set(|d, n, v| {
                if v != "unspecified" {
                    let address = address(d, v)?;
                    d.claim(n, &address)?;
                    d.mountaddr = Some(address);
                }
                Ok(())
            }),
            ..Entry::NONE
        },
        Entry {
            forms: "mountport=N",
            default: "asks rpcbind",
            takes: PORT,
            help: "port of the server's MOUNT service; 0 asks rpcbind. Behind a firewall that closes \
            port 111 this option is needed",
            ..port!(client.mountport)
        },
        Entry {
            forms: "mountproto=tcp|udp|rdma|auto",
            default: "`auto`",
            takes: "tcp, tcp6, udp, udp6 or rdma",
            help: "how to reach the MOUNT service (`tcp6`, `udp6`, `rdma6`: IPv6 addresses only). \
            `rdma` makes the calls on the NFS connection itself, which only some servers \
            answer there; `auto` is TCP, and then UDP",
            action: Action::Set(mountproto),
            show: |o, n, w| {
                let proto = match o.client.mountproto {
                    MountProtocol::Auto => return,
                    MountProtocol::Tcp => "tcp",
                    MountProtocol::Udp => "udp",
                    MountProtocol::Rdma => "rdma",
                };
                let six = if o.client.mount_ipv6_only { "6" } else { "" };
                w.value(n, format_args!("{proto}{six}"));
            },
            ..Entry::NONE
        },
        Entry {
            forms: "mountvers=3",
            default: "`3`",
            help: "the MOUNT version, which is the only one for NFS version 3",
            action: Action::Set(|d, _, v| match v {
                "3" => Ok(()),
                "1" | "2" => d.cannot("NFS version 3 needs MOUNT version 3; use mountvers=3"),
                _ => d.bad(),
            }),
            ..Entry::NONE
        },
        Entry {
            forms: "resvport noresvport",
            default: "`resvport`",
            help: "call MOUNT and NLM from a port below 1024 where that is permitted, as many servers \
            demand unless they export with `insecure`. The NFS connection always uses an \
            ordinary port",
            ..switch!(client.resvport)
        },
    ],
};

fn mountproto(d: &mut Draft, name: &'static str, value: &str) -> Outcome {
    let proto = match value.strip_suffix('6').unwrap_or(value) {
        "tcp" => MountProtocol::Tcp,
        "udp" => MountProtocol::Udp,
        "rdma" => MountProtocol::Rdma,
        "auto" if value == "auto" => return Ok(()),
        _ => return d.bad(),
    };
    d.options.client.mountproto = proto;
    d.options.client.mount_ipv6_only = value.ends_with('6');
    d.claim(name, value)
}
