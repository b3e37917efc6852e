//! A connection slot in the statistics, and the paths that the slots take.

use nfsrdma_rpcrdma::stats::ConnectionStats;
use serde::{Deserialize, Serialize};

/// The state and counters of one connection slot.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Connection {
    pub connected: bool,
    /// Whether it is connected, and others are used because the server could not be heard on its path.
    #[serde(default)]
    pub silent: bool,
    /// Where it goes, and from where if that was asked for: `10.0.0.1:20049 from 10.0.0.8`.
    #[serde(default)]
    pub path: String,
    pub local: Option<String>,
    pub peer: Option<String>,
    /// The provider's description of the connection.
    pub link: String,
    /// The inline thresholds, in bytes.
    pub inline_call: u64,
    pub inline_reply: u64,
    pub credits_wanted: u64,
    pub credits_granted: u64,
    pub credits_in_use: u64,
    /// Calls that wait for a credit or for the connection.
    pub waiting: u64,
    /// The number of registrations that the server can access at this moment.
    #[serde(alias = "leases")]
    pub open_registrations: u64,
    pub counters: ConnectionCounters,
}

macro_rules! counters {
    ($($(#[$meta:meta])* $name:ident = $from:ident: $help:literal,)*) => {
        /// The counters of a connection slot since the mount.
        #[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
        pub struct ConnectionCounters { $($(#[$meta])* #[doc = $help] pub $name: u64,)* }

        impl ConnectionCounters {
            /// The names, descriptions and values of the counters.
            pub fn list(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((stringify!($name), $help, self.$name),)*]
            }

            pub(super) fn since(&self, before: &Self) -> Self {
                ConnectionCounters { $($name: self.$name.saturating_sub(before.$name),)* }
            }
        }

        impl From<&ConnectionStats> for ConnectionCounters {
            fn from(stats: &ConnectionStats) -> Self {
                ConnectionCounters { $($name: stats.$from,)* }
            }
        }
    };
}

counters! {
    connects = connects: "Connections made, the first included",
    connect_failures = connect_failures: "Attempts to connect that failed",
    sends = sends: "RPC-over-RDMA messages sent",
    receives = receives: "RPC-over-RDMA messages received",
    inline_calls = inline_calls: "Calls sent wholly inline",
    read_chunks = read_chunks: "Calls whose argument went by Read chunk",
    position_zero_chunks = position_zero_chunks: "Calls sent as a Position-Zero Read chunk",
    write_chunks = write_chunks: "Calls that offered a Write chunk",
    reply_chunks = reply_chunks: "Calls that offered a Reply chunk",
    rdma_write_bytes = rdma_write_bytes: "Bytes the server wrote here by RDMA Write",
    rdma_read_bytes = rdma_read_bytes: "Bytes offered in Read chunks of answered calls",
    #[serde(alias = "exposures")]
    registrations = exposures: "Registrations of memory for the server",
    #[serde(alias = "exposed_bytes")]
    registered_bytes = exposed_bytes: "Bytes of memory registered for the server",
    local_invalidations = local_invalidations: "Registrations ended here",
    remote_invalidations = remote_invalidations: "Messages by which the server invalidated a handle",
    #[serde(alias = "resends")]
    retransmits = retransmits: "Calls retransmitted on a new connection",
    timeouts = timeouts: "Times a call ran out of time",
    discards = discards: "Messages thrown away without notice",
    rdma_errors = rdma_errors: "Calls ended by RDMA_ERROR",
    violations = violations: "Replies discarded because their chunks are not those that were offered",
}

impl From<&ConnectionStats> for Connection {
    fn from(stats: &ConnectionStats) -> Self {
        Connection {
            connected: stats.connected,
            silent: stats.silent,
            path: stats.path.map_or_else(String::new, |path| path.to_string()),
            local: stats.local.map(|address| address.to_string()),
            peer: stats.peer.map(|address| address.to_string()),
            link: stats.link.clone(),
            inline_call: stats.inline_call,
            inline_reply: stats.inline_reply,
            credits_wanted: stats.credits_wanted.into(),
            credits_granted: stats.credits.into(),
            credits_in_use: stats.in_flight,
            waiting: stats.waiting,
            open_registrations: stats.open_registrations,
            counters: stats.into(),
        }
    }
}

impl Connection {
    /// One word.
    pub fn state(&self) -> &'static str {
        match (self.connected, self.silent) {
            (false, _) => "down",
            (true, true) => "silent",
            (true, false) => "up",
        }
    }
}

/// The connections of one path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PathSum<'a> {
    pub(crate) path: &'a str,
    pub(crate) up: usize,
    pub(crate) connections: usize,
    pub(crate) calls: u64,
    /// Bytes of file data that came, and that went.
    pub(crate) read: u64,
    pub(crate) written: u64,
}

/// The paths of a mount, in their order; none if there is only one.
pub(crate) fn paths(connections: &[Connection]) -> Vec<PathSum<'_>> {
    let mut all: Vec<PathSum<'_>> = Vec::new();
    for link in connections {
        let at = all.iter().position(|known| known.path == link.path);
        let at = at.unwrap_or_else(|| {
            all.push(PathSum {
                path: &link.path,
                up: 0,
                connections: 0,
                calls: 0,
                read: 0,
                written: 0,
            });
            all.len() - 1
        });
        let (sum, counters) = (&mut all[at], &link.counters);
        sum.up += usize::from(link.state() == "up");
        sum.connections += 1;
        sum.calls = sum.calls.saturating_add(counters.sends);
        sum.read = sum.read.saturating_add(counters.rdma_write_bytes);
        sum.written = sum.written.saturating_add(counters.rdma_read_bytes);
    }
    match all.len() {
        1 => Vec::new(),
        _ => all,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_summed_by_their_path() {
        let link = |path: &str, connected, sends| Connection {
            connected,
            path: path.into(),
            counters: ConnectionCounters {
                sends,
                rdma_read_bytes: 10 * sends,
                ..ConnectionCounters::default()
            },
            ..Connection::default()
        };
        let one = link("a", true, 1);
        assert_eq!(paths(&[one.clone(), one.clone()]), []);
        let all = [one, link("b", true, 2), link("a", false, 4)];
        let found: Vec<_> = paths(&all)
            .iter()
            .map(|sum| (sum.path, sum.up, sum.connections, sum.calls, sum.written))
            .collect();
        assert_eq!(found, [("a", 1, 2, 5, 50), ("b", 1, 1, 2, 20)]);
    }
}
