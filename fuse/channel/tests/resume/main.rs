//! A mount that is served by one process after the other, on a real /dev/fuse.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod daemon;

use daemon::{Daemon, Orders, SIZE};
use nfsrdma_channel::abi::{init, opcode};
use nfsrdma_channel::{Channel, Features, MountOptions, Users, Wanted};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const RESENT: u64 = 1 << 63;

/// A mount, and the descriptors that are kept for whoever serves it.
struct Mount {
    dir: PathBuf,
    channel: Channel,
    /// The journal of requests, where the kernel does not give them again.
    requests: Option<OwnedFd>,
    held: Vec<OwnedFd>,
}

/// With the kernel as it is, and as before Linux 6.9.
const KERNELS: [u64; 2] = [0, init::HAS_RESEND];

impl Mount {
    /// With a kernel that lacks the features `masked`. `None` where that is not possible.
    fn new(name: &str, masked: u64) -> Option<Mount> {
        if !Path::new("/dev/fuse").exists() {
            eprintln!("skipped: there is no /dev/fuse");
            return None;
        }
        let dir = std::env::temp_dir().join(format!("nfsrdma-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let options = MountOptions {
            source: "test".into(),
            subtype: "test".into(),
            options: Vec::new(),
        };
        let wanted = Wanted {
            flags: 0,
            max_write: 1 << 17,
            max_background: 16,
            masked,
        };
        let mut channel = Channel::mount(&dir, &options, Users::Owner, wanted).unwrap();
        let mut requests = None;
        let keep = |fd: BorrowedFd<'_>| {
            requests = Some(fd.try_clone_to_owned()?);
            Ok(())
        };
        channel.keep_requests(keep).unwrap();
        assert_eq!(requests.is_none(), channel.features().resends());
        Some(Mount {
            dir,
            channel,
            requests,
            held: Vec::new(),
        })
    }

    fn device(&self) -> BorrowedFd<'_> {
        (**self.channel.device()).as_fd()
    }

    /// Has a new process serve it, and keeps its devices.
    fn serve(&mut self, orders: &Orders) -> Daemon {
        let features = *self.channel.features();
        let mut new = Vec::new();
        let devices = [self.device()];
        let kept = self.held.iter().map(OwnedFd::as_fd);
        let devices: Vec<_> = devices.into_iter().chain(kept).collect();
        let requests = self.requests.as_ref().map(AsFd::as_fd);
        let daemon = Daemon::start(&devices, requests, features, orders, |fd| new.push(fd));
        self.held.extend(new);
        daemon
    }

    /// Whether a request waits to be read.
    fn has_request(&self) -> bool {
        let device = self.device();
        let mut fds = [PollFd::new(&device, PollFlags::IN)];
        let wait = Timespec {
            tv_sec: 60,
            tv_nsec: 0,
        };
        poll(&mut fds, Some(&wait)).unwrap() > 0
    }

    /// Reads the file.
    fn read(&self) -> Caller {
        Caller::start("cat", &self.dir.join("f"))
    }

    /// Makes a directory.
    fn make(&self, name: &str) -> Caller {
        Caller::start("mkdir", &self.dir.join(name))
    }
}

/// A program that uses the mount. Not a thread: the processes that serve would begin with copies of its
/// open files, and wait for themselves when these are closed.
struct Caller(Child);

impl Caller {
    fn start(program: &str, path: &Path) -> Caller {
        let mut command = Command::new(program);
        command.arg(path).env("LC_ALL", "C").stdin(Stdio::null());
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Caller(command.spawn().unwrap())
    }

    /// Whether it succeeds, and what it writes.
    fn end(self) -> (bool, Vec<u8>) {
        let output = self.0.wait_with_output().unwrap();
        (
            output.status.success(),
            [output.stdout, output.stderr].concat(),
        )
    }

    fn succeeds(self) {
        let (success, said) = self.end();
        assert!(success, "{}", String::from_utf8_lossy(&said));
    }

    fn has_data(self) {
        assert_eq!(self.end(), (true, vec![b'z'; SIZE]));
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Ends the requests that a failed test has left, too, for which its threads wait unkillably.
        let _ = unmount(&self.dir, UnmountFlags::FORCE);
        let _ = unmount(&self.dir, UnmountFlags::DETACH);
        let _ = fs::remove_dir(&self.dir);
    }
}

#[test]
fn requests_that_were_read_and_not_answered_come_again() {
    for masked in KERNELS {
        let Some(mut mount) = Mount::new("again", masked) else {
            return;
        };
        let deaf = Orders::deaf(&[opcode::READ, opcode::MKDIR]);
        let first = mount.serve(&deaf);
        assert_eq!(mount.held.len(), 2, "a device for each reader");
        let read = mount.read();
        let mut numbers = vec![first.wait_for("READ")];
        // The look-up of `f` would wait for this one.
        let made = mount.make("d");
        numbers.push(first.wait_for("MKDIR"));
        assert!(numbers.iter().all(|number| number & RESENT == 0));
        first.end();
        let second = mount.serve(&Orders::default());
        let again = [(); 2].map(|()| second.wait_for_any(&["READ", "MKDIR"]));
        for (what, number) in ["READ", "MKDIR"].into_iter().zip(numbers) {
            assert!(
                again.contains(&(what.to_owned(), number | RESENT)),
                "{again:?}"
            );
        }
        read.has_data();
        made.succeeds();
        second.end();
    }
}

#[test]
fn a_device_that_nobody_keeps_takes_its_requests_with_it() {
    let Some(mut mount) = Mount::new("closed", 0) else {
        return;
    };
    let first = mount.serve(&Orders::deaf(&[opcode::MKDIR]));
    let made = mount.make("d");
    first.wait_for("MKDIR");
    mount.held.clear();
    first.end();
    let (success, said) = made.end();
    let said = String::from_utf8_lossy(&said);
    assert!(!success && said.contains("connection abort"), "{said}");
    // The mount goes on.
    let second = mount.serve(&Orders::default());
    mount.make("e").succeeds();
    second.end();
}

#[test]
fn nothing_is_read_before_the_devices_are_kept() {
    let Some(mount) = Mount::new("kept", 0) else {
        return;
    };
    let made = mount.make("d");
    let features = *mount.channel.features();
    let mut kept = 0;
    let requests = mount.requests.as_ref().map(AsFd::as_fd);
    let second = Daemon::start(
        &[mount.device()],
        requests,
        features,
        &Orders::default(),
        |_| {
            kept += 1;
            assert!(mount.has_request());
        },
    );
    assert_eq!(kept, 2);
    made.succeeds();
    assert!(second.told().iter().all(|(_, number)| number & RESENT == 0));
    second.end();
}

#[test]
fn who_ends_before_it_reads_leaves_the_requests_to_the_next() {
    for masked in KERNELS {
        let Some(mut mount) = Mount::new("unread", masked) else {
            return;
        };
        let first = mount.serve(&Orders::deaf(&[opcode::MKDIR]));
        let made = mount.make("d");
        let number = first.wait_for("MKDIR");
        first.end();
        let idle = Orders {
            reads_nothing: true,
            ..Orders::default()
        };
        for _ in 0..3 {
            mount.serve(&idle).end();
        }
        // And those who read it again, and end as well.
        for _ in 0..3 {
            let next = mount.serve(&Orders::deaf(&[opcode::MKDIR]));
            assert_eq!(next.wait_for("MKDIR"), number | RESENT);
            next.end();
        }
        let last = mount.serve(&Orders::default());
        assert_eq!(last.wait_for("MKDIR"), number | RESENT);
        made.succeeds();
        last.end();
    }
}

#[test]
fn a_signal_that_was_told_is_told_again_by_the_whole_number() {
    for masked in KERNELS {
        let Some(mut mount) = Mount::new("signal", masked) else {
            return;
        };
        let first = mount.serve(&Orders::deaf(&[opcode::MKDIR]));
        let mut caller = mount.make("d").0;
        let number = first.wait_for("MKDIR");
        caller.kill().unwrap();
        assert_eq!(first.wait_for("INTERRUPT"), number);
        first.end();
        assert!(caller.try_wait().unwrap().is_none(), "waits for its answer");
        let second = mount.serve(&Orders::deaf(&[opcode::MKDIR]));
        // By the number that the reply has.
        let signal = match mount.requests {
            None => number | RESENT,
            Some(_) => number,
        };
        let mut told = [(); 2].map(|()| second.wait_for_any(&["MKDIR", "INTERRUPT"]));
        told.sort();
        let expected = [("INTERRUPT", signal), ("MKDIR", number | RESENT)];
        assert_eq!(
            told,
            expected.map(|(what, number)| (what.to_owned(), number))
        );
        second.end();
        let third = mount.serve(&Orders::default());
        caller.wait().unwrap();
        third.end();
    }
}

#[test]
fn a_thread_that_notifies_outlives_its_process_until_the_next_answers() {
    for masked in KERNELS {
        let Some(mut mount) = Mount::new("notifies", masked) else {
            return;
        };
        let notifies = Orders {
            notifies: true,
            ..Orders::deaf(&[opcode::READ])
        };
        let mut first = mount.serve(&notifies);
        let read = mount.read();
        let number = first.wait_for("READ");
        first.wait_for_thread("notify");
        first.kill();
        // It cannot end: the page is locked until its READ is answered. The next one is killed in the same way.
        let mut second = mount.serve(&notifies);
        assert_eq!(second.wait_for("READ"), number | RESENT);
        second.wait_for_thread("notify");
        second.kill();
        assert!(!first.has_ended() && !second.has_ended());
        let third = mount.serve(&Orders::default());
        read.has_data();
        first.end();
        second.end();
        third.end();
    }
}

#[test]
fn who_takes_over_what_was_unmounted_meanwhile_finds_its_end() {
    for (name, flags) in [
        ("plain", UnmountFlags::empty()),
        ("lazy", UnmountFlags::DETACH),
        ("force", UnmountFlags::FORCE),
    ] {
        let Some(mut mount) = Mount::new(name, 0) else {
            return;
        };
        let first = mount.serve(&Orders::deaf(&[opcode::MKDIR]));
        // With a caller the mount is busy, which plain umount(8) refuses.
        let made = match flags {
            plain if plain.is_empty() => None,
            _ => {
                let made = mount.make("d");
                first.wait_for("MKDIR");
                Some(made)
            }
        };
        first.end();
        match unmount(&mount.dir, flags) {
            Ok(()) => {}
            Err(Errno::PERM) => {
                eprintln!("skipped: umount(2) is for root");
                return;
            }
            // It has aborted the connection all the same.
            Err(error) => assert_eq!((name, error), ("force", Errno::BUSY)),
        }
        let second = mount.serve(&Orders::default());
        if let Some(made) = made {
            // What is out of sight is served until its last user has left it.
            assert_eq!(made.end().0, name == "lazy");
        }
        second.succeeds();
    }
}

#[test]
fn data_that_were_read_and_not_answered_come_again() {
    for masked in KERNELS {
        let Some(mut mount) = Mount::new("data", masked) else {
            return;
        };
        let first = mount.serve(&Orders::deaf(&[opcode::WRITE]));
        let path = mount.dir.join("f");
        let of = format!("of={}", path.display());
        let mut writer = Command::new("sh");
        let script = "head -c 200000 /dev/zero | tr '\\0' w | dd bs=100000 iflag=fullblock conv=notrunc \"$0\"";
        writer.args(["-c", script, &of]).stderr(Stdio::null());
        let mut writer = writer.spawn().unwrap();
        let number = first.wait_for("WRITE");
        first.end();
        let second = mount.serve(&Orders::deaf(&[opcode::WRITE]));
        assert_eq!(second.wait_for("WRITE"), number | RESENT);
        second.end();
        let third = mount.serve(&Orders::default());
        assert_eq!(third.wait_for("WRITE"), number | RESENT);
        assert!(writer.wait().unwrap().success());
        third.end();
    }
}

#[test]
fn a_kernel_that_cannot_resend_is_told_apart() {
    let features = Features {
        minor: 31,
        offered: 0,
        enabled: 0,
        max_write: 1 << 17,
    };
    // Not a device at all, but like older kernels it does not take the message.
    let other = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
    let error = Channel::resume([other], Users::All, features, None).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    let error = Channel::resume([], Users::All, features, None).unwrap_err();
    assert_ne!(error.kind(), io::ErrorKind::Unsupported);
}
