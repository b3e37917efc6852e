//! A READ of the end of a file that another client has cut, beside what makes the kernel ignore the end
//! in its reply: with a real mount over /dev/fuse.

use crate::common::{Mounted, mount_of, mount_with};
use nfsrdma_fs::adapter::FuseOptions;
use nfsrdma_fs::fs::{AttributeTimes, Found, FsConfig, ROOT};
use nfsrdma_memory_server::{Fate, MemoryServer, Op};
use nfsrdma_nfs3::{Cred, Credential};
use nfsrdma_rpcrdma::exec::block_on;
use nfsrdma_xdr::nfs3::Status;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;
fn until(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < end, "{what}: not within a minute");
        sleep(Duration::from_millis(1));
    }
}

/// A read(2) in a thread of its own.
fn read(file: &File, offset: u64, len: u64) -> JoinHandle<Vec<u8>> {
    let file = file.try_clone().unwrap();
    spawn(move || {
        let mut data = vec![0; len as usize];
        let n = file.read_at(&mut data, offset).unwrap();
        data.truncate(n);
        data
    })
}

/// A mount, and a file that it believes to be longer than it is.
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

/// A file that another client has cut to the size `after`. `without_data`: a page that the kernel has cached without data.
fn cut(name: &str, (before, after): (u64, u64), without_data: Option<u64>) -> Option<Cut> {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: there is no /dev/fuse");
        return None;
    }
    let server = MemoryServer::new();
    server.plant("f", &vec![7; before as usize]);
    let config = FsConfig {
        times: AttributeTimes {
            acregmin: Duration::from_secs(3600),
            acregmax: Duration::from_secs(3600),
            ..AttributeTimes::default()
        },
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
    other.finish();
    Some(Cut {
        server,
        mount,
        file,
        node: entry.nodeid,
    })
}

/// Reads the last pages of a file that another client has cut. `beside` is done while the READ is
/// under way, and makes the kernel ignore the end of the file in the reply to the READ. The zeros that
/// it then has as data behind the end are dropped soon. `without_data` as for [`cut`].
fn end_is_seen_soon(name: &str, first: u8, without_data: Option<u64>, beside: impl Fn(&File)) {
    for pages in [4, 1] {
        let (before, after) = ((2 + pages) * PAGE, 2 * PAGE + 100);
        let name = format!("{name}-{pages}");
        let Some(cut) = cut(&name, (before, after), without_data) else {
            return;
        };
        let calls = cut.server.calls(Op::Read);
        cut.server.keep(Some(Op::Read));
        let last = read(&cut.file, 2 * PAGE, pages * PAGE);
        until("the READ", || cut.server.calls(Op::Read) > calls);
        beside(&cut.file);
        cut.server.keep(None);
        let found = last.join().unwrap();
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
