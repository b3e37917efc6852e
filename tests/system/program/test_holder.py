"""The process that holds a mount with restart=files, and the one that serves it."""

import errno
import os
import resource
import signal
import subprocess
from pathlib import Path

import pytest

from program.support import BIN, LIMIT, expect, kill_mount, mounted, nfsrdma, serving, state, stats, until


def killed(server, number=signal.SIGKILL):
    """Kills the daemon, and returns its successor."""
    holder, daemon = serving(server.mnt)
    os.kill(daemon, number)

    def successor():
        found = serving(server.mnt)
        return found and found[0] == holder and found[1] not in (None, daemon)

    until(successor, "a successor")
    return serving(server.mnt)[1]


def test_a_daemon_that_dies_again_and_again_ends_the_mount(server):
    log = server.mount_logged("nolock,restart=files")
    holder, _ = serving(server.mnt)

    def dead():
        found = serving(server.mnt)
        if found and found[1]:
            os.kill(found[1], signal.SIGKILL)
        return state(holder) in (None, "Z")

    until(dead, "the end of the holder")
    with pytest.raises(OSError) as told:
        os.listdir(server.mnt)
    assert told.value.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    assert "failed again and again" in log.read_text()


def test_a_daemon_serves_on_without_its_holder(server):
    log = server.mount_logged("nolock,restart=files")
    holder, daemon = serving(server.mnt)
    assert "unprotected" not in stats(server)
    os.kill(holder, signal.SIGKILL)
    until(lambda: "the process that keeps this mount is gone" in log.read_text(), "a line about the holder")
    assert "unprotected" in stats(server) and "unprotected" in nfsrdma("stats").stdout
    assert f'nfsrdma_unprotected{{mount="{server.mnt}"}} 1' in stats(server, "--prometheus")
    (server.mnt / "new").write_text("written")
    assert (server.export / "new").read_text() == "written"
    expect(nfsrdma("umount", server.mnt), 0)
    until(lambda: state(daemon) in (None, "Z"), "the end of the daemon")


def test_a_holder_that_ends_before_there_is_a_mount_ends_its_daemon(server):
    """Also if the command has returned already."""
    server.stop()
    log = server.mount_logged("bg,retry=1000,nolock,restart=files")
    until(lambda: serving(server.mnt), "a daemon")
    holder, daemon = serving(server.mnt)
    os.kill(holder, signal.SIGKILL)
    until(lambda: state(daemon) in (None, "Z"), "the end of the daemon")
    server.start()


def test_a_daemon_that_crashes_again_and_again_ends_the_mount(server):
    """Also if it has served for a while in between: that it was killed is another matter."""
    log = server.mount_logged("nolock,restart=files")
    holder, _ = serving(server.mnt)
    for _ in range(4):
        assert os.listdir(server.mnt) == []
        killed(server, signal.SIGABRT)
    os.kill(serving(server.mnt)[1], signal.SIGABRT)
    until(lambda: state(holder) in (None, "Z"), "the end of the holder")
    with pytest.raises(OSError) as told:
        os.listdir(server.mnt)
    assert told.value.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    assert "failed again and again" in log.read_text()


def test_one_signal_to_holder_and_daemon_flushes(server):
    """The second signal to a mount ends it with the data that are not written; one that came to both, as from a
    terminal, is the first."""
    log = server.mount_logged("nolock,restart=files")
    holder, daemon = serving(server.mnt)
    with open(server.mnt / "file", "w") as file:
        file.write("kept")
        file.flush()
        for pid in (holder, daemon):
            os.kill(pid, signal.SIGTERM)
        until(lambda: not mounted(server.mnt), "a detached mount")
        file.write(" and more")
    until(lambda: state(holder) in (None, "Z"), "the end of the holder")
    assert (server.export / "file").read_text() == "kept and more"
    assert log.read_text().count("SIGTERM: unmounting") == 1


def test_the_status_of_the_command_in_the_foreground(server):
    words = [BIN / "nfsrdma", "mount", "-f", server.spec, server.mnt, "-o", server.options("nolock,restart=files")]
    log = server.base / "log"
    with open(log, "w") as stderr:
        child = subprocess.Popen([str(word) for word in words], stdout=subprocess.DEVNULL, stderr=stderr)
    # A daemon that dies before has no mount yet that a successor could take.
    until(lambda: "mounted: " in log.read_text(), "a mount that is served")
    assert serving(server.mnt)[0] == child.pid
    killed(server)
    os.listdir(server.mnt)
    expect(nfsrdma("umount", server.mnt), 0)
    assert child.wait(LIMIT) == 0, log.read_text()


def own_memory(pid):
    """The memory of a process in KiB that nothing shares with it. Pages of the program's file come and go with the page
    cache."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0])


def test_a_holder_whose_limit_was_lowered_starts_a_successor(server):
    server.mount_logged("nolock,restart=files")
    holder, _ = serving(server.mnt)
    most = resource.prlimit(holder, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(holder, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{holder}/fd")), most))
    killed(server)
    assert os.listdir(server.mnt) == []
    expect(nfsrdma("umount", server.mnt), 0)


def test_a_holder_needs_little_memory(server):
    server.mount_logged("nolock,restart=files")
    holder, _ = serving(server.mnt)
    until(lambda: 0 < own_memory(holder) < 2048, "a small holder")
    killed(server)
    assert os.listdir(server.mnt) == []
    until(lambda: 0 < own_memory(holder) < 2048, "a small holder again")


def test_a_mount_that_fails_leaves_nothing(server):
    server.stop()
    result = server.mount("nolock,restart=files,retry=0")
    assert result.returncode == 32, result.stderr
    server.ended()
    server.start()
    server.mount_logged("nolock,restart=files")
    kill_mount(server.mnt)
    server.ended()
