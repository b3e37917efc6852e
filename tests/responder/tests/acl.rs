//! NFS_ACL over TCP and RDMA. The file system of the exported files has and checks the ACLs.

use crate::common::plain::Client;
use crate::common::requester::{Requester, call, read_chunk, results, serve, write_chunk};
use crate::common::{Dirs, start, stop};
use nfsrdma_iwarp::IwarpProvider;
use nfsrdma_test_support::Responder;
use nfsrdma_xdr::codec::{Decode, Encode};
use nfsrdma_xdr::nfs_acl::*;
use nfsrdma_xdr::nfs3::{FileHandle, Lookup, LookupArgs, LookupRes, Name, Reply, Status};
use nfsrdma_xdr::posix_acl::{ACCESS_NAME, DEFAULT_NAME, PosixAcl};
use nfsrdma_xdr::rpcrdma::{Body, ChunkLists};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn entry(tag: u32, id: u32, permissions: u32) -> AclEntry {
    AclEntry {
        tag,
        id,
        permissions,
    }
}

/// An ACL with USER_OBJ rw, this number of users with r, GROUP_OBJ r, mask r, and OTHER nothing.
fn entries(users: u32) -> Vec<AclEntry> {
    let named = (0..users).map(|id| entry(tag::USER, 1000 + id, 4));
    let fixed = [
        entry(tag::USER_OBJ, 0, 6),
        entry(tag::GROUP_OBJ, 0, 4),
        entry(tag::CLASS, 0, 4),
        entry(tag::OTHER, 0, 0),
    ];
    named.chain(fixed).collect()
}

fn access(entries: Vec<AclEntry>) -> AclLists {
    AclLists {
        mask: mask::ACL,
        acl_count: entries.len() as u32,
        acl: entries,
        ..AclLists::default()
    }
}

fn default(entries: Vec<AclEntry>) -> AclLists {
    AclLists {
        mask: mask::DEFAULT_ACL,
        default_count: entries.len() as u32,
        default_acl: entries,
        ..AclLists::default()
    }
}

fn get(client: &Client, object: FileHandle, mask: u32) -> Result<AclLists, Status> {
    client.call::<Getacl, _>(&GetaclArgs { object, mask }, |res| match res {
        Reply::Ok(ok) => {
            assert!(ok.attributes.is_some());
            Ok(ok.lists)
        }
        Reply::Fail(status, _) => Err(status),
    })
}

fn set(client: &Client, object: FileHandle, lists: AclLists) -> Result<u32, Status> {
    client.call::<Setacl, _>(&SetaclArgs { object, lists }, |res| match res {
        Reply::Ok(attributes) => Ok(attributes.unwrap().mode),
        Reply::Fail(status, _) => Err(status),
    })
}

fn xattr(path: &Path, name: &str) -> Option<PosixAcl> {
    let mut value = [0; 8192];
    let len = rustix::fs::getxattr(path, name, &mut value[..]).ok()?;
    Some(PosixAcl::from_xattr(&value[..len]).unwrap())
}

/// A server whose export supports ACLs, with a file in it and the root.
fn scene(more: &[&str]) -> (Dirs, Responder, Client, PathBuf, FileHandle, FileHandle) {
    let dirs = Dirs::new();
    let path = dirs.export().join("file");
    std::fs::write(&path, b"data").unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
    let value = PosixAcl::of_mode(0o640).to_xattr();
    rustix::fs::setxattr(&path, ACCESS_NAME, &value, rustix::fs::XattrFlags::empty())
        .expect("a temporary directory on a file system with ACLs");
    let responder = start(&dirs, more);
    let client = Client::tcp(responder.nfs);
    let (root, file) = client.look_up("file");
    (dirs, responder, client, path, root, file)
}

#[test]
fn lists_are_those_of_the_file() {
    let (dirs, responder, client, path, root, file) = scene(&[]);
    let minimal = get(&client, file, mask::ALL).unwrap();
    let uid = rustix::process::geteuid().as_raw();
    assert_eq!((minimal.mask, minimal.acl_count), (15, 4));
    let tags: Vec<_> = minimal.acl.iter().map(|e| (e.tag, e.permissions)).collect();
    assert_eq!(tags, [(1, 6), (4, 4), (0x10, 4), (0x20, 0)]);
    assert_eq!(minimal.acl[0].id, uid);
    assert!(minimal.default_acl.is_empty());

    assert_eq!(set(&client, file, access(entries(2))), Ok(0o640));
    let at_file = xattr(&path, ACCESS_NAME).unwrap();
    assert_eq!(at_file.entries().len(), 6);
    let seen = get(&client, file, mask::ALL).unwrap();
    assert_eq!(PosixAcl::from_wire(&seen.acl, false), Ok(at_file));
    let counts = get(&client, file, mask::ACL_COUNT).unwrap();
    assert_eq!((counts.acl_count, counts.acl.len()), (6, 0));
    // chmod(2) sets the mask.
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o660)).unwrap();
    let seen = get(&client, file, mask::ACL).unwrap();
    let found = seen.acl.iter().find(|e| e.tag == tag::CLASS).unwrap();
    assert_eq!(found.permissions, 6);
    // Three entries are only a mode, and an empty list removes the ACL.
    let three: Vec<_> = entries(0)
        .into_iter()
        .filter(|e| e.tag != tag::CLASS)
        .collect();
    assert_eq!(set(&client, file, access(three)), Ok(0o640));
    assert_eq!(xattr(&path, ACCESS_NAME), None);
    set(&client, file, access(entries(1))).unwrap();
    set(&client, file, access(Vec::new())).unwrap();
    assert_eq!(xattr(&path, ACCESS_NAME), None);

    let flagged = entries(1)
        .into_iter()
        .map(|e| entry(e.tag | DEFAULT, e.id, e.permissions));
    assert!(set(&client, root, default(flagged.collect())).is_ok());
    assert_eq!(
        xattr(&dirs.export(), DEFAULT_NAME).unwrap().entries().len(),
        5
    );
    let seen = get(&client, root, mask::ALL).unwrap();
    assert_eq!((seen.default_count, seen.default_acl.len()), (5, 5));
    assert!(seen.default_acl.iter().all(|e| e.tag & DEFAULT != 0));
    assert!(set(&client, root, default(Vec::new())).is_ok());
    assert_eq!(xattr(&dirs.export(), DEFAULT_NAME), None);
    assert!(stop(responder).success());
}

#[test]
fn what_is_refused() {
    let (_dirs, _responder, client, _path, _root, file) = scene(&[]);
    assert_eq!(get(&client, file, 16), Err(Status::Inval));
    let without_other: Vec<_> = entries(1)
        .into_iter()
        .filter(|e| e.tag != tag::OTHER)
        .collect();
    assert_eq!(
        set(&client, file, access(without_other)),
        Err(Status::Inval)
    );
    assert_eq!(set(&client, file, default(entries(1))), Err(Status::Access));
    let other = Client::tcp(_responder.nfs).by(1000);
    if crate::common::is_root() {
        assert_eq!(set(&other, file, access(entries(1))), Err(Status::Perm));
    }
    let mut miscounted = access(entries(1));
    miscounted.acl_count += 1;
    let mut strange = access(entries(1));
    strange.acl[0].tag = 3;
    for lists in [miscounted, strange] {
        let args = SetaclArgs {
            object: file,
            lists,
        };
        assert!(client.has_garbage_args::<Setacl>(&args));
    }
    let (_dirs, responder, _client, ..) = scene(&["--no-acl"]);
    assert!(Client::tcp(responder.nfs).is_unavailable::<Null>());
    let (_dirs, _responder, client, _, _, file) = scene(&["--read-only"]);
    assert_eq!(set(&client, file, access(entries(1))), Err(Status::RoFs));
}

#[test]
fn long_lists_go_by_chunks_over_rdma() {
    let dirs = Dirs::new();
    std::fs::write(dirs.export().join("file"), b"data").unwrap();
    let provider = Arc::new(IwarpProvider::default());
    let (server, address) = serve(&dirs.export(), provider.clone(), |_| {});
    let mut requester = Requester::connect(&*provider, address, false);
    let root = requester.mount();
    let what = nfsrdma_xdr::nfs3::DirOp {
        dir: root,
        name: Name(b"file"),
    };
    let found = requester.inline::<Lookup>(2, &LookupArgs { what });
    let Reply::Ok(found) = LookupRes::from_xdr(&found).unwrap() else {
        panic!("the file is there");
    };
    let object = found.object;
    let args = SetaclArgs {
        object,
        lists: access(entries(400)),
    };
    let message = call::<Setacl>(3, &args);
    assert!(message.len() > 4096);
    let source = requester.source(&message);
    let lists = ChunkLists {
        reads: read_chunk(0, &[&source]).into_iter().collect(),
        ..ChunkLists::default()
    };
    let answer = requester.call(3, Body::NoMsg(lists), &[]);
    let set = SetaclRes::from_xdr(answer.results()).unwrap();
    assert!(matches!(set, Reply::Ok(_)), "{set:?}");
    let args = GetaclArgs {
        object,
        mask: mask::ALL,
    };
    let sink = requester.sink(16384);
    let lists = ChunkLists {
        reply: Some(write_chunk(&[&sink])),
        ..ChunkLists::default()
    };
    let message = call::<Getacl>(4, &args);
    let answer = requester.call(4, Body::Msg(lists), &message);
    let reply = answer.lists().reply.as_ref().unwrap();
    let len: u32 = reply.segments.iter().map(|segment| segment.length).sum();
    let bytes = requester.take(sink);
    let Reply::Ok(got) = GetaclRes::from_xdr(results(&bytes[..len as usize])).unwrap() else {
        panic!("the list can be read");
    };
    assert_eq!(got.lists.acl.len(), 404);
    assert_eq!(got.to_xdr().len() + 4 + 24, len as usize);
    server.stop();
}
