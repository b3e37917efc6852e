//! Where the log goes: standard error while in the foreground, syslog (or a file) once
//! detached.

use super::failure::{Exit, Failure};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tracing::{Level, Metadata};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// The syslog facility "daemon" (RFC 3164 section 4.1.1).
const DAEMON: u8 = 3;
const SOCKET: &str = "/dev/log";

/// The way out of all events.
#[derive(Debug, Clone)]
pub struct Log {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    detached: AtomicBool,
    /// Events before detaching are shown only if asked for: the failure itself is reported
    /// by its sentence.
    chatty: bool,
    file: Option<File>,
}

impl Log {
    /// Installs the subscriber. RUST_LOG decides on levels, else `verbose` does.
    pub fn install(foreground: bool, verbose: u8, file: Option<&Path>) -> Result<Log, Failure> {
        let file = match file {
            None => None,
            Some(path) => Some(
                OpenOptions::new()
                    .append(true)
                    .create(true)
                    .open(path)
                    .map_err(|error| {
                        let path = path.display();
                        Failure::new(
                            Exit::System,
                            format!("cannot write the log {path}: {error}"),
                        )
                    })?,
            ),
        };
        let log = Log {
            shared: Arc::new(Shared {
                detached: AtomicBool::new(false),
                chatty: foreground || verbose > 0,
                file,
            }),
        };
        let level = match verbose {
            0 => "info,fuser=warn",
            1 => "debug,fuser=info",
            _ => "trace",
        };
        let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
        let plain = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_ansi(false)
            .with_writer(log.clone());
        // syslog and systemd put the time and the level themselves.
        let installed = if foreground || log.shared.file.is_some() {
            plain.try_init()
        } else {
            plain.without_time().with_level(false).try_init()
        };
        installed.map_err(|error| Failure::new(Exit::Internal, error.to_string()))?;
        Ok(log)
    }

    /// From now on nobody watches standard error.
    pub fn detach(&self) {
        self.shared.detached.store(true, Ordering::Release);
    }
}

/// Takes one event, a line.
#[derive(Debug)]
pub struct Line {
    shared: Arc<Shared>,
    level: Level,
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line {
            shared: self.shared.clone(),
            level: Level::INFO,
        }
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Line {
        Line {
            shared: self.shared.clone(),
            level: *meta.level(),
        }
    }
}

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if let Some(mut file) = self.shared.file.as_ref() {
            file.write_all(line)?;
        } else if self.shared.detached.load(Ordering::Acquire) {
            // No syslog: nobody to tell.
            let _ = to_syslog(Path::new(SOCKET), self.level, line);
        } else if self.shared.chatty {
            io::stderr().lock().write_all(line)?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// RFC 3164 section 4.1.1: facility * 8 + severity.
fn priority(level: Level) -> u8 {
    DAEMON * 8
        + match level {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            _ => 7,
        }
}

fn to_syslog(socket: &Path, level: Level, line: &[u8]) -> io::Result<()> {
    let mut message =
        format!("<{}>nfsrdma[{}]: ", priority(level), std::process::id()).into_bytes();
    message.extend_from_slice(line.trim_ascii());
    let sender = UnixDatagram::unbound()?;
    sender.set_nonblocking(true)?;
    sender.send_to(&message, socket)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_for_syslog() {
        let dir = std::env::temp_dir().join(format!("nfsrdma-log-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("log");
        let socket = UnixDatagram::bind(&path).unwrap();
        let sent = to_syslog(&path, Level::WARN, b"link lost\n");
        let mut buf = [0; 200];
        let got = sent.and_then(|()| socket.recv(&mut buf));
        std::fs::remove_dir_all(&dir).unwrap();
        let pid = std::process::id();
        assert_eq!(
            String::from_utf8_lossy(&buf[..got.unwrap()]),
            format!("<28>nfsrdma[{pid}]: link lost")
        );
    }
}
