//! The table of option names, and the parser that runs it.

use super::{
    AccessTime, AttributeTimes, Family, IO_UNIT, LocalLock, LookupCache, MAX_IO, MetricsAt,
    MountProto, OptionError, Options, Permissions, Recovery, Transport, WriteChunk,
};
use crate::size::parse_size;
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

type Outcome = Result<(), OptionError>;

/// What an option does with its value.
#[derive(Debug)]
enum Action {
    /// Stands alone.
    Flag(fn(&mut Draft, &str) -> Outcome),
    /// `name=value`; the text describes the values.
    Value(&'static str, fn(&mut Draft, &'static str, &str) -> Outcome),
    /// Either way; accepted and without effect here.
    Accept,
    /// Known to nfs(5), impossible here.
    Refuse(&'static str),
}

/// One name of the table.
#[derive(Debug)]
pub struct Entry {
    /// As nfs(5) or this program spells it.
    pub name: &'static str,
    action: Action,
}

/// Settings being collected, and who set each.
pub(super) struct Draft {
    options: Options,
    /// Setting -> (value in one spelling, the option as given).
    claims: HashMap<&'static str, (String, String)>,
    /// The option being parsed, as given.
    given: String,
    reg: [u64; 2],
    dir: [u64; 2],
    noac: bool,
    /// `dev` was given.
    dev: bool,
}

impl Draft {
    /// Notes that `setting` is to be `value`; refuses if an earlier option said otherwise.
    fn claim(&mut self, setting: &'static str, value: impl ToString) -> Outcome {
        let value = value.to_string();
        match self.claims.get(setting) {
            Some((other, first)) if *other != value => Err(OptionError::Contradiction {
                first: first.clone(),
                second: self.given.clone(),
            }),
            Some(_) => Ok(()),
            None => {
                self.claims.insert(setting, (value, self.given.clone()));
                Ok(())
            }
        }
    }

    fn bad<T>(&self, name: &'static str, wanted: &'static str) -> Result<T, OptionError> {
        Err(OptionError::BadValue {
            given: self.given.clone(),
            name,
            wanted,
        })
    }

    fn cannot(&self, reason: &'static str) -> Outcome {
        Err(OptionError::CannotHonour {
            given: self.given.clone(),
            reason,
        })
    }

    fn number(
        &self,
        name: &'static str,
        text: &str,
        range: std::ops::RangeInclusive<u64>,
        wanted: &'static str,
    ) -> Result<u64, OptionError> {
        match text.parse().ok().filter(|number| range.contains(number)) {
            Some(number) => Ok(number),
            None => self.bad(name, wanted),
        }
    }

    fn size(
        &self,
        name: &'static str,
        text: &str,
        range: std::ops::RangeInclusive<u64>,
        wanted: &'static str,
    ) -> Result<u64, OptionError> {
        match parse_size(text).filter(|size| range.contains(size)) {
            Some(size) => Ok(size),
            None => self.bad(name, wanted),
        }
    }

    /// Sets one of the four attribute times, or all of them.
    fn actime(&mut self, name: &'static str, text: &str) -> Outcome {
        let seconds = self.number(name, text, 0..=MAX_SECONDS, SECONDS)?;
        for setting in ["acregmin", "acregmax", "acdirmin", "acdirmax"] {
            if name == "actimeo" || name == setting {
                self.claim(setting, seconds)?;
                *match setting {
                    "acregmin" => &mut self.reg[0],
                    "acregmax" => &mut self.reg[1],
                    "acdirmin" => &mut self.dir[0],
                    _ => &mut self.dir[1],
                } = seconds;
            }
        }
        Ok(())
    }

    fn io_size(&mut self, name: &'static str, text: &str) -> Result<u32, OptionError> {
        let size = self.size(name, text, 1..=u64::MAX, SIZE)?;
        let size = (size.min(MAX_IO.into()) as u32 / IO_UNIT).max(1) * IO_UNIT;
        self.claim(name, size)?;
        Ok(size)
    }

    fn finish(mut self) -> Result<Options, OptionError> {
        for (pair, min, max) in [
            (self.reg, "acregmin", "acregmax"),
            (self.dir, "acdirmin", "acdirmax"),
        ] {
            if pair[0] > pair[1] {
                let word = |name, value| match self.claims.get(name) {
                    Some((_, given)) => given.clone(),
                    None => format!("{name}={value} (the default)"),
                };
                return Err(OptionError::Contradiction {
                    first: word(min, pair[0]),
                    second: word(max, pair[1]),
                });
            }
        }
        if self.noac {
            if let Some((_, given)) = ["acregmin", "acregmax", "acdirmin", "acdirmax"]
                .iter()
                .filter_map(|name| self.claims.get(name))
                .find(|(value, _)| value != "0")
            {
                return Err(OptionError::Contradiction {
                    first: "noac".into(),
                    second: given.clone(),
                });
            }
            // nfs(5): noac is actimeo=0 and sync.
            self.options.attributes = None;
            self.options.vfs.sync = true;
        } else {
            let [reg_min, reg_max] = self.reg.map(Duration::from_secs);
            let [dir_min, dir_max] = self.dir.map(Duration::from_secs);
            self.options.attributes = Some(AttributeTimes {
                reg_min,
                reg_max,
                dir_min,
                dir_max,
            });
        }
        let contradicts = match (self.options.lock, self.options.local_lock) {
            (Some(lock), Some(local)) => lock == (local == LocalLock::All),
            _ => false,
        };
        if contradicts {
            let word = |name| {
                self.claims
                    .get(name)
                    .map_or_else(String::new, |c| c.1.clone())
            };
            return Err(OptionError::Contradiction {
                first: word("lock"),
                second: word("local_lock"),
            });
        }
        if self.options.permissions == Some(Permissions::Server) && !self.dev {
            // The kernel opens devices by itself: nobody would check who may.
            self.options.vfs.dev = false;
        }
        if self
            .options
            .dirty
            .is_some_and(|dirty| dirty > self.options.cache)
        {
            return Err(OptionError::Contradiction {
                first: self
                    .claims
                    .get("dirty")
                    .map_or_else(String::new, |c| c.1.clone()),
                second: match self.claims.get("cache") {
                    Some((_, given)) => given.clone(),
                    None => "cache=256M (the default)".into(),
                },
            });
        }
        if self.options.transport == Transport::Verbs
            && let Some((_, given)) = ["crc", "fpdu"]
                .iter()
                .find_map(|name| self.claims.get(name))
        {
            return Err(OptionError::CannotHonour {
                given: given.clone(),
                reason: "it belongs to soft-iWARP, and transport=verbs was asked for",
            });
        }
        Ok(self.options)
    }
}

const MAX_SECONDS: u64 = 10 * 365 * 86400;
const SECONDS: &str = "a number of seconds";
const SIZE: &str = "a number of bytes (K, M and G are understood)";
const PORT: &str = "a port from 1 to 65535";
const METRICS: &str = "PORT, ADDRESS:PORT, [IPV6]:PORT or unix:/PATH";
const TCP_ONLY: &str = "this program speaks NFS over RDMA only; use mount -t nfs for TCP and UDP";
const V3_ONLY: &str = "this program speaks NFS version 3 only; use mount -t nfs for version 4";
const V4_OPTION: &str = "it belongs to NFS version 4, and this program speaks version 3";
const LOCAL_LOCK: &str = "none, flock, posix or all";
const NO_GSS: &str = "only AUTH_SYS is available; use sec=sys";

macro_rules! flag {
    ($name:literal, $body:expr) => {
        Entry {
            name: $name,
            action: Action::Flag($body),
        }
    };
}

macro_rules! value {
    ($name:literal, $wanted:expr, $body:expr) => {
        Entry {
            name: $name,
            action: Action::Value($wanted, $body),
        }
    };
}

macro_rules! accept {
    ($name:literal) => {
        Entry {
            name: $name,
            action: Action::Accept,
        }
    };
}

macro_rules! refuse {
    ($name:literal, $reason:expr) => {
        Entry {
            name: $name,
            action: Action::Refuse($reason),
        }
    };
}

fn set_port(d: &mut Draft, name: &'static str, text: &str) -> Result<u16, OptionError> {
    let port = d.number(name, text, 1..=65535, PORT)? as u16;
    d.claim(name, port)?;
    Ok(port)
}

fn version(d: &mut Draft, name: &'static str, text: &str) -> Outcome {
    match text {
        "3" => d.claim("vers", 3),
        "2" => d.cannot("NFS version 2 is obsolete, and this program speaks version 3 only"),
        "4" | "4.0" | "4.1" | "4.2" => d.cannot(V3_ONLY),
        _ => d.bad(name, "3"),
    }
}

fn recovery(d: &mut Draft, how: Recovery) -> Outcome {
    d.claim("recovery", format!("{how:?}"))?;
    d.options.recovery = how;
    Ok(())
}

/// Every name that is understood, by kind.
pub static TABLE: &[Entry] = &[
    // Sizes and addresses.
    value!("rsize", SIZE, |d, n, v| {
        d.options.rsize = Some(d.io_size(n, v)?);
        Ok(())
    }),
    value!("wsize", SIZE, |d, n, v| {
        d.options.wsize = Some(d.io_size(n, v)?);
        Ok(())
    }),
    value!("port", PORT, |d, n, v| {
        d.options.port = set_port(d, n, v)?;
        Ok(())
    }),
    value!("proto", "rdma or rdma6", |d, n, v| {
        let family = match v {
            "rdma" => Family::Any,
            "rdma6" => Family::V6,
            "tcp" | "tcp6" | "udp" | "udp6" => return d.cannot(TCP_ONLY),
            _ => return d.bad(n, "rdma or rdma6"),
        };
        d.claim("proto", v)?;
        d.options.family = family;
        Ok(())
    }),
    flag!("rdma", |_, _| Ok(())),
    refuse!("tcp", TCP_ONLY),
    refuse!("udp", TCP_ONLY),
    value!("vers", "3", version),
    value!("nfsvers", "3", version),
    flag!("v3", |d, _| d.claim("vers", 3)),
    refuse!("v2", V3_ONLY),
    refuse!("v4", V3_ONLY),
    refuse!("v4.0", V3_ONLY),
    refuse!("v4.1", V3_ONLY),
    refuse!("v4.2", V3_ONLY),
    refuse!("minorversion", V4_OPTION),
    refuse!("clientaddr", V4_OPTION),
    refuse!("migration", V4_OPTION),
    refuse!("nomigration", V4_OPTION),
    refuse!("max_connect", V4_OPTION),
    refuse!("trunkdiscovery", V4_OPTION),
    // The MOUNT service.
    value!("mounthost", "a host", |d, n, v| {
        let plain = |c: char| c.is_ascii_alphanumeric() || ".-_:%".contains(c);
        if v.is_empty() || !v.chars().all(plain) {
            return d.bad(n, "a host");
        }
        d.claim(n, v)?;
        d.options.mount_host = Some(v.into());
        Ok(())
    }),
    value!("mountport", PORT, |d, n, v| {
        d.options.mount_port = Some(set_port(d, n, v)?);
        Ok(())
    }),
    value!("mountproto", "tcp, tcp6, udp, udp6 or rdma", |d, n, v| {
        let (proto, family) = match v {
            "tcp" => (MountProto::Tcp, Family::Any),
            "tcp6" => (MountProto::Tcp, Family::V6),
            "udp" => (MountProto::Udp, Family::Any),
            "udp6" => (MountProto::Udp, Family::V6),
            "rdma" => (MountProto::Rdma, Family::Any),
            "rdma6" => (MountProto::Rdma, Family::V6),
            _ => return d.bad(n, "tcp, tcp6, udp, udp6 or rdma"),
        };
        d.claim(n, v)?;
        d.options.mount_proto = Some(proto);
        d.options.mount_family = family;
        Ok(())
    }),
    value!("mountvers", "3", |d, n, v| match v {
        "3" => Ok(()),
        "1" | "2" => d.cannot("NFS version 3 needs MOUNT version 3"),
        _ => d.bad(n, "3"),
    }),
    // Recovery.
    flag!("hard", |d, _| recovery(d, Recovery::Hard)),
    flag!("soft", |d, _| recovery(d, Recovery::Soft)),
    flag!("softerr", |d, _| recovery(d, Recovery::Softerr)),
    flag!("intr", |d, _| {
        d.options.intr = true;
        d.claim("intr", true)
    }),
    flag!("nointr", |d, _| d.claim("intr", false)),
    value!("timeo", "tenths of a second, 1 to 36000", |d, n, v| {
        let tenths = d.number(n, v, 1..=36000, "tenths of a second, 1 to 36000")?;
        d.options.timeo = Duration::from_millis(tenths * 100);
        d.claim(n, tenths)
    }),
    value!("retrans", "a number from 0 to 1000", |d, n, v| {
        let count = d.number(n, v, 0..=1000, "a number from 0 to 1000")?;
        d.options.retrans = count as u32;
        d.claim(n, count)
    }),
    value!("retry", "a number of minutes", |d, n, v| {
        let minutes = d.number(n, v, 0..=MAX_SECONDS / 60, "a number of minutes")?;
        d.options.retry = Some(Duration::from_secs(minutes * 60));
        d.claim(n, minutes)
    }),
    flag!("bg", |d, _| {
        d.options.background = true;
        d.claim("bg", true)
    }),
    flag!("fg", |d, _| d.claim("bg", false)),
    // Caches.
    flag!("ac", |d, _| d.claim("ac", true)),
    flag!("noac", |d, _| {
        d.noac = true;
        d.claim("ac", false)
    }),
    value!("acregmin", SECONDS, Draft::actime),
    value!("acregmax", SECONDS, Draft::actime),
    value!("acdirmin", SECONDS, Draft::actime),
    value!("acdirmax", SECONDS, Draft::actime),
    value!("actimeo", SECONDS, Draft::actime),
    flag!("cto", |d, _| d.claim("cto", true)),
    flag!("nocto", |d, _| {
        d.options.close_to_open = false;
        d.claim("cto", false)
    }),
    value!("lookupcache", "all, positive or none", |d, n, v| {
        d.options.lookup_cache = match v {
            "all" => LookupCache::All,
            "pos" | "positive" => LookupCache::Positive,
            "none" => LookupCache::None,
            _ => return d.bad(n, "all, positive or none"),
        };
        d.claim(n, &v[..3])
    }),
    flag!("rdirplus", |d, _| d.claim("rdirplus", true)),
    flag!("nordirplus", |d, _| {
        d.options.readdirplus = false;
        d.claim("rdirplus", false)
    }),
    value!("nconnect", "a number from 1 to 16", |d, n, v| {
        let count = d.number(n, v, 1..=16, "a number from 1 to 16")?;
        d.options.nconnect = Some(count as u32);
        d.claim(n, count)
    }),
    refuse!(
        "fsc",
        "there is no FS-Cache here; the page cache is set by cache=SIZE"
    ),
    accept!("nofsc"),
    accept!("nosharecache"),
    refuse!("sharecache", "each mount has a cache of its own"),
    flag!("acl", |d, _| d.claim("acl", true)),
    flag!("noacl", |d, _| {
        d.options.acl = false;
        d.claim("acl", false)
    }),
    // Security.
    value!("sec", "sys", |d, n, v| match v {
        "sys" => d.claim(n, v),
        "none" | "krb5" | "krb5i" | "krb5p" | "lkey" | "lkeyi" | "lkeyp" | "spkm" | "spkmi"
        | "spkmp" => d.cannot(NO_GSS),
        _ => d.bad(n, "sys"),
    }),
    value!("xprtsec", "none", |d, n, v| match v {
        "none" => Ok(()),
        "tls" | "mtls" => d.cannot("there is no TLS over RDMA"),
        _ => d.bad(n, "none"),
    }),
    // Locks.
    flag!("lock", |d, _| {
        d.options.lock = Some(true);
        d.claim("lock", true)
    }),
    flag!("nolock", |d, _| {
        d.options.lock = Some(false);
        d.claim("lock", false)
    }),
    value!("local_lock", LOCAL_LOCK, |d, n, v| {
        d.options.local_lock = Some(match v {
            "none" => LocalLock::None,
            "flock" => LocalLock::Flock,
            "posix" => LocalLock::Posix,
            "all" => LocalLock::All,
            _ => return d.bad(n, LOCAL_LOCK),
        });
        d.claim(n, v)
    }),
    value!("lockport", PORT, |d, n, v| {
        d.options.lock_port = Some(set_port(d, n, v)?);
        Ok(())
    }),
    flag!("resvport", |d, _| d.claim("resvport", true)),
    flag!("noresvport", |d, _| {
        d.options.reserved_port = false;
        d.claim("resvport", false)
    }),
    // What mount(8) and the VFS understand; as there, the last word counts.
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
    // FUSE's name for it, which /proc/mounts shows.
    flag!("default_permissions", |d, _| {
        d.options.permissions = Some(Permissions::Kernel);
        d.claim("permissions", "kernel")
    }),
    // This program's own.
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
        d.options.write_chunk = match v {
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
            // RFC 8797 section 4.2: sizes are told in units of 1024 bytes.
            if size % 1024 != 0 {
                return d.bad(n, WANTED);
            }
            d.options.inline = size as u32;
            d.claim(n, size)
        }
    ),
    value!("credits", "a number from 1 to 1024", |d, n, v| {
        let count = d.number(n, v, 1..=1024, "a number from 1 to 1024")?;
        d.options.credits = count as u32;
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
        d.options.readahead = d.size(n, v, 0..=1 << 30, "0 to 1G")?;
        d.claim(n, d.options.readahead)
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
            // unix(7): a path has 107 bytes. As part of options it has neither commas nor quotes.
            Some(path)
                if path.starts_with('/') && path.len() <= 107 && !path.contains([',', '"']) =>
            {
                MetricsAt::Unix(path.into())
            }
            Some(_) => return d.bad(n, METRICS),
            None => {
                // A port alone is of the loopback: nothing is shown to others unasked.
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

/// mount(8): user and users imply noexec, nosuid, nodev, unless a later option says otherwise.
fn user(d: &mut Draft, _: &str) -> Outcome {
    d.options.vfs.exec = false;
    owner(d, "")
}

/// mount(8): owner and group imply nosuid, nodev.
fn owner(d: &mut Draft, _: &str) -> Outcome {
    d.options.vfs.suid = false;
    d.options.vfs.dev = false;
    Ok(())
}

/// Cuts at commas outside double quotes, and drops the quotes.
fn split(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for c in text.chars() {
        match c {
            '"' => quoted = !quoted,
            ',' if !quoted => words.push(String::new()),
            _ => words.last_mut().expect("one word from the start").push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The known name most like `name`, if one is near enough to be meant.
fn nearest(name: &str) -> Option<&'static str> {
    TABLE
        .iter()
        .filter(|entry| !matches!(entry.action, Action::Refuse(_)))
        .map(|entry| (strsim::damerau_levenshtein(name, entry.name), entry.name))
        .min()
        .filter(|&(distance, known)| distance <= 1 + known.len().min(name.len()) / 4)
        .map(|(_, known)| known)
}

/// What FUSE shows of its own in /proc/mounts, which mount(8) repeats with `remount`.
const OF_FUSE: [&str; 4] = ["user_id=", "group_id=", "max_read=", "blksize="];

pub(super) fn parse(text: &str) -> Result<Options, OptionError> {
    let options = Options::default();
    let times = options.attributes.expect("the default caches attributes");
    let mut draft = Draft {
        options,
        claims: HashMap::new(),
        given: String::new(),
        reg: [times.reg_min.as_secs(), times.reg_max.as_secs()],
        dir: [times.dir_min.as_secs(), times.dir_max.as_secs()],
        noac: false,
        dev: false,
    };
    let mut words = split(text);
    if words.iter().any(|word| word == "remount") {
        words.retain(|word| !OF_FUSE.iter().any(|name| word.starts_with(name)));
    }
    draft.options.sloppy = words.iter().any(|word| word == "sloppy");
    for word in words {
        draft.given.clone_from(&word);
        if let Err(error) = one(&mut draft, &word) {
            // nfs(5): sloppy passes over what is not known, not over wrong values.
            match error {
                OptionError::Unknown { .. } | OptionError::CannotHonour { .. }
                    if draft.options.sloppy =>
                {
                    draft.options.ignored.push(word);
                }
                error => return Err(error),
            }
        }
    }
    draft.finish()
}

fn one(draft: &mut Draft, word: &str) -> Outcome {
    let (name, value) = match word.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (word, None),
    };
    // fstab(5): comments of other programs.
    if name.starts_with("x-") || name.starts_with("X-") {
        return Ok(());
    }
    let Some(entry) = TABLE.iter().find(|entry| entry.name == name) else {
        return Err(OptionError::Unknown {
            name: name.into(),
            nearest: nearest(name),
        });
    };
    match (&entry.action, value) {
        (Action::Flag(set), None) => set(draft, entry.name),
        (Action::Flag(set), Some(_)) if matches!(name, "user") => set(draft, entry.name),
        (Action::Flag(_), Some(_)) => Err(OptionError::TakesNone(name.into())),
        (Action::Value(_, set), Some(value)) => set(draft, entry.name, value),
        (Action::Value(wanted, _), None) => Err(OptionError::NeedsValue {
            name: name.into(),
            wanted,
        }),
        (Action::Accept, _) => Ok(()),
        (Action::Refuse(reason), _) => draft.cannot(reason),
    }
}
