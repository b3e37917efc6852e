//! RPC over UDP, a datagram for each call and reply, for the short messages besides NFS.

use crate::rpc::{HEADROOM, Message, Outcome, Peer, Service};
use std::io;
use std::net::{SocketAddr, UdpSocket};

/// Longest datagram.
const DATAGRAM_MAX: usize = 65536;

/// Serves calls until `over` returns true; it is asked after each datagram.
pub fn serve(socket: &UdpSocket, service: &Service, over: impl Fn() -> bool) -> io::Result<()> {
    let local = socket.local_addr()?;
    let mut buffer = vec![0; DATAGRAM_MAX];
    loop {
        let received = socket.recv_from(&mut buffer);
        if over() {
            return Ok(());
        }
        match received {
            Ok((len, remote)) => answer(socket, service, local, remote, &buffer[..len]),
            // The error may report that an earlier reply reached nobody.
            Err(error) => tracing::debug!(%error, "a datagram was not received"),
        }
    }
}

fn answer(
    socket: &UdpSocket,
    service: &Service,
    local: SocketAddr,
    remote: SocketAddr,
    call: &[u8],
) {
    let peer = Peer {
        remote,
        local,
        rdma: false,
        udp: true,
    };
    let message = Message {
        bytes: call,
        placed: None,
    };
    if let Outcome::Reply(reply) = service.handle(peer, message, &|_| None)
        && let Err(error) = socket.send_to(&reply.head[HEADROOM..], remote)
    {
        tracing::debug!(%error, %remote, "a reply was not sent");
    }
}
