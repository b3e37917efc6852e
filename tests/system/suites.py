"""Functions that the suites of this directory share: waiting, ports, a responder."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: The seconds after which an expected event counts as missing.
LIMIT = 180


def programs():
    """The directory of our programs: NFSRDMA_BIN, or else they are built."""
    if given := os.environ.get("NFSRDMA_BIN"):
        return Path(given).resolve()
    build = ["cargo", "build", "--release", "--quiet", "-p", "nfsrdma", "-p", "nfsrdma-responder"]
    subprocess.run(build, cwd=ROOT, check=True)
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "release"


def until(condition, what, limit=LIMIT):
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {limit} s"
        time.sleep(0.02)


def state(pid):
    """The letter of a process's state; None if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None


def links_of(pid):
    """What the descriptors of a process are; one that is closed meanwhile is left out."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(os.readlink(link))
        except FileNotFoundError:
            continue
    return found


def of_threads(pid, file):
    """The text of such a file of /proc for each thread of a process; one that ends meanwhile is left out."""
    found = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            found.append((thread / file).read_text())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def blocked(pid):
    """Whether a process is in a system call that takes some time."""
    call = Path(f"/proc/{pid}/syscall")
    first = call.read_text()
    for _ in range(20):
        if first.startswith("running") or state(pid) not in ("D", "S") or call.read_text() != first:
            return False
        time.sleep(0.01)
    return True


def free_port():
    """A TCP port that is free on the loopback at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def stop(child, number=signal.SIGTERM, limit=10):
    """Ends a process, by force if it does not react."""
    child.send_signal(number)
    try:
        child.wait(limit)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def parent_of(pid):
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def servers_of(path, below=False):
    """The processes that serve a mount on `path` (or below it), without those that hold it only."""
    found = processes_of(path, below)
    parents = {parent_of(pid) for pid in found}
    return [pid for pid in found if pid not in parents]


def processes_of(path, below=False):
    """All processes of a mount on `path` (or below it), by their command lines."""
    found = []

    def meant(word):
        return word == os.fsencode(path) or (below and word.startswith(os.fsencode(path) + b"/"))

    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(map(meant, words)) and words[0].endswith(b"nfsrdma"):
                found.append(int(entry.name))
    return found


def kill_mount(path, below=False):
    """Kills all processes of a mount on `path` (or below it)."""
    kill_processes(processes_of(path, below))


def kill_processes(found):
    """Kills the processes of mounts. Holders come first: they would start others."""
    for pid in sorted(found, key=lambda pid: parent_of(pid) in found):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def mounts():
    """The fields of each mount. The kernel escapes blanks and newlines only: other characters do not end a field."""
    return [line.split(" ") for line in Path("/proc/self/mounts").read_text().rstrip("\n").split("\n")]


def leave_others_mounts():
    """Takes mounts of nfsrdma out of this mount namespace, which is a copy. They stay in others, and end without it."""
    for _, at, kind, *_ in mounts():
        if kind == "fuse.nfsrdma":
            path = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), at)
            subprocess.run(["umount", "--lazy", path], check=False)


def start_responder(command, folder, port=0, mountport=0, env=None):
    """Starts `nfsrdma-responder` by `command`. Returns it with the ports of NFS over RDMA, and of MOUNT over TCP.

    Ports of 0 are free ones. Its output, and its state for a restart, are in `folder`.
    """
    ports, log, state = folder / "ports", folder / "responder.log", folder / "state"
    state.mkdir(exist_ok=True)
    words = [*command, "--rdma-port", port, "--nfs-port", mountport, "--state-dir", state, "--print-ports"]
    with open(ports, "wb") as out, open(log, "ab") as err:
        child = subprocess.Popen([str(word) for word in words], stdout=out, stderr=err, env=env)
    try:
        until(lambda: child.poll() is not None or "ready" in ports.read_text(), "a server")
        assert child.poll() is None, log.read_text()
    except BaseException:
        child.kill()
        child.wait()
        raise
    said = dict(word.split("=") for word in ports.read_text().split()[1:])
    return child, int(said["rdma"]), int(said["nfs"])
