//! The statistics of a mount as one JSON document.

pub(crate) use super::connection::{Connection, ConnectionCounters};

use crate::ipc::shorten;
use crate::mounts::Mount;
use nfsrdma_rdma::nanoseconds;
use nfsrdma_rpcrdma::stats::{LATENCY_BUCKETS, ProcedureStats};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::iter;
use std::time::SystemTime;

/// The counters of a mount at one moment. Names that end in `_ns` are times in nanoseconds.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Document {
    /// The version of the program that serves the mount.
    pub version: String,
    pub pid: u32,
    /// SERVER:/EXPORT.
    pub source: String,
    pub directory: String,
    /// The options in force.
    pub options: String,
    /// `iwarp`, `verbs`.
    pub transport: String,
    pub server: ServerLimits,
    #[serde(default)]
    pub limits: Limits,
    #[serde(default)]
    pub process: Process,
    /// The time since the mount, in nanoseconds.
    pub age_ns: u64,
    /// How often another process went on with the mount (`restart=`), after a crash or by an upgrade; how often that
    /// was an upgrade; and the time since the last time. The counters are those of the program that serves now.
    #[serde(default)]
    pub restarts: u32,
    #[serde(default)]
    pub upgrades: u32,
    #[serde(default)]
    pub restarted_ns: u64,
    /// The process is gone that would start the program again.
    #[serde(default)]
    pub unprotected: bool,
    /// Of a mount with Kerberos.
    #[serde(default)]
    pub kerberos: Option<Kerberos>,
    pub procedures: Vec<Procedure>,
    /// Counters of the file system and its caches, by name.
    pub cache: BTreeMap<String, u64>,
    /// The share of hits of each cache, 0 to 1; `null` before the first lookup.
    pub hit_rates: BTreeMap<String, Option<f64>>,
    pub connections: Vec<Connection>,
    #[serde(default)]
    pub waits: Waits,
    /// The server does not know the exported directory any longer: every call fails.
    #[serde(default)]
    pub stale: bool,
}

/// The users of a mount with Kerberos.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Kerberos {
    /// How many have a context with the server now.
    pub contexts: u64,
    /// The time until the first of these expires.
    pub expires_ns: Option<u64>,
}

impl Kerberos {
    pub(super) fn new((contexts, expires): (usize, Option<SystemTime>)) -> Self {
        let left = |at: SystemTime| at.duration_since(SystemTime::now()).unwrap_or_default();
        Kerberos {
            contexts: contexts as u64,
            expires_ns: expires.map(|at| nanoseconds(left(at))),
        }
    }
}

/// The calls that have not ended for ten seconds or longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Waits {
    pub calls: u64,
    /// The time since the first of them was made.
    pub oldest_ns: u64,
}

impl From<nfsrdma_rpcrdma::stats::Waits> for Waits {
    fn from(waits: nfsrdma_rpcrdma::stats::Waits) -> Self {
        Waits {
            calls: waits.calls,
            oldest_ns: nanoseconds(waits.oldest),
        }
    }
}

/// Most procedures, counters, connections and so on of a mount that are believed; there are fewer.
const MOST: usize = 256;
/// The longest name of one of them, in bytes.
const LONGEST_NAME: usize = 64;

fn shorten_names<T>(counters: &mut BTreeMap<String, T>) {
    counters.retain(|name, _| name.len() <= LONGEST_NAME);
    while counters.len() > MOST {
        counters.pop_last();
    }
}

impl Document {
    /// The security flavor by its name in the option `sec`.
    pub(crate) fn sec(&self) -> &str {
        let mut words = self.options.split(',');
        let sec = words.find_map(|word| word.strip_prefix("sec="));
        sec.unwrap_or("sys")
    }

    /// The document that a process made for `mount`. A remount changes flags of the VFS without the process, so they are those
    /// of the table of mounts.
    pub(super) fn read(mount: &Mount, answer: &[u8]) -> serde_json::Result<Self> {
        const OF_VFS: &str =
            "ro rw nosuid nodev noexec nosymfollow relatime noatime strictatime nodiratime";
        let mut document: Self = serde_json::from_slice(answer)?;
        let others = document.options.split(',');
        let others = others.filter(|word| !OF_VFS.split(' ').any(|flag| flag == *word));
        let words: Vec<_> = iter::once(&*mount.flags).chain(others).collect();
        document.options = words.join(",");
        Ok(document)
    }

    /// The document of the mount of `source` on `directory`, as the table of mounts has them. Any
    /// program of the user who mounted may have made it, and root puts it beside those of other
    /// mounts: it must not pass for one of these, nor take much memory here and series there.
    #[must_use]
    pub(super) fn of_mount(mut self, source: String, directory: String) -> Self {
        (self.source, self.directory) = (source, directory);
        for text in [&mut self.version, &mut self.options, &mut self.transport] {
            shorten(text);
        }
        let mut names = HashSet::new();
        self.procedures
            .retain(|of| of.name.len() <= LONGEST_NAME && names.insert(of.name.clone()));
        self.procedures.truncate(MOST);
        for procedure in &mut self.procedures {
            shorten_names(&mut procedure.statuses);
            procedure.latency.truncate(MOST);
        }
        shorten_names(&mut self.cache);
        shorten_names(&mut self.hit_rates);
        self.connections.truncate(MOST);
        for link in &mut self.connections {
            shorten(&mut link.link);
            shorten(&mut link.path);
            let ends = [&mut link.local, &mut link.peer];
            ends.into_iter().flatten().for_each(shorten);
        }
        self
    }
}

/// Limits that the server reported (FSINFO, PATHCONF), in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ServerLimits {
    pub wtmult: u32,
    pub dtpref: u32,
    pub name_max: u32,
}

/// The limits of the sizes among the counters, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Limits {
    /// The options `cache` and `dirty`.
    pub cache_bytes: u64,
    pub dirty_bytes: u64,
    /// The size of the buffer pool, for the cache and for messages in flight.
    pub pool_bytes: u64,
    /// The READ and WRITE sizes in force.
    pub rsize: u64,
    pub wsize: u64,
}

/// The process that serves the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Process {
    /// User and system time.
    pub cpu_ns: u64,
    pub resident_bytes: u64,
    pub virtual_bytes: u64,
    pub open_descriptors: u64,
    pub descriptor_limit: u64,
    pub threads: u64,
}

/// The counters of one NFS procedure.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Procedure {
    pub name: String,
    pub calls: u64,
    pub errors: u64,
    /// The errors that have an NFS status, by its name (RFC 1813 section 2.6).
    #[serde(default)]
    pub statuses: BTreeMap<String, u64>,
    /// Transmissions after the first.
    #[serde(alias = "resends")]
    pub retransmits: u64,
    pub timeouts: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// The sum of the times from the beginning of a call to its end.
    pub total_ns: u64,
    /// The part of `total_ns` before the last transmission.
    pub queue_ns: u64,
    /// The part of `total_ns` after the last transmission.
    pub round_trip_ns: u64,
    /// Percentiles, estimated from the buckets of `latency`; `null` without calls.
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
    /// The buckets that are not empty.
    pub latency: Vec<Bucket>,
}

/// The number of calls that took less than `below_us` microseconds, and at least half of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Bucket {
    /// `null` for the calls that took longer than all other buckets allow.
    pub below_us: Option<u64>,
    pub calls: u64,
}

impl From<&ProcedureStats> for Procedure {
    fn from(stats: &ProcedureStats) -> Self {
        let bucket = |(i, &calls): (usize, &u64)| Bucket {
            below_us: (i + 1 < LATENCY_BUCKETS).then(|| 1 << i),
            calls,
        };
        let latency: Vec<_> = stats.latency.iter().enumerate().map(bucket).collect();
        let mut procedure = Procedure {
            name: stats.name.to_owned(),
            calls: stats.calls,
            errors: stats.errors,
            statuses: stats
                .statuses
                .iter()
                .map(|(status, count)| (status.to_ascii_uppercase(), *count))
                .collect(),
            retransmits: stats.retransmits,
            timeouts: stats.timeouts,
            bytes_sent: stats.bytes_sent,
            bytes_received: stats.bytes_received,
            total_ns: nanoseconds(stats.total_time),
            queue_ns: nanoseconds(stats.queue_time),
            round_trip_ns: nanoseconds(stats.round_trip_time),
            p50_us: None,
            p99_us: None,
            latency,
        };
        procedure.latency.retain(|bucket| bucket.calls > 0);
        procedure.set_percentiles();
        procedure
    }
}

/// Adds the histograms of all `procedures`. The buckets are in order.
pub(crate) fn all_latencies(procedures: &[Procedure]) -> Vec<Bucket> {
    let mut sums: BTreeMap<u64, u64> = BTreeMap::new();
    for bucket in procedures.iter().flat_map(|p| &p.latency) {
        let sum = sums.entry(bucket.below_us.unwrap_or(u64::MAX)).or_default();
        *sum = sum.saturating_add(bucket.calls);
    }
    let bucket = |(below, calls)| Bucket {
        below_us: (below < u64::MAX).then_some(below),
        calls,
    };
    sums.into_iter().map(bucket).collect()
}

impl Procedure {
    fn set_percentiles(&mut self) {
        self.p50_us = percentile(&self.latency, 0.50);
        self.p99_us = percentile(&self.latency, 0.99);
    }

    fn since(&self, before: &Procedure) -> Procedure {
        let old = |below| {
            let same = before.latency.iter().find(|b| b.below_us == below);
            same.map_or(0, |bucket| bucket.calls)
        };
        let less = |bucket: &Bucket| Bucket {
            below_us: bucket.below_us,
            calls: bucket.calls.saturating_sub(old(bucket.below_us)),
        };
        let mut procedure = Procedure {
            name: self.name.clone(),
            calls: self.calls.saturating_sub(before.calls),
            errors: self.errors.saturating_sub(before.errors),
            statuses: self
                .statuses
                .iter()
                .map(|(name, count)| {
                    let old = before.statuses.get(name).copied().unwrap_or(0);
                    (name.clone(), count.saturating_sub(old))
                })
                .filter(|(_, count)| *count > 0)
                .collect(),
            retransmits: self.retransmits.saturating_sub(before.retransmits),
            timeouts: self.timeouts.saturating_sub(before.timeouts),
            bytes_sent: self.bytes_sent.saturating_sub(before.bytes_sent),
            bytes_received: self.bytes_received.saturating_sub(before.bytes_received),
            total_ns: self.total_ns.saturating_sub(before.total_ns),
            queue_ns: self.queue_ns.saturating_sub(before.queue_ns),
            round_trip_ns: self.round_trip_ns.saturating_sub(before.round_trip_ns),
            p50_us: None,
            p99_us: None,
            latency: self.latency.iter().map(less).collect(),
        };
        procedure.latency.retain(|bucket| bucket.calls > 0);
        procedure.set_percentiles();
        procedure
    }
}

/// The time within which `part` (0 to 1) of the calls ended, in microseconds. Calls are assumed to
/// be evenly spread within a bucket. `buckets` must be in order.
pub(crate) fn percentile(buckets: &[Bucket], part: f64) -> Option<f64> {
    let all = buckets
        .iter()
        .fold(0u64, |sum, bucket| sum.saturating_add(bucket.calls));
    if all == 0 {
        return None;
    }
    let wanted = part * all as f64;
    let mut before = 0.0;
    for bucket in buckets {
        let calls = bucket.calls as f64;
        if calls > 0.0 && before + calls >= wanted {
            let Some(upper) = bucket.below_us else { break };
            let lower = if upper > 1 { upper as f64 / 2.0 } else { 0.0 };
            return Some(
                lower + (upper as f64 - lower) * ((wanted - before) / calls).clamp(0.0, 1.0),
            );
        }
        before += calls;
    }
    // It is in the bucket without an upper bound.
    Some((1u64 << (LATENCY_BUCKETS - 2)) as f64)
}

/// The caches, with the counters of their hits and misses.
pub(super) const CACHES: [(&str, &[&str], &str); 4] = [
    ("data", &["read_hits"], "read_misses"),
    ("attributes", &["attribute_hits"], "attribute_misses"),
    ("names", &["name_hits", "name_negative_hits"], "name_misses"),
    ("access", &["access_hits"], "access_misses"),
];

/// Counters of the file system that are states and not sums.
pub(super) const STATES: [&str; 3] = ["cache_bytes", "dirty_bytes", "inodes"];

impl Document {
    /// The value of a counter of the file system.
    pub fn cache_counter(&self, name: &str) -> u64 {
        self.cache.get(name).copied().unwrap_or(0)
    }

    /// The sums of the counters of hits and misses of a cache.
    pub fn hits(&self, hits: &[&str], misses: &str) -> (u64, u64) {
        let hits = hits.iter().fold(0u64, |sum, name| {
            sum.saturating_add(self.cache_counter(name))
        });
        (hits, self.cache_counter(misses))
    }

    /// Computes `hit_rates` from `cache`.
    pub fn set_hit_rates(&mut self) {
        let rate = |(name, hits, misses): (&str, &[&str], &str)| {
            let (hits, misses) = self.hits(hits, misses);
            let all = hits as f64 + misses as f64;
            (name.to_owned(), (all > 0.0).then(|| hits as f64 / all))
        };
        self.hit_rates = CACHES.into_iter().map(rate).collect();
    }

    /// The change since `before`, which must be a document of the same process.
    pub fn since(&self, before: &Document) -> Document {
        let mut change = self.clone();
        change.age_ns = self.age_ns.saturating_sub(before.age_ns);
        for (new, old) in change.procedures.iter_mut().zip(&before.procedures) {
            *new = new.since(old);
        }
        for (name, value) in &mut change.cache {
            if !STATES.contains(&name.as_str()) {
                *value = value.saturating_sub(before.cache_counter(name));
            }
        }
        for (new, old) in change.connections.iter_mut().zip(&before.connections) {
            new.counters = new.counters.since(&old.counters);
        }
        change.process.cpu_ns = self.process.cpu_ns.saturating_sub(before.process.cpu_ns);
        change.set_hit_rates();
        change
    }

    pub fn procedure(&self, name: &str) -> Option<&Procedure> {
        self.procedures
            .iter()
            .find(|procedure| procedure.name == name)
    }

    /// The hits and misses of all caches together.
    pub fn all_hits(&self) -> (u64, u64) {
        let all = CACHES
            .into_iter()
            .map(|(_, hits, misses)| self.hits(hits, misses));
        all.fold((0, 0), |(hits, misses), (h, m)| {
            (hits.saturating_add(h), misses.saturating_add(m))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipc::LONGEST;
    use proptest::prelude::*;

    #[test]
    fn a_document_passes_for_no_other_mount_and_is_small() {
        let counters = |n: u64| (0..n).map(|n| (n.to_string(), n)).collect();
        let procedure = |n: u64| Procedure {
            name: (n / 2).to_string(),
            calls: n,
            statuses: counters(1000),
            latency: vec![Bucket::default(); 1000],
            ..Procedure::default()
        };
        let forged = Document {
            source: "srv:/data".into(),
            directory: "/srv/data".into(),
            options: "ä".repeat(1 << 20),
            procedures: (0..1000).map(procedure).collect(),
            cache: counters(1000),
            connections: vec![Connection::default(); 1000],
            ..Document::default()
        };
        let own = forged.of_mount("own:/x".into(), "/mnt/own".into());
        assert_eq!((&*own.source, &*own.directory), ("own:/x", "/mnt/own"));
        assert_eq!(own.options.len(), LONGEST);
        assert_eq!((own.procedures.len(), own.cache.len()), (MOST, MOST));
        assert_eq!((own.procedures[1].calls, own.connections.len()), (2, MOST));
        let first = &own.procedures[0];
        assert_eq!((first.statuses.len(), first.latency.len()), (MOST, MOST));
        let text = serde_json::to_string(&own).unwrap();
        let again: Document = serde_json::from_str(&text).unwrap();
        assert_eq!(
            again.clone().of_mount("own:/x".into(), "/mnt/own".into()),
            again
        );
    }

    fn bucket(below_us: impl Into<Option<u64>>, calls: u64) -> Bucket {
        Bucket {
            below_us: below_us.into(),
            calls,
        }
    }

    #[test]
    fn percentiles() {
        assert_eq!(percentile(&[], 0.5), None);
        assert_eq!(percentile(&[bucket(1024, 10)], 0.5), Some(768.0));
        let two = [bucket(16, 98), bucket(1024, 2)];
        assert_eq!(percentile(&two, 0.99), Some(768.0));
        assert!(percentile(&two, 0.5).unwrap() < 16.0);
        assert_eq!(percentile(&[bucket(None, 1)], 0.5), Some(67_108_864.0));
    }

    #[test]
    fn a_difference_has_only_what_is_new() {
        let mut before = Document {
            age_ns: 5,
            procedures: vec![Procedure {
                calls: 3,
                latency: vec![bucket(8, 3)],
                ..Procedure::default()
            }],
            ..Document::default()
        };
        before.cache.insert("read_hits".into(), 7);
        before.cache.insert("inodes".into(), 7);
        let mut after = before.clone();
        after.age_ns = 9;
        after.procedures[0].calls = 4;
        after.procedures[0].latency.push(bucket(64, 1));
        after.cache.insert("read_hits".into(), 8);
        after.cache.insert("read_misses".into(), 1);
        let change = after.since(&before);
        assert_eq!((change.age_ns, change.procedures[0].calls), (4, 1));
        assert_eq!(change.procedures[0].latency, [bucket(64, 1)]);
        assert_eq!(change.hit_rates["data"], Some(0.5));
        assert_eq!(change.cache_counter("inodes"), 7);
    }

    proptest! {
        #[test]
        fn no_numbers_overflow(calls: [u64; 4], part in 0.0f64..=1.0) {
            let buckets = [bucket(1, calls[0]), bucket(2, calls[1]), bucket(u64::MAX, calls[2]), bucket(None, calls[3])];
            if let Some(value) = percentile(&buckets, part) {
                prop_assert!(value.is_finite() && value >= 0.0);
            }
        }
    }
}
