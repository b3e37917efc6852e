"""The state of objects, as values that can be compared.

Times are compared if a call has set them: such times are years away from now (generate.py). All others are shown as `now`,
since two calls never happen at the same moment.
"""

import collections
import contextlib
import errno
import os
import stat
import time
import zlib

import kernel
from kernel import libc

NEAR = 100_000
"""Times within so many seconds are shown as `now`."""
READ_MOST = 2 << 20
"""The most bytes of contents that are compared, since files may be sparse and huge."""
ACLS = {False: b"system.posix_acl_access", True: b"system.posix_acl_default"}
KINDS = {
    stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink", stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket", stat.S_IFCHR: "char", stat.S_IFBLK: "block",
}  # fmt: skip


def errno_name(number):
    return {0: "OK", errno.ECANCELED: "left out"}.get(number) or errno.errorcode.get(number, f"errno{number}")


def shown_time(when):
    return "now" if abs(when[0] - time.time()) < NEAR else f"{when[0]}.{when[1]:09}"


def fields(found, mask=kernel.BASIC):
    """The fields of `mask`. The size of a directory is left out, because servers choose it."""
    state = {"type": KINDS.get(found.kind, "other")}
    for bit, name, value in (
        (kernel.MODE, "mode", f"{found.mode & 0o7777:04o}"),
        (kernel.NLINK, "nlink", found.nlink),
        (kernel.UID, "uid", found.uid),
        (kernel.GID, "gid", found.gid),
        (kernel.SIZE, "size", None if found.kind == stat.S_IFDIR else found.size),
        (kernel.ATIME, "atime", shown_time(found.atime)),
        (kernel.MTIME, "mtime", shown_time(found.mtime)),
    ):
        if mask & bit and value is not None:
            state[name] = value
    if found.kind in (stat.S_IFCHR, stat.S_IFBLK):
        state["rdev"] = found.rdev
    return state


def state(look, *arguments):
    """The state of an object, or the error of looking at it."""
    try:
        return fields(look(*arguments))
    except OSError as error:
        return {"state": errno_name(error.errno)}


def shown_bytes(data):
    """A text for bytes: their number, their checksum, and the first of each of the first blocks (`worker.pattern`)."""
    return f"{len(data)}:{zlib.crc32(data):x},{list(data[:2048:512])}"


def names(found):
    """Names and types of a listing, without those of removed open files, which a local file system does not need."""
    return [f"{name!r}:{kind}" for name, kind, _ in found if not name.startswith(b".nfs")]


def read_all(fd):
    """The contents of a descriptor from its beginning on."""
    out = bytearray()
    while len(out) < READ_MOST and (part := os.pread(fd, 128 << 10, len(out))):
        out += part
    return bytes(out)


class Tree:
    """All below `root` by name, as this process sees it, including which names are links of one file. Hidden names are left
    out. Links of hidden names, which the server counts, are subtracted if `hidden_links` is set."""

    def __init__(self, root, hidden_links=False):
        self.nodes, self.only_hidden, self._hidden = {}, False, collections.Counter()
        self._walk(os.fsencode(root), b"")
        self.hidden = sum(self._hidden.values())
        first = {}
        for name, (ino, node) in sorted(self.nodes.items()):
            if "nlink" in node:
                node["nlink"] -= self._hidden[ino] if hidden_links else 0
                node["same"] = first.setdefault(ino, name)
        self.nodes = {name: node for name, (_, node) in self.nodes.items()}

    def _walk(self, directory, below):
        shown = hidden = 0
        try:
            found = list(os.scandir(directory))
        except OSError as error:
            self.nodes[below] = 0, {"state": errno_name(error.errno)}
            return
        for entry in found:
            if entry.name.startswith(b".nfs"):
                hidden += 1
                with contextlib.suppress(OSError):
                    self._hidden[kernel.statx(kernel.AT_FDCWD, entry.path, kernel.AT_SYMLINK_NOFOLLOW).ino] += 1
                continue
            shown += 1
            name = below + b"/" + entry.name
            try:
                seen = kernel.statx(kernel.AT_FDCWD, entry.path, kernel.AT_SYMLINK_NOFOLLOW)
                self.nodes[name] = seen.ino, describe(entry.path, seen)
            except OSError as error:
                self.nodes[name] = 0, {"state": errno_name(error.errno)}
                continue
            if seen.kind == stat.S_IFDIR:
                self._walk(entry.path, name)
        self.only_hidden |= shown == 0 and hidden > 0


def describe(path, seen):
    """An object of a tree. Links of a directory are left out: they are its directories."""
    node = fields(seen, kernel.BASIC & ~kernel.NLINK if seen.kind == stat.S_IFDIR else kernel.BASIC)
    if seen.kind == stat.S_IFREG:
        node["data"] = contents(path)
    elif seen.kind == stat.S_IFLNK:
        node["target"] = os.readlink(path)
        return node
    for default, what in ((False, "acl"), (True, "default")):
        try:
            node[what] = kernel.xattr(libc.getxattr, path, ACLS[default])
        except OSError as error:
            if error.errno not in (errno.ENODATA, errno.EOPNOTSUPP):
                node[what] = errno_name(error.errno)
    return node


def contents(path):
    """The contents, after an fsync has written data that a client holds."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            os.fsync(fd)
            return shown_bytes(read_all(fd))
        finally:
            os.close(fd)
    except OSError as error:
        return errno_name(error.errno)
