"""Signals to a process that takes or releases a lock, and the locks that it has afterwards."""

import contextlib
import fcntl
import os
import signal

from program.lock_support import *  # noqa: F403
from program.support import *  # noqa: F403

SIZE = 4 << 20


@contextlib.contextmanager
def held(server, procedure):
    """The server holds the calls of a procedure back until the end of the block."""
    server.control(f"hold {procedure} 99")
    yield
    server.control("release")


def until_held(server):
    server.control(f"wait-held 1 {LIMIT * 1000}")


def test_a_signal_after_the_grant_takes_no_lock_away():
    """The caller learns of the lock after READs of others are answered, so that the kernel can drop its pages. A
    signal comes in between."""
    for command in (fcntl.F_SETLKW, F_OFD_SETLKW):
        with LockServer() as server, Process() as one, Process() as reader, Process() as other:
            a, b = server.opened(one, other, size=SIZE)
            assert one.set("f", READ, 0, 100, command) == 0
            assert reader.do("open", "f", str(a / "f")) == 0
            with held(server, "READ"):
                reader.send("read", "f", SIZE - 1, 1)
                until_held(server)
                one.send("once", "fcntl", "f", command, WRITE, 0, 100)
                until(lambda: counters(a)["locks_granted"] == 2, "the grant")
                os.kill(one.child.pid, signal.SIGALRM)
                assert waits(one)
            result = one.got()
            assert other.set("f", WRITE, 0, 1) == AGAIN, f"{result}, and not even the lock from before is held"
            assert result == 0
            assert other.set("f", READ, 0, 1) == AGAIN
            assert reader.receive() == "x"
            assert one.set("f", FREE, 0, 100, command) == 0
            assert other.set("f", WRITE, 0, 100) == 0


UNLOCKS = [
    (("flock", "f", fcntl.LOCK_EX), ("flock", "f", fcntl.LOCK_UN)),
    (("fcntl", "f", fcntl.F_SETLKW, WRITE, 0, 100), ("fcntl", "f", fcntl.F_SETLKW, FREE, 0, 100)),
    (("fcntl", "f", F_OFD_SETLKW, WRITE, 0, 100), ("fcntl", "f", F_OFD_SETLKW, FREE, 0, 100)),
]


def test_an_unlock_that_waits_for_data_is_not_interrupted():
    """The kernel marks an unlock, like a lock, as a call that waits. Signals must not interrupt it nevertheless."""
    for lock, unlock in UNLOCKS:
        with LockServer() as server, Process() as one, Process() as other:
            a, b = server.opened(one, other)
            assert one.do("once", *lock) == 0
            assert one.do("write", "f", 0, "y" * (1 << 20)) == 1 << 20
            with held(server, "COMMIT"):
                one.send("once", *unlock)
                until_held(server)
                os.kill(one.child.pid, signal.SIGALRM)
                assert waits(one)
            assert one.got() == 0, unlock
            assert other.do("once", *lock) == 0
            assert other.do("read", "f", (1 << 20) - 1, 1) == "y"


def test_an_unlock_whose_caller_is_killed_is_done_all_the_same():
    """By an open file that another process shares, so no close ends the lock."""
    for lock, unlock in (UNLOCKS[0], UNLOCKS[2]):
        with LockServer() as server, Process() as other:
            a, b = server.mounts()
            (server.export / "f").write_bytes(b"x" * 100)
            assert other.do("open", "f", str(b / "f")) == 0
            with open(a / "f", "r+b", buffering=0) as file, Process(file.fileno()) as one:
                assert one.do("open", "f", file.fileno()) == 0
                assert one.do("once", *lock) == 0
                assert one.do("write", "f", 0, "y" * (1 << 20)) == 1 << 20
                with held(server, "COMMIT"):
                    one.send("once", *unlock)
                    until_held(server)
                    one.child.kill()
                    one.child.wait(LIMIT)
                attempt = ("flock", "f", fcntl.LOCK_EX | fcntl.LOCK_NB)
                if lock[0] == "fcntl":
                    attempt = ("fcntl", "f", F_OFD_SETLK, WRITE, 0, 100)
                until(lambda: other.do("once", *attempt) == 0, f"the end of the lock: {unlock}")
                assert other.do("read", "f", (1 << 20) - 1, 1) == "y", "written before the lock was given back"
