//! A TCP proxy between client and server that fails on command: it cuts, stalls, delays, drips,
//! swallows and corrupts, separately for each direction.

use anyhow::{Context, Result};
use socket2::SockRef;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The treatment of the bytes of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Pass,
    /// They wait, in order, and so does the end of a connection.
    Stall,
    /// They are lost, although everything is acknowledged: a half-open connection. A connection
    /// that has lost bytes also loses all that follow.
    Swallow,
    /// A few at a time.
    Drip,
    /// Each piece comes late.
    Delay,
    /// One bit is changed, once, but not in the handshake, which no checksum protects.
    Corrupt,
    /// One piece is left out, once, but not in the handshake.
    Hole,
}

/// The bytes of each direction that `Corrupt` and `Hole` leave alone: the MPA frames.
const HANDSHAKE: u64 = 600;
/// The interval at which threads check for changes.
const LOOK: Duration = Duration::from_millis(10);

#[derive(Debug)]
struct Shared {
    server: SocketAddr,
    /// The treatment of both directions: client to server, server to client.
    ways: Mutex<[Way; 2]>,
    /// Connections of an earlier generation are closed.
    generation: AtomicU64,
    /// They are closed by RST, and not by FIN.
    abruptly: AtomicBool,
    /// New connections are reset.
    refusing: AtomicBool,
    accepted: AtomicU64,
    bytes: AtomicU64,
    swallowed: AtomicU64,
}

/// A running proxy. It ends with the process.
#[derive(Debug, Clone)]
pub(crate) struct Proxy {
    shared: Arc<Shared>,
    pub(crate) port: u16,
}

impl Proxy {
    pub(crate) fn start(server: SocketAddr) -> Result<Self> {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("a port to listen on")?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            server,
            ways: Mutex::new([Way::Pass; 2]),
            generation: AtomicU64::new(0),
            abruptly: AtomicBool::new(false),
            refusing: AtomicBool::new(false),
            accepted: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            swallowed: AtomicU64::new(0),
        });
        let proxy = Proxy {
            shared: shared.clone(),
            port,
        };
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = shared.clone();
                std::thread::spawn(move || shared.carry(client));
            }
        });
        Ok(proxy)
    }

    pub(crate) fn set(&self, up: Way, down: Way) {
        *self
            .shared
            .ways
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = [up, down];
    }

    /// Ends every connection.
    pub(crate) fn cut(&self, abruptly: bool) {
        self.shared.abruptly.store(abruptly, SeqCst);
        self.shared.generation.fetch_add(1, SeqCst);
    }

    pub(crate) fn refuse(&self, refuse: bool) {
        self.shared.refusing.store(refuse, SeqCst);
    }

    /// The number of bytes passed on so far.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.shared.bytes.load(SeqCst)
    }

    /// The number of bytes swallowed so far.
    #[cfg(test)]
    pub(crate) fn swallowed(&self) -> u64 {
        self.shared.swallowed.load(SeqCst)
    }

    /// The number of connections accepted so far.
    #[cfg(test)]
    pub(crate) fn accepted(&self) -> u64 {
        self.shared.accepted.load(SeqCst)
    }

    /// Executes `cut`, `reset`, `refuse`, `accept`, or two words of `pass`, `stall`, `swallow`,
    /// `drip`, `delay`, `corrupt`, `hole`, one for each direction. False if it is unknown.
    pub(crate) fn command(&self, line: &str) -> bool {
        let way = |word: &str| {
            Some(match word {
                "pass" => Way::Pass,
                "stall" => Way::Stall,
                "swallow" => Way::Swallow,
                "drip" => Way::Drip,
                "delay" => Way::Delay,
                "corrupt" => Way::Corrupt,
                "hole" => Way::Hole,
                _ => return None,
            })
        };
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            ["cut"] => self.cut(false),
            ["reset"] => self.cut(true),
            ["refuse"] => self.refuse(true),
            ["accept"] => self.refuse(false),
            [up, down] => match (way(up), way(down)) {
                (Some(up), Some(down)) => self.set(up, down),
                _ => return false,
            },
            _ => return false,
        }
        true
    }
}

impl Shared {
    fn carry(self: Arc<Self>, client: TcpStream) {
        self.accepted.fetch_add(1, SeqCst);
        let generation = self.generation.load(SeqCst);
        if self.refusing.load(SeqCst) {
            return reset(&client);
        }
        let Ok(server) = TcpStream::connect_timeout(&self.server, Duration::from_secs(5)) else {
            return reset(&client);
        };
        let _ = client.set_nodelay(true);
        let _ = server.set_nodelay(true);
        std::thread::scope(|scope| {
            scope.spawn(|| self.pump(0, generation, &client, &server));
            self.pump(1, generation, &server, &client);
        });
        if self.abruptly.load(SeqCst) && self.is_over(generation) {
            reset(&client);
            reset(&server);
        }
    }

    fn is_over(&self, generation: u64) -> bool {
        self.generation.load(SeqCst) != generation
    }

    fn way(&self, index: usize) -> Way {
        self.ways.lock().unwrap_or_else(PoisonError::into_inner)[index]
    }

    /// Changes `way` to `Pass`, unless it has changed meanwhile.
    fn done(&self, index: usize, way: Way) -> bool {
        let mut ways = self.ways.lock().unwrap_or_else(PoisonError::into_inner);
        let same = ways[index] == way;
        if same {
            ways[index] = Way::Pass;
        }
        same
    }

    /// Passes on the bytes of one direction until its end.
    fn pump(&self, index: usize, generation: u64, mut from: &TcpStream, mut to: &TcpStream) {
        let mut piece = vec![0; 64 << 10];
        let mut carried = 0u64;
        // A stream that lacks bytes must not go on as if it were complete.
        let mut lost = false;
        let _ = to.set_write_timeout(Some(LOOK));
        loop {
            if self.is_over(generation) {
                if !self.abruptly.load(SeqCst) {
                    let _ = from.shutdown(Shutdown::Both);
                    let _ = to.shutdown(Shutdown::Both);
                }
                return;
            }
            if self.way(index) == Way::Stall {
                std::thread::sleep(LOOK);
                continue;
            }
            if !readable(from) {
                continue;
            }
            let most = if self.way(index) == Way::Drip {
                7
            } else {
                piece.len()
            };
            let n = match from.read(&mut piece[..most]) {
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => 0,
            };
            let mut way = self.way(index);
            while way == Way::Stall && !self.is_over(generation) {
                std::thread::sleep(LOOK);
                way = self.way(index);
            }
            lost |= way == Way::Swallow;
            if lost && way == Way::Swallow && n == 0 {
                // The end of the connection is swallowed as well.
                while self.way(index) == Way::Swallow && !self.is_over(generation) {
                    std::thread::sleep(LOOK);
                }
            }
            if n == 0 {
                let _ = to.shutdown(Shutdown::Write);
                if lost {
                    let _ = from.shutdown(Shutdown::Both);
                    let _ = to.shutdown(Shutdown::Both);
                }
                return;
            }
            if lost {
                self.swallowed.fetch_add(n as u64, SeqCst);
                continue;
            }
            carried += n as u64;
            match way {
                Way::Drip => std::thread::sleep(Duration::from_millis(1)),
                Way::Delay => std::thread::sleep(Duration::from_millis(30)),
                Way::Corrupt if carried > HANDSHAKE + n as u64 && self.done(index, way) => {
                    piece[n / 2] ^= 0x10;
                }
                Way::Hole if carried > HANDSHAKE + n as u64 && self.done(index, way) => continue,
                Way::Pass | Way::Stall | Way::Swallow | Way::Corrupt | Way::Hole => {}
            }
            let mut rest = &piece[..n];
            while !rest.is_empty() && !self.is_over(generation) {
                match to.write(rest) {
                    Ok(m) => {
                        rest = &rest[m..];
                        self.bytes.fetch_add(m as u64, SeqCst);
                    }
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => {
                        let _ = from.shutdown(Shutdown::Both);
                        return;
                    }
                }
            }
        }
    }
}

/// Waits a moment for data to read.
fn readable(stream: &TcpStream) -> bool {
    let mut poll = libc::pollfd {
        fd: stream.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one pollfd that lives through the call.
    unsafe { libc::poll(&mut poll, 1, LOOK.as_millis() as libc::c_int) > 0 }
}

fn reset(stream: &TcpStream) {
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that returns what it gets.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || io::copy(&mut &stream, &mut &stream));
            }
        });
        address
    }

    fn client(proxy: &Proxy) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", proxy.port)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        stream
    }

    /// Bytes are counted after they are written, so the reader may be faster than the count.
    fn counts(proxy: &Proxy, bytes: u64) {
        for _ in 0..1000 {
            if proxy.bytes() >= bytes {
                break;
            }
            std::thread::sleep(LOOK);
        }
        assert_eq!(proxy.bytes(), bytes);
    }

    #[test]
    fn it_passes_and_cuts() {
        let proxy = Proxy::start(echo()).unwrap();
        let mut stream = client(&proxy);
        stream.write_all(b"hello").unwrap();
        let mut got = [0; 5];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"hello");
        counts(&proxy, 10);
        proxy.cut(true);
        assert!(!matches!(stream.read(&mut got), Ok(n) if n > 0));
        let mut again = client(&proxy);
        again.write_all(b"x").unwrap();
        again.read_exact(&mut got[..1]).unwrap();
        assert_eq!(proxy.accepted(), 2);
    }

    #[test]
    fn it_corrupts_one_bit_behind_the_handshake() {
        let proxy = Proxy::start(echo()).unwrap();
        let mut stream = client(&proxy);
        assert!(proxy.command("corrupt pass"));
        let mut got = vec![0; 4000];
        let mut turned = 0;
        for _ in 0..3 {
            stream.write_all(&[0; 4000]).unwrap();
            stream.read_exact(&mut got).unwrap();
            turned += got.iter().map(|b| b.count_ones()).sum::<u32>();
        }
        assert_eq!(turned, 1);
    }

    #[test]
    fn what_is_swallowed_stays_lost() {
        let proxy = Proxy::start(echo()).unwrap();
        let mut stream = client(&proxy);
        assert!(proxy.command("swallow pass"));
        stream.write_all(b"gone").unwrap();
        while proxy.swallowed() < 4 {
            std::thread::sleep(LOOK);
        }
        assert!(proxy.command("pass pass"));
        stream.write_all(b"gone too").unwrap();
        let mut other = client(&proxy);
        other.write_all(b"here").unwrap();
        let mut got = [0; 4];
        other.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"here");
        counts(&proxy, 8);
        assert!(!proxy.command("dance"));
    }
}
