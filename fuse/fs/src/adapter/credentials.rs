//! The credential of a request's caller: its user and group, and its supplementary groups.
//!
//! The kernel puts the file system uid and gid of the calling thread into each request, but not its
//! supplementary groups; these are in `/proc/TID/status`. A thread may change them at any time, so
//! they are read for each request whose answer may depend on them: not if the cached answer is the
//! same for everybody, not for GETATTR and FSSTAT, and not for LOOKUP in a directory that everybody
//! may search (`Fs::looks_up_without_groups`). The thread cannot change them meanwhile, because it
//! waits for the answer.
//!
//! The descriptors of these files are kept open, one for each thread, in an LRU cache. A descriptor
//! belongs to the thread and not to its number: when the thread has ended, reading fails with
//! ESRCH, and the file is opened again. Measured by `reading_costs` below, on Linux 6.18 with two
//! busy CPUs: 6.4 microseconds with the descriptor kept and 7.8 without (medians of 12 runs; the
//! least were 4.4 and 5.4). Most of it is the kernel's formatting of the file.
//!
//! The lines with the ids and groups are kept as they were read ([`Ids`]). As long as the file has the same
//! bytes there, the credential is the same and nothing is parsed, which took 1,800 instructions.
//!
//! A user to whom groups are delegated (subgid(5)) may be in 65,536 of them, and in others at each
//! request. Calls carry 16. So no more are read, as a credential is kept with each grant and each
//! open file, and with each lock also in the journal; and no descriptors of long status files are
//! kept open, because the kernel keeps a buffer of its length, of up to 1 MiB, with each.
//!
//! The groups are not read for uid 0 either, where the server is known to treat uid 0 as the
//! superuser (`fs::squash`), for whom groups make no difference. This saves one of the 5 to 14
//! system calls of each request by which root changes a name.
//!
//! The status file shows the thread's own identity. If the kernel acts for the thread with another
//! identity (overlayfs and nfsd do, and io_uring may), these are not the groups of the request. So
//! they are used only if uid and gid in the file are those of the request. access(2) asks with the
//! real uid and gid of the thread, which the file shows as well, so requests that access(2) makes
//! ([`asks_only`]) may have these.

use super::proc;
use lru::LruCache;
use nfsrdma_channel::Header;
use nfsrdma_channel::abi::opcode;
use nfsrdma_nfs3::{Cred, Credential};
use nfsrdma_xdr::rpc::MAX_GROUPS;
use parking_lot::Mutex;
use rustix::io::pread;
use smallvec::SmallVec;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;

/// The most status files that are kept open.
const KEPT: NonZeroUsize = NonZeroUsize::new(256).expect("is not zero");
/// A status file is 1 to 2 KiB and 11 bytes for each group of more than a few. Ids, and the groups
/// that calls carry, are in its first KiB.
const USUAL: usize = 4096;

/// A thread that has made a request before.
#[derive(Debug, Clone)]
struct Known {
    status: Arc<File>,
    /// The credential as last read; it stays the same allocation while it does not change.
    cred: Cred,
    ids: Option<Arc<Ids>>,
    /// It made a request since the last [`Credentials::close_idle`].
    asked: bool,
}

/// The lines of a status file with the ids that count for the file system, and the groups: while they are
/// there, at the same place, the credential is the same.
#[derive(Debug)]
struct Ids {
    at: usize,
    lines: Box<[u8]>,
}

impl Ids {
    fn are_in(&self, status: &[u8]) -> bool {
        let there = after_state(status).get(self.at..self.at + self.lines.len());
        there == Some(&self.lines[..])
    }
}

/// The identity with which a thread makes a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Asker {
    uid: u32,
    gid: u32,
    /// These may be its real ids.
    by_real_ids: bool,
}

/// Whether access(2) may send a request: it asks by the caller's real ids what other calls ask by
/// those that count for the file system.
fn asks_only(code: u32) -> bool {
    matches!(
        code,
        opcode::LOOKUP | opcode::ACCESS | opcode::GETATTR | opcode::READLINK | opcode::GETXATTR
    )
}

/// Reads credentials of callers.
#[derive(Debug)]
pub(super) struct Credentials {
    known: Mutex<LruCache<u32, Known>>,
    /// The last credential without supplementary groups.
    alone: Mutex<Option<Cred>>,
}

impl Default for Credentials {
    fn default() -> Self {
        Credentials {
            known: Mutex::new(LruCache::new(KEPT)),
            alone: Mutex::default(),
        }
    }
}

impl Credentials {
    /// The caller without supplementary groups: for GETATTR and FSSTAT, which need no permission (RFC
    /// 1813 sections 3.3.1 and 3.3.18), for LOOKUP in a directory that everybody may search, and for the
    /// superuser.
    pub(super) fn user_of(&self, request: &Header) -> Cred {
        let (uid, gid, groups) = (request.uid(), request.gid(), Vec::new());
        let mut known = self.alone.lock();
        match known.as_ref() {
            Some(cred) if (cred.uid, cred.gid) == (uid, gid) => cred.clone(),
            _ => known
                .insert(Arc::new(Credential { uid, gid, groups }))
                .clone(),
        }
    }

    /// The credential of a request, read at this moment.
    pub(super) fn of(&self, request: &Header) -> Cred {
        let asker = Asker {
            uid: request.uid(),
            gid: request.gid(),
            by_real_ids: asks_only(request.opcode),
        };
        self.of_thread(request.pid(), asker)
    }

    /// The credential of thread `tid`. Thread 0 is outside this PID namespace, or is the kernel
    /// itself: its groups are not known.
    pub(super) fn of_thread(&self, tid: u32, asker: Asker) -> Cred {
        let Asker { uid, gid, .. } = asker;
        let alone = || {
            Arc::new(Credential {
                uid,
                gid,
                groups: Vec::new(),
            })
        };
        if tid == 0 {
            return alone();
        }
        let known = self.known.lock().get_mut(&tid).map(|known| {
            known.asked = true;
            known.clone()
        });
        let is_of_asker = |cred: &Cred| (cred.uid, cred.gid) == (uid, gid);
        let mut text = [MaybeUninit::uninit(); USUAL];
        let mut again = None;
        if let Some(known) = &known
            && let Ok(text) = read(&known.status, &mut text)
        {
            let same = |ids: &Arc<Ids>| ids.are_in(text);
            if is_of_asker(&known.cred) && known.ids.as_ref().is_some_and(same) {
                return known.cred.clone();
            }
            again = Some(Shown::new(text, asker));
        }
        let (status, shown) = match (&known, again) {
            (Some(known), Some(shown)) => (known.status.clone(), shown),
            // The thread is not known, or its number was given to another thread.
            _ => {
                let opened = proc::open(tid, "status").and_then(|status| {
                    let shown = Shown::new(read(&status, &mut text)?, asker);
                    Ok((Arc::new(status), shown))
                });
                match opened {
                    Ok(opened) => opened,
                    Err(_) => {
                        self.known.lock().pop(&tid);
                        return alone();
                    }
                }
            }
        };
        let Shown {
            groups,
            ids,
            is_long,
        } = shown;
        let before = known.map(|known| known.cred);
        let same = before.filter(|cred| is_of_asker(cred) && cred.groups == *groups);
        let cred = same.unwrap_or_else(|| {
            let groups = groups.into_vec();
            Arc::new(Credential { uid, gid, groups })
        });
        let new = Known {
            status,
            cred: cred.clone(),
            ids,
            asked: true,
        };
        let mut known = self.known.lock();
        match is_long {
            true => known.pop(&tid),
            false => known.put(tid, new),
        };
        cred
    }

    /// Closes the descriptors of threads that made no request since the last call, most of which
    /// have ended. To be called about once a second.
    pub(super) fn close_idle(&self) {
        let mut known = self.known.lock();
        let mut idle = Vec::new();
        for (&tid, known) in known.iter_mut() {
            if !std::mem::take(&mut known.asked) {
                idle.push(tid);
            }
        }
        let closed: Vec<_> = idle.iter().filter_map(|tid| known.pop(tid)).collect();
        drop(known);
        drop(closed);
    }
}

/// The supplementary groups that calls carry.
type Groups = SmallVec<[u32; MAX_GROUPS]>;

/// What a status file shows.
struct Shown {
    /// None if uid and gid are not those of the asker.
    groups: Groups,
    /// Absent if the groups may depend on more of the asker than uid and gid.
    ids: Option<Arc<Ids>>,
    /// The file is longer than [`USUAL`].
    is_long: bool,
}

impl Shown {
    fn new(status: &[u8], asker: Asker) -> Self {
        let rest = after_state(status);
        let (groups, ids) = parse(rest, asker).unwrap_or_default();
        let ids = ids.map(|ids| Ids {
            at: ids.start,
            lines: rest[ids].into(),
        });
        Shown {
            groups,
            ids: ids.map(Arc::new),
            is_long: status.len() == USUAL,
        }
    }
}

/// The text of a status file. It is one read: parts of the file might be from different moments.
fn read<'a>(status: &File, to: &'a mut [MaybeUninit<u8>; USUAL]) -> io::Result<&'a [u8]> {
    let (text, _) = pread(status, to, 0)?;
    Ok(text)
}

/// What follows the state of the process, whose length changes as the process goes to sleep.
fn after_state(status: &[u8]) -> &[u8] {
    let mut lines = Lines(status);
    match lines.find(b"State:") {
        Some(_) => lines.0,
        None => status,
    }
}

/// The supplementary groups in the text of a status file, as many as calls carry; `None` if its file
/// system uid and gid (or its real ones, where these may ask) are not those of `asker`. With them, if
/// those for the file system are the asker's, where the lines are from the user's to the groups'.
fn parse(status: &[u8], asker: Asker) -> Option<(Groups, Option<Range<usize>>)> {
    // "Uid:" and "Gid:": real, effective, saved, file system.
    const REAL: usize = 0;
    const FILE_SYSTEM: usize = 3;
    let mut lines = Lines(status);
    let uids = lines.find(b"Uid:")?;
    let begin = status.len() - lines.0.len();
    let gids = lines.find(b"Gid:")?;
    let is = |column| {
        numbers(uids).nth(column) == Some(asker.uid) && numbers(gids).nth(column) == Some(asker.gid)
    };
    let by_file_system = is(FILE_SYSTEM);
    let may_ask = by_file_system || asker.by_real_ids && is(REAL);
    if !may_ask {
        return None;
    }
    let groups = numbers(lines.find(b"Groups:")?).take(MAX_GROUPS);
    // Both ends are newlines. There is a line before the user's.
    let begin = begin.checked_sub(uids.len() + b"\nUid:\n".len());
    let end = status.len() - lines.0.len();
    let ids = begin.filter(|_| by_file_system).map(|begin| begin..end);
    Some((groups.collect(), ids))
}

/// The lines of a status file that were not read yet. Those that are wanted have always come in this
/// order, so it is read once.
struct Lines<'a>(&'a [u8]);

impl<'a> Lines<'a> {
    /// The rest of the next line that begins with `name`. (The first line has the name of the program,
    /// which cannot forge another line, because the kernel escapes newlines in it.)
    fn find(&mut self, name: &[u8]) -> Option<&'a [u8]> {
        while !self.0.is_empty() {
            let end = self.0.iter().position(|&byte| byte == b'\n');
            let (line, rest) = self.0.split_at(end.unwrap_or(self.0.len()));
            self.0 = rest.get(1..).unwrap_or_default();
            if let Some(found) = line.strip_prefix(name) {
                return Some(found);
            }
        }
        None
    }
}

/// The numbers in a line. One that is no id becomes `u32::MAX`, which is none either.
fn numbers(line: &[u8]) -> impl Iterator<Item = u32> {
    let mut bytes = line.iter();
    let digit = |byte: &u8| Some(u32::from(byte.wrapping_sub(b'0'))).filter(|digit| *digit < 10);
    std::iter::from_fn(move || {
        let mut number = bytes.find_map(digit)?;
        while let Some(digit) = bytes.next().and_then(digit) {
            number = number.saturating_mul(10).saturating_add(digit);
        }
        Some(number)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    const STATUS: &[u8] =
        b"Name:\tcat\nState:\tS (sleeping)\nTgid:\t9\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nFDSize:\t64\nGroups:\t4 24 1000 \nVmPeak:\t1 kB\n";

    fn asker(uid: u32, gid: u32) -> Asker {
        Asker {
            uid,
            gid,
            by_real_ids: false,
        }
    }

    fn parsed(status: &[u8], asker: Asker) -> Option<Vec<u32>> {
        parse(status, asker).map(|(groups, _)| groups.into_vec())
    }

    #[test]
    fn groups_of_a_status_file() {
        assert_eq!(parsed(STATUS, asker(4, 8)), Some(vec![4, 24, 1000]));
        let none = b"Uid:\t1\t1\t1\t1\nGid:\t1\t1\t1\t1\nGroups:\t \n";
        assert_eq!(parsed(none, asker(1, 1)), Some(Vec::new()));
        assert_eq!(parsed(b"", asker(0, 0)), None);
    }

    /// Whether `later` need not be parsed after `STATUS`.
    fn is_same(later: &[u8]) -> bool {
        let ids = Shown::new(STATUS, asker(4, 8)).ids;
        ids.expect("the lines have been found").are_in(later)
    }

    #[test]
    fn a_status_file_is_parsed_again_if_a_line_of_the_ids_has_changed_or_moved() {
        let with = |from: &str, to: &str| {
            let text = std::str::from_utf8(STATUS).unwrap();
            assert!(text.contains(from));
            text.replacen(from, to, 1).into_bytes()
        };
        assert!(is_same(STATUS));
        assert!(is_same(&with("VmPeak:\t1", "VmPeak:\t23")));
        assert!(is_same(&with("S (sleeping)", "R (running)")));
        for (from, to) in [
            ("\t4\nGid", "\t5\nGid"),
            ("\t8\n", "\t9\n"),
            ("24 1000 \n", "24 1001 \n"),
            ("1000 \n", "1000 7 \n"),
            ("24 1000 \n", "24 \n"),
            ("9\n", "10\n"),
            ("9\nUid", "\nUUid"),
        ] {
            assert!(!is_same(&with(from, to)), "{from:?}");
        }
        assert!(!is_same(b"") && !is_same(&STATUS[..60]));
        // Who asks by real ids gets groups that others of this uid and gid do not get.
        let real = Asker {
            by_real_ids: true,
            ..asker(1, 5)
        };
        assert!(Shown::new(STATUS, real).ids.is_none());
    }

    #[test]
    fn no_more_groups_are_taken_than_calls_carry() {
        let many: Vec<u32> = (100_000..165_536).collect();
        let words: Vec<String> = many.iter().map(u32::to_string).collect();
        let status = format!(
            "Uid:\t1\t1\t1\t1\nGid:\t1\t1\t1\t1\nGroups:\t{} \n",
            words.join(" ")
        );
        let read = parsed(status.as_bytes(), asker(1, 1));
        assert_eq!(read.as_deref(), Some(&many[..MAX_GROUPS]));
    }

    #[test]
    fn of_a_thread_in_very_many_groups_nothing_is_kept() {
        let many: Vec<_> = (100_000..165_536)
            .map(rustix::process::Gid::from_raw)
            .collect();
        let all = Credentials::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (tid, uid, gid) = own();
                all.of_thread(tid, asker(uid, gid));
                assert_eq!(all.known.lock().len(), 1);
                // Groups belong to a thread here (only the C library sets those of all).
                let set = rustix::thread::set_thread_groups(&many);
                let cred = all.of_thread(tid, asker(uid, gid));
                match set {
                    Ok(()) => {
                        assert_eq!(cred.groups, (100_000..100_016).collect::<Vec<_>>());
                        assert_eq!(all.known.lock().len(), 0);
                    }
                    Err(error) => eprintln!("not tested: setgroups: {error}"),
                }
            });
        });
    }

    #[test]
    fn groups_of_another_identity_are_not_taken() {
        assert_eq!(parsed(STATUS, asker(1, 8)), None);
        assert_eq!(parsed(STATUS, asker(4, 5)), None);
    }

    #[test]
    fn who_only_asks_may_do_so_by_real_ids() {
        let by_real_ids = |uid, gid| Asker {
            by_real_ids: true,
            ..asker(uid, gid)
        };
        let groups = Some(vec![4, 24, 1000]);
        assert_eq!(parsed(STATUS, by_real_ids(1, 5)), groups);
        assert_eq!(parsed(STATUS, by_real_ids(4, 8)), groups);
        for (uid, gid) in [(1, 8), (4, 5), (2, 6), (3, 7)] {
            assert_eq!(parsed(STATUS, by_real_ids(uid, gid)), None);
        }
        assert!(asks_only(opcode::ACCESS) && !asks_only(opcode::CREATE));
    }

    /// (Thread id, file system uid, file system gid) of this thread.
    fn own() -> (u32, u32, u32) {
        (
            rustix::thread::gettid().as_raw_nonzero().get() as u32,
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        )
    }

    #[test]
    fn the_same_credential_is_the_same_allocation() {
        let (tid, uid, gid) = own();
        let all = Credentials::default();
        let first = all.of_thread(tid, asker(uid, gid));
        assert!(Arc::ptr_eq(&first, &all.of_thread(tid, asker(uid, gid))));
        let mut groups: Vec<u32> = rustix::process::getgroups()
            .unwrap()
            .into_iter()
            .map(rustix::process::Gid::as_raw)
            .collect();
        let mut read = first.groups.clone();
        groups.sort_unstable();
        read.sort_unstable();
        assert_eq!(read, groups);
        // The kernel acts for the thread with another identity.
        assert!(all.of_thread(tid, asker(uid + 1, gid)).groups.is_empty());
    }

    #[test]
    fn the_descriptor_of_a_thread_that_ended_is_not_used() {
        let all = Credentials::default();
        let ended = |tid: u32| {
            // `join` returns when the thread is about to end; the kernel needs a moment more.
            while std::path::Path::new(&format!("/proc/self/task/{tid}")).exists() {
                std::thread::yield_now();
            }
        };
        let (tid, uid, gid) = std::thread::spawn(own).join().unwrap();
        ended(tid);
        let gone = all.of_thread(tid, asker(uid, gid));
        assert!(gone.groups.is_empty(), "a thread that ended has no groups");
        assert_eq!(all.known.lock().len(), 0);
        let (tid, uid, gid) = std::thread::scope(|scope| {
            let seen = scope.spawn(|| {
                let own = own();
                all.of_thread(own.0, asker(own.1, own.2));
                own
            });
            seen.join().unwrap()
        });
        assert_eq!(all.known.lock().len(), 1);
        ended(tid);
        assert!(all.of_thread(tid, asker(uid, gid)).groups.is_empty());
        assert_eq!(all.known.lock().len(), 0, "its descriptor is still kept");
    }

    #[test]
    fn descriptors_of_threads_that_do_not_ask_are_closed() {
        let all = Credentials::default();
        let (tid, uid, gid) = own();
        all.of_thread(tid, asker(uid, gid));
        all.close_idle();
        assert_eq!(all.known.lock().len(), 1, "it has just asked");
        all.of_thread(tid, asker(uid, gid));
        all.close_idle();
        assert_eq!(all.known.lock().len(), 1);
        all.close_idle();
        assert_eq!(all.known.lock().len(), 0);
    }

    #[test]
    fn descriptors_are_bounded() {
        let all = Credentials::default();
        let (_, uid, gid) = own();
        let (sender, ids) = std::sync::mpsc::channel();
        let done = std::sync::Barrier::new(301);
        std::thread::scope(|scope| {
            for _ in 0..300 {
                let (sender, done) = (sender.clone(), &done);
                scope.spawn(move || {
                    sender.send(own().0).unwrap();
                    done.wait();
                });
            }
            for tid in ids.iter().take(300) {
                all.of_thread(tid, asker(uid, gid));
            }
            done.wait();
        });
        assert_eq!(all.known.lock().len(), KEPT.get());
    }

    /// Not a test: it measures the times in the head of this file. `cargo test --release -p
    /// nfsrdma-fs --lib reading_costs -- --ignored --nocapture`
    #[test]
    #[ignore = "a measurement"]
    fn reading_costs() {
        let (tid, uid, gid) = own();
        let all = Credentials::default();
        const TIMES: u32 = 20_000;
        for (what, forget) in [("kept", false), ("opened each time", true)] {
            let begin = Instant::now();
            for _ in 0..TIMES {
                if forget {
                    all.known.lock().pop(&tid);
                }
                all.of_thread(tid, asker(uid, gid));
            }
            println!(
                "{what}: {} ns",
                begin.elapsed().as_nanos() / u128::from(TIMES)
            );
        }
    }
}
