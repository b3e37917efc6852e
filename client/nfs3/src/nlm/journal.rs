//! Which locks a mount may have, in a file that outlives it.
//!
//! A process that is killed cannot unlock, and the server keeps its locks: it learns of the end of
//! a client by NSM only, and there a client is a whole machine, with the locks of all its other
//! mounts and of the kernel's own NFS client. So each mount keeps a journal of the files and
//! owners that it asked locks for; the next mount of the same server that finds one whose process
//! is gone (it held a lock on the file, flock(2)) unlocks exactly these.
//!
//! It is a text: a line with a version, one with the server's address, then `+` or `-`, the owner's
//! number, the file handle in hexadecimal, user, group and further groups, with blanks between. A
//! last line without its end is not counted. Lines are written before the first LOCK is sent and
//! reach the disk some time later: a machine that loses its power may lose the last seconds.

use crate::{Cred, Credential};
use nfsrdma_xdr::nfs3::FileHandle;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const VERSION: &str = "nfsrdma locks 1";
/// Largest journal that is read, in bytes, and most journals.
const MOST: u64 = 16 << 20;
const MOST_FILES: usize = 1024;
/// Bytes of lines about nothing that is locked any more, after which the file is written anew.
const SLACK: u64 = 64 << 10;

/// An owner on a file.
type Key = (u32, Vec<u8>);

/// A lock that somebody may have left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Orphan {
    pub svid: u32,
    pub file: FileHandle,
    pub cred: Cred,
}

#[derive(Debug)]
struct State {
    file: File,
    live: HashMap<Key, Cred>,
    written: u64,
}

/// The journal of this mount.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    /// The directory goes with the last journal in it.
    temporary: bool,
    server: IpAddr,
    state: Mutex<State>,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
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

fn parse(text: &str) -> Option<(IpAddr, HashMap<Key, Cred>)> {
    let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
    let mut lines = whole.lines();
    if lines.next() != Some(VERSION) {
        return None;
    }
    let server = lines.next()?.parse().ok()?;
    let mut live = HashMap::new();
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
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
    Some((server, live))
}

impl Journal {
    /// Makes one in `dir`, which is made if need be, for nobody else to read. With `temporary` the
    /// directory goes with the last journal in it.
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
            // Another mount has just taken the directory away with its journal.
            Err(error) if error.kind() == io::ErrorKind::NotFound => open()?,
            other => other?,
        };
        file.try_lock()?;
        let head = format!("{VERSION}\n{server}\n");
        file.write_all(head.as_bytes())?;
        Ok(Journal {
            path,
            server,
            temporary,
            state: Mutex::new(State {
                file,
                live: HashMap::new(),
                written: 0,
            }),
        })
    }

    /// Before the first LOCK of an owner on a file.
    pub fn add(&self, svid: u32, file: &FileHandle, cred: &Cred) -> io::Result<()> {
        let key = (svid, file.as_bytes().to_vec());
        let mut state = self.state.lock();
        let line = line('+', &key, cred);
        state.live.insert(key, cred.clone());
        self.append(&mut state, &line)
    }

    /// After the last UNLOCK.
    pub fn remove(&self, svid: u32, file: &FileHandle) -> io::Result<()> {
        let key = (svid, file.as_bytes().to_vec());
        let mut state = self.state.lock();
        let Some(cred) = state.live.remove(&key) else {
            return Ok(());
        };
        let line = line('-', &key, &cred);
        self.append(&mut state, &line)
    }

    fn append(&self, state: &mut State, text: &str) -> io::Result<()> {
        if state.written > SLACK + 200 * state.live.len() as u64 {
            return self.rewrite(state);
        }
        state.written += text.len() as u64;
        state.file.write_all(text.as_bytes())
    }

    /// In place: the lock on the file is what says that this process lives.
    fn rewrite(&self, state: &mut State) -> io::Result<()> {
        let mut text = format!("{VERSION}\n{}\n", self.server);
        for (key, cred) in &state.live {
            text.push_str(&line('+', key, cred));
        }
        state.file.seek(SeekFrom::Start(0))?;
        state.file.write_all(text.as_bytes())?;
        state.file.set_len(text.len() as u64)?;
        state.written = 0;
        Ok(())
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // What is left there is for the next mount to unlock.
        if self.state.get_mut().live.is_empty() {
            let _ = fs::remove_file(&self.path);
            if let Some(dir) = self.path.parent().filter(|_| self.temporary) {
                // Not if there are others' journals in it.
                let _ = fs::remove_dir(dir);
            }
        }
    }
}

/// The journal of a mount whose process is gone.
#[derive(Debug)]
pub struct Abandoned {
    path: PathBuf,
    /// Locked, so that nobody else takes it.
    _file: File,
    pub orphans: Vec<Orphan>,
}

impl Abandoned {
    /// Those of mounts of `server` that are in `dir`.
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
        let mut text = String::new();
        Read::by_ref(&mut file)
            .take(MOST)
            .read_to_string(&mut text)
            .ok()?;
        let (of, live) = parse(&text)?;
        if of != server {
            return None;
        }
        let orphans = live.into_iter().filter_map(|((svid, file), cred)| {
            let file = FileHandle::new(&file)?;
            Some(Orphan { svid, file, cred })
        });
        Some(Abandoned {
            path,
            orphans: orphans.collect(),
            _file: file,
        })
    }

    /// Everything in it is unlocked.
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

    #[test]
    fn what_a_process_leaves_is_found_once_it_is_gone() {
        let random = getrandom::u64().unwrap();
        let dir = std::env::temp_dir().join(format!("nfsrdma-journal-{random:x}"));
        let server: IpAddr = "192.0.2.1".parse().unwrap();
        let journal = Journal::create(&dir, server, true).unwrap();
        journal.add(7, &handle(1), &cred(&[3, 4])).unwrap();
        journal.add(8, &handle(2), &cred(&[])).unwrap();
        journal.remove(8, &handle(2)).unwrap();
        assert!(Abandoned::find(&dir, server).is_empty(), "it lives");
        // Rewritten many times.
        for n in 100..10_000 {
            journal.add(n, &handle(3), &cred(&[])).unwrap();
            journal.remove(n, &handle(3)).unwrap();
        }
        drop(journal);
        assert!(Abandoned::find(&dir, "192.0.2.2".parse().unwrap()).is_empty());
        let mut found = Abandoned::find(&dir, server);
        let found = found.pop().unwrap();
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
    fn nonsense_is_no_journal() {
        assert!(parse("").is_none());
        assert!(parse("nfsrdma locks 2\n::1\n").is_none());
        assert!(parse("nfsrdma locks 1\nhost\n").is_none());
        let text = "nfsrdma locks 1\n::1\n+ 1 0g 0 0\n+ 2 abc 0 0\n\n+\n+ 3 ab 0 0\n+ 4 ab 0";
        let (_, live) = parse(text).unwrap();
        assert_eq!(live.into_keys().collect::<Vec<_>>(), [(3, vec![0xab])]);
    }
}
