//! [`Nfs3`] over the RPC transport: the arguments of each procedure, the checks of its results, and
//! the meaning of an error for a call that was sent more than once.
//!
//! Each method builds the arguments of one procedure (RFC 1813 section 3.3), makes the call
//! (`Nfs3Client::perform`), and decodes the results. Results that contradict the arguments, such as
//! a count that differs from the length of the data, become `PeerMisbehaved`, so callers need no
//! checks of their own. The data of READ and WRITE is sent in RDMA chunks (RFC 8267 section 4), and
//! the buffers of a READ are returned with the reply.
//!
//! A reply may be lost after the server has run the call. If a retransmission of REMOVE, RENAME,
//! LINK, CREATE or a similar call then fails with NFS3ERR_NOENT or NFS3ERR_EXIST, and the server is
//! already in the state that was asked for, the call counts as successful (`retransmitted.rs`). The same
//! holds for calls of a request that another process has begun, which died before it answered.

use crate::api::{
    Acls, CreateMode, Cred, DirPage, Found, Made, Nfs3, NfsError, NfsResult, ReadDone, SetLists,
    Special, WriteDone,
};
use crate::checks::{at, entry, handle, misbehaved};
use crate::client::Nfs3Client;
use crate::limits::cut;
use crate::retransmitted::{Expected, may_have_run};
use nfsrdma_rdma::contract::Segs;
use nfsrdma_rdma::{Buf, BufMut};
use nfsrdma_rpcrdma::Error;
use nfsrdma_rpcrdma::error::ProtocolError;
use nfsrdma_rpcrdma::transport::Payload;
use nfsrdma_xdr::codec::DecodeError;
use nfsrdma_xdr::nfs3::*;

/// Makes a call without payload. `$ok` handles the results; `$failed` may accept a status.
macro_rules! call {
    ($client:expr, $procedure:ty, $cred:expr, $args:expr, |$ok:pat_param| $body:expr) => {
        call!(
            $client,
            $procedure,
            $cred,
            $args,
            |$ok| $body,
            |_status, _resent| None
        )
    };
    ($client:expr, $procedure:ty, $cred:expr, $args:expr, |$ok:pat_param| $body:expr,
     |$status:pat_param, $retransmitted:pat_param| $failed:expr) => {{
        let args = $args;
        let reply = $client
            .perform::<$procedure>($cred, &args, Payload::None)
            .await?;
        match $client.results::<$procedure>(&reply)? {
            Reply::Ok($ok) => $body,
            Reply::Fail(status, _) => {
                let ($status, $retransmitted) = (status, may_have_run(&reply));
                let reasoned: Option<NfsResult<_>> = $failed;
                match reasoned {
                    Some(result) => result,
                    None => $client.refused::<$procedure, _>(status),
                }
            }
        }
    }};
}

/// Whether a reply to READLINK has a path that is longer than the decoder takes.
fn is_too_long(error: &Error) -> bool {
    matches!(
        error,
        Error::PeerMisbehaved(ProtocolError::Reply {
            error: DecodeError::TooLong {
                what: "symbolic link",
                ..
            },
            ..
        })
    )
}

impl Nfs3 for Nfs3Client {
    async fn getacl(
        &self,
        cred: &Cred,
        object: &FileHandle,
        directory: bool,
    ) -> NfsResult<(Option<Attributes>, Acls)> {
        self.get_acls(cred, object, directory).await
    }

    async fn setacl(
        &self,
        cred: &Cred,
        object: &FileHandle,
        acls: &Acls,
        lists: SetLists,
    ) -> NfsResult<Option<Attributes>> {
        self.set_acls(cred, object, acls, lists).await
    }

    async fn getattr(&self, cred: &Cred, object: &FileHandle) -> NfsResult<Attributes> {
        let args = GetattrArgs { object: *object };
        call!(self, Getattr, cred, args, |ok| Ok(ok.attributes))
    }

    async fn setattr(
        &self,
        cred: &Cred,
        object: &FileHandle,
        new: &SetAttributes,
    ) -> NfsResult<WccData> {
        let args = SetattrArgs {
            object: *object,
            new: *new,
            guard: None,
        };
        call!(self, Setattr, cred, args, |wcc| Ok(wcc))
    }

    async fn lookup(&self, cred: &Cred, dir: &FileHandle, name: &[u8]) -> NfsResult<Found> {
        let args = LookupArgs {
            what: at(dir, name)?,
        };
        call!(self, Lookup, cred, args, |ok| Ok(Found {
            object: handle(ok.object)?,
            attributes: ok.attributes,
            dir: ok.dir,
        }))
    }

    async fn access(
        &self,
        cred: &Cred,
        object: &FileHandle,
        wanted: u32,
    ) -> NfsResult<(u32, Option<Attributes>)> {
        let args = AccessArgs {
            object: *object,
            access: wanted,
        };
        call!(self, Access, cred, args, |ok| Ok((
            ok.access & wanted,
            ok.attributes
        )))
    }

    async fn readlink(
        &self,
        cred: &Cred,
        symlink: &FileHandle,
    ) -> NfsResult<(Vec<u8>, Option<Attributes>)> {
        let args = ReadlinkArgs { symlink: *symlink };
        // The path is DDP-eligible (RFC 8267 section 4), but a Write chunk for it is optional.
        // NFS-Ganesha leaves that chunk unused and sends the path inline; Linux's client also
        // receives it in a Reply chunk.
        let reply = self.perform::<Readlink>(cred, &args, Payload::None).await?;
        let too_long = Err(NfsError::Status(Status::NameTooLong));
        let ok = match reply.results::<Readlink>() {
            Ok(Reply::Ok(ok)) => ok,
            Ok(Reply::Fail(status, _)) => return self.refused::<Readlink, _>(status),
            Err(error) if is_too_long(&error) => return too_long,
            Err(error) => return Err(self.no_results::<Readlink>(error)),
        };
        let nfsrdma_xdr::codec::Payload::Inline(path) = ok.path else {
            return misbehaved("a symbolic link in a chunk that was not offered");
        };
        if path.is_empty() || path.contains(&0) {
            return misbehaved("a symbolic link that is empty or has a NUL");
        }
        // PATH_MAX counts the NUL at the end as well, and the kernel takes no longer path.
        if path.len() >= PATH_MAX {
            return too_long;
        }
        Ok((path.to_vec(), ok.attributes))
    }

    async fn read(
        &self,
        cred: &Cred,
        file: &FileHandle,
        offset: u64,
        mut sink: Segs<BufMut>,
    ) -> NfsResult<ReadDone> {
        let wanted: usize = sink.iter().map(|b| b.len()).sum();
        if wanted > IO_MAX || sink.iter().any(|b| b.is_empty()) {
            return Err(NfsError::Local("READ into an unfit buffer".to_owned()));
        }
        let args = ReadArgs {
            file: *file,
            offset,
            count: wanted as u32,
        };
        // If the count is not a multiple of four, NFS-Ganesha writes up to three bytes more.
        // Without room for these, it would end the connection.
        let surplus = wanted % 4;
        if surplus > 0 {
            sink.push(self.buffer(surplus).await?);
        }
        let mut reply = self
            .perform::<Read>(cred, &args, Payload::Sink(sink))
            .await?;
        //= RFC 8166, Section 4.3.2.2
        //# The Requester MUST NOT assume that the memory regions backing a Write chunk have not
        //# been modified.
        let mut sink = std::mem::take(&mut reply.payload).into_sink();
        match self.results::<Read>(&reply)? {
            Reply::Ok(ok) => {
                // Decoding checks that the chunk has this many bytes, or up to three more.
                if ok.count as usize != ok.data.len() || ok.count as usize > wanted {
                    return misbehaved("the count of READ is not the length of its data");
                }
                if surplus > 0 {
                    sink.pop();
                }
                if let nfsrdma_xdr::codec::Payload::Inline(mut bytes) = ok.data {
                    for buf in &mut sink {
                        let (now, later) = bytes.split_at(bytes.len().min(buf.len()));
                        buf[..now.len()].copy_from_slice(now);
                        bytes = later;
                    }
                }
                Ok(ReadDone {
                    attributes: ok.attributes,
                    data: sink,
                    count: ok.count,
                    eof: ok.eof,
                })
            }
            Reply::Fail(status, _) => self.refused::<Read, _>(status),
        }
    }

    async fn write(
        &self,
        cred: &Cred,
        file: &FileHandle,
        offset: u64,
        mut data: Segs<Buf>,
        stable: Stable,
    ) -> NfsResult<WriteDone> {
        let mut len: usize = data.iter().map(|b| b.len()).sum();
        if len > IO_MAX {
            return Err(NfsError::Local("WRITE of too much data".to_owned()));
        }
        loop {
            let args = WriteArgs {
                file: *file,
                offset,
                count: len as u32,
                stable,
                data: nfsrdma_xdr::codec::Payload::Placed(len as u32),
            };
            let payload = Payload::Source(data.clone());
            let reply = match self.perform::<Write>(cred, &args, payload).await {
                Ok(reply) => self.results::<Write>(&reply),
                Err(error) => Err(error),
            };
            let results = match reply {
                // The server may have a smaller limit than this WRITE was planned for. The rest is
                // then written by another WRITE, as after a short count.
                Err(error @ (NfsError::Refused(_) | NfsError::Disconnects(_))) => {
                    match self.smaller_write(len).await {
                        Some(most) => {
                            (data, len) = (cut(data, most), most);
                            continue;
                        }
                        None => return Err(error),
                    }
                }
                reply => reply?,
            };
            return match results {
                Reply::Ok(ok) => {
                    // "count: The number of bytes of data written" (RFC 1813 section 3.3.7).
                    if ok.count as usize > len || (ok.count == 0 && len > 0) {
                        return misbehaved("WRITE wrote none of the data, or more than there are");
                    }
                    Ok(WriteDone {
                        wcc: ok.wcc,
                        count: ok.count,
                        committed: ok.committed,
                        verifier: ok.verifier,
                    })
                }
                Reply::Fail(status, _) => self.refused::<Write, _>(status),
            };
        }
    }

    async fn commit(
        &self,
        cred: &Cred,
        file: &FileHandle,
        offset: u64,
        count: u32,
    ) -> NfsResult<(WccData, Verifier)> {
        let args = CommitArgs {
            file: *file,
            offset,
            count,
        };
        call!(self, Commit, cred, args, |ok| Ok((ok.wcc, ok.verifier)))
    }

    async fn create(
        &self,
        cred: &Cred,
        dir: &FileHandle,
        name: &[u8],
        mode: CreateMode,
        attributes: &SetAttributes,
    ) -> NfsResult<Made> {
        let how = match mode {
            CreateMode::Unchecked => CreateHow::Unchecked(*attributes),
            CreateMode::Guarded => CreateHow::Guarded(*attributes),
            CreateMode::Exclusive => {
                return Box::pin(self.create_exclusive(cred, dir, name, attributes)).await;
            }
        };
        self.create_plain(cred, dir, name, how).await
    }

    async fn mkdir(
        &self,
        cred: &Cred,
        dir: &FileHandle,
        name: &[u8],
        attributes: &SetAttributes,
    ) -> NfsResult<Made> {
        let at = at(dir, name)?;
        let args = MkdirArgs {
            at,
            attributes: *attributes,
        };
        let new = Expected::new(FileType::Directory, attributes.mode);
        self.make::<Mkdir>(cred, at, &args, Payload::None, Some(new))
            .await
    }

    async fn symlink(
        &self,
        cred: &Cred,
        dir: &FileHandle,
        name: &[u8],
        target: &[u8],
        attributes: &SetAttributes,
    ) -> NfsResult<Made> {
        if target.len() > PATH_MAX {
            return Err(NfsError::Status(Status::NameTooLong));
        }
        let at = at(dir, name)?;
        let args = SymlinkArgs {
            at,
            attributes: *attributes,
            path: nfsrdma_xdr::codec::Payload::Placed(target.len() as u32),
        };
        let payload = Payload::Source(Segs::from_iter([self.registered(target).await?]));
        let new = Expected::symlink(target);
        self.make::<Symlink>(cred, at, &args, payload, Some(new))
            .await
    }

    async fn mknod(
        &self,
        cred: &Cred,
        dir: &FileHandle,
        name: &[u8],
        special: Special,
        attributes: &SetAttributes,
    ) -> NfsResult<Made> {
        let attributes = *attributes;
        let kind = match special {
            Special::Character(_) => FileType::Character,
            Special::Block(_) => FileType::Block,
            Special::Socket => FileType::Socket,
            Special::Fifo => FileType::Fifo,
        };
        let at = at(dir, name)?;
        let args = MknodArgs {
            at,
            what: match special {
                Special::Character(device) => MknodWhat::Character(attributes, device),
                Special::Block(device) => MknodWhat::Block(attributes, device),
                Special::Socket => MknodWhat::Socket(attributes),
                Special::Fifo => MknodWhat::Fifo(attributes),
            },
        };
        let new = Expected::new(kind, attributes.mode);
        self.make::<Mknod>(cred, at, &args, Payload::None, Some(new))
            .await
    }

    async fn remove(&self, cred: &Cred, dir: &FileHandle, name: &[u8]) -> NfsResult<WccData> {
        let args = RemoveArgs {
            what: at(dir, name)?,
        };
        // NOENT for a retransmission: the first transmission removed the name, its reply was lost,
        // and the server's duplicate request cache has no entry for it. So the call was successful.
        call!(
            self,
            Remove,
            cred,
            args,
            |wcc| Ok(wcc),
            |status, retransmitted| {
                (status == Status::NoEnt && retransmitted).then(|| Ok(WccData::default()))
            }
        )
    }

    async fn rmdir(&self, cred: &Cred, dir: &FileHandle, name: &[u8]) -> NfsResult<WccData> {
        let args = RemoveArgs {
            what: at(dir, name)?,
        };
        // NOENT for a retransmission counts as success, as in `remove`.
        call!(
            self,
            Rmdir,
            cred,
            args,
            |wcc| Ok(wcc),
            |status, retransmitted| {
                (status == Status::NoEnt && retransmitted).then(|| Ok(WccData::default()))
            }
        )
    }

    async fn rename(
        &self,
        cred: &Cred,
        from_dir: &FileHandle,
        from: &[u8],
        to_dir: &FileHandle,
        to: &[u8],
    ) -> NfsResult<RenameWcc> {
        let args = RenameArgs {
            from: at(from_dir, from)?,
            to: at(to_dir, to)?,
        };
        call!(
            self,
            Rename,
            cred,
            args,
            |wcc| Ok(wcc),
            |status, retransmitted| {
                let before = status == Status::NoEnt
                    && retransmitted
                    && Box::pin(self.renamed_before(cred, (from_dir, from), (to_dir, to))).await;
                before.then(|| Ok(RenameWcc::default()))
            }
        )
    }

    async fn link(
        &self,
        cred: &Cred,
        file: &FileHandle,
        dir: &FileHandle,
        name: &[u8],
    ) -> NfsResult<LinkWcc> {
        let args = LinkArgs {
            file: *file,
            link: at(dir, name)?,
        };
        call!(
            self,
            Link,
            cred,
            args,
            |wcc| Ok(wcc),
            |status, retransmitted| {
                let before = status == Status::Exist
                    && retransmitted
                    && Box::pin(self.linked_before(cred, file, dir, name)).await;
                before.then(|| Ok(LinkWcc::default()))
            }
        )
    }

    async fn readdir(
        &self,
        cred: &Cred,
        dir: &FileHandle,
        cookie: u64,
        verifier: Verifier,
        count: u32,
    ) -> NfsResult<DirPage> {
        let args = ReaddirArgs {
            dir: *dir,
            cookie,
            verifier,
            count: count.min(IO_MAX as u32 / 2),
        };
        call!(self, Readdir, cred, args, |list| {
            let entries = list.entries.iter();
            let entries = entries.map(|e| entry(e.fileid, e.name, e.cookie, None, None));
            Ok(DirPage {
                dir: list.dir,
                verifier: list.verifier,
                entries: entries.collect(),
                eof: list.eof,
            })
        })
    }

    async fn readdirplus(
        &self,
        cred: &Cred,
        dir: &FileHandle,
        cookie: u64,
        verifier: Verifier,
        dircount: u32,
        maxcount: u32,
    ) -> NfsResult<DirPage> {
        let args = ReaddirplusArgs {
            dir: *dir,
            cookie,
            verifier,
            dircount,
            maxcount: maxcount.min(IO_MAX as u32 / 2),
        };
        call!(self, Readdirplus, cred, args, |list| {
            let entries = list.entries.iter();
            let entries =
                entries.map(|e| entry(e.fileid, e.name, e.cookie, e.attributes, e.handle));
            Ok(DirPage {
                dir: list.dir,
                verifier: list.verifier,
                entries: entries.collect(),
                eof: list.eof,
            })
        })
    }

    async fn fsstat(&self, cred: &Cred, object: &FileHandle) -> NfsResult<FsstatOk> {
        let args = RootArgs { object: *object };
        call!(self, Fsstat, cred, args, |ok| Ok(ok))
    }

    async fn fsinfo(&self, cred: &Cred, object: &FileHandle) -> NfsResult<FsinfoOk> {
        let args = RootArgs { object: *object };
        call!(self, Fsinfo, cred, args, |ok| Ok(ok))
    }

    async fn pathconf(&self, cred: &Cred, object: &FileHandle) -> NfsResult<PathconfOk> {
        let args = RootArgs { object: *object };
        call!(self, Pathconf, cred, args, |ok| Ok(ok))
    }
}
