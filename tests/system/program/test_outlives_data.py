"""With restart=data, what programs have written is not lost when the program that serves the mount dies: nobody is told of
an error, and all of it reaches the server."""

import os
import random
import re
import signal
import sys

import pytest

from program.outlives_support import document, kept, killed_under, on_kernels
from program.support import *  # noqa: F403
from program.support import BIN, ROOT


def keeping(more=""):
    return kept(more, restart="data")


@pytest.mark.parametrize("kills", [1, 2])
@on_kernels
def test_data_that_the_server_has_not_got_are_there(kills):
    """The server is silent meanwhile, so that nothing can have been sent."""
    data = random.Random(1).randbytes((3 << 20) + 77)
    with keeping() as server:
        file = os.open(server.mnt / "f", os.O_CREAT | os.O_RDWR)
        os.fsync(file)
        server.pause()
        for at in range(0, len(data), 70_000):
            os.pwrite(file, data[at : at + 70_000], at)
        # No program is run from here on: it would close the file, and wait.
        log = server.base / "log"
        for number in range(1, kills + 1):
            _, daemon = serving(server.mnt)
            os.kill(daemon, signal.SIGKILL)
            until(lambda number=number: log.read_text().count("this one goes on") == number, "a successor")
        server.child.send_signal(signal.SIGCONT)
        assert os.pread(file, len(data), 0) == data
        os.fsync(file)
        os.close(file)
        assert (server.export / "f").read_bytes() == data
        assert "lost" not in (server.base / "log").read_text()


def test_a_file_larger_than_the_cache_is_written():
    with keeping("cache=32M") as server:
        block = random.Random(3).randbytes(1 << 20)
        rounds = []

        def write(going_on):
            while going_on():
                name = f"f{len(rounds)}"
                with open(server.mnt / name, "wb") as file:
                    for at in range(96):
                        file.write(block[at:] + block[:at])
                with open(server.export / name, "rb") as file:
                    for at in range(96):
                        assert file.read(1 << 20) == block[at:] + block[:at], at
                os.unlink(server.mnt / name)
                rounds.append(name)

        killed_under(server, write)
        assert rounds


def test_without_a_memfd_lost_data_are_told_of():
    """As where the limit of file sizes does not allow it."""
    with Server() as server:
        words = ["mount", server.spec, server.mnt, "-o", server.options("restart=data,nolock,dirty=32M"), "--log", server.base / "log"]
        result = run("prlimit", f"--fsize={32 << 20}", BIN / "nfsrdma", *words)
        if "ulimit" in result.stderr:
            pytest.skip("needs Linux 6.9")
        expect(result, 0)
        assert "written data would be lost" in (server.base / "log").read_text() + result.stderr
        file = os.open(server.mnt / "f", os.O_CREAT | os.O_WRONLY)
        os.fsync(file)
        daemon = document(server)["pid"]
        server.pause()
        os.write(file, b"x" * 1000)
        os.kill(daemon, signal.SIGKILL)
        server.child.send_signal(signal.SIGCONT)
        with pytest.raises(OSError):
            os.fsync(file)
        os.fsync(file)
        os.close(file)


def test_the_copy_that_the_readme_shows():
    """What its terminal shows is what these commands say."""
    blocks = re.findall(r"^```text\n(\$ .*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    (block,) = [block for block in blocks if "kill -9" in block]
    commands = [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]
    shown = [line for line in block.splitlines() if not line.startswith("$ ")]
    with Server() as server:
        (server.base / "disk.img").write_bytes(random.Random(5).randbytes(64 << 20))
        script = "\n".join(commands).replace("server:/srv", server.spec).replace("/mnt", str(server.mnt))
        script = script.replace("restart=data", server.options("restart=data"))
        # jq need not be installed, and /usr/bin/nfsrdma may be another one.
        jq = f"""jq() {{ {sys.executable} -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1][1:]])' "$1"; }}"""
        found = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
        done = run("bash", "-c", f"{jq}\n{script}", cwd=server.base, env=found)
        said = [line for line in done.stdout.splitlines() if "mounted on" not in line]
        assert said == shown, f"{said}: {done.stderr}"
        assert document(server)["restarts"] == 1
        assert (server.export / "disk.img").read_bytes() == (server.base / "disk.img").read_bytes()
