//! The security of the server: handles cannot be forged and do not lead out of the export.

use crate::common::requester::{call, results};
use crate::common::{Dirs, start, stop};
use nfsrdma_test_support::Responder;
use nfsrdma_xdr::codec::{Decode, Payload, Text};
use nfsrdma_xdr::mount3::{Mnt, MountArgs, MountRes};
use nfsrdma_xdr::nfs3::*;
use nfsrdma_xdr::procedure::Procedure;
use nfsrdma_xdr::record;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, symlink};
use std::time::Duration;

fn next_record(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut mark = [0; 4];
    stream.read_exact(&mut mark)?;
    let mut record = vec![0; (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize];
    stream.read_exact(&mut record)?;
    Ok(record)
}

fn open(responder: &Responder) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", responder.nfs)).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    stream
}

/// The results of one call over TCP, as the user who runs the test.
fn ask<P: Procedure>(stream: &mut TcpStream, args: &P::Args<'_>) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    bytes.extend(call::<P>(1, args));
    record::seal(&mut bytes);
    stream.write_all(&bytes).unwrap();
    results(&next_record(stream).unwrap()).to_vec()
}

fn root_of(stream: &mut TcpStream) -> FileHandle {
    let path = Text(b"/export");
    match MountRes::from_xdr(&ask::<Mnt>(stream, &MountArgs { path })).unwrap() {
        MountRes::Ok(mounted) => mounted.root,
        MountRes::Fail(status) => panic!("{status:?}"),
    }
}

fn getattr(stream: &mut TcpStream, object: FileHandle) -> Result<Attributes, Status> {
    match GetattrRes::from_xdr(&ask::<Getattr>(stream, &GetattrArgs { object })).unwrap() {
        Reply::Ok(ok) => Ok(ok.attributes),
        Reply::Fail(status, _) => Err(status),
    }
}

fn at(dir: FileHandle, name: &[u8]) -> DirOp<'_> {
    DirOp {
        dir,
        name: Name(name),
    }
}

fn lookup(stream: &mut TcpStream, dir: FileHandle, name: &[u8]) -> Result<FileHandle, Status> {
    let what = at(dir, name);
    match LookupRes::from_xdr(&ask::<Lookup>(stream, &LookupArgs { what })).unwrap() {
        Reply::Ok(ok) => Ok(ok.object),
        Reply::Fail(status, _) => Err(status),
    }
}

#[test]
fn handles_lead_nowhere_else() {
    let dirs = Dirs::new();
    let secret = dirs.root().join("secret");
    std::fs::write(&secret, b"secret").unwrap();
    std::fs::create_dir(dirs.export().join("dir")).unwrap();
    let responder = start(&dirs, &[]);
    let client = &mut open(&responder);
    let root = root_of(client);
    let dir = lookup(client, root, b"dir").unwrap();

    // Handles with each bit changed, and of every length.
    let bytes = root.as_bytes();
    let changed = (0..bytes.len() * 8).map(|bit| {
        let mut forged = bytes.to_vec();
        forged[bit / 8] ^= 1 << (bit % 8);
        forged
    });
    for forged in changed.chain((0..=64).map(|len| vec![1; len])) {
        let status = getattr(client, FileHandle::new(&forged).unwrap());
        assert_eq!(status.unwrap_err(), Status::BadHandle);
    }
    // ".." at the root is the root.
    assert_eq!(lookup(client, root, b"..").unwrap(), root);
    for name in ["../secret", "/etc/passwd", "dir/../../secret", ""] {
        let status = lookup(client, root, name.as_bytes()).unwrap_err();
        assert_eq!(status, Status::Inval, "{name:?}");
    }
    let args = ReaddirArgs {
        dir: root,
        cookie: 0,
        verifier: Verifier::default(),
        count: 4096,
    };
    let listed = ask::<Readdir>(client, &args);
    let Reply::Ok(listed) = ReaddirRes::from_xdr(&listed).unwrap() else {
        panic!("no list");
    };
    let parent = listed.entries.iter().find(|entry| entry.name.0 == b"..");
    let inode = std::fs::metadata(dirs.export()).unwrap().ino();
    assert_eq!(parent.unwrap().fileid, inode);

    // Symbolic links are objects, and never followed.
    symlink(&secret, dirs.export().join("link")).unwrap();
    symlink(dirs.root(), dirs.export().join("up")).unwrap();
    let link = lookup(client, root, b"link").unwrap();
    assert_eq!(getattr(client, link).unwrap().kind, FileType::Symlink);
    let args = ReadArgs {
        file: link,
        offset: 0,
        count: 10,
    };
    let read = ask::<Read>(client, &args);
    assert_eq!(ReadRes::from_xdr(&read).unwrap().status(), Status::Inval);
    let args = WriteArgs {
        file: link,
        offset: 0,
        count: 1,
        stable: Stable::Unstable,
        data: Payload::Inline(b"x"),
    };
    let written = ask::<Write>(client, &args);
    let status = WriteRes::from_xdr(&written).unwrap().status();
    assert_eq!(status, Status::Inval);
    let up = lookup(client, root, b"up").unwrap();
    assert_eq!(lookup(client, up, b"secret").unwrap_err(), Status::NotDir);
    let cut = SetAttributes {
        size: Some(0),
        mode: Some(0o777),
        ..Default::default()
    };
    let args = CreateArgs {
        at: at(root, b"link"),
        how: CreateHow::Unchecked(cut),
    };
    // The name exists, whatever it is; the target of the link is not changed.
    let before = std::fs::metadata(&secret).unwrap().mode();
    let _ = ask::<Create>(client, &args);
    let args = SetattrArgs {
        object: link,
        new: cut,
        guard: None,
    };
    let _ = ask::<Setattr>(client, &args);
    assert_eq!(std::fs::metadata(&secret).unwrap().mode(), before);
    assert_eq!(std::fs::read(&secret).unwrap(), b"secret");

    // The handle of a directory that was moved out of the export is not valid any more.
    std::fs::rename(dirs.export().join("dir"), dirs.root().join("out")).unwrap();
    assert_eq!(lookup(client, dir, b"..").unwrap_err(), Status::Stale);
    stop(responder);
    let responder = start(&dirs, &[]);
    let client = &mut open(&responder);
    assert_eq!(root_of(client), root, "the key is kept");
    assert_eq!(getattr(client, dir).unwrap_err(), Status::Stale);
}

//= RFC 8267, Section 5.1
//= type=test
//# To enable interoperation of these protocols when NFS/RDMA is [...]
#[test]
fn odd_calls_are_answered_by_the_rules() {
    let dirs = Dirs::new();
    let responder = start(&dirs, &[]);
    let mut stream = open(&responder);
    let mut ask = |words: &[u32]| {
        let mut bytes = record::mark(words.len() * 4, true).to_vec();
        bytes.extend(words.iter().flat_map(|w| w.to_be_bytes()));
        stream.write_all(&bytes).unwrap();
        next_record(&mut stream)
            .unwrap()
            .chunks(4)
            .map(|w| u32::from_be_bytes(w.try_into().unwrap()))
            .collect::<Vec<_>>()
    };
    let null = [0, 0, 0, 0];
    let call = |head: [u32; 6]| [&head[..], &null].concat();
    // xid CALL rpcvers program version procedure
    assert_eq!(ask(&call([1, 0, 2, 100003, 3, 0])), [1, 1, 0, 0, 0, 0]);
    for (program, version) in [(100005, 3), (100021, 4)] {
        let null = call([1, 0, 2, program, version, 0]);
        assert_eq!(ask(&null), [1, 1, 0, 0, 0, 0], "MOUNT and NLM over TCP");
    }
    assert_eq!(ask(&call([2, 0, 3, 100003, 3, 0])), [2, 1, 1, 0, 2, 2]);
    assert_eq!(
        ask(&call([3, 0, 2, 100003, 4, 0])),
        [3, 1, 0, 0, 0, 2, 3, 3]
    );
    assert_eq!(ask(&call([4, 0, 2, 100003, 3, 22])), [4, 1, 0, 0, 0, 3]);
    assert_eq!(ask(&call([5, 0, 2, 12345, 3, 0])), [5, 1, 0, 0, 0, 1]);
    assert_eq!(ask(&call([6, 0, 2, 100003, 3, 1])), [6, 1, 0, 0, 0, 4]);
    // AUTH_DH, and an invalid AUTH_SYS.
    assert_eq!(ask(&[7, 0, 2, 100003, 3, 0, 3, 0, 0, 0]), [7, 1, 1, 1, 1]);
    assert_eq!(
        ask(&[8, 0, 2, 100003, 3, 0, 1, 4, 9, 0, 0]),
        [8, 1, 1, 1, 1]
    );
    // A handle with 65 bytes.
    assert_eq!(
        ask(&[&call([9, 0, 2, 100003, 3, 1])[..], &[65], &[0; 17]].concat()),
        [9, 1, 0, 0, 0, 0, 10001]
    );
    // A message that is no call has no answer, but the next call has one.
    let mut reply = record::mark(8, true).to_vec();
    reply.extend([0, 0, 0, 10, 0, 0, 0, 1]);
    stream.write_all(&reply).unwrap();
    stream.write_all(&record::mark(1 << 30, true)).unwrap();
    assert!(next_record(&mut stream).is_err(), "a record of a gigabyte");
}
