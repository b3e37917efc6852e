//! Who loads the server: the calls of each user and process, counted in the command that shows them,
//! from a trace. So nothing is counted while nobody watches.

use super::line::{Call, Line};
use super::trace::Lines;
use crate::mounts::Mount;
use crate::output::plain;
use nfsrdma_rpcrdma::tap::Filter;
use nix::unistd::{Uid, User};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// Most users and processes that are told apart at a time.
const MOST: usize = 1024;

/// A user and a process; `None` for calls that no process waits for, as write-back.
type Who = (Option<u32>, Option<u32>);

/// What a user and process has caused.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Load {
    /// The name of the user, or the uid.
    pub(crate) user: String,
    pub(crate) pid: Option<u32>,
    /// The name of the program.
    pub(crate) command: String,
    pub(crate) calls: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
    /// The sum of the times of the calls.
    pub(crate) time_ns: u64,
}

/// What was counted of a mount.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Loads {
    pub(crate) of: Vec<Load>,
    /// Calls that were not counted, because there were too many of them, or of users.
    pub(crate) missed: u64,
    /// Why nothing is counted.
    pub(crate) error: Option<String>,
}

#[derive(Debug, Default)]
struct Counts {
    of: HashMap<Who, Load>,
    missed: u64,
    error: Option<String>,
    /// To end the trace.
    stream: Option<UnixStream>,
    ended: bool,
}

/// Counts the calls of a mount while it lives.
#[derive(Debug)]
pub(crate) struct Watch(Arc<Mutex<Counts>>);

impl Watch {
    pub(crate) fn start(mount: &Mount) -> Watch {
        let counts = Arc::new(Mutex::new(Counts::default()));
        let (mount, shared) = (mount.clone(), counts.clone());
        let started = std::thread::Builder::new().spawn(move || {
            if let Err(error) = follow(&mount, &shared) {
                shared.lock().error = Some(error);
            }
        });
        if let Err(error) = started {
            counts.lock().error = Some(format!("cannot start a thread: {error}"));
        }
        Watch(counts)
    }

    /// What was counted since the last time, the most calls first.
    pub(crate) fn take(&self) -> Loads {
        let mut counts = self.0.lock();
        let mut of: Vec<Load> = counts.of.drain().map(|(_, load)| load).collect();
        let missed = std::mem::take(&mut counts.missed);
        let error = counts.error.clone();
        drop(counts);
        of.sort_by(|a, b| b.calls.cmp(&a.calls).then(a.pid.cmp(&b.pid)));
        Loads { of, missed, error }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut counts = self.0.lock();
        counts.ended = true;
        if let Some(stream) = counts.stream.take() {
            // This fails only if the other side is gone.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Counts until the mount or the [`Watch`] ends.
fn follow(mount: &Mount, shared: &Mutex<Counts>) -> Result<(), String> {
    let filter = Filter {
        procedures: u32::MAX,
        ..Filter::default()
    };
    let mut lines = Lines::ask(&mount.dir, mount, &filter).map_err(|failure| failure.message)?;
    {
        let mut counts = shared.lock();
        if counts.ended {
            return Ok(());
        }
        counts.stream = lines.stream().ok();
    }
    let mut users = HashMap::new();
    lines.greeted().map_err(|failure| failure.message)?;
    loop {
        match lines.next().map_err(|failure| failure.message)? {
            Line::Call(call) => shared.lock().count(&call, &mut users),
            Line::Lost { events } => shared.lock().missed += events,
            Line::End => return Err("the mount ended".to_owned()),
            _ => {}
        }
    }
}

impl Counts {
    fn count(&mut self, call: &Call, users: &mut HashMap<u32, String>) {
        let who = (call.uid, call.pid);
        if self.of.len() >= MOST && !self.of.contains_key(&who) {
            self.missed += 1;
            return;
        }
        let load = self.of.entry(who).or_insert_with(|| Load {
            user: call.uid.map_or_else(|| "-".into(), |uid| user(uid, users)),
            pid: call.pid,
            command: call.pid.map_or_else(|| "(none waits)".into(), command),
            ..Load::default()
        });
        let cost = Cost::of(call);
        load.calls += 1;
        load.sent_bytes = load.sent_bytes.saturating_add(cost.sent_bytes);
        load.received_bytes = load.received_bytes.saturating_add(cost.received_bytes);
        load.time_ns = load.time_ns.saturating_add(cost.time_ns);
    }
}

/// What one call took.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cost {
    pub(super) sent_bytes: u64,
    pub(super) received_bytes: u64,
    pub(super) time_ns: u64,
}

impl Cost {
    pub(super) fn of(call: &Call) -> Cost {
        let mut cost = Cost::default();
        if let Some(transport) = &call.transport {
            let chunks = transport.chunks.iter();
            let read = chunks.filter(|chunk| matches!(&*chunk.kind, "read" | "position-zero"));
            let placed: u64 = read.map(|chunk| chunk.bytes).fold(0, u64::saturating_add);
            cost.sent_bytes = placed.saturating_add(transport.bytes as u64);
        }
        if let Some(reply) = &call.reply {
            cost.received_bytes = reply.bytes as u64;
            cost.time_ns = reply.queue_ns.saturating_add(reply.round_trip_ns);
        }
        cost
    }
}

/// The name of a user. Asking for it may take long, so the known ones are kept.
pub(super) fn user(uid: u32, users: &mut HashMap<u32, String>) -> String {
    if users.len() >= MOST {
        users.clear();
    }
    let name = || {
        User::from_uid(Uid::from_raw(uid))
            .ok()
            .flatten()
            .map(|user| plain(&user.name))
    };
    let known = users
        .entry(uid)
        .or_insert_with(|| name().unwrap_or_else(|| uid.to_string()));
    known.clone()
}

/// The name of a program, which has just made a call.
pub(super) fn command(pid: u32) -> String {
    let comm = std::fs::read(format!("/proc/{pid}/comm"));
    comm.map_or_else(
        |_| "(ended)".to_owned(),
        |name| plain(String::from_utf8_lossy(&name).trim_end()),
    )
}

#[cfg(test)]
mod tests {
    use super::super::line::{Chunk, Reply, Transport};
    use super::*;

    fn call(uid: u32, pid: Option<u32>) -> Call {
        Call {
            uid: Some(uid),
            pid,
            transport: Some(Transport {
                bytes: 100,
                chunks: vec![Chunk {
                    kind: "read".into(),
                    segments: 1,
                    bytes: 4096,
                }],
                ..Transport::default()
            }),
            reply: Some(Reply {
                bytes: 50,
                queue_ns: 1,
                round_trip_ns: 2,
                ..Reply::default()
            }),
            ..Call::default()
        }
    }

    #[test]
    fn calls_are_counted_by_user_and_process_in_bounds() {
        let watch = Watch(Arc::default());
        let mut users = HashMap::new();
        let own = std::process::id();
        watch.0.lock().count(&call(0, None), &mut users);
        for _ in 0..2 {
            watch.0.lock().count(&call(0, Some(own)), &mut users);
        }
        let loads = watch.take();
        let [first, second] = &loads.of[..] else {
            panic!("{loads:?}");
        };
        assert_eq!(
            (first.pid, first.calls, &*first.user),
            (Some(own), 2, "root")
        );
        assert_eq!(
            (first.sent_bytes, first.received_bytes, first.time_ns),
            (8392, 100, 6)
        );
        assert_eq!((second.pid, second.calls), (None, 1));
        assert_eq!(watch.take(), Loads::default(), "only what is new is shown");
        for pid in 0..=MOST as u32 {
            watch
                .0
                .lock()
                .count(&call(0, Some(u32::MAX - pid)), &mut users);
        }
        let loads = watch.take();
        assert_eq!((loads.of.len(), loads.missed), (MOST, 1));
        assert_eq!(loads.of[0].command, "(ended)");
    }
}
