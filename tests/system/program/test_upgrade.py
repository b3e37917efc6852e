"""`nfsrdma upgrade`: the program of a mount is exchanged, and programs that use the mount do not see it."""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from program import test_locks_outlive as locks
from program import test_outlives as outlives
from program.outlives_support import document, ends, kill, on_kernels, working
from program.support import *  # noqa: F403


class Upgradable(Server):
    """A server with a mount that was made by a program of its own, `program`, which tests exchange."""

    def __enter__(self):
        super().__enter__()
        self.log = self.base / "log"
        self.program = self.base / "bin" / "nfsrdma"
        self.program.parent.mkdir()
        shutil.copy2(BIN / "nfsrdma", self.program)
        return self

    def mount_kept(self, more="", restart="files", enter=()):
        options = self.options(f"restart={restart},nolock{',' if more else ''}{more}")
        # For the scripts of `install`.
        found = {**os.environ, "PATH": f"{self.program.parent}:{os.environ['PATH']}"}
        result = run(*enter, self.program, "mount", self.spec, self.mnt, "-o", options, "--log", self.log, env=found)
        expect(result, 0, f"{self.spec} mounted on {self.mnt}: ")

    def install(self, text=None):
        """Puts another program at the path as a package does: the same one again, or one that does what this script of
        bash says. It has the words after `nfsrdma serve`."""
        fresh = self.program.with_name("fresh")
        shutil.copy2(BIN / "nfsrdma" if text is None else shutil.which("bash"), fresh)
        # bash takes its first word for the name of a script.
        self.program.with_name("serve").write_text(text or "")
        fresh.rename(self.program)


@contextlib.contextmanager
def kept(more="", restart="files"):
    with Upgradable() as server:
        server.mount_kept(more, restart)
        yield server


def upgrade(server):
    expect(nfsrdma("upgrade", server.mnt), 0, f"{server.mnt}: served by nfsrdma ")


def upgraded(server):
    """Upgrades, and checks that another process serves."""
    before = document(server)
    upgrade(server)
    after = document(server)
    assert after["pid"] != before["pid"]
    assert (after["restarts"], after["upgrades"]) == (before["restarts"] + 1, before["upgrades"] + 1)


def test_another_program_goes_on_with_the_mount():
    with kept() as server:
        (server.export / "f").write_bytes(b"hello")
        assert (server.mnt / "f").read_bytes() == b"hello"
        server.install()
        upgraded(server)
        serving = document(server)["pid"]
        assert os.readlink(f"/proc/{serving}/exe") == str(server.program)
        assert (server.mnt / "f").read_bytes() == b"hello"
        (server.mnt / "g").write_bytes(b"new")
        assert (server.export / "g").read_bytes() == b"new"
        upgraded(server)
        said = server.log.read_text()
        assert "upgraded: nfsrdma " in said and "died" not in said


@pytest.mark.parametrize(
    "test", [outlives.test_what_is_open_stays_open, outlives.test_an_unlinked_file_is_readable_and_goes_at_the_last_close]
)
def test_what_is_open_stays_open(test, monkeypatch):
    monkeypatch.setattr(outlives, "kill", upgraded)
    test()


NOT_NOW = {
    "missing": (None, "No such file or directory"),
    "not executable": ("", "Permission denied"),
    "ends at once": ("exit 3", "ended with status 3"),
    "killed": ("kill -9 $$", "ended with SIGKILL"),
    "without upgrades": ("[ $1 != --beside ] || exit 1", "ended with status 1"),
    "silent": ("exec sleep 1000", "was not ready within 10 s"),
}


@pytest.mark.parametrize("why", NOT_NOW)
def test_a_program_that_does_not_go_on_leaves_the_old_one(why):
    text, said = NOT_NOW[why]
    with kept() as server:
        before = document(server)["pid"]
        if text is None:
            server.program.unlink()
        else:
            server.install(text)
        if why == "not executable":
            server.program.chmod(0o644)
        (server.mnt / "f").write_bytes(b"f")
        expect(nfsrdma("upgrade", server.mnt), 32, f"{server.mnt} is not upgraded: ", said)
        assert document(server)["pid"] == before
        assert (server.mnt / "f").read_bytes() == b"f"
        (server.mnt / "g").write_bytes(b"g")
        server.install()
        upgraded(server)
        assert (server.mnt / "g").read_bytes() == b"g"


@pytest.mark.parametrize("text", [None, "exit 3", "kill -9 $$"], ids=["missing", "ends", "killed"])
def test_after_a_crash_the_program_that_mounted_goes_on_if_the_new_one_does_not(text):
    """The new one may not know the state that is kept, which an upgrade would have told; or there is none."""
    with kept() as server:
        if text is None:
            server.program.unlink()
        else:
            server.install(text)
        # As many as would end a mount that fails by itself.
        for nth in range(5):
            kill(server)
            (server.mnt / f"{nth}").write_bytes(b"f")
        assert server.log.read_text().count("cannot start") == (5 if text is None else 0)
        server.install()
        kill(server)
        assert os.readlink(f"/proc/{document(server)['pid']}/exe") == str(server.program)
        assert len(os.listdir(server.mnt)) == 5


def test_a_program_that_does_not_know_the_format_leaves_the_old_one():
    with kept() as server:
        before = document(server)["pid"]
        holder, = set(processes_of(server.mnt)) - {before}
        links = [Path(f"/proc/{holder}/fd/{fd}") for fd in os.listdir(f"/proc/{holder}/fd")]
        table, = [link for link in links if "memfd:nfsrdma-table" in os.readlink(link)]
        with open(table, "r+b", buffering=0) as memory:
            version = os.pread(memory.fileno(), 4, 8)
            os.pwrite(memory.fileno(), (99).to_bytes(4, sys.byteorder), 8)
            expect(nfsrdma("upgrade", server.mnt), 32, "has format 99, and this program reads format ")
            assert document(server)["pid"] == before
            os.pwrite(memory.fileno(), version, 8)
        upgraded(server)


def test_a_program_that_dies_when_it_is_to_go_on_leaves_the_old_one():
    """The old program is stopped by then."""
    with kept() as server:
        before = document(server)["pid"]
        # It is killed as soon as the old one is stopped.
        server.install(
            f"( until grep -q '^State:.T' /proc/{before}/status; do :; done; kill -9 $$ ) </dev/null >/dev/null 2>&1 &\n"
            f"exec {BIN / 'nfsrdma'} serve \"$@\"\n"
        )
        with working(lambda going_on: [os.listdir(server.mnt) for _ in iter(going_on, False)]):
            result = nfsrdma("upgrade", server.mnt)
        # It may have been faster, or have died when it had the mount: then it is as after a crash.
        assert result.returncode in (0, 32), result.stderr
        if result.returncode and "its program ended meanwhile" not in result.stderr:
            assert document(server)["pid"] == before
        assert os.listdir(server.mnt) == []


def test_a_program_that_cannot_have_its_threads_leaves_the_old_one():
    root()
    with kept() as server:
        before = document(server)["pid"]
        holder, = set(processes_of(server.mnt)) - {before}
        # Those of its runtime, and no more.
        with limited_threads(holder, 7):
            expect(nfsrdma("upgrade", server.mnt), 32, f"{server.mnt} is not upgraded: cannot start the mount's threads")
            assert document(server)["pid"] == before
            unmount(server.mnt)


def test_the_old_program_is_killed_meanwhile():
    with kept() as server:
        before = document(server)["pid"]
        server.install(f"[ $1 = --beside ] || exec {BIN / 'nfsrdma'} serve \"$@\"; kill -9 {before}; exec sleep 1000")
        with subprocess.Popen([BIN / "nfsrdma", "upgrade", server.mnt], stderr=subprocess.PIPE, text=True) as command:
            until(lambda: state(before) in (None, "Z"), "the end of the old program")
            server.install()
            assert command.wait(LIMIT) == 32
            assert "is not upgraded: its program ended meanwhile" in command.stderr.read()
        (server.mnt / "f").write_bytes(b"f")
        until(lambda: document(server)["pid"] != before, "a successor")
        upgraded(server)


@on_kernels
def test_a_silent_server_does_not_hold_it_up():
    with kept() as server:
        (server.export / "f").write_bytes(b"f")
        server.pause()
        with subprocess.Popen(["cat", server.mnt / "f"], stdout=subprocess.PIPE) as cat:
            upgrade(server)
            server.child.send_signal(signal.SIGCONT)
            assert cat.communicate(timeout=LIMIT)[0] == b"f"


@pytest.mark.parametrize("restart", ["files", "data"])
def test_data_that_a_silent_server_does_not_take_are_not_lost(restart):
    """Nobody but the old program has them, so that one stays; or both have, and the new one goes on."""
    with kept("dirty=32M", restart) as server:
        (server.export / "f").touch()
        before = document(server)["pid"]
        # The file is open in another program only: one that is started here would close it, and wait for that.
        script = (
            "import os, sys; f = os.open(sys.argv[1], os.O_WRONLY); print(flush=True); input();"
            "os.write(f, b'x' * 1000); print(flush=True); input(); os.fsync(f)"
        )
        words = [sys.executable, "-c", script, server.mnt / "f"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        with subprocess.Popen(words, **pipes) as writer:
            try:
                assert writer.stdout.readline()
                server.pause()
                writer.stdin.write("\n")
                assert writer.stdout.readline()
                if restart == "data":
                    upgrade(server)
                    assert document(server)["pid"] != before
                else:
                    expect(nfsrdma("upgrade", server.mnt), 32, "has not taken within 10 s what programs have written")
                    assert document(server)["pid"] == before
            finally:
                server.child.send_signal(signal.SIGCONT)
            upgraded(server)
            writer.stdin.write("\n")
            assert writer.wait(LIMIT) == 0
        assert (server.export / "f").read_bytes() == b"x" * 1000


def test_two_at_once():
    with kept() as server:
        words = [BIN / "nfsrdma", "upgrade", server.mnt]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        commands = [subprocess.Popen(words, **pipes) for _ in range(2)]
        ended = [(command.communicate(timeout=LIMIT), command.returncode) for command in commands]
        assert 0 in [status for _, status in ended], ended
        for (_, said), status in ended:
            assert status == 0 or "another upgrade" in said or "ended meanwhile" in said, said
        assert os.listdir(server.mnt) == []
        upgraded(server)


# Sockets in a directory of its own, as in a container; $0 is that.
CONTAINER = """
mount --make-private "$(findmnt -nT /run/nfsrdma -o TARGET)" && mount --bind "$0" /run/nfsrdma && exec "$@"
"""


def test_a_container_may_ask_that_has_the_sockets_of_the_other_one():
    """Two of them share the directory of the sockets, that of the program, and one in which the mount appears."""
    root()
    with Upgradable() as server:
        sockets, shared = server.base / "run", server.base / "shared"
        Path("/run/nfsrdma").mkdir(mode=0o700, exist_ok=True)
        sockets.mkdir(mode=0o700)
        shared.mkdir()
        expect(run("mount", "-t", "tmpfs", "shared", shared), 0)
        expect(run("mount", "--make-shared", shared), 0)
        server.mnt = shared / "data"
        server.mnt.mkdir()
        enter = ["unshare", "-m", "--propagation", "unchanged", "sh", "-c", CONTAINER, sockets]
        if run(*enter, "true").returncode != 0:
            pytest.skip("unshare -m is not permitted")
        server.mount_kept(enter=enter)

        def beside(*words):
            return run_over(sockets, "/run/nfsrdma", BIN / "nfsrdma", *words)

        (server.mnt / "f").write_bytes(b"hello")
        expect(nfsrdma("upgrade", server.mnt), 32, f"nobody answers for {server.mnt}")
        before = json.loads(beside("stats", "--json", server.mnt).stdout)
        server.install()
        expect(beside("upgrade", server.mnt), 0, f"{server.mnt}: served by nfsrdma ")
        after = json.loads(beside("stats", "--json", server.mnt).stdout)
        assert (after["restarts"], after["upgrades"]) == (before["restarts"] + 1, before["upgrades"] + 1)
        assert os.path.samefile(f"/proc/{after['pid']}/exe", server.program)
        assert (server.mnt / "f").read_bytes() == b"hello"


def test_another_user_may_not_ask():
    with kept("allow_other") as server:
        before = document(server)["pid"]
        expect(as_nobody(BIN / "nfsrdma", "upgrade", server.mnt), 1, "only root and the user who mounted it may ask")
        assert document(server)["pid"] == before


def test_a_mount_without_restart_is_not_upgraded(server):
    server.mount_well("restart=no")
    expect(nfsrdma("upgrade", server.mnt), 1, f"{server.mnt} is not upgraded: it was mounted without restart=")
    said = nfsrdma("upgrade", "--all")
    assert f"{server.mnt} is not upgraded: it was mounted without restart=" in said.stderr


def test_all_are_upgraded_also_after_a_failure():
    with kept() as bad, kept() as good:
        before = [document(server)["pid"] for server in (bad, good)]
        bad.program.unlink()
        result = nfsrdma("upgrade", "--all")
        assert result.returncode == 32
        assert f"{bad.mnt} is not upgraded: cannot start {bad.program}" in result.stderr
        assert f"{good.mnt}: served by nfsrdma" in result.stdout
        assert re.search(r"not upgraded: 1 of \d+; see above$", result.stderr.rstrip())
        after = [document(server)["pid"] for server in (bad, good)]
        assert before[0] == after[0] and before[1] != after[1]


@contextlib.contextmanager
def silent_mount(uid):
    """A mount of another user, whose program takes requests and answers none."""
    with tempfile.TemporaryDirectory(prefix=f"nfsrdma-{uid}-", dir="/tmp") as folder, open("/dev/fuse", "r+b", 0) as fuse:
        point = Path(folder) / "mnt"
        point.mkdir()
        options = f"fd={fuse.fileno()},rootmode=40000,user_id={uid},group_id={uid}"
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mount(b"silent", bytes(point), b"fuse.nfsrdma", 0, options.encode()) == 0, os.strerror(ctypes.get_errno())
        try:
            device, = [line.split()[2] for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(point) in line]
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(f"{folder}/{device}.control")
                listener.listen()
                os.chown(folder, uid, uid)
                yield point
        finally:
            assert libc.umount2(bytes(point), 2) == 0


def test_programs_of_others_that_do_not_answer_are_waited_for_once():
    root()
    with kept() as server, silent_mount(61001) as one, silent_mount(61002) as two:
        before, began = document(server)["pid"], time.monotonic()
        result = nfsrdma("upgrade", "--all")
        assert time.monotonic() - began < 55, "30 s for both"
        assert result.returncode == 32
        for point in (one, two):
            assert f"cannot ask the process that serves {point}" in result.stderr
        assert document(server)["pid"] != before


def test_metrics_are_served_on():
    import urllib.request  # noqa: PLC0415

    port = free_port()
    with kept(f"metrics={port}") as server:
        for _ in range(2):
            upgraded(server)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT) as answer:
                assert str(server.mnt) in answer.read().decode()


@pytest.mark.parametrize("how", ["umount", "lazy", "force", "SIGTERM"])
def test_an_upgraded_mount_ends_as_any_other(how):
    with kept() as server:
        (server.mnt / "f").write_bytes(b"f")
        upgraded(server)
        ends(server, how)


@pytest.mark.parametrize(
    ("test", "words"),
    [
        (locks.test_locks_are_held_and_released_as_if_nothing_had_happened, []),
        (locks.test_flock_is_held_until_the_last_descriptor_is_closed, []),
        (locks.test_a_program_that_waits_gets_the_lock_once_and_later, ["callback"]),
    ],
    ids=["owners", "flock", "waiter"],
)
def test_locks_are_kept_as_over_a_crash(test, words, monkeypatch):
    monkeypatch.setattr(locks, "kill", lambda point: expect(nfsrdma("upgrade", point), 0))
    test(*words)
