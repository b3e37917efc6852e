//! What the file system must know of the way to a server, besides the procedures.

pub use nfsrdma_rpcrdma::transport::Driver;
use std::time::Duration;

/// The connections to a server, and what was agreed with it. The defaults are those of a server that
/// is called directly, without connections.
pub trait Transport: Send + Sync + 'static {
    /// The limits of the server from FSINFO, further reduced by the mount's options.
    fn limits(&self) -> Limits;
    /// Whether the server has NFS_ACL.
    fn has_acl(&self) -> bool {
        false
    }
    /// Number of calls that wait to be sent with others ([`nfsrdma_rpcrdma::exec::deferring`]).
    fn deferred(&self) -> u32 {
        0
    }
    /// Sends the deferred calls.
    fn kick(&self) {}
    /// Whether no call is under way or waits to be sent, so that none can free memory.
    /// Implementations that do not know return false.
    fn is_idle(&self) -> bool {
        false
    }
    /// The connection slots, for event loops to poll; empty where there is nothing to poll.
    fn drivers(&self) -> Vec<Driver> {
        Vec::new()
    }
    /// Ends after `time`, or when the connections are given up if that is earlier.
    fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Send;
    /// How many calls the server accepts at a time (credits, RFC 8166 section 3.3.1), over all
    /// connections; further calls wait in the client.
    fn calls_at_a_time(&self) -> usize {
        64
    }
}

/// The sizes in force, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Largest READ.
    pub rtmax: u32,
    /// Largest WRITE.
    pub wtmax: u32,
    /// Size of READDIR and READDIRPLUS results to ask for.
    pub dtpref: u32,
    pub max_file_size: u64,
}
