//! The command `upgrade`: the program that serves a mount is exchanged for the one that is installed now.

use crate::cli::UpgradeArgs;
use crate::failure::{Exit, Failure};
use crate::ipc::client;
use crate::ipc::control::{self, ANSWER_TIME, AskError};
use crate::ipc::upgrade_request::{Answer, UPGRADE};
use crate::mounts::{self, Mount};
use crate::output;
use crate::stats::mount_list::{document, no_table};
use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::time::Duration;

/// How long an upgrade may take: longer than the process that serves tries.
const LIMIT: Duration = Duration::from_secs(120);
/// Most bytes of an answer.
const ANSWER_MAX: u64 = 4096;

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
    match upgrade(dir, &client::mount(dir)?) {
        Outcome::Upgraded => Ok(()),
        Outcome::Impossible(failure) | Outcome::Failed(failure) => Err(failure),
    }
}

/// Upgrades one mount after the other, also after a failure.
fn all() -> Result<(), Failure> {
    let mut mounts = mounts::ours().map_err(no_table)?;
    let (mut seen, mut failed) = (HashSet::new(), 0);
    // Those of users come last: a package's upgrade may not have the time for a program of theirs that does not answer.
    mounts.sort_by_key(|mount| mount.owner.is_some_and(|owner| owner != 0));
    for mount in &mounts {
        // It may be mounted at several places.
        if !seen.insert(&mount.device) {
            continue;
        }
        match upgrade(&mount.dir, mount) {
            Outcome::Upgraded => {}
            Outcome::Impossible(failure) => output::message(failure),
            Outcome::Failed(failure) => {
                failed += 1;
                output::message(failure);
            }
        }
    }
    match failed {
        0 => Ok(()),
        _ => Err(Failure::failed(format!(
            "not upgraded: {failed} of {}; see above",
            seen.len()
        ))),
    }
}

fn upgrade(dir: &Path, mount: &Mount) -> Outcome {
    let shown = dir.display();
    let stream = match control::begin_to_ask(&mount.device, mount.owner, UPGRADE) {
        Ok(stream) => stream,
        Err(error) => return Outcome::Impossible(client::failure(dir, error)),
    };
    let broken = |error| Outcome::Failed(client::failure(dir, AskError::Broken(error)));
    if let Err(error) = stream.set_read_timeout(Some(LIMIT)) {
        return broken(error);
    }
    let mut line = String::new();
    if let Err(error) = BufReader::new(stream.take(ANSWER_MAX)).read_line(&mut line) {
        return broken(error);
    }
    let failed = |why: &str| format!("{shown} is not upgraded: {why}");
    match serde_json::from_str(&line) {
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

/// The program that serves a mount.
fn serving(mount: &Mount) -> String {
    match document(mount, ANSWER_TIME) {
        Ok(document) => format!("nfsrdma {}", document.version),
        Err(_) => "the new program".to_owned(),
    }
}
