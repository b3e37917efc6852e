//! [`Nfs3Client`]: calls and replies of the requester engine as typed results.

use super::api::*;
use super::checks::{at, entry, handle, made, misbehaved};
use super::limits::{Known, cut};
use super::procedures::{ErrorCounters, NFS3};
use super::resent::Expected;
use nfsrdma_rdma::contract::Segs;
use nfsrdma_rdma::{Buf, BufMut};
use nfsrdma_rpcrdma::rpc::Credentials;
use nfsrdma_rpcrdma::tap::Tap;
use nfsrdma_rpcrdma::transport::{Engine, Payload, Reply as RpcReply, Request};
use nfsrdma_rpcrdma::{Recovery, Stats};
use nfsrdma_xdr::codec::{Encode, Encoder, roundup};
use nfsrdma_xdr::nfs3::*;
use nfsrdma_xdr::rpc::CallTemplate;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// First and longest pause before a call answered JUKEBOX is made again.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A mounted server. Clones share connections and counters.
#[derive(Debug, Clone)]
pub struct Nfs3Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    engine: Arc<Engine>,
    credentials: Credentials,
    known: Known,
    recovery: Recovery,
    errors: ErrorCounters,
    /// The server has NFS_ACL, and it is wanted.
    acl: AtomicBool,
}

/// Makes a call until its answer is not JUKEBOX ("the client should [...] wait a while, then
/// try again with a new RPC transaction ID", RFC 1813 section 2.6). `$ok` handles the results,
/// `$failed` may turn a status into a result.
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
     |$status:pat_param, $resent:pat_param| $failed:expr) => {{
        let args = $args;
        let mut patience = FIRST_PAUSE;
        loop {
            let reply = $client
                .perform::<$procedure>($cred, &args, Payload::None)
                .await?;
            match reply.results::<$procedure>()? {
                Reply::Ok($ok) => break $body,
                Reply::Fail(Status::JukeBox, _) => {}
                Reply::Fail(status, _) => {
                    let ($status, $resent) = (status, reply.resent);
                    let reasoned: Option<NfsResult<_>> = $failed;
                    break match reasoned {
                        Some(result) => result,
                        None => $client.refused::<$procedure, _>(status),
                    };
                }
            }
            $client.wait(&mut patience).await;
        }
    }};
}

impl Nfs3Client {
    /// A client over connections that are up. `machine`: its name in AUTH_SYS credentials.
    pub(crate) fn new(engine: Arc<Engine>, machine: &[u8], recovery: Recovery) -> Self {
        Nfs3Client {
            inner: Arc::new(Inner {
                engine,
                credentials: Credentials::new(machine, NFS3),
                known: Known::new(),
                recovery,
                errors: ErrorCounters::default(),
                acl: AtomicBool::new(false),
            }),
        }
    }

    /// Whether the server has NFS_ACL.
    pub(super) fn set_acl(&self, present: bool) {
        self.inner.acl.store(present, Ordering::Relaxed);
    }

    /// The header of calls of another program.
    pub(super) fn template_of(&self, program: u32, version: u32, cred: &Cred) -> CallTemplate {
        self.inner.credentials.template_of(program, version, cred)
    }

    pub(super) fn known(&self) -> &Known {
        &self.inner.known
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.inner.engine
    }

    /// What a caller is told when a soft mount's time ran out: EIO or ETIMEDOUT.
    pub fn recovery(&self) -> Recovery {
        self.inner.recovery
    }

    /// The counters at this moment.
    pub fn stats(&self) -> Stats {
        let mut stats = self.inner.engine.stats();
        self.inner.errors.add_to(&mut stats);
        stats
    }

    /// Where to listen to what the connections do.
    pub fn tap(&self) -> &Arc<Tap> {
        self.inner.engine.tap()
    }

    /// Ends the connections; pending and later calls get `Interrupted`.
    pub fn shutdown(&self) {
        self.inner.engine.shut_down();
    }

    /// NULL: whether the server has NFSv3.
    pub async fn null(&self, cred: &Cred) -> NfsResult<()> {
        let reply = self.perform::<Null>(cred, &Void {}, Payload::None).await?;
        reply.results::<Null>()?;
        Ok(())
    }

    async fn perform<P: Procedure>(
        &self,
        cred: &Cred,
        args: &P::Args<'_>,
        payload: Payload,
    ) -> NfsResult<RpcReply> {
        if self.inner.known.are_old(self.inner.engine.lost()) {
            self.renew_limits_soon();
        }
        let template = self.inner.credentials.template(cred);
        let request = Request {
            procedure: P::NUMBER as usize,
            max_results: match &payload {
                Payload::Sink(_) => P::max_results(args),
                // All of it inline or in a Reply chunk.
                Payload::None | Payload::Source(_) => {
                    P::max_results(args) + roundup(P::max_ddp_result(args))
                }
            },
            max_ddp_result: match &payload {
                Payload::Sink(_) => P::max_ddp_result(args),
                Payload::None | Payload::Source(_) => 0,
            },
            payload,
        };
        self.submit(request, |xid, to| {
            template.encode(xid, P::NUMBER, to);
            args.encode(to);
        })
        .await
    }

    /// Makes the call; what a soft mount gives up is an I/O error.
    pub(super) async fn submit(
        &self,
        request: Request,
        encode: impl FnOnce(u32, &mut Encoder),
    ) -> NfsResult<RpcReply> {
        let call = self.inner.engine.call(request, encode);
        call.await.map_err(|error| match error.into() {
            NfsError::TimedOut if self.inner.recovery == Recovery::Soft => NfsError::GivenUp,
            other => other,
        })
    }

    /// The server refused a call that `counter` counts.
    pub(super) fn refused_at<T>(&self, counter: usize, status: Status) -> NfsResult<T> {
        self.inner.errors.count(counter, status);
        Err(NfsError::Status(status))
    }

    fn refused<P: Procedure, T>(&self, status: Status) -> NfsResult<T> {
        self.refused_at(P::NUMBER as usize, status)
    }

    pub(super) async fn wait(&self, patience: &mut Duration) {
        self.inner.engine.sleep(*patience).await;
        *patience = (*patience * 2).min(LONGEST_PAUSE);
    }

    /// Registered memory with these bytes.
    async fn registered(&self, bytes: &[u8]) -> NfsResult<Buf> {
        let mut buf = self.buffer(bytes.len()).await?;
        buf.copy_from_slice(bytes);
        Ok(buf.freeze())
    }

    /// Memory of the pool. Where it is empty the caches give some back before long: a hard
    /// mount waits for that, others as long as for the server.
    async fn buffer(&self, len: usize) -> NfsResult<BufMut> {
        let engine = &self.inner.engine;
        let begin = Instant::now();
        let mut pause = Duration::from_millis(5);
        loop {
            if let Some(buf) = engine.pool().alloc(len) {
                return Ok(buf);
            }
            if engine.is_shut_down() {
                return Err(NfsError::Interrupted);
            }
            if self.inner.recovery != Recovery::Hard && begin.elapsed() >= engine.timeo() {
                return Err(NfsError::Local(
                    "the buffer pool is empty; ask for a larger cache".to_owned(),
                ));
            }
            engine.sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    /// Makes `args.at` with a procedure whose results are those of CREATE. If its reply was
    /// lost and EXIST answers the second sending, what is `expected` counts as made.
    async fn make<P>(
        &self,
        cred: &Cred,
        at: DirOp<'_>,
        args: &P::Args<'_>,
        mut payload: Payload,
        expected: Option<Expected<'_>>,
    ) -> NfsResult<Made>
    where
        P: for<'r> Procedure<Res<'r> = CreateRes>,
    {
        let mut patience = FIRST_PAUSE;
        loop {
            let mut reply = self.perform::<P>(cred, args, payload).await?;
            payload = std::mem::take(&mut reply.payload);
            match reply.results::<P>()? {
                Reply::Ok(created) => return made(created),
                Reply::Fail(Status::JukeBox, _) => {}
                Reply::Fail(status, _) => {
                    if let (Status::Exist, true, Some(expected)) = (status, reply.resent, expected)
                        && let Some(made) = self.made_before(cred, at, expected).await
                    {
                        return Ok(made);
                    }
                    return self.refused::<P, _>(status);
                }
            }
            self.wait(&mut patience).await;
        }
    }

    async fn create_plain(
        &self,
        cred: &Cred,
        dir: &FileHandle,
        name: &[u8],
        how: CreateHow,
    ) -> NfsResult<Made> {
        let expected = match &how {
            CreateHow::Guarded(new) => Some(Expected::new(FileType::Regular, new.mode)),
            CreateHow::Unchecked(_) | CreateHow::Exclusive(_) => None,
        };
        let at = at(dir, name)?;
        let args = CreateArgs { at, how };
        self.make::<Create>(cred, at, &args, Payload::None, expected)
            .await
    }

    /// CREATE EXCLUSIVE, then SETATTR: the server may have kept the verifier in the times
    /// (RFC 1813 section 3.3.8).
    async fn create_exclusive(
        &self,
        cred: &Cred,
        dir: &FileHandle,
        name: &[u8],
        attributes: &SetAttributes,
    ) -> NfsResult<Made> {
        let mut verifier = [0; 8];
        getrandom::fill(&mut verifier)
            .map_err(|error| NfsError::Local(format!("no random numbers: {error}")))?;
        let how = CreateHow::Exclusive(Verifier(verifier));
        let mut made = match self.create_plain(cred, dir, name, how).await {
            // "If the server can not support these exclusive create semantics, possibly
            // because of the requirement to commit the verifier to stable storage, it should
            // fail the CREATE request with the error, NFS3ERR_NOTSUPP."
            Err(NfsError::Status(Status::NotSupp)) => {
                let how = CreateHow::Guarded(*attributes);
                return self.create_plain(cred, dir, name, how).await;
            }
            made => made?,
        };
        let object = match made.object {
            Some(object) => object,
            None => {
                let found = self.lookup(cred, dir, name).await?;
                made.object = Some(found.object);
                found.object
            }
        };
        let mut new = *attributes;
        for time in [&mut new.atime, &mut new.mtime] {
            if *time == SetTime::Keep {
                *time = SetTime::ToServerTime;
            }
        }
        let wcc = self.setattr(cred, &object, &new, None).await?;
        made.attributes = wcc.after;
        Ok(made)
    }
}

impl Nfs3 for Nfs3Client {
    fn has_acl(&self) -> bool {
        self.inner.acl.load(Ordering::Relaxed)
    }

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
        directory: bool,
    ) -> NfsResult<Option<Attributes>> {
        self.set_acls(cred, object, acls, directory).await
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
        guard: Option<Time>,
    ) -> NfsResult<WccData> {
        let args = SetattrArgs {
            object: *object,
            new: *new,
            guard,
        };
        call!(
            self,
            Setattr,
            cred,
            args,
            |wcc| Ok(wcc),
            |status, resent| {
                if status == Status::NotSync && resent {
                    self.set_before(cred, object, new).await.map(Ok)
                } else {
                    None
                }
            }
        )
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
        let mut patience = FIRST_PAUSE;
        loop {
            // The path is DDP-eligible (RFC 8267 section 3), but nothing requires it to be
            // asked for by Write chunk. NFS-Ganesha leaves that chunk unused and sends the
            // path inline; Linux's client, too, asks for it in a Reply chunk.
            let reply = self.perform::<Readlink>(cred, &args, Payload::None).await?;
            match reply.results::<Readlink>()? {
                Reply::Ok(ok) => {
                    let nfsrdma_xdr::codec::Payload::Inline(path) = ok.path else {
                        return misbehaved("a symbolic link in a chunk that was not offered");
                    };
                    let path = path.to_vec();
                    if path.is_empty() || path.contains(&0) {
                        return misbehaved("a symbolic link that is empty or has a NUL");
                    }
                    return Ok((path, ok.attributes));
                }
                Reply::Fail(Status::JukeBox, _) => {}
                Reply::Fail(status, _) => return self.refused::<Readlink, _>(status),
            }
            self.wait(&mut patience).await;
        }
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
        // NFS-Ganesha writes up to three bytes more than it was asked for where the count is
        // no multiple of four: there has to be room for them, or they end the connection.
        let surplus = wanted % 4;
        if surplus > 0 {
            sink.push(self.buffer(surplus).await?);
        }
        let mut patience = FIRST_PAUSE;
        loop {
            let mut reply = self
                .perform::<Read>(cred, &args, Payload::Sink(sink))
                .await?;
            sink = std::mem::take(&mut reply.payload).into_sink();
            match reply.results::<Read>()? {
                Reply::Ok(ok) => {
                    // That the chunk has as many bytes, or a few more, is checked by decoding.
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
                    return Ok(ReadDone {
                        attributes: ok.attributes,
                        data: sink,
                        count: ok.count,
                        eof: ok.eof,
                    });
                }
                Reply::Fail(Status::JukeBox, _) => {}
                Reply::Fail(status, _) => return self.refused::<Read, _>(status),
            }
            self.wait(&mut patience).await;
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
        let mut patience = FIRST_PAUSE;
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
                Ok(reply) => reply.results::<Write>().map_err(NfsError::from),
                Err(error) => Err(error),
            };
            let results = match reply {
                // The server that takes less than the one this was planned for: what it does
                // not take now is to be written by another WRITE, as after a short count.
                Err(NfsError::Refused(why)) => match self.smaller_write(len).await {
                    Some(most) => {
                        (data, len) = (cut(data, most), most);
                        continue;
                    }
                    None => return Err(NfsError::Refused(why)),
                },
                reply => reply?,
            };
            match results {
                Reply::Ok(ok) => {
                    // "count: The number of bytes of data written" (RFC 1813 section 3.3.7).
                    if ok.count as usize > len || (ok.count == 0 && len > 0) {
                        return misbehaved("WRITE wrote none of the data, or more than there are");
                    }
                    return Ok(WriteDone {
                        wcc: ok.wcc,
                        count: ok.count,
                        committed: ok.committed,
                        verifier: ok.verifier,
                    });
                }
                Reply::Fail(Status::JukeBox, _) => {}
                Reply::Fail(status, _) => return self.refused::<Write, _>(status),
            }
            self.wait(&mut patience).await;
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
                return self.create_exclusive(cred, dir, name, attributes).await;
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
        // NOENT after a resend: the first sending removed it, its reply was lost, and the
        // server's duplicate-request cache forgot it. What the caller wanted is the case.
        call!(self, Remove, cred, args, |wcc| Ok(wcc), |status, resent| {
            (status == Status::NoEnt && resent).then(|| Ok(WccData::default()))
        })
    }

    async fn rmdir(&self, cred: &Cred, dir: &FileHandle, name: &[u8]) -> NfsResult<WccData> {
        let args = RemoveArgs {
            what: at(dir, name)?,
        };
        // As for `remove`.
        call!(self, Rmdir, cred, args, |wcc| Ok(wcc), |status, resent| {
            (status == Status::NoEnt && resent).then(|| Ok(WccData::default()))
        })
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
        call!(self, Rename, cred, args, |wcc| Ok(wcc), |status, resent| {
            let before = status == Status::NoEnt
                && resent
                && self
                    .renamed_before(cred, (from_dir, from), (to_dir, to))
                    .await;
            before.then(|| Ok(RenameWcc::default()))
        })
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
        call!(self, Link, cred, args, |wcc| Ok(wcc), |status, resent| {
            let before = status == Status::Exist
                && resent
                && self.linked_before(cred, file, dir, name).await;
            before.then(|| Ok(LinkWcc::default()))
        })
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
                entries: entries.collect::<NfsResult<_>>()?,
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
                entries: entries.collect::<NfsResult<_>>()?,
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

    fn limits(&self) -> Limits {
        self.inner.known.get()
    }

    fn deferred(&self) -> u32 {
        self.inner.engine.deferred()
    }

    fn flush(&self) {
        self.inner.engine.flush();
    }

    fn drivers(&self) -> Vec<Driver> {
        self.inner.engine.drivers()
    }

    fn calls_at_a_time(&self) -> usize {
        self.inner.engine.granted()
    }
}
