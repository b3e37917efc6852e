//! The credential of a request's caller: its user and group, and its supplementary groups.
//!
//! The kernel puts the file system uid and gid of the calling thread into each request, but not its supplementary
//! groups; these are in `/proc/TID/status`. A thread may change them at any time, so they are read for each request
//! whose answer may depend on them: not if the cached answer is the same for everybody, not for GETATTR and FSSTAT,
//! and not for LOOKUP in a directory that everybody may search (`Fs::looks_up_without_groups`). The thread cannot
//! change them meanwhile, because it waits for the answer. To read them takes about 8 microseconds.
//!
//! A user to whom groups are delegated (subgid(5)) may be in 65,536 of them. Calls carry 16, so no more are read.
//!
//! The groups are not read for uid 0 either, where the server is known to treat uid 0 as the
//! superuser (`fs::squash`), for whom groups make no difference. This saves one of the 5 to 14
//! system calls of each request by which root changes a name.
//!
//! The status file shows the thread's own identity. If the kernel acts for the thread with another identity
//! (overlayfs and nfsd do, and io_uring may), these are not the groups of the request. So they are used only if uid
//! and gid in the file are those of the request. access(2) asks with the real uid and gid of the thread, which the
//! file shows as well, so requests that access(2) makes ([`asks_only`]) may have these.

use super::proc;
use nfsrdma_channel::Header;
use nfsrdma_channel::abi::opcode;
use nfsrdma_nfs3::{Cred, Credential};
use nfsrdma_xdr::rpc::MAX_GROUPS;
use parking_lot::Mutex;
use rustix::io::pread;
use std::mem::MaybeUninit;
use std::sync::Arc;

/// A status file is 1 to 2 KiB and 11 bytes for each group of more than a few. Ids, and the groups
/// that calls carry, are in its first KiB.
const USUAL: usize = 4096;

/// The identity with which a thread makes a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Asker {
    uid: u32,
    gid: u32,
    /// These may be its real ids.
    by_real_ids: bool,
}

impl Asker {
    fn of(request: &Header) -> Self {
        Asker {
            uid: request.uid(),
            gid: request.gid(),
            by_real_ids: asks_only(request.opcode),
        }
    }

    fn is(self, cred: &Credential) -> bool {
        (self.uid, self.gid) == (cred.uid, cred.gid)
    }
}

/// Whether access(2) may send a request: it asks by the caller's real ids what other calls ask by
/// those that count for the file system.
fn asks_only(code: u32) -> bool {
    matches!(
        code,
        opcode::LOOKUP | opcode::ACCESS | opcode::GETATTR | opcode::READLINK | opcode::GETXATTR
    )
}

/// Reads credentials of callers. Has the last one without groups and the last one read: mostly the next is the same, and
/// is the same allocation then. A LOOKUP takes the one, and the change of the name after it the other.
#[derive(Debug, Default)]
pub(super) struct Credentials {
    without_groups: Mutex<Option<Cred>>,
    read: Mutex<Option<Read>>,
}

#[derive(Debug)]
struct Read {
    /// The status file up to the end of the groups: where it begins so again, they are the same.
    lines: Vec<u8>,
    cred: Cred,
}

impl Credentials {
    /// The caller without supplementary groups: for GETATTR and FSSTAT, which need no permission (RFC 1813 sections
    /// 3.3.1 and 3.3.18), for LOOKUP in a directory that everybody may search, and for the superuser.
    pub(super) fn user_of(&self, request: &Header) -> Cred {
        let asker = Asker::of(request);
        let mut last = self.without_groups.lock();
        match &*last {
            Some(cred) if asker.is(cred) => cred.clone(),
            _ => last.insert(new(asker, Vec::new())).clone(),
        }
    }

    /// The credential of a request, read at this moment.
    pub(super) fn of(&self, request: &Header) -> Cred {
        self.of_thread(request.pid(), Asker::of(request))
    }

    /// The credential of thread `tid`. Thread 0 is outside this PID namespace, or is the kernel
    /// itself: its groups are not known.
    pub(super) fn of_thread(&self, tid: u32, asker: Asker) -> Cred {
        let mut space = [MaybeUninit::uninit(); USUAL];
        let status = (tid != 0).then(|| status_of(tid, &mut space)).flatten();
        let status = status.unwrap_or_default();
        let mut last = self.read.lock();
        let mut same = last.as_ref().filter(|read| asker.is(&read.cred));
        if let Some(read) = same.filter(|read| status.starts_with(&read.lines)) {
            return read.cred.clone();
        }
        let found = parse(status, asker, FILE_SYSTEM);
        let Some((groups, lines)) = found else {
            let real = asker.by_real_ids.then(|| parse(status, asker, REAL));
            let groups = real.flatten().map(|(groups, _)| groups);
            return new(asker, groups.unwrap_or_default());
        };
        same = same.filter(|read| read.cred.groups == groups);
        let cred = same.map_or_else(|| new(asker, groups), |read| read.cred.clone());
        let lines = lines.to_vec();
        last.insert(Read { lines, cred }).cred.clone()
    }
}

fn new(asker: Asker, groups: Vec<u32>) -> Cred {
    let Asker { uid, gid, .. } = asker;
    Arc::new(Credential { uid, gid, groups })
}

/// The status file of a thread, into `space`. It is one read: parts of the file might be from different moments.
fn status_of(tid: u32, space: &mut [MaybeUninit<u8>]) -> Option<&[u8]> {
    let status = proc::open(tid, "status").ok()?;
    pread(&status, space, 0).ok().map(|(text, _)| &*text)
}

/// "Uid:" and "Gid:" have the real, effective, saved and file system ids.
const REAL: usize = 0;
const FILE_SYSTEM: usize = 3;

/// The supplementary groups in the text of a status file, as many as calls carry, and the text up to their end; `None` if
/// its uid and gid in this column are not those of `asker`.
fn parse(status: &[u8], asker: Asker, column: usize) -> Option<(Vec<u32>, &[u8])> {
    let mut lines = Lines(status);
    let (uids, gids) = (lines.find(b"Uid:")?, lines.find(b"Gid:")?);
    let of_column = |ids| numbers(ids).nth(column);
    if (of_column(uids), of_column(gids)) != (Some(asker.uid), Some(asker.gid)) {
        return None;
    }
    let groups = numbers(lines.find(b"Groups:")?).take(MAX_GROUPS);
    Some((groups.collect(), &status[..status.len() - lines.0.len()]))
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

    fn listed(status: &[u8], asker: Asker) -> Option<Vec<u32>> {
        parse(status, asker, FILE_SYSTEM).map(|(groups, _)| groups)
    }

    #[test]
    fn groups_of_a_status_file() {
        assert_eq!(listed(STATUS, asker(4, 8)), Some(vec![4, 24, 1000]));
        let none = b"Uid:\t1\t1\t1\t1\nGid:\t1\t1\t1\t1\nGroups:\t \n";
        assert_eq!(listed(none, asker(1, 1)), Some(Vec::new()));
        assert_eq!(listed(b"", asker(0, 0)), None);
    }

    #[test]
    fn no_more_groups_are_taken_than_calls_carry() {
        let many: Vec<u32> = (100_000..165_536).collect();
        let words: Vec<String> = many.iter().map(u32::to_string).collect();
        let status = format!(
            "Uid:\t1\t1\t1\t1\nGid:\t1\t1\t1\t1\nGroups:\t{} \n",
            words.join(" ")
        );
        let read = listed(status.as_bytes(), asker(1, 1));
        assert_eq!(read.as_deref(), Some(&many[..MAX_GROUPS]));
    }

    #[test]
    fn groups_of_another_identity_are_not_taken() {
        assert_eq!(listed(STATUS, asker(1, 8)), None);
        assert_eq!(listed(STATUS, asker(4, 5)), None);
    }

    #[test]
    fn who_only_asks_may_do_so_by_real_ids() {
        let by_real_ids = |uid, gid| parse(STATUS, asker(uid, gid), REAL).is_some();
        assert!(by_real_ids(1, 5));
        for (uid, gid) in [(1, 8), (4, 5), (2, 6), (3, 7), (4, 8)] {
            assert!(!by_real_ids(uid, gid));
        }
        assert!(asks_only(opcode::ACCESS) && !asks_only(opcode::CREATE));
    }

    #[test]
    fn what_is_kept_of_a_status_file_ends_with_the_groups() {
        let (_, lines) = parse(STATUS, asker(4, 8), FILE_SYSTEM).unwrap();
        assert!(lines.ends_with(b"Groups:\t4 24 1000 \n"));
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
        let of_another_thread = || all.of_thread(own().0, asker(uid, gid));
        let other = std::thread::scope(|scope| scope.spawn(of_another_thread).join().unwrap());
        assert!(Arc::ptr_eq(&first, &other));
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
    fn a_thread_that_ended_has_no_groups() {
        let (tid, uid, gid) = std::thread::spawn(own).join().unwrap();
        // `join` returns when the thread is about to end; the kernel needs a moment more.
        while std::path::Path::new(&format!("/proc/self/task/{tid}")).exists() {
            std::thread::yield_now();
        }
        let gone = Credentials::default().of_thread(tid, asker(uid, gid));
        assert!(gone.groups.is_empty());
    }

    /// Not a test: it measures the times in the head of this file. `cargo test --release -p
    /// nfsrdma-fs --lib reading_costs -- --ignored --nocapture`
    #[test]
    #[ignore = "a measurement"]
    fn reading_costs() {
        let (tid, uid, gid) = own();
        let all = Credentials::default();
        const TIMES: u32 = 20_000;
        let begin = Instant::now();
        for _ in 0..TIMES {
            all.of_thread(tid, asker(uid, gid));
        }
        println!("{} ns", begin.elapsed().as_nanos() / u128::from(TIMES));
    }
}
