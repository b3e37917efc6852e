//! Finds the abstract names of Unix sockets (unix(7)) with their owners, from sock_diag(7), which
//! reports the owner since Linux 5.3.

use rustix::net::netlink::SOCK_DIAG;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};
use std::io;
use std::time::Duration;

/// Time limit of the kernel's answer.
const LIMIT: Duration = Duration::from_secs(1);
/// Room for one datagram of the answer, in bytes; the kernel's are at most 32 KiB.
const DATAGRAM: usize = 32 << 10;

/// SOCK_DIAG_BY_FAMILY, NLMSG_ERROR and NLMSG_DONE.
const BY_FAMILY: u16 = 20;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// NLM_F_REQUEST and NLM_F_DUMP.
const DUMP: u16 = 0x301;
/// Lengths of a netlink header, and of the unix_diag_msg that follows it, in bytes.
const HEADER: usize = 16;
const SOCKET: usize = 16;
/// The attributes UNIX_DIAG_NAME and UNIX_DIAG_UID, and the flags UDIAG_SHOW_NAME and
/// UDIAG_SHOW_UID that request them.
const NAME: u16 = 0;
const UID: u16 = 7;
const SHOW: u32 = 0x41;
/// TCP_CLOSE as a bit: the state of datagram sockets that are not connected.
const UNCONNECTED: u32 = 1 << 7;

/// Abstract names of datagram sockets that begin with `prefix` and belong to one of `uids`; at most
/// `most` of them.
pub(super) fn names_of(uids: &[u32], prefix: &str, most: usize) -> io::Result<Vec<String>> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(SOCK_DIAG),
    )?;
    set_socket_timeout(&socket, Timeout::Recv, Some(LIMIT))?;
    send(&socket, &request(), SendFlags::empty())?;
    let mut names = Vec::new();
    let mut datagram = vec![0; DATAGRAM];
    loop {
        let (len, _) = recv(&socket, &mut datagram[..], RecvFlags::empty())?;
        let mut rest = &datagram[..len];
        while !rest.is_empty() {
            let (kind, body, next) = message(rest).ok_or(io::ErrorKind::InvalidData)?;
            match kind {
                DONE => return Ok(names),
                ERROR => return Err(io::ErrorKind::Unsupported.into()),
                _ => {}
            }
            if let Some((name, uid)) = owned(body)
                && name.starts_with(prefix)
                && uids.contains(&uid)
                && names.len() < most
            {
                names.push(name);
            }
            rest = next;
        }
    }
}

/// Requests all Unix sockets of the network namespace: a netlink header, and a unix_diag_req.
fn request() -> Vec<u8> {
    let mut to = Vec::new();
    to.extend_from_slice(&40u32.to_ne_bytes());
    to.extend_from_slice(&BY_FAMILY.to_ne_bytes());
    to.extend_from_slice(&DUMP.to_ne_bytes());
    to.extend_from_slice(&[0; 8]);
    // Family, protocol, padding; states, inode, what to show; a cookie.
    to.extend_from_slice(&[AddressFamily::UNIX.as_raw() as u8, 0, 0, 0]);
    for word in [UNCONNECTED, 0, SHOW, 0, 0] {
        to.extend_from_slice(&word.to_ne_bytes());
    }
    to
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at + 2)?;
    Some(u16::from_ne_bytes(bytes.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

/// The bytes after the first `len`, padded to a multiple of four.
fn behind(bytes: &[u8], len: usize) -> &[u8] {
    bytes.get(len.next_multiple_of(4)..).unwrap_or_default()
}

/// The kind and the body of the first message, and the bytes after it.
fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let len = u32_at(bytes, 0)? as usize;
    let body = bytes.get(HEADER..len)?;
    Some((u16_at(bytes, 4)?, body, behind(bytes, len)))
}

/// The abstract name and the owner of a socket; `None` if the kernel reports no name or owner.
fn owned(body: &[u8]) -> Option<(String, u32)> {
    let mut attributes = body.get(SOCKET..)?;
    let (mut name, mut uid) = (None, None);
    while !attributes.is_empty() {
        let len = usize::from(u16_at(attributes, 0)?);
        let value = attributes.get(4..len)?;
        match u16_at(attributes, 2)? {
            NAME => name = value.strip_prefix(b"\0"),
            UID => uid = u32_at(value, 0),
            _ => {}
        }
        attributes = behind(attributes, len);
    }
    Some((std::str::from_utf8(name?).ok()?.to_owned(), uid?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Gid, Uid, fchown};
    use rustix::process::geteuid;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    #[test]
    fn sockets_are_told_by_their_owners() {
        let prefix = format!("nfsrdma-test-{:x}-", getrandom::u64().unwrap());
        let bind = |end: &str| {
            let name = SocketAddr::from_abstract_name(format!("{prefix}{end}")).unwrap();
            UnixDatagram::bind_addr(&name).unwrap()
        };
        // More than fit into one datagram.
        let _many: Vec<_> = (0..500).map(|n| bind(&n.to_string())).collect();
        let mine = geteuid().as_raw();
        let names = |uid, most| names_of(&[uid], &prefix, most).unwrap();
        assert_eq!(names(mine, 1000).len(), 500);
        assert_eq!(names(mine, 10).len(), 10);
        assert!(names(mine + 1, 1000).is_empty());
        if geteuid().is_root() {
            let theirs = bind("theirs");
            fchown(&theirs, Some(Uid::from_raw(4321)), None::<Gid>).unwrap();
            assert_eq!(names(4321, 1000), [format!("{prefix}theirs")]);
            assert_eq!(names(mine, 1000).len(), 500);
        }
    }

    #[test]
    fn what_is_cut_off_or_makes_no_sense_is_no_socket() {
        let mut whole = vec![0; SOCKET];
        whole.extend_from_slice(&[6, 0, 0, 0, 0, b'x', 0, 0, 8, 0, UID as u8, 0, 7, 0, 0, 0]);
        if cfg!(target_endian = "little") {
            assert_eq!(owned(&whole), Some(("x".to_owned(), 7)));
            assert_eq!(owned(&whole[..SOCKET + 8]), None);
        }
        for len in 0..whole.len() {
            assert_eq!(owned(&whole[..len]), None);
            assert!(message(&whole[..len]).is_none());
        }
        assert_eq!(owned(&[&whole[..], &[0; 8]].concat()), None);
    }
}
