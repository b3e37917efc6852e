//! `log`: shows or changes how much a mount logs while it is at work.

use super::cli::LogArgs;
use super::control;
use super::failure::Failure;
use super::output;
use super::{control_client, log};
use serde::Deserialize;

/// What the serving process says if it does not refuse: the level in force.
#[derive(Debug, Deserialize)]
struct Answer {
    level: String,
}

/// Runs `log`.
pub(super) fn run(args: &LogArgs) -> Result<(), Failure> {
    let dir = &args.dir;
    let mount = control_client::mount(dir)?;
    let request = match &args.level {
        Some(level) => format!("{} {level}", log::REQUEST),
        None => log::REQUEST.to_owned(),
    };
    let answer = control::ask(&mount.device, mount.owner, &request)
        .map_err(|error| control_client::failure(dir, error))?;
    control_client::refusal(dir, &answer)?;
    let answer: Answer = serde_json::from_slice(&answer)
        .map_err(|error| control_client::other_version(dir, error))?;
    if args.level.is_none() {
        output::result(format!("{}\n", answer.level).as_bytes())?;
    }
    Ok(())
}
