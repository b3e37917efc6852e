//! What a server does with the calls of a mount: sizes, credits, large replies, listings, stable
//! storage, and its clock.
//!
//! The first calls have small replies: where large packets are lost, everything behind them waits.

use super::patience::within;
use super::report::{Finding, Report, Verdict};
use super::scratch::{self, Written};
use nfsrdma_nfs3::{Cred, DirEntry, Mounted, Nfs3, NfsError, NfsResult, Transport, own_credential};
use nfsrdma_rdma::Pool;
use nfsrdma_rdma::contract::Segs;
use nfsrdma_rpcrdma::words::counted;
use nfsrdma_xdr::nfs3::fsf;
use nfsrdma_xdr::nfs3::{
    Attributes, FileHandle, FileType, FsinfoOk, Stable, Status, Time, Verifier,
};
use std::time::{Duration, SystemTime};

/// Results of a READDIR that fit into any packet, in bytes.
const SMALL: u32 = 1024;
/// How many names and directories are looked at to find a large file.
const MOST_NAMES: usize = 200;
const MOST_DIRECTORIES: usize = 16;
/// A call or reply of which is large: it takes many packets, in bytes.
const LARGE: u64 = 64 << 10;
/// The clocks of two machines may differ by this much, and nobody notices.
const CLOCKS: Duration = Duration::from_secs(2);
const PACKETS_ARE_LOST: &str = "set one MTU at both ends and between, let ICMP 'fragmentation needed' through, or net.ipv4.tcp_mtu_probing=1";
/// Fewer credits than this make calls wait for each other.
const FEW_CREDITS: u32 = 8;

/// A server that is being examined.
#[derive(Debug)]
pub(super) struct Server<'a> {
    mounted: &'a Mounted,
    cred: Cred,
    pool: Pool,
    /// The newest time that the server has shown.
    newest: Option<Time>,
}

/// A regular file of the export.
#[derive(Debug, Clone, Copy)]
struct File {
    handle: FileHandle,
    size: u64,
}

impl<'a> Server<'a> {
    pub(super) fn new(mounted: &'a Mounted, pool: Pool) -> Self {
        Server {
            mounted,
            cred: own_credential(),
            pool,
            newest: None,
        }
    }

    /// Makes all checks. With `write`, a file is written and removed.
    pub(super) async fn examine(&mut self, write: bool, report: &mut Report) {
        report.add(self.credits());
        self.mounted_sizes(report);
        let file = self.large_file().await;
        let calls = self.large_call().await;
        let mut lost = calls.verdict == Verdict::Fail;
        report.add(calls);
        if !lost {
            let reads = self.reads(file).await;
            lost = reads.verdict == Verdict::Fail;
            report.add(reads);
        }
        if lost {
            let why = "the connection hangs behind what was lost";
            report.add(Finding::skip("others", why));
            return;
        }
        report.add(self.readdirplus().await);
        report.add(self.cookies().await);
        let written = match write {
            true => Some(scratch::write(self.mounted, &self.cred, &self.pool).await),
            false => None,
        };
        report.add(match &written {
            Some(Ok(written)) => stable(&written.verifiers, "three WRITEs and a COMMIT"),
            Some(Err(finding)) => finding.clone(),
            None => self.commits(file).await,
        });
        let written = written.and_then(Result::ok);
        report.add(self.clock(written.as_ref()));
    }

    fn credits(&self) -> Finding {
        const CHECK: &str = "credits";
        let granted = self.mounted.description.as_ref().map_or(0, |of| of.credits);
        let remedy = "give it more credits or threads (Linux: threads= in /etc/nfs.conf), or leave credits= out";
        match granted {
            0 => Finding::skip(CHECK, "not known"),
            1 => Finding::warn(
                CHECK,
                "the server grants 1 credit: each call waits until the one before has ended",
                remedy,
            ),
            few if few < FEW_CREDITS => Finding::warn(
                CHECK,
                format!("the server grants only {few} credits: few calls can be under way"),
                remedy,
            ),
            enough => Finding::ok(CHECK, format!("{enough} calls may be under way")),
        }
    }

    fn mounted_sizes(&self, report: &mut Report) {
        let info = &self.mounted.fsinfo;
        for finding in small_sizes(info) {
            report.add(finding);
        }
        let odd = odd_limits(info);
        report.add(match odd.is_empty() {
            true => Finding::ok("fsinfo", "its limits make sense"),
            false => Finding::warn(
                "fsinfo",
                odd.join(", "),
                "a fault of the server, or of its file system: report it there",
            ),
        });
    }

    fn saw(&mut self, attributes: &Attributes) {
        let newest = attributes.ctime.max(attributes.mtime);
        self.newest = self.newest.max(Some(newest));
    }

    /// A part of a directory, small enough for one packet.
    async fn names(&self, dir: &FileHandle) -> NfsResult<Vec<DirEntry>> {
        let client = &self.mounted.client;
        let (mut found, mut cookie, mut verifier) = (Vec::new(), 0, Verifier::default());
        while found.len() < MOST_NAMES {
            let page = client.readdir(&self.cred, dir, cookie, verifier, SMALL);
            let page = within(page).await?;
            let Some(last) = page.entries.last() else {
                break;
            };
            (cookie, verifier) = (last.cookie, page.verifier);
            found.extend(page.entries);
            if page.eof {
                break;
            }
        }
        Ok(found)
    }

    /// The largest file near the root, or the first one that a whole READ can be made of.
    async fn large_file(&mut self) -> Option<File> {
        let mounted = self.mounted;
        let client = &mounted.client;
        let whole = u64::from(client.limits().rtmax);
        if let Ok(attributes) = within(client.getattr(&self.cred, &mounted.root)).await {
            self.saw(&attributes);
        }
        let mut dirs = vec![mounted.root];
        let (mut at, mut looked) = (0, 0);
        let mut largest: Option<File> = None;
        while let Some(dir) = dirs.get(at).copied() {
            at += 1;
            for entry in self.names(&dir).await.unwrap_or_default() {
                if matches!(&entry.name[..], b"." | b"..") {
                    continue;
                }
                looked += 1;
                if looked > MOST_NAMES {
                    return largest;
                }
                let found = within(client.lookup(&self.cred, &dir, &entry.name)).await;
                let Ok(found) = found else { continue };
                let Some(attributes) = found.attributes else {
                    continue;
                };
                self.saw(&attributes);
                match attributes.kind {
                    FileType::Directory if dirs.len() < MOST_DIRECTORIES => dirs.push(found.object),
                    FileType::Regular if largest.is_none_or(|file| file.size < attributes.size) => {
                        largest = Some(File {
                            handle: found.object,
                            size: attributes.size,
                        });
                    }
                    _ => {}
                }
                if largest.is_some_and(|file| file.size >= whole) {
                    return largest;
                }
            }
        }
        largest
    }

    /// Whether a call of many packets arrives, as small ones do: a WRITE to the root, which every server refuses
    /// (RFC 1813 section 3.3.7: the handle "must identify a file system object of type, NF3REG").
    async fn large_call(&self) -> Finding {
        const CHECK: &str = "calls";
        let client = &self.mounted.client;
        let length = (LARGE as usize).min(client.limits().wtmax as usize);
        let Some(data) = scratch::some_bytes(&self.pool, length) else {
            return Finding::skip(CHECK, "no memory for the call");
        };
        let size = counted(length, "byte");
        let data = Segs::from_iter([data]);
        let write = client.write(&self.cred, &self.mounted.root, 0, data, Stable::Unstable);
        match within(write).await {
            Err(NfsError::TimedOut | NfsError::GivenUp) => Finding::fail(
                CHECK,
                format!(
                    "small calls arrive, and one of {size} does not: large packets are lost on the way"
                ),
                PACKETS_ARE_LOST,
            ),
            _ => Finding::ok(CHECK, format!("one of {size} arrives")),
        }
    }

    /// Whether a reply as large as a READ arrives, as small ones do.
    async fn reads(&self, file: Option<File>) -> Finding {
        const CHECK: &str = "reads";
        let Some(file) = file.filter(|file| file.size >= LARGE) else {
            let why = "no file of 64 KiB or more is near the root of the export: nothing large can be read";
            return Finding::skip(CHECK, why);
        };
        let client = &self.mounted.client;
        let size = file.size.min(client.limits().rtmax.into());
        let Some(sink) = self.pool.alloc(size as usize) else {
            return Finding::skip(CHECK, "no memory for the reply");
        };
        let begun = std::time::Instant::now();
        let read = client.read(&self.cred, &file.handle, 0, Segs::from_iter([sink]));
        match within(read).await {
            Ok(done) => Finding::ok(
                CHECK,
                format!(
                    "{} in one READ ({:.1} ms)",
                    counted(done.count, "byte"),
                    begun.elapsed().as_secs_f64() * 1e3
                ),
            ),
            Err(NfsError::TimedOut | NfsError::GivenUp) => Finding::fail(
                CHECK,
                format!(
                    "small replies arrive, and one of {size} bytes does not: large packets are lost on the way"
                ),
                PACKETS_ARE_LOST,
            ),
            Err(NfsError::Status(Status::Access | Status::Perm)) => {
                Finding::skip(CHECK, "this user may not read the file that was found")
            }
            Err(error) => Finding::fail(CHECK, format!("READ: {error}"), "see the server's log"),
        }
    }

    async fn readdirplus(&self) -> Finding {
        const CHECK: &str = "readdirplus";
        let client = &self.mounted.client;
        let size = client.limits().dtpref;
        let root = &self.mounted.root;
        let page = client.readdirplus(&self.cred, root, 0, Verifier::default(), size, size);
        match within(page).await {
            Ok(page) => {
                let bare = page.entries.iter().filter(|one| one.attributes.is_none());
                match bare.count() {
                    0 => Finding::ok(
                        CHECK,
                        counted(page.entries.len(), "entry").replace("entrys", "entries"),
                    ),
                    bare => Finding::ok(CHECK, format!("entries without attributes: {bare}")),
                }
            }
            Err(NfsError::Status(Status::NotSupp) | NfsError::Refused(_)) => Finding::warn(
                CHECK,
                "the server has no READDIRPLUS: 'ls -l' takes a call for each name",
                "turn it on there, where it can be",
            ),
            Err(error) => Finding::warn(
                CHECK,
                format!("READDIRPLUS: {error}"),
                "see the server's log",
            ),
        }
    }

    /// Whether positions in a directory keep their meaning.
    async fn cookies(&self) -> Finding {
        const CHECK: &str = "cookies";
        let root = self.mounted.root;
        match (self.names(&root).await, self.names(&root).await) {
            (Ok(first), Ok(second)) => match moved(&first, &second) {
                None => Finding::ok(CHECK, "positions in a directory stay the same"),
                Some(name) => Finding::fail(
                    CHECK,
                    format!("the position of {name:?} changes from one listing to the next"),
                    "names may be missing or come twice: export another file system",
                ),
            },
            (Err(error), _) | (_, Err(error)) => {
                Finding::warn(CHECK, format!("READDIR: {error}"), "see the server's log")
            }
        }
    }

    /// Whether the server says that it restarted though it did not.
    async fn commits(&self, file: Option<File>) -> Finding {
        const CHECK: &str = "verifier";
        let Some(file) = file else {
            return Finding::skip(CHECK, "there is no file to COMMIT; --write makes one");
        };
        let mut verifiers = Vec::new();
        for _ in 0..3 {
            let commit = self.mounted.client.commit(&self.cred, &file.handle, 0, 0);
            match within(commit).await {
                Ok((_, verifier)) => verifiers.push(verifier),
                Err(NfsError::Status(status)) => {
                    let why = format!("COMMIT of the file that was found: {}", status.name());
                    return Finding::skip(CHECK, why);
                }
                Err(error) => {
                    return Finding::fail(
                        CHECK,
                        format!("COMMIT: {error}"),
                        "see the server's log",
                    );
                }
            }
        }
        stable(&verifiers, "three COMMITs")
    }

    /// Compares the server's clock with ours.
    fn clock(&self, written: Option<&Written>) -> Finding {
        const CHECK: &str = "clock";
        let remedy = "set both clocks by NTP: files seem to be newer or older than they are";
        let (Some(time), exact) = (written.map(|w| w.time).or(self.newest), written.is_some())
        else {
            return Finding::skip(CHECK, "the server showed no time");
        };
        let at = written.map_or_else(SystemTime::now, |written| written.at);
        let offset = offset(time, at);
        let seconds = offset.as_seconds();
        match (offset, exact) {
            (Offset::Ahead(by), _) if by > CLOCKS => Finding::warn(
                CHECK,
                format!("the server's clock is at least {seconds} s ahead of this machine's"),
                remedy,
            ),
            (Offset::Behind(by), true) if by > CLOCKS => Finding::warn(
                CHECK,
                format!("the server's clock is {seconds} s behind this machine's"),
                remedy,
            ),
            (_, true) => Finding::ok(CHECK, "the server's clock is that of this machine"),
            (_, false) => Finding::ok(
                CHECK,
                "no time in the root directory is in the future; --write compares the clocks",
            ),
        }
    }
}

/// A server's time against ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Offset {
    Ahead(Duration),
    Behind(Duration),
}

impl Offset {
    fn as_seconds(self) -> u64 {
        match self {
            Offset::Ahead(by) | Offset::Behind(by) => by.as_secs(),
        }
    }
}

fn offset(time: Time, at: SystemTime) -> Offset {
    let time = Duration::new(time.seconds.into(), time.nanoseconds);
    let now = at
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    match time.checked_sub(now) {
        Some(ahead) => Offset::Ahead(ahead),
        None => Offset::Behind(now - time),
    }
}

/// The finding for the write verifiers of calls that were made shortly after each other.
fn stable(verifiers: &[Verifier], calls: &str) -> Finding {
    const CHECK: &str = "verifier";
    match verifiers.windows(2).all(|two| two[0] == two[1]) {
        true => Finding::ok(CHECK, format!("one write verifier in {calls}")),
        false => Finding::fail(
            CHECK,
            format!(
                "the write verifier changes within {calls}, as if the server restarted each time"
            ),
            "written data are sent again and again: look for restarts in the server's log, or report it there",
        ),
    }
}

/// The sizes of READ and WRITE that make large files slow.
fn small_sizes(info: &FsinfoOk) -> Vec<Finding> {
    let size = |check, what: &str, max: u32| match u64::from(max) < LARGE {
        true => Finding::warn(
            check,
            format!("the server takes {what}s of at most {max} bytes"),
            "raise its limit (Linux: max_block_size in /proc/fs/nfsd, before nfsd starts)",
        ),
        false => Finding::ok(check, format!("{what}s of {max} bytes")),
    };
    vec![
        size("rtmax", "READ", info.rtmax),
        size("wtmax", "WRITE", info.wtmax),
    ]
}

/// What of FSINFO makes no sense, or harms.
fn odd_limits(info: &FsinfoOk) -> Vec<String> {
    let mut odd = Vec::new();
    let mut note = |is_odd: bool, what: String| {
        if is_odd {
            odd.push(what);
        }
    };
    let none = |number: u32| number == 0;
    note(none(info.rtpref), "rtpref is 0".into());
    note(none(info.wtpref), "wtpref is 0".into());
    note(none(info.dtpref), "dtpref is 0".into());
    let more = |pref: &str, max: &str| format!("{pref} is more than {max}");
    note(info.rtpref > info.rtmax, more("rtpref", "rtmax"));
    note(info.wtpref > info.wtmax, more("wtpref", "wtmax"));
    note(
        info.max_file_size < 1 << 32,
        format!("files may have at most {} bytes", info.max_file_size),
    );
    note(
        info.time_delta.seconds > 0,
        "times have whole seconds, so that changes within a second are not seen".into(),
    );
    note(
        info.properties & fsf::CANSETTIME == 0,
        "times of files cannot be set".into(),
    );
    odd
}

/// The first name that has another cookie in the second listing.
fn moved(first: &[DirEntry], second: &[DirEntry]) -> Option<String> {
    let cookie = |name: &[u8]| {
        let found = second.iter().find(|entry| &entry.name[..] == name);
        found.map(|entry| entry.cookie)
    };
    let moved = first
        .iter()
        .find(|entry| cookie(&entry.name).is_some_and(|other| other != entry.cookie))?;
    Some(String::from_utf8_lossy(&moved.name).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> FsinfoOk {
        FsinfoOk {
            attributes: None,
            rtmax: 1 << 20,
            rtpref: 1 << 20,
            rtmult: 4096,
            wtmax: 1 << 20,
            wtpref: 1 << 20,
            wtmult: 4096,
            dtpref: 1 << 20,
            max_file_size: 1 << 40,
            time_delta: Time {
                seconds: 0,
                nanoseconds: 1,
            },
            properties: fsf::CANSETTIME,
        }
    }

    #[test]
    fn odd_limits_are_named() {
        assert_eq!(odd_limits(&info()), Vec::<String>::new());
        let odd = odd_limits(&FsinfoOk {
            rtpref: 2 << 20,
            dtpref: 0,
            max_file_size: 1 << 31,
            time_delta: Time {
                seconds: 1,
                nanoseconds: 0,
            },
            properties: 0,
            ..info()
        });
        assert_eq!(odd.len(), 5, "{odd:?}");
    }

    fn entry(name: &[u8], cookie: u64) -> DirEntry {
        DirEntry {
            fileid: 1,
            name: name.into(),
            cookie,
            attributes: None,
            handle: None,
        }
    }

    #[test]
    fn cookies_that_move_are_found() {
        let first = [entry(b"a", 1), entry(b"b", 2)];
        // A name that came or went in between is no fault.
        assert_eq!(moved(&first, &[entry(b"b", 2), entry(b"c", 3)]), None);
        assert_eq!(moved(&first, &[entry(b"b", 5)]).as_deref(), Some("b"));
    }
}
