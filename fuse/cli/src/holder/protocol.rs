//! The messages between holder and daemon: packets of a Unix socket (SOCK_SEQPACKET), with
//! descriptors (SCM_RIGHTS).
//!
//! The daemon asks, and the holder answers each request by one byte: 0, or the number of an error
//! (for that of [`Request::Bye`] nobody waits). Before that byte, [`Request::Take`] is answered by a packet for each
//! descriptor, which has its name.

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The longest name of a descriptor.
pub const NAME_MAX: usize = 31;
/// The longest packet: one byte, and a name.
pub const PACKET_MAX: usize = 1 + NAME_MAX;
/// The most descriptors in a packet.
const FDS_MAX: usize = 2;

/// The name of a descriptor. It is not empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name {
    bytes: [u8; NAME_MAX],
    len: u8,
}

impl Name {
    pub fn new(name: &[u8]) -> Option<Name> {
        let mut bytes = [0; NAME_MAX];
        bytes.get_mut(..name.len())?.copy_from_slice(name);
        let len = u8::try_from(name.len()).ok().filter(|&len| len > 0)?;
        Some(Name { bytes, len })
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }
}

/// What a daemon wants of its holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// The first request. It has two descriptors: the end of a pipe that hangs up when the daemon
    /// dies, and the end of one into which the holder writes the numbers of the signals that it got.
    Begin,
    /// Keep this descriptor, in the place of one with the same name.
    Keep(Name),
    /// Send what is kept.
    Take,
    /// The caller of the command has been told: go to the background.
    Detach,
    /// Requests are served from now on: start a successor if this daemon dies.
    Serving,
    /// The mount has ended, and this is the exit status of the command.
    Bye(u8),
}

impl Request {
    /// The bytes of the packet.
    pub fn encode(&self) -> Packet {
        let mut packet = Packet::default();
        match self {
            Request::Begin => packet.push(b"B"),
            Request::Keep(name) => {
                packet.push(b"K");
                packet.push(name.as_bytes());
            }
            Request::Take => packet.push(b"T"),
            Request::Detach => packet.push(b"D"),
            Request::Serving => packet.push(b"S"),
            Request::Bye(status) => packet.push(&[b'E', *status]),
        }
        packet
    }

    /// The request with these bytes; `None` if there is none.
    pub fn decode(bytes: &[u8]) -> Option<Request> {
        let (kind, rest) = bytes.split_first()?;
        Some(match (kind, rest) {
            (b'B', []) => Request::Begin,
            (b'K', name) => Request::Keep(Name::new(name)?),
            (b'T', []) => Request::Take,
            (b'D', []) => Request::Detach,
            (b'S', []) => Request::Serving,
            (b'E', [status]) => Request::Bye(*status),
            _ => return None,
        })
    }
}

/// The bytes of a packet.
#[derive(Debug, Clone, Copy, Default)]
pub struct Packet {
    bytes: [u8; PACKET_MAX],
    len: usize,
}

impl Packet {
    fn push(&mut self, more: &[u8]) {
        self.bytes[self.len..][..more.len()].copy_from_slice(more);
        self.len += more.len();
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// What was received.
#[derive(Debug)]
pub struct Received {
    packet: Packet,
    /// The descriptors, which are close-on-exec.
    pub fds: [Option<OwnedFd>; FDS_MAX],
    /// There were descriptors that this process could not take: it has too many already.
    pub lost_fds: bool,
}

impl Received {
    /// Empty at the end of the stream.
    pub fn bytes(&self) -> &[u8] {
        self.packet.as_bytes()
    }
}

/// The ends of a connection, which are close-on-exec.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(socketpair(family, kind, SocketFlags::CLOEXEC, None)?)
}

/// Sends one packet. A socket whose other end is closed is an error, and no signal.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL.into());
    }
    let parts = [IoSlice::new(bytes)];
    loop {
        match sendmsg(&socket, &parts, &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => return Ok(sent.map(drop)?),
        }
    }
}

/// Receives one packet. `flags` may say not to wait for it.
pub fn receive(socket: impl AsFd, flags: RecvFlags) -> io::Result<Received> {
    let mut packet = Packet::default();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = loop {
        let mut parts = [IoSliceMut::new(&mut packet.bytes)];
        let flags = flags | RecvFlags::CMSG_CLOEXEC;
        match recvmsg(&socket, &mut parts, &mut control, flags) {
            Err(Errno::INTR) => {}
            received => break received?,
        }
    };
    packet.len = message.bytes.min(PACKET_MAX);
    let mut fds = [const { None }; FDS_MAX];
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    for (place, fd) in fds.iter_mut().zip(rights.flatten()) {
        *place = Some(fd);
    }
    Ok(Received {
        packet,
        fds,
        lost_fds: message.flags.contains(ReturnFlags::CTRUNC),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn each_request_is_read_as_it_was_written() {
        let name = Name::new(b"dev0").unwrap();
        for (request, bytes) in [
            (Request::Begin, &b"B"[..]),
            (Request::Keep(name), b"Kdev0"),
            (Request::Take, b"T"),
            (Request::Detach, b"D"),
            (Request::Serving, b"S"),
            (Request::Bye(32), b"E\x20"),
        ] {
            assert_eq!(request.encode().as_bytes(), bytes);
            assert_eq!(Request::decode(bytes), Some(request));
        }
    }

    #[test]
    fn other_bytes_are_no_request() {
        for bytes in [&b""[..], b"K", b"B ", b"E", b"E\0\0", b"x", &[b'K'; 33]] {
            assert_eq!(Request::decode(bytes), None, "{bytes:?}");
        }
        assert!(Name::new(&[b'n'; NAME_MAX]).is_some());
        assert!(Name::new(&[b'n'; NAME_MAX + 1]).is_none());
    }

    proptest! {
        #[test]
        fn what_is_read_is_written_again(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(request) = Request::decode(&bytes) {
                let packet = request.encode();
                prop_assert_eq!(packet.as_bytes(), &bytes[..]);
            }
        }
    }

    #[test]
    fn descriptors_travel_with_their_packet_and_end_at_exec() {
        let (one, other) = pair().unwrap();
        let (reader, _writer) = io::pipe().unwrap();
        send(&one, b"Kfuse", &[reader.as_fd()]).unwrap();
        send(&one, b"T", &[]).unwrap();
        let first = receive(&other, RecvFlags::empty()).unwrap();
        assert_eq!(first.bytes(), b"Kfuse");
        let [Some(fd), None] = first.fds else {
            panic!("not one descriptor");
        };
        assert_ne!(fd.as_raw_fd(), reader.as_raw_fd());
        let flags = rustix::io::fcntl_getfd(&fd).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        let second = receive(&other, RecvFlags::empty()).unwrap();
        assert_eq!(second.bytes(), b"T");
        assert!(matches!(second.fds, [None, None]));
        drop(one);
        let end = receive(&other, RecvFlags::empty()).unwrap();
        assert_eq!(end.bytes(), b"");
        assert!(send(&other, b"T", &[]).is_err());
    }
}
