//! The process that serves a mount is killed, and another one goes on with its records.

use super::support::{Mount, RW, errno, small, until};
use nfsrdma_fs::fs::{KernelCache, ROOT};
use nfsrdma_memory_server::{Fate, Op};
use nfsrdma_nfs3::Credential;
use nfsrdma_rpcrdma::exec::{self, block_on};
use nfsrdma_xdr::nfs3::Status;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

/// The kernel is told nothing; what it would be told of data is kept.
#[derive(Default, Debug)]
struct Dropped(Arc<Mutex<BTreeSet<u64>>>);

impl KernelCache for Dropped {
    fn invalidate_attributes(&self, _: u64) {}
    fn invalidate_data(&self, nodeid: u64) {
        self.0.lock().unwrap().insert(nodeid);
    }
    fn expire_names(&self, _: u64) {}
}

#[test]
fn an_open_file_goes_on_with_its_rights_and_is_closed_once() {
    let m = Mount::new();
    let groups = (100..116).collect();
    let user = Arc::new(Credential {
        uid: 7,
        gid: 8,
        groups,
    });
    m.server.plant("f", b"data");
    let node = m.node("f");
    let f = block_on(m.fs.open(&user, node, libc::O_RDONLY)).unwrap();
    let g = m.open(node, RW | libc::O_APPEND).unwrap();
    m.write(g, 4, b"!").unwrap();
    m.fsync(g).unwrap();
    let seen = m.stat(node).unwrap();
    let m = m.killed();
    assert_eq!(m.stat(node).unwrap().fileid, seen.fileid);
    assert_eq!(m.fs.opener(f.handle), Some(user));
    assert_eq!(m.read(f.handle, 0, 9).unwrap(), b"data!");
    assert!(!m.fs.may_write(f.handle) && m.fs.may_write(g));
    m.write(g, 5, b"?").unwrap();
    assert_eq!(m.stat(node).unwrap().size, 6);
    m.close(f.handle).unwrap();
    // The kernel may send it again, and a later open has another handle.
    let h = m.open(node, RW).unwrap();
    m.release(f.handle);
    assert!(h != f.handle && h != g);
    m.write(h, 0, b"D").unwrap();
    for file in [g, h] {
        m.close(file).unwrap();
    }
    assert_eq!(m.server.contents("f").unwrap(), b"Data!?");
    assert!(!m.fs.has_open_files());
    let m = m.killed();
    assert!(!m.fs.has_open_files());
    assert_eq!(errno(m.read(g, 0, 1)), libc::EBADF);
}

#[test]
fn a_listing_goes_on_where_it_was() {
    for renewed in [false, true] {
        let m = Mount::new();
        let names: BTreeSet<String> = (0..2000).map(|n| format!("name {n}")).collect();
        for name in &names {
            m.server.plant(name, b"");
        }
        let opened = block_on(m.fs.opendir(&m.cred, ROOT)).unwrap();
        let (mut m, mut offset, mut seen) = (m, 0, BTreeSet::new());
        loop {
            let listing = block_on(m.fs.readdir(opened.handle, offset)).unwrap();
            let Some(last) = listing.entries().iter().take(300).next_back() else {
                break;
            };
            offset = last.cookie;
            for entry in listing.entries().iter().take(300) {
                let name = String::from_utf8(entry.name.to_vec()).unwrap();
                assert!(seen.insert(name.clone()), "{name} comes again");
            }
            drop(listing);
            m = m.killed();
            if renewed {
                m.server.renew_cookie_verifier();
            }
        }
        assert!(seen.remove(".") && seen.remove(".."));
        assert_eq!(seen, names, "renewed: {renewed}");
        m.fs.releasedir(opened.handle).unwrap();
        m.fs.releasedir(opened.handle).unwrap();
        assert_eq!(errno(block_on(m.fs.readdir(opened.handle, 0))), libc::EBADF);
    }
}

#[test]
fn the_kernel_drops_the_pages_of_files_that_are_open() {
    let m = Mount::new();
    m.server.plant("open", b"data");
    m.server.plant("closed", b"data");
    let (open, closed) = (m.node("open"), m.node("closed"));
    let f = m.open(open, RW).unwrap();
    m.read(f, 0, 4).unwrap();
    let m = m.killed();
    assert!(block_on(m.fs.behind_attributes(open)).is_some());
    let dropped = Dropped::default();
    let nodes = dropped.0.clone();
    m.fs.set_kernel_cache(Box::new(dropped));
    assert_eq!(*nodes.lock().unwrap(), BTreeSet::from([open]));
    m.fs.old_pages(open).unwrap().told();
    assert!(m.fs.old_pages(open).is_none());
    // What nobody has open is told with the next reply.
    assert!(block_on(m.fs.behind_attributes(closed)).is_some());
    m.close(f).unwrap();
}

#[test]
fn a_file_that_was_being_hidden_is_as_the_server_has_it() {
    for done in [true, false] {
        let m = Mount::new();
        m.server.plant("x", b"old");
        let f = m.open(m.node("x"), RW).unwrap();
        m.server.keep(Some(Op::Rename));
        let (fs, user) = (m.fs.clone(), m.cred.clone());
        exec::spawn(async move {
            let _ = fs.unlink(&user, ROOT, b"x").await;
        });
        until("the RENAME", || m.server.kept() == 1);
        m.server.lose_kept();
        if !done {
            // As if the call had not reached the server.
            let [hidden]: [String; 1] = m.server.names("").try_into().unwrap();
            let other = Mount::of(&m.server, small());
            other.rename(&hidden, "x").unwrap();
        }
        let m = m.killed();
        if !done {
            // The kernel sends the request again.
            m.unlink("x").unwrap();
        }
        assert_eq!(m.read(f, 0, 9).unwrap(), b"old", "done: {done}");
        assert_eq!(m.server.names("").len(), 1, "done: {done}");
        m.close(f).unwrap();
        assert!(m.server.names("").is_empty(), "done: {done}");
    }
}

/// The process was killed while it removed the hidden name.
#[test]
fn a_hidden_file_that_was_closed_is_removed_by_whoever_comes_next() {
    for forgotten in [false, true] {
        let m = Mount::new();
        let (node, f) = m.create("x");
        m.unlink("x").unwrap();
        let [hidden]: [String; 1] = m.server.names("").try_into().unwrap();
        m.server.keep(Some(Op::Remove));
        let fs = m.fs.clone();
        exec::spawn(async move {
            let _ = fs.release(f).await;
        });
        until("the REMOVE", || m.server.kept() == 1);
        // As if the call had not reached the server.
        m.server.plant(&hidden, b"");
        if forgotten {
            m.fs.forget(node, 1);
        }
        m.server.lose_kept();
        let m = m.killed();
        let gone = || m.server.names("").is_empty();
        until("the hidden name is removed", gone);
    }
}

#[test]
fn lost_data_is_told_once_by_each_open_file() {
    let m = Mount::new();
    let (node, f) = m.create("f");
    let g = m.open(node, RW).unwrap();
    m.write(f, 0, b"safe").unwrap();
    m.fsync(f).unwrap();
    let (_, safe) = m.create("safe");
    m.write(safe, 0, b"safe").unwrap();
    m.flush(safe).unwrap();
    m.write(f, 4, b"lost").unwrap();
    let m = m.killed();
    m.fsync(safe).unwrap();
    m.close(safe).unwrap();
    assert_eq!(errno(m.write(g, 0, b"x")), libc::EIO);
    m.write(g, 0, b"x").unwrap();
    for file in [f, g] {
        assert_eq!(errno(m.fsync(file)), libc::EIO);
        m.fsync(file).unwrap();
    }
    assert_eq!(m.server.durable("f").unwrap(), b"xafe");
    // The next process has lost nothing.
    let m = m.killed();
    for file in [f, g] {
        m.fsync(file).unwrap();
        m.close(file).unwrap();
    }
    let f = m.open(node, RW).unwrap();
    m.fsync(f).unwrap();
    m.close(f).unwrap();
}

/// The close tells it as well, and whoever opens the file later if nobody was told.
#[test]
fn lost_data_of_a_closed_file_is_told_to_who_opens_it_next() {
    let m = Mount::new();
    let (node, f) = m.create("f");
    m.write(f, 0, b"lost").unwrap();
    let m = m.killed();
    assert_eq!(errno(m.close(f)), libc::EIO);
    let f = m.open(node, RW).unwrap();
    m.fsync(f).unwrap();
    m.write(f, 0, b"lost").unwrap();
    let m = m.killed();
    m.release(f);
    let m = m.killed();
    let f = m.open(node, RW).unwrap();
    assert_eq!(errno(m.fsync(f)), libc::EIO);
    m.fsync(f).unwrap();
    m.close(f).unwrap();
}

#[test]
fn an_error_that_no_program_was_told_is_told_by_the_next_process() {
    let m = Mount::new();
    let (node, f) = m.create("f");
    m.fate(Op::Write, Fate::Refused(Status::NoSpc));
    m.write(f, 0, b"much").unwrap();
    block_on(m.fs.write_back_all());
    m.server.clear_hook();
    let m = m.killed();
    assert_eq!(errno(m.fsync(f)), libc::ENOSPC);
    m.write(f, 0, b"less").unwrap();
    m.fsync(f).unwrap();
    m.close(f).unwrap();
    let f = m.open(node, RW).unwrap();
    m.fsync(f).unwrap();
    m.close(f).unwrap();
    assert_eq!(m.server.contents("f").unwrap(), b"less");
}
