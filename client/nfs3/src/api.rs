//! The interface between the file system and an NFSv3 server.
//!
//! [`Nfs3`] is implemented by `Nfs3Client` and, for tests, by servers in memory and by wrappers
//! that inject faults. Retries happen beneath this trait, according to the mount's `hard`, `soft`
//! and `softerr`; a result is final. Replies have been checked: they have at most as many bytes as
//! were asked for. The names in directories are as the server sent them.

pub use nfsrdma_rpcrdma::rpc::{Cred, Credential};
pub use nfsrdma_rpcrdma::transport::Driver;

use nfsrdma_rdma::contract::Segs;
use nfsrdma_rdma::{Buf, BufMut};
use nfsrdma_rpcrdma::throttle::{Throttle, and_more};
use nfsrdma_xdr::nfs3::{
    Attributes, FileHandle, FsinfoOk, FsstatOk, LinkWcc, PathconfOk, RenameWcc, SetAttributes,
    SpecData, Stable, Status, Verifier, WccData,
};
use nfsrdma_xdr::posix_acl::PosixAcl;
use parking_lot::Mutex;
use std::future::Future;
use std::time::Instant;
use thiserror::Error;

/// Why a call has no result.
#[derive(Debug, Clone, Error)]
pub enum NfsError {
    /// The server ran the procedure and answered with an error status.
    #[error("server answered {}", .0.name())]
    Status(Status),
    /// The server has made the object, and then refused a call that belongs to it.
    #[error("server made the object, and then answered {}", .0.name())]
    Unfinished(Status),
    /// The server does not accept the caller's credential (RFC 5531 section 8.2, auth_stat).
    #[error("server refused the caller: {0}")]
    Denied(String),
    /// The server did not run the procedure: RPC refused it (program, version, procedure,
    /// arguments), or the answer was an RDMA_ERROR (RFC 8166 section 4.5). The reason as text.
    #[error("server refused the call: {0}")]
    Refused(String),
    /// No answer in the time that a `softerr` mount allows, or while mounting.
    #[error("no answer from the server in time")]
    TimedOut,
    /// No answer in the time that a `soft` mount allows; programs see an I/O error.
    #[error("no answer from the server in time")]
    GivenUp,
    /// The reply violates the protocol, or contradicts the call.
    #[error("server misbehaved: {0}")]
    PeerMisbehaved(String),
    /// The server ends each connection over this call, instead of answering it.
    #[error("server misbehaved: {0}")]
    Disconnects(String),
    /// A failure of this machine, such as a lack of buffers or descriptors.
    #[error("{0}")]
    Local(String),
    /// The caller gave up, or the mount is being shut down.
    #[error("interrupted")]
    Interrupted,
}

pub type NfsResult<T> = Result<T, NfsError>;

impl NfsError {
    /// The error for a server that contradicts itself, the call or the protocol. Logged, once a
    /// minute at most: the program learns no more than EIO.
    pub fn misbehaved(what: impl Into<String>) -> Self {
        static LOG: Mutex<Throttle<Instant>> = Mutex::new(Throttle::new());
        let what = what.into();
        if let Some(more) = LOG.lock().event(Instant::now()) {
            let more = and_more(more);
            tracing::warn!("a reply of the server makes no sense, its call failed: {what}{more}");
        }
        NfsError::PeerMisbehaved(what)
    }
}

/// The result of a LOOKUP.
#[derive(Debug, Clone, Copy)]
pub struct Found {
    pub object: FileHandle,
    pub attributes: Option<Attributes>,
    pub dir: Option<Attributes>,
}

/// The result of a call that creates an object. A handle or attributes that the server left out are
/// `None`, which the caller must handle.
#[derive(Debug, Clone, Copy)]
pub struct Made {
    pub object: Option<FileHandle>,
    pub attributes: Option<Attributes>,
    pub dir: WccData,
}

/// The result of a READ.
#[derive(Debug)]
pub struct ReadDone {
    pub attributes: Option<Attributes>,
    /// The sinks of the call, in order. Their first `count` bytes are the file's; the bytes after
    /// these are undefined and must not be shown to programs.
    pub data: Segs<BufMut>,
    pub count: u32,
    pub eof: bool,
}

/// The result of a WRITE.
#[derive(Debug, Clone, Copy)]
pub struct WriteDone {
    pub wcc: WccData,
    /// Bytes written: at most those sent, and at least 1 unless none were sent.
    pub count: u32,
    pub committed: Stable,
    pub verifier: Verifier,
}

/// How to create a regular file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateMode {
    /// Succeeds if the file exists already.
    Unchecked,
    /// Fails with EXIST if the name exists.
    Guarded,
    /// Fails with EXIST unless this call created the file, which is safe across retransmissions.
    /// The implementation chooses the verifier and sets the attributes by SETATTR afterwards.
    Exclusive,
}

/// The type of a special file to create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    Character(SpecData),
    Block(SpecData),
    Socket,
    Fifo,
}

/// The access control lists of an object. An empty access list means that only the mode counts, an
/// empty default list that new objects inherit nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Acls {
    pub access: PosixAcl,
    /// Directories only.
    pub default: PosixAcl,
}

/// Which lists a SETACL contains. Linux's server removes a list that is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetLists {
    pub access: bool,
    /// Directories only.
    pub default: bool,
}

/// One directory entry, owned.
#[derive(Debug, Clone)]
pub struct DirEntry {
    pub fileid: u64,
    /// As the server sent it: it may be no component (`Name::is_component`). May be `.` or `..`.
    pub name: Box<[u8]>,
    /// The position after this entry.
    pub cookie: u64,
    /// Only from READDIRPLUS.
    pub attributes: Option<Attributes>,
    /// Only from READDIRPLUS.
    pub handle: Option<FileHandle>,
}

/// A part of a directory, from READDIR or READDIRPLUS.
#[derive(Debug, Clone)]
pub struct DirPage {
    pub dir: Option<Attributes>,
    pub verifier: Verifier,
    pub entries: Vec<DirEntry>,
    pub eof: bool,
}

/// An NFSv3 server, as the file system sees it. Each method is one procedure of RFC 1813.
///
/// The futures are run by `nfsrdma_rpcrdma::exec::spawn` or by tokio. Dropping one abandons the
/// call, whose buffers stay with the transport until the reply.
#[rustfmt::skip]
pub trait Nfs3: Send + Sync + 'static {
    fn getattr(&self, cred: &Cred, object: &FileHandle)
        -> impl Future<Output = NfsResult<Attributes>> + Send;
    /// With `guard`, the call fails with NOT_SYNC unless the ctime is this one.
    fn setattr(&self, cred: &Cred, object: &FileHandle, new: &SetAttributes, guard: Option<nfsrdma_xdr::nfs3::Time>)
        -> impl Future<Output = NfsResult<WccData>> + Send;
    fn lookup(&self, cred: &Cred, dir: &FileHandle, name: &[u8])
        -> impl Future<Output = NfsResult<Found>> + Send;
    /// Returns which of the `wanted` bits of `nfs3::access` are granted, and attributes.
    fn access(&self, cred: &Cred, object: &FileHandle, wanted: u32)
        -> impl Future<Output = NfsResult<(u32, Option<Attributes>)>> + Send;
    fn readlink(&self, cred: &Cred, symlink: &FileHandle)
        -> impl Future<Output = NfsResult<(Vec<u8>, Option<Attributes>)>> + Send;
    /// Reads as many bytes as `sink` holds, which must not exceed `limits().rtmax`.
    fn read(&self, cred: &Cred, file: &FileHandle, offset: u64, sink: Segs<BufMut>)
        -> impl Future<Output = NfsResult<ReadDone>> + Send;
    /// Writes `data`, which must not exceed `limits().wtmax`; the server may write less.
    fn write(&self, cred: &Cred, file: &FileHandle, offset: u64, data: Segs<Buf>, stable: Stable)
        -> impl Future<Output = NfsResult<WriteDone>> + Send;
    /// A `count` of 0 means up to the end of the file.
    fn commit(&self, cred: &Cred, file: &FileHandle, offset: u64, count: u32)
        -> impl Future<Output = NfsResult<(WccData, Verifier)>> + Send;
    fn create(&self, cred: &Cred, dir: &FileHandle, name: &[u8], mode: CreateMode, attributes: &SetAttributes)
        -> impl Future<Output = NfsResult<Made>> + Send;
    fn mkdir(&self, cred: &Cred, dir: &FileHandle, name: &[u8], attributes: &SetAttributes)
        -> impl Future<Output = NfsResult<Made>> + Send;
    fn symlink(&self, cred: &Cred, dir: &FileHandle, name: &[u8], target: &[u8], attributes: &SetAttributes)
        -> impl Future<Output = NfsResult<Made>> + Send;
    fn mknod(&self, cred: &Cred, dir: &FileHandle, name: &[u8], special: Special, attributes: &SetAttributes)
        -> impl Future<Output = NfsResult<Made>> + Send;
    fn remove(&self, cred: &Cred, dir: &FileHandle, name: &[u8])
        -> impl Future<Output = NfsResult<WccData>> + Send;
    fn rmdir(&self, cred: &Cred, dir: &FileHandle, name: &[u8])
        -> impl Future<Output = NfsResult<WccData>> + Send;
    fn rename(&self, cred: &Cred, from_dir: &FileHandle, from: &[u8], to_dir: &FileHandle, to: &[u8])
        -> impl Future<Output = NfsResult<RenameWcc>> + Send;
    fn link(&self, cred: &Cred, file: &FileHandle, dir: &FileHandle, name: &[u8])
        -> impl Future<Output = NfsResult<LinkWcc>> + Send;
    /// `count` is the largest size of the results, in bytes.
    fn readdir(&self, cred: &Cred, dir: &FileHandle, cookie: u64, verifier: Verifier, count: u32)
        -> impl Future<Output = NfsResult<DirPage>> + Send;
    fn readdirplus(&self, cred: &Cred, dir: &FileHandle, cookie: u64, verifier: Verifier, dircount: u32, maxcount: u32)
        -> impl Future<Output = NfsResult<DirPage>> + Send;
    fn fsstat(&self, cred: &Cred, object: &FileHandle)
        -> impl Future<Output = NfsResult<FsstatOk>> + Send;
    fn fsinfo(&self, cred: &Cred, object: &FileHandle)
        -> impl Future<Output = NfsResult<FsinfoOk>> + Send;
    fn pathconf(&self, cred: &Cred, object: &FileHandle)
        -> impl Future<Output = NfsResult<PathconfOk>> + Send;
    /// Whether the server has NFS_ACL.
    fn has_acl(&self) -> bool {
        false
    }
    /// GETACL of NFS_ACL; for a directory also the default ACL.
    fn getacl(&self, _cred: &Cred, _object: &FileHandle, _directory: bool)
        -> impl Future<Output = NfsResult<(Option<Attributes>, Acls)>> + Send {
        async { Err(NfsError::Status(Status::NotSupp)) }
    }
    /// SETACL of NFS_ACL, with the lists that `_lists` selects; an empty list removes the ACL.
    fn setacl(&self, _cred: &Cred, _object: &FileHandle, _acls: &Acls, _lists: SetLists)
        -> impl Future<Output = NfsResult<Option<Attributes>>> + Send {
        async { Err(NfsError::Status(Status::NotSupp)) }
    }
    /// The limits of the server from FSINFO, further reduced by the mount's options.
    fn limits(&self) -> Limits;
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
