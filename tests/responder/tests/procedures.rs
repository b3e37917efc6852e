//! What calls of an independent client over TCP find in the exported directory, where the mounts of
//! other suites do not ask for it.

use crate::common::client::*;
use crate::common::{Dirs, start, stop};
use nfs3_types::nfs3::*;
use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

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

    make(&"n".repeat(255), createhow3::GUARDED(with_mode(0o600)))
        .await
        .unwrap();
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
