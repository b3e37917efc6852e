"""O_APPEND on two mounts of one export, under a lock: each write(2) goes to the end that the last one left."""

import fcntl
import os

from program.lock_support import *  # noqa: F403
from program.support import *  # noqa: F403


class Appender:
    """A file that is open for appending, with a lock around each use."""

    def __init__(self, path):
        self.path = path
        self.file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)

    def __enter__(self):
        fcntl.flock(self.file, fcntl.LOCK_EX)
        return self.file

    def __exit__(self, *_):
        fcntl.flock(self.file, fcntl.LOCK_UN)

    def all(self):
        """The contents that an open reader and a new one see, which must be equal."""
        here = os.pread(self.file, 1 << 24, 0)
        assert self.path.read_bytes() == here
        return here


def two(server, name="log"):
    return [Appender(point / name) for point in server.mounts()]


def test_appends_in_a_row_follow_what_another_mount_appended():
    with LockServer() as server:
        a, b = two(server)
        with b as file:
            os.write(file, b"B: one\n")
        expected = b"B: one\n"
        with a as file:
            for text in (b"A: two\n", b"A: three\n", b"A: four\n"):
                assert os.write(file, text) == len(text)
                expected += text
            assert a.all() == expected
        with b as file:
            os.write(file, b"B: five\n")
            assert b.all() == expected + b"B: five\n"
        assert (server.export / "log").read_bytes() == expected + b"B: five\n"


def test_an_append_of_several_requests_is_whole():
    """A write that begins in the middle of a page, or is longer than a request."""
    with LockServer() as server:
        writers = two(server)
        expected = b""
        for turn in range(6):
            record = b"%d" % turn * (2999 if turn < 4 else 3_000_000) + b"\n"
            with writers[turn % 2] as file:
                assert os.write(file, record) == len(record)
            expected += record
            assert (server.export / "log").stat().st_size == len(expected), turn
        assert (server.export / "log").read_bytes() == expected
        for writer in writers:
            with writer:
                assert writer.all() == expected


def test_an_append_goes_to_the_end_that_another_mount_has_cut_to():
    with LockServer() as server:
        a, b = two(server)
        for size in (0, 3):
            with a as file:
                os.write(file, b"A: one\n")
            with b as file:
                os.ftruncate(file, size)
            with a as file:
                os.write(file, b"A: two\n")
                os.write(file, b"A: three\n")
                kept = b"A: one\n"[:size]
                assert a.all() == kept + b"A: two\nA: three\n"
            with b as file:
                assert b.all() == kept + b"A: two\nA: three\n"
                os.ftruncate(file, 0)


WRITER = r"""
import fcntl, os, sys
path, who, records = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
file = os.open(path, os.O_WRONLY | os.O_APPEND)
for n in range(records):
    text = f'{who} {n} '.encode().ljust(50 + 37 * n, b'.') + b'\n'
    fcntl.flock(file, fcntl.LOCK_EX)
    assert os.write(file, text) == len(text)
    fcntl.flock(file, fcntl.LOCK_UN)
"""


def test_no_record_of_four_writers_on_two_mounts_is_lost_or_torn():
    records = 40
    with LockServer() as server:
        points = server.mounts()
        (server.export / "log").write_bytes(b"")
        run_together(WRITER, [(points[n % 2] / "log", n, records) for n in range(4)])
        expected = [f"{who} {n} ".ljust(50 + 37 * n, ".") for who in range(4) for n in range(records)]
        found = (server.export / "log").read_text().splitlines()
        assert sorted(found) == sorted(expected), f"{len(set(found) & set(expected))} of {len(expected)}"
