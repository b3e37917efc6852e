"""Parts of the tests: a responder, a mount, and processes that use it. All of them end with the test."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from network import Network
from suites import LIMIT, kill_mount, of_threads, programs, servers_of, start_responder, state, until  # noqa: F401

ROOT = Path(__file__).resolve().parents[3]
#: The seconds in which a killed process must be gone, with allowance for a busy machine. docs/RELIABILITY.md has the
#: measured times.
GONE = 6


def program(name):
    """The path of one of our programs, in the directory that `build` left in the environment."""
    path = Path(os.environ["NFSRDMA_BIN"]) / name
    if not path.exists():
        pytest.skip(f"{path} is not there: NFSRDMA_BIN is of another build")
    return path


def build():
    os.environ["NFSRDMA_BIN"] = str(programs())


def run(*command, limit=LIMIT):
    return subprocess.run([str(w) for w in command], capture_output=True, text=True, timeout=limit, check=False)


def mounted(path):
    # Field 2 of /proc/self/mounts. This does not ask the file system.
    return any(line.split()[1] == str(path) for line in Path("/proc/self/mounts").read_text().splitlines())


class Setup:
    """A responder and a mount, with everything that must not be left behind."""

    def __init__(self, options="", arguments=(), tmpfs=None, proxy=False, address="127.0.0.1", within=()):
        """`proxy`: connect through a proxy that fails on command. `within`: a command that runs the server elsewhere."""
        self.more, self.arguments, self.tmpfs = options, list(arguments), tmpfs
        self.address, self.within = address, list(within)
        self.wants_proxy, self.proxy = proxy, None
        self.server = None
        self.helpers = []
        self.port = self.mountport = 0

    def __enter__(self):
        self.base = Path(tempfile.mkdtemp(prefix="nfsrdma-reliability.")).resolve()
        self.base.chmod(0o755)
        self.mnt, self.export = self.base / "mnt", self.base / "export"
        for path in (self.mnt, self.export):
            path.mkdir()
        try:
            if self.tmpfs:
                subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={self.tmpfs}", "none", self.export], check=True)
            self.start()
            if self.wants_proxy:
                self.start_proxy()
            self.mount()
        except BaseException:
            self.__exit__()
            raise
        return self

    def mount(self):
        result = run(
            program("nfsrdma"), "mount", f"{self.address}:{self.export}", self.mnt, "--log", self.base / "client.log", "-o",
            f"port={(self.proxy or self).port},mountport={self.mountport},mountproto=tcp,noresvport" + self.more,
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        (self.client,) = servers_of(self.mnt)

    def start(self):
        """Starts the responder, at its previous ports if it had some."""
        command = [*self.within, program("nfsrdma-responder"), self.export, "--listen", f"{self.address}:20049", *self.arguments]
        self.server, self.port, self.mountport = start_responder(command, self.base, self.port, self.mountport)

    def start_proxy(self):
        self.proxy = Network(self.address, self.port)
        self.helpers.append(self.proxy.child)

    def network(self, command):
        """Sends a command to the proxy: see tests/system/network.py."""
        self.proxy(command)

    def stats(self):
        result = run(program("nfsrdma"), "stats", "--json", self.mnt)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

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

    def stop(self):
        """Stops the server by SIGSTOP: it is alive, but silent."""
        self.server.send_signal(signal.SIGSTOP)
        until(lambda: state(self.server.pid) in "Tt", "a stopped server")

    def go_on(self):
        self.server.send_signal(signal.SIGCONT)

    def kill(self):
        self.server.kill()
        self.server.wait()

    def helper(self, code, *words):
        """Starts a Python program, which prints the text that `said` waits for."""
        child = subprocess.Popen(
            [sys.executable, "-c", HELPER + code, str(self.mnt), *map(str, words)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.helpers.append(child)
        return child

    def unmount(self, *words, limit=LIMIT):
        return run(program("nfsrdma"), "umount", *words, self.mnt, limit=limit)

    def client_ended(self, limit=LIMIT):
        until(lambda: state(self.client) in (None, "Z"), "the end of the serving process", limit)

    def __exit__(self, *_):
        for child in self.helpers:
            if child.poll() is None:
                child.kill()
        if self.server and self.server.poll() is None:
            self.server.send_signal(signal.SIGCONT)
        while mounted(self.mnt):
            subprocess.run(["umount", "-l", self.mnt], check=True)
        kill_mount(self.mnt)
        for child in self.helpers:
            child.communicate()
        if self.server:
            self.server.kill()
            self.server.wait()
        if mounted(self.export):
            subprocess.run(["umount", "-l", self.export], check=True)
        shutil.rmtree(self.base)


def pattern(size, seed):
    return random.Random(seed).randbytes(size)


def ready(child):
    """Waits until a helper has completed a step."""
    assert child.stdout.readline() == "ready\n", child.stderr.read()


def begin(child):
    child.stdin.write("\n")
    child.stdin.flush()


def waits(child):
    """Waits until a helper that has announced a system call sleeps in it."""
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
