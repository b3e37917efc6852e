//! Habits of other servers, which options turn on: which
//! pre-operation attributes a reply has, what the server's clock shows, and which objects share a
//! fileid. By default none of them is in force.
//!
//! **The clock.** The exported file system stamps its objects by this machine's clock. A
//! time that the kernel stamped at `t` is shown as `t` plus the offset that was in force at
//! `t`, so a step of the clock changes what is stamped from then on and leaves older stamps
//! as they are, as on a server whose clock is set. A time that a client set (SETATTR with
//! SET_TO_CLIENT_TIME) is shown as it was set: these are remembered, by object.

use super::export::Export;
use super::inode::Inode;
use super::status::Result;
use lru::LruCache;
use nfsrdma_xdr::nfs3::{Attributes, FileType, Status, Time};
use parking_lot::Mutex;
use std::num::{NonZeroU64, NonZeroUsize};
use std::time::Duration;

/// Which replies have the attributes from before the operation (RFC 1813 section 2.6,
/// pre_op_attr), and how they were taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum PreOp {
    /// All, taken together with the change: nothing happens between the three.
    #[default]
    Always,
    /// None for WRITE and COMMIT, as Linux knfsd; the others as above.
    NotForWrite,
    /// None at all.
    Never,
    /// All, but taken a while before the change, and the attributes after it a while after
    /// it (RFC 1813 section 2.6 allows it): other changes may lie between.
    NotAtomic,
}

/// The distance of [`PreOp::NotAtomic`] samples from the change.
const GAP: Duration = Duration::from_millis(1);

/// The settings at the start.
#[derive(Debug, Clone, Copy, Default)]
pub struct Settings {
    pub pre_op: PreOp,
    /// The offset that is added to every time that the kernel stamped, in nanoseconds.
    pub clock_offset: i64,
    /// Whether times have whole seconds.
    pub one_second_times: bool,
    /// The number of different fileids that files have; directories of one depth share theirs.
    pub equal_fileids: Option<NonZeroU64>,
}

/// The settings in force.
#[derive(Debug)]
pub struct Variants {
    pre_op: PreOp,
    one_second: bool,
    equal_fileids: Option<NonZeroU64>,
    clock: Mutex<Clock>,
    client_times: Mutex<ClientTimes>,
}

impl Variants {
    pub(super) fn new(settings: &Settings) -> Self {
        Variants {
            pre_op: settings.pre_op,
            one_second: settings.one_second_times,
            equal_fileids: settings.equal_fileids,
            clock: Mutex::new(Clock::new(settings.clock_offset)),
            client_times: Mutex::new(ClientTimes::default()),
        }
    }

    /// Which pre-operation attributes replies have.
    pub fn pre_op(&self) -> PreOp {
        self.pre_op
    }

    /// The time between a sample and the change; `None` if they are taken together.
    pub fn gap(&self) -> Option<Duration> {
        (self.pre_op() == PreOp::NotAtomic).then_some(GAP)
    }

    /// Sets the clock to be `nanoseconds` ahead of this machine's, or with `relative`, further
    /// ahead than now. Returns the offset. Takes a tick of the file systems' clock, so that older
    /// stamps can be distinguished from newer ones.
    pub fn step_clock(&self, nanoseconds: i64, relative: bool) -> i64 {
        let mut clock = self.clock.lock();
        let begin = nanoseconds_of(rustix::time::ClockId::Realtime);
        let from = loop {
            let now = nanoseconds_of(rustix::time::ClockId::RealtimeCoarse);
            if now > begin {
                break now;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let base = if relative { clock.offset() } else { 0 };
        let offset = base.saturating_add(nanoseconds);
        clock.step(from, offset);
        offset
    }

    /// The resolution of the server's clock, for FSINFO.
    pub(super) fn time_delta(&self) -> Time {
        match self.one_second {
            true => Time {
                seconds: 1,
                nanoseconds: 0,
            },
            false => Time {
                seconds: 0,
                nanoseconds: 1,
            },
        }
    }

    /// Records that a client set times of an object.
    pub(super) fn client_set(&self, key: Key, atime: Option<Time>, mtime: Option<Time>) {
        self.client_times.lock().set(key, atime, mtime);
    }

    /// Changes times to those of the server's clock.
    pub(super) fn show_times(&self, key: Key, attributes: &mut Attributes) {
        let clock = self.clock.lock();
        if !clock.is_plain() {
            let (atime, mtime) = self.client_times.lock().get(key);
            attributes.ctime = clock.show(attributes.ctime);
            if atime != Some(attributes.atime) {
                attributes.atime = clock.show(attributes.atime);
            }
            if mtime != Some(attributes.mtime) {
                attributes.mtime = clock.show(attributes.mtime);
            }
        }
        drop(clock);
        if self.one_second {
            for time in [
                &mut attributes.atime,
                &mut attributes.mtime,
                &mut attributes.ctime,
            ] {
                time.nanoseconds = 0;
            }
        }
    }

    /// The fileid of `inode`, whose inode number is `number`.
    pub(super) fn fileid(&self, export: &Export, inode: &Inode, number: u64) -> u64 {
        match self.equal_fileids {
            None => number,
            Some(_) if inode.kind == FileType::Directory => {
                // A directory that is gone has no depth, and nobody sees its number.
                shared_fileid_of_directory(depth(export, inode).unwrap_or_default())
            }
            Some(count) => shared_fileid(count, number),
        }
    }

    /// The fileid of an entry of `dir`, for READDIR.
    pub(super) fn fileid_of_entry(
        &self,
        export: &Export,
        dir: &Inode,
        name: &[u8],
        kind: rustix::fs::FileType,
        number: u64,
    ) -> u64 {
        let Some(count) = self.equal_fileids else {
            return number;
        };
        let depth = depth(export, dir).unwrap_or_default();
        match name {
            b"." => shared_fileid_of_directory(depth),
            b".." => shared_fileid_of_directory(depth.saturating_sub(1)),
            _ if kind == rustix::fs::FileType::Directory => shared_fileid_of_directory(depth + 1),
            _ => shared_fileid(count, number),
        }
    }
}

/// Device and inode number.
type Key = (u64, u64);

/// The first shared fileid of files, above those of directories.
const FILES: u64 = 1 << 20;

fn shared_fileid(count: NonZeroU64, number: u64) -> u64 {
    FILES + number % count
}

/// Directories at one depth share a number. It differs from those of the directories above them,
/// since programs that walk a tree would take an equal one for a loop.
fn shared_fileid_of_directory(depth: u64) -> u64 {
    2 + depth
}

/// The number of directories between a directory and the root of its export.
fn depth(export: &Export, dir: &Inode) -> Result<u64> {
    export.depth(dir.fd())?.ok_or(Status::Stale)
}

fn nanoseconds_of(clock: rustix::time::ClockId) -> i64 {
    let now = rustix::time::clock_gettime(clock);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// The offset of the server's clock from this machine's.
#[derive(Debug)]
struct Clock {
    /// From which time on (by this machine's clock, in nanoseconds) the offset was which; in
    /// ascending order. The first one holds for all times before.
    steps: Vec<(i64, i64)>,
}

/// Most steps that are remembered. After that, the oldest but one is forgotten.
const STEPS_MAX: usize = 4096;

impl Clock {
    fn new(offset: i64) -> Self {
        Clock {
            steps: vec![(i64::MIN, offset)],
        }
    }

    fn offset(&self) -> i64 {
        self.steps.last().map_or(0, |step| step.1)
    }

    fn is_plain(&self) -> bool {
        matches!(self.steps[..], [(_, 0)])
    }

    fn step(&mut self, from: i64, offset: i64) {
        if self.steps.len() >= STEPS_MAX {
            self.steps.remove(1);
        }
        self.steps.push((from, offset));
    }

    /// Converts a time stamped by this machine's clock to the server's clock at that time. A time
    /// that does not fit nfstime3 becomes the nearest one that does.
    fn show(&self, stamped: Time) -> Time {
        let at = i64::from(stamped.seconds) * 1_000_000_000 + i64::from(stamped.nanoseconds);
        let after = self.steps.partition_point(|step| step.0 <= at);
        let offset = self.steps[after.max(1) - 1].1;
        let shown = at
            .saturating_add(offset)
            .clamp(0, i64::from(u32::MAX) * 1_000_000_000);
        Time {
            seconds: (shown / 1_000_000_000) as u32,
            nanoseconds: (shown % 1_000_000_000) as u32,
        }
    }
}

/// Objects whose times were set by clients. The oldest are forgotten first.
#[derive(Debug)]
struct ClientTimes(LruCache<Key, (Option<Time>, Option<Time>)>);

const CLIENT_TIMES_MAX: NonZeroUsize = NonZeroUsize::new(1 << 16).unwrap();

impl Default for ClientTimes {
    fn default() -> Self {
        ClientTimes(LruCache::unbounded())
    }
}

impl ClientTimes {
    fn set(&mut self, key: Key, atime: Option<Time>, mtime: Option<Time>) {
        let known = self.0.get_or_insert_mut(key, Default::default);
        known.0 = atime.or(known.0);
        known.1 = mtime.or(known.1);
        while self.0.len() > CLIENT_TIMES_MAX.get() {
            self.0.pop_lru();
        }
    }

    fn get(&mut self, key: Key) -> (Option<Time>, Option<Time>) {
        self.0.get(&key).copied().unwrap_or_default()
    }
}
