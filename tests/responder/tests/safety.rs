//! The security of the server: handles cannot be forged and do not lead out of the export, callers
//! act under their own identities, nothing is executed twice, and no bytes crash it.

use crate::common::client::*;
use crate::common::{Dirs, is_root, start, stop};
use nfs3_types::nfs3::*;
use nfs3_types::xdr_codec::Opaque;
use nfsrdma_test_support::Responder;
use nfsrdma_xdr::codec::{Decode, Decoder, Encode, Encoder};
use nfsrdma_xdr::nfs3::{DirOp, FileHandle, Name, RemoveArgs, RemoveRes, Status};
use nfsrdma_xdr::record;
use nfsrdma_xdr::rpc::{self, Auth, AuthSys, Call};
use proptest::prelude::*;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::Duration;

fn handle(bytes: &[u8]) -> nfs_fh3 {
    nfs_fh3 {
        data: Opaque::owned(bytes.to_vec()),
    }
}

#[tokio::test]
async fn handles_survive_a_restart_and_another_key_refuses_them() {
    for parent in [std::env::temp_dir(), "/dev/shm".into()] {
        let dirs = Dirs::under(&parent);
        let responder = start(&dirs, &[]);
        let mut client = connect(&responder).await;
        let root = client.root_nfs_fh3();
        let dir = mkdir(&mut client, &root, "dir").await;
        let file = create(&mut client, &dir, "file", 0o600).await;
        write(&mut client, &file, 0, b"kept", stable_how::FILE_SYNC)
            .await
            .unwrap();
        // Even if the file was moved: the handle identifies the file, and not the path.
        std::fs::rename(dirs.export().join("dir/file"), dirs.export().join("moved")).unwrap();
        assert!(stop(responder).success());

        let responder = start(&dirs, &[]);
        let mut client = connect(&responder).await;
        assert_eq!(client.root_nfs_fh3(), root);
        assert_eq!(read(&mut client, &file, 0, 10).await.unwrap().0, b"kept");
        assert_eq!(lookup(&mut client, &dir, "..").await.unwrap(), root);
        stop(responder);

        let other = Dirs::under(&parent);
        let state = other.root().join("state");
        std::fs::create_dir(&state).unwrap();
        let responder = start(&dirs, &["--drc", "0"]);
        stop(responder);
        std::fs::remove_dir_all(dirs.root().join("state")).unwrap();
        let responder = start(&dirs, &[]);
        let mut client = connect(&responder).await;
        let status = getattr(&mut client, &file).await.unwrap_err();
        assert_eq!(status, nfsstat3::NFS3ERR_BADHANDLE);
    }
}

#[tokio::test]
async fn handles_lead_nowhere_else() {
    let dirs = Dirs::new();
    let secret = dirs.root().join("secret");
    std::fs::write(&secret, b"secret").unwrap();
    let responder = start(&dirs, &[]);
    let mut client = connect(&responder).await;
    let root = client.root_nfs_fh3();
    let dir = mkdir(&mut client, &root, "dir").await;

    // Handles with each bit changed, and of every length.
    let bytes = root.data.as_ref().to_vec();
    for bit in 0..bytes.len() * 8 {
        let mut forged = bytes.clone();
        forged[bit / 8] ^= 1 << (bit % 8);
        let status = getattr(&mut client, &handle(&forged)).await.unwrap_err();
        assert_eq!(status, nfsstat3::NFS3ERR_BADHANDLE);
    }
    for len in 0..=64 {
        let forged = vec![1; len];
        let status = getattr(&mut client, &handle(&forged)).await.unwrap_err();
        assert_eq!(status, nfsstat3::NFS3ERR_BADHANDLE);
    }
    // ".." at the root is the root.
    assert_eq!(lookup(&mut client, &root, "..").await.unwrap(), root);
    for name in ["../secret", "/etc/passwd", "dir/../../secret", ""] {
        let status = lookup(&mut client, &root, name).await.unwrap_err();
        assert_eq!(status, nfsstat3::NFS3ERR_INVAL, "{name:?}");
    }
    let (_, parent) = names(&mut client, &root, 4096)
        .await
        .into_iter()
        .find(|(name, _)| name == "..")
        .unwrap();
    assert_eq!(parent, std::fs::metadata(dirs.export()).unwrap().ino());

    // Symbolic links are objects, and never followed.
    symlink(&secret, dirs.export().join("link")).unwrap();
    symlink(dirs.root(), dirs.export().join("up")).unwrap();
    let link = lookup(&mut client, &root, "link").await.unwrap();
    let kind = getattr(&mut client, &link).await.unwrap().type_;
    assert!(matches!(kind, ftype3::NF3LNK));
    let status = read(&mut client, &link, 0, 10).await.unwrap_err();
    assert_eq!(status, nfsstat3::NFS3ERR_INVAL);
    let status = write(&mut client, &link, 0, b"x", stable_how::UNSTABLE).await;
    assert_eq!(status.unwrap_err(), nfsstat3::NFS3ERR_INVAL);
    let up = lookup(&mut client, &root, "up").await.unwrap();
    let status = lookup(&mut client, &up, "secret").await.unwrap_err();
    assert_eq!(status, nfsstat3::NFS3ERR_NOTDIR);
    let args = CREATE3args {
        where_: at(&root, "link"),
        how: createhow3::UNCHECKED(sattr3 {
            size: Nfs3Option::Some(0),
            ..Default::default()
        }),
    };
    // The name exists, whatever it is; the target of the link is not changed.
    let _ = client.create(&args).await.unwrap();
    let args = SETATTR3args {
        object: link.clone(),
        new_attributes: with_mode(0o777),
        guard: Nfs3Option::None,
    };
    let before = std::fs::metadata(&secret).unwrap().mode();
    let _ = client.setattr(&args).await.unwrap();
    assert_eq!(std::fs::metadata(&secret).unwrap().mode(), before);
    assert_eq!(std::fs::read(&secret).unwrap(), b"secret");

    // The handle of a directory that was moved out of the export is not valid any more.
    std::fs::rename(dirs.export().join("dir"), dirs.root().join("out")).unwrap();
    let status = lookup(&mut client, &dir, "..").await.unwrap_err();
    assert_eq!(status, nfsstat3::NFS3ERR_STALE);
    stop(responder);
    let responder = start(&dirs, &[]);
    let mut client = connect(&responder).await;
    let status = getattr(&mut client, &dir).await.unwrap_err();
    assert_eq!(status, nfsstat3::NFS3ERR_STALE);
}

//= RFC 8267, Section 5.1
//= type=test
//# To enable interoperation of these protocols when NFS/RDMA is [...]
#[tokio::test]
async fn callers_are_who_they_say() {
    if !is_root() {
        eprintln!("skipped: taking other identities needs root");
        return;
    }
    let dirs = Dirs::new();
    std::fs::set_permissions(dirs.export(), PermissionsExt::from_mode(0o777)).unwrap();
    let responder = start(&dirs, &[]);
    let mut owner = connect_as(&responder, credential(1001, 2001, &[])).await;
    let mut member = connect_as(&responder, credential(1002, 2002, &[3000, 2001])).await;
    let mut other = connect_as(&responder, credential(1003, 2003, &[])).await;
    let mut root_user = connect_as(&responder, credential(0, 0, &[])).await;
    let root = owner.root_nfs_fh3();

    let file = create(&mut owner, &root, "file", 0o640).await;
    let real = std::fs::metadata(dirs.export().join("file")).unwrap();
    assert_eq!((real.uid(), real.gid()), (1001, 2001));
    write(&mut owner, &file, 0, b"data", stable_how::UNSTABLE)
        .await
        .unwrap();
    assert_eq!(read(&mut member, &file, 0, 9).await.unwrap().0, b"data");
    assert_eq!(read(&mut root_user, &file, 0, 9).await.unwrap().0, b"data");
    let denied = |result: Result<WRITE3resok, nfsstat3>| result.unwrap_err();
    let status = denied(write(&mut member, &file, 0, b"x", stable_how::UNSTABLE).await);
    assert_eq!(status, nfsstat3::NFS3ERR_ACCES);
    let status = read(&mut other, &file, 0, 9).await.unwrap_err();
    assert_eq!(status, nfsstat3::NFS3ERR_ACCES);

    // The owner may write to a file that was made read-only, as with an open descriptor.
    let readonly = create(&mut owner, &root, "readonly", 0o444).await;
    write(&mut owner, &readonly, 0, b"late", stable_how::UNSTABLE)
        .await
        .unwrap();
    let status = denied(write(&mut other, &readonly, 0, b"x", stable_how::UNSTABLE).await);
    assert_eq!(status, nfsstat3::NFS3ERR_ACCES);

    let chown = |object: &nfs_fh3, uid| SETATTR3args {
        object: object.clone(),
        new_attributes: sattr3 {
            uid: Nfs3Option::Some(uid),
            ..Default::default()
        },
        guard: Nfs3Option::None,
    };
    let Nfs3Result::Err((status, _)) = owner.setattr(&chown(&file, 0)).await.unwrap() else {
        panic!("given away");
    };
    assert_eq!(status, nfsstat3::NFS3ERR_PERM);
    root_user
        .setattr(&chown(&file, 1003))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        std::fs::metadata(dirs.export().join("file")).unwrap().uid(),
        1003
    );

    let args = ACCESS3args {
        object: readonly.clone(),
        access: 0x3f,
    };
    let granted = |result: ACCESS3res| match result {
        Nfs3Result::Ok(ok) => ok.access,
        Nfs3Result::Err((status, _)) => panic!("{status:?}"),
    };
    assert_eq!(granted(other.access(&args).await.unwrap()), 0x01);
    assert_eq!(granted(root_user.access(&args).await.unwrap()), 0x0d);
    stop(responder);
    squashed_root(&dirs, &root, &file).await;
}

/// With `--root-squash` the superuser is another user, also for files of other users.
async fn squashed_root(dirs: &Dirs, root: &nfs_fh3, file: &nfs_fh3) {
    let responder = start(dirs, &["--root-squash", "--anon-uid", "4000"]);
    let mut root_user = connect_as(&responder, credential(0, 0, &[0])).await;
    create(&mut root_user, root, "squashed", 0o600).await;
    let real = std::fs::metadata(dirs.export().join("squashed")).unwrap();
    assert_eq!((real.uid(), real.gid()), (4000, 65534));
    let status = read(&mut root_user, file, 0, 9).await.unwrap_err();
    assert_eq!(status, nfsstat3::NFS3ERR_ACCES);
}

#[tokio::test]
async fn killing_the_server_loses_what_was_not_committed() {
    let dirs = Dirs::new();
    let responder = start(&dirs, &["--fake-unstable"]);
    let mut client = connect(&responder).await;
    let root = client.root_nfs_fh3();
    let file = create(&mut client, &root, "file", 0o600).await;
    let first = write(&mut client, &file, 0, b"committed", stable_how::UNSTABLE)
        .await
        .unwrap();
    assert_eq!(first.file_wcc.after.unwrap().size, 9);
    let args = COMMIT3args {
        file: file.clone(),
        offset: 0,
        count: 0,
    };
    let commit = client.commit(&args).await.unwrap().unwrap();
    assert_eq!(commit.verf.0, first.verf.0);
    write(&mut client, &file, 9, b" and lost", stable_how::UNSTABLE)
        .await
        .unwrap();
    // Until then, everybody sees the data.
    assert_eq!(
        read(&mut client, &file, 5, 99).await.unwrap().0,
        b"tted and lost"
    );
    assert_eq!(getattr(&mut client, &file).await.unwrap().size, 18);
    assert_eq!(
        std::fs::read(dirs.export().join("file")).unwrap(),
        b"committed"
    );
    drop(responder);
    let responder = start(&dirs, &["--fake-unstable"]);
    let mut client = connect(&responder).await;
    assert_eq!(
        read(&mut client, &file, 0, 99).await.unwrap().0,
        b"committed"
    );
    let again = write(&mut client, &file, 0, b"C", stable_how::UNSTABLE)
        .await
        .unwrap();
    assert_ne!(
        again.verf.0, first.verf.0,
        "the client has to learn of the loss"
    );
    // Data of a stable WRITE is on stable storage, together with the data held before.
    write(&mut client, &file, 1, b"O", stable_how::FILE_SYNC)
        .await
        .unwrap();
    assert_eq!(
        std::fs::read(dirs.export().join("file")).unwrap(),
        b"COmmitted"
    );
}

/// The bytes of a call over plain TCP.
fn remove_call(xid: u32, dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut to = Encoder::new(vec![0; 4]);
    Call {
        xid,
        program: nfsrdma_xdr::nfs3::PROGRAM,
        version: 3,
        procedure: 12,
        credential: Auth::Sys(AuthSys {
            stamp: 0,
            machine: b"",
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: Default::default(),
        }),
        verifier: Auth::None,
    }
    .encode(&mut to);
    let what = DirOp {
        dir: FileHandle::new(dir).unwrap(),
        name: Name(name),
    };
    RemoveArgs { what }.encode(&mut to);
    let mut bytes = to.into_vec();
    record::seal(&mut bytes);
    bytes
}

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

fn remove_status(record: &[u8]) -> (u32, Status) {
    let mut from = Decoder::new(record);
    let header = rpc::Reply::decode(&mut from).unwrap();
    assert!(header.is_success());
    let result = RemoveRes::from_xdr(from.rest()).unwrap();
    (header.xid, result.status())
}

#[tokio::test]
async fn a_call_sent_twice_is_done_once() {
    for delay in ["ANY=0", "ANY=300"] {
        let dirs = Dirs::new();
        std::fs::write(dirs.export().join("file"), b"").unwrap();
        let responder = start(&dirs, &["--delay", delay]);
        let root = connect(&responder).await.root_nfs_fh3();
        let mut stream = open(&responder);
        let call = remove_call(77, root.data.as_ref(), b"file");
        // Both at once: with a delay, the second one arrives while the first one is under way.
        stream.write_all(&call).unwrap();
        stream.write_all(&call).unwrap();
        let first = next_record(&mut stream).unwrap();
        let second = next_record(&mut stream).unwrap();
        assert_eq!(remove_status(&first), (77, Status::Ok));
        assert_eq!(first, second);
        stream
            .write_all(&remove_call(78, root.data.as_ref(), b"file"))
            .unwrap();
        let third = next_record(&mut stream).unwrap();
        assert_eq!(remove_status(&third), (78, Status::NoEnt));
    }
}

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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(10)))]
    /// Sends any bytes on many connections to one server, which survives.
    #[test]
    fn no_bytes_bring_it_down(
        records in proptest::collection::vec(
            (any::<bool>(), 0u32..7, 0u32..30, proptest::collection::vec(any::<u8>(), 0..300)),
            1..20,
        ),
    ) {
        let dirs = Dirs::new();
        let responder = start(&dirs, &["--workers", "2"]);
        let mut stream = open(&responder);
        for (framed, program, procedure, bytes) in &records {
            let mut out = vec![0; 4];
            if *framed {
                let program = 100_000 + program;
                for word in [1, 0, 2, program, 3, *procedure, 0, 0, 0, 0] {
                    out.extend(u32::to_be_bytes(word));
                }
            }
            out.extend(bytes);
            record::seal(&mut out);
            if stream.write_all(&out).is_err() {
                break;
            }
        }
        let _ = stream.write_all(&[0xff; 100]);
        drop(stream);
        let mut stream = open(&responder);
        let mut null = record::mark(40, true).to_vec();
        for word in [9u32, 0, 2, 100_003, 3, 0, 0, 0, 0, 0] {
            null.extend(word.to_be_bytes());
        }
        stream.write_all(&null).unwrap();
        prop_assert!(next_record(&mut stream).is_ok());
        drop(stream);
        prop_assert!(stop(responder).success());
    }
}

#[test]
fn what_cannot_be_served_is_one_sentence() {
    let run = |args: &[&str]| {
        let out = std::process::Command::new(env!("CARGO_BIN_EXE_nfsrdma-responder"))
            .args(args)
            .env("RUST_BACKTRACE", "1")
            .output()
            .unwrap();
        assert!(!out.status.success());
        String::from_utf8(out.stderr).unwrap()
    };
    let said = run(&["/no/such/directory"]);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("/no/such/directory"), "{said}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let dirs = Dirs::new();
    let export = dirs.export().display().to_string();
    let state = dirs.root().join("state").display().to_string();
    let args = [
        &*export,
        "--state-dir",
        &state,
        "--rdma-port",
        "0",
        "--tcp",
        &address,
    ];
    let said = run(&args);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains(&address), "{said}");
}
