//! What can go wrong with a connection, by whose fault it was.

use std::io;
use thiserror::Error;

/// Result of the provider contract.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a provider. Cloneable, because it may end many calls at once.
#[derive(Debug, Clone, Error)]
pub enum Error {
    /// This machine lacks something: memory, descriptors, permission, a device.
    /// The text is one sentence that names the remedy.
    #[error("{what}: {error}")]
    Local {
        what: String,
        error: std::sync::Arc<io::Error>,
    },
    /// More work requests than the queue was made for.
    #[error("the send queue is full")]
    QueueFull,
    /// The caller broke the contract (a length, a state).
    #[error("misuse of the provider: {0}")]
    Misuse(&'static str),
    /// Nobody answered within the time allowed for connecting.
    #[error("no answer in time while {0}")]
    TimedOut(&'static str),
    /// The peer's machine answered that it does not listen, or the connection was rejected
    /// with these private data.
    #[error("connection refused by the peer{}", if .0.is_empty() { "" } else { " (rejected)" })]
    Refused(Vec<u8>),
    /// The peer took the transport connection, and what is at its port does not speak RDMA:
    /// it closed the connection over the greeting, or answered in another protocol.
    #[error("the port is open and does not speak RDMA: {0}")]
    NotRdma(String),
    /// The peer's bytes are not what the protocol allows.
    #[error("peer misbehaved: {0}")]
    PeerMisbehaved(String),
    /// The peer ended the connection and said why (an RDMAP Terminate, a rejected request).
    #[error("peer reported: {0}")]
    PeerReported(String),
    /// The connection ended: closed, reset, device removed.
    #[error("link lost: {0}")]
    LinkLost(String),
}

impl Error {
    /// A [`Error::Local`] of an I/O error.
    pub fn local(what: impl Into<String>, error: io::Error) -> Self {
        Error::Local {
            what: what.into(),
            error: std::sync::Arc::new(error),
        }
    }
}
