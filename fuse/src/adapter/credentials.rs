//! Who asks: the request's uid and gid, and the groups of its process.

use nfsrdma_channel::Header;
use nfsrdma_client::nfs::{Cred, Credential};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A process may change its groups, and its number may go to another process.
const BELIEVED: Duration = Duration::from_secs(1);
/// Processes remembered.
const MOST: usize = 4096;

type Key = (u32, u32, u32);

/// Credentials of processes seen lately.
#[derive(Debug, Default)]
pub(super) struct Credentials {
    known: Mutex<HashMap<Key, (Instant, Cred)>>,
}

impl Credentials {
    /// The credential of a request. The kernel sends no supplementary groups; /proc has them.
    /// Process 0 is one outside this PID namespace, or the kernel itself: no groups are known.
    pub(super) fn of(&self, request: &Header) -> Cred {
        let key = (request.pid(), request.uid(), request.gid());
        let now = Instant::now();
        if let Some((at, cred)) = self.known.lock().get(&key)
            && now.duration_since(*at) < BELIEVED
        {
            return cred.clone();
        }
        let groups = match key.0 {
            0 => Vec::new(),
            pid => std::fs::read(format!("/proc/{pid}/status"))
                .map(|status| groups(&status))
                .unwrap_or_default(),
        };
        let new = Credential {
            uid: key.1,
            gid: key.2,
            groups,
        };
        let mut known = self.known.lock();
        if known.len() >= MOST {
            known.retain(|_, (at, _)| now.duration_since(*at) < BELIEVED);
            if known.len() >= MOST {
                known.clear();
            }
        }
        // The same credential is the same allocation as long as it is remembered.
        let cred = match known.get(&key) {
            Some((_, old)) if **old == new => old.clone(),
            _ => Arc::new(new),
        };
        known.insert(key, (now, cred.clone()));
        cred
    }
}

/// The line `Groups:` of /proc/PID/status.
fn groups(status: &[u8]) -> Vec<u32> {
    String::from_utf8_lossy(status)
        .lines()
        .find_map(|line| line.strip_prefix("Groups:"))
        .map(|line| {
            line.split_whitespace()
                .filter_map(|g| g.parse().ok())
                .collect()
        })
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_a_status_file() {
        let status = b"Name:\tcat\nUid:\t0\t0\t0\t0\nGroups:\t4 24 1000 \nVmPeak:\t1 kB\n";
        assert_eq!(groups(status), [4, 24, 1000]);
        assert!(groups(b"Groups:\t \n").is_empty());
        assert!(groups(b"").is_empty());
    }
}
