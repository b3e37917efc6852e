//! The interface between the file system and an NFSv3 server.
//!
//! [`Nfs3`] has the procedures, whose list is [`procedures!`](crate::procedures); what else the file
//! system must know of the way to the server is [`Transport`]. Both are implemented by `Nfs3Client`
//! and, for tests, by servers in memory and by wrappers that inject faults. Retries happen beneath this trait, according to the mount's `hard`, `soft`
//! and `softerr`; a result is final. Replies have been checked: they have at most as many bytes as
//! were asked for. The names in directories are as the server sent them.

pub use nfsrdma_rpcrdma::rpc::{Cred, Credential};

use crate::transport::Transport;
use nfsrdma_rdma::contract::Segs;
use nfsrdma_rdma::{Buf, BufMut};
use nfsrdma_rpcrdma::throttle::{Throttle, and_more};
use nfsrdma_xdr::nfs3::{
    Attributes, FileHandle, FsinfoOk, FsstatOk, LinkWcc, PathconfOk, RenameWcc, SetAttributes,
    SpecData, Stable, Status, Verifier, WccData,
};
use nfsrdma_xdr::posix_acl::PosixAcl;
use parking_lot::Mutex;
use smallvec::SmallVec;
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
    /// The caller cannot prove who it is: it has no ticket, or none that the server accepts.
    #[error("{0}")]
    NoCredential(String),
    /// The caller's ticket has expired.
    #[error("{0}")]
    Expired(String),
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

/// A name in a listing. Most need no allocation.
pub type EntryName = SmallVec<[u8; 32]>;

/// One directory entry, owned.
#[derive(Debug, Clone)]
pub struct DirEntry {
    pub fileid: u64,
    /// As the server sent it: it may be no component (`Name::is_component`). May be `.` or `..`.
    pub name: EntryName,
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

/// Every procedure once: its name, its arguments behind the credential, and its results. `$make!` is
/// given the list, and makes what treats all procedures alike: the trait [`Nfs3`], and wrappers of it.
/// It sees the types that are imported where `procedures!` stands.
#[macro_export]
macro_rules! procedures {
    ($make:ident) => {
        $make! {
            getattr(object: &FileHandle) -> Attributes;
            setattr(object: &FileHandle, new: &SetAttributes) -> WccData;
            lookup(dir: &FileHandle, name: &[u8]) -> Found;
            /// Returns which of the `wanted` bits of `nfs3::access` are granted, and attributes.
            access(object: &FileHandle, wanted: u32) -> (u32, Option<Attributes>);
            readlink(symlink: &FileHandle) -> (Vec<u8>, Option<Attributes>);
            /// Reads as many bytes as `sink` holds, which must not exceed `limits().rtmax`.
            read(file: &FileHandle, offset: u64, sink: Segs<BufMut>) -> ReadDone;
            /// Writes `data`, which must not exceed `limits().wtmax`; the server may write less.
            write(file: &FileHandle, offset: u64, data: Segs<Buf>, stable: Stable) -> WriteDone;
            /// A `count` of 0 means up to the end of the file.
            commit(file: &FileHandle, offset: u64, count: u32) -> (WccData, Verifier);
            create(dir: &FileHandle, name: &[u8], mode: CreateMode, attributes: &SetAttributes) -> Made;
            mkdir(dir: &FileHandle, name: &[u8], attributes: &SetAttributes) -> Made;
            symlink(dir: &FileHandle, name: &[u8], target: &[u8], attributes: &SetAttributes) -> Made;
            mknod(dir: &FileHandle, name: &[u8], special: Special, attributes: &SetAttributes) -> Made;
            remove(dir: &FileHandle, name: &[u8]) -> WccData;
            rmdir(dir: &FileHandle, name: &[u8]) -> WccData;
            rename(from_dir: &FileHandle, from: &[u8], to_dir: &FileHandle, to: &[u8]) -> RenameWcc;
            link(file: &FileHandle, dir: &FileHandle, name: &[u8]) -> LinkWcc;
            /// `count` is the largest size of the results, in bytes.
            readdir(dir: &FileHandle, cookie: u64, verifier: Verifier, count: u32) -> DirPage;
            readdirplus(dir: &FileHandle, cookie: u64, verifier: Verifier, dircount: u32, maxcount: u32) -> DirPage;
            fsstat(object: &FileHandle) -> FsstatOk;
            fsinfo(object: &FileHandle) -> FsinfoOk;
            pathconf(object: &FileHandle) -> PathconfOk;
            /// GETACL of NFS_ACL; for a directory also the default ACL.
            getacl(object: &FileHandle, directory: bool) -> (Option<Attributes>, Acls);
            /// SETACL of NFS_ACL, with the lists that `lists` selects; an empty list removes the ACL.
            setacl(object: &FileHandle, acls: &Acls, lists: SetLists) -> Option<Attributes>;
        }
    };
}

macro_rules! declare {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) -> $results:ty;)*) => {
        /// An NFSv3 server, as the file system sees it. Each method is one procedure of RFC 1813, or
        /// of NFS_ACL.
        ///
        /// The futures are run by `nfsrdma_rpcrdma::exec::spawn` or by tokio. Dropping one abandons
        /// the call, whose buffers stay with the transport until the reply.
        pub trait Nfs3: Transport {
            $(
                $(#[$doc])*
                fn $name(&self, cred: &Cred $(, $arg: $type)*)
                    -> impl Future<Output = NfsResult<$results>> + Send;
            )*
        }
    };
}

procedures!(declare);
