//! librdmacm: event channels, connection identifiers and events.
//!
//! An identifier ([`Id`]) corresponds to a socket. Each step of connecting (address, route,
//! connection) begins with a call and ends with an event, for which [`Id::expect`] waits until a
//! deadline. Channels do not block, so that the poller can wait for their descriptors. Events are
//! copied and acknowledged at once, because an identifier can be destroyed only when all its events
//! are acknowledged. A connection request is moved to its own channel, so that its events do not
//! mix with the listener's.

use crate::device_fds;
use crate::error::local;
use crate::wait::nonblocking;
use crate::wait::readable;
use nfsrdma_rdma::{Error, Instant, Result};
use rdma_sys as ib;
use rdma_sys::rdma_cm_event_type as cm;
use socket2::SockAddr;
use std::io;
use std::mem::ManuallyDrop;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

/// A channel at which events of identifiers arrive.
pub(crate) struct Channel(NonNull<ib::rdma_event_channel>);

// SAFETY: librdmacm's calls may be made from any thread.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

/// An event, which is already acknowledged.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) kind: cm::Type,
    pub(crate) status: i32,
    /// The new identifier of a connection request.
    id: *mut ib::rdma_cm_id,
    pub(crate) private_data: Vec<u8>,
    /// How many RDMA Reads the peer wants to issue at once.
    pub(crate) reads_in: u32,
    /// How many RDMA Reads the peer serves at once.
    pub(crate) reads_out: u32,
}

impl Channel {
    pub(crate) fn new() -> Result<Arc<Self>> {
        // SAFETY: no arguments.
        let channel = unsafe { ib::rdma_create_event_channel() };
        let error = io::Error::last_os_error();
        let channel = NonNull::new(channel)
            .map(Channel)
            .ok_or_else(|| local("cannot use RDMA", error))?;
        nonblocking(channel.as_fd()).map_err(|error| local("cannot use RDMA", error))?;
        Ok(Arc::new(channel))
    }

    /// The next event, if there is one.
    pub(crate) fn next(&self) -> io::Result<Option<Event>> {
        let mut event = std::ptr::null_mut();
        // SAFETY: the channel exists and does not block.
        if unsafe { ib::rdma_get_cm_event(self.0.as_ptr(), &mut event) } != 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock => Ok(None),
                _ => Err(error),
            };
        }
        // SAFETY: a successful call returns an event that is valid until acknowledged. For a
        // connected port space its parameters are those of a connection; the private data have the
        // length given, or are null.
        unsafe {
            let raw = &*event;
            let conn = raw.param.conn;
            let private_data = if conn.private_data.is_null() {
                Vec::new()
            } else {
                let len = usize::from(conn.private_data_len);
                std::slice::from_raw_parts(conn.private_data.cast::<u8>(), len).to_vec()
            };
            let copy = Event {
                kind: raw.event,
                status: raw.status,
                id: raw.id,
                private_data,
                reads_in: conn.responder_resources.into(),
                reads_out: conn.initiator_depth.into(),
            };
            ib::rdma_ack_cm_event(event);
            Ok(Some(copy))
        }
    }

    /// Waits for the next event until `deadline`; `None` if there is none by then.
    pub(crate) fn wait(&self, deadline: Instant) -> io::Result<Option<Event>> {
        loop {
            if let Some(event) = self.next()? {
                return Ok(Some(event));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            readable([self.as_fd()], Some(deadline))?;
        }
    }
}

/// Readable if there is an event.
impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel exists, and its descriptor is open as long as it does.
        unsafe { BorrowedFd::borrow_raw(self.0.as_ref().fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: each identifier on the channel holds it, so no identifier is left.
        unsafe { ib::rdma_destroy_event_channel(self.0.as_ptr()) };
    }
}

/// A connection identifier, which corresponds to a socket.
pub(crate) struct Id {
    id: NonNull<ib::rdma_cm_id>,
    channel: Arc<Channel>,
    /// The argument of [`device_fds::release`].
    device: OnceLock<RawFd>,
}

// SAFETY: librdmacm's calls may be made from any thread.
unsafe impl Send for Id {}
// SAFETY: as above.
unsafe impl Sync for Id {}

/// The parameters of a connection, in terms of the connection manager.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask<'a> {
    pub(crate) private_data: &'a [u8],
    pub(crate) reads_in: u32,
    pub(crate) reads_out: u32,
}

impl Ask<'_> {
    fn raw(&self) -> ib::rdma_conn_param {
        ib::rdma_conn_param {
            private_data: self.private_data.as_ptr().cast(),
            private_data_len: self.private_data.len() as u8,
            responder_resources: self.reads_in as u8,
            initiator_depth: self.reads_out as u8,
            flow_control: 1,
            // Both fields have three bits; in the second one, 7 would mean without limit.
            retry_count: 7,
            rnr_retry_count: 6,
            srq: 0,
            qp_num: 0,
        }
    }
}

fn status(outcome: i32) -> io::Result<()> {
    if outcome == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn milliseconds(until: Instant) -> i32 {
    let left = until.saturating_duration_since(Instant::now());
    i32::try_from(left.as_millis()).unwrap_or(i32::MAX).max(1)
}

impl Id {
    pub(crate) fn new(channel: &Arc<Channel>) -> Result<Self> {
        let mut id = std::ptr::null_mut();
        // SAFETY: the channel exists, and the identifier holds it.
        let outcome = status(unsafe {
            ib::rdma_create_id(
                channel.0.as_ptr(),
                &mut id,
                std::ptr::null_mut(),
                ib::rdma_port_space::RDMA_PS_TCP,
            )
        });
        outcome.map_err(|error| local("cannot use RDMA", error))?;
        Ok(Id {
            id: NonNull::new(id).ok_or(Error::Misuse("librdmacm made no identifier"))?,
            channel: channel.clone(),
            device: OnceLock::new(),
        })
    }

    /// The identifier of a connection request, moved to its own channel.
    pub(crate) fn of_request(event: &Event, listener: &Arc<Channel>) -> Result<Self> {
        let id = Id {
            id: NonNull::new(event.id).ok_or(Error::Misuse("a request without identifier"))?,
            channel: listener.clone(),
            device: OnceLock::new(),
        };
        let channel = Channel::new()?;
        // SAFETY: both exist; the request's event is acknowledged.
        status(unsafe { ib::rdma_migrate_id(id.as_ptr(), channel.0.as_ptr()) })
            .map_err(|error| local("cannot take an RDMA connection request", error))?;
        // Only the old channel is released, the identifier is not destroyed.
        let mut old = ManuallyDrop::new(id);
        let new = Id {
            id: old.id,
            channel,
            device: OnceLock::new(),
        };
        // SAFETY: `old` is never used again, so its reference to the listener's channel is dropped
        // once.
        unsafe { std::ptr::drop_in_place(&mut old.channel) };
        new.took_device();
        Ok(new)
    }

    pub(crate) fn as_ptr(&self) -> *mut ib::rdma_cm_id {
        self.id.as_ptr()
    }

    pub(crate) fn channel(&self) -> &Arc<Channel> {
        &self.channel
    }

    /// The device that it is bound to.
    pub(crate) fn context(&self) -> Result<*mut ib::ibv_context> {
        // SAFETY: the identifier exists.
        let context = unsafe { self.id.as_ref().verbs };
        if context.is_null() {
            return Err(Error::Misuse("the identifier has no device yet"));
        }
        Ok(context)
    }

    /// Records the device that it is bound to now, if there is one.
    fn took_device(&self) {
        if let Ok(context) = self.context() {
            // SAFETY: the identifier keeps its device open.
            if let Some(device) = unsafe { device_fds::acquire(context) } {
                let _ = self.device.set(device);
            }
        }
    }

    pub(crate) fn port(&self) -> u8 {
        // SAFETY: the identifier exists.
        unsafe { self.id.as_ref().port_num }
    }

    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        // SAFETY: the union holds an address in any of its forms, or zeros.
        let storage = unsafe { self.id.as_ref().route.addr.src_addr_union.src_storage };
        socket_addr(storage)
    }

    pub(crate) fn peer_addr(&self) -> Option<SocketAddr> {
        // SAFETY: as above.
        let storage = unsafe { self.id.as_ref().route.addr.dst_addr_union.dst_storage };
        socket_addr(storage)
    }

    /// Finds the device and the route to `peer`, and binds the identifier to them; from the address
    /// `local` if there is one.
    pub(crate) fn resolve(
        &self,
        peer: SocketAddr,
        local: Option<IpAddr>,
        deadline: Instant,
    ) -> Result<()> {
        let unreachable = |error: io::Error| {
            let what = match local {
                Some(local) if error.kind() == io::ErrorKind::AddrNotAvailable => {
                    format!("cannot connect from {local}")
                }
                Some(local) => format!("no RDMA device reaches {} from {local}", peer.ip()),
                None => format!("no RDMA device reaches {}; use transport=iwarp", peer.ip()),
            };
            Error::local(what, error)
        };
        let addr = SockAddr::from(peer);
        let source = local.map(|local| SockAddr::from(SocketAddr::new(local, 0)));
        let source = source.as_ref().map_or(std::ptr::null_mut(), |source| {
            source.as_ptr().cast_mut().cast()
        });
        // SAFETY: valid addresses, copied by the call; the source may be null.
        status(unsafe {
            //= RFC 8166, Section 5
            //# When mapped atop InfiniBand [IBARCH], which uses a service endpoint naming scheme
            //# based on a Group Identifier (GID), a translation MUST be employed.
            ib::rdma_resolve_addr(
                self.as_ptr(),
                source,
                addr.as_ptr().cast_mut().cast(),
                milliseconds(deadline),
            )
        })
        .map_err(unreachable)?;
        self.expect(
            cm::RDMA_CM_EVENT_ADDR_RESOLVED,
            deadline,
            "resolving the address",
        )
        .map_err(|fault| fault.of_resolving(unreachable))?;
        self.took_device();
        // SAFETY: the address is resolved.
        status(unsafe { ib::rdma_resolve_route(self.as_ptr(), milliseconds(deadline)) })
            .map_err(unreachable)?;
        self.expect(
            cm::RDMA_CM_EVENT_ROUTE_RESOLVED,
            deadline,
            "resolving the route",
        )
        .map_err(|fault| fault.of_resolving(unreachable))?;
        Ok(())
    }

    /// Connects; the queue pair must exist. The event contains the peer's answer.
    pub(crate) fn connect(&self, ask: Ask<'_>, deadline: Instant) -> Result<Event> {
        let mut param = ask.raw();
        // SAFETY: the parameters and the private data live during the call, which copies them.
        status(unsafe { ib::rdma_connect(self.as_ptr(), &mut param) })
            .map_err(|error| of_connecting(&error))?;
        self.expect(cm::RDMA_CM_EVENT_ESTABLISHED, deadline, "connecting")
            .map_err(Fault::of_connecting)
    }

    /// Accepts; the queue pair must exist.
    pub(crate) fn accept(&self, ask: Ask<'_>, deadline: Instant) -> Result<()> {
        let mut param = ask.raw();
        // SAFETY: as for `connect`.
        status(unsafe { ib::rdma_accept(self.as_ptr(), &mut param) })
            .map_err(|error| Error::LinkLost(format!("cannot accept: {error}")))?;
        self.expect(cm::RDMA_CM_EVENT_ESTABLISHED, deadline, "accepting")
            .map(drop)
            .map_err(Fault::of_connecting)
    }

    pub(crate) fn reject(&self, private_data: &[u8]) {
        // SAFETY: the data live during the call, which copies them. After a failure, destroying the
        // identifier rejects.
        unsafe {
            ib::rdma_reject(
                self.as_ptr(),
                private_data.as_ptr().cast(),
                private_data.len() as u8,
            )
        };
    }

    pub(crate) fn listen(&self, at: SocketAddr) -> Result<()> {
        let failed = |error| local(&format!("cannot listen on {at} by RDMA"), error);
        let addr = SockAddr::from(at);
        // SAFETY: a valid address, copied by the call.
        status(unsafe { ib::rdma_bind_addr(self.as_ptr(), addr.as_ptr().cast_mut().cast()) })
            .map_err(failed)?;
        self.took_device();
        // SAFETY: the identifier is bound.
        status(unsafe { ib::rdma_listen(self.as_ptr(), 128) }).map_err(failed)
    }

    /// Ends the connection. Does not wait.
    pub(crate) fn disconnect(&self) {
        // SAFETY: the identifier exists. Ending it again has no effect.
        unsafe { ib::rdma_disconnect(self.as_ptr()) };
    }

    /// Waits for an event of this kind.
    fn expect(
        &self,
        kind: cm::Type,
        deadline: Instant,
        doing: &'static str,
    ) -> std::result::Result<Event, Fault> {
        loop {
            let event = self.channel.wait(deadline).map_err(Fault::Io)?;
            match event {
                None => return Err(Fault::Late(doing)),
                Some(event) if event.kind == kind => return Ok(event),
                // These events do not matter.
                Some(Event {
                    kind: cm::RDMA_CM_EVENT_ADDR_CHANGE | cm::RDMA_CM_EVENT_TIMEWAIT_EXIT,
                    ..
                }) => {}
                Some(event) => return Err(Fault::Other(event)),
            }
        }
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: made once, and destroyed only here; all events were acknowledged, and what was
        // made for it (queue pair, domain, queue) holds it and is gone.
        unsafe { ib::rdma_destroy_id(self.id.as_ptr()) };
        // Even if this one has no device, that of an earlier connection may be removed.
        device_fds::release(self.device.get().copied());
    }
}

/// Why the expected event did not arrive.
enum Fault {
    Io(io::Error),
    Late(&'static str),
    Other(Event),
}

impl Fault {
    fn of_resolving(self, unreachable: impl FnOnce(io::Error) -> Error) -> Error {
        match self {
            Fault::Io(error) => local("cannot use RDMA", error),
            Fault::Late(doing) => Error::TimedOut(doing),
            Fault::Other(event) if event.status == -libc::ETIMEDOUT => {
                Error::TimedOut("resolving the address")
            }
            Fault::Other(event) => unreachable(event.error()),
        }
    }

    fn of_connecting(self) -> Error {
        match self {
            Fault::Io(error) => local("cannot use RDMA", error),
            Fault::Late(doing) => Error::TimedOut(doing),
            Fault::Other(event) => match event.kind {
                // InfiniBand pads with zeros if there are no private data.
                cm::RDMA_CM_EVENT_REJECTED if event.private_data.iter().all(|&b| b == 0) => {
                    Error::Refused(Vec::new())
                }
                cm::RDMA_CM_EVENT_REJECTED => Error::Refused(event.private_data),
                cm::RDMA_CM_EVENT_UNREACHABLE => match event.status {
                    0 => Error::TimedOut("connecting"),
                    _ => of_connecting(&event.error()),
                },
                cm::RDMA_CM_EVENT_CONNECT_ERROR => of_connecting(&event.error()),
                _ => Error::LinkLost(event.text()),
            },
        }
    }
}

fn of_connecting(error: &io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::ECONNREFUSED | libc::ECONNRESET) => Error::Refused(Vec::new()),
        Some(libc::ETIMEDOUT) => Error::TimedOut("connecting"),
        _ => Error::LinkLost(format!("cannot connect: {error}")),
    }
}

impl Event {
    /// The event's status as an error.
    fn error(&self) -> io::Error {
        io::Error::from_raw_os_error(self.status.abs())
    }

    /// The reason why an established connection ended by this event; `None` if it did not.
    pub(crate) fn end(&self) -> Option<Error> {
        match self.kind {
            cm::RDMA_CM_EVENT_ADDR_CHANGE | cm::RDMA_CM_EVENT_TIMEWAIT_EXIT => None,
            _ => Some(Error::LinkLost(self.text())),
        }
    }

    pub(crate) fn is_request(&self) -> bool {
        self.kind == cm::RDMA_CM_EVENT_CONNECT_REQUEST
    }

    pub(crate) fn is_removal(&self) -> bool {
        self.kind == cm::RDMA_CM_EVENT_DEVICE_REMOVAL
    }

    fn text(&self) -> String {
        match self.kind {
            cm::RDMA_CM_EVENT_DISCONNECTED => "the peer disconnected".to_owned(),
            cm::RDMA_CM_EVENT_DEVICE_REMOVAL => "the RDMA device was removed".to_owned(),
            kind => {
                // SAFETY: the call gives a constant C string for any number.
                let name = unsafe { std::ffi::CStr::from_ptr(ib::rdma_event_str(kind)) };
                let name = name.to_string_lossy();
                format!("{name} (status {})", self.status)
            }
        }
    }
}

fn socket_addr(storage: libc::sockaddr_storage) -> Option<SocketAddr> {
    let len = match i32::from(storage.ss_family) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => return None,
    };
    let mut addr = socket2::SockAddrStorage::zeroed();
    // SAFETY: both are socket address storage, and the family determines how much of it is used.
    let addr = unsafe {
        *addr.view_as::<libc::sockaddr_storage>() = storage;
        SockAddr::new(addr, len as libc::socklen_t)
    };
    addr.as_socket()
}
