"""A QEMU guest for tests: built once into a cache, booted with a throw-away overlay, controlled over a virtio port.

In emulation, booting takes most of the time of a short test. So the second guest of a kind in a process is a copy of one that
was saved to a file when it had just booted (Snapshot), and so are all later ones. If that fails, guests are booted.
What several tests begin with (`prepare`) has already run in the guest that is saved for them.

The guest reaches nothing but this machine's loopback, and that only through 10.0.2.2 when a test asks for it; only this
machine's loopback reaches its forwarded ports.
"""

import atexit
import collections
import hashlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from suites import free_port

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
CHECKS = HERE.parent / "checks.py"
# The export of the guest's knfsd, and the ports of knfsd and mountd (guest/lib.sh).
EXPORT = "/srv/export"
NFS, MOUNTD = 20049, 20048
RECIPE = ("guest/build", "guest/init")
QEMU = "qemu-system-x86_64"
BOOT_LIMIT = 240  # seconds: emulation on a busy machine is slow
BOOT_TRIES = 3  # an emulated guest sometimes dies while its kernel starts
BUILD_LIMIT = 3600
COPY_LIMIT = 120
# The limits of tests are ample on an idle machine. Other suites run at the same time, so multiply them.
PATIENCE = 3
KVM_LIMIT = 40
EMULATED = "tcg,thread=multi"
# Without what makes Linux copy byte by byte (erms, fsrm), which an emulator does so, and what it checks at each access.
PROCESSOR = "max,-erms,-fsrm,-smap,-smep,-la57,-pku,-umip"
# Without what protects a kernel, which nobody attacks here, and counts or watches what nobody asks for.
KERNEL_OPTIONS = ("console=ttyS0 loglevel=5 panic=-1 mitigations=off random.trust_cpu=on init_on_alloc=0 hardened_usercopy=off "
                  "randomize_kstack_offset=off norandmaps apparmor=0 audit=0 nowatchdog tsc=reliable cgroup_disable=memory")
CRASHES = {128 + number for number in (signal.SIGILL, signal.SIGBUS, signal.SIGSEGV)}


class GuestError(Exception):
    """The guest failed to do what was asked; the text has its output."""


class GuestCrash(GuestError):
    """A program of the guest's distribution was killed by a signal that a wrong instruction causes.

    Emulated guests have this now and then (one in some thousand scripts); it says nothing about the tested programs.
    """


def cache_dir():
    """The directory of built guests: NFSRDMA_INTEROP_CACHE, or below the user's cache directory."""
    base = os.environ.get("NFSRDMA_INTEROP_CACHE")
    if base:
        return Path(base)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nfsrdma" / "interop"


def image():
    """The directory with kernel, initrd and root image for the current recipe; builds them if they are missing."""
    digest = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in RECIPE)).hexdigest()[:16]
    where = cache_dir() / f"guest-{digest}"
    if (where / "root.img").exists():
        return where
    missing = [tool for tool in ("debootstrap", "mke2fs", "unshare", "apt-get", "xz") if not shutil.which(tool)]
    if missing:
        pytest.skip(f"cannot build the guest: {', '.join(missing)} missing")
    if os.geteuid() != 0:
        pytest.skip("building the guest needs root (debootstrap and chroot)")
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


class Guest:
    """One booted guest. It is a context manager, so that the guest always ends.

    `forward` lists guest TCP ports to reach from the host (`ports[guest port]` is the host's). `host_access` lets the guest
    reach the host's loopback at 10.0.2.2. The host's directory `share` is `/job` in the guest. `prepare` is a script that has
    run there before; it may use nothing of `/job` but lib.sh, and leaves nothing open there.

    It has one processor. With two, in emulation, each waits for the other by exits from translated code: the same checks take
    twice the time of the host. Two are for tests of what threads of our program do to each other in the guest.
    """

    # Data written to the disk goes to an overlay that is thrown away.
    overlay = "on"

    def __init__(self, forward=(), host_access=False, memory="2G", processors=1, limit=900, prepare=""):
        if not shutil.which(QEMU):
            pytest.skip(f"{QEMU} missing")
        self.images = image()
        self.forward, self.host_access = tuple(forward), host_access
        self.memory, self.processors, self.prepare = memory, processors, prepare
        self.prepared = not prepare
        self.limit = limit
        self.process = self.control = None
        self.pending, self.statuses, self.count = b"", {}, 0
        self.ports = {}

    def __enter__(self):
        # The time limit does not include what a test builds before.
        self.deadline = time.monotonic() + self.limit * PATIENCE
        self.share = Path(tempfile.mkdtemp(prefix="nfsrdma-guest."))
        try:
            shutil.copy(HERE / "guest/agent", self.share / "agent")
            shutil.copy(HERE / "guest/lib.sh", self.share / "lib.sh")
            self._boot()
            if not self.prepared:
                self.run(self.prepare, BOOT_LIMIT)
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
                self.process.kill()
        if self.process:
            self.process.wait()
        if self.control:
            self.control.close()
        shutil.rmtree(self.share, ignore_errors=True)

    def _boot(self):
        wanted = os.environ.get("NFSRDMA_INTEROP_ACCEL", "")
        if wanted in ("", "kvm") and os.access("/dev/kvm", os.R_OK | os.W_OK) and not Guest._no_kvm:
            try:
                self._start("kvm", KVM_LIMIT)
                return
            except GuestError as error:
                # Inside virtual machines, it is common that /dev/kvm can be opened but runs no guest.
                Guest._no_kvm = True
                if wanted:
                    raise
                print(f"  guest: KVM does not run here ({str(error).splitlines()[0]}); emulating", flush=True)
                self._kill()
        if (snapshot := Snapshot.of(self)) is not None:
            try:
                self._start(EMULATED, COPY_LIMIT, snapshot)
                return
            except GuestError as error:
                Snapshot.give_up(error)
                self._kill()
        for attempt in range(1, BOOT_TRIES + 1):
            try:
                self._start(EMULATED, BOOT_LIMIT)
                return
            except GuestError as error:
                if attempt == BOOT_TRIES or time.monotonic() > self.deadline:
                    raise
                print(f"  guest: no boot ({str(error).splitlines()[0]}); trying again", flush=True)
                self._kill()

    _no_kvm = False

    def _kill(self):
        self.pending, self.statuses = b"", {}
        if self.process:
            self.process.kill()
            self.process.wait()
        if self.control:
            self.control.close()
        self.process = self.control = None
        self.prepared = not self.prepare

    def _start(self, accel, limit, snapshot=None):
        if snapshot:
            self._launch(accel, limit, snapshot.disk, snapshot.state)
            self.prepared = snapshot.prepare == self.prepare
        else:
            self._launch(accel, limit, self.images / "root.img")
            self._await("booted", limit)
        self._begin(limit)
        self.release = self.statuses["ready"]
        self.boot_seconds = time.monotonic() - self.started

    def _begin(self, limit):
        """Tells the guest the time, and waits for its agent."""
        self.control.sendall(f"{time.time()}\n".encode())
        self._await("ready", limit)

    def _launch(self, accel, limit, disk, state=None):
        """Starts the emulator, which boots the guest or continues from a saved state."""
        self.accel = accel
        self.ports = {port: free_port() for port in self.forward}
        net = "user,id=net" + ("" if self.host_access else ",restrict=on")
        net += "".join(f",hostfwd=tcp:127.0.0.1:{host}-:{port}" for port, host in self.ports.items())
        door = self.share / ".control"
        door.unlink(missing_ok=True)
        self.console = self.share / "console"
        self.started = time.monotonic()
        command = [
            QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-machine", "q35",
            "-accel", accel, "-cpu", "host" if accel == "kvm" else PROCESSOR, "-smp", self.processors, "-m", self.memory,
            "-kernel", self.images / "vmlinuz", "-initrd", self.images / "initrd",
            "-append", KERNEL_OPTIONS,
            "-drive", f"file={disk},if=none,id=root,format=raw,snapshot={self.overlay}",
            "-device", "virtio-blk-pci,drive=root",
            "-netdev", net, "-device", "virtio-net-pci,netdev=net,mac=52:54:00:00:00:01",
            "-virtfs", f"local,path={self.share},mount_tag=job,security_model=none,multidevs=remap",
            "-device", "virtio-serial-pci", "-device", "virtserialport,chardev=control,name=control",
            "-chardev", f"socket,id=control,path={door},server=on,wait=off",
            "-device", "virtio-rng-pci", "-chardev", f"file,id=console,path={self.console}",
            "-serial", "chardev:console", "-qmp", f"unix:{self.share / '.monitor'},server=on,wait=off",
        ]
        if state:
            command += ["-incoming", f"exec:cat {shlex.quote(str(state))}"]
        self.process = subprocess.Popen(
            [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=open(self.share / "qemu.err", "wb"), preexec_fn=_die_with_parent)
        until = min(self.deadline, self.started + limit)
        self.control = socket.socket(socket.AF_UNIX)
        while self.control.connect_ex(str(door)) != 0:  # not there yet, or not listening yet
            self._alive(until, "QEMU did not open its control socket")
            time.sleep(0.02)
        self.control.settimeout(0.5)

    def _await(self, word, limit):
        """Waits until the guest has printed the text."""
        until = min(self.deadline, self.started + limit)
        while word not in self.statuses:
            self._alive(until, f"no guest after {limit} s under {self.accel}")
            self._receive()

    def _alive(self, until, what):
        if self.process.poll() is not None:
            raise GuestError(f"QEMU ended with status {self.process.returncode}\n{self.log()}")
        if time.monotonic() > until:
            raise GuestError(f"{what}\n{self.log()}")

    def _receive(self):
        try:
            data = self.control.recv(4096)
        except TimeoutError:
            return
        except OSError:
            data = b""
        if not data:  # the emulator has ended or is ending: its status says more
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
            return
        self.pending += data
        *lines, self.pending = self.pending.split(b"\n")
        for line in lines:
            key, _, value = line.decode(errors="replace").partition(" ")
            self.statuses[key] = value

    def log(self):
        """The last output of kernel and emulator."""
        parts = [(self.share / name).read_text(errors="replace") for name in ("qemu.err", "console")
                 if (self.share / name).exists()]
        return "\n".join(part[-4000:] for part in parts)

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
            crashed = self.accel == EMULATED and status in CRASHES and "nfsrdma" not in script + output
            kind = GuestCrash if crashed else GuestError
            raise kind(f"in the guest: {script.strip()}\nstatus {status}: {output[-4000:]}")
        return output

    def put(self, path, name=None):
        """Copies a file into the guest. Returns its path there."""
        name = name or Path(path).name
        shutil.copy(path, self.share / name)
        return f"/job/{shlex.quote(name)}"


class Template(Guest):
    """A guest from which a snapshot is made: it has a disk of its own, and has executed nothing but what prepares it.

    It is a copy of the snapshot `base`, or boots.
    """

    overlay = "off"

    def __init__(self, disk, like, prepare, base):
        super().__init__(memory=like.memory, processors=like.processors, limit=BOOT_LIMIT, prepare=prepare)
        self.disk, self.base = disk, base

    def __exit__(self, *exception):
        self._kill()
        super().__exit__(*exception)

    def _boot(self):
        if self.base:
            self._launch(EMULATED, COPY_LIMIT, self.disk, self.base.state)
        else:
            self._launch(EMULATED, BOOT_LIMIT, self.disk)
            self._await("booted", BOOT_LIMIT)
        if self.prepare:
            self._begin(BOOT_LIMIT)

    def save(self, state):
        """Saves the guest's memory to a file; the guest is stopped from then on."""
        if self.prepare:
            # The emulator saves no guest that has the host's directory.
            self.control.sendall(b"away\n")
            self._await("away", 2 * BOOT_LIMIT)
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.settimeout(BOOT_LIMIT)
            monitor.connect(str(self.share / ".monitor"))
            lines = monitor.makefile("rw")

            def ask(execute, **arguments):
                lines.write(json.dumps({"execute": execute, "arguments": arguments}) + "\n")
                lines.flush()
                while "return" not in (answer := json.loads(lines.readline() or '{"error": "the emulator ended"}')):
                    if "error" in answer:
                        raise GuestError(f"{execute}: {answer['error']}")
                return answer["return"]

            ask("qmp_capabilities")
            ask("migrate", uri=f"exec:cat >{shlex.quote(str(state))}")
            until = time.monotonic() + BOOT_LIMIT
            while (status := ask("query-migrate").get("status")) != "completed":
                if status in ("failed", "cancelled") or time.monotonic() > until:
                    raise GuestError(f"saving the guest: {status}")
                time.sleep(0.05)
            ask("quit")
        self.process.wait(20)


class Snapshot:
    """Disk and memory of a guest that has just booted, and is prepared, kept while this process runs."""

    _made = {}
    _asked = collections.Counter()
    _directory = None

    @classmethod
    def of(cls, guest):
        """The best snapshot for this guest, or None if it has to boot. The second guest of a kind makes one."""
        base, kind = ((guest.memory, guest.processors, prepare) for prepare in ("", guest.prepare))
        cls._asked.update({base, kind})
        for wanted in (kind, base):
            if cls._directory is not False and cls._asked[wanted] > 1 and wanted not in cls._made:
                try:
                    cls._made[wanted] = cls(guest, wanted[-1], cls._made.get(base))
                except (GuestError, OSError, ValueError, subprocess.SubprocessError) as error:
                    cls.give_up(error)
            if cls._directory is not False and wanted in cls._made:
                return cls._made[wanted]
        return None

    @classmethod
    def give_up(cls, error):
        """Makes all further guests boot."""
        print(f"  guest: no copy ({str(error).splitlines()[0]}); booting each", flush=True)
        cls._directory = False

    def __init__(self, guest, prepare, base):
        if Snapshot._directory is None:
            Snapshot._directory = Path(tempfile.mkdtemp(prefix="nfsrdma-guests."))
            atexit.register(shutil.rmtree, Snapshot._directory, ignore_errors=True)
        number = len(Snapshot._made)
        self.prepare = prepare
        self.disk, self.state = (Snapshot._directory / f"{name}.{number}" for name in ("root", "state"))
        disk = base.disk if base else guest.images / "root.img"
        subprocess.run(["cp", "--sparse=always", disk, self.disk], check=True)
        with Template(self.disk, guest, prepare, base) as template:
            template.save(self.state)


def _die_with_parent():
    """Makes QEMU end when the runner is killed: PR_SET_PDEATHSIG."""
    import ctypes
    os.setsid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
