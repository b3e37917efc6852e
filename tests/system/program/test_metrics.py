"""The endpoints of metrics: clients that send nothing, or do not read, keep nobody else from the answer; and the rights
of the process."""

import contextlib
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from program.support import *  # noqa: F403
from program.support import BIN

IDLE = 200
# Seconds; an answer takes milliseconds.
SOON = 4
REQUEST = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
UNIT = ROOT / "packaging/prometheus/nfsrdma-metrics.service"


def connect(address):
    client = socket.socket(socket.AF_INET if isinstance(address, tuple) else socket.AF_UNIX)
    client.settimeout(LIMIT)
    client.connect(address)
    return client


def scrape(address):
    with connect(address) as client:
        client.sendall(REQUEST)
        said = rest_of(client)
    assert said.startswith(b"HTTP/1.1 200 OK\r\n") and b"nfsrdma_" in said, said[:200]


@contextlib.contextmanager
def of_the_host(server, at):
    """`nfsrdma metrics`."""
    server.mount_well()
    command = [BIN / "nfsrdma", "metrics", "--listen", at]
    with running(*command, stderr=subprocess.PIPE, text=True) as program:
        line = program.stderr.readline()
        assert "serving the metrics" in line, line
        yield program


@contextlib.contextmanager
def of_a_mount(server, at):
    """The option `metrics`."""
    server.mount_well(f"metrics={at}")
    yield


def send_nothing(client):
    del client


def send_half(client):
    client.sendall(REQUEST[:-2])


def read_nothing(client):
    client.sendall(REQUEST)


@pytest.mark.parametrize("habit", [send_nothing, send_half, read_nothing])
@pytest.mark.parametrize("served", [of_the_host, of_a_mount])
def test_idle_clients_silence_no_metrics(server, served, habit):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2 * IDLE:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(2 * IDLE, hard), hard))
    unix = server.base / "socket"
    port = free_port()
    for at, address in ((f"127.0.0.1:{port}", ("127.0.0.1", port)), (f"unix:{unix}", str(unix))):
        with served(server, at), contextlib.ExitStack() as idle:
            for _ in range(IDLE):
                client = idle.enter_context(connect(address))
                habit(client)
            for _ in range(5):
                scrape(address)
        unmount(server.mnt)


def test_clients_that_come_again_and_again_silence_no_metrics(server):
    """Whose connection is closed opens the next one at once."""
    port = free_port()
    address = ("127.0.0.1", port)
    over = threading.Event()

    def come_again():
        while not over.is_set():
            with contextlib.suppress(OSError), connect(address) as client:
                client.recv(1)

    with of_the_host(server, f"127.0.0.1:{port}"):
        threads = [threading.Thread(target=come_again) for _ in range(40)]
        try:
            for thread in threads:
                thread.start()
            # A process of its own, which does not wait for these threads between connecting and asking.
            script = (
                "import socket, sys\n"
                "client = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
                f"client.sendall({REQUEST!r})\n"
                "sys.exit(not client.recv(15) == b'HTTP/1.1 200 OK')\n"
            )
            for _ in range(5):
                expect(run(sys.executable, "-c", script, port), 0)
        finally:
            over.set()
            for thread in threads:
                thread.join(LIMIT)


@pytest.mark.alone
def test_a_surplus_connection_ends_the_oldest(server):
    port = free_port()
    address = ("127.0.0.1", port)
    with of_the_host(server, f"127.0.0.1:{port}"), contextlib.ExitStack() as stack:
        first = stack.enter_context(connect(address))
        begin = time.monotonic()
        for _ in range(IDLE):
            stack.enter_context(connect(address))
        # Before its time is up, which is 5 s.
        assert first.recv(1) == b"" and time.monotonic() - begin < SOON
        # The youngest are served.
        last = stack.enter_context(connect(address))
        last.sendall(REQUEST)
        assert rest_of(last).startswith(b"HTTP/1.1 200 OK")


def test_the_process_of_metrics_has_few_rights(server):
    root()
    with of_the_host(server, f"127.0.0.1:{free_port()}") as program:
        for status in of_threads(program.pid, "status"):
            found = dict(re.findall(r"^(\w+):\s*(.*)$", status, re.M))
            # CAP_DAC_OVERRIDE, for the sockets of other users' mounts.
            for name in ("CapEff", "CapPrm", "CapBnd"):
                assert int(found[name], 16) & ~(1 << 1) == 0, (name, found[name])
            assert int(found["CapInh"], 16) == 0 and found["NoNewPrivs"] == "1", status


def test_metrics_of_other_users_mounts_are_served():
    """With these few rights."""
    root()
    if "NFSRDMA_INSIDE" not in os.environ:
        with_open_device("test_metrics_of_other_users_mounts_are_served")
        return
    with Server() as server:
        os.chown(server.mnt, NOBODY, NOBODY)
        expect(as_nobody(BIN / "nfsrdma", "mount", server.spec, server.mnt, "-o", server.options("nolock")), 0)
        port = free_port()
        # No server.mount_well(): root has no mount.
        command = [BIN / "nfsrdma", "metrics", "--listen", f"127.0.0.1:{port}"]
        with running(*command, stderr=subprocess.PIPE, text=True) as program:
            program.stderr.readline()
            with connect(("127.0.0.1", port)) as client:
                client.sendall(REQUEST)
                said = rest_of(client).decode()
            assert re.search(rf'^nfsrdma_mount_up{{mount="{server.mnt}".*}} 1$', said, re.M), said
        expect(as_nobody(BIN / "nfsrdma", "umount", server.mnt), 0)


def test_the_unit_of_metrics_is_confined():
    """As systemd-analyze(1) rates it: 10 is unsafe; it was 9.4."""
    needs("systemd-analyze")
    result = run("systemd-analyze", "security", "--offline=true", "--threshold=40", UNIT)
    if "unrecognized option" in result.stderr:
        pytest.skip("systemd-analyze has no --offline: systemd 250")
    assert result.returncode == 0, result.stdout.splitlines()[-1:] + result.stderr.splitlines()


def test_the_unit_of_metrics_permits_what_the_process_does(server):
    """No system call of the process, while it answers, is one that the unit's filter refuses."""
    needs("strace", "systemd-analyze")
    allowed = set()
    for line in re.findall(r"^SystemCallFilter=(.*)$", UNIT.read_text(), re.M):
        names = names_of(line.lstrip("~").split())
        allowed = allowed - names if line.startswith("~") else allowed | names
    server.mount_well()
    port, trace = free_port(), server.base / "trace"
    command = ["strace", "-f", "-q", "-o", trace, BIN / "nfsrdma", "metrics", "--listen", f"127.0.0.1:{port}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as program:
        try:
            assert "serving" in program.stderr.readline()
            scrape(("127.0.0.1", port))
        finally:
            (child,) = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
            os.kill(int(child), signal.SIGTERM)
    used = set(re.findall(r"^\d+ +(\w+)\(", trace.read_text(), re.M))
    assert {"accept4", "execve"} <= used
    assert used <= allowed, f"the unit refuses {sorted(used - allowed)}"


def names_of(words):
    """The system calls of these names and groups."""
    found = set()
    for word in words:
        if not word.startswith("@"):
            found.add(word)
            continue
        listed = run("systemd-analyze", "syscall-filter", word).stdout.splitlines()[1:]
        listed = [line.strip() for line in listed if line.strip() and not line.strip().startswith("#")]
        assert listed, word
        found |= names_of(listed)
    return found
