//! Single cases of [`WriteBack`]: what is sent, and what a restart or an error of the server means for it.

use super::{Accepted, Action, Goal, PAGE, WriteBack, WriteCall, WriteLimits};
use nfsrdma_nfs3::{Cred, Credential};
use nfsrdma_rdma::Pool;
use nfsrdma_xdr::nfs3::{Stable, Verifier};
use std::sync::Arc;

pub(super) const WTMAX: u32 = 4096;

pub(super) fn user_with(uid: u32) -> Cred {
    let (gid, groups) = (0, Vec::new());
    Arc::new(Credential { uid, gid, groups })
}

pub(super) fn written(at: impl IntoIterator<Item = u64>, len: usize) -> (Pool, WriteBack) {
    let pool = Pool::new(64 << 20).unwrap();
    let mut file = WriteBack::default();
    for at in at {
        let mut alloc = |len: usize| pool.alloc(len);
        let accepted = file.write(&user_with(0), at, &vec![7; len], 0, usize::MAX, &mut alloc);
        assert_eq!(accepted, Accepted::All);
    }
    (pool, file)
}

pub(super) fn limits() -> WriteLimits {
    WriteLimits {
        wtmax: 1 << 20,
        free: 100,
        most_bytes: 1 << 30,
        dirty_file_bytes: 12 << 10,
        crowded: false,
    }
}

pub(super) fn answer(file: &mut WriteBack, call: WriteCall, committed: Stable, verifier: Verifier) {
    let (offset, len) = (call.job.offset, call.job.len);
    drop(call);
    file.write_answered(offset..offset + u64::from(len), len, committed, verifier);
    file.write_ended(0..0);
}

#[test]
fn dirty_memory_is_counted_as_it_is_held() {
    let (_pool, mut file) = written((0..100).map(|n| n * 2 * PAGE), 8);
    assert_eq!(file.pages().dirty(), 800);
    assert_eq!(file.pages().dirty_held(), 100 * PAGE);
    assert_eq!(file.pages().uncommitted_held(), 0);
    while let Action::Write(call) = file.next(Goal::Started, &limits()) {
        answer(&mut file, call, Stable::Unstable, Verifier::default());
    }
    assert_eq!(file.pages().dirty_held(), 0);
    assert_eq!(file.pages().uncommitted_held(), 100 * PAGE);
}

#[test]
fn only_what_was_written_is_sent_whether_the_rest_of_the_page_is_known_or_not() {
    for valid in [true, false] {
        let pool = Pool::new(4 << 20).unwrap();
        let mut file = WriteBack::default();
        let mut alloc = |len: usize| pool.alloc(len);
        if valid {
            let mut buf = pool.alloc(64 * PAGE as usize).unwrap();
            buf.fill(1);
            file.pages()
                .fill(0, buf.freeze(), 64 * PAGE as u32, &mut alloc);
        }
        for n in 0..64 {
            // Two that touch, and one a byte behind them.
            for at in [100, 108, 117] {
                file.write(
                    &user_with(0),
                    n * PAGE + at,
                    &[7; 8],
                    0,
                    usize::MAX,
                    &mut alloc,
                );
            }
        }
        let mut sent = Vec::new();
        while let Action::Write(call) = file.next(Goal::Started, &limits()) {
            sent.push((call.job.offset, call.job.len));
        }
        let expected = (0..64).flat_map(|n| [(n * PAGE + 100, 16), (n * PAGE + 117, 8)]);
        assert_eq!(sent, expected.collect::<Vec<_>>());
    }
}

#[test]
fn what_touches_is_one_write_wherever_the_last_one_ended() {
    let (pool, mut file) = written([0], 100);
    let mut sent = Vec::new();
    for len in [100, 200] {
        file.write(&user_with(0), 0, &vec![7; len], 0, usize::MAX, &mut |len| {
            pool.alloc(len)
        });
        while let Action::Write(call) = file.next(Goal::Started, &limits()) {
            let (offset, len) = (call.job.offset, call.job.len);
            sent.push((offset, len));
            let all = offset..offset + u64::from(len);
            file.write_answered(all, len, Stable::FileSync, Verifier::default());
            file.write_ended(0..0);
        }
    }
    assert_eq!(sent, [(0, 100), (0, 200)]);
}

/// A file of 5,000 blocks with 8 uncommitted bytes in each.
fn uncommitted() -> (Pool, WriteBack) {
    let (pool, mut file) = written((0..5000).map(|n| n * 2 * PAGE), 8);
    while let Action::Write(call) = file.next(Goal::Started, &limits()) {
        answer(&mut file, call, Stable::Unstable, Verifier::default());
    }
    (pool, file)
}

#[test]
fn what_a_restarted_server_forgot_is_written_again() {
    let commit = |file: &mut WriteBack| file.next(Goal::Committed, &limits());
    let (_pool, mut file) = uncommitted();
    assert!(matches!(commit(&mut file), Action::Commit(_)));
    file.commit_answered(Verifier([1; 8]));
    file.commit_ended();
    assert_eq!(
        (file.pages().dirty(), file.pages().uncommitted()),
        (40_000, 0)
    );
    // The same with the reply to a WRITE.
    let (pool, mut file) = uncommitted();
    file.write(&user_with(0), PAGE, &[1; 8], 0, usize::MAX, &mut |len| {
        pool.alloc(len)
    });
    let Action::Write(call) = file.next(Goal::Started, &limits()) else {
        panic!("there is something to write");
    };
    let sent = call.job.offset..call.job.offset + 8;
    file.write_answered(sent, 8, Stable::FileSync, Verifier([1; 8]));
    file.write_ended(0..0);
    assert_eq!(
        (file.pages().dirty(), file.pages().uncommitted()),
        (40_000, 0)
    );
    assert!(matches!(commit(&mut file), Action::Write(_)));
}

#[test]
fn what_a_commit_that_was_given_up_covered_is_covered_by_the_next() {
    let (_pool, mut file) = uncommitted();
    let commit = file.next(Goal::Committed, &limits());
    assert!(matches!(commit, Action::Commit(_)));
    file.commit_ended();
    assert!(!file.is_safe());
    let commit = file.next(Goal::Committed, &limits());
    assert!(matches!(commit, Action::Commit(_)));
    file.commit_answered(Verifier::default());
    file.commit_ended();
    assert!(file.is_safe());
}
