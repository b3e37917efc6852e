//! A property test of [`WriteBack`] and its pages, driven as the file system drives them, against a flat
//! file and a model of a server that can restart, refuse, accept less, and answer calls in any order.

use super::write_back::MOST_RESTARTS;
use super::write_back_tests::{WTMAX, user_with};
use super::{Accepted, Action, Goal, PAGE, Verdict, WriteBack, WriteCall, WriteData, WriteLimits};
use nfsrdma_rdma::{Buf, BufMut, Pool};
use nfsrdma_xdr::nfs3::{Stable, Verifier};
use proptest::prelude::*;
use std::ops::Range;

const SPACE: usize = 40 << 10;

#[derive(Debug, Clone)]
enum Step {
    /// Where, the number of bytes, the first one, and the user.
    Write(usize, usize, u8, u8),
    /// First page, number of pages, and byte: written from a buffer that can become a block.
    WriteBuffer(usize, usize, u8),
    Read(usize, usize),
    /// With WRITEs of at most so many bytes, of which so many are free.
    Ask(Goal, usize, u32),
    /// One of the WRITEs under way is answered: the server accepted this share (of 255) of it, stable or not.
    Answer(usize, u8, bool),
    Refuse(usize),
    GiveUp(usize),
    /// Also while WRITEs are under way.
    Commit,
    AnswerCommit,
    RefuseCommit,
    GiveUpCommit,
    Restart,
    Truncate(usize),
    Invalidate,
    /// Data is read that nobody has asked for.
    Ahead(usize, usize),
    Evict,
    /// Keep the buffers that are read now, to check that they do not change.
    Hold(usize, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let at = || 0..SPACE;
    let len = || prop_oneof![1 => 1usize..16, 1 => 1usize..100, 2 => 1000usize..9000];
    let goal = prop_oneof![
        Just(Goal::Full),
        Just(Goal::Started),
        Just(Goal::Written),
        Just(Goal::Committed),
    ];
    let wtmax = prop_oneof![Just(512u32), Just(WTMAX), Just(16_384)];
    let step = prop_oneof![
        16 => (at(), len(), any::<u8>(), 0u8..16)
            .prop_map(|(at, len, byte, user)| Step::Write(at, len, byte, u8::from(user == 0))),
        6 => (at(), 1usize..5, any::<u8>())
            .prop_map(|(at, pages, byte)| Step::WriteBuffer(at / PAGE as usize, pages, byte)),
        12 => (at(), len()).prop_map(|(at, len)| Step::Read(at, len)),
        16 => (goal, 0usize..4, wtmax).prop_map(|(goal, free, wtmax)| Step::Ask(goal, free, wtmax)),
        10 => (0usize..8, 1u8..=255, any::<bool>())
            .prop_map(|(which, share, stable)| Step::Answer(which, share, stable)),
        2 => (0usize..8).prop_map(Step::Refuse),
        2 => (0usize..8).prop_map(Step::GiveUp),
        5 => Just(Step::Commit),
        6 => Just(Step::AnswerCommit),
        2 => Just(Step::RefuseCommit),
        2 => Just(Step::GiveUpCommit),
        2 => Just(Step::Restart),
        2 => at().prop_map(Step::Truncate),
        2 => Just(Step::Invalidate),
        8 => (at(), len()).prop_map(|(at, len)| Step::Ahead(at, len)),
        2 => Just(Step::Evict),
        4 => (at(), len()).prop_map(|(at, len)| Step::Hold(at, len)),
    ];
    prop::collection::vec(step, 1..100)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Where {
    /// Programs see the byte in `truth`, and it reaches the server.
    Sure,
    /// A WRITE or COMMIT was refused: programs see the server's byte, until the server restarts.
    Refused,
    /// A WRITE or COMMIT was refused, and the server has lost the byte in a restart.
    Unknown,
}

struct World {
    file: WriteBack,
    pool: Pool,
    /// The contents of the file that programs have to see.
    truth: Vec<u8>,
    /// The bytes that no program wrote.
    untouched: Vec<bool>,
    /// For each byte, whether a WRITE or COMMIT of it was refused: the client no longer keeps what the
    /// byte was before, so a restart of the server may change it, as no program was told otherwise.
    refused: Vec<Where>,
    /// What the server would return now; `stable`: what survives its restart.
    volatile: Vec<u8>,
    stable: Vec<u8>,
    verifier: u64,
    seen: u64,
    sent: Vec<WriteCall>,
    committing: bool,
    held: Vec<(Buf, Vec<u8>)>,
    now: u64,
}

fn put(file: &mut Vec<u8>, at: usize, data: &[u8]) {
    if file.len() < at + data.len() {
        file.resize(at + data.len(), 0);
    }
    file[at..at + data.len()].copy_from_slice(data);
}

fn bytes_of(data: &[Buf]) -> Vec<u8> {
    data.iter().flat_map(|buf| buf.to_vec()).collect()
}

fn range_of(call: &WriteCall) -> Range<u64> {
    call.job.offset..call.job.offset + u64::from(call.job.len)
}

impl World {
    fn new() -> Self {
        // What the server has at the beginning.
        let before: Vec<u8> = (0..SPACE / 2).map(|at| at as u8).collect();
        World {
            file: WriteBack::default(),
            pool: Pool::new(8 << 20).unwrap(),
            truth: before.clone(),
            untouched: vec![true; before.len()],
            refused: vec![Where::Sure; before.len()],
            volatile: before.clone(),
            stable: before,
            verifier: 1,
            seen: 1,
            sent: Vec::new(),
            committing: false,
            held: Vec::new(),
            now: 0,
        }
    }

    fn limits(free: usize, wtmax: u32) -> WriteLimits {
        WriteLimits {
            wtmax,
            free,
            most_bytes: 3 * u64::from(WTMAX),
            dirty_file_bytes: SPACE / 2,
            crowded: false,
        }
    }

    fn alloc(pool: &Pool) -> impl FnMut(usize) -> Option<BufMut> + use<> {
        let pool = pool.clone();
        move |len| {
            let mut buf = pool.alloc(len)?;
            // Bytes that a bug leaves unset differ from all data.
            buf.fill(0xee);
            Some(buf)
        }
    }

    fn inside(&self, at: usize, len: usize) -> Range<u64> {
        let end = (at + len).min(self.truth.len()) as u64;
        (at as u64).min(end)..end
    }

    /// Reads as the file system does: missing data is fetched from the server.
    fn read(&mut self, range: Range<u64>) -> Vec<Buf> {
        for _ in 0..100 {
            let pages = self.file.pages();
            if let Some(found) = pages.take(range.clone()) {
                let dirty = pages.is_unsaved(range.clone());
                assert!(dirty || range.is_empty() || pages.get(range.clone()).is_none());
                return found.into_vec();
            }
            let missing = pages.missing(range.clone());
            let missing = missing.expect("take found something missing");
            assert!(
                !missing.is_empty() && missing.start >= range.start && missing.end <= range.end
            );
            self.read_ahead(missing);
        }
        panic!("reading makes no progress");
    }

    fn read_ahead(&mut self, range: Range<u64>) {
        for piece in self.file.pages().plan(range, 16 << 10) {
            assert_eq!(piece.offset % PAGE, 0);
            assert!(piece.len.is_power_of_two());
            let mut buf = Self::alloc(&self.pool)(piece.len as usize).unwrap();
            let from = piece.offset as usize;
            let have = self.volatile.get(from..).unwrap_or_default();
            let n = have.len().min(buf.len());
            buf[..n].copy_from_slice(&have[..n]);
            // After the server's end there are zeros up to the end known here.
            let known = self.truth.len().saturating_sub(from).clamp(n, buf.len());
            buf[n..known].fill(0);
            let mut alloc = Self::alloc(&self.pool);
            let pages = self.file.pages();
            pages.fill(piece.offset, buf.freeze(), known as u32, &mut alloc);
        }
    }

    fn check(&mut self, range: Range<u64>) {
        let found = bytes_of(&self.read(range.clone()));
        assert_eq!(found.len() as u64, range.end - range.start);
        for (at, byte) in (range.start as usize..).zip(found) {
            assert!(
                byte == self.truth[at] || self.refused[at] == Where::Unknown,
                "byte {at} of {range:?}"
            );
        }
    }

    fn resize(&mut self, size: usize) {
        self.truth.resize(size, 0);
        self.untouched.resize(size, true);
        self.refused.resize(size, Where::Sure);
    }

    fn write(&mut self, at: usize, bytes: &[u8], data: WriteData<'_>, user: u8) {
        self.now += 1;
        let idle = self.file.is_safe() && !self.file.is_under_way();
        let held = self.file.pages().dirty_held() as usize;
        let (most, len) = (SPACE, bytes.len());
        let (user, mut alloc) = (user_with(user.into()), Self::alloc(&self.pool));
        let written = self
            .file
            .write(&user, at as u64, data, self.now, most, &mut alloc);
        match written {
            Accepted::All => {
                self.resize(self.truth.len().max(at + len));
                put(&mut self.truth, at, bytes);
                self.untouched[at..at + len].fill(false);
                self.refused[at..at + len].fill(Where::Sure);
                assert!(self.file.end() >= (at + len) as u64);
                assert!(!self.file.is_safe());
            }
            Accepted::Wait => assert!(held > 0 && held + len > most),
            Accepted::OtherUser => assert!(!idle),
            Accepted::Full => panic!("it knows no other files"),
            Accepted::Short(_) => panic!("there is memory"),
        }
    }

    /// Asks for the next action once, and checks it. False if nothing can be done now.
    fn ask(&mut self, goal: Goal, limits: &WriteLimits) -> bool {
        let half = self.file.pages().dirty_held() as usize > limits.dirty_file_bytes / 2;
        match self.file.next(goal, limits) {
            Action::Write(call) => {
                assert!(goal != Goal::Full || half || call.job.len == limits.wtmax);
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
        let (range, len) = (range_of(call), call.job.len);
        assert!(len > 0 && len <= limits.wtmax);
        assert!(self.sent.len() < 2 || limits.free > 0, "too many WRITEs");
        for other in self.sent.iter().map(range_of) {
            assert!(other.end <= range.start || range.end <= other.start);
        }
        // After many restarts of the server each WRITE is.
        if call.stable == Stable::FileSync && self.file.restarts < MOST_RESTARTS {
            assert!(self.sent.is_empty() && !self.committing);
        }
        let data = bytes_of(&call.job.data);
        assert_eq!(data.len(), len as usize);
        for (at, byte) in (range.start as usize..).zip(data) {
            let right = byte == self.truth[at] || self.refused[at] != Where::Sure;
            assert!(right, "byte {at}");
            assert!(!self.untouched[at], "no program wrote byte {at}");
        }
    }

    fn take(&mut self, which: usize) -> Option<WriteCall> {
        let at = which.checked_rem(self.sent.len())?;
        Some(self.sent.remove(at))
    }

    /// The server has told its verifier.
    fn hear(&mut self, verdict: Verdict) {
        assert!(verdict != Verdict::Restarted || self.seen != self.verifier);
        self.seen = self.verifier;
    }

    fn answer(&mut self, which: usize, share: u8, stable: bool) {
        let Some(call) = self.take(which) else { return };
        let (range, from) = (range_of(&call), call.job.offset as usize);
        let count = (call.job.len as usize * usize::from(share)).div_ceil(255);
        let count = count.max(1);
        let data = bytes_of(&call.job.data);
        put(&mut self.volatile, from, &data[..count]);
        let committed = match stable || call.stable == Stable::FileSync {
            true => Stable::FileSync,
            false => Stable::Unstable,
        };
        if committed == Stable::FileSync {
            put(&mut self.stable, from, &data[..count]);
        }
        drop(call);
        let verifier = Verifier(self.verifier.to_be_bytes());
        let verdict = self
            .file
            .write_answered(range, count as u32, committed, verifier);
        self.hear(verdict);
        self.file.write_ended(0..0);
    }

    fn answer_commit(&mut self) {
        if std::mem::take(&mut self.committing) {
            self.stable = self.volatile.clone();
            let verifier = Verifier(self.verifier.to_be_bytes());
            let verdict = self.file.commit_answered(verifier);
            self.hear(verdict);
            self.file.commit_ended();
        }
    }

    /// A WRITE or COMMIT of `range` was refused: programs see the server's bytes again.
    fn lose(&mut self, range: Range<u64>) {
        let end = self.truth.len().min(range.end as usize);
        for at in range.start as usize..end {
            if self.file.pages().get(at as u64..at as u64 + 1).is_none() {
                self.truth[at] = self.volatile.get(at).copied().unwrap_or(0);
                self.refused[at] = Where::Refused;
            }
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Write(at, len, byte, user) => {
                let data: Vec<u8> = (0..len).map(|i| byte.wrapping_add(i as u8)).collect();
                self.write(at, &data, WriteData::from(&data), user);
            }
            Step::WriteBuffer(page, pages, byte) => {
                let (at, len) = (page * PAGE as usize, pages * PAGE as usize);
                let mut buf = self.pool.alloc(len).unwrap();
                buf.fill(byte);
                let buf = buf.freeze();
                self.write(at, &buf, WriteData::from(&buf), 0);
            }
            Step::Read(at, len) => self.check(self.inside(at, len)),
            Step::Ask(goal, free, wtmax) => {
                self.ask(goal, &Self::limits(free, wtmax));
            }
            Step::Answer(which, share, stable) => self.answer(which, share, stable),
            Step::Refuse(which) => {
                if let Some(call) = self.take(which) {
                    let sent = range_of(&call);
                    self.file.write_failed(sent.clone());
                    self.lose(sent);
                    self.file.write_ended(0..0);
                }
            }
            Step::GiveUp(which) => {
                if let Some(call) = self.take(which) {
                    self.file.write_ended(range_of(&call));
                }
            }
            Step::Commit => {
                if let Action::Commit(_) = self.file.commit_of(1) {
                    assert!(!self.committing);
                    self.committing = true;
                }
            }
            Step::AnswerCommit => self.answer_commit(),
            Step::RefuseCommit => {
                if std::mem::take(&mut self.committing) {
                    for lost in self.file.commit_failed() {
                        self.lose(lost);
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
                for at in 0..self.truth.len() {
                    if self.refused[at] == Where::Refused
                        && self.volatile.get(at) != self.stable.get(at)
                    {
                        self.refused[at] = Where::Unknown;
                    }
                }
                self.volatile = self.stable.clone();
            }
            Step::Truncate(size) => {
                // The file system waits for WRITEs before it sends SETATTR.
                while !self.sent.is_empty() {
                    self.answer(0, 255, false);
                }
                self.file.truncate(size as u64);
                self.resize(size.min(self.truth.len()));
                for file in [&mut self.volatile, &mut self.stable] {
                    file.truncate(size);
                }
            }
            Step::Invalidate => self.file.pages().invalidate(),
            Step::Ahead(at, len) => self.read_ahead(self.inside(at, len)),
            Step::Evict => self.file.pages().invalidate_range(0..u64::MAX),
            Step::Hold(at, len) => {
                for buf in self.read(self.inside(at, len)) {
                    let copy = buf.to_vec();
                    self.held.push((buf, copy));
                }
                if self.held.len() > 20 {
                    self.held.drain(..10);
                }
            }
        }
        for (buf, copy) in &self.held {
            assert!(buf[..] == copy[..], "a buffer in use changed");
        }
        assert_eq!(self.file.writes(), self.sent.len());
        let written = self.file.is_dirty() || self.file.pages().uncommitted() > 0;
        assert_eq!(written, !self.file.is_safe());
        let resident = self.file.pages().resident();
        assert!(resident <= SPACE + (32 << 10) && resident.is_multiple_of(PAGE as usize));
    }

    /// A flush, as the file system does it.
    fn flush(&mut self) {
        for _ in 0..10_000 {
            if !self.ask(Goal::Committed, &Self::limits(2, WTMAX)) {
                if self.sent.is_empty() && !self.committing {
                    break;
                }
                self.answer(0, 255, false);
                self.answer_commit();
            }
        }
        assert!(self.file.is_safe() && !self.file.is_under_way());
        assert!(self.file.pages().unsaved().is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases * 5 / 2))]

    #[test]
    fn programs_see_what_they_wrote_and_the_server_keeps_it(steps in steps()) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
        world.flush();
        let pages = world.file.pages();
        prop_assert_eq!((pages.dirty_held(), pages.uncommitted_held()), (0, 0));
        // What is left was read, and not written.
        let left = pages.resident();
        prop_assert_eq!(pages.has_clean(), left > 0);
        world.check(0..world.truth.len() as u64);
        // A file that was truncated and extended may be shorter at the server: the rest is zeros.
        world.stable.resize(world.truth.len(), 0);
        world.volatile.resize(world.truth.len(), 0);
        for at in 0..world.truth.len() {
            let kept = match world.refused[at] {
                Where::Sure => world.stable[at] == world.truth[at],
                // The server's own byte need not be committed.
                Where::Refused => world.volatile[at] == world.truth[at],
                Where::Unknown => true,
            };
            prop_assert!(kept, "byte {}", at);
        }
        // The server and the kernel have everything.
        let pages = world.file.pages();
        prop_assert_eq!(pages.resident(), 0);
        prop_assert!(!pages.has_clean());
        drop(pages.take_dropped());
        world.held.clear();
        drop(world.sent);
        prop_assert_eq!(world.pool.free_bytes(), world.pool.capacity());
    }
}
