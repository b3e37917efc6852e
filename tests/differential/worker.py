"""A user's process on one of the two trees: it makes the requested calls, one at a time."""

import errno
import fcntl
import mmap
import os
import platform
import signal
import stat

import kernel
import observe
from accepted import left_out
from calls import SLOTS, Reply
from kernel import libc
from permission import Permissions, keeps_set_gid

ALWAYS = os.O_NONBLOCK | os.O_CLOEXEC
"""Flags that are added to each open, so that opening a FIFO never waits."""
PAGE = 4096
READ_LIST = os.O_RDONLY | os.O_DIRECTORY | ALWAYS
SCRIPT = b"#!/bin/true\n"
# An ELF program of x86-64 whose exit status is its effective user id modulo 128.
PROGRAM = bytes.fromhex(
    "7f454c46020101000000000000000000 02003e00010000007800400000000000 40000000000000000000000000000000"
    "00000000400038000100000000000000 01000000050000000000000000000000 00004000000000000000400000000000"
    "8b000000000000008b00000000000000 0010000000000000"
    "b86b0000000f0589c783e77fb83c0000000f05"
)  # fmt: skip


def raw(path):
    return path.encode("latin-1")


def pattern(length, fill):
    """Bytes to write, which show the position to which they belong."""
    blocks = (bytes([(fill + block) & 0xFF]) * 512 for block in range(-(-length // 512)))
    return b"".join(blocks)[:length]


class Worker(Permissions):
    """Each method named as a call makes that call; what it returns is the value, and the data if there is some."""

    def __init__(self, uid, gid, groups, connection):
        self.uid, self.gid, self.groups, self.connection = uid, gid, groups, connection
        self.slots = [-1] * SLOTS
        self.opened_with = [()] * SLOTS
        """The groups from when each descriptor was opened."""

    def serve(self):
        kernel.become(self.uid, self.gid, self.groups)
        self.memory = os.memfd_create("differential")
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while True:
            try:
                name, *arguments = self.connection.recv()
            except (EOFError, ConnectionError):
                return
            self.connection.send(getattr(self, "request_" + name)(*arguments))

    def request_begin(self, root, on_mount, server_checks):
        """Forgets everything, and begins in this directory, if there is one yet."""
        self.root, self.on_mount, self.server_checks = os.fsencode(root), on_mount, server_checks
        for slot in range(SLOTS):
            # An error of a write that was reported before may be reported again.
            self.put(slot, -1)
        os.chdir(self.root or b"/")
        os.umask(0o022)
        kernel.become(self.uid, self.gid, self.groups)
        self.current = self.groups
        return Reply()

    def request_do(self, call):
        lost, self.refused = self.lost(call), None
        reply = self.outcome(self.judged, call, lost)
        reply.states, reply.lost, reply.refused = self.states(call), lost, self.refused
        reply.removed = self.is_in_removed(call)
        return reply

    def request_look(self, call):
        """Makes no call, but looks at the objects that it would have touched."""
        # This may change the identity again, which linkat(2) with AT_EMPTY_PATH notices.
        return Reply(lost=self.lost(call), states=self.states(call))

    def request_observe(self, places, contents):
        states = []
        for place in places:
            states.append(self.state(place))
            if contents:
                data = self.outcome(self.contents, place)
                states[-1]["contents"] = f"{observe.errno_name(data.errno)}/{data.data}"
        return Reply(states=states)

    def request_sync(self, ino):
        """Each open file is told once of what the server has refused, whoever wrote it."""
        for fd in self.slots:
            if (found := kernel.found(kernel.status, fd)) and found.ino == ino:
                kernel.found(libc.fsync, fd)
        return Reply()

    @staticmethod
    def outcome(make, *arguments):
        try:
            result = make(*arguments)
        except OSError as error:
            return Reply(errno=error.errno)
        return Reply(0, *(result if isinstance(result, tuple) else (result or 0,)))

    def call(self, call):
        arguments = dict(vars(call))
        return getattr(self, arguments.pop("name"))(**arguments)

    def states(self, call):
        """The current state of the objects that a call touches."""
        return [self.state(place) for place in call.places()] + [self.slot_state(slot) for slot in call.slots()]

    def at(self, place):
        """The directory and path of a place, for the *at calls."""
        path = raw(place.path)
        if place.at == "/":
            return kernel.AT_FDCWD, self.root + (b"/" + path if path else b"")
        return kernel.AT_FDCWD if place.at == "cwd" else self.slots[place.at], path

    def state(self, place):
        return observe.state(self.walked, place, lambda place: kernel.statx(*self.at(place), kernel.AT_SYMLINK_NOFOLLOW))

    def slot_state(self, slot):
        fd = self.slots[slot]
        state = observe.state(kernel.status, fd)
        try:
            offset = os.lseek(fd, 0, os.SEEK_CUR)
            # An offset in a directory is a cookie.
            state["offset"] = "directory" if state.get("type") == "directory" else offset
        except OSError as error:
            state["offset"] = observe.errno_name(error.errno)
        return state

    def put(self, slot, fd):
        old, self.slots[slot] = self.slots[slot], fd
        if old >= 0:
            kernel.found(os.close, old)

    # Descriptors.

    def open(self, slot, place, flags, mode):
        exclusive = flags & os.O_CREAT and flags & os.O_EXCL
        if exclusive and self.uid != 0 and mode & 0o2010 == 0o2000:
            raise left_out("set-gid bit of an exclusive create")
        self.opens_by_mode(place, flags)
        self.put(slot, libc.openat(*self.at(place), flags | ALWAYS, mode))
        self.opened_with[slot] = self.current

    def close(self, slot):
        fd, self.slots[slot] = self.slots[slot], -1
        libc.close(fd)

    def dup(self, source, target):
        self.put(target, libc.fcntl(self.slots[source], fcntl.F_DUPFD_CLOEXEC, 3))
        self.opened_with[target] = self.opened_with[source]

    def umask(self, mode):
        return os.umask(mode)

    def groups_are(self, groups):
        kernel.become(self.uid, self.gid, groups)
        self.current = groups

    # Data.

    @staticmethod
    def got(data):
        return len(data), observe.shown_bytes(data)

    def read(self, slot, length):
        return self.got(os.read(self.slots[slot], length))

    def pread(self, slot, length, at):
        return self.got(os.pread(self.slots[slot], length, at))

    def readv(self, slot, lengths):
        parts = [bytearray(length) for length in lengths]
        n = os.readv(self.slots[slot], parts)
        return self.got(b"".join(parts)[:n])

    def write(self, slot, length, fill):
        return os.write(self.slots[slot], pattern(length, fill))

    def pwrite(self, slot, length, at, fill):
        return os.pwrite(self.slots[slot], pattern(length, fill), at)

    def writev(self, slot, lengths, fill):
        return os.writev(self.slots[slot], [pattern(lengths[0], fill), pattern(lengths[1], ~fill & 0xFF)])

    def pwritev2(self, slot, length, at, fill, flags):
        return os.pwritev(self.slots[slot], [pattern(length, fill)], at, flags)

    def lseek(self, slot, at, whence):
        directory = observe.state(kernel.status, self.slots[slot]).get("type") == "directory"
        # An offset in a directory is a cookie, with which nobody calculates.
        if directory and whence == os.SEEK_CUR and at != 0:
            raise OSError(errno.ECANCELED, "a cookie")
        n = os.lseek(self.slots[slot], at, whence)
        return 0 if directory else n

    def seek_sparse(self, slot, at, whence):
        """SEEK_DATA or SEEK_HOLE; the offset is restored afterwards."""
        fd = self.slots[slot]
        # File systems differ in the holes of other objects.
        if kernel.status(fd).kind != stat.S_IFREG:
            raise OSError(errno.ECANCELED, "holes of others than files")
        before = os.lseek(fd, 0, os.SEEK_CUR)
        try:
            return os.lseek(fd, at, whence)
        finally:
            os.lseek(fd, before, os.SEEK_SET)

    def truncate(self, place, length):
        path = self.at(place)[1]
        known = kernel.found(kernel.statx, kernel.AT_FDCWD, path)
        # Set-id bits are cleared, which the server may count as a change.
        judged = known and length == 0 and known.mode & 0o6000 == 0
        if known and known.kind == stat.S_IFREG and known.size == length and not judged:
            raise left_out("truncate to the size that is")
        return libc.truncate(path, length)

    def ftruncate(self, slot, length):
        return libc.ftruncate(self.slots[slot], length)

    def fallocate(self, slot, how, at, length):
        return libc.fallocate(self.slots[slot], how, at, length)

    def copy_file_range(self, source, target, source_at, target_at, length):
        return os.copy_file_range(self.slots[source], self.slots[target], length, source_at, target_at)

    def sendfile(self, source, target, at, length):
        if self.overlaps(self.slots[source], self.slots[target], at, length):
            raise left_out("sendfile within a file")
        return os.sendfile(self.slots[target], self.slots[source], at, length)

    @staticmethod
    def overlaps(source, target, at, length):
        """Whether the source and destination of a sendfile(2) overlap in one file."""
        one, other = kernel.found(kernel.status, source), kernel.found(kernel.status, target)
        if not one or not other or (one.dev, one.ino) != (other.dev, other.ino):
            return False
        # Servers choose the sizes and positions of directories, to which nothing is sent.
        if one.kind != stat.S_IFREG:
            return False
        append = libc.fcntl(target, fcntl.F_GETFL) & os.O_APPEND
        to = one.size if append else os.lseek(target, 0, os.SEEK_CUR)
        return at < to + length and to < min(at + length, one.size)

    def mmap(self, slot, page, length, shared, fill, msync):
        """Reads a page-aligned mapping, or writes it and calls msync(2) if `msync` is set."""
        fd, at = self.slots[slot], page * PAGE
        if shared and fill is not None and self.uid != 0 and kernel.status(fd).mode & 0o6000:
            raise left_out("set-id bits and mappings")
        access = mmap.PROT_READ | (0 if fill is None else mmap.PROT_WRITE)
        address = libc.map(fd, at, length, access, mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE)
        try:
            # Page by page: pages beyond the end of the file fail, and the others do not.
            out = [self.mapped(fd, at, address, offset, min(PAGE, length - offset), fill) for offset in range(0, length, PAGE)]
            if shared and fill is not None:
                # Writing it back later would change the time then; locally, it depends on the file system whether the time
                # changes ("time of a mapping that is written").
                libc.msync(address, length, kernel.MS_SYNC)
                kernel.found(self.futimens, slot, [(0, kernel.UTIME_OMIT), (0, kernel.UTIME_NOW)])
            elif msync:
                libc.msync(address, length, kernel.MS_SYNC)
            return 0, ",".join(out)
        finally:
            libc.munmap(address, length)

    def mapped(self, fd, at, address, offset, length, fill):
        """Writes and reads a page. The kernel copies between it and a file in memory: a page that cannot be had is then an
        error, and causes no SIGBUS."""
        try:
            if fill is not None:
                # Only below the end of the file: bytes behind it in the last page are visible in the mapping until the
                # page is dropped.
                part = max(0, min(length, kernel.status(fd).size - at - offset))
                os.pwrite(self.memory, pattern(part, fill), 0)
                libc.pread64(self.memory, address + offset, part, 0)
            n = libc.pwrite64(self.memory, address + offset, length, 0)
            return observe.shown_bytes(os.pread(self.memory, n, 0))
        except OSError as error:
            return observe.errno_name(error.errno)

    def sync(self, slot, how):
        # The last is sync_file_range(2) with all its flags.
        return getattr(libc, how)(self.slots[slot], *([0, 0, 7] if how == "sync_file_range" else []))

    def contents(self, place):
        """Opens a file, reads it, closes it."""
        return self.walked(place, self.contents_of)

    def contents_of(self, place):
        flags = os.O_RDONLY | os.O_NOFOLLOW
        self.opens_by_mode(place, flags)
        fd = libc.openat(*self.at(place), flags | ALWAYS, 0)
        try:
            return 0, observe.shown_bytes(observe.read_all(fd)) if kernel.status(fd).kind == stat.S_IFREG else ""
        finally:
            os.close(fd)

    # Directories and names.

    def list(self, place):
        fd = libc.openat(*self.at(place), READ_LIST, 0)
        try:
            return 0, " ".join(sorted(observe.names(kernel.entries(fd, 32 << 10))))
        finally:
            os.close(fd)

    def getdents(self, slot, size):
        """Reads a directory from its beginning, seeks into the middle, and reads the rest again."""
        fd = self.slots[slot]
        os.lseek(fd, 0, os.SEEK_SET)
        found = [entry for entry in kernel.entries(fd, size) if not entry[0].startswith(b".nfs")]
        middle, text = len(found) // 2, ""
        if len(found) > 1:
            # The cookie of an entry leads to the next one.
            os.lseek(fd, found[middle - 1][2], os.SEEK_SET)
            if observe.names(kernel.entries(fd, size)) != observe.names(found[middle:]):
                text = " seekdir led elsewhere"
        return 0, " ".join(sorted(observe.names(found))) + text

    def mkdir(self, place, mode):
        return libc.mkdirat(*self.at(place), mode)

    def rmdir(self, place):
        return libc.unlinkat(*self.at(place), kernel.AT_REMOVEDIR)

    def mknod(self, place, mode, device):
        return libc.mknodat(*self.at(place), mode, os.makedev(*device))

    def symlink(self, to, place):
        return libc.symlinkat(raw(to), *self.at(place))

    def readlink(self, place):
        out = kernel.buffer(8192)
        n = libc.readlinkat(*self.at(place), out, 8192)
        return n, repr(out.raw[:n])

    def link(self, source, target, flags):
        return libc.linkat(*self.at(source), *self.at(target), flags)

    def link_slot(self, slot, target, by_proc):
        """linkat(2) of a descriptor, by AT_EMPTY_PATH or by its name in /proc/self/fd."""
        if by_proc:
            name = b"/proc/self/fd/%d" % self.slots[slot]
            return libc.linkat(kernel.AT_FDCWD, name, *self.at(target), kernel.AT_SYMLINK_FOLLOW)
        return libc.linkat(self.slots[slot], b"", *self.at(target), kernel.AT_EMPTY_PATH)

    def unlink(self, place):
        return libc.unlinkat(*self.at(place), 0)

    def rename(self, source, target, flags):
        return libc.renameat2(*self.at(source), *self.at(target), flags)

    def chdir(self, place):
        return libc.chdir(self.at(place)[1])

    def fchdir(self, slot):
        return libc.fchdir(self.slots[slot])

    def program(self, place, mode, script):
        """Writes an executable file: a program of a few instructions, or a script."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | ALWAYS
        self.opens_by_mode(place, flags)
        fd = libc.openat(*self.at(place), flags, mode)
        try:
            return os.write(fd, SCRIPT if script or platform.machine() != "x86_64" else PROGRAM)
        finally:
            os.close(fd)

    def exec(self, place):
        return kernel.execute(*self.at(place))

    # Attributes.

    def chmod(self, place, mode):
        return libc.fchmodat(*self.at(place), mode, 0)

    def fchmod(self, slot, mode):
        return libc.fchmod(self.slots[slot], mode)

    def chown(self, place, uid, gid, flags):
        return libc.fchownat(*self.at(place), uid, gid, flags)

    def fchown(self, slot, uid, gid):
        return libc.fchown(self.slots[slot], uid, gid)

    def utimens(self, place, times, flags):
        return libc.utimensat(*self.at(place), kernel.timespecs(times), flags)

    def futimens(self, slot, times):
        return libc.futimens(self.slots[slot], kernel.timespecs(times))

    def access(self, place, wanted, flags):
        return libc.faccessat(*self.at(place), wanted, flags)

    def statx(self, place, flags, mask):
        return 0, observe.fields(kernel.statx(*self.at(place), flags, mask), mask)

    def fstat(self, slot):
        return 0, self.slot_state(slot)

    def statfs(self, place):
        found = os.statvfs(self.at(place)[1])
        return 0, f"name={found.f_namemax} total={found.f_blocks * found.f_frsize} files={found.f_files}"

    def lock(self, slot, kind, operation, start, length):
        fd = self.slots[slot]
        if kind == "flock":
            how = {fcntl.F_RDLCK: fcntl.LOCK_SH, fcntl.F_WRLCK: fcntl.LOCK_EX}.get(operation, fcntl.LOCK_UN)
            libc.flock(fd, how | fcntl.LOCK_NB)
        else:
            kernel.lock(fd, fcntl.F_SETLK if kind == "posix" else kernel.F_OFD_SETLK, operation, start, length)

    def get_lock(self, slot, kind, start, length):
        command = fcntl.F_GETLK if kind == "posix" else kernel.F_OFD_GETLK
        return 0, repr(kernel.lock(self.slots[slot], command, fcntl.F_WRLCK, start, length))

    # Extended attributes.

    def setxattr(self, place, attribute, length):
        value = pattern(length, ord("x"))
        return libc.setxattr(self.at(place)[1], raw(attribute), value, len(value), 0)

    def setacl(self, place, default, entries):
        self.place_keeps_set_gid(place)
        value = kernel.acl(entries)
        return libc.setxattr(self.at(place)[1], observe.ACLS[default], value, len(value), 0)

    def fsetacl(self, slot, default, entries):
        keeps_set_gid(self.uid, kernel.found(kernel.status, self.slots[slot]))
        value = kernel.acl(entries)
        return libc.fsetxattr(self.slots[slot], observe.ACLS[default], value, len(value), 0)

    def fgetacl(self, slot, default):
        return self.got(kernel.xattr(libc.fgetxattr, self.slots[slot], observe.ACLS[default]))

    def getxattr(self, place, attribute):
        return self.got(kernel.xattr(libc.getxattr, self.at(place)[1], raw(attribute)))

    def listxattr(self, place):
        names = kernel.xattr(libc.listxattr, self.at(place)[1], None).split(b"\0")
        # Other attributes exist on the local side only.
        return 0, repr(sorted(name for name in names if name.startswith(b"system.posix_acl_")))

    def removexattr(self, place, attribute):
        if attribute.startswith("system."):
            self.place_keeps_set_gid(place)
        return libc.removexattr(self.at(place)[1], raw(attribute))
