"""A guest for tests: Linux as a program of this machine (User Mode Linux), built once into a cache, controlled over a socket.

The kernel is the ordinary one, with its NFS server and client, rxe and siw, compiled for ARCH=um: its own code and its programs
run at the speed of this processor, which an emulator does not reach by far, and it boots in a second. It has one processor.

The guest's network is a tap device in the network namespace of the tests (`isolate`). The guest is 10.0.2.15 there, and reaches
nothing but this namespace's loopback, and that only as 10.0.2.2 when a test asks for it. TCP ports of this loopback below those
that are given out are the guest's.
"""

import ctypes
import hashlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
CHECKS = HERE.parent / "checks.py"
# The export of the guest's knfsd, and the ports of knfsd and mountd (guest/lib.sh).
EXPORT = "/srv/export"
NFS, MOUNTD = 20049, 20048
RECIPE = ("guest/build", "guest/config", "guest/init", "guest/kernel")
ADDRESS, HOST, TAP = "10.0.2.15", "10.0.2.2", "toguest"
# Linux gives out ports from here on.
FREE = 32768
BOOT_LIMIT = 60
BUILD_LIMIT = 3600
# The limits of tests are ample on an idle machine. Other suites run at the same time, so multiply them.
PATIENCE = 3
# Where the kernel has its memory, as a file.
MEMORY = Path("/dev/shm")


class GuestError(Exception):
    """The guest failed to do what was asked; the text has its output."""


def cache_dir():
    """The directory of built guests: NFSRDMA_INTEROP_CACHE, or below the user's cache directory."""
    base = os.environ.get("NFSRDMA_INTEROP_CACHE")
    if base:
        return Path(base)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nfsrdma" / "interop"


def image():
    """The directory with kernel and root image for the current recipe and this processor; builds them if they are missing."""
    recipe = b"".join((HERE / name).read_bytes() for name in RECIPE)
    processor = re.search(rb"^flags.*", Path("/proc/cpuinfo").read_bytes(), re.MULTILINE)
    where = cache_dir() / f"guest-{hashlib.sha256(recipe + processor.group()).hexdigest()[:16]}"
    if (where / "root.img").exists():
        return where
    missing = [tool for tool in ("debootstrap", "mke2fs", "unshare", "apt-get") if not shutil.which(tool)]
    if missing:
        pytest.skip(f"cannot build the guest: {', '.join(missing)} missing")
    where.parent.mkdir(parents=True, exist_ok=True)
    # This process makes and removes it, because a build that is killed would leave it.
    with tempfile.TemporaryDirectory(prefix="build.", dir=where.parent, ignore_cleanup_errors=True) as work:
        try:
            status = subprocess.run([HERE / "guest/build", where, work], timeout=BUILD_LIMIT, check=False).returncode
        except subprocess.TimeoutExpired as error:
            raise GuestError(f"building the guest took more than {BUILD_LIMIT // 60} minutes") from error
    if status == 77:
        pytest.skip("no Debian 12 package archive to build the guest from")
    if status != 0:
        raise GuestError(f"building the guest failed with status {status}")
    for old in cache_dir().glob("guest-*"):
        if old != where:
            shutil.rmtree(old, ignore_errors=True)
    return where


def lacking():
    """Why there are no guests here, or None."""
    if os.geteuid() != 0:
        return "a guest needs root, for its network and to be built"
    missing = [tool for tool in ("ip", "nft") if not shutil.which(tool)]
    return f"a guest needs {', '.join(missing)}" if missing else None


def isolate():
    """Gives this process, and all that it starts, namespaces of its own for network and mounts. Only once, before any thread."""
    if lacking():
        return
    new_network, new_mounts = 0x40000000, 0x00020000
    if ctypes.CDLL(None, use_errno=True).unshare(new_network | new_mounts) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    for command in (
        ["mount", "--make-rprivate", "/"],
        ["ip", "link", "set", "lo", "up"],
        ["ip", "tuntap", "add", TAP, "mode", "tap"],
        ["ip", "address", "add", f"{HOST}/24", "dev", TAP],
        ["ip", "link", "set", TAP, "up"],
    ):
        subprocess.run(command, check=True)
    # What comes by the tap device may go to 127.0.0.1, and the other way.
    Path(f"/proc/sys/net/ipv4/conf/{TAP}/route_localnet").write_text("1")


def connect(host_access):
    """Says which connections between this machine's loopback and the guest there are."""
    here = "" if host_access else f"iifname {TAP} ct state new drop"
    rules = f"""
        table ip guest {{}}
        delete table ip guest
        table ip guest {{
            chain arriving {{ type nat hook prerouting priority dstnat; iifname {TAP} ip daddr {HOST} dnat to 127.0.0.1; }}
            chain leaving {{ type nat hook output priority -100; ip daddr 127.0.0.1 tcp dport < {FREE} dnat to {ADDRESS}; }}
            chain left {{ type nat hook postrouting priority srcnat; oifname {TAP} masquerade; }}
            chain taken {{ type filter hook input priority filter; {here}; }}
        }}"""
    subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)


class Guest:
    """One booted guest. It is a context manager, so that the guest always ends. There is one at a time.

    `host_access` lets the guest reach the host's loopback at 10.0.2.2. The host's directory `share` is `/job` in the guest.
    `prepare` is a script that runs first.
    """

    def __init__(self, host_access=False, memory="2G", limit=900, prepare=""):
        if why := lacking():
            pytest.skip(why)
        self.images = image()
        self.host_access, self.memory, self.prepare, self.limit = host_access, memory, prepare, limit
        self.process = self.control = None
        self.pending, self.statuses, self.count = b"", {}, 0

    def __enter__(self):
        # The time limit does not include what a test builds before.
        self.deadline = time.monotonic() + self.limit * PATIENCE
        self.share = Path(tempfile.mkdtemp(prefix="nfsrdma-guest.", dir=MEMORY))
        try:
            shutil.copy(HERE / "guest/agent", self.share / "agent")
            shutil.copy(HERE / "guest/lib.sh", self.share / "lib.sh")
            self._boot()
            if self.prepare:
                self.run(self.prepare)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind, *_):
        try:
            if kind:
                self.show_console()
        finally:  # the reader of the output may have ended
            self._end()

    def _end(self):
        if self.process and self.process.poll() is None:
            try:
                self.control.sendall(b"quit\n")
                self.process.wait(20)
            except (OSError, AttributeError, subprocess.TimeoutExpired):
                # With the processes that run its programs.
                os.killpg(self.process.pid, signal.SIGKILL)
        if self.process:
            self.process.wait()
        if self.control:
            self.control.close()
        shutil.rmtree(self.share, ignore_errors=True)

    def _boot(self):
        connect(self.host_access)
        self.console = self.share / "console"
        self.control, end = socket.socketpair()
        with end, open(self.console, "wb") as console:
            command = [
                self.images / "linux", f"mem={self.memory}", f"ubd0={self.share}/.changes,{self.images}/root.img", "root=/dev/ubda",
                "rw", "init=/sbin/guest-init", f"hostfs={self.share}", f"vec0:transport=tap,ifname={TAP},gro=1", "con=null", "con0=null,fd:1",
                "ssl=null", f"ssl0=fd:{end.fileno()}", "loglevel=5", "panic=-1", f"umid={self.share.name}", f"uml_dir={self.share}/",
            ]
            self.process = subprocess.Popen(
                [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=console, stderr=console,
                pass_fds=[end.fileno()], env=os.environ | {"TMPDIR": str(MEMORY)}, preexec_fn=_die_with_parent)
        self.control.settimeout(0.5)
        until = min(self.deadline, time.monotonic() + BOOT_LIMIT * PATIENCE)
        while "ready" not in self.statuses:
            self._alive(until, "the guest does not boot")
            self._receive()

    def _alive(self, until, what):
        if self.process.poll() is not None:
            raise GuestError(f"the guest ended with status {self.process.returncode}\n{self.log()}")
        if time.monotonic() > until:
            raise GuestError(f"{what}\n{self.log()}")

    def _receive(self):
        try:
            data = self.control.recv(4096)
        except TimeoutError:
            return
        except OSError:
            data = b""
        if not data:  # the guest has ended or is ending: its status says more
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
            return
        self.pending += data
        *lines, self.pending = self.pending.split(b"\n")
        for line in lines:
            key, _, value = line.decode(errors="replace").strip().partition(" ")
            self.statuses[key] = value

    def log(self):
        """The last output of the kernel."""
        return self.console.read_text(errors="replace")[-8000:] if self.console.exists() else ""

    def show_console(self):
        if self.process and (log := self.log().strip()):
            print(f"    guest's console: {log[-3000:]}", flush=True)

    def start(self, script):
        """Starts a bash script in the guest, after `/job/lib.sh`. Returns its number for `wait`."""
        self.count += 1
        number = str(self.count)
        (self.share / f"{number}.sh").write_text(f". /job/lib.sh\n{script}\n")
        self.control.sendall(f"{number}\n".encode())
        return number

    def wait(self, number, limit=120):
        """Waits for a started script: (status, output)."""
        limit *= PATIENCE
        until = min(self.deadline, time.monotonic() + limit)
        while number not in self.statuses:
            try:
                self._alive(until, f"guest job {number} still runs after {limit} s")
            except GuestError as error:
                raise GuestError(f"{error}\njob output: {self.output(number)[-3000:]}") from None
            self._receive()
        return int(self.statuses[number]), self.output(number)

    def output(self, number):
        """The output of a job so far."""
        path = self.share / f"{number}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def run(self, script, limit=120, check=True):
        """Runs a script in the guest. Returns its output; GuestError for a non-zero status (without `check`: status and
        output)."""
        status, output = self.wait(self.start(script), limit)
        if not check:
            return status, output
        if status != 0:
            raise GuestError(f"in the guest: {script.strip()}\nstatus {status}: {output[-4000:]}")
        return output

    def put(self, path, name=None):
        """Copies a file into the guest. Returns its path there."""
        name = name or Path(path).name
        shutil.copy(path, self.share / name)
        return f"/job/{shlex.quote(name)}"


def _die_with_parent():
    """Makes the guest end when the runner is killed: PR_SET_PDEATHSIG."""
    os.setsid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
