"""Locks at the server are kept when the program that serves the mount is killed, and another one goes on with it."""

import contextlib
import fcntl
import os
import signal
import subprocess

import pytest

from program.lock_support import *  # noqa: F403
from program.outlives_support import on_kernels
from program.outlives_support import kill_at as kill
from program.support import *  # noqa: F403

NOWAIT = fcntl.LOCK_EX | fcntl.LOCK_NB


@contextlib.contextmanager
def two_mounts(*words, options="", outlives="restart=files"):
    """A server with a file of 100 bytes, one mount that outlives its program, and one that does not."""
    with LockServer(*words, options=options) as server:
        points = []
        for name, more in (("a", outlives), ("b", "")):
            point = server.base / name
            point.mkdir()
            own = server.lock_options
            if "local_lock=all" in more:
                own = own.removeprefix("lock,")
            words = ("--log", server.base / "log") if more else ()
            result = server.mount(",".join(filter(None, (own, more))), *words, at=point)
            expect(result, 0)
            points.append(point)
        (server.export / "f").write_bytes(b"x" * 100)
        yield server, *points


def held(point):
    return counters(point)["locks_held"]


def opened(process, point, *names):
    for name in names:
        assert process.do("open", name, str(point / "f")) == 0


def waits_for(one, a, rival, b):
    """`one` waits at `a` for the lock that `rival` has at `b`."""
    opened(one, a, "f")
    opened(rival, b, "f")
    assert rival.set("f", WRITE) == 0
    one.wait_for("f", WRITE)
    until(lambda: counters(a)["lock_polls"] > 0, "a waiter")


def test_locks_are_held_and_released_as_if_nothing_had_happened():
    with two_mounts() as (server, a, b), Process() as one, Process() as two, Process() as rival:
        opened(one, a, "f", "g", "h")
        opened(two, a, "f")
        opened(rival, b, "f")
        # Two owners of POSIX locks, whose ranges are split, and an open file with a lock of its own.
        assert one.set("f", WRITE, 0, 30) == 0
        assert one.set("g", READ, 10, 10) == 0
        assert two.set("f", READ, 15, 10) == AGAIN
        assert two.set("f", READ, 10, 5) == 0
        assert one.set("h", WRITE, 50, 10, F_OFD_SETLK) == 0
        before = sorted(server.control("locks").split())
        for _ in range(2):
            kill(a)
            assert sorted(server.control("locks").split()) == before, "the same owners, and the same ranges"
            assert held(a) == 5
            assert rival.set("f", READ, 0, 5) == AGAIN
            assert rival.set("f", READ, 12, 5) == 0
            assert rival.set("f", FREE) == 0
            assert rival.set("f", WRITE, 12, 1) == AGAIN
            assert rival.set("f", WRITE, 50, 1) == AGAIN
            # Within the mount, too, where the process is told.
            assert two.set("f", WRITE, 0, 1) == AGAIN
            assert two.get("f", WRITE, 0, 1)[3] == one.child.pid
            assert two.get("f", WRITE, 50, 1)[:3] == (WRITE, 50, 10)
        # By the close of another descriptor the first owner has no POSIX locks left.
        assert one.do("close", "g") == 0
        assert rival.set("f", WRITE, 0, 10) == 0
        assert rival.set("f", WRITE, 10, 5) == AGAIN
        assert two.set("f", FREE, 10, 2) == 0
        assert rival.set("f", WRITE, 10, 2) == 0
        assert rival.set("f", WRITE, 12, 1) == AGAIN
        two.child.kill()
        until(lambda: rival.set("f", WRITE, 12, 3) == 0, "the end of a killed process's locks")
        assert rival.set("f", WRITE, 50, 1) == AGAIN
        assert one.do("close", "h") == 0
        until(lambda: rival.set("f", WRITE, 50, 10) == 0, "the end of a closed file's lock")
        until(lambda: held(a) == 0, "no lock")


def test_flock_is_held_until_the_last_descriptor_is_closed():
    with two_mounts() as (server, a, b), Process() as rival:
        opened(rival, b, "f")
        file = os.open(a / "f", os.O_RDWR)
        fcntl.flock(file, fcntl.LOCK_SH)
        kill(a)
        assert rival.flock("f", NOWAIT) == AGAIN
        assert rival.flock("f", fcntl.LOCK_SH | fcntl.LOCK_NB) == 0
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, NOWAIT)
        assert rival.flock("f", fcntl.LOCK_UN) == 0
        fcntl.flock(file, NOWAIT)
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[file]) as child:
            os.close(file)
            kill(a)
            assert rival.flock("f", NOWAIT) == AGAIN
            child.stdin.close()
        until(lambda: rival.flock("f", NOWAIT) == 0, "the end of the lock")


@pytest.mark.parametrize("style", ["never", "callback", "takes"])
@on_kernels
def test_a_program_that_waits_gets_the_lock_once_and_later(style):
    with two_mounts("--lock-callback", style) as (server, a, b), Process() as one, Process() as rival:
        opened(one, a, "f")
        opened(rival, b, "f")
        assert rival.set("f", WRITE, 0, 10) == 0
        one.wait_for("f", WRITE, 0, 10)
        until(lambda: counters(a)["lock_polls"] > 0, "a waiter")
        kill(a)
        assert waits(one)
        until(lambda: counters(a)["lock_waiters"] == 1, "the waiter again")
        assert rival.set("f", FREE, 0, 10) == 0
        assert one.got() == 0
        assert rival.set("f", WRITE, 0, 10) == AGAIN
        kill(a)
        assert rival.set("f", WRITE, 0, 10) == AGAIN
        assert one.set("f", FREE, 0, 10) == 0
        assert rival.set("f", WRITE, 0, 10) == 0, "it was granted once"


@on_kernels
def test_a_waiter_that_is_interrupted_after_the_restart_leaves_nothing():
    with two_mounts() as (server, a, b), Process() as one, Process() as rival:
        waits_for(one, a, rival, b)
        kill(a)
        until(lambda: counters(a)["lock_waiters"] == 1, "the waiter again")
        os.kill(one.child.pid, signal.SIGUSR1)
        assert one.got() == -errno.EINTR
        assert rival.set("f", FREE) == 0
        # The server may have granted it before it was given up.
        until(lambda: rival.set("f", WRITE) == 0, "the lock")
        until(lambda: counters(a)["lock_waiters"] == 0, "no waiter")


@on_kernels
def test_a_waiter_that_is_killed_while_nobody_serves_the_mount_leaves_nothing():
    with two_mounts() as (server, a, b), Process() as one, Process() as rival:
        waits_for(one, a, rival, b)
        serving = pid_of(a)
        os.kill(serving, signal.SIGKILL)
        one.child.kill()
        assert one.child.wait(LIMIT) == -signal.SIGKILL
        until(lambda: pid_of(a) != serving, "a successor")
        assert rival.set("f", FREE) == 0
        until(lambda: rival.set("f", WRITE) == 0, "the lock")
        until(lambda: counters(a)["lock_waiters"] == held(a) == 0, "no lock and no waiter")


def test_kept_locks_are_claimed_when_the_server_restarts():
    with two_mounts("--grace", "2s") as (server, a, b), Process() as one, Process() as rival:
        opened(one, a, "f")
        opened(rival, b, "f")
        until(lambda: one.set("f", WRITE, 0, 10) == 0, "the end of the grace period")
        kill(a)
        server.stop()
        server.start()
        until(lambda: counters(a)["locks_reclaimed"] >= 1, "a claim")
        assert rival.set("f", READ, 5, 1) == AGAIN
        # The server restarts while nobody serves the mount, too.
        server.stop()
        serving = pid_of(a)
        os.kill(serving, signal.SIGKILL)
        until(lambda: pid_of(a) != serving, "a successor")
        server.start()
        until(lambda: counters(a)["locks_reclaimed"] >= 1, "a claim")
        assert rival.set("f", READ, 5, 1) == AGAIN
        assert one.set("f", FREE, 0, 10) == 0
        assert rival.set("f", READ, 5, 1) == 0


def test_other_mounts_of_the_machine_leave_kept_locks_alone():
    with two_mounts() as (server, a, b), Process() as one, Process() as rival:
        opened(one, a, "f")
        assert one.set("f", WRITE) == 0
        kill(a)
        # A new mount unlocks what killed ones have left.
        c = server.base / "c"
        c.mkdir()
        expect(server.mount(server.lock_options, at=c), 0)
        opened(rival, c, "f")
        assert rival.set("f", WRITE) == AGAIN
        # Now nobody goes on.
        killed = processes_of(a)
        kill_mount(a)
        # With its last descriptor the lock of its journal ends, which the next mount looks at.
        until(lambda: all(map(is_gone, killed)), "the end of its processes")
        run("umount", "-i", "-l", a)
        expect(nfsrdma("umount", c), 0) if not rival.do("close", "f") else None
        until(lambda: not servers_of(c), "the end of the mount")
        expect(server.mount(server.lock_options, at=c), 0)
        opened(rival, c, "f")
        until(lambda: rival.set("f", WRITE) == 0, "the end of the killed mount's lock")


@pytest.mark.parametrize("kinds", ["all", "flock", "posix"])
def test_locks_of_this_machine_are_kept_by_the_kernel(kinds):
    outlives = f"restart=files,local_lock={kinds}"
    with two_mounts(outlives=outlives) as (server, a, b), Process() as one, Process() as two, Process() as rival:
        opened(one, a, "f")
        opened(two, a, "f")
        opened(rival, b, "f")
        for kind in ("posix", "flock"):

            def lock(process, free=False, kind=kind):
                if kind == "posix":
                    return process.set("f", FREE if free else WRITE)
                return process.flock("f", fcntl.LOCK_UN if free else NOWAIT)

            assert lock(one) == 0
            kill(a)
            assert lock(two) == AGAIN
            local = kinds in ("all", kind)
            assert lock(rival) == (0 if local else AGAIN)
            assert lock(rival, free=True) == 0
            assert lock(one, free=True) == 0
            assert lock(two) == 0
            assert lock(two, free=True) == 0


def test_a_program_that_cannot_go_on_leaves_everything_to_the_next_one():
    """It may have few threads: fewer each time, until it has read what it goes on with, and fails then."""
    root()
    for most in range(16, 5, -1):
        with two_mounts(outlives="restart=files,nconnect=1") as (server, a, b), Process() as one, Process() as rival:
            opened(one, a, "f")
            opened(rival, b, "f")
            assert one.set("f", WRITE) == 0
            serving = pid_of(a)
            (holder,) = set(processes_of(a)) - {serving}
            log = server.base / "log"
            with limited_threads(holder, most) as release:
                os.kill(serving, signal.SIGKILL)
                until(lambda: "goes on" in log.read_text() or log.read_text().count("starting another") > 1, "an outcome")
                release()
            failed = "cannot serve the mount" in log.read_text()
            if "goes on" in log.read_text() and not failed:
                # It may have too few to work with: the next one has enough.
                (serving,) = set(processes_of(a)) - {holder}
                os.kill(serving, signal.SIGKILL)
            until(lambda: "goes on" in log.read_text().rpartition("starting another")[2], "a successor")
            assert rival.set("f", WRITE) == AGAIN
            assert held(a) == 1
            assert one.set("f", FREE) == 0
            if failed:
                return
    pytest.fail("no program failed as wanted")


