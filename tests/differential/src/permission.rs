//! Calls whose result on a mount depends on the *current* permissions, while a local file system
//! uses those from the time when a descriptor was opened, or checks permissions that a mount leaves
//! to the server (`accepted.rs` has the rows).

use crate::call::{At, Call, Place, SLOTS, Side};
use crate::sys::{self, Sys};
use crate::worker::Worker;

/// Bits of access(2).
const READ: i32 = 4;
const WRITE: i32 = 2;

impl Worker {
    /// Makes the call in the way that the rows of `accepted.rs` need.
    pub(crate) fn judged(&mut self, call: &Call, lost: bool) -> Sys<(i64, String)> {
        if let Some(result) = self.chown_without_an_owner(call) {
            return result.map(|n| (n, String::new()));
        }
        let writes = call.moves_data().1;
        if writes.is_some_and(|slot| self.clears_by_group(slot)) {
            return Err(libc::ECANCELED);
        }
        if lost {
            return self.after_losing_permission(call);
        }
        let result = self.call(call);
        if result == Err(libc::EACCES)
            && let Some(plain) = self.without_dots(call)
        {
            return self.call(&plain);
        }
        result
    }

    /// Whether the call moves data by a descriptor whose user may not open the file like that any
    /// more.
    pub(crate) fn lost(&mut self, call: &Call) -> bool {
        let (reads, writes) = call.moves_data();
        let lists = matches!(call, Call::Getdents { .. });
        let mut gone =
            |slot: Option<u8>, wanted| slot.is_some_and(|s| !self.allowed(s, wanted, lists));
        gone(reads, READ) || gone(writes, WRITE)
    }

    /// Whether the server, at a READ or WRITE, permits access to this user with the groups from
    /// when the descriptor was opened. It always permits it to the owner of a file.
    fn allowed(&mut self, slot: u8, wanted: i32, lists: bool) -> bool {
        let fd = self.fd(slot);
        // If the descriptor is not open for the operation, no data is moved, whoever asks.
        let open_for = |flags: i32| match flags & libc::O_ACCMODE {
            _ if flags & libc::O_PATH != 0 => 0,
            libc::O_RDONLY => READ,
            libc::O_WRONLY => WRITE,
            _ => READ | WRITE,
        };
        if sys::flags(fd).is_ok_and(|flags| open_for(flags) & wanted == 0) {
            return true;
        }
        let mask = libc::STATX_TYPE | libc::STATX_UID;
        let Ok(stat) = sys::statx(fd, c"", libc::AT_EMPTY_PATH, mask) else {
            return true;
        };
        let passes = match u32::from(stat.stx_mode) & libc::S_IFMT {
            libc::S_IFREG => stat.stx_uid == self.uid,
            // Other calls move no data of a directory.
            libc::S_IFDIR => !lists,
            _ => true,
        };
        if passes || self.uid == 0 {
            return true;
        }
        let groups = self.opened_with[usize::from(slot % SLOTS)].clone();
        let others = groups != self.current;
        if others && sys::become_user(self.uid, self.gid, &groups).is_err() {
            return true;
        }
        let flags = libc::AT_EMPTY_PATH | libc::AT_EACCESS;
        let result = sys::faccessat2(fd, c"", wanted, flags);
        if others {
            let back = sys::become_user(self.uid, self.gid, &self.current);
            assert_eq!(back, Ok(0), "groups can be taken again");
        }
        result != Err(libc::EACCES)
    }

    /// A read may be answered from a cache, completely or in part. A write is refused when it is
    /// written back, which is done at once. Refused data changes nothing, as the later states show.
    fn after_losing_permission(&mut self, call: &Call) -> Sys<(i64, String)> {
        let (reads, writes) = call.moves_data();
        // Copies may be made in part.
        if matches!(call, Call::Mmap { .. }) || (reads.is_some() && writes.is_some()) {
            return Err(libc::ECANCELED);
        }
        let Some(fd) = reads.or(writes).map(|slot| self.fd(slot)) else {
            return self.call(call);
        };
        let before = sys::lseek(fd, 0, libc::SEEK_CUR);
        let result = self.call(call);
        if result == Err(libc::EACCES) && writes.is_some() {
            // A write with O_SYNC or RWF_DSYNC.
            self.refused = Some(fd);
        }
        let result = result?;
        let refused = match (call, writes) {
            (Call::Getdents { .. }, _) => Ok(0),
            (Call::Pread { at, .. }, _) => sys::pread(fd, &mut [0], at + result.0),
            (_, None) => {
                sys::lseek(fd, 0, libc::SEEK_CUR).and_then(|at| sys::pread(fd, &mut [0], at))
            }
            (_, Some(_)) => sys::fsync(fd),
        };
        if let Err(errno) = refused {
            if let Ok(offset) = before {
                sys::lseek(fd, offset, libc::SEEK_SET)?;
            }
            if writes.is_some() {
                self.refused = Some(fd);
            }
            return Err(errno);
        }
        Ok(result)
    }

    /// Each open file is told once of what the server has refused, whoever wrote it.
    pub(crate) fn sync(&self, ino: u64) {
        for slot in 0..SLOTS {
            let fd = self.fd(slot);
            let found = sys::statx(fd, c"", libc::AT_EMPTY_PATH, libc::STATX_INO);
            if found.is_ok_and(|found| found.stx_ino == ino) {
                let _ = sys::fsync(fd);
            }
        }
    }

    /// Whether a path of the call begins in a directory without links.
    pub(crate) fn is_in_removed(&self, call: &Call) -> bool {
        let removed = |dir| {
            let mask = libc::STATX_NLINK;
            sys::statx(dir, c"", libc::AT_EMPTY_PATH, mask).is_ok_and(|stat| stat.stx_nlink == 0)
        };
        if let Call::Fchdir { slot } = call {
            return removed(self.fd(*slot));
        }
        call.places().into_iter().any(|place| match place.at {
            At::Root => false,
            At::Cwd => removed(libc::AT_FDCWD),
            At::Slot(slot) => removed(self.fd(slot)),
        })
    }

    /// Whether a file's set-gid bit depends on the writer's groups: the server uses those from when
    /// the descriptor was opened.
    fn clears_by_group(&self, slot: u8) -> bool {
        let stat = sys::statx(self.fd(slot), c"", libc::AT_EMPTY_PATH, libc::STATX_MODE);
        self.uid != 0
            && self.opened_with[usize::from(slot % SLOTS)] != self.current
            && stat.is_ok_and(|stat| stat.stx_mode & 0o2000 != 0)
    }

    /// chown(2) with -1 for both ids does nothing over NFS. If a local file system would clear
    /// set-id bits, the local side only looks the object up.
    fn chown_without_an_owner(&self, call: &Call) -> Option<Sys> {
        const NONE: u32 = u32::MAX;
        let found = match call {
            Call::Chown {
                place,
                uid: NONE,
                gid: NONE,
                flags,
            } => self.at(place).and_then(|(dir, path)| {
                sys::statx(dir, &path, *flags, libc::STATX_MODE | libc::STATX_TYPE)
            }),
            Call::Fchown {
                slot,
                uid: NONE,
                gid: NONE,
            } if sys::flags(self.fd(*slot)).is_ok_and(|flags| flags & libc::O_PATH == 0) => {
                let fd = self.fd(*slot);
                sys::statx(fd, c"", libc::AT_EMPTY_PATH, libc::STATX_MODE)
            }
            _ => return None,
        };
        let mode = u32::from(found.ok()?.stx_mode);
        let clears = mode & libc::S_IFMT != libc::S_IFDIR && mode & 0o6000 != 0;
        (clears && self.side == Side::Local).then_some(Ok(0))
    }

    /// With `permissions=server`: looks at a place, and again without dots if that is refused.
    pub(crate) fn walked<T>(&self, place: &Place, look: impl Fn(&Place) -> Sys<T>) -> Sys<T> {
        match look(place) {
            Err(libc::EACCES) => match self.plain(place) {
                Some(plain) => look(&plain),
                None => Err(libc::EACCES),
            },
            result => result,
        }
    }

    /// With `permissions=server`, on the local side: the call with paths that have no dots, if that
    /// differs.
    fn without_dots(&self, call: &Call) -> Option<Call> {
        let mut call = call.clone();
        let mut changed = false;
        // The kernel does not accept a dot as a name that is removed or made.
        let names = call.changes_names();
        for place in call.places_mut() {
            if names && matches!(place.path.rsplit('/').next(), Some("." | "..")) {
                continue;
            }
            if let Some(plain) = self.plain(place) {
                *place = plain;
                changed = true;
            }
        }
        changed.then_some(call)
    }

    /// The place to which a path with dots leads, as far as its text shows: the kernel follows dots
    /// without a permission check.
    fn plain(&self, place: &Place) -> Option<Place> {
        if !self.server_checks || self.side == Side::Mount || place.at != At::Root {
            return None;
        }
        let mut parts: Vec<&str> = Vec::new();
        for part in place.path.split('/') {
            match part {
                "" | "." => {}
                ".." => drop(parts.pop()?),
                name => parts.push(name),
            }
        }
        let mut path = parts.join("/");
        if matches!(place.path.rsplit('/').next(), Some("." | "..")) && !path.is_empty() {
            // The target of a link, and not the link itself.
            path.push('/');
        }
        (path != place.path).then_some(Place { path, ..*place })
    }

    /// With `permissions=server` nobody checks opens of a FIFO, socket or device, so they are left
    /// out where access(2) refuses the user. Nor does the kernel know of sticky directories, in
    /// which it would refuse to open another user's file with O_CREAT (`fs.protected_regular`,
    /// `fs.protected_fifos`).
    pub(crate) fn opens_by_mode(&self, place: &Place, flags: i32) -> Sys<()> {
        if !self.server_checks || flags & libc::O_PATH != 0 {
            return Ok(());
        }
        let Ok((dir, path)) = self.at(place) else {
            return Ok(());
        };
        let follow = match flags & libc::O_NOFOLLOW {
            0 => 0,
            _ => libc::AT_SYMLINK_NOFOLLOW,
        };
        let mask = libc::STATX_TYPE | libc::STATX_UID;
        let Ok(stat) = sys::statx(dir, &path, follow, mask) else {
            return Ok(());
        };
        if flags & libc::O_CREAT != 0 && flags & libc::O_EXCL == 0 && stat.stx_uid != self.uid {
            return Err(libc::ECANCELED);
        }
        let special = [libc::S_IFIFO, libc::S_IFSOCK, libc::S_IFCHR, libc::S_IFBLK];
        if !special.contains(&(u32::from(stat.stx_mode) & libc::S_IFMT)) {
            return Ok(());
        }
        let wanted = match flags & libc::O_ACCMODE {
            libc::O_RDONLY if flags & libc::O_TRUNC == 0 => READ,
            libc::O_WRONLY => WRITE,
            _ => READ | WRITE,
        };
        match sys::faccessat2(dir, &path, wanted, libc::AT_EACCESS | follow) {
            Err(libc::EACCES) => Err(libc::ECANCELED),
            _ => Ok(()),
        }
    }
}
