"""Calls whose result on a mount depends on the *current* permissions, while a local file system uses those from the time
when a descriptor was opened, or checks permissions that a mount leaves to the server (accepted.py has the rows)."""

import errno
import fcntl
import os
import stat

import kernel
from accepted import left_out
from calls import LISTING, NAMING, Call, Place
from kernel import libc

READ, WRITE = os.R_OK, os.W_OK


def access_of(flags):
    """What a descriptor with these flags is open for."""
    if flags & os.O_PATH:
        return 0
    return {os.O_RDONLY: READ, os.O_WRONLY: WRITE}.get(flags & os.O_ACCMODE, READ | WRITE)


def keeps_set_gid(uid, found):
    """Skips an ACL for an object with the set-gid bit whose group is none of the user's. NFS_ACL replaces both ACLs, also one
    that a local file system leaves alone, and setting an access ACL clears the bit."""
    if found and uid != 0 and found.mode & 0o2000:
        raise OSError(errno.ECANCELED, "the set-gid bit")


class Permissions:
    def place_keeps_set_gid(self, place):
        keeps_set_gid(self.uid, kernel.found(kernel.statx, kernel.AT_FDCWD, self.at(place)[1]))

    def judged(self, call, lost):
        """Makes the call in the way that the rows of accepted.py need."""
        if self.chown_without_an_owner(call):
            return 0
        writes = call.moves_data()[1]
        if writes is not None and self.clears_by_group(writes):
            raise left_out("groups at the time of open")
        if lost:
            return self.after_losing_permission(call)
        try:
            return self.call(call)
        except OSError as error:
            plain = self.without_dots(call) if error.errno == errno.EACCES else None
            if plain is None:
                raise
        return self.call(plain)

    def lost(self, call):
        """Whether the call moves data by a descriptor whose user may not open the file like that any more."""
        wanted = zip(call.moves_data(), (READ, WRITE))
        return any(slot is not None and not self.allowed(slot, access, call.name in LISTING) for slot, access in wanted)

    def allowed(self, slot, wanted, lists):
        """Whether the server, at a READ or WRITE, permits access to this user with the groups from when the descriptor was
        opened. It always permits it to the owner of a file."""
        fd = self.slots[slot]
        flags, found = kernel.found(libc.fcntl, fd, fcntl.F_GETFL), kernel.found(kernel.status, fd)
        # If the descriptor is not open for the operation, no data is moved, whoever asks.
        if flags is None or found is None or not access_of(flags) & wanted or self.uid == 0:
            return True
        # Other calls than listings move no data of a directory.
        passes = {stat.S_IFREG: found.uid == self.uid, stat.S_IFDIR: not lists}
        if passes.get(found.kind, True):
            return True
        others = self.opened_with[slot] != self.current
        if others:
            kernel.become(self.uid, self.gid, self.opened_with[slot])
        try:
            libc.faccessat(fd, b"", wanted, kernel.AT_EMPTY_PATH | kernel.AT_EACCESS)
        except OSError as error:
            return error.errno != errno.EACCES
        finally:
            if others:
                kernel.become(self.uid, self.gid, self.current)
        return True

    def after_losing_permission(self, call):
        """A read may be answered from a cache, completely or in part. A write is refused when it is written back, which is
        done at once. Refused data changes nothing, as the later states show."""
        reads, writes = call.moves_data()
        # Copies may be made in part.
        if call.name == "mmap" or (reads is not None and writes is not None):
            raise left_out("a mapping or a copy after permission was lost")
        fd = self.slots[writes if reads is None else reads]
        before = kernel.found(os.lseek, fd, 0, os.SEEK_CUR)
        try:
            result = self.call(call)
        except OSError as error:
            if error.errno == errno.EACCES and writes is not None:
                # A write with O_SYNC or RWF_DSYNC.
                self.refused = fd
            raise
        try:
            if writes is not None:
                libc.fsync(fd)
            elif call.name not in LISTING:
                at = call.at + result[0] if call.name == "pread" else os.lseek(fd, 0, os.SEEK_CUR)
                os.pread(fd, 1, at)
        except OSError:
            if before is not None:
                os.lseek(fd, before, os.SEEK_SET)
            if writes is not None:
                self.refused = fd
            raise
        return result

    def is_in_removed(self, call):
        """Whether a path of the call begins in a directory without links."""
        begins = [self.slots[call.slot]] if call.name == "fchdir" else []
        begins += [self.at(place)[0] for place in call.places() if place.at != "/"]
        return any((found := kernel.found(kernel.status, fd)) and found.nlink == 0 for fd in begins)

    def clears_by_group(self, slot):
        """Whether a file's set-gid bit depends on the writer's groups: the server uses those from when the descriptor was
        opened."""
        found = kernel.found(kernel.status, self.slots[slot])
        return self.uid != 0 and self.opened_with[slot] != self.current and found and found.mode & 0o2000

    def chown_without_an_owner(self, call):
        """chown(2) with -1 for both ids does nothing over NFS. If a local file system would clear set-id bits, the local
        side only looks the object up."""
        if self.on_mount or call.name not in ("chown", "fchown") or (call.uid, call.gid) != (kernel.NO_ID, kernel.NO_ID):
            return False
        if call.name == "chown":
            found = kernel.found(kernel.statx, *self.at(call.place), call.flags)
        else:
            flags = kernel.found(libc.fcntl, self.slots[call.slot], fcntl.F_GETFL)
            found = kernel.status(self.slots[call.slot]) if flags is not None and not flags & os.O_PATH else None
        return found and found.kind != stat.S_IFDIR and found.mode & 0o6000

    def walked(self, place, look):
        """With permissions=server: looks at a place, and again without dots if that is refused."""
        try:
            return look(place)
        except OSError as error:
            plain = self.plain(place) if error.errno == errno.EACCES else None
            if plain is None:
                raise
        return look(plain)

    def without_dots(self, call):
        """With permissions=server, on the local side: the call with paths that have no dots, if that differs."""
        changed = {}
        for name, place in vars(call).items():
            # The kernel does not accept a dot as a name that is removed or made.
            if isinstance(place, Place) and not (call.name in NAMING and place.dotted()) and (plain := self.plain(place)):
                changed[name] = plain
        return Call(**{**vars(call), **changed}) if changed else None

    def plain(self, place):
        """The place to which a path with dots leads, as far as its text shows: the kernel follows dots without a permission
        check."""
        if not self.server_checks or self.on_mount or place.at != "/":
            return None
        parts = []
        for part in place.path.split("/"):
            if part == "..":
                if not parts:
                    return None
                parts.pop()
            elif part not in ("", "."):
                parts.append(part)
        # With a slash it is the target of a link, and not the link itself.
        path = "/".join(parts) + ("/" if parts and place.dotted() else "")
        return None if path == place.path else Place("/", path)

    def opens_by_mode(self, place, flags):
        """With permissions=server nobody checks opens of a FIFO, socket or device, so they are left out where access(2) refuses
        the user. Nor does the kernel know of sticky directories, in which it would refuse to open another user's file with
        O_CREAT (fs.protected_regular, fs.protected_fifos)."""
        if not self.server_checks or flags & os.O_PATH:
            return
        follow = kernel.AT_SYMLINK_NOFOLLOW if flags & os.O_NOFOLLOW else 0
        found = kernel.found(kernel.statx, *self.at(place), follow)
        if not found:
            return
        if flags & os.O_CREAT and not flags & os.O_EXCL and found.uid != self.uid:
            raise left_out("permissions=server: sticky directories")
        if found.kind not in (stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFBLK):
            return
        wanted = READ | WRITE if flags & os.O_TRUNC and flags & os.O_ACCMODE == os.O_RDONLY else access_of(flags)
        try:
            libc.faccessat(*self.at(place), wanted, kernel.AT_EACCESS | follow)
        except OSError as error:
            if error.errno == errno.EACCES:
                raise left_out("permissions=server: special files") from None
