//! Locks of the server: NLM version 4 (The Open Group, document C702), beside NFS.
//!
//! NFS version 3 has no locks; a program of its own has them. It does not go over RDMA: RFC 8267
//! binds the versions of NFS to RPC-over-RDMA and no other program, and RFC 5666's and Linux's
//! practice is to reach it over TCP or UDP at the port that rpcbind names. So do we.
//!
//! [`LockServer`] is one call at a time, without any patience: whoever calls decides how often and
//! how long to try ([`NlmClient`] is the server's lockd, tests have one in memory). [`SvidBlock`]
//! gives numbers to lock owners that no other mount of this machine uses; [`Journal`] remembers
//! what a mount that is killed leaves locked; [`Callbacks`] is what the server says by itself, and
//! NSM.

mod callback;
mod client;
mod journal;
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

/// What a call is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockTarget {
    pub file: FileHandle,
    /// The owner, as the server knows it.
    pub svid: u32,
    pub offset: u64,
    /// 0 is to the end of the file, however it grows.
    pub length: u64,
}

/// A procedure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockCall {
    /// Whether the lock could be had.
    Test {
        exclusive: bool,
    },
    /// `block`: the server calls back when a conflicting lock is gone; `reclaim`: it was held
    /// before the server restarted.
    Lock {
        exclusive: bool,
        block: bool,
        reclaim: bool,
    },
    /// Of a LOCK that was answered with [`Status::Blocked`].
    Cancel {
        exclusive: bool,
    },
    Unlock,
}

/// A lock that conflicts, as TEST tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockHolder {
    pub exclusive: bool,
    pub svid: u32,
    pub offset: u64,
    pub length: u64,
}

/// What the server answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockAnswer {
    pub status: Status,
    /// With [`Status::Denied`] of TEST.
    pub holder: Option<LockHolder>,
}

/// A call under way.
pub type LockFuture<'a> = Pin<Box<dyn Future<Output = Result<LockAnswer, PlainError>> + Send + 'a>>;

/// What is to be done, and has no result.
pub type Done<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// A server of locks. An error is a call without an answer, which may have been run or be run
/// later.
pub trait LockServer: Debug + Send + Sync + 'static {
    fn call<'a>(&'a self, cred: &'a Cred, target: &'a LockTarget, call: LockCall)
    -> LockFuture<'a>;

    /// NULL: whether the server is there.
    fn null(&self) -> Pin<Box<dyn Future<Output = Result<(), PlainError>> + Send + '_>>;

    /// Changes when the server may have restarted, and forgotten every lock.
    fn suspicions(&self) -> watch::Receiver<u64>;

    /// Nothing is locked or asked for, and has not been for some time; `still` tells whether that
    /// is so at a later moment.
    fn idle<'a>(&'a self, _still: &'a (dyn Fn() -> bool + Send + Sync)) -> Done<'a> {
        Box::pin(async {})
    }

    /// The mount ends: no further call is made. Bounded in time.
    fn end(&self) -> Done<'_> {
        Box::pin(async {})
    }
}
