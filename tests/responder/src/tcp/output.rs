//! Sends replies: whoever has one sends it, and waits as long as the peer takes.

use crate::rpc::{HEADROOM, Reply};
use nfsrdma_xdr::codec::padding;
use nfsrdma_xdr::record;
use parking_lot::{Condvar, Mutex};
use socket2::SockRef;
use std::io::{self, IoSlice};
use std::net::TcpStream;

#[derive(Debug, Default)]
struct State {
    closed: bool,
    /// The number of calls that were received and whose replies are not sent.
    in_flight: usize,
}

/// The sending side of a connection.
#[derive(Debug)]
pub(super) struct Output {
    socket: TcpStream,
    state: Mutex<State>,
    sending: Mutex<()>,
    /// Signalled when a call has ended, and at the end.
    room: Condvar,
}

impl Output {
    pub(super) fn new(socket: TcpStream) -> Self {
        Output {
            socket,
            state: Mutex::default(),
            sending: Mutex::default(),
            room: Condvar::new(),
        }
    }

    /// Waits until fewer than `limit` calls are under way, and counts one more. Returns `false` if
    /// the connection has ended.
    pub(super) fn begin(&self, limit: usize) -> bool {
        let mut state = self.state.lock();
        while !state.closed && state.in_flight >= limit {
            self.room.wait(&mut state);
        }
        state.in_flight += 1;
        !state.closed
    }

    /// Ends a call that has no reply.
    pub(super) fn skip(&self) {
        self.state.lock().in_flight -= 1;
        self.room.notify_one();
    }

    /// Ends a call, and sends its reply.
    pub(super) fn reply(&self, reply: Reply) {
        let sending = self.sending.lock();
        if let Err(error) = self.send(reply) {
            tracing::debug!(%error, "the peer takes no replies");
            self.close();
        }
        drop(sending);
        self.skip();
    }

    fn send(&self, mut reply: Reply) -> io::Result<()> {
        debug_assert_eq!(HEADROOM, record::MARK_LEN);
        let payload = reply.payload.as_deref().unwrap_or_default();
        let rest: usize = reply.rest.iter().map(|part| part.len()).sum();
        let len = reply.head.len() - HEADROOM + payload.len() + padding(payload.len()) + rest;
        reply.head[..HEADROOM].copy_from_slice(&record::mark(len, true));
        let padding = &[0; 3][..padding(payload.len())];
        let parts = [&reply.head[..], payload, padding];
        let mut slices: Vec<IoSlice<'_>> = parts.into_iter().map(IoSlice::new).collect();
        slices.extend(reply.rest.iter().map(|part| IoSlice::new(part)));
        let mut left = &mut slices[..];
        IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            match SockRef::from(&self.socket).send_vectored_with_flags(left, libc::MSG_NOSIGNAL) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => IoSlice::advance_slices(&mut left, n),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Ends the connection.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.room.notify_all();
        // Wakes the reading thread.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }
}
