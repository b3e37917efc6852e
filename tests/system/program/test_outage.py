"""What people are told while a server does not answer, and when it does again: the log, `stats` and `top`."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from program.support import *  # noqa: F403
from program.wire import Relay

# Calls count as waiting after 10 s, and the major timeout is (retrans + 1) * timeo: 12 s here.
SLOW = "timeo=120,retrans=0,noac,nolock"
# 1 s.
QUICK = "timeo=5,retrans=1,noac,nolock"


def waiting(*words):
    """A program that waits for the server; it is ended at the end."""
    return running(*words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def counted(log, words):
    return log.read_text().count(words)


def told(server, calls):
    """Waits until `stats` says that so many calls wait, or more (those of the mount itself), and compares everything that
    shows it."""
    until(lambda: entry_of(server)["stats"]["waits"]["calls"] >= calls, f"{calls} calls that wait")
    found = entry_of(server)
    calls = found["stats"]["waits"]["calls"]
    assert found["stats"]["waits"]["oldest_ns"] >= 10e9
    words = r"1 call waits, for \d+ s" if calls == 1 else rf"{calls} calls wait, the oldest for \d+ s"
    assert re.search(words, line_of(server, "stats")), line_of(server, "stats")
    assert re.search(words, stats(server)), stats(server)
    top = nfsrdma("top", "--batch", "-n", "1", "-d", "1", server.mnt).stdout
    # A line has 100 columns, and the path of a test is long.
    assert re.search(words.partition(",")[0], top), top
    assert f'nfsrdma_waiting_calls{{mount="{server.mnt}"}} {calls}' in stats(server, "--prometheus")
    return found["state"]


def test_a_silent_server_is_seen_before_the_log_says_so():
    for more in "", ",nconnect=3":
        with Server() as server, contextlib.ExitStack() as programs:
            log = server.mount_logged(SLOW + more)
            assert " up" in line_of(server, "stats") and entry_of(server)["state"] == "up"
            server.pause()
            for name in "abc":
                programs.enter_context(waiting("stat", server.mnt / name))
            assert told(server, 3) in ("waiting", "down")
            assert " up" not in line_of(server, "stats")
            until(lambda: counted(log, "not responding, still trying"), "a line in the log")
            server.child.send_signal(signal.SIGCONT)
            until(lambda: counted(log, " OK"), "a line in the log")
            assert counted(log, "not responding") == 1 == counted(log, " OK"), log.read_text()
            until(lambda: entry_of(server)["state"] == "up", "a mount that works")


def test_a_silent_server_does_not_stop_who_looks_at_the_mount_from_outside():
    with Server() as server:
        log = server.mount_logged("noac,nolock")
        # The mount asks for the space by itself.
        until(lambda: re.search(r"FSSTAT +1 ", stats(server)), "the space")
        space = os.statvfs(server.mnt)
        server.pause()
        with waiting("ls", server.mnt) as program:
            for words in (["stat", server.mnt], ["ls", "-l", server.mnt.parent], ["find", server.mnt.parent, "-xdev", "-maxdepth", "1"]):
                expect(run(*words), 0, server.mnt.name)
            assert os.statvfs(server.mnt) == space
            assert program.poll() is None, "it has listed a directory without the server"
        expect(run("umount", server.mnt), 0)
        assert not mounted(server.mnt), log.read_text()


def test_calls_that_a_server_puts_off_are_seen():
    with scripted() as (server, command):
        (server.export / "f").write_bytes(b"x")
        log = server.mount_logged(QUICK)
        command("jukebox READ 1000")
        with waiting("cat", server.mnt / "f") as program:
            until(lambda: counted(log, "puts calls off (NFS3ERR_JUKEBOX)"), "a line in the log")
            assert told(server, 1) == "waiting"
            command("clear")
            assert program.wait(LIMIT) == 0
            until(lambda: counted(log, "puts no call off any longer"), "a line in the log")
        assert counted(log, "puts") == 2, log.read_text()


@pytest.mark.alone
def test_a_soft_mount_gives_up_after_the_major_timeout():
    script = "import os, sys\ntry: os.stat(sys.argv[1])\nexcept OSError as error: sys.exit(error.errno)"
    with Server() as server:
        log = server.mount_logged("soft,timeo=20,retrans=2,noac,nolock")
        # It refuses connections; test_recovery has one that is silent.
        server.stop()
        begin = time.monotonic()
        with waiting(sys.executable, "-c", script, server.mnt / "a") as program:
            assert program.wait(LIMIT) == 5
        # 2 s and two times 2 s more, as Linux; it was 2 + 4 + 6 s.
        assert 6 <= time.monotonic() - begin < 11.5
        until(lambda: counted(log, "not responding, timed out"), "a line in the log")
        server.start()
        until(lambda: run("ls", server.mnt).returncode == 0, "a server that answers")
        assert counted(log, "not responding") == 1 == counted(log, " OK"), log.read_text()


class Slow(Relay):
    """Passes on so many bytes in a second, and keeps few."""

    RATE = 512 << 10

    def __init__(self, to):
        super().__init__(to)
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)

    def pump(self, source, sink, kept):
        with contextlib.suppress(OSError):
            while piece := source.recv(self.RATE // 50):
                time.sleep(len(piece) / self.RATE)
                sink.sendall(piece)


def test_calls_that_take_longer_than_timeo_on_a_slow_link_end():
    with Server() as server, Slow(server.port) as relay:
        (server.export / "old").write_bytes(os.urandom(1 << 20))
        relayed = server.options("timeo=5,retrans=1,nconnect=1,nolock").replace(f"port={server.port},", f"port={relay.port},", 1)
        expect(nfsrdma("mount", server.spec, server.mnt, "-o", relayed), 0)
        # By programs that can be killed.
        expect(run("cmp", server.mnt / "old", server.export / "old"), 0)
        expect(run("cp", server.export / "old", server.mnt / "new"), 0)
        expect(run("cmp", server.export / "new", server.export / "old"), 0)


def test_the_log_says_why_the_server_cannot_be_reached():
    with Server() as server:
        log = server.mount_logged(QUICK)
        server.stop()
        with waiting("stat", server.mnt / "name"):
            until(lambda: re.search("not responding, still trying: .*refused", log.read_text()), "the reason")
            expect(nfsrdma("umount", "-f", server.mnt), 0)
