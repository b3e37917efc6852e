//! The identity of this machine and process, for AUTH_SYS.

use crate::api::{Cred, Credential};
use crate::options::ClientOptions;
use std::sync::Arc;

/// The host's name.
pub(crate) fn machine_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "localhost".to_owned(),
        name => name.to_owned(),
    }
}

/// The machine's name in AUTH_SYS credentials: that of the options, or the host's.
pub(super) fn machine_name_of(options: &ClientOptions) -> String {
    options.machine_name.clone().unwrap_or_else(machine_name)
}

/// This process's own credential, with its file system IDs; user nobody if /proc does not tell.
pub fn own_credential() -> Cred {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    Arc::new(parse(&status))
}

/// Parses /proc/PID/status. A line has the real, effective, saved and file system ID.
fn parse(status: &str) -> Credential {
    const NOBODY: u32 = 65534;
    let numbers = |key: &str| -> Vec<u32> {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        let words = line.unwrap_or_default().split_whitespace();
        words.filter_map(|word| word.parse().ok()).collect()
    };
    Credential {
        uid: *numbers("Uid:").get(3).unwrap_or(&NOBODY),
        gid: *numbers("Gid:").get(3).unwrap_or(&NOBODY),
        groups: numbers("Groups:"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_read() {
        let text = "Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9 10 \n";
        let cred = parse(text);
        assert_eq!((cred.uid, cred.gid, cred.groups), (4, 8, vec![9, 10]));
        assert_eq!(parse("").uid, 65534);
    }
}
