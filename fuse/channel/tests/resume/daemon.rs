//! A process that serves a mount, as the tests order it, and how they see what it does.
//!
//! It is this program again, running [`daemon`]. What it does it tells by lines to its standard error.

use nfsrdma_channel::abi::opcode;
use nfsrdma_channel::{
    Attr, Channel, Entry, Features, Handler, Header, Landing, Notifier, Operation, ReadResult,
    Reader, Reply, Request, Users, WriteIn,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use std::{env, io, thread};

const ORDERS: &str = "NFSRDMA_TEST_DAEMON";
/// What does not happen within this time is a failure.
const PATIENCE: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(3600);
/// The file `f`, and each directory that is made.
const FILE: u64 = 2;
const MADE: u64 = 3;
pub(crate) const SIZE: usize = 4096;

/// What a daemon leaves unanswered, and how it goes on.
#[derive(Debug, Default, Clone)]
pub(crate) struct Orders {
    /// Operations that get no answer.
    pub(crate) deaf: Vec<u32>,
    /// Reads nothing after it has taken the mount over.
    pub(crate) reads_nothing: bool,
    /// Makes the kernel drop the file's pages as soon as a request is left unanswered.
    pub(crate) notifies: bool,
}

impl Orders {
    /// Leaves these operations unanswered.
    pub(crate) fn deaf(to: &[u32]) -> Orders {
        Orders {
            deaf: to.to_vec(),
            ..Orders::default()
        }
    }

    fn text(&self, devices: &[RawFd], requests: Option<RawFd>, features: Features) -> String {
        let features = <[u64; 4]>::from(features);
        let list = |numbers: Vec<u64>| {
            let words: Vec<_> = numbers.iter().map(u64::to_string).collect();
            words.join(",")
        };
        [
            list(devices.iter().map(|&fd| fd as u64).collect()),
            list(requests.iter().map(|&fd| fd as u64).collect()),
            list(features.to_vec()),
            list(self.deaf.iter().map(|&code| code.into()).collect()),
            list(vec![self.reads_nothing.into(), self.notifies.into()]),
        ]
        .join(";")
    }

    fn parse(text: &str) -> (Vec<RawFd>, Option<RawFd>, Features, Orders) {
        let lists = text.split(';').map(|list| {
            let words = list.split(',').filter(|word| !word.is_empty());
            words.map(|word| word.parse::<u64>().unwrap()).collect()
        });
        let [devices, requests, features, deaf, flags]: [Vec<u64>; 5] =
            lists.collect::<Vec<_>>().try_into().unwrap();
        let features: [u64; 4] = features.try_into().unwrap();
        let orders = Orders {
            deaf: deaf.iter().map(|&code| code as u32).collect(),
            reads_nothing: flags[0] != 0,
            notifies: flags[1] != 0,
        };
        let devices = devices.iter().map(|&fd| fd as RawFd).collect();
        let requests = requests.first().map(|&fd| fd as RawFd);
        (devices, requests, features.into(), orders)
    }
}

/// A file system with the file `f` of [`SIZE`] bytes `z`, in which directories can be made.
struct Small {
    orders: Orders,
    notifier: Notifier,
}

fn tell(line: &str) {
    // One write(2), so that lines of threads do not mix.
    io::stderr()
        .write_all(format!("fuse {line}\n").as_bytes())
        .unwrap();
}

fn attr(node: u64) -> Attr {
    let (mode, size) = match node {
        FILE => (0o100_644, SIZE as u64),
        _ => (0o040_755, 0),
    };
    Attr {
        fileid: node,
        size,
        mode,
        nlink: 1,
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        blksize: 4096,
        ..Attr::default()
    }
}

fn entry(node: u64) -> Entry {
    Entry::new(node, LONG, LONG, attr(node))
}

impl Handler for Small {
    type Buffer = Vec<u8>;

    fn handle(&self, request: &Request<'_>, reply: Reply) {
        let header = &request.header;
        let name = opcode::name(header.opcode);
        let resent = u64::from(header.resent()) << 63;
        tell(&format!("{name} {}", header.original() | resent));
        if self.orders.deaf.contains(&header.opcode) {
            std::mem::forget(reply);
            if self.orders.notifies {
                let notifier = self.notifier.clone();
                let send = |notifier: &Notifier| drop(notifier.inval_inode(FILE, 0, 0));
                thread::spawn(move || notifier.apart(send));
            }
            return;
        }
        match request.operation {
            Operation::Lookup { name } if name == "f" => reply.entry(&entry(FILE)),
            Operation::Lookup { .. } => reply.error(libc::ENOENT),
            Operation::Getattr { .. } => reply.attr(LONG, &attr(header.nodeid)),
            Operation::Open { .. } | Operation::Opendir { .. } => reply.opened(7, 0),
            Operation::Read { offset: 0, .. } => reply.data(&[b'z'; SIZE]),
            Operation::Read { .. } => reply.data(&[]),
            Operation::Mkdir { .. } => reply.entry(&entry(MADE)),
            Operation::Write { data, .. } => {
                assert!(data.iter().all(|byte| *byte == b'w'));
                reply.written(data.len() as u32);
            }
            Operation::Rmdir { .. }
            | Operation::Flush { .. }
            | Operation::Release { .. }
            | Operation::Releasedir { .. } => reply.ok(),
            _ => reply.error(libc::ENOSYS),
        }
    }

    fn buffer(&self, _: usize) -> Option<Vec<u8>> {
        None
    }

    fn write(&self, _: &Header, _: &WriteIn, _: Vec<u8>, _: Reply) {}

    fn forget(&self, _: u64, _: u64) {}

    fn interrupt(&self, unique: u64) {
        tell(&format!("INTERRUPT {unique}"));
    }
}

fn serve(mut reader: Reader, files: &Small) -> io::Result<()> {
    let mut landing = Landing::default();
    reader.again(files)?;
    loop {
        match reader.read(files, &mut landing)? {
            ReadResult::Handled => {}
            ReadResult::Empty => {
                poll(&mut [PollFd::new(&reader, PollFlags::IN)], None)?;
            }
            ReadResult::Ended => return Ok(()),
        }
    }
}

/// Not a test: what the processes that tests start do.
#[test]
fn daemon() {
    let Ok(orders) = env::var(ORDERS) else { return };
    let (devices, requests, features, orders) = Orders::parse(&orders);
    // SAFETY: inherited under these numbers, for this purpose alone.
    let inherited = |raw| unsafe { OwnedFd::from_raw_fd(raw) };
    let devices: Vec<_> = devices.into_iter().map(inherited).collect();
    let requests = requests.map(inherited);
    let channel = Channel::resume(devices, Users::All, features, requests).unwrap();
    tell("RESUMED 0");
    if orders.reads_nothing {
        loop {
            thread::park();
        }
    }
    let notifier = channel.notifier();
    let body = || {
        let (orders, notifier) = (orders.clone(), notifier.clone());
        move |reader| serve(reader, &Small { orders, notifier })
    };
    let mut acknowledged = io::stdin().lines();
    let mut keep = |name: &str, fd: BorrowedFd<'_>| {
        assert!(name.starts_with("dev"));
        tell(&format!("KEEP {}", fd.as_raw_fd()));
        acknowledged.next().unwrap().map(drop)
    };
    let serving = channel.serve_loops(vec![body(), body()], &mut keep);
    serving.unwrap().join().unwrap();
}

/// A process that serves the mount.
#[derive(Debug)]
pub(crate) struct Daemon {
    child: Child,
    lines: Receiver<(String, u64)>,
}

impl Daemon {
    /// Starts one that takes the mount over with these devices, and is given the request to keep each
    /// new one by `keep`.
    pub(crate) fn start(
        devices: &[BorrowedFd<'_>],
        requests: Option<BorrowedFd<'_>>,
        features: Features,
        orders: &Orders,
        mut keep: impl FnMut(OwnedFd),
    ) -> Daemon {
        let mut raw: Vec<_> = devices.iter().map(AsRawFd::as_raw_fd).collect();
        let requests = requests.map(|fd| fd.as_raw_fd());
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["daemon::daemon", "--exact", "--nocapture"])
            .env(ORDERS, orders.text(&raw, requests, features))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        raw.extend(requests);
        let inherit = move || {
            for &fd in &raw {
                // SAFETY: the caller has borrowed it, and this process is a copy of the caller's.
                fcntl_setfd(unsafe { BorrowedFd::borrow_raw(fd) }, FdFlags::empty())?;
            }
            Ok(())
        };
        // SAFETY: it makes a system call and nothing else.
        unsafe { command.pre_exec(inherit) };
        let mut child = command.spawn().unwrap();
        let errors = BufReader::new(child.stderr.take().unwrap());
        let (told, lines) = channel();
        thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                let words: Vec<_> = line.split(' ').collect();
                match words[..] {
                    ["fuse", what, number] => {
                        let _ = told.send((what.to_owned(), number.parse().unwrap()));
                    }
                    _ => eprintln!("{line}"),
                }
            }
        });
        let mut daemon = Daemon { child, lines };
        daemon.wait_for("RESUMED");
        if !orders.reads_nothing {
            for _ in devices.len()..3 {
                let (what, fd) = daemon.next();
                assert_eq!(what, "KEEP", "before anything is read");
                keep(daemon.descriptor(fd as RawFd));
                daemon
                    .child
                    .stdin
                    .as_mut()
                    .unwrap()
                    .write_all(b"\n")
                    .unwrap();
            }
        }
        daemon
    }

    fn descriptor(&self, raw: RawFd) -> OwnedFd {
        let pid = Pid::from_child(&self.child);
        let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        pidfd_getfd(process.as_fd(), raw, PidfdGetfdFlags::empty()).unwrap()
    }

    fn next(&self) -> (String, u64) {
        let next = self.lines.recv_timeout(PATIENCE);
        next.unwrap_or_else(|error| panic!("the daemon tells nothing: {error}"))
    }

    /// Waits until it tells this, and returns the number.
    pub(crate) fn wait_for(&self, what: &str) -> u64 {
        self.wait_for_any(&[what]).1
    }

    /// Waits until it tells one of these.
    pub(crate) fn wait_for_any(&self, of: &[&str]) -> (String, u64) {
        loop {
            let next = self.next();
            if of.contains(&next.0.as_str()) {
                return next;
            }
        }
    }

    /// What it has told and nobody has waited for.
    pub(crate) fn told(&self) -> Vec<(String, u64)> {
        self.lines.try_iter().collect()
    }

    /// Waits until a thread of this name waits in the kernel, not to be interrupted.
    pub(crate) fn wait_for_thread(&self, name: &str) {
        let end = Instant::now() + PATIENCE;
        while !self.has_waiting_thread(name) {
            assert!(Instant::now() < end, "{name} does not wait");
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn has_waiting_thread(&self, name: &str) -> bool {
        let tasks = format!("/proc/{}/task", self.child.id());
        let state = format!("({name}) D ");
        std::fs::read_dir(tasks).unwrap().any(|task| {
            let stat = task.unwrap().path().join("stat");
            std::fs::read_to_string(stat).is_ok_and(|stat| stat.contains(&state))
        })
    }

    /// Sends SIGKILL. A thread may still wait in the kernel afterwards.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// Whether the process has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits until it ends by itself, as it does with the mount.
    pub(crate) fn succeeds(mut self) {
        let end = Instant::now() + PATIENCE;
        while !self.has_ended() {
            assert!(Instant::now() < end, "it does not end");
            thread::sleep(Duration::from_millis(1));
        }
        assert!(self.child.wait().unwrap().success());
    }

    /// Sends SIGKILL, and waits for the end.
    pub(crate) fn end(mut self) {
        self.kill();
        self.child.wait().unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}
