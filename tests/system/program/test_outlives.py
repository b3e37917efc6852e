"""A mount with restart=files outlives the program that serves it: programs see no error, and no file is closed."""

import os
import resource
import signal
import subprocess

import pytest

from program.outlives_support import *  # noqa: F403
from program.support import *  # noqa: F403


def test_names_are_found_again_for_which_there_was_no_memory():
    """With a limit on the memory that outlives the program: 1 MiB has room for 10,922 objects. A file of those beyond
    fails if it is open, and names lead to all."""
    number, most = 11000, 2_200_000
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))  # noqa: E731
    with Server() as server:
        for name in range(number):
            (server.export / str(name)).touch()
        result = server.mount("restart=files,nolock", "--log", server.base / "log", preexec_fn=limit)
        if "ulimit" in result.stderr:
            pytest.skip("needs Linux 6.9")
        expect(result, 0)

        def names():
            with os.scandir(server.mnt) as entries:
                return [entry.name for entry in entries if entry.stat().st_size == 0]

        (server.export / "first").write_bytes(b"x")
        first = os.open(server.mnt / "first", os.O_RDWR)
        found = names()
        assert len(found) == number
        assert "no more shared memory" in (server.base / "log").read_text()
        late = os.open(server.mnt / found[-1], os.O_RDWR)
        kill(server)
        assert sorted(names()) == sorted(found)
        assert os.pread(first, 1, 0) == b"x"
        os.close(first)
        with pytest.raises(OSError):
            os.write(late, b"y")
        with contextlib.suppress(OSError):
            os.close(late)
        (server.mnt / found[-1]).write_bytes(b"more")
        assert (server.export / found[-1]).read_bytes() == b"more"


def test_many_names_are_known_to_the_next_program_until_the_kernel_forgets_them():
    """1 MiB of the memory that outlives the program has room for 10,922 objects."""
    number = 22000

    def table(pid):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # Others are closed meanwhile.
                if "nfsrdma-table" in os.readlink(path):
                    return path.stat().st_blocks * 512 >> 20
        raise AssertionError(f"{pid} has no table")

    def names():
        with os.scandir(server.mnt / "d") as entries:
            return {entry.name: entry.stat().st_ino for entry in entries}

    with kept("actimeo=1") as server:
        (server.export / "d").mkdir()
        for name in range(number):
            (server.export / "d" / str(name)).touch()
        before = names()
        assert len(before) == number
        kill(server)
        said = document(server)
        assert said["cache"]["inodes"] > number and table(said["pid"]) > 3
        assert names() == before
        # The kernel forgets what is in a directory that has gone.
        (server.export / "d").rename(server.base / "d")
        until(lambda: not os.path.exists(server.mnt / "d"), "the end of the directory")
        until(lambda: document(server)["cache"]["inodes"] < 10, "the end of the inodes")
        # Names that lead nowhere keep them for some seconds. What stays is for open files, the root, and new names.
        until(lambda: table(said["pid"]) <= 3, "the end of the records")
        kill(server)
        assert os.listdir(server.mnt) == []


@on_kernels
def test_what_is_open_stays_open():
    with kept() as server:
        (server.export / "d").mkdir()
        for number in range(300):
            (server.export / "d" / f"n{number}").touch()
        (server.export / "f").write_bytes(b"0123456789")
        file = os.open(server.mnt / "f", os.O_RDWR)
        folder = os.open(server.mnt / "d", os.O_RDONLY | os.O_DIRECTORY)
        with subprocess.Popen(["cat"], cwd=server.mnt / "d", stdin=subprocess.PIPE) as inside:
            try:
                for round in range(KILLS):
                    kill(server)
                    assert os.pread(file, 10, 0) == b"0123456789"
                    os.pwrite(file, b"%d" % round, 10 + round)
                    os.fsync(file)
                    assert len(os.listdir(folder)) == 300
                    assert os.stat("n0", dir_fd=folder).st_size == 0
                    assert len(os.listdir(f"/proc/{inside.pid}/cwd/")) == 300
            finally:
                inside.stdin.close()
        os.close(folder)
        os.close(file)
        assert (server.export / "f").read_bytes() == b"0123456789012"


def test_an_unlinked_file_is_readable_and_goes_at_the_last_close():
    with kept() as server:
        (server.mnt / "f").write_bytes(b"still there")
        file = os.open(server.mnt / "f", os.O_RDONLY)
        os.unlink(server.mnt / "f")
        assert len(os.listdir(server.export)) == 1
        kill(server)
        assert os.pread(file, 100, 0) == b"still there"
        os.close(file)
        until(lambda: os.listdir(server.export) == [], "the removal of the file")


def test_a_server_that_is_away_delays_only_the_call():
    with kept() as server:
        (server.export / "f").write_bytes(b"f")
        server.stop()
        kill(server)
        with subprocess.Popen(["cat", server.mnt / "f"], stdout=subprocess.PIPE) as cat:
            server.start()
            assert cat.communicate(timeout=LIMIT)[0] == b"f"
        assert "restarted " in stats(server) and document(server)["restarts"] == 1
        assert "died" in (server.base / "log").read_text()


@on_kernels
def test_who_waits_for_a_silent_server_can_be_killed_under_the_next_program():
    with kept() as server:
        (server.export / "f").write_bytes(b"f")
        server.pause()
        with subprocess.Popen(["cat", server.mnt / "f"]) as cat:
            until(lambda: blocked(cat.pid), "a program that waits")
            kill(server)
            assert cat.poll() is None
            cat.kill()
            assert cat.wait(LIMIT) == -signal.SIGKILL
        server.child.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("how", ["umount", "lazy", "force", "SIGTERM", "SIGTERM to the holder"])
def test_a_mount_that_was_gone_on_with_ends_as_any_other(how):
    with kept() as server:
        (server.mnt / "f").write_bytes(b"f")
        kill(server)
        ends(server, how)


@pytest.mark.parametrize("how", ["-l", "-f"])
def test_what_was_unmounted_while_nobody_served_it_ends(how):
    root()
    with kept() as server:
        settled(server)
        holder, daemon = serving(server.mnt)
        os.kill(holder, signal.SIGSTOP)
        os.kill(daemon, signal.SIGKILL)
        until(lambda: state(daemon) in ("Z", None), "the end of the daemon")
        expect(run("umount", "-i", how, server.mnt), 0)
        os.kill(holder, signal.SIGCONT)
        until(lambda: not processes_of(server.mnt), "the end of the holder")
        assert not mounted(server.mnt)
