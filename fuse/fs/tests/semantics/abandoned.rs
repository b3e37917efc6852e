//! Operations whose callers are killed begin no more changes.

use super::support::*;
use nfsrdma_fs::fs::{FsResult, ROOT};
use nfsrdma_memory_server::{Fate, Op};
use nfsrdma_rpcrdma::abandon::Caller;
use nfsrdma_rpcrdma::exec::{self, block_on};
use nfsrdma_xdr::nfs3::Status;
use std::future::Future;
use std::sync::mpsc;
use std::time::Duration;

/// The errno of an operation whose caller was killed before it begins to do anything.
fn abandoned<T>(operation: impl Future<Output = FsResult<T>>) -> i32 {
    let caller = Caller::default();
    caller.leave();
    errno(block_on(caller.run(operation)))
}

#[test]
fn names_and_attributes_stay_as_they_are() {
    let m = Mount::new();
    m.server.plant("f", b"text");
    m.server.plant("open", b"text");
    let (node, open) = (m.node("f"), m.open(m.node("open"), RW).unwrap());
    let before = m.server.names("");
    let (fs, cred) = (&m.fs, &m.cred);
    let cut = with_size(0);
    for error in [
        abandoned(fs.unlink(cred, ROOT, b"f")),
        abandoned(fs.unlink(cred, ROOT, b"open")),
        abandoned(fs.rename(cred, (ROOT, b"f"), (ROOT, b"g"), 0)),
        abandoned(fs.rename(cred, (ROOT, b"f"), (ROOT, b"open"), 0)),
        abandoned(fs.link(cred, node, ROOT, b"g")),
        abandoned(fs.mkdir(cred, ROOT, b"g", 0o755)),
        abandoned(fs.symlink(cred, ROOT, b"g", b"f")),
        abandoned(fs.mknod(cred, ROOT, b"g", 0o644, 0)),
        abandoned(fs.create(cred, ROOT, b"g", 0o644, RW)),
        abandoned(fs.open(cred, node, RW | libc::O_TRUNC)),
        abandoned(fs.setattr(cred, node, &cut, true)),
        abandoned(fs.write(open, 0, b"new", RW, || true)),
        abandoned(fs.write(open, 0, b"new", RW | libc::O_DIRECT, || true)),
    ] {
        assert_eq!(error, libc::EINTR);
    }
    m.close(open).unwrap();
    assert_eq!(m.server.names(""), before);
    assert_eq!(m.server.contents("f").unwrap(), b"text");
    assert_eq!(m.server.contents("open").unwrap(), b"text");
}

#[test]
fn a_write_that_waited_does_not_come_after_a_truncation() {
    let m = Mount::new();
    m.server.plant("f", b"");
    let node = m.node("f");
    let f = m.open(node, RW).unwrap();
    m.write(f, 0, &[1; 4096]).unwrap();
    m.server.keep(Some(Op::Write));
    let (tell, told) = mpsc::channel();
    let (fs, done) = (m.fs.clone(), tell.clone());
    exec::spawn(async move {
        let result = fs.flush(f, 0, false, || true).await;
        done.send(errno(result)).unwrap();
    });
    // A write waits while the file is being flushed.
    let (caller, fs) = (Caller::default(), m.fs.clone());
    exec::spawn(caller.clone().run(async move {
        let result = fs.write(f, 0, &[2; 8192], RW, || true).await;
        tell.send(errno(result)).unwrap();
    }));
    assert!(told.try_recv().is_err(), "the write waits");
    caller.leave();
    m.server.keep(None);
    let mut errors = [0, 0].map(|_| told.recv_timeout(Duration::from_secs(60)).unwrap());
    errors.sort();
    assert_eq!(errors, [0, libc::EINTR]);
    m.truncate(node, 100).unwrap();
    m.close(f).unwrap();
    assert_eq!(m.server.contents("f").unwrap(), [1; 100]);
}

/// The open target of a rename has only its hidden name when the caller is killed.
#[test]
fn an_open_target_gets_its_name_back() {
    let m = Mount::new();
    m.server.plant("a", b"new");
    m.server.plant("b", b"old");
    let b = m.open(m.node("b"), RW).unwrap();
    let caller = Caller::default();
    let leaving = caller.clone();
    m.server.set_hook(move |op, _| match op {
        Op::Rename => {
            leaving.leave();
            Fate::Done
        }
        _ => Fate::Done,
    });
    let rename = m.fs.rename(&m.cred, (ROOT, b"a"), (ROOT, b"b"), 0);
    assert_eq!(errno(block_on(caller.run(rename))), libc::EINTR);
    m.close(b).unwrap();
    assert_eq!(m.server.contents("a").unwrap(), b"new");
    assert_eq!(m.server.contents("b").unwrap(), b"old");
}

/// A directory of which no name can be looked up: the listing goes from page to page until there is
/// something to show, which with such a server may never be.
#[test]
fn a_listing_of_nothing_ends_with_its_caller() {
    let m = Mount::of(&server_of(4096, 1000, 0), small());
    m.server.bare_entries();
    for number in 0..2000 {
        m.server.plant(&format!("entry-{number:06}"), b"");
    }
    m.fate(Op::Lookup, Fate::Refused(Status::NoEnt));
    let opened = block_on(m.fs.opendir(&m.cred, ROOT)).unwrap();
    // The first page shows `.` and `..`.
    let shown = block_on(m.fs.readdir(opened.handle, 0)).unwrap();
    let next = shown.entries().last().unwrap().cookie;
    let before = m.server.calls(Op::Readdirplus);
    let listing = m.fs.readdir(opened.handle, next);
    assert_eq!(abandoned(listing), libc::EINTR);
    assert_eq!(m.server.calls(Op::Readdirplus), before + 1);
    m.fs.releasedir(opened.handle).unwrap();
}

/// The kernel waits for pages of a mapping that it writes, and a program that closes the file waits with
/// it, uninterruptibly. So a flush that waits for a server does not keep them; they become part of it.
#[test]
fn pages_of_a_mapping_do_not_wait_for_a_silent_server() {
    for (len, silent) in [(100, Op::Write), (2 << 20, Op::Commit)] {
        let m = Mount::new();
        let (node, f) = m.create("f");
        let mut expected = vec![b'o'; len];
        m.write(f, 0, &expected).unwrap();
        m.server.keep(Some(silent));
        let (tell, told) = mpsc::channel();
        let begin_fsync = || {
            let (fs, tell) = (m.fs.clone(), tell.clone());
            exec::spawn(async move { tell.send(fs.fsync(f, || true).await).unwrap() });
        };
        begin_fsync();
        until("a call that is kept", || m.server.kept() > 0);
        for (at, byte) in [(10, b'1'), (20, b'2')] {
            let page = [byte; 10];
            let written = block_on(m.fs.write_mapped(f, at as u64, &page[..]));
            assert_eq!(written.unwrap(), 10);
            expected[at..at + 10].copy_from_slice(&page);
        }
        // What waits for the flush that is under way gets these pages as well.
        begin_fsync();
        assert!(told.try_recv().is_err(), "both wait");
        m.server.keep(None);
        for _ in 0..2 {
            told.recv_timeout(Duration::from_secs(60)).unwrap().unwrap();
        }
        // It forgets what is not on stable storage.
        m.server.restart();
        assert!(m.server.contents("f").unwrap() == expected, "{silent:?}");
        assert_eq!(m.stat(node).unwrap().size, len as u64);
    }
}
