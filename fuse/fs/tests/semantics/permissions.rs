//! Which callers get names from the cache, and which names the kernel may cache.

use super::support::*;
use nfsrdma_fs::fs::{Entry, Found, FsConfig, FsResult, Permissions};
use nfsrdma_memory_server::{MemoryServer, Op};
use nfsrdma_nfs3::{Cred, Nfs3};
use nfsrdma_rpcrdma::exec::block_on;
use std::sync::Arc;

/// A mount of a server with a directory that has this owner and mode, and the entry `file`.
fn mount(permissions: Permissions, uid: u32, mode: u32) -> (Mount, u64) {
    let server = MemoryServer::new();
    let config = FsConfig {
        permissions,
        ..small()
    };
    let m = Mount::of(&server, config);
    block_on(async {
        let root = server.root();
        server
            .setattr(&cred(0), &root, &with_mode(0o777))
            .await
            .unwrap();
        let made = server
            .mkdir(&cred(uid), &root, b"d", &with_mode(mode))
            .await
            .unwrap();
        let how = nfsrdma_nfs3::CreateMode::Guarded;
        let dir = made.object.unwrap();
        server
            .create(&cred(0), &dir, b"file", how, &with_mode(0o644))
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
