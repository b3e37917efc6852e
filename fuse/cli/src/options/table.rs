//! The table of option names, and the parser that runs it.

use super::{
    AttributeTimes, IO_UNIT, LocalLock, LookupCache, MAX_IO, OptionError, Options, Permissions,
    Recovery, Transport,
};
use crate::size::parse_size;
use std::collections::HashMap;
use std::time::Duration;

type Outcome = Result<(), OptionError>;

/// What an option does with its value.
#[derive(Debug)]
enum Action {
    /// Stands alone.
    Flag(fn(&mut Draft, &str) -> Outcome),
    /// `name=value`; the text describes the values.
    Value(&'static str, fn(&mut Draft, &'static str, &str) -> Outcome),
    /// `name` or `name=value`; the text describes the values.
    Either(fn(&mut Draft, &'static str, Option<&str>) -> Outcome),
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

impl Entry {
    /// In a word, whether it takes a value, is without effect here, or is refused.
    pub fn kind(&self) -> &'static str {
        match self.action {
            Action::Flag(_) => "flag",
            Action::Value(..) => "value",
            Action::Either(_) => "either",
            Action::Accept => "accept",
            Action::Refuse(_) => "refuse",
        }
    }
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
    /// `addr=` and `mountaddr=`, as /proc/mounts shows them.
    addr: Option<String>,
    mountaddr: Option<String>,
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
        let seconds = self.number(name, text, 0..=u32::MAX.into(), SECONDS)?;
        let seconds = seconds.min(MAX_SECONDS);
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

    /// `None` for 0, by which nfs(5) has client and server negotiate.
    fn io_size(&mut self, name: &'static str, text: &str) -> Result<Option<u32>, OptionError> {
        let size = self.size(name, text, 0..=u64::MAX, SIZE)?;
        let size = (size > 0).then(|| (size.min(MAX_IO.into()) as u32 / IO_UNIT).max(1) * IO_UNIT);
        self.claim(name, size.unwrap_or(0))?;
        Ok(size)
    }

    /// The option that set `name`, as given.
    fn given(&self, name: &str) -> Option<&String> {
        self.claims.get(name).map(|(_, given)| given)
    }

    /// Orders a pair of attribute times: a default gives way to what was given.
    fn order_times(&self) -> Result<[[u64; 2]; 2], OptionError> {
        let mut pairs = [self.reg, self.dir];
        let names = [("acregmin", "acregmax"), ("acdirmin", "acdirmax")];
        for ([least, most], (min, max)) in pairs.iter_mut().zip(names) {
            if *least <= *most {
                continue;
            }
            match (self.given(min), self.given(max)) {
                (Some(first), Some(second)) => {
                    return Err(OptionError::Contradiction {
                        first: first.clone(),
                        second: second.clone(),
                    });
                }
                (Some(_), None) => *most = *least,
                _ => *least = *most,
            }
        }
        Ok(pairs)
    }

    /// Data waiting to be written are in the cache: a default size of it grows with them.
    fn fit_cache(&mut self) -> Outcome {
        let Some(dirty) = self.options.dirty else {
            return Ok(());
        };
        if dirty <= self.options.cache {
            return Ok(());
        }
        match (self.given("dirty"), self.given("cache")) {
            (Some(part), Some(whole)) => Err(OptionError::Exceeds {
                part: part.clone(),
                whole: whole.clone(),
                name: "cache",
            }),
            _ => {
                self.options.cache = (2 * dirty).min(MAX_CACHE);
                Ok(())
            }
        }
    }

    /// /proc/mounts shows the address of mountd's host. It says something only where that is
    /// another host than the server, and was not named.
    fn use_mountaddr(&mut self) {
        if let Some(address) = self.mountaddr.take()
            && self.options.mount_host.is_none()
            && self.addr.as_ref() != Some(&address)
        {
            self.options.mount_host = Some(address);
        }
    }

    fn finish(mut self) -> Result<Options, OptionError> {
        [self.reg, self.dir] = self.order_times()?;
        self.fit_cache()?;
        self.use_mountaddr();
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
        if self.options.transport == Transport::Verbs
            && let Some((_, given)) = ["crc", "fpdu"]
                .iter()
                .find_map(|name| self.claims.get(name))
        {
            return Err(OptionError::CannotHonour {
                given: given.clone(),
                reason: "it belongs to soft-iWARP, and transport=verbs was asked for; leave one out",
            });
        }
        Ok(self.options)
    }
}

pub(super) const MAX_SECONDS: u64 = 10 * 365 * 86400;
/// Largest cache, in bytes.
const MAX_CACHE: u64 = 1 << 40;
const SECONDS: &str = "a number of seconds";
const SIZE: &str = "a number of bytes (K, M and G are understood)";
const PORT: &str = "a port from 1 to 65535, or 0 for the default";
const METRICS: &str = "PORT, ADDRESS:PORT, [IPV6]:PORT or unix:/PATH";
const TCP_ONLY: &str = "this program speaks NFS over RDMA only; use mount -t nfs for TCP and UDP";
const V3_ONLY: &str = "this program speaks NFS version 3 only; use mount -t nfs for version 4";
const V4_OPTION: &str =
    "it belongs to NFS version 4, and this program speaks version 3; leave it out";
const CALLBACK_PORT: &str = "a port, or none";
const LOCAL_LOCK: &str = "none, flock, posix or all";
const NO_TLS: &str =
    "there is no TLS over RDMA; use mount -t nfs, or encrypt the network below (IPsec)";
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

macro_rules! either {
    ($name:literal, $body:expr) => {
        Entry {
            name: $name,
            action: Action::Either($body),
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

// Behind the macros, which they use.
mod generic;
mod own;
mod transport;

fn recovery(d: &mut Draft, how: Recovery) -> Outcome {
    d.claim("recovery", format!("{how:?}"))?;
    d.options.recovery = how;
    Ok(())
}

/// Every name that is understood.
pub fn entries() -> impl Iterator<Item = &'static Entry> {
    [transport::TABLE, TABLE, generic::TABLE, own::TABLE]
        .into_iter()
        .flatten()
}

/// Recovery, caches, security and locks.
static TABLE: &[Entry] = &[
    // Recovery.
    flag!("hard", |d, _| recovery(d, Recovery::Hard)),
    flag!("soft", |d, _| recovery(d, Recovery::Soft)),
    flag!("softerr", |d, _| recovery(d, Recovery::Softerr)),
    flag!("intr", |d, _| {
        d.options.intr = true;
        d.claim("intr", true)
    }),
    flag!("nointr", |d, _| d.claim("intr", false)),
    value!("timeo", "tenths of a second, at least 1", |d, n, v| {
        let tenths = d.number(n, v, 1..=u32::MAX.into(), "tenths of a second, at least 1")?;
        // nfs(5): what is above its limit is set to that.
        let tenths = tenths.min(36000);
        d.options.timeo = Duration::from_millis(tenths * 100);
        d.claim(n, tenths)
    }),
    value!("retrans", "a number of tries", |d, n, v| {
        let count = d
            .number(n, v, 0..=u32::MAX.into(), "a number of tries")?
            .min(1000);
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
    either!("rdirplus", |d, n, v| {
        d.options.readdirplus = match v {
            None | Some("force") => true,
            Some("none") => false,
            Some(_) => return d.bad(n, "none or force, or stands alone"),
        };
        d.claim("rdirplus", d.options.readdirplus)
    }),
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
        "there is no FS-Cache here; leave it out, the page cache is set by cache=SIZE"
    ),
    accept!("nofsc"),
    accept!("nosharecache"),
    refuse!(
        "sharecache",
        "each mount has a cache of its own; leave it out, or mount once and bind-mount that"
    ),
    accept!("nosoftreval"),
    // softerr has it in /proc/mounts: what is past its time is asked again, and that may fail.
    accept!("softreval"),
    value!("write", "lazy, eager or wait", |d, n, v| {
        match v {
            // Written behind, and begun when a few pages are there.
            "lazy" | "eager" => {}
            "wait" => d.options.vfs.sync = true,
            _ => return d.bad(n, "lazy, eager or wait"),
        }
        d.claim(n, v)
    }),
    accept!("alignwrite"),
    accept!("noalignwrite"),
    flag!("acl", |d, _| d.claim("acl", true)),
    flag!("noacl", |d, _| {
        d.options.acl = false;
        d.claim("acl", false)
    }),
    // Security.
    // nfs(5): a list, of which the first that the server has is used.
    value!("sec", "sys", |d, n, v| {
        const OTHERS: [&str; 14] = [
            "none", "null", "krb5", "krb5i", "krb5p", "lkey", "lkeyi", "lkeyp", "spkm", "spkmi",
            "spkmp", "spkm3", "spkm3i", "spkm3p",
        ];
        let flavors = || v.split(':');
        if !flavors().all(|flavor| flavor == "sys" || OTHERS.contains(&flavor)) {
            return d.bad(n, "sys");
        }
        if !flavors().any(|flavor| flavor == "sys") {
            return d.cannot(NO_GSS);
        }
        d.claim(n, "sys")
    }),
    refuse!("cert_serial", NO_TLS),
    refuse!("privkey_serial", NO_TLS),
    value!("xprtsec", "none", |d, n, v| match v {
        "none" => Ok(()),
        "tls" | "mtls" => d.cannot(NO_TLS),
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
        d.options.lock_port = transport::set_port(d, n, v)?;
        Ok(())
    }),
    value!("callbackport", CALLBACK_PORT, |d, n, v| {
        if v == "none" {
            d.options.callback_port = Some(0);
            return d.claim(n, v);
        }
        let port = d.number(n, v, 1..=65535, CALLBACK_PORT)? as u16;
        d.options.callback_port = Some(port);
        d.claim(n, port)
    }),
    flag!("resvport", |d, _| d.claim("resvport", true)),
    flag!("noresvport", |d, _| {
        d.options.reserved_port = false;
        d.claim("resvport", false)
    }),
];

/// Cuts at commas outside double quotes, and drops the quotes.
pub fn split(text: &str) -> Vec<String> {
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
    let lower = name.to_ascii_lowercase();
    entries()
        .filter(|entry| !matches!(entry.action, Action::Refuse(_)))
        .map(|entry| (strsim::damerau_levenshtein(&lower, entry.name), entry.name))
        .min()
        .filter(|&(distance, known)| distance <= 1 + known.len().min(name.len()) / 5)
        .map(|(_, known)| known)
}

/// What FUSE shows of its own in /proc/mounts, which mount(8) repeats with `remount`.
const OF_FUSE: [&str; 4] = ["user_id=", "group_id=", "max_read=", "blksize="];

pub(super) fn parse(text: &str, url_port: Option<u16>) -> Result<Options, OptionError> {
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
        addr: None,
        mountaddr: None,
    };
    if let Some(port) = url_port {
        draft.given = format!("port {port} of the URL");
        draft.claim("port", port)?;
        draft.options.port = port;
    }
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
    if word.trim() != word {
        return Err(OptionError::Blank(word.into()));
    }
    let Some(entry) = entries().find(|entry| entry.name == name) else {
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
        (Action::Either(set), value) => set(draft, entry.name, value),
        (Action::Value(wanted, _), None) => Err(OptionError::NeedsValue {
            name: name.into(),
            wanted,
        }),
        (Action::Accept, _) => Ok(()),
        (Action::Refuse(reason), _) => draft.cannot(reason),
    }
}
