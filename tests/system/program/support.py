"""Parts of all tests: running programs, a directory for each test, a responder."""

import contextlib
import functools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from suites import (  # noqa: F401
    LIMIT,
    blocked,
    free_port,
    kill_mount,
    kill_processes,
    leave_others_mounts,
    links_of,
    mounts,
    of_threads,
    parent_of,
    processes_of,
    programs,
    servers_of,
    start_responder,
    state,
    stop,
    until,
)

ROOT = Path(__file__).resolve().parents[3]


class Programs:
    """The directory of our programs: NFSRDMA_BIN, or else they are built at first use."""

    @functools.cached_property
    def folder(self):
        return programs()

    def __truediv__(self, name):
        return self.folder / name

    def __str__(self):
        return str(self.folder)


BIN = Programs()


GIVEN = set()
"""The names of the mount options given to programs so far; a test may clear it."""


def run(*command, limit=LIMIT, **more):
    note_options(command)
    return subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=limit, check=False, **more
    )


def note_options(command):
    for before, word in zip(command, command[1:]):
        if before == "-o":
            GIVEN.update(option.partition("=")[0] for option in word.split(","))


def nfsrdma(*words, **more):
    return run(BIN / "nfsrdma", *words, **more)


@contextlib.contextmanager
def running(*command, **more):
    """A program (subprocess.Popen), which is killed at the end of the block."""
    with subprocess.Popen([str(word) for word in command], **more) as child:
        try:
            yield child
        finally:
            child.kill()


@contextlib.contextmanager
def opening(path, flags=os.O_RDWR, *mode, **more):
    """A descriptor, which is closed at the end of the block."""
    descriptor = os.open(path, flags, *mode, **more)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def is_gone(pid):
    """Whether no thread of a process is left. (A process that is gone but for one has no command line either.)"""
    try:
        return all(line.rpartition(") ")[2][0] in "ZX" for line in of_threads(pid, "stat"))
    except FileNotFoundError:
        return True


def pause(pid):
    """Stops a process by SIGSTOP, and waits until all of its threads are stopped: until then some of them go on."""
    os.kill(pid, signal.SIGSTOP)
    stopped = lambda line: line.rpartition(") ")[2].startswith("T")
    until(lambda: all(map(stopped, of_threads(pid, "stat"))), "a process that is stopped")


@contextlib.contextmanager
def asleep(*pids):
    """Processes are stopped, and notice nothing."""
    try:
        for pid in pids:
            pause(pid)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def expect(result, status, *parts):
    """Checks that the exit status is `status` and that the output has each part. A failure must be one line."""
    said = result.stdout + result.stderr
    assert result.returncode == status, f"status {result.returncode}, not {status}: {said}"
    for part in parts:
        assert part in said, f"{part!r} is not in {said!r}"
    if status not in (0, 1):
        assert result.stderr.count("\n") == 1, f"not one sentence: {said!r}"


def mounted(path):
    """The fields of the mount on `path` in /proc/self/mounts, or None."""
    found = [fields for fields in mounts() if fields[1] == str(path)]
    return found[-1] if found else None


def mounts_below(base):
    """Mount points below `base`, the newest first."""
    points = [fields[1] for fields in mounts()]
    return [point for point in reversed(points) if point.startswith(f"{base}/")]


def serving(path):
    """The holder and the daemon of a mount with restart=; None as long as these are not two processes."""
    found = processes_of(path)
    pairs = [(parent_of(pid), pid) for pid in found if parent_of(pid) in found]
    return pairs[0] if len(found) == 2 and pairs else None


class Place:
    """A directory with an empty mount point `mnt`. It leaves no mount and no process behind."""

    def __enter__(self):
        self.base = Path(tempfile.mkdtemp(prefix="nfsrdma-program.")).resolve()
        self.base.chmod(0o755)
        self.mnt = self.base / "mnt"
        self.mnt.mkdir()
        return self

    def __exit__(self, *_):
        for point in mounts_below(self.base):
            # It may end by itself meanwhile.
            left = subprocess.run(["umount", "-l", point], timeout=LIMIT).returncode and mounted(point)
            assert not left, f"{point} cannot be unmounted"
        kill_mount(self.base, below=True)
        shutil.rmtree(self.base)


class Server(Place):
    """A place with a responder that exports `export`; `words` are further arguments of the responder."""

    def __init__(self, *words, host="127.0.0.1", environment=None):
        self.words, self.host, self.environment = words, host, environment

    def __enter__(self):
        if not os.access("/dev/fuse", os.R_OK | os.W_OK):
            pytest.skip("no /dev/fuse")
        super().__enter__()
        self.child = None
        try:
            self.export = self.base / "export"
            self.export.mkdir()
            self.export.chmod(0o777)
            self.port = self.mountport = 0
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def enter(self):
        """The words before the responder's, to run it elsewhere."""
        return []

    def start(self):
        """Starts the responder, at its previous ports if it had some."""
        command = [*self.enter(), BIN / "nfsrdma-responder", self.export, *self.words]
        ports = (self.port, self.mountport)
        self.child, self.port, self.mountport = start_responder(command, self.base, *ports, env=self.environment)

    def pause(self):
        pause(self.child.pid)

    def stop(self):
        if self.child:
            self.child.send_signal(signal.SIGCONT)
            stop(self.child)
            self.child = None

    def __exit__(self, *_):
        if self.child:
            # A test that failed while it was stopped must not wait for it here.
            self.child.send_signal(signal.SIGCONT)
        try:
            super().__exit__()
        finally:
            self.stop()

    @property
    def spec(self):
        return f"{self.host}:{self.export}"

    def options(self, more=""):
        own = f"port={self.port},mountport={self.mountport},mountproto=tcp,noresvport"
        return f"{own},{more}" if more else own

    def mount(self, more="", *words, at=None, **keywords):
        return nfsrdma("mount", self.spec, at or self.mnt, "-o", self.options(more), *words, **keywords)

    def mount_well(self, more="", *words):
        result = self.mount(more, *words)
        expect(result, 0, f"{self.spec} mounted on {self.mnt}: ")
        assert mounted(self.mnt), "it says it mounted, and did not"
        return result.stdout

    def mount_logged(self, more="", *words):
        """Mounts with a log, and returns that."""
        log = self.base / "log"
        expect(self.mount(more, *words, "--log", log), 0)
        return log

    def ended(self):
        until(lambda: not servers_of(self.mnt), "the end of the serving process")


def unmount(point):
    """Unmounts by the program, and waits for the end of what serves the mount."""
    expect(nfsrdma("umount", point), 0)
    until(lambda: not servers_of(point), "the end of the serving process")


@contextlib.contextmanager
def scripted(*words, kind=Server, **more):
    """A server, and a function that sends it a command while it runs (tests/responder/README.md)."""
    with tempfile.TemporaryDirectory(prefix="nfsrdma-program.") as folder:
        door = Path(folder) / "control"
        with kind("--control", door, *words, **more) as server:
            with socket.socket(socket.AF_UNIX) as control:
                control.settimeout(LIMIT)
                control.connect(str(door))
                answers = control.makefile("r")

                def command(line):
                    control.sendall(line.encode() + b"\n")
                    answer = answers.readline()
                    assert answer.startswith("ok"), f"{line}: {answer}"
                    return answer

                yield server, command


@contextlib.contextmanager
def held(command, what):
    """The server holds calls back, as `what` says ("hold WRITE 1", "hold-reply READ"), until the end of the block."""
    command(what)
    try:
        yield
    finally:
        command("release")
        command("clear")


class Call(threading.Thread):
    """A call that is under way."""

    def __init__(self, function, *words):
        super().__init__(daemon=True)
        self.function, self.words, self.result = function, words, None
        self.start()

    def run(self):
        try:
            self.result = self.function(*self.words)
        except OSError as error:
            self.result = error.errno

    def end(self, limit=LIMIT):
        self.join(limit)
        assert not self.is_alive(), f"{self.function.__name__} hangs"
        return self.result


def came(command, procedure):
    """How many calls of a procedure came to the server."""
    words = dict(word.split("=") for word in command("calls").split() if "=" in word)
    return int(words.get(procedure, 0))


def event(server, name):
    """The value of a counter of the mount."""
    return document(server)["cache"][name]


def device_of(path):
    """The `major:minor` of a mount, found without asking it."""
    table = map(str.split, Path("/proc/self/mountinfo").read_text().splitlines())
    return next(fields[2] for fields in table if fields[4] == str(path))


def read_without_stat(path):
    """What a file has, up to the end that the kernel knows when it is open."""
    with opening(path, os.O_RDONLY) as file:
        return os.pread(file, 1 << 16, 0)


def root():
    if os.geteuid() != 0:
        pytest.skip("needs root")


def needs(*programs):
    for program in programs:
        if not shutil.which(program):
            pytest.skip(f"needs {program}")


NOBODY = 65534


def as_nobody(*words, **more):
    """Runs a program as a user who has no rights on the mount."""
    root()
    needs("setpriv")
    return run("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *words, **more)


def alone(*words):
    """Runs in a mount namespace of its own."""
    root()
    if run("unshare", "-m", "true").returncode != 0:
        pytest.skip("unshare -m is not permitted")
    return ["unshare", "-m", *words]


def run_over(source, target, *words, **more):
    """Runs a command with `source` bind-mounted on `target`."""
    script = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
    return run(*alone("sh", "-c", script, "sh", source, target, *words), **more)


def run_inside(enter, test, mark, limit=LIMIT):
    """Runs a test again by the command `enter`, in namespaces. The environment variable `mark` says that this is the
    second run."""
    environment = {**os.environ, mark: "1", "NFSRDMA_BIN": str(BIN)}
    result = run(*enter, sys.executable, ROOT / "tests/system/run", "program", test, env=environment, limit=limit)
    if result.returncode == 77:
        pytest.skip(re.search(r"^SKIPPED \[\d+\] \S+ (.*)$", result.stdout, re.M)[1])
    if result.returncode != 0:
        pytest.fail(result.stdout + result.stderr, pytrace=False)


def with_open_device(test):
    """Runs a test again where users may open /dev/fuse, as on systems with udev."""
    if "NFSRDMA_INSIDE" in os.environ:
        pytest.skip("/dev/fuse is not open to users here")
    with Place() as place:
        node = place.base / "fuse"
        script = f'mknod -m 666 {node} c 10 229 && mount --bind {node} /dev/fuse && exec "$@"'
        run_inside(alone("sh", "-c", script, "sh"), test, "NFSRDMA_INSIDE")


def stats(server, *words):
    result = nfsrdma("stats", server.mnt, *words)
    expect(result, 0)
    return result.stdout


def document_of(point):
    """What the program says of a mount."""
    result = nfsrdma("stats", "--json", point)
    expect(result, 0)
    return json.loads(result.stdout)


def document(server):
    return document_of(server.mnt)


def entry_of(server):
    """What the program says of a mount when it lists all."""
    (found,) = [one for one in json.loads(nfsrdma("stats", "--json").stdout) if one["directory"] == str(server.mnt)]
    return found


def line_of(server, *words):
    """The line that a command has for a mount."""
    return next(line for line in nfsrdma(*words).stdout.splitlines() if str(server.mnt) in line)


def procedures(server):
    return {entry["name"]: entry for entry in document(server)["procedures"]}


def control_of(path):
    """A connection to the control socket of the process that serves `path`, without our own client."""
    device = os.stat(path).st_dev
    control = socket.socket(socket.AF_UNIX)
    control.settimeout(LIMIT)
    folder = "/run/nfsrdma" if os.geteuid() == 0 else f"/run/user/{os.geteuid()}/nfsrdma"
    control.connect(f"{folder}/{os.major(device)}:{os.minor(device)}.control")
    return control


def rest_of(control):
    said = b""
    try:
        while piece := control.recv(65536):
            said += piece
    except ConnectionResetError:
        pass  # The process had not read everything.
    return said


@contextlib.contextmanager
def limited_threads(pid, most=1):
    """This process and its children can have `most` threads and processes, as in a container with a limit (pids.max), or
    those that they have: until they have ended, or the function is called that is given."""
    folder = next(filter(Path.is_dir, map(Path, ("/sys/fs/cgroup/pids", "/sys/fs/cgroup")))) / f"nfsrdma-{pid}"
    members = folder / "cgroup.procs"

    def release():
        (folder / "pids.max").write_text("max\n")
        while inside := members.read_text().split():
            for member in inside:
                with contextlib.suppress(OSError):
                    (folder.parent / "cgroup.procs").write_text(member)

    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    try:
        if not (folder / "pids.max").exists():
            pytest.skip("no control group with pids.max can be made")
        members.write_text(f"{pid}\n")
        (folder / "pids.max").write_text(f"{most}\n")
        yield release
    finally:
        until(lambda: not members.read_text(), "the end of the serving process")
        folder.rmdir()
