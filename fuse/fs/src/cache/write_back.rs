//! Write-back of one file: what has to be sent next, and what follows from the replies.
//!
//! [`WriteBack`] owns the data between a program's write(2) and the server's stable storage (RFC 1813 sections 3.3.7,
//! 3.3.21 and 4.11): which bytes are dirty, in a WRITE, unstable or in a COMMIT, with whose credential they are written,
//! and the write verifier. It does no I/O. A driver asks it for the [next action](WriteBack::next), carries that out, and
//! reports the result:
//!
//! ```text
//!   write ──▶ dirty ──next()=Write──▶ writing ──write_answered──▶ unstable (or clean)
//!               ▲                        │                            │
//!               ├── write_ended(unsent) ─┘                    next()=Commit
//!               │                                                     ▼
//!               └───── another verifier ◀─────────────────────── committing ──▶ clean
//! ```
//!
//! The cost of each call is proportional to the data that it concerns, not to all dirty data. If a COMMIT is given up
//! without a reply, the next one covers the same data.

use super::Recorder;
use super::dirty::{Verdict, WriteJob};
use super::pages::Pages;
use super::write_data::WriteData;
use crate::credential::{cred_of, kept};
use nfsrdma_nfs3::Cred;
use nfsrdma_rdma::{Buf, BufMut};
use nfsrdma_record::{Extent, Record};
use nfsrdma_xdr::nfs3::{Stable, Verifier};
use std::ops::Range;

/// The WRITEs that a file may always have under way: with two, the server has one while the reply to the other is handled.
const LEAST_WRITES: usize = 2;

/// After the server has restarted so often before all data of a file was safe, the data is sent FILE_SYNC. UNSTABLE data of a
/// server whose verifier changes each time (several machines behind one address) would be written again for ever.
pub(super) const MOST_RESTARTS: u32 = 4;

/// What a driver wants to reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// WRITEs of full size are under way; or any WRITEs, once dirty data takes half of its limit.
    Full,
    /// As many WRITEs are under way as the limits permit.
    Started,
    /// The server has all data.
    Written,
    /// The server has all data on stable storage.
    Committed,
}

/// The limits for WRITEs at this moment.
#[derive(Debug, Clone, Copy)]
pub struct WriteLimits {
    /// The most bytes of one WRITE.
    pub wtmax: u32,
    /// How many further WRITEs may be started, for all files together.
    pub free: usize,
    /// How many bytes this file may have in WRITEs.
    pub most_bytes: u64,
    /// How many bytes of memory this file's dirty data may take.
    pub dirty_file_bytes: usize,
    /// All files together have so much dirty data that small WRITEs are sent, too.
    pub crowded: bool,
}

/// One WRITE to send.
#[derive(Debug)]
pub struct WriteCall {
    pub job: WriteJob,
    pub cred: Cred,
    pub stable: Stable,
}

/// What a driver has to do next.
#[derive(Debug)]
pub enum Action {
    /// Send this WRITE, and finally call [`WriteBack::write_ended`].
    Write(WriteCall),
    /// Send a COMMIT of the whole file, and finally call [`WriteBack::commit_ended`].
    Commit(Cred),
    /// Ask again when a call under way has ended.
    Wait,
    /// The goal is reached.
    Done,
}

/// Whether data that a program wrote was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepted {
    All,
    /// Not now: too much of the file is dirty, or the file is being flushed. Try again.
    Wait,
    /// Not now: too much of all files is dirty. Try again.
    Full,
    /// Only so many bytes, because memory is short. Try again with the rest.
    Short(usize),
    /// Not now: another user's data must be on stable storage first.
    OtherUser,
}

/// The written data of one file on its way to the server.
#[derive(Debug, Default)]
pub struct WriteBack {
    pages: Pages,
    writes: usize,
    /// A COMMIT is under way; or it failed, and its error is not reported yet.
    committing: bool,
    /// How many flushes are under way: programs' writes wait meanwhile.
    flushing: usize,
    /// How many COMMITs have ended, and WRITEs beside which there was none.
    ended: u64,
    /// `ended` when data was first accepted during the present flush ([`WriteBack::write_late`]).
    admitted: Option<u64>,
    /// The credential of the data that is not on stable storage. Data of another user is accepted only when all of it
    /// is: data that a restarting server loses is written again with this credential.
    cred: Option<Cred>,
    end: u64,
    /// When the file became dirty.
    dirtied: u64,
    /// How often the server has restarted since all data was safe.
    pub(super) restarts: u32,
}

impl WriteBack {
    /// Records data for the next process.
    pub fn recorded(recorder: Recorder) -> Self {
        let mut new = Self::default();
        new.pages.recorder = Some(recorder);
        new
    }

    /// Data that an earlier process has recorded is dirty again. Later records come first, and
    /// have a part of `buf`. False if there was no memory.
    pub fn restore(
        &mut self,
        record: Record<Extent>,
        buf: &Buf,
        now: u64,
        alloc: &mut dyn FnMut(usize) -> Option<BufMut>,
    ) -> bool {
        if self.cred.is_none() {
            self.written_by(cred_of(&record.cred));
            self.dirtied = now;
        }
        self.end = self.end.max(record.offset + u64::from(record.range().end));
        self.pages.restore(record, buf, alloc)
    }

    fn written_by(&mut self, cred: Cred) {
        if let Some(recorder) = &mut self.pages.recorder {
            recorder.written_by(kept(&cred));
        }
        self.cred = Some(cred);
    }

    /// The cached blocks, for reading.
    pub fn pages(&mut self) -> &mut Pages {
        &mut self.pages
    }

    /// Whether there is data that the server does not have yet.
    pub fn is_dirty(&self) -> bool {
        self.pages.dirty() > 0 || self.pages.writing() > 0
    }

    /// Whether the server has all data on stable storage.
    pub fn is_safe(&self) -> bool {
        !self.is_dirty() && self.pages.uncommitted() == 0
    }

    /// With whose credential the data is written that is not on stable storage, if there is any.
    pub fn unsafe_cred(&self) -> Option<&Cred> {
        self.cred.as_ref().filter(|_| !self.is_safe())
    }

    /// Whether a WRITE or a COMMIT is under way.
    pub fn is_under_way(&self) -> bool {
        self.writes > 0 || self.committing
    }

    /// The number of WRITEs under way.
    pub fn writes(&self) -> usize {
        self.writes
    }

    /// Whether a flush is under way.
    pub fn is_flushing(&self) -> bool {
        self.flushing > 0
    }

    /// The end of the data written here that the size in the attributes may not include yet.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Whether write-back is due: the file became dirty at `before` or earlier, or only a COMMIT is
    /// left to do.
    pub fn is_due(&self, before: u64) -> bool {
        match self.is_dirty() {
            true => self.pages.dirty() > 0 && self.dirtied <= before,
            false => self.pages.uncommitted() > 0,
        }
    }

    /// Stores data that a program wrote with `cred` at time `now`, if dirty data then takes at most
    /// `dirty_file_bytes` of memory.
    pub fn write<'a>(
        &mut self,
        cred: &Cred,
        offset: u64,
        data: impl Into<WriteData<'a>>,
        now: u64,
        dirty_file_bytes: usize,
        alloc: &mut dyn FnMut(usize) -> Option<BufMut>,
    ) -> Accepted {
        if self.flushing > 0 {
            return Accepted::Wait;
        }
        self.write_late(cred, offset, data.into(), now, dirty_file_bytes, alloc)
    }

    /// As [`WriteBack::write`], also during a flush, of which the data is then part. So that no flush
    /// lasts as long as data comes, it takes such data only until a call has ended that it waits for.
    pub fn write_late(
        &mut self,
        cred: &Cred,
        offset: u64,
        data: WriteData<'_>,
        now: u64,
        dirty_file_bytes: usize,
        alloc: &mut dyn FnMut(usize) -> Option<BufMut>,
    ) -> Accepted {
        let ended = self.ended;
        if self.flushing > 0 && *self.admitted.get_or_insert(ended) != ended {
            return Accepted::Wait;
        }
        let own = self.pages.dirty_held() as usize;
        if own > 0 && own + data.len() > dirty_file_bytes {
            return Accepted::Wait;
        }
        match &self.cred {
            Some(known) if known == cred => {}
            Some(_) if !self.is_safe() || self.is_under_way() => return Accepted::OtherUser,
            _ => self.written_by(cred.clone()),
        }
        if self.pages.dirty() == 0 {
            self.dirtied = now;
        }
        let taken = self.pages.write(offset, data, alloc);
        if taken > 0 {
            self.end = self.end.max(offset + taken as u64);
        }
        match taken < data.len() {
            true => Accepted::Short(taken),
            false => Accepted::All,
        }
    }

    /// Takes back what [`WriteBack::write`] has just stored of an append at `offset`, where the file
    /// ended; `end`: [`WriteBack::end`] before.
    pub fn take_back(&mut self, offset: u64, end: u64) {
        self.pages.truncate(offset);
        self.end = end;
    }

    /// Makes programs' writes wait until [`WriteBack::end_flush`].
    pub fn begin_flush(&mut self) {
        if self.flushing == 0 {
            self.admitted = None;
        }
        self.flushing += 1;
    }

    pub fn end_flush(&mut self) {
        self.flushing -= 1;
    }

    /// The next thing to do to reach `goal`.
    pub fn next(&mut self, goal: Goal, limits: &WriteLimits) -> Action {
        match goal {
            Goal::Full | Goal::Started => {
                let half = self.pages.dirty_held() as usize > limits.dirty_file_bytes / 2;
                let full = goal == Goal::Full && !limits.crowded && !half;
                self.next_write(limits, full)
                    .map_or(Action::Wait, Action::Write)
            }
            Goal::Written | Goal::Committed => self.next_of_flush(goal, limits),
        }
    }

    fn next_of_flush(&mut self, goal: Goal, limits: &WriteLimits) -> Action {
        let commit = goal == Goal::Committed;
        let alone = commit && !self.is_under_way() && self.pages.uncommitted() == 0;
        if alone && self.pages.dirty() <= u64::from(limits.wtmax) {
            // If one WRITE has all dirty data, it is sent FILE_SYNC, and needs no COMMIT.
            if let Some(mut call) = self.write_of(0..u64::MAX, limits, false) {
                if self.pages.dirty() == 0 {
                    call.stable = Stable::FileSync;
                }
                return Action::Write(call);
            }
        }
        if let Some(call) = self.next_write(limits, false) {
            return Action::Write(call);
        }
        if self.writes > 0 || self.is_dirty() {
            return Action::Wait;
        }
        self.forget_known_end();
        match commit {
            true => self.next_commit(),
            false => Action::Done,
        }
    }

    /// A COMMIT, if at least `least` bytes of memory wait for one before they can be dropped.
    pub fn commit_of(&mut self, least: u64) -> Action {
        match self.pages.uncommitted().max(self.pages.uncommitted_held()) {
            waiting if waiting < least => Action::Done,
            _ => self.next_commit(),
        }
    }

    fn next_commit(&mut self) -> Action {
        if self.committing {
            return Action::Wait;
        }
        match &self.cred {
            Some(cred) if self.pages.uncommitted() > 0 => {
                self.committing = true;
                self.pages.begin_commit();
                Action::Commit(cred.clone())
            }
            _ => Action::Done,
        }
    }

    /// The next WRITE, if the limits permit another one.
    fn next_write(&mut self, limits: &WriteLimits, full: bool) -> Option<WriteCall> {
        let room = limits.free > 0 && self.pages.writing() < limits.most_bytes;
        if self.writes >= LEAST_WRITES && !room || !self.pages.has_idle_dirty() {
            return None;
        }
        if full {
            let run = self.pages.run();
            if run.end - run.start < u64::from(limits.wtmax) {
                return None;
            }
            return self.write_of(run, limits, true);
        }
        self.write_of(0..u64::MAX, limits, false)
    }

    fn write_of(
        &mut self,
        within: Range<u64>,
        limits: &WriteLimits,
        full: bool,
    ) -> Option<WriteCall> {
        let cred = self.cred.clone()?;
        let job = self.pages.begin_write(within, limits.wtmax, full)?;
        self.writes += 1;
        Some(WriteCall {
            job,
            cred,
            stable: match self.restarts < MOST_RESTARTS {
                true => Stable::Unstable,
                false => Stable::FileSync,
            },
        })
    }

    /// The reply to a WRITE of `sent`: the server accepted the first `count` bytes. The rest is
    /// dirty again.
    pub fn write_answered(
        &mut self,
        sent: Range<u64>,
        count: u32,
        committed: Stable,
        verifier: Verifier,
    ) -> Verdict {
        let verdict = self.pages.end_write(sent, count, committed, verifier);
        self.count_restart(verdict)
    }

    fn count_restart(&mut self, verdict: Verdict) -> Verdict {
        if verdict == Verdict::Restarted {
            self.restarts = self.restarts.saturating_add(1);
        }
        verdict
    }

    /// A WRITE of `sent` failed for good: drops its data, except what was written again meanwhile.
    /// Record the error before [`WriteBack::write_ended`].
    pub fn write_failed(&mut self, sent: Range<u64>) {
        self.pages.fail_write(sent);
    }

    /// Drops all data that is not on stable storage, but for what is in a WRITE or COMMIT, and returns its ranges.
    /// It counts as a WRITE that failed: record the error before [`WriteBack::write_ended`].
    pub fn give_up(&mut self) -> Vec<Range<u64>> {
        self.writes += 1;
        let mut lost = Vec::new();
        while let Some(job) = self.pages.begin_write(0..u64::MAX, u32::MAX, false) {
            let range = job.offset..job.offset + u64::from(job.len);
            self.pages.fail_write(range.clone());
            lost.push(range);
        }
        if let Action::Commit(_) = self.next_commit() {
            lost.extend(self.commit_failed());
            self.committing = false;
        }
        lost
    }

    /// A WRITE has ended. `unsent`: the part of it that was neither answered nor failed, and is
    /// dirty again.
    pub fn write_ended(&mut self, unsent: Range<u64>) {
        if !unsent.is_empty() {
            self.pages.retry_write(unsent);
        }
        self.writes -= 1;
        // A flush waits for a COMMIT under way however much is written meanwhile.
        self.ended += u64::from(!self.committing);
        self.forget_known_end();
    }

    /// The reply to the COMMIT: drops the data that it covered, or marks it as dirty if the server has
    /// restarted.
    pub fn commit_answered(&mut self, verifier: Verifier) -> Verdict {
        let verdict = self.pages.end_commit(verifier);
        self.count_restart(verdict)
    }

    /// The COMMIT failed for good, so the server may have lost the data that it covered. Drops that
    /// and returns its ranges, in order. Record the error before [`WriteBack::commit_ended`].
    pub fn commit_failed(&mut self) -> Vec<Range<u64>> {
        let mut lost: Vec<Range<u64>> = Vec::new();
        for range in self.pages.fail_commit() {
            match lost.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => lost.push(range),
            }
        }
        lost
    }

    /// A COMMIT has ended. If it was neither answered nor failed, its data waits for another one.
    pub fn commit_ended(&mut self) {
        self.committing = false;
        self.ended += 1;
        self.forget_known_end();
    }

    /// The file ends at `size` now: drops all data after it, dirty data as well.
    pub fn truncate(&mut self, size: u64) {
        self.pages.truncate(size);
        self.end = self.end.min(size);
    }

    /// Forgets `end` once all data is safe at the server, so that the attributes have the size. Not
    /// before, because a server that restarts loses uncommitted data and the size that it gave.
    fn forget_known_end(&mut self) {
        if self.writes == 0 && self.is_safe() {
            self.end = 0;
            self.restarts = 0;
        }
    }
}
