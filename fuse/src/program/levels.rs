//! `log`: changes how much a mount logs while it is at work.

use super::cli::LogArgs;
use super::control::{self, AskError};
use super::failure::{Exit, Failure};
use super::log;
use super::mounts::{self, FSTYPE};
use serde::Deserialize;
use std::io;

/// What the serving process says: one of the two.
#[derive(Debug, Deserialize)]
struct Answer {
    error: Option<String>,
    level: Option<String>,
}

/// Runs `log`.
pub(super) fn run(args: &LogArgs) -> Result<(), Failure> {
    let shown = args.dir.display();
    let failed = |message: String| Failure::new(Exit::Failed, message);
    let none = || {
        Failure::new(
            Exit::Usage,
            format!("{shown} is not an nfsrdma mount: see 'findmnt -t {FSTYPE}'"),
        )
    };
    let table = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => none(),
        _ => failed(format!("cannot look at {shown}: {error}")),
    };
    let dir = mounts::resolve(&args.dir).map_err(table)?;
    let mount = mounts::on_top_of(&dir)
        .map_err(table)?
        .filter(|mount| mount.fstype == FSTYPE)
        .ok_or_else(none)?;
    let request = format!("{}{}", log::REQUEST, args.level);
    let answer = control::ask(&mount.device, mount.owner, &request).map_err(|error| {
        failed(match error {
            AskError::Unreachable(_) => format!(
                "nobody answers for {shown}: its process has ended, or runs in another network namespace"
            ),
            other => format!("cannot ask the process that serves {shown}: {other}"),
        })
    })?;
    match serde_json::from_slice(&answer) {
        Ok(Answer { level: Some(_), .. }) => Ok(()),
        Ok(Answer { error, .. }) => {
            let error = error.unwrap_or_else(|| "without a reason".into());
            let error: String = error.chars().filter(|c| !c.is_control()).collect();
            Err(Failure::new(
                Exit::Usage,
                format!("the process that serves {shown} refuses: {error}"),
            ))
        }
        Err(error) => Err(failed(format!(
            "the process that serves {shown} is of another version: {error}; mount again"
        ))),
    }
}
