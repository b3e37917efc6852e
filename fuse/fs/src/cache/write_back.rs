//! Write-back of one file: what is to be sent next, and what follows from the answers.
//!
//! [`WriteBack`] owns the data between a program's write(2) and the server's stable storage
//! (RFC 1813 sections 3.3.7, 3.3.21 and 4.11): which bytes are dirty, in a WRITE, unstable or
//! in a COMMIT, on whose behalf they are written, which open files are to hear of errors, and
//! the write verifier. It does no I/O. A driver asks it for the [next action](WriteBack::next),
//! carries that out, and reports the outcome:
//!
//! ```text
//!   write ──▶ dirty ──next()=Write──▶ writing ──write_answered──▶ unstable (or clean)
//!               ▲                        │                            │
//!               ├── write_ended(unsent) ─┘                    next()=Commit
//!               │                                                     ▼
//!               └───── another verifier ◀─────────────────────── committing ──▶ clean
//! ```
//!
//! Each call costs what the data it concerns cost, not what else is dirty: a COMMIT of very
//! many blocks is prepared and concluded in parts ([`Action::Again`], [`WriteBack::end_commit`],
//! [`WriteBack::commit_failed`]) so that others get the lock in between, and so is what has to be
//! written again because the server restarted. A COMMIT that was given up leaves what it covered
//! to the next one.

use super::dirty::{Gaps, Verdict, WriteJob};
use super::pages::Pages;
use super::write_data::WriteData;
use nfsrdma_rdma::BufMut;
use nfsrdma_xdr::nfs3::{Stable, Verifier};
use std::ops::Range;
use std::sync::{Arc, Weak};

/// WRITEs a file may always have under way, whatever other files do: with two, one is at the
/// server while the other's reply is taken in.
const LEAST_WRITES: usize = 2;
/// Blocks looked at in one go for a COMMIT.
const COMMIT_PART: usize = 1024;

/// What a driver wants to reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// WRITEs of full size are under way; once half of what may be dirty is, any WRITEs.
    Full,
    /// As many WRITEs are under way as may be.
    Started,
    /// The server has everything.
    Written,
    /// The server has everything on stable storage.
    Committed,
}

/// What limits WRITEs at this moment.
#[derive(Debug, Clone, Copy)]
pub struct WriteLimits {
    /// Bytes of one WRITE.
    pub wtmax: u32,
    /// Further WRITEs that may be started, over all files.
    pub free: usize,
    /// Bytes this file may have in WRITEs.
    pub most_bytes: u64,
    /// Bytes of memory this file's dirty data may take.
    pub dirty_file_bytes: usize,
    /// So much of all files is dirty that small WRITEs are better than waiting for full ones.
    pub crowded: bool,
    pub gaps: Gaps,
    /// Unchanged bytes are written along only in a file that has had so many dirty ranges at once:
    /// with fewer of them the WRITEs that it saves are few, and records that two machines write to
    /// one page stay apart.
    pub least_joined: usize,
}

/// One WRITE to send.
#[derive(Debug)]
pub struct WriteCall<C> {
    pub job: WriteJob,
    pub cred: C,
    pub stable: Stable,
}

/// What a driver has to do next.
#[derive(Debug)]
pub enum Action<C> {
    /// Send this WRITE; report [`WriteBack::write_ended`] in the end.
    Write(WriteCall<C>),
    /// Send a COMMIT of the whole file; report [`WriteBack::commit_ended`] in the end.
    Commit(C),
    /// Ask again. The lock may be given up before.
    Again,
    /// Ask again when something under way has ended.
    Wait,
    /// The goal is reached.
    Done,
}

/// What became of data a program wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepted {
    All,
    /// Too much is dirty, or somebody flushes: to be tried again.
    Wait,
    /// Memory is short: to be tried again.
    Short,
    /// Another user's data must be on stable storage first.
    OtherUser,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Commit {
    #[default]
    None,
    /// What it covers is being gathered.
    Prepared,
    /// It was sent; or was answered, and what it covered is being marked clean.
    Sent,
}

/// The way of one file's data to the server. `C`: a credential; `W`: an open file.
#[derive(Debug)]
pub struct WriteBack<C, W> {
    pages: Pages,
    /// WRITEs under way.
    writes: usize,
    commit: Commit,
    /// Who waits for everything to be written: programs' writes wait meanwhile.
    flushing: usize,
    /// Who keeps WRITEs from being started.
    held: usize,
    /// Whose data is not on stable storage yet. Others' must be there first: what a restart of the
    /// server forgets is written again, and each gets their own errors only.
    cred: Option<C>,
    /// Open files that wrote, to hear of errors.
    writers: Vec<Weak<W>>,
    /// End of what was written here and is not yet known to be in the attributes' size.
    end: u64,
    /// Where to look for dirty data next.
    cursor: u64,
    /// When the file became dirty.
    dirtied: u64,
    /// Since it became dirty it has had [`WriteLimits::least_joined`] dirty ranges at once.
    scattered: bool,
}

impl<C, W> Default for WriteBack<C, W> {
    fn default() -> Self {
        WriteBack {
            pages: Pages::default(),
            writes: 0,
            commit: Commit::default(),
            flushing: 0,
            held: 0,
            cred: None,
            writers: Vec::new(),
            end: 0,
            cursor: 0,
            dirtied: 0,
            scattered: false,
        }
    }
}

impl<C: Clone + PartialEq, W> WriteBack<C, W> {
    /// What is cached, for reading.
    pub fn pages(&mut self) -> &mut Pages {
        &mut self.pages
    }

    /// Whether anything is not at the server yet.
    pub fn is_dirty(&self) -> bool {
        self.pages.dirty() > 0 || self.pages.writing() > 0
    }

    /// Whether the server has everything on stable storage.
    pub fn is_safe(&self) -> bool {
        !self.is_dirty() && self.pages.uncommitted() == 0
    }

    /// Whether a WRITE or a COMMIT is under way.
    pub fn is_under_way(&self) -> bool {
        self.writes > 0 || self.commit != Commit::None
    }

    /// WRITEs under way.
    pub fn writes(&self) -> usize {
        self.writes
    }

    /// Whether somebody waits for everything to be written.
    pub fn is_flushing(&self) -> bool {
        self.flushing > 0
    }

    /// Whether a program wrote to the file through this client.
    pub fn was_written(&self) -> bool {
        self.cred.is_some()
    }

    /// End of what was written here and is not yet known to be in the attributes' size.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Whether dirty data is from `before` or earlier, or nothing but a COMMIT is left to do.
    pub fn is_due(&self, before: u64) -> bool {
        match self.is_dirty() {
            true => self.pages.dirty() > 0 && self.dirtied <= before,
            false => self.pages.uncommitted() > 0,
        }
    }

    /// Takes in data that a program wrote for `cred` at time `now`, if at most
    /// `dirty_file_bytes` of memory are dirty with it.
    pub fn write<'a>(
        &mut self,
        cred: &C,
        offset: u64,
        data: impl Into<WriteData<'a>>,
        now: u64,
        dirty_file_bytes: usize,
        alloc: &mut dyn FnMut(usize) -> Option<BufMut>,
    ) -> Accepted {
        let data = data.into();
        if self.flushing > 0 {
            return Accepted::Wait;
        }
        let own = self.pages.dirty_held() as usize;
        if own > 0 && own + data.len() > dirty_file_bytes {
            return Accepted::Wait;
        }
        match &self.cred {
            Some(known) if known == cred => {}
            // Also while a WRITE or COMMIT that failed has not been told to its writers.
            Some(_) if !self.is_safe() || self.is_under_way() => return Accepted::OtherUser,
            _ => self.cred = Some(cred.clone()),
        }
        if self.pages.dirty() == 0 {
            self.dirtied = now;
        }
        let taken = self.pages.write(offset, data, alloc);
        self.end = self.end.max(offset + taken as u64);
        match taken < data.len() {
            true => Accepted::Short,
            false => Accepted::All,
        }
    }

    /// `writer` is to hear of errors. Its data may be in a WRITE as soon as the lock is given
    /// up.
    pub fn add_writer(&mut self, writer: Weak<W>) {
        self.writers.retain(|writer| writer.strong_count() > 0);
        self.writers.push(writer);
    }

    /// Who is to hear of errors.
    pub fn writers(&self) -> impl Iterator<Item = Arc<W>> + '_ {
        self.writers.iter().filter_map(Weak::upgrade)
    }

    /// Everything is safe: what others lose later concerns none of these.
    pub fn take_writers(&mut self) -> impl Iterator<Item = Arc<W>> + '_ {
        debug_assert!(self.is_safe());
        self.writers.drain(..).filter_map(|writer| writer.upgrade())
    }

    /// Programs' writes wait until [`WriteBack::end_flush`].
    pub fn begin_flush(&mut self) {
        self.flushing += 1;
    }

    pub fn end_flush(&mut self) {
        self.flushing -= 1;
    }

    /// No WRITE is started until [`WriteBack::release`]. Those under way go on.
    pub fn hold(&mut self) {
        self.held += 1;
    }

    pub fn release(&mut self) {
        self.held -= 1;
    }

    /// What to do next to reach `goal`.
    pub fn next(&mut self, goal: Goal, limits: &WriteLimits) -> Action<C> {
        if !self.pages.redo(COMMIT_PART) {
            return Action::Again;
        }
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

    fn next_of_flush(&mut self, goal: Goal, limits: &WriteLimits) -> Action<C> {
        let commit = goal == Goal::Committed;
        let alone = commit && !self.is_under_way() && self.pages.uncommitted() == 0;
        if alone && self.pages.dirty() <= u64::from(limits.wtmax) {
            // All that is dirty in one WRITE is stable at once: no COMMIT needed.
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

    /// A COMMIT if at least `least` bytes of memory wait for one: only then may they be
    /// dropped.
    pub fn commit_of(&mut self, least: u64) -> Action<C> {
        if !self.pages.redo(COMMIT_PART) {
            return Action::Again;
        }
        let waiting = self.pages.uncommitted().max(self.pages.uncommitted_held());
        match self.commit {
            Commit::None if waiting < least => Action::Done,
            _ => self.next_commit(),
        }
    }

    fn next_commit(&mut self) -> Action<C> {
        match self.commit {
            // Also one that failed, and is about to be reported.
            Commit::Sent => return Action::Wait,
            Commit::None if self.pages.uncommitted() == 0 => return Action::Done,
            Commit::None | Commit::Prepared => {}
        }
        self.commit = Commit::Prepared;
        if !self.pages.begin_commit(COMMIT_PART) {
            return Action::Again;
        }
        match &self.cred {
            Some(cred) if self.pages.is_committing() => {
                self.commit = Commit::Sent;
                Action::Commit(cred.clone())
            }
            _ => {
                // It was all written again meanwhile.
                self.commit = Commit::None;
                Action::Again
            }
        }
    }

    /// Pages, at most `most` bytes of them, that are worth reading before a flush, from `from` on,
    /// and on whose behalf. Also says where to go on, if not at the end.
    pub fn worth_reading(
        &mut self,
        from: u64,
        most: u64,
        limits: &WriteLimits,
    ) -> (Option<(Range<u64>, C)>, Option<u64>) {
        if self.gaps(limits) == Gaps::Keep {
            return (None, None);
        }
        let Some(cred) = &self.cred else {
            return (None, None);
        };
        let (pages, next) = self.pages.worth_reading(from, most);
        (pages.map(|pages| (pages, cred.clone())), next)
    }

    /// What may lie between the dirty ranges of a WRITE now.
    fn gaps(&mut self, limits: &WriteLimits) -> Gaps {
        self.scattered = self.pages.has_idle_dirty()
            && (self.scattered || self.pages.has_dirty_ranges(limits.least_joined));
        match self.scattered {
            true => limits.gaps,
            false => Gaps::Keep,
        }
    }

    /// The next WRITE, if another may be under way.
    fn next_write(&mut self, limits: &WriteLimits, full: bool) -> Option<WriteCall<C>> {
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
        match self.write_of(self.cursor..u64::MAX, limits, false) {
            None => self.write_of(0..u64::MAX, limits, false),
            call => call,
        }
    }

    fn write_of(
        &mut self,
        within: Range<u64>,
        limits: &WriteLimits,
        full: bool,
    ) -> Option<WriteCall<C>> {
        if self.held > 0 {
            return None;
        }
        let cred = self.cred.clone()?;
        let gaps = match full {
            true => Gaps::Keep,
            false => self.gaps(limits),
        };
        let job = self.pages.begin_write(within, limits.wtmax, full, gaps)?;
        self.cursor = job.offset + u64::from(job.len);
        self.writes += 1;
        Some(WriteCall {
            job,
            cred,
            stable: Stable::Unstable,
        })
    }

    /// The reply to a WRITE of `sent`: the server took the first `count` bytes. The rest is
    /// dirty again.
    pub fn write_answered(
        &mut self,
        sent: Range<u64>,
        count: u32,
        committed: Stable,
        verifier: Verifier,
    ) -> Verdict {
        self.pages.end_write(sent, count, committed, verifier)
    }

    /// A WRITE of `sent` failed for good: its data is gone, unless written again meanwhile.
    /// [`WriteBack::writers`] are to hear of it before [`WriteBack::write_ended`].
    pub fn write_failed(&mut self, sent: Range<u64>) {
        self.pages.fail_write(sent);
    }

    /// A WRITE is over. `unsent`: what it was to write and neither was answered nor failed; it
    /// is dirty again.
    pub fn write_ended(&mut self, unsent: Range<u64>) {
        if !unsent.is_empty() {
            self.pages.retry_write(unsent);
        }
        self.writes -= 1;
        self.forget_known_end();
    }

    /// The reply to the COMMIT. What follows is for [`WriteBack::end_commit`].
    pub fn commit_answered(&mut self, verifier: Verifier) -> Verdict {
        self.pages.commit_answered(verifier)
    }

    /// After [`WriteBack::commit_answered`]: marks a part of what the COMMIT covered as safe.
    /// True if that is all.
    pub fn end_commit(&mut self) -> bool {
        self.pages.end_commit(COMMIT_PART)
    }

    /// The COMMIT failed for good: what it covered may be lost at the server. Returns a part of
    /// that, in order, and true if that is all. [`WriteBack::writers`] are to hear of it before
    /// [`WriteBack::commit_ended`].
    pub fn commit_failed(&mut self) -> (Vec<Range<u64>>, bool) {
        let mut lost: Vec<Range<u64>> = Vec::new();
        let (ranges, all) = self.pages.fail_commit(COMMIT_PART);
        for range in ranges {
            match lost.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => lost.push(range),
            }
        }
        (lost, all)
    }

    /// A COMMIT is over. What it covered and was neither answered nor failed waits for another.
    pub fn commit_ended(&mut self) {
        self.commit = Commit::None;
        self.forget_known_end();
    }

    /// The file ends at `size` now: nothing behind it is known or to be written.
    pub fn truncate(&mut self, size: u64) {
        self.pages.truncate(size);
        self.end = self.end.min(size);
    }

    /// Once everything is safe at the server the attributes know the size. Not before: a
    /// server that restarts forgets what was not committed, its size included.
    fn forget_known_end(&mut self) {
        if self.writes == 0 && self.is_safe() {
            self.end = 0;
        }
    }
}
