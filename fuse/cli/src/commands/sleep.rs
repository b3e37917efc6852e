//! What systemd's hook has the mounts do before and after this machine sleeps. Nothing here keeps the machine awake: what
//! could not be done is said, for the journal.

use crate::failure::Failure;
use crate::ipc::control::{self, AskError};
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

/// How long a process that is not frozen may take to answer anything.
const AWAKE: Duration = Duration::from_secs(1);

/// One that nobody serves has nothing to do. One that was mounted from a terminal may be frozen: systemd freezes the
/// sessions of users before its hooks run, and thaws them after (since version 256). Its connection is accepted then by
/// the kernel, and nobody reads from it.
fn ask(mount: &Mount, after: bool) {
    let (device, owner) = (&mount.device, mount.owner);
    if after {
        // It is read when the process runs again, whoever waits.
        let _ = control::begin_to_ask(device, owner, AFTER);
        return;
    }
    let dir = mount.dir.display();
    match control::ask_within(device, owner, control::STATS, AWAKE) {
        Ok(_) => {}
        Err(AskError::Unreachable(_)) => return,
        Err(AskError::Broken(_)) => {
            output::message(format_args!(
                "{dir}: its process does not answer, as systemd freezes users' sessions first: what is not at the server \
                 yet is written after the sleep"
            ));
            return;
        }
    }
    let limit = LIMIT + Duration::from_secs(2);
    let Ok(line) = control::ask_within(device, owner, BEFORE, limit) else {
        return;
    };
    let Ok(Answer { left, waiting }) = serde_json::from_slice(&line) else {
        return;
    };
    if left > 0 {
        output::message(format_args!(
            "{dir}: {} are not at the server yet, and are written after the sleep",
            bytes(left)
        ));
    }
    if waiting > 0 {
        output::message(format_args!(
            "{dir}: calls have waited long for the server, and Linux does not sleep while programs wait for them: \
             'nfsrdma umount -f {dir}' ends that"
        ));
    }
}
