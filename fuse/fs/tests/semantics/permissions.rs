//! Which callers get names from the cache, and which names the kernel may cache.

use super::support::*;
use nfsrdma_fs::fs::{Entry, Found, FsConfig, FsResult, Permissions, ROOT};
use nfsrdma_memory_server::{Fate, MemoryServer, Op};
use nfsrdma_nfs3::{Cred, Nfs3};
use nfsrdma_rpcrdma::exec::block_on;
use nfsrdma_xdr::nfs3::{SetAttributes, Status};
use std::sync::Arc;
use std::time::Duration;

/// A mount of a server with a directory that has this owner and mode, and the entry `file`.
fn mount(permissions: Permissions, uid: u32, mode: u32) -> (Mount, u64) {
    let server = MemoryServer::new();
    let config = FsConfig {
        permissions,
        ..small()
    };
    let m = Mount::of(&server, config);
    let attributes = |mode| SetAttributes {
        mode: Some(mode),
        ..SetAttributes::default()
    };
    block_on(async {
        let root = server.root();
        server
            .setattr(&cred(0), &root, &attributes(0o777), None)
            .await
            .unwrap();
        let made = server
            .mkdir(&cred(uid), &root, b"d", &attributes(mode))
            .await
            .unwrap();
        let how = nfsrdma_nfs3::CreateMode::Guarded;
        let dir = made.object.unwrap();
        server
            .create(&cred(0), &dir, b"file", how, &attributes(0o644))
            .await
            .unwrap();
    });
    let dir = m.node("d");
    (m, dir)
}

fn known(m: &Mount, cred: &Cred, dir: u64, name: &str) -> Option<Found> {
    m.fs.lookup_cached(dir, name.as_bytes(), cred.uid, || cred.clone())
}

/// Also finds that there is nothing called "no".
fn looked_up(m: &Mount, cred: &Cred, dir: u64, name: &str) -> FsResult<Entry> {
    let _ = block_on(m.fs.lookup(cred, dir, b"no"));
    block_on(m.fs.lookup(cred, dir, name.as_bytes())).map(|found| match found {
        Found::Is(entry) => entry,
        Found::Absent(_) => panic!("{name} is not there"),
    })
}

#[test]
fn names_are_answered_to_whom_the_server_let_search() {
    let (m, dir) = mount(Permissions::Server, 7, 0o750);
    let (owner, other) = (cred(7), cred(8));
    let entry = looked_up(&m, &owner, dir, "file").unwrap();
    assert_eq!(entry.entry_ttl, Duration::ZERO);
    assert!(known(&m, &owner, dir, "no").is_some());
    assert!(known(&m, &other, dir, "no").is_none());
    assert_eq!(errno(looked_up(&m, &other, dir, "file")), libc::EACCES);
    assert!(known(&m, &other, dir, "no").is_none());
    assert!(matches!(
        known(&m, &owner, dir, "no"),
        Some(Found::Absent(Duration::ZERO))
    ));
    // So is what exists, as long as the server has just answered for the directory.
    assert!(matches!(
        known(&m, &owner, dir, "file"),
        Some(Found::Is(entry)) if entry.entry_ttl.is_zero()
    ));
    assert!(known(&m, &other, dir, "file").is_none());
    m.clock.advance(Duration::from_secs(1));
    assert!(known(&m, &owner, dir, "file").is_none());
    assert!(known(&m, &owner, dir, "no").is_some());
    // Callers with different groups are different callers.
    let member = Arc::new(nfsrdma_nfs3::Credential {
        groups: vec![7],
        ..(*other).clone()
    });
    assert!(looked_up(&m, &member, dir, "file").is_ok());
    assert!(known(&m, &member, dir, "no").is_some());
    assert!(known(&m, &other, dir, "no").is_none());
}

#[test]
fn a_change_of_mode_ends_what_was_granted() {
    let (m, dir) = mount(Permissions::Server, 7, 0o755);
    let other = cred(8);
    looked_up(&m, &other, dir, "file").unwrap();
    assert!(known(&m, &other, dir, "no").is_some());
    // This holds even within one tick of the server's clock.
    m.server.stop_clock();
    let new = SetAttributes {
        mode: Some(0o700),
        ..SetAttributes::default()
    };
    block_on(m.fs.setattr(&cred(7), dir, &new, false)).unwrap();
    assert!(known(&m, &other, dir, "no").is_none());
    assert_eq!(errno(looked_up(&m, &other, dir, "file")), libc::EACCES);
}

#[test]
fn one_user_keeps_the_names_of_their_own_directories() {
    for (uid, mode, kept) in [(7, 0o700, true), (8, 0o750, false), (8, 0o755, true)] {
        let (m, dir) = mount(Permissions::ServerForOne(7), uid, mode);
        let user = Arc::new(nfsrdma_nfs3::Credential {
            groups: vec![8],
            ..(*cred(7)).clone()
        });
        let entry = looked_up(&m, &user, dir, "file").unwrap();
        assert_eq!(!entry.entry_ttl.is_zero(), kept, "{uid} {mode:o}");
        assert_eq!(known(&m, &cred(7), dir, "no").is_some(), kept);
    }
}

#[test]
fn the_kernel_keeps_private_names_once_root_is_known_not_to_be_squashed() {
    let (m, dir) = mount(Permissions::Kernel, 7, 0o700);
    let asked = || m.server.calls(Op::Access);
    let before = asked();
    // The first look-up already sends the ACCESS for uid 0.
    let entry = looked_up(&m, &cred(7), dir, "file").unwrap();
    assert_eq!(asked() - before, 1);
    assert!(!entry.entry_ttl.is_zero());
    looked_up(&m, &cred(7), dir, "file").unwrap();
    assert_eq!(asked() - before, 1);
    // The kernel has checked the mode, so a caller that gets here may search.
    assert!(known(&m, &cred(8), dir, "no").is_some());
}

#[test]
fn as_long_as_nothing_tells_root_counts_as_squashed() {
    let (m, dir) = mount(Permissions::Kernel, 7, 0o700);
    m.server.set_hook(|op, _| match op {
        Op::Access => Fate::Refused(Status::ServerFault),
        _ => Fate::Done,
    });
    let entry = looked_up(&m, &cred(7), dir, "file").unwrap();
    assert_eq!(entry.entry_ttl, Duration::ZERO);
    assert!(known(&m, &cred(7), dir, "no").is_some());
    assert!(known(&m, &cred(0), dir, "no").is_none());
    // A look-up by uid 0 itself shows that it may search.
    looked_up(&m, &cred(0), dir, "file").unwrap();
    assert!(known(&m, &cred(0), dir, "no").is_some());
    assert!(m.lookup_in(ROOT, "d").unwrap().is_some());
}

#[test]
fn a_file_made_meanwhile_is_opened_by_its_mode_and_a_new_one_is_not() {
    let (m, dir) = mount(Permissions::Kernel, 7, 0o777);
    let flags = libc::O_CREAT | libc::O_RDWR;
    let create = |user: u32, name: &str, flags| {
        block_on(m.fs.create(&cred(user), dir, name.as_bytes(), 0o444, flags))
    };
    assert!(create(8, "new", flags).is_ok());
    // ESTALE makes the kernel look the name up again, and refuse the open.
    assert_eq!(errno(create(8, "file", flags)), libc::ESTALE);
    assert_eq!(errno(create(8, "file", flags | libc::O_EXCL)), libc::EEXIST);
    let (entry, _) = create(8, "file", libc::O_CREAT).unwrap();
    assert_eq!(entry.attributes.uid, 0);
    assert_eq!(errno(create(9, "new", flags)), libc::ESTALE);
}

/// The kernel checks what it finds with O_CREAT in a sticky directory (`fs.protected_regular`), but not
/// what CREATE returns.
#[test]
fn a_file_that_others_put_into_a_sticky_directory_is_not_opened_by_create() {
    let open = |user: u32, mode: u32| {
        // The file belongs to uid 0, the directory to uid 7.
        let (m, dir) = mount(Permissions::Kernel, 7, mode);
        m.server.change_file("d/file", 0, b"", Some(0o666));
        let flags = libc::O_CREAT | libc::O_WRONLY;
        let cred = Arc::new(nfsrdma_nfs3::Credential {
            groups: vec![7],
            ..(*cred(user)).clone()
        });
        errno(block_on(m.fs.create(&cred, dir, b"file", 0o600, flags)))
    };
    for mode in [0o1777, 0o1773, 0o1770] {
        assert_eq!(open(8, mode), libc::ESTALE, "{mode:o}");
        assert_eq!(open(7, mode), libc::ESTALE, "{mode:o}");
        assert_eq!(open(0, mode), 0, "its own file, {mode:o}");
    }
    assert_eq!(open(8, 0o777), 0);
    assert_eq!(open(7, 0o1755), 0);
}
