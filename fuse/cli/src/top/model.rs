//! The state behind `top`: the last answer of each mount, the change since the one before, and the
//! samples of the last minute. It takes the time as an argument and does no I/O.

use super::columns::{self, Column, Rest};
use crate::mounts::Mount;
use crate::observe::load::{Load, Loads};
use crate::output::plain;
use crate::stats::document::{
    Connection, ConnectionCounters, Document, Procedure, all_latencies, percentile,
};
use crate::stats::list::{is_connected, trouble};
use crate::stats::mount_list::{ListedMount, MountState, Target};
use crate::stats::text::{Rates, age, per_second, restarted, waiting, waits};
use nfsrdma_rpcrdma::words::counted;
use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime};

/// How far back the sparklines go.
pub(super) const MINUTE: Duration = Duration::from_secs(60);
/// Most samples kept for a mount.
const MOST_SAMPLES: usize = 128;
/// The width of plain text, in columns.
const PLAIN_WIDTH: usize = 100;

/// The rates of one interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) rates: Rates,
    pub(super) p99_us: Option<f64>,
}

/// What a row stands for: a target of [`Poll`](super::poll::Poll), or an entry of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Key {
    Target(Target),
    Place(String, String),
}

/// The row of one mount.
#[derive(Debug)]
pub(super) struct Row {
    key: Key,
    pub(super) source: String,
    pub(super) directory: String,
    /// The last answer; `None` before the first one.
    pub(super) state: Option<MountState>,
    /// The change between the last two answers, if they are of the same process.
    pub(super) change: Option<Document>,
    pub(super) history: VecDeque<Sample>,
    /// Who caused the calls of the last interval, and its length; `None` while that is not watched.
    loads: Option<(Loads, Duration)>,
    /// When the process answered last, or when the mount was first seen.
    heard: Instant,
}

/// The rows of all mounts.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) rows: Vec<Row>,
    delay: Duration,
    rounds: u64,
}

const MOUNTS: [Column; 9] = [
    Column::text("SERVER", 6),
    Column::figure("rdMB/s", 7, 0),
    Column::figure("wrMB/s", 7, 1),
    Column::figure("ops/s", 7, 2),
    Column::figure("p50ms", 7, 5),
    Column::figure("p99ms", 7, 3),
    Column::figure("credits", 7, 4),
    Column::figure("dirty", 6, 7),
    Column::figure("hits", 5, 8),
];

const PROCEDURES: [Column; 8] = [
    Column::figure("calls/s", 8, 0),
    Column::figure("p50ms", 7, 2),
    Column::figure("p99ms", 7, 1),
    Column::figure("queue ms", 8, 5),
    Column::figure("sentMB/s", 8, 6),
    Column::figure("recvMB/s", 8, 7),
    Column::figure("errors", 7, 3),
    Column::figure("rexmit", 6, 4),
];

const USERS: [Column; 6] = [
    Column::text("USER", 0),
    Column::figure("pid", 7, 1),
    Column::figure("calls/s", 8, 2),
    Column::figure("recvMB/s", 8, 3),
    Column::figure("sentMB/s", 8, 4),
    Column::figure("mean ms", 7, 5),
];

const CONNECTIONS: [Column; 10] = [
    Column::figure("state", 6, 0),
    Column::figure("credits", 7, 1),
    Column::figure("wait", 5, 2),
    Column::figure("ops/s", 6, 3),
    Column::figure("rdMB/s", 6, 4),
    Column::figure("wrMB/s", 6, 5),
    Column::figure("connects", 8, 6),
    Column::figure("rexmit", 6, 7),
    Column::figure("regs", 5, 8),
    Column::figure("timeouts", 8, 9),
];

/// Microseconds as a figure of a column in milliseconds.
pub(super) fn milliseconds(micros: Option<f64>) -> String {
    match micros.map(|us| us / 1e3) {
        None => "-".into(),
        Some(ms) if ms < 9.9995 => format!("{ms:.3}"),
        Some(ms) => format!("{ms:.1}"),
    }
}

/// `17`, `3.4k`, `5.6M`, `1.2G`: powers of 1000.
fn short_bytes(bytes: u64) -> String {
    let number = bytes as f64;
    match bytes {
        0..1_000 => format!("{bytes}"),
        1_000..1_000_000 => format!("{:.1}k", number / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1}M", number / 1e6),
        _ => format!("{:.1}G", number / 1e9),
    }
}

/// Formats bytes per second as megabytes.
pub(super) fn megabytes(bytes: f64) -> String {
    let mega = bytes / 1e6;
    if mega >= 1000.0 {
        format!("{mega:.0}")
    } else {
        format!("{mega:.1}")
    }
}

fn count(number: f64) -> String {
    match number {
        n if n >= 1e6 => format!("{:.1}M", n / 1e6),
        n if n >= 10.0 || n == 0.0 => format!("{n:.0}"),
        n => format!("{n:.1}"),
    }
}

impl Model {
    /// A model of mounts that are asked every `delay`.
    pub(super) fn new(delay: Duration) -> Self {
        Model {
            rows: Vec::new(),
            delay,
            rounds: 0,
        }
    }

    /// The number of times that mounts were looked for.
    pub(super) fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Keeps the rows of these targets, and adds new ones.
    pub(super) fn listed(&mut self, targets: &[Target], now: Instant) {
        self.rounds += 1;
        self.rows.retain(|row| match &row.key {
            Key::Target(target) => targets.contains(target),
            Key::Place(..) => false,
        });
        for row in &mut self.rows {
            row.loads = None;
        }
        for target in targets {
            if let Target::Mounted(mount) = target {
                let (source, directory) =
                    (mount.source.to_string_lossy(), mount.dir.to_string_lossy());
                self.row(Key::Target(target.clone()), &source, &directory, now);
            }
        }
    }

    fn row(&mut self, key: Key, source: &str, directory: &str, now: Instant) -> &mut Row {
        let known = self.rows.iter().position(|row| row.key == key);
        let at = known.unwrap_or_else(|| {
            self.rows.push(Row {
                key,
                source: plain(source),
                directory: plain(directory),
                state: None,
                change: None,
                history: VecDeque::new(),
                loads: None,
                heard: now,
            });
            self.rows.len() - 1
        });
        &mut self.rows[at]
    }

    /// Applies the answer of a target. `None` means that an attempt to mount has ended.
    pub(super) fn answered(&mut self, target: &Target, found: Option<ListedMount>, now: Instant) {
        let key = Key::Target(target.clone());
        match found {
            // The mount is gone.
            Some(_) if matches!(target, Target::Mounted(_)) && !self.has(&key) => {}
            Some(found) => self
                .row(key, &found.source, &found.directory, now)
                .apply(found, now),
            None => self.rows.retain(|row| row.key != key),
        }
    }

    /// The mount of a row, unless it is an attempt to mount.
    pub(super) fn mount(&self, row: usize) -> Option<&Mount> {
        match &self.rows.get(row)?.key {
            Key::Target(Target::Mounted(mount)) => Some(mount),
            _ => None,
        }
    }

    /// Applies who caused the calls of `mount` within `time`.
    pub(super) fn loaded(&mut self, mount: &Mount, loads: Loads, time: Duration) {
        let is_of =
            |row: &&mut Row| matches!(&row.key, Key::Target(Target::Mounted(of)) if of == mount);
        if let Some(row) = self.rows.iter_mut().find(is_of) {
            row.loads = Some((loads, time));
        }
    }

    fn has(&self, key: &Key) -> bool {
        self.rows.iter().any(|row| row.key == *key)
    }

    /// Replaces the rows by these mounts with their answers.
    pub(super) fn found(&mut self, found: &[ListedMount], now: Instant) {
        self.rounds += 1;
        let key = |one: &ListedMount| Key::Place(one.source.clone(), one.directory.clone());
        self.rows
            .retain(|row| found.iter().any(|one| key(one) == row.key));
        for one in found {
            let row = self.row(key(one), &one.source, &one.directory, now);
            row.apply(one.clone(), now);
        }
    }

    /// The table of all mounts in `width` columns: the titles, and a line for each.
    pub(super) fn table(&self, width: usize, now: Instant) -> (String, Vec<String>) {
        let line = |row: &Row| {
            let rest = match row.values() {
                Some(values) if row.silence(now, self.delay).is_none() => Rest::Values(values),
                _ => Rest::Remark(row.remark(now, self.delay)),
            };
            (row.directory.clone(), rest)
        };
        let lines: Vec<_> = self.rows.iter().map(line).collect();
        columns::table("MOUNT", &MOUNTS, &lines, width)
    }

    /// Formats a block of plain text.
    pub(super) fn block(&self, now: Instant) -> String {
        let mut out = format!("{} UTC, {}\n", clock(SystemTime::now()), self.heading());
        if !self.rows.is_empty() {
            let (titles, lines) = self.table(PLAIN_WIDTH, now);
            for line in std::iter::once(titles).chain(lines) {
                out.push_str(line.trim_end());
                out.push('\n');
            }
        }
        for row in self.rows.iter().filter(|row| row.loads.is_some()) {
            out.push_str(&format!("users of {} on {}\n", row.source, row.directory));
            let (titles, lines) = row.users(PLAIN_WIDTH);
            for line in std::iter::once(titles).chain(lines) {
                out.push_str(line.trim_end());
                out.push('\n');
            }
        }
        out + "\n"
    }

    /// The number of mounts, as text.
    pub(super) fn heading(&self) -> String {
        match self.rows.len() {
            0 => "no nfsrdma mounts".into(),
            n => counted(n, "mount"),
        }
    }
}

/// Formats a time as `HH:MM:SS` of UTC.
pub(super) fn clock(at: SystemTime) -> String {
    let seconds = at
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |time| time.as_secs());
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{hour:02}:{minute:02}:{second:02}")
}

impl Row {
    fn apply(&mut self, found: ListedMount, now: Instant) {
        if let MountState::Answers(new) = &found.state {
            self.change = match &self.state {
                Some(MountState::Answers(old)) if old.pid == new.pid => Some(new.since(old)),
                _ => None,
            };
        }
        if let (MountState::Answers(_), Some(change)) = (&found.state, &self.change) {
            let latencies = all_latencies(&change.procedures);
            self.history.push_back(Sample {
                at: now,
                rates: Rates::of(change),
                p99_us: percentile(&latencies, 0.99),
            });
        }
        let old = |sample: &Sample| now.saturating_duration_since(sample.at) > MINUTE;
        while self.history.front().is_some_and(old) || self.history.len() > MOST_SAMPLES {
            self.history.pop_front();
        }
        if !matches!(found.state, MountState::Silent(_)) {
            self.heard = now;
        }
        self.state = Some(found.state);
    }

    /// How long the process has not answered, if that is longer than usual.
    fn silence(&self, now: Instant, delay: Duration) -> Option<Duration> {
        let silent = now.saturating_duration_since(self.heard);
        (silent > delay * 2 + Duration::from_secs(1)).then_some(silent)
    }

    /// The flavor of a mount with Kerberos, and how many users have a context.
    pub(super) fn security(&self) -> Option<String> {
        let document = self.document()?;
        let contexts = counted(document.kerberos?.contexts, "context");
        Some(plain(&format!("sec={}, {contexts}", document.sec())))
    }

    /// The last answer, if it has statistics.
    pub(super) fn document(&self) -> Option<&Document> {
        match &self.state {
            Some(MountState::Answers(document)) => Some(document),
            _ => None,
        }
    }

    /// The values of the columns, for a mount that works.
    fn values(&self) -> Option<Vec<String>> {
        let document = self
            .document()
            .filter(|document| trouble(document).is_none() && self.just_restarted().is_none())?;
        let dirty = short_bytes(document.cache_counter("dirty_bytes"));
        let (used, granted) =
            document
                .connections
                .iter()
                .fold((0u64, 0u64), |(used, granted), c| {
                    (
                        used.saturating_add(c.credits_in_use),
                        granted.saturating_add(c.credits_granted),
                    )
                });
        let credits = format!("{used}/{granted}");
        let server = self
            .source
            .split_once(":/")
            .map_or(&*self.source, |(host, _)| host);
        let Some(change) = &self.change else {
            let mut values = vec!["-".to_owned(); MOUNTS.len()];
            values[0] = server.to_owned();
            (values[6], values[7]) = (credits, dirty);
            return Some(values);
        };
        let rates = Rates::of(change);
        let latencies = all_latencies(&change.procedures);
        let (hits, misses) = change.all_hits();
        let all = hits as f64 + misses as f64;
        let hits = if all > 0.0 {
            format!("{:.0}%", 100.0 * hits as f64 / all)
        } else {
            "-".into()
        };
        Some(vec![
            server.to_owned(),
            megabytes(rates.read),
            megabytes(rates.write),
            count(rates.calls),
            milliseconds(percentile(&latencies, 0.5)),
            milliseconds(percentile(&latencies, 0.99)),
            credits,
            dirty,
            hits,
        ])
    }

    /// That the process is another one than at the last answer, or that there was none yet.
    fn just_restarted(&self) -> Option<String> {
        restarted(self.document().filter(|_| self.change.is_none())?)
    }

    /// Why there are no values.
    pub(super) fn remark(&self, now: Instant, delay: Duration) -> String {
        let since = |silent: Duration| age(nfsrdma_rdma::nanoseconds(silent));
        match (&self.state, self.silence(now, delay)) {
            (Some(MountState::Silent(why)), _) => plain(why),
            (Some(MountState::Pending(pending)), None) => format!(
                "being tried for {}, {}: {}",
                age(pending.age_ns),
                counted(pending.attempts, "attempt"),
                plain(&pending.error)
            ),
            (_, Some(silent)) => format!("no answer of its process for {}", since(silent)),
            (None, None) => "...".into(),
            (Some(MountState::Answers(document)), None) => {
                let calls = self.change.as_ref().map_or(0.0, |c| Rates::of(c).calls);
                let others = match calls > 0.0 {
                    true => format!("; {} ops/s", count(calls)),
                    false => String::new(),
                };
                match (is_connected(document), trouble(document)) {
                    (true, what) => {
                        what.or_else(|| self.just_restarted()).unwrap_or_default() + &others
                    }
                    (false, _) => {
                        let without_credit = document.connections.iter().map(|c| c.waiting).sum();
                        let calls = waits(document).unwrap_or_else(|| waiting(without_credit));
                        format!("no connection to the server, {calls}")
                    }
                }
            }
        }
    }

    /// The table of procedures with its titles, the busiest procedures first.
    pub(super) fn procedures(&self, width: usize) -> (String, Vec<String>) {
        let Some(change) = &self.change else {
            return columns::table("PROCEDURE", &PROCEDURES, &[], width);
        };
        let mut busy: Vec<&Procedure> = change
            .procedures
            .iter()
            .filter(|p| p.calls > 0 || p.retransmits > 0 || p.timeouts > 0)
            .collect();
        busy.sort_by_key(|p| std::cmp::Reverse(p.calls));
        let line = |p: &&Procedure| {
            let queue = (p.calls > 0).then(|| p.queue_ns as f64 / p.calls as f64 / 1e3);
            let values = vec![
                count(per_second(change, p.calls as f64)),
                milliseconds(p.p50_us),
                milliseconds(p.p99_us),
                milliseconds(queue),
                megabytes(per_second(change, p.bytes_sent as f64)),
                megabytes(per_second(change, p.bytes_received as f64)),
                p.errors.to_string(),
                p.retransmits.to_string(),
            ];
            (plain(&p.name), Rest::Values(values))
        };
        let lines: Vec<_> = busy.iter().map(line).collect();
        columns::table("PROCEDURE", &PROCEDURES, &lines, width)
    }

    /// The table of users and processes with its titles, the one with the most calls first.
    pub(super) fn users(&self, width: usize) -> (String, Vec<String>) {
        let Some((loads, time)) = &self.loads else {
            let (titles, _) = columns::table("PROCESS", &USERS, &[], width);
            return (titles, vec!["...".to_owned()]);
        };
        let seconds = time.as_secs_f64().max(f64::MIN_POSITIVE);
        let line = |load: &Load| {
            let mean = load.time_ns as f64 / load.calls.max(1) as f64 / 1e3;
            let values = vec![
                load.user.clone(),
                load.pid.map_or_else(|| "-".into(), |pid| pid.to_string()),
                count(load.calls as f64 / seconds),
                megabytes(load.received_bytes as f64 / seconds),
                megabytes(load.sent_bytes as f64 / seconds),
                milliseconds(Some(mean)),
            ];
            (load.command.clone(), Rest::Values(values))
        };
        let lines: Vec<_> = loads.of.iter().map(line).collect();
        let (titles, mut lines) = columns::table("PROCESS", &USERS, &lines, width);
        if loads.missed > 0 {
            let missed = counted(loads.missed, "more call");
            lines.push(format!("{missed}: too many to tell whose"));
        }
        lines.extend(loads.error.as_deref().map(plain));
        (titles, lines)
    }

    /// The table of connections with its titles.
    pub(super) fn connections(&self, width: usize) -> (String, Vec<String>) {
        let rate = |at: usize, of: fn(&ConnectionCounters) -> u64| {
            let change = self.change.as_ref()?;
            let counters = &change.connections.get(at)?.counters;
            Some(per_second(change, of(counters) as f64))
        };
        let line = |(at, c): (usize, &Connection)| {
            let data = |of| rate(at, of).map_or_else(|| "-".to_owned(), megabytes);
            let values = vec![
                c.state().to_owned(),
                format!("{}/{}", c.credits_in_use, c.credits_granted),
                c.waiting.to_string(),
                rate(at, |c| c.sends).map_or_else(|| "-".to_owned(), count),
                data(|c| c.rdma_write_bytes),
                data(|c| c.rdma_read_bytes),
                c.counters.connects.to_string(),
                c.counters.retransmits.to_string(),
                c.open_registrations.to_string(),
                c.counters.timeouts.to_string(),
            ];
            // Of a program before 0.3 the path is not known.
            let path = match &*c.path {
                "" => c.peer.as_deref().unwrap_or("-"),
                path => path,
            };
            (plain(path), Rest::Values(values))
        };
        let connections = self
            .document()
            .map_or(&[][..], |document| &document.connections);
        let lines: Vec<_> = connections.iter().enumerate().map(line).collect();
        columns::table("SERVER", &CONNECTIONS, &lines, width)
    }

    /// The last minute in `width` columns, the most recent at the right. A sample stands for the
    /// interval that ends with it; `None` where there is no sample.
    pub(super) fn minute(
        &self,
        width: usize,
        now: Instant,
        value: impl Fn(&Sample) -> f64,
    ) -> Vec<Option<u64>> {
        let aged = |sample: &Sample| now.saturating_duration_since(sample.at);
        let spacing = self.spacing();
        let column = |at: usize| {
            let age = MINUTE.mul_f64((width - at) as f64 / width as f64 - 0.5 / width as f64);
            let after = self.history.iter().find(|sample| aged(sample) <= age);
            let sample = match after {
                Some(sample) => Some(sample).filter(|sample| aged(sample) + spacing >= age),
                // The current interval has not ended.
                None => self.history.back().filter(|last| aged(last) <= spacing * 2),
            };
            sample.map(|sample| value(sample).max(0.0) as u64)
        };
        (0..width).map(column).collect()
    }

    /// The average interval between two samples.
    fn spacing(&self) -> Duration {
        match (
            self.history.front(),
            self.history.back(),
            self.history.len(),
        ) {
            (Some(first), Some(last), n) if n > 1 => {
                last.at.saturating_duration_since(first.at) / (n as u32 - 1)
            }
            _ => Duration::from_secs(2),
        }
    }
}
