"""The host's side of a test: our programs, mounts through /dev/fuse, the responder, captures of the loopback."""

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest

from interop.guest import CHECKS, EXPORT, Guest, MOUNTD, NFS, ROOT, TAP
from suites import start_responder, stop

_built = {}


class CaseError(AssertionError):
    """A check of the test failed."""


def program(name):
    """The path of one of our programs, from NFSRDMA_BIN or built here in release mode."""
    given = os.environ.get("NFSRDMA_BIN")
    if given:
        path = Path(given) / name
        if not path.exists():
            raise CaseError(f"NFSRDMA_BIN={given} holds no {name}")
        return path
    if name not in _built:
        subprocess.run(["cargo", "build", "--release", "-q", "-p", name], cwd=ROOT, check=True, timeout=1800)
        target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
        _built[name] = target / "release" / name
    return _built[name]


def run(command, limit=300, **more):
    """Runs a host command. Returns its output, or raises CaseError."""
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=limit,
                              check=False, **more)
    except subprocess.TimeoutExpired as error:
        raise CaseError(f"{' '.join(map(str, command))}: no end after {limit} s; output: {error.stdout}") from None
    if done.returncode != 0:
        raise CaseError(f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def run_status(command):
    """The exit status of a host command, whose output is ignored."""
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode


def verbs_programs():
    """The directory of our programs as they are packaged, with the verbs provider, and of its examples."""
    given = os.environ.get("NFSRDMA_VERBS_BIN")
    if given:
        return Path(given)
    if shutil.which("pkg-config") is None or run_status(["pkg-config", "--exists", "libibverbs", "librdmacm"]):
        pytest.skip("libibverbs-dev and librdmacm-dev (and pkg-config) are needed to build the verbs provider")
    # rdma-sys runs bindgen, which loads libclang when it builds.
    if not os.environ.get("LIBCLANG_PATH") and not any(Path("/usr/lib").glob("llvm-*/lib/libclang*.so*")):
        pytest.skip("libclang is needed to build the verbs provider: install libclang-14-dev, or set LIBCLANG_PATH")
    whole = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    target = whole / "packaged"
    run([ROOT / "packaging/build-programs", "verbs"], 1800)
    flags = run([ROOT / "packaging/rustflags"]).strip()
    # The same variables as in packaging/build-programs.
    variables = {"RUSTFLAGS": flags, "CARGO_BUILD_BUILD_DIR": os.environ.get("CARGO_BUILD_BUILD_DIR", str(whole))}
    # The packages of these programs are named, or what the example shares with them would be compiled with other features.
    run(["cargo", "build", "--locked", "--release", "-q", "--features", "nfsrdma/verbs,nfsrdma-responder/verbs", "-p", "nfsrdma",
         "-p", "nfsrdma-responder", "-p", "nfsrdma-verbs", "--example", "verbs-conformance", "--target-dir", target],
        1800, cwd=ROOT, env=os.environ | variables)
    return target / "release"


def checks(*words, limit=600, **variables):
    """Runs checks.py on the host. Returns its output, which for `run` is also shown as it comes."""
    command = ["python3", "-B", CHECKS, *words]
    if words[0] != "run":
        return run(command, limit, env=os.environ | variables)
    with subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=os.environ | variables) as child:
        timer = threading.Timer(limit, child.kill)
        timer.start()
        lines = []
        try:
            for line in child.stdout:
                print(f"    {line}", end="", flush=True)
                lines.append(line)
        except BaseException:
            # An interrupted run does not wait for all checks.
            child.kill()
            raise
        finally:
            timer.cancel()
    if child.returncode != 0:
        raise CaseError(f"checks: status {child.returncode}, limit {limit} s: {lines[-1] if lines else 'no output'}")
    return "".join(lines)


class Process:
    """Runs one of our programs in the foreground and keeps its output. It ends with the block."""

    def __init__(self, command, stop=signal.SIGTERM, **variables):
        self.command, self.stop, self.variables = [str(word) for word in command], stop, variables

    def __enter__(self):
        self.output = tempfile.NamedTemporaryFile("w+", prefix="nfsrdma-out.")
        self.child = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=self.output,
                                      stderr=subprocess.STDOUT, env=os.environ | self.variables)
        return self

    def __exit__(self, kind=None, *_):
        try:
            if kind and self.said().strip():
                print(f"    {Path(self.command[0]).name} said: {self.said()[-3000:].strip()}", flush=True)
        finally:  # the reader of the output may have ended
            if self.child.poll() is None:
                stop(self.child, self.stop, 30)
            self.output.close()

    def said(self):
        self.output.flush()
        return Path(self.output.name).read_text(errors="replace")

    def until(self, condition, what, limit=60):
        """Waits until `condition()`; CaseError with the output if the program ends or time runs out first."""
        end = time.monotonic() + limit
        while not condition():
            if self.child.poll() is not None:
                raise CaseError(f"{self.command[0]} ended with {self.child.returncode}: {self.said()}")
            if time.monotonic() > end:
                raise CaseError(f"{what} not after {limit} s: {self.said()}")
            time.sleep(0.05)


class Mount(Process):
    """`nfsrdma mount` of an export at a fresh directory `path`."""

    host = "127.0.0.1"

    def __init__(self, export, port, mountport, options="", **variables):
        if not os.access("/dev/fuse", os.R_OK | os.W_OK):
            pytest.skip("no /dev/fuse")
        self.path = Path(tempfile.mkdtemp(prefix="nfsrdma-mount."))
        words = f"port={port},mountport={mountport},mountproto=tcp" + (f",{options}" if options else "")
        command = [program("nfsrdma"), "mount", f"{self.host}:{export}", self.path, "-f", "-o", words]
        super().__init__(command, **variables)

    def __enter__(self):
        super().__enter__()
        try:
            self.until(lambda: os.path.ismount(self.path), "the mount", 60)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception):
        try:
            super().__exit__(*exception)
        finally:
            # This works even if the program was killed, when looking at the directory fails.
            if f" {self.path} " in Path("/proc/self/mountinfo").read_text(errors="replace"):
                subprocess.run(["umount", "-l", self.path], check=False)
            self.path.rmdir()


class Knfsd:
    """A guest whose knfsd serves over siw, reachable from the host."""

    def __init__(self, start="knfsd_start", **more):
        self.guest = Guest(prepare=f"link siw; {start}", **more)

    def __enter__(self):
        self.guest.__enter__()
        try:
            self.guest.put(CHECKS)
        except BaseException:
            self.guest.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *exception):
        self.guest.__exit__(*exception)

    def mount(self, options="", port=None):
        return Mount(EXPORT, port or NFS, MOUNTD, options)

    def sum(self, directory):
        """The data set at the server."""
        return self.guest.run(f"sync; python3 /job/checks.py sum {EXPORT}/{directory}", 120)


class Responder:
    """`nfsrdma-responder` serving `directory` on the loopback; `state` keeps file handles valid over a restart."""

    def __init__(self, directory, state):
        self.command, self.state = [program("nfsrdma-responder"), directory], state

    def __enter__(self):
        self.child, self.port, self.mountport = start_responder(self.command, self.state)
        return self

    def __exit__(self, kind=None, *_):
        stop(self.child, limit=30)
        said = (self.state / "responder.log").read_text(errors="replace").strip()
        if kind and said:
            print(f"    nfsrdma-responder said: {said[-3000:]}", flush=True)


class Capture(Process):
    """tcpdump of what goes to the guest and comes from it, only of the given TCP ports."""

    def __init__(self, path, *ports):
        if not shutil.which("tcpdump"):
            pytest.skip("tcpdump missing")
        self.path = Path(path)
        expression = " or ".join(f"tcp port {port}" for port in ports)
        super().__init__(["tcpdump", "-i", TAP, "-s", "0", "-B", "65536", "-U", "-Z", "root", "-w", path, expression],
                         signal.SIGINT)

    def __enter__(self):
        super().__enter__()
        self.until(lambda: "listening on" in self.said(), "tcpdump", 20)
        return self


class Directory:
    """A new directory, which is removed with the block."""

    def __enter__(self):
        self.path = Path(tempfile.mkdtemp(prefix="nfsrdma-dir."))
        return self.path

    def __exit__(self, *_):
        shutil.rmtree(self.path, ignore_errors=True)


class Background(threading.Thread):
    """A call in a thread; `result` waits for it and re-raises its exception."""

    def __init__(self, call):
        super().__init__(daemon=True)
        self.call, self.error, self.value = call, None, None
        self.start()

    def run(self):
        try:
            self.value = self.call()
        except Exception as error:  # noqa: BLE001 -- raised by `result`
            self.error = error

    def result(self, limit):
        self.join(limit)
        if self.is_alive():
            raise CaseError(f"no end after {limit} s")
        if self.error:
            raise self.error
        return self.value


def expected():
    """What `checks.py sum` must print for a data set left by `checks.py leave` (by root)."""
    with Directory() as local:
        checks("leave", local)
        return checks("sum", local / "set")


def compare(what, got, wanted):
    """Fails with the differences, line by line."""
    got, wanted = got.strip().splitlines(), wanted.strip().splitlines()
    if got != wanted:
        extra = [line for line in got if line not in wanted]
        missing = [line for line in wanted if line not in got]
        raise CaseError(f"{what}: {len(extra)} lines too many {extra[:5]}, {len(missing)} missing {missing[:5]}")


def indent(text):
    print("".join(f"    {line}\n" for line in text.strip().splitlines()), end="", flush=True)
