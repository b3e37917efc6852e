"""Callers that are killed while they wait for a silent server."""

import signal
import subprocess
import sys

import pytest

from program.support import *  # noqa: F403
from program.support import BIN

#: The seconds that a killed process may take to end, with allowance for a busy machine.
GONE = 10


def test_killed_outside_the_pid_namespace_of_the_mount(server):
    """The serving process cannot see the callers, as in a container whose mount others use."""
    root()
    if run("unshare", "--pid", "--fork", "true").returncode != 0:
        pytest.skip("unshare --pid is not permitted")
    (server.export / "file").write_text("x" * 100)
    command = [BIN / "nfsrdma", "mount", "-f", server.spec, server.mnt, "-o", server.options()]
    client = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", *map(str, command)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    callers = []
    try:
        until(lambda: mounted(server.mnt), "the mount")
        assert (server.mnt / "file").stat().st_size == 100
        server.pause()
        until(lambda: state(server.child.pid) in "Tt", "a stopped server")
        for program in (
            f"import os; os.stat({str(server.mnt / 'no name')!r})",
            f"import os; os.mkdir({str(server.mnt / 'made')!r})",
            f"open({str(server.mnt / 'file')!r}).read()",
        ):
            callers.append(subprocess.Popen([sys.executable, "-S", "-c", program], stderr=subprocess.DEVNULL))
        for caller in callers:
            until(lambda: blocked(caller.pid), "a call that waits")
        for caller in callers:
            caller.kill()
        ends = [caller.wait(timeout=GONE) for caller in callers]
        assert ends == [-signal.SIGKILL] * len(callers), ends
    finally:
        if server.child:
            server.child.send_signal(signal.SIGCONT)
        subprocess.run(["umount", "-l", server.mnt], check=False, capture_output=True)
        for child in [*callers, client]:
            try:
                child.wait(timeout=GONE)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
