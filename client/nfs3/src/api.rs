//! What the file system may ask of an NFSv3 server.
//!
//! [`Nfs3`] is implemented by the engine (`Nfs3Client`) and, for tests, by servers in
//! memory and by wrappers that inject faults. A call is retried beneath this trait as the
//! mount's `hard`, `soft` and `softerr` say; what comes back is final. Replies that the
//! caller asked for are already checked: at most the bytes wanted, at most the names' bound,
//! names that are components.

pub use nfsrdma_rpcrdma::rpc::{Cred, Credential};
pub use nfsrdma_rpcrdma::transport::Driver;

use nfsrdma_rdma::contract::Segs;
use nfsrdma_rdma::{Buf, BufMut};
use nfsrdma_xdr::nfs3::{
    Attributes, FileHandle, FsinfoOk, FsstatOk, LinkWcc, PathconfOk, RenameWcc, SetAttributes,
    SpecData, Stable, Status, Verifier, WccData,
};
use nfsrdma_xdr::posix_acl::PosixAcl;
use std::future::Future;
use thiserror::Error;

/// Why a call has no result.
#[derive(Debug, Clone, Error)]
pub enum NfsError {
    /// The server ran the procedure and refused.
    #[error("server answered {}", .0.name())]
    Status(Status),
    /// The server does not accept the caller's credential (RFC 5531 section 8.2, auth_stat).
    #[error("server refused the caller: {0}")]
    Denied(String),
    /// The server did not run the procedure: RPC-level refusal (program, version, procedure,
    /// arguments), or an RDMA_ERROR (RFC 8166 section 4.5), in words.
    #[error("server refused the call: {0}")]
    Refused(String),
    /// No answer in the time a `softerr` mount allows, or mounting.
    #[error("no answer from the server in time")]
    TimedOut,
    /// No answer in the time a `soft` mount allows, which programs see as an I/O error.
    #[error("no answer from the server in time")]
    GivenUp,
    /// The reply is not what the protocol allows, or contradicts the call.
    #[error("server misbehaved: {0}")]
    PeerMisbehaved(String),
    /// This machine lacks something (buffers, descriptors).
    #[error("{0}")]
    Local(String),
    /// The caller gave up, or the mount is going away.
    #[error("interrupted")]
    Interrupted,
}

pub type NfsResult<T> = Result<T, NfsError>;

/// An object the server just named.
#[derive(Debug, Clone, Copy)]
pub struct Found {
    pub object: FileHandle,
    pub attributes: Option<Attributes>,
    pub dir: Option<Attributes>,
}

/// An object the server just made. A handle or attributes the server left out are looked up
/// by the implementation only if free; the caller must handle `None`.
#[derive(Debug, Clone, Copy)]
pub struct Made {
    pub object: Option<FileHandle>,
    pub attributes: Option<Attributes>,
    pub dir: WccData,
}

/// What READ returned.
#[derive(Debug)]
pub struct ReadDone {
    pub attributes: Option<Attributes>,
    /// The sinks again, in order. The first `count` bytes are the file's; whatever lies behind
    /// is undefined and must not be shown to anybody.
    pub data: Segs<BufMut>,
    pub count: u32,
    pub eof: bool,
}

/// What WRITE returned.
#[derive(Debug, Clone, Copy)]
pub struct WriteDone {
    pub wcc: WccData,
    /// Bytes written, at least 1 unless none was sent, at most those sent.
    pub count: u32,
    pub committed: Stable,
    pub verifier: Verifier,
}

/// How to create a regular file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateMode {
    /// Takes an existing file.
    Unchecked,
    /// EXIST if there is one.
    Guarded,
    /// EXIST if there is one that this call did not make: safe across a retransmission. The
    /// implementation picks the verifier and sets the attributes by SETATTR afterwards.
    Exclusive,
}

/// A special file to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    Character(SpecData),
    Block(SpecData),
    Socket,
    Fifo,
}

/// The access control lists of an object. Empty stands for none: the mode alone, or nothing to
/// inherit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Acls {
    pub access: PosixAcl,
    /// Of a directory only.
    pub default: PosixAcl,
}

/// Which lists a SETACL has. Linux's server takes away one that is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetLists {
    pub access: bool,
    /// Of a directory only.
    pub default: bool,
}

/// One directory entry, owned.
#[derive(Debug, Clone)]
pub struct DirEntry {
    pub fileid: u64,
    /// A component; never empty, no slash, no NUL. May be `.` or `..`.
    pub name: Box<[u8]>,
    /// Position after this entry.
    pub cookie: u64,
    /// READDIRPLUS only.
    pub attributes: Option<Attributes>,
    /// READDIRPLUS only.
    pub handle: Option<FileHandle>,
}

/// Part of a directory.
#[derive(Debug, Clone)]
pub struct DirPage {
    pub dir: Option<Attributes>,
    pub verifier: Verifier,
    pub entries: Vec<DirEntry>,
    pub eof: bool,
}

/// An NFSv3 server, as the file system sees it. Each call is one procedure of RFC 1813.
///
/// Futures run to their end by `nfsrdma_rpcrdma::exec::spawn` or tokio; dropping one abandons the
/// call, whose buffers stay with the engine until the reply.
#[rustfmt::skip]
pub trait Nfs3: Send + Sync + 'static {
    fn getattr(&self, cred: &Cred, object: &FileHandle)
        -> impl Future<Output = NfsResult<Attributes>> + Send;
    /// `guard`: refuse with NOT_SYNC unless ctime is this.
    fn setattr(&self, cred: &Cred, object: &FileHandle, new: &SetAttributes, guard: Option<nfsrdma_xdr::nfs3::Time>)
        -> impl Future<Output = NfsResult<WccData>> + Send;
    fn lookup(&self, cred: &Cred, dir: &FileHandle, name: &[u8])
        -> impl Future<Output = NfsResult<Found>> + Send;
    /// Which of the `wanted` bits of `nfs3::access` are granted, and attributes.
    fn access(&self, cred: &Cred, object: &FileHandle, wanted: u32)
        -> impl Future<Output = NfsResult<(u32, Option<Attributes>)>> + Send;
    fn readlink(&self, cred: &Cred, symlink: &FileHandle)
        -> impl Future<Output = NfsResult<(Vec<u8>, Option<Attributes>)>> + Send;
    /// Reads as many bytes as `sink` holds (the caller keeps that within `limits().rtmax`).
    fn read(&self, cred: &Cred, file: &FileHandle, offset: u64, sink: Segs<BufMut>)
        -> impl Future<Output = NfsResult<ReadDone>> + Send;
    /// Writes all of `data` (within `limits().wtmax`); the server may take less.
    fn write(&self, cred: &Cred, file: &FileHandle, offset: u64, data: Segs<Buf>, stable: Stable)
        -> impl Future<Output = NfsResult<WriteDone>> + Send;
    /// `count` 0 means to the end.
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
    /// `count`: most bytes of the results.
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
    /// GETACL of NFS_ACL; of a directory with what it hands on.
    fn getacl(&self, _cred: &Cred, _object: &FileHandle, _directory: bool)
        -> impl Future<Output = NfsResult<(Option<Attributes>, Acls)>> + Send {
        async { Err(NfsError::Status(Status::NotSupp)) }
    }
    /// SETACL of some of the lists, an empty one to take it away.
    fn setacl(&self, _cred: &Cred, _object: &FileHandle, _acls: &Acls, _lists: SetLists)
        -> impl Future<Output = NfsResult<Option<Attributes>>> + Send {
        async { Err(NfsError::Status(Status::NotSupp)) }
    }
    /// What the server and this connection allow, from FSINFO at mount, option limits
    /// applied.
    fn limits(&self) -> Limits;
    /// Calls that wait to be sent with others: see [`nfsrdma_rpcrdma::exec::deferring`].
    fn deferred(&self) -> u32 {
        0
    }
    /// Sends them.
    fn kick(&self) {}
    /// Whether no call is under way or waits to be sent, so that none can give memory back. False
    /// where that is not known.
    fn is_idle(&self) -> bool {
        false
    }
    /// The connections, for event loops to poll; none where there is nothing to poll.
    fn drivers(&self) -> Vec<Driver> {
        Vec::new()
    }

    /// Calls that the server takes at a time (credits, RFC 8166 section 3.3.1), over all
    /// connections; more wait here.
    fn calls_at_a_time(&self) -> usize {
        64
    }
}

/// Sizes in force, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Largest READ.
    pub rtmax: u32,
    /// Largest WRITE.
    pub wtmax: u32,
    /// READDIR and READDIRPLUS results to ask for.
    pub dtpref: u32,
    pub max_file_size: u64,
}
