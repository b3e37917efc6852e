//! Options of the connection to the server.

use super::super::addresses;
use super::super::draft::{Draft, Outcome, PORT, SIZE};
use super::super::entry::*;
use super::super::{Transport, WriteChunk};
use super::refused::{NO_TLS, OBSOLETE, OTHER_FLAVORS, TCP_ONLY, V3_ONLY};
use nfsrdma_nfs3::options::{Flavor, Remotes};

const REMOTES: &str = "dns, or 1 to 16 IP addresses joined by ~, or ranges as in 10.0.0.1-10.0.0.4";
const LOCALS: &str = "1 to 16 IP addresses joined by ~, or ranges as in 10.0.0.1-10.0.0.4";
const INLINE: &str = "1024 to 262144 bytes, in steps of 1024";

pub(super) static SECTION: Section = Section {
    title: "Transport",
    lasts: "it was settled with the server when the mount was made",
    entries: &[
        Entry {
            forms: "vers=3 nfsvers=3 v3",
            default: "`3`",
            help: "the NFS version, which is the only one",
            action: Action::Set(version),
            show: |_, n, w| w.value(n, 3),
            ..Entry::NONE
        },
        Entry {
            forms: "rsize=SIZE wsize=SIZE",
            default: "what the server prefers (rtpref, wtpref of FSINFO), at most 1 MiB",
            takes: SIZE,
            help: "largest READ and WRITE in bytes: multiples of 4096 up to 1 MiB. Other values are \
            rounded down, smaller ones are raised to 4096, and 0 is the default. The server's \
            limits always hold, and are asked for again after each reconnection. With \
            `write_chunk=pz` the data of a WRITE stays a page below the server's limit, so \
            1044480 bytes of 1 MiB: some servers have room for no more than their limit, \
            headers included \
            ([why](INTEROP.md#what-nfs-ganesha-does-and-what-is-done-about-it))",
            action: Action::Set(|d, n, v| {
                let size = d.io_size(n, v)?;
                match n {
                    "rsize" => d.options.client.rsize = size,
                    _ => d.options.client.wsize = size,
                }
                Ok(())
            }),
            show: |o, _, w| {
                w.some("rsize", o.client.rsize);
                w.some("wsize", o.client.wsize);
            },
            ..Entry::NONE
        },
        Entry {
            forms: "proto=rdma|rdma6 rdma",
            default: "`rdma`",
            help: "RPC-over-RDMA to the addresses in the order of the resolver; `rdma6` uses IPv6 \
            addresses only",
            action: Action::Set(|d, _, v| {
                let ipv6_only = match v {
                    // `rdma` alone.
                    "" => return Ok(()),
                    "rdma" => false,
                    "rdma6" => true,
                    "tcp" | "tcp6" | "udp" | "udp6" => return d.cannot(TCP_ONLY),
                    _ => return d.bad(),
                };
                d.claim("proto", v)?;
                d.options.client.ipv6_only = ipv6_only;
                Ok(())
            }),
            show: |o, n, w| w.value(n, if o.client.ipv6_only { "rdma6" } else { "rdma" }),
            ..Entry::NONE
        },
        Entry {
            forms: "port=N",
            default: "`20049`",
            takes: PORT,
            help: "port of the server's NFS/RDMA listener, 1 to 65535. 0 is the default, too: unlike \
            nfs(5), rpcbind is not asked, because NFS over RDMA is not registered there",
            action: Action::Set(|d, n, v| {
                if let Some(port) = d.port(n, v)? {
                    d.options.client.port = port;
                }
                Ok(())
            }),
            show: |o, n, w| w.value(n, o.client.port),
            ..Entry::NONE
        },
        Entry {
            forms: "nconnect=N",
            changes: true,
            default: "as many as `workers`, up to 4, or as `remoteports`",
            help: "connections to the server, 1 to 16. Each worker has one or more, on which it \
            sends. It takes another worker's while its own are down, have no credits left, or have \
            more data to move. The default of nfs(5) is one connection",
            show: |o, n, w| w.value(n, o.connections()),
            ..number!(1..=16, nconnect)
        },
        Entry {
            forms: "remoteports=ADDRESSES",
            default: "the address that is mounted",
            takes: REMOTES,
            help: "addresses of the server that the connections take in turn, up to 16: \
            `10.0.0.1~10.0.1.1`, `10.0.0.1-10.0.0.4`, or `dns` for those of its name. Calls leave \
            a path that dies after `timeo` at most",
            action: Action::Set(|d, n, v| {
                d.options.client.remotes = match v {
                    "dns" => Remotes::Resolved,
                    list => Remotes::These(d.addresses(list)?),
                };
                d.claim(n, v)
            }),
            show: |o, n, w| match &o.client.remotes {
                Remotes::Mounted => {}
                Remotes::These(list) => w.value(n, addresses::show(list)),
                Remotes::Resolved => w.value(n, "dns"),
            },
            ..Entry::NONE
        },
        Entry {
            forms: "localports=ADDRESSES",
            default: "what the routes say",
            takes: LOCALS,
            help: "addresses of this machine that they connect from, in turn",
            action: Action::Set(|d, n, v| {
                d.options.client.locals = d.addresses(v)?;
                d.claim(n, v)
            }),
            show: |o, n, w| {
                if !o.client.locals.is_empty() {
                    w.value(n, addresses::show(&o.client.locals));
                }
            },
            ..Entry::NONE
        },
        Entry {
            forms: "sec=sys|krb5|krb5i|krb5p",
            default: "`sys`",
            help: "how the server knows who calls. `sys`: by the caller's user, group and up to 16 \
            further groups, unproven. `krb5`: by a Kerberos ticket; `krb5i` protects what is \
            transferred against changes, too, and `krb5p` keeps it secret. Of a list \
            (`sec=krb5p:krb5:sys`) the first that the export has is used. With Kerberos each user \
            needs a ticket (kinit), and root a key (`host/NAME`) in /etc/krb5.keytab; \
            `permissions=server` is then the default",
            action: Action::Set(flavors),
            show: |o, n, w| w.value(n, o.flavors()),
            ..Entry::NONE
        },
        Entry {
            forms: "gssport=N",
            default: "2049, that of NFS",
            takes: PORT,
            help: "port of the server's NFS over TCP, by which Kerberos contexts are made: open it \
            in firewalls. nfs(5) has no such option",
            ..port!(gss_port)
        },
        Entry {
            forms: "xprtsec=none",
            default: "`none`",
            help: "the transport is not encrypted: there is no TLS over RDMA",
            action: Action::Set(|d, _, v| match v {
                "none" => Ok(()),
                "tls" | "mtls" => d.cannot(NO_TLS),
                _ => d.bad(),
            }),
            ..Entry::NONE
        },
        Entry {
            forms: "transport=auto|iwarp|verbs",
            default: "`auto`",
            help: "RDMA provider: `iwarp` is iWARP in software over an ordinary TCP connection and \
            needs no RDMA device; `verbs` uses a device through libibverbs and librdmacm \
            (InfiniBand, RoCE, iWARP cards, or the kernel's rxe and siw). `auto` takes `verbs` \
            where a device reaches the server; the line that mounting prints ends with the \
            choice and its reason",
            ..choice!(
                transport,
                "auto" => Transport::Auto,
                "iwarp" => Transport::Iwarp,
                "verbs" => Transport::Verbs
            )
        },
        Entry {
            forms: "write_chunk=pz|reduced",
            default: "`pz`",
            help: "how a WRITE is sent that does not fit inline: the whole call in a Position Zero \
            Read chunk, or only its data in a Read chunk",
            ..choice!(
                client.transport.write_chunk,
                "pz" => WriteChunk::PositionZero,
                "reduced" => WriteChunk::Reduced
            )
        },
        Entry {
            forms: "inline=SIZE",
            default: "`4096`",
            takes: INLINE,
            help: "inline threshold announced to the server (RFC 8797), the largest message that \
            travels in one Send: 1024 to 262144 in steps of 1024. The server announces its \
            own, and the smaller one counts",
            action: Action::Set(|d, n, v| {
                let size = d.size(v, 1024..=262_144)?;
                // Sizes are announced in units of 1024 bytes (RFC 8797 section 4.2).
                if size % 1024 != 0 {
                    return d.bad();
                }
                d.options.client.transport.inline = size as u32;
                d.claim(n, size)
            }),
            show: |o, n, w| w.value(n, o.client.transport.inline),
            ..Entry::NONE
        },
        Entry {
            forms: "credits=N",
            default: "`64`",
            help: "calls outstanding on one connection, 1 to 1024; the server may grant less",
            ..number!(1..=1024, client.transport.credits)
        },
        Entry {
            forms: "crc nocrc",
            default: "`crc`",
            help: "ask for CRC32C on iWARP frames (on if either side asks); refused with \
            `transport=verbs`",
            action: Action::Set(|d, n, _| {
                d.options.crc = n == "crc";
                d.claim("crc", n)
            }),
            show: |o, _, w| {
                if o.transport != Transport::Verbs {
                    w.flag(if o.crc { "crc" } else { "nocrc" });
                }
            },
            ..Entry::NONE
        },
        Entry {
            forms: "fpdu=SIZE",
            default: "what fits the path",
            takes: "128 to 65535 bytes",
            help: "largest iWARP frame to send, 128 to 65535 (of which 136 to 64772 are used: RFC \
            5044 section 3); refused with `transport=verbs`",
            show: |o, n, w| {
                if o.transport != Transport::Verbs {
                    w.some(n, o.fpdu);
                }
            },
            ..size!(128..=65535, fpdu)
        },
    ],
};

fn version(d: &mut Draft, _: &'static str, value: &str) -> Outcome {
    match value {
        // Without a value: v3.
        "" | "3" | "3.0" => d.claim("vers", 3),
        "2" => d.cannot(OBSOLETE),
        "4" | "4.0" | "4.1" | "4.2" => d.cannot(V3_ONLY),
        _ => d.bad(),
    }
}

/// A list, of which the first flavor that the server supports is used (nfs(5)). Flavors of nfs(5) that
/// are not here are passed over if others remain.
fn flavors(d: &mut Draft, name: &'static str, value: &str) -> Outcome {
    const OTHERS: [&str; 11] = [
        "none", "null", "lkey", "lkeyi", "lkeyp", "spkm", "spkmi", "spkmp", "spkm3", "spkm3i",
        "spkm3p",
    ];
    let mut list = Vec::new();
    for word in value.split(':') {
        match Flavor::of_name(word) {
            Some(flavor) if !list.contains(&flavor) => list.push(flavor),
            Some(_) => {}
            None if OTHERS.contains(&word) => {}
            None => return d.bad(),
        }
    }
    if list.is_empty() {
        return d.cannot(OTHER_FLAVORS);
    }
    let names: Vec<_> = list.iter().map(|flavor| flavor.name()).collect();
    let claimed = d.claim(name, names.join(":"));
    d.options.client.flavors = match list[..] {
        // The default.
        [Flavor::Sys] => Vec::new(),
        _ => list,
    };
    claimed
}
