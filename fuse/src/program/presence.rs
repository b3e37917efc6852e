//! Lets others wait for the end of the process that serves a mount.
//!
//! The process binds an abstract Unix socket (unix(7)) named after the mount's device number.
//! Whoever connects reads nothing and gets the end of file when the process is gone: after
//! the last flush.
//!
//! The kernel gives a device number to the next mount as soon as the file system is out of
//! sight, while the process may still flush. So a process whose session has ended gives the
//! name back ([`Presence::retire`]), keeping those who watch already, and a new one waits for
//! the name a little.

use nix::sys::socket::{getsockopt, sockopt};
use std::io::{self, Read};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

fn address(device: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("nfsrdma-{device}"))
}

/// How long a new mount waits for its predecessor to give the name back.
const PREDECESSOR: Duration = Duration::from_secs(2);

/// The serving side. Ends with the process.
#[derive(Debug)]
pub struct Presence {
    listener: Option<UnixListener>,
    /// Watchers accepted by `retire`.
    watchers: Vec<UnixStream>,
}

impl Presence {
    /// Announces the mount with this `major:minor`.
    pub fn announce(device: &str) -> io::Result<Presence> {
        let address = address(device)?;
        let begin = Instant::now();
        loop {
            match UnixListener::bind_addr(&address) {
                Ok(listener) => {
                    return Ok(Presence {
                        listener: Some(listener),
                        watchers: Vec::new(),
                    });
                }
                Err(error)
                    if error.kind() == io::ErrorKind::AddrInUse
                        && begin.elapsed() < PREDECESSOR =>
                {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Gives the name back; who watches already still sees the process's end.
    pub fn retire(&mut self) {
        let Some(listener) = self.listener.take() else {
            return;
        };
        if listener.set_nonblocking(true).is_ok() {
            while let Ok((watcher, _)) = listener.accept() {
                self.watchers.push(watcher);
            }
        }
    }
}

/// The waiting side; connect before unmounting.
#[derive(Debug)]
pub struct Watch {
    stream: UnixStream,
}

impl Watch {
    /// Watches the process that serves `device`. An error if there is none here, or it is in
    /// another network namespace.
    pub fn connect(device: &str) -> io::Result<Watch> {
        Ok(Watch {
            stream: UnixStream::connect_addr(&address(device)?)?,
        })
    }

    /// The process, if it is in this PID namespace.
    pub fn pid(&self) -> Option<i32> {
        let peer = getsockopt(&self.stream, sockopt::PeerCredentials).ok()?;
        Some(peer.pid()).filter(|&pid| pid > 0)
    }

    /// Waits until the process has ended; false after `limit`.
    pub fn wait(mut self, limit: Duration) -> bool {
        let set = self.stream.set_read_timeout(Some(limit));
        let waited = set.and_then(|()| self.stream.read(&mut [0]));
        !matches!(
            waited.map_err(|error| error.kind()),
            Err(io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_seen() {
        let device = format!("test:{}", std::process::id());
        assert!(Watch::connect(&device).is_err());
        let presence = Presence::announce(&device).unwrap();
        let early = Watch::connect(&device).unwrap();
        assert_eq!(early.pid(), Some(std::process::id() as i32));
        assert!(!early.wait(Duration::from_millis(10)));
        let watch = Watch::connect(&device).unwrap();
        drop(presence);
        assert!(watch.wait(Duration::from_secs(60)));
    }

    #[test]
    fn the_name_goes_to_the_next_mount_before_the_process_ends() {
        let device = format!("next:{}", std::process::id());
        let mut old = Presence::announce(&device).unwrap();
        let watch = Watch::connect(&device).unwrap();
        let name = device.clone();
        let next = std::thread::spawn(move || Presence::announce(&name).unwrap());
        old.retire();
        let next = next.join().unwrap();
        assert!(!watch.wait(Duration::from_millis(10)));
        let other = Watch::connect(&device).unwrap();
        drop(old);
        assert!(!other.wait(Duration::from_millis(10)));
        drop(next);
    }
}
