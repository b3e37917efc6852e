//! Formats the counters of one or several mounts as Prometheus text (exposition format 0.0.4).
//!
//! The numbers come from the serving processes as documents, so there is no registry of live
//! metrics. Instead, the metric families are built for each scrape and written by the encoder of
//! the crate `prometheus`.

use super::document::{Connection, Document, Procedure, STATES};
use super::mount_list::{ListedMount, MountState};
use crate::output::plain_lines;
use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType,
};
use prometheus::{Encoder, TextEncoder};
use std::collections::HashMap;

/// The content type of the encoder's output.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Upper bounds of the latency buckets, in microseconds: powers of four, from 16 us to 67 s. The
/// histogram itself has powers of two from 1 us on, but for each procedure of each mount, every
/// bucket is one more series that costs a Prometheus server memory.
const BOUNDS_US: [u64; 12] = {
    let mut bounds = [0; 12];
    let mut at = 0;
    while at < bounds.len() {
        bounds[at] = 1 << (4 + 2 * at);
        at += 1;
    }
    bounds
};

/// Metric families in the order in which they were added.
#[derive(Default)]
struct Families {
    list: Vec<MetricFamily>,
    by_name: HashMap<String, usize>,
}

type Label<'a> = (&'a str, &'a str);

impl Families {
    fn add(
        &mut self,
        kind: MetricType,
        name: &str,
        help: &str,
        labels: &[Label<'_>],
        fill: impl FnOnce(&mut Metric),
    ) {
        let at = *self.by_name.entry(name.to_owned()).or_insert_with(|| {
            let mut family = MetricFamily::default();
            family.set_name(format!("nfsrdma_{name}"));
            family.set_help(help.to_owned());
            family.set_field_type(kind);
            self.list.push(family);
            self.list.len() - 1
        });
        let mut metric = Metric::default();
        let pair = |(name, value): &Label<'_>| {
            let mut pair = LabelPair::default();
            pair.set_name((*name).to_owned());
            pair.set_value(plain_lines(value));
            pair
        };
        metric.set_label(labels.iter().map(pair).collect());
        fill(&mut metric);
        self.list[at].mut_metric().push(metric);
    }

    fn gauge(&mut self, name: &str, help: &str, labels: &[Label<'_>], value: f64) {
        self.add(MetricType::GAUGE, name, help, labels, |metric| {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        });
    }

    fn counter(&mut self, name: &str, help: &str, labels: &[Label<'_>], value: f64) {
        self.add(MetricType::COUNTER, name, help, labels, |metric| {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        });
    }

    fn text(&self) -> String {
        let mut out = Vec::new();
        // Writing to a Vec does not fail, and no family is empty.
        let _ = TextEncoder::new().encode(&self.list, &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }
}

/// Renders all metrics of one mount.
pub(super) fn render(document: &Document) -> String {
    let mut families = Families::default();
    mount(document, &mut families);
    families.text()
}

/// Renders all metrics of several mounts, and which of them do not answer.
pub(super) fn render_all(found: &[ListedMount]) -> String {
    let mut families = Families::default();
    families.gauge(
        "mounts",
        "Mounts of this host, with those being tried.",
        &[],
        found.len() as f64,
    );
    for one in found {
        let labels = [("mount", one.directory.as_str()), ("source", &one.source)];
        let answers = matches!(one.state, MountState::Answers(_));
        let help = "Whether the mount's process answers.";
        families.gauge("mount_up", help, &labels, f64::from(answers));
    }
    for one in found {
        let labels = [("mount", one.directory.as_str()), ("source", &one.source)];
        if let MountState::Pending(pending) = &one.state {
            let help = "Time since the first attempt of a mount that is still being tried.";
            families.gauge(
                "mount_pending_seconds",
                help,
                &labels,
                pending.age_ns as f64 / 1e9,
            );
        }
    }
    for one in found {
        if let MountState::Answers(document) = &one.state {
            mount(document, &mut families);
        }
    }
    families.text()
}

fn mount(document: &Document, to: &mut Families) {
    let mount = ("mount", document.directory.as_str());
    let about = [
        mount,
        ("source", &document.source),
        ("transport", &document.transport),
        ("version", &document.version),
        ("sec", document.sec()),
    ];
    to.gauge(
        "info",
        "What is mounted, and the program that serves it.",
        &about,
        1.0,
    );
    to.gauge(
        "age_seconds",
        "Time since the mount.",
        &[mount],
        document.age_ns as f64 / 1e9,
    );
    to.counter(
        "restarts_total",
        "How often another process went on with the mount, after a crash or by an upgrade.",
        &[mount],
        document.restarts.into(),
    );
    to.counter(
        "upgrades_total",
        "How many of the restarts were upgrades.",
        &[mount],
        document.upgrades.into(),
    );
    to.gauge(
        "unprotected",
        "Whether the process is gone that would start the program again.",
        &[mount],
        f64::from(document.unprotected),
    );
    to.gauge(
        "waiting_calls",
        "Calls that have not ended for ten seconds or longer.",
        &[mount],
        document.waits.calls as f64,
    );
    to.gauge(
        "waiting_seconds",
        "Time since the first of these calls was made.",
        &[mount],
        document.waits.oldest_ns as f64 / 1e9,
    );
    to.gauge(
        "stale",
        "Whether the server does not know the exported directory any longer.",
        &[mount],
        f64::from(document.stale),
    );
    kerberos(document, mount, to);
    for procedure in &document.procedures {
        calls(procedure, mount, to);
    }
    for (name, value) in &document.cache {
        // Another version's document might have a name that is not permitted in a metric.
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            continue;
        }
        let help = format!("File system: {}.", name.replace('_', " "));
        if STATES.contains(&name.as_str()) {
            to.gauge(&format!("fs_{name}"), &help, &[mount], *value as f64);
        } else {
            to.counter(&format!("fs_{name}_total"), &help, &[mount], *value as f64);
        }
    }
    limits(document, mount, to);
    process(document, mount, to);
    for (index, link) in document.connections.iter().enumerate() {
        let index = index.to_string();
        let labels = [mount, ("connection", index.as_str()), ("path", &link.path)];
        connection(link, &labels, to);
    }
}

fn kerberos(document: &Document, mount: Label<'_>, to: &mut Families) {
    let Some(kerberos) = document.kerberos else {
        return;
    };
    to.gauge(
        "kerberos_contexts",
        "Users who have a Kerberos context with the server.",
        &[mount],
        kerberos.contexts as f64,
    );
    if let Some(left) = kerberos.expires_ns {
        to.gauge(
            "kerberos_first_expiry_seconds",
            "Time until the first of these contexts expires.",
            &[mount],
            left as f64 / 1e9,
        );
    }
}

fn calls(procedure: &Procedure, mount: Label<'_>, to: &mut Families) {
    type Value = fn(&Procedure) -> f64;
    let counters: [(&str, &str, Value); 8] = [
        ("calls", "Calls that ended.", |p| p.calls as f64),
        ("errors", "Calls that ended without NFS3_OK.", |p| {
            p.errors as f64
        }),
        (
            "retransmits",
            "Transmissions of calls after the first.",
            |p| p.retransmits as f64,
        ),
        ("timeouts", "Times a call ran out of time.", |p| {
            p.timeouts as f64
        }),
        ("sent_bytes", "RPC message bytes sent.", |p| {
            p.bytes_sent as f64
        }),
        ("received_bytes", "RPC message bytes received.", |p| {
            p.bytes_received as f64
        }),
        ("queue_seconds", "Time before the last transmission.", |p| {
            p.queue_ns as f64 / 1e9
        }),
        (
            "round_trip_seconds",
            "Time after the last transmission.",
            |p| p.round_trip_ns as f64 / 1e9,
        ),
    ];
    let labels = [mount, ("procedure", procedure.name.as_str())];
    for (name, help, value) in counters {
        to.counter(
            &format!("procedure_{name}_total"),
            help,
            &labels,
            value(procedure),
        );
    }
    let statuses = procedure.statuses.values();
    let statuses = statuses.fold(0u64, |sum, count| sum.saturating_add(*count));
    let none = procedure.errors.saturating_sub(statuses);
    let others = [("NONE".to_owned(), none)];
    let other = others
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| (name, count));
    for (status, count) in procedure.statuses.iter().chain(other) {
        let labels = [mount, labels[1], ("status", status.as_str())];
        let help = "Calls that ended without NFS3_OK, by status; NONE: without an NFS reply.";
        to.counter(
            "procedure_errors_by_status_total",
            help,
            &labels,
            *count as f64,
        );
    }
    // A histogram may begin with the first call.
    if procedure.calls == 0 {
        return;
    }
    let below = |bound: u64| {
        let within = procedure
            .latency
            .iter()
            .filter(|b| b.below_us.is_some_and(|us| us <= bound));
        within.fold(0u64, |sum, bucket| sum.saturating_add(bucket.calls))
    };
    let all = procedure
        .latency
        .iter()
        .fold(0u64, |sum, b| sum.saturating_add(b.calls));
    let bucket = |(bound, count): (f64, u64)| {
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(bound);
        bucket.set_cumulative_count(count);
        bucket
    };
    let bounds = BOUNDS_US.map(|bound| (bound as f64 / 1e6, below(bound)));
    let help = "Time of calls, from their beginning to their end.";
    to.add(
        MetricType::HISTOGRAM,
        "procedure_duration_seconds",
        help,
        &labels,
        |metric| {
            // The encoder adds the bucket without an upper bound.
            let mut histogram = Histogram::default();
            histogram.set_bucket(bounds.map(bucket).to_vec());
            histogram.set_sample_sum(procedure.total_ns as f64 / 1e9);
            histogram.set_sample_count(all);
            metric.set_histogram(histogram);
        },
    );
}

fn limits(document: &Document, mount: Label<'_>, to: &mut Families) {
    let limits = &document.limits;
    let gauges = [
        (
            "fs_cache_limit_bytes",
            "Most that is cached (option cache).",
            limits.cache_bytes,
        ),
        (
            "fs_dirty_limit_bytes",
            "Most that waits to be written (option dirty).",
            limits.dirty_bytes,
        ),
        (
            "pool_limit_bytes",
            "Buffer pool: cache and messages.",
            limits.pool_bytes,
        ),
        (
            "read_size_bytes",
            "Largest READ (rsize in force).",
            limits.rsize,
        ),
        (
            "write_size_bytes",
            "Largest WRITE (wsize in force).",
            limits.wsize,
        ),
    ];
    for (name, help, value) in gauges {
        to.gauge(name, help, &[mount], value as f64);
    }
}

fn process(document: &Document, mount: Label<'_>, to: &mut Families) {
    let process = &document.process;
    let help = "User and system time of the serving process.";
    to.counter(
        "process_cpu_seconds_total",
        help,
        &[mount],
        process.cpu_ns as f64 / 1e9,
    );
    let gauges = [
        (
            "process_resident_memory_bytes",
            "Resident memory of the serving process.",
            process.resident_bytes,
        ),
        (
            "process_virtual_memory_bytes",
            "Address space of the serving process.",
            process.virtual_bytes,
        ),
        (
            "process_open_fds",
            "Open descriptors of the serving process.",
            process.open_descriptors,
        ),
        (
            "process_max_fds",
            "Most descriptors it may open.",
            process.descriptor_limit,
        ),
        (
            "process_threads",
            "Threads of the serving process.",
            process.threads,
        ),
    ];
    for (name, help, value) in gauges {
        to.gauge(name, help, &[mount], value as f64);
    }
}

fn connection(link: &Connection, labels: &[Label<'_>], to: &mut Families) {
    let states = [
        ("up", "Whether it is connected.", u64::from(link.connected)),
        (
            "silent",
            "Whether others are used because the server could not be heard on its path.",
            u64::from(link.silent),
        ),
        ("credits_wanted", "Credits asked for.", link.credits_wanted),
        (
            "credits_granted",
            "Credits the server grants.",
            link.credits_granted,
        ),
        (
            "credits_in_use",
            "Calls sent and not answered.",
            link.credits_in_use,
        ),
        (
            "waiting",
            "Calls that wait for a credit or for the connection.",
            link.waiting,
        ),
        (
            "open_registrations",
            "Registrations the server can use at this moment.",
            link.open_registrations,
        ),
    ];
    for (name, help, value) in states {
        to.gauge(&format!("connection_{name}"), help, labels, value as f64);
    }
    for (name, help, value) in link.counters.list() {
        let full = format!("connection_{name}_total");
        to.counter(&full, &format!("{help}."), labels, value as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::super::document::Bucket as Filled;
    use super::*;

    fn document() -> Document {
        let bucket = |below_us, calls| Filled { below_us, calls };
        Document {
            directory: "/m\"\\\n".into(),
            procedures: vec![
                Procedure {
                    name: "READ".into(),
                    calls: 4,
                    errors: 3,
                    statuses: [("STALE".to_owned(), 2)].into(),
                    total_ns: 1_500_000_000,
                    latency: vec![bucket(Some(2), 1), bucket(Some(64), 1), bucket(None, 2)],
                    ..Procedure::default()
                },
                Procedure {
                    name: "MKNOD".into(),
                    ..Procedure::default()
                },
            ],
            cache: [
                ("read_hits".to_owned(), 7),
                ("inodes".to_owned(), 8),
                ("b d".to_owned(), 9),
            ]
            .into(),
            connections: ["10.0.0.1:20049", "10.0.1.1:20049"]
                .map(|path| Connection {
                    path: path.into(),
                    ..Connection::default()
                })
                .into(),
            ..Document::default()
        }
    }

    fn once_described(text: &str) {
        let mut types: Vec<_> = text.lines().filter(|l| l.starts_with("# TYPE")).collect();
        let all = types.len();
        types.sort_unstable();
        types.dedup();
        assert_eq!(types.len(), all, "a family is described twice: {text}");
    }

    #[test]
    fn families_labels_and_buckets() {
        let text = render(&document());
        let labels = r#"mount="/m\"\\\n",procedure="READ""#;
        for line in [
            format!("nfsrdma_procedure_calls_total{{{labels}}} 4"),
            format!("nfsrdma_procedure_errors_by_status_total{{{labels},status=\"STALE\"}} 2"),
            format!("nfsrdma_procedure_errors_by_status_total{{{labels},status=\"NONE\"}} 1"),
            format!("nfsrdma_procedure_duration_seconds_bucket{{{labels},le=\"0.000016\"}} 1"),
            format!("nfsrdma_procedure_duration_seconds_bucket{{{labels},le=\"0.000064\"}} 2"),
            format!("nfsrdma_procedure_duration_seconds_bucket{{{labels},le=\"+Inf\"}} 4"),
            format!("nfsrdma_procedure_duration_seconds_sum{{{labels}}} 1.5"),
            r#"nfsrdma_fs_read_hits_total{mount="/m\"\\\n"} 7"#.into(),
            r#"nfsrdma_fs_inodes{mount="/m\"\\\n"} 8"#.into(),
            r#"nfsrdma_fs_dirty_limit_bytes{mount="/m\"\\\n"} 0"#.into(),
            r#"nfsrdma_connection_up{mount="/m\"\\\n",connection="1",path="10.0.1.1:20049"} 0"#
                .into(),
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in {text}");
        }
        assert!(!text.contains("b d"));
        let buckets = text.lines().filter(|l| l.contains("_bucket{")).count();
        assert_eq!(buckets, BOUNDS_US.len() + 1, "of READ, and none of MKNOD");
        once_described(&text);
    }
}
