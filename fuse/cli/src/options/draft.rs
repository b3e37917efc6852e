//! The state while options are parsed: the settings, which option set each, and the checks.
//!
//! Options have no order, so two that contradict each other are an error, which names both; but with `remount`
//! the last one counts, since those in force stand before. What
//! depends on several options is decided when all have been read ([`Draft::finish`]).

use super::{IO_UNIT, LocalLock, MAX_IO, OptionError, Options, Permissions, Transport, addresses};
use crate::options::size::parse_size;
use nfsrdma_fs::fs::AttributeTimes;
use nfsrdma_nfs3::options::Remotes;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

pub(super) type Outcome = Result<(), OptionError>;

pub(super) const MAX_SECONDS: u64 = 10 * 365 * 86400;
/// The names of the attribute times.
const TIMES: [&str; 4] = ["acregmin", "acregmax", "acdirmin", "acdirmax"];
/// Largest cache, in bytes.
const MAX_CACHE: u64 = 1 << 40;
pub(super) const SECONDS: &str = "a number of seconds";
pub(super) const SIZE: &str = "a number of bytes (K, M and G are understood)";
pub(super) const PORT: &str = "a port from 1 to 65535, or 0 for the default";

/// The settings so far, and the option that set each.
pub(super) struct Draft {
    pub(super) options: Options,
    /// Maps a setting to its value in one spelling, and to the option as given.
    claims: HashMap<&'static str, (String, String)>,
    /// Whether an option may follow another one that it contradicts: the last one counts.
    pub(super) last_counts: bool,
    /// The option being parsed, as given.
    pub(super) given: String,
    /// Its name, and the values that it takes.
    pub(super) name: &'static str,
    pub(super) takes: String,
    /// Whether `write=wait` was given.
    pub(super) wait: bool,
    /// Whether `dev` was given.
    pub(super) dev: bool,
    /// The values of `addr=` and `mountaddr=`, which /proc/mounts shows.
    pub(super) addr: Option<String>,
    pub(super) mountaddr: Option<String>,
}

impl Draft {
    /// Begins with the defaults.
    pub(super) fn new() -> Draft {
        Draft {
            options: Options::default(),
            claims: HashMap::new(),
            last_counts: false,
            given: String::new(),
            name: "",
            takes: String::new(),
            wait: false,
            dev: false,
            addr: None,
            mountaddr: None,
        }
    }

    /// Sets `setting` to `value`, which is an error if an earlier option has set another value.
    pub(super) fn claim(&mut self, setting: &'static str, value: impl ToString) -> Outcome {
        let value = value.to_string();
        match self.claims.get(setting) {
            Some((other, first)) if *other != value && !self.last_counts => {
                Err(OptionError::Contradiction {
                    first: first.clone(),
                    second: self.given.clone(),
                })
            }
            _ => {
                self.claims.insert(setting, (value, self.given.clone()));
                Ok(())
            }
        }
    }

    pub(super) fn bad<T>(&self) -> Result<T, OptionError> {
        Err(OptionError::BadValue {
            given: self.given.clone(),
            name: self.name,
            wanted: self.takes.clone(),
        })
    }

    /// For an option with one value.
    pub(super) fn only(&mut self, _: &'static str, value: &str) -> Outcome {
        match value == self.takes {
            true => Ok(()),
            false => self.bad(),
        }
    }

    pub(super) fn cannot(&self, reason: &'static str) -> Outcome {
        Err(OptionError::CannotHonour {
            given: self.given.clone(),
            reason,
        })
    }

    pub(super) fn number(
        &self,
        text: &str,
        range: std::ops::RangeInclusive<u64>,
    ) -> Result<u64, OptionError> {
        match text.parse().ok().filter(|number| range.contains(number)) {
            Some(number) => Ok(number),
            None => self.bad(),
        }
    }

    pub(super) fn size(
        &self,
        text: &str,
        range: std::ops::RangeInclusive<u64>,
    ) -> Result<u64, OptionError> {
        match parse_size(text).filter(|size| range.contains(size)) {
            Some(size) => Ok(size),
            None => self.bad(),
        }
    }

    pub(super) fn addresses(&self, text: &str) -> Result<Vec<IpAddr>, OptionError> {
        match addresses::parse(text) {
            Some(list) => Ok(list),
            None => self.bad(),
        }
    }

    /// Sets one of the four attribute times, or all of them.
    pub(super) fn actime(&mut self, name: &'static str, text: &str) -> Outcome {
        let seconds = self.number(text, 0..=u32::MAX.into())?;
        let seconds = seconds.min(MAX_SECONDS);
        for setting in TIMES {
            if name == "actimeo" || name == setting {
                self.claim(setting, seconds)?;
                let times = &mut self.options.fs.times;
                *match setting {
                    "acregmin" => &mut times.acregmin,
                    "acregmax" => &mut times.acregmax,
                    "acdirmin" => &mut times.acdirmin,
                    _ => &mut times.acdirmax,
                } = Duration::from_secs(seconds);
            }
        }
        Ok(())
    }

    /// Parses rsize or wsize. `None` stands for 0, with which client and server negotiate (nfs(5)).
    pub(super) fn io_size(
        &mut self,
        name: &'static str,
        text: &str,
    ) -> Result<Option<u32>, OptionError> {
        let size = self.size(text, 0..=u64::MAX)?;
        let size = (size > 0).then(|| (size.min(MAX_IO.into()) as u32 / IO_UNIT).max(1) * IO_UNIT);
        self.claim(name, size.unwrap_or(0))?;
        Ok(size)
    }

    /// Parses a port. `None` stands for 0, with which rpcbind is asked.
    pub(super) fn port(
        &mut self,
        name: &'static str,
        text: &str,
    ) -> Result<Option<u16>, OptionError> {
        let port = self.number(text, 0..=65535)? as u16;
        if port == 0 {
            return Ok(None);
        }
        self.claim(name, port)?;
        Ok(Some(port))
    }

    /// The option that set `name`, as it was given.
    fn given(&self, name: &str) -> Option<&String> {
        self.claims.get(name).map(|(_, given)| given)
    }

    /// Makes each minimum at most its maximum, by changing the one that was not given.
    fn order_times(&mut self) -> Outcome {
        let mut times = self.options.fs.times;
        for (least, most, min, max) in [
            (&mut times.acregmin, &mut times.acregmax, TIMES[0], TIMES[1]),
            (&mut times.acdirmin, &mut times.acdirmax, TIMES[2], TIMES[3]),
        ] {
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
        self.options.fs.times = times;
        Ok(())
    }

    /// The cache contains the dirty data, so a cache of the default size grows with `dirty`.
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

    /// Each address that was given has a connection, and each of the server can be reached from
    /// one of this machine.
    fn fit_addresses(&self) -> Outcome {
        let contradict = |first: &str, second: &str| match (self.given(first), self.given(second)) {
            (Some(first), Some(second)) => Err(OptionError::Contradiction {
                first: first.clone(),
                second: second.clone(),
            }),
            _ => Ok(()),
        };
        let client = &self.options.client;
        if let Remotes::These(list) = &client.remotes {
            let from = |remote: &IpAddr| {
                let mut locals = client.locals.iter();
                client.locals.is_empty() || locals.any(|local| local.is_ipv4() == remote.is_ipv4())
            };
            if !list.iter().all(from) {
                contradict("localports", "remoteports")?;
            }
            if client.ipv6_only && !list.iter().all(IpAddr::is_ipv6) {
                contradict("proto", "remoteports")?;
            }
        }
        let connections = self.options.connections() as usize;
        for (name, given) in [
            ("remoteports", self.options.remotes_given()),
            ("localports", client.locals.len()),
        ] {
            if given > connections
                && let (Some(part), Some(whole)) = (self.given(name), self.given("nconnect"))
            {
                return Err(OptionError::Exceeds {
                    part: part.clone(),
                    whole: whole.clone(),
                    name: "nconnect",
                });
            }
        }
        Ok(())
    }

    /// Takes the address of mountd's host, which /proc/mounts shows. It matters only if that host
    /// is not the server, and if no option names it.
    fn use_mountaddr(&mut self) {
        if let Some(address) = self.mountaddr.take()
            && self.options.client.mounthost.is_none()
            && self.addr.as_ref() != Some(&address)
        {
            self.options.client.mounthost = Some(address);
        }
    }

    pub(super) fn finish(mut self) -> Result<Options, OptionError> {
        self.order_times()?;
        self.fit_cache()?;
        self.fit_addresses()?;
        self.use_mountaddr();
        if self.options.noac {
            if let Some((_, given)) = TIMES
                .iter()
                .filter_map(|name| self.claims.get(name))
                .find(|(value, _)| value != "0")
            {
                return Err(OptionError::Contradiction {
                    first: "noac".into(),
                    second: given.clone(),
                });
            }
            // nfs(5) defines noac as actimeo=0 and sync.
            self.options.fs.times = AttributeTimes::all(Duration::ZERO);
        }
        // `async` is the default and takes back `sync` alone, whichever of them comes last.
        self.options.vfs.sync |= self.options.noac || self.wait;
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
            // The kernel opens device files itself, and nobody would check the permission.
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
