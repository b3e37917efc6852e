//! The log. It goes to standard error in the foreground, and to syslog or a file once detached.
//!
//! A line is `SERVER:/EXPORT on DIR: message`. The time (UTC) and the level precede it, except
//! where syslog or systemd add them. Lines of the levels `debug` and `trace`, which are for readers
//! of the source, name the module before the message.

use crate::failure::{Exit, Failure};
use crate::ipc::control::{Answer, ControlReply};
use crate::output::{is_obeyed, plain, without_number, without_numbers};
use crate::user_file;
use parking_lot::{Mutex, RwLock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
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

/// The levels that `nfsrdma log` accepts. `default` is the level at the beginning of the mount.
pub(crate) const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "default"];
/// The request for the level in force. With a blank and a level appended, it changes the level.
pub(crate) const REQUEST: &str = "log";

/// A function that sets the filter to a level, which is one of [`LEVELS`].
type Change = Box<dyn Fn(&str) -> Option<()> + Send + Sync>;

/// The writer of all events.
#[derive(Debug, Clone)]
pub(crate) struct Log {
    shared: Arc<Shared>,
}

struct Shared {
    detached: AtomicBool,
    /// Whether events before detaching are shown. By default they are not, because a failure is
    /// reported by its own sentence.
    chatty: bool,
    file: Option<LogFile>,
    /// Set when the subscriber is installed.
    change: OnceLock<Change>,
    /// The level in force, and the one it began with.
    level: Mutex<String>,
    initial: String,
}

/// The file of `--log`. logrotate(8) may rename it, and then it is opened again.
#[derive(Debug)]
struct LogFile {
    /// The path is absolute, because the process changes its directory.
    path: PathBuf,
    file: RwLock<File>,
}

impl LogFile {
    fn open(path: &Path) -> io::Result<LogFile> {
        let path = std::path::absolute(path)?;
        let file = RwLock::new(Self::append_to(&path)?);
        Ok(LogFile { path, file })
    }

    /// A new file is not readable for all users, because the log names files in private directories.
    fn append_to(path: &Path) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
        user_file::open(path, flags, 0o640.into())
    }

    /// Opens the file with this name, which may be a new one. Keeps the old file if that fails.
    fn reopen(&self) -> io::Result<()> {
        let file = Self::append_to(&self.path)?;
        *self.file.write() = file;
        Ok(())
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

/// The filter directives of a level. fuser logs one level less; the rest is for its authors.
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

/// The level for a number of `-v`.
fn level_of(verbose: u8) -> &'static str {
    match verbose {
        0 => "info",
        1 => "debug",
        _ => "trace",
    }
}

/// The filter from RUST_LOG, or else from `verbose`, and the name of its level.
fn initial(verbose: u8) -> (EnvFilter, String) {
    match EnvFilter::try_from_default_env() {
        Ok(filter) => {
            let name = std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_default();
            (filter, name)
        }
        Err(_) => {
            let level = level_of(verbose);
            let filter = EnvFilter::new(directives(level).unwrap_or_default());
            (filter, level.to_owned())
        }
    }
}

impl Log {
    /// Installs the subscriber. RUST_LOG sets the levels, and without it `verbose` does. `mount` is
    /// the name of the mount in each line.
    pub(crate) fn install(
        foreground: bool,
        verbose: u8,
        file: Option<&Path>,
        mount: &str,
    ) -> Result<Log, Failure> {
        let file = match file {
            None => None,
            Some(path) => Some(LogFile::open(path).map_err(|error| {
                let (path, why) = (path.display(), without_number(&error));
                let message =
                    format!("cannot write the log {path}: {why}; choose another file for --log");
                Failure::new(Exit::System, message)
            })?),
        };
        let (filter, level) = initial(verbose);
        let log = Log {
            shared: Arc::new(Shared {
                detached: AtomicBool::new(false),
                chatty: foreground || verbose > 0,
                file,
                change: OnceLock::new(),
                level: Mutex::new(level.clone()),
                initial: level,
            }),
        };
        let (filter, handle) = reload::Layer::<EnvFilter, Registry>::new(filter);
        let lines = tracing_subscriber::fmt::layer()
            // It would report errors by a macro that panics where standard error is closed.
            .log_internal_errors(false)
            .with_ansi(false)
            .event_format(LineFormat {
                mount: plain(mount),
                // syslog and systemd add the time and the level themselves.
                stamped: foreground || log.shared.file.is_some(),
            })
            .with_writer(log.clone());
        let installed = Registry::default().with(filter).with(lines).try_init();
        installed.map_err(|error| Failure::new(Exit::Internal, error.to_string()))?;
        let change = move |level: &str| {
            let filter = match level {
                "default" => initial(verbose).0,
                _ => EnvFilter::new(directives(level)?),
            };
            handle.reload(filter).ok()
        };
        // It cannot be set yet, because try_init fails when called a second time.
        let _ = log.shared.change.set(Box::new(change));
        Ok(log)
    }

    /// Answers requests about the level, and passes others on to `next`.
    pub(crate) fn answer(&self, next: Answer) -> Answer {
        let shared = self.shared.clone();
        Arc::new(move |request| {
            let level = match request.strip_prefix(REQUEST) {
                None => return next(request),
                Some("") => shared.level.lock().clone(),
                Some(rest) => {
                    let level = rest.strip_prefix(' ')?;
                    let change = shared.change.get()?;
                    change(level)?;
                    let name = match level {
                        "default" => shared.initial.clone(),
                        level => level.to_owned(),
                    };
                    shared.level.lock().clone_from(&name);
                    name
                }
            };
            let said = serde_json::json!({ "level": level }).to_string();
            Some(ControlReply::Document(said))
        })
    }

    /// Opens the file of `--log` again, if there is one, because it may have been renamed.
    pub(crate) fn reopen(&self) {
        let Some(file) = &self.shared.file else {
            return;
        };
        match file.reopen() {
            Ok(()) => tracing::info!("SIGHUP: the log was opened anew"),
            Err(error) => tracing::warn!(
                "SIGHUP: cannot open the log {} anew: {error}; it goes on where it was",
                file.path.display()
            ),
        }
    }

    /// Whether the log goes to a file.
    pub(crate) fn has_file(&self) -> bool {
        self.shared.file.is_some()
    }

    /// Stops writing to standard error, which nobody watches from now on.
    pub(crate) fn detach(&self) {
        self.shared.detached.store(true, Ordering::Release);
    }
}

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
        // File names and what servers say must not make lines of their own.
        let mut fields = String::new();
        context
            .field_format()
            .format_fields(Writer::new(&mut fields), event)?;
        writeln!(to, "{}", plain(&without_numbers(&fields)))
    }
}

/// A writer for one event, which is one line.
#[derive(Debug)]
pub(crate) struct Line {
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
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let line = &*one_line(event);
        // If the line cannot be written (a full disk, a closed pipe, or one that nobody reads), it
        // is lost. The mount must not depend on its log.
        if let Some(log) = &self.shared.file {
            let _ = write_if_taken(&*log.file.read(), line);
        } else if self.shared.detached.load(Ordering::Acquire) {
            // If there is no syslog, there is nowhere to report that.
            let _ = to_syslog(Path::new(SOCKET), self.level, line);
        } else if self.shared.chatty {
            let _ = write_if_taken(io::stderr().lock(), line);
        }
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a line, but for what would block: the rest of it is lost. A terminal that is stopped, or the
/// reader of a pipe that stands still, must not stop the thread, which serves the mount.
fn write_if_taken(mut to: impl Write + AsFd, line: &[u8]) -> io::Result<()> {
    // poll(2) says that a pipe is ready if there is room for as much as this.
    for part in line.chunks(libc::PIPE_BUF) {
        let ready = poll(
            &mut [PollFd::new(&to, PollFlags::OUT)],
            Some(&Timespec::default()),
        )?;
        if ready == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        to.write_all(part)?;
    }
    Ok(())
}

/// An event as one line. The names in it come from users and servers: one with a line break would
/// begin a line of its own, and a terminal would obey other control characters.
fn one_line(event: &[u8]) -> Cow<'_, [u8]> {
    let text = event.strip_suffix(b"\n").unwrap_or(event);
    match String::from_utf8_lossy(text) {
        text if text.contains(is_obeyed) => (plain(&text) + "\n").into_bytes().into(),
        _ => event.into(),
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
    fn a_pipe_that_nobody_reads_holds_nobody_up() {
        let (mut reader, writer) = io::pipe().unwrap();
        let line = [b'x'; 10_000];
        // Far more than a pipe takes.
        let lost = (0..100).filter(|_| write_if_taken(&writer, &line).is_err());
        assert!(lost.count() > 50);
        let mut taken = [0; libc::PIPE_BUF];
        for _ in 0..4 {
            io::Read::read_exact(&mut reader, &mut taken).unwrap();
        }
        write_if_taken(&writer, &line).unwrap();
    }

    #[test]
    fn an_event_is_one_line_whatever_names_are_in_it() {
        let event = "bytes of /a\nERROR forged\x1b[2J\u{85} are lost\n";
        let line = "bytes of /a?ERROR forged?[2J? are lost\n";
        assert_eq!(one_line(event.as_bytes()), line.as_bytes());
        assert_eq!(one_line("als Füße\n".as_bytes()), "als Füße\n".as_bytes());
        assert_eq!(one_line(b"\xff is kept\n"), &b"\xff is kept\n"[..]);
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
