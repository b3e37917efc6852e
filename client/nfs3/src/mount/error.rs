//! Why a mount failed, and at which step.

use thiserror::Error;

/// Where mounting stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// An option has a value outside its range.
    Options,
    /// The host's name.
    Resolve,
    /// Asking rpcbind for mountd.
    Rpcbind,
    /// Reaching mountd.
    Mount,
    /// mountd's refusal (no such export, not permitted).
    Export,
    /// The RDMA connection.
    Connect,
    /// The peer's private data (RFC 8797).
    PrivateData,
    /// The first NFS call.
    Null,
    /// FSINFO, PATHCONF, or the root's attributes.
    Fsinfo,
    /// NFS_ACL, without which a server is mounted as well.
    Acl,
}

/// Why a mount failed: one sentence for people.
#[derive(Debug, Clone, Error)]
#[error("{message}")]
pub struct MountError {
    pub step: Step,
    pub message: String,
    /// Whether trying again later may help (nobody answered), or not (refused).
    pub transient: bool,
}

impl MountError {
    pub(crate) fn new(step: Step, transient: bool, message: impl Into<String>) -> Self {
        MountError {
            step,
            message: message.into(),
            transient,
        }
    }
}
