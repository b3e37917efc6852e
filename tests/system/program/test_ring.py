"""Requests by io_uring (io_uring=on), and by /dev/fuse if the kernel does not offer that."""

import concurrent.futures
import contextlib
import errno
import hashlib
import json
import mmap
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

from program.lock_support import LockServer, counters
from program.ring_support import REASON, SWITCH, ring_mount, rings, switched
from program.support import BIN, LIMIT, Server, blocked, expect, mounted, nfsrdma, run, servers_of, stats, stop, until


def unmount(server):
    expect(nfsrdma("umount", server.mnt), 0)
    assert not mounted(server.mnt)
    server.ended()


def test_without_the_switch_requests_come_by_the_device():
    """The same where the kernel has no such switch."""
    offers = SWITCH.exists()
    remedy = f"echo Y > {SWITCH}" if offers else "this kernel has no FUSE over io_uring"
    with Server() as server:
        (server.export / "a").write_text("text")
        # A mount in the foreground writes to standard error what others write to syslog.
        with switched("N") if offers else contextlib.nullcontext():
            words = [BIN / "nfsrdma", "mount", "-f", server.spec, server.mnt, "-o", server.options("io_uring=on")]
            child = subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            try:
                until(lambda: mounted(server.mnt), "the mount")
                assert (server.mnt / "a").read_text() == "text"
            except BaseException:
                stop(child)
                raise
        try:
            (server.mnt / "b").write_text("more")
            assert rings(child.pid) == 0
            assert "io_uring" not in json.loads(stats(server, "--json"))["options"]
            expect(nfsrdma("umount", server.mnt), 0)
            said = child.communicate(timeout=LIMIT)[0].decode()
        finally:
            stop(child)
        assert REASON in said and remedy in said, said
        assert said.count(REASON) == 1, said
        assert (server.export / "b").read_text() == "more"


def test_without_workers_requests_come_by_the_device():
    with Server() as server:
        (server.export / "a").write_text("text")
        server.mount_well("io_uring=on,workers=0")
        (pid,) = servers_of(server.mnt)
        assert rings(pid) == 0 and (server.mnt / "a").read_text() == "text"
        unmount(server)


def test_files_by_the_ring_are_what_they_are_at_the_server():
    with Server() as server:
        ring_mount(server)
        rng = random.Random(15)
        for size in (0, 1, 4095, 4096, 4097, 100_000, (1 << 20) - 1, (1 << 20) + 1, 40_000_003):
            data = rng.randbytes(size)
            (server.mnt / f"f{size}").write_bytes(data)
            assert (server.export / f"f{size}").read_bytes() == data, size
            other = rng.randbytes(size)
            (server.export / f"g{size}").write_bytes(other)
            assert (server.mnt / f"g{size}").read_bytes() == other, size
        # Without the kernel's cache: requests of 1 MiB, several at a time, and a short one at the end.
        fd = os.open(server.mnt / "g40000003", os.O_RDONLY | os.O_DIRECT)
        try:
            with mmap.mmap(-1, 8 << 20) as buffer:
                seen, offset = hashlib.sha256(), 0
                while count := os.preadv(fd, [buffer], offset):
                    seen.update(buffer[:count])
                    offset += count
        finally:
            os.close(fd)
        assert seen.digest() == hashlib.sha256((server.export / "g40000003").read_bytes()).digest()
        unmount(server)


def test_names_by_the_ring():
    with Server() as server:
        ring_mount(server)
        top = server.mnt / "d"
        top.mkdir(mode=0o750)
        assert (server.export / "d").stat().st_mode & 0o777 == 0o750
        long = "n" * 255
        (top / long).write_text("x")
        os.rename(top / long, top / "short")
        os.link(top / "short", top / "second")
        os.symlink("t" * 1000, top / "symlink")
        os.mkfifo(top / "fifo")
        os.truncate(top / "short", 7)
        os.utime(top / "short", (1, 2))
        assert os.readlink(top / "symlink") == "t" * 1000
        there = (server.export / "d" / "second").stat()
        assert (there.st_nlink, there.st_size, there.st_mtime) == (2, 7, 2)
        try:
            (top / ("n" * 256)).touch()
            raise AssertionError("a name of 256 bytes was taken")
        except OSError as error:
            assert error.errno == errno.ENAMETOOLONG
        for name in ("short", "second", "symlink", "fifo"):
            (top / name).unlink()
        # Listings that need many requests.
        for number in range(3000):
            (server.export / "d" / f"file-{number}").touch()
        expected = sorted(os.listdir(server.export / "d"))
        assert sorted(os.listdir(top)) == expected
        assert sorted(entry.name for entry in os.scandir(top) if entry.stat().st_size == 0) == expected
        shutil.rmtree(top)
        assert os.listdir(server.export) == []
        try:
            os.getxattr(server.mnt, "user.x")
        except OSError as error:
            assert error.errno in (errno.ENOTSUP, errno.ENODATA), error
        assert os.statvfs(server.mnt).f_blocks > 0
        unmount(server)


def test_thirty_two_threads_by_the_ring():
    with Server() as server:
        data = {number: random.Random(number).randbytes(200_000) for number in range(32)}
        for number, of in data.items():
            (server.export / f"f{number}").write_bytes(of)
        # The cache is so small that most reads ask the server.
        ring_mount(server, "cache=16M,readahead=0")
        deadline = time.monotonic() + 8

        def work(number):
            rng, rounds = random.Random(1000 + number), 0
            fd = os.open(server.mnt / f"f{number}", os.O_RDONLY | os.O_DIRECT)
            try:
                with mmap.mmap(-1, 4096) as buffer:
                    while time.monotonic() < deadline or rounds < 20:
                        offset = rng.randrange(48) * 4096
                        assert os.preadv(fd, [buffer], offset) == 4096
                        assert buffer[:] == data[number][offset : offset + 4096], (number, offset)
                        name = server.mnt / f"w{number}-{rounds % 3}"
                        name.write_bytes(data[number][: rounds % 9000])
                        assert name.stat().st_size == rounds % 9000
                        if rounds % 3 == 2:
                            name.unlink()
                        rounds += 1
            finally:
                os.close(fd)
            return rounds

        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            rounds = list(pool.map(work, range(32)))
        assert min(rounds) >= 20, rounds
        for name in server.mnt.iterdir():
            assert name.read_bytes() == (server.export / name.name).read_bytes(), name
        unmount(server)


CROWD = """
import fcntl, os, sys, threading
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
holder = open(sys.argv[1], "r+")
fcntl.flock(holder, fcntl.LOCK_EX)
print("held", flush=True)
got = []
def wait():
    with open(sys.argv[1], "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        got.append(1)
threads = [threading.Thread(target=wait) for _ in range(int(sys.argv[2]))]
for thread in threads:
    thread.start()
sys.stdin.readline()
fcntl.flock(holder, fcntl.LOCK_UN)
for thread in threads:
    thread.join()
print(len(got), flush=True)
"""


def test_more_waiters_than_entries_leave_room_for_the_unlock():
    """Each waiter occupies a request, on the CPU on which the holder unlocks: 150 in a queue of at most 32 entries."""
    crowd = 150
    with LockServer() as server:
        (server.export / "f").write_text("x")
        ring_mount(server, server.lock_options)
        words = [sys.executable, "-c", CROWD, server.mnt / "f", crowd]
        child = subprocess.Popen(
            [str(word) for word in words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        try:
            assert child.stdout.readline() == "held\n"
            until(lambda: counters(server.mnt)["lock_waiters"] == crowd, f"{crowd} waiters")
            assert child.communicate("now\n", timeout=LIMIT)[0] == f"{crowd}\n"
        finally:
            child.kill()
            child.wait()
        unmount(server)


@contextlib.contextmanager
def callers_of_a_silent_server(server):
    """Processes that wait in requests of several kinds. All have ended when the block is left."""
    commands = (
        ["cat", server.mnt / "file"],
        ["ls", "-l", server.mnt],
        ["touch", server.mnt / "new"],
        ["dd", f"if={server.mnt}/file", "iflag=direct", "bs=4096"],
        ["dd", "if=/dev/zero", f"of={server.mnt}/out", "oflag=direct", "bs=1M", "count=1"],
    )
    (server.export / "out").touch()
    server.pause()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    callers = []
    try:
        for words in commands:
            callers.append(subprocess.Popen([str(word) for word in words], **quiet))
        for caller in callers:
            until(lambda caller=caller: blocked(caller.pid), "a caller that waits")
        yield callers
    finally:
        for caller in callers:
            caller.kill()
        server.child.send_signal(signal.SIGCONT)
        for caller in callers:
            caller.wait(LIMIT)


#: No attributes or names are cached, and little data.
UNCACHED = "actimeo=0,lookupcache=none,cache=16M,readahead=0"


def test_callers_killed_in_requests_of_the_ring_are_freed():
    with Server() as server:
        (server.export / "file").write_bytes(os.urandom(20 << 20))
        pid = ring_mount(server, UNCACHED)
        with callers_of_a_silent_server(server) as callers:
            for caller in callers:
                caller.kill()
            for caller in callers:
                assert caller.wait(LIMIT) == -signal.SIGKILL
        assert (server.mnt / "file").read_bytes() == (server.export / "file").read_bytes()
        assert servers_of(server.mnt) == [pid]
        unmount(server)


def test_a_killed_process_that_serves_a_ring_leaves_nobody_waiting():
    with Server() as server:
        (server.export / "file").write_bytes(os.urandom(1 << 20))
        pid = ring_mount(server, UNCACHED)
        with callers_of_a_silent_server(server) as callers:
            os.kill(pid, signal.SIGKILL)
            for caller in callers:
                # It ends by itself, because it gets an error.
                assert caller.wait(LIMIT) > 0
        server.ended()
        expect(nfsrdma("umount", server.mnt), 0)
        assert not mounted(server.mnt)
        # The directory can be used as a mount point again.
        ring_mount(server)
        assert len((server.mnt / "file").read_bytes()) == 1 << 20
        unmount(server)


def test_a_mount_with_a_ring_that_is_in_use_ends_with_its_last_user():
    with Server() as server:
        (server.export / "file").write_bytes(os.urandom(8 << 20))
        pid = ring_mount(server, UNCACHED)
        stopped = threading.Event()

        def read(fd):
            rounds = 0
            while not stopped.is_set() or rounds == 0:
                os.pread(fd, 4096, random.randrange(2000) * 4096)
                rounds += 1

        fds = [os.open(server.mnt / "file", os.O_RDONLY) for _ in range(4)]
        try:
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                readers = [pool.submit(read, fd) for fd in fds]
                try:
                    result = nfsrdma("umount", server.mnt)
                    assert result.returncode != 0 and mounted(server.mnt), result
                    expect(run("umount", "-l", server.mnt), 0)
                    assert not mounted(server.mnt)
                    assert servers_of(server.mnt) == [pid]
                finally:
                    stopped.set()
                for reader in readers:
                    reader.result(LIMIT)
        finally:
            for fd in fds:
                os.close(fd)
        server.ended()


def test_a_mount_with_a_ring_survives_its_connections():
    with Server() as server:
        data = os.urandom(4 << 20)
        (server.export / "file").write_bytes(data)
        ring_mount(server, UNCACHED)
        for _ in range(3):
            assert (server.mnt / "file").read_bytes() == data
            server.stop()
            server.start()
            (server.mnt / "new").write_bytes(data[:100_000])
            assert (server.export / "new").read_bytes() == data[:100_000]
        unmount(server)
