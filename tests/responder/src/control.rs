//! The control socket: commands of one line each, by which a test controls the running server. Each
//! is answered with one line that begins with `ok` or `error`.
//!
//! ```text
//! clock +TIME|-TIME|=TIME    step the server's clock, or set its offset: 5s, 20ms, 1h
//! restart                    new write verifier; unstable data in memory, the calls
//!                            remembered, all locks and all connections are lost; hosts
//!                            with locks are told, and the grace period begins
//! disconnect                 end all connections
//! fail PROC=WHAT[:N][/EVERY] as --fail
//! jukebox PROC [N]           fail PROC=JUKEBOX:N
//! hangup PROC [N]            fail PROC=HANGUP:N
//! delay PROC MS              calls take longer; 0 takes it back
//! hold PROC [N]              the next N calls wait before they are run
//! hold-reply PROC [N]        the next N calls are run, and wait before they are answered
//! wait-held N MS             wait until N calls are held
//! release [PROC]             let held calls go on, and hold no more
//! clear                      forget failures and delays, and release
//! calls                      how many calls came, by procedure
//! acl-calls                  how many calls of NFS_ACL came, by procedure
//! acl-drop N                 the next N calls of NFS_ACL are neither run nor answered
//! gss                        how many contexts there are, and how many calls came under them
//! gss-forget                 all contexts are forgotten, as by a restart
//! gss-fault FAULT[:N][/EVERY] calls go wrong (see the README): the first N, or all; each EVERY-th
//! gss-shun PRINCIPAL         hang up on INITs of this principal
//! gss-refuse PRINCIPAL       forget each context of this principal before it is used
//! gss-clock SECONDS          the server's clock is so far ahead
//! gss-clear                  take these back
//! lock PATH KIND [OFF LEN]   take a lock (shared, exclusive) as another client
//! unlock PATH [OFF LEN]      give it back
//! locks                      every lock and waiter
//! nlm-silent on|off          calls of NLM are neither run nor answered
//! nlm-status PROC STATUS     calls of TEST, LOCK, CANCEL or UNLOCK are answered with this number, and
//!                            not run; off: as they deserve
//! nsm-calls                  how many calls of NSM came, by procedure
//! ```

use crate::lock::ranges::Range;
use crate::rpc::{Delaying, Failing, Script, Stage, procedure};
use crate::server::Remote;
use nfsrdma_xdr::nlm4;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The longest line. A longer one ends the conversation.
const LINE_MAX: u64 = 4096;
/// The longest a command waits.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// A listening control socket. Dropping it removes it.
#[derive(Debug)]
pub struct Control {
    path: PathBuf,
    /// A handle to the socket on which the thread listens.
    listener: UnixListener,
    closed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Listens at `path`, which must not exist.
    pub fn listen(path: &Path, remote: Remote) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        let accepting = listener.try_clone()?;
        let closed = Arc::new(AtomicBool::new(false));
        let over = closed.clone();
        let thread = std::thread::Builder::new()
            .name("control".into())
            .spawn(move || {
                for stream in accepting.incoming() {
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    let Ok(stream) = stream else { continue };
                    let remote = remote.clone();
                    let spawned =
                        std::thread::Builder::new()
                            .name("control".into())
                            .spawn(move || {
                                if let Err(error) = converse(&stream, &remote) {
                                    tracing::debug!(%error, "a control conversation ended");
                                }
                            });
                    if let Err(error) = spawned {
                        tracing::warn!(%error, "no thread for a control conversation");
                    }
                }
            })?;
        Ok(Control {
            path: path.to_path_buf(),
            listener,
            closed,
            thread: Some(thread),
        })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Relaxed);
        // This ends accept(), even if the name of the socket has been removed.
        if let Ok(listener) = self.listener.try_clone() {
            let _ = UnixStream::from(OwnedFd::from(listener)).shutdown(Shutdown::Both);
        }
        let _ = std::fs::remove_file(&self.path);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn converse(stream: &UnixStream, remote: &Remote) -> io::Result<()> {
    let mut lines = BufReader::new(stream);
    loop {
        let mut line = String::new();
        let read = (&mut lines).take(LINE_MAX).read_line(&mut line)?;
        if read == 0 || !line.ends_with('\n') {
            return Ok(());
        }
        let answer = match run(&line, remote) {
            Ok(said) if said.is_empty() => "ok\n".to_string(),
            Ok(said) => format!("ok {said}\n"),
            Err(why) => format!("error {why}\n"),
        };
        let mut stream = stream;
        stream.write_all(answer.as_bytes())?;
    }
}

/// Executes one command. Returns its answer, or why it failed.
pub fn run(line: &str, remote: &Remote) -> Result<String, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let script = remote.script();
    let variants = remote.fs().variants();
    match words[..] {
        ["clock", step] => {
            let (relative, time) = match step.split_at_checked(1) {
                Some(("+", time)) => (true, nanoseconds(time)?),
                Some(("-", time)) => (true, -nanoseconds(time)?),
                Some(("=", time)) => match time.strip_prefix('-') {
                    Some(time) => (false, -nanoseconds(time)?),
                    None => (false, nanoseconds(time)?),
                },
                _ => return Err("+TIME, -TIME or =TIME is wanted, as -5s".into()),
            };
            Ok(format!("offset_ns={}", variants.step_clock(time, relative)))
        }
        ["restart"] => {
            remote.restart().map_err(|e| e.to_string())?;
            Ok(String::new())
        }
        ["disconnect"] => {
            remote.disconnect();
            Ok(String::new())
        }
        ["calls"] => Ok(calls(script)),
        ["acl-calls"] => {
            let calls = remote.acl_calls().all();
            let calls = calls.map(|(name, count)| format!("{name}={count}"));
            Ok(calls.collect::<Vec<_>>().join(" "))
        }
        ["acl-drop", count] => {
            remote.acl_calls().drop_next(number(count)?);
            Ok(String::new())
        }
        [
            "gss" | "gss-forget" | "gss-fault" | "gss-shun" | "gss-refuse" | "gss-clock"
            | "gss-clear",
            ..,
        ] => run_gss(&words, remote),
        [
            "lock" | "unlock" | "locks" | "nlm-silent" | "nlm-status" | "nsm-calls",
            ..,
        ] => run_locks(&words, remote),
        _ => run_script(&words, script),
    }
}

/// Executes the commands about RPCSEC_GSS.
fn run_gss(words: &[&str], remote: &Remote) -> Result<String, String> {
    let gss = remote.security().gss.as_ref();
    let gss = gss.ok_or("RPCSEC_GSS is not served: --sec")?;
    match *words {
        ["gss"] => return Ok(gss.describe()),
        ["gss-forget"] => gss.forget(),
        ["gss-fault", what] => gss.fault(what.parse()?),
        ["gss-shun", principal] => gss.shun(principal),
        ["gss-refuse", principal] => gss.refuse(principal),
        ["gss-clock", seconds] => gss.set_ahead(seconds.parse().map_err(|_| "seconds")?),
        ["gss-clear"] => gss.clear(),
        _ => return Err("no such command".into()),
    }
    Ok(String::new())
}

/// Executes the commands about locks.
fn run_locks(words: &[&str], remote: &Remote) -> Result<String, String> {
    let locks = remote.locks();
    let file = |path: &str| {
        let found = remote.fs().find_path(path.as_bytes());
        found.map_err(|status| format!("{path}: {}", status.name()))
    };
    let range = |rest: &[&str]| match rest {
        [] => Range::new(0, 0).ok_or_else(String::new),
        [offset, length] => Range::new(number(offset)?, number(length)?)
            .ok_or_else(|| "the range is too large".to_string()),
        _ => Err("an offset and a length are wanted".to_string()),
    };
    let granted = |status| match status {
        nlm4::Status::Granted => Ok(String::new()),
        status => Err(format!("{status:?}")),
    };
    match *words {
        ["lock", path, kind @ ("shared" | "exclusive"), ref rest @ ..] => {
            let (file, range) = (file(path)?, range(rest)?);
            granted(locks.lock_for_script(file, kind == "exclusive", range))
        }
        ["unlock", path, ref rest @ ..] => {
            let (file, range) = (file(path)?, range(rest)?);
            granted(locks.unlock_for_script(file, range))
        }
        ["locks"] => Ok(locks.with(|table, _| table.describe())),
        ["nlm-silent", on @ ("on" | "off")] => {
            locks.set_silent(on == "on");
            Ok(String::new())
        }
        ["nlm-status", procedure, status] => {
            // In the order of their numbers, from 1 on.
            let procedure = ["TEST", "LOCK", "CANCEL", "UNLOCK"]
                .iter()
                .position(|name| *name == procedure)
                .ok_or("a procedure from TEST to UNLOCK is wanted")?
                as u32
                + 1;
            let status = match status {
                "off" => None,
                status => Some(
                    status
                        .parse()
                        .map_err(|_| format!("{status} is no number"))?,
                ),
            };
            locks.set_answer(procedure, status);
            Ok(String::new())
        }
        ["nsm-calls"] => {
            let calls = locks.monitor_calls();
            let calls = calls.map(|(name, count)| format!("{name}={count}"));
            Ok(calls.collect::<Vec<_>>().join(" "))
        }
        _ => Err("no such command".into()),
    }
}

/// Executes the commands about calls.
fn run_script(words: &[&str], script: &Script) -> Result<String, String> {
    let count = |rest: &[&str]| match rest {
        [] => Ok(1),
        [count] => number(count),
        _ => Err("a procedure and a number are wanted".to_string()),
    };
    match *words {
        ["fail", what] => script.fail(what.parse::<Failing>()?),
        [what @ ("jukebox" | "hangup"), of, ref rest @ ..] => {
            let failure = what.to_uppercase();
            script.fail(format!("{of}={failure}:{}", count(rest)?).parse::<Failing>()?);
        }
        ["delay", of, ms] => script.delay(format!("{of}={ms}").parse::<Delaying>()?),
        ["hold", of, ref rest @ ..] => script.hold(procedure(of)?, Stage::Call, count(rest)?),
        ["hold-reply", of, ref rest @ ..] => {
            script.hold(procedure(of)?, Stage::Reply, count(rest)?);
        }
        ["wait-held", count, ms] => {
            let limit = Duration::from_millis(number(ms)?).min(WAIT_MAX);
            let count = number(count)?;
            if !script.wait_held(count, limit) {
                return Err(format!("{} of {count} calls are held", script.held()));
            }
        }
        ["release"] => script.release(None),
        ["release", of] => script.release(procedure(of)?),
        ["clear"] => script.clear(),
        _ => return Err("no such command".into()),
    }
    Ok(String::new())
}

fn calls(script: &Script) -> String {
    let all: Vec<String> = script
        .calls()
        .map(|(procedure, count)| format!("{}={count}", procedure.label()))
        .collect();
    all.join(" ")
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text} is no number"))
}

/// Parses a time with its unit, in nanoseconds.
pub fn nanoseconds(text: &str) -> Result<i64, String> {
    let wrong = || format!("{text} is no time, as 5s, 20ms or 1h");
    let at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (count, unit) = text.split_at(at);
    let unit: i64 = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return Err(wrong()),
    };
    count
        .parse::<i64>()
        .ok()
        .and_then(|count| count.checked_mul(unit))
        .ok_or_else(wrong)
}
