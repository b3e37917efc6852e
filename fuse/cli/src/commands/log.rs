//! The command `log`: shows or changes how much a running mount logs.

use crate::cli::LogArgs;
use crate::failure::Failure;
use crate::ipc::{client, control};
use crate::mount::log;
use crate::output;
use serde::Deserialize;

/// The answer of the serving process, if it is not a refusal: the level in force.
#[derive(Debug, Deserialize)]
struct Answer {
    level: String,
}

pub(crate) fn run(args: &LogArgs) -> Result<(), Failure> {
    let dir = &args.dir;
    let mount = client::mount(dir)?;
    let request = match &args.level {
        Some(level) => format!("{} {level}", log::REQUEST),
        None => log::REQUEST.to_owned(),
    };
    let answer = control::ask(&mount.device, mount.owner, &request)
        .map_err(|error| client::failure(dir, error))?;
    client::refusal(dir, &answer)?;
    let answer: Answer =
        serde_json::from_slice(&answer).map_err(|error| client::other_version(dir, error))?;
    if args.level.is_none() {
        output::result(&format!("{}\n", answer.level))?;
    }
    Ok(())
}
