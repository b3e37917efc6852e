//! `log`: changes how much a mount logs while it is at work.

use super::cli::LogArgs;
use super::control;
use super::failure::Failure;
use super::{log, reach};
use serde::Deserialize;

/// What the serving process says if it does not refuse: the level in force.
#[derive(Debug, Deserialize)]
struct Answer {
    #[serde(rename = "level")]
    _level: String,
}

/// Runs `log`.
pub(super) fn run(args: &LogArgs) -> Result<(), Failure> {
    let dir = &args.dir;
    let mount = reach::mount(dir)?;
    let request = format!("{}{}", log::REQUEST, args.level);
    let answer = control::ask(&mount.device, mount.owner, &request)
        .map_err(|error| reach::failure(dir, error))?;
    reach::refusal(dir, &answer)?;
    serde_json::from_slice::<Answer>(&answer)
        .map(|_| ())
        .map_err(|error| reach::other_version(dir, error))
}
