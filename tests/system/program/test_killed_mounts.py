"""A mount whose process is killed ends at once, whatever the process waits for in the kernel: it must not be a request to
its own mount, which nobody answers any more."""

import contextlib
import os
import signal
import subprocess

from program.outlives_support import on_kernels
from program.support import *  # noqa: F403
from program.support import BIN

ROUNDS = 150
# Seconds; it takes milliseconds.
ENDS = 30


def free(point):
    """Lets all who wait for a mount go, also one whose process cannot end."""
    while mounted(point):
        subprocess.run(["umount", "-i", "-f", point], stderr=subprocess.DEVNULL, timeout=LIMIT)
        subprocess.run(["umount", "-i", "-l", point], stderr=subprocess.DEVNULL, timeout=LIMIT)


def test_a_mount_that_is_killed_while_it_begins_is_gone():
    with Server() as server:
        command = [BIN / "nfsrdma", "mount", server.spec, server.mnt, "-f", "-o", server.options("nolock")]
        for round in range(ROUNDS):
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as program:
                try:
                    # At another moment each time.
                    while not mounted(server.mnt):
                        assert program.poll() is None, "it did not mount"
                    for _ in range(round % 50):
                        mounted(server.mnt)
                    program.kill()
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        program.wait(ENDS)
                    assert program.returncode == -signal.SIGKILL, f"round {round}: the process does not end"
                finally:
                    free(server.mnt)


def test_a_mount_that_is_killed_before_it_shows_is_gone():
    """One of its threads waits then for the answer to a look-up in it, which makes the copy that is mounted."""
    root()
    needs("strace")
    # The first answer to the kernel is that to INIT.
    killing = "strace -f -o /dev/null -P /dev/fuse -e trace=write -e inject=write:signal=KILL:when=2"
    with Server() as server:
        command = [*killing.split(), BIN / "nfsrdma", "mount", server.spec, server.mnt, "-f", "-o", server.options("nolock")]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as program:
            assert program.wait(ENDS) == -signal.SIGKILL
        until(lambda: not processes_of(server.mnt), "the end of all processes")
        assert not mounted(server.mnt)


@contextlib.contextmanager
def notifying(options, **more):
    """A mount whose process waits in a notification of the kernel: another client has changed a directory, whose names the
    kernel is told to look up again, and that waits for a LOOKUP in the directory. Gives the server, the process, the
    program that the LOOKUP is for, and the function for the server's control commands."""
    with scripted(**more) as (server, command):
        for name in ("a", "b", "c"):
            (server.export / "d").mkdir(exist_ok=True)
            (server.export / "d" / name).write_bytes(b"x")
        server.mount_well(f"nolock,actimeo=1{options}")
        (pid,) = servers_of(server.mnt)
        seen = server.mnt / "d"
        for name in os.listdir(seen):
            (seen / name).stat()
        with opening(seen, os.O_RDONLY | os.O_DIRECTORY) as within:
            command("hold LOOKUP 1")
            with subprocess.Popen(["stat", seen / "absent"], stderr=subprocess.DEVNULL) as program:
                try:
                    command(f"wait-held 1 {LIMIT * 1000}")
                    (server.export / "d" / "a").unlink()

                    def waits():
                        os.fstat(within)
                        return any(line.rpartition(") ")[2][0] == "D" for line in of_threads(pid, "stat"))

                    until(waits, "a notification that waits for the LOOKUP")
                    yield server, pid, program, command
                finally:
                    free(server.mnt)
                    command("release")


def test_a_mount_that_is_killed_while_it_notifies_the_kernel_is_gone():
    with notifying("") as (server, pid, program, _):
        kill_mount(server.mnt)
        until(lambda: is_gone(pid), "the end of the serving process", ENDS)
        assert program.wait(LIMIT) != 0


@on_kernels
def test_a_mount_goes_on_whose_process_is_killed_while_it_notifies_the_kernel():
    """The thread that waits cannot end before the next process has answered the LOOKUP."""
    with notifying(",restart=files") as (server, pid, program, command):
        os.kill(pid, signal.SIGKILL)
        until(lambda: servers_of(server.mnt) not in ([], [pid]), "a successor")
        command("release")
        assert program.wait(LIMIT) == 1
        until(lambda: is_gone(pid), "the end of the process that was killed", ENDS)
        assert sorted(os.listdir(server.mnt / "d")) == ["b", "c"]
