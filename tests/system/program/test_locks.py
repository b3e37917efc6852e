"""Locks that go to the server: between two mounts of one export, over a restart of the server, and with a lock
manager that is silent."""

import contextlib
import errno
import fcntl
import json
import mmap
import os
import random
import signal
import socket
import sqlite3
import struct
import subprocess
import sys

from program.effects import effect
from program.lock_support import *  # noqa: F403
import pytest

from program.support import *  # noqa: F403
from program.wire import Datagrams, Relay

def test_locks_of_two_mounts_exclude_each_other():
    with LockServer() as server, Process() as one, Process() as two:
        a, b = server.mounts()
        (server.export / "f").write_bytes(b"x" * 100)
        for process, point in ((one, a), (two, b)):
            assert process.do("open", "f", str(point / "f")) == 0
            assert process.do("open", "g", str(point / "f")) == 0
        for ofd in (False, True):
            set_, get = (F_OFD_SETLK, F_OFD_GETLK) if ofd else (fcntl.F_SETLK, fcntl.F_GETLK)
            # Ranges, and ranges to the end of the file.
            assert one.set("f", WRITE, 10, 10, set_) == 0
            assert two.set("f", READ, 15, 1, set_) == AGAIN
            assert two.set("f", READ, 20, 0, set_) == 0
            assert two.set("f", READ, 0, 10, set_) == 0
            assert one.set("f", WRITE, 1 << 40, 0, set_) == AGAIN
            assert one.get("f", WRITE, 30, 5, get)[:3] == (READ, 20, 0)
            assert two.get("f", READ, 0, 0, get)[:3] == (WRITE, 10, 10)
            assert two.get("f", READ, 20, 0, get)[0] == FREE
            assert two.set("f", FREE, 0, 0, set_) == 0
            # A lock that is split, and merged again.
            assert one.set("f", FREE, 13, 2, set_) == 0
            assert two.set("f", WRITE, 13, 2, set_) == 0
            assert two.set("f", WRITE, 12, 1, set_) == AGAIN
            assert two.set("f", WRITE, 15, 1, set_) == AGAIN
            assert two.set("f", FREE, 0, 0, set_) == 0
            # Upgrade and downgrade.
            assert one.set("f", READ, 0, 0, set_) == 0
            assert two.set("f", READ, 0, 0, set_) == 0
            assert one.set("f", WRITE, 0, 0, set_) == AGAIN
            assert two.set("f", FREE, 0, 0, set_) == 0
            assert one.set("f", WRITE, 0, 0, set_) == 0
            assert two.set("f", READ, 0, 0, set_) == AGAIN
            assert one.set("f", READ, 0, 0, set_) == 0
            assert two.set("f", READ, 0, 0, set_) == 0
            # A close releases a process's own locks, by any descriptor of the file; locks of an open file stay.
            assert two.set("f", FREE, 0, 0, set_) == 0
            assert one.do("close", "g") == 0
            assert two.set("f", WRITE, 0, 0, set_) == (AGAIN if ofd else 0)
            assert two.set("f", FREE, 0, 0, set_) == 0
            assert one.do("open", "g", str(a / "f")) == 0
            assert one.do("close", "f") == 0
            until(lambda: two.set("f", WRITE, 0, 0, set_) == 0, "the end of a closed file's locks")
            assert two.set("f", FREE, 0, 0, set_) == 0
            assert one.do("open", "f", str(a / "f")) == 0
        # flock(2): whole files, and conversions.
        assert one.flock("f", fcntl.LOCK_SH) == 0
        assert two.flock("f", fcntl.LOCK_SH | fcntl.LOCK_NB) == 0
        assert two.flock("f", fcntl.LOCK_EX | fcntl.LOCK_NB) == AGAIN
        assert two.flock("f", fcntl.LOCK_UN) == 0
        assert one.flock("f", fcntl.LOCK_EX | fcntl.LOCK_NB) == 0
        assert two.flock("f", fcntl.LOCK_SH | fcntl.LOCK_NB) == AGAIN
        assert one.flock("g", fcntl.LOCK_SH | fcntl.LOCK_NB) == AGAIN, "another open file of the same process"
        assert one.do("close", "f") == 0
        until(lambda: two.flock("f", fcntl.LOCK_EX | fcntl.LOCK_NB) == 0, "the end of a closed file's flock")
        assert two.flock("f", fcntl.LOCK_UN) == 0
        # The file is opened for reading only, and exclusive locks need one that is open for writing.
        assert one.do("open", "r", str(a / "f"), "rb") == 0
        assert one.flock("r", fcntl.LOCK_SH | fcntl.LOCK_NB) == 0
        assert one.do("close", "r") == 0
        assert one.do("open", "r", str(a / "f"), "rb") == 0
        assert one.set("r", READ) == 0
        assert two.set("f", WRITE) == AGAIN
        assert one.do("close", "r") == 0
        assert two.set("f", WRITE) == 0, "closed, though it was open for reading only"
        assert two.set("f", FREE) == 0
        for point in (a, b):
            assert counters(point)["locks_held"] == 0
        assert "held:" not in server.control("locks"), server.control("locks")


def test_one_mounts_locks_are_told_by_process_and_deadlocks_are_refused():
    with LockServer() as server, Process() as one, Process() as two:
        (a,) = server.opened(one, two, mounts=1)
        assert one.set("f", WRITE, 0, 10) == 0
        assert two.set("f", WRITE, 10, 10) == 0
        assert two.get("f", READ, 0, 0) == (WRITE, 0, 10, one.child.pid)
        one.wait_for("f", WRITE, 10, 10)
        until(lambda: counters(a)["lock_waiters"] == 1, "a waiter")
        assert two.set("f", WRITE, 0, 10, fcntl.F_SETLKW) == -errno.EDEADLK
        assert waits(one)
        assert two.set("f", FREE, 0, 0) == 0
        assert one.got() == 0
        assert counters(a)["lock_deadlocks"] == 1


def test_waiters_get_the_lock_when_its_holder_lets_go_or_is_killed():
    styles = ("callback", "callback-sync", "never", "takes")
    for style in styles:
        with LockServer("--lock-callback", style) as server, Process() as two:
            a, b = server.mounts()
            (server.export / "f").write_bytes(b"x" * 100)
            two.do("open", "f", str(b / "f"))
            for how in ("unlock", "close", "kill"):
                with Process() as one:
                    one.do("open", "f", str(a / "f"))
                    assert one.set("f", WRITE) == 0
                    two.wait_for("f", WRITE)
                    assert waits(two), (style, how)
                    if how == "unlock":
                        assert one.set("f", FREE) == 0
                    elif how == "close":
                        assert one.do("close", "f") == 0
                    else:
                        one.child.kill()
                    assert two.got() == 0, (style, how)
                    assert two.set("f", FREE) == 0


def test_a_waiter_that_is_killed_or_interrupted_leaves_no_lock():
    for style in ("callback", "never", "takes"):
        with LockServer("--lock-callback", style) as server, Process() as one:
            a, b = server.opened(one)
            for how in (signal.SIGKILL, signal.SIGUSR1):
                # The locks of a process that has ended may be released a moment later.
                until(lambda: one.set("f", WRITE, 0, 50) == 0, "the end of the locks of the turn before")
                with Process() as two, Process() as three:
                    two.do("open", "f", str(b / "f"))
                    three.do("open", "f", str(b / "f"))
                    # The locks that it held are unchanged.
                    until(lambda: two.set("f", READ, 50, 50) == 0, "a lock beside the other")
                    two.wait_for("f", WRITE, 0, 100)
                    until(lambda: counters(b)["lock_waiters"] == 1, "a waiter")
                    os.kill(two.child.pid, how)
                    if how == signal.SIGKILL:
                        two.child.wait(LIMIT)
                        until(lambda: three.set("f", WRITE, 50, 50) == 0, "the end of the killed one's lock")
                        assert three.set("f", FREE) == 0, "unlocking"
                    else:
                        result = two.got()
                        assert result == -errno.EINTR, result
                        assert one.set("f", WRITE, 50, 50) == AGAIN, "the read lock is still there"
                        # If the server granted the waiter's lock meanwhile, the mount releases it by itself.
                        until(lambda: one.set("f", READ, 50, 50) == 0, "the lock that was waited for is given back")
                        assert one.set("f", FREE, 50, 50) == 0, "unlocking a part"
                    assert one.set("f", FREE) == 0, "unlocking all"
                    until(lambda: three.set("f", WRITE, 0, 50) == 0, "a free range")


def test_waiters_of_one_mount_are_served_in_order():
    with LockServer() as server, Process() as holder:
        (a,) = server.opened(holder, mounts=1, size=1)
        assert holder.set("f", WRITE) == 0
        waiters = [Process() for _ in range(8)]
        try:
            for number, waiter in enumerate(waiters):
                waiter.do("open", "f", str(a / "f"))
                waiter.wait_for("f", WRITE)
                until(lambda: counters(a)["lock_waiters"] == number + 1, "one more waiter")
            calls = counters(a)["lock_calls"]
            assert calls <= 2, f"{calls} LOCKs: those who wait behind a lock of this mount ask nobody"
            assert holder.set("f", FREE) == 0
            for number, waiter in enumerate(waiters):
                assert waiter.got() == 0
                assert all(waits(other, 0.02) for other in waiters[number + 1 :])
                assert waiter.set("f", FREE) == 0
        finally:
            for waiter in waiters:
                waiter.__exit__()


def test_random_locks_of_eight_processes_on_two_mounts_are_the_models():
    seed = int(os.environ.get("NFSRDMA_LOCK_SEED", "1"))
    total = int(os.environ.get("NFSRDMA_LOCK_CALLS", "10000"))
    chance, size = random.Random(seed), 24
    with LockServer() as server:
        points = server.mounts()
        (server.export / "f").write_bytes(b"x" * size)
        processes = [Process() for _ in range(8)]
        try:
            for number, process in enumerate(processes):
                process.do("open", "f", str(points[number % 2] / "f"))
            held = [[None] * size for _ in processes]
            for step in range(total):
                number = chance.randrange(8)
                start = chance.randrange(size)
                end = chance.randrange(start + 1, size + 1)
                length = 0 if end == size else end - start
                kind = chance.choice((READ, WRITE, FREE, FREE))
                others = [of for at, of in enumerate(held) if at != number]
                taken = [
                    at for at in range(start, end)
                    if any(of[at] == WRITE or (of[at] == READ and kind == WRITE) for of in others)
                ]  # fmt: skip
                where = f"seed {seed}, step {step}: process {number}, {kind} {start}+{length}"
                if kind != FREE and chance.random() < 0.2:
                    found = processes[number].get("f", kind, start, length)
                    assert (found[0] == FREE) == (not taken), (where, found, taken)
                    continue
                result = processes[number].set("f", kind, start, length)
                if kind == FREE or not taken:
                    assert result == 0, (where, result)
                    held[number][start:end] = [None if kind == FREE else kind] * (end - start)
                else:
                    assert result == AGAIN, (where, result, taken)
                if chance.random() < 0.01:
                    processes[number].do("close", "f")
                    processes[number].do("open", "f", str(points[number % 2] / "f"))
                    held[number] = [None] * size
        finally:
            for process in processes:
                process.__exit__()
        for point in points:
            until(lambda: counters(point)["locks_held"] == 0, "the end of all locks")


def test_a_deadlock_of_two_mounts_is_refused_as_the_server_finds_it():
    with LockServer() as server, Process() as one, Process() as two:
        a, b = server.mounts()
        for name in "fg":
            (server.export / name).write_bytes(b"x")
        for process, point in ((one, a), (two, b)):
            for name in "fg":
                process.do("open", name, str(point / name))
        assert one.set("f", WRITE) == two.set("g", WRITE) == 0
        one.wait_for("g", WRITE)
        until(lambda: counters(a)["lock_polls"] >= 1, "a waiter at the server")
        assert two.set("f", WRITE, command=fcntl.F_SETLKW) == -errno.EDEADLK
        assert waits(one)
        assert two.set("g", FREE) == 0
        assert one.got() == 0


@contextlib.contextmanager
def talking(script, *words):
    """A Python program that reports each step, and continues on command."""
    pipe = subprocess.PIPE
    with running(sys.executable, "-c", script, *words, stdin=pipe, stdout=pipe, text=True, bufsize=1) as one:
        yield one


MAPPED = r"""
import fcntl, mmap, sys
with open(sys.argv[1], 'r+b') as file:
    map = mmap.mmap(file.fileno(), 3 * 4096)
    for turn in range(5):
        fcntl.lockf(file, fcntl.LOCK_EX)
        map[0:4] = b'%04d' % turn
        map[8192:8196] = b'%04d' % turn
        fcntl.lockf(file, fcntl.LOCK_UN)
        print('unlocked', flush=True)
        sys.stdin.readline()
    fcntl.flock(file, fcntl.LOCK_EX)
    map[4096:4100] = b'last'
    fcntl.flock(file, fcntl.LOCK_UN)
    print('unlocked', flush=True)
    sys.stdin.readline()
"""


def test_what_is_written_by_a_mapping_is_there_before_an_unlock():
    with LockServer() as server, Process() as two:
        a, b = server.mounts()
        (server.export / "f").write_bytes(b"x" * 3 * 4096)
        two.do("open", "f", str(b / "f"))
        with talking(MAPPED, a / "f") as one:
            for turn in range(6):
                assert one.stdout.readline() == "unlocked\n"
                assert two.set("f", READ) == 0
                found = [two.do("read", "f", at, 4) for at in (0, 4096, 8192)]
                text = f"{min(turn, 4):04}"
                assert found == [text, "last" if turn == 5 else "xxxx", text], (turn, found)
                assert two.set("f", FREE) == 0
                one.stdin.write("\n")


DOWNGRADED = r"""
import fcntl, mmap, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
memory = mmap.mmap(file, 4096)
lock = {'posix': fcntl.lockf, 'flock': fcntl.flock}[sys.argv[2]]
lock(file, fcntl.LOCK_EX)
memory[:4] = b'new!'
lock(file, fcntl.LOCK_SH)
print('shared', flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("how", ["posix", "flock"])
def test_what_is_written_by_a_mapping_is_there_when_a_lock_becomes_shared(how):
    with LockServer() as server, Process() as two:
        a, b = server.mounts()
        (server.export / "f").write_bytes(b"x" * 4096)
        two.do("open", "f", str(b / "f"))
        with talking(DOWNGRADED, a / "f", how) as one:
            assert one.stdout.readline() == "shared\n"
            assert (two.set("f", READ) if how == "posix" else two.flock("f", fcntl.LOCK_SH)) == 0
            assert two.do("read", "f", 0, 4) == "new!"


def test_who_takes_a_lock_sees_the_names_beside_the_file():
    """SQLite needs this: whether a journal exists says whether the database is consistent."""
    with LockServer() as server, Process() as one, Process() as two:
        a, b = server.mounts()
        (server.export / "db").write_bytes(b"x" * 100)
        one.do("open", "f", str(a / "db"))
        two.do("open", "f", str(b / "db"))
        for turn in range(3):
            for there in (True, False):
                # This caches the name, which would be valid for half a minute.
                assert (b / "db-journal").exists() != there
                assert one.set("f", WRITE) == 0
                if there:
                    (a / "db-journal").write_bytes(b"%d" % turn)
                else:
                    (a / "db-journal").unlink()
                assert one.set("f", FREE) == 0
                assert two.set("f", READ) == 0
                assert (b / "db-journal").exists() == there, (turn, there)
                if there:
                    assert (b / "db-journal").read_bytes() == b"%d" % turn
                assert two.set("f", FREE) == 0


def test_the_server_is_not_asked_for_each_name_on_a_path_beside_a_lock():
    with LockServer() as server, Process() as one:
        below = server.export / "d" / "below"
        below.mkdir(parents=True)
        (below / "f").touch()
        (server.export / "d" / "lock").touch()
        (a,) = server.mounts(1)
        one.do("open", "f", str(a / "d" / "lock"))
        assert one.set("f", WRITE) == one.set("f", FREE) == 0
        before = lookups(a)
        for _ in range(1000):
            os.stat(a / "d" / "below" / "f")
            os.stat(a / "d" / "lock")
        assert lookups(a) - before < 100


def lookups(point):
    return sum(entry["calls"] for entry in document_of(point)["procedures"] if entry["name"] == "LOOKUP")


def test_four_writers_of_one_sqlite_database_on_two_mounts_lose_nothing():
    rounds = int(os.environ.get("NFSRDMA_LOCK_ROUNDS", "10"))
    with LockServer() as server:
        points = server.mounts()
        db = sqlite3.connect(points[0] / "db")
        db.executescript("CREATE TABLE entries (writer, turn, what); CREATE TABLE total (n); INSERT INTO total VALUES (0);")
        db.close()
        with contextlib.ExitStack() as stack:
            writers = [stack.enter_context(Process()) for _ in range(4)]
            for number, process in enumerate(writers):
                process.send("insert", str(points[number % 2] / "db"), number, rounds)
            assert [waits(process, 10 * LIMIT) or process.receive() for process in writers] == [0] * 4
            rows = [[writer, turn] for writer in range(4) for turn in range(rounds)]
            for process, point in zip(writers, points):
                assert process.do("entries", str(point / "db")) == [4 * rounds, rows, "ok"]


DYING_WRITER = r"""
import os, signal, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute('PRAGMA cache_size = 5')
db.execute('BEGIN IMMEDIATE')
db.execute('UPDATE entries SET n = n + 1')
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_reader_rolls_back_what_a_writer_on_another_mount_left_when_it_was_killed():
    with LockServer() as server:
        a, b = server.mounts()
        db = sqlite3.connect(a / "db", isolation_level=None)
        db.execute("CREATE TABLE entries (n, what)")
        db.execute("BEGIN")
        db.executemany("INSERT INTO entries VALUES (0, randomblob(3000))", [()] * 50)
        db.execute("COMMIT")
        db.close()
        for dies in (True, False):
            # A new connection each time, because the cache of SQLite itself is not the subject.
            reader = sqlite3.connect(b / "db", timeout=LIMIT)
            found = reader.execute("SELECT count(*), min(n), max(n) FROM entries").fetchone()
            assert found == (50, 0, 0), f"half a transaction: {found}"
            assert reader.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            reader.close()
            if dies:
                # By now the mount knows that there is no journal.
                assert not (b / "db-journal").exists()
                writer = subprocess.run([sys.executable, "-c", DYING_WRITER, a / "db"], timeout=LIMIT)
                assert writer.returncode == -signal.SIGKILL
                assert (server.export / "db-journal").exists(), "it died in the middle"


def test_locks_are_claimed_again_when_the_server_restarts():
    with LockServer("--grace", "4s") as server, Process() as one, Process() as two:
        a, b = server.opened(one, two)
        assert one.set("f", WRITE, 0, 10, fcntl.F_SETLKW) == 0
        assert one.set("f", READ, 20, 10) == 0
        assert two.set("f", READ, 20, 20) == 0
        server.control("restart")
        until(lambda: counters(a)["locks_reclaimed"] >= 2, "the locks of one mount")
        until(lambda: counters(b)["locks_reclaimed"] >= 1, "the locks of the other")
        # A new lock waits for the end of the grace period, and sees the locks from before.
        assert two.set("f", WRITE, 5, 1) == AGAIN
        assert one.set("f", WRITE, 20, 1) == AGAIN
        assert two.set("f", WRITE, 60, 1) == 0
        assert one.set("f", FREE) == 0
        assert two.set("f", WRITE, 0, 100) == 0
        assert counters(a)["locks_lost"] == counters(b)["locks_lost"] == 0


def test_a_restart_is_noticed_where_locks_go_over_udp():
    """No connection to the lock manager can end, and the holder makes no calls: the new connection of NFS shows it."""
    with LockServer("--grace", "8s") as server, Datagrams(server.mountport) as udp, Process() as one:
        expect(server.mount(f"lock,lockport={udp.port}"), 0)
        (server.export / "f").write_bytes(b"x" * 100)
        one.do("open", "f", str(server.mnt / "f"))
        assert one.set("f", WRITE, 0, 10) == 0
        assert udp.calls >= 2, "NULL and LOCK"
        refused = counters(server.mnt)["lock_grace_waits"]
        server.control("disconnect")
        until(lambda: counters(server.mnt)["lock_grace_waits"] > refused, "a claim of what the server has not forgotten")
        server.control("restart")
        # Twice, if each of two new connections counts as a sign.
        until(lambda: counters(server.mnt)["locks_reclaimed"] >= 1, "the lock")
        assert counters(server.mnt)["locks_lost"] == 0
        assert one.do("read", "f", 0, 1) == "x"


def test_a_lock_that_somebody_else_has_after_a_restart_is_told_to_its_holder():
    with LockServer() as server, Process() as one, Process() as other, Process() as stranger:
        a, b = server.opened(one)
        other.do("open", "f", str(a / "f"))
        stranger.do("open", "f", str(b / "f"))
        assert one.set("f", WRITE, 0, 10) == 0
        with asleep(*servers_of(a)):
            server.control("restart")
            assert stranger.set("f", WRITE, 5, 1, fcntl.F_SETLKW) == 0
        until(lambda: counters(a)["locks_lost"] == 1, "the loss")
        assert one.do("read", "f", 0, 1) == -errno.EIO
        assert one.do("write", "f", 0, "y") == -errno.EIO
        assert one.set("f", READ, 50, 1) == -errno.EIO
        # Other processes are not affected.
        assert stranger.set("f", FREE) == 0
        assert other.do("read", "f", 0, 1) == "x"
        assert other.set("f", WRITE, 0, 1) == 0
        assert other.set("f", FREE) == 0
        # After releasing its locks, it can begin again.
        assert one.set("f", FREE) == -errno.EIO
        assert one.do("read", "f", 0, 1) == "x"
        assert one.set("f", WRITE, 0, 10) == 0


def flush_fails(memory):
    memory[:4] = b"lost"
    try:
        memory.flush()
    except OSError as error:
        return error.errno == errno.EIO
    return False


def test_a_lost_lock_does_not_fail_what_others_write_by_a_mapping():
    """The kernel writes pages in the name of any open file that is mapped, also of one that has lost a lock."""
    with LockServer() as server, contextlib.ExitStack() as stack:
        a, b = server.mounts()
        (server.export / "f").write_bytes(b"x" * 2 * 4096)
        stranger = stack.enter_context(open(b / "f", "r+b", buffering=0))
        files = [stack.enter_context(open(a / "f", "r+b", buffering=0)) for _ in range(3)]
        # The kernel chooses the first or the last of them, so both have lost a lock.
        maps = [stack.enter_context(mmap.mmap(file.fileno(), 0)) for file in files]
        first, other, last = files
        for at, file in enumerate((first, last)):
            fcntl.fcntl(file, F_OFD_SETLK, struct.pack("hhqqi", WRITE, 0, at, 1, 0))
        with asleep(*servers_of(a)):
            server.control("restart")
            fcntl.lockf(stranger, fcntl.LOCK_EX)
        until(lambda: counters(a)["locks_lost"] == 2, "the loss")
        for file in (first, last):
            with pytest.raises(OSError) as error:
                os.pwrite(file.fileno(), b"lost", 0)
            assert error.value.errno == errno.EIO
        maps[1][:4] = b"kept"
        maps[1].flush()
        os.fsync(other.fileno())
        assert (server.export / "f").read_bytes()[:8] == b"keptxxxx"
        # After the close of its open file, there is no file left by which to write.
        maps[1].close()
        other.close()
        until(lambda: flush_fails(maps[0]), "an error")


def test_a_connection_that_is_lost_costs_no_lock_though_test_sees_no_shared_ones():
    with LockServer("--blind-test") as server, Process() as one, Process() as two:
        a, b = server.opened(one, two)
        assert one.set("f", READ, 0, 10) == one.set("f", WRITE, 20, 10) == two.set("f", READ, 40, 10) == 0
        for point in (a, b):
            assert counters(point)["lock_grace_waits"] == 0
        server.control("disconnect")
        # Outside a grace period, reclaims are refused.
        until(lambda: counters(a)["lock_grace_waits"] >= 2, "claims of one mount")
        until(lambda: counters(b)["lock_grace_waits"] >= 1, "a claim of the other")
        assert one.set("f", READ, 70, 1) == two.set("f", READ, 80, 1) == 0, "after the recovery"
        assert one.do("read", "f", 0, 1) == two.do("read", "f", 40, 1) == "x"
        assert two.set("f", WRITE, 0, 10) == two.set("f", READ, 20, 10) == one.set("f", WRITE, 40, 10) == AGAIN
        for point in (a, b):
            assert counters(point)["locks_lost"] == 0
        for process in (one, two):
            assert process.set("f", FREE) == 0
        # The mount has left no lock behind.
        assert two.set("f", WRITE) == two.set("f", FREE) == 0


@pytest.mark.parametrize("mounts", [1, 2])
def test_two_that_share_a_flock_and_want_it_alone_do_not_wait_for_each_other(mounts):
    for words in ((), ("--blind-test", "--no-deadlock-detection")):
        with LockServer(*words) as server, Process() as one, Process() as two:
            points = server.mounts(mounts) * (3 - mounts)
            (server.export / "f").write_bytes(b"x")
            for process, point in zip((one, two), points):
                process.do("open", "f", str(point / "f"))
                assert process.flock("f", fcntl.LOCK_SH) == 0
            for process in (one, two):
                process.send("flock", "f", fcntl.LOCK_EX)
                assert waits(process) or process is two, words
            until(lambda: not waits(one, 0.05) or not waits(two, 0.05), "one of the two")
            first, second = (two, one) if waits(one, 0.05) else (one, two)
            assert first.receive() is None
            assert waits(second), (words, "both")
            assert first.flock("f", fcntl.LOCK_UN) == 0
            assert second.receive() is None


def test_a_silent_server_of_locks_keeps_nobody_from_ending():
    with LockServer() as server, Process() as holder:
        (a,) = server.opened(holder, mounts=1)
        assert holder.set("f", WRITE, 0, 10) == 0
        server.control("nlm-silent on")
        with Process() as waiter, Process() as tester:
            for process in (waiter, tester):
                process.do("open", "f", str(a / "f"))
            waiter.wait_for("f", WRITE, 50, 10)
            tester.send("fcntl", fcntl.F_GETLK, "f", WRITE, 50, 10)
            assert waits(waiter) and waits(tester)
            for process in (waiter, tester, holder):
                process.child.kill()
                process.child.wait(LIMIT)
        unmount(a)


def test_a_mount_that_is_told_to_end_ends_though_the_server_of_locks_is_silent():
    for lazily in (False, True):
        with LockServer() as server, Process() as holder, Process() as waiter:
            (a,) = server.opened(holder, waiter, mounts=1)
            assert holder.set("f", WRITE, 0, 10) == 0
            server.control("nlm-silent on")
            waiter.wait_for("f", WRITE, 50, 10)
            until(lambda: counters(a)["lock_waiters"] == 1, "a waiter")
            (pid,) = servers_of(a)
            if lazily:
                expect(run("umount", "-l", a), 0)
            else:
                os.kill(pid, signal.SIGTERM)
            # Processes that use the mount end, whether a lock is released or not.
            for process in (waiter, holder):
                process.child.kill()
                process.child.wait(LIMIT)
            until(lambda: not servers_of(a), "the end of the serving process")
            assert not mounted(a)


def blocked_port():
    """A port whose connections nobody serves: the kernel accepts them, but nothing answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    return listener, listener.getsockname()[1]


def test_a_lock_port_that_never_answers_gives_no_locks_of_this_machine():
    with LockServer() as server, Process() as one:
        (server.export / "f").write_bytes(b"x")
        listener, port = blocked_port()
        with listener:
            # Each waits for ten seconds.
            (server.base / "other").mkdir()
            other = Call(lambda: server.mount(f"lock,lockport={port},retry=0", at=server.base / "other"))
            expect(server.mount(f"lockport={port}"), 0)
            expect(other.end(), 32, "takes no locks")
            assert "local_lock=none" in stats(server, "--json")
            one.do("open", "f", str(server.mnt / "f"))
            one.wait_for("f", WRITE)
            assert waits(one)
        # From now on, the server has this port over TCP.
        with Relay(server.mountport, port=port):
            assert one.got() == 0
            assert server.control("locks").count("held:") == 1


def test_ping_and_trace_show_the_server_of_locks():
    with LockServer() as server, Process() as one, Process() as two:
        said = nfsrdma("ping", server.spec, "-o", server.options(f"lockport={server.mountport}"))
        expect(said, 0, f"NLM version 4 over TCP, port {server.mountport}")
        with LockServer("--no-locks") as other:
            without = nfsrdma("ping", other.spec, "-o", other.options(f"lockport={other.mountport}"))
            expect(without, 0, "does not have NLM version 4")
        assert "locks " not in nfsrdma("ping", server.spec, "-o", server.options("nolock")).stdout
        a, b = server.opened(one, two)
        command = [BIN / "nfsrdma", "trace", "--json", "--procedure", "lock,UNLOCK", str(a)]
        with running(*command, stdout=subprocess.PIPE, text=True) as trace:
            until(lambda: "connected" in trace.stdout.readline(), "the beginning of the trace")
            assert two.set("f", WRITE, 50, 10) == 0
            assert one.set("f", WRITE, 10, 10) == 0
            assert one.set("f", READ, 50, 10) == AGAIN
            assert one.get("f", READ, 50, 10)[0] == WRITE
            assert one.set("f", FREE, 10, 10) == 0
            lines = []
            while len(lines) < 3:
                line = json.loads(trace.stdout.readline())
                if line["event"] != "connected":
                    lines.append(line)
        found = [
            (line["procedure"], line["reply"]["status"], line["arguments"]["offset"], line["arguments"]["length"])
            for line in lines
        ]
        assert found == [("LOCK", "GRANTED", 10, 10), ("LOCK", "DENIED", 50, 10), ("UNLOCK", "GRANTED", 10, 10)], found
        assert [line["arguments"].get("exclusive") for line in lines] == [True, False, None]
        assert len({line["arguments"]["handle"] for line in lines}) == 1, "one file"


def test_a_client_that_is_killed_leaves_locks_that_the_next_mount_unlocks():
    with LockServer() as server, Process() as one, Process() as two:
        a, b = server.mounts()
        for name in "fg":
            (server.export / name).write_bytes(b"x" * 100)
        one.do("open", "f", str(a / "f"))
        two.do("open", "f", str(b / "f"))
        two.do("open", "g", str(b / "g"))
        assert one.set("f", WRITE, 0, 50) == two.set("f", WRITE, 50, 50) == two.set("g", READ) == 0
        kill_mount(a)
        until(lambda: not servers_of(a), "the end of the process")
        assert two.set("f", WRITE, 0, 10) == AGAIN, "nobody has unlocked it"
        expect(run("umount", "-l", a), 0)
        expect(server.mount(server.lock_options, at=a), 0)
        assert two.set("f", WRITE, 0, 10) == 0
        with Process() as three:
            three.do("open", "f", str(a / "f"))
            assert three.set("f", READ, 60, 1) == AGAIN, "the other mount's locks are untouched"
            assert three.set("f", READ, 20, 1) == 0


def test_calls_that_are_run_and_not_answered_change_nothing():
    with LockServer() as server, Datagrams(server.mountport) as udp, Process() as one, Process() as two:
        server.opened(two, mounts=1)
        expect(server.mount(f"lock,lockport={udp.port}"), 0)
        assert one.do("open", "f", str(server.mnt / "f")) == 0
        for kind, others in ((WRITE, AGAIN), (FREE, 0)):
            udp.losing, calls = 1, udp.calls
            assert one.set("f", kind) == 0
            assert udp.losing == 0 and udp.calls >= calls + 2
            assert two.set("f", WRITE) == others


def test_without_a_server_of_locks_they_are_this_machines():
    with LockServer("--no-locks") as server, Process() as one, Process() as two:
        # With `lock` it is an error, and otherwise a line in the log.
        result = server.mount(f"lock,lockport={server.mountport},retry=0")
        expect(result, 32, "takes no locks")
        expect(server.mount(f"lockport={server.mountport}"), 0)
        (server.export / "f").write_bytes(b"x")
        one.do("open", "f", str(server.mnt / "f"))
        two.do("open", "f", str(server.mnt / "f"))
        assert one.set("f", WRITE) == 0
        assert two.set("f", WRITE) == AGAIN
        assert "local_lock=all" in stats(server, "--json")


@effect("lock", "lockport", "nolock", "local_lock")
def test_kinds_of_locks_stay_here_as_asked_for():
    asked = {"lock": "posix flock", "local_lock=none": "posix flock", "local_lock=flock": "posix", "local_lock=posix": "flock",
             "local_lock=all": "", "nolock": ""}  # fmt: skip
    for local, shared in asked.items():
        with LockServer() as server, Process() as one, Process() as two, Process() as beside:
            points = []
            for name in "ab":
                point = server.base / name
                point.mkdir()
                points.append(point)
                expect(server.mount(f"{local},lockport={server.mountport}", at=point), 0)
            (server.export / "f").write_bytes(b"x")
            for process, point in ((one, points[0]), (two, points[1]), (beside, points[0])):
                process.do("open", "f", str(point / "f"))
            assert one.set("f", WRITE) == 0 and beside.set("f", WRITE) == AGAIN
            assert two.set("f", WRITE) == (AGAIN if "posix" in shared else 0), local
            assert one.set("f", FREE) == two.set("f", FREE) == 0
            assert one.flock("f", fcntl.LOCK_EX) == 0 and beside.flock("f", fcntl.LOCK_EX | fcntl.LOCK_NB) == AGAIN
            assert two.flock("f", fcntl.LOCK_EX | fcntl.LOCK_NB) == (AGAIN if "flock" in shared else 0), local


FAULT = r"""
import mmap, sys
with open(sys.argv[1], 'r+b') as file:
    map = mmap.mmap(file.fileno(), 0)
    print('mapped', flush=True)
    sys.stdin.readline()
    print(map[len(map) - 1], flush=True)
"""


def test_an_unlock_that_waits_for_a_page_of_a_silent_server_can_be_killed():
    """Data of a mapping is written back before an unlock, which waits for pages that are being read."""
    with LockServer() as server, Process() as holder:
        (a,) = server.opened(holder, mounts=1, size=8 << 20)
        assert holder.set("f", WRITE, 0, 10) == 0
        command = [sys.executable, "-c", FAULT, a / "f"]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1) as reader:
            try:
                assert reader.stdout.readline() == "mapped\n"
                server.pause()
                reader.stdin.write("\n")
                assert holder.send("fcntl", fcntl.F_SETLK, "f", FREE, 0, 10) is None
                assert waits(holder)
                holder.child.kill()
                reader.kill()
                holder.child.wait(LIMIT)
            finally:
                server.child.send_signal(signal.SIGCONT)
                reader.kill()
        until(lambda: counters(a)["locks_held"] == 0, "the end of the lock")
