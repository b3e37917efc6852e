//! How many calls each operation costs, through the kernel: no more than NFSv3 needs.

use crate::common::{Mounted, mount, mount_by};
use nfsrdma_fs::adapter::FuseOptions;
use nfsrdma_fs::fs::{AttributeTimes, Clock, FsConfig, Permissions};
use nfsrdma_memory_server::Op;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

const ALL: [Op; 22] = [
    Op::Null,
    Op::Getattr,
    Op::Setattr,
    Op::Lookup,
    Op::Access,
    Op::Readlink,
    Op::Read,
    Op::Write,
    Op::Create,
    Op::Mkdir,
    Op::Symlink,
    Op::Mknod,
    Op::Remove,
    Op::Rmdir,
    Op::Rename,
    Op::Link,
    Op::Readdir,
    Op::Readdirplus,
    Op::Fsstat,
    Op::Fsinfo,
    Op::Pathconf,
    Op::Commit,
];

/// Mounts a server with the files that `fill` creates.
fn filled(name: &str, fill: impl FnOnce(&Path)) -> Option<Mounted> {
    let mounted = mount(&format!("trips-{name}"), FsConfig::default(), fill)?;
    // Calls that are made once for each mount: for the root's attributes and its fsid.
    fs::symlink_metadata(mounted.dir.join("none")).unwrap_err();
    fs::metadata(&mounted.dir).unwrap();
    Some(mounted)
}

/// Checks which calls `work` causes.
#[track_caller]
fn costs(m: &Mounted, what: &str, expected: &[(Op, u64)], work: impl FnOnce(&Path)) {
    let count = || ALL.map(|op| m.server.calls(op));
    let before = count();
    work(&m.dir);
    let after = count();
    let made: Vec<(Op, u64)> = ALL
        .into_iter()
        .zip(after.into_iter().zip(before))
        .map(|(op, (after, before))| (op, after - before))
        .filter(|(_, calls)| *calls > 0)
        .collect();
    assert_eq!(made, expected, "{what}");
}

#[test]
fn reading() {
    let m = filled("reading", |data| {
        fs::create_dir(data.join("d")).unwrap();
        fs::write(data.join("d/small"), [7; 100]).unwrap();
        fs::write(data.join("d/other"), [8; 5000]).unwrap();
        fs::write(data.join("big"), vec![9; 3 << 20]).unwrap();
        std::os::unix::fs::symlink("d/small", data.join("link")).unwrap();
    });
    let Some(m) = m else { return };
    let stat =
        |path: &'static str| move |d: &Path| assert!(fs::symlink_metadata(d.join(path)).is_ok());
    let read = |path: &'static str| move |d: &Path| drop(fs::read(d.join(path)).unwrap());
    costs(&m, "stat, cold", &[(Op::Lookup, 2)], stat("d/small"));
    costs(&m, "stat, warm", &[], stat("d/small"));
    costs(&m, "a name that is not there", &[(Op::Lookup, 1)], |d| {
        fs::symlink_metadata(d.join("d/no")).unwrap_err();
    });
    costs(&m, "the same again", &[], |d| {
        fs::symlink_metadata(d.join("d/no")).unwrap_err();
    });
    // Close-to-open: each open sends one ACCESS, for permissions and attributes.
    let first = [(Op::Access, 1), (Op::Read, 1)];
    costs(
        &m,
        "open, read, close; the name known",
        &first,
        read("d/small"),
    );
    let again = [(Op::Access, 1)];
    costs(&m, "the same again", &again, read("d/small"));
    let cold = [(Op::Lookup, 1), (Op::Access, 1), (Op::Read, 1)];
    costs(&m, "open, read, close; cold", &cold, read("d/other"));
    costs(&m, "stat after reading", &[], stat("d/other"));
    let mut file = None;
    costs(&m, "open", &[(Op::Lookup, 1), (Op::Access, 1)], |d| {
        file = Some(File::open(d.join("big")).unwrap());
    });
    let mut file = file.unwrap();
    // Two requests of the kernel, of 128 KiB each, show that the reads are sequential; the rest is
    // read ahead, each READ up to the next multiple of 1 MiB.
    costs(&m, "3 MiB", &[(Op::Read, 5)], |_| {
        let mut all = Vec::new();
        file.read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), 3 << 20);
    });
    costs(&m, "3 MiB, warm", &again, read("big"));
    drop(file);
    let link = [(Op::Lookup, 1), (Op::Readlink, 1)];
    costs(&m, "readlink", &link, |d| {
        drop(fs::read_link(d.join("link")).unwrap())
    });
    costs(&m, "readlink, warm", &[], |d| {
        drop(fs::read_link(d.join("link")).unwrap())
    });
    m.finish();
}

#[test]
fn changing() {
    let m = filled("changing", |data| {
        fs::write(data.join("old"), [7; 100]).unwrap();
    });
    let Some(m) = m else { return };
    // The LOOKUP is caused by the kernel, which looks the name up before it creates it.
    let made = [(Op::Lookup, 1), (Op::Write, 1), (Op::Create, 1)];
    costs(&m, "create, write, close", &made, |d| {
        fs::write(d.join("a"), [1; 1000]).unwrap()
    });
    costs(&m, "stat after that", &[], |d| {
        assert_eq!(fs::metadata(d.join("a")).unwrap().len(), 1000)
    });
    costs(&m, "reading it", &[(Op::Access, 1)], |d| {
        assert_eq!(fs::read(d.join("a")).unwrap(), [1; 1000]);
    });
    let again = [(Op::Setattr, 1), (Op::Access, 1), (Op::Write, 1)];
    costs(&m, "truncate, write, close", &again, |d| {
        fs::write(d.join("a"), [2; 10]).unwrap()
    });
    let parts = [
        (Op::Lookup, 1),
        (Op::Write, 3),
        (Op::Create, 1),
        (Op::Commit, 1),
    ];
    costs(&m, "3 MiB", &parts, |d| {
        let mut file = File::create(d.join("b")).unwrap();
        // In memory before: where the kernel meets a page of the program that is not, it divides the
        // write, and the page of the file that both parts have is not valid for it.
        let part = vec![3; 128 << 10];
        for _ in 0..24 {
            file.write_all(&part).unwrap();
        }
    });
    costs(&m, "reading that", &[(Op::Access, 1)], |d| {
        assert_eq!(fs::read(d.join("b")).unwrap().len(), 3 << 20);
    });
    costs(&m, "mkdir", &[(Op::Lookup, 1), (Op::Mkdir, 1)], |d| {
        fs::create_dir(d.join("d")).unwrap()
    });
    costs(&m, "rename", &[(Op::Lookup, 1), (Op::Rename, 1)], |d| {
        fs::rename(d.join("a"), d.join("d/c")).unwrap();
    });
    costs(&m, "chmod", &[(Op::Setattr, 1)], |d| {
        fs::set_permissions(d.join("b"), fs::Permissions::from_mode(0o600)).unwrap();
    });
    costs(&m, "unlink", &[(Op::Remove, 1)], |d| {
        fs::remove_file(d.join("b")).unwrap()
    });
    costs(&m, "the name is gone", &[], |d| {
        fs::metadata(d.join("b")).unwrap_err();
    });
    costs(
        &m,
        "unlink, the name unknown",
        &[(Op::Lookup, 1), (Op::Remove, 1)],
        |d| {
            fs::remove_file(d.join("old")).unwrap();
        },
    );
    costs(&m, "rmdir", &[(Op::Remove, 1), (Op::Rmdir, 1)], |d| {
        fs::remove_file(d.join("d/c")).unwrap();
        fs::remove_dir(d.join("d")).unwrap();
    });
    m.finish();
}

/// Small writes to many pages take a WRITE each and no READ: only what programs wrote is sent.
#[test]
fn writing_parts_of_pages() {
    const PAGES: u64 = 300;
    const PAGE: u64 = 4096;
    let m = filled("parts-of-pages", |data| {
        for name in ["each", "second"] {
            fs::write(data.join(name), vec![7; (PAGES * PAGE) as usize]).unwrap();
        }
    });
    let Some(m) = m else { return };
    // Returns the numbers of READs and WRITEs.
    let write = |name: &str, step: usize| {
        let file = fs::OpenOptions::new().write(true).open(m.dir.join(name));
        let file = file.unwrap();
        let count = || (m.server.calls(Op::Read), m.server.calls(Op::Write));
        let before = count();
        for page in (0..PAGES).step_by(step) {
            file.write_all_at(&page.to_be_bytes(), page * PAGE + 100)
                .unwrap();
        }
        file.sync_all().unwrap();
        let after = count();
        drop(file);
        let found = m.server.durable(name).unwrap();
        assert_eq!(found.len() as u64, PAGES * PAGE);
        for (n, page) in found.chunks(PAGE as usize).enumerate() {
            let mut expected = [7; PAGE as usize];
            if n % step == 0 {
                expected[100..108].copy_from_slice(&(n as u64).to_be_bytes());
            }
            assert!(page == expected, "page {n} of {name}");
        }
        (after.0 - before.0, after.1 - before.1)
    };
    assert_eq!(write("each", 1), (0, PAGES));
    assert_eq!(write("second", 2), (0, PAGES / 2));
    m.finish();
}

/// With `permissions=server` the kernel caches no names. Its look-ups are answered from memory: those of files,
/// which it may send because it wants to make the name, as long as the server has just answered for the directory.
#[test]
fn the_server_checks_permissions() {
    let config = FsConfig {
        permissions: Permissions::Server,
        ..FsConfig::default()
    };
    let server = crate::common::filled("trips-server", |data| {
        fs::create_dir(data.join("d")).unwrap();
        fs::write(data.join("d/file"), [7; 100]).unwrap();
    });
    let Some(server) = server else { return };
    let clock = Clock::manual();
    let options = FuseOptions::default();
    let m = mount_by(clock.clone(), &server, "trips-server", config, &options);
    fs::symlink_metadata(m.dir.join("none")).unwrap_err();
    fs::metadata(&m.dir).unwrap();
    let stat = |d: &Path| assert!(fs::metadata(d.join("d/file")).is_ok());
    costs(&m, "stat, cold", &[(Op::Lookup, 2)], stat);
    costs(&m, "stat, warm", &[], stat);
    let read = |d: &Path| drop(fs::read(d.join("d/file")).unwrap());
    let opened = [(Op::Access, 1), (Op::Read, 1)];
    costs(&m, "open, read, close", &opened, read);
    costs(&m, "open again", &[(Op::Access, 1)], read);
    clock.advance(Duration::from_secs(1));
    costs(&m, "stat, later", &[(Op::Lookup, 1)], stat);
    costs(&m, "stat, warm", &[], stat);
    let made = [(Op::Lookup, 1), (Op::Write, 1), (Op::Create, 1)];
    costs(&m, "create, write, close", &made, |d| {
        fs::write(d.join("d/new"), [1; 10]).unwrap()
    });
    // A change of the directory is one of its rights, perhaps.
    costs(&m, "stat after that", &[(Op::Lookup, 1)], |d| {
        assert_eq!(fs::metadata(d.join("d/new")).unwrap().len(), 10);
    });
    costs(&m, "unlink", &[(Op::Remove, 1)], |d| {
        fs::remove_file(d.join("d/new")).unwrap()
    });
    costs(&m, "stat after that", &[(Op::Lookup, 1)], stat);
    m.finish();
}

/// A name is valid as long as its directory, even if the attributes of its object have expired, as
/// those of files soon do.
#[test]
fn names_outlive_attributes() {
    let config = FsConfig {
        times: AttributeTimes {
            acregmin: Duration::ZERO,
            acregmax: Duration::ZERO,
            ..AttributeTimes::default()
        },
        ..FsConfig::default()
    };
    let Some(m) = mount("trips-names", config, |_| ()) else {
        return;
    };
    fs::metadata(&m.dir).unwrap();
    let write = |name: &'static str| move |d: &Path| fs::write(d.join(name), [1; 10]).unwrap();
    let unlink = |name: &'static str| move |d: &Path| fs::remove_file(d.join(name)).unwrap();
    let made = [(Op::Lookup, 1), (Op::Write, 1), (Op::Create, 1)];
    // The first operation also asks for the fsid.
    write("first")(&m.dir);
    costs(&m, "create", &made, write("a"));
    costs(&m, "unlink", &[(Op::Remove, 1)], unlink("a"));
    costs(&m, "create", &made, write("b"));
    costs(&m, "stat", &[(Op::Getattr, 1)], |d| {
        assert_eq!(fs::metadata(d.join("b")).unwrap().len(), 10);
    });
    costs(&m, "open", &[(Op::Access, 1)], |d| {
        drop(fs::File::open(d.join("b")).unwrap());
    });
    costs(&m, "rename", &[(Op::Lookup, 1), (Op::Rename, 1)], |d| {
        fs::rename(d.join("b"), d.join("c")).unwrap();
    });
    costs(&m, "unlink", &[(Op::Remove, 1)], unlink("c"));
    m.finish();
}

#[test]
fn listing() {
    let m = filled("listing", |data| {
        fs::create_dir(data.join("d")).unwrap();
        for n in 0..1000 {
            fs::write(data.join(format!("d/file-{n}")), [7; 10]).unwrap();
        }
    });
    let Some(m) = m else { return };
    let list = |d: &Path| {
        let entries = fs::read_dir(d.join("d")).unwrap();
        let sizes = entries.map(|entry| entry.unwrap().metadata().unwrap().len());
        assert_eq!(sizes.sum::<u64>(), 10_000);
    };
    let before = m.server.all_calls();
    list(&m.dir);
    let calls = m.server.all_calls() - before;
    let pages = m.server.calls(Op::Readdirplus) + m.server.calls(Op::Readdir);
    // LOOKUP of the directory, one revalidation, and the pages: no call for each entry.
    assert!(calls <= pages + 2, "{calls} calls, {pages} pages");
    assert!(pages <= 10, "{pages} pages");
    costs(&m, "stat of all that was listed", &[], |d| {
        for n in 0..1000 {
            fs::metadata(d.join(format!("d/file-{n}"))).unwrap();
        }
    });
    m.finish();
}

/// `ls -l` of a directory whose names are still valid, while its children's attributes are not.
#[test]
fn listing_again_after_the_attributes_expired() {
    const FILES: u64 = 1000;
    let config = FsConfig {
        times: AttributeTimes {
            acregmin: Duration::from_millis(500),
            acregmax: Duration::from_millis(500),
            ..AttributeTimes::default()
        },
        ..FsConfig::default()
    };
    let acregmax = config.times.acregmax;
    let m = mount("trips-listing-again", config, |data| {
        fs::create_dir(data.join("d")).unwrap();
        for n in 0..FILES {
            fs::write(data.join(format!("d/file-{n}")), [7; 10]).unwrap();
        }
    });
    let Some(m) = m else { return };
    let list = |d: &Path| {
        let entries = fs::read_dir(d.join("d")).unwrap();
        let sizes = entries.map(|entry| entry.unwrap().metadata().unwrap().len());
        assert_eq!(sizes.sum::<u64>(), 10 * FILES);
    };
    list(&m.dir);
    // Wait until the attributes have expired.
    std::thread::sleep(acregmax * 2);
    let before = m.server.all_calls();
    list(&m.dir);
    let calls = m.server.all_calls() - before;
    // A page of 64 KiB has a few hundred entries. On a busy machine there are some GETATTRs for
    // entries that expire before `list` gets to them.
    assert!(calls < FILES / 4, "{calls} calls for {FILES} files");
    m.finish();
}
