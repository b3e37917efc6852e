"""Locks that end with a close or a process: who asks for one next, without waiting, is not refused because of it."""

import contextlib
import sys
import threading

from program.lock_support import *  # noqa: F403
import pytest

from program.support import *  # noqa: F403
from program.wire import Relay


class Late(Relay):
    """Holds up what the server answers, while `late` is set, by a little each time."""

    def __init__(self, to):
        self.late = threading.Event()
        self.over = threading.Event()
        super().__init__(to)

    def pump(self, source, sink, kept):
        if kept is not None:
            return super().pump(source, sink, kept)
        try:
            while piece := source.recv(1 << 16):
                if self.late.is_set():
                    self.over.wait(0.02)
                sink.sendall(piece)
        except OSError:
            pass  # One of the two is gone.


@contextlib.contextmanager
def late_mount(server):
    """A mount whose lock manager answers late, at the command of the test."""
    with Late(server.mountport) as relay:
        expect(server.mount(f"lock,lockport={relay.port}"), 0)
        (server.export / "f").write_bytes(b"x" * 100)
        yield relay
        relay.late.clear()
        expect(run("umount", server.mnt), 0)
        server.ended()


AGAIN_AND_AGAIN = r"""
import errno, fcntl, os, struct, sys
path, how, times = sys.argv[1], sys.argv[2], int(sys.argv[3])
def lock(file):
    if how == 'flock':
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    else:
        fcntl.fcntl(file, 37, struct.pack('hhqqi', fcntl.F_WRLCK, 0, 0, 0, 0))
refused = 0
held = os.open(path, os.O_RDWR)
lock(held)
for _ in range(times):
    # Opened before the other is closed, so that the kernel has two numbers for them.
    after = os.open(path, os.O_RDWR)
    os.close(held)
    try:
        lock(after)
    except BlockingIOError:
        refused += 1
    held = after
sys.exit(f'{refused} of {times} refused' if refused else 0)
"""


@pytest.mark.parametrize("how", ["flock", "ofd"])
@pytest.mark.parametrize("late", [False, True], ids=["soon", "late"])
def test_a_lock_that_ended_with_a_close_is_free_for_who_does_not_wait(how, late):
    with LockServer() as server, late_mount(server) as relay:
        if late:
            relay.late.set()
        times = 20 if late else 200
        words = [sys.executable, "-c", AGAIN_AND_AGAIN, server.mnt / "f", how, times]
        expect(run(*words), 0)


KILLED = r"""
import fcntl, os, random, signal, struct, sys, time
path, how, times = sys.argv[1], sys.argv[2], int(sys.argv[3])
def lock(file, kind, wait):
    if how == 'flock':
        fcntl.flock(file, {fcntl.F_WRLCK: fcntl.LOCK_EX, fcntl.F_UNLCK: fcntl.LOCK_UN}[kind] | (0 if wait else fcntl.LOCK_NB))
    else:
        command = 36 if how == 'ofd' else fcntl.F_GETLK
        fcntl.fcntl(file, command + (2 if wait else 1), struct.pack('hhqqi', kind, 0, 0, 0, 0))
refused = 0
for _ in range(times):
    child = os.fork()
    if child == 0:
        file = os.open(path, os.O_RDWR)
        while True:
            lock(file, fcntl.F_WRLCK, True)
            lock(file, fcntl.F_UNLCK, True)
    time.sleep(random.uniform(0.002, 0.1))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    file = os.open(path, os.O_RDWR)
    try:
        lock(file, fcntl.F_WRLCK, False)
    except BlockingIOError:
        refused += 1
    os.close(file)
sys.exit(f'{refused} of {times} refused' if refused else 0)
"""


@pytest.mark.parametrize("how", ["flock", "posix", "ofd"])
def test_a_lock_of_a_program_that_was_killed_is_free_for_who_does_not_wait(how):
    """The program was about to get it, or to give it back."""
    with LockServer() as server, late_mount(server) as relay:
        relay.late.set()
        expect(run(sys.executable, "-c", KILLED, server.mnt / "f", how, 20), 0)


READ_AHEAD = r"""
import fcntl, os, sys
refused, times = 0, int(sys.argv[2])
held = os.open(sys.argv[1], os.O_RDWR)
fcntl.flock(held, fcntl.LOCK_EX)
for _ in range(times):
    after = os.open(sys.argv[1], os.O_RDWR)
    for page in range(3):
        os.pread(held, 4096, page * 4096)
    os.close(held)
    try:
        fcntl.flock(after, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        refused += 1
    held = after
sys.exit(f'{refused} of {times} refused' if refused else 0)
"""


@pytest.mark.parametrize("delay", [0, 20])
def test_a_lock_is_free_though_its_file_was_read_ahead_when_it_was_closed(delay):
    """The kernel releases an open file when what it reads ahead has come."""
    with LockServer() as server, late_mount(server):
        (server.export / "f").write_bytes(b"x" * (8 << 20))
        server.control(f"delay READ {delay}")
        expect(run(sys.executable, "-c", READ_AHEAD, server.mnt / "f", 30), 0)

