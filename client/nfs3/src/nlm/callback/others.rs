//! Other mounts of this network namespace that have locks.
//!
//! To a server, and to rpc.statd, a client is an address, with one port for all of its mounts. So
//! one mount has the port, and passes calls on to the others. Each mount has a datagram socket with
//! an abstract name (unix(7)), which exists from its first lock to its end; /proc/net/unix lists
//! them. Any program of this machine can send to it, but can cause no more than a call to the
//! server ([`Hint`]). A program that binds such a name without being a mount prevents that servers
//! are told of locks lost in a crash ([`any_mount_with_locks`]); SECURITY.md says so. A file handle
//! is sent only to sockets of this user and of root, because it gives access to the file. Mounts of
//! other users poll instead.
//!
//! Each program of this machine can make that list long, and strangers make this mount look at it.
//! So it is looked at in a thread that may block, by one at a time, and what was found is used for
//! [`FRESH`] where that does no harm.

use super::super::journal::{hex, unhex};
use super::peers;
use nfsrdma_xdr::nfs3::FileHandle;
use std::io;
use std::net::IpAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

const PREFIX: &str = "nfsrdma-locks-";
const ROOT: u32 = 0;
/// Largest number of mounts that messages are passed on to: trusted ones, and others.
const MOST: usize = 256;
/// Longest message, in bytes: two words, an address, a number, a file handle, and a cookie.
pub(super) const MESSAGE_MAX: usize = 512;
/// Longest cookie that is passed on, in bytes.
const COOKIE_MAX: usize = 64;
/// How long a list of names is used before it is read again.
const FRESH: Duration = Duration::from_secs(1);

/// A message that is passed on. It is only a hint: it makes the receiver ask the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Hint {
    /// A server sent GRANTED, or GRANTED_MSG with this cookie.
    Granted {
        server: IpAddr,
        svid: u32,
        file: FileHandle,
        cookie: Option<Vec<u8>>,
    },
    /// A server restarted.
    Restarted { server: IpAddr },
    /// The mount that had the port is about to end.
    Vacant,
}

impl Hint {
    fn encode(&self) -> String {
        match self {
            Hint::Granted {
                server,
                svid,
                file,
                cookie,
            } => {
                let mut text = format!("granted {server} {svid} {}", hex(file.as_bytes()));
                if let Some(cookie) = cookie {
                    text.push_str(&format!(" {}", hex(cookie)));
                }
                text
            }
            Hint::Restarted { server } => format!("restarted {server}"),
            Hint::Vacant => "vacant".to_owned(),
        }
    }

    /// `None` if the bytes are not a hint.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let words: Vec<&str> = text.split(' ').collect();
        match words[..] {
            ["granted", server, svid, file, ref rest @ ..] if rest.len() < 2 => {
                let cookie = match rest.first() {
                    Some(cookie) => Some(unhex(cookie)?),
                    None => None,
                };
                Some(Hint::Granted {
                    server: server.parse().ok()?,
                    svid: svid.parse().ok()?,
                    file: FileHandle::new(&unhex(file)?)?,
                    cookie,
                })
            }
            ["restarted", server] => Some(Hint::Restarted {
                server: server.parse().ok()?,
            }),
            ["vacant"] => Some(Hint::Vacant),
            _ => None,
        }
    }
}

/// This mount, as one of those that have locks.
#[derive(Debug)]
pub(super) struct Others {
    name: String,
    uid: u32,
    sender: UnixDatagram,
    /// Locked during a look, so that whoever comes meanwhile gets its result.
    names: Mutex<Option<Arc<Names>>>,
    pub(super) look: fn(uid: u32) -> Names,
}

/// The names of the sockets at a moment.
#[derive(Debug)]
pub(super) struct Names {
    /// When the look at them began.
    at: Instant,
    /// Names of sockets that belong to this user or to root.
    trusted: Vec<String>,
    others: Vec<String>,
}

impl Names {
    pub(super) fn look(uid: u32) -> Self {
        let at = Instant::now();
        let trusted = peers::names_of(&[uid, ROOT], PREFIX, MOST).unwrap_or_else(|error| {
            tracing::debug!(%error, "whose sockets there are");
            Vec::new()
        });
        let mut others = present(PREFIX);
        others.retain(|name| !trusted.contains(name));
        Names {
            at,
            trusted,
            others,
        }
    }

    fn are_only(&self, own: &str) -> bool {
        let mut all = self.trusted.iter().chain(&self.others);
        all.all(|name| name == own)
    }
}

impl Others {
    /// Binds this mount's name, and returns the socket to receive from. `uid` is this process's.
    pub(super) fn join(uid: u32) -> io::Result<(Self, UnixDatagram)> {
        let random = getrandom::u64().map_err(|error| io::Error::other(error.to_string()))?;
        let name = format!("{PREFIX}{random:016x}");
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        socket.set_nonblocking(true)?;
        let sender = UnixDatagram::unbound()?;
        sender.set_nonblocking(true)?;
        let others = Others {
            name,
            uid,
            sender,
            names: Mutex::default(),
            look: Names::look,
        };
        Ok((others, socket))
    }

    /// The names at a moment after `since`; `None` if they cannot be looked at.
    async fn names(&self, since: Instant) -> Option<Arc<Names>> {
        let mut names = self.names.lock().await;
        if let Some(known) = names.as_ref().filter(|known| known.at >= since) {
            return Some(known.clone());
        }
        let (look, uid) = (self.look, self.uid);
        let found = tokio::task::spawn_blocking(move || look(uid)).await;
        *names = found.ok().map(Arc::new);
        names.clone()
    }

    /// As [`Others::names`], not older than [`FRESH`].
    async fn fresh_names(&self) -> Option<Arc<Names>> {
        let now = Instant::now();
        self.names(now.checked_sub(FRESH).unwrap_or(now)).await
    }

    /// Whether no other mount has had a lock.
    pub(super) async fn alone(&self) -> bool {
        let names = self.names(Instant::now()).await;
        names.is_some_and(|names| names.are_only(&self.name))
    }

    /// As [`Others::alone`]; one that began within [`FRESH`] may be missed.
    pub(super) async fn probably_alone(&self) -> bool {
        let names = self.fresh_names().await;
        names.is_some_and(|names| names.are_only(&self.name))
    }

    /// Passes a hint on. Returns whether any mount got it: a mount whose socket is closed or whose
    /// queue is full does not.
    pub(super) async fn send(&self, hint: &Hint) -> bool {
        if let Hint::Granted { cookie, .. } = hint
            && cookie.as_ref().is_some_and(|of| of.len() > COOKIE_MAX)
        {
            return false;
        }
        let Some(names) = self.fresh_names().await else {
            return false;
        };
        let others = match hint {
            Hint::Granted { .. } => &[][..],
            Hint::Restarted { .. } | Hint::Vacant => &names.others,
        };
        let message = hint.encode();
        let mut sent = false;
        let all = names.trusted.iter().chain(others);
        for name in all.filter(|name| **name != self.name) {
            if let Ok(address) = SocketAddr::from_abstract_name(name) {
                let result = self.sender.send_to_addr(message.as_bytes(), &address);
                sent |= result.is_ok();
            }
        }
        sent
    }
}

/// Names of abstract sockets that begin with `prefix`.
fn present(prefix: &str) -> Vec<String> {
    let list = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    names_in(&list, prefix)
}

/// Whether any mount of this network namespace has, or has had, locks.
pub(super) fn any_mount_with_locks() -> bool {
    !present(PREFIX).is_empty() || !present("nfsrdma-svid-").is_empty()
}

fn names_in(list: &str, prefix: &str) -> Vec<String> {
    let last = list
        .lines()
        .filter_map(|line| line.rsplit(' ').next()?.strip_prefix('@'));
    let ours = last.filter(|name| name.starts_with(prefix));
    ours.take(MOST).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_are_read_as_they_were_written() {
        let server: IpAddr = "2001:db8::1".parse().unwrap();
        let file = FileHandle::new(&[0xab; 64]).unwrap();
        let svid = u32::MAX;
        for hint in [
            Hint::Granted {
                server,
                svid,
                file,
                cookie: None,
            },
            Hint::Granted {
                server,
                svid,
                file,
                cookie: Some(vec![0xfe; COOKIE_MAX]),
            },
            Hint::Restarted { server },
            Hint::Vacant,
        ] {
            let text = hint.encode();
            assert!(text.len() <= MESSAGE_MAX, "{text}");
            assert_eq!(Hint::decode(text.as_bytes()), Some(hint));
        }
        for bad in [
            "",
            "granted",
            "granted ::1 1 0",
            "granted ::1 -1 00",
            "restarted x",
            "\u{0}",
        ] {
            assert_eq!(Hint::decode(bad.as_bytes()), None, "{bad}");
        }
        let long = format!("granted ::1 1 {}", "00".repeat(65));
        assert_eq!(Hint::decode(long.as_bytes()), None);
        assert_eq!(Hint::decode(&[0xff; 9]), None);
    }

    #[test]
    fn names_are_found_in_the_kernel_s_list() {
        let list = "Num RefCount Protocol Flags Type St Inode Path\n\
            0: 2 0 0 2 1 1 @nfsrdma-locks-7\n0: 2 0 0 2 1 1\n0: 2 0 0 2 1 1 /run/x\n\
            0: 2 0 0 2 1 1 @other\n0: 2 0 0 2 1 1 @nfsrdma-locks-8\n";
        assert_eq!(
            names_in(list, PREFIX),
            ["nfsrdma-locks-7", "nfsrdma-locks-8"]
        );
    }

    #[tokio::test]
    async fn a_mount_that_has_just_begun_is_not_missed_where_a_lock_would_be_given_away() {
        static THERE: parking_lot::Mutex<Vec<String>> = parking_lot::Mutex::new(Vec::new());
        fn look(_: u32) -> Names {
            Names {
                at: Instant::now(),
                trusted: Vec::new(),
                others: THERE.lock().clone(),
            }
        }
        let (mut one, _socket) = Others::join(ROOT).unwrap();
        one.look = look;
        assert!(one.probably_alone().await && one.alone().await);
        THERE.lock().push(one.name.clone());
        assert!(one.alone().await, "it is itself");
        THERE.lock().push(format!("{PREFIX}1"));
        assert!(!one.alone().await);
    }

    /// The runtime of this test has one thread, which also has to open the door.
    #[tokio::test]
    async fn nothing_waits_for_a_look_at_the_sockets() {
        static OPEN: parking_lot::Mutex<bool> = parking_lot::Mutex::new(false);
        static DOOR: parking_lot::Condvar = parking_lot::Condvar::new();
        fn look(_: u32) -> Names {
            let mut open = OPEN.lock();
            let far = Instant::now() + Duration::from_secs(30);
            while !*open {
                assert!(!DOOR.wait_until(&mut open, far).timed_out());
            }
            Names {
                at: Instant::now(),
                trusted: Vec::new(),
                others: Vec::new(),
            }
        }
        let (mut one, _socket) = Others::join(ROOT).unwrap();
        one.look = look;
        let open = async {
            *OPEN.lock() = true;
            DOOR.notify_all();
        };
        let (alone, ()) = tokio::join!(one.alone(), open);
        assert!(alone);
    }
}
