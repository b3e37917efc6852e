//! Locks of the server: NLM version 4 (The Open Group, document C702).
//!
//! NFS version 3 itself has no locks; NLM is a separate program. It is not used over RDMA: RFC 8267
//! binds only the versions of NFS to RPC-over-RDMA, and RFC 5666 and Linux reach NLM over TCP or
//! UDP at the port that rpcbind names. So do we.
//!
//! [`LockServer`] makes one call at a time and does not retry: the caller decides how often and how
//! long to try. [`NlmClient`] implements it for the server's lockd; tests have one in memory.
//! [`SvidBlock`] allocates numbers for lock owners that no other mount of this machine uses.
//! [`Journal`] records which locks a killed mount leaves behind. [`Callbacks`] receives the calls
//! of the server, and implements NSM.

mod callback;
mod client;
mod journal;
mod orphaned;
mod svid;

pub use callback::{CallbackOptions, CallbackSink, Callbacks};
pub use client::{LockPlace, NlmClient};
pub use journal::{Abandoned, Journal, Orphan};
pub use nfsrdma_xdr::nlm4::Status;
pub use svid::{SVID_BLOCK, SvidBlock};

use crate::Cred;
use nfsrdma_rpcrdma::rpc::plain::PlainError;
use nfsrdma_xdr::nfs3::FileHandle;
use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use tokio::sync::watch;

/// The range and the owner that a call is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockTarget {
    pub file: FileHandle,
    /// The number of the owner.
    pub svid: u32,
    pub offset: u64,
    /// Length in bytes; 0 means up to the end of the file, even if it grows.
    pub length: u64,
}

/// A procedure of NLM with its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockCall {
    /// Whether the lock could be granted.
    Test {
        exclusive: bool,
    },
    /// With `block`, the server calls back when the conflicting lock is released. With `reclaim`,
    /// the lock was held before the server restarted.
    Lock {
        exclusive: bool,
        block: bool,
        reclaim: bool,
    },
    /// Cancels a LOCK that was answered with [`Status::Blocked`].
    Cancel {
        exclusive: bool,
    },
    Unlock,
}

impl LockCall {
    /// The name of the procedure.
    fn name(self) -> &'static str {
        match self {
            LockCall::Test { .. } => "TEST",
            LockCall::Lock { .. } => "LOCK",
            LockCall::Cancel { .. } => "CANCEL",
            LockCall::Unlock => "UNLOCK",
        }
    }
}

/// The conflicting lock that TEST found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockHolder {
    pub exclusive: bool,
    pub svid: u32,
    pub offset: u64,
    pub length: u64,
}

/// The server's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockAnswer {
    pub status: Status,
    /// For a TEST answered with [`Status::Denied`].
    pub holder: Option<LockHolder>,
}

/// A call under way.
pub type LockFuture<'a> = Pin<Box<dyn Future<Output = Result<LockAnswer, PlainError>> + Send + 'a>>;

/// An action without a result.
pub type Done<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// A lock manager. An error is a call without an answer, which may have been run or still be run.
pub trait LockServer: Debug + Send + Sync + 'static {
    fn call<'a>(&'a self, cred: &'a Cred, target: &'a LockTarget, call: LockCall)
    -> LockFuture<'a>;

    /// NULL: whether the server answers.
    fn null(&self) -> Pin<Box<dyn Future<Output = Result<(), PlainError>> + Send + '_>>;

    /// Changes whenever the server may have restarted and forgotten all locks.
    fn suspicions(&self) -> watch::Receiver<u64>;

    /// The state number of this machine (NSM) that LOCK tells the server; 0 if there is none.
    fn state(&self) -> u32 {
        0
    }

    /// Locks are held that another process has taken: goes on as after a LOCK, with the state number that it had.
    /// Runs in tokio.
    fn resume(&self, _state: u32) {}

    /// Waits until the server has run the calls that a process which died had sent before, as far as this machine
    /// can tell: afterwards none of them undoes what is sent from now on.
    fn settled(&self) -> Done<'_> {
        Box::pin(async {})
    }

    /// Nothing has been locked or asked for during some time. `_still` tells whether that is so at
    /// a later moment.
    fn idle<'a>(&'a self, _still: &'a (dyn Fn() -> bool + Send + Sync)) -> Done<'a> {
        Box::pin(async {})
    }

    /// The mount ends: no further calls will be made. Takes a bounded time.
    fn end(&self) -> Done<'_> {
        Box::pin(async {})
    }
}
