//! The responder, which faces the network: transport headers, RPC calls and NFS arguments, with a
//! directory of its own.
//!
//! Handles are authenticated with a key, so nobody can guess one. The input says where to insert
//! the handle of the export, of a file or of a link.

use nfsrdma_rdma::Pool;
use nfsrdma_responder::fs::handle::Key;
use nfsrdma_responder::fs::{ExportSpec, FileSystem, Mapping, Settings};
use nfsrdma_responder::lock::LockService;
use nfsrdma_responder::rdma::plan::{self, Intake, Limits};
use nfsrdma_responder::rpc::{HEADROOM, Message, Outcome, Peer, Placed, Service, split_write};
use nfsrdma_xdr::codec::{Decode, Decoder, Encode, Encoder};
use nfsrdma_xdr::nfs3::{DirOp, FileHandle, LookupArgs, LookupRes, Name};
use nfsrdma_xdr::rpc::{Auth, AuthSys, Call, Reply};
use nfsrdma_xdr::{mount3, nfs3, rpcbind};
use smallvec::SmallVec;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

const LIMITS: Limits = Limits {
    argument: 1 << 20,
    message: (1 << 20) + 8192,
    read_segments: 16,
    credits: 32,
};

/// Classifies a transport header, and plans a reply within what it offers.
pub fn intake(bytes: &[u8]) {
    let Some((&sizes, message)) = bytes.split_first() else {
        return;
    };
    let Intake::Call(call) = plan::intake(message, &LIMITS) else {
        return;
    };
    assert!(call.inline.end <= message.len() && call.inline.start <= call.inline.end);
    let (head, payload) = (24 + usize::from(sizes & 15) * 300, usize::from(sizes >> 4));
    for payload in [None, Some(payload * 700)] {
        let planned = plan::reply(call.xid, 1, &call.targets, head, payload, 1024);
        let Ok(planned) = planned else { continue };
        assert!(planned.header.len() <= 1024, "longer than the threshold");
        let lists = call.targets.writes.iter().chain(&call.targets.reply);
        let offered: Vec<_> = lists.flat_map(|chunk| &chunk.segments).collect();
        for push in planned.payload.iter().chain(&planned.message) {
            assert_eq!(push.range.len(), push.target.length as usize);
            let inside = offered.iter().any(|segment| {
                segment.handle == push.target.handle.0
                    && segment.offset == push.target.offset
                    && push.target.length <= segment.length
            });
            assert!(inside, "an RDMA Write to what was not offered");
        }
    }
}

/// A server for a directory, and files outside the directory.
struct World {
    service: Service,
    pool: Pool,
    outside: tempfile::TempDir,
    handles: Vec<FileHandle>,
    calls: u32,
}

const SECRET: &[u8] = b"not exported";

impl World {
    fn new() -> Option<World> {
        let outside = tempfile::tempdir().ok()?;
        std::fs::write(outside.path().join("secret"), SECRET).ok()?;
        let export = outside.path().join("export");
        fill(&export).ok()?;
        let settings = Settings {
            exports: vec![ExportSpec {
                name: b"/export".to_vec(),
                dir: export,
            }],
            key: Key::random().ok()?,
            mapping: Mapping {
                // The whole run has one identity: that of the user who runs the test.
                privileged: false,
                root_squash: true,
                anonymous: (65534, 65534),
            },
            read_only: false,
            rtmax: 1 << 16,
            wtmax: 1 << 16,
            max_file_size: None,
            fake_unstable: true,
            sync_metadata: false,
            cache_size: 64,
            variants: Default::default(),
        };
        let fs = FileSystem::new(settings).ok()?;
        // It is not running: callbacks to clients are prepared, but not sent.
        let locks = LockService::start(Default::default()).ok()?;
        let mut world = World {
            service: Service::new(fs, locks, 64, Duration::ZERO, &[]),
            pool: Pool::new(4 << 20).ok()?,
            outside,
            handles: Vec::new(),
            calls: 0,
        };
        world.find();
        Some(world)
    }

    /// Looks up the handles of the objects that [`fill`] makes.
    fn find(&mut self) {
        let fs = &self.service.fs;
        let who = fs.settings().mapping.identity(None);
        self.handles.clear();
        let Ok(root) = fs.mount(b"/export") else {
            return;
        };
        for name in ["file", "dir", "out"] {
            let what = DirOp {
                dir: root,
                name: Name(name.as_bytes()),
            };
            if let LookupRes::Ok(found) = fs.lookup(&who, &LookupArgs { what }) {
                self.handles.push(found.object);
            }
        }
        self.handles.insert(0, root);
    }

    /// Restores the contents from time to time, because runs must not grow, or depend on what
    /// happened long before.
    fn tidy(&mut self) {
        self.calls += 1;
        if !self.calls.is_multiple_of(512) {
            return;
        }
        let secret = std::fs::read(self.outside.path().join("secret"));
        assert!(
            secret.is_ok_and(|bytes| bytes == SECRET),
            "a file beside the export changed"
        );
        let beside = std::fs::read_dir(self.outside.path()).map_or(0, Iterator::count);
        assert_eq!(beside, 2, "something was made beside the export");
        let export = self.outside.path().join("export");
        for entry in std::fs::read_dir(&export).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let _ = std::fs::remove_dir_all(path);
            } else {
                let _ = std::fs::remove_file(path);
            }
        }
        let _ = fill(&export);
        self.find();
    }

    /// One call. If there is an answer, it is an RPC reply to this call.
    fn call(&self, message: Message<'_>, rdma: bool) {
        let peer = Peer {
            remote: SocketAddr::from((Ipv4Addr::LOCALHOST, 700)),
            local: SocketAddr::from((Ipv4Addr::LOCALHOST, 2049)),
            rdma,
            udp: false,
        };
        let _ = self.service.weigh(&message);
        let alloc = |len| self.pool.alloc(len);
        if let Outcome::Reply(reply) = self.service.handle(peer, message, &alloc) {
            assert!(reply.head.len() >= HEADROOM);
            let head = &reply.head[HEADROOM..];
            let parsed = Reply::decode(&mut Decoder::new(head)).expect("a reply is one");
            let xid = message
                .bytes
                .first_chunk()
                .map(|xid| u32::from_be_bytes(*xid));
            assert_eq!(Some(parsed.xid), xid, "the reply to another call");
        }
    }
}

/// A small tree with a link that leads out of it.
fn fill(export: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(export.join("dir"))?;
    std::fs::write(export.join("file"), [7; 5000])?;
    match std::os::unix::fs::symlink("../secret", export.join("out")) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Calls: either the bytes as they are, or a header for a procedure, with arguments that begin with
/// handles of this server. A part of the arguments may be in a Read chunk.
pub fn responder(bytes: &[u8]) {
    thread_local! {
        static WORLD: std::cell::RefCell<Option<World>> =
            std::cell::RefCell::new(World::new());
    }
    WORLD.with_borrow_mut(|world| {
        let Some(world) = world else {
            panic!("no directory to serve");
        };
        world.tidy();
        run(world, bytes);
    });
}

fn run(world: &World, bytes: &[u8]) {
    let Some((&[mode, which, handles], rest)) = bytes.split_first_chunk::<3>() else {
        return;
    };
    let rdma = mode & 1 != 0;
    let mut message = Vec::new();
    if mode & 2 != 0 {
        message.extend_from_slice(rest);
    } else {
        let (program, version, procedures) = match mode >> 2 & 7 {
            0 => (mount3::PROGRAM, 1 + u32::from(mode >> 5) % 4, 6),
            1 => (rpcbind::PROGRAM, 2 + u32::from(mode >> 5) % 4, 13),
            _ => (nfs3::PROGRAM, nfs3::VERSION, 24),
        };
        let call = Call {
            xid: u32::from(which) << 8 | u32::from(mode),
            program,
            version,
            procedure: u32::from(which) % procedures,
            credential: Auth::Sys(AuthSys {
                stamp: 0,
                machine: b"fuzz",
                uid: u32::from(which),
                gid: 0,
                groups: SmallVec::new(),
            }),
            verifier: Auth::None,
        };
        let mut out = Encoder::new(Vec::new());
        call.encode(&mut out);
        // A handle, and a second one after the name that follows the first.
        let handle = |bits: u8| world.handles.get(usize::from(bits % 8));
        let mut rest = rest;
        if let Some(first) = handle(handles) {
            first.encode(&mut out);
            if let Some(second) = handle(handles >> 3) {
                let cut = usize::from(handles >> 6) * 4 + 8;
                let (name, after) = rest.split_at(cut.min(rest.len() / 4 * 4));
                out.opaque_fixed(name);
                second.encode(&mut out);
                rest = after;
            }
        }
        message = out.into_vec();
        message.extend_from_slice(rest);
    }
    let whole = Message {
        bytes: &message,
        placed: None,
    };
    if mode & 0x80 == 0 {
        return world.call(whole, rdma);
    }
    // A Read chunk has the data of a WRITE, or otherwise the bytes after some word.
    let (position, len) = split_write(&message).unwrap_or_else(|| {
        let position = usize::from(handles) * 4;
        (position, usize::from(which) * 3)
    });
    let position = position.min(message.len());
    let len = len.min(message.len() - position);
    let (head, data) = message.split_at(position);
    let (data, tail) = data.split_at(len);
    let left = [head, tail].concat();
    let (one, two) = data.split_at(len / 2);
    let data = [one, two];
    let placed = Placed {
        data: &data,
        position,
    };
    world.call(
        Message {
            bytes: &left,
            placed: Some(placed),
        },
        rdma,
    );
}
