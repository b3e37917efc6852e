"""Only bytes that a program wrote are sent to the server (docs/COHERENCE.md, "What a WRITE carries")."""

import contextlib
import os
import subprocess
import sys

import pytest

from program.support import *  # noqa: F403

RECORDS, SIZE = 400, 100

WRITER = r"""
import os, sys
first, flags, reads, stride = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "reads", int(sys.argv[4])
print(flush=True)
for line in sys.stdin:
    path = line.rstrip("\n")
    if reads:
        with open(path, "rb") as file:
            file.read()
    print(flush=True)
    sys.stdin.readline()
    file = os.open(path, flags)
    for number in range(first, %d, 2):
        os.pwrite(file, b"%%0*d" %% (%d, number), number * stride)
    os.close(file)
    print(flush=True)
""" % (RECORDS, SIZE)


class Writer:
    """A process that writes every second record of a file, and then closes it."""

    def __init__(self, first, flags, reads, stride):
        words = [str(first), str(flags), "reads" if reads else "", str(stride)]
        pipe = subprocess.PIPE
        self.child = subprocess.Popen([sys.executable, "-c", WRITER, *words], stdin=pipe, stdout=pipe, text=True)

    def __enter__(self):
        self.answer()
        return self

    def __exit__(self, *_):
        self.child.kill()
        self.child.wait()
        self.child.stdin.close()
        self.child.stdout.close()

    def say(self, line):
        self.child.stdin.write(f"{line}\n")
        self.child.stdin.flush()

    def answer(self):
        assert self.child.stdout.readline(), "the writer has ended"


def second_mount(server):
    other = server.base / "other"
    other.mkdir()
    expect(server.mount(at=other), 0)
    return other


@pytest.mark.parametrize("stride", [SIZE, 4 * SIZE])
@pytest.mark.parametrize("how", ["write only", "read and write", "one has read it"])
def test_two_mounts_that_write_different_records_lose_none(how, stride):
    flags = os.O_WRONLY if how == "write only" else os.O_RDWR
    with Server() as server, contextlib.ExitStack() as ends:
        server.mount_well()
        points = (server.mnt, second_mount(server))
        reads = (how == "one has read it", False)
        writers = [ends.enter_context(Writer(n, flags, reads[n], stride)) for n in range(2)]
        for turn in range(40):
            name = f"f{turn}"
            before = (b"", b"o" * (RECORDS * stride))[turn % 2]
            (server.export / name).write_bytes(before)
            (server.export / name).chmod(0o666)
            for _ in range(2):
                # The names; and then all at once.
                for point, writer in zip(points, writers):
                    writer.say(point / name)
                for writer in writers:
                    writer.answer()
            there = (server.export / name).read_bytes()
            expected = bytearray(before.ljust((RECORDS - 1) * stride + SIZE, b"\0"))
            for number in range(RECORDS):
                expected[number * stride : number * stride + SIZE] = b"%0*d" % (SIZE, number)
            lost = [number for number in range(RECORDS)
                    if there[number * stride : number * stride + SIZE] != b"%0*d" % (SIZE, number)]
            assert not lost, f"round {turn}: {len(lost)} records are lost, the first is {lost[0]}"
            assert there == expected, f"round {turn}: bytes that nobody wrote have changed"

