"""An export that the server does not know any longer: every call gets ESTALE, and people are told."""

import contextlib
import errno
import os
import shutil

import pytest

from program.support import *  # noqa: F403
from program.support import BIN

GONE = "the server does not know the exported directory any longer"
BACK = "the server knows the exported directory again"


def is_stale(path):
    try:
        os.statvfs(path)
    except OSError as error:
        assert error.errno == errno.ESTALE, error
        return True
    return False


def new_handles(server):
    """The server gives all objects other handles."""
    server.stop()
    shutil.move(server.base / "state", server.base / "kept")
    server.start()


def old_handles(server):
    server.stop()
    shutil.rmtree(server.base / "state")
    shutil.move(server.base / "kept", server.base / "state")
    server.start()


def test_a_stale_export_is_seen_and_told(server):
    log = server.mount_logged("noac,nolock")
    (server.export / "f").write_bytes(b"x")
    assert (server.mnt / "f").read_bytes() == b"x" and entry_of(server)["state"] == "up"
    new_handles(server)
    assert is_stale(server.mnt)
    until(lambda: entry_of(server)["state"] == "stale", "a mount that is known to be stale")
    words = "stale: the server does not know this export any longer"
    assert words in line_of(server, "stats") and words in stats(server), stats(server)
    top = nfsrdma("top", "--batch", "-n", "1", "-d", "1", server.mnt).stdout
    assert "stale" in top, top
    assert f'nfsrdma_stale{{mount="{server.mnt}"}} 1' in stats(server, "--prometheus")
    # Not only "already mounted".
    result = server.mount("noac,nolock")
    expect(result, 32, "does not know that export any longer (stale)", f"'nfsrdma umount {server.mnt}'")
    other = nfsrdma("mount", f"127.0.0.1:{server.export}/f", server.mnt, "-o", server.options())
    expect(other, 32, "(stale)", "unmount that")
    helper = server.base / "mount.nfsrdma"
    helper.symlink_to(BIN / "nfsrdma")
    expect(run(helper, server.spec, server.mnt, "-o", server.options()), 32, "(stale)")
    # Once, however many calls fail.
    for _ in range(20):
        assert is_stale(server.mnt)
    until(lambda: GONE in log.read_text(), "a line in the log")
    assert log.read_text().count(GONE) == 1, log.read_text()
    # The remedy.
    expect(nfsrdma("umount", server.mnt), 0)
    server.mount_well()
    assert (server.mnt / "f").read_bytes() == b"x" and entry_of(server)["state"] == "up"


def test_an_export_that_comes_back_is_told(server):
    log = server.mount_logged("noac,nolock")
    (server.export / "f").write_bytes(b"x")
    assert (server.mnt / "f").read_bytes() == b"x"
    new_handles(server)
    assert is_stale(server.mnt)
    until(lambda: GONE in log.read_text(), "a line in the log")
    old_handles(server)
    assert (server.mnt / "f").read_bytes() == b"x"
    until(lambda: entry_of(server)["state"] == "up", "a mount that works")
    until(lambda: BACK in log.read_text(), "a line in the log")
    assert log.read_text().count(BACK) == 1 == log.read_text().count(GONE)
    assert " up" in line_of(server, "stats") and f'nfsrdma_stale{{mount="{server.mnt}"}} 0' in stats(server, "--prometheus")


def test_a_program_that_only_uses_open_files_shows_a_stale_export(server):
    log = server.mount_logged("noac,nolock")
    (server.export / "f").write_bytes(b"x" * 4096)
    file = os.open(server.mnt / "f", os.O_RDWR | os.O_DIRECT)
    try:
        new_handles(server)
        with contextlib.suppress(OSError):
            os.pwrite(file, b"y", 0)
        until(lambda: entry_of(server)["state"] == "stale", "a mount that is known to be stale")
        until(lambda: GONE in log.read_text(), "a line in the log")
    finally:
        with contextlib.suppress(OSError):
            os.close(file)


def test_a_file_that_was_removed_is_no_stale_export(server):
    log = server.mount_logged("noac,nolock")
    (server.export / "f").write_bytes(b"x")
    with open(server.mnt / "f", "rb") as file:
        os.unlink(server.export / "f")
        before, own = procedures(server)["GETATTR"]["calls"], 0

        def asked_for_the_root():
            nonlocal own
            own += 1
            with pytest.raises(OSError):
                os.fstat(file.fileno())
            return procedures(server)["GETATTR"]["calls"] > before + own

        until(asked_for_the_root, "a GETATTR of the root")
    assert entry_of(server)["state"] == "up" and GONE not in log.read_text()
