"""Files and directories that are removed while they are open."""

import errno
import functools
import os
import signal
import subprocess
from pathlib import Path

from program.support import *  # noqa: F403
from program.support import run

ROUNDS = 20


def fails(code, call, *words):
    try:
        call(*words)
    except OSError as error:
        assert error.errno == code, f"{errno.errorcode[error.errno]}, not {errno.errorcode[code]}: {words}"
        return
    raise AssertionError(f"{call}{words} succeeds, where {errno.errorcode[code]} belongs")


def hidden_names(folder):
    return [name for name in os.listdir(folder) if name.startswith(".nfs")]


def test_hidden_names_of_open_files_are_busy(server):
    """Nobody can remove or rename them, so that open files keep their data (as on Linux)."""
    server.mount_well()
    folder = server.mnt / "folder"
    folder.mkdir()
    (folder / "file").write_bytes(b"precious")
    (folder / "other").write_bytes(b"other")
    with open(folder / "file", "r+b", buffering=0) as file:
        os.unlink(folder / "file")
        [hidden] = hidden_names(folder)
        fails(errno.EBUSY, os.unlink, folder / hidden)
        fails(errno.EBUSY, os.rename, folder / hidden, folder / "away")
        fails(errno.EBUSY, os.rename, folder / "other", folder / hidden)
        result = run("rm", "-rf", folder)
        assert result.returncode != 0 and "busy" in result.stderr, result
        fails(errno.ENOTEMPTY, os.rmdir, folder)
        assert hidden_names(folder) == [hidden], os.listdir(folder)
        # This shows the file itself, and not cached data.
        assert (server.export / "folder" / hidden).read_bytes() == b"precious"
        file.seek(0)
        assert file.read() == b"precious"
        file.write(b" still")
        os.fsync(file.fileno())
        assert (server.export / "folder" / hidden).read_bytes() == b"precious still"
    until(lambda: not hidden_names(server.export / "folder"), "the end of the hidden name")
    os.rmdir(folder)
    # A hidden name of a file that nobody here has open is an ordinary name.
    (server.mnt / hidden).write_bytes(b"left by another client")
    os.unlink(server.mnt / hidden)


def test_the_last_close_of_a_removed_file_shows_in_the_times_of_its_directory(server):
    """The kernel made no call for the removal of the hidden name. tar says "file changed as we read it" of old times."""
    server.mount_well("actimeo=3600")
    here, there = server.mnt / "folder", server.export / "folder"
    here.mkdir()
    with open(here / "file", "w"):
        os.unlink(here / "file")
        here.stat()
    until(lambda: not hidden_names(there), "the end of the hidden name")
    until(lambda: here.stat().st_mtime_ns == there.stat().st_mtime_ns, "the new times")


def test_a_directory_can_be_removed_whose_closed_file_is_still_being_read_ahead():
    """The kernel tells of the close when the READs are answered, and until then the file counts as open, so that its
    removal hides it. But no program has it open."""
    with scripted() as (server, command):
        server.mount_well("nolock")
        for round in range(ROUNDS):
            (server.export / f"d{round}").mkdir()
            (server.export / f"d{round}" / "f").write_bytes(bytes(1 << 20))
            folder = server.mnt / f"d{round}"
            command("delay READ 300")
            file = os.open(folder / "f", os.O_RDONLY)
            os.posix_fadvise(file, 0, 1 << 20, os.POSIX_FADV_WILLNEED)
            os.close(file)
            os.unlink(folder / "f")
            hidden = hidden_names(server.export / f"d{round}")
            os.rmdir(folder)
            command("delay READ 0")
            # Otherwise the READs were answered before.
            if hidden:
                return
        raise AssertionError(f"in none of {ROUNDS} rounds was the file hidden")


def test_removed_open_files_have_no_links(server):
    server.mount_well()
    mnt = server.mnt
    for name in ("removed", "linked", "replaced"):
        (mnt / name).write_bytes(b"data")
    os.link(mnt / "linked", mnt / "second")
    with open(mnt / "removed", "rb") as file:
        assert os.fstat(file.fileno()).st_nlink == 1
        os.unlink(mnt / "removed")
        assert os.fstat(file.fileno()).st_nlink == 0, os.fstat(file.fileno())
        Path(f"/proc/self/fd/{file.fileno()}").write_bytes(b"more data")
        assert os.fstat(file.fileno()).st_nlink == 0, os.fstat(file.fileno())
        assert os.fstat(file.fileno()).st_size == 9
        assert file.read() == b"more data"
        # With a directory descriptor, it follows the link in /proc.
        again = functools.partial(os.link, src_dir_fd=file.fileno())
        fails(errno.ENOENT, again, f"/proc/self/fd/{file.fileno()}", mnt / "again")
    with open(mnt / "linked", "rb") as file:
        os.unlink(mnt / "linked")
        assert os.fstat(file.fileno()).st_nlink == 1, os.fstat(file.fileno())
        assert os.stat(mnt / "second").st_nlink == 1
        os.unlink(mnt / "second")
        assert os.fstat(file.fileno()).st_nlink == 0, os.fstat(file.fileno())
    with open(mnt / "replaced", "rb") as file:
        (mnt / "new").write_bytes(b"new")
        os.rename(mnt / "new", mnt / "replaced")
        assert os.fstat(file.fileno()).st_nlink == 0, os.fstat(file.fileno())
        assert os.stat(mnt / "replaced").st_nlink == 1


def test_removed_open_directories_have_no_links(server):
    server.mount_well()
    mnt = server.mnt
    os.mkdir(mnt / "removed", 0o751)
    os.mkdir(mnt / "replaced")
    os.mkdir(mnt / "new")
    descriptor = os.open(mnt / "removed", os.O_RDONLY)
    os.rmdir(mnt / "removed")
    stat = os.fstat(descriptor)
    assert (stat.st_nlink, stat.st_mode & 0o7777) == (0, 0o751), stat
    assert os.listdir(descriptor) == []
    os.close(descriptor)
    descriptor = os.open(mnt / "replaced", os.O_RDONLY)
    os.rename(mnt / "new", mnt / "replaced")
    assert os.fstat(descriptor).st_nlink == 0, os.fstat(descriptor)
    assert os.stat(mnt / "replaced").st_nlink == 2
    os.close(descriptor)
    # If somebody else put another directory in the place of the one that was looked up, that other one is removed.
    os.mkdir(mnt / "moved")
    descriptor = os.open(mnt / "moved", os.O_RDONLY)
    os.rename(server.export / "moved", server.export / "elsewhere")
    os.mkdir(server.export / "moved")
    os.rmdir(mnt / "moved")
    assert os.fstat(descriptor).st_nlink == 2, os.fstat(descriptor)
    os.close(descriptor)


def test_an_open_that_waits_for_a_removal_ends_when_it_is_killed():
    with scripted() as (server, command):
        (server.export / "x").write_bytes(b"old")
        server.mount_well()
        x = server.mnt / "x"
        os.stat(x)
        command("jukebox REMOVE 1000")
        removing = Call(os.unlink, x)
        try:
            until(lambda: came(command, "REMOVE") > 0, "the REMOVE")
            before = came(command, "GETATTR")
            with running("cat", x, stdout=subprocess.DEVNULL) as program:
                until(lambda: came(command, "GETATTR") > before or program.poll() is not None, "the open")
                until(lambda: blocked(program.pid), "a program that waits")
                program.kill()
                assert program.wait(LIMIT) == -signal.SIGKILL, "it did not wait"
        finally:
            command("clear")
        assert removing.end() is None
        assert os.listdir(server.export) == []
