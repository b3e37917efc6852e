//! The server for a transport. It decodes the XDR arguments of a call, executes the procedure of
//! [`Nfs3`], and encodes the results (RFC 1813 sections 3.3 and 5.2). The test provides the
//! transport, with its failures.

use super::MemoryServer;
use nfsrdma_nfs3::{
    CreateMode, Cred, Credential, DirEntry, DirPage, Made, Nfs3, NfsError, Special, Transport,
};
use nfsrdma_rdma::contract::Segs;
use nfsrdma_rdma::{BufMut, Pool};
use nfsrdma_xdr::codec::{Decode, DecodeError, Encode, Encoder, Payload};
use nfsrdma_xdr::mount3;
use nfsrdma_xdr::nfs3::*;
use nfsrdma_xdr::rpc::{Accepted, Auth, Call, flavor};
use nfsrdma_xdr::rpcsec_gss::pseudo_flavor;
use std::sync::Arc;

/// The answer to a call.
#[derive(Debug)]
pub struct Answer {
    pub accepted: Accepted,
    /// The results in XDR; empty unless the call was accepted.
    pub results: Vec<u8>,
    /// The DDP-eligible result, if it goes into a chunk.
    pub placed: Vec<u8>,
}

/// The reason why there are no results.
enum NoResults {
    /// The call was not executed (RFC 5531 section 9, accept_stat).
    Accepted(Accepted),
    /// The hook decided that there is no reply.
    Silent(NfsError),
}

impl From<DecodeError> for NoResults {
    fn from(_: DecodeError) -> Self {
        NoResults::Accepted(Accepted::GarbageArgs)
    }
}

fn credential(call: &Call<'_>) -> Cred {
    let (uid, gid, groups) = match &call.credential {
        Auth::Sys(sys) => (sys.uid, sys.gid, sys.groups.to_vec()),
        // The identity to which servers map anonymous callers.
        Auth::None | Auth::Other { .. } => (65534, 65534, Vec::new()),
    };
    Arc::new(Credential { uid, gid, groups })
}

/// Encodes the result of a procedure; a failure is followed by `or`.
fn encode<T: Encode, F: Encode>(
    to: &mut Encoder,
    result: Result<T, NfsError>,
    or: F,
) -> Result<(), NoResults> {
    match result {
        Ok(results) => Reply::<T, F>::Ok(results).encode(to),
        Err(NfsError::Status(status)) => Reply::<T, F>::Fail(status, or).encode(to),
        Err(error) => return Err(NoResults::Silent(error)),
    }
    Ok(())
}

fn created(made: Made) -> Created {
    Created {
        object: made.object,
        attributes: made.attributes,
        dir: made.dir,
    }
}

/// A page of a directory, with its entries as `entry` says.
fn list<'a, E>(
    done: &'a Result<DirPage, NfsError>,
    entry: impl Fn(&'a DirEntry) -> E,
) -> Result<DirList<E>, NfsError> {
    let page = done.as_ref().map_err(Clone::clone)?;
    Ok(DirList {
        dir: page.dir,
        verifier: page.verifier,
        entries: page.entries.iter().map(entry).collect(),
        eof: page.eof,
    })
}

/// The bytes of an argument that a chunk may carry, which the transport has put back inline.
fn inline<'a>(payload: Payload<'a>) -> Result<&'a [u8], NoResults> {
    match payload {
        Payload::Inline(bytes) => Ok(bytes),
        Payload::Placed(_) => Err(NoResults::Accepted(Accepted::GarbageArgs)),
    }
}

/// A buffer of `bytes` bytes.
fn buffer(pool: &Pool, bytes: usize) -> Result<BufMut, NoResults> {
    let full = || NoResults::Accepted(Accepted::SystemErr);
    let mut buf = pool.alloc(bytes.max(1)).ok_or_else(full)?;
    buf.resize(bytes);
    Ok(buf)
}

/// A call under way.
struct Running<'a> {
    server: &'a MemoryServer,
    cred: Cred,
    arguments: &'a [u8],
    /// Whether the DDP-eligible result is left out of the results.
    place: bool,
    pool: &'a Pool,
    to: Encoder,
    placed: Vec<u8>,
}

impl MemoryServer {
    /// Executes a call of NFS or MOUNT version 3. With `place`, a DDP-eligible result goes into a
    /// chunk. Memory for data comes from `pool`. Fails if the hook decides that there is no reply.
    pub async fn answer(
        &self,
        call: &Call<'_>,
        arguments: &[u8],
        place: bool,
        pool: &Pool,
    ) -> Result<Answer, NfsError> {
        let mut running = Running {
            server: self,
            cred: credential(call),
            arguments,
            place,
            pool,
            to: Encoder::default(),
            placed: Vec::new(),
        };
        let result = match (call.program, call.version) {
            (PROGRAM, VERSION) => running.nfs(call.procedure).await,
            (mount3::PROGRAM, mount3::VERSION) => running.mount(call.procedure),
            (PROGRAM, _) | (mount3::PROGRAM, _) => {
                let (low, high) = (VERSION, VERSION);
                Err(NoResults::Accepted(Accepted::ProgMismatch { low, high }))
            }
            _ => Err(NoResults::Accepted(Accepted::ProgUnavail)),
        };
        let (accepted, results) = match result {
            Ok(()) => (Accepted::Success, running.to.into_vec()),
            Err(NoResults::Accepted(accepted)) => (accepted, Vec::new()),
            Err(NoResults::Silent(error)) => return Err(error),
        };
        Ok(Answer {
            accepted,
            results,
            placed: running.placed,
        })
    }
}

/// Those in MNT's list. How calls are secured is the business of what receives them.
const FLAVORS: [u32; 4] = [
    flavor::SYS,
    pseudo_flavor::KRB5,
    pseudo_flavor::KRB5I,
    pseudo_flavor::KRB5P,
];

impl Running<'_> {
    fn mount(&mut self, procedure: u32) -> Result<(), NoResults> {
        match procedure {
            // NULL and UMNT have no results.
            0 | 3 => {}
            1 => mount3::MountRes::Ok(mount3::Mounted {
                root: self.server.root(),
                flavors: FLAVORS.into_iter().collect(),
            })
            .encode(&mut self.to),
            _ => return Err(NoResults::Accepted(Accepted::ProcUnavail)),
        }
        Ok(())
    }

    async fn nfs(&mut self, procedure: u32) -> Result<(), NoResults> {
        match procedure {
            Null::NUMBER => Ok(()),
            Readlink::NUMBER => self.readlink().await,
            Read::NUMBER => self.read().await,
            Write::NUMBER => self.write().await,
            Readdir::NUMBER => self.readdir().await,
            Readdirplus::NUMBER => self.readdirplus().await,
            Getattr::NUMBER
            | Lookup::NUMBER
            | Access::NUMBER
            | Fsstat::NUMBER
            | Fsinfo::NUMBER
            | Pathconf::NUMBER => self.ask(procedure).await,
            Create::NUMBER | Mkdir::NUMBER | Symlink::NUMBER | Mknod::NUMBER => {
                self.make(procedure).await
            }
            Setattr::NUMBER
            | Remove::NUMBER
            | Rmdir::NUMBER
            | Rename::NUMBER
            | Link::NUMBER
            | Commit::NUMBER => self.change(procedure).await,
            _ => Err(NoResults::Accepted(Accepted::ProcUnavail)),
        }
    }

    /// Executes procedures that return attributes or limits.
    async fn ask(&mut self, procedure: u32) -> Result<(), NoResults> {
        let (server, cred, from, to) = (self.server, &self.cred, self.arguments, &mut self.to);
        match procedure {
            Getattr::NUMBER => {
                let args = GetattrArgs::from_xdr(from)?;
                let done = server.getattr(cred, &args.object).await;
                encode(to, done.map(|attributes| GetattrOk { attributes }), Void {})
            }
            Lookup::NUMBER => {
                let args = LookupArgs::from_xdr(from)?.what;
                let done = server.lookup(cred, &args.dir, args.name.0).await;
                let done = done.map(|found| LookupOk {
                    object: found.object,
                    attributes: found.attributes,
                    dir: found.dir,
                });
                encode(to, done, None::<Attributes>)
            }
            Access::NUMBER => {
                let args = AccessArgs::from_xdr(from)?;
                let done = server.access(cred, &args.object, args.access).await;
                let done = done.map(|(access, attributes)| AccessOk { attributes, access });
                encode(to, done, None::<Attributes>)
            }
            Fsstat::NUMBER => {
                let args = RootArgs::from_xdr(from)?;
                let done = server.fsstat(cred, &args.object).await;
                encode(to, done, None::<Attributes>)
            }
            Fsinfo::NUMBER => {
                let args = RootArgs::from_xdr(from)?;
                let done = server.fsinfo(cred, &args.object).await;
                encode(to, done, None::<Attributes>)
            }
            _ => {
                let args = RootArgs::from_xdr(from)?;
                let done = server.pathconf(cred, &args.object).await;
                encode(to, done, None::<Attributes>)
            }
        }
    }

    /// A DDP-eligible result: in the chunk, or among the results.
    fn eligible<'b>(&mut self, bytes: &'b [u8]) -> Payload<'b> {
        if !self.place {
            return Payload::Inline(bytes);
        }
        self.placed = bytes.to_vec();
        Payload::Placed(bytes.len() as u32)
    }

    async fn readlink(&mut self) -> Result<(), NoResults> {
        let args = ReadlinkArgs::from_xdr(self.arguments)?;
        let done = self.server.readlink(&self.cred, &args.symlink).await;
        let done = done.as_ref().map_err(Clone::clone);
        let done = done.map(|(path, attributes)| ReadlinkOk {
            attributes: *attributes,
            path: self.eligible(path),
        });
        encode(&mut self.to, done, None::<Attributes>)
    }

    async fn read(&mut self) -> Result<(), NoResults> {
        let args = ReadArgs::from_xdr(self.arguments)?;
        let most = args.count.min(self.server.limits().rtmax);
        let sink = Segs::from_iter([buffer(self.pool, most as usize)?]);
        let done = self
            .server
            .read(&self.cred, &args.file, args.offset, sink)
            .await;
        let results = done.as_ref().map_err(Clone::clone).map(|done| ReadOk {
            attributes: done.attributes,
            count: done.count,
            eof: done.eof,
            data: self.eligible(&done.data[0][..done.count as usize]),
        });
        encode(&mut self.to, results, None::<Attributes>)
    }

    async fn write(&mut self) -> Result<(), NoResults> {
        let args = WriteArgs::from_xdr(self.arguments)?;
        let bytes = inline(args.data)?;
        if bytes.len() != args.count as usize {
            return Err(NoResults::Accepted(Accepted::GarbageArgs));
        }
        let mut data = buffer(self.pool, bytes.len())?;
        data.copy_from_slice(bytes);
        let data = Segs::from_iter([data.freeze()]);
        let (server, cred) = (self.server, &self.cred);
        let done = server.write(cred, &args.file, args.offset, data, args.stable);
        let done = done.await.map(|done| WriteOk {
            wcc: done.wcc,
            count: done.count,
            committed: done.committed,
            verifier: done.verifier,
        });
        encode(&mut self.to, done, WccData::default())
    }

    async fn readdir(&mut self) -> Result<(), NoResults> {
        let args = ReaddirArgs::from_xdr(self.arguments)?;
        let (server, cred) = (self.server, &self.cred);
        let done = server.readdir(cred, &args.dir, args.cookie, args.verifier, args.count);
        let done = done.await;
        let done = list(&done, |entry| Entry {
            fileid: entry.fileid,
            name: Name(&entry.name),
            cookie: entry.cookie,
        });
        encode(&mut self.to, done, None::<Attributes>)
    }

    async fn readdirplus(&mut self) -> Result<(), NoResults> {
        let args = ReaddirplusArgs::from_xdr(self.arguments)?;
        let (server, cred) = (self.server, &self.cred);
        let done = server
            .readdirplus(
                cred,
                &args.dir,
                args.cookie,
                args.verifier,
                args.dircount,
                args.maxcount,
            )
            .await;
        let done = list(&done, |entry| EntryPlus {
            fileid: entry.fileid,
            name: Name(&entry.name),
            cookie: entry.cookie,
            attributes: entry.attributes,
            handle: entry.handle,
        });
        encode(&mut self.to, done, None::<Attributes>)
    }

    /// Executes procedures that make an object.
    async fn make(&mut self, procedure: u32) -> Result<(), NoResults> {
        let (server, cred, from) = (self.server, &self.cred, self.arguments);
        let made = match procedure {
            Create::NUMBER => {
                let CreateArgs { at, how } = CreateArgs::from_xdr(from)?;
                let plain = SetAttributes::default();
                let (mode, new) = match how {
                    CreateHow::Unchecked(new) => (CreateMode::Unchecked, new),
                    CreateHow::Guarded(new) => (CreateMode::Guarded, new),
                    CreateHow::Exclusive(_) => (CreateMode::Exclusive, plain),
                };
                let made = server.create(cred, &at.dir, at.name.0, mode, &new).await;
                match how {
                    CreateHow::Exclusive(verifier) => {
                        server.exclusive(cred, &at, verifier, made).await
                    }
                    _ => made,
                }
            }
            Mkdir::NUMBER => {
                let MkdirArgs { at, attributes } = MkdirArgs::from_xdr(from)?;
                server.mkdir(cred, &at.dir, at.name.0, &attributes).await
            }
            Symlink::NUMBER => {
                let args = SymlinkArgs::from_xdr(from)?;
                let (at, path) = (args.at, inline(args.path)?);
                let new = args.attributes;
                server.symlink(cred, &at.dir, at.name.0, path, &new).await
            }
            _ => {
                let MknodArgs { at, what } = MknodArgs::from_xdr(from)?;
                let special = match what {
                    MknodWhat::Character(new, device) => Some((Special::Character(device), new)),
                    MknodWhat::Block(new, device) => Some((Special::Block(device), new)),
                    MknodWhat::Socket(new) => Some((Special::Socket, new)),
                    MknodWhat::Fifo(new) => Some((Special::Fifo, new)),
                    MknodWhat::Other(_) => None,
                };
                match special {
                    Some((kind, new)) => server.mknod(cred, &at.dir, at.name.0, kind, &new).await,
                    None => Err(NfsError::Status(Status::BadType)),
                }
            }
        };
        encode(&mut self.to, made.map(created), WccData::default())
    }

    /// Executes procedures that change an object or a name, and return wcc_data.
    async fn change(&mut self, procedure: u32) -> Result<(), NoResults> {
        let (server, cred, from, to) = (self.server, &self.cred, self.arguments, &mut self.to);
        match procedure {
            Setattr::NUMBER => {
                let args = SetattrArgs::from_xdr(from)?;
                let done = server.setattr(cred, &args.object, &args.new);
                let done = done.await;
                let times = [args.new.atime, args.new.mtime];
                if done.is_ok() && times.iter().any(|time| *time != SetTime::Keep) {
                    // Servers keep the verifier in the times.
                    server.exclusive.lock().remove(args.object.as_bytes());
                }
                encode(to, done, WccData::default())
            }
            Remove::NUMBER => {
                let args = RemoveArgs::from_xdr(from)?.what;
                let done = server.remove(cred, &args.dir, args.name.0).await;
                encode(to, done, WccData::default())
            }
            Rmdir::NUMBER => {
                let args = RemoveArgs::from_xdr(from)?.what;
                let done = server.rmdir(cred, &args.dir, args.name.0).await;
                encode(to, done, WccData::default())
            }
            Rename::NUMBER => {
                let RenameArgs { from, to: new } = RenameArgs::from_xdr(from)?;
                let done = server.rename(cred, &from.dir, from.name.0, &new.dir, new.name.0);
                encode(to, done.await, RenameWcc::default())
            }
            Link::NUMBER => {
                let LinkArgs { file, link } = LinkArgs::from_xdr(from)?;
                let done = server.link(cred, &file, &link.dir, link.name.0).await;
                encode(to, done, LinkWcc::default())
            }
            _ => {
                let args = CommitArgs::from_xdr(from)?;
                let done = server.commit(cred, &args.file, args.offset, args.count);
                let done = done.await.map(|(wcc, verifier)| CommitOk { wcc, verifier });
                encode(to, done, WccData::default())
            }
        }
    }
}

impl MemoryServer {
    /// An exclusive CREATE. If it finds the file that it has made, by the verifier, it succeeds
    /// (RFC 1813 section 3.3.8).
    async fn exclusive(
        &self,
        cred: &Cred,
        at: &DirOp<'_>,
        verifier: Verifier,
        made: Result<Made, NfsError>,
    ) -> Result<Made, NfsError> {
        match made {
            Err(NfsError::Status(Status::Exist)) => {
                let found = self.lookup(cred, &at.dir, at.name.0).await?;
                let known = self.exclusive.lock().get(found.object.as_bytes()).copied();
                if known != Some(verifier) {
                    return Err(NfsError::Status(Status::Exist));
                }
                Ok(Made {
                    object: Some(found.object),
                    attributes: found.attributes,
                    dir: WccData::default(),
                })
            }
            Ok(made) => {
                if let Some(object) = made.object {
                    let mut known = self.exclusive.lock();
                    known.insert(object.as_bytes().into(), verifier);
                }
                Ok(made)
            }
            other => other,
        }
    }
}
