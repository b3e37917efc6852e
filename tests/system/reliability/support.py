"""Parts of the tests: a responder, a mount, and processes that use it. All of them end with the test."""

import random
import time

from program.support import *  # noqa: F403
from program.support import BIN, LIMIT

#: The seconds in which a killed process must be gone, with allowance for a busy machine. docs/RELIABILITY.md has the
#: measured times.
GONE = 6


class Setup(Server):
    """A responder and a mount, with the processes that use it."""

    def __init__(self, options="", arguments=(), tmpfs=None, address="127.0.0.1", within=()):
        """`within`: a command that runs the server elsewhere."""
        super().__init__(host=address)
        self.more, self.arguments, self.tmpfs, self.within = options, list(arguments), tmpfs, list(within)
        self.helpers = []

    def __enter__(self):
        super().__enter__()
        try:
            self.mount()
        except BaseException:
            self.__exit__()
            raise
        return self

    def mount(self):
        options = f"{self.options()}{self.more}"
        expect(nfsrdma("mount", self.spec, self.mnt, "--log", self.base / "client.log", "-o", options), 0)
        (self.client,) = servers_of(self.mnt)

    def enter(self):
        return self.within

    def start(self):
        if self.tmpfs and not os.path.ismount(self.export):
            expect(run("mount", "-t", "tmpfs", "-o", f"size={self.tmpfs}", "none", self.export), 0)
        self.words = ["--listen", f"{self.host}:20049", *self.arguments]
        super().start()

    def stats(self):
        return json.loads(stats(self, "--json"))

    def counter(self, name):
        """The sum of a number over all connections: one of their state, or a counter."""
        return sum(c.get(name, c["counters"].get(name, 0)) for c in self.stats()["connections"])

    def calls(self, procedure):
        """How often a procedure was called."""
        return sum(known["calls"] for known in self.stats()["procedures"] if known["name"] == procedure)

    def quiet(self):
        """No call is under way, and the server cannot access our memory."""
        until(
            lambda: all(self.counter(n) == 0 for n in ("open_registrations", "credits_in_use", "waiting")),
            f"registrations, calls: {[c for c in self.stats()['connections']]}",
        )  # fmt: skip

    def log(self):
        return (self.base / "client.log").read_text()

    def restart(self, *arguments):
        """Restarts the server with other options."""
        self.kill()
        self.arguments = list(arguments)
        self.start()

    def go_on(self):
        self.child.send_signal(signal.SIGCONT)

    def kill(self):
        self.child.kill()
        self.child.wait()

    def helper(self, code, *words):
        """Starts a Python program, which prints the text that `said` waits for."""
        child = subprocess.Popen(
            [sys.executable, "-c", HELPER + code, str(self.mnt), *map(str, words)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.helpers.append(child)
        return child

    def unmount(self, *words, limit=LIMIT):
        return nfsrdma("umount", *words, self.mnt, limit=limit)

    def client_ended(self, limit=LIMIT):
        until(lambda: state(self.client) in (None, "Z"), "the end of the serving process", limit)

    def __exit__(self, *why):
        for child in self.helpers:
            child.kill()
        super().__exit__(*why)
        for child in self.helpers:
            child.communicate()


def pattern(size, seed):
    return random.Random(seed).randbytes(size)


def ready(child):
    """Waits until a helper has completed a step."""
    assert child.stdout.readline() == "ready\n", child.stderr.read()


def begin(child, words=""):
    child.stdin.write(f"{words}\n")
    child.stdin.flush()


def waits(child):
    """Lets a helper go on that announces a system call, and waits until it sleeps in it."""
    begin(child)
    assert child.stdout.readline() == "now\n", child.stderr.read()
    seen = 0
    end = time.monotonic() + LIMIT
    while seen < 10:
        assert child.poll() is None, f"it did not wait: {child.stderr.read()}"
        assert time.monotonic() < end, "it never waits"
        seen = seen + 1 if state(child.pid) in "DS" else 0
        time.sleep(0.02)


def gone(child, number=signal.SIGKILL):
    """Kills a helper. Returns the seconds until it was gone."""
    start = time.monotonic()
    child.send_signal(number)
    try:
        child.wait(GONE)
    except subprocess.TimeoutExpired:
        wchan = Path(f"/proc/{child.pid}/wchan").read_text()
        raise AssertionError(f"after {GONE} s the killed process is {state(child.pid)} in {wchan}") from None
    assert child.returncode == -number, f"it ended by itself: {child.returncode}"
    return time.monotonic() - start


HELPER = "import os, sys, mmap, time, signal\n"
READY = "print('ready', flush=True); sys.stdin.readline(); print('now', flush=True)\n"
