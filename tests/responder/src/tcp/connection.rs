//! One TCP connection. It has a thread that reads calls and executes the short ones.

use super::output::Output;
use crate::rpc::{Message, Outcome, Peer, Service, Weight};
use crate::workers::Workers;
use nfsrdma_rdma::Pool;
use nfsrdma_xdr::record::RecordReader;
use socket2::{SockRef, TcpKeepalive};
use std::io::{self, Read};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

/// A peer that accepts no byte of a reply for this long is disconnected.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);
/// Most fragments of one record. Common clients send one.
const FRAGMENTS_MAX: usize = 1024;

/// The limits of one connection.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Longest call, in bytes.
    pub record: usize,
    /// Most calls under way.
    pub calls: usize,
    /// Memory for payloads, in bytes.
    pub memory: usize,
}

//= RFC 8267, Section 5.1
//# To enable interoperation of these protocols when NFS/RDMA is in use, a Legacy NFS server MUST
//# provide support for these protocols via TCP.
/// Serves a connection until it ends. Call this on a thread of its own. Shutting down the socket
/// ends it.
pub fn serve(
    socket: TcpStream,
    service: &Arc<Service>,
    workers: &Arc<Workers>,
    limits: Limits,
) -> io::Result<()> {
    let remote = socket.peer_addr()?;
    let local = socket.local_addr()?;
    socket.set_nodelay(true)?;
    socket.set_write_timeout(Some(SEND_TIMEOUT))?;
    // This detects peers that vanished.
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(60))
        .with_interval(Duration::from_secs(10))
        .with_retries(6);
    SockRef::from(&socket).set_tcp_keepalive(&keepalive)?;
    let pool = Pool::new(limits.memory).map_err(|e| io::Error::other(e.to_string()))?;
    let output = Arc::new(Output::new(socket.try_clone()?));
    let connection = Connection {
        service: service.clone(),
        workers: workers.clone(),
        output: output.clone(),
        pool,
        peer: Peer {
            remote,
            local,
            rdma: false,
            udp: false,
        },
    };
    let result = connection.read(socket, limits);
    output.close();
    result
}

struct Connection {
    service: Arc<Service>,
    workers: Arc<Workers>,
    output: Arc<Output>,
    pool: Pool,
    peer: Peer,
}

impl Connection {
    fn read(&self, mut socket: TcpStream, limits: Limits) -> io::Result<()> {
        let mut reader = RecordReader::new(limits.record, FRAGMENTS_MAX);
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let mut input = match socket.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(n) => &buffer[..n],
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            while !input.is_empty() {
                let record = reader
                    .read(&mut input)
                    .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
                if let Some(record) = record {
                    if !self.output.begin(limits.calls) {
                        return Ok(());
                    }
                    self.call(record);
                }
            }
        }
    }

    fn call(&self, record: Vec<u8>) {
        let message = Message {
            bytes: &record,
            placed: None,
        };
        match self.service.weigh(&message) {
            Weight::Light => execute(&self.service, &self.output, &self.pool, self.peer, &record),
            Weight::Heavy => {
                let (service, output) = (self.service.clone(), self.output.clone());
                let (pool, peer) = (self.pool.clone(), self.peer);
                self.workers
                    .submit(move || execute(&service, &output, &pool, peer, &record));
            }
        }
    }
}

fn execute(service: &Service, output: &Arc<Output>, pool: &Pool, peer: Peer, record: &[u8]) {
    let message = Message {
        bytes: record,
        placed: None,
    };
    match service.handle(peer, message, &|len| pool.alloc(len)) {
        Outcome::Reply(reply) => output.reply(reply),
        Outcome::InProgress(key, seal) => {
            let output = output.clone();
            service.wait(&key, seal, move |reply| match reply {
                Some(reply) => output.reply(reply),
                None => output.skip(),
            });
        }
        // Calls over TCP have no chunks.
        Outcome::Discard | Outcome::BadChunks => output.skip(),
    }
}
