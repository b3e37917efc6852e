//! A requester that makes one call at a time with exactly the given header, over any provider. It
//! shares no code with the client's RPC transport.

use nfsrdma_rdma::{
    Buf, BufMut, Completion, ConnectParams, Connection, Error, Exposure, Handle, Instant,
    Invalidation, Memory, Pool, Provider, Wait, WorkId, WorkRequest,
};
use nfsrdma_responder::fs::handle::Key;
use nfsrdma_responder::fs::{self, ExportSpec, FileSystem, Mapping};
use nfsrdma_responder::rdma;
use nfsrdma_responder::server::{self, Server};
use nfsrdma_xdr::codec::{Decode, Decoder, Encode, Encoder};
use nfsrdma_xdr::mount3::{Mnt, MountArgs, MountRes};
use nfsrdma_xdr::nfs3::FileHandle;
use nfsrdma_xdr::private_data::PrivateData;
use nfsrdma_xdr::procedure::Procedure;
use nfsrdma_xdr::rpc::{self, Auth, AuthSys, Call};
use nfsrdma_xdr::rpcrdma::{Body, ChunkLists, Header, ReadSegment, Segment, WriteChunk};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Starts a responder in this process.
pub fn serve(
    export: &Path,
    provider: Arc<dyn Provider>,
    change: impl FnOnce(&mut rdma::Settings),
) -> (Server, SocketAddr) {
    let mut settings = rdma::Settings {
        credits: 8,
        inline: 4096,
        invalidate: true,
        reads: 4,
        rtmax: 1 << 20,
        wtmax: 1 << 20,
        timeout: Duration::from_secs(10),
        apart: false,
        sealed: false,
        odd: rdma::Odd::default(),
    };
    change(&mut settings);
    let fs = FileSystem::new(fs::Settings {
        exports: vec![ExportSpec {
            name: b"/export".to_vec(),
            dir: export.to_path_buf(),
        }],
        key: Key::random().unwrap(),
        mapping: Mapping {
            privileged: rustix::process::geteuid().is_root(),
            root_squash: false,
            anonymous: (65534, 65534),
        },
        rtmax: settings.rtmax,
        wtmax: settings.wtmax,
        max_file_size: None,
        fake_unstable: false,
        cache_size: 64,
        variants: Default::default(),
    })
    .unwrap();
    let server = Server::start(
        fs,
        server::Settings {
            rdma_address: Some("127.0.0.1:0".parse().unwrap()),
            nfs_address: None,
            mount_address: None,
            portmap_address: None,
            locks: Default::default(),
            no_acl: false,
            rdma: settings,
            workers: 2,
            max_connections: 16,
            drc: 64,
            failing: Vec::new(),
            security: Arc::default(),
        },
        Some(provider),
    )
    .unwrap();
    let port = server.ports().rdma.unwrap();
    (server, SocketAddr::from(([127, 0, 0, 1], port)))
}

pub struct Requester {
    link: Connection,
    pool: Pool,
    pub theirs: PrivateData,
    received: Vec<(BufMut, usize, Option<Handle>)>,
}

/// The reply.
pub struct Answer {
    pub header: Header,
    /// The bytes that follow the header in the Send.
    pub inline: Vec<u8>,
    pub invalidated: Option<Handle>,
}

impl Answer {
    /// The results of a successful inline reply.
    pub fn results(&self) -> &[u8] {
        results(&self.inline)
    }

    pub fn lists(&self) -> &ChunkLists {
        self.header.chunks().expect("a header with chunk lists")
    }
}

/// The results after the header of a successful RPC reply.
pub fn results(reply: &[u8]) -> &[u8] {
    let mut from = Decoder::new(reply);
    let header = rpc::Reply::decode(&mut from).unwrap();
    assert!(header.is_success(), "{header:?}");
    from.rest()
}

/// An RPC call with the AUTH_SYS credential of the user who runs the test.
pub fn call<P: Procedure>(xid: u32, args: &P::Args<'_>) -> Vec<u8> {
    encode_call::<P>(xid, args).into_vec()
}

pub fn encode_call<P: Procedure>(xid: u32, args: &P::Args<'_>) -> Encoder {
    let mut to = Encoder::default();
    Call {
        xid,
        program: P::PROGRAM,
        version: P::VERSION,
        procedure: P::NUMBER,
        credential: Auth::Sys(AuthSys {
            stamp: 0,
            machine: b"test",
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: Default::default(),
        }),
        verifier: Auth::None,
    }
    .encode(&mut to);
    args.encode(&mut to);
    to
}

pub fn segments(exposure: &Exposure) -> Vec<Segment> {
    exposure
        .segments()
        .iter()
        .map(|s| Segment {
            handle: s.handle.0,
            length: s.length,
            offset: s.offset,
        })
        .collect()
}

/// A Read chunk with all of `exposures`.
pub fn read_chunk(position: u32, exposures: &[&Exposure]) -> Vec<ReadSegment> {
    exposures
        .iter()
        .flat_map(|e| segments(e))
        .map(|target| ReadSegment { position, target })
        .collect()
}

/// A Write chunk with all of `exposures`.
pub fn write_chunk(exposures: &[&Exposure]) -> WriteChunk {
    exposures.iter().flat_map(|e| segments(e)).collect()
}

impl Requester {
    pub fn connect(provider: &dyn Provider, to: SocketAddr) -> Self {
        let pool = Pool::new(64 << 20).unwrap();
        let private = PrivateData {
            remote_invalidation: true,
            send_size: 4096,
            receive_size: 4096,
        };
        let params = ConnectParams {
            pool: pool.clone(),
            private_data: private.encode().to_vec(),
            send_depth: 64,
            recv_depth: 16,
            reads_out: 0,
            reads_in: 8,
            receive_buffers: 8,
            receive_size: 4096,
            timeout: Duration::from_secs(10),
            local: None,
        };
        let link = provider.connect(to, &params).unwrap();
        Requester {
            theirs: PrivateData::parse(&link.peer_private_data).unwrap(),
            link,
            pool,
            received: Vec::new(),
        }
    }

    fn buffer(&self, bytes: &[u8]) -> Buf {
        let mut buf = self.pool.alloc(bytes.len()).unwrap();
        buf.copy_from_slice(bytes);
        buf.freeze()
    }

    /// Registers `bytes` for reading by the responder.
    pub fn source(&self, bytes: &[u8]) -> Exposure {
        let memory = Memory::Source([self.buffer(bytes)].into_iter().collect());
        self.link.queue_pair.expose(memory).unwrap()
    }

    /// Registers `len` bytes for writing by the responder.
    pub fn sink(&self, len: usize) -> Exposure {
        let mut buf = self.pool.alloc(len).unwrap();
        buf.fill(0xee);
        let memory = Memory::Sink([buf].into_iter().collect());
        self.link.queue_pair.expose(memory).unwrap()
    }

    /// The bytes that the responder wrote.
    pub fn take(&self, exposure: Exposure) -> Vec<u8> {
        match self.link.queue_pair.invalidate(WorkId(0), exposure) {
            Invalidation::Done(Memory::Sink(bufs)) => {
                bufs.iter().flat_map(|b| b.to_vec()).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn send(&self, message: &[u8]) {
        let mut batch = vec![WorkRequest::Send {
            id: WorkId(1),
            data: [self.buffer(message)].into_iter().collect(),
            invalidate: None,
            signaled: false,
        }];
        self.link.queue_pair.post(&mut batch).unwrap();
    }

    /// Sends a header and a message.
    pub fn post(&self, header: &Header, message: &[u8]) {
        let mut bytes = header.to_xdr();
        bytes.extend_from_slice(message);
        self.send(&bytes);
    }

    /// Waits for a message from the responder.
    pub fn answer(&mut self) -> Result<Answer, Error> {
        let until = Instant::now() + Duration::from_secs(20);
        let mut out = Vec::new();
        while self.received.is_empty() {
            let polled = self.link.completions.poll(&mut out, Wait::Until(until));
            for completion in out.drain(..) {
                if let Completion::Received {
                    buf,
                    len,
                    invalidated,
                    ..
                } = completion
                {
                    self.received.push((buf, len, invalidated));
                }
            }
            if self.received.is_empty() {
                polled?;
                assert!(Instant::now() < until, "no answer");
            }
        }
        let (buf, len, invalidated) = self.received.remove(0);
        let (header, at) = Header::parse(&buf[..len]).unwrap();
        let inline = buf[at..len].to_vec();
        self.link.queue_pair.post_receive(WorkId(7), buf)?;
        Ok(Answer {
            header,
            inline,
            invalidated,
        })
    }

    /// Makes one call with `body` and the inline message.
    pub fn call(&mut self, xid: u32, body: Body, message: &[u8]) -> Answer {
        self.post(&Header::new(xid, 8, body), message);
        let answer = self.answer().unwrap();
        assert_eq!(answer.header.xid, xid);
        assert_eq!(answer.header.credits, 8);
        answer
    }

    /// Makes a call without chunks.
    pub fn inline<P: Procedure>(&mut self, xid: u32, args: &P::Args<'_>) -> Vec<u8> {
        let body = Body::Msg(ChunkLists::default());
        let answer = self.call(xid, body, &call::<P>(xid, args));
        assert!(answer.lists().is_empty());
        answer.results().to_vec()
    }

    pub fn mount(&mut self) -> FileHandle {
        let args = MountArgs {
            path: nfsrdma_xdr::codec::Text(b"/export"),
        };
        let results = self.inline::<Mnt>(1, &args);
        match MountRes::from_xdr(&results).unwrap() {
            MountRes::Ok(mounted) => mounted.root,
            MountRes::Fail(status) => panic!("{status:?}"),
        }
    }
}
