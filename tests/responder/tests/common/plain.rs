//! RPC over TCP and UDP without the client's RPC transport: a client that makes one call at a time,
//! and a client's programs (rpcbind, lock manager, status monitor), which record calls.
#![allow(dead_code, reason = "each test binary uses some of it")]

use nfsrdma_xdr::codec::{Decode, Decoder, Encode, Encoder, Text};
use nfsrdma_xdr::mount3::{Mnt, MountArgs, MountRes};
use nfsrdma_xdr::nfs3::{DirOp, FileHandle, Lookup, LookupArgs, LookupRes, Name, Reply};
use nfsrdma_xdr::procedure::Procedure;
use nfsrdma_xdr::rpc::{self, Accepted, Auth, AuthSys, Call};
use nfsrdma_xdr::{nlm4, nsm, record, rpcbind};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// Waits until a condition is met.
pub fn until(mut met: impl FnMut() -> bool) {
    let limit = Instant::now() + LIMIT;
    while !met() {
        assert!(Instant::now() < limit, "it did not happen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sends a command to a responder.
pub fn command(control: &Path, line: &str) -> String {
    let mut stream = UnixStream::connect(control).unwrap();
    writeln!(stream, "{line}").unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    answer.trim_end().to_string()
}

/// A client that makes calls to one port.
pub struct Client {
    address: SocketAddr,
    udp: bool,
    uid: u32,
}

impl Client {
    pub fn tcp(port: u16) -> Self {
        Client {
            address: ([127, 0, 0, 1], port).into(),
            udp: false,
            uid: rustix::process::geteuid().as_raw(),
        }
    }

    pub fn udp(port: u16) -> Self {
        Client {
            udp: true,
            ..Self::tcp(port)
        }
    }

    /// The same client, but as another user.
    pub fn by(self, uid: u32) -> Self {
        Client { uid, ..self }
    }

    /// The root of the export and a file in it. The port must be one of NFS and MOUNT.
    pub fn look_up(&self, name: &str) -> (FileHandle, FileHandle) {
        let path = MountArgs {
            path: Text(b"/export"),
        };
        let root = self.call::<Mnt, _>(&path, |res| match res {
            MountRes::Ok(mounted) => mounted.root,
            MountRes::Fail(status) => panic!("{status:?}"),
        });
        let what = LookupArgs {
            what: DirOp {
                dir: root,
                name: Name(name.as_bytes()),
            },
        };
        let found = self.call::<Lookup, _>(&what, |res: LookupRes| match res {
            Reply::Ok(ok) => ok.object,
            Reply::Fail(status, _) => panic!("{status:?}"),
        });
        (root, found)
    }

    fn exchange<P: Procedure>(&self, args: &P::Args<'_>, limit: Duration) -> Option<Vec<u8>> {
        let mut call = Encoder::default();
        Call {
            xid: 77,
            program: P::PROGRAM,
            version: P::VERSION,
            procedure: P::NUMBER,
            credential: Auth::Sys(AuthSys {
                stamp: 0,
                machine: b"test",
                uid: self.uid,
                gid: self.uid,
                groups: Default::default(),
            }),
            verifier: Auth::None,
        }
        .encode(&mut call);
        args.encode(&mut call);
        let call = call.into_vec();
        if self.udp {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.set_read_timeout(Some(limit)).unwrap();
            socket.send_to(&call, self.address).unwrap();
            let mut reply = vec![0; 65536];
            let len = socket.recv(&mut reply).ok()?;
            reply.truncate(len);
            return Some(reply);
        }
        let mut socket = TcpStream::connect(self.address).unwrap();
        socket.set_read_timeout(Some(limit)).unwrap();
        let mark = record::mark(call.len(), true);
        socket.write_all(&[&mark[..], &call].concat()).unwrap();
        read_record(&mut socket)
    }

    /// The results of a call, or `None` if there is no answer in time.
    pub fn try_call<P: Procedure>(&self, args: &P::Args<'_>, limit: Duration) -> Option<Vec<u8>> {
        let reply = self.exchange::<P>(args, limit)?;
        let mut from = Decoder::new(&reply);
        let header = rpc::Reply::decode(&mut from).unwrap();
        assert!(header.is_success(), "{}: {header:?}", P::NAME);
        Some(from.rest().to_vec())
    }

    pub fn call<P: Procedure, T>(
        &self,
        args: &P::Args<'_>,
        with: impl FnOnce(P::Res<'_>) -> T,
    ) -> T {
        let results = self.try_call::<P>(args, LIMIT).expect("an answer in time");
        with(P::Res::decode(&mut Decoder::new(&results)).unwrap())
    }

    fn status<P: Procedure>(&self, args: &P::Args<'_>) -> Accepted {
        let reply = self.exchange::<P>(args, LIMIT).unwrap();
        match rpc::Reply::decode(&mut Decoder::new(&reply)).unwrap().body {
            rpc::ReplyBody::Accepted(_, status) => status,
            other => panic!("{other:?}"),
        }
    }

    /// Whether the program is not served.
    pub fn is_unavailable<P: for<'a> Procedure<Args<'a> = nfsrdma_xdr::nfs3::Void>>(&self) -> bool {
        let void = nfsrdma_xdr::nfs3::Void {};
        self.status::<P>(&void) == Accepted::ProgUnavail
    }

    /// Whether the arguments are answered with GARBAGE_ARGS.
    pub fn has_garbage_args<P: Procedure>(&self, args: &P::Args<'_>) -> bool {
        self.status::<P>(args) == Accepted::GarbageArgs
    }
}

fn read_record(socket: &mut TcpStream) -> Option<Vec<u8>> {
    let mut mark = [0; 4];
    socket.read_exact(&mut mark).ok()?;
    let len = u32::from_be_bytes(mark) & 0x7fff_ffff;
    let mut message = vec![0; len as usize];
    socket.read_exact(&mut message).ok()?;
    Some(message)
}

/// The calls that came: program, procedure, arguments.
type Calls = Arc<(Mutex<Vec<(u32, u32, Vec<u8>)>>, Condvar)>;

/// A client's programs, all at one port, over TCP and UDP. Granted locks are refused.
pub struct Peer {
    port: u16,
    calls: Calls,
}

impl Peer {
    pub fn start() -> Self {
        // Find a port that is free for both.
        let (tcp, udp) = (0..100)
            .find_map(|_| {
                let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
                let udp = UdpSocket::bind(tcp.local_addr().unwrap()).ok()?;
                Some((tcp, udp))
            })
            .unwrap();
        let port = tcp.local_addr().unwrap().port();
        let calls = Calls::default();
        let noted = calls.clone();
        std::thread::spawn(move || {
            for socket in tcp.incoming() {
                let mut socket = socket.unwrap();
                while let Some(call) = read_record(&mut socket) {
                    let reply = answer(port, &call, &noted);
                    let mark = record::mark(reply.len(), true);
                    if socket.write_all(&[&mark[..], &reply].concat()).is_err() {
                        break;
                    }
                }
            }
        });
        let noted = calls.clone();
        std::thread::spawn(move || {
            let mut call = vec![0; 65536];
            while let Ok((len, from)) = udp.recv_from(&mut call) {
                let _ = udp.send_to(&answer(port, &call[..len], &noted), from);
            }
        });
        Peer { port, calls }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Waits for a call of `P`, and removes it from the record.
    pub fn wait_for<P: Procedure, T>(&self, with: impl FnOnce(P::Args<'_>) -> T) -> T {
        let (calls, changed) = &*self.calls;
        let limit = Instant::now() + LIMIT;
        let mut calls = calls.lock().unwrap();
        loop {
            let wanted = |call: &(u32, u32, _)| (call.0, call.1) == (P::PROGRAM, P::NUMBER);
            if let Some(at) = calls.iter().position(wanted) {
                let (.., args) = calls.remove(at);
                return with(P::Args::decode(&mut Decoder::new(&args)).unwrap());
            }
            let left = limit.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{} did not come", P::NAME);
            calls = changed.wait_timeout(calls, left).unwrap().0;
        }
    }
}

fn answer(port: u16, call: &[u8], noted: &Calls) -> Vec<u8> {
    let mut from = Decoder::new(call);
    let call = Call::parse(&mut from).unwrap();
    let mut reply = Encoder::default();
    rpc::Reply::accepted(call.xid, Accepted::Success).encode(&mut reply);
    match (call.program, call.procedure) {
        (rpcbind::PROGRAM, _) => reply.u32(u32::from(port)),
        (nlm4::PROGRAM, nlm4::Granted::NUMBER) => nlm4::Res {
            cookie: Text(b""),
            status: nlm4::Status::Denied,
        }
        .encode(&mut reply),
        _ => {}
    }
    if [nlm4::PROGRAM, nsm::PROGRAM].contains(&call.program) {
        let (calls, changed) = &**noted;
        let noted = (call.program, call.procedure, from.rest().to_vec());
        calls.lock().unwrap().push(noted);
        changed.notify_all();
    }
    reply.into_vec()
}
