//! What systemd's hook has the mounts do before and after this machine sleeps. Nothing here keeps the machine awake: what
//! could not be done is said, for the journal.

use crate::failure::Failure;
use crate::ipc::control;
use crate::ipc::sleep_request::{AFTER, Answer, BEFORE, LIMIT};
use crate::mounts::{self, Mount};
use crate::output;
use crate::stats::mount_list::no_table;
use crate::stats::text::bytes;
use std::collections::HashSet;
use std::thread;
use std::time::Duration;

pub(crate) fn run(after: bool) -> Result<(), Failure> {
    let mut mounts = mounts::ours().map_err(no_table)?;
    let mut seen = HashSet::new();
    // It may be mounted at several places.
    mounts.retain(|mount| seen.insert(mount.device.clone()));
    thread::scope(|scope| {
        for mount in &mounts {
            let ask = move || ask(mount, after);
            if thread::Builder::new().spawn_scoped(scope, ask).is_err() {
                ask();
            }
        }
    });
    Ok(())
}

/// One that nobody serves has nothing to do.
fn ask(mount: &Mount, after: bool) {
    let request = if after { AFTER } else { BEFORE };
    let limit = LIMIT + Duration::from_secs(2);
    let Ok(line) = control::ask_within(&mount.device, mount.owner, request, limit) else {
        return;
    };
    let Ok(Answer { left, waiting }) = serde_json::from_slice(&line) else {
        return;
    };
    let dir = mount.dir.display();
    if !after && left > 0 {
        output::message(format_args!(
            "{dir}: {} are not at the server yet, and are written after the sleep",
            bytes(left)
        ));
    }
    if !after && waiting > 0 {
        output::message(format_args!(
            "{dir}: calls have waited long for the server, and Linux does not sleep while programs wait for them: 'nfsrdma umount -f {dir}' ends that"
        ));
    }
}
