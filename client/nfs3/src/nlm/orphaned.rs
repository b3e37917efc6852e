//! Connections that their processes have left, by dying. The server may still have to read calls from one, and
//! would run them after those that a successor sends on a new connection: a LOCK after the UNLOCK that was to
//! undo it, say, which nobody would ever release. Linux keeps such a connection in FIN_WAIT (RFC 9293 section
//! 3.3.2) until the server has read everything, found the end, and closed its side.

use std::net::{IpAddr, SocketAddr};

/// The states FIN_WAIT_1, FIN_WAIT_2 and CLOSING in the system's table of connections.
const ENDING: [&str; 3] = ["04", "05", "0B"];

/// Whether a connection from this machine to `server` has been left, and the server has not closed its side. One that
/// is open in this process does not count. False if the system does not tell.
pub(super) fn any_to(server: SocketAddr) -> bool {
    let table = match server.ip() {
        IpAddr::V4(_) => "/proc/self/net/tcp",
        IpAddr::V6(_) => "/proc/self/net/tcp6",
    };
    let server = as_listed(server);
    std::fs::read_to_string(table).is_ok_and(|table| {
        table.lines().any(|line| {
            // The first are a number, the own address, the peer's, and the state.
            let mut fields = line.split_ascii_whitespace().skip(2);
            fields.next() == Some(&server)
                && fields.next().is_some_and(|state| ENDING.contains(&state))
        })
    })
}

/// An address as the table has it: its words as they are in memory.
fn as_listed(address: SocketAddr) -> String {
    let words = |octets: &[u8]| -> String {
        let words = octets.as_chunks::<4>().0.iter();
        words
            .map(|word| format!("{:08X}", u32::from_ne_bytes(*word)))
            .collect()
    };
    let ip = match address.ip() {
        IpAddr::V4(ip) => words(&ip.octets()),
        IpAddr::V6(ip) => words(&ip.octets()),
    };
    format!("{ip}:{:04X}", address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_connection_that_was_left_ends_when_the_server_has_read_it() {
        for at in ["127.0.0.1:0", "[::1]:0"] {
            // A machine may have no IPv6.
            let Ok(listener) = TcpListener::bind(at) else {
                continue;
            };
            let server = listener.local_addr().unwrap();
            let mut client = TcpStream::connect(server).unwrap();
            client.write_all(b"call").unwrap();
            let (mut accepted, _) = listener.accept().unwrap();
            assert!(!any_to(server), "it is open");
            drop(client);
            assert!(any_to(server), "{at}: nobody has read the call");
            accepted.read_to_end(&mut Vec::new()).unwrap();
            assert!(any_to(server), "{at}: the server has not closed it");
            drop(accepted);
            assert!(!any_to(server), "{at}: it is closed");
        }
    }
}
