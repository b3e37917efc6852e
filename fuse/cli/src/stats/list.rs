//! The table of all mounts, with a row for each.

use super::document::{Document, Procedure};
use super::mount_list::{ListedMount, MountState};
use super::text::{age, bytes, stale, unprotected, waits};
use crate::output::plain;
use nfsrdma_rpcrdma::words::counted;
use serde::Serialize;

/// A mount as `--json` prints it.
#[derive(Debug, Serialize)]
pub(crate) struct Entry<'a> {
    source: &'a str,
    directory: &'a str,
    /// `up`, `down` (no connection to the server), `waiting` (calls have waited long),
    /// `stale` (the server does not know the export any longer), `silent` (its process does not answer) or
    /// `pending` (attempts to mount are going on).
    state: &'static str,
    /// Why the mount is silent, or why the last attempt failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stats: Option<&'a Document>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pending: Option<&'a crate::ipc::pending::Pending>,
}

/// Whether a call could be sent now.
pub(crate) fn is_connected(document: &Document) -> bool {
    document
        .connections
        .iter()
        .any(|connection| connection.connected)
}

/// What is wrong with a mount whose process answers.
pub(crate) fn trouble(document: &Document) -> Option<String> {
    match (is_connected(document), waits(document)) {
        (true, waits) => {
            let told = stale(document).map(str::to_owned).or(waits);
            told.or_else(|| unprotected(document).map(str::to_owned))
        }
        (false, None) => Some("not connected".to_owned()),
        (false, Some(waits)) => Some(format!("not connected, {waits}")),
    }
}

pub(crate) fn entry(found: &ListedMount) -> Entry<'_> {
    let entry = Entry {
        source: &found.source,
        directory: &found.directory,
        state: "silent",
        error: None,
        stats: None,
        pending: None,
    };
    match &found.state {
        MountState::Answers(document) => Entry {
            state: match (is_connected(document), document.waits.calls) {
                (false, _) => "down",
                (true, _) if document.stale => "stale",
                (true, 0) => "up",
                (true, _) => "waiting",
            },
            stats: Some(document),
            ..entry
        },
        MountState::Silent(why) => Entry {
            error: Some(why),
            ..entry
        },
        MountState::Pending(pending) => Entry {
            state: "pending",
            error: Some(&pending.error),
            pending: Some(pending),
            ..entry
        },
    }
}

/// What is shown for a figure that is not known.
const NONE: &str = "-";

/// The titles of the table. Options and notes may be long, so they are last.
const TITLES: [&str; 10] = [
    "TARGET", "SOURCE", "STATE", "AGE", "CALLS", "READ", "WRITTEN", "PID", "OPTIONS", "NOTE",
];
const OPTIONS: usize = 8;
const NOTE: usize = 9;

/// The fields of a row, in the order of [`TITLES`].
fn row(found: &ListedMount) -> [String; 10] {
    let state = entry(found).state.to_owned();
    let [age_ns, calls, read, written, pid, options, note] = match &found.state {
        MountState::Answers(document) => figures(document),
        MountState::Silent(why) => {
            let note = format!("no answer: {}", plain(why));
            [NONE, NONE, NONE, NONE, NONE, NONE, &note].map(str::to_owned)
        }
        MountState::Pending(pending) => [
            age(pending.age_ns),
            NONE.to_owned(),
            NONE.to_owned(),
            NONE.to_owned(),
            pending.pid.to_string(),
            plain(&pending.options),
            format!(
                "being tried{}, {}: {}",
                if pending.background {
                    " in the background"
                } else {
                    ""
                },
                counted(pending.attempts, "attempt"),
                plain(&pending.error)
            ),
        ],
    };
    let (target, source) = (plain(&found.directory), plain(&found.source));
    [
        target, source, state, age_ns, calls, read, written, pid, options, note,
    ]
}

/// The fields after the state, of a mount whose process answers.
fn figures(document: &Document) -> [String; 7] {
    let calls: u64 = document
        .procedures
        .iter()
        .map(|of| of.calls)
        .fold(0, u64::saturating_add);
    let of =
        |name: &str, value: fn(&Procedure) -> u64| bytes(document.procedure(name).map_or(0, value));
    [
        age(document.age_ns),
        calls.to_string(),
        of("READ", |of| of.bytes_received),
        of("WRITE", |of| of.bytes_sent),
        document.pid.to_string(),
        plain(&document.options),
        trouble(document).unwrap_or_default(),
    ]
}

/// Formats all mounts for people: a row for each, with the options in force if they are wanted, and
/// with notes if there are any.
pub(super) fn table(found: &[ListedMount], options: bool) -> String {
    let rows: Vec<_> = found.iter().map(row).collect();
    let notes = rows.iter().any(|row| !row[NOTE].is_empty());
    let is_shown = |at: usize| match at {
        OPTIONS => options,
        NOTE => notes,
        _ => true,
    };
    let titles = TITLES.map(str::to_owned);
    let lines = || std::iter::once(&titles).chain(&rows);
    let width = |at: usize| lines().map(|line| line[at].chars().count()).max();
    let shown: Vec<_> = (0..TITLES.len()).filter(|at| is_shown(*at)).collect();
    let widths: Vec<_> = shown.iter().map(|at| width(*at).unwrap_or(0)).collect();
    let line = |fields: &[String; 10]| {
        let padded = shown
            .iter()
            .zip(&widths)
            .map(|(at, width)| format!("{:<width$}", fields[*at]));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    lines().map(line).collect()
}
