//! RPCSEC_GSS version 1 on the client's side (RFC 2203), without any mechanism.
//!
//! [`SecurityContext`] is what a mechanism provides: MICs and wrapped bodies under the keys that it
//! shares with the server. [`Context`] adds the sequence numbers, and [`Contexts`] has one for each
//! user, made when it is needed. [`reply`] finds the results of a reply, and proves them before
//! anything in it is believed. How a call is protected is in `transport`, because that is done anew
//! for each transmission.

mod context;
mod contexts;
#[cfg(test)]
#[allow(unreachable_pub, reason = "tests of other crates have the file, too")]
pub(crate) mod fake;
mod reply;
#[cfg(test)]
mod tests;

pub use context::Context;
pub use contexts::{Contexts, Establish, Establishing, Of, Security};
pub use nfsrdma_xdr::rpcsec_gss::Service;
#[cfg(feature = "test-support")]
pub use reply::open_reply;
pub(crate) use reply::{open, results_len};

use std::fmt;
use std::ops::Range;
use std::time::SystemTime;
use thiserror::Error;

/// The mechanism has failed: the context is expired, or its library is at fault.
#[derive(Debug, Clone, Error)]
#[error("the security context cannot be used: {0}")]
pub struct Broken(pub String);

/// Why there is no context for a user. The texts are sentences for people, without the secrets.
#[derive(Debug, Clone, Error)]
pub enum NoContext {
    /// The user has no ticket, or the server or its realm does not accept it.
    #[error("{0}")]
    NoCredential(String),
    /// The user's ticket has expired.
    #[error("{0}")]
    Expired(String),
    /// It is not known: the key distribution centre or the server does not answer.
    #[error("{0}")]
    Unavailable(String),
}

impl NoContext {
    /// The ticket is over for a server whose clock is ahead of this machine's.
    pub fn expired_at_the_server() -> Self {
        let why = "the Kerberos ticket has expired by the server's clock; get a new one by kinit";
        NoContext::Expired(why.to_owned())
    }
}

/// A context of a mechanism that client and server have established.
///
/// It is used by several threads at once. Nothing it says about itself may change. `Debug` must not
/// show keys or tokens.
pub trait SecurityContext: fmt::Debug + Send + Sync {
    /// The server's name for the context, at most
    /// [`MAX_HANDLE_LEN`](nfsrdma_xdr::rpcsec_gss::MAX_HANDLE_LEN) bytes.
    fn handle(&self) -> &[u8];
    /// How bodies are protected.
    fn service(&self) -> Service;
    /// How many sequence numbers up to the highest the server accepts (RFC 2203 section 5.2.3.1).
    fn window(&self) -> u32;
    /// When the server will no longer accept it; `None` if that is not known.
    fn expires(&self) -> Option<SystemTime>;
    /// Bytes of each MIC.
    fn mic_len(&self) -> usize;
    /// What wrapping adds to a message of any length, in bytes.
    fn wrap_overhead(&self) -> usize;
    /// Makes the MIC of a message in pieces. `mic` has [`SecurityContext::mic_len`] bytes.
    fn mic(&self, message: &[&[u8]], mic: &mut [u8]) -> Result<(), Broken>;
    /// Whether the server made this MIC of this message.
    fn verify(&self, message: &[u8], mic: &[u8]) -> bool;
    /// Encrypts a message in pieces into `wrapped`, which is
    /// [`SecurityContext::wrap_overhead`] bytes longer than the message.
    fn wrap(&self, message: &[&[u8]], wrapped: &mut [u8]) -> Result<(), Broken>;
    /// Decrypts in place what the server has wrapped, with confidentiality. Returns where the message
    /// is; `None` if the server did not make this.
    fn unwrap(&self, wrapped: &mut [u8]) -> Option<Range<usize>>;
}
