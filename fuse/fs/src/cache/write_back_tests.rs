//! Tests of [`WriteBack`], driven as the file system drives it, against a flat file and a model of
//! a server that can restart, refuse, accept less, and answer calls in any order.

use super::write_back::MOST_RESTARTS;
use super::{Accepted, Action, Goal, PAGE, WriteBack, WriteCall, WriteLimits};
use nfsrdma_nfs3::{Cred, Credential};
use nfsrdma_rdma::{BufMut, Pool};
use nfsrdma_xdr::nfs3::{Stable, Verifier};
use proptest::prelude::*;
use std::sync::Arc;

const SPACE: usize = 24 << 10;
pub(super) const WTMAX: u32 = 4096;

#[derive(Debug, Clone)]
enum Step {
    Write {
        at: usize,
        len: usize,
        byte: u8,
        user: u8,
    },
    /// A part of the file is read into the cache.
    Fill(usize),
    Ask {
        goal: Goal,
        free: usize,
    },
    /// One of the WRITEs under way is answered: the server accepted this share (of 255) of it.
    Answer {
        which: usize,
        share: u8,
        stable: bool,
    },
    Refuse(usize),
    GiveUp(usize),
    AnswerCommit,
    RefuseCommit,
    GiveUpCommit,
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let at = 0..SPACE - 3000;
    let len = prop_oneof![3 => 1usize..16, 1 => 1usize..3000];
    let goal = prop_oneof![
        Just(Goal::Full),
        Just(Goal::Started),
        Just(Goal::Written),
        Just(Goal::Committed),
    ];
    let step = prop_oneof![
        8 => (at.clone(), len, any::<u8>(), 0u8..8)
            .prop_map(|(at, len, byte, user)| Step::Write { at, len, byte, user: u8::from(user == 0) }),
        2 => at.prop_map(Step::Fill),
        8 => (goal, 0usize..4).prop_map(|(goal, free)| Step::Ask { goal, free }),
        5 => (0usize..8, 1u8..=255, any::<bool>())
            .prop_map(|(which, share, stable)| Step::Answer { which, share, stable }),
        1 => (0usize..8).prop_map(Step::Refuse),
        1 => (0usize..8).prop_map(Step::GiveUp),
        3 => Just(Step::AnswerCommit),
        1 => Just(Step::RefuseCommit),
        1 => Just(Step::GiveUpCommit),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..100)
}

struct World {
    file: WriteBack,
    pool: Pool,
    /// What programs wrote; `untouched`: the bytes that no program wrote.
    truth: Vec<u8>,
    untouched: Vec<bool>,
    /// Bytes of which programs got an error, so they may have any value.
    refused: Vec<bool>,
    volatile: Vec<u8>,
    stable: Vec<u8>,
    verifier: u64,
    sent: Vec<WriteCall>,
    committing: bool,
    now: u64,
}

impl World {
    fn new() -> Self {
        // What the server has at the beginning.
        let before: Vec<u8> = (0..SPACE).map(|at| at as u8).collect();
        World {
            file: WriteBack::default(),
            pool: Pool::new(4 << 20).unwrap(),
            truth: before.clone(),
            untouched: vec![true; SPACE],
            refused: vec![false; SPACE],
            volatile: before.clone(),
            stable: before,
            verifier: 1,
            sent: Vec::new(),
            committing: false,
            now: 0,
        }
    }

    fn limits(free: usize) -> WriteLimits {
        WriteLimits {
            wtmax: WTMAX,
            free,
            most_bytes: 3 * u64::from(WTMAX),
            dirty_file_bytes: SPACE / 2,
            crowded: false,
        }
    }

    fn write(&mut self, at: usize, len: usize, byte: u8, user: u8) {
        let data: Vec<u8> = (0..len).map(|i| byte.wrapping_add(i as u8)).collect();
        let pool = self.pool.clone();
        let mut alloc = |len: usize| -> Option<BufMut> { pool.alloc(len) };
        self.now += 1;
        let safe = self.file.is_safe();
        let held = self.file.pages().dirty_held() as usize;
        let most = SPACE / 2;
        match self.file.write(
            &user_with(user.into()),
            at as u64,
            &data,
            self.now,
            most,
            &mut alloc,
        ) {
            Accepted::All => {
                let range = at..at + len;
                self.truth[range.clone()].copy_from_slice(&data);
                self.untouched[range.clone()].fill(false);
                self.refused[range].fill(false);
                assert!(self.file.end() >= (at + len) as u64);
                assert!(!self.file.is_safe());
            }
            Accepted::Wait => assert!(held > 0 && held + len > most),
            Accepted::OtherUser => assert!(!safe),
            Accepted::Full => panic!("it knows no other files"),
            Accepted::Short(_) => panic!("there is memory"),
        }
    }

    fn fill(&mut self, at: usize) {
        let at = at as u64 / PAGE * PAGE;
        let mut buf = self.pool.alloc(PAGE as usize).unwrap();
        let from = at as usize;
        buf.copy_from_slice(&self.volatile[from..from + PAGE as usize]);
        let pool = self.pool.clone();
        let mut alloc = |len: usize| pool.alloc(len);
        let pages = self.file.pages();
        pages.fill(at, buf.freeze(), PAGE as u32, &mut alloc);
    }

    /// Asks for the next action once, and checks it. False if nothing can be done now.
    fn ask(&mut self, goal: Goal, limits: &WriteLimits) -> bool {
        match self.file.next(goal, limits) {
            Action::Write(call) => {
                self.check_write(&call, limits);
                self.sent.push(call);
                true
            }
            Action::Commit(_) => {
                assert_eq!(goal, Goal::Committed);
                assert!(!self.committing && self.sent.is_empty());
                self.committing = true;
                true
            }
            Action::Wait => {
                let waits = !self.sent.is_empty() || self.committing;
                let background = matches!(goal, Goal::Full | Goal::Started);
                assert!(waits || background, "it waits for nothing");
                false
            }
            Action::Done => {
                assert!(!self.file.is_dirty() && self.sent.is_empty());
                assert!(goal == Goal::Written || self.file.is_safe());
                assert!(goal == Goal::Written || self.file.end() == 0);
                false
            }
        }
    }

    fn check_write(&self, call: &WriteCall, limits: &WriteLimits) {
        assert!(call.job.len > 0 && call.job.len <= WTMAX);
        assert!(self.sent.len() < 2 || limits.free > 0, "too many WRITEs");
        let end = call.job.offset + u64::from(call.job.len);
        for other in &self.sent {
            let other_end = other.job.offset + u64::from(other.job.len);
            assert!(other_end <= call.job.offset || end <= other.job.offset);
        }
        // After many restarts of the server each WRITE is.
        if call.stable == Stable::FileSync && self.file.restarts < MOST_RESTARTS {
            assert!(self.sent.is_empty() && !self.committing);
        }
        let data: Vec<u8> = call.job.data.iter().flat_map(|b| b.to_vec()).collect();
        assert_eq!(data.len(), call.job.len as usize);
        for (at, byte) in (call.job.offset as usize..).zip(data) {
            assert!(byte == self.truth[at] || self.refused[at], "byte {at}");
            assert!(!self.untouched[at], "no program wrote byte {at}");
        }
    }

    fn take(&mut self, which: usize) -> Option<WriteCall> {
        let at = which.checked_rem(self.sent.len())?;
        Some(self.sent.remove(at))
    }

    fn verifier(&self) -> Verifier {
        Verifier(self.verifier.to_be_bytes())
    }

    fn answer(&mut self, which: usize, share: u8, stable: bool) {
        let Some(call) = self.take(which) else { return };
        let (from, len) = (call.job.offset as usize, call.job.len as usize);
        let count = (len * usize::from(share)).div_ceil(255).max(1);
        let data: Vec<u8> = call.job.data.iter().flat_map(|b| b.to_vec()).collect();
        self.volatile[from..from + count].copy_from_slice(&data[..count]);
        let stable = stable || call.stable == Stable::FileSync;
        if stable {
            self.stable[from..from + count].copy_from_slice(&data[..count]);
        }
        let committed = if stable {
            Stable::FileSync
        } else {
            Stable::Unstable
        };
        let sent = call.job.offset..call.job.offset + len as u64;
        let verifier = self.verifier();
        drop(call);
        self.file
            .write_answered(sent, count as u32, committed, verifier);
        self.file.write_ended(0..0);
    }

    fn refuse(&mut self, range: std::ops::Range<u64>) {
        let range = range.start as usize..range.end as usize;
        self.refused[range].fill(true);
    }

    fn answer_commit(&mut self) {
        if std::mem::take(&mut self.committing) {
            self.stable = self.volatile.clone();
            self.file.commit_answered(self.verifier());
            self.file.commit_ended();
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Write {
                at,
                len,
                byte,
                user,
            } => self.write(at, len, byte, user),
            Step::Fill(at) => self.fill(at),
            Step::Ask { goal, free } => {
                self.ask(goal, &Self::limits(free));
            }
            Step::Answer {
                which,
                share,
                stable,
            } => self.answer(which, share, stable),
            Step::Refuse(which) => {
                if let Some(call) = self.take(which) {
                    let sent = call.job.offset..call.job.offset + u64::from(call.job.len);
                    self.file.write_failed(sent.clone());
                    self.refuse(sent);
                    self.file.write_ended(0..0);
                }
            }
            Step::GiveUp(which) => {
                if let Some(call) = self.take(which) {
                    let sent = call.job.offset..call.job.offset + u64::from(call.job.len);
                    self.file.write_ended(sent);
                }
            }
            Step::AnswerCommit => self.answer_commit(),
            Step::RefuseCommit => {
                if std::mem::take(&mut self.committing) {
                    for lost in self.file.commit_failed() {
                        self.refuse(lost);
                    }
                    self.file.commit_ended();
                }
            }
            Step::GiveUpCommit => {
                if std::mem::take(&mut self.committing) {
                    self.file.commit_ended();
                }
            }
            Step::Restart => {
                self.verifier += 1;
                self.volatile = self.stable.clone();
            }
        }
        assert_eq!(self.file.writes(), self.sent.len());
        let written = self.file.is_dirty() || self.file.pages().uncommitted() > 0;
        assert_eq!(written, !self.file.is_safe());
    }

    /// A flush, as the file system does it.
    fn flush(&mut self) {
        for _ in 0..10_000 {
            if !self.ask(Goal::Committed, &Self::limits(2)) {
                if self.sent.is_empty() && !self.committing {
                    break;
                }
                self.answer(0, 255, false);
                self.answer_commit();
            }
        }
        assert!(self.file.is_safe() && !self.file.is_under_way());
    }
}

proptest! {
    #[test]
    fn what_is_flushed_survives_a_restart(steps in steps()) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
        world.flush();
        for at in 0..SPACE {
            let kept = world.stable[at] == world.truth[at] || world.refused[at];
            prop_assert!(kept, "byte {}", at);
        }
        prop_assert!(world.file.pages().dirty_held() == 0);
        prop_assert!(world.file.pages().uncommitted_held() == 0);
        // What is left was read, and not written.
        let left = world.file.pages().resident();
        prop_assert_eq!(world.file.pages().has_clean(), left > 0);
        world.file.pages().invalidate();
        prop_assert_eq!(world.file.pages().resident(), 0);
    }
}

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
        ..World::limits(0)
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
