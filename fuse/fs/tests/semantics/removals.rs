//! Files that lose a name, by REMOVE or RENAME, while they are open or are being opened.

use super::support::*;
use futures_util::FutureExt;
use nfsrdma_fs::fs::ROOT;
use nfsrdma_memory_server::{Fate, MemoryServer, Op};
use nfsrdma_nfs3::Nfs3;
use nfsrdma_rpcrdma::abandon::Caller;
use nfsrdma_rpcrdma::exec::block_on;
use nfsrdma_xdr::nfs3::{SetAttributes, Status};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// The server puts off calls of `op`, until the result is dropped; then `fate` is theirs.
fn put_off(server: &MemoryServer, op: Op, fate: Fate) -> mpsc::Sender<()> {
    let (go, gate) = mpsc::channel();
    let gate = Mutex::new(gate);
    server.set_hook(move |of, _| {
        if of != op {
            return Fate::Done;
        }
        let _ = gate.lock().unwrap().recv();
        fate
    });
    go
}

/// Removes `x`, or renames `tmp` to it.
fn take_name(m: &Mount, by: Op) -> nfsrdma_fs::fs::FsResult<()> {
    match by {
        Op::Remove => m.unlink("x"),
        _ => m.rename("tmp", "x"),
    }
}

/// Opens `x` while its name is being taken, which the server does after it has answered what the open
/// asks without waiting. Returns the results of both.
fn open_while_name_is_taken(m: &Mount, by: Op, fate: Fate) -> (i32, Result<u64, i32>) {
    m.server.plant("x", b"old");
    m.server.plant("tmp", b"new");
    let node = m.node("x");
    m.node("tmp");
    let go = put_off(&m.server, by, fate);
    thread::scope(|scope| {
        let taking = scope.spawn(|| errno(take_name(m, by)));
        until("the call that takes the name", || m.server.calls(by) > 0);
        let before = m.server.calls(Op::Getattr);
        let opening = scope.spawn(|| m.open(node, RW));
        until("the open", || {
            opening.is_finished() || m.server.calls(Op::Getattr) > before
        });
        drop(go);
        let opened = opening.join().unwrap();
        let taken = taking.join().unwrap();
        m.server.clear_hook();
        (taken, opened.map_err(|error| error.errno()))
    })
}

/// Its end is not known: what this mount wrote may be lost with it.
#[test]
fn a_file_that_others_have_removed_does_not_seem_to_end_where_it_did() {
    let m = Mount::new();
    let other = Mount::of(&m.server, small());
    let (_, f) = m.create("f");
    m.fsync(f).unwrap();
    other.unlink("f").unwrap();
    m.write(f, 0, b"text").unwrap();
    assert_eq!(errno(m.fsync(f)), libc::ESTALE);
    assert_eq!(errno(m.read(f, 0, 4)), libc::ESTALE);
    m.close(f).unwrap();
}

#[test]
fn a_file_whose_open_was_answered_is_not_lost_to_a_removal_on_its_way() {
    for by in [Op::Remove, Op::Rename] {
        let m = Mount::new();
        let (taken, opened) = open_while_name_is_taken(&m, by, Fate::Done);
        assert_eq!(taken, 0, "{by:?}");
        match opened {
            // The kernel looks the name up once more.
            Err(error) => assert_eq!(error, libc::ESTALE, "{by:?}"),
            Ok(file) => {
                assert_eq!(m.read(file, 0, 9).unwrap(), b"old", "{by:?}");
                m.write(file, 3, b"er").unwrap();
                assert_eq!(errno(m.fsync(file)), 0, "{by:?}");
                m.close(file).unwrap();
            }
        }
        if by == Op::Rename {
            let file = m.open(m.node("x"), RW).unwrap();
            assert_eq!(m.read(file, 0, 9).unwrap(), b"new");
            m.close(file).unwrap();
            assert_eq!(m.server.names(""), ["x"]);
        }
    }
}

#[test]
fn a_file_whose_removal_is_refused_is_opened() {
    for by in [Op::Remove, Op::Rename] {
        let m = Mount::new();
        let refused = Fate::Refused(Status::Access);
        let (taken, opened) = open_while_name_is_taken(&m, by, refused);
        assert_eq!(taken, libc::EACCES, "{by:?}");
        let file = opened.unwrap();
        assert_eq!(m.read(file, 0, 9).unwrap(), b"old", "{by:?}");
        m.unlink("x").unwrap();
        m.write(file, 3, b"er").unwrap();
        assert_eq!(errno(m.fsync(file)), 0, "{by:?}");
        m.close(file).unwrap();
        assert_eq!(m.server.names(""), ["tmp"]);
    }
}

/// A program has looked the name up before the file was unlinked, and opens what it found after the
/// last close.
#[test]
fn a_file_whose_hidden_name_is_on_its_way_out_is_not_opened() {
    let m = Mount::new();
    m.server.plant("x", b"old");
    let node = m.node("x");
    let file = m.open(node, RW).unwrap();
    m.unlink("x").unwrap();
    let go = put_off(&m.server, Op::Remove, Fate::Done);
    thread::scope(|scope| {
        let closing = scope.spawn(|| m.close(file));
        until("the REMOVE", || m.server.calls(Op::Remove) > 0);
        let before = m.server.calls(Op::Getattr);
        let opening = scope.spawn(|| m.open(node, RW));
        until("the open", || {
            opening.is_finished() || m.server.calls(Op::Getattr) > before
        });
        drop(go);
        closing.join().unwrap().unwrap();
        assert_eq!(errno(opening.join().unwrap()), libc::ESTALE);
    });
    assert!(m.server.names("").is_empty());
}

/// open(2) with O_CREAT of a name that the kernel believes not to exist: the kernel has locked the
/// directory, so nothing is waited for.
#[test]
fn a_file_that_was_to_be_created_and_is_about_to_go_is_left_to_the_next_open() {
    let m = Mount::new();
    assert!(m.lookup("y").is_none());
    m.server.plant("y", b"text");
    m.clock.advance(Duration::from_secs(3600));
    let go = put_off(&m.server, Op::Remove, Fate::Done);
    let flags = RW | libc::O_CREAT;
    thread::scope(|scope| {
        let removing = scope.spawn(|| {
            m.lookup("y");
            m.unlink("y")
        });
        until("the REMOVE", || m.server.calls(Op::Remove) > 0);
        let creating = scope.spawn(|| {
            let created = m.fs.create(&m.cred, ROOT, b"y", 0o644, flags);
            errno(block_on(created))
        });
        assert_eq!(end(go, vec![creating]), [libc::ESTALE]);
        removing.join().unwrap().unwrap();
    });
    assert!(m.server.names("").is_empty());
}

/// The results of `threads`, which must not wait for what was put off.
fn end<T>(go: mpsc::Sender<()>, threads: Vec<ScopedJoinHandle<'_, T>>) -> Vec<T> {
    let begun = Instant::now();
    while threads.iter().any(|of| !of.is_finished()) && begun.elapsed() < HANG {
        thread::yield_now();
    }
    let hang = threads.iter().filter(|of| !of.is_finished()).count();
    drop(go);
    let results = threads.into_iter().map(|of| of.join().unwrap()).collect();
    assert_eq!(hang, 0, "operations wait for the removal");
    results
}

/// A file with the names `a` and `b`, of which the kernel knows `b`; and its node.
fn two_names(m: &Mount) -> u64 {
    m.server.plant("a", b"text");
    let node = m.node("a");
    let entry = block_on(m.fs.link(&m.cred, node, ROOT, b"b")).unwrap();
    assert_eq!(entry.attributes.nlink, 2);
    node
}

#[test]
fn a_removal_that_is_put_off_keeps_nobody_from_opening_another_name_of_the_file() {
    let m = Mount::new();
    let node = two_names(&m);
    let go = put_off(&m.server, Op::Remove, Fate::Done);
    thread::scope(|scope| {
        let removing = scope.spawn(|| m.unlink("a"));
        until("the REMOVE", || m.server.calls(Op::Remove) > 0);
        let opening = scope.spawn(|| m.open(node, RW));
        let [opened] = &end(go, vec![opening])[..] else {
            unreachable!()
        };
        removing.join().unwrap().unwrap();
        let file = *opened.as_ref().unwrap();
        assert_eq!(m.read(file, 0, 9).unwrap(), b"text");
        m.close(file).unwrap();
    });
    assert_eq!(m.server.names(""), ["b"]);
}

/// The file was unlinked while it was open, and the last close has its hidden name removed.
#[test]
fn a_hidden_name_whose_removal_is_put_off_keeps_nobody_from_the_others() {
    let m = Mount::new();
    let node = two_names(&m);
    let file = m.open(node, RW).unwrap();
    m.unlink("a").unwrap();
    let go = put_off(&m.server, Op::Remove, Fate::Done);
    thread::scope(|scope| {
        let closing = scope.spawn(|| m.close(file));
        until("the REMOVE", || m.server.calls(Op::Remove) > 0);
        m.clock.advance(Duration::from_secs(3600));
        let links = |name: &str| m.lookup(name).map(|entry| entry.attributes.nlink);
        let m = &m;
        let others = vec![
            scope.spawn(move || links("b").unwrap()),
            scope.spawn(move || m.stat(node).unwrap().nlink),
            scope.spawn(move || {
                let mode = with_mode(0o640);
                let set = m.fs.setattr(&m.cred, node, &mode, false);
                block_on(set).unwrap().0.nlink
            }),
            scope.spawn(move || {
                let file = m.open(node, RW).unwrap();
                assert_eq!(m.read(file, 0, 9).unwrap(), b"text");
                m.close(file).unwrap();
                1
            }),
        ];
        assert_eq!(end(go, others), [1; 4]);
        closing.join().unwrap().unwrap();
    });
    assert_eq!(m.stat(node).unwrap().nlink, 1);
    assert_eq!(m.server.names(""), ["b"]);
}

/// What an O_PATH descriptor holds is not open.
#[test]
fn a_file_whose_hidden_name_was_removed_has_no_links() {
    let m = Mount::new();
    m.server.plant("a", b"text");
    let node = m.node("a");
    let file = m.open(node, RW).unwrap();
    m.unlink("a").unwrap();
    assert_eq!(m.stat(node).unwrap().nlink, 0);
    let go = put_off(&m.server, Op::Remove, Fate::Done);
    thread::scope(|scope| {
        let closing = scope.spawn(|| m.close(file));
        until("the REMOVE", || m.server.calls(Op::Remove) > 0);
        // What was known before includes the hidden name.
        m.stat(node).unwrap();
        drop(go);
        closing.join().unwrap().unwrap();
    });
    assert_eq!(m.stat(node).unwrap().nlink, 0);
}

/// The last close brings data to the server that was written by a mapping, or gives locks back. The file
/// still counts as open meanwhile, so that its name is hidden.
#[test]
fn a_directory_can_be_removed_whose_files_are_being_closed() {
    let m = Mount::new();
    let dir = block_on(m.fs.mkdir(&m.cred, ROOT, b"dir", 0o755)).unwrap();
    let created = m.fs.create(&m.cred, dir.nodeid, b"f", 0o644, RW);
    let file = block_on(created).unwrap().1.handle;
    m.write(file, 0, b"text").unwrap();
    let go = put_off(&m.server, Op::Write, Fate::Done);
    thread::scope(|scope| {
        let closing = scope.spawn(|| block_on(m.fs.release(file)));
        until("the WRITE", || m.server.calls(Op::Write) > 0);
        block_on(m.fs.unlink(&m.cred, dir.nodeid, b"f")).unwrap();
        let mut rmdir = pin!(m.fs.rmdir(&m.cred, ROOT, b"dir"));
        let at_once = rmdir.as_mut().now_or_never();
        drop(go);
        closing.join().unwrap().unwrap();
        assert_eq!(at_once.map(errno), None, "it does not wait");
        block_on(rmdir).unwrap();
    });
    assert!(m.server.names("").is_empty());
}

/// RMDIR waits for the hidden names in the directory, and the kernel keeps the directory above it locked
/// meanwhile.
#[test]
fn a_hidden_name_whose_removal_is_put_off_keeps_nobody_in_the_directory_above() {
    for killed in [false, true] {
        let m = Mount::new();
        let dir = block_on(m.fs.mkdir(&m.cred, ROOT, b"dir", 0o755)).unwrap();
        let created = m.fs.create(&m.cred, dir.nodeid, b"f", 0o644, RW);
        let file = block_on(created).unwrap().1.handle;
        block_on(m.fs.unlink(&m.cred, dir.nodeid, b"f")).unwrap();
        let go = put_off(&m.server, Op::Remove, Fate::Done);
        thread::scope(|scope| {
            let closing = scope.spawn(|| m.close(file));
            until("the REMOVE", || m.server.calls(Op::Remove) > 0);
            let caller = Caller::default();
            let rmdir = caller.clone().run(m.fs.rmdir(&m.cred, ROOT, b"dir"));
            let removing = scope.spawn(|| errno(block_on(rmdir)));
            let begun = Instant::now();
            while !removing.is_finished() && begun.elapsed() < Duration::from_secs(20) {
                // Each stands for about a second.
                thread::sleep(Duration::from_millis(100));
                if killed {
                    caller.leave();
                }
                m.fs.tick();
            }
            let hangs = !removing.is_finished();
            drop(go);
            closing.join().unwrap().unwrap();
            let error = removing.join().unwrap();
            assert!(!hangs, "killed: {killed}");
            assert_eq!(error, [libc::ENOTEMPTY, libc::EINTR][usize::from(killed)]);
        });
    }
}

/// `x`, which is open, and `tmp`, which is to be renamed to it. `fate` decides on the RENAMEs after that which
/// hides `x`, by their number.
fn replaced(fate: impl Fn(u64) -> Fate + Send + Sync + 'static) -> (Mount, u64) {
    let m = Mount::new();
    m.server.plant("x", b"old");
    m.server.plant("tmp", b"new");
    let file = m.open(m.node("x"), RW).unwrap();
    let renames = AtomicU64::new(0);
    m.server.set_hook(move |op, _| match op {
        Op::Rename => match renames.fetch_add(1, Ordering::Relaxed) {
            0 => Fate::Done,
            number => fate(number - 1),
        },
        _ => Fate::Done,
    });
    (m, file)
}

/// The server has carried the RENAME out, but its reply comes too late.
#[test]
fn a_rename_whose_reply_never_came_destroys_neither_file() {
    let (m, file) = replaced(|number| match number {
        0 => Fate::Lost,
        _ => Fate::Done,
    });
    assert_eq!(errno(m.rename("tmp", "x")), libc::ETIMEDOUT);
    m.server.clear_hook();
    assert_eq!(m.server.contents("x").unwrap(), b"new");
    assert_eq!(m.read(file, 0, 9).unwrap(), b"old");
    m.write(file, 3, b"er").unwrap();
    assert_eq!(errno(m.fsync(file)), 0);
    m.close(file).unwrap();
    assert_eq!(m.server.names(""), ["x"]);
    assert_eq!(m.server.contents("x").unwrap(), b"new");
}

/// Nor is it known that the server has not carried it out.
#[test]
fn a_rename_that_was_never_sent_changes_nothing() {
    let (m, file) = replaced(|number| match number {
        0 => Fate::Local,
        _ => Fate::Done,
    });
    assert_ne!(errno(m.rename("tmp", "x")), 0);
    m.server.clear_hook();
    assert_eq!(m.read(file, 0, 9).unwrap(), b"old");
    m.close(file).unwrap();
    let mut names = m.server.names("");
    names.sort();
    assert_eq!(names, ["tmp", "x"]);
    assert_eq!(m.server.contents("x").unwrap(), b"old");
}

/// The RENAME is refused, and so is the one that would give the open file its name back.
#[test]
fn an_open_file_that_does_not_get_its_name_back_is_not_removed_at_its_last_close() {
    let (m, file) = replaced(|_| Fate::Refused(Status::Access));
    assert_eq!(errno(m.rename("tmp", "x")), libc::EACCES);
    m.server.clear_hook();
    m.close(file).unwrap();
    let mut names = m.server.names("");
    names.sort();
    let [hidden, tmp] = &names[..] else {
        panic!("{names:?}")
    };
    assert!(hidden.starts_with(".nfs") && tmp == "tmp", "{names:?}");
    assert_eq!(m.server.contents(hidden).unwrap(), b"old");
}

/// Another client has put a file there after the open one was hidden, and so the RENAME is refused.
#[test]
fn a_name_that_is_given_back_takes_the_place_of_no_other_file() {
    let (m, file) = replaced(|_| Fate::Done);
    let server = m.server.clone();
    let renames = AtomicU64::new(0);
    m.server.set_hook(move |op, _| match op {
        Op::Rename if renames.fetch_add(1, Ordering::Relaxed) == 1 => {
            server.plant("x", b"other");
            Fate::Refused(Status::Access)
        }
        _ => Fate::Done,
    });
    assert_eq!(errno(m.rename("tmp", "x")), libc::EACCES);
    m.server.clear_hook();
    assert_eq!(m.server.contents("x").unwrap(), b"other");
    assert_eq!(m.read(file, 0, 9).unwrap(), b"old");
    m.close(file).unwrap();
    let names = m.server.names("");
    let hidden = names.iter().find(|name| name.starts_with(".nfs"));
    assert_eq!(m.server.contents(hidden.unwrap()).unwrap(), b"old");
}

/// Another client has made the second name meanwhile. RENAME does nothing then (RFC 1813 section
/// 3.3.14).
#[test]
fn a_name_that_is_renamed_to_another_one_of_its_file_stays() {
    for open in [false, true] {
        for elsewhere in [false, true] {
            let m = Mount::new();
            m.server.plant("x", b"text");
            let dir = block_on(m.fs.mkdir(&m.cred, ROOT, b"dir", 0o755)).unwrap();
            let to = match elsewhere {
                true => dir.nodeid,
                false => ROOT,
            };
            let file = open.then(|| m.open(m.node("x"), RW).unwrap());
            m.node("x");
            assert!(m.lookup_in(to, "y").unwrap().is_none());
            let at = match elsewhere {
                true => m.server.handle("dir").unwrap(),
                false => m.server.root(),
            };
            let x = m.server.handle("x").unwrap();
            block_on(m.server.link(&m.cred, &x, &at, b"y")).unwrap();
            let rename = m.fs.rename(&m.cred, (ROOT, b"x"), (to, b"y"), 0);
            block_on(rename).unwrap();
            let context = format!("open: {open}, elsewhere: {elsewhere}");
            assert!(m.lookup_in(to, "y").unwrap().is_some(), "{context}");
            assert!(m.lookup_in(ROOT, "x").unwrap().is_some(), "{context}");
            if let Some(file) = file {
                m.close(file).unwrap();
            }
        }
    }
}

/// close(2) returns with FLUSH; its RELEASE comes when the kernel likes, here during a call of the UNLINK
/// that the program makes next, or after that, when the directory has been given to somebody else.
#[test]
fn a_file_that_is_unlinked_after_its_close_and_before_the_release_leaves_no_name() {
    // The call, and whether the server has carried it out when RELEASE comes.
    let cases = [None, Some((Op::Rename, false)), Some((Op::Rename, true))];
    let owner = SetAttributes {
        uid: Some(5),
        ..SetAttributes::default()
    };
    for during in cases {
        let m = Mount::new();
        let dir = block_on(m.fs.mkdir(&m.cred, ROOT, b"dir", 0o755)).unwrap();
        block_on(m.fs.setattr(&m.cred, dir.nodeid, &owner, false)).unwrap();
        let user = cred(5);
        let created = m.fs.create(&user, dir.nodeid, b"f", 0o644, RW);
        let file = block_on(created).unwrap().1.handle;
        m.write(file, 0, b"text").unwrap();
        m.flush(file).unwrap();
        let unlink = || block_on(m.fs.unlink(&user, dir.nodeid, b"f"));
        match during {
            None => {
                unlink().unwrap();
                let hidden = m.server.names("dir");
                assert!(hidden.len() == 1 && hidden[0].starts_with(".nfs"));
                m.release(file);
            }
            Some((op, done)) => {
                let before = m.server.calls(op);
                let go = match done {
                    true => {
                        m.server.keep(Some(op));
                        None
                    }
                    false => Some(put_off(&m.server, op, Fate::Done)),
                };
                thread::scope(|scope| {
                    let unlinking = scope.spawn(unlink);
                    until("the call", || match done {
                        true => m.server.kept() > 0,
                        false => m.server.calls(op) > before,
                    });
                    m.release(file);
                    m.server.keep(None);
                    drop(go);
                    unlinking.join().unwrap().unwrap();
                });
            }
        }
        until("no hidden name", || m.server.names("dir").is_empty());
        let rmdir = m.fs.rmdir(&m.cred, ROOT, b"dir");
        block_on(rmdir).unwrap();
    }
}
