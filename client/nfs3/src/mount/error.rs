//! Why a mount failed, and at which step.

use thiserror::Error;

/// The step at which mounting failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// An option has a value outside its range.
    Options,
    /// Resolving the host's name.
    Resolve,
    /// The host's name is not known.
    Name,
    /// Asking rpcbind for mountd.
    Rpcbind,
    /// Calling mountd.
    Mount,
    /// mountd's answer (no such export, not permitted).
    Export,
    /// Making the RDMA connection.
    Connect,
    /// Negotiating with the peer's private data (RFC 8797).
    PrivateData,
    /// The first NFS call.
    Null,
    /// Making the security context of the user who mounts.
    Context,
    /// FSINFO, PATHCONF, or the root's attributes.
    Fsinfo,
    /// Asking for NFS_ACL. A server without it is mounted, too.
    Acl,
    /// Asking for NLM. A server without it is mounted, too.
    Locks,
}

/// Why a mount failed, as one sentence for users.
#[derive(Debug, Clone, Error)]
#[error("{message}")]
pub struct MountError {
    pub step: Step,
    pub message: String,
    /// Whether a later attempt may succeed (no answer) or not (refused).
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
