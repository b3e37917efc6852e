//! Formats the counters for people.

use super::connection::paths;
use super::document::{CACHES, Document, Procedure, STATES};
use crate::output::plain;
use nfsrdma_rpcrdma::words::counted;
use std::fmt::{self, Write};

/// `3.2 MB`; powers of 1000.
pub(crate) fn bytes(number: u64) -> String {
    scaled(
        number as f64,
        &[(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")],
        "B",
    )
}

/// Microseconds as `12 us`, `3.4 ms`, `5.6 s`.
pub(crate) fn time(micros: Option<f64>) -> String {
    match micros {
        None => "-".to_owned(),
        Some(micros) => scaled(micros, &[(1e6, "s"), (1e3, "ms")], "us"),
    }
}

fn scaled(number: f64, units: &[(f64, &str)], smallest: &str) -> String {
    // From where on the smaller unit would be rounded to 1000 of it.
    match units.iter().find(|(size, _)| number >= *size * 0.99995) {
        Some((size, unit)) => format!("{:.1} {unit}", number / size),
        None => format!("{number:.0} {smallest}"),
    }
}

pub(crate) fn age(nanoseconds: u64) -> String {
    let seconds = nanoseconds / 1_000_000_000;
    match (
        seconds / 86400,
        seconds / 3600 % 24,
        seconds / 60 % 60,
        seconds % 60,
    ) {
        (0, 0, 0, s) => format!("{s} s"),
        (0, 0, m, s) => format!("{m} min {s} s"),
        (0, h, m, _) => format!("{h} h {m} min"),
        (d, h, _, _) => format!("{d} d {h} h"),
    }
}

/// Which calls have waited long, if there are any.
pub(crate) fn waits(document: &Document) -> Option<String> {
    let since = age(document.waits.oldest_ns);
    match document.waits.calls {
        0 => None,
        1 => Some(format!("1 call waits, for {since}")),
        calls => Some(format!("{calls} calls wait, the oldest for {since}")),
    }
}

/// How long ago, and how often, the program was started again, if it was.
pub(crate) fn restarted(document: &Document) -> Option<String> {
    let since = age(document.restarted_ns);
    match document.restarts {
        0 => None,
        1 => Some(format!("restarted {since} ago")),
        times => Some(format!("restarted {since} ago, {times} times in all")),
    }
}

/// Says that the mount ends with its process although it was to outlive it, if that is so.
pub(crate) fn unprotected(document: &Document) -> Option<&'static str> {
    document.unprotected.then_some(
        "unprotected: the process that keeps this mount is gone, and if its own process dies, the mount ends; unmount and mount again",
    )
}

/// Says that every call fails, if that is so.
pub(crate) fn stale(document: &Document) -> Option<&'static str> {
    document.stale.then_some(
        "stale: the server does not know this export any longer; unmount, and mount again",
    )
}

/// How many users of a mount with Kerberos have a context, and for how long.
fn kerberos(document: &Document) -> Option<String> {
    let kerberos = document.kerberos?;
    let contexts = counted(kerberos.contexts, "context");
    let first = match kerberos.contexts {
        1 => "it",
        _ => "the first",
    };
    Some(match kerberos.expires_ns {
        Some(left) => format!("Kerberos: {contexts}, {first} expires in {}", age(left)),
        None => format!("Kerberos: {contexts}"),
    })
}

/// How many calls wait, whether long or not.
pub(crate) fn waiting(calls: u64) -> String {
    let verb = if calls == 1 { "waits" } else { "wait" };
    format!("{} {verb}", counted(calls, "call"))
}

fn mean(total_ns: u64, calls: u64) -> Option<f64> {
    (calls > 0).then(|| total_ns as f64 / calls as f64 / 1e3)
}

/// Formats a page, or a shorter one if the document is a change.
pub(super) fn render(document: &Document, change: bool) -> String {
    let mut out = String::new();
    // Writing into a string does not fail.
    let _ = write(document, change, &mut out);
    out
}

fn write(document: &Document, change: bool, out: &mut String) -> fmt::Result {
    if change {
        let rates = Rates::of(document);
        writeln!(
            out,
            "in the last {:.1} s: read {}/s, write {}/s, {:.1} calls/s",
            document.age_ns as f64 / 1e9,
            bytes(rates.read as u64),
            bytes(rates.write as u64),
            rates.calls
        )?;
    } else {
        writeln!(
            out,
            "{} on {}, mounted {} ago, process {}",
            plain(&document.source),
            plain(&document.directory),
            age(document.age_ns),
            document.pid
        )?;
        writeln!(out, "options: {}", plain(&document.options))?;
    }
    if let Some(restarted) = restarted(document).filter(|_| !change) {
        writeln!(out, "{restarted}")?;
    }
    if let Some(kerberos) = kerberos(document).filter(|_| !change) {
        writeln!(out, "{kerberos}")?;
    }
    if let Some(unprotected) = unprotected(document) {
        writeln!(out, "{unprotected}")?;
    }
    if let Some(stale) = stale(document) {
        writeln!(out, "{stale}")?;
    }
    if let Some(waits) = waits(document) {
        writeln!(out, "{waits}")?;
    }
    procedures(document, change, out)?;
    caches(document, out)?;
    connections(document, change, out)
}

/// Rates per second, computed from a document that is a change.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Rates {
    /// Bytes of READ replies and of WRITE calls.
    pub(crate) read: f64,
    pub(crate) write: f64,
    /// Calls of all procedures that have ended.
    pub(crate) calls: f64,
}

impl Rates {
    pub(crate) fn of(change: &Document) -> Rates {
        let all = change.procedures.iter().map(|p| p.calls as f64).sum();
        let of = |name: &str, value: fn(&Procedure) -> u64| {
            change.procedure(name).map_or(0.0, |p| value(p) as f64)
        };
        Rates {
            read: per_second(change, of("READ", |p| p.bytes_received)),
            write: per_second(change, of("WRITE", |p| p.bytes_sent)),
            calls: per_second(change, all),
        }
    }
}

/// Divides `amount` by the seconds of a change.
pub(crate) fn per_second(change: &Document, amount: f64) -> f64 {
    let seconds = change.age_ns as f64 / 1e9;
    if seconds > 0.0 { amount / seconds } else { 0.0 }
}

/// The table of procedures: sums since the mount, or rates of a change.
fn procedures(document: &Document, change: bool, out: &mut String) -> fmt::Result {
    let [calls, sent, received] = match change {
        true => ["calls/s", "sent/s", "received/s"],
        false => ["calls", "sent", "received"],
    };
    writeln!(
        out,
        "\n{:<12} {calls:>9} {:>7} {:>11} {:>8} {sent:>9} {received:>10} {:>9} {:>9} {:>9} {:>9} {:>10}",
        "procedure",
        "errors",
        "retransmits",
        "timeouts",
        "mean",
        "p50",
        "p99",
        "queue",
        "round trip"
    )?;
    let busy = |p: &&Procedure| p.calls > 0 || p.retransmits > 0 || p.timeouts > 0;
    for procedure in document.procedures.iter().filter(busy) {
        let amount = |number: u64| match change {
            true => per_second(document, number as f64),
            false => number as f64,
        };
        let calls = match change {
            true => format!("{:.1}", amount(procedure.calls)),
            false => procedure.calls.to_string(),
        };
        writeln!(
            out,
            "{:<12} {calls:>9} {:>7} {:>11} {:>8} {:>9} {:>10} {:>9} {:>9} {:>9} {:>9} {:>10}",
            plain(&procedure.name),
            procedure.errors,
            procedure.retransmits,
            procedure.timeouts,
            bytes(amount(procedure.bytes_sent) as u64),
            bytes(amount(procedure.bytes_received) as u64),
            time(mean(procedure.total_ns, procedure.calls)),
            time(procedure.p50_us),
            time(procedure.p99_us),
            time(mean(procedure.queue_ns, procedure.calls)),
            time(mean(procedure.round_trip_ns, procedure.calls)),
        )?;
    }
    Ok(())
}

fn caches(document: &Document, out: &mut String) -> fmt::Result {
    writeln!(
        out,
        "\n{:<12} {:>9} {:>9} {:>7}",
        "cache", "hits", "misses", "rate"
    )?;
    let mut shown: Vec<&str> = STATES.to_vec();
    for (name, hits, misses) in CACHES {
        shown.extend(hits);
        shown.push(misses);
        let (hits, misses) = document.hits(hits, misses);
        let all = hits as f64 + misses as f64;
        let rate = match all > 0.0 {
            true => format!("{:.1} %", 100.0 * hits as f64 / all),
            false => "-".to_owned(),
        };
        writeln!(out, "{name:<12} {hits:>9} {misses:>9} {rate:>7}")?;
    }
    writeln!(
        out,
        "{} cached, {} of it dirty, {} known",
        bytes(document.cache_counter("cache_bytes")),
        bytes(document.cache_counter("dirty_bytes")),
        counted(document.cache_counter("inodes"), "inode")
    )?;
    let rest: Vec<_> = document
        .cache
        .iter()
        .filter(|(name, value)| **value > 0 && !shown.contains(&name.as_str()))
        .map(|(name, value)| match name.ends_with("_bytes") {
            true => format!("{} {}", plain(&name.replace('_', " ")), bytes(*value)),
            false => format!("{} {value}", plain(&name.replace('_', " "))),
        })
        .collect();
    if !rest.is_empty() {
        writeln!(out, "{}", rest.join(", "))?;
    }
    Ok(())
}

fn connections(document: &Document, change: bool, out: &mut String) -> fmt::Result {
    for (index, sum) in paths(&document.connections).iter().enumerate() {
        let begin = if index == 0 { "\n" } else { "" };
        writeln!(
            out,
            "{begin}path to {}: {} of {} up; {}, {} read, {} written",
            plain(sum.path),
            sum.up,
            counted(sum.connections as u64, "connection"),
            counted(sum.calls, "call"),
            bytes(sum.read),
            bytes(sum.written)
        )?;
    }
    for (index, connection) in document.connections.iter().enumerate() {
        let none = || "?".to_owned();
        let address = |side: &Option<String>| side.as_deref().map_or_else(none, plain);
        if connection.connected {
            writeln!(
                out,
                "\nconnection {index}: {} from {} to {}{}",
                plain(&document.transport),
                address(&connection.local),
                address(&connection.peer),
                match connection.silent {
                    true => ", where the server cannot be heard",
                    false => "",
                }
            )?;
        } else {
            let path = plain(&connection.path);
            writeln!(out, "\nconnection {index}: down, to {path}")?;
        }
        if connection.connected && !change {
            writeln!(
                out,
                "  {}; inline up to {} for calls, {} for replies",
                plain(&connection.link),
                connection.inline_call,
                connection.inline_reply
            )?;
        }
        writeln!(
            out,
            "  credits: {} in use of {} granted ({} wanted); {}; {} open",
            connection.credits_in_use,
            connection.credits_granted,
            connection.credits_wanted,
            waiting(connection.waiting),
            counted(connection.open_registrations, "registration")
        )?;
        let c = &connection.counters;
        writeln!(
            out,
            "  messages: {} sent, {} received, {}",
            c.sends,
            c.receives,
            counted(c.inline_calls, "inline call")
        )?;
        writeln!(
            out,
            "  chunks: {} read, {} position-zero, {} write, {} reply; RDMA Write {}, RDMA Read {}",
            c.read_chunks,
            c.position_zero_chunks,
            c.write_chunks,
            c.reply_chunks,
            bytes(c.rdma_write_bytes),
            bytes(c.rdma_read_bytes)
        )?;
        writeln!(
            out,
            "  registrations: {} of {}; {} ended here, {} invalidated one remotely",
            c.registrations,
            bytes(c.registered_bytes),
            c.local_invalidations,
            counted(c.remote_invalidations, "message")
        )?;
        writeln!(
            out,
            "  connects: {}, {} failed; {}, {}, {}, {}, {}",
            c.connects,
            c.connect_failures,
            counted(c.retransmits, "retransmit"),
            counted(c.timeouts, "time-out"),
            counted(c.discards, "discard"),
            counted(c.rdma_errors, "RDMA error"),
            counted(c.violations, "violation")
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_few_digits_and_their_unit() {
        let said =
            [0.4, 999.4, 999.96, 219_500.0, 999_940.0, 999_950.0, 7.5e6].map(|us| time(Some(us)));
        let wanted = [
            "0 us", "999 us", "1.0 ms", "219.5 ms", "999.9 ms", "1.0 s", "7.5 s",
        ];
        assert_eq!(said, wanted);
    }
}
