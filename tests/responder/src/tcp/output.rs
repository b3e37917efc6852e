//! Sends replies. A thread with a reply sends it at once if the socket accepts it. The rest waits
//! for the connection's own thread, so that a slow peer delays nobody else.

use crate::rpc::{HEADROOM, Reply};
use nfsrdma_rdma::Buf;
use nfsrdma_xdr::codec::padding;
use nfsrdma_xdr::record;
use parking_lot::{Condvar, Mutex};
use socket2::SockRef;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::TcpStream;

/// A record, of which a part may have been sent.
#[derive(Debug)]
pub(super) struct Record {
    head: Vec<u8>,
    payload: Option<Buf>,
    rest: Vec<Buf>,
    sent: usize,
}

impl Record {
    pub(super) fn new(mut reply: Reply) -> Self {
        debug_assert_eq!(HEADROOM, record::MARK_LEN);
        let payload = reply.payload.as_ref().map_or(0, |p| p.len());
        let rest: usize = reply.rest.iter().map(|part| part.len()).sum();
        let len = reply.head.len() - HEADROOM + payload + padding(payload) + rest;
        reply.head[..HEADROOM].copy_from_slice(&record::mark(len, true));
        Record {
            head: reply.head,
            payload: reply.payload,
            rest: reply.rest,
            sent: 0,
        }
    }

    fn parts(&self) -> [&[u8]; 5] {
        let payload = self.payload.as_deref().unwrap_or_default();
        let mut rest = self.rest.iter().map(|part| &part[..]);
        let mut next = || rest.next().unwrap_or_default();
        let padding = &[0; 3][..padding(payload.len())];
        [&self.head, payload, padding, next(), next()]
    }

    /// Sends a part of the rest. Returns whether everything is sent.
    fn send(&mut self, socket: &TcpStream, flags: i32) -> io::Result<bool> {
        let parts = self.parts();
        let total: usize = parts.iter().map(|p| p.len()).sum();
        let mut skip = self.sent;
        let mut slices = [IoSlice::new(&[]); 5];
        for (slice, part) in slices.iter_mut().zip(parts) {
            let from = skip.min(part.len());
            skip -= from;
            *slice = IoSlice::new(&part[from..]);
        }
        let flags = flags | libc::MSG_NOSIGNAL;
        match SockRef::from(socket).send_vectored_with_flags(&slices, flags) {
            Ok(0) if total > self.sent => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => self.sent += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
        Ok(self.sent == total)
    }
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Record>,
    /// Set while the thread sends: to keep the order, other threads must queue their replies.
    sending: bool,
    closed: bool,
    /// The number of calls that were received and whose replies are not sent.
    in_flight: usize,
}

/// The sending side of a connection.
#[derive(Debug)]
pub(super) struct Output {
    socket: TcpStream,
    state: Mutex<State>,
    /// Signalled when there is something to send, and at the end.
    more: Condvar,
    /// Signalled when a call has ended, and at the end.
    room: Condvar,
}

impl Output {
    pub(super) fn new(socket: TcpStream) -> Self {
        Output {
            socket,
            state: Mutex::default(),
            more: Condvar::new(),
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
        self.end(&mut self.state.lock());
    }

    fn end(&self, state: &mut State) {
        state.in_flight -= 1;
        self.room.notify_one();
    }

    /// Ends a call, and sends its reply.
    pub(super) fn reply(&self, reply: Reply) {
        let mut record = Record::new(reply);
        let mut state = self.state.lock();
        if state.closed {
            return self.end(&mut state);
        }
        if !state.sending && state.queue.is_empty() {
            match record.send(&self.socket, libc::MSG_DONTWAIT) {
                Ok(true) => return self.end(&mut state),
                Ok(false) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => {
                    self.end(&mut state);
                    return self.shut(&mut state);
                }
            }
        }
        state.queue.push_back(record);
        self.more.notify_one();
    }

    fn shut(&self, state: &mut State) {
        state.closed = true;
        state.queue.clear();
        self.more.notify_all();
        self.room.notify_all();
        // Wakes the reading thread.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }

    /// Ends the connection.
    pub(super) fn close(&self) {
        self.shut(&mut self.state.lock());
    }

    /// Sends queued replies until the connection is closed.
    pub(super) fn run(&self) {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return;
            }
            let Some(mut record) = state.queue.pop_front() else {
                self.more.wait(&mut state);
                continue;
            };
            state.sending = true;
            drop(state);
            let sent = loop {
                match record.send(&self.socket, 0) {
                    Ok(true) => break Ok(()),
                    Ok(false) => {}
                    Err(e) => break Err(e),
                }
            };
            drop(record);
            state = self.state.lock();
            state.sending = false;
            self.end(&mut state);
            if let Err(error) = sent {
                tracing::debug!(%error, "the peer takes no replies");
                return self.shut(&mut state);
            }
        }
    }
}
