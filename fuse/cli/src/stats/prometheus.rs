//! The counters as Prometheus text (exposition format 0.0.4).

use super::document::{Document, Procedure, STATES};
use std::fmt::{self, Write};

/// A label's value, escaped.
struct Label<'a>(&'a str);

impl fmt::Display for Label<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '\\' => f.write_str("\\\\")?,
                '"' => f.write_str("\\\"")?,
                '\n' => f.write_str("\\n")?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

/// Whether a word can be part of a metric's name.
fn is_name(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// All metrics of one mount.
pub(super) fn render(document: &Document) -> String {
    let mut out = String::new();
    // Writing into a string does not fail.
    let _ = write(document, &mut out);
    out
}

fn family(out: &mut String, name: &str, kind: &str, help: &str) -> fmt::Result {
    writeln!(out, "# HELP nfsrdma_{name} {help}")?;
    writeln!(out, "# TYPE nfsrdma_{name} {kind}")
}

fn write(document: &Document, out: &mut String) -> fmt::Result {
    let mount = format!("mount=\"{}\"", Label(&document.directory));
    family(
        out,
        "info",
        "gauge",
        "What is mounted, and the program that serves it.",
    )?;
    writeln!(
        out,
        "nfsrdma_info{{{mount},source=\"{}\",transport=\"{}\",version=\"{}\"}} 1",
        Label(&document.source),
        Label(&document.transport),
        Label(&document.version)
    )?;
    family(out, "age_seconds", "gauge", "Time since the mount.")?;
    writeln!(
        out,
        "nfsrdma_age_seconds{{{mount}}} {}",
        document.age_ns as f64 / 1e9
    )?;
    procedures(document, &mount, out)?;
    for (name, value) in &document.cache {
        if !is_name(name) {
            continue;
        }
        let (suffix, kind) = match STATES.contains(&name.as_str()) {
            true => ("", "gauge"),
            false => ("_total", "counter"),
        };
        let words = name.replace('_', " ");
        let full = format!("fs_{name}{suffix}");
        family(out, &full, kind, &format!("File system: {words}."))?;
        writeln!(out, "nfsrdma_{full}{{{mount}}} {value}")?;
    }
    connections(document, &mount, out)
}

fn procedures(document: &Document, mount: &str, out: &mut String) -> fmt::Result {
    type Value = fn(&Procedure) -> f64;
    let counters: [(&str, &str, Value); 8] = [
        ("calls_total", "Calls that ended.", |p| p.calls as f64),
        ("errors_total", "Calls that ended without NFS3_OK.", |p| {
            p.errors as f64
        }),
        ("resends_total", "Calls sent again.", |p| p.resends as f64),
        ("timeouts_total", "Times a call ran out of time.", |p| {
            p.timeouts as f64
        }),
        ("sent_bytes_total", "RPC message bytes sent.", |p| {
            p.bytes_sent as f64
        }),
        ("received_bytes_total", "RPC message bytes received.", |p| {
            p.bytes_received as f64
        }),
        (
            "queue_seconds_total",
            "Time before the last sending.",
            |p| p.queue_ns as f64 / 1e9,
        ),
        (
            "round_trip_seconds_total",
            "Time after the last sending.",
            |p| p.round_trip_ns as f64 / 1e9,
        ),
    ];
    for (name, help, value) in counters {
        let full = format!("procedure_{name}");
        family(out, &full, "counter", help)?;
        for procedure in &document.procedures {
            let label = Label(&procedure.name);
            writeln!(
                out,
                "nfsrdma_{full}{{{mount},procedure=\"{label}\"}} {}",
                value(procedure)
            )?;
        }
    }
    let full = "procedure_duration_seconds";
    family(
        out,
        full,
        "histogram",
        "Time of calls, from their beginning to their end.",
    )?;
    for procedure in &document.procedures {
        let labels = format!("{mount},procedure=\"{}\"", Label(&procedure.name));
        let mut sum = 0u64;
        // Every document has the same bounds: a histogram must not change them.
        for shift in 0..nfsrdma_rpcrdma::stats::LATENCY_BUCKETS - 1 {
            let below = 1u64 << shift;
            let filled = procedure.latency.iter().find(|b| b.below_us == Some(below));
            sum = sum.saturating_add(filled.map_or(0, |bucket| bucket.calls));
            writeln!(
                out,
                "nfsrdma_{full}_bucket{{{labels},le=\"{}\"}} {sum}",
                below as f64 / 1e6
            )?;
        }
        let rest = procedure.latency.iter().find(|b| b.below_us.is_none());
        sum = sum.saturating_add(rest.map_or(0, |bucket| bucket.calls));
        writeln!(out, "nfsrdma_{full}_bucket{{{labels},le=\"+Inf\"}} {sum}")?;
        let total = procedure.total_ns as f64 / 1e9;
        writeln!(out, "nfsrdma_{full}_sum{{{labels}}} {total}")?;
        writeln!(out, "nfsrdma_{full}_count{{{labels}}} {sum}")?;
    }
    Ok(())
}

fn connections(document: &Document, mount: &str, out: &mut String) -> fmt::Result {
    type Value = fn(&super::document::Connection) -> u64;
    let states: [(&str, &str, Value); 6] = [
        ("up", "Whether it is connected.", |c| c.connected.into()),
        ("credits_wanted", "Credits asked for.", |c| c.credits_wanted),
        ("credits_granted", "Credits the server grants.", |c| {
            c.credits_granted
        }),
        ("credits_in_use", "Calls sent and not answered.", |c| {
            c.credits_in_use
        }),
        (
            "waiting",
            "Calls that wait for a credit or for the connection.",
            |c| c.waiting,
        ),
        (
            "leases",
            "Registrations the server can use at this moment.",
            |c| c.leases,
        ),
    ];
    for (name, help, value) in states {
        let full = format!("connection_{name}");
        family(out, &full, "gauge", help)?;
        for (index, connection) in document.connections.iter().enumerate() {
            let value = value(connection);
            writeln!(
                out,
                "nfsrdma_{full}{{{mount},connection=\"{index}\"}} {value}"
            )?;
        }
    }
    let lists: Vec<_> = document
        .connections
        .iter()
        .map(|c| c.counters.list())
        .collect();
    let Some(first) = lists.first() else {
        return Ok(());
    };
    for (at, (name, help, _)) in first.iter().enumerate() {
        let full = format!("connection_{name}_total");
        family(out, &full, "counter", &format!("{help}."))?;
        for (index, list) in lists.iter().enumerate() {
            let value = list[at].2;
            writeln!(
                out,
                "nfsrdma_{full}{{{mount},connection=\"{index}\"}} {value}"
            )?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::document::{Bucket, Connection};
    use super::*;

    #[test]
    fn families_labels_and_buckets() {
        let bucket = |below_us, calls| Bucket { below_us, calls };
        let document = Document {
            directory: "/m\"\\\n".into(),
            procedures: vec![Procedure {
                name: "READ".into(),
                calls: 3,
                total_ns: 1_500_000_000,
                latency: vec![bucket(Some(2), 1), bucket(None, 2)],
                ..Procedure::default()
            }],
            cache: [
                ("read_hits".to_owned(), 7),
                ("inodes".to_owned(), 8),
                ("b d".to_owned(), 9),
            ]
            .into(),
            connections: vec![Connection::default(); 2],
            ..Document::default()
        };
        let text = render(&document);
        let labels = r#"mount="/m\"\\\n",procedure="READ""#;
        for line in [
            format!("nfsrdma_procedure_calls_total{{{labels}}} 3"),
            format!("nfsrdma_procedure_duration_seconds_bucket{{{labels},le=\"0.000001\"}} 0"),
            format!("nfsrdma_procedure_duration_seconds_bucket{{{labels},le=\"0.000002\"}} 1"),
            format!("nfsrdma_procedure_duration_seconds_bucket{{{labels},le=\"+Inf\"}} 3"),
            format!("nfsrdma_procedure_duration_seconds_sum{{{labels}}} 1.5"),
            r#"nfsrdma_fs_read_hits_total{mount="/m\"\\\n"} 7"#.into(),
            r#"nfsrdma_fs_inodes{mount="/m\"\\\n"} 8"#.into(),
            r#"nfsrdma_connection_up{mount="/m\"\\\n",connection="1"} 0"#.into(),
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in {text}");
        }
        assert!(!text.contains("b d"));
        // Each family is described once, before its samples.
        let mut types: Vec<_> = text.lines().filter(|l| l.starts_with("# TYPE")).collect();
        let all = types.len();
        types.sort_unstable();
        types.dedup();
        assert_eq!(types.len(), all);
    }
}
