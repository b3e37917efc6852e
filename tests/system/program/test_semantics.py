"""Rows of docs/SEMANTICS.md about calls that Linux, or the mount, answers without the server."""

import ctypes
import errno
import fcntl
import os
import sys

import pytest

from program.support import *  # noqa: F403

STATX_FORCE_SYNC = 0x2000
FS_IOC_GETFLAGS, FS_IOC_FIEMAP = 0x80086601, 0xC020660B


def failure(function, *words):
    with pytest.raises(OSError) as raised:
        function(*words)
    return raised.value.errno


def size_synced(path):
    """The size by statx(2) with AT_STATX_FORCE_SYNC."""
    found = ctypes.create_string_buffer(256)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.statx(-100, os.fsencode(path), STATX_FORCE_SYNC, 0xFFF, found) == 0, os.strerror(ctypes.get_errno())
    return int.from_bytes(found[40:48], sys.byteorder)


def test_calls_that_linux_or_the_mount_answers_alone(server):
    server.mount_well("actimeo=3600")
    (server.mnt / "dir").mkdir()
    with opening(server.mnt / "dir", os.O_RDONLY) as dir, opening(server.mnt / "f", os.O_RDWR | os.O_CREAT) as file:
        os.write(file, b"0123456789")
        os.fsync(file)
        assert os.lseek(file, 2**63 - 1, os.SEEK_SET) == 2**63 - 1
        assert failure(fcntl.ioctl, file, FS_IOC_GETFLAGS, bytes(8)) == errno.ENOTTY
        assert failure(fcntl.ioctl, file, FS_IOC_FIEMAP, bytes(32)) == errno.EOPNOTSUPP
        assert fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK) == 0
        assert size_synced(server.mnt / "f") == 10
        with open(server.export / "f", "ab") as other:
            other.write(b"more")
        assert size_synced(server.mnt / "f") == 10, "Linux tells FUSE servers of the flag now: honour it"
        before = os.fstat(dir).st_ctime_ns
        (server.mnt / "dir").rmdir()
        gone = os.fstat(dir)
        assert (gone.st_nlink, gone.st_ctime_ns) == (0, before)
