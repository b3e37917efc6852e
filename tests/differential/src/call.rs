//! The requests of the driver to a worker: one system call, and the objects to look at after it.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The number of descriptors of each worker.
pub(crate) const SLOTS: u8 = 8;

/// The directory that a path is relative to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum At {
    /// The root of the tree, by an absolute path.
    Root,
    /// The worker's current directory.
    Cwd,
    /// A descriptor (openat(2) and its kin).
    Slot(u8),
}

/// A path. Its characters are the bytes of the name (U+00FF is the byte 255).
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) at: At,
    pub(crate) path: String,
}

impl Place {
    pub(crate) fn root(path: &str) -> Self {
        Place {
            at: At::Root,
            path: path.into(),
        }
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            At::Root => write!(f, "/")?,
            At::Cwd => write!(f, "cwd:")?,
            At::Slot(slot) => write!(f, "fd{slot}:")?,
        }
        match self.path.len() {
            0..=80 => write!(f, "{}", self.path.escape_debug()),
            n => {
                let head: String = self.path.chars().take(20).collect();
                write!(f, "{}...({n} bytes)", head.escape_debug())
            }
        }
    }
}

/// Flags of open(2), displayed by their names.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OpenFlags(pub(crate) i32);

impl OpenFlags {
    pub(crate) fn has(self, flag: i32) -> bool {
        self.0 & flag == flag
    }
}

impl fmt::Debug for OpenFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let access = ["O_RDONLY", "O_WRONLY", "O_RDWR", "O_ACCMODE"];
        write!(f, "{}", access[(self.0 & libc::O_ACCMODE) as usize])?;
        let tmpfile = self.has(libc::O_TMPFILE);
        let sync = self.has(libc::O_SYNC);
        for (flag, name, shown) in [
            (libc::O_CREAT, "O_CREAT", true),
            (libc::O_EXCL, "O_EXCL", true),
            (libc::O_TRUNC, "O_TRUNC", true),
            (libc::O_APPEND, "O_APPEND", true),
            (libc::O_TMPFILE, "O_TMPFILE", true),
            (libc::O_DIRECTORY, "O_DIRECTORY", !tmpfile),
            (libc::O_NOFOLLOW, "O_NOFOLLOW", true),
            (libc::O_DIRECT, "O_DIRECT", true),
            (libc::O_SYNC, "O_SYNC", true),
            (libc::O_DSYNC, "O_DSYNC", !sync),
            (libc::O_PATH, "O_PATH", true),
            (libc::O_NOATIME, "O_NOATIME", true),
        ] {
            if shown && self.has(flag) {
                write!(f, "|{name}")?;
            }
        }
        Ok(())
    }
}

/// A mode, displayed in octal.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mode(pub(crate) u32);

impl fmt::Debug for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#o}", self.0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SyncKind {
    Fsync,
    Fdatasync,
    Range,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LockKind {
    Flock,
    Posix,
    Ofd,
}

/// The calls. A call on a slot that is not open is made with descriptor -1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Call {
    Open {
        slot: u8,
        place: Place,
        flags: OpenFlags,
        mode: Mode,
    },
    Close {
        slot: u8,
    },
    Dup {
        from: u8,
        to: u8,
    },
    Read {
        slot: u8,
        len: usize,
    },
    Pread {
        slot: u8,
        len: usize,
        at: i64,
    },
    Readv {
        slot: u8,
        lens: [usize; 2],
    },
    Write {
        slot: u8,
        len: usize,
        fill: u8,
    },
    Pwrite {
        slot: u8,
        len: usize,
        at: i64,
        fill: u8,
    },
    Writev {
        slot: u8,
        lens: [usize; 2],
        fill: u8,
    },
    Pwritev2 {
        slot: u8,
        len: usize,
        at: i64,
        fill: u8,
        flags: i32,
    },
    Lseek {
        slot: u8,
        offset: i64,
        whence: i32,
    },
    /// SEEK_DATA or SEEK_HOLE; the offset is restored afterwards.
    SeekSparse {
        slot: u8,
        offset: i64,
        whence: i32,
    },
    Truncate {
        place: Place,
        len: i64,
    },
    Ftruncate {
        slot: u8,
        len: i64,
    },
    Fallocate {
        slot: u8,
        mode: i32,
        at: i64,
        len: i64,
    },
    CopyRange {
        from: u8,
        to: u8,
        from_at: i64,
        to_at: i64,
        len: usize,
    },
    Sendfile {
        from: u8,
        to: u8,
        at: i64,
        len: usize,
    },
    /// Reads a page-aligned mapping, or writes it and calls msync(2) if `msync` is set.
    Mmap {
        slot: u8,
        page: i64,
        len: usize,
        shared: bool,
        write: Option<u8>,
        msync: bool,
    },
    Sync {
        slot: u8,
        kind: SyncKind,
    },
    Mkdir {
        place: Place,
        mode: Mode,
    },
    Rmdir {
        place: Place,
    },
    Mknod {
        place: Place,
        mode: Mode,
        device: (u32, u32),
    },
    Symlink {
        target: String,
        place: Place,
    },
    Readlink {
        place: Place,
    },
    Link {
        from: Place,
        to: Place,
        flags: i32,
    },
    /// linkat(2) of a descriptor, by AT_EMPTY_PATH or by its name in /proc/self/fd.
    LinkSlot {
        slot: u8,
        to: Place,
        by_proc: bool,
    },
    Unlink {
        place: Place,
    },
    Rename {
        from: Place,
        to: Place,
        flags: u32,
    },
    Chmod {
        place: Place,
        mode: Mode,
    },
    Fchmod {
        slot: u8,
        mode: Mode,
    },
    Chown {
        place: Place,
        uid: u32,
        gid: u32,
        flags: i32,
    },
    Fchown {
        slot: u8,
        uid: u32,
        gid: u32,
    },
    /// Access time and modification time. Nanoseconds may be UTIME_NOW or UTIME_OMIT.
    Utimens {
        place: Place,
        times: [(i64, i64); 2],
        flags: i32,
    },
    Futimens {
        slot: u8,
        times: [(i64, i64); 2],
    },
    Access {
        place: Place,
        mode: i32,
        flags: i32,
    },
    Statx {
        place: Place,
        flags: i32,
        mask: u32,
    },
    Fstat {
        slot: u8,
    },
    /// Writes an executable file: a program of a few instructions, or a script.
    Program {
        place: Place,
        mode: Mode,
        script: bool,
    },
    Exec {
        place: Place,
    },
    Lock {
        slot: u8,
        kind: LockKind,
        operation: i32,
        start: i64,
        len: i64,
    },
    GetLock {
        slot: u8,
        kind: LockKind,
        start: i64,
        len: i64,
    },
    /// Reads a directory from its beginning, seeks into the middle, and reads the rest again.
    Getdents {
        slot: u8,
        buffer: usize,
    },
    /// Opens a directory, reads it, closes it.
    List {
        place: Place,
    },
    /// Opens a file, reads it, closes it.
    Contents {
        place: Place,
    },
    Chdir {
        place: Place,
    },
    Fchdir {
        slot: u8,
    },
    Statfs {
        place: Place,
    },
    Setxattr {
        place: Place,
        name: String,
        len: usize,
    },
    /// Sets an access ACL or a default ACL: tag, permissions and id of each entry.
    Setacl {
        place: Place,
        default: bool,
        entries: Vec<(u16, u16, u32)>,
    },
    /// The same for a descriptor.
    Fsetacl {
        slot: u8,
        default: bool,
        entries: Vec<(u16, u16, u32)>,
    },
    /// The ACL of an open object.
    Fgetacl {
        slot: u8,
        default: bool,
    },
    Getxattr {
        place: Place,
        name: String,
    },
    Listxattr {
        place: Place,
    },
    Removexattr {
        place: Place,
        name: String,
    },
    Umask {
        mask: Mode,
    },
    /// setgroups(2): replaces the supplementary groups.
    Groups {
        groups: Vec<u32>,
    },
}

/// The places of a call, as references of the same kind as `$call`.
macro_rules! places {
    ($call:expr) => {{
        use Call::*;
        match $call {
            Link { from, to, .. } | Rename { from, to, .. } => vec![from, to],
            Open { place, .. }
            | Truncate { place, .. }
            | Mkdir { place, .. }
            | Rmdir { place }
            | Mknod { place, .. }
            | Symlink { place, .. }
            | Readlink { place }
            | LinkSlot { to: place, .. }
            | Unlink { place }
            | Chmod { place, .. }
            | Chown { place, .. }
            | Utimens { place, .. }
            | Access { place, .. }
            | Statx { place, .. }
            | Program { place, .. }
            | Exec { place }
            | List { place }
            | Contents { place }
            | Chdir { place }
            | Statfs { place }
            | Setxattr { place, .. }
            | Setacl { place, .. }
            | Getxattr { place, .. }
            | Listxattr { place }
            | Removexattr { place, .. } => vec![place],
            _ => Vec::new(),
        }
    }};
}

impl Call {
    /// The name of the call, as in the signature of a difference.
    pub(crate) fn name(&self) -> String {
        let text = format!("{self:?}");
        let end = text.find([' ', '{']).unwrap_or(text.len());
        text[..end].to_owned()
    }

    /// The paths of the call.
    pub(crate) fn places(&self) -> Vec<&Place> {
        places!(self)
    }

    /// Whether it removes or makes a name.
    pub(crate) fn changes_names(&self) -> bool {
        use Call::*;
        matches!(
            self,
            Link { .. }
                | LinkSlot { .. }
                | Rename { .. }
                | Mkdir { .. }
                | Rmdir { .. }
                | Mknod { .. }
                | Symlink { .. }
                | Unlink { .. }
        )
    }

    pub(crate) fn places_mut(&mut self) -> Vec<&mut Place> {
        places!(self)
    }

    /// The descriptors by which the call reads and writes file data.
    pub(crate) fn moves_data(&self) -> (Option<u8>, Option<u8>) {
        use Call::*;
        match *self {
            Read { slot, .. } | Pread { slot, .. } | Readv { slot, .. } | Getdents { slot, .. } => {
                (Some(slot), None)
            }
            Write { slot, .. }
            | Pwrite { slot, .. }
            | Writev { slot, .. }
            | Pwritev2 { slot, .. }
            | Ftruncate { slot, .. }
            | Fallocate { slot, .. } => (None, Some(slot)),
            CopyRange { from, to, .. } | Sendfile { from, to, .. } => (Some(from), Some(to)),
            Mmap {
                slot,
                write,
                shared,
                ..
            } => (Some(slot), write.filter(|_| shared).map(|_| slot)),
            _ => (None, None),
        }
    }

    /// The descriptors to look at after the call.
    pub(crate) fn slots(&self) -> Vec<u8> {
        use Call::*;
        match *self {
            CopyRange { from, to, .. } | Sendfile { from, to, .. } | Dup { from, to } => {
                vec![from, to]
            }
            Open { slot, .. }
            | Read { slot, .. }
            | Pread { slot, .. }
            | Readv { slot, .. }
            | Write { slot, .. }
            | Pwrite { slot, .. }
            | Writev { slot, .. }
            | Pwritev2 { slot, .. }
            | Lseek { slot, .. }
            | Ftruncate { slot, .. }
            | Fallocate { slot, .. }
            | Mmap { slot, .. }
            | Sync { slot, .. }
            | LinkSlot { slot, .. }
            | Fchmod { slot, .. }
            | Fchown { slot, .. }
            | Fsetacl { slot, .. }
            | Fgetacl { slot, .. }
            | Fchdir { slot }
            | Futimens { slot, .. } => vec![slot],
            _ => Vec::new(),
        }
    }
}

/// A call by one user, and the user who then looks at the result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Step {
    pub(crate) user: usize,
    pub(crate) call: Call,
    /// Another user, who looks at the paths that do not depend on the caller.
    pub(crate) observer: usize,
    /// Whether the observer also reads the contents.
    pub(crate) contents: bool,
}

impl Step {
    pub(crate) fn observed(&self) -> Vec<Place> {
        let places = self.call.places().into_iter();
        places
            .filter(|place| place.at == At::Root)
            .cloned()
            .collect()
    }
}

/// The tree of a worker.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Side {
    #[default]
    Local,
    Mount,
}

/// A request of the driver to a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Forget everything, and begin in this directory.
    Begin {
        root: String,
        side: Side,
        /// Whether the mount has `permissions=server`.
        server_checks: bool,
    },
    Do {
        call: Call,
    },
    /// Make no call, but look at the objects that it would have touched.
    Look {
        call: Call,
    },
    Observe {
        places: Vec<Place>,
        contents: bool,
    },
    /// fsync(2) by all descriptors of the file with this inode number.
    Sync {
        ino: u64,
    },
}

/// The result of a call.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) errno: i32,
    pub(crate) value: i64,
    pub(crate) data: String,
}

/// The reply of a worker: the call's outcome, and the state of the touched objects.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reply {
    pub(crate) outcome: Outcome,
    /// `key=value` pairs, or the name of an error, for each object.
    pub(crate) states: Vec<String>,
    /// The call moves data by a descriptor whose user may not open the file like that any more.
    pub(crate) lost: bool,
    /// The descriptor by which it wrote data that the server refused.
    pub(crate) refused: Option<i32>,
    /// A path begins in a directory that was removed.
    pub(crate) removed: bool,
}
