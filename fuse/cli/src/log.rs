//! Where the log goes: standard error while in the foreground, syslog (or a file) once
//! detached.
//!
//! A line is `SERVER:/EXPORT on DIR: message`, with the time (UTC) and the level in front where
//! nobody else puts them. Lines of `debug` and `trace`, which are for those who know the source,
//! name the module before the message.

use super::control::{Answer, Said};
use super::failure::{Exit, Failure};
use super::stats::text::plain;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::Registry;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::prelude::*;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::reload;

/// The syslog facility "daemon" (RFC 3164 section 4.1.1).
const DAEMON: u8 = 3;
const SOCKET: &str = "/dev/log";

/// What `nfsrdma log` takes. The last is what the mount began with.
pub const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "default"];
/// How a request to change the level begins; the level follows.
pub const REQUEST: &str = "log ";

/// Changes the filter to that of the text, one of [`LEVELS`].
type Change = Box<dyn Fn(&str) -> Option<()> + Send + Sync>;

/// The way out of all events.
#[derive(Debug, Clone)]
pub struct Log {
    shared: Arc<Shared>,
}

struct Shared {
    detached: AtomicBool,
    /// Events before detaching are shown only if asked for: the failure itself is reported
    /// by its sentence.
    chatty: bool,
    file: Option<File>,
    /// From the installation on.
    change: OnceLock<Change>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

/// Directives of a level. What fuser says below it is of interest to its authors.
fn directives(level: &str) -> Option<&'static str> {
    Some(match level {
        "error" => "error",
        "warn" => "warn",
        "info" => "info,fuser=warn",
        "debug" => "debug,fuser=info",
        "trace" => "trace",
        _ => return None,
    })
}

/// As RUST_LOG says, else as `verbose` does.
fn initial(verbose: u8) -> EnvFilter {
    let level = match verbose {
        0 => "info",
        1 => "debug",
        _ => "trace",
    };
    EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new(directives(level).unwrap_or_default()))
}

impl Log {
    /// Installs the subscriber. RUST_LOG decides on levels, else `verbose` does.
    /// `mount`: whose log it is, for each line.
    pub fn install(
        foreground: bool,
        verbose: u8,
        file: Option<&Path>,
        mount: &str,
    ) -> Result<Log, Failure> {
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
                change: OnceLock::new(),
            }),
        };
        let (filter, handle) = reload::Layer::<EnvFilter, Registry>::new(initial(verbose));
        let lines = tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .event_format(LineFormat {
                mount: plain(mount),
                // syslog and systemd put the time and the level themselves.
                stamped: foreground || log.shared.file.is_some(),
            })
            .with_writer(log.clone());
        let installed = Registry::default().with(filter).with(lines).try_init();
        installed.map_err(|error| Failure::new(Exit::Internal, error.to_string()))?;
        let change = move |level: &str| {
            let filter = match level {
                "default" => initial(verbose),
                _ => EnvFilter::new(directives(level)?),
            };
            handle.reload(filter).ok()
        };
        // Installed once: try_init fails the second time.
        let _ = log.shared.change.set(Box::new(change));
        Ok(log)
    }

    /// Answers requests to change the level; others go on to `next`.
    pub fn answer(&self, next: Answer) -> Answer {
        let shared = self.shared.clone();
        Arc::new(move |request| match request.strip_prefix(REQUEST) {
            None => next(request),
            Some(level) => {
                let change = shared.change.get()?;
                change(level)?;
                let said = serde_json::json!({ "level": level }).to_string();
                Some(Said::Document(said))
            }
        })
    }

    /// From now on nobody watches standard error.
    pub fn detach(&self) {
        self.shared.detached.store(true, Ordering::Release);
    }
}

/// How a line looks.
struct LineFormat {
    mount: String,
    stamped: bool,
}

impl<S, N> FormatEvent<S, N> for LineFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut to: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        if self.stamped {
            SystemTime.format_time(&mut to)?;
            write!(to, " {:<5} ", metadata.level())?;
        }
        write!(to, "{}: ", self.mount)?;
        if *metadata.level() > Level::INFO {
            write!(to, "{}: ", metadata.target())?;
        }
        context.field_format().format_fields(to.by_ref(), event)?;
        writeln!(to)
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
    fn every_level_is_understood() {
        for level in &LEVELS[..LEVELS.len() - 1] {
            let text = directives(level).expect(level);
            assert!(EnvFilter::try_new(text).is_ok(), "{text}");
        }
        assert_eq!(directives("loud"), None);
    }

    #[test]
    fn lines_name_the_mount() {
        let lines = |stamped, level| {
            let path = std::env::temp_dir().join(format!(
                "nfsrdma-lines-{}-{stamped}-{level}",
                std::process::id()
            ));
            let file = File::create(&path).unwrap();
            let layer = tracing_subscriber::fmt::layer()
                .with_ansi(false)
                .event_format(LineFormat {
                    mount: "srv:/x on /mnt".into(),
                    stamped,
                })
                .with_writer(file);
            let subscriber = Registry::default().with(layer);
            tracing::subscriber::with_default(subscriber, || match level {
                Level::WARN => tracing::warn!(fileid = 7, "server {} OK", "srv"),
                _ => tracing::debug!("a detail"),
            });
            let text = std::fs::read_to_string(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            text
        };
        assert_eq!(
            lines(false, Level::WARN),
            "srv:/x on /mnt: server srv OK fileid=7\n"
        );
        let stamped = lines(true, Level::WARN);
        let (time, rest) = stamped.split_once(' ').unwrap();
        assert!(time.ends_with('Z'), "{stamped}");
        assert_eq!(rest, "WARN  srv:/x on /mnt: server srv OK fileid=7\n");
        let detail = lines(false, Level::DEBUG);
        assert_eq!(
            detail,
            format!("srv:/x on /mnt: {}: a detail\n", module_path!())
        );
    }

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
