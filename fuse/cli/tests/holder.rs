//! The holder with small daemons that serve nothing: this program is the holder if its first word is
//! `hold`, and a successor if it is `serve`. It has no other threads, as the holder needs.
//!
//! A daemon notes each step as a line of the file `steps` in its directory; the tests wait for these.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use nfsrdma::holder::Program;
use nfsrdma::holder::client::Held;
use nfsrdma::holder::protocol::{receive, send};
use nfsrdma::holder::run::{Side, split};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{FdFlags, fcntl_getfd};
use rustix::net::RecvFlags;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// The environment variables that name the directory of a test, and what its daemons do.
const PLACE: &str = "HOLDER_TEST_PLACE";
const CASE: &str = "HOLDER_TEST_CASE";

type Test = (&'static str, fn());
const TESTS: [Test; 3] = [
    ("signals_are_passed_on", signals_are_passed_on),
    (
        "descriptors_of_others_do_not_reach_a_successor",
        descriptors_of_others_do_not_reach_a_successor,
    ),
    (
        "a_thread_that_waits_in_the_kernel_does_not_hold_up_an_upgrade",
        a_thread_that_waits_in_the_kernel_does_not_hold_up_an_upgrade,
    ),
];

fn main() {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["hold"] => hold(),
        ["serve", "--held", fd, "server:/export", "/mnt"] => {
            // SAFETY: the holder has left this descriptor to this process.
            let talk = unsafe { OwnedFd::from_raw_fd(fd.parse().unwrap()) };
            serve(&Held::begin(talk).unwrap(), true)
        }
        ["serve", "--beside", fd, "server:/export", "/mnt"] => {
            // SAFETY: as above.
            let talk = unsafe { OwnedFd::from_raw_fd(fd.parse().unwrap()) };
            wait_for_mount(talk);
        }
        _ => {
            let wanted = words.iter().find(|word| !word.starts_with('-'));
            for (name, test) in TESTS {
                if words.contains(&"--list") {
                    println!("{name}: test");
                } else if wanted.is_none_or(|wanted| name.contains(wanted)) {
                    test();
                    println!("test {name} ... ok");
                }
            }
        }
    }
}

fn hold() {
    let program = Program::of_holder(vec!["server:/export".into(), "/mnt".into()]).unwrap();
    match split(program).unwrap() {
        Side::Daemon(held) => serve(&held, false),
        Side::Holder(holder) => {
            let status = holder.run(|| Ok(()));
            std::process::exit(status.into());
        }
    }
}

fn step(what: &str) {
    let path = Path::new(&std::env::var_os(PLACE).unwrap()).join("steps");
    // A test that failed has removed the directory.
    if let Ok(mut steps) = OpenOptions::new().append(true).create(true).open(path) {
        let line = format!("{what} {}\n", std::process::id());
        let _ = steps.write_all(line.as_bytes());
    }
}

/// A successor beside a daemon that serves.
fn wait_for_mount(talk: OwnedFd) {
    // A holder of an older version has to answer, whatever it is asked.
    for unknown in [&b"?"[..], b"Unknown", &[b'K'; 600]] {
        send(&talk, unknown, &[]).unwrap();
        let answer = receive(&talk, RecvFlags::empty()).unwrap();
        assert_eq!(answer.bytes(), [libc::EPROTO as u8]);
    }
    let number = talk.as_raw_fd();
    let held = Held::begin(talk).unwrap();
    // SAFETY: it is open as long as `held`.
    let talk = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
    assert!(fcntl_getfd(talk).unwrap().contains(FdFlags::CLOEXEC));
    held.serving().unwrap_err();
    held.ready().unwrap();
    held.take_over().unwrap();
    serve(&held, true);
}

/// Leaves a thread behind that waits uninterruptibly, for a process that has its memory.
fn wait_in_the_kernel() {
    std::thread::spawn(|| {
        // SAFETY: the child makes system calls only, and never returns. It ends with this process.
        #[expect(deprecated, reason = "what else waits so?")]
        unsafe {
            if libc::vfork() == 0 {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                loop {
                    libc::pause();
                }
            }
        }
    });
    let tasks = || std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let waits = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat"));
        stat.is_ok_and(|stat| stat.contains(") D "))
    };
    while !tasks().any(waits) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A daemon.
fn serve(held: &Held, is_successor: bool) {
    let case = std::env::var(CASE).unwrap();
    let table = match is_successor {
        true => successors_table(held),
        false => first_table(held),
    };
    if case == "hangs" {
        step("mounting");
        loop {
            std::thread::park();
        }
    }
    let mut signals = held.signals().unwrap();
    held.serving().unwrap();
    step("serving");
    if !is_successor && case == "waits in the kernel" {
        wait_in_the_kernel();
        let told = File::open("/dev/null").unwrap();
        held.upgrade(told.as_fd()).unwrap();
        let again = held.upgrade(told.as_fd()).unwrap_err();
        assert_eq!(i32::from(again.number), libc::EBUSY);
        step(&format!("kept: {}", held.hand_over().text));
    }
    let mut count = 0;
    loop {
        let mut number = [0];
        match signals.read(&mut number).unwrap() {
            0 => {
                step("alone");
                held.keep("later", table.as_fd()).unwrap();
                return held.bye(0);
            }
            _ => step(&format!("signal {}", number[0])),
        }
        count += 1;
        if count == 2 {
            held.bye(7);
            return;
        }
    }
}

fn first_table(held: &Held) -> File {
    let mut table = File::from(memfd_create("table", MemfdFlags::CLOEXEC).unwrap());
    table.write_all(b"first").unwrap();
    held.keep("dev0", File::open("/dev/null").unwrap().as_fd())
        .unwrap();
    held.keep("table", File::open("/dev/null").unwrap().as_fd())
        .unwrap();
    held.keep("table", table.as_fd()).unwrap();
    table
}

/// The table of the daemons before, which notes this one as well.
fn successors_table(held: &Held) -> File {
    let mut kept = held.take().unwrap();
    let names: Vec<_> = kept.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["dev0", "table"]);
    let mut table = File::from(kept.pop().unwrap().1);
    table.rewind().unwrap();
    let mut said = String::new();
    table.read_to_string(&mut said).unwrap();
    step(&format!("found {said} with {}", open_descriptors()));
    table.write_all(b"+next").unwrap();
    table
}

fn open_descriptors() -> String {
    let links = std::fs::read_dir("/proc/self/fd").unwrap();
    let names = links.filter_map(|link| std::fs::read_link(link.unwrap().path()).ok());
    let names: Vec<_> = names.map(|name| name.display().to_string()).collect();
    names.join(" ")
}

/// A holder with its daemon, in a directory of its own. None of it stays.
struct Holder {
    child: Child,
    place: PathBuf,
}

impl Holder {
    fn start(case: &str) -> Holder {
        let name = format!(
            "nfsrdma-holder-{}-{}",
            std::process::id(),
            case.replace(' ', "-")
        );
        let place = std::env::temp_dir().join(name);
        std::fs::create_dir(&place).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("hold").env(PLACE, &place).env(CASE, case);
        let child = command.spawn().unwrap();
        Holder { child, place }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn steps(&self) -> Vec<String> {
        let said = std::fs::read_to_string(self.place.join("steps")).unwrap_or_default();
        said.lines().map(str::to_owned).collect()
    }

    /// Waits for the n-th step that begins so, and returns its rest and the process.
    fn step(&self, what: &str, nth: usize) -> (String, Pid) {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let steps = self.steps();
            let mut found = steps.iter().filter_map(|line| line.strip_prefix(what));
            if let Some(line) = found.nth(nth - 1) {
                let (rest, pid) = line.rsplit_once(' ').unwrap();
                return (
                    rest.trim().to_owned(),
                    Pid::from_raw(pid.parse().unwrap()).unwrap(),
                );
            }
            assert!(Instant::now() < end, "no {what} number {nth}: {steps:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn end(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.place);
    }
}

fn signals_are_passed_on() {
    // Before it serves, a daemon gets the signal itself.
    let mut holder = Holder::start("hangs");
    holder.step("mounting", 1);
    kill_process(holder.pid(), Signal::TERM).unwrap();
    assert_eq!(holder.end().code(), Some(128 + 15));
    drop(holder);
    // A successor learns that the end was wanted.
    let mut holder = Holder::start("serves");
    let (_, first) = holder.step("serving", 1);
    kill_process(holder.pid(), Signal::TERM).unwrap();
    holder.step("signal 15", 1);
    kill_process(first, Signal::KILL).unwrap();
    let (_, second) = holder.step("found", 1);
    assert_eq!(holder.step("signal 15", 2).1, second);
    kill_process(holder.pid(), Signal::INT).unwrap();
    assert_eq!(holder.step("signal 2", 1).1, second);
    assert_eq!(holder.end().code(), Some(7));
}

fn a_thread_that_waits_in_the_kernel_does_not_hold_up_an_upgrade() {
    let mut holder = Holder::start("waits in the kernel");
    let (_, second) = holder.step("found first", 1);
    assert_eq!(holder.step("serving", 2).1, second);
    for _ in 0..2 {
        kill_process(holder.pid(), Signal::TERM).unwrap();
        assert_eq!(holder.step("signal 15", 1).1, second);
    }
    assert_eq!(holder.end().code(), Some(7));
}

fn descriptors_of_others_do_not_reach_a_successor() {
    let (reader, writer) = std::io::pipe().unwrap();
    let number = rustix::io::dup(&writer).unwrap();
    rustix::io::fcntl_setfd(&number, rustix::io::FdFlags::empty()).unwrap();
    let mut holder = Holder::start("serves");
    drop((number, writer));
    let (_, first) = holder.step("serving", 1);
    kill_process(first, Signal::KILL).unwrap();
    let (found, _) = holder.step("found", 1);
    assert!(
        !found.contains("/exe") && !found.contains("signalfd"),
        "{found}"
    );
    let of_pipe = format!("/proc/self/fd/{}", reader.as_raw_fd());
    let of_pipe = std::fs::read_link(of_pipe);
    let of_pipe = of_pipe.unwrap().display().to_string();
    assert!(!found.contains(&of_pipe), "{of_pipe}: {found}");
    for _ in 0..2 {
        kill_process(holder.pid(), Signal::TERM).unwrap();
        holder.step("signal 15", 1);
    }
    holder.end();
}
