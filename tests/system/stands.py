"""What the suites of random calls share: namespaces of their own, a server on a file system in memory, mounts of it, and an
end where a call hangs."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from suites import kill_mount, leave_others_mounts, programs, start_responder, stop

INSIDE = "NFSRDMA_INSIDE_NAMESPACES"
NAMESPACES = "setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child --mount-proc".split()
"""They end with the process that began them."""


def enter_namespaces():
    """Goes on as the first process of namespaces, with which all mounts and processes end. Exits where that cannot be."""
    if os.environ.pop(INSIDE, None):
        leave_others_mounts()
        return
    missing = None if os.path.exists("/dev/fuse") and os.geteuid() == 0 else "/dev/fuse and root"
    if not missing and subprocess.run([*NAMESPACES, "true"], check=False).returncode:
        missing = "namespaces (unshare)"
    if missing:
        print(f"skipped: needs {missing}", file=sys.stderr)
        print("0 passed, 0 failed, 1 skipped")
        sys.exit(77)
    environment = {**os.environ, "NFSRDMA_BIN": str(programs()), INSIDE: "1"}
    child = subprocess.Popen([*NAMESPACES, sys.executable, *sys.argv], env=environment)
    # The first process of a namespace gets no signal that it does not handle, and unshare lets none through.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: child.kill())
    status = child.wait()
    sys.exit(status if status >= 0 else 128 - status)


class Ground:
    """A directory with a file system in memory (or that of `directory`), a server in it, and mounts of its export."""

    def __init__(self, name, directory=None):
        self.base = Path(tempfile.mkdtemp(prefix=f"nfsrdma-{name}.", dir=directory)).resolve()
        # Reading from a cache does not change the access time (docs/SEMANTICS.md): so reading never changes it here.
        what = ["--bind", "-o", "noatime", self.base] if directory else ["-t", "tmpfs", "-o", "size=2g,noatime", "tmpfs"]
        subprocess.run(["mount", *what, self.base], check=True)
        self.base.chmod(0o755)
        self.export, self.mounts = self.base / "exp", []
        self.export.mkdir(0o755)

    def serve(self, *words):
        self.server, self.rdma, self.nfs = start_responder([programs() / "nfsrdma-responder", self.export, *words], self.base)

    def log(self, at):
        return at.with_suffix(".log")

    def mount(self, name, options="", **environment):
        at = self.base / name
        at.mkdir(0o755)
        own = f"port={self.rdma},mountport={self.nfs},mountproto=tcp,noresvport"
        words = [f"127.0.0.1:{self.export}", at, "-o", f"{own},{options}" if options else own, "--log", self.log(at)]
        command = [programs() / "nfsrdma", "mount", *words]
        subprocess.run(command, check=True, env={**os.environ, **environment}, stdout=subprocess.DEVNULL)
        self.mounts.append(at)
        return at

    def unmount(self):
        while self.mounts:
            subprocess.run([programs() / "nfsrdma", "umount", self.mounts.pop()], check=True, stdout=subprocess.DEVNULL)

    def keep_logs(self):
        kept = tempfile.mkdtemp(prefix=f"{self.base.name}.logs.")
        for log in self.base.glob("*.log"):
            shutil.copy(log, kept)
        print(f"logs are kept in {kept}", flush=True)

    def end(self):
        for at in self.mounts:
            subprocess.run(["umount", "-l", at], check=False)
            kill_mount(at)
        stop(self.server)
        subprocess.run(["umount", "-l", self.base], check=False)
        shutil.rmtree(self.base, ignore_errors=True)


class Watch:
    """Ends the program when a call does not return, with all processes and mounts of its namespaces."""

    def __init__(self, patience, last=lambda: None):
        """`last` is called before the end."""
        self.patience, self.last = patience, last
        self.note("the beginning")
        threading.Thread(target=self._watch, daemon=True).start()

    def note(self, what):
        self.since, self.current = time.monotonic(), what

    def _watch(self):
        while time.monotonic() - self.since < self.patience:
            time.sleep(1)
        try:
            self.last()
            print(f"FAILED   no answer within {self.patience} s: {self.current}\n0 passed, 1 failed, 0 skipped", flush=True)
        finally:
            # A thread in a call that nothing ends keeps this process. Without the daemons, the calls on their mounts return.
            if os.getpid() == 1:
                os.kill(-1, signal.SIGKILL)
            os._exit(1)
