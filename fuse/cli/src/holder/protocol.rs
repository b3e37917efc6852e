//! The messages between holder and daemon: packets of a Unix socket (SOCK_SEQPACKET), with
//! descriptors (SCM_RIGHTS).
//!
//! The daemon asks, and the holder answers each request by one byte: 0, or the number of an error, which a
//! sentence for people may follow (for the answer to [`Request::Bye`] nobody waits). Before that byte,
//! [`Request::Take`] is answered by a packet for each descriptor, which has its name.
//!
//! Holder and daemon may be of different versions: the holder is of the one that made the mount. So the
//! bytes of a request have the same meaning for ever. A holder answers one that it does not know, or that is longer
//! than its packets, with an error ([`UNKNOWN`]), and goes on; a daemon can do without what it asked for.

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The longest name of a descriptor.
pub const NAME_MAX: usize = 31;
/// The longest packet: one byte, and a name or a sentence.
pub const PACKET_MAX: usize = 512;
/// The answer to a request that the holder does not know.
pub const UNKNOWN: i32 = libc::EPROTO;
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
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// Start a successor beside this daemon, from the file that is now at the program's path. The
    /// answer comes when it waits for the mount, or why it does not. With the descriptor of whoever is to be
    /// told when it serves.
    Upgrade,
    /// Give it the mount: this daemon is stopped, and killed when the successor has it. An answer is
    /// an error: this daemon serves on.
    HandOver,
    /// End the successor: this daemon serves on.
    Cancel,
    /// Of a successor: it waits for the mount. The answer comes when the other daemon is stopped.
    Ready,
    /// Of a successor: it can go on with the mount. When the answer comes, the other daemon is gone.
    TakeOver,
    /// Of a successor: it cannot go on with the mount, and this number and sentence say why.
    Refuse(Why),
}

/// Why something was not done: the number of an error, and a sentence for people, which is cut to the
/// length of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Why {
    pub number: u8,
    pub text: String,
}

impl Why {
    pub fn new(number: i32, text: impl Into<String>) -> Why {
        let (number, mut text) = (number as u8, text.into());
        // A byte for the kind of the packet, and one for the number.
        text.truncate(text.floor_char_boundary(PACKET_MAX - 2));
        Why { number, text }
    }

    /// Of the bytes of an answer.
    pub(super) fn of(bytes: &[u8]) -> Option<Why> {
        let (number, text) = bytes.split_first()?;
        let text = std::str::from_utf8(text).ok()?;
        Some(Why::new((*number).into(), text))
    }

    /// The bytes of an answer, by which a request is refused.
    pub fn answer(&self) -> Packet {
        let mut packet = Packet::default();
        packet.push(&[self.number]);
        packet.push(self.text.as_bytes());
        packet
    }
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
            Request::Upgrade => packet.push(b"U"),
            Request::HandOver => packet.push(b"H"),
            Request::Cancel => packet.push(b"C"),
            Request::Ready => packet.push(b"R"),
            Request::TakeOver => packet.push(b"O"),
            Request::Refuse(why) => {
                packet.push(b"F");
                packet.push(why.answer().as_bytes());
            }
        }
        packet
    }

    /// Whether it is one of those by which a successor gets the mount of a daemon that serves.
    pub fn is_of_upgrade(&self) -> bool {
        use Request::{Cancel, HandOver, Ready, Refuse, TakeOver, Upgrade};
        matches!(
            self,
            Upgrade | HandOver | Cancel | Ready | TakeOver | Refuse(_)
        )
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
            (b'U', []) => Request::Upgrade,
            (b'H', []) => Request::HandOver,
            (b'C', []) => Request::Cancel,
            (b'R', []) => Request::Ready,
            (b'O', []) => Request::TakeOver,
            (b'F', why) => Request::Refuse(Why::of(why)?),
            _ => return None,
        })
    }
}

/// The bytes of a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// Those behind `len` are 0.
    bytes: [u8; PACKET_MAX],
    len: usize,
}

impl Default for Packet {
    fn default() -> Self {
        Packet {
            bytes: [0; PACKET_MAX],
            len: 0,
        }
    }
}

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.as_bytes()))
    }
}

impl Packet {
    fn push(&mut self, more: &[u8]) {
        self.bytes[self.len..][..more.len()].copy_from_slice(more);
        self.len += more.len();
    }

    /// With one more byte.
    #[must_use]
    pub fn with(mut self, byte: u8) -> Packet {
        self.push(&[byte]);
        self
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// What was received.
#[derive(Debug)]
pub struct Received {
    pub(super) packet: Packet,
    /// The descriptors, which are close-on-exec.
    pub fds: [Option<OwnedFd>; FDS_MAX],
    /// There were descriptors that this process could not take: it has too many already.
    pub lost_fds: bool,
    /// The packet was longer than those of this version.
    pub cut: bool,
}

impl Received {
    /// Empty at the end of the stream.
    pub fn bytes(&self) -> &[u8] {
        self.packet.as_bytes()
    }

    /// The descriptor, of who sends one.
    pub fn descriptor(self) -> io::Result<OwnedFd> {
        let sent = self.fds.into_iter().flatten().next();
        sent.ok_or_else(|| io::Error::other("it sent no descriptor"))
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
        cut: message.flags.contains(ReturnFlags::TRUNC),
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
            (Request::Upgrade, b"U"),
            (Request::HandOver, b"H"),
            (Request::Cancel, b"C"),
            (Request::Ready, b"R"),
            (Request::TakeOver, b"O"),
            (Request::Refuse(Why::new(11, "not yet")), b"F\x0bnot yet"),
        ] {
            assert_eq!(request.encode().as_bytes(), bytes);
            assert_eq!(Request::decode(bytes), Some(request));
        }
    }

    #[test]
    fn other_bytes_are_no_request() {
        for bytes in [
            &b""[..],
            b"K",
            b"B ",
            b"E",
            b"E\0\0",
            b"x",
            b"F",
            b"U2",
            &[b'K'; 33],
        ] {
            assert_eq!(Request::decode(bytes), None, "{bytes:?}");
        }
        assert!(Name::new(&[b'n'; NAME_MAX]).is_some());
        assert!(Name::new(&[b'n'; NAME_MAX + 1]).is_none());
    }

    #[test]
    fn a_sentence_is_cut_to_the_length_of_a_packet() {
        let why = Why::new(5, "\u{e4}".repeat(PACKET_MAX));
        assert_eq!(why.answer().as_bytes().len(), PACKET_MAX - 1);
        let packet = Request::Refuse(why.clone()).encode();
        assert_eq!(
            Request::decode(packet.as_bytes()),
            Some(Request::Refuse(why.clone()))
        );
        assert!(why.text.chars().all(|c| c == '\u{e4}'));
    }

    #[test]
    fn a_packet_of_a_later_version_is_known_to_be_longer() {
        let (one, other) = pair().unwrap();
        send(&one, &[b'F'; PACKET_MAX + 1], &[]).unwrap();
        assert!(receive(&other, RecvFlags::empty()).unwrap().cut);
        send(&one, &[b'F'; PACKET_MAX], &[]).unwrap();
        assert!(!receive(&other, RecvFlags::empty()).unwrap().cut);
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
