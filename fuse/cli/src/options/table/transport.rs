//! Options of sizes, addresses, versions, and the MOUNT service.

use super::super::draft::{Draft, Outcome, PORT, SIZE};
use super::super::entry::{Entry, accept, flag, refuse, value};
use super::super::{MountProtocol, OptionError};
use std::net::IpAddr;

const TCP_ONLY: &str = "this program speaks NFS over RDMA only; use mount -t nfs for TCP and UDP";
const V3_ONLY: &str = "this program speaks NFS version 3 only; use mount -t nfs for version 4";
const V4_OPTION: &str =
    "it belongs to NFS version 4, and this program speaks version 3; leave it out";
const OBSOLETE: &str =
    "NFS version 2 is obsolete, and this program speaks version 3 only; use vers=3";

/// Parses a literal address, which the kernel shows in its own format.
fn address(d: &Draft, name: &'static str, text: &str) -> Result<String, OptionError> {
    match text.parse::<IpAddr>() {
        Ok(address) => Ok(address.to_string()),
        Err(_) => d.bad(name, "an IPv4 or IPv6 address"),
    }
}

/// Accepts a number on which the server decides.
fn ignored_number(d: &Draft, name: &'static str, text: &str) -> Outcome {
    d.number(name, text, 0..=u32::MAX.into(), "a number")
        .map(|_| ())
}

fn version(d: &mut Draft, name: &'static str, text: &str) -> Outcome {
    match text {
        "3" | "3.0" => d.claim("vers", 3),
        "2" => d.cannot(OBSOLETE),
        "4" | "4.0" | "4.1" | "4.2" => d.cannot(V3_ONLY),
        _ => d.bad(name, "3"),
    }
}

pub(super) static TABLE: &[Entry] = &[
    // Sizes and addresses.
    value!("rsize", SIZE, |d, n, v| {
        d.options.client.rsize = d.io_size(n, v)?;
        Ok(())
    }),
    value!("wsize", SIZE, |d, n, v| {
        d.options.client.wsize = d.io_size(n, v)?;
        Ok(())
    }),
    value!("port", PORT, |d, n, v| {
        if let Some(port) = d.port(n, v)? {
            d.options.client.port = port;
        }
        Ok(())
    }),
    value!("proto", "rdma or rdma6", |d, n, v| {
        let ipv6_only = match v {
            "rdma" => false,
            "rdma6" => true,
            "tcp" | "tcp6" | "udp" | "udp6" => return d.cannot(TCP_ONLY),
            _ => return d.bad(n, "rdma or rdma6"),
        };
        d.claim("proto", v)?;
        d.options.client.ipv6_only = ipv6_only;
        Ok(())
    }),
    flag!("rdma", |_, _| Ok(())),
    refuse!("tcp", TCP_ONLY),
    refuse!("udp", TCP_ONLY),
    value!("vers", "3", version),
    value!("nfsvers", "3", version),
    flag!("v3", |d, _| d.claim("vers", 3)),
    refuse!("v2", OBSOLETE),
    refuse!("v4", V3_ONLY),
    refuse!("v4.0", V3_ONLY),
    refuse!("v4.1", V3_ONLY),
    refuse!("v4.2", V3_ONLY),
    value!("minorversion", "0", |d, n, v| match v {
        "0" => Ok(()),
        "1" | "2" => d.cannot(V3_ONLY),
        _ => d.bad(n, "0"),
    }),
    refuse!("clientaddr", V4_OPTION),
    refuse!("migration", V4_OPTION),
    accept!("nomigration"),
    refuse!("max_connect", V4_OPTION),
    refuse!("trunkdiscovery", V4_OPTION),
    accept!("notrunkdiscovery"),
    refuse!(
        "srcaddr",
        "the local address is chosen by the routes; set it there ('ip route ... src')"
    ),
    value!("fatal_neterrors", "default or none", |d, n, v| match v {
        "default" | "none" => Ok(()),
        "ENETDOWN:ENETUNREACH" | "ENETUNREACH:ENETDOWN" =>
            d.cannot("a network that is away is waited for like a server that is; use softerr",),
        _ => d.bad(n, "default or none"),
    }),
    // Options that the kernel's client shows in /proc/mounts.
    value!("addr", "an address", |d, n, v| {
        let address = address(d, n, v)?;
        d.addr = Some(address);
        Ok(())
    }),
    value!("mountaddr", "an address", |d, n, v| {
        if v != "unspecified" {
            let address = address(d, n, v)?;
            d.claim(n, &address)?;
            d.mountaddr = Some(address);
        }
        Ok(())
    }),
    value!("namlen", "a number", |d, n, v| ignored_number(d, n, v)),
    value!("bsize", "a number", |d, n, v| ignored_number(d, n, v)),
    accept!("posix"),
    accept!("noposix"),
    value!("nfsprog", "100003", |d, n, v| match v {
        "100003" => Ok(()),
        _ => d.bad(n, "100003"),
    }),
    value!("mountprog", "100005", |d, n, v| match v {
        "100005" => Ok(()),
        _ => d.bad(n, "100005"),
    }),
    // The MOUNT service.
    value!("mounthost", "a host", |d, n, v| {
        let plain = |c: char| c.is_ascii_alphanumeric() || ".-_:%".contains(c);
        if v.is_empty() || !v.chars().all(plain) {
            return d.bad(n, "a host");
        }
        d.claim(n, v)?;
        d.options.client.mounthost = Some(v.into());
        Ok(())
    }),
    value!("mountport", PORT, |d, n, v| {
        d.options.client.mountport = d.port(n, v)?;
        Ok(())
    }),
    value!("mountproto", "tcp, tcp6, udp, udp6 or rdma", |d, n, v| {
        let (proto, ipv6_only) = match v {
            "tcp" => (MountProtocol::Tcp, false),
            "tcp6" => (MountProtocol::Tcp, true),
            "udp" => (MountProtocol::Udp, false),
            "udp6" => (MountProtocol::Udp, true),
            "rdma" => (MountProtocol::Rdma, false),
            "rdma6" => (MountProtocol::Rdma, true),
            "auto" => return Ok(()),
            _ => return d.bad(n, "tcp, tcp6, udp, udp6 or rdma"),
        };
        d.claim(n, v)?;
        d.options.client.mountproto = proto;
        d.options.client.mount_ipv6_only = ipv6_only;
        Ok(())
    }),
    value!("mountvers", "3", |d, n, v| match v {
        "3" => Ok(()),
        "1" | "2" => d.cannot("NFS version 3 needs MOUNT version 3; use mountvers=3"),
        _ => d.bad(n, "3"),
    }),
];
