//! A small NFSv3 server in memory, over any provider, that misbehaves on demand.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each crate of tests uses a part of it"
)]
#![allow(
    clippy::unwrap_used,
    clippy::type_complexity,
    reason = "a failure here is a failed test, and nobody calls it but tests"
)]

pub mod data;
mod procedures;
pub mod special;

use nfsrdma_nfs3::options::NFS_RDMA_PORT;
use nfsrdma_nfs3::{ClientOptions, MountProtocol, MountTarget, Mounted, TransportOptions};
use nfsrdma_rdma::contract::Segs;
use nfsrdma_rdma::*;
use nfsrdma_rdma_testing::loopback::{Loopback, Options};
use nfsrdma_xdr::codec::{Decoder, Encode};
use nfsrdma_xdr::nfs3::{self, *};
use nfsrdma_xdr::private_data::PrivateData;
use nfsrdma_xdr::rpc::{Accepted, Call, Reply as RpcReply};
use nfsrdma_xdr::rpcrdma::{Body, ChunkLists, Header};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A call as it arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Counts connections from 0.
    pub connection: u32,
    /// Counts calls of the server from 0.
    pub number: usize,
    pub header: Header,
    /// The whole RPC message, chunks put back.
    pub message: Vec<u8>,
    pub program: u32,
    pub procedure: u32,
}

/// What to do with a call.
pub enum Act {
    Answer,
    /// Answer JUKEBOX without running the call.
    JukeBox,
    Silence,
    Hangup,
    RunThenHangup,
    /// Send these instead of an answer.
    Send(Vec<Vec<u8>>),
    /// Send these, then answer.
    SendThenAnswer(Vec<Vec<u8>>),
    /// Change the answer's header and Payload stream.
    Tamper(Box<dyn Fn(&mut Header, &mut Vec<u8>)>),
    /// Ignore a Write chunk: data inline.
    DataInline,
    /// The XID in the RPC message is not the header's.
    WrongXid,
}

/// Changes the chunk lists and the Payload stream of an answer.
pub fn tamper(change: impl Fn(&mut ChunkLists, &mut Vec<u8>) + 'static) -> Act {
    Act::Tamper(Box::new(move |header, payload| {
        if let Body::Msg(chunks) | Body::NoMsg(chunks) = &mut header.body {
            change(chunks, payload);
        }
    }))
}

pub type Script = dyn Fn(&Seen) -> Act + Send + Sync;

/// What the server announces and grants.
#[derive(Clone)]
pub struct Manners {
    pub private_data: Option<PrivateData>,
    /// From the second connection on, if something else.
    pub later_private_data: Option<PrivateData>,
    pub grant: u32,
    /// Use Send With Invalidate when one handle was offered.
    pub invalidate: bool,
    pub rtmax: u32,
}

impl Default for Manners {
    fn default() -> Self {
        Manners {
            private_data: Some(PrivateData {
                remote_invalidation: true,
                send_size: 65_536,
                receive_size: 65_536,
            }),
            later_private_data: None,
            grant: 64,
            invalidate: true,
            rtmax: 1 << 20,
        }
    }
}

/// The one directory and its files.
#[derive(Default)]
pub struct Files {
    pub files: BTreeMap<Vec<u8>, Vec<u8>>,
    pub links: BTreeMap<Vec<u8>, Vec<u8>>,
    pub dirs: std::collections::BTreeSet<Vec<u8>>,
    /// Second names.
    pub aliases: BTreeMap<Vec<u8>, FileHandle>,
    /// Special files, and what SETATTR changed.
    pub special: special::Special,
}

pub struct Server {
    pub address: SocketAddr,
    pub files: Arc<Mutex<Files>>,
    pub seen: Arc<Mutex<Vec<Seen>>>,
    listener: Arc<dyn Listener>,
    pub loopback: Loopback,
    thread: Option<std::thread::JoinHandle<()>>,
}

pub const ROOT: &[u8] = b"root";
const RECEIVE: usize = 262_144;

pub fn handle_of(name: &[u8]) -> FileHandle {
    FileHandle::new(&[b"f:", name].concat()).unwrap()
}

impl Server {
    pub fn start(options: Options, manners: Manners, script: Arc<Script>) -> Self {
        let loopback = Loopback::with_options(options);
        let address: SocketAddr = ([127, 0, 0, 1], NFS_RDMA_PORT).into();
        let listener: Arc<dyn Listener> = loopback.listen(address).unwrap().into();
        let files = Arc::new(Mutex::new(Files::default()));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let accepting = listener.clone();
        let (files2, seen2) = (files.clone(), seen.clone());
        let thread = std::thread::spawn(move || {
            let mut workers = Vec::new();
            let connections = AtomicU32::new(0);
            while let Ok(incoming) = accepting.accept() {
                let connection = connections.fetch_add(1, Ordering::Relaxed);
                let (files, seen) = (files2.clone(), seen2.clone());
                let (manners, script) = (manners.clone(), script.clone());
                workers.push(std::thread::spawn(move || {
                    serve(incoming, connection, manners, files, seen, &*script)
                }));
            }
            for worker in workers {
                worker.join().unwrap();
            }
        });
        Server {
            address,
            files,
            seen,
            listener,
            loopback,
            thread: Some(thread),
        }
    }

    pub fn plain() -> Self {
        Server::start(
            Options::default(),
            Manners::default(),
            Arc::new(|_: &Seen| Act::Answer),
        )
    }

    /// Only NFS calls are scripted, and `number` counts those of `procedure`.
    pub fn scripted<P: nfs3::Procedure>(
        script: impl Fn(&Seen, usize) -> Act + Send + Sync + 'static,
    ) -> Self {
        let count = std::sync::atomic::AtomicUsize::new(0);
        Server::start(
            Options::default(),
            Manners::default(),
            Arc::new(move |seen: &Seen| {
                if (seen.program, seen.procedure) != (P::PROGRAM, P::NUMBER) {
                    return Act::Answer;
                }
                script(seen, count.fetch_add(1, Ordering::Relaxed))
            }),
        )
    }

    /// A file in its root.
    pub fn plant(&self, name: &[u8], bytes: Vec<u8>) {
        self.files.lock().files.insert(name.to_vec(), bytes);
    }

    pub async fn mount(&self, options: &ClientOptions) -> (Mounted, Pool) {
        let pool = Pool::new(64 << 20).unwrap();
        let mounted = self.mount_with(options, pool.clone()).await.unwrap();
        (mounted, pool)
    }

    pub async fn mount_with(
        &self,
        options: &ClientOptions,
        pool: Pool,
    ) -> std::result::Result<Mounted, nfsrdma_nfs3::MountError> {
        let target = MountTarget::parse("127.0.0.1:/export").unwrap();
        nfsrdma_nfs3::connect(&target, options, Arc::new(self.loopback.clone()), pool).await
    }

    /// Calls of one procedure.
    pub fn calls<P: nfs3::Procedure>(&self) -> Vec<Seen> {
        let seen = self.seen.lock();
        let calls = seen.iter();
        calls
            .filter(|s| (s.program, s.procedure) == (P::PROGRAM, P::NUMBER))
            .cloned()
            .collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.listener.close();
        // The connection threads end with their peers, which the test owns: not joined.
        drop(self.thread.take());
    }
}

pub fn options() -> ClientOptions {
    ClientOptions {
        mountproto: MountProtocol::Rdma,
        transport: TransportOptions {
            connect_timeout: Duration::from_secs(20),
            ..TransportOptions::default()
        },
        ..ClientOptions::default()
    }
}

struct Conn {
    queue_pair: Arc<dyn QueuePair>,
    completions: Box<dyn CompletionQueue>,
    pool: Pool,
    ready: VecDeque<Completion>,
}

impl Conn {
    fn next(&mut self) -> Option<Completion> {
        let mut out = Vec::new();
        while self.ready.is_empty() {
            let result = self.completions.poll(&mut out, Wait::Forever);
            self.ready.extend(out.drain(..));
            if result.is_err() && self.ready.is_empty() {
                return None;
            }
        }
        self.ready.pop_front()
    }

    fn post(&self, request: WorkRequest) {
        let mut batch = vec![request];
        while !batch.is_empty() {
            match self.queue_pair.post(&mut batch) {
                Err(Error::QueueFull) => std::thread::yield_now(),
                result => result.unwrap(),
            }
        }
    }

    fn buf(&self, bytes: &[u8]) -> Buf {
        let mut buf = self.pool.alloc(bytes.len().max(1)).unwrap();
        buf.resize(bytes.len());
        buf.copy_from_slice(bytes);
        buf.freeze()
    }

    /// Reads the peer's memory; `None` if the connection ended.
    fn fetch(&mut self, segments: &[RemoteSegment]) -> Option<Vec<u8>> {
        let mut all = Vec::new();
        for segment in segments {
            let sink = self.pool.alloc(segment.length as usize).unwrap();
            self.post(WorkRequest::Read {
                id: WorkId(1),
                sink: Segs::from_iter([sink]),
                source: *segment,
            });
            let mut others = Vec::new();
            loop {
                match self.next()? {
                    Completion::Read { sink, .. } => {
                        all.extend_from_slice(&sink[0]);
                        break;
                    }
                    Completion::Flushed { .. } => {}
                    other => others.push(other),
                }
            }
            for other in others.into_iter().rev() {
                self.ready.push_front(other);
            }
        }
        Some(all)
    }

    /// Fills the peer's memory; returns the length written to each segment.
    fn place(&self, mut bytes: &[u8], segments: &[RemoteSegment]) -> Vec<u32> {
        let mut lengths = Vec::new();
        for segment in segments {
            let (now, later) = bytes.split_at(bytes.len().min(segment.length as usize));
            bytes = later;
            lengths.push(now.len() as u32);
            if !now.is_empty() {
                self.post(WorkRequest::Write {
                    id: WorkId(2),
                    source: Segs::from_iter([self.buf(now)]),
                    target: RemoteSegment {
                        length: now.len() as u32,
                        ..*segment
                    },
                    signaled: false,
                });
            }
        }
        assert!(bytes.is_empty(), "the chunk is too small for the result");
        lengths
    }

    fn send(&self, message: &[u8], invalidate: Option<Handle>) {
        self.post(WorkRequest::Send {
            id: WorkId(3),
            data: Segs::from_iter([self.buf(message)]),
            invalidate,
            signaled: false,
        });
    }
}

fn remote(segment: &nfsrdma_xdr::rpcrdma::Segment) -> RemoteSegment {
    RemoteSegment {
        handle: Handle(segment.handle),
        length: segment.length,
        offset: segment.offset,
    }
}

fn serve(
    mut incoming: Box<dyn Incoming>,
    connection: u32,
    mut manners: Manners,
    files: Arc<Mutex<Files>>,
    seen: Arc<Mutex<Vec<Seen>>>,
    script: &Script,
) {
    if connection > 0 && manners.later_private_data.is_some() {
        manners.private_data = manners.later_private_data;
    }
    let pool = Pool::new(160 << 20).unwrap();
    let request = incoming.request(Duration::from_secs(20)).unwrap();
    let client = PrivateData::parse(&request).expect("a client announces itself");
    let accepted = incoming.accept(&ConnectParams {
        pool: pool.clone(),
        private_data: manners
            .private_data
            .map_or(vec![], |data| data.encode().to_vec()),
        send_depth: 4096,
        // More calls than were granted end the connection.
        recv_depth: manners.grant as usize,
        reads_out: 16,
        reads_in: 0,
        receive_buffers: manners.grant as usize,
        receive_size: RECEIVE,
        timeout: Duration::from_secs(20),
    });
    let Ok(Connection {
        queue_pair,
        completions,
        ..
    }) = accepted
    else {
        return;
    };
    let invalidate = manners.invalidate
        && client.remote_invalidation
        && manners.private_data.is_some_and(|d| d.remote_invalidation)
        && queue_pair.capabilities().remote_invalidate;
    let mut conn = Conn {
        queue_pair,
        completions,
        pool,
        ready: VecDeque::new(),
    };
    while let Some(completion) = conn.next() {
        let Completion::Received { buf, len, id, .. } = completion else {
            continue;
        };
        let sent = buf[..len].to_vec();
        conn.queue_pair.post_receive(id, buf).unwrap();
        if let Some(announced) = &manners.private_data {
            assert!(sent.len() <= announced.receive_size as usize);
        } else {
            assert!(sent.len() <= 1024);
        }
        let (header, start) = Header::parse(&sent).unwrap();
        assert!(matches!(header.body, Body::Msg(_) | Body::NoMsg(_)));
        let chunks = header.chunks().unwrap().clone();
        let mut message = sent[start..].to_vec();
        if !chunks.reads.is_empty() {
            let position = chunks.reads[0].position;
            let all: Vec<_> = chunks.reads.iter().map(|r| remote(&r.target)).collect();
            let Some(bytes) = conn.fetch(&all) else { break };
            assert!(chunks.reads.iter().all(|r| r.position == position));
            if position == 0 {
                assert!(matches!(header.body, Body::NoMsg(_)) && message.is_empty());
                message = bytes;
            } else {
                let mut whole = message[..position as usize].to_vec();
                // The item's length, without its padding.
                let length = whole.last_chunk::<4>().copied().map(u32::from_be_bytes);
                assert_eq!(length, Some(bytes.len() as u32));
                whole.extend_from_slice(&bytes);
                whole.resize(whole.len().next_multiple_of(4), 0);
                whole.extend_from_slice(&message[position as usize..]);
                message = whole;
            }
        }
        let mut from = Decoder::new(&message);
        let call = Call::parse(&mut from).unwrap();
        assert_eq!(call.xid, header.xid);
        let this = {
            let mut seen = seen.lock();
            let this = Seen {
                connection,
                number: seen.len(),
                header: header.clone(),
                message: message.clone(),
                program: call.program,
                procedure: call.procedure,
            };
            seen.push(this.clone());
            this
        };
        let mut tamper: Option<Box<dyn Fn(&mut Header, &mut Vec<u8>)>> = None;
        let mut inline = false;
        let mut jukebox = false;
        let mut wrong_xid = false;
        match script(&this) {
            Act::Answer => {}
            Act::JukeBox => jukebox = true,
            Act::Silence => continue,
            Act::Hangup => break,
            Act::RunThenHangup => {
                procedures::run(&files, &call, from.rest(), false, &manners);
                break;
            }
            Act::Send(messages) => {
                messages.iter().for_each(|m| conn.send(m, None));
                continue;
            }
            Act::SendThenAnswer(messages) => messages.iter().for_each(|m| conn.send(m, None)),
            Act::Tamper(change) => tamper = Some(change),
            Act::DataInline => inline = true,
            Act::WrongXid => wrong_xid = true,
        }
        let offered = (!inline).then(|| chunks.writes.first()).flatten();
        let (results, data) = if jukebox {
            (
                Status::JukeBox.to_xdr().into_iter().chain([0; 8]).collect(),
                vec![],
            )
        } else {
            procedures::run(&files, &call, from.rest(), offered.is_some(), &manners)
        };
        let mut reply = RpcReply::accepted(call.xid, Accepted::Success).to_xdr();
        reply.extend(results);
        reply[0] ^= u8::from(wrong_xid);
        let mut lists = ChunkLists::default();
        for chunk in &chunks.writes {
            let segments: Vec<_> = chunk.segments.iter().map(remote).collect();
            let lengths = conn.place(if inline { &[] } else { &data }, &segments);
            let mut returned = chunk.clone();
            for (segment, length) in returned.segments.iter_mut().zip(lengths) {
                segment.length = length;
            }
            lists.writes.push(returned);
        }
        let mut no_msg = false;
        if let Some(chunk) = &chunks.reply {
            // As knfsd does: a Reply chunk that is offered is used.
            let segments: Vec<_> = chunk.segments.iter().map(remote).collect();
            let lengths = conn.place(&reply, &segments);
            let mut returned = chunk.clone();
            for (segment, length) in returned.segments.iter_mut().zip(lengths) {
                segment.length = length;
            }
            lists.reply = Some(returned);
            no_msg = true;
        }
        let body = match no_msg {
            true => Body::NoMsg(lists),
            false => Body::Msg(lists),
        };
        let mut header = Header::new(call.xid, manners.grant, body);
        let mut payload = if no_msg { vec![] } else { reply };
        if let Some(tamper) = tamper {
            tamper(&mut header, &mut payload);
        }
        let mut handles: Vec<u32> = chunks.reads.iter().map(|r| r.target.handle).collect();
        handles.extend(
            chunks
                .writes
                .iter()
                .flat_map(|c| &c.segments)
                .map(|s| s.handle),
        );
        handles.extend(
            chunks
                .reply
                .iter()
                .flat_map(|c| &c.segments)
                .map(|s| s.handle),
        );
        handles.dedup();
        let one = (invalidate && handles.len() == 1).then(|| Handle(handles[0]));
        let out = [header.to_xdr(), payload].concat();
        let room = (client.receive_size as usize)
            .max(manners.private_data.map_or(1024, |d| d.send_size as usize));
        assert!(
            out.len() <= room,
            "the reply does not fit the client's Receive"
        );
        conn.send(&out, one);
    }
    conn.queue_pair.disconnect();
}

fn attributes(kind: FileType, size: usize, fileid: u64) -> Attributes {
    let time = Time {
        seconds: 1,
        nanoseconds: 2,
    };
    Attributes {
        kind,
        mode: 0o644,
        nlink: 1,
        uid: 0,
        gid: 0,
        size: size as u64,
        used: size as u64,
        rdev: SpecData::default(),
        fsid: 1,
        fileid,
        atime: time,
        mtime: time,
        ctime: time,
    }
}
