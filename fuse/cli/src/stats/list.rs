//! The list of all mounts, with a line for each.

use super::document::Document;
use super::mount_list::{ListedMount, MountState};
use super::text::{age, stale, waits};
use crate::output::plain;
use nfsrdma_rpcrdma::words::counted;
use serde::Serialize;

/// A mount as `--json` prints it.
#[derive(Debug, Serialize)]
pub(super) struct Entry<'a> {
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
        (true, waits) => stale(document).map(str::to_owned).or(waits),
        (false, None) => Some("not connected".to_owned()),
        (false, Some(waits)) => Some(format!("not connected, {waits}")),
    }
}

pub(super) fn entry(found: &ListedMount) -> Entry<'_> {
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

/// Formats a mount as a line for people.
pub(super) fn line(found: &ListedMount) -> String {
    let (source, directory) = (plain(&found.source), plain(&found.directory));
    match &found.state {
        MountState::Answers(document) => {
            let state = trouble(document).unwrap_or_else(|| "up".to_owned());
            format!(
                "{source} on {directory}: {state}, mounted {} ago, process {}, options {}",
                age(document.age_ns),
                document.pid,
                plain(&document.options)
            )
        }
        MountState::Silent(why) => format!("{source} on {directory}: no answer: {}", plain(why)),
        MountState::Pending(pending) => format!(
            "{source} on {directory}: being tried for {}{}, {}, process {}, options {}: {}",
            age(pending.age_ns),
            if pending.background {
                " in the background"
            } else {
                ""
            },
            counted(pending.attempts, "attempt"),
            pending.pid,
            if pending.options.is_empty() {
                "none".into()
            } else {
                plain(&pending.options)
            },
            plain(&pending.error)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipc::pending::Pending;

    #[test]
    fn a_line_of_each_kind() {
        let found = |state| ListedMount {
            source: "srv:/x".into(),
            directory: "/mnt/a\nb".into(),
            state,
        };
        let document = Document {
            age_ns: 61_000_000_000,
            pid: 7,
            options: "rw,hard".into(),
            ..Document::default()
        };
        let answers = found(MountState::Answers(Box::new(document)));
        assert_eq!(
            line(&answers),
            "srv:/x on /mnt/a?b: not connected, mounted 1 min 1 s ago, process 7, options rw,hard"
        );
        let pending = found(MountState::Pending(Pending {
            pid: 8,
            background: true,
            attempts: 3,
            error: "nobody\nis there".into(),
            ..Pending::default()
        }));
        assert_eq!(
            line(&pending),
            "srv:/x on /mnt/a?b: being tried for 0 s in the background, 3 attempts, process 8, \
             options none: nobody?is there"
        );
        let json = serde_json::to_value(entry(&found(MountState::Silent("gone".into())))).unwrap();
        assert_eq!(json["state"], "silent");
        assert_eq!(json["error"], "gone");
        assert!(json.get("stats").is_none());
    }
}
