"""What the server has changed for a program that was killed meanwhile is seen by the other programs of the mount, whose
kernel did not get the reply."""

import os
import signal
import subprocess
import sys

import pytest

from program.support import *  # noqa: F403

# Nothing that the kernel caches expires during a test.
FOR_EVER = "actimeo=3600"


def killed_in(command, procedure, code, *words, meanwhile=lambda: None):
    """Runs a program, which is killed while the server holds its call of `procedure`. The server then executes the
    call; `meanwhile` is called before."""
    with held(command, f"hold {procedure} 1"):
        with running(sys.executable, "-c", f"import os, sys; {code}", *words):
            command(f"wait-held 1 {LIMIT * 1000}")
        meanwhile()


@pytest.mark.parametrize("flags", ["os.O_TRUNC", "os.O_TRUNC | os.O_CREAT"])
def test_a_file_that_a_killed_program_has_truncated_is_empty(flags):
    with scripted() as (server, command):
        there, seen = server.export / "f", server.mnt / "f"
        there.write_bytes(b"o" * 8192)
        server.mount_well(FOR_EVER)
        # The first of these change the time of access, which later opens see.
        for _ in range(3):
            assert (seen.stat().st_size, len(seen.read_bytes())) == (8192, 8192)
        killed_in(command, "SETATTR", f"os.open(sys.argv[1], os.O_WRONLY | {flags})", seen)
        until(lambda: there.stat().st_size == 0, "the truncation at the server")
        until(lambda: (seen.stat().st_size, seen.read_bytes()) == (0, b""), "the truncation on the mount")


def test_a_file_that_a_killed_program_was_about_to_open_is_up_to_date():
    """The open has found that another client has changed the file, with the size and the time that it had before."""
    with scripted() as (server, command):
        there, seen = server.export / "f", server.mnt / "f"
        there.write_bytes(b"o" * 8192)
        server.mount_well(FOR_EVER)
        assert seen.read_bytes() == b"o" * 8192
        before = there.stat()
        there.write_bytes(b"n" * 8192)
        os.utime(there, ns=(before.st_atime_ns, before.st_mtime_ns))
        killed_in(command, "ACCESS", "os.open(sys.argv[1], os.O_RDONLY)", seen)
        # Each open would be answered by the server, but for what the kernel keeps.
        until(lambda: event(server, "foreign_changes") > 0, "the change that the killed program's open has found")
        assert seen.read_bytes() == b"n" * 8192


@pytest.mark.parametrize("procedure, asked", [("GETATTR", "f"), ("LOOKUP", "other")])
def test_a_file_whose_attributes_a_killed_program_has_asked_for_is_up_to_date(procedure, asked):
    """Another client has extended the file. It is opened without stat(2), which would ask again."""
    with scripted() as (server, command):
        there, seen = server.export / "f", server.mnt / "f"
        there.write_bytes(b"o" * 8192)
        os.link(there, server.export / "other")
        server.mount_well(FOR_EVER)
        assert seen.read_bytes() == b"o" * 8192
        if procedure == "GETATTR":
            # Of what the kernel has, only the time of the change is invalid afterwards.
            os.rename(seen, server.mnt / "g")
            os.rename(server.mnt / "g", seen)
        with open(there, "ab") as file:
            file.write(b"n" * 8192)
        killed_in(command, procedure, "os.stat(sys.argv[1])", server.mnt / asked)
        until(lambda: event(server, "foreign_changes") > 0, "the change that the killed program's stat(2) has found")
        assert read_without_stat(seen) == b"o" * 8192 + b"n" * 8192


@pytest.mark.parametrize("procedure, code", [
    ("MKDIR", "os.mkdir(sys.argv[1])"),
    ("SYMLINK", "os.symlink('/', sys.argv[1])"),
    ("CREATE", "os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)"),
    ("MKNOD", "os.mkfifo(sys.argv[1])"),
    ("LINK", "os.link(sys.argv[2], sys.argv[1])"),
    ("RENAME", "os.rename(sys.argv[2], sys.argv[1])"),
])  # fmt: skip
def test_a_name_that_a_killed_program_has_made_is_there(procedure, code):
    with scripted() as (server, command):
        (server.export / "old").touch()
        there, seen = server.export / "new", server.mnt / "new"
        server.mount_well(FOR_EVER)
        assert (server.mnt / "old").exists() and not seen.exists()
        killed_in(command, procedure, code, seen, server.mnt / "old", meanwhile=seen.exists)
        until(lambda: os.path.lexists(there), "the name at the server")
        until(lambda: os.path.lexists(seen), "the name on the mount")


@pytest.mark.parametrize("procedure, code", [
    ("REMOVE", "os.unlink(sys.argv[1])"),
    ("RMDIR", "os.rmdir(sys.argv[1])"),
    ("RENAME", "os.rename(sys.argv[1], sys.argv[1] + '2')"),
])  # fmt: skip
def test_a_name_that_a_killed_program_has_removed_is_gone(procedure, code):
    with scripted() as (server, command):
        there, seen = server.export / "old", server.mnt / "old"
        there.mkdir() if procedure == "RMDIR" else there.touch()
        server.mount_well(FOR_EVER)
        assert seen.exists()
        killed_in(command, procedure, code, seen, meanwhile=seen.exists)
        until(lambda: not there.exists(), "the removal at the server")
        until(lambda: not seen.exists(), "the removal on the mount")


@pytest.mark.parametrize("procedure, code", [
    ("REMOVE", "os.unlink(sys.argv[1])"),
    ("RENAME", "os.rename(sys.argv[2], sys.argv[1])"),
])  # fmt: skip
def test_a_name_that_a_killed_program_has_removed_is_not_listed(procedure, code):
    with scripted() as (server, command):
        (server.export / "d").mkdir()
        there, folder = server.export / "d", server.mnt / "d"
        (there / "one").touch(), (there / "other").touch()
        server.mount_well(FOR_EVER)
        # The last of these is answered by the kernel.
        for _ in range(3):
            assert sorted(os.listdir(folder)) == ["one", "other"]
        killed_in(command, procedure, code, folder / "one", folder / "other")
        until(lambda: len(os.listdir(there)) == 1, "the removal at the server")
        until(lambda: os.listdir(folder) == os.listdir(there), "the listing on the mount")


CHANGES = [
    ("MKDIR", "os.mkdir(sys.argv[1])"),
    ("CREATE", "os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)"),
    ("LINK", "os.link(sys.argv[2], sys.argv[1])"),
    ("RENAME", "os.rename(sys.argv[2], sys.argv[1])"),
    ("REMOVE", "os.unlink(sys.argv[2])"),
]


def given_up(server, words, changed):
    """Runs a program on a soft mount, which gives its call up: the server carries it out (`changed`), and is silent
    then until the program has failed."""
    with subprocess.Popen(words, stderr=subprocess.PIPE) as program:
        try:
            until(lambda: changed() or program.poll() is not None, "the change at the server")
            server.pause()
        except BaseException:
            program.kill()
            raise
        said = program.communicate()[1].decode()
    assert "TimeoutError" in said or "Input/output error" in said, said
    assert changed()
    server.child.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("procedure, code", CHANGES)
def test_a_change_whose_reply_never_came_is_seen(procedure, code):
    """A soft mount gives a call up that the server has carried out. What the kernel has
    cached of the name from before the call is not used any longer."""
    with scripted() as (server, command):
        (server.export / "old").touch()
        there, seen, old = server.export / "new", server.mnt / "new", server.mnt / "old"
        server.mount_well(f"{FOR_EVER},soft,timeo=10,retrans=1")
        assert old.exists() and not seen.exists()
        command(f"hold-reply {procedure} 9")
        words = [sys.executable, "-c", f"import os, sys; {code}", seen, old]
        made = procedure != "REMOVE"

        def changed():
            return there.exists() if made else not (server.export / "old").exists()

        given_up(server, words, changed)
        until(lambda: os.path.lexists(seen) == made, "the new name on the mount")
        until(lambda: old.exists() == (server.export / "old").exists(), "the old name on the mount")


@pytest.mark.parametrize("code", [
    "os.truncate(sys.argv[1], 100)",
    "os.truncate(os.open(sys.argv[1], os.O_WRONLY), 100)",
    "os.open(sys.argv[1], os.O_WRONLY | os.O_TRUNC)",
    "os.chmod(sys.argv[1], 0o600)",
])  # fmt: skip
def test_a_change_of_attributes_whose_reply_never_came_is_seen(code):
    with scripted() as (server, command):
        there, seen = server.export / "f", server.mnt / "f"
        there.write_bytes(b"o" * 8192)
        there.chmod(0o644)

        def state(file):
            return file.stat().st_mode, file.stat().st_size, file.read_bytes()

        server.mount_well(f"{FOR_EVER},soft,timeo=10,retrans=1")
        before = state(there)
        # The first of these change the time of access, which later opens see.
        for _ in range(3):
            assert state(seen) == before
        command("hold-reply SETATTR 9")
        words = [sys.executable, "-c", f"import os, sys; {code}", seen]
        given_up(server, words, lambda: state(there) != before)
        # No open, which asks the server: what the kernel has is no longer used.
        until(lambda: seen.stat().st_mode == there.stat().st_mode, "the mode on the mount")
        until(lambda: seen.stat().st_size == there.stat().st_size, "the size on the mount")
        assert state(seen) == state(there)
