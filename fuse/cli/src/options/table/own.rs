//! Options of FUSE, and options that only this program has.

use super::super::entry::{Entry, flag, value};
use super::super::{MetricsAt, Permissions, Transport, WriteChunk};
use std::net::{Ipv4Addr, SocketAddr};

const METRICS: &str = "PORT, ADDRESS:PORT, [IPV6]:PORT or unix:/PATH";

pub(super) static TABLE: &[Entry] = &[
    // FUSE.
    flag!("allow_other", |d, _| {
        d.options.allow_other = Some(true);
        d.claim("allow_other", true)
    }),
    flag!("noallow_other", |d, _| {
        d.options.allow_other = Some(false);
        d.claim("allow_other", false)
    }),
    value!("permissions", "kernel or server", |d, n, v| {
        d.options.permissions = Some(match v {
            "kernel" => Permissions::Kernel,
            "server" => Permissions::Server,
            _ => return d.bad(n, "kernel or server"),
        });
        d.claim(n, v)
    }),
    // The name in FUSE and in /proc/mounts of permissions=kernel.
    flag!("default_permissions", |d, _| {
        d.options.permissions = Some(Permissions::Kernel);
        d.claim("permissions", "kernel")
    }),
    // Options that only this program has.
    value!("transport", "auto, iwarp or verbs", |d, n, v| {
        d.options.transport = match v {
            "auto" => Transport::Auto,
            "iwarp" => Transport::Iwarp,
            "verbs" => Transport::Verbs,
            _ => return d.bad(n, "auto, iwarp or verbs"),
        };
        d.claim(n, v)
    }),
    value!("write_chunk", "pz or reduced", |d, n, v| {
        d.options.client.transport.write_chunk = match v {
            "pz" => WriteChunk::PositionZero,
            "reduced" => WriteChunk::Reduced,
            _ => return d.bad(n, "pz or reduced"),
        };
        d.claim(n, v)
    }),
    value!(
        "inline",
        "1024 to 262144 bytes, in steps of 1024",
        |d, n, v| {
            const WANTED: &str = "1024 to 262144 bytes, in steps of 1024";
            let size = d.size(n, v, 1024..=262_144, WANTED)?;
            // Sizes are announced in units of 1024 bytes (RFC 8797 section 4.2).
            if size % 1024 != 0 {
                return d.bad(n, WANTED);
            }
            d.options.client.transport.inline = size as u32;
            d.claim(n, size)
        }
    ),
    value!("credits", "a number from 1 to 1024", |d, n, v| {
        let count = d.number(n, v, 1..=1024, "a number from 1 to 1024")?;
        d.options.client.transport.credits = count as u32;
        d.claim(n, count)
    }),
    flag!("crc", |d, _| d.claim("crc", true)),
    flag!("nocrc", |d, _| {
        d.options.crc = false;
        d.claim("crc", false)
    }),
    value!("fpdu", "128 to 65535 bytes", |d, n, v| {
        let size = d.size(n, v, 128..=65535, "128 to 65535 bytes")?;
        d.options.fpdu = Some(size as u32);
        d.claim(n, size)
    }),
    value!("cache", "16M to 1T", |d, n, v| {
        d.options.cache = d.size(n, v, 16 << 20..=1 << 40, "16M to 1T")?;
        d.claim(n, d.options.cache)
    }),
    value!("dirty", "1M to the size of the cache", |d, n, v| {
        let size = d.size(n, v, 1 << 20..=1 << 40, "1M to the size of the cache")?;
        d.options.dirty = Some(size);
        d.claim(n, size)
    }),
    value!("readahead", "0 to 1G", |d, n, v| {
        let size = d.size(n, v, 0..=1 << 30, "0 to 1G")?;
        d.options.fs.readahead_bytes = size as usize;
        d.claim(n, size)
    }),
    value!("threads", "a number from 1 to 64", |d, n, v| {
        let count = d.number(n, v, 1..=64, "a number from 1 to 64")?;
        d.options.threads = Some(count as usize);
        d.claim(n, count)
    }),
    value!("workers", "a number from 0 to 16", |d, n, v| {
        let count = d.number(n, v, 0..=16, "a number from 0 to 16")?;
        d.options.workers = Some(count as usize);
        d.claim(n, count)
    }),
    value!("metrics", METRICS, |d, n, v| {
        let at = match v.strip_prefix("unix:") {
            // A path has at most 107 bytes (unix(7)), and as an option no commas or quotes.
            Some(path)
                if path.starts_with('/') && path.len() <= 107 && !path.contains([',', '"']) =>
            {
                MetricsAt::Unix(path.into())
            }
            Some(_) => return d.bad(n, METRICS),
            None => {
                // Without an address use the loopback, so that nothing is exposed by accident.
                let of_port = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
                let given = v.parse().map(of_port).or_else(|_| v.parse::<SocketAddr>());
                match given.ok().filter(|address| address.port() != 0) {
                    Some(address) => MetricsAt::Tcp(address),
                    None => return d.bad(n, METRICS),
                }
            }
        };
        d.claim(n, &at)?;
        d.options.metrics = Some(at);
        Ok(())
    }),
];
