//! The file system through the kernel: a real mount over /dev/fuse, on a server in memory.

use crate::common::{Mounted, mount, mount_of};
use nfsrdma_fs::fs::{AttributeTimes, FsConfig, LookupCache};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::time::Duration;

fn empty(name: &str, config: FsConfig) -> Option<Mounted> {
    mount(name, config, |_| ())
}

/// As a hard link at the end of a directory whose cookies are fileids.
#[test]
fn a_listing_ends_though_its_last_cookie_was_there_before() {
    // Of one page of the server, and of many.
    for (name, files) in [("cookie", 10), ("cookies", 3000)] {
        let Some(m) = empty(name, FsConfig::default()) else {
            return;
        };
        let names: Vec<_> = (0..files).map(|number| format!("{number:04}")).collect();
        for name in &names {
            m.server.plant(name, b"");
        }
        // They are 10, 13, 16 and so on.
        m.server.change_cookie(10 + 3 * (files - 1), 13);
        for _ in 0..2 {
            let listed = fs::read_dir(&m.dir).unwrap();
            let mut listed: Vec<_> = listed
                .map(|of| of.unwrap().file_name().into_string().unwrap())
                .collect();
            listed.sort();
            assert_eq!(listed, names);
        }
        m.finish();
    }
}

/// A mapping of a file, unmapped when it is dropped.
struct Mapping(*mut u8, usize);

impl Mapping {
    fn of(file: &File, len: usize, flags: i32) -> Self {
        use std::os::fd::AsRawFd;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping of a file that is at least this long.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                protection,
                flags,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        Mapping(at.cast(), len)
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is this long and nobody else refers to it.
        unsafe { std::slice::from_raw_parts_mut(self.0, self.1) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: what mmap returned, unmapped once.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}

/// The server determines the time of a write, so stat(2) writes dirty data first, even where each
/// stat(2) looks the name up.
#[test]
fn stat_by_name_knows_of_a_write() {
    let config = FsConfig {
        lookup_cache: LookupCache::None,
        ..FsConfig::default()
    };
    let Some(m) = mount("written", config, |_| ()) else {
        return;
    };
    let path = m.dir.join("f");
    let file = File::create(&path).unwrap();
    let old = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    file.set_modified(old).unwrap();
    let before = fs::metadata(&path).unwrap();
    assert_eq!(before.modified().unwrap(), old);
    (&file).write_all(b"new").unwrap();
    let after = fs::metadata(&path).unwrap();
    assert_eq!(after.len(), 3);
    assert_ne!(after.modified().unwrap(), old);
    assert_eq!(
        after.modified().unwrap(),
        file.metadata().unwrap().modified().unwrap()
    );
    drop(file);
    m.finish();
}

/// An open that finds the file changed has the kernel drop its pages, also those in mappings; but a private page that
/// was stored to stays as it was made.
#[test]
fn mappings_follow_what_another_wrote_on_open() {
    let Some(a) = empty("maps-a", FsConfig::default()) else {
        return;
    };
    let b = mount_of(&a.server, "maps-b", FsConfig::default());
    let open = |m: &Mounted| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(m.dir.join("f"))
            .unwrap()
    };
    fs::write(a.dir.join("f"), [b'a'; 8192]).unwrap();
    let file = open(&b);
    let mut shared = Mapping::of(&file, 8192, libc::MAP_SHARED);
    let mut private = Mapping::of(&file, 8192, libc::MAP_PRIVATE);
    assert_eq!((shared.bytes()[5000], private.bytes()[5000]), (b'a', b'a'));
    private.bytes()[0] = b'P';
    open(&a).write_all_at(&[b'2'; 8192], 0).unwrap();
    drop(open(&b));
    assert_eq!((shared.bytes()[5000], private.bytes()[5000]), (b'2', b'2'));
    assert_eq!((shared.bytes()[0], private.bytes()[0]), (b'2', b'P'));
    drop((shared, private, file));
    assert_eq!(a.server.contents("f").unwrap()[0], b'2');
    a.finish();
    b.finish();
}

/// Names are valid longer than attributes. But if a name leads to a file that is gone, it is looked
/// up again before the program gets an error.
#[test]
fn names_of_what_is_gone_are_looked_up_again() {
    let config = FsConfig {
        times: AttributeTimes {
            acregmin: Duration::ZERO,
            acregmax: Duration::ZERO,
            acdirmin: Duration::from_secs(3600),
            acdirmax: Duration::from_secs(3600),
        },
        ..FsConfig::default()
    };
    let Some(a) = mount("gone-a", config.clone(), |_| ()) else {
        return;
    };
    let b = mount_of(&a.server, "gone-b", config);
    {
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
    }
    a.finish();
    b.finish();
}
