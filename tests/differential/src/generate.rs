//! Random calls in a small name space, so that users meet.

use crate::call::{At, Call, LockKind, Mode, OpenFlags, Place, SLOTS, Step, SyncKind};
use crate::history::{Feedback, Held, Known, USERS};
use nfsrdma_test_support::Random;

const DIRECTORIES: [&str; 4] = ["d0", "d1", "d2", "d3"];
const NAMES: [&str; 12] = [
    "f0", "f1", "f2", "f3", "f4", "d0", "d1", "d2", "d3", "l0", "l1", "x",
];
const MODES: [u32; 24] = [
    0o000, 0o100, 0o111, 0o200, 0o400, 0o440, 0o444, 0o600, 0o620, 0o640, 0o644, 0o660, 0o664,
    0o666, 0o700, 0o711, 0o744, 0o750, 0o755, 0o770, 0o775, 0o777, 0o604, 0o077,
];
const SPECIAL: [u32; 7] = [0o1000, 0o2000, 0o4000, 0o6000, 0o7000, 0o2000, 0o1000];
const XATTRS: [&str; 3] = [
    "user.a",
    "system.posix_acl_access",
    "system.posix_acl_default",
];
const LENGTHS: [usize; 8] = [0, 1, 10, 511, 4096, 5000, 12288, 70_000];
const OFFSETS: [i64; 10] = [0, 0, 1, 100, 4095, 4096, 8192, 65_536, 150_000, 1 << 20];

#[derive(Debug)]
pub(crate) struct Generator {
    random: Random,
    users: usize,
    without: Vec<String>,
    acls: bool,
    /// Whether the mount has `permissions=server`.
    server_checks: bool,
    known: Known,
}

impl Generator {
    pub(crate) fn new(seed: u64, users: usize) -> Self {
        Generator {
            random: Random::new(seed),
            users: users.clamp(2, USERS.len()),
            without: Vec::new(),
            acls: true,
            server_checks: false,
            known: Known::default(),
        }
    }

    /// Also makes calls that set and remove ACLs, if `acls` is set.
    pub(crate) fn with_acls(self, acls: bool) -> Self {
        Generator { acls, ..self }
    }

    /// The name of an extended attribute.
    fn xattr(&mut self) -> String {
        match self.acls {
            true => (*self.random.pick(&XATTRS)).into(),
            false => XATTRS[0].into(),
        }
    }

    /// Makes the calls for a mount with `permissions=server`, if it is one.
    pub(crate) fn for_server_checks(self, server_checks: bool) -> Self {
        Generator {
            server_checks,
            ..self
        }
    }

    /// Leaves out the calls with these names.
    pub(crate) fn without(self, without: &[String]) -> Self {
        Generator {
            without: without.to_vec(),
            ..self
        }
    }

    pub(crate) fn step(&mut self, feedback: &Feedback) -> Step {
        let user = self.random.below(self.users);
        self.known = feedback.known.clone();
        let mut call = self.call(&feedback.open[user]);
        // All choices may be left out, so limit the number of attempts.
        for _ in 0..100 {
            if !self.without.contains(&call.name()) {
                break;
            }
            call = self.call(&feedback.open[user]);
        }
        let observer = (user + 1 + self.random.below(self.users - 1)) % self.users;
        Step {
            user,
            call,
            observer,
            contents: self.random.chance(1, 6),
        }
    }

    fn name(&mut self) -> String {
        let r = &mut self.random;
        match r.below(150) {
            0 => "n".repeat(255),
            1 => "n".repeat(256),
            2 => "\u{e4}\n\u{ff}\u{1} \\".into(),
            3 => ".".into(),
            4 => String::new(),
            _ => (*r.pick(&NAMES)).to_owned(),
        }
    }

    /// A name in an open directory. With `permissions=server` nobody checks the right to search it
    /// for a dot, and there is no path without dots to compare with.
    fn name_in(&mut self) -> String {
        let name = self.name();
        match self.server_checks && name == "." {
            true => NAMES[0].into(),
            false => name,
        }
    }

    /// A path, which often leads to an object as far as is known.
    fn path(&mut self) -> String {
        let known = &self.known.paths;
        if !known.is_empty() && self.random.chance(2, 5) {
            return self.random.pick(known).clone();
        }
        let name = self.name();
        let r = &mut self.random;
        let (a, b) = (*r.pick(&DIRECTORIES), *r.pick(&DIRECTORIES));
        match r.below(100) {
            0..15 => name,
            15..70 => format!("{a}/{name}"),
            70..90 => format!("{a}/{b}/{name}"),
            90..92 => format!("{a}/../{b}/{name}"),
            92..95 => format!("{a}/l{}/{name}", r.below(2)),
            95 => format!("./{a}//{name}"),
            96 => format!("{a}/{name}/"),
            97 => format!("{a}/{name}/."),
            98 if r.chance(1, 4) => format!(
                "{}{a}/{name}",
                "./".repeat(*r.pick(&[1000, 2020, 2045, 2100]))
            ),
            _ => format!("{a}/{b}/{}/{name}", r.pick(&DIRECTORIES)),
        }
    }

    fn place(&mut self, open: &[Held]) -> Place {
        match self.random.below(10) {
            0 => Place {
                at: At::Cwd,
                path: self.name_in(),
            },
            1 => Place {
                at: At::Slot(self.slot(open)),
                path: self.name_in(),
            },
            _ => Place {
                at: At::Root,
                path: self.path(),
            },
        }
    }

    fn acl_call(&mut self, open: &[Held]) -> Call {
        let default = self.random.chance(1, 3);
        let entries = self.acl();
        match self.random.below(10) {
            0..7 => Call::Setacl {
                place: self.plain_place(),
                default,
                entries,
            },
            7 | 8 => Call::Fsetacl {
                slot: self.slot(open),
                default,
                entries,
            },
            _ => Call::Fgetacl {
                slot: self.slot(open),
                default,
            },
        }
    }

    /// An ACL with some of the users and groups. Sometimes it is invalid (linux/posix_acl.h has the
    /// tags).
    fn acl(&mut self) -> Vec<(u16, u16, u32)> {
        const NO_ID: u32 = u32::MAX;
        let users = USERS[..self.users].iter().map(|user| (2, user.0));
        let groups = USERS[1..self.users].iter().map(|user| (8, user.1));
        let r = &mut self.random;
        let permissions = |r: &mut Random| *r.pick(&[0, 1, 4, 5, 6, 7, 7]);
        let mut entries = vec![(1, *r.pick(&[6, 7, 7, 4, 0]), NO_ID)];
        for (tag, id) in users {
            if r.chance(1, 3) {
                entries.push((tag, permissions(r), id));
            }
        }
        entries.push((4, permissions(r), NO_ID));
        for (tag, id) in groups {
            if r.chance(1, 4) {
                entries.push((tag, permissions(r), id));
            }
        }
        // A mask without users or groups is left out (`accepted.rs`).
        if entries.len() > 2 {
            entries.push((0x10, permissions(r), NO_ID));
        }
        entries.push((0x20, permissions(r), NO_ID));
        if r.chance(1, 20) {
            let which = r.below(entries.len());
            match r.below(3) {
                0 => drop(entries.remove(0)),
                1 => entries.push(entries[which]),
                _ => entries[which].1 = 0o70,
            }
        }
        entries
    }

    /// A place for calls that have no *at form.
    fn plain_place(&mut self) -> Place {
        match self.random.below(10) {
            0 => Place {
                at: At::Cwd,
                path: self.name_in(),
            },
            _ => Place {
                at: At::Root,
                path: self.path(),
            },
        }
    }

    /// A slot, which is mostly an open one.
    fn slot(&mut self, open: &[Held]) -> u8 {
        self.slot_of(open, |held| held != Held::Nothing)
    }

    fn slot_of(&mut self, open: &[Held], wanted: impl Fn(Held) -> bool) -> u8 {
        let held: Vec<u8> = (0..SLOTS)
            .filter(|&slot| wanted(open[usize::from(slot)]))
            .collect();
        match held.is_empty() || self.random.chance(1, 40) {
            true => self.random.below(usize::from(SLOTS)) as u8,
            false => *self.random.pick(&held),
        }
    }

    fn mode(&mut self) -> Mode {
        let r = &mut self.random;
        let mode = *r.pick(&MODES);
        Mode(if r.chance(1, 6) {
            mode | *r.pick(&SPECIAL)
        } else {
            mode
        })
    }

    /// Modes that mostly leave a directory accessible.
    fn directory_mode(&mut self) -> Mode {
        match self.random.chance(3, 4) {
            true => Mode(
                *self
                    .random
                    .pick(&[0o777, 0o755, 0o775, 0o1777, 0o2777, 0o700, 0o711, 0o733]),
            ),
            false => self.mode(),
        }
    }

    fn fill(&mut self) -> u8 {
        b'a' + self.random.below(26) as u8
    }

    fn len(&mut self) -> usize {
        *self.random.pick(&LENGTHS)
    }

    fn at(&mut self) -> i64 {
        *self.random.pick(&OFFSETS)
    }

    fn size(&mut self) -> i64 {
        *self.random.pick(&[
            0,
            0,
            1,
            100,
            4096,
            5000,
            9000,
            70_000,
            1 << 20,
            -1,
            i64::MAX,
            1 << 33,
        ])
    }

    fn id(&mut self, group: bool) -> u32 {
        let r = &mut self.random;
        match (r.below(4), group) {
            (0, _) => u32::MAX,
            (_, true) => *r.pick(&[0, 20001, 20002, 20003, 20004]),
            (_, false) => *r.pick(&[0, 10001, 10002, 10003]),
        }
    }

    /// A time from 1901 to 2200, far from now.
    fn time(&mut self) -> (i64, i64) {
        let r = &mut self.random;
        let nanoseconds = *r.pick(&[0, 1, 999_999_999, 123_456_789, 500_000_000]);
        let seconds = *r.pick(&[
            -2_177_452_800,
            -1,
            0,
            1,
            86_400,
            1_000_000_000,
            2_147_483_647,
            2_147_483_648,
            4_294_967_294,
            4_294_967_295,
            4_294_967_296,
            7_258_118_400,
        ]);
        match r.below(10) {
            0 => (0, libc::UTIME_NOW),
            1 => (0, libc::UTIME_OMIT),
            2 if r.chance(1, 5) => (5, 1_000_000_000),
            _ => (seconds, nanoseconds),
        }
    }

    fn times(&mut self) -> [(i64, i64); 2] {
        match self.random.below(8) {
            0 => [(0, libc::UTIME_NOW); 2],
            _ => [self.time(), self.time()],
        }
    }

    fn open_flags(&mut self) -> OpenFlags {
        let r = &mut self.random;
        let access = *r.pick(&[
            libc::O_RDONLY,
            libc::O_RDONLY,
            libc::O_WRONLY,
            libc::O_RDWR,
            libc::O_RDWR,
        ]);
        if r.chance(1, 12) {
            let kind = *r.pick(&[
                libc::O_PATH,
                libc::O_DIRECTORY,
                libc::O_TMPFILE,
                libc::O_PATH | libc::O_NOFOLLOW,
            ]);
            return OpenFlags(kind | if r.chance(1, 2) { access } else { 0 });
        }
        let mut flags = access;
        for (flag, part) in [
            (libc::O_CREAT, 35),
            (libc::O_EXCL, 8),
            (libc::O_TRUNC, 15),
            (libc::O_APPEND, 10),
            (libc::O_DIRECTORY, 4),
            (libc::O_NOFOLLOW, 6),
            (libc::O_SYNC, 4),
            (libc::O_DSYNC, 4),
            (libc::O_NOATIME, 4),
            (libc::O_DIRECT, 3),
        ] {
            if r.chance(part, 100) {
                flags |= flag;
            }
        }
        OpenFlags(flags)
    }

    fn call(&mut self, open: &[Held]) -> Call {
        match self.random.below(100) {
            0..38 => self.file_call(open),
            38..72 => self.name_call(open),
            _ => self.attribute_call(open),
        }
    }

    fn file_call(&mut self, open: &[Held]) -> Call {
        // Most of these are for files, the last one is for directories.
        let file = self.slot_of(open, |held| held == Held::Other);
        let directory = self.slot_of(open, |held| held == Held::Directory);
        let any = self.slot(open);
        let slot = if self.random.chance(4, 5) { file } else { any };
        let choice = self.random.below(100);
        match choice {
            0..26 => Call::Open {
                slot: self.random.below(usize::from(SLOTS)) as u8,
                place: self.place(open),
                flags: self.open_flags(),
                mode: self.mode(),
            },
            26..34 => Call::Close { slot },
            34..36 => Call::Dup {
                from: slot,
                to: self.random.below(usize::from(SLOTS)) as u8,
            },
            36..64 => self.transfer_call(choice, slot),
            64..68 => Call::Lseek {
                slot,
                offset: *self.random.pick(&[0, 0, 1, 100, 4096, 70_000, -1, -100]),
                whence: *self
                    .random
                    .pick(&[libc::SEEK_SET, libc::SEEK_CUR, libc::SEEK_SET, 77]),
            },
            68..70 => Call::SeekSparse {
                slot,
                offset: self.at(),
                whence: *self.random.pick(&[libc::SEEK_DATA, libc::SEEK_HOLE]),
            },
            70..74 => Call::Truncate {
                place: self.plain_place(),
                len: self.size(),
            },
            74..79 => Call::Ftruncate {
                slot,
                len: self.size(),
            },
            79..81 => Call::Fallocate {
                slot,
                mode: *self.random.pick(&[0, 0, 1, 3, 8, 16, 2]),
                at: self.at(),
                len: self.len() as i64,
            },
            81..84 => Call::CopyRange {
                from: slot,
                to: self.slot_of(open, |held| held == Held::Other),
                from_at: self.at(),
                to_at: self.at(),
                len: self.len(),
            },
            84..86 => Call::Sendfile {
                from: slot,
                to: self.slot_of(open, |held| held == Held::Other),
                at: self.at(),
                len: self.len(),
            },
            86..91 => Call::Mmap {
                slot,
                page: *self.random.pick(&[0, 0, 1, 16]),
                len: *self.random.pick(&[1, 100, 4096, 8192, 5000]),
                shared: self.random.chance(1, 2),
                write: if self.random.chance(1, 2) {
                    Some(self.fill())
                } else {
                    None
                },
                msync: self.random.chance(1, 3),
            },
            91..95 => Call::Sync {
                slot,
                kind: *self
                    .random
                    .pick(&[SyncKind::Fsync, SyncKind::Fdatasync, SyncKind::Range]),
            },
            _ => Call::Getdents {
                slot: directory,
                buffer: *self.random.pick(&[512, 4096, 32_768]),
            },
        }
    }

    /// A read or write, of the numbers 36 to 63 in [`Generator::file_call`].
    fn transfer_call(&mut self, choice: usize, slot: u8) -> Call {
        match choice {
            36..40 => Call::Read {
                slot,
                len: self.len(),
            },
            40..45 => Call::Pread {
                slot,
                len: self.len(),
                at: self.at(),
            },
            45..47 => Call::Readv {
                slot,
                lens: [self.len(), self.len()],
            },
            47..53 => Call::Write {
                slot,
                len: self.len(),
                fill: self.fill(),
            },
            53..59 => Call::Pwrite {
                slot,
                len: self.len(),
                at: self.at(),
                fill: self.fill(),
            },
            59..61 => Call::Writev {
                slot,
                lens: [self.len(), self.len()],
                fill: self.fill(),
            },
            _ => Call::Pwritev2 {
                slot,
                len: self.len(),
                at: self.at() - 1,
                fill: self.fill(),
                flags: *self.random.pick(&[
                    0,
                    libc::RWF_DSYNC,
                    libc::RWF_SYNC,
                    libc::RWF_APPEND,
                    0x8000,
                ]),
            },
        }
    }

    fn name_call(&mut self, open: &[Held]) -> Call {
        match self.random.below(100) {
            0..12 => Call::Mkdir {
                place: self.place(open),
                mode: self.directory_mode(),
            },
            12..20 => Call::Rmdir {
                place: self.place(open),
            },
            20..26 => self.mknod_call(open),
            26..33 => self.symlink_call(open),
            33..37 => Call::Readlink {
                place: match self.known.links.is_empty() || self.random.chance(1, 3) {
                    true => self.place(open),
                    false => Place::root(self.random.pick::<String>(&self.known.links)),
                },
            },
            37..47 => Call::Link {
                from: self.place(open),
                to: self.place(open),
                flags: *self.random.pick(&[0, 0, 0, libc::AT_SYMLINK_FOLLOW]),
            },
            47..50 => Call::LinkSlot {
                slot: self.slot(open),
                to: self.place(open),
                by_proc: self.random.chance(2, 3),
            },
            50..63 => Call::Unlink {
                place: self.place(open),
            },
            63..82 => Call::Rename {
                from: self.place(open),
                to: self.place(open),
                flags: if self.random.chance(1, 10) {
                    *self.random.pick(&[1, 2, 3, 4, 8])
                } else {
                    0
                },
            },
            82..88 => Call::List {
                place: self.plain_place(),
            },
            88..92 => Call::Chdir {
                place: self.directory(),
            },
            92..93 => Call::Fchdir {
                slot: self.slot_of(open, |held| held == Held::Directory),
            },
            93..96 => Call::Program {
                place: self.plain_place(),
                mode: self.mode(),
                script: self.random.chance(1, 3),
            },
            _ => Call::Exec {
                place: match self.known.programs.is_empty() {
                    true => self.plain_place(),
                    false => Place::root(self.random.pick::<String>(&self.known.programs)),
                },
            },
        }
    }

    fn mknod_call(&mut self, open: &[Held]) -> Call {
        let kind = *self.random.pick(&[
            libc::S_IFIFO,
            libc::S_IFSOCK,
            libc::S_IFCHR,
            libc::S_IFBLK,
            libc::S_IFREG,
            libc::S_IFDIR,
            0,
        ]);
        let device = match kind {
            libc::S_IFCHR => *self.random.pick(&[(1, 3), (1, 5), (1, 7), (240, 77)]),
            // No driver has this number.
            libc::S_IFBLK => (240, 78),
            _ => (0, 0),
        };
        Call::Mknod {
            place: self.place(open),
            mode: Mode(kind | self.mode().0),
            device,
        }
    }

    fn symlink_call(&mut self, open: &[Held]) -> Call {
        let mut target = match self.random.below(8) {
            0 => "l0".to_owned(),
            1 => "l1".to_owned(),
            2 => format!("../{}", self.random.pick(&DIRECTORIES)),
            // Dots in the middle are tested by paths.
            3 if self.server_checks => self.name(),
            3 => self.path(),
            4 => "d0".to_owned(),
            5 => "f0".to_owned(),
            6 => self.name_in(),
            _ => "t".repeat(*self.random.pick(&[255, 1023, 1024, 4095])),
        };
        target.truncate(4095);
        let dir = *self.random.pick(&DIRECTORIES);
        let place = match self.random.chance(1, 2) {
            true => Place::root(&format!("{dir}/l{}", self.random.below(2))),
            false => self.place(open),
        };
        Call::Symlink { target, place }
    }

    /// A directory, which is never above the root of the tree.
    fn directory(&mut self) -> Place {
        let (a, b) = (
            *self.random.pick(&DIRECTORIES),
            *self.random.pick(&DIRECTORIES),
        );
        match self.random.below(4) {
            0 => Place::root(a),
            1 => Place::root(&format!("{a}/{b}")),
            2 => Place {
                at: At::Cwd,
                path: a.into(),
            },
            _ => Place::root(""),
        }
    }

    /// A change of attributes, of the numbers below 41 in [`Generator::attribute_call`].
    fn change_call(&mut self, choice: usize, open: &[Held], nofollow: i32) -> Call {
        match choice {
            0..14 => Call::Chmod {
                place: self.place(open),
                mode: if self.random.chance(1, 2) {
                    self.directory_mode()
                } else {
                    self.mode()
                },
            },
            14..19 => Call::Fchmod {
                slot: self.slot(open),
                mode: self.mode(),
            },
            19..28 => Call::Chown {
                place: self.place(open),
                uid: self.id(false),
                gid: self.id(true),
                flags: nofollow,
            },
            28..31 => Call::Fchown {
                slot: self.slot(open),
                uid: self.id(false),
                gid: self.id(true),
            },
            31..38 => Call::Utimens {
                place: self.place(open),
                times: self.times(),
                flags: nofollow,
            },
            _ => Call::Futimens {
                slot: self.slot(open),
                times: self.times(),
            },
        }
    }

    fn attribute_call(&mut self, open: &[Held]) -> Call {
        let nofollow = *self.random.pick(&[0, 0, libc::AT_SYMLINK_NOFOLLOW]);
        let choice = self.random.below(100);
        match choice {
            0..41 => self.change_call(choice, open, nofollow),
            41..52 => Call::Access {
                place: self.place(open),
                mode: self.random.below(8) as i32,
                flags: *self
                    .random
                    .pick(&[0, libc::AT_EACCESS, libc::AT_SYMLINK_NOFOLLOW]),
            },
            52..62 => Call::Statx {
                place: self.place(open),
                flags: nofollow
                    | *self.random.pick(&[
                        0,
                        libc::AT_STATX_FORCE_SYNC,
                        libc::AT_STATX_DONT_SYNC,
                        libc::AT_EMPTY_PATH,
                    ]),
                mask: *self.random.pick(&[
                    libc::STATX_BASIC_STATS,
                    libc::STATX_MODE,
                    libc::STATX_SIZE,
                    libc::STATX_NLINK | libc::STATX_MTIME,
                    libc::STATX_UID | libc::STATX_GID,
                ]),
            },
            62..67 => Call::Fstat {
                slot: self.slot(open),
            },
            67..73 => Call::Contents {
                place: self.place(open),
            },
            73..78 => Call::Lock {
                slot: self.slot(open),
                kind: *self
                    .random
                    .pick(&[LockKind::Flock, LockKind::Posix, LockKind::Ofd]),
                operation: *self
                    .random
                    .pick(&[libc::F_RDLCK, libc::F_WRLCK, libc::F_UNLCK].map(i32::from)),
                start: self.at(),
                len: self.len() as i64,
            },
            78 => Call::GetLock {
                slot: self.slot(open),
                kind: *self.random.pick(&[LockKind::Posix, LockKind::Ofd]),
                start: self.at(),
                len: self.len() as i64,
            },
            79..83 if self.acls => self.acl_call(open),
            79..82 => Call::Statfs {
                place: self.plain_place(),
            },
            82 | 83 => Call::Setxattr {
                place: self.plain_place(),
                name: (*self.random.pick(&["user.a", "user.b"])).into(),
                len: self.random.below(100),
            },
            84..86 => Call::Getxattr {
                place: self.plain_place(),
                name: self.xattr(),
            },
            86 if self.random.chance(1, 3) => Call::Statfs {
                place: self.plain_place(),
            },
            86 => Call::Listxattr {
                place: self.plain_place(),
            },
            87 => Call::Removexattr {
                place: self.plain_place(),
                name: self.xattr(),
            },
            88..93 => Call::Umask {
                mask: Mode(*self.random.pick(&[0o022, 0o077, 0o002, 0, 0o777, 0o027])),
            },
            _ => {
                let all = [20001, 20002, 20003, 20004];
                let bits = self.random.below(16);
                let groups = all.iter().enumerate().filter(|(i, _)| bits & (1 << i) != 0);
                Call::Groups {
                    groups: groups.map(|(_, &group)| group).collect(),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_the_calls() {
        let (mut a, mut b) = (Generator::new(3, 4), Generator::new(3, 4));
        let feedback = Feedback::new();
        for _ in 0..1000 {
            assert_eq!(a.step(&feedback), b.step(&feedback));
        }
    }

    #[test]
    fn calls_survive_being_written_down() {
        let mut generator = Generator::new(5, 4);
        let feedback = Feedback::new();
        for _ in 0..1000 {
            let step = generator.step(&feedback);
            let text = serde_json::to_string(&step).unwrap();
            assert_eq!(serde_json::from_str::<Step>(&text).unwrap(), step);
        }
    }
}
