//! The file system through the kernel: a real mount over /dev/fuse, on a server in memory.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{Mounted, mount, mount_of};
use nfsrdma_fs::fs::{FsConfig, LookupCache};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

fn empty(name: &str, config: FsConfig) -> Option<Mounted> {
    mount(name, config, |_| ())
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

#[test]
fn files_and_directories_through_the_kernel() {
    let Some(m) = empty("basic", FsConfig::default()) else {
        return;
    };
    let d = &m.dir;
    let text = pattern(3_000_001, 7);
    fs::write(d.join("a"), &text).unwrap();
    assert_eq!(m.server.contents("a").unwrap(), text);
    assert_eq!(fs::read(d.join("a")).unwrap(), text);
    assert_eq!(fs::metadata(d.join("a")).unwrap().len(), 3_000_001);

    fs::create_dir_all(d.join("x/y/z")).unwrap();
    fs::rename(d.join("a"), d.join("x/y/b")).unwrap();
    fs::hard_link(d.join("x/y/b"), d.join("c")).unwrap();
    assert_eq!(fs::metadata(d.join("c")).unwrap().nlink(), 2);
    std::os::unix::fs::symlink("x/y/b", d.join("s")).unwrap();
    assert_eq!(fs::read_link(d.join("s")).unwrap(), Path::new("x/y/b"));
    assert_eq!(fs::read(d.join("s")).unwrap(), text);
    fs::set_permissions(d.join("c"), fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(
        fs::metadata(d.join("x/y/b")).unwrap().mode() & 0o7777,
        0o640
    );

    let mut names: Vec<_> = fs::read_dir(d)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["c", "s", "x"]);
    assert!(fs::metadata(d.join("nothing")).is_err());
    assert!(fs::remove_dir(d.join("x")).is_err());
    fs::remove_file(d.join("c")).unwrap();
    fs::remove_dir_all(d.join("x")).unwrap();
    assert!(!d.join("x").exists());
    m.finish();
}

#[test]
fn offsets_truncation_appending_and_holes() {
    let Some(m) = empty("offsets", FsConfig::default()) else {
        return;
    };
    let d = &m.dir;
    let big = 5 << 30;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(d.join("big"))
        .unwrap();
    file.write_all_at(b"far away", big).unwrap();
    let mut buf = [0; 8];
    file.read_exact_at(&mut buf, big).unwrap();
    assert_eq!(&buf, b"far away");
    file.read_exact_at(&mut buf, 1 << 30).unwrap();
    assert_eq!(buf, [0; 8]);
    assert_eq!(file.metadata().unwrap().len(), big + 8);
    file.set_len(10).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 10);
    file.set_len(20).unwrap();
    drop(file);
    assert_eq!(m.server.contents("big").unwrap(), [0; 20]);

    let mut file = OpenOptions::new().append(true).open(d.join("big")).unwrap();
    file.write_all(b"one").unwrap();
    file.write_all(b"two").unwrap();
    file.sync_all().unwrap();
    assert_eq!(&m.server.contents("big").unwrap()[20..], b"onetwo");
    drop(file);
    File::create(d.join("big")).unwrap();
    assert_eq!(m.server.contents("big").unwrap(), b"");
    m.finish();
}

#[test]
fn an_unlinked_open_file_stays_readable() {
    let Some(m) = empty("silly", FsConfig::default()) else {
        return;
    };
    let d = &m.dir;
    fs::write(d.join("f"), b"still here").unwrap();
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(d.join("f"))
        .unwrap();
    fs::remove_file(d.join("f")).unwrap();
    assert!(!d.join("f").exists());
    fs::write(d.join("f"), b"another").unwrap();
    file.seek(SeekFrom::End(0)).unwrap();
    file.write_all(b", and longer").unwrap();
    file.rewind().unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "still here, and longer");
    assert_eq!(m.server.names("").len(), 2);
    drop(file);
    // RELEASE is sent in the background; unmounting waits for it.
    let server = m.server.clone();
    m.finish();
    assert_eq!(server.names(""), ["f"]);
}

#[test]
fn direct_io_and_the_cache_agree() {
    let Some(m) = empty("direct", FsConfig::default()) else {
        return;
    };
    let path = m.dir.join("f");
    let text = pattern(1 << 20, 3);
    fs::write(&path, &text).unwrap();
    let direct = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path)
        .unwrap();
    // O_DIRECT needs aligned memory.
    let mut raw = vec![0u8; (256 << 10) + 4096];
    let at = raw.as_ptr().align_offset(4096);
    let buf = &mut raw[at..at + (256 << 10)];
    direct.read_exact_at(buf, 4096).unwrap();
    assert_eq!(buf, &text[4096..][..256 << 10]);
    buf.fill(0x5a);
    direct.write_all_at(buf, 512 << 10).unwrap();
    let mut expected = text.clone();
    expected[512 << 10..768 << 10].fill(0x5a);
    assert_eq!(m.server.contents("f").unwrap(), expected);
    assert_eq!(fs::read(&path).unwrap(), expected);
    drop(direct);
    m.finish();
}

#[test]
fn many_entries_list_completely_and_once() {
    let Some(m) = empty("list", FsConfig::default()) else {
        return;
    };
    for i in 0..5000 {
        m.server.plant(&format!("file-{i:05}"), b"");
    }
    let mut names: Vec<_> = fs::read_dir(&m.dir)
        .unwrap()
        .map(|e| {
            let e = e.unwrap();
            assert!(e.file_type().unwrap().is_file());
            e.file_name().into_string().unwrap()
        })
        .collect();
    names.sort();
    let expected: Vec<_> = (0..5000).map(|i| format!("file-{i:05}")).collect();
    assert_eq!(names, expected);
    m.finish();
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

#[test]
fn programs_run_at_the_same_time() {
    let Some(m) = empty(
        "threads",
        FsConfig {
            cache_bytes: 8 << 20,
            ..FsConfig::default()
        },
    ) else {
        return;
    };
    std::thread::scope(|scope| {
        for t in 0..8u64 {
            let dir = m.dir.join(format!("t{t}"));
            scope.spawn(move || {
                fs::create_dir(&dir).unwrap();
                for i in 0..30u64 {
                    let text = pattern((i as usize * 37_777) % 700_000, t * 100 + i);
                    let path = dir.join(format!("{i}"));
                    fs::write(&path, &text).unwrap();
                    assert!(fs::read(&path).unwrap() == text, "thread {t}, file {i}");
                }
                fs::remove_dir_all(&dir).unwrap();
            });
        }
    });
    assert!(m.server.names("").is_empty());
    m.finish();
}

/// A shared mapping of a file, unmapped when it is dropped.
struct Mapping(*mut u8, usize);

impl Mapping {
    fn of(file: &File, len: usize) -> Self {
        use std::os::fd::AsRawFd;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping of a file that is at least this long.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                protection,
                libc::MAP_SHARED,
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

#[test]
fn shared_mappings_are_written_back_also_after_the_descriptor_is_closed() {
    let Some(m) = empty("mmap", FsConfig::default()) else {
        return;
    };
    let path = m.dir.join("f");
    fs::write(&path, vec![1; 100_000]).unwrap();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    let mut map = Mapping::of(&file, 100_000);
    assert!(map.bytes().iter().all(|&b| b == 1));
    map.bytes()[50_000..50_005].copy_from_slice(b"first");
    file.sync_all().unwrap();
    assert_eq!(&m.server.contents("f").unwrap()[50_000..50_005], b"first");
    drop(file);
    map.bytes()[99_000..99_006].copy_from_slice(b"second");
    drop(map);
    assert_eq!(&fs::read(&path).unwrap()[99_000..99_006], b"second");
    let server = m.server.clone();
    m.finish();
    server.restart();
    assert_eq!(&server.contents("f").unwrap()[99_000..99_006], b"second");
}

#[test]
fn an_opened_file_has_the_size_another_mount_left_it_with() {
    let Some(a) = empty("sizes-a", FsConfig::default()) else {
        return;
    };
    let b = mount_of(&a.server, "sizes-b", FsConfig::default());
    for size in [0, 30_000, 10, 500_000, 499_999, 1] {
        let text = pattern(size, 3);
        fs::write(a.dir.join("f"), &text).unwrap();
        assert!(fs::read(b.dir.join("f")).unwrap() == text, "{size} bytes");
        // The kernel has the size while the attributes are valid.
        assert_eq!(fs::metadata(b.dir.join("f")).unwrap().len(), size as u64);
    }
    a.finish();
    b.finish();
}

/// Node ids are this file system's own; stat(2) and readdir(3) show the server's fileids.
#[test]
fn inode_numbers_are_the_servers_fileids() {
    let Some(m) = mount("fileids", FsConfig::default(), |data| {
        fs::create_dir(data.join("d")).unwrap();
        fs::write(data.join("d/f"), b"x").unwrap();
    }) else {
        return;
    };
    let shown = |path: &str| fs::metadata(m.dir.join(path)).unwrap().ino();
    let listed = |path: &str| -> Vec<(std::ffi::OsString, u64)> {
        use std::os::unix::fs::DirEntryExt;
        let all = fs::read_dir(m.dir.join(path)).unwrap();
        all.map(|entry| entry.unwrap())
            .map(|entry| (entry.file_name(), entry.ino()))
            .collect()
    };
    for path in ["", "d", "d/f"] {
        assert_eq!(shown(path), m.server.fileid(path).unwrap(), "{path:?}");
    }
    assert_eq!(listed("d"), [("f".into(), m.server.fileid("d/f").unwrap())]);
    fs::write(m.dir.join("new"), b"x").unwrap();
    assert_eq!(shown("new"), m.server.fileid("new").unwrap());
    let open = File::open(m.dir.join("new")).unwrap();
    assert_eq!(open.metadata().unwrap().ino(), shown("new"));
    drop(open);
    m.finish();
}

/// Files in a snapshot have the fileids of the original files.
#[test]
fn files_with_equal_fileids_and_other_handles_are_two() {
    let Some(m) = mount("snapshots", FsConfig::default(), |data| {
        fs::create_dir(data.join("live")).unwrap();
        fs::create_dir(data.join("snapshot")).unwrap();
        fs::write(data.join("live/db"), b"live").unwrap();
        fs::write(data.join("snapshot/db"), b"then").unwrap();
    }) else {
        return;
    };
    for path in ["live/db", "live"] {
        m.server
            .share_fileid(path, &path.replace("live", "snapshot"));
    }
    let (live, snapshot) = (m.dir.join("live/db"), m.dir.join("snapshot/db"));
    assert_eq!(fs::read(&live).unwrap(), b"live");
    assert_eq!(fs::read(&snapshot).unwrap(), b"then");
    assert_eq!(
        fs::metadata(&live).unwrap().ino(),
        fs::metadata(&snapshot).unwrap().ino()
    );
    OpenOptions::new()
        .write(true)
        .open(&snapshot)
        .unwrap()
        .write_all(b"THEN")
        .unwrap();
    assert_eq!(fs::read(&live).unwrap(), b"live");
    assert_eq!(m.server.contents("live/db").unwrap(), b"live");
    assert_eq!(m.server.contents("snapshot/db").unwrap(), b"THEN");
    m.finish();
}

/// A directory is created with the fileid of one that is still in use.
#[test]
fn a_directory_made_again_with_the_same_fileid_is_another() {
    let Some(m) = mount("again", FsConfig::default(), |data| {
        fs::create_dir(data.join("d")).unwrap();
    }) else {
        return;
    };
    m.server.reuse_fileids();
    let d = m.dir.join("d");
    let before = m.server.fileid("d").unwrap();
    for turn in 0..20 {
        let old = File::open(&d).unwrap();
        fs::remove_dir(&d).unwrap();
        // Every other time, the fileid is given to an object of another type.
        if turn % 2 == 0 {
            fs::create_dir(&d).unwrap();
        } else {
            fs::write(&d, b"").unwrap();
        }
        assert_eq!(m.server.fileid("d").unwrap(), before);
        let within = format!("/proc/self/fd/{}/x", std::os::fd::AsRawFd::as_raw_fd(&old));
        let gone = |error: std::io::Error| {
            let errno = error.raw_os_error().unwrap();
            assert!([2, 116].contains(&errno), "ENOENT or ESTALE, not {error}");
        };
        gone(fs::write(&within, b"").unwrap_err());
        gone(fs::metadata(&within).unwrap_err());
        if let Err(error) = old.metadata() {
            gone(error);
        }
        assert_eq!(fs::metadata(&d).unwrap().ino(), before);
        drop(old);
        if turn % 2 == 1 {
            fs::remove_file(&d).unwrap();
            fs::create_dir(&d).unwrap();
        }
    }
    m.finish();
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
