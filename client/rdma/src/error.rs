//! Errors of a connection, by who caused them.

use std::io;
use thiserror::Error;

/// The result of a function of the provider contract.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a provider. It can be cloned, because it may end many calls at once.
#[derive(Debug, Clone, Error)]
pub enum Error {
    /// This machine lacks memory, descriptors, permission or a device. The text is one sentence
    /// that names the remedy.
    #[error("{what}: {error}")]
    Local {
        what: String,
        error: std::sync::Arc<io::Error>,
    },
    /// More work requests were posted than the queue has room for.
    #[error("the send queue is full")]
    QueueFull,
    /// The caller violated the contract (a length, a state).
    #[error("misuse of the provider: {0}")]
    Misuse(&'static str),
    /// The peer did not answer within the time limit for connecting.
    #[error("no answer in time while {0}")]
    TimedOut(&'static str),
    /// The peer's machine answered that nobody listens, or the peer rejected the connection with
    /// these private data.
    #[error("connection refused by the peer{}", if .0.is_empty() { "" } else { " (rejected)" })]
    Refused(Vec<u8>),
    /// The peer accepted the transport connection, but does not speak RDMA: it closed the
    /// connection when it was greeted, or answered in another protocol.
    #[error("the port is open and does not speak RDMA: {0}")]
    NotRdma(String),
    /// The peer violated the protocol.
    #[error("peer misbehaved: {0}")]
    PeerMisbehaved(String),
    /// The peer ended the connection with a reason (an RDMAP Terminate, a rejected request).
    #[error("peer reported: {0}")]
    PeerReported(String),
    /// The connection ended: closed, reset, device removed.
    #[error("link lost: {0}")]
    LinkLost(String),
}

impl Error {
    /// An [`Error::Local`] for an I/O error.
    pub fn local(what: impl Into<String>, error: io::Error) -> Self {
        Error::Local {
            what: what.into(),
            error: std::sync::Arc::new(error),
        }
    }
}
