//! The state of the status monitor for a restart: its state number, and the hosts to notify.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// The file with the record, in the form `state N`, then `host ADDRESS` lines.
#[derive(Debug)]
pub(super) struct RecordFile {
    path: PathBuf,
}

impl RecordFile {
    pub(super) fn in_directory(dir: &Path) -> Self {
        RecordFile {
            path: dir.join("nsm"),
        }
    }

    /// Loads the state and the hosts. If there is no file, they are state 1 and no hosts.
    pub(super) fn load(&self) -> io::Result<(u32, Vec<IpAddr>)> {
        let text = match std::fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((1, Vec::new())),
            Err(error) => return Err(error),
        };
        Ok(parse(&text))
    }

    /// Replaces the file atomically.
    pub(super) fn save(&self, state: u32, hosts: &BTreeSet<IpAddr>) -> io::Result<()> {
        let new = self.path.with_extension("new");
        std::fs::write(&new, format(state, hosts))?;
        std::fs::rename(&new, &self.path)
    }
}

fn format(state: u32, hosts: &BTreeSet<IpAddr>) -> String {
    hosts.iter().fold(format!("state {state}\n"), |text, host| {
        text + &format!("host {host}\n")
    })
}

/// Parses the file. Other lines are ignored.
fn parse(text: &str) -> (u32, Vec<IpAddr>) {
    let of = |word: &'static str| {
        text.lines()
            .filter_map(move |line| line.strip_prefix(word)?.strip_prefix(' '))
    };
    let state = of("state").find_map(|state| state.parse().ok());
    let hosts = of("host").filter_map(|host| host.parse().ok());
    (state.unwrap_or(1), hosts.collect())
}
