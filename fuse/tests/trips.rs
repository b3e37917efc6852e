//! How many calls each operation costs, through the kernel: what NFSv3 needs, and no more.

#![allow(clippy::unwrap_used)]

use nfsrdma_client::exec;
use nfsrdma_fuse::adapter::{self, FuseOptions, Session};
use nfsrdma_fuse::fs::{Fs, FsConfig};
use nfsrdma_fuse::memory::{MemoryServer, Op};
use nfsrdma_rdma::Pool;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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

/// A mount that goes away with the test, however it ends.
struct Mounted {
    session: Option<Session>,
    fs: Arc<Fs<MemoryServer>>,
    server: Arc<MemoryServer>,
    dir: PathBuf,
}

/// Mounts what `fill` puts on the server.
fn mount(name: &str, fill: impl FnOnce(&Path)) -> Option<Mounted> {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: there is no /dev/fuse");
        return None;
    }
    let dir = std::env::temp_dir().join(format!("nfsrdma-trips-{}-{name}", std::process::id()));
    let data = dir.with_extension("data");
    fs::create_dir_all(&dir).unwrap();
    fs::create_dir_all(&data).unwrap();
    fill(&data);
    let server = MemoryServer::new();
    let filled = server.fill(&data);
    fs::remove_dir_all(&data).unwrap();
    filled.unwrap();
    let config = FsConfig::default();
    let pool = Pool::new(config.pool_bytes()).unwrap();
    let fs = Fs::new(server.clone(), server.root(), pool, config);
    let session = adapter::mount(fs.clone(), &dir, &FuseOptions::default()).unwrap();
    let mounted = Mounted {
        session: Some(session),
        fs,
        server,
        dir,
    };
    // What is asked once a mount: the root's attributes, the file system's number.
    fs::symlink_metadata(mounted.dir.join("none")).unwrap_err();
    fs::metadata(&mounted.dir).unwrap();
    Some(mounted)
}

impl Mounted {
    /// The calls that `work` causes.
    #[track_caller]
    fn costs(&self, what: &str, expected: &[(Op, u64)], work: impl FnOnce(&Path)) {
        let count = || ALL.map(|op| self.server.calls(op));
        let before = count();
        work(&self.dir);
        let after = count();
        let made: Vec<(Op, u64)> = ALL
            .into_iter()
            .zip(after.into_iter().zip(before))
            .map(|(op, (after, before))| (op, after - before))
            .filter(|(_, calls)| *calls > 0)
            .collect();
        assert_eq!(made, expected, "{what}");
    }

    fn finish(mut self) {
        let session = self.session.take().unwrap();
        session.unmount(false).unwrap();
        session.join().unwrap();
        let lost = exec::block_on(self.fs.shutdown());
        assert!(lost.is_empty(), "{lost:?}");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(self.session.take());
        let _ = fs::remove_dir(&self.dir);
    }
}

#[test]
fn reading() {
    let filled = mount("reading", |data| {
        fs::create_dir(data.join("d")).unwrap();
        fs::write(data.join("d/small"), [7; 100]).unwrap();
        fs::write(data.join("d/other"), [8; 5000]).unwrap();
        fs::write(data.join("big"), vec![9; 3 << 20]).unwrap();
        std::os::unix::fs::symlink("d/small", data.join("link")).unwrap();
    });
    let Some(m) = filled else { return };
    let stat =
        |path: &'static str| move |d: &Path| assert!(fs::symlink_metadata(d.join(path)).is_ok());
    let read = |path: &'static str| move |d: &Path| drop(fs::read(d.join(path)).unwrap());
    m.costs("stat, cold", &[(Op::Lookup, 2)], stat("d/small"));
    m.costs("stat, warm", &[], stat("d/small"));
    m.costs("a name that is not there", &[(Op::Lookup, 1)], |d| {
        fs::symlink_metadata(d.join("d/no")).unwrap_err();
    });
    m.costs("the same again", &[], |d| {
        fs::symlink_metadata(d.join("d/no")).unwrap_err();
    });
    // Close-to-open: each open asks, and ACCESS answers both questions.
    let first = [(Op::Access, 1), (Op::Read, 1)];
    m.costs("open, read, close; the name known", &first, read("d/small"));
    let again = [(Op::Access, 1)];
    m.costs("the same again", &again, read("d/small"));
    let cold = [(Op::Lookup, 1), (Op::Access, 1), (Op::Read, 1)];
    m.costs("open, read, close; cold", &cold, read("d/other"));
    m.costs("stat after reading", &[], stat("d/other"));
    let mut file = None;
    m.costs("open", &[(Op::Lookup, 1), (Op::Access, 1)], |d| {
        file = Some(File::open(d.join("big")).unwrap());
    });
    let mut file = file.unwrap();
    // Two requests of the kernel's 128 KiB tell the order; the rest is fetched ahead, each READ
    // to the next 1 MiB.
    m.costs("3 MiB", &[(Op::Read, 5)], |_| {
        let mut all = Vec::new();
        file.read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), 3 << 20);
    });
    m.costs("3 MiB, warm", &again, read("big"));
    drop(file);
    let link = [(Op::Lookup, 1), (Op::Readlink, 1)];
    m.costs("readlink", &link, |d| {
        drop(fs::read_link(d.join("link")).unwrap())
    });
    m.costs("readlink, warm", &[], |d| {
        drop(fs::read_link(d.join("link")).unwrap())
    });
    m.finish();
}

#[test]
fn changing() {
    let filled = mount("changing", |data| {
        fs::write(data.join("old"), [7; 100]).unwrap();
    });
    let Some(m) = filled else { return };
    // The LOOKUP is the kernel's: it looks before it creates.
    let made = [(Op::Lookup, 1), (Op::Write, 1), (Op::Create, 1)];
    m.costs("create, write, close", &made, |d| {
        fs::write(d.join("a"), [1; 1000]).unwrap()
    });
    m.costs("stat after that", &[], |d| {
        assert_eq!(fs::metadata(d.join("a")).unwrap().len(), 1000)
    });
    m.costs("reading it", &[(Op::Access, 1)], |d| {
        assert_eq!(fs::read(d.join("a")).unwrap(), [1; 1000]);
    });
    let again = [(Op::Setattr, 1), (Op::Access, 1), (Op::Write, 1)];
    m.costs("truncate, write, close", &again, |d| {
        fs::write(d.join("a"), [2; 10]).unwrap()
    });
    let parts = [
        (Op::Lookup, 1),
        (Op::Write, 3),
        (Op::Create, 1),
        (Op::Commit, 1),
    ];
    m.costs("3 MiB", &parts, |d| {
        let mut file = File::create(d.join("b")).unwrap();
        for _ in 0..24 {
            file.write_all(&[3; 128 << 10]).unwrap();
        }
    });
    m.costs("reading that", &[(Op::Access, 1)], |d| {
        assert_eq!(fs::read(d.join("b")).unwrap().len(), 3 << 20);
    });
    m.costs("mkdir", &[(Op::Lookup, 1), (Op::Mkdir, 1)], |d| {
        fs::create_dir(d.join("d")).unwrap()
    });
    m.costs("rename", &[(Op::Lookup, 1), (Op::Rename, 1)], |d| {
        fs::rename(d.join("a"), d.join("d/c")).unwrap();
    });
    m.costs("chmod", &[(Op::Setattr, 1)], |d| {
        fs::set_permissions(d.join("b"), fs::Permissions::from_mode(0o600)).unwrap();
    });
    m.costs("unlink", &[(Op::Remove, 1)], |d| {
        fs::remove_file(d.join("b")).unwrap()
    });
    m.costs("the name is gone", &[], |d| {
        fs::metadata(d.join("b")).unwrap_err();
    });
    m.costs(
        "unlink, the name unknown",
        &[(Op::Lookup, 1), (Op::Remove, 1)],
        |d| {
            fs::remove_file(d.join("old")).unwrap();
        },
    );
    m.costs("rmdir", &[(Op::Remove, 1), (Op::Rmdir, 1)], |d| {
        fs::remove_file(d.join("d/c")).unwrap();
        fs::remove_dir(d.join("d")).unwrap();
    });
    m.finish();
}

#[test]
fn listing() {
    let filled = mount("listing", |data| {
        fs::create_dir(data.join("d")).unwrap();
        for n in 0..1000 {
            fs::write(data.join(format!("d/file-{n}")), [7; 10]).unwrap();
        }
    });
    let Some(m) = filled else { return };
    let list = |d: &Path| {
        let entries = fs::read_dir(d.join("d")).unwrap();
        let sizes = entries.map(|entry| entry.unwrap().metadata().unwrap().len());
        assert_eq!(sizes.sum::<u64>(), 10_000);
    };
    let before = m.server.all_calls();
    list(&m.dir);
    let calls = m.server.all_calls() - before;
    let pages = m.server.calls(Op::Readdirplus) + m.server.calls(Op::Readdir);
    // LOOKUP of the directory, one revalidation, and the pages: nothing for each entry.
    assert!(calls <= pages + 2, "{calls} calls, {pages} pages");
    assert!(pages <= 10, "{pages} pages");
    m.costs("stat of all that was listed", &[], |d| {
        for n in 0..1000 {
            fs::metadata(d.join(format!("d/file-{n}"))).unwrap();
        }
    });
    m.finish();
}
