"""Old and new, and what is kept: docs/COHERENCE.md, with two mounts of a real export."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from support import *  # noqa: F403

PAGE = 4096


def page(descriptor, number):
    return os.pread(descriptor, PAGE, number * PAGE)


class Opened:
    """An open file of a mount, closed at the end."""

    def __init__(self, path, flags=os.O_RDWR):
        self.path, self.flags = path, flags

    def __enter__(self):
        self.descriptor = os.open(self.path, self.flags)
        return self.descriptor

    def __exit__(self, *_):
        os.close(self.descriptor)


def both_write(change):
    """A reads, `change` is made, A writes much and closes, A opens again: it must see the change."""
    with Server() as server:
        (server.export / "f").write_bytes(b"o" * 4 * PAGE)
        server.mount_well("actimeo=3600")
        other = server.base / "other"
        other.mkdir()
        expect(server.mount("actimeo=3600", at=other), 0)
        # The second mount is told from the first by its path only.
        places = {"mount": other / "f", "server": server.export / "f"}
        for round, size in enumerate((8 << 20, 100, 100, 100)):
            with Opened(server.mnt / "f") as own:
                page(own, 0)
                text = bytes([ord("A") + round]) * PAGE
                with Opened(places[change]) as theirs:
                    os.pwrite(theirs, text, 0)
                written = os.pwrite(own, b"w" * size, 4 * PAGE)
                assert written == size, written
            with Opened(server.mnt / "f") as own:
                found = page(own, 0)
            assert found == text, f"round {round}: {found[:1]} is read where {text[:1]} was written"


@case
def another_mount_s_change_is_seen_on_open_though_this_one_wrote():
    both_write("mount")


@case
def a_change_at_the_server_is_seen_on_open_though_this_mount_wrote():
    both_write("server")


@case
def a_time_set_before_close_outlives_a_restart_of_the_server():
    with Server() as server:
        server.mount_well()
        for name, size in (("small", 100), ("large", 8 << 20)):
            # A program of its own, which can be killed if the server does not come back.
            script = (
                "import os, sys; own = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); size = int(sys.argv[2]);"
                "[os.write(own, b'x' * min(size, 1 << 20)) for _ in range((size + (1 << 20) - 1) >> 20)];"
                "os.utime(own, (1_000_000, 1_000_000)); print(flush=True); sys.stdin.read(); os.close(own)"
            )
            words = [sys.executable, "-c", script, server.mnt / name, str(size)]
            program = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            try:
                assert program.stdout.readline() == b"\n"
                server.child.send_signal(signal.SIGKILL)
                server.child.wait()
                server.start()
                program.communicate(timeout=LIMIT)
                assert program.returncode == 0, program.returncode
            finally:
                program.kill()
                program.communicate()
            found = os.stat(server.export / name)
            assert (found.st_mtime, found.st_size) == (1_000_000, size), found


@case
def a_set_uid_bit_that_a_write_clears_is_shown_cleared_at_once():
    root()
    with Server() as server:
        file = server.export / "f"
        file.write_bytes(b"program")
        file.chmod(0o4777)
        server.mount_well("allow_other,actimeo=3600")
        path = server.mnt / "f"

        def mode():
            # Asks for the mode and nothing else.
            result = run("stat", "-c", "%a", path)
            expect(result, 0)
            return result.stdout.strip()

        assert mode() == "4777", mode()
        expect(as_nobody("dd", "if=/dev/zero", f"of={path}", "bs=1", "count=1", "conv=notrunc,fsync"), 0)
        at_server = f"{Path(file).stat().st_mode & 0o7777:o}"
        if at_server != "777":
            raise Skip(f"this server leaves the mode {at_server}")
        until(lambda: mode() == "777", "the mode without the bit")
