//! Two mounts of one export, each with the kernel's caches and its own: one sees the changes of the
//! other when NFS promises it, and not much earlier.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{Mounted, mount_of};
use nfsrdma_fs::fs::{FsConfig, LookupCache};
use nfsrdma_memory_server::MemoryServer;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const HOUR: Duration = Duration::from_secs(3600);

/// A configuration in which attributes and names are valid for `time`.
fn times(time: Duration) -> FsConfig {
    FsConfig {
        acregmin: time,
        acregmax: time,
        acdirmin: time,
        acdirmax: time,
        ..FsConfig::default()
    }
}

/// Runs `test` on two mounts of an export.
fn two(name: &str, config: FsConfig, test: impl FnOnce(&Mounted, &Mounted)) {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: there is no /dev/fuse");
        return;
    }
    let server = MemoryServer::new();
    let a = mount_of(&server, &format!("two-{name}-a"), config.clone());
    let b = mount_of(&server, &format!("two-{name}-b"), config);
    test(&a, &b);
    a.finish();
    b.finish();
}

/// Waits for a condition that has to become true when a cache expires.
fn until(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < end, "{what}: not within a minute");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn pages(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().flat_map(|&byte| [byte; PAGE]).collect()
}

fn direct(path: &Path) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .unwrap()
}

/// A mapping of a file's first bytes, unmapped when it is dropped.
struct Map {
    at: *mut u8,
    len: usize,
}

impl Map {
    fn new(file: &File, len: usize, flags: i32) -> Self {
        // SAFETY: a fresh mapping; no argument refers to memory of ours.
        let at = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(
                std::ptr::null_mut(),
                len,
                access,
                flags,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        Map { at: at.cast(), len }
    }

    fn get(&self, at: usize) -> u8 {
        assert!(at < self.len);
        // SAFETY: this is inside the mapping, which lies inside the file.
        unsafe { self.at.add(at).read_volatile() }
    }

    fn set(&self, at: usize, to: u8) {
        assert!(at < self.len);
        // SAFETY: as above, and the mapping may be written.
        unsafe { self.at.add(at).write_volatile(to) }
    }

    fn sync(&self) {
        // SAFETY: the range is the mapping.
        let done = unsafe { libc::msync(self.at.cast(), self.len, libc::MS_SYNC) };
        assert_eq!(done, 0, "{}", io::Error::last_os_error());
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping, and nobody uses it any more.
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}

#[test]
fn what_one_writes_and_closes_the_other_sees_on_open() {
    two("close-to-open", times(HOUR), |a, b| {
        let long = vec![b'l'; 3 << 20];
        let texts: [&[u8]; 7] = [
            b"first",
            b"longer text",
            b"LONGER TEXT",
            b"",
            &long,
            b"x",
            b"y",
        ];
        for text in texts {
            fs::write(a.dir.join("f"), text).unwrap();
            // The kernel has cached the previous text for `b`, with attributes valid for an hour.
            let mut file = File::open(b.dir.join("f")).unwrap();
            assert_eq!(file.metadata().unwrap().len(), text.len() as u64);
            let mut found = Vec::new();
            file.read_to_end(&mut found).unwrap();
            assert!(
                found == text,
                "{} bytes are not the {}",
                found.len(),
                text.len()
            );
        }
        // Both mounts write in turns.
        for n in 0..10u8 {
            let (one, other) = if n % 2 == 0 { (a, b) } else { (b, a) };
            let mut file = OpenOptions::new()
                .append(true)
                .open(one.dir.join("f"))
                .unwrap();
            file.write_all(&[b'0' + n]).unwrap();
            drop(file);
            let found = fs::read(other.dir.join("f")).unwrap();
            assert_eq!(found.len(), 2 + usize::from(n));
            assert_eq!(found.last(), Some(&(b'0' + n)));
        }
    });
}

#[test]
fn attributes_are_believed_for_their_time_and_no_longer() {
    let size = |m: &Mounted| fs::metadata(m.dir.join("f")).unwrap().len();
    two("hour", times(HOUR), |a, b| {
        fs::write(a.dir.join("f"), "one").unwrap();
        assert_eq!(size(b), 3);
        fs::write(a.dir.join("f"), "three").unwrap();
        assert_eq!(size(a), 5, "own changes are known at once");
        assert_eq!(size(b), 3, "the hour is not over");
        drop(File::open(b.dir.join("f")).unwrap());
        assert_eq!(size(b), 5, "open asks");
    });
    two("second", times(Duration::from_secs(1)), |a, b| {
        fs::write(a.dir.join("f"), "one").unwrap();
        assert_eq!(size(b), 3);
        fs::write(a.dir.join("f"), "three").unwrap();
        until("the new size", || size(b) == 5);
    });
    two("noac", times(Duration::ZERO), |a, b| {
        for n in 0..20 {
            fs::write(a.dir.join("f"), vec![b'x'; n]).unwrap();
            assert_eq!(size(b), n as u64);
        }
    });
}

#[test]
fn names_that_were_missing_appear() {
    let there = |m: &Mounted| m.dir.join("n").exists();
    two("absent", times(HOUR), |a, b| {
        assert!(!there(b));
        fs::write(a.dir.join("n"), "").unwrap();
        assert!(!there(b), "the directory is believed for an hour");
        // Creating a file asks the server, whatever is cached.
        let new = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(b.dir.join("n"));
        assert_eq!(new.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        // A listing asks the server as well, and shows the name.
        let names: Vec<_> = fs::read_dir(&b.dir)
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert_eq!(names, ["n"]);
    });
    two("absent-second", times(Duration::from_secs(1)), |a, b| {
        assert!(!there(b));
        fs::write(a.dir.join("n"), "").unwrap();
        until("the new name", || there(b));
        fs::remove_file(a.dir.join("n")).unwrap();
        until("its end", || !there(b));
    });
    let positive = FsConfig {
        lookup_cache: LookupCache::Positive,
        ..times(HOUR)
    };
    two("absent-positive", positive, |a, b| {
        assert!(!there(b));
        fs::write(a.dir.join("n"), "").unwrap();
        assert!(there(b), "missing names are not remembered");
    });
}

/// Names are valid longer than attributes. But if a name leads to a file that is gone, it is looked
/// up again before the program gets an error.
#[test]
fn names_of_what_is_gone_are_looked_up_again() {
    let config = FsConfig {
        acregmin: Duration::ZERO,
        acregmax: Duration::ZERO,
        ..times(HOUR)
    };
    two("names-gone", config, |a, b| {
        let missing = |result: io::Result<()>| {
            assert_eq!(result.unwrap_err().kind(), io::ErrorKind::NotFound);
        };
        // In a directory of its own, whose names the kernel has not looked up before.
        fs::create_dir(a.dir.join("d")).unwrap();
        let known = |name: &str| {
            let path = a.dir.join("d").join(name);
            fs::write(&path, name).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().len(), name.len() as u64);
            path
        };
        let remove = |name: &str| fs::remove_file(b.dir.join("d").join(name)).unwrap();
        let path = known("stat");
        remove("stat");
        missing(fs::metadata(path).map(drop));
        let path = known("open");
        remove("open");
        missing(File::open(path).map(drop));
        let path = known("link");
        remove("link");
        missing(fs::hard_link(path, a.dir.join("d/other")));
        let path = known("truncate");
        remove("truncate");
        missing(
            OpenOptions::new()
                .write(true)
                .truncate(true)
                .open(path)
                .map(drop),
        );
        let path = known("unlink");
        remove("unlink");
        missing(fs::remove_file(path));
        // The file is replaced instead of removed.
        let path = known("replaced");
        fs::write(b.dir.join("d/new"), "another file").unwrap();
        fs::rename(b.dir.join("d/new"), b.dir.join("d/replaced")).unwrap();
        assert_eq!(fs::read_to_string(path).unwrap(), "another file");
    });
}

#[test]
fn mappings_are_written_back_and_follow_on_open() {
    two("mmap", times(HOUR), |a, b| {
        fs::write(a.dir.join("m"), pages(b"abc")).unwrap();
        let open = |m: &Mounted| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .open(m.dir.join("m"))
                .unwrap()
        };
        let file = open(a);
        let map = Map::new(&file, 3 * PAGE, libc::MAP_SHARED);
        map.set(PAGE, b'B');
        map.sync();
        file.sync_all().unwrap();
        let other = open(b);
        let shared = Map::new(&other, 3 * PAGE, libc::MAP_SHARED);
        let private = Map::new(&other, 3 * PAGE, libc::MAP_PRIVATE);
        assert_eq!((shared.get(PAGE), private.get(PAGE)), (b'B', b'B'));
        private.set(0, b'P');
        map.set(PAGE, b'2');
        // No msync(2): close(2) is enough.
        drop((map, file));
        assert_eq!(fs::read(b.dir.join("m")).unwrap()[PAGE], b'2');
        // That open made the kernel drop its pages, also those in the mappings.
        assert_eq!((shared.get(PAGE), private.get(PAGE)), (b'2', b'2'));
        assert_eq!(private.get(0), b'P', "a private page stays as it was made");
        drop((shared, private, other));
        assert_eq!(
            fs::read(a.dir.join("m")).unwrap()[0],
            b'a',
            "and is nobody else's"
        );
    });
}

#[test]
fn o_direct_and_cached_data_are_the_same_file() {
    two("direct", times(HOUR), |a, b| {
        fs::write(a.dir.join("d"), pages(b"abcd")).unwrap();
        let mut page = vec![0; PAGE];
        let cached = OpenOptions::new()
            .read(true)
            .write(true)
            .open(b.dir.join("d"))
            .unwrap();
        cached.read_exact_at(&mut page, 0).unwrap();
        assert_eq!(page, pages(b"a"));

        // `a` writes with O_DIRECT: `b` sees it at once with O_DIRECT, and otherwise after an open.
        direct(&a.dir.join("d"))
            .write_all_at(&pages(b"X"), 0)
            .unwrap();
        direct(&b.dir.join("d"))
            .read_exact_at(&mut page, 0)
            .unwrap();
        assert_eq!(page, pages(b"X"));
        assert_eq!(fs::read(b.dir.join("d")).unwrap(), pages(b"Xbcd"));

        // Within one mount, O_DIRECT sees dirty cached data, and cached reads see O_DIRECT writes.
        cached.write_all_at(&pages(b"Y"), PAGE as u64).unwrap();
        let past = direct(&b.dir.join("d"));
        past.read_exact_at(&mut page, PAGE as u64).unwrap();
        assert_eq!(page, pages(b"Y"));
        past.write_all_at(&pages(b"Z"), 2 * PAGE as u64).unwrap();
        cached.read_exact_at(&mut page, 2 * PAGE as u64).unwrap();
        assert_eq!(page, pages(b"Z"));
        drop((cached, past));
        assert_eq!(fs::read(a.dir.join("d")).unwrap(), pages(b"XYZd"));
    });
}

#[test]
fn a_file_grows_shrinks_and_is_replaced_under_a_reader() {
    two("reader", times(Duration::ZERO), |a, b| {
        fs::write(a.dir.join("r"), pages(b"ab")).unwrap();
        let reader = File::open(b.dir.join("r")).unwrap();
        let mut page = vec![0; PAGE];
        let size = || reader.metadata().unwrap().len();
        reader.read_exact_at(&mut page, PAGE as u64).unwrap();
        assert_eq!(page, pages(b"b"));

        let writer = OpenOptions::new()
            .write(true)
            .open(a.dir.join("r"))
            .unwrap();
        writer.write_all_at(&pages(b"c"), 2 * PAGE as u64).unwrap();
        writer.sync_all().unwrap();
        assert_eq!(size(), 3 * PAGE as u64);
        reader.read_exact_at(&mut page, 2 * PAGE as u64).unwrap();
        assert_eq!(page, pages(b"c"));

        writer.set_len(PAGE as u64 / 2).unwrap();
        assert_eq!(size(), PAGE as u64 / 2);
        assert_eq!(reader.read_at(&mut page, 0).unwrap(), PAGE / 2);
        assert_eq!(reader.read_at(&mut page, PAGE as u64).unwrap(), 0);
        writer.set_len(PAGE as u64).unwrap();
        assert_eq!(size(), PAGE as u64);
        reader.read_exact_at(&mut page, 0).unwrap();
        assert_eq!(
            page[PAGE / 2..],
            [0; PAGE / 2],
            "what was cut off does not come back"
        );
        drop(writer);

        fs::write(a.dir.join("new"), pages(b"n")).unwrap();
        fs::rename(a.dir.join("new"), a.dir.join("r")).unwrap();
        assert_eq!(fs::read(b.dir.join("r")).unwrap(), pages(b"n"));
        // The server no longer has the old file: its reader gets old data or an error, but never
        // the data of another file.
        page.fill(0);
        match reader.read_at(&mut page, 0) {
            Ok(n) => assert_eq!((n, &page[..2]), (PAGE, &b"aa"[..])),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ESTALE)),
        }
    });
}
