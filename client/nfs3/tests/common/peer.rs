//! The server's side of a connection: it receives calls with their chunks, runs them, and answers,
//! or does instead what the script of a test says.

use super::script::{Act, Manners, Script, Seen};
use nfsrdma_memory_server::{Answer, MemoryServer};
use nfsrdma_rdma::contract::Segs;
use nfsrdma_rdma::*;
use nfsrdma_rpcrdma::exec;
use nfsrdma_xdr::codec::{Decoder, Encode};
use nfsrdma_xdr::nfs3::Status;
use nfsrdma_xdr::private_data::PrivateData;
use nfsrdma_xdr::rpc::{Accepted, Call, Reply as RpcReply};
use nfsrdma_xdr::rpcrdma::{Body, ChunkLists, Header, WriteChunk};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

const RECEIVE: usize = 262_144;

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

    /// Writes into the peer's memory; returns the length written to each segment.
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

/// The server's side of a connection.
struct Peer<'a> {
    conn: Conn,
    manners: Manners,
    client: PrivateData,
    /// Whether a Send may invalidate a handle.
    invalidate: bool,
    memory: &'a MemoryServer,
}

/// How to change the reply to a call.
#[derive(Default)]
struct Twist {
    jukebox: bool,
    inline: bool,
    wrong_xid: bool,
    tamper: Option<Box<dyn Fn(&mut Header, &mut Vec<u8>) + Send>>,
}

impl<'a> Peer<'a> {
    fn accept(
        mut incoming: Box<dyn Incoming>,
        manners: Manners,
        memory: &'a MemoryServer,
    ) -> Option<Self> {
        let pool = Pool::new(160 << 20).unwrap();
        let request = incoming.request(Duration::from_secs(20)).unwrap();
        let client = PrivateData::parse(&request).expect("a client announces itself");
        let own = manners.private_data;
        let accepted = incoming.accept(&ConnectParams {
            pool: pool.clone(),
            private_data: own.map_or(vec![], |data| data.encode().to_vec()),
            send_depth: 4096,
            // So more calls than were granted end the connection.
            recv_depth: manners.grant as usize,
            reads_out: 16,
            reads_in: 0,
            receive_buffers: manners.grant as usize,
            receive_size: RECEIVE,
            timeout: Duration::from_secs(20),
            local: None,
        });
        let Connection {
            queue_pair,
            completions,
            ..
        } = accepted.ok()?;
        let invalidate = client.remote_invalidation
            && own.is_some_and(|d| d.remote_invalidation)
            && queue_pair.capabilities().remote_invalidate;
        let conn = Conn {
            queue_pair,
            completions,
            pool,
            ready: VecDeque::new(),
        };
        Some(Peer {
            conn,
            manners,
            client,
            invalidate,
            memory,
        })
    }

    /// The next call: its header, and the RPC message with the Read chunk put back in place. `None`
    /// if the connection ended.
    fn next_call(&mut self) -> Option<(Header, Vec<u8>)> {
        let sent = loop {
            if let Completion::Received { buf, len, id, .. } = self.conn.next()? {
                let sent = buf[..len].to_vec();
                self.conn.queue_pair.post_receive(id, buf).unwrap();
                break sent;
            }
        };
        let announced = self.manners.private_data;
        assert!(sent.len() <= announced.map_or(1024, |d| d.receive_size as usize));
        let (header, start) = Header::parse(&sent).unwrap();
        assert!(matches!(header.body, Body::Msg(_) | Body::NoMsg(_)));
        let reads = &header.chunks().unwrap().reads;
        let message = sent[start..].to_vec();
        let Some(position) = reads.first().map(|first| first.position) else {
            return Some((header, message));
        };
        assert!(reads.iter().all(|r| r.position == position));
        let all: Vec<_> = reads.iter().map(|r| remote(&r.target)).collect();
        let bytes = self.conn.fetch(&all)?;
        if position == 0 {
            assert!(matches!(header.body, Body::NoMsg(_)) && message.is_empty());
            return Some((header, bytes));
        }
        let mut whole = message[..position as usize].to_vec();
        // The length word of the item, which excludes padding.
        let length = whole.last_chunk::<4>().copied().map(u32::from_be_bytes);
        assert_eq!(length, Some(bytes.len() as u32));
        whole.extend_from_slice(&bytes);
        whole.resize(whole.len().next_multiple_of(4), 0);
        whole.extend_from_slice(&message[position as usize..]);
        Some((header, whole))
    }

    /// Runs a call and sends the reply.
    fn reply(&self, header: &Header, call: &Call<'_>, arguments: &[u8], twist: Twist) {
        let chunks = header.chunks().unwrap();
        let answer = if twist.jukebox {
            Answer {
                accepted: Accepted::Success,
                results: Status::JukeBox.to_xdr().into_iter().chain([0; 8]).collect(),
                placed: vec![],
            }
        } else {
            self.run(call, arguments, !twist.inline && !chunks.writes.is_empty())
        };
        let mut reply = RpcReply::accepted(call.xid, answer.accepted).to_xdr();
        reply.extend(answer.results);
        self.reply_with(header, reply, &answer.placed, twist);
    }

    /// Sends a reply with these bytes in the Write chunk.
    fn reply_with(&self, header: &Header, mut reply: Vec<u8>, placed: &[u8], twist: Twist) {
        let chunks = header.chunks().unwrap();
        reply[0] ^= u8::from(twist.wrong_xid);
        let mut lists = ChunkLists::default();
        for chunk in &chunks.writes {
            let data = if twist.inline { &[][..] } else { placed };
            lists.writes.push(self.fill(chunk, data));
        }
        // Like knfsd, uses a Reply chunk whenever one is offered.
        lists.reply = chunks.reply.as_ref().map(|chunk| self.fill(chunk, &reply));
        let (body, mut payload) = match lists.reply {
            Some(_) => (Body::NoMsg(lists), vec![]),
            None => (Body::Msg(lists), reply),
        };
        let mut returned = Header::new(header.xid, self.manners.grant, body);
        if let Some(tamper) = twist.tamper {
            tamper(&mut returned, &mut payload);
        }
        let out = [returned.to_xdr(), payload].concat();
        let own = self.manners.private_data;
        let room = own
            .map_or(1024, |d| d.send_size)
            .max(self.client.receive_size);
        assert!(
            out.len() <= room as usize,
            "the reply does not fit the client's Receive"
        );
        self.conn.send(&out, self.offered(chunks));
    }

    fn run(&self, call: &Call<'_>, arguments: &[u8], place: bool) -> Answer {
        let answer = self.memory.answer(call, arguments, place, &self.conn.pool);
        exec::block_on(answer).unwrap()
    }

    /// Fills a chunk; returns it as it is put into the reply.
    fn fill(&self, chunk: &WriteChunk, data: &[u8]) -> WriteChunk {
        let segments: Vec<_> = chunk.segments.iter().map(remote).collect();
        let lengths = self.conn.place(data, &segments);
        let mut returned = chunk.clone();
        for (segment, length) in returned.segments.iter_mut().zip(lengths) {
            segment.length = length;
        }
        returned
    }

    /// The handle to invalidate, if exactly one was offered.
    fn offered(&self, chunks: &ChunkLists) -> Option<Handle> {
        let lists = chunks.writes.iter().chain(&chunks.reply);
        let writes = lists.flat_map(|chunk| &chunk.segments).map(|s| s.handle);
        let reads = chunks.reads.iter().map(|r| r.target.handle);
        let mut handles: Vec<u32> = reads.chain(writes).collect();
        handles.dedup();
        (self.invalidate && handles.len() == 1).then(|| Handle(handles[0]))
    }
}

pub(super) fn serve(
    incoming: Box<dyn Incoming>,
    connection: u32,
    mut manners: Manners,
    memory: &MemoryServer,
    seen: Arc<Mutex<Vec<Seen>>>,
    script: &Script,
) {
    if connection > 0 && manners.later_private_data.is_some() {
        manners.private_data = manners.later_private_data;
    }
    let Some(mut peer) = Peer::accept(incoming, manners, memory) else {
        return;
    };
    while let Some((header, message)) = peer.next_call() {
        let mut from = Decoder::new(&message);
        let call = Call::parse(&mut from).unwrap();
        assert_eq!(call.xid, header.xid);
        let this = {
            let mut seen = seen.lock();
            let this = Seen {
                connection,
                header: header.clone(),
                message: message.clone(),
                program: call.program,
                procedure: call.procedure,
            };
            seen.push(this.clone());
            this
        };
        let mut twist = Twist::default();
        let arguments = from.rest();
        match script(&this) {
            Act::Answer => {}
            Act::JukeBox => twist.jukebox = true,
            Act::Silence => continue,
            Act::Hangup => break,
            Act::RunThenHangup => {
                peer.run(&call, arguments, false);
                break;
            }
            Act::Send(messages) => {
                messages.iter().for_each(|m| peer.conn.send(m, None));
                continue;
            }
            Act::SendThenAnswer(messages) => {
                messages.iter().for_each(|m| peer.conn.send(m, None));
            }
            Act::Tamper(change) => twist.tamper = Some(change),
            Act::DataInline => twist.inline = true,
            Act::WrongXid => twist.wrong_xid = true,
        }
        peer.reply(&header, &call, arguments, twist);
    }
    peer.conn.queue_pair.disconnect();
}
