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

        def change(procedure, program, meanwhile=lambda: None):
            before = settled(server)
            command(f"hold-reply {procedure}")
            words = [sys.executable, "-c", f"import os\n{program}"]
            with subprocess.Popen(words, cwd=server.base, stderr=subprocess.PIPE, text=True) as child:
                try:
                    command(f"wait-held 1 {LIMIT * 1000}")
                    meanwhile()
                    os.kill(before["pid"], signal.SIGKILL)
                finally:
                    command("clear")
                _, errors = child.communicate(timeout=LIMIT)
                assert child.returncode == 0, f"{program}: {errors}"
            assert document(server)["restarts"] == before["restarts"] + 1

        yield server, change
        unmount(server.mnt)
        assert "cannot remove" not in (server.base / "log").read_text()


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
        # The file is there, and its attributes are to be set, or are.
        for procedure, name in (("CREATE", "x"), ("SETATTR", "y")):
            change(procedure, f"os.umask(0)\nos.close(os.open('mnt/{name}', os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o604))")
            assert stat.S_IMODE((at / name).stat().st_mode) == 0o604
        assert sorted(os.listdir(at)) == ["h", "l", "p", "x", "y"]
        assert sorted(os.listdir(server.mnt)) == ["h", "l", "p", "x", "y"]
        assert (server.mnt / "h").read_bytes() == b"1"
        change("SETATTR", "os.truncate('mnt/h', 3)")
        assert (at / "h").read_bytes() == b"1\0\0"


@on_kernels
def test_what_others_made_meanwhile_stays():
    with crashing() as (server, change):
        at = server.export
        for name in ("f", "g"):
            (at / name).write_bytes(b"old")
        (at / "d").mkdir()
        change("REMOVE", "os.unlink('mnt/f')", lambda: (at / "f").write_bytes(b"new"))
        change("RMDIR", "os.rmdir('mnt/d')", lambda: (at / "d").mkdir())
        change("RENAME", "os.rename('mnt/g', 'mnt/h')", lambda: (at / "g").write_bytes(b"new"))
        for where in (at, server.mnt):
            assert sorted(os.listdir(where)) == ["d", "f", "g", "h"]
            assert [(where / name).read_bytes() for name in ("f", "g", "h")] == [b"new", b"new", b"old"]
        # They are new no more.
        os.unlink(server.mnt / "f")
        os.rename(server.mnt / "g", server.mnt / "h")
        os.rmdir(server.mnt / "d")
        assert os.listdir(at) == ["h"]
        assert (at / "h").read_bytes() == b"new"


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
            opened = [files.enter_context(open(server.mnt / name, "rb")) for name in ("f", "g", "h")]
            # It gets a hidden name; then so does the target of the rename.
            change("RENAME", "os.unlink('mnt/f')")
            change("RENAME", "os.rename('mnt/h', 'mnt/g')")
            # The new name leads to a file that is open.
            change("RENAME", "os.rename('mnt/g', 'mnt/i')")
            assert [file.read() for file in opened] == [b"f", b"g", b"h"]
            assert (server.mnt / "i").read_bytes() == b"h"
        until(lambda: os.listdir(server.export) == ["i"], "the removal of the hidden names")


@on_kernels
def test_a_hidden_name_that_was_removed_is_no_error():
    with crashing() as (server, change):
        (server.export / "f").touch()
        change("REMOVE", "file = os.open('mnt/f', os.O_RDONLY)\nos.unlink('mnt/f')\nos.close(file)")
