"""Changes that the server has carried out, and not answered, when the process dies that serves the mount."""

import os
import signal
import stat
import subprocess
import sys

from program.outlives_support import document, on_kernels, settled
from program.support import *  # noqa: F403


@contextlib.contextmanager
def crashing(restart="files"):
    """A server, and a function by which a program makes a change. The process that serves the mount dies when the
    server has carried out a call of `procedure` and not answered it."""
    with scripted() as (server, command):
        result = server.mount(f"restart={restart},nolock", "--log", server.base / "log")
        expect(result, 0)

        def change(procedure, program):
            before = settled(server)
            command(f"hold-reply {procedure}")
            words = [sys.executable, "-c", f"import os\n{program}"]
            with subprocess.Popen(words, cwd=server.base, stderr=subprocess.PIPE, text=True) as child:
                try:
                    command(f"wait-held 1 {LIMIT * 1000}")
                    os.kill(before["pid"], signal.SIGKILL)
                finally:
                    command("clear")
                _, errors = child.communicate(timeout=LIMIT)
                assert child.returncode == 0, f"{program}: {errors}"
            assert document(server)["restarts"] == before["restarts"] + 1

        yield server, change
        expect(nfsrdma("umount", server.mnt), 0)
        server.ended()


@on_kernels
def test_names_that_were_changed():
    with crashing() as (server, change):
        at = server.export
        change("MKDIR", "os.mkdir('mnt/d')")
        assert (at / "d").is_dir()
        change("RMDIR", "os.rmdir('mnt/d')")
        change("SYMLINK", "os.symlink('there', 'mnt/l')")
        change("MKNOD", "os.mkfifo('mnt/p')")
        (at / "f").write_bytes(b"1")
        change("RENAME", "os.rename('mnt/f', 'mnt/g')")
        change("LINK", "os.link('mnt/g', 'mnt/h')")
        change("REMOVE", "os.unlink('mnt/g')")
        assert sorted(os.listdir(at)) == ["h", "l", "p"]
        assert sorted(os.listdir(server.mnt)) == ["h", "l", "p"]
        assert (server.mnt / "h").read_bytes() == b"1"


@on_kernels
def test_attributes_that_were_set():
    with crashing() as (server, change):
        file = server.export / "f"
        file.write_bytes(b"text")
        change("SETATTR", "os.chmod('mnt/f', 0o604)")
        change("SETATTR", "os.utime('mnt/f', (1, 2))")
        assert (stat.S_IMODE(file.stat().st_mode), file.stat().st_mtime) == (0o604, 2)
        change("SETATTR", "os.truncate('mnt/f', 2)")
        assert file.read_bytes() == b"te"
        change("SETATTR", "os.close(os.open('mnt/f', os.O_WRONLY | os.O_TRUNC))")
        assert file.read_bytes() == b""


@on_kernels
def test_files_that_were_created():
    """The server recognises the verifier before the attributes are set, and the client its mark after that."""
    with crashing() as (server, change):
        for number, procedure in enumerate(("CREATE", "SETATTR")):
            opened = f"os.open('mnt/{number}', os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640)"
            change(procedure, f"file = {opened}\nassert os.write(file, b'text') == 4\nos.close(file)")
            file = server.export / str(number)
            assert file.read_bytes() == b"text"
            assert stat.S_IMODE(file.stat().st_mode) == 0o640
        change("CREATE", "os.close(os.open('mnt/plain', os.O_CREAT | os.O_WRONLY, 0o400))")


@on_kernels
def test_an_append_is_there_once():
    with crashing() as (server, change):
        (server.export / "f").write_bytes(b"one\n")
        opened = "os.open('mnt/f', os.O_WRONLY | os.O_APPEND | os.O_DIRECT)"
        change("WRITE", f"file = {opened}\nassert os.write(file, b'two\\n') == 4\nos.close(file)")
        assert (server.export / "f").read_bytes() == b"one\ntwo\n"


@on_kernels
def test_files_that_are_open_keep_their_data():
    with crashing() as (server, change):
        for name in ("f", "g", "h"):
            (server.export / name).write_bytes(name.encode())
        with contextlib.ExitStack() as files:
            opened = [files.enter_context(open(server.mnt / name, "rb")) for name in ("f", "g")]
            # It gets a hidden name; then so does the target of the rename.
            change("RENAME", "os.unlink('mnt/f')")
            change("RENAME", "os.rename('mnt/h', 'mnt/g')")
            assert [file.read() for file in opened] == [b"f", b"g"]
            assert (server.mnt / "g").read_bytes() == b"h"
        until(lambda: os.listdir(server.export) == ["g"], "the removal of the hidden names")


@on_kernels
def test_data_are_there_once():
    with crashing("data") as (server, change):
        at = server.export
        (at / "f").write_bytes(b"one\n")
        for flag in ("O_SYNC", "O_DIRECT"):
            opened = f"os.open('mnt/f', os.O_WRONLY | os.O_APPEND | os.{flag})"
            change("WRITE", f"file = {opened}\nassert os.write(file, b'two\\n') == 4\nos.close(file)")
        assert (at / "f").read_bytes() == b"one\ntwo\ntwo\n"
        for name, end in (("fsync", "os.fsync(file)"), ("close", "os.close(file)")):
            opened = f"os.open('mnt/{name}', os.O_WRONLY | os.O_CREAT)"
            change("WRITE", f"file = {opened}\nos.write(file, b'x' * 300000)\n{end}")
            assert (at / name).read_bytes() == b"x" * 300000
        opened = "os.open('mnt/fsync', os.O_RDWR)"
        change("WRITE", f"file = {opened}\nos.pwrite(file, b'y' * 10, 5000)\nos.ftruncate(file, 5005)\nos.close(file)")
        assert (at / "fsync").read_bytes() == b"x" * 5000 + b"y" * 5
