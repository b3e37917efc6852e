//! A property test of [`Pages`] against a flat file and a model of a server that can restart.

use super::{PAGE, Pages, Verdict, WriteData, WriteJob};
use nfsrdma_rdma::{Buf, BufMut, Pool};
use nfsrdma_xdr::nfs3::{Stable, Verifier};
use proptest::prelude::*;
use std::ops::Range;

const SPACE: usize = 40 << 10;

#[derive(Debug, Clone)]
enum Step {
    Write(usize, usize, u8),
    /// First page, number of pages, and byte: written from a buffer that can become a block.
    WriteBuffer(usize, usize, u8),
    Read(usize, usize),
    /// Send a WRITE of at most this many bytes; whether it must be full.
    Send(usize, bool),
    /// The server answers the oldest WRITE: it accepts this share (of 255) of it, stable or not.
    Answer(u8, bool),
    Refuse,
    GiveUp,
    Commit,
    AnswerCommit,
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
    let at = 0..SPACE;
    let len = prop_oneof![1usize..100, 1000usize..9000];
    let step = prop_oneof![
        8 => (at.clone(), len.clone(), any::<u8>()).prop_map(|(a, l, b)| Step::Write(a, l, b)),
        3 => (at.clone(), 1usize..5, any::<u8>())
            .prop_map(|(a, n, b)| Step::WriteBuffer(a / PAGE as usize, n, b)),
        6 => (at.clone(), len.clone()).prop_map(|(a, l)| Step::Read(a, l)),
        5 => (prop_oneof![Just(512usize), Just(4096), Just(16384)], any::<bool>())
            .prop_map(|(most, full)| Step::Send(most, full)),
        4 => (1u8..=255, any::<bool>()).prop_map(|(share, stable)| Step::Answer(share, stable)),
        1 => Just(Step::Refuse),
        1 => Just(Step::GiveUp),
        2 => Just(Step::Commit),
        2 => Just(Step::AnswerCommit),
        1 => Just(Step::Restart),
        1 => at.clone().prop_map(Step::Truncate),
        1 => Just(Step::Invalidate),
        4 => (at.clone(), len.clone()).prop_map(|(a, l)| Step::Ahead(a, l)),
        1 => Just(Step::Evict),
        2 => (at, len).prop_map(|(a, l)| Step::Hold(a, l)),
    ];
    prop::collection::vec(step, 1..80)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Where {
    /// Programs see the byte in `truth`, and it reaches the server.
    Sure,
    /// A WRITE was refused: programs see the server's byte, until the server restarts.
    Refused,
    /// A WRITE was refused, and the server has lost the byte in a restart.
    Unknown,
}

struct World {
    pages: Pages,
    pool: Pool,
    /// The contents of the file that programs have to see.
    truth: Vec<u8>,
    /// For each byte, whether a WRITE of it was refused: the client no longer keeps what the byte
    /// was before, so a restart of the server may change it, as no program was told otherwise.
    refused: Vec<Where>,
    /// What the server would return now; `stable`: what survives its restart.
    volatile: Vec<u8>,
    stable: Vec<u8>,
    verifier: u64,
    sent: Vec<WriteJob>,
    committing: bool,
    held: Vec<(Buf, Vec<u8>)>,
    seen: u64,
}

fn put(file: &mut Vec<u8>, at: usize, data: &[u8]) {
    if file.len() < at + data.len() {
        file.resize(at + data.len(), 0);
    }
    file[at..at + data.len()].copy_from_slice(data);
}

impl World {
    fn new() -> Self {
        World {
            pages: Pages::default(),
            pool: Pool::new(8 << 20).unwrap(),
            truth: Vec::new(),
            refused: Vec::new(),
            volatile: Vec::new(),
            stable: Vec::new(),
            verifier: 1,
            sent: Vec::new(),
            committing: false,
            held: Vec::new(),
            seen: 1,
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
            if let Some(found) = self.pages.take(range.clone()) {
                let dirty = self.pages.is_unsaved(range.clone());
                assert!(dirty || range.is_empty() || self.pages.get(range.clone()).is_none());
                return found.into_vec();
            }
            let missing = self.pages.missing(range.clone());
            let missing = missing.expect("take found something missing");
            assert!(
                !missing.is_empty() && missing.start >= range.start && missing.end <= range.end
            );
            self.read_ahead(missing);
        }
        panic!("reading makes no progress");
    }

    fn read_ahead(&mut self, range: Range<u64>) {
        for piece in self.pages.plan(range, 16 << 10) {
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
            self.pages.fill(
                piece.offset,
                buf.freeze(),
                known as u32,
                &mut Self::alloc(&self.pool),
            );
        }
    }

    fn check(&mut self, range: Range<u64>) {
        let found: Vec<u8> = self
            .read(range.clone())
            .iter()
            .flat_map(|b| b.to_vec())
            .collect();
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
        self.refused.resize(size, Where::Sure);
    }

    fn answer(&mut self, share: u8, stable: bool) {
        if self.sent.is_empty() {
            return;
        }
        let job = self.sent.remove(0);
        let count = (job.len as usize * usize::from(share)).div_ceil(255).max(1);
        let data: Vec<u8> = job.data.iter().flat_map(|b| b.to_vec()).collect();
        assert_eq!(data.len(), job.len as usize);
        put(&mut self.volatile, job.offset as usize, &data[..count]);
        if stable {
            put(&mut self.stable, job.offset as usize, &data[..count]);
        }
        let committed = if stable {
            Stable::FileSync
        } else {
            Stable::Unstable
        };
        let range = job.offset..job.offset + u64::from(job.len);
        let verifier = Verifier(self.verifier.to_be_bytes());
        let verdict = self
            .pages
            .end_write(range, count as u32, committed, verifier);
        if verdict == Verdict::Restarted {
            assert_ne!(self.seen, self.verifier);
        }
        self.seen = self.verifier;
    }

    fn answer_commit(&mut self) {
        if !std::mem::take(&mut self.committing) {
            return;
        }
        self.stable = self.volatile.clone();
        self.pages.end_commit(Verifier(self.verifier.to_be_bytes()));
        self.seen = self.verifier;
    }

    /// A WRITE of `range` was refused: programs see the server's bytes again.
    fn lose(&mut self, range: Range<u64>) {
        let end = self.truth.len().min(range.end as usize);
        for at in range.start as usize..end {
            if self.pages.get(at as u64..at as u64 + 1).is_none() {
                self.truth[at] = self.volatile.get(at).copied().unwrap_or(0);
                self.refused[at] = Where::Refused;
            }
        }
    }

    fn write(&mut self, at: usize, bytes: &[u8], data: WriteData<'_>) {
        let mut alloc = Self::alloc(&self.pool);
        let taken = self.pages.write(at as u64, data, &mut alloc);
        assert_eq!(taken, bytes.len());
        self.resize(self.truth.len().max(at + taken));
        put(&mut self.truth, at, bytes);
        self.refused[at..at + taken].fill(Where::Sure);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Write(at, len, byte) => {
                let data: Vec<u8> = (0..len).map(|i| byte.wrapping_add(i as u8)).collect();
                self.write(at, &data, WriteData::from(&data));
            }
            Step::WriteBuffer(page, pages, byte) => {
                let (at, len) = (page * PAGE as usize, pages * PAGE as usize);
                let mut buf = self
                    .pool
                    .alloc(len)
                    .expect("the pool is larger than the file");
                buf.fill(byte);
                let buf = buf.freeze();
                self.write(at, &buf, WriteData::from(&buf));
            }
            Step::Read(at, len) => self.check(self.inside(at, len)),
            Step::Send(most, full) => {
                if let Some(job) = self.pages.begin_write(0..u64::MAX, most as u32, full) {
                    assert!(job.len as usize <= most && job.len > 0);
                    assert!(!full || job.len as usize == most);
                    self.sent.push(job);
                }
            }
            Step::Answer(share, stable) => self.answer(share, stable),
            Step::Refuse => {
                if !self.sent.is_empty() {
                    let job = self.sent.remove(0);
                    let range = job.offset..job.offset + u64::from(job.len);
                    self.pages.fail_write(range.clone());
                    self.lose(range);
                }
            }
            Step::GiveUp => {
                if !self.sent.is_empty() {
                    let job = self.sent.remove(0);
                    self.pages
                        .retry_write(job.offset..job.offset + u64::from(job.len));
                }
            }
            Step::Commit => {
                if !self.committing {
                    self.committing = self.pages.uncommitted() > 0;
                    self.pages.begin_commit();
                }
            }
            Step::AnswerCommit => self.answer_commit(),
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
                    self.answer(255, false);
                }
                self.pages.truncate(size as u64);
                self.resize(size.min(self.truth.len()));
                for file in [&mut self.volatile, &mut self.stable] {
                    file.truncate(size);
                }
            }
            Step::Invalidate => self.pages.invalidate(),
            Step::Ahead(at, len) => self.read_ahead(self.inside(at, len)),
            Step::Evict => self.pages.invalidate_range(0..u64::MAX),
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
        let resident = self.pages.resident();
        assert!(resident <= SPACE + (32 << 10) && resident.is_multiple_of(PAGE as usize));
    }

    /// Writes and commits until everything is on stable storage.
    fn flush(&mut self) {
        for _ in 0..1000 {
            while !self.sent.is_empty() {
                self.answer(255, false);
            }
            if let Some(job) = self.pages.begin_write(0..u64::MAX, 16 << 10, false) {
                self.sent.push(job);
            } else if self.committing || self.pages.uncommitted() > 0 {
                self.pages.begin_commit();
                self.committing = true;
                self.answer_commit();
            } else {
                break;
            }
        }
        assert_eq!(
            (
                self.pages.dirty(),
                self.pages.writing(),
                self.pages.uncommitted()
            ),
            (0, 0, 0)
        );
        assert!(self.pages.unsaved().is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases * 3 / 2))]

    #[test]
    fn programs_see_what_they_wrote_and_the_server_gets_it(steps in steps()) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
        world.flush();
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
        prop_assert_eq!(world.pages.resident(), 0);
        prop_assert!(!world.pages.has_clean());
        drop(world.pages.take_dropped());
        world.held.clear();
        drop(world.sent);
        prop_assert_eq!(world.pool.free_bytes(), world.pool.capacity());
    }
}
