//! The command `trace`: prints the lines of [`line`](super::line) that the user asked for.

use super::line::{Line, show};
use super::{GREETING, trace_request};
use crate::cli::TraceArgs;
use crate::failure::Failure;
use crate::ipc::client;
use crate::output::{self, Reader};
use nfsrdma_rpcrdma::tap::Filter;
use std::io::{BufRead, BufReader, Read};
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
    let stream = client::connect(&args.dir, &mount, &trace_request(&filter))?;
    let mut lines = BufReader::new(stream);
    let mut line = Vec::new();
    let mut first = true;
    loop {
        line.clear();
        let read = (&mut lines).take(LINE_MAX).read_until(b'\n', &mut line);
        if !matches!(read, Ok(n) if n > 0) {
            // After a refusal the process closes at once, so an error may follow the answer.
            if first {
                client::refusal(&args.dir, &line)?;
            }
            return Err(client::gone(&args.dir));
        }
        if std::mem::take(&mut first) {
            client::refusal(&args.dir, &line)?;
            if line.trim_ascii_end() != GREETING.as_bytes() {
                return Err(client::other_version(&args.dir, "it greets otherwise"));
            }
            continue;
        }
        let parsed: Line = serde_json::from_slice(&line)
            .map_err(|error| client::other_version(&args.dir, error))?;
        if let Line::Sent(call) | Line::Call(call) = &parsed
            && !super::is_asked_for(&args.procedure, &call.procedure)
        {
            continue;
        }
        let reader = match args.json {
            // It is UTF-8, since it was parsed.
            true => output::json(&String::from_utf8_lossy(&line))?,
            false => output::result(&format!("{}\n", show(&parsed)))?,
        };
        if reader == Reader::Gone {
            return Ok(());
        }
        if parsed == Line::End {
            return Ok(());
        }
    }
}
