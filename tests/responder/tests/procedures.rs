//! Calls every procedure with an independent client over TCP, and compares the results with the
//! exported directory.

use crate::common::client::*;
use crate::common::{Dirs, start, stop};
use nfs3_types::nfs3::*;
use nfs3_types::xdr_codec::Opaque;
use std::collections::BTreeSet;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};

fn before(wcc: &wcc_data) -> wcc_attr {
    match wcc.before {
        Nfs3Option::Some(attributes) => attributes,
        Nfs3Option::None => panic!("no attributes before"),
    }
}

fn after(wcc: &wcc_data) -> fattr3 {
    wcc.after.clone().unwrap()
}

#[tokio::test]
async fn attributes_are_those_of_the_file() {
    let dirs = Dirs::new();
    let responder = start(&dirs, &[]);
    let mut client = connect(&responder).await;
    let root = client.root_nfs_fh3();
    let path = dirs.export().join("file");
    std::fs::write(&path, vec![7; 5000]).unwrap();
    let file = lookup(&mut client, &root, "file").await.unwrap();
    let got = getattr(&mut client, &file).await.unwrap();
    let real = std::fs::metadata(&path).unwrap();
    assert!(matches!(got.type_, ftype3::NF3REG));
    assert_eq!(got.mode, real.mode() & 0o7777);
    assert_eq!(u64::from(got.nlink), real.nlink());
    assert_eq!((got.uid, got.gid), (real.uid(), real.gid()));
    assert_eq!((got.size, got.used), (real.len(), real.blocks() * 512));
    assert_eq!(got.fileid, real.ino());
    assert_eq!(i64::from(got.mtime.seconds), real.mtime());
    assert_eq!(i64::from(got.mtime.nseconds), real.mtime_nsec());
    assert_eq!(i64::from(got.ctime.nseconds), real.ctime_nsec());
    let root_attributes = getattr(&mut client, &root).await.unwrap();
    assert!(matches!(root_attributes.type_, ftype3::NF3DIR));
    assert_eq!(root_attributes.fsid, got.fsid);
    client.null().await.unwrap();
    assert!(stop(responder).success());
}

#[tokio::test]
async fn setattr_sets_and_guards() {
    let dirs = Dirs::new();
    let responder = start(&dirs, &[]);
    let mut client = connect(&responder).await;
    let root = client.root_nfs_fh3();
    let file = create(&mut client, &root, "file", 0o600).await;
    let ctime = getattr(&mut client, &file).await.unwrap().ctime;
    let new = sattr3 {
        mode: Nfs3Option::Some(0o4751),
        size: Nfs3Option::Some(12345),
        atime: set_atime::SET_TO_CLIENT_TIME(nfstime3 {
            seconds: 1_000_000_000,
            nseconds: 5,
        }),
        mtime: set_mtime::SET_TO_CLIENT_TIME(nfstime3 {
            seconds: u32::MAX,
            nseconds: 999_999_999,
        }),
        ..Default::default()
    };
    let mut args = SETATTR3args {
        object: file.clone(),
        new_attributes: new,
        guard: Nfs3Option::Some(ctime),
    };
    let ok = client.setattr(&args).await.unwrap().unwrap();
    assert_eq!(before(&ok.obj_wcc).ctime, ctime);
    assert_eq!(before(&ok.obj_wcc).size, 0);
    let got = after(&ok.obj_wcc);
    assert_eq!((got.mode, got.size), (0o4751, 12345));
    assert_eq!((got.atime.seconds, got.atime.nseconds), (1_000_000_000, 5));
    let real = std::fs::metadata(dirs.export().join("file")).unwrap();
    assert_eq!(real.mtime(), i64::from(u32::MAX));
    assert_eq!(real.mtime_nsec(), 999_999_999);
    assert_eq!(real.permissions().mode() & 0o7777, 0o4751);

    // The ctime has changed, so nothing is set.
    args.new_attributes = with_mode(0);
    let Nfs3Result::Err((status, fail)) = client.setattr(&args).await.unwrap() else {
        panic!("the guard let it pass");
    };
    assert_eq!(status, nfsstat3::NFS3ERR_NOT_SYNC);
    assert_eq!(after(&fail.obj_wcc).mode, 0o4751);

    args.guard = Nfs3Option::None;
    args.new_attributes = sattr3 {
        mtime: set_mtime::SET_TO_SERVER_TIME,
        atime: set_atime::SET_TO_SERVER_TIME,
        ..Default::default()
    };
    let ok = client.setattr(&args).await.unwrap().unwrap();
    let got = after(&ok.obj_wcc);
    assert_ne!(got.mtime.seconds, u32::MAX);
    assert_eq!(got.mode, 0o4751);
}

#[tokio::test]
async fn data_is_written_read_and_committed() {
    let dirs = Dirs::new();
    let responder = start(&dirs, &[]);
    let mut client = connect(&responder).await;
    let root = client.root_nfs_fh3();
    let file = create(&mut client, &root, "file", 0o644).await;
    let data: Vec<u8> = (0..1 << 20).map(|i| (i * 7 / 3) as u8).collect();
    let mut verifiers = BTreeSet::new();
    for (offset, len, stable) in [
        (0, 1, stable_how::UNSTABLE),
        (1, 65_537, stable_how::DATA_SYNC),
        (65_538, 1 << 20, stable_how::UNSTABLE),
        (5 << 32, 100, stable_how::FILE_SYNC),
    ] {
        let at = offset as usize % data.len();
        let at = at.min(data.len() - len);
        let ok = write(&mut client, &file, offset, &data[at..at + len], stable)
            .await
            .unwrap();
        assert_eq!(ok.count as usize, len);
        assert_eq!(ok.committed, stable);
        assert_eq!(after(&ok.file_wcc).size, offset + len as u64);
        verifiers.insert(ok.verf.0);
        let (got, eof) = read(&mut client, &file, offset, len as u32).await.unwrap();
        assert!(got == data[at..at + len], "{len} bytes at {offset}");
        assert!(eof);
    }
    let args = COMMIT3args {
        file: file.clone(),
        offset: 0,
        count: 0,
    };
    let ok = client.commit(&args).await.unwrap().unwrap();
    verifiers.insert(ok.verf.0);
    assert_eq!(verifiers.len(), 1, "one verifier in the life of a server");
    assert_eq!(after(&ok.file_wcc).size, (5 << 32) + 100);

    // A hole reads as zeros, and there is no data behind the end.
    let (got, eof) = read(&mut client, &file, 4 << 32, 64).await.unwrap();
    assert_eq!((got, eof), (vec![0; 64], false));
    let (got, eof) = read(&mut client, &file, 1 << 50, 64).await.unwrap();
    assert_eq!((got, eof), (vec![], true));
    let (got, eof) = read(&mut client, &file, u64::MAX, 64).await.unwrap();
    assert_eq!((got, eof), (vec![], true));
    let status = write(&mut client, &file, u64::MAX, b"x", stable_how::UNSTABLE).await;
    assert_eq!(status.unwrap_err(), nfsstat3::NFS3ERR_FBIG);
    let status = read(&mut client, &root, 0, 64).await;
    assert_eq!(status.unwrap_err(), nfsstat3::NFS3ERR_ISDIR);
}

#[tokio::test]
async fn files_grow_to_the_largest_size_told() {
    let dirs = Dirs::new();
    let responder = start(&dirs, &["--max-file-size", "65536"]);
    let mut client = connect(&responder).await;
    let root = client.root_nfs_fh3();
    let file = create(&mut client, &root, "file", 0o644).await;
    let args = FSINFO3args {
        fsroot: root.clone(),
    };
    let info = client.fsinfo(&args).await.unwrap().unwrap();
    assert_eq!(info.maxfilesize, 65536);
    let stable = stable_how::FILE_SYNC;
    let part = write(&mut client, &file, 65530, &[7; 100], stable).await;
    assert_eq!(part.unwrap().count, 6);
    let none = write(&mut client, &file, 65536, &[7; 1], stable).await;
    assert_eq!(none.unwrap_err(), nfsstat3::NFS3ERR_FBIG);
    let mut set = async |size| {
        let args = SETATTR3args {
            object: file.clone(),
            new_attributes: sattr3 {
                size: Nfs3Option::Some(size),
                ..Default::default()
            },
            guard: Nfs3Option::None,
        };
        match client.setattr(&args).await.unwrap() {
            Nfs3Result::Ok(ok) => Ok(after(&ok.obj_wcc).size),
            Nfs3Result::Err((status, _)) => Err(status),
        }
    };
    assert_eq!(set(65536).await, Ok(65536));
    assert_eq!(set(65537).await, Err(nfsstat3::NFS3ERR_FBIG));
}

/// A server that is killed may leave the name at any moment; its successor must recognise the
/// retransmission then.
#[tokio::test]
async fn an_exclusive_create_has_its_verifier_when_its_name_appears() {
    let dirs = Dirs::new();
    let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::WRONLY;
    if rustix::fs::open(dirs.export(), flags, rustix::fs::Mode::RUSR).is_err() {
        println!("skipped: this file system has no files without a name");
        return;
    }
    let responder = start(&dirs, &[]);
    let mut client = connect(&responder).await;
    let root = client.root_nfs_fh3();
    let export = dirs.export();
    const FILES: usize = 200;
    let watcher = std::thread::spawn(move || {
        let first_seen = |n: usize| {
            let path = export.join(n.to_string());
            loop {
                match std::fs::metadata(&path) {
                    Ok(found) => break (found.atime(), found.mtime()),
                    Err(_) => std::hint::spin_loop(),
                }
            }
        };
        (0..FILES).map(first_seen).collect::<Vec<_>>()
    });
    for n in 0..FILES {
        let args = CREATE3args {
            where_: at(&root, &n.to_string()),
            how: createhow3::EXCLUSIVE(createverf3([0, 0, 0, 5, 0, 0, 0, 7])),
        };
        assert!(matches!(
            client.create(&args).await.unwrap(),
            Nfs3Result::Ok(_)
        ));
    }
    assert_eq!(watcher.join().unwrap(), vec![(5, 7); FILES]);
    assert!(stop(responder).success());
}

#[tokio::test]
async fn create_has_three_ways() {
    let dirs = Dirs::new();
    let responder = start(&dirs, &[]);
    let mut client = connect(&responder).await;
    let root = client.root_nfs_fh3();
    let mut make = async |name: &str, how| {
        let args = CREATE3args {
            where_: at(&root, name),
            how,
        };
        match client.create(&args).await.unwrap() {
            Nfs3Result::Ok(ok) => Ok(ok),
            Nfs3Result::Err((status, _)) => Err(status),
        }
    };
    let verifier = createverf3([0xff, 1, 2, 3, 0x84, 5, 6, 7]);
    let first = make("exclusive", createhow3::EXCLUSIVE(verifier))
        .await
        .unwrap();
    let again = make("exclusive", createhow3::EXCLUSIVE(verifier))
        .await
        .unwrap();
    assert_eq!(first.obj.unwrap(), again.obj.unwrap());
    let other = createverf3([9; 8]);
    let status = make("exclusive", createhow3::EXCLUSIVE(other)).await;
    assert_eq!(status.unwrap_err(), nfsstat3::NFS3ERR_EXIST);

    let made = make("file", createhow3::GUARDED(with_mode(0o640)))
        .await
        .unwrap();
    assert_eq!(made.obj_attributes.unwrap().mode, 0o640);
    assert_ne!(before(&made.dir_wcc).mtime, after(&made.dir_wcc).mtime);
    let status = make("file", createhow3::GUARDED(with_mode(0o600))).await;
    assert_eq!(status.unwrap_err(), nfsstat3::NFS3ERR_EXIST);

    std::fs::write(dirs.export().join("file"), b"something").unwrap();
    let kept = make("file", createhow3::UNCHECKED(with_mode(0o600)))
        .await
        .unwrap();
    let kept = kept.obj_attributes.unwrap();
    assert_eq!((kept.size, kept.mode), (9, 0o640));
    let truncate = sattr3 {
        size: Nfs3Option::Some(0),
        ..Default::default()
    };
    let cut = make("file", createhow3::UNCHECKED(truncate)).await.unwrap();
    assert_eq!(cut.obj_attributes.unwrap().size, 0);

    for (name, status) in [
        ("", nfsstat3::NFS3ERR_INVAL),
        (".", nfsstat3::NFS3ERR_EXIST),
        ("..", nfsstat3::NFS3ERR_EXIST),
        ("a/b", nfsstat3::NFS3ERR_INVAL),
        ("../b", nfsstat3::NFS3ERR_INVAL),
        ("a\0b", nfsstat3::NFS3ERR_INVAL),
        (&"n".repeat(256), nfsstat3::NFS3ERR_NAMETOOLONG),
    ] {
        let got = make(name, createhow3::UNCHECKED(sattr3::default())).await;
        assert_eq!(got.unwrap_err(), status, "{name:?}");
    }
    make(&"n".repeat(255), createhow3::GUARDED(with_mode(0o600)))
        .await
        .unwrap();
    assert!(!dirs.root().join("b").exists());
}

#[tokio::test]
async fn the_other_kinds_are_made() {
    let dirs = Dirs::new();
    let responder = start(&dirs, &[]);
    let mut client = connect(&responder).await;
    let root = client.root_nfs_fh3();
    let dir = mkdir(&mut client, &root, "dir").await;
    assert!(dirs.export().join("dir").is_dir());
    let parent = lookup(&mut client, &dir, "..").await.unwrap();
    assert_eq!(parent, root);
    let here = lookup(&mut client, &dir, ".").await.unwrap();
    assert_eq!(here, dir);

    for target in ["../somewhere/else", &"t".repeat(4000)] {
        let name = format!("link{}", target.len());
        let args = SYMLINK3args {
            where_: at(&dir, &name),
            symlink: symlinkdata3 {
                symlink_attributes: sattr3::default(),
                symlink_data: nfspath3(Opaque::borrowed(target.as_bytes())),
            },
        };
        let made = client.symlink(&args).await.unwrap().unwrap();
        assert!(matches!(made.obj_attributes.unwrap().type_, ftype3::NF3LNK));
        let real = std::fs::read_link(dirs.export().join("dir").join(&name)).unwrap();
        assert_eq!(real.to_str(), Some(target));
        let args = READLINK3args {
            symlink: made.obj.unwrap(),
        };
        let read = client.readlink(&args).await.unwrap().unwrap();
        assert_eq!(read.data.0.as_ref(), target.as_bytes());
    }
    let args = READLINK3args {
        symlink: dir.clone(),
    };
    let Nfs3Result::Err((status, _)) = client.readlink(&args).await.unwrap() else {
        panic!("a directory is no symbolic link");
    };
    assert_eq!(status, nfsstat3::NFS3ERR_INVAL);

    for (name, what) in [
        ("fifo", mknoddata3::NF3FIFO(with_mode(0o640))),
        ("socket", mknoddata3::NF3SOCK(with_mode(0o640))),
    ] {
        let args = MKNOD3args {
            where_: at(&root, name),
            what,
        };
        let made = client.mknod(&args).await.unwrap().unwrap();
        assert_eq!(made.obj_attributes.unwrap().mode, 0o640);
    }
    let kind = |name| {
        std::fs::symlink_metadata(dirs.export().join(name))
            .unwrap()
            .file_type()
    };
    assert!(kind("fifo").is_fifo());
    assert!(kind("socket").is_socket());
    // A FIFO is never opened, because that would wait for a writer.
    let fifo = lookup(&mut client, &root, "fifo").await.unwrap();
    let status = read(&mut client, &fifo, 0, 10).await;
    assert_eq!(status.unwrap_err(), nfsstat3::NFS3ERR_INVAL);
    if crate::common::is_root() {
        let args = MKNOD3args {
            where_: at(&root, "null"),
            what: mknoddata3::NF3CHR(devicedata3 {
                dev_attributes: with_mode(0o600),
                spec: specdata3 {
                    specdata1: 1,
                    specdata2: 3,
                },
            }),
        };
        let made = client.mknod(&args).await.unwrap().unwrap();
        let rdev = made.obj_attributes.unwrap().rdev;
        assert_eq!((rdev.specdata1, rdev.specdata2), (1, 3));
        assert!(kind("null").is_char_device());
    }
}

#[tokio::test]
async fn names_are_removed_moved_and_linked() {
    let dirs = Dirs::new();
    let responder = start(&dirs, &[]);
    let mut client = connect(&responder).await;
    let root = client.root_nfs_fh3();
    let path = |name: &str| dirs.export().join(name);
    let dir = mkdir(&mut client, &root, "dir").await;
    let file = create(&mut client, &root, "file", 0o644).await;

    let args = LINK3args {
        file: file.clone(),
        link: at(&dir, "linked"),
    };
    let ok = client.link(&args).await.unwrap().unwrap();
    assert_eq!(ok.file_attributes.unwrap().nlink, 2);
    assert!(before(&ok.linkdir_wcc).size <= after(&ok.linkdir_wcc).size);
    assert_eq!(
        std::fs::metadata(path("dir/linked")).unwrap().ino(),
        std::fs::metadata(path("file")).unwrap().ino()
    );
    let Nfs3Result::Err((status, _)) = client.link(&args).await.unwrap() else {
        panic!("the name is taken");
    };
    assert_eq!(status, nfsstat3::NFS3ERR_EXIST);

    let mut rename = async |from: diropargs3<'static>, to: diropargs3<'static>| match client
        .rename(&RENAME3args { from, to })
        .await
        .unwrap()
    {
        Nfs3Result::Ok(ok) => {
            assert!(ok.fromdir_wcc.before.is_some() && ok.todir_wcc.after.is_some());
            Ok(())
        }
        Nfs3Result::Err((status, _)) => Err(status),
    };
    rename(at(&root, "file"), at(&dir, "moved")).await.unwrap();
    assert!(!path("file").exists() && path("dir/moved").exists());
    // Renaming over a directory with entries, and renaming a directory into itself.
    std::fs::create_dir(path("other")).unwrap();
    let status = rename(at(&root, "other"), at(&root, "dir")).await;
    assert_eq!(status, Err(nfsstat3::NFS3ERR_NOTEMPTY));
    let status = rename(at(&root, "dir"), at(&dir, "inside")).await;
    assert_eq!(status, Err(nfsstat3::NFS3ERR_INVAL));
    let status = rename(at(&root, "missing"), at(&root, "x")).await;
    assert_eq!(status, Err(nfsstat3::NFS3ERR_NOENT));

    let mut remove = async |what| match client.remove(&REMOVE3args { object: what }).await.unwrap()
    {
        Nfs3Result::Ok(_) => Ok(()),
        Nfs3Result::Err((status, _)) => Err(status),
    };
    remove(at(&dir, "moved")).await.unwrap();
    assert_eq!(
        remove(at(&dir, "moved")).await,
        Err(nfsstat3::NFS3ERR_NOENT)
    );
    assert_eq!(remove(at(&root, "dir")).await, Err(nfsstat3::NFS3ERR_ISDIR));
    remove(at(&dir, "linked")).await.unwrap();
    // The last name is gone, so the handle is not valid any more.
    let gone = getattr(&mut client, &file).await;
    assert_eq!(gone.unwrap_err(), nfsstat3::NFS3ERR_STALE);

    let mut rmdir = async |what| match client.rmdir(&RMDIR3args { object: what }).await.unwrap() {
        Nfs3Result::Ok(_) => Ok(()),
        Nfs3Result::Err((status, _)) => Err(status),
    };
    std::fs::write(path("dir/left"), b"").unwrap();
    assert_eq!(
        rmdir(at(&root, "dir")).await,
        Err(nfsstat3::NFS3ERR_NOTEMPTY)
    );
    std::fs::remove_file(path("dir/left")).unwrap();
    rmdir(at(&root, "dir")).await.unwrap();
    assert!(!path("dir").exists());
    let gone = getattr(&mut client, &dir).await;
    assert_eq!(gone.unwrap_err(), nfsstat3::NFS3ERR_STALE);
}

#[tokio::test]
async fn large_directories_are_listed_completely_and_once() {
    const FILES: usize = 100_000;
    let dirs = Dirs::new();
    let responder = start(&dirs, &[]);
    let mut client = connect(&responder).await;
    let root = client.root_nfs_fh3();
    for n in 0..FILES {
        std::fs::File::create(dirs.export().join(format!("file-with-a-name-{n}"))).unwrap();
    }
    let listed = names(&mut client, &root, 8192).await;
    assert_eq!(listed.len(), FILES + 2);
    let unique: BTreeSet<_> = listed.iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(unique.len(), FILES + 2);
    for (name, fileid) in listed.iter().take(50) {
        let real = match name.as_str() {
            ".." => continue,
            name => std::fs::metadata(dirs.export().join(name)).unwrap().ino(),
        };
        assert_eq!(*fileid, real);
    }

    // By READDIRPLUS, while others remove listed names and add new ones.
    let mut args = READDIRPLUS3args {
        dir: root.clone(),
        cookie: 0,
        cookieverf: cookieverf3::default(),
        dircount: 8192,
        maxcount: 32_768,
    };
    let mut seen = BTreeSet::new();
    let mut round = 0;
    loop {
        let ok = client.readdirplus(&args).await.unwrap().unwrap();
        args.cookieverf = ok.cookieverf;
        let mut last = None;
        for entry in ok.reply.entries.into_inner() {
            args.cookie = entry.cookie;
            let name = String::from_utf8(entry.name.0.as_ref().to_vec()).unwrap();
            assert!(seen.insert(name.clone()), "{name} twice");
            if name.starts_with("file") {
                let attributes = entry.name_attributes.unwrap();
                assert_eq!(attributes.fileid, entry.fileid);
                last = Some((name, entry.name_handle.unwrap()));
            }
        }
        if let Some((name, handle)) = last
            && round % 4 == 0
        {
            let args = GETATTR3args { object: handle };
            client.getattr(&args).await.unwrap().unwrap();
            std::fs::remove_file(dirs.export().join(&name)).unwrap();
            std::fs::File::create(dirs.export().join(format!("new-{round}"))).unwrap();
        }
        round += 1;
        if ok.reply.eof {
            break;
        }
    }
    let old = seen.iter().filter(|name| name.starts_with("file")).count();
    assert_eq!(old, FILES);

    // A verifier of another kind of cookies.
    args.cookieverf = cookieverf3([1; 8]);
    let Nfs3Result::Err((status, _)) = client.readdirplus(&args).await.unwrap() else {
        panic!("a verifier of somebody else's");
    };
    assert_eq!(status, nfsstat3::NFS3ERR_BAD_COOKIE);
    args.cookie = 0;
    args.maxcount = 10;
    let Nfs3Result::Err((status, _)) = client.readdirplus(&args).await.unwrap() else {
        panic!("no entry fits");
    };
    assert_eq!(status, nfsstat3::NFS3ERR_TOOSMALL);
}

#[tokio::test]
async fn access_and_file_system_facts() {
    let dirs = Dirs::new();
    let responder = start(&dirs, &["--rtmax", "65536", "--wtmax", "32768"]);
    let mut client = connect(&responder).await;
    let root = client.root_nfs_fh3();
    let args = ACCESS3args {
        object: root.clone(),
        access: 0x3f,
    };
    let ok = client.access(&args).await.unwrap().unwrap();
    // All rights but EXECUTE, which does not apply to a directory.
    assert_eq!(ok.access, 0x1f);

    let info = client
        .fsinfo(&FSINFO3args {
            fsroot: root.clone(),
        })
        .await
        .unwrap()
        .unwrap();
    assert_eq!((info.rtmax, info.wtmax), (65536, 32768));
    assert_eq!(info.properties, 0x1b);
    let facts = client
        .fsstat(&FSSTAT3args {
            fsroot: root.clone(),
        })
        .await
        .unwrap()
        .unwrap();
    let real = rustix::fs::statvfs(dirs.export()).unwrap();
    assert_eq!(facts.tbytes, real.f_blocks * real.f_frsize);
    assert!(facts.abytes <= facts.fbytes && facts.fbytes <= facts.tbytes);
    let conf = client
        .pathconf(&PATHCONF3args {
            object: root.clone(),
        })
        .await
        .unwrap()
        .unwrap();
    assert_eq!(conf.name_max, 255);
    assert!(conf.no_trunc && conf.case_preserving && !conf.case_insensitive);

    // Limits are respected.
    let file = create(&mut client, &root, "file", 0o600).await;
    let ok = write(&mut client, &file, 0, &[1; 40_000], stable_how::UNSTABLE).await;
    assert_eq!(ok.unwrap().count, 32_768);
}

#[tokio::test]
async fn a_read_only_server_changes_nothing() {
    let dirs = Dirs::new();
    std::fs::write(dirs.export().join("file"), b"data").unwrap();
    let responder = start(&dirs, &["--read-only"]);
    let mut client = connect(&responder).await;
    let root = client.root_nfs_fh3();
    let file = lookup(&mut client, &root, "file").await.unwrap();
    assert_eq!(read(&mut client, &file, 0, 10).await.unwrap().0, b"data");
    let status = write(&mut client, &file, 0, b"x", stable_how::UNSTABLE).await;
    assert_eq!(status.unwrap_err(), nfsstat3::NFS3ERR_ROFS);
    let args = REMOVE3args {
        object: at(&root, "file"),
    };
    let Nfs3Result::Err((status, fail)) = client.remove(&args).await.unwrap() else {
        panic!("removed");
    };
    assert_eq!(status, nfsstat3::NFS3ERR_ROFS);
    assert!(fail.dir_wcc.after.is_some());
    assert_eq!(std::fs::read(dirs.export().join("file")).unwrap(), b"data");
}
