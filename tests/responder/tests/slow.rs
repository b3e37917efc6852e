//! Peers that are slow or silent for ever, over soft-iWARP. They occupy the responder for a bounded
//! time, with a bounded number of connections, and delay nobody else.

use crate::common::Dirs;
use crate::common::requester::*;
use nfsrdma_iwarp::{IwarpOptions, IwarpProvider};
use nfsrdma_rdma::Error;
use nfsrdma_responder::server::Server;
use nfsrdma_xdr::nfs3::*;
use nfsrdma_xdr::rpcrdma::{Body, ChunkLists, Header};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Most connections that `requester::serve` accepts at a time.
const MOST: usize = 16;
/// The time limit for everything that a test waits for.
const LIMIT: Duration = Duration::from_secs(60);

fn provider() -> IwarpProvider {
    IwarpProvider::new(IwarpOptions::default())
}

/// A responder that gives a peer `timeout` to send its request.
fn patient(dirs: &Dirs, timeout: Duration) -> (Server, SocketAddr) {
    serve(&dirs.export(), Arc::new(provider()), |settings| {
        settings.timeout = timeout;
    })
}

/// Connects repeatedly until the responder accepts.
fn let_in(address: SocketAddr) -> Requester {
    let until = Instant::now() + LIMIT;
    loop {
        match Requester::try_connect(&provider(), address, true) {
            Ok(requester) => return requester,
            Err(error) => assert!(Instant::now() < until, "not let in: {error}"),
        }
    }
}

fn is_served(requester: &mut Requester) {
    assert_eq!(requester.inline::<Null>(9, &Void {}), b"");
}

/// Sends nothing, or a request byte by byte, until the responder closes the connection.
fn slow(address: SocketAddr, drips: bool) -> JoinHandle<()> {
    let mut socket = TcpStream::connect(address).unwrap();
    thread::spawn(move || {
        // 512 bytes of private data follow, which would take a minute.
        let request = b"MPA ID Req Frame\x10\x01\x02\x00".iter().copied();
        let bytes = request.chain(std::iter::repeat_n(0, 512));
        for byte in bytes.take_while(|_| drips) {
            thread::sleep(Duration::from_millis(100));
            if socket.write_all(&[byte]).is_err() {
                break;
            }
        }
        let _ = socket.read_to_end(&mut Vec::new());
    })
}

#[test]
fn peers_that_never_ask_are_let_go() {
    let dirs = Dirs::new();
    let (server, address) = patient(&dirs, Duration::from_millis(500));
    let all: Vec<_> = (0..MOST).map(|n| slow(address, n % 2 == 0)).collect();
    is_served(&mut let_in(address));
    for peer in all {
        peer.join().unwrap();
    }
    server.stop();
}

#[test]
fn peers_that_never_ask_are_bounded_in_number_and_delay_nobody() {
    let dirs = Dirs::new();
    let (server, address) = patient(&dirs, LIMIT);
    let mut all: Vec<_> = (1..MOST)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    let mut requester = Requester::connect(&provider(), address, true);
    is_served(&mut requester);
    let refused = Requester::try_connect(&provider(), address, true).err();
    // An MPA reject frame if the request had arrived, and otherwise a closed connection.
    let refused_as_expected = matches!(refused, Some(Error::Refused(_) | Error::NotRdma(_)));
    assert!(refused_as_expected, "{refused:?}");
    all.pop();
    is_served(&mut let_in(address));
    is_served(&mut requester);
    drop((all, requester));
    server.stop();
}

#[test]
fn a_peer_that_stops_reading_is_let_go_and_delays_nobody() {
    let dirs = Dirs::new();
    let impatient = IwarpProvider::new(IwarpOptions {
        user_timeout: Some(Duration::from_secs(1)),
        socket_buffer: Some(64 << 10),
        ..IwarpOptions::default()
    });
    std::fs::write(dirs.export().join("file"), vec![7; 1 << 20]).unwrap();
    let (server, address) = serve(&dirs.export(), Arc::new(impatient), |_| {});
    let mut stalled = let_in(address);
    let root = stalled.mount();
    let what = DirOp {
        dir: root,
        name: Name(b"file"),
    };
    let found = stalled.inline::<Lookup>(2, &LookupArgs { what });
    let file = match nfsrdma_xdr::codec::Decode::from_xdr(&found).unwrap() {
        LookupRes::Ok(ok) => ok.object,
        LookupRes::Fail(status, _) => panic!("{status:?}"),
    };
    // This is more than the sockets hold, and from here on nobody polls.
    let args = ReadArgs {
        file,
        offset: 0,
        count: 1 << 20,
    };
    let sinks: Vec<_> = (0..8).map(|_| stalled.sink(1 << 20)).collect();
    for (xid, sink) in (10..).zip(&sinks) {
        let body = Body::Msg(ChunkLists {
            writes: [write_chunk(&[sink])].into_iter().collect(),
            ..ChunkLists::default()
        });
        stalled.post(&Header::new(xid, 8, body), &call::<Read>(xid, &args));
    }
    let mut others: Vec<_> = (1..MOST).map(|_| let_in(address)).collect();
    others.iter_mut().for_each(is_served);
    // Its place is given to another peer.
    is_served(&mut let_in(address));
    drop((others, sinks, stalled));
    server.stop();
}
