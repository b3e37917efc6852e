//! The command `trace`: prints the lines of [`line`](super::line) that the user asked for.

use super::line::{Line, show};
use super::{GREETING, trace_request};
use crate::cli::TraceArgs;
use crate::failure::Failure;
use crate::ipc::client;
use crate::mounts::Mount;
use crate::output::{self, Reader};
use nfsrdma_rpcrdma::tap::Filter;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest line that is accepted, in bytes.
const LINE_MAX: u64 = 1 << 20;

/// Runs `trace` until the mount ends, or until the reader closes the pipe.
pub(crate) fn run(args: &TraceArgs) -> Result<(), Failure> {
    let filter = Filter {
        procedures: match &args.procedure[..] {
            [] => u32::MAX,
            some => some
                .iter()
                .fold(0, |all, number| all | 1 << (*number).min(super::OTHER)),
        },
        errors: args.errors,
        slow: Duration::from_millis(args.slow.into()),
        transmissions: args.sent,
    };
    let mount = client::mount(&args.dir)?;
    let mut lines = Lines::ask(&args.dir, &mount, &filter)?;
    lines.greeted()?;
    loop {
        let parsed = lines.next()?;
        if let Line::Sent(call) | Line::Call(call) = &parsed
            && !super::is_asked_for(&args.procedure, &call.procedure)
        {
            continue;
        }
        let reader = match args.json {
            // It is UTF-8, since it was parsed.
            true => output::json(&String::from_utf8_lossy(&lines.raw))?,
            false => output::result(&format!("{}\n", show(&parsed)))?,
        };
        if reader == Reader::Gone || parsed == Line::End {
            return Ok(());
        }
    }
}

/// The lines that the serving process of a mount sends.
#[derive(Debug)]
pub(super) struct Lines {
    dir: PathBuf,
    from: BufReader<UnixStream>,
    /// The last line.
    raw: Vec<u8>,
}

impl Lines {
    /// Asks for the calls that `filter` wants.
    pub(super) fn ask(dir: &Path, mount: &Mount, filter: &Filter) -> Result<Lines, Failure> {
        let stream = client::connect(dir, mount, &trace_request(filter))?;
        Ok(Lines {
            dir: dir.to_owned(),
            from: BufReader::new(stream),
            raw: Vec::new(),
        })
    }

    pub(super) fn stream(&self) -> io::Result<UnixStream> {
        self.from.get_ref().try_clone()
    }

    /// Waits for the greeting. From then on calls are reported.
    pub(super) fn greeted(&mut self) -> Result<(), Failure> {
        // After a refusal the process closes at once, so an error may follow the answer.
        let read = self.read();
        client::refusal(&self.dir, &self.raw)?;
        read?;
        match self.raw.trim_ascii_end() == GREETING.as_bytes() {
            true => Ok(()),
            false => Err(client::other_version(&self.dir, "it greets otherwise")),
        }
    }

    fn read(&mut self) -> Result<(), Failure> {
        self.raw.clear();
        let mut limited = (&mut self.from).take(LINE_MAX);
        match limited.read_until(b'\n', &mut self.raw) {
            Ok(1..) => Ok(()),
            _ => Err(client::gone(&self.dir)),
        }
    }

    pub(super) fn next(&mut self) -> Result<Line, Failure> {
        self.read()?;
        serde_json::from_slice(&self.raw).map_err(|error| client::other_version(&self.dir, error))
    }
}
