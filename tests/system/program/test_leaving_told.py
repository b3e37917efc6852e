"""Unmounting while the server is away: who waits, and who does not, is told."""

import contextlib
import os
import re
import select
import signal
import subprocess

import pytest

from program.support import *  # noqa: F403
from program.support import BIN
from program.test_leaving import check_written, helper, unwritten

# Seconds after which a wait is explained; it is 5.
SOON = 60
WAITS = "6.3 MB are not safe at the server"


def first_line(program):
    """The first line that a program writes to standard error, before it ends."""
    assert select.select([program.stderr], [], [], SOON)[0], "nothing is said"
    return program.stderr.readline()


@pytest.mark.parametrize("by", ["nfsrdma", "umount(8)"])
def test_an_unmount_that_waits_says_for_what(by):
    root()
    with Server() as server:
        server.mount_well("nolock")
        unwritten(server)
        own = by == "nfsrdma"
        # There is one place for the helper, and another test may run meanwhile.
        with contextlib.nullcontext() if own else helper():
            command = [BIN / "nfsrdma", "umount", server.mnt] if own else ["umount", server.mnt]
            with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as program:
                try:
                    said = first_line(program)
                    assert program.poll() is None
                    for word in (f"{server.mnt}: 6.3 MB are not safe at 127.0.0.1", "10 minutes", "with -l", "with -f"):
                        assert word in said, said
                finally:
                    server.child.send_signal(signal.SIGCONT)
                # Once.
                assert program.stderr.read() == "" and program.wait(LIMIT) == 0
        check_written(server)
        server.ended()


def test_an_unmount_that_is_quick_says_nothing(server):
    server.mount_well("nolock")
    unwritten(server)
    server.child.send_signal(signal.SIGCONT)
    result = nfsrdma("umount", server.mnt)
    expect(result, 0)
    assert result.stderr == "" and result.stdout == ""


def mounted_with_log(server):
    """A mount with data that the server, which stands still, has not. Returns its log and its process."""
    log = server.mount_logged("nolock")
    (pid,) = servers_of(server.mnt)
    unwritten(server)
    return log, pid


def forced_by_umount_8(server):
    # The first one ends the session, and is told "busy" while the process has a descriptor.
    until(lambda: run("umount", "-i", "-f", server.mnt).returncode == 0, "umount -i -f")


def by_sigterm(server):
    (pid,) = servers_of(server.mnt)
    os.kill(pid, signal.SIGTERM)


@pytest.mark.parametrize("how", [forced_by_umount_8, by_sigterm])
def test_a_process_that_waits_for_its_server_at_the_end_says_so(how):
    root()
    with Server() as server:
        log, pid = mounted_with_log(server)
        how(server)
        until(lambda: WAITS in log.read_text(), "a line in the log", SOON)
        assert f"this process, {pid}, waits" in log.read_text() and "SIGTERM" in log.read_text()
        server.child.send_signal(signal.SIGCONT)
        server.ended()
        assert log.read_text().count(WAITS) == 1, log.read_text()
        check_written(server)


def test_the_remedy_of_the_log_ends_the_process():
    root()
    with Server() as server:
        log, pid = mounted_with_log(server)
        forced_by_umount_8(server)
        until(lambda: WAITS in log.read_text(), "a line in the log", SOON)
        os.kill(pid, signal.SIGTERM)
        server.ended()
        assert re.search(r" of /a \(file \d+\) are lost: SIGTERM came", log.read_text()), log.read_text()
