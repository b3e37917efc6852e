"""Waiting for locks that go to the server: whoever waits gets the lock when it is free, and nothing is left."""

import errno
import fcntl
import os
import random
import signal
import struct
import threading

from program.lock_support import *  # noqa: F403
import pytest

from program.support import *  # noqa: F403


def called_back(style):
    """How the server tells a waiter, and options of the mounts with which it can, or with None cannot."""
    port = free_port()
    return LockServer("--lock-callback", style, "--client-lock-port", str(port), options=f"callbackport={port}")


WAYS = {
    "unreachable": lambda: LockServer("--lock-callback", "callback"),
    "reachable": lambda: called_back("callback"),
    "never": lambda: LockServer("--lock-callback", "never"),
    "takes": lambda: LockServer("--lock-callback", "takes"),
}


def gets(process):
    until(lambda: not waits(process, 0), "a lock that is free")
    assert process.got() == 0


def at_server(server):
    return [word for word in server.control("locks").split()[1:] if ":" in word]


def all_free(server, points):
    until(lambda: not at_server(server), f"the end of all locks at the server: {server.control('locks')}")
    for point in points:
        until(lambda: counters(point)["locks_held"] == counters(point)["lock_waiters"] == 0, "the end of all locks")


class Thread:
    """One more thread of this process, which waits for a lock and gives it back."""

    def __init__(self, file, command, start, length):
        self.done = threading.Event()
        words = [struct.pack("hhqqi", kind, 0, start, length, 0) for kind in (WRITE, FREE)]

        def run():
            for lock in words:
                fcntl.fcntl(file, command, lock)
            self.done.set()

        threading.Thread(target=run, daemon=True).start()


@pytest.mark.parametrize("ofd", [False, True], ids=["posix", "ofd"])
@pytest.mark.parametrize("way", WAYS)
def test_a_request_that_is_at_the_server_waits_for_no_other(way, ofd):
    """One owner has two threads. The one waits for another mount; the other one gives back what a third waits for."""
    command = F_OFD_SETLKW if ofd else fcntl.F_SETLKW
    with WAYS[way]() as server, Process() as other, Process() as third:
        a, b = server.mounts()
        (server.export / "f").write_bytes(b"0" * 16384)
        assert other.do("open", "f", str(b / "f")) == third.do("open", "f", str(a / "f")) == 0
        assert other.set("f", WRITE, 5120, 4096) == 0
        with open(a / "f", "r+b", buffering=0) as file:
            fcntl.fcntl(file, command, struct.pack("hhqqi", WRITE, 0, 0, 4096, 0))
            third.wait_for("f", WRITE, 1024, 4096)
            until(lambda: counters(a)["lock_waiters"] == 1, "a waiter")
            second = Thread(file, command, 4096, 4096)
            until(lambda: counters(a)["lock_polls"] >= 8, "long pauses")
            # The server takes the lock for the second thread, which does not know it yet.
            assert other.set("f", FREE, 5120, 4096) == 0
            fcntl.fcntl(file, command, struct.pack("hhqqi", FREE, 0, 0, 4096, 0))
            gets(third)
            assert third.set("f", FREE, 1024, 4096) == 0
            assert second.done.wait(LIMIT)
        all_free(server, (a, b))


@pytest.mark.parametrize("way", WAYS)
def test_a_request_waits_for_no_turn_behind_another_mounts_lock(way):
    """The one ahead waits for another mount, which waits for whoever is behind."""
    with WAYS[way]() as server, Process() as other, Process() as ahead, Process() as behind:
        a, b = server.mounts()
        (server.export / "f").write_bytes(b"0" * 100)
        for process, point in ((other, b), (ahead, a), (behind, a)):
            assert process.do("open", "f", str(point / "f")) == 0
        assert other.set("f", WRITE, 0, 10) == 0
        assert behind.set("f", WRITE, 30, 10) == 0
        ahead.wait_for("f", WRITE, 0, 20)
        until(lambda: counters(a)["lock_polls"] >= 1, "the request at the server")
        other.wait_for("f", WRITE, 30, 10)
        until(lambda: counters(b)["lock_polls"] >= 1, "the other mount's request at the server")
        behind.wait_for("f", WRITE, 10, 10)
        gets(behind)
        assert behind.set("f", FREE) == 0
        gets(other)
        assert other.set("f", FREE) == 0
        gets(ahead)
        assert ahead.set("f", FREE) == 0
        all_free(server, (a, b))


@pytest.mark.parametrize("way", WAYS)
def test_a_waiter_that_is_killed_leaves_nothing_at_the_server(way):
    """Its request is cancelled there, or the lock given back that it did not know of."""
    with WAYS[way]() as server, Process() as other:
        a, b = server.mounts()
        (server.export / "f").write_bytes(b"0" * 100)
        assert other.do("open", "f", str(b / "f")) == 0
        for free_before in (False, True):
            assert other.set("f", WRITE, 0, 10) == 0
            with Process() as one, Process() as two:
                for process in (one, two):
                    assert process.do("open", "f", str(a / "f")) == 0
                polls = counters(a)["lock_polls"]
                one.wait_for("f", WRITE, 0, 20)
                two.wait_for("f", WRITE, 5, 20)
                until(lambda: counters(a)["lock_polls"] >= polls + 8, "long pauses")
                if free_before:
                    assert other.set("f", FREE) == 0
                one.child.kill()
                one.child.wait(LIMIT)
                if not free_before:
                    assert other.set("f", FREE) == 0
                gets(two)
            all_free(server, (a, b))


WORKER = r"""
import errno, fcntl, os, random, struct, sys, threading
path, seed, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def work(number):
    # One lock at a time, so that nobody waits for a circle; the threads of a process share an owner or not.
    chance = random.Random(seed * 100 + number)
    own = os.open(path, os.O_RDWR) if number % 2 else shared
    for _ in range(rounds):
        start = chance.randrange(20)
        length = chance.randrange(0, 8)
        kind = chance.choice((fcntl.F_RDLCK, fcntl.F_WRLCK))
        how = chance.choice(('posix', 'ofd', 'flock')) if number % 2 else 'posix'
        try:
            if how == 'flock':
                fcntl.flock(own, fcntl.LOCK_EX if kind == fcntl.F_WRLCK else fcntl.LOCK_SH)
                fcntl.flock(own, fcntl.LOCK_UN)
            else:
                for kind in (kind, fcntl.F_UNLCK):
                    fcntl.fcntl(own, 38 if how == 'ofd' else fcntl.F_SETLKW, struct.pack('hhqqi', kind, 0, start, length, 0))
        except OSError as error:
            if error.errno != errno.EDEADLK:
                raise
    # No file is closed: that would release the locks of the other threads.
shared = os.open(path, os.O_RDWR)
threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


@pytest.mark.parametrize("way", WAYS)
def test_many_that_lock_and_are_killed_at_random_leave_all_locks_free(way):
    chance = random.Random(int(os.environ.get("NFSRDMA_LOCK_SEED", "1")))
    rounds = os.environ.get("NFSRDMA_LOCK_ROUNDS", "6")
    with WAYS[way]() as server:
        points = server.mounts()
        (server.export / "f").write_bytes(b"0" * 100)
        running = [
            subprocess.Popen([sys.executable, "-c", WORKER, points[n % 2] / "f", str(n), rounds]) for n in range(6)
        ]
        try:
            for child in chance.sample(running, 2):
                granted = sum(counters(point)["locks_granted"] for point in points)
                until(lambda: sum(counters(point)["locks_granted"] for point in points) > granted + 5, "some locks")
                child.kill()
                child.wait(LIMIT)
            for child in running:
                assert child.wait(4 * LIMIT) in (0, -signal.SIGKILL)
        finally:
            for child in running:
                child.kill()
                child.wait()
        all_free(server, points)


NOLCK = -errno.ENOLCK
UNDEFINED = (10, 77, 0xFFFFFFFF)
# What LOCK without waiting says for each status. BLOCKED (3) and DENIED (1) are reasons to wait, 4 is a restart.
REFUSALS = {
    1: AGAIN, 2: NOLCK, 3: AGAIN, 5: -errno.EDEADLK, 6: -errno.EROFS, 7: -errno.ESTALE, 8: -errno.EOVERFLOW, 9: NOLCK,
    **dict.fromkeys(UNDEFINED, NOLCK),
}  # fmt: skip


def test_each_status_of_a_lock_manager_ends_a_request():
    with LockServer() as server, Process() as one:
        a, log = server.mnt, server.base / "log"
        expect(server.mount(server.lock_options, "--log", log), 0)
        (server.export / "f").write_bytes(b"0" * 100)
        assert one.do("open", "f", str(a / "f")) == 0

        def answers(procedure, status):
            server.control(f"nlm-status {procedure} {status}")

        def gives(expected, what, command, kind, *range):
            one.wait_for("f", kind, *range, command=command)
            until(lambda: not waits(one, 0), f"the end of {what}")
            result = one.receive()
            assert (result if isinstance(result, int) else 0) == expected, what

        for status, expected in REFUSALS.items():
            answers("LOCK", status)
            gives(expected, f"LOCK, {status}", fcntl.F_SETLK, WRITE)
            if status not in (1, 3):
                gives(expected, f"LOCK that waits, {status}", fcntl.F_SETLKW, WRITE)
        answers("LOCK", "off")
        for status, expected in REFUSALS.items():
            answers("TEST", status)
            gives(0 if status == 1 else expected, f"TEST, {status}", fcntl.F_GETLK, WRITE)
        answers("TEST", "off")
        # A refused CANCEL keeps nobody from ending.
        for status in (0, *REFUSALS):
            answers("CANCEL", status)
            expect_free(server)
            server.control(f"lock {server.export / 'f'} exclusive")
            with Process() as waiter:
                assert waiter.do("open", "f", str(a / "f")) == 0
                waiter.wait_for("f", WRITE)
                until(lambda: counters(a)["lock_waiters"] == 1, "a waiter")
                waiter.child.kill()
                waiter.child.wait(LIMIT)
            until(lambda: counters(a)["lock_waiters"] == 0, f"the end of a waiter after CANCEL, {status}")
            server.control(f"unlock {server.export / 'f'}")
        answers("CANCEL", "off")
        # The server keeps what it refuses to unlock.
        for at, status in enumerate(REFUSALS):
            assert one.set("f", WRITE, at, 1) == 0
            answers("UNLOCK", status)
            gives(NOLCK, f"UNLOCK, {status}", fcntl.F_SETLK, FREE, at, 1)
            answers("UNLOCK", "off")
            assert counters(a)["locks_held"] == 0
        # A close does not fail; the log has it.
        assert one.set("f", WRITE, 90, 1) == 0
        answers("UNLOCK", 1)
        assert one.do("close", "f") == 0
        answers("UNLOCK", "off")
        assert log.read_text().count("refused to unlock /f (file ") == 1, log.read_text()
        assert log.read_text().count("fails with ENOLCK") == 1, log.read_text()


def expect_free(server):
    until(lambda: not at_server(server), "the end of all locks at the server")
