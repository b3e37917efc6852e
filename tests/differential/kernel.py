"""System calls as the kernel defines them."""

import ctypes
import os
import signal
import struct
from typing import NamedTuple

AT_FDCWD, AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW, AT_SYMLINK_FOLLOW = -100, 0x1000, 0x100, 0x400
AT_REMOVEDIR = AT_EACCESS = 0x200
AT_STATX_FORCE_SYNC, AT_STATX_DONT_SYNC = 0x2000, 0x4000
MODE, NLINK, UID, GID, ATIME, MTIME, SIZE, BASIC = 2, 4, 8, 0x10, 0x20, 0x40, 0x200, 0x7FF
UTIME_NOW, UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2
NO_ID = 0xFFFFFFFF
PR_SET_DUMPABLE, MS_SYNC = 4, 4
F_OFD_GETLK, F_OFD_SETLK = 36, 37


buffer = ctypes.create_string_buffer


class Library:
    """The C library. Each of its functions returns the result, or raises OSError."""

    LONG = {"fgetxattr", "getdents64", "getxattr", "listxattr", "readlinkat", "sendfile"}

    def __init__(self):
        self._library = ctypes.CDLL(None, use_errno=True)

    def __getattr__(self, name):
        function = getattr(self._library, name)
        function.restype = ctypes.c_long if name in self.LONG else ctypes.c_int

        def call(*arguments):
            result = function(*[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
            if result < 0:
                raise OSError(ctypes.get_errno(), name)
            return result

        setattr(self, name, call)
        return call

    def map(self, fd, at, length, access, kind):
        mmap = self._library.mmap64
        mmap.restype = ctypes.c_void_p
        address = mmap(None, ctypes.c_size_t(length), access, kind, fd, ctypes.c_long(at))
        if address == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), "mmap")
        return address


libc = Library()


class Stat(NamedTuple):
    nlink: int
    uid: int
    gid: int
    mode: int
    ino: int
    size: int
    atime: tuple
    mtime: tuple
    rdev: tuple
    dev: tuple

    @property
    def kind(self):
        return self.mode & 0o170000


def statx(directory, path, flags=0, mask=BASIC):
    out = buffer(256)
    libc.statx(directory, path, flags, mask, out)
    of_object = struct.unpack_from("IIIH2xQQ", out, 16)
    times = [struct.unpack_from("qI", out, at) for at in (64, 112)]
    return Stat(*of_object, *times, *[struct.unpack_from("II", out, at) for at in (128, 136)])


def status(fd):
    """The attributes of a descriptor's object."""
    return statx(fd, b"", AT_EMPTY_PATH)


def found(look, *arguments):
    """What `look` returns; None if it fails."""
    try:
        return look(*arguments)
    except OSError:
        return None


def timespecs(times):
    return struct.pack("4q", *times[0], *times[1])


def become(uid, gid, groups):
    """Takes the ids of a user. The saved user id stays 0, so that the groups can be changed later."""
    os.setresuid(-1, 0, -1)
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, 0)
    # Otherwise a process that changed its ids may not open its own /proc/self/fd.
    libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


def xattr(get, of, name):
    """The value of an extended attribute, or the list of names, by the function `get`."""
    out = buffer(1024)  # More than an ACL with some ten entries.
    n = get(of, *([name] if name else []), out, len(out))
    return out.raw[:n]


def lock(fd, command, kind, start, length):
    """fcntl(2) of a range: its kind, start and length afterwards."""
    out = buffer(struct.pack("hh4xqqi4x", kind, os.SEEK_SET, start, length, 0))
    libc.fcntl(fd, command, out)
    kind, _, start, length, _ = struct.unpack_from("hh4xqqi", out)
    return kind, start, length


def entries(fd, size):
    """What getdents64(2) gives from the descriptor's position on: (name, type, cookie)."""
    out, found = buffer(size), []
    while n := libc.getdents64(fd, out, size):
        at = 0
        while at < n:
            _, cookie, length, kind = struct.unpack_from("QqHB", out, at)
            found.append((out.raw[at + 19 : at + length].split(b"\0")[0], kind, cookie))
            at += length
    return found


def acl(entries):
    """An ACL as an extended attribute (linux/posix_acl_xattr.h)."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def execute(directory, path):
    """Runs a file in a process of its own. The result is its exit status, or 1000 plus the number of a signal."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            # A program of random bytes may run for ever.
            signal.alarm(2)
            words = (ctypes.c_char_p * 2)(path, None)
            libc.execveat(directory, path, words, (ctypes.c_char_p * 1)(None), 0)
        except OSError as error:
            os.write(theirs, bytes([error.errno]))
        os._exit(0)
    os.close(theirs)
    said = os.read(ours, 1)
    os.close(ours)
    status = os.waitpid(child, 0)[1]
    if said:
        raise OSError(said[0], "execveat")
    return 1000 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
