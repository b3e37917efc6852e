//! The statistics of all mounts of this mount namespace, from their control sockets.
//!
//! Asks at most [`MOST`] mounts, [`AT_A_TIME`] of them in parallel, and waits [`ANSWER_LIMIT`] for
//! each. A mount whose process does not answer is silent, and delays only the caller.

use crate::failure::{Exit, Failure};
use crate::ipc::client;
use crate::ipc::control::{self, AskError};
use crate::ipc::pending::{self, Pending, Place};
use crate::mounts::{self, Mount};
use crate::stats::document::Document;
use std::collections::HashSet;
use std::io;
use std::sync::Mutex;
use std::time::Duration;

/// Most mounts that are listed.
const MOST: usize = 1024;
/// Mounts asked in parallel.
const AT_A_TIME: usize = 16;
/// How long to wait for the answer of a mount.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(3);

/// A process that can be asked.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Target {
    Mounted(Mount),
    Pending(Place),
}

/// A mount, and what its process answered.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ListedMount {
    /// SERVER:/EXPORT.
    pub(crate) source: String,
    pub(crate) directory: String,
    pub(crate) state: MountState,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum MountState {
    Answers(Box<Document>),
    /// The mount exists, but its process gave no statistics, for this reason.
    Silent(String),
    /// Attempts to mount are going on.
    Pending(Pending),
}

/// All mounts in the order of the table of mounts, followed by attempts to mount. A file system
/// that is mounted at several places is listed for each.
pub(crate) fn targets() -> io::Result<Vec<Target>> {
    let mounted = mounts::ours()?.into_iter();
    let pending = pending::places().into_iter().map(Target::Pending);
    Ok(mounted
        .map(Target::Mounted)
        .chain(pending)
        .take(MOST)
        .collect())
}

impl Target {
    /// Asks the process. `None` for an attempt to mount that has ended meanwhile.
    pub(crate) fn ask(&self, limit: Duration) -> Option<ListedMount> {
        match self {
            Target::Mounted(mount) => {
                let source = mount.source.to_string_lossy().into_owned();
                let directory = mount.dir.to_string_lossy().into_owned();
                let state = match document(mount, limit) {
                    Ok(document) => {
                        let document = document.of_mount(source.clone(), directory.clone());
                        MountState::Answers(Box::new(document))
                    }
                    Err(why) => MountState::Silent(why),
                };
                Some(ListedMount {
                    source,
                    directory,
                    state,
                })
            }
            Target::Pending(place) => place.ask(limit).map(|pending| ListedMount {
                source: pending.source.clone(),
                directory: pending.directory.clone(),
                state: MountState::Pending(pending),
            }),
        }
    }
}

/// What its process says of a mount, or why it does not.
pub(crate) fn document(mount: &Mount, limit: Duration) -> Result<Document, String> {
    let answer = control::ask_within(&mount.device, mount.owner, control::STATS, limit);
    let answer = answer.map_err(|error| match error {
        AskError::Unreachable(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            control::OF_ANOTHER.to_owned()
        }
        AskError::Unreachable(_) => {
            "its process has ended, or runs in another mount namespace".to_owned()
        }
        AskError::Broken(error) => format!("its process does not answer: {error}"),
    })?;
    client::refusal(&mount.dir, &answer).map_err(|failure| failure.message)?;
    Document::read(mount, &answer)
        .map_err(|_| "its process is of another version: mount again".to_owned())
}

/// Asks all mounts, several in parallel. The result has the order of [`targets`].
pub(crate) fn all() -> io::Result<Vec<ListedMount>> {
    let targets = targets()?;
    let next = Mutex::new(targets.iter().enumerate());
    let found = Mutex::new(Vec::new());
    let lock_next = || {
        next.lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .next()
    };
    std::thread::scope(|scope| {
        for _ in 0..targets.len().min(AT_A_TIME) {
            scope.spawn(|| {
                while let Some((at, target)) = lock_next() {
                    if let Some(answer) = target.ask(ANSWER_LIMIT) {
                        let mut found = found.lock().unwrap_or_else(|p| p.into_inner());
                        found.push((at, answer));
                    }
                }
            });
        }
    });
    let mut found = found.into_inner().unwrap_or_else(|p| p.into_inner());
    found.sort_by_key(|(at, _)| *at);
    Ok(found.into_iter().map(|(_, answer)| answer).collect())
}

/// Keeps one mount for each directory, the topmost one, because metrics are labelled by directory.
pub(crate) fn on_top(mut found: Vec<ListedMount>) -> Vec<ListedMount> {
    let mut seen = HashSet::new();
    found.reverse();
    // An existing mount goes before an attempt to mount on the same directory.
    found.sort_by_key(|one| matches!(one.state, MountState::Pending(_)));
    found.retain(|one| seen.insert(one.directory.clone()));
    found.reverse();
    found
}

/// The error if the table of mounts cannot be read.
pub(crate) fn no_table(error: io::Error) -> Failure {
    Failure::new(
        Exit::System,
        format!("cannot read the table of mounts: {error}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_on_top_counts() {
        let found = |directory: &str, source: &str, pending: bool| ListedMount {
            source: source.into(),
            directory: directory.into(),
            state: match pending {
                true => MountState::Pending(Pending::default()),
                false => MountState::Silent(String::new()),
            },
        };
        let kept = on_top(vec![
            found("/a", "below", false),
            found("/b", "x", false),
            found("/a", "above", false),
            found("/a", "later", true),
            found("/c", "later", true),
        ]);
        let kept: Vec<_> = kept
            .iter()
            .map(|one| (one.directory.as_str(), one.source.as_str()))
            .collect();
        assert_eq!(kept.len(), 3);
        assert!(kept.contains(&("/a", "above")), "{kept:?}");
    }
}
