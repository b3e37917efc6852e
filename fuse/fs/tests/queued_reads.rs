//! READs that the kernel has queued and this program has not read yet, beside what makes the
//! kernel ignore the end of the file in their replies: a real mount over /dev/fuse, whose only
//! event loop is held up meanwhile.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{Mounted, mount_of, mount_with};
use nfsrdma_fs::adapter::FuseOptions;
use nfsrdma_fs::fs::{Found, FsConfig, ROOT};
use nfsrdma_memory_server::{Fate, MemoryServer, Op};
use nfsrdma_nfs3::{Cred, Credential};
use nfsrdma_rpcrdma::exec::block_on;
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;
/// Of the file, before and after it is cut.
const BEFORE: u64 = 3 * PAGE;
const AFTER: u64 = 100;

/// For what must wait for the READ. Less than the pause after which pages are dropped, which
/// would have the kernel read again.
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

    /// Returns when the thread sleeps in pread(2): the kernel has made its request by then.
    fn wait_for_request(&self) {
        let asleep = format!("{} ", libc::SYS_pread64);
        until("a READ", || {
            fs::read_to_string(&self.system_call).is_ok_and(|call| call.starts_with(&asleep))
        });
    }
}

/// Holds up the only event loop of a mount, in a LOOKUP that the server does not answer.
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

/// Cut by another, who may have changed the mode as well.
fn cut(name: &str, mode: Option<u32>) -> Option<Cut> {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: there is no /dev/fuse");
        return None;
    }
    let server = MemoryServer::new();
    server.plant("f", &[7; BEFORE as usize]);
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
    let file = File::open(mount.dir.join("f")).unwrap();
    assert_eq!(file.metadata().unwrap().len(), BEFORE);
    // No more than what is asked for.
    let random = libc::POSIX_FADV_RANDOM;
    // SAFETY: a call without pointers.
    assert_eq!(0, unsafe {
        libc::posix_fadvise(file.as_raw_fd(), 0, 0, random)
    });
    let Ok(Found::Is(entry)) = block_on(mount.fs().lookup(&user(0), ROOT, b"f")) else {
        panic!("the file is not found");
    };
    let other = mount_of(&server, &format!("{name}-other"), FsConfig::default());
    let path = other.dir.join("f");
    OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(AFTER)
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

/// The kernel takes the end of a READ that lies behind the new end for that of the file, and
/// ignores the shorter one in the reply to a READ of before that it had sent already.
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
    // It may be answered now, or once the other READ is known.
    sleep(MEANWHILE);
    drop(held);
    assert!(behind.thread.join().unwrap().is_empty());
    let found = whole.thread.join().unwrap();
    assert!(found == [7; AFTER as usize], "{} bytes", found.len());
    cut.mount.fs().forget(cut.node, 1);
    drop(cut.file);
    cut.mount.finish();
}

/// A notification makes the kernel ignore the end of the file in replies to READs that it had
/// sent before.
#[test]
fn the_kernel_is_not_notified_while_it_has_a_read_in_its_queue() {
    let Some(cut) = cut("queued-notification", Some(0o640)) else {
        return;
    };
    let fs = cut.mount.fs();
    let held = HeldUp::new(&cut.server, &cut.mount.dir);
    let whole = Reading::start(&cut.file, 0, BEFORE);
    whole.wait_for_request();
    // This side learns of the change, and the kernel does not.
    let _ = block_on(fs.access(&user(1000), cut.node, libc::R_OK));
    sleep(MEANWHILE);
    drop(held);
    let found = whole.thread.join().unwrap();
    assert!(found == [7; AFTER as usize], "{} bytes", found.len());
    fs.forget(cut.node, 1);
    drop(cut.file);
    cut.mount.finish();
}
