//! The command `profile`: who loads the server, by user, process, procedure and path. The calls are
//! counted here, from a trace, so that nothing is counted while nobody asks.

use super::line::{Call, Line};
use super::load::{Cost, command, user};
use super::trace::Lines;
use crate::cli::{By, ProfileArgs};
use crate::failure::{Exit, Failure};
use crate::ipc::client;
use crate::output::{self, Reader, plain};
use nfsrdma_rpcrdma::tap::Filter;
use nfsrdma_rpcrdma::words::counted;
use parking_lot::Mutex;
use ratatui::crossterm::cursor::MoveTo;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{Clear, ClearType};
use serde::Serialize;
use std::collections::HashMap;
use std::fmt::Write;
use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime};

/// Most names that are told apart in a table, within an interval.
const MOST: usize = 4096;
/// What calls belong to that are not told apart any more.
const OTHERS: &str = "(others)";

/// What somebody or something has caused.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
struct Share {
    name: String,
    calls: u64,
    errors: u64,
    sent_bytes: u64,
    received_bytes: u64,
    /// The sum of the times of the calls.
    time_ns: u64,
}

impl Share {
    fn add(&mut self, cost: Cost, is_error: bool) {
        self.calls += 1;
        self.errors += u64::from(is_error);
        self.sent_bytes = self.sent_bytes.saturating_add(cost.sent_bytes);
        self.received_bytes = self.received_bytes.saturating_add(cost.received_bytes);
        self.time_ns = self.time_ns.saturating_add(cost.time_ns);
    }
}

/// The calls of an interval.
#[derive(Debug, Default)]
struct Counts {
    all: Share,
    tables: [HashMap<String, Share>; By::ALL.len()],
    /// Calls that are not counted, because there were too many.
    missed: u64,
}

/// The names of what a call belongs to.
#[derive(Debug)]
struct Names {
    users: HashMap<u32, String>,
    /// For a moment: numbers of processes are reused, and a process may run another program.
    processes: HashMap<u32, String>,
    since: Instant,
}

/// How long the name of a process is believed.
const MOMENT: Duration = Duration::from_secs(1);

impl Names {
    fn new() -> Self {
        Names {
            users: HashMap::new(),
            processes: HashMap::new(),
            since: Instant::now(),
        }
    }

    fn process(&mut self, pid: u32) -> String {
        if self.since.elapsed() > MOMENT {
            self.processes.clear();
            self.since = Instant::now();
        }
        let known = self.processes.entry(pid);
        known
            .or_insert_with(|| format!("{} {pid}", command(pid)))
            .clone()
    }

    fn of(&mut self, by: By, call: &Call) -> String {
        match by {
            By::User => match call.uid {
                Some(uid) => user(uid, &mut self.users),
                None => "-".to_owned(),
            },
            By::Process => match call.pid {
                Some(pid) => self.process(pid),
                // Write-back because of age, and most of what is read ahead.
                None => "(none waits)".to_owned(),
            },
            By::Operation => call.procedure.clone(),
            By::Path => path(call),
        }
    }
}

/// The path below the mount that a call is about, or its handle.
fn path(call: &Call) -> String {
    let arguments = &call.arguments;
    let place = match (&arguments.path, &arguments.handle) {
        (Some(path), _) => path.clone(),
        (None, Some(handle)) => format!("handle {handle}"),
        (None, None) => return "-".to_owned(),
    };
    match &arguments.name {
        Some(name) => format!("{}/{name}", place.trim_end_matches('/')),
        None => place,
    }
}

impl Counts {
    fn count(&mut self, call: &Call, names: &mut Names) {
        let cost = Cost::of(call);
        let is_error = call.reply.as_ref().is_some_and(|reply| reply.error);
        self.all.add(cost, is_error);
        for (table, by) in self.tables.iter_mut().zip(By::ALL) {
            let mut name = names.of(by, call);
            if table.len() >= MOST && !table.contains_key(&name) {
                name = OTHERS.to_owned();
            }
            table.entry(name).or_default().add(cost, is_error);
        }
    }

    /// The names of a table, what took the most time first.
    fn sorted(&mut self, by: By) -> Vec<Share> {
        let table = std::mem::take(&mut self.tables[by as usize]);
        let named = |(name, share): (String, Share)| Share { name, ..share };
        let mut sorted: Vec<Share> = table.into_iter().map(named).collect();
        sorted.sort_by(|a, b| b.time_ns.cmp(&a.time_ns).then(a.name.cmp(&b.name)));
        sorted
    }
}

/// An interval, as it is printed.
#[derive(Debug, Serialize)]
struct Interval {
    mount: String,
    /// Seconds since 1970.
    time: u64,
    seconds: f64,
    calls: u64,
    errors: u64,
    missed: u64,
    sent_bytes: u64,
    received_bytes: u64,
    time_ns: u64,
    by: HashMap<&'static str, Vec<Share>>,
    #[serde(skip)]
    order: Vec<By>,
}

impl Interval {
    fn new(mount: String, mut counts: Counts, seconds: f64, args: &ProfileArgs) -> Self {
        let order = match &args.by[..] {
            [] => By::ALL.to_vec(),
            some => some.to_vec(),
        };
        let mut by = HashMap::new();
        for what in &order {
            let mut shares = counts.sorted(*what);
            shares.truncate(args.rows as usize);
            by.insert(what.name(), shares);
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let Share {
            calls,
            errors,
            sent_bytes,
            received_bytes,
            time_ns,
            ..
        } = counts.all;
        Interval {
            mount,
            time: now.unwrap_or_default().as_secs(),
            seconds,
            calls,
            errors,
            missed: counts.missed,
            sent_bytes,
            received_bytes,
            time_ns,
            by,
            order,
        }
    }

    fn text(&self) -> String {
        let per_second = |count: u64| count as f64 / self.seconds;
        let mb = |bytes: u64| per_second(bytes) / 1e6;
        let mut text = format!(
            "{}: {:.0} calls/s, {:.1} MB/s received, {:.1} MB/s sent",
            plain(&self.mount),
            per_second(self.calls),
            mb(self.received_bytes),
            mb(self.sent_bytes)
        );
        // Writing to a String does not fail.
        if self.missed > 0 {
            let _ = write!(text, "; not counted: {}", counted(self.missed, "call"));
        }
        text.push('\n');
        for what in &self.order {
            let _ = writeln!(
                text,
                "\n{:>5}{:>10}{:>10}{:>10}{:>9}  {}",
                "time",
                "calls/s",
                "recvMB/s",
                "sentMB/s",
                "mean ms",
                what.name().to_uppercase()
            );
            for share in self.by.get(what.name()).into_iter().flatten() {
                let _ = writeln!(
                    text,
                    "{:>4.0}%{:>10.1}{:>10.1}{:>10.1}{:>9.3}  {}",
                    share.time_ns as f64 / self.time_ns.max(1) as f64 * 100.0,
                    per_second(share.calls),
                    mb(share.received_bytes),
                    mb(share.sent_bytes),
                    share.time_ns as f64 / share.calls.max(1) as f64 / 1e6,
                    plain(&share.name)
                );
            }
        }
        text
    }
}

/// Counts until the mount ends, in a thread of its own. The result is sent at the end.
fn follow(
    mut lines: Lines,
    counts: Arc<Mutex<Counts>>,
) -> Result<Receiver<Result<(), Failure>>, Failure> {
    let (ended, end) = channel();
    let work = move || {
        let mut names = Names::new();
        let result = loop {
            match lines.next() {
                Ok(Line::Call(call)) => counts.lock().count(&call, &mut names),
                Ok(Line::Lost { events }) => counts.lock().missed += events,
                Ok(Line::End) => break Ok(()),
                Ok(_) => {}
                Err(failure) => break Err(failure),
            }
        };
        // Nobody waits for it if enough was printed.
        let _ = ended.send(result);
    };
    let started = std::thread::Builder::new().spawn(work);
    started.map_err(Failure::no_threads)?;
    Ok(end)
}

/// Prints a block after each interval; on a terminal in place of the one before.
pub(crate) fn run(args: &ProfileArgs) -> Result<(), Failure> {
    let mount = client::mount(&args.dir)?;
    let filter = Filter {
        procedures: u32::MAX,
        ..Filter::default()
    };
    let mut lines = Lines::ask(&args.dir, &mount, &filter)?;
    lines.greeted()?;
    let counts = Arc::new(Mutex::new(Counts::default()));
    let end = follow(lines, counts.clone())?;
    let mut since = Instant::now();
    let mut blocks = 0;
    loop {
        let waited = end.recv_timeout(args.intervals.delay());
        let now = Instant::now();
        let seconds = now.duration_since(since).as_secs_f64();
        since = now;
        let taken = std::mem::take(&mut *counts.lock());
        let name = mount.dir.to_string_lossy().into_owned();
        let interval = Interval::new(name, taken, seconds, args);
        blocks += 1;
        let reader = print(&interval, args.json, blocks == 1)?;
        match waited {
            Ok(result) => return result,
            Err(RecvTimeoutError::Disconnected) => return Err(client::gone(&args.dir)),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if reader == Reader::Gone || args.intervals.are_over(blocks) {
            return Ok(());
        }
    }
}

fn print(interval: &Interval, as_json: bool, is_first: bool) -> Result<Reader, Failure> {
    if as_json {
        let text = serde_json::to_string(interval)
            .map_err(|error| Failure::new(Exit::Internal, format!("cannot write JSON: {error}")))?;
        return output::json(&(text + "\n"));
    }
    let on_screen = io::stdout().is_terminal();
    if on_screen {
        // If this fails, so does what follows.
        let _ = execute!(io::stdout(), Clear(ClearType::All), MoveTo(0, 0));
    }
    let between = match is_first || on_screen {
        true => "",
        false => "\n",
    };
    output::result(&format!("{between}{}", interval.text()))
}

#[cfg(test)]
mod tests {
    use super::super::line::Reply;
    use super::*;

    fn call(procedure: &str, time_ns: u64) -> Call {
        let mut call = Call {
            procedure: procedure.into(),
            uid: Some(0),
            reply: Some(Reply {
                bytes: 50,
                round_trip_ns: time_ns,
                ..Reply::default()
            }),
            ..Call::default()
        };
        call.arguments.path = Some("/dir".into());
        call
    }

    #[test]
    fn a_name_belongs_to_its_directory() {
        let mut lookup = call("LOOKUP", 1);
        lookup.arguments.name = Some("name".into());
        assert_eq!(path(&lookup), "/dir/name");
        lookup.arguments.path = Some("/".into());
        assert_eq!(path(&lookup), "/name");
        lookup.arguments.path = None;
        lookup.arguments.handle = Some("0x1".into());
        assert_eq!(path(&lookup), "handle 0x1/name");
    }

    #[test]
    fn names_are_bounded() {
        let (mut counts, mut names) = (Counts::default(), Names::new());
        for number in 0..MOST + 5 {
            counts.count(&call(&format!("P{number}"), 1), &mut names);
        }
        assert_eq!(counts.tables[By::Operation as usize].len(), MOST + 1);
        assert_eq!(counts.tables[By::Operation as usize][OTHERS].calls, 5);
    }
}
