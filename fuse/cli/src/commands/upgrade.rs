//! The command `upgrade`: the program that serves a mount is exchanged for the one that is installed now.

use crate::cli::UpgradeArgs;
use crate::failure::{Exit, Failure};
use crate::ipc::client;
use crate::ipc::control::{self, ANSWER_TIME, AskError};
use crate::ipc::upgrade_request::{Answer, UPGRADE};
use crate::mount::remount::REMOUNT;
use crate::mounts::{self, Mount};
use crate::output;
use crate::stats::mount_list::{document, no_table};
use rustix::process::geteuid;
use std::collections::HashSet;
use std::panic::resume_unwind;
use std::path::Path;
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

/// How long an upgrade may take: longer than the process that serves tries.
const LIMIT: Duration = Duration::from_secs(120);
/// How long other users' mounts may take, all together: a package's upgrade waits for it, and their programs may never
/// answer.
const LIMIT_OF_OTHERS: Duration = Duration::from_secs(30);

/// What became of one mount.
enum Outcome {
    Upgraded,
    /// It has no holder, or nobody serves it: for this reason there is nothing to upgrade.
    Impossible(Failure),
    Failed(Failure),
}

pub(crate) fn run(args: &UpgradeArgs) -> Result<(), Failure> {
    let Some(dir) = &args.dir else {
        return all();
    };
    match upgrade(dir, &client::mount(dir)?, LIMIT) {
        Outcome::Upgraded => Ok(()),
        Outcome::Impossible(failure) | Outcome::Failed(failure) => Err(failure),
    }
}

/// Upgrades one mount after the other, also after a failure, and then those of other users side by side.
fn all() -> Result<(), Failure> {
    let mut mounts = mounts::ours().map_err(no_table)?;
    let mut seen = HashSet::new();
    // It may be mounted at several places.
    mounts.retain(|mount| seen.insert(mount.device.clone()));
    let uid = geteuid().as_raw();
    let is_other = |mount: &Mount| mount.owner.is_some_and(|owner| owner != uid);
    let (others, own): (Vec<_>, Vec<_>) = mounts.into_iter().partition(is_other);
    let mut failed = 0;
    let mut note = |outcome: Outcome| match outcome {
        Outcome::Upgraded => {}
        Outcome::Impossible(failure) => output::message(failure),
        Outcome::Failed(failure) => {
            failed += 1;
            output::message(failure);
        }
    };
    for mount in &own {
        note(upgrade(&mount.dir, mount, LIMIT));
    }
    thread::scope(|scope| {
        let mut asked = Vec::new();
        for mount in &others {
            let ask = move || upgrade(&mount.dir, mount, LIMIT_OF_OTHERS);
            asked.push(thread::Builder::new().spawn_scoped(scope, ask));
        }
        for asked in asked {
            note(match asked.map(ScopedJoinHandle::join) {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(panic)) => resume_unwind(panic),
                Err(error) => Outcome::Failed(Failure::no_threads(error)),
            });
        }
    });
    match failed {
        0 => Ok(()),
        _ => Err(Failure::failed(format!(
            "not upgraded: {failed} of {}; see above",
            seen.len()
        ))),
    }
}

fn upgrade(dir: &Path, mount: &Mount, limit: Duration) -> Outcome {
    let shown = dir.display();
    let line = match control::ask_within(&mount.device, mount.owner, UPGRADE, limit) {
        Ok(line) => line,
        Err(error) => {
            let outcome = match error {
                AskError::Unreachable(_) => Outcome::Impossible,
                AskError::Broken(_) => Outcome::Failed,
            };
            return outcome(client::failure(dir, error));
        }
    };
    let failed = |why: &str| format!("{shown} is not upgraded: {why}");
    match serde_json::from_slice(&line) {
        Ok(Answer { upgraded: true, .. }) => {
            // If nobody reads it, it is done all the same.
            let _ = output::result(&format!("{shown}: served by {} now\n", serving(mount)));
            Outcome::Upgraded
        }
        Ok(Answer {
            error, possible, ..
        }) if possible => Outcome::Failed(Failure::failed(failed(&error))),
        Ok(Answer { error, .. }) => Outcome::Impossible(Failure::new(Exit::Usage, failed(&error))),
        Err(_) => Outcome::Failed(Failure::failed(failed(
            "its program ended meanwhile, and another one goes on, or the mount has ended: see its log",
        ))),
    }
}

/// Has another process go on with the mount on `dir` that has these options besides.
pub(crate) fn remount(dir: &Path, mount: &Mount, options: &str) -> Result<(), Failure> {
    let request = format!("{REMOUNT}{options}");
    let line = control::ask_within(&mount.device, mount.owner, &request, LIMIT)
        .map_err(|error| client::failure(dir, error))?;
    let shown = dir.display();
    let failed = |why: &str| Failure::failed(format!("{shown} has the options that it had: {why}"));
    match serde_json::from_slice(&line) {
        Ok(Answer { upgraded: true, .. }) => Ok(()),
        Ok(Answer { error, .. }) => Err(failed(&error)),
        Err(error) => Err(failed(&error.to_string())),
    }
}

/// The program that serves a mount.
fn serving(mount: &Mount) -> String {
    match document(mount, ANSWER_TIME) {
        Ok(document) => format!("nfsrdma {}", document.version),
        Err(_) => "the new program".to_owned(),
    }
}
