//! Malicious clients: names that are paths, races, and arguments that are too large.

use crate::common::client::*;
use crate::common::{Dirs, start};
use nfs3_types::nfs3::*;
use nfs3_types::xdr_codec::Opaque;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn named(dir: &nfs_fh3, name: &[u8]) -> diropargs3<'static> {
    diropargs3 {
        dir: dir.clone(),
        name: filename3(Opaque::owned(name.to_vec())),
    }
}

fn status<T, E>(result: Nfs3Result<T, E>) -> nfsstat3 {
    match result {
        Nfs3Result::Ok(_) => nfsstat3::NFS3_OK,
        Nfs3Result::Err((status, _)) => status,
    }
}

/// The status of each procedure that takes a name, for this name.
async fn every_name(
    client: &mut Client,
    dir: &nfs_fh3,
    file: &nfs_fh3,
    name: &[u8],
) -> Vec<nfsstat3> {
    let what = || named(dir, name);
    let good = || named(dir, b"good");
    let how = createhow3::UNCHECKED(with_mode(0o644));
    let link = symlinkdata3 {
        symlink_attributes: with_mode(0o777),
        symlink_data: nfspath3(Opaque::owned(b"target".to_vec())),
    };
    let mut all = Vec::new();
    all.push(status(
        client.lookup(&LOOKUP3args { what: what() }).await.unwrap(),
    ));
    let args = CREATE3args {
        where_: what(),
        how,
    };
    all.push(status(client.create(&args).await.unwrap()));
    let args = MKDIR3args {
        where_: what(),
        attributes: with_mode(0o755),
    };
    all.push(status(client.mkdir(&args).await.unwrap()));
    let args = SYMLINK3args {
        where_: what(),
        symlink: link,
    };
    all.push(status(client.symlink(&args).await.unwrap()));
    let args = MKNOD3args {
        where_: what(),
        what: mknoddata3::NF3FIFO(with_mode(0o600)),
    };
    all.push(status(client.mknod(&args).await.unwrap()));
    all.push(status(
        client
            .remove(&REMOVE3args { object: what() })
            .await
            .unwrap(),
    ));
    all.push(status(
        client.rmdir(&RMDIR3args { object: what() }).await.unwrap(),
    ));
    let args = RENAME3args {
        from: what(),
        to: good(),
    };
    all.push(status(client.rename(&args).await.unwrap()));
    let args = RENAME3args {
        from: good(),
        to: what(),
    };
    all.push(status(client.rename(&args).await.unwrap()));
    let args = LINK3args {
        file: file.clone(),
        link: what(),
    };
    all.push(status(client.link(&args).await.unwrap()));
    all
}

/// All objects below a directory, with their contents.
fn tree(dir: &Path) -> BTreeSet<(std::path::PathBuf, Vec<u8>)> {
    let mut all = BTreeSet::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let kind = std::fs::symlink_metadata(&path).unwrap().file_type();
        if kind.is_dir() {
            all.extend(tree(&path));
        }
        let contents = match kind.is_file() {
            true => std::fs::read(&path).unwrap(),
            false => Vec::new(),
        };
        all.insert((path, contents));
    }
    all
}

#[tokio::test]
async fn names_that_are_paths_are_refused_by_every_procedure() {
    let dirs = Dirs::new();
    let outside = dirs.root().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("file"), b"outside").unwrap();
    std::fs::create_dir(dirs.export().join("dir")).unwrap();
    std::fs::write(dirs.export().join("good"), b"good").unwrap();
    let responder = start(&dirs, &[]);
    let mut client = connect(&responder).await;
    let root = client.root_nfs_fh3();
    let dir = lookup(&mut client, &root, "dir").await.unwrap();
    let file = lookup(&mut client, &root, "good").await.unwrap();
    let before = (tree(&outside), tree(&dirs.export()));
    let path = outside.join("file").to_str().unwrap().to_owned();
    for name in [
        &b"../../outside/file"[..],
        b"../good",
        b"/",
        b"a/b",
        b"good\0",
        b"\0",
        b"",
        path.as_bytes(),
    ] {
        let told = every_name(&mut client, &dir, &file, name).await;
        assert!(
            told.iter().all(|status| *status == nfsstat3::NFS3ERR_INVAL),
            "{:?}: {told:?}",
            String::from_utf8_lossy(name)
        );
    }
    // "." and ".." can be looked up (".." at the root is the root), but never made or removed.
    for name in [&b"."[..], b".."] {
        let told = every_name(&mut client, &root, &file, name).await;
        assert_eq!(told[0], nfsstat3::NFS3_OK);
        assert!(
            told[1..].iter().all(|status| *status != nfsstat3::NFS3_OK),
            "{told:?}"
        );
    }
    assert_eq!(before, (tree(&outside), tree(&dirs.export())));
}

#[tokio::test]
async fn changes_in_a_directory_swapped_for_a_link_never_land_outside() {
    let dirs = Dirs::new();
    let outside = dirs.root().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("victim"), b"outside").unwrap();
    std::fs::create_dir(dirs.export().join("real")).unwrap();
    symlink("../outside", dirs.export().join("link")).unwrap();
    let before = tree(&outside);
    let responder = start(&dirs, &[]);
    let mut client = connect(&responder).await;
    let root = client.root_nfs_fh3();
    let stop = Arc::new(AtomicBool::new(false));
    let swapper = {
        let (stop, export) = (stop.clone(), dirs.export());
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let (real, link) = (export.join("real"), export.join("link"));
                let exchange = rustix::fs::RenameFlags::EXCHANGE;
                let cwd = rustix::fs::CWD;
                rustix::fs::renameat_with(cwd, real, cwd, link, exchange).unwrap();
            }
        })
    };
    let mut done = 0;
    for n in 0..400 {
        let Ok(dir) = lookup(&mut client, &root, "real").await else {
            continue;
        };
        let args = CREATE3args {
            where_: at(&dir, &format!("made-{n}")),
            how: createhow3::UNCHECKED(with_mode(0o644)),
        };
        done += usize::from(status(client.create(&args).await.unwrap()) == nfsstat3::NFS3_OK);
        let args = REMOVE3args {
            object: at(&dir, "victim"),
        };
        assert_ne!(
            status(client.remove(&args).await.unwrap()),
            nfsstat3::NFS3_OK
        );
        let args = RENAME3args {
            from: at(&dir, &format!("made-{n}")),
            to: at(&dir, "victim"),
        };
        if status(client.rename(&args).await.unwrap()) == nfsstat3::NFS3_OK {
            let args = REMOVE3args {
                object: at(&dir, "victim"),
            };
            let _ = client.remove(&args).await.unwrap();
        }
    }
    stop.store(true, Ordering::Relaxed);
    swapper.join().unwrap();
    assert!(done > 0, "nothing was tried");
    assert_eq!(before, tree(&outside));
}

#[tokio::test]
async fn oversized_arguments_are_refused_or_cut_and_the_server_goes_on() {
    let dirs = Dirs::new();
    std::fs::write(dirs.export().join("file"), vec![7; 3 << 20]).unwrap();
    std::fs::write(dirs.export().join("good"), b"good").unwrap();
    let responder = start(&dirs, &[]);
    let mut client = connect(&responder).await;
    let root = client.root_nfs_fh3();
    let file = lookup(&mut client, &root, "file").await.unwrap();
    let good = lookup(&mut client, &root, "good").await.unwrap();
    for len in [256, 4096, 60_000] {
        let told = every_name(&mut client, &root, &good, &vec![b'n'; len]).await;
        let expected = nfsstat3::NFS3ERR_NAMETOOLONG;
        assert!(told.iter().all(|s| *s == expected), "{len}: {told:?}");
    }
    for len in [65, 1000, 60_000] {
        let long = nfs_fh3 {
            data: Opaque::owned(vec![1; len]),
        };
        let told = getattr(&mut client, &long).await.unwrap_err();
        assert_eq!(told, nfsstat3::NFS3ERR_BADHANDLE);
    }
    let args = SYMLINK3args {
        where_: at(&root, "link"),
        symlink: symlinkdata3 {
            symlink_attributes: with_mode(0o777),
            symlink_data: nfspath3(Opaque::owned(vec![b'p'; 70_000])),
        },
    };
    let told = status(client.symlink(&args).await.unwrap());
    assert_eq!(told, nfsstat3::NFS3ERR_NAMETOOLONG);
    // A count beyond the limit is reduced to it.
    let (data, eof) = read(&mut client, &file, 0, u32::MAX).await.unwrap();
    assert_eq!((data.len(), eof), (1 << 20, false));
    assert!(names(&mut client, &root, u32::MAX).await.len() >= 2);
    // Offsets at the end of their range.
    for offset in [u64::MAX, u64::MAX - 3, i64::MAX as u64] {
        let _ = read(&mut client, &file, offset, 100).await;
        let told = write(&mut client, &file, offset, b"data", stable_how::UNSTABLE).await;
        assert!(told.is_err(), "{offset}");
    }
    let args = SETATTR3args {
        object: file.clone(),
        new_attributes: sattr3 {
            size: Nfs3Option::Some(u64::MAX),
            ..Default::default()
        },
        guard: Nfs3Option::None,
    };
    assert_ne!(
        status(client.setattr(&args).await.unwrap()),
        nfsstat3::NFS3_OK
    );
    assert_eq!(getattr(&mut client, &file).await.unwrap().size, 3 << 20);
}

#[tokio::test]
async fn an_oversized_record_ends_its_connection_alone() {
    let dirs = Dirs::new();
    let responder = start(&dirs, &[]);
    let mut other = connect(&responder).await;
    let root = other.root_nfs_fh3();
    // Data that is announced and never sent, and fragments without a last one.
    type Send = fn(&mut TcpStream) -> std::io::Result<()>;
    let ends: [Send; 2] = [
        |stream| stream.write_all(&0xffff_ffff_u32.to_be_bytes()),
        |stream| {
            for _ in 0..64 {
                stream.write_all(&(1u32 << 20).to_be_bytes())?;
                stream.write_all(&vec![0; 1 << 20])?;
            }
            Ok(())
        },
    ];
    for end in ends {
        let mut stream = TcpStream::connect(("127.0.0.1", responder.nfs)).unwrap();
        let limit = Some(Duration::from_secs(60));
        stream.set_read_timeout(limit).unwrap();
        stream.set_write_timeout(limit).unwrap();
        // The server may close the connection in between.
        let _ = end(&mut stream);
        let got = stream.read(&mut [0; 4]);
        assert!(
            matches!(&got, Ok(0))
                || got
                    .as_ref()
                    .is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset),
            "{got:?}"
        );
        assert!(getattr(&mut other, &root).await.is_ok());
    }
}
