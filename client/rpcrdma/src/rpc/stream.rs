//! RPC over one TCP connection that stays open: many calls at a time, matched with their replies by
//! XID (record marking: RFC 5531 section 11).
//!
//! The connection is made with the first call, and again with the next one after it has ended. Its
//! end is reported at once, also while no call is under way ([`StreamClient::telling`]): a server
//! that restarts closes the connection, and forgets what it had granted, such as locks.

use super::plain::{self, MAX_REPLY, PlainError, Target};
use nfsrdma_xdr::procedure::Procedure;
use nfsrdma_xdr::record::{self, RecordReader};
use nfsrdma_xdr::rpc::Auth;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// Calls that wait for their replies; `None` when the connection is gone.
type Pending = Arc<Mutex<Option<HashMap<u32, oneshot::Sender<Vec<u8>>>>>>;

#[derive(Debug)]
struct Connection {
    pending: Pending,
    losses: watch::Sender<u64>,
    writer: tokio::sync::Mutex<OwnedWriteHalf>,
    reader: AbortHandle,
    /// Resets the connection.
    given_up: Arc<Notify>,
    peer: SocketAddr,
}

impl Connection {
    fn new(stream: TcpStream, peer: SocketAddr, losses: watch::Sender<u64>) -> Self {
        // Each call is written at once.
        let _ = stream.set_nodelay(true);
        let (mut reader, writer) = stream.into_split();
        let pending: Pending = Arc::new(Mutex::new(Some(HashMap::new())));
        let (replies, told) = (pending.clone(), losses.clone());
        let given_up = Arc::new(Notify::new());
        let reset = given_up.clone();
        let task = tokio::spawn(async move {
            tokio::select! {
                () = read_replies(&mut reader, &replies) => end(&replies, &told),
                () = reset.notified() => {
                    // TCP would go on with a call that was given up, and once the path is mended an old LOCK or UNLOCK
                    // would arrive after the calls of the next connection. (At the end of the process nothing comes
                    // after them.)
                    let _ = reader.as_ref().set_zero_linger();
                }
            }
        });
        Connection {
            pending,
            losses,
            writer: tokio::sync::Mutex::new(writer),
            reader: task.abort_handle(),
            given_up,
            peer,
        }
    }

    /// Ends all its pending calls without a reply, and drops what is unsent. Later calls need another connection.
    fn end(&self) {
        end(&self.pending, &self.losses);
        self.given_up.notify_one();
    }

    fn is_open(&self) -> bool {
        self.pending.lock().is_some()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // A task that is to reset the connection ends by itself.
        if self.is_open() {
            self.reader.abort();
        }
    }
}

/// A client with at most one open connection.
#[derive(Debug, Default)]
pub struct StreamClient {
    connection: Mutex<Option<Arc<Connection>>>,
    /// Held while a connection is made.
    connecting: tokio::sync::Mutex<()>,
    losses: watch::Sender<u64>,
}

/// Removes a call from the pending ones when its caller leaves, also if the future is dropped.
struct Waiting<'a> {
    pending: &'a Pending,
    xid: u32,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(pending) = self.pending.lock().as_mut() {
            pending.remove(&self.xid);
        }
    }
}

/// Ends the connection if the caller leaves in the middle of a message, also if the future is
/// dropped: the server would take the next call for the rest of that message.
struct Unfinished<'a>(Option<&'a Connection>);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.0 {
            connection.end();
        }
    }
}

impl StreamClient {
    /// A client that adds one to `losses` when a connection is lost.
    pub fn telling(losses: watch::Sender<u64>) -> Self {
        StreamClient {
            losses,
            ..StreamClient::default()
        }
    }

    /// Makes one call and passes its results to `with`. A call without a reply within
    /// `target.timeout` closes the connection; the next call makes a new one.
    pub async fn call<P: Procedure, T>(
        &self,
        target: &Target,
        credential: Auth<'_>,
        args: &P::Args<'_>,
        with: impl FnOnce(P::Res<'_>) -> T,
    ) -> Result<T, PlainError> {
        let (xid, message) = plain::encode::<P>(credential, args)?;
        let mut used = None;
        let exchange = async {
            let connection = used.insert(self.connected(target).await?);
            Ok::<_, PlainError>(exchange(connection, xid, &message).await)
        };
        let answer = timeout(target.timeout, exchange).await;
        match answer {
            Ok(Ok(Some(reply))) => return plain::decode::<P, T>(&reply, with),
            Ok(Err(error)) => return Err(error),
            Ok(Ok(None)) | Err(_) => {}
        }
        // The peer has closed the connection, or does not answer.
        if let Some(connection) = used {
            self.close(&connection);
        }
        Err(match answer {
            Err(_) => PlainError::TimedOut,
            Ok(_) => PlainError::Unreachable("connection closed by the server".to_owned().into()),
        })
    }

    fn close(&self, connection: &Arc<Connection>) {
        connection.end();
        let mut current = self.connection.lock();
        let closed = current.take_if(|of| Arc::ptr_eq(of, connection));
        drop(current);
        drop(closed);
    }

    fn current(&self, target: &Target) -> Option<Arc<Connection>> {
        let current = self.connection.lock().clone();
        current.filter(|of| of.peer == target.address && of.is_open())
    }

    /// Returns the open connection to `target`, or makes one.
    async fn connected(&self, target: &Target) -> Result<Arc<Connection>, PlainError> {
        if let Some(connection) = self.current(target) {
            return Ok(connection);
        }
        let _turn = self.connecting.lock().await;
        // Another call may have made it meanwhile.
        if let Some(connection) = self.current(target) {
            return Ok(connection);
        }
        let stream = plain::connect(target).await?;
        let connection = Connection::new(stream, target.address, self.losses.clone());
        let connection = Arc::new(connection);
        let before = self.connection.lock().replace(connection.clone());
        drop(before);
        Ok(connection)
    }
}

/// Marks a connection as gone: all its pending calls end without a reply.
fn end(pending: &Pending, losses: &watch::Sender<u64>) {
    if pending.lock().take().is_some() {
        losses.send_modify(|count| *count += 1);
    }
}

/// Returns the reply, or `None` if the connection ends first.
async fn exchange(connection: &Connection, xid: u32, message: &[u8]) -> Option<Vec<u8>> {
    let (give, take) = oneshot::channel();
    connection.pending.lock().as_mut()?.insert(xid, give);
    let _waiting = Waiting {
        pending: &connection.pending,
        xid,
    };
    let framed = [&record::mark(message.len(), true)[..], message].concat();
    let mut writer = connection.writer.lock().await;
    if !connection.is_open() {
        return None;
    }
    let mut unfinished = Unfinished(Some(connection));
    writer.write_all(&framed).await.ok()?;
    unfinished.0 = None;
    drop(writer);
    take.await.ok()
}

async fn read_replies(from: &mut OwnedReadHalf, pending: &Pending) {
    let mut reader = RecordReader::new(MAX_REPLY, 64);
    let mut piece = [0; 4096];
    while let Ok(len @ 1..) = from.read(&mut piece).await {
        let mut input = &piece[..len];
        while !input.is_empty() {
            let record = match reader.read(&mut input) {
                Ok(Some(record)) => record,
                Ok(None) => continue,
                Err(_) => return,
            };
            let Some(xid) = record.first_chunk().map(|xid| u32::from_be_bytes(*xid)) else {
                continue;
            };
            let waits = pending.lock().as_mut().and_then(|all| all.remove(&xid));
            if let Some(waits) = waits {
                let _ = waits.send(record);
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::plain::Protocol;
    use super::*;
    use nfsrdma_xdr::codec::Encode;
    use nfsrdma_xdr::nfs3::Void;
    use nfsrdma_xdr::nlm4;
    use nfsrdma_xdr::rpc::{Accepted, Reply};
    use std::time::Duration;
    use tokio::net::TcpListener;

    pub(in crate::rpc) async fn server() -> (TcpListener, Target) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = Target {
            address: listener.local_addr().unwrap(),
            protocol: Protocol::Tcp,
            privileged: false,
            timeout: Duration::from_secs(20),
        };
        (listener, target)
    }

    pub(in crate::rpc) async fn receive(from: &mut tokio::net::TcpStream) -> Vec<u8> {
        let mut mark = [0; 4];
        from.read_exact(&mut mark).await.unwrap();
        let len = u32::from_be_bytes(mark) & 0x7fff_ffff;
        let mut message = vec![0; len as usize];
        from.read_exact(&mut message).await.unwrap();
        message
    }

    pub(in crate::rpc) async fn send(to: &mut tokio::net::TcpStream, message: &[u8]) {
        let mark = record::mark(message.len(), true);
        to.write_all(&mark).await.unwrap();
        to.write_all(message).await.unwrap();
    }

    /// Receives a call; returns its XID.
    async fn called(from: &mut tokio::net::TcpStream) -> u32 {
        let message = receive(from).await;
        u32::from_be_bytes(message[..4].try_into().unwrap())
    }

    async fn reply(to: &mut tokio::net::TcpStream, xid: u32) {
        send(to, &Reply::accepted(xid, Accepted::Success).to_xdr()).await;
    }

    async fn null(client: &StreamClient, target: &Target) -> Result<(), PlainError> {
        let with = |_: Void| ();
        client
            .call::<nlm4::Null, _>(target, Auth::None, &Void {}, with)
            .await
    }

    #[tokio::test]
    async fn replies_come_in_any_order_on_one_connection() {
        let (listener, target) = server().await;
        let serve = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let first = called(&mut stream).await;
            let second = called(&mut stream).await;
            reply(&mut stream, second ^ first ^ 0x55).await;
            reply(&mut stream, second).await;
            reply(&mut stream, first).await;
            stream
        });
        let client = StreamClient::default();
        let (one, two) = tokio::join!(null(&client, &target), null(&client, &target));
        assert!(one.is_ok() && two.is_ok(), "{one:?} {two:?}");
        drop(serve.await.unwrap());
    }

    #[tokio::test]
    async fn a_connection_that_ends_is_told_and_made_again() {
        let (listener, target) = server().await;
        let sender = watch::Sender::new(0);
        let mut losses = sender.subscribe();
        let client = StreamClient::telling(sender);
        for round in 0..3 {
            let serve = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                let xid = called(&mut stream).await;
                if round != 1 {
                    reply(&mut stream, xid).await;
                }
            };
            let (result, ()) = tokio::join!(null(&client, &target), serve);
            assert_eq!(result.is_ok(), round != 1, "{result:?}");
            let told = timeout(Duration::from_secs(20), losses.changed()).await;
            told.unwrap().unwrap();
        }
    }

    #[tokio::test]
    async fn a_call_that_is_dropped_in_the_middle_of_a_message_resets_the_connection() {
        let (listener, target) = server().await;
        let losses = watch::Sender::new(0);
        let stream = plain::connect(&target).await.unwrap();
        let connection = Connection::new(stream, target.address, losses.clone());
        let (mut silent, _) = listener.accept().await.unwrap();
        // More than any socket holds.
        let long = vec![0; 64 << 20];
        {
            let other = exchange(&connection, 2, b"");
            tokio::pin!(other);
            {
                let call = exchange(&connection, 1, &long);
                tokio::pin!(call);
                // `other` waits until the message is written.
                let turn = Duration::from_millis(1);
                assert!(timeout(turn, call.as_mut()).await.is_err());
                assert!(timeout(turn, other.as_mut()).await.is_err());
                assert!(connection.is_open());
            }
            assert!(!connection.is_open());
            assert_eq!(*losses.borrow(), 1);
            assert_eq!(other.await, None);
        }
        drop(connection);
        // What TCP had not sent yet does not arrive any more.
        let mut rest = Vec::new();
        let end = timeout(Duration::from_secs(20), silent.read_to_end(&mut rest));
        let reset = end.await.unwrap().unwrap_err();
        assert_eq!(reset.kind(), std::io::ErrorKind::ConnectionReset);
    }

    /// As an UNLOCK of a mount that ends.
    #[tokio::test]
    async fn what_was_written_arrives_though_the_connection_is_dropped() {
        let (listener, target) = server().await;
        let stream = plain::connect(&target).await.unwrap();
        let connection = Connection::new(stream, target.address, watch::Sender::new(0));
        let (mut peer, _) = listener.accept().await.unwrap();
        // More than the peer takes before it reads.
        let long = vec![0; 1 << 20];
        {
            let call = exchange(&connection, 1, &long);
            tokio::pin!(call);
            loop {
                let turn = Duration::from_millis(1);
                assert!(timeout(turn, call.as_mut()).await.is_err());
                if connection.writer.try_lock().is_ok() {
                    break;
                }
            }
        }
        drop(connection);
        let mut all = Vec::new();
        let end = timeout(Duration::from_secs(20), peer.read_to_end(&mut all));
        assert_eq!(end.await.unwrap().unwrap(), 4 + long.len());
    }

    #[tokio::test]
    async fn a_call_that_is_not_answered_ends_its_connection_while_another_is_made() {
        let (listener, target) = server().await;
        let target = Target {
            timeout: Duration::from_millis(50),
            ..target
        };
        let client = StreamClient::default();
        let silent = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            called(&mut stream).await;
            // As a call does that connects to another port.
            let _turn = client.connecting.lock().await;
            let mut rest = Vec::new();
            let end = timeout(Duration::from_secs(20), stream.read_to_end(&mut rest));
            end.await.unwrap().unwrap();
        };
        let (result, ()) = tokio::join!(null(&client, &target), silent);
        assert!(matches!(result, Err(PlainError::TimedOut)), "{result:?}");
    }
}
