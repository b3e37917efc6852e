//! Data that programs have written is sent by the next process, if the one that took it is killed.

use super::support::{Mount, RW, errno};
use nfsrdma_memory_server::{Fate, Op};
use nfsrdma_nfs3::Credential;
use nfsrdma_rpcrdma::exec::block_on;
use nfsrdma_xdr::nfs3::Status;
use std::sync::Arc;

const APPEND: i32 = RW | libc::O_APPEND;

fn some(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 ^ seed).collect()
}

/// All of the file, as programs see it, and then as the server has it on stable storage.
fn check(m: &Mount, file: u64, wanted: &[u8]) {
    assert!(m.read(file, 0, 4 << 20).unwrap() == wanted);
    m.fsync(file).unwrap();
    assert!(m.server.durable("f").unwrap() == wanted);
}

#[test]
fn a_write_that_waited_for_memory_is_no_loss() {
    let m = Mount::keeping();
    let (_, f) = m.create("f");
    let mut taken: Vec<_> = std::iter::from_fn(|| m.pool.alloc(1 << 20)).collect();
    taken.extend(std::iter::from_fn(|| m.pool.alloc(4096)));
    let wanted = some(300_000, 7);
    let (fs, data) = (m.fs.clone(), wanted.clone());
    let (done, written) = std::sync::mpsc::channel();
    nfsrdma_rpcrdma::exec::spawn(async move {
        let _ = done.send(fs.write(f, 0, &data[..], RW, || true).await);
    });
    super::support::until("a write that waits", || m.count("write_waits") > 0);
    taken.clear();
    assert_eq!(written.recv().unwrap().unwrap(), 300_000);
    let m = m.killed();
    check(&m, f, &wanted);
    m.close(f).unwrap();
}

/// The server has it in its memory only, and loses it.
#[test]
fn what_was_written_and_not_committed_is_written_again() {
    for restart in [false, true] {
        let m = Mount::keeping();
        let (_, f) = m.create("f");
        let wanted = some(300_000, 1);
        m.write(f, 0, &wanted).unwrap();
        m.server.set_never_stable();
        m.server.keep(Some(Op::Commit));
        let (fs, one) = (m.fs.clone(), f);
        nfsrdma_rpcrdma::exec::spawn(async move {
            let _ = fs.fsync(one, || true).await;
        });
        super::support::until("the COMMIT", || m.server.kept() == 1);
        m.server.lose_kept();
        if restart {
            m.server.restart();
        }
        let m = m.killed();
        check(&m, f, &wanted);
        m.close(f).unwrap();
    }
}

/// A copy is written to while the old bytes are in a WRITE.
#[test]
fn the_latest_bytes_win() {
    let m = Mount::keeping();
    let (_, f) = m.create("f");
    let mut wanted = some(64 << 10, 2);
    m.write(f, 0, &wanted).unwrap();
    m.server.keep(Some(Op::Write));
    let (fs, one) = (m.fs.clone(), f);
    nfsrdma_rpcrdma::exec::spawn(async move {
        let _ = fs.write_back_all().await;
        let _ = one;
    });
    super::support::until("the WRITE", || m.server.kept() >= 1);
    m.fs.write_cached(f, 100, &b"new"[..], RW);
    wanted[100..103].copy_from_slice(b"new");
    m.server.lose_kept();
    let m = m.killed();
    let _ = block_on(m.fs.write(f, 100, &b"new"[..], RW, || true)).unwrap();
    check(&m, f, &wanted);
    m.close(f).unwrap();
}

#[test]
fn pieces_are_written_and_what_lies_between_them_is_not() {
    for pieces in [2, 31, 33, 200] {
        let m = Mount::keeping();
        let old = some(4096, 3);
        m.server.plant("f", &old);
        let f = m.open(m.node("f"), RW).unwrap();
        let mut wanted = old;
        for piece in 0..pieces {
            m.write(f, piece * 16, b"piece").unwrap();
            wanted[piece as usize * 16..][..5].copy_from_slice(b"piece");
        }
        // Somebody else changes what is between.
        m.server.change_file("f", 8, b"other", None);
        wanted[8..13].copy_from_slice(b"other");
        let m = m.killed();
        // So many pieces of a page have no records.
        if pieces > 32 {
            assert_eq!(errno(m.fsync(f)), libc::EIO);
            assert_eq!(m.server.contents("f").unwrap()[16..21], *b"piece");
        } else {
            check(&m, f, &wanted);
        }
        m.close(f).unwrap();
        // That is over when they are safe.
        let f = m.open(m.node("f"), RW).unwrap();
        m.write(f, 0, b"later").unwrap();
        let m = m.killed();
        m.close(f).unwrap();
        assert_eq!(m.server.durable("f").unwrap()[..5], *b"later");
    }
}

#[test]
fn truncated_data_does_not_come_back() {
    let m = Mount::keeping();
    let (node, f) = m.create("f");
    m.write(f, 0, &some(200_000, 4)).unwrap();
    m.truncate(node, 5000).unwrap();
    m.write(f, 8000, b"end").unwrap();
    let m = m.killed();
    let mut wanted = some(5000, 4);
    wanted.resize(8000, 0);
    wanted.extend(b"end");
    check(&m, f, &wanted);
    m.close(f).unwrap();
}

/// It waits while the file is flushed, and another program appends before it.
#[test]
fn an_append_that_was_not_taken_has_no_place() {
    let m = Mount::keeping();
    m.server.plant("f", b"one.");
    let [f, g] = [(); 2].map(|()| m.open(m.node("f"), APPEND).unwrap());
    let append = |m: &Mount, data: &[u8]| {
        let done = block_on(m.fs.write(g, 0, data, APPEND, || true));
        assert_eq!(done.unwrap() as usize, data.len());
    };
    append(&m, b"two.");
    m.server.keep(Some(Op::Write));
    let fs = m.fs.clone();
    nfsrdma_rpcrdma::exec::spawn(async move {
        let _ = fs.fsync(g, || true).await;
    });
    super::support::until("the WRITE", || m.server.kept() == 1);
    let fs = m.fs.clone();
    nfsrdma_rpcrdma::exec::spawn(async move {
        let caller = fs.caller(2, false);
        let write = fs.write(f, 1, &b"four."[..], APPEND, || true);
        let _ = caller.run(write).await;
    });
    super::support::until("a write that waits", || m.count("write_waits") > 0);
    m.server.lose_kept();
    let m = m.killed();
    append(&m, b"three.");
    let caller = m.fs.caller(2, true);
    let write = m.fs.write(f, 1, &b"four."[..], APPEND, || true);
    assert_eq!(block_on(caller.run(write)).unwrap(), 5);
    check(&m, f, b"one.two.three.four.");
    m.close(f).unwrap();
    m.close(g).unwrap();
}

#[test]
fn it_is_written_by_whoever_wrote_it() {
    let m = Mount::keeping();
    m.server.plant("f", b"");
    m.server.change_file("f", 0, b"", Some(0o666));
    let node = m.node("f");
    let groups = vec![9, 10];
    let user = Arc::new(Credential {
        uid: 7,
        gid: 8,
        groups,
    });
    let f = block_on(m.fs.open(&user, node, RW)).unwrap().handle;
    m.write(f, 0, b"his").unwrap();
    let m = m.killed();
    let g = m.open(node, RW).unwrap();
    // Another user's data waits until it is safe.
    assert!(m.fs.write_cached(g, 3, &b"mine"[..], RW).is_none());
    m.write(f, 3, b"!").unwrap();
    m.write(g, 4, b"mine").unwrap();
    assert_eq!(m.server.durable("f").unwrap(), b"his!");
    m.close(f).unwrap();
    m.close(g).unwrap();
    assert_eq!(m.server.durable("f").unwrap(), b"his!mine");
}

/// Its program was killed, and the kernel has forgotten the file.
#[test]
fn it_is_written_although_nobody_knows_the_file() {
    let m = Mount::keeping();
    let (node, f) = m.create("f");
    m.write(f, 0, b"data").unwrap();
    m.fs.forget(node, 1);
    let m = m.killed();
    block_on(m.fs.write_back_all());
    assert_eq!(m.server.durable("f").unwrap(), b"data");
    m.release(f);
    let m = m.killed();
    assert!(m.records.nodes().peek(|_| ()).is_empty());
}

/// That its data could not be written is told by a file that was opened before.
#[test]
fn an_error_of_writing_it_is_told() {
    let m = Mount::keeping();
    let (_, f) = m.create("f");
    m.write(f, 0, b"much").unwrap();
    let m = m.killed();
    m.fate(Op::Write, Fate::Refused(Status::NoSpc));
    assert_eq!(errno(m.fsync(f)), libc::ENOSPC);
    m.server.clear_hook();
    let m = m.killed();
    m.close(f).unwrap();
    assert_eq!(m.server.contents("f").unwrap(), b"");
}
