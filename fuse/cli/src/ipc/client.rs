//! Finds the process that serves a mount, for commands that send it a request.

use crate::failure::Failure;
use crate::ipc::control::{self, AskError};
use crate::mounts::{self, Mount};
use serde::Deserialize;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// The mount on `dir`, if it is one of this program.
pub(crate) fn mount(dir: &Path) -> Result<Mount, Failure> {
    mounts::find(dir).map(|(_, mount)| mount)
}

/// Sends the request to the process that serves `mount`.
pub(crate) fn connect(dir: &Path, mount: &Mount, request: &str) -> Result<UnixStream, Failure> {
    control::begin_to_ask(&mount.device, mount.owner, request).map_err(|error| failure(dir, error))
}

/// The error for a process that does not answer for `dir`.
pub(crate) fn failure(dir: &Path, error: AskError) -> Failure {
    let shown = dir.display();
    if let AskError::Unreachable(error) = &error
        && error.kind() == io::ErrorKind::PermissionDenied
    {
        return Failure::usage(format!(
            "the process that serves {shown} refuses: only root and the user who mounted it may ask"
        ));
    }
    Failure::failed(match error {
        AskError::Unreachable(_) => format!(
            "nobody answers for {shown}: its process has ended ('nfsrdma umount {shown}' takes the \
             mount away), or runs in another mount namespace (ask there)"
        ),
        other => format!("cannot ask the process that serves {shown}: {other}; see its log"),
    })
}

/// The error for an answer that cannot be decoded, as of another version of this program.
pub(crate) fn other_version(dir: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::failed(format!(
        "the process that serves {} is of another version: {error}; mount again",
        dir.display()
    ))
}

/// The error for a process that ended before it reported the end of the mount.
pub(crate) fn gone(dir: &Path) -> Failure {
    Failure::failed(format!(
        "the process that serves {} ended without a word: begin again, if it was an upgrade, a remount \
         or a restart, or see its log",
        dir.display()
    ))
}

/// The answer by which the serving process refuses a request.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Refusal {
    error: String,
}

/// Returns the error if `answer` is a refusal.
pub(crate) fn refusal(dir: &Path, answer: &[u8]) -> Result<(), Failure> {
    let Ok(Refusal { error }) = serde_json::from_slice(answer) else {
        return Ok(());
    };
    Err(Failure::usage(format!(
        "the process that serves {} refuses: {error}",
        dir.display()
    )))
}
