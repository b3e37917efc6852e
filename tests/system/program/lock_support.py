"""Parts of the tests of locks: processes that lock, and a server that keeps the locks of several mounts."""

import errno
import fcntl
import json
import select
import socket
import subprocess
import sys

from program.support import *  # noqa: F403

F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW = 36, 37, 38

LOCKER = (ROOT / "tests/system/locker.py").read_text()


class Process:
    """A process that locks on command, as a user of users.py. It can inherit open files ("open" with the number)."""

    def __init__(self, *files, user=None):
        # By its text, because another user may not read the file.
        command = [sys.executable, "-c", LOCKER]
        pipe = subprocess.PIPE
        who = {"user": user.uid, "group": user.gid, "extra_groups": list(user.groups)} if user else {}
        self.child = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1, pass_fds=files, **who)
        self.to, self.answers = self.child.stdin, self.child.stdout

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.kill()
        self.child.wait()
        self.to.close()
        self.answers.close()

    def send(self, *words):
        self.to.write(json.dumps(words) + "\n")
        self.to.flush()

    def receive(self):
        line = self.answers.readline()
        assert line, "the process has ended"
        result = json.loads(line)
        if isinstance(result, dict):
            return -result["errno"]
        return result

    def do(self, *words):
        self.send(*words)
        return self.receive()

    def set(self, name, kind, start=0, length=0, command=fcntl.F_SETLK):
        result = self.do("fcntl", command, name, kind, start, length)
        return result if isinstance(result, int) else 0

    def get(self, name, kind, start=0, length=0, command=fcntl.F_GETLK):
        """Type, start, length and process of the conflicting lock."""
        kind, _, start, length, pid = self.do("fcntl", command, name, kind, start, length)
        return (kind, start, length, pid)

    def flock(self, name, how):
        return self.do("flock", name, how) or 0

    def wait_for(self, name, kind, start=0, length=0, command=fcntl.F_SETLKW):
        """Sends a command and returns at once; the answer must be received later."""
        self.send("fcntl", command, name, kind, start, length)

    def got(self):
        result = self.receive()
        return result if isinstance(result, int) else 0


def elsewhere(point):
    """Whether a mount namespace of another program has a copy of the mount, which keeps the mount served."""
    for process in Path("/proc").glob("[0-9]*/mountinfo"):
        try:
            if f" {point} " in process.read_text():
                return True
        except OSError:
            continue
    return False


class LockServer(Server):
    """A responder with a lock manager that the mounts know of, and two mounts, `a` and `b`."""

    def __init__(self, *words, options=""):
        super().__init__(*words)
        self.more = options

    def __enter__(self):
        self.words = (*self.words, "--control", "CONTROL")
        return super().__enter__()

    def start(self):
        self.control_path = self.base / "control"
        self.words = tuple(self.control_path if word == "CONTROL" else word for word in self.words)
        super().start()

    def mounts(self, number=2):
        points = []
        for name in "abcdefgh"[:number]:
            point = self.base / name
            point.mkdir(exist_ok=True)
            expect(self.mount(self.lock_options, at=point), 0)
            points.append(point)
        return points

    def opened(self, *processes, mounts=2, size=100):
        """The mounts. The processes have the file f of this size open, by turns through each of them."""
        points = self.mounts(mounts)
        (self.export / "f").write_bytes(b"x" * size)
        for number, process in enumerate(processes):
            assert process.do("open", "f", str(points[number % mounts] / "f")) == 0
        return points

    def __exit__(self, *why):
        try:
            for point in mounts_below(self.base):
                if run("umount", point).returncode != 0:
                    continue  # A failed test has files open: the rest is removed by force.
                if why[0] is None:  # Otherwise the test's own error must be shown.
                    until(lambda: not servers_of(point) or elsewhere(point), "the end of the serving process")
        finally:
            super().__exit__(*why)

    @property
    def lock_options(self):
        own = f"lock,lockport={self.mountport}"
        return f"{own},{self.more}" if self.more else own

    def control(self, text):
        with socket.socket(socket.AF_UNIX) as control:
            control.settimeout(LIMIT)
            control.connect(str(self.control_path))
            control.sendall(f"{text}\n".encode())
            control.shutdown(socket.SHUT_WR)
            answer = rest_of(control).decode()
        assert answer.startswith("ok"), f"{text}: {answer}"
        return answer


def counters(point):
    return document_of(point)["cache"]


def pid_of(point):
    return document_of(point)["pid"]


READ, WRITE, FREE = fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK
AGAIN = -errno.EAGAIN


def waits(process, seconds=0.3):
    """Whether no answer comes within this time. It is for answers that must not come, so the time may be short."""
    return not select.select([process.answers], [], [], seconds)[0]


def run_together(script, arguments):
    """Runs a Python script in several processes at once, which must all succeed."""
    running = [subprocess.Popen([sys.executable, "-c", script, *map(str, words)]) for words in arguments]
    try:
        for child in running:
            assert child.wait(4 * LIMIT) == 0
    finally:
        for child in running:
            child.kill()
            child.wait()


def count_under_a_lock(server, points, how, children, times):
    """Processes, alternating between the mounts, add to a number in one file, each time under a lock."""
    (server.export / "n").write_bytes(b"%019d\n" % 0)
    with contextlib.ExitStack() as stack:
        counting = [stack.enter_context(Process()) for _ in range(children)]
        for number, process in enumerate(counting):
            process.send("count", str(points[number % len(points)] / "n"), times, how)
        assert [waits(process, 4 * LIMIT) or process.receive() for process in counting] == [0] * children
    assert int((server.export / "n").read_bytes()) == children * times, how
