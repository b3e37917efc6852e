//! The journal: which locks a mount may hold, in a file that outlives its process.
//!
//! A process that is killed cannot unlock, and the server keeps its locks. A server learns of the
//! end of a client only by NSM, where a client is a whole machine, with the locks of all its other
//! mounts and of the kernel's NFS client. So each mount keeps a journal of the files and owners
//! that it asked locks for. If the next mount of the same server finds a journal whose process is
//! gone (a live one holds a lock on the file, flock(2)), it unlocks exactly these.
//!
//! If a line cannot be written completely, as on a full disk, the file ends in a part of it, and the
//! next line would be read as the rest of that. So the file is then written anew.
//!
//! A journal is a text file. Its first lines are a version, the server's address, and `boot` with
//! the machine's boot ID. Each further line has `+` or `-`, the owner's number, the file handle in
//! hexadecimal, and uid, gid and supplementary groups, separated by blanks. An incomplete last line
//! is ignored. Lines are written before the first LOCK is sent, and reach the disk some time later,
//! so a power failure may lose the last seconds. Therefore the line `locked` precedes the first of
//! them, and is synced at once: a journal that has it and another boot ID belongs to a mount that
//! may have had locks ([`Abandoned::may_have_locks`]).

use crate::{Cred, Credential};
use nfsrdma_xdr::nfs3::FileHandle;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const VERSION: &str = "nfsrdma locks 1";
/// Largest journal that is read, in bytes, and largest number of journals read.
const MOST: u64 = 16 << 20;
const MOST_FILES: usize = 1024;
/// Bytes of outdated lines, after which the file is rewritten.
const SLACK: u64 = 64 << 10;
/// While the file cannot be written, it is tried again once for this many locks that are held.
const LIVE_PER_TRY: usize = 64;

/// The owner's number and the file handle.
type Key = (u32, Vec<u8>);

/// A lock that a mount may have left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Orphan {
    pub svid: u32,
    pub file: FileHandle,
    pub cred: Cred,
}

#[derive(Debug)]
struct State {
    file: File,
    /// Whether the line `locked` has been written.
    locked: bool,
    live: HashMap<Key, Cred>,
    written: u64,
    /// Lines that were not written since the last attempt to write failed; `None` if it did not.
    missing: Option<usize>,
}

/// The journal of this mount.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    /// Whether to remove the directory with the last journal in it.
    temporary: bool,
    server: IpAddr,
    /// Whether this process has begun it.
    is_own: bool,
    state: Mutex<State>,
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn unhex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| {
            let pair = std::str::from_utf8(pair)
                .ok()
                .filter(|pair| pair.len() == 2)?;
            u8::from_str_radix(pair, 16).ok()
        })
        .collect()
}

fn line(sign: char, key: &Key, cred: &Credential) -> String {
    let mut line = format!("{sign} {} {} {} {}", key.0, hex(&key.1), cred.uid, cred.gid);
    for group in &cred.groups {
        line.push_str(&format!(" {group}"));
    }
    line.push('\n');
    line
}

/// The boot ID of this machine.
fn boot() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

fn head(server: IpAddr) -> String {
    format!("{VERSION}\n{server}\nboot {}\n", boot())
}

/// The contents of a journal.
struct Contents {
    server: IpAddr,
    boot: Option<String>,
    locked: bool,
    live: HashMap<Key, Cred>,
}

fn parse(text: &str) -> Option<Contents> {
    let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
    let mut lines = whole.lines();
    if lines.next() != Some(VERSION) {
        return None;
    }
    let server = lines.next()?.parse().ok()?;
    let mut live = HashMap::new();
    let (mut boot, mut locked) = (None, false);
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["boot", id] => boot = Some(id.to_owned()),
            ["locked"] => locked = true,
            _ => {}
        }
        let [sign, svid, file, uid, gid, groups @ ..] = &words[..] else {
            continue;
        };
        let (Ok(svid), Some(file)) = (svid.parse(), unhex(file)) else {
            continue;
        };
        let (Ok(uid), Ok(gid)) = (uid.parse(), gid.parse()) else {
            continue;
        };
        let groups = groups.iter().filter_map(|group| group.parse().ok());
        let groups = groups.collect();
        match *sign {
            "+" => live.insert((svid, file), Arc::new(Credential { uid, gid, groups })),
            _ => live.remove(&(svid, file)),
        };
    }
    Some(Contents {
        server,
        boot,
        locked,
        live,
    })
}

fn text_of(file: &mut File) -> io::Result<String> {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0))?;
    Read::by_ref(file).take(MOST).read_to_string(&mut text)?;
    Ok(text)
}

fn orphans(live: HashMap<Key, Cred>) -> Vec<Orphan> {
    let orphan = |((svid, file), cred): (Key, Cred)| {
        let file = FileHandle::new(&file)?;
        Some(Orphan { svid, file, cred })
    };
    live.into_iter().filter_map(orphan).collect()
}

impl Journal {
    /// Creates a journal in `dir`, readable by this user only; creates `dir` if necessary. With
    /// `temporary` the directory is removed with the last journal in it.
    pub fn create(dir: &Path, server: IpAddr, temporary: bool) -> io::Result<Self> {
        let random = getrandom::u64().map_err(|error| io::Error::other(error.to_string()))?;
        let path = dir.join(format!("{random:016x}.locks"));
        let open = || {
            DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
            OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&path)
        };
        let mut file = match open() {
            // Another mount has just removed the directory together with its journal.
            Err(error) if error.kind() == io::ErrorKind::NotFound => open()?,
            other => other?,
        };
        file.try_lock()?;
        file.write_all(head(server).as_bytes())?;
        Ok(Journal {
            path,
            server,
            temporary,
            is_own: true,
            state: Mutex::new(State {
                file,
                locked: false,
                live: HashMap::new(),
                written: 0,
                missing: None,
            }),
        })
    }

    /// The journal of a process that has died, by its file, which somebody has kept open and so locked.
    pub fn resume(file: OwnedFd, server: IpAddr, temporary: bool) -> io::Result<Self> {
        let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        let mut file = File::from(file);
        let text = text_of(&mut file)?;
        let found = parse(&text).ok_or(io::ErrorKind::InvalidData)?;
        let state = State {
            file,
            locked: found.locked,
            live: found.live,
            written: text.len() as u64,
            missing: None,
        };
        let journal = Journal {
            path,
            temporary,
            server,
            is_own: false,
            state: Mutex::new(state),
        };
        if !text.ends_with('\n') {
            journal.rewrite(&mut journal.state.lock())?;
        }
        Ok(journal)
    }

    /// The file, for whoever keeps the journal beyond the life of this process.
    pub fn fd(&self) -> io::Result<OwnedFd> {
        Ok(self.state.lock().file.try_clone()?.into())
    }

    /// The directory.
    pub fn dir(&self) -> Option<&Path> {
        self.path.parent()
    }

    /// What may be locked.
    pub fn all(&self) -> Vec<Orphan> {
        orphans(self.state.lock().live.clone())
    }

    /// Records an owner on a file, before its first LOCK.
    pub fn add(&self, svid: u32, file: &FileHandle, cred: &Cred) -> io::Result<()> {
        let key = (svid, file.as_bytes().to_vec());
        let mut state = self.state.lock();
        if state.live.contains_key(&key) {
            // A process that has died has recorded it.
            return Ok(());
        }
        let mut line = line('+', &key, cred);
        state.live.insert(key, cred.clone());
        if !state.locked {
            state.locked = true;
            line.insert_str(0, "locked\n");
            self.append(&mut state, &line)?;
            self.bring_to_disk(&state.file);
            return Ok(());
        }
        self.append(&mut state, &line)
    }

    /// Removes an owner on a file, after its last UNLOCK.
    pub fn remove(&self, svid: u32, file: &FileHandle) -> io::Result<()> {
        let key = (svid, file.as_bytes().to_vec());
        let mut state = self.state.lock();
        let Some(cred) = state.live.remove(&key) else {
            return Ok(());
        };
        let line = line('-', &key, &cred);
        self.append(&mut state, &line)
    }

    /// The mount ends. If it holds no locks, the file is removed, even if other references to the
    /// journal exist when the process ends.
    pub fn end(&self) {
        let state = self.state.lock();
        if !state.live.is_empty() {
            return;
        }
        let _ = fs::remove_file(&self.path);
        if let Some(dir) = self.path.parent().filter(|_| self.temporary) {
            // Fails if other mounts have journals in it.
            let _ = fs::remove_dir(dir);
        }
    }

    fn append(&self, state: &mut State, text: &str) -> io::Result<()> {
        if let Some(missing) = &mut state.missing {
            *missing += 1;
            // To write it anew takes time for each lock that is held, so it is not tried each time.
            if *missing < state.live.len() / LIVE_PER_TRY {
                return Err(io::Error::other("it could not be written lately"));
            }
            self.rewrite(state)?;
            self.bring_to_disk(&state.file);
            return Ok(());
        }
        if state.written > SLACK + 200 * state.live.len() as u64 {
            return self.rewrite(state);
        }
        state.written += text.len() as u64;
        let result = state.file.write_all(text.as_bytes());
        state.missing = result.as_ref().err().map(|_| 0);
        result
    }

    /// Syncs in the background: the disk may be slow, and a lock must not wait for it.
    fn bring_to_disk(&self, file: &File) {
        let (Ok(file), dir) = (file.try_clone(), self.path.parent()) else {
            return;
        };
        let dir = dir.map(Path::to_path_buf);
        let sync = move || {
            let _ = file.sync_all();
            let _ = dir.map(|dir| File::open(dir)?.sync_all());
        };
        // Without a thread the kernel writes it later.
        let _ = std::thread::Builder::new()
            .name("journal".into())
            .spawn(sync);
    }

    /// Rewrites the file in place, because its flock shows that this process lives.
    fn rewrite(&self, state: &mut State) -> io::Result<()> {
        let mut text = head(self.server);
        if state.locked {
            text.push_str("locked\n");
        }
        for (key, cred) in &state.live {
            text.push_str(&line('+', key, cred));
        }
        // Until all of it is written, the file may have parts of lines.
        state.missing = Some(0);
        state.file.seek(SeekFrom::Start(0))?;
        state.file.write_all(text.as_bytes())?;
        state.file.set_len(text.len() as u64)?;
        state.missing = None;
        state.written = 0;
        Ok(())
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // A process that fails to go on with a mount leaves it to the next one.
        if self.is_own {
            self.end();
        }
    }
}

/// The journal of a mount whose process is gone.
#[derive(Debug)]
pub struct Abandoned {
    path: PathBuf,
    /// Locked, so that no other process takes the journal.
    _file: File,
    pub orphans: Vec<Orphan>,
    /// Whether a lock was asked for before the last boot of the machine: there may have been locks
    /// that the journal does not name.
    locked_before_start: bool,
}

impl Abandoned {
    /// Opens the journals in `dir` that ended mounts of `server` have left.
    pub fn find(dir: &Path, server: IpAddr) -> Vec<Abandoned> {
        let Ok(entries) = fs::read_dir(dir) else {
            return Vec::new();
        };
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let journals = paths.filter(|path| path.extension().is_some_and(|e| e == "locks"));
        journals
            .take(MOST_FILES)
            .filter_map(|path| Self::open(path, server))
            .collect()
    }

    fn open(path: PathBuf, server: IpAddr) -> Option<Self> {
        let mut file = OpenOptions::new().read(true).write(true).open(&path).ok()?;
        file.try_lock().ok()?;
        let found = parse(&text_of(&mut file).ok()?)?;
        if found.server != server {
            return None;
        }
        let started_since = found.boot.is_some_and(|of| of != boot());
        Some(Abandoned {
            path,
            orphans: orphans(found.live),
            locked_before_start: found.locked && started_since,
            _file: file,
        })
    }

    /// Whether the server may still hold locks of the mount.
    pub fn may_have_locks(&self) -> bool {
        self.locked_before_start || !self.orphans.is_empty()
    }

    /// To be called when everything in the journal is unlocked: removes it.
    pub fn done(self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cred(groups: &[u32]) -> Cred {
        Arc::new(Credential {
            uid: 1,
            gid: 2,
            groups: groups.to_vec(),
        })
    }

    fn handle(byte: u8) -> FileHandle {
        FileHandle::new(&[byte; 12]).unwrap()
    }

    /// A directory for journals that is not there yet, and the server.
    fn place() -> (PathBuf, IpAddr) {
        let random = getrandom::u64().unwrap();
        let dir = std::env::temp_dir().join(format!("nfsrdma-journal-{random:x}"));
        (dir, IpAddr::from([192, 0, 2, 1]))
    }

    #[test]
    fn what_a_process_leaves_is_found_once_it_is_gone() {
        let (dir, server) = place();
        let journal = Journal::create(&dir, server, true).unwrap();
        journal.add(7, &handle(1), &cred(&[3, 4])).unwrap();
        journal.add(8, &handle(2), &cred(&[])).unwrap();
        journal.remove(8, &handle(2)).unwrap();
        assert!(Abandoned::find(&dir, server).is_empty(), "it lives");
        // Enough lines to have the file rewritten many times.
        for n in 100..10_000 {
            journal.add(n, &handle(3), &cred(&[])).unwrap();
            journal.remove(n, &handle(3)).unwrap();
        }
        drop(journal);
        assert!(Abandoned::find(&dir, "192.0.2.2".parse().unwrap()).is_empty());
        let mut found = Abandoned::find(&dir, server);
        let found = found.pop().unwrap();
        assert!(found.may_have_locks() && !found.locked_before_start);
        let orphan = Orphan {
            svid: 7,
            file: handle(1),
            cred: cred(&[3, 4]),
        };
        assert_eq!(found.orphans, [orphan]);
        found.done();
        assert!(Abandoned::find(&dir, server).is_empty());
        let unused = Journal::create(&dir, server, true).unwrap();
        drop(unused);
        assert!(!dir.exists());
    }

    #[test]
    fn another_process_goes_on_with_a_journal_that_stays_locked() {
        let (dir, server) = place();
        let journal = Journal::create(&dir, server, true).unwrap();
        journal.add(1, &handle(1), &cred(&[])).unwrap();
        journal.add(2, &handle(2), &cred(&[3])).unwrap();
        let kept = journal.fd().unwrap();
        let part = b"+ 3 0303";
        journal.state.lock().file.write_all(part).unwrap();
        // The process is killed.
        std::mem::forget(journal);
        let journal = Journal::resume(kept, server, true).unwrap();
        assert_eq!(journal.dir(), Some(&*dir));
        let mut svids: Vec<_> = journal.all().iter().map(|of| of.svid).collect();
        svids.sort_unstable();
        assert_eq!(svids, [1, 2]);
        journal.add(2, &handle(2), &cred(&[3])).unwrap();
        journal.add(4, &handle(4), &cred(&[])).unwrap();
        journal.remove(1, &handle(1)).unwrap();
        assert!(Abandoned::find(&dir, server).is_empty(), "it lives");
        let text = fs::read_to_string(&journal.path).unwrap();
        let mut live: Vec<_> = parse(&text).unwrap().live.into_keys().collect();
        live.sort_unstable();
        assert_eq!(live, [(2, vec![2; 12]), (4, vec![4; 12])]);
        journal.remove(2, &handle(2)).unwrap();
        journal.remove(4, &handle(4)).unwrap();
        let kept = journal.fd().unwrap();
        drop(journal);
        assert!(dir.exists(), "the next process goes on");
        Journal::resume(kept, server, true).unwrap().end();
        assert!(!dir.exists());
    }

    /// The disk is full: a part of a line is written, and nothing more. Then there is room again.
    #[test]
    fn what_follows_a_part_of_a_line_is_read() {
        let (dir, server) = place();
        let journal = Journal::create(&dir, server, true).unwrap();
        journal.add(1, &handle(1), &cred(&[])).unwrap();
        let writable = {
            let mut state = journal.state.lock();
            state.file.write_all(b"+ 2 0202").unwrap();
            let full = File::open(&journal.path).unwrap();
            std::mem::replace(&mut state.file, full)
        };
        assert!(journal.add(2, &handle(2), &cred(&[])).is_err());
        assert!(journal.add(3, &handle(3), &cred(&[])).is_err());
        journal.state.lock().file = writable;
        journal.add(4, &handle(4), &cred(&[])).unwrap();
        journal.remove(1, &handle(1)).unwrap();
        drop(journal);
        // The threads that sync the file still have it open, with its lock.
        let found = loop {
            match Abandoned::find(&dir, server).pop() {
                Some(found) => break found,
                None => std::thread::yield_now(),
            }
        };
        let mut svids: Vec<_> = found.orphans.iter().map(|of| of.svid).collect();
        svids.sort_unstable();
        assert_eq!(svids, [2, 3, 4], "each may be locked at the server");
        found.done();
        fs::remove_dir(&dir).unwrap();
    }

    #[test]
    fn a_journal_from_before_a_start_of_the_machine_may_lack_locks() {
        let (dir, server) = place();
        fs::create_dir(&dir).unwrap();
        for (boot, locked, expected) in [
            ("another", "locked\n", true),
            ("another", "", false),
            (boot().as_str(), "locked\n", false),
        ] {
            let text = format!("{VERSION}\n{server}\nboot {boot}\n{locked}");
            fs::write(dir.join("1.locks"), text).unwrap();
            let found = Abandoned::find(&dir, server).pop().unwrap();
            assert_eq!(found.may_have_locks(), expected, "{boot} {locked}");
        }
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn nonsense_is_no_journal() {
        assert!(parse("").is_none());
        assert!(parse("nfsrdma locks 2\n::1\n").is_none());
        assert!(parse("nfsrdma locks 1\nhost\n").is_none());
        let text = "nfsrdma locks 1\n::1\n+ 1 0g 0 0\n+ 2 abc 0 0\n\n+\n+ 3 ab 0 0\n+ 4 ab 0";
        let found = parse(text).unwrap();
        assert_eq!(
            found.live.into_keys().collect::<Vec<_>>(),
            [(3, vec![0xab])]
        );
    }
}
