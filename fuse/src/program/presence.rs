//! Lets others wait for the end of the process that serves a mount.
//!
//! The process binds an abstract Unix socket (unix(7)) named after the mount's device number.
//! Whoever connects gets the end of file when the process is gone: after the last flush.
//!
//! The kernel gives a device number to the next mount as soon as the file system is out of
//! sight, while the process may still flush. So a process whose session has ended gives the
//! name back ([`Presence::retire`]), keeping those who watch already, and a new one waits for
//! the name a little. What it tells them meanwhile is lines with the bytes still to be written.

use nix::sys::socket::{getsockopt, sockopt};
use std::io::{self, Read, Write};
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
                if watcher.set_nonblocking(true).is_ok() {
                    self.watchers.push(watcher);
                }
            }
        }
    }

    /// Tells those who watched when it retired how many bytes are still to be written. Never
    /// waits: who does not read misses it.
    pub fn tell(&mut self, bytes: u64) {
        for watcher in &mut self.watchers {
            let _ = watcher.write_all(format!("{bytes}\n").as_bytes());
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

    /// Waits until the process has ended; false after `limit`. `progress` gets the bytes still
    /// to be written, whenever the process says so.
    pub fn wait(mut self, limit: Duration, mut progress: impl FnMut(u64)) -> bool {
        let begin = Instant::now();
        let mut buffer = [0; 256];
        loop {
            let left = limit.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return false;
            }
            let set = self.stream.set_read_timeout(Some(left));
            match set.and_then(|()| self.stream.read(&mut buffer)) {
                Ok(0) => return true,
                Ok(n) => {
                    // A line is written at once; of several the last one counts.
                    let text = String::from_utf8_lossy(&buffer[..n]);
                    if let Some(Ok(bytes)) = text.lines().last().map(str::parse) {
                        progress(bytes);
                    }
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => return false,
                    _ => return true,
                },
            }
        }
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
        assert!(!early.wait(Duration::from_millis(10), |_| ()));
        let watch = Watch::connect(&device).unwrap();
        drop(presence);
        assert!(watch.wait(Duration::from_secs(60), |_| ()));
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
        assert!(!watch.wait(Duration::from_millis(10), |_| ()));
        let other = Watch::connect(&device).unwrap();
        drop(old);
        assert!(!other.wait(Duration::from_millis(10), |_| ()));
        drop(next);
    }

    #[test]
    fn progress_is_told_and_nobody_waited_for() {
        let device = format!("progress:{}", std::process::id());
        let mut presence = Presence::announce(&device).unwrap();
        let watch = Watch::connect(&device).unwrap();
        let deaf = Watch::connect(&device).unwrap();
        presence.retire();
        for bytes in (0..100_000).rev() {
            presence.tell(bytes);
        }
        let mut told = Vec::new();
        let early = Instant::now();
        drop(presence);
        assert!(watch.wait(Duration::from_secs(60), |bytes| told.push(bytes)));
        assert!(early.elapsed() < Duration::from_secs(60));
        assert!(!told.is_empty() && told[0] < 100_000, "{told:?}");
        drop(deaf);
    }
}
