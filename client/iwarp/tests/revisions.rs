//! Peers that know MPA revision 1 only, byte by byte.

use super::wire::{LIMIT, REQUEST, any, params, provider, read};
use nfsrdma_iwarp::{IwarpOptions, IwarpProvider};
use nfsrdma_rdma::*;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// Accepts within the limit.
fn accept(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).unwrap();
    let until = Instant::now() + LIMIT;
    loop {
        if let Ok((socket, _)) = listener.accept() {
            socket.set_nonblocking(false).unwrap();
            socket.set_read_timeout(Some(LIMIT)).unwrap();
            return socket;
        }
        assert!(Instant::now() < until, "nobody connects");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A responder of revision 1 rejects a request of revision 2 (older softiwarp), or takes it for
/// improperly formatted and closes the connection (RFC 6581 section 10).
#[test]
fn a_responder_of_revision_1_is_asked_again_with_revision_1() {
    let first: [&[u8]; 2] = [b"MPA ID Rep Frame\x20\x01\x00\x00", b""];
    for answer in first {
        let listener = TcpListener::bind(any()).unwrap();
        let at = listener.local_addr().unwrap();
        let peer = thread::spawn(move || {
            let mut socket = accept(&listener);
            let request = read::<28>(&mut socket);
            assert_eq!(request[..20], *b"MPA ID Req Frame\x10\x02\x00\x08");
            socket.write_all(answer).unwrap();
            drop(socket);
            let mut socket = accept(&listener);
            let request = read::<24>(&mut socket);
            assert_eq!(request, *b"MPA ID Req Frame\x00\x01\x00\x04data");
            let reply = b"MPA ID Rep Frame\x00\x01\x00\x02hi";
            socket.write_all(reply).unwrap();
        });
        let connection = provider().connect(at, &params()).unwrap();
        assert_eq!(connection.peer_private_data, b"hi");
        assert_eq!(connection.queue_pair.capabilities().max_reads_in, 16);
        peer.join().unwrap();
    }
}

/// What a responder of revision 2 rejects is not asked for again, nor more than twice by any.
#[test]
fn a_rejection_stands() {
    let cases: [(&[u8], usize); 2] = [
        (b"MPA ID Rep Frame\x30\x02\x00\x04\x00\x00\x00\x00", 1),
        (b"MPA ID Rep Frame\x20\x01\x00\x00", 2),
    ];
    for (answer, times) in cases {
        let listener = TcpListener::bind(any()).unwrap();
        let at = listener.local_addr().unwrap();
        let peer = thread::spawn(move || {
            for _ in 0..times {
                let mut socket = accept(&listener);
                read::<24>(&mut socket);
                socket.write_all(answer).unwrap();
            }
            listener
        });
        let result = provider().connect(at, &params());
        assert!(matches!(result, Err(Error::Refused(_))));
        let listener = peer.join().unwrap();
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err(), "asked again");
    }
}

/// A responder that knows revision 1 only closes a connection of revision 2 without an answer.
#[test]
fn a_responder_of_revision_1_closes_on_revision_2() {
    let provider = IwarpProvider::new(IwarpOptions {
        mpa_revision: 1,
        ..IwarpOptions::default()
    });
    let listener = provider.listen(any()).unwrap();
    let mut socket = TcpStream::connect(listener.local_addr()).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket.write_all(REQUEST).unwrap();
    let result = listener.accept().unwrap().accept(&params());
    assert!(matches!(result, Err(Error::PeerMisbehaved(_))));
    assert_eq!(socket.read(&mut [0; 64]).unwrap(), 0);
}
