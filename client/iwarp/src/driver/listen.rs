//! The responder's side of connecting: [`Listener`] and [`Incoming`].
//!
//! `accept` returns each TCP connection at once, before its MPA Request is read, so that a silent
//! peer does not delay others. The request is read when the caller asks for it, accepts or rejects,
//! within a time limit (RFC 5044 section 7.1.2). If descriptors or memory are short, accepting
//! pauses and continues. Dropping an [`Incoming`] that was not answered rejects it, if its request
//! has arrived.

use super::connect::{Role, establish, read_frame, tune, write_frame};
use super::sys;
use crate::options::IwarpOptions;
use crate::proto::handshake::{self, Terms};
use crate::wire::mpa::{Frame, FrameError, FrameKind};
use nfsrdma_rdma::{
    ConnectParams, Connection, Error, EventFd, Incoming, Instant, Listener, Result,
};
use parking_lot::Mutex;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Number of connections that the kernel queues.
const BACKLOG: i32 = 128;
/// Time limit for a peer's request, even if the caller allows more.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// Time limit for a rejection, whose peer may have gone.
const REJECT_LIMIT: Duration = Duration::from_secs(1);
/// Pause before accepting again when descriptors or memory are short.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(50);
/// Time between two log lines of that: anybody can open connections.
const LOG_PAUSE: Duration = Duration::from_secs(60);

pub(crate) fn listen(options: &IwarpOptions, local: SocketAddr) -> Result<Box<dyn Listener>> {
    let open = || -> io::Result<IwarpListener> {
        let socket = Socket::new(
            Domain::for_address(local),
            Type::STREAM,
            Some(Protocol::TCP),
        )?;
        socket.set_reuse_address(true)?;
        // Accepted sockets inherit these options.
        tune(&socket, options);
        socket.set_nonblocking(true)?;
        socket.bind(&local.into())?;
        socket.listen(BACKLOG)?;
        let socket = TcpListener::from(socket);
        Ok(IwarpListener {
            options: options.clone(),
            local: socket.local_addr()?,
            socket,
            event: EventFd::new()?,
            closed: AtomicBool::new(false),
            logged: Mutex::new(None),
        })
    };
    match open() {
        Ok(listener) => Ok(Box::new(listener)),
        Err(e) => Err(Error::local(format!("cannot listen on {local}"), e)),
    }
}

struct IwarpListener {
    options: IwarpOptions,
    local: SocketAddr,
    socket: TcpListener,
    event: EventFd,
    closed: AtomicBool,
    /// When a shortage of descriptors or memory was last logged.
    logged: Mutex<Option<Instant>>,
}

impl IwarpListener {
    fn log_shortage(&self, error: &io::Error) {
        let mut logged = self.logged.lock();
        if logged.is_none_or(|at| at.elapsed() >= LOG_PAUSE) {
            *logged = Some(Instant::now());
            tracing::warn!(%error, "cannot accept connections now");
        }
    }
}

impl Listener for IwarpListener {
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn accept(&self) -> Result<Box<dyn Incoming>> {
        loop {
            if self.closed.load(Ordering::SeqCst) {
                return Err(Error::LinkLost("the listener was closed".into()));
            }
            let mut pause = None;
            match self.socket.accept() {
                Ok((stream, peer)) => {
                    return Ok(Box::new(IwarpIncoming {
                        options: self.options.clone(),
                        parts: Some(Parts {
                            stream,
                            revision: self.options.mpa_revision,
                            request: None,
                        }),
                        peer,
                    }));
                }
                Err(e) => match e.raw_os_error() {
                    Some(libc::EAGAIN | libc::EINTR | libc::ECONNABORTED | libc::EPROTO) => {}
                    Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
                        self.log_shortage(&e);
                        pause = Some(Instant::now() + EXHAUSTED_PAUSE);
                    }
                    _ => return Err(Error::local("cannot accept connections", e)),
                },
            }
            let waited = match pause {
                // The listening socket remains readable, so wait only for the time or a close.
                Some(until) => sys::wait(self.event.as_fd(), false, &self.event, Some(until)),
                None => sys::wait(self.socket.as_fd(), false, &self.event, None),
            };
            waited.map_err(|e| Error::local("cannot wait for connections", e))?;
        }
    }

    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        // Never cleared, so that every waiting accept sees it.
        self.event.notify();
    }
}

struct Parts {
    stream: TcpStream,
    /// The newest MPA revision that is known here.
    revision: u8,
    request: Option<Frame>,
}

impl Parts {
    fn request(&mut self, deadline: Instant) -> Result<&Frame> {
        if self.request.is_none() {
            let set_up = self.stream.set_nonblocking(false);
            set_up
                .and_then(|()| self.stream.set_nodelay(true))
                .map_err(|e| Error::local("cannot set up the socket", e))?;
            let request = read_frame(&mut self.stream, FrameKind::Request, deadline)?;
            if request.revision > self.revision {
                // RFC 6581 section 10: "it MUST close the TCP connection and exit MPA."
                let _ = self.stream.shutdown(Shutdown::Both);
                return Err(Error::PeerMisbehaved(
                    FrameError::Revision(request.revision).to_string(),
                ));
            }
            self.request = Some(request);
        }
        self.request
            .as_ref()
            .ok_or(Error::Misuse("no request was read"))
    }

    fn reject(mut self, private_data: &[u8], limit: Duration) {
        let deadline = Instant::now() + limit;
        let Ok(request) = self.request(deadline) else {
            return;
        };
        let reply = handshake::reject(request, private_data).to_bytes();
        let _ = write_frame(&mut self.stream, &reply, deadline);
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}

struct IwarpIncoming {
    options: IwarpOptions,
    parts: Option<Parts>,
    peer: SocketAddr,
}

impl IwarpIncoming {
    fn parts(&mut self) -> Result<&mut Parts> {
        self.parts
            .as_mut()
            .ok_or(Error::Misuse("the request was answered already"))
    }
}

impl Incoming for IwarpIncoming {
    fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    fn request(&mut self, timeout: Duration) -> Result<Vec<u8>> {
        let deadline = Instant::now() + timeout.min(REQUEST_LIMIT);
        let frame = self.parts()?.request(deadline)?;
        Ok(frame.private_data.clone())
    }

    fn accept(mut self: Box<Self>, params: &ConnectParams) -> Result<Connection> {
        let deadline = Instant::now() + params.timeout;
        let receives = params.take_receives()?;
        let options = self.options.clone();
        let parts = self.parts()?;
        //= RFC 5044, Section 7.1.2
        //# When MPA is started in the Responder mode, the MPA implementation MUST wait until an MPA
        //# Request Frame is received and validated before entering Full MPA/DDP Operation.
        //# If the MPA Request Frame is improperly formatted, the implementation MUST close the TCP
        //# connection and exit MPA.
        let request = parts
            .request(deadline.min(Instant::now() + REQUEST_LIMIT))?
            .clone();
        let terms = Terms {
            crc: options.crc,
            revision: request.revision,
            peer_to_peer: false,
            reads_in: params.reads_in,
            reads_out: params.reads_out,
        };
        let (reply, agreed) = handshake::answer(&terms, &request, &params.private_data);
        write_frame(&mut parts.stream, &reply.to_bytes(), deadline)?;
        let Some(agreed) = agreed else {
            return Err(Error::PeerMisbehaved(
                "asks for the peer-to-peer model without an RTR message".into(),
            ));
        };
        let parts = self
            .parts
            .take()
            .ok_or(Error::Misuse("the request was answered already"))?;
        establish(
            &options,
            params,
            parts.stream,
            Role::Responder,
            agreed,
            receives,
            request.private_data,
        )
    }

    fn reject(mut self: Box<Self>, private_data: &[u8]) {
        if let Some(parts) = self.parts.take() {
            parts.reject(private_data, REJECT_LIMIT);
        }
    }
}

impl Drop for IwarpIncoming {
    /// Rejects the request, but does not wait for one that has not arrived.
    fn drop(&mut self) {
        if let Some(parts) = self.parts.take() {
            let _ = parts.stream.set_nonblocking(true);
            let here = SockRef::from(&parts.stream)
                .peek(&mut [std::mem::MaybeUninit::uninit()])
                .is_ok();
            if parts.request.is_some() || here {
                parts.reject(&[], Duration::from_millis(20));
            }
        }
    }
}
