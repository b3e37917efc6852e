//! READs that the kernel has queued and this program has not read yet, while replies or
//! notifications would make the kernel ignore the end of the file in their replies: with a real
//! mount over /dev/fuse, whose only event loop is held up meanwhile.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{Mounted, mount_of, mount_with};
use nfsrdma_fs::adapter::FuseOptions;
use nfsrdma_fs::fs::{Found, FsConfig, ROOT};
use nfsrdma_memory_server::{Fate, MemoryServer, Op};
use nfsrdma_nfs3::{Cred, Credential};
use nfsrdma_rpcrdma::exec::block_on;
use nfsrdma_xdr::nfs3::Status;
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;
/// The size of the file before and after it is truncated.
const BEFORE: u64 = 3 * PAGE;
const AFTER: u64 = 100;

/// Time for events that must wait for the READ. It is less than the pause after which pages are
/// dropped, which would make the kernel read again.
const MEANWHILE: Duration = Duration::from_millis(15);

fn until(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < end, "{what}: not within a minute");
        sleep(Duration::from_millis(1));
    }
}

/// A read(2) in a thread of its own.
struct Reading {
    thread: JoinHandle<Vec<u8>>,
    system_call: String,
}

impl Reading {
    fn start(file: &File, offset: u64, len: u64) -> Reading {
        let file = file.try_clone().unwrap();
        let (give, take) = channel();
        let thread = spawn(move || {
            give.send(rustix::thread::gettid()).unwrap();
            let mut data = vec![0; len as usize];
            let n = file.read_at(&mut data, offset).unwrap();
            data.truncate(n);
            data
        });
        let task = take.recv().unwrap();
        Reading {
            thread,
            system_call: format!("/proc/self/task/{task}/syscall"),
        }
    }

    /// Waits until the thread sleeps in pread(2): the kernel has made its request then.
    fn wait_for_request(&self) {
        let asleep = format!("{} ", libc::SYS_pread64);
        until("a READ", || {
            fs::read_to_string(&self.system_call).is_ok_and(|call| call.starts_with(&asleep))
        });
    }
}

/// Holds up the only event loop of a mount in a LOOKUP that the server does not answer.
struct HeldUp {
    release: Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl HeldUp {
    fn new(server: &MemoryServer, mount: &Path) -> HeldUp {
        let (entered, wait): (Sender<()>, Receiver<()>) = channel();
        let (release, hold) = channel();
        let hold = std::sync::Mutex::new(hold);
        server.set_hook(move |op, _| {
            if op == Op::Lookup {
                let _ = entered.send(());
                let _ = hold.lock().unwrap().recv();
            }
            Fate::Done
        });
        let name = mount.join("no such name");
        let thread = spawn(move || assert!(fs::metadata(name).is_err()));
        wait.recv().unwrap();
        HeldUp {
            release,
            thread: Some(thread),
        }
    }
}

impl Drop for HeldUp {
    fn drop(&mut self) {
        let _ = self.release.send(());
        let _ = self.thread.take().unwrap().join();
    }
}

/// A mount with one event loop, and a file that it believes to be longer than it is.
struct Cut {
    server: Arc<MemoryServer>,
    mount: Mounted,
    file: File,
    node: u64,
}

fn user(uid: u32) -> Cred {
    Arc::new(Credential {
        uid,
        gid: uid,
        groups: Vec::new(),
    })
}

/// A file that another client has truncated; with `mode`, it has changed the mode as well.
fn cut(name: &str, mode: Option<u32>) -> Option<Cut> {
    cut_to(name, (BEFORE, AFTER), mode, None)
}

/// As [`cut`], with these sizes. `without_data`: a page that the kernel has cached without data.
fn cut_to(
    name: &str,
    (before, after): (u64, u64),
    mode: Option<u32>,
    without_data: Option<u64>,
) -> Option<Cut> {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: there is no /dev/fuse");
        return None;
    }
    let server = MemoryServer::new();
    server.plant("f", &vec![7; before as usize]);
    let config = FsConfig {
        acregmin: Duration::from_secs(3600),
        acregmax: Duration::from_secs(3600),
        readahead_bytes: 0,
        ..FsConfig::default()
    };
    let options = FuseOptions {
        workers: 1,
        ..FuseOptions::default()
    };
    let mount = mount_with(&server, name, config, &options);
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).open(mount.dir.join("f"));
    let file = file.unwrap();
    assert_eq!(file.metadata().unwrap().len(), before);
    // The kernel does not read ahead.
    let random = libc::POSIX_FADV_RANDOM;
    // SAFETY: a call without pointers.
    assert_eq!(0, unsafe {
        libc::posix_fadvise(file.as_raw_fd(), 0, 0, random)
    });
    if let Some(page) = without_data {
        server.set_hook(|op, _| match op {
            Op::Read => Fate::Refused(Status::Io),
            _ => Fate::Done,
        });
        let error = file.read_at(&mut [0; PAGE as usize], page * PAGE);
        assert_eq!(error.unwrap_err().raw_os_error(), Some(libc::EIO));
        server.clear_hook();
    }
    let Ok(Found::Is(entry)) = block_on(mount.fs().lookup(&user(0), ROOT, b"f")) else {
        panic!("the file is not found");
    };
    let other = mount_of(&server, &format!("{name}-other"), FsConfig::default());
    let path = other.dir.join("f");
    OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(after)
        .unwrap();
    if let Some(mode) = mode {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    other.finish();
    Some(Cut {
        server,
        mount,
        file,
        node: entry.nodeid,
    })
}

/// The kernel takes the offset of an empty READ behind the new end as the end of the file, and
/// ignores the right end in the reply to a READ that it had sent before.
#[test]
fn a_file_that_was_cut_does_not_end_where_the_kernel_s_last_read_began() {
    let Some(cut) = cut("queued-order", None) else {
        return;
    };
    cut.server.keep(Some(Op::Read));
    let behind = Reading::start(&cut.file, 2 * PAGE, PAGE);
    until("the READ behind the end", || cut.server.calls(Op::Read) > 0);
    let held = HeldUp::new(&cut.server, &cut.mount.dir);
    let whole = Reading::start(&cut.file, 0, BEFORE);
    whole.wait_for_request();
    cut.server.keep(None);
    // The READ behind the end may be answered now, or when the other READ is known.
    sleep(MEANWHILE);
    drop(held);
    assert!(behind.thread.join().unwrap().is_empty());
    let found = whole.thread.join().unwrap();
    assert!(found == [7; AFTER as usize], "{} bytes", found.len());
    cut.mount.fs().forget(cut.node, 1);
    drop(cut.file);
    cut.mount.finish();
}

/// The kernel has a page without data in which the file now ends. It divides a read(2) into three
/// READs: of the pages before it, of the pages behind it, and of the page itself when the program
/// gets there. The second READ is answered while the third is in the kernel's queue, for longer
/// than an open would wait. `behind`: the number of pages of the second READ.
fn one_read_over_the_end(name: &str, behind: u64) {
    const LAST: u64 = 3;
    let (before, after) = ((LAST + 1 + behind) * PAGE, LAST * PAGE + 200);
    let Some(cut) = cut_to(name, (before, after), None, Some(LAST)) else {
        return;
    };
    let calls = cut.server.calls(Op::Read);
    cut.server.keep(Some(Op::Read));
    let whole = Reading::start(&cut.file, 0, before);
    until("two READs", || cut.server.calls(Op::Read) == calls + 2);
    let held = HeldUp::new(&cut.server, &cut.mount.dir);
    let name = cut.mount.dir.join("no such name either");
    let (give, take) = channel();
    let queued = spawn(move || {
        give.send(rustix::thread::gettid().as_raw_nonzero())
            .unwrap();
        assert!(fs::metadata(name).is_err());
    });
    let call = format!("/proc/self/task/{}/syscall", take.recv().unwrap());
    let asleep = [libc::SYS_statx, libc::SYS_newfstatat].map(|number| format!("{number} "));
    until("a LOOKUP in the queue", || {
        let call = fs::read_to_string(&call).unwrap_or_default();
        asleep.iter().any(|asleep| call.starts_with(asleep))
    });
    cut.server.keep(None);
    // This is longer than an open waits for the queue.
    sleep(Duration::from_millis(400));
    drop(held);
    queued.join().unwrap();
    let found = whole.thread.join().unwrap();
    let zeros = found.iter().filter(|byte| **byte == 0).count();
    assert!(
        found == vec![7; after as usize],
        "{} bytes, {zeros} of them zero",
        found.len()
    );
    let known = cut.file.metadata().unwrap().len();
    assert_eq!(known, after);
    cut.mount.fs().forget(cut.node, 1);
    drop(cut.file);
    cut.mount.finish();
}

#[test]
fn a_read_ahead_behind_the_end_of_a_cut_file_does_not_hide_the_end() {
    one_read_over_the_end("queued-ahead", 4);
}

#[test]
fn a_page_behind_the_end_of_a_cut_file_does_not_hide_the_end() {
    one_read_over_the_end("queued-page", 1);
}

/// A notification makes the kernel ignore the end of the file in replies to READs that it has sent
/// before.
#[test]
fn the_kernel_is_not_notified_while_it_has_a_read_in_its_queue() {
    let Some(cut) = cut("queued-notification", Some(0o640)) else {
        return;
    };
    let fs = cut.mount.fs();
    let held = HeldUp::new(&cut.server, &cut.mount.dir);
    let whole = Reading::start(&cut.file, 0, BEFORE);
    whole.wait_for_request();
    // This program sees the change, but the kernel does not.
    let _ = block_on(fs.access(&user(1000), cut.node, libc::R_OK));
    sleep(MEANWHILE);
    drop(held);
    let found = whole.thread.join().unwrap();
    assert!(found == [7; AFTER as usize], "{} bytes", found.len());
    fs.forget(cut.node, 1);
    drop(cut.file);
    cut.mount.finish();
}

/// Reads the last pages of a file that another client has cut. `beside` is done while the READ is
/// under way, and makes the kernel ignore the end of the file in the reply to the READ. The zeros that
/// it then has as data behind the end are dropped soon. `without_data` as for [`cut_to`].
fn end_is_seen_soon(name: &str, first: u8, without_data: Option<u64>, beside: impl Fn(&File)) {
    for pages in [4, 1] {
        let (before, after) = ((2 + pages) * PAGE, 2 * PAGE + 100);
        let name = format!("{name}-{pages}");
        let Some(cut) = cut_to(&name, (before, after), None, without_data) else {
            return;
        };
        let calls = cut.server.calls(Op::Read);
        cut.server.keep(Some(Op::Read));
        let last = Reading::start(&cut.file, 2 * PAGE, pages * PAGE);
        until("the READ", || cut.server.calls(Op::Read) > calls);
        beside(&cut.file);
        cut.server.keep(None);
        let found = last.thread.join().unwrap();
        let (data, behind) = found.split_at(100);
        assert!(data == [7; 100] && behind.iter().all(|byte| *byte == 0));
        until("the end", || {
            let mut found = vec![9; before as usize];
            let n = cut.file.read_at(&mut found, 0).unwrap() as u64;
            let known = cut.file.metadata().unwrap().len();
            let right = found[0] == first && found[1..after as usize].iter().all(|b| *b == 7);
            n == after && known == after && right
        });
        cut.mount.fs().forget(cut.node, 1);
        drop(cut.file);
        cut.mount.finish();
    }
}

#[test]
fn zeros_behind_the_end_in_a_read_beside_a_write_do_not_stay() {
    end_is_seen_soon("beside-write", b'w', None, |file| {
        assert_eq!(file.write_at(b"w", 0).unwrap(), 1);
    });
}

#[test]
fn zeros_behind_the_end_in_a_read_beside_a_stat_do_not_stay() {
    // After a READ the kernel asks for the attributes, because of the time of access. The answer is
    // of before the READ.
    end_is_seen_soon("beside-stat", 7, Some(0), |file| {
        assert!(file.metadata().unwrap().len() > 2 * PAGE + 100);
    });
}
