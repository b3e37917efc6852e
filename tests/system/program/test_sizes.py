"""What others have added to a file is seen by programs that never ask for its size: sendfile(2), splice(2),
copy_file_range(2) and mappings go by the size that the kernel has."""

import ctypes
import fcntl
import mmap
import os

import pytest

from program.lock_support import LockServer
from program.support import *  # noqa: F403

OLD, NEW = b"a" * 1000, b"b" * 9000


def by_sendfile(file, _):
    ends = os.pipe()
    fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, 1 << 20)
    return by_pipe(ends, lambda: os.sendfile(ends[1], file, 0, 1 << 20))


def by_splice(file, _):
    ends = os.pipe()
    fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, 1 << 20)
    return by_pipe(ends, lambda: os.splice(file, ends[1], 1 << 20, offset_src=0))


def by_pipe(ends, fill):
    try:
        length = fill()
        return os.read(ends[0], length) if length else b""
    finally:
        for end in ends:
            os.close(end)


def by_copy_file_range(file, base):
    with opening(base / "b/copy", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600) as copy:
        os.copy_file_range(file, copy, 1 << 20, 0)
        return os.pread(copy, 1 << 20, 0)


def by_mapping(file, _):
    # Not by the module mmap, which asks for the size first. Behind the end of the file is SIGBUS.
    libc, length = ctypes.CDLL(None, use_errno=True), len(OLD + NEW)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    child = os.fork()
    if child == 0:
        at = libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, file, 0)
        os._exit(0 if ctypes.string_at(at, length) == OLD + NEW else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return OLD + NEW if status == 0 else status


def by_busybox(_, base):
    needs("busybox")
    expect(run("busybox", "cp", base / "b/f", base / "copy"), 0)
    return (base / "copy").read_bytes()


READERS = [by_sendfile, by_splice, by_copy_file_range, by_mapping, by_busybox]


@pytest.fixture
def pair():
    """Two mounts of an export with a file that both have read."""
    with LockServer() as server:
        a, b = server.mounts()
        (a / "f").write_bytes(OLD)
        assert (b / "f").read_bytes() == OLD
        yield server.base, a / "f", b / "f"


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("size", [1, 3000, 3097, 9000])
def test_an_open_shows_growth_to_who_does_not_ask_for_the_size(pair, reader, size):
    base, one, other = pair
    added = (NEW * 2)[:size] if reader is not by_mapping else NEW
    with one.open("ab") as file:
        file.write(added)
    with opening(other, os.O_RDONLY) as file:
        assert reader(file, base) == OLD + added


@pytest.mark.parametrize("reader", READERS[:4])
@pytest.mark.parametrize("lock", ["fcntl", "flock"])
def test_a_lock_shows_growth_to_who_does_not_ask_for_the_size(pair, reader, lock):
    base, one, other = pair
    take = fcntl.lockf if lock == "fcntl" else fcntl.flock
    with opening(other, os.O_RDWR) as file:
        with one.open("ab") as appended:
            take(appended, fcntl.LOCK_EX)
            appended.write(NEW)
            appended.flush()
            take(appended, fcntl.LOCK_UN)
        take(file, fcntl.LOCK_EX)
        assert reader(file, base) == OLD + NEW


@pytest.mark.parametrize("reader", READERS[:3])
def test_an_open_shows_a_cut_to_who_does_not_ask_for_the_size(pair, reader):
    base, one, other = pair
    os.truncate(one, 10)
    with opening(other, os.O_RDONLY) as file:
        assert reader(file, base) == OLD[:10]


def test_a_reader_that_follows_appends_of_others_never_gets_zeros(pair):
    _, one, other = pair
    expected = OLD
    with other.open("rb", buffering=0) as reader, one.open("ab", buffering=0) as writer:
        got = reader.read(1 << 20)
        for turn in range(40):
            record = b"%04d " % turn * (1 + turn * 37)
            writer.write(record)
            os.fsync(writer.fileno())
            expected += record

            def follows():
                nonlocal got
                os.close(os.open(other, os.O_RDONLY))
                got += reader.read(1 << 20)
                return len(got) >= len(expected)

            until(follows, "the record")
            assert got == expected, turn


def test_an_overwrite_by_another_is_seen_through_a_file_that_stays_open():
    with LockServer() as server:
        server.more = "actimeo=1"
        a, b = server.mounts()
        (a / "f").write_bytes(OLD)
        with (b / "f").open("rb", buffering=0) as reader:
            assert reader.read(1000) == OLD
            with (a / "f").open("r+b") as writer:
                writer.write(b"c" * 1000)
            until(lambda: os.pread(reader.fileno(), 1000, 0) == b"c" * 1000, "the new data")


# Writes the last byte of a file by a mapping, and looks whether it stays, until its input ends: FILE.
LAST_BYTE = """
import mmap, os, select, sys
file = os.open(sys.argv[1], os.O_RDWR)
mapped = mmap.mmap(file, 0)
print(flush=True)
turn = 0
while not select.select([0], [], [], 0)[0]:
    turn = turn % 255 + 1
    mapped[-1] = turn
    for _ in range(2000):
        if mapped[-1] != turn:
            sys.exit(f"{mapped[-1]} in place of {turn}")
"""


def test_an_open_after_a_change_leaves_the_last_byte_to_who_writes_it():
    """The size is the same as before, so there is nothing to tell the kernel."""
    with LockServer() as server:
        a, b = server.mounts()
        (a / "f").write_bytes(OLD)
        with running(
            sys.executable, "-c", LAST_BYTE, b / "f", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as writer:  # fmt: skip
            assert writer.stdout.readline() == b"\n"
            for turn in range(1500):
                os.utime(a / "f", (turn, turn))
                os.close(os.open(b / "f", os.O_RDONLY))
            assert writer.communicate(timeout=LIMIT)[1] == b""
