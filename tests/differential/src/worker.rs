//! A user's process on one of the two trees: it makes the requested calls, one at a time.

use crate::call::{At, Call, LockKind, Outcome, Place, Reply, Request, SLOTS, Side, SyncKind};
use crate::listing::{entries, shown};
use crate::observe::{self, errno_name};
use crate::program::PROGRAM;
use crate::sys::{self, Mapping, Sys};
use anyhow::{Context, Result};
use std::ffi::CString;
use std::io::{BufRead, BufReader, Write};

/// Flags that are added to each open, so that opening a FIFO never waits.
const ALWAYS: i32 = libc::O_NONBLOCK | libc::O_CLOEXEC;

const PAGE: usize = 4096;

#[derive(Debug)]
pub(crate) struct Worker {
    root: Vec<u8>,
    slots: [i32; SLOTS as usize],
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    groups: Vec<u32>,
    /// The current groups, and those from when each descriptor was opened.
    pub(crate) current: Vec<u32>,
    pub(crate) opened_with: [Vec<u32>; SLOTS as usize],
    memory: i32,
    pub(crate) side: Side,
    /// The descriptor by which a call wrote data that the server refused.
    pub(crate) refused: Option<i32>,
    /// Whether the mount has `permissions=server`.
    pub(crate) server_checks: bool,
}

/// Executes requests from the standard input until it ends.
pub(crate) fn main(uid: u32, gid: u32, groups: Vec<u32>) -> Result<()> {
    let failed = |errno| std::io::Error::from_raw_os_error(errno);
    sys::ignore_sigpipe();
    sys::become_user(uid, gid, &groups)
        .map_err(failed)
        .context("becoming a user")?;
    sys::die_with_parent().map_err(failed)?;
    let memory = sys::memory_file().map_err(failed).context("memfd_create")?;
    let mut worker = Worker {
        root: Vec::new(),
        slots: [-1; SLOTS as usize],
        uid,
        gid,
        current: groups.clone(),
        groups,
        opened_with: Default::default(),
        memory,
        side: Side::default(),
        refused: None,
        server_checks: false,
    };
    let mut input = BufReader::new(std::io::stdin().lock());
    let mut output = std::io::stdout().lock();
    let mut line = String::new();
    loop {
        line.clear();
        if input.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let reply = worker.serve(serde_json::from_str(&line)?);
        let mut text = serde_json::to_vec(&reply)?;
        text.push(b'\n');
        output.write_all(&text)?;
        output.flush()?;
    }
}

/// The bytes of a path that is made of characters.
pub(crate) fn raw(path: &str) -> Vec<u8> {
    path.chars().map(|c| c as u32 as u8).collect()
}

pub(crate) fn c_string(bytes: Vec<u8>) -> Sys<CString> {
    CString::new(bytes).map_err(|_| libc::EINVAL)
}

/// Bytes to write, which show the position to which they belong.
fn pattern(len: usize, fill: u8) -> Vec<u8> {
    (0..len)
        .map(|i| fill.wrapping_add((i >> 9) as u8))
        .collect()
}

impl Worker {
    fn serve(&mut self, request: Request) -> Reply {
        match request {
            Request::Begin {
                root,
                side,
                server_checks,
            } => {
                (self.side, self.server_checks) = (side, server_checks);
                Reply {
                    outcome: outcome(self.begin(root)),
                    ..Reply::default()
                }
            }
            Request::Do { call } => {
                let lost = self.lost(&call);
                let outcome = outcome(self.judged(&call, lost));
                Reply {
                    outcome,
                    states: self.states(&call),
                    lost,
                    refused: self.refused.take(),
                    removed: self.is_in_removed(&call),
                }
            }
            Request::Look { call } => Reply {
                // This may change the identity again, which linkat(2) with AT_EMPTY_PATH notices.
                lost: self.lost(&call),
                states: self.states(&call),
                ..Reply::default()
            },
            Request::Observe { places, contents } => {
                let states = places.iter().map(|place| {
                    let mut state = self.state(place);
                    if contents {
                        let data = outcome(self.contents(place));
                        state += &format!(" contents={}/{}", errno_name(data.errno), data.data);
                    }
                    state
                });
                Reply {
                    states: states.collect(),
                    ..Reply::default()
                }
            }
            Request::Sync { ino } => {
                self.sync(ino);
                Reply::default()
            }
        }
    }

    /// The current state of the objects that a call touches.
    fn states(&self, call: &Call) -> Vec<String> {
        let places = call.places().into_iter().map(|place| self.state(place));
        let slots = call.slots().into_iter().map(|slot| self.slot_state(slot));
        places.chain(slots).collect()
    }

    fn begin(&mut self, root: String) -> Sys<(i64, String)> {
        for slot in 0..SLOTS {
            if self.fd(slot) >= 0 {
                // An error of a write that was reported before may be reported again.
                let _ = sys::close(self.fd(slot));
                self.slots[usize::from(slot)] = -1;
            }
        }
        self.root = root.into_bytes();
        sys::chdir(c"/")?;
        // If there is no root yet, only descriptors are closed.
        if !self.root.is_empty() {
            sys::chdir(&c_string(self.root.clone())?)?;
        }
        sys::umask(0o022)?;
        sys::become_user(self.uid, self.gid, &self.groups)?;
        self.current = self.groups.clone();
        Ok((0, String::new()))
    }

    pub(crate) fn fd(&self, slot: u8) -> i32 {
        self.slots[usize::from(slot % SLOTS)]
    }

    fn put(&mut self, slot: u8, fd: i32) {
        let old = std::mem::replace(&mut self.slots[usize::from(slot % SLOTS)], fd);
        if old >= 0 {
            let _ = sys::close(old);
        }
    }

    /// The descriptor and path of a place.
    pub(crate) fn at(&self, place: &Place) -> Sys<(i32, CString)> {
        let path = raw(&place.path);
        Ok(match place.at {
            At::Root => {
                let mut whole = self.root.clone();
                if !path.is_empty() {
                    whole.push(b'/');
                    whole.extend_from_slice(&path);
                }
                (libc::AT_FDCWD, c_string(whole)?)
            }
            At::Cwd => (libc::AT_FDCWD, c_string(path)?),
            At::Slot(slot) => (self.fd(slot), c_string(path)?),
        })
    }

    fn state(&self, place: &Place) -> String {
        let look = |place: &Place| {
            let (dir, path) = self.at(place)?;
            let flags = libc::AT_SYMLINK_NOFOLLOW;
            sys::statx(dir, &path, flags, libc::STATX_BASIC_STATS)
        };
        observe::state(self.walked(place, look))
    }

    fn slot_state(&self, slot: u8) -> String {
        let fd = self.fd(slot);
        let found = sys::statx(fd, c"", libc::AT_EMPTY_PATH, libc::STATX_BASIC_STATS);
        let offset = match sys::lseek(fd, 0, libc::SEEK_CUR) {
            // An offset in a directory is a cookie.
            Ok(_) if found.is_ok_and(|s| u32::from(s.stx_mode) & libc::S_IFMT == libc::S_IFDIR) => {
                "directory".into()
            }
            Ok(offset) => offset.to_string(),
            Err(errno) => errno_name(errno),
        };
        format!("{} offset={offset}", observe::state(found))
    }

    /// Whether two descriptors are of the same file.
    fn same_file(&self, a: u8, b: u8) -> bool {
        let inode = |slot| {
            sys::statx(self.fd(slot), c"", libc::AT_EMPTY_PATH, libc::STATX_INO)
                .map(|stat| (stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino))
        };
        inode(a).is_ok() && inode(a) == inode(b)
    }

    /// Whether the source and destination of a sendfile(2) overlap in one file.
    fn overlaps(&self, from: u8, to: u8, at: i64, len: usize) -> Sys<bool> {
        let mask = libc::STATX_TYPE | libc::STATX_SIZE;
        let stat = |slot| sys::statx(self.fd(slot), c"", libc::AT_EMPTY_PATH, mask);
        // Servers choose the sizes and positions of directories, to which nothing is sent.
        if u32::from(stat(from)?.stx_mode) & libc::S_IFMT != libc::S_IFREG {
            return Ok(false);
        }
        let append = sys::flags(self.fd(to))? & libc::O_APPEND != 0;
        let (end, len) = (stat(from)?.stx_size as i64, len as i64);
        let to_at = match append {
            true => end,
            false => sys::lseek(self.fd(to), 0, libc::SEEK_CUR)?,
        };
        let read = at..at.saturating_add(len).min(end);
        Ok(read.start < to_at.saturating_add(len) && to_at < read.end)
    }

    /// Makes the call.
    pub(crate) fn call(&mut self, call: &Call) -> Sys<(i64, String)> {
        use Call::*;
        match *call {
            Open { .. } | Close { .. } | Dup { .. } | Umask { .. } | Groups { .. } => {
                self.descriptors(call)
            }
            Read { .. }
            | Pread { .. }
            | Readv { .. }
            | Lseek { .. }
            | SeekSparse { .. }
            | Mmap { .. }
            | Getdents { .. }
            | List { .. }
            | Contents { .. } => self.reading(call),
            Write { .. }
            | Pwrite { .. }
            | Writev { .. }
            | Pwritev2 { .. }
            | Truncate { .. }
            | Ftruncate { .. }
            | Fallocate { .. }
            | CopyRange { .. }
            | Sendfile { .. }
            | Sync { .. }
            | Program { .. } => self.writing(call).map(|n| (n, String::new())),
            Mkdir { .. }
            | Rmdir { .. }
            | Mknod { .. }
            | Symlink { .. }
            | Link { .. }
            | LinkSlot { .. }
            | Unlink { .. }
            | Rename { .. }
            | Chdir { .. }
            | Fchdir { .. }
            | Exec { .. } => self.naming(call).map(|n| (n, String::new())),
            _ => self.attributes(call),
        }
    }

    fn descriptors(&mut self, call: &Call) -> Sys<(i64, String)> {
        match call {
            Call::Open {
                slot,
                place,
                flags,
                mode,
            } => {
                let exclusive = flags.has(libc::O_CREAT | libc::O_EXCL);
                if exclusive && self.uid != 0 && mode.0 & 0o2010 == 0o2000 {
                    return Err(libc::ECANCELED);
                }
                self.opens_by_mode(place, flags.0)?;
                let (dir, path) = self.at(place)?;
                let fd = sys::openat(dir, &path, flags.0 | ALWAYS, mode.0)?;
                self.put(*slot, fd);
                self.opened_with[usize::from(slot % SLOTS)] = self.current.clone();
            }
            Call::Close { slot } => {
                let fd = std::mem::replace(&mut self.slots[usize::from(slot % SLOTS)], -1);
                sys::close(fd)?;
            }
            Call::Dup { from, to } => {
                let fd = sys::dup(self.fd(*from))?;
                self.put(*to, fd);
                self.opened_with[usize::from(to % SLOTS)] =
                    self.opened_with[usize::from(from % SLOTS)].clone();
            }
            Call::Umask { mask } => return Ok((sys::umask(mask.0)?, String::new())),
            Call::Groups { groups } => {
                sys::become_user(self.uid, self.gid, groups)?;
                self.current = groups.clone();
            }
            _ => return Err(libc::ENOSYS),
        }
        Ok((0, String::new()))
    }

    fn reading(&mut self, call: &Call) -> Sys<(i64, String)> {
        match *call {
            Call::Read { slot, len } => {
                let mut out = vec![0; len];
                let n = sys::read(self.fd(slot), &mut out)?;
                Ok((n, observe::bytes(&out[..n as usize])))
            }
            Call::Pread { slot, len, at } => {
                let mut out = vec![0; len];
                let n = sys::pread(self.fd(slot), &mut out, at)?;
                Ok((n, observe::bytes(&out[..n as usize])))
            }
            Call::Readv { slot, lens } => {
                let (mut a, mut b) = (vec![0; lens[0]], vec![0; lens[1]]);
                let n = sys::readv(self.fd(slot), &mut a, &mut b)?;
                a.append(&mut b);
                Ok((n, observe::bytes(&a[..n as usize])))
            }
            Call::Lseek {
                slot,
                offset,
                whence,
            } => {
                let stat = sys::statx(self.fd(slot), c"", libc::AT_EMPTY_PATH, libc::STATX_TYPE);
                let directory =
                    stat.is_ok_and(|s| u32::from(s.stx_mode) & libc::S_IFMT == libc::S_IFDIR);
                // An offset in a directory is a cookie, with which nobody calculates.
                if directory && whence == libc::SEEK_CUR && offset != 0 {
                    return Err(libc::ECANCELED);
                }
                let n = sys::lseek(self.fd(slot), offset, whence)?;
                Ok((if directory { 0 } else { n }, String::new()))
            }
            Call::SeekSparse {
                slot,
                offset,
                whence,
            } => {
                let fd = self.fd(slot);
                let stat = sys::statx(fd, c"", libc::AT_EMPTY_PATH, libc::STATX_TYPE)?;
                // File systems differ in the holes of other objects.
                if u32::from(stat.stx_mode) & libc::S_IFMT != libc::S_IFREG {
                    return Err(libc::ECANCELED);
                }
                let before = sys::lseek(fd, 0, libc::SEEK_CUR)?;
                let found = sys::lseek(fd, offset, whence);
                sys::lseek(fd, before, libc::SEEK_SET)?;
                found.map(|n| (n, String::new()))
            }
            Call::Mmap {
                slot,
                page,
                len,
                shared,
                write,
                msync,
            } => self.mapping(slot, page, len, shared, write, msync),
            Call::Getdents { slot, buffer } => self.getdents(slot, buffer),
            Call::List { ref place } => {
                let (dir, path) = self.at(place)?;
                let fd = sys::openat(dir, &path, libc::O_RDONLY | libc::O_DIRECTORY | ALWAYS, 0)?;
                let names = entries(fd, 32 << 10);
                sys::close(fd)?;
                Ok((0, shown(names?)))
            }
            Call::Contents { ref place } => self.contents(place),
            _ => Err(libc::ENOSYS),
        }
    }

    fn contents(&self, place: &Place) -> Sys<(i64, String)> {
        self.walked(place, |place| self.contents_of(place))
    }

    fn contents_of(&self, place: &Place) -> Sys<(i64, String)> {
        self.opens_by_mode(place, libc::O_RDONLY | libc::O_NOFOLLOW)?;
        let (dir, path) = self.at(place)?;
        let fd = sys::openat(dir, &path, libc::O_RDONLY | libc::O_NOFOLLOW | ALWAYS, 0)?;
        let file = sys::statx(fd, c"", libc::AT_EMPTY_PATH, libc::STATX_TYPE)
            .is_ok_and(|s| u32::from(s.stx_mode) & libc::S_IFMT == libc::S_IFREG);
        let data = match file {
            true => observe::read_all(fd).map(|data| observe::bytes(&data)),
            false => Ok(String::new()),
        };
        sys::close(fd)?;
        Ok((0, data?))
    }

    fn mapping(
        &self,
        slot: u8,
        page: i64,
        len: usize,
        shared: bool,
        write: Option<u8>,
        msync: bool,
    ) -> Sys<(i64, String)> {
        let at = page * PAGE as i64;
        let stat = sys::statx(self.fd(slot), c"", libc::AT_EMPTY_PATH, libc::STATX_MODE)?;
        if shared && write.is_some() && self.uid != 0 && stat.stx_mode & 0o6000 != 0 {
            return Err(libc::ECANCELED);
        }
        let mapping = Mapping::new(self.fd(slot), at, len, shared, write.is_some())?;
        // Page by page: pages beyond the end of the file fail, and the others do not.
        let mut out = String::new();
        for offset in (0..len).step_by(PAGE) {
            let part = PAGE.min(len - offset);
            if let Some(fill) = write {
                // Only below the end of the file: bytes behind it in the last page are visible in
                // the mapping until the page is dropped.
                let size =
                    sys::statx(self.fd(slot), c"", libc::AT_EMPTY_PATH, libc::STATX_SIZE)?.stx_size;
                let part = part.min(size.saturating_sub(at as u64 + offset as u64) as usize);
                sys::pwrite(self.memory, &pattern(part, fill), 0)?;
                if let Err(errno) = mapping.write(self.memory, offset, part) {
                    out += &format!("{offset}:{},", errno_name(errno));
                    break;
                }
            }
            match mapping.read(self.memory, offset, part) {
                Ok(n) => {
                    let mut data = vec![0; n as usize];
                    sys::pread(self.memory, &mut data, 0)?;
                    out += &format!("{offset}:{},", observe::bytes(&data));
                }
                Err(errno) => {
                    out += &format!("{offset}:{},", errno_name(errno));
                    break;
                }
            }
        }
        if shared && write.is_some() {
            // Writing it back later would change the time then; locally, it depends on the file
            // system whether the time changes (`accepted.rs`, calls that are left out).
            mapping.msync()?;
            let now = [(0, libc::UTIME_OMIT), (0, libc::UTIME_NOW)];
            let _ = sys::futimens(self.fd(slot), now);
        } else if msync {
            mapping.msync()?;
        }
        Ok((0, out))
    }

    fn getdents(&self, slot: u8, buffer: usize) -> Sys<(i64, String)> {
        let fd = self.fd(slot);
        sys::lseek(fd, 0, libc::SEEK_SET)?;
        let all = entries(fd, buffer)?;
        let mut text = String::new();
        if all.len() > 1 {
            // The cookie of an entry leads to the next one.
            let middle = all.len() / 2;
            sys::lseek(fd, all[middle - 1].1, libc::SEEK_SET)?;
            let rest = entries(fd, buffer)?;
            let names =
                |part: &[(Vec<u8>, i64)]| part.iter().map(|e| e.0.clone()).collect::<Vec<_>>();
            if names(&rest) != names(&all[middle..]) {
                text = " seekdir led elsewhere".into();
            }
        }
        Ok((0, shown(all) + &text))
    }

    fn writing(&mut self, call: &Call) -> Sys<i64> {
        match *call {
            Call::Write { slot, len, fill } => sys::write(self.fd(slot), &pattern(len, fill)),
            Call::Pwrite {
                slot,
                len,
                at,
                fill,
            } => sys::pwrite(self.fd(slot), &pattern(len, fill), at),
            Call::Writev { slot, lens, fill } => sys::writev(
                self.fd(slot),
                &pattern(lens[0], fill),
                &pattern(lens[1], !fill),
            ),
            Call::Pwritev2 {
                slot,
                len,
                at,
                fill,
                flags,
            } => sys::pwritev2(self.fd(slot), &pattern(len, fill), at, flags),
            Call::Truncate { ref place, len } => {
                let path = self.at(place)?.1;
                let mask = libc::STATX_SIZE | libc::STATX_TYPE | libc::STATX_MODE;
                let known = sys::statx(libc::AT_FDCWD, &path, 0, mask);
                let same = |stat: libc::statx| {
                    let kind = u32::from(stat.stx_mode) & libc::S_IFMT;
                    // Set-id bits are cleared, which the server may count as a change.
                    let judged = len == 0 && stat.stx_mode & 0o6000 == 0;
                    kind == libc::S_IFREG && stat.stx_size == len as u64 && !judged
                };
                if known.is_ok_and(same) {
                    return Err(libc::ECANCELED);
                }
                sys::truncate(&path, len)
            }
            Call::Ftruncate { slot, len } => sys::ftruncate(self.fd(slot), len),
            Call::Fallocate {
                slot,
                mode,
                at,
                len,
            } => sys::fallocate(self.fd(slot), mode, at, len),
            Call::CopyRange {
                from,
                to,
                from_at,
                to_at,
                len,
            } => sys::copy_file_range(self.fd(from), from_at, self.fd(to), to_at, len),
            Call::Sendfile { from, to, at, len } => {
                if self.same_file(from, to) && self.overlaps(from, to, at, len)? {
                    return Err(libc::ECANCELED);
                }
                sys::sendfile(self.fd(to), self.fd(from), at, len)
            }
            Call::Sync { slot, kind } => {
                let fd = self.fd(slot);
                match kind {
                    SyncKind::Fsync => sys::fsync(fd),
                    SyncKind::Fdatasync => sys::fdatasync(fd),
                    SyncKind::Range => sys::sync_file_range(fd),
                }
            }
            Call::Program {
                ref place,
                mode,
                script,
            } => {
                let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | ALWAYS;
                self.opens_by_mode(place, flags)?;
                let (dir, path) = self.at(place)?;
                let fd = sys::openat(dir, &path, flags, mode.0)?;
                let text: &[u8] = if script { b"#!/bin/true\n" } else { &PROGRAM };
                let written = sys::write(fd, text);
                let closed = sys::close(fd);
                written.and(closed)
            }
            _ => Err(libc::ENOSYS),
        }
    }

    fn naming(&mut self, call: &Call) -> Sys<i64> {
        match call {
            Call::Mkdir { place, mode } => self
                .at(place)
                .and_then(|(d, p)| sys::mkdirat(d, &p, mode.0)),
            Call::Rmdir { place } => self
                .at(place)
                .and_then(|(d, p)| sys::unlinkat(d, &p, libc::AT_REMOVEDIR)),
            Call::Mknod {
                place,
                mode,
                device,
            } => self
                .at(place)
                .and_then(|(d, p)| sys::mknodat(d, &p, mode.0, *device)),
            Call::Symlink { target, place } => {
                let (dir, path) = self.at(place)?;
                sys::symlinkat(&c_string(raw(target))?, dir, &path)
            }
            Call::Link { from, to, flags } => {
                let (from, to) = (self.at(from)?, self.at(to)?);
                sys::linkat((from.0, &from.1), (to.0, &to.1), *flags)
            }
            Call::LinkSlot { slot, to, by_proc } => {
                let to = self.at(to)?;
                let to = (to.0, &*to.1);
                if *by_proc {
                    let name = c_string(format!("/proc/self/fd/{}", self.fd(*slot)).into_bytes())?;
                    sys::linkat((libc::AT_FDCWD, &name), to, libc::AT_SYMLINK_FOLLOW)
                } else {
                    sys::linkat((self.fd(*slot), c""), to, libc::AT_EMPTY_PATH)
                }
            }
            Call::Unlink { place } => self.at(place).and_then(|(d, p)| sys::unlinkat(d, &p, 0)),
            Call::Rename { from, to, flags } => {
                let (from, to) = (self.at(from)?, self.at(to)?);
                sys::renameat2((from.0, &from.1), (to.0, &to.1), *flags)
            }
            Call::Chdir { place } => self.at(place).and_then(|(_, p)| sys::chdir(&p)),
            Call::Fchdir { slot } => sys::fchdir(self.fd(*slot)),
            Call::Exec { place } => self.at(place).and_then(|(d, p)| sys::spawn(d, &p)),
            _ => Err(libc::ENOSYS),
        }
    }

    fn attributes(&mut self, call: &Call) -> Sys<(i64, String)> {
        let done = |result: Sys<i64>| result.map(|n| (n, String::new()));
        match *call {
            Call::Readlink { ref place } => {
                let (dir, path) = self.at(place)?;
                let mut out = vec![0; 8192];
                let n = sys::readlinkat(dir, &path, &mut out)?;
                Ok((n, out[..n as usize].escape_ascii().to_string()))
            }
            Call::Chmod { ref place, mode } => done(
                self.at(place)
                    .and_then(|(d, p)| sys::fchmodat(d, &p, mode.0)),
            ),
            Call::Fchmod { slot, mode } => done(sys::fchmod(self.fd(slot), mode.0)),
            Call::Chown {
                ref place,
                uid,
                gid,
                flags,
            } => done(
                self.at(place)
                    .and_then(|(d, p)| sys::fchownat(d, &p, (uid, gid), flags)),
            ),
            Call::Fchown { slot, uid, gid } => done(sys::fchown(self.fd(slot), (uid, gid))),
            Call::Utimens {
                ref place,
                times,
                flags,
            } => done(
                self.at(place)
                    .and_then(|(d, p)| sys::utimensat(d, &p, times, flags)),
            ),
            Call::Futimens { slot, times } => done(sys::futimens(self.fd(slot), times)),
            Call::Access {
                ref place,
                mode,
                flags,
            } => done(
                self.at(place)
                    .and_then(|(d, p)| sys::faccessat2(d, &p, mode, flags)),
            ),
            Call::Statx {
                ref place,
                flags,
                mask,
            } => {
                let (dir, path) = self.at(place)?;
                sys::statx(dir, &path, flags, mask).map(|s| (0, observe::statx_line(&s, mask)))
            }
            Call::Fstat { slot } => Ok((0, self.slot_state(slot))),
            Call::Lock {
                slot,
                kind,
                operation,
                start,
                len,
            } => done(self.lock(slot, kind, operation, start, len).map(|_| 0)),
            Call::GetLock {
                slot,
                kind,
                start,
                len,
            } => self.get_lock(slot, kind, start, len),
            Call::Statfs { ref place } => {
                let s = sys::statfs(&self.at(place)?.1)?;
                Ok((
                    0,
                    format!(
                        "name={} total={} files={}",
                        s.f_namelen,
                        s.f_blocks * s.f_frsize as u64,
                        s.f_files
                    ),
                ))
            }
            Call::Setxattr {
                ref place,
                ref name,
                len,
            } => {
                let path = self.at(place)?.1;
                done(sys::setxattr(
                    &path,
                    &c_string(raw(name))?,
                    &pattern(len, b'x'),
                ))
            }
            _ => self.acls(call),
        }
    }

    fn get_lock(&self, slot: u8, kind: LockKind, start: i64, len: i64) -> Sys<(i64, String)> {
        let command = match kind {
            LockKind::Ofd => libc::F_OFD_GETLK,
            _ => libc::F_GETLK,
        };
        let mut lock = range(libc::F_WRLCK, start, len);
        sys::fcntl_lock(self.fd(slot), command, &mut lock)?;
        Ok((
            i64::from(lock.l_type),
            format!("{}+{}", lock.l_start, lock.l_len),
        ))
    }

    fn lock(&self, slot: u8, kind: LockKind, operation: i32, start: i64, len: i64) -> Sys<i64> {
        let fd = self.fd(slot);
        let command = match kind {
            LockKind::Flock => {
                let operation = match operation {
                    libc::F_RDLCK => libc::LOCK_SH,
                    libc::F_WRLCK => libc::LOCK_EX,
                    _ => libc::LOCK_UN,
                };
                return sys::flock(fd, operation | libc::LOCK_NB);
            }
            LockKind::Posix => libc::F_SETLK,
            LockKind::Ofd => libc::F_OFD_SETLK,
        };
        sys::fcntl_lock(fd, command, &mut range(operation, start, len))
    }
}

fn range(kind: i32, start: i64, len: i64) -> libc::flock {
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: len,
        l_pid: 0,
    }
}

fn outcome(result: Sys<(i64, String)>) -> Outcome {
    match result {
        Ok((value, data)) => Outcome {
            errno: 0,
            value,
            data,
        },
        Err(errno) => Outcome {
            errno,
            value: -1,
            data: String::new(),
        },
    }
}
