//! A mount, by what the process says that serves it.

use super::report::{Finding, Report};
use crate::ipc::control::OF_ANOTHER;
use crate::mounts::Mount;
use crate::stats::Document;
use crate::stats::list::trouble;
use crate::stats::mount_list::{self, ANSWER_LIMIT, MountState, document};
use crate::stats::text::age;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Asks the process that serves `mount`. `None` if it does not answer.
pub(super) fn examine(mount: &Mount, report: &mut Report) -> Option<Document> {
    const CHECK: &str = "process";
    let dir = mount.dir.display();
    let document = match document(mount, ANSWER_LIMIT) {
        Ok(document) => document,
        Err(why) if why == OF_ANOTHER => {
            let found = format!("{dir}: {why}");
            report.add(Finding::warn(CHECK, found, "ask as one of them"));
            return None;
        }
        Err(why) => {
            report.add(Finding::fail(
                CHECK,
                format!("{dir}: {why}"),
                format!("see its log; 'nfsrdma umount {dir}' takes a dead mount away, 'nfsrdma umount -f {dir}' one that hangs"),
            ));
            return None;
        }
    };
    report.add(match trouble(&document) {
        Some(trouble) => Finding::fail(
            CHECK,
            format!("{dir}: {trouble}"),
            "the checks below say why, or else the log of the mount",
        ),
        None => Finding::ok(
            CHECK,
            format!(
                "process {} serves {dir} for {}",
                document.pid,
                age(document.age_ns)
            ),
        ),
    });
    report.add(program(&document, mount));
    report.add(faults(&document));
    Some(document)
}

/// Says of each mount, and of each attempt to mount, whether it is in trouble.
pub(super) fn all(report: &mut Report) {
    const CHECK: &str = "mount";
    for mount in mount_list::all().unwrap_or_default() {
        let dir = &mount.directory;
        let what = format!("{} on {dir}", mount.source);
        let trouble = match &mount.state {
            MountState::Answers(document) => trouble(document),
            MountState::Silent(why) => Some(why.clone()),
            MountState::Pending(pending) => Some(format!("not mounted yet: {}", pending.error)),
        };
        report.add(match trouble {
            None => Finding::ok(CHECK, what),
            Some(why) => Finding::fail(
                CHECK,
                format!("{what}: {why}"),
                match mount.state {
                    MountState::Pending(_) => format!("'nfsrdma doctor {}'", mount.source),
                    _ => format!("'nfsrdma doctor {dir}'"),
                },
            ),
        });
    }
}

/// The device and the inode of a file.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = fs::metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

/// Whether the program that serves is the one that is installed.
fn program(document: &Document, mount: &Mount) -> Finding {
    const CHECK: &str = "version";
    let remedy = format!(
        "'nfsrdma upgrade {0}' if it has restart=, else unmount {0} and mount it again",
        mount.dir.display()
    );
    let own = env!("CARGO_PKG_VERSION");
    if document.version != own {
        let found = format!("version {} serves, this is {own}", document.version);
        return Finding::warn(CHECK, found, remedy);
    }
    let running = Path::new("/proc")
        .join(document.pid.to_string())
        .join("exe");
    let Ok(path) = fs::read_link(&running) else {
        return Finding::ok(CHECK, format!("{own}, which serves and is installed"));
    };
    // What the kernel adds to the name of a file that was removed or replaced.
    let name = path.to_string_lossy().into_owned();
    let there = Path::new(name.strip_suffix(" (deleted)").unwrap_or(&name));
    match identity(there) {
        same if same == identity(&running) => {
            Finding::ok(CHECK, format!("{own}, which serves and is installed"))
        }
        Some(_) => Finding::warn(
            CHECK,
            format!("{} was replaced after the mount was made", there.display()),
            remedy,
        ),
        None => Finding::warn(
            CHECK,
            format!("{}, which serves, was removed", there.display()),
            "install the package again: a mount with restart= could not be started again",
        ),
    }
}

/// What the server did wrong since the mount was made.
fn faults(document: &Document) -> Finding {
    const CHECK: &str = "faults";
    let sum = |of: fn(&crate::stats::document::ConnectionCounters) -> u64| {
        let counters = document.connections.iter().map(|one| of(&one.counters));
        counters.fold(0, u64::saturating_add)
    };
    let calls = document.procedures.iter();
    let timeouts = calls.map(|of| of.timeouts).fold(0, u64::saturating_add);
    let mut found = Vec::new();
    for (count, what) in [
        (sum(|of| of.violations), "replies discarded"),
        (sum(|of| of.rdma_errors), "calls ended by RDMA_ERROR"),
        (sum(|of| of.connect_failures), "failed connects"),
        (timeouts, "time-outs"),
    ] {
        if count > 0 {
            found.push(format!("{count} {what}"));
        }
    }
    match found.is_empty() {
        true => Finding::ok(
            CHECK,
            "no time-outs and no wrong replies since the mount was made",
        ),
        false => Finding::warn(
            CHECK,
            format!("{} since the mount was made", found.join(", ")),
            "the log of the mount tells of outages; after `nfsrdma log DIR debug` also of what was discarded and of failed connects",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Verdict;
    use super::*;
    use crate::stats::document::{Connection, ConnectionCounters};

    fn with(counters: ConnectionCounters) -> Document {
        Document {
            connections: vec![Connection {
                connected: true,
                counters,
                ..Connection::default()
            }],
            ..Document::default()
        }
    }

    #[test]
    fn faults_of_the_server_are_counted() {
        assert_eq!(
            faults(&with(ConnectionCounters::default())).verdict,
            Verdict::Ok
        );
        let found = faults(&with(ConnectionCounters {
            violations: 2,
            connect_failures: 3,
            ..ConnectionCounters::default()
        }));
        assert_eq!(found.verdict, Verdict::Warn);
        assert_eq!(
            found.found,
            "2 replies discarded, 3 failed connects since the mount was made"
        );
    }
}
