"""NSM and GRANTED: calls of a lock manager to its clients, with rpcbind and rpc.statd on this machine, and without
them. Tests with rpcbind run in a network namespace of their own, because it has a fixed port."""

import errno
import fcntl
import functools
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile


import pytest

from program.lock_support import *  # noqa: F403
from program.support import *  # noqa: F403
from program.wire import Relay

NLM, NSM = 100021, 100024
INSIDE = "NFSRDMA_MONITORS_INSIDE"


def in_namespaces(function):
    """The test runs in network and mount namespaces of its own, in which /run and /var/lib/nfs are empty."""

    @functools.wraps(function)
    def outside():
        if INSIDE in os.environ:
            return function()
        root()
        if run("unshare", "-n", "-m", "true").returncode != 0:
            pytest.skip("unshare -n -m is not permitted")
        enter = ["unshare", "-n", "-m", "--propagation", "private", sys.executable, "-c", ENTER]
        run_inside(enter, function.__name__, INSIDE, 10 * LIMIT)

    return outside


ENTER = r"""
import fcntl, os, socket, struct, subprocess, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
    SIOCSIFFLAGS, IFF_UP = 0x8914, 1
    fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack('16sH', b'lo', IFF_UP))
for place in '/run', '/var/lib/nfs':
    os.makedirs(place, exist_ok=True)
    subprocess.run(['mount', '-t', 'tmpfs', 'none', place], check=True)
for place in 'sm', 'sm.bak':
    os.mkdir('/var/lib/nfs/' + place)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Daemon:
    """A program of the system, which runs until the end of the test."""

    def __init__(self, *command):
        self.command = command

    def __enter__(self):
        program = shutil.which(self.command[0], path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        if not program:
            pytest.skip(f"needs {self.command[0]}")
        # It ends with this process, even if that is killed.
        self.child = subprocess.Popen([program, *self.command[1:]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            until(self.is_ready, self.command[0])
        except BaseException:
            self.__exit__()
            raise
        return self

    def is_ready(self):
        return True

    def __exit__(self, *_):
        self.child.send_signal(signal.SIGCONT)
        self.child.kill()
        self.child.wait()


class Rpcbind(Daemon):
    def __init__(self):
        super().__init__("rpcbind", "-f")

    def is_ready(self):
        return registered() is not None


class Statd(Daemon):
    def __init__(self):
        super().__init__("rpc.statd", "-F", "--no-notify", "-P", "/var/lib/nfs")

    def is_ready(self):
        return (NSM, 1) in registered()


def opaque(data):
    return struct.pack(">I", len(data)) + data + b"\0" * (-len(data) % 4)


def message(program, version, procedure, args=b"", xid=7):
    return struct.pack(">10I", xid, 0, 2, program, version, procedure, 0, 0, 0, 0) + args


def rpc(port, program, version, procedure, args=b"", udp=True, limit=5):
    """The results of a call to this machine, or None if there is no reply."""
    call = message(program, version, procedure, args)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM if udp else socket.SOCK_STREAM) as to:
        to.settimeout(limit)
        try:
            to.connect(("127.0.0.1", port))
            to.sendall(call if udp else struct.pack(">I", 0x80000000 | len(call)) + call)
            reply = to.recv(65536) if udp else to.recv(65536)[4:]
        except OSError:
            return None
    assert reply[:12] == struct.pack(">III", 7, 1, 0), reply
    assert reply[20:24] == b"\0\0\0\0", f"not run: {reply[20:]}"
    return reply[24:]


def registered():
    """The registrations of rpcbind: program and version to ports by protocol (6 is TCP). None if it does not answer."""
    results = rpc(111, 100000, 2, 4, udp=False, limit=1)
    if results is None:
        return None
    found, at = {}, 0
    while struct.unpack_from(">I", results, at)[0]:
        program, version, protocol, port = struct.unpack_from(">4I", results, at + 4)
        found.setdefault((program, version), {})[protocol] = port
        at += 20
    return found


def entries():
    """The hosts that rpc.statd monitors, by its files: a line for each pair of a host and a mount."""
    return [line for path in Path("/var/lib/nfs/sm").iterdir() for line in path.read_text().splitlines()]


def ours(versions):
    """Versions of NLM that mounts have registered for rpc.statd."""
    return [version for program, version in versions if program == NLM and version > 1000]


class Isolated(LockServer):
    """A server whose mounts keep their journals of locks in its directory."""

    def __enter__(self):
        self.was = os.environ.get("NFSRDMA_STATE_DIR")
        super().__enter__()
        (self.base / "journals").mkdir()
        os.environ["NFSRDMA_STATE_DIR"] = str(self.base / "journals")
        return self

    def __exit__(self, *why):
        if self.was is None:
            os.environ.pop("NFSRDMA_STATE_DIR", None)
        else:
            os.environ["NFSRDMA_STATE_DIR"] = self.was
        super().__exit__(*why)

    def locks(self):
        """The locks that the server has granted, or has to grant."""
        said = self.control("locks")
        return [word for word in said.split()[1:] if ":" in word]

    def elsewhere(self, command, more=""):
        """Another client takes a lock of the file f, or releases it."""
        self.control(f"{command} {self.export}/f {more}")

    def nsm_calls(self):
        return dict(word.split("=") for word in self.control("nsm-calls").split()[1:])


@in_namespaces
def test_rpc_statd_monitors_the_server_while_there_are_locks_and_tells_of_its_restart():
    with Rpcbind(), Statd(), Isolated("--grace", "4s") as server, Process() as one, Process() as two:
        a, b = server.opened(one, two)
        assert not entries(), "nobody has locked anything"
        assert not ours(registered())
        assert one.set("f", WRITE, 0, 10) == 0
        (entry,) = entries()
        assert entry.endswith(" 127.0.0.1"), entry  # Our address, as the server sees it.
        until(lambda: ours(registered()), "the port for rpc.statd")
        assert two.set("f", READ, 20, 20) == 0
        assert entries() == [entry], "one for all mounts"
        # There is no lockd of the kernel, so its program number is free for GRANTED.
        until(lambda: set(registered().get((NLM, 4), ())) == {6, 17}, "the lock manager's registration")
        server.control("restart")
        for point, locks in ((a, 1), (b, 1)):
            until(lambda: counters(point)["lock_restarts_told"] >= 1, "the notice of the restart")
            until(lambda: counters(point)["locks_reclaimed"] >= locks, "the locks")
            assert counters(point)["locks_lost"] == 0
        assert two.set("f", WRITE, 5, 1) == AGAIN
        # The other mount still has locks.
        one.do("close", "f")
        unmount(a)
        assert entries() == [entry]
        until(lambda: ours(registered()), "the port for rpc.statd, which the other mount takes over")
        two.do("close", "f")
        unmount(b)
        assert not entries()
        assert not ours(registered()) and (NLM, 4) not in registered()
        assert (NSM, 1) in registered(), "rpc.statd's own"


@in_namespaces
def test_a_program_that_has_the_lock_manager_s_registration_keeps_it():
    with Rpcbind(), Statd(), Isolated() as server, Process() as one:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as lockd:
            lockd.bind(("127.0.0.1", 0))
            port = lockd.getsockname()[1]
            # It is silent, so it may be busy.
            address = f"0.0.0.0.{port >> 8}.{port & 255}".encode()
            args = struct.pack(">II", NLM, 4) + opaque(b"udp") + opaque(address) + opaque(b"root")
            with socket.socket(socket.AF_UNIX) as to:
                to.connect("/run/rpcbind.sock")
                call = message(100000, 4, 1, args)
                to.sendall(struct.pack(">I", 0x80000000 | len(call)) + call)
                assert to.recv(100)[-4:] == b"\0\0\0\1"
            (a,) = server.opened(one, mounts=1, size=1)
            assert one.set("f", WRITE) == 0
            until(lambda: ours(registered()), "the port for rpc.statd")
            assert registered()[(NLM, 4)] == {17: port}
            one.do("close", "f")
            unmount(a)
            assert registered()[(NLM, 4)] == {17: port}


@in_namespaces
def test_without_rpc_statd_a_mount_is_its_own_monitor():
    with Rpcbind(), Isolated("--grace", "4s") as server, Process() as one, Process() as two:
        a, b = server.opened(one, two)
        assert one.set("f", WRITE, 0, 10) == two.set("f", WRITE, 20, 10) == 0
        until(lambda: set(registered().get((NSM, 1), ())) == {6, 17}, "the monitor's registration")
        port = registered()[(NSM, 1)][17]
        # It monitors for nobody else: mount.nfs(8), which asks like this, starts rpc.statd for the kernel's mounts.
        for flag in "-u", "-t":
            expect(run("rpcinfo", flag, "127.0.0.1", str(NSM), "1"), 1, "100024 version 1 is not available")
        server.control("restart")
        for point in (a, b):
            until(lambda: counters(point)["lock_restarts_told"] >= 1, "the notice of the restart")
            until(lambda: counters(point)["locks_reclaimed"] >= 1, "the lock")
        # A notice that the server did not send causes a question to the server, and nothing else.
        for state in (1001, 1003, 1005):
            assert rpc(port, NSM, 1, 6, opaque(b"server") + struct.pack(">I", state)) == b""
        until(lambda: counters(a)["lock_restarts_told"] >= 4, "the forged notices")
        assert two.set("f", WRITE, 5, 1) == AGAIN
        assert counters(a)["locks_lost"] == counters(b)["locks_lost"] == 0
        for process, point in ((one, a), (two, b)):
            process.do("close", "f")
            unmount(point)
        assert (NSM, 1) not in registered() and (NLM, 4) not in registered()


def threads(pid):
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0


def crash(point):
    (pid,) = servers_of(point)
    kill_mount(point)
    # A new mount takes a journal that is still locked for that of a living process. The command line disappears before
    # the lock does.
    until(lambda: state(pid) in (None, "Z") and threads(pid) <= 1, "the end of the process")
    expect(run("umount", "-l", point), 0)


@in_namespaces
def test_a_server_is_told_of_a_crash_that_lost_locks_and_of_nothing_else():
    # The responder is also the machine's rpcbind, which accepts no registrations.
    with Isolated("--portmap-port", "111", "--lock-callback", "takes") as server, Process() as one, Process() as two:
        (server.export / "f").write_bytes(b"x" * 100)
        # A mount that held no locks any more.
        (a,) = server.mounts(1)
        one.do("open", "f", str(a / "f"))
        assert one.set("f", WRITE, 0, 10) == one.set("f", FREE, 0, 10) == 0
        one.do("close", "f")
        crash(a)
        expect(server.mount(server.lock_options, at=a), 0)
        assert server.nsm_calls()["SM_NOTIFY"] == "0", "a crash without locks"
        # An orderly end with locks.
        one.do("open", "f", str(a / "f"))
        assert one.set("f", WRITE, 0, 10) == 0
        one.do("close", "f")
        unmount(a)
        assert not list((server.base / "journals").iterdir())
        # If another mount has locks, exactly the locks that were left are released.
        a, b = server.mounts()
        one.do("open", "f", str(a / "f"))
        two.do("open", "f", str(b / "f"))
        assert one.set("f", WRITE, 0, 10) == two.set("f", WRITE, 20, 10) == 0
        crash(a)
        expect(server.mount(server.lock_options, at=a), 0)
        until(lambda: len(server.locks()) == 1, "the unlocking")
        assert server.nsm_calls()["SM_NOTIFY"] == "0", "another mount has locks"
        assert ":20-" in server.locks()[0]
        # If no other mount has any, all locks of the address are released, also those that the server would take for
        # waiters.
        two.do("close", "f")
        unmount(b)
        server.elsewhere("lock", "exclusive 50 10")
        with Process() as waiter, Process() as holder:
            for process in (waiter, holder):
                process.do("open", "f", str(a / "f"))
            assert holder.set("f", WRITE, 0, 10) == 0
            waiter.wait_for("f", WRITE, 50, 10)
            until(lambda: len(server.locks()) == 3, "a waiter at the server")
            crash(a)
        expect(server.mount(server.lock_options, at=a), 0)
        assert server.nsm_calls()["SM_NOTIFY"] == "1"
        (left,) = server.locks()
        assert "script" in left, left
        first = (server.base / "journals" / "nsm").read_text()
        assert int(re.search(r"state (\d+)", first)[1]) % 2 == 1, first
        # Its own locks are not affected.
        one.do("open", "f", str(a / "f"))
        assert one.set("f", WRITE, 0, 10) == 0
        assert len(server.locks()) == 2



def granted_args(handle, svid, cookie=b"\0" * 8, start=0, length=0):
    lock = opaque(b"server") + opaque(handle) + opaque(b"oh") + struct.pack(">IQQ", svid, start, length)
    return opaque(cookie) + struct.pack(">I", 1) + lock


class CalledBack(Isolated):
    """The responder calls back at a known port, which belongs to the first mount that locks."""

    def __init__(self, *words):
        self.callback = free_port()
        super().__init__(*words, "--client-lock-port", str(self.callback), options=f"callbackport={self.callback}")


def test_who_waits_is_called_after_the_program_of_its_mount_was_killed():
    with CalledBack("--lock-callback", "callback") as server, Process() as one:
        server.more += ",restart=files"
        (a,) = server.opened(one, mounts=1)
        server.elsewhere("lock", "exclusive")
        one.wait_for("f", WRITE)
        until(lambda: rpc(server.callback, NLM, 4, 0, limit=1) == b"", "the port")
        serving = pid_of(a)
        os.kill(serving, signal.SIGKILL)
        until(lambda: pid_of(a) != serving, "a successor")
        until(lambda: rpc(server.callback, NLM, 4, 0, limit=1) == b"", "the port")
        until(lambda: counters(a)["lock_polls"] >= 7, "long pauses")
        server.elsewhere("unlock")
        assert one.got() == 0
        assert counters(a)["lock_grants_told"] == 1


def test_who_waits_for_a_lock_is_called_when_it_is_free():
    for style in ("callback", "callback-sync"):
        with CalledBack("--lock-callback", style) as server, Process() as one, Process() as two:
            a, b = server.opened(one, two)
            # The first mount that locks has the port, and passes on calls for the other one.
            for process, point in ((one, a), (two, b)):
                assert process.set("f", WRITE, 90, 1) == process.set("f", FREE, 90, 1) == 0
                until(lambda: rpc(server.callback, NLM, 4, 0, limit=1) == b"", "the port")
            for process, point in ((one, a), (two, b)):
                server.elsewhere("lock", "exclusive")
                process.wait_for("f", WRITE)
                until(lambda: any("waiting" in lock for lock in server.locks()), "a waiter at the server")
                # The pauses between its own requests grow to a second.
                until(lambda: counters(point)["lock_polls"] >= 7, "long pauses")
                server.elsewhere("unlock")
                assert process.got() == 0
                until(lambda: counters(point)["lock_grants_told"] >= 1, f"GRANTED by {style}")
                (held,) = server.locks()
                assert held.startswith("held:127.0.0.1/"), held
                assert process.set("f", FREE) == 0
                until(lambda: not server.locks(), "the end of the lock")


def svid_of(lock):
    return int(re.search(r"/(\d+):", lock)[1])


@in_namespaces
def test_a_granted_that_is_forged_repeated_or_late_gives_and_takes_nothing():
    with CalledBack() as server, Process() as one, Process() as two:
        (a,) = server.opened(one, two, mounts=1)
        server.elsewhere("lock", "exclusive 0 10")
        assert one.set("f", WRITE, 50, 10) == 0
        two.wait_for("f", WRITE, 0, 10)
        until(lambda: any("waiting" in lock for lock in server.locks()), "a waiter at the server")
        until(lambda: rpc(server.callback, NLM, 4, 0, limit=1) == b"", "the port")
        before = sorted(server.locks())
        held = next(svid_of(lock) for lock in before if lock.startswith("held:127"))
        waiting = next(svid_of(lock) for lock in before if "waiting" in lock)
        handles = [b"", b"h" * 64, b"\xff" * 28]
        results = []
        for turn in range(20):
            for svid in (held, waiting, 0, 1, 0xFFFFFFFF):
                for handle in handles:
                    args = granted_args(handle, svid, struct.pack(">Q", turn))
                    results.append(rpc(server.callback, NLM, 4, 5, args))
                    assert rpc(server.callback, NLM, 4, 10, args) == b""
        # GRANTED, whose cookie is returned, is denied, because nobody asked for locks of these files.
        assert all(result and result[-4:] == b"\0\0\0\1" for result in results), results[:3]
        # Other bytes are not answered, or refused, and the listener continues.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as to:
            chance = random.Random(1)
            for size in list(range(0, 120)) + [1400, 8192, 60000]:
                to.sendto(chance.randbytes(size), ("127.0.0.1", server.callback))
                whole = message(NLM, 4, 10, granted_args(b"h" * 28, waiting))
                to.sendto(whole[:size], ("127.0.0.1", server.callback))
        with socket.create_connection(("127.0.0.1", server.callback)) as to:
            to.sendall(struct.pack(">I", 0xFFFFFFFF) + b"x" * 100)
            to.settimeout(LIMIT)
            try:
                assert to.recv(10) == b"", "a record of 2 GiB"
            except ConnectionResetError:
                pass
        assert rpc(server.callback, NLM, 4, 0) == b""
        assert waits(two) and sorted(server.locks()) == before
        # A waiter that has given up: a lock that is granted to it late is released.
        os.kill(two.child.pid, signal.SIGUSR1)
        assert two.got() == -errno.EINTR
        server.elsewhere("unlock", "0 10")
        until(lambda: len(server.locks()) == 1, "only the lock that is held")
        assert svid_of(server.locks()[0]) == held
        assert one.set("f", FREE) == 0
        until(lambda: not server.locks(), "no lock at all")


def sent_locks(said):
    """File handles and owners' numbers of the LOCKs that a mount sent."""
    found = []
    for stream in said:
        at, data = 0, bytes(stream)
        while at + 4 <= len(data):
            length = struct.unpack_from(">I", data, at)[0] & 0x7FFFFFFF
            call, at = data[at + 4 : at + 4 + length], at + 4 + length
            if len(call) < length or struct.unpack_from(">3I", call, 12) != (NLM, 4, 2):
                continue
            place = 28

            def opaque_at(place):
                size = struct.unpack_from(">I", call, place)[0]
                return call[place + 4 : place + 4 + size], place + 4 + size + -size % 4

            _, place = opaque_at(place)  # The credential; then the verifier, whose flavor comes first.
            _, place = opaque_at(place + 4)
            _, place = opaque_at(place)  # The cookie; then two booleans.
            _, place = opaque_at(place + 8)
            handle, place = opaque_at(place)
            _, place = opaque_at(place)
            found.append((handle, struct.unpack_from(">I", call, place)[0]))
    return found


@in_namespaces
def test_a_granted_with_the_waiter_s_own_file_and_number_is_not_believed_either():
    with CalledBack() as server, Process() as waiter, Relay(server.mountport) as relay:
        point = server.base / "a"
        point.mkdir()
        expect(server.mount(f"lock,lockport={relay.port},callbackport={server.callback}", at=point), 0)
        (server.export / "f").write_bytes(b"x" * 100)
        waiter.do("open", "f", str(point / "f"))
        server.elsewhere("lock", "exclusive")
        waiter.wait_for("f", WRITE)
        until(lambda: counters(point)["lock_polls"] >= 1, "a waiter at the server")
        handle, svid = sent_locks(relay.said)[-1]
        assert handle and svid == svid_of(next(lock for lock in server.locks() if "waiting" in lock))
        before = counters(point)
        for turn in range(100):
            args = granted_args(handle, svid, struct.pack(">Q", turn))
            # It names a waiter of this mount, so it must be accepted, or the server would take the lock back.
            assert rpc(server.callback, NLM, 4, 5, args)[-4:] == b"\0\0\0\0"
        assert waits(waiter)
        after = counters(point)
        assert after["lock_grants_told"] - before["lock_grants_told"] >= 100
        # Each of them causes at most one more request.
        assert 1 <= after["lock_polls"] - before["lock_polls"] <= 110, (before, after)
        assert len(server.locks()) == 2, server.locks()
        server.elsewhere("unlock")
        assert waiter.got() == 0
        (held,) = server.locks()
        assert held.startswith("held:127") and svid_of(held) == svid
        # The same call again while the lock is held, and after its release.
        for _ in range(20):
            assert rpc(server.callback, NLM, 4, 5, granted_args(handle, svid))[-4:] == b"\0\0\0\0"
            assert rpc(server.callback, NLM, 4, 10, granted_args(handle, svid)) == b""
        assert server.locks() == [held]
        assert waiter.set("f", FREE) == 0
        until(lambda: rpc(server.callback, NLM, 4, 5, granted_args(handle, svid))[-4:] == b"\0\0\0\1", "a refusal")
        assert not server.locks()


@in_namespaces
def test_silent_daemons_keep_nobody_from_locking_or_ending():
    for silent in ("rpc.statd", "rpcbind", "both from the beginning"):
        with Rpcbind() as rpcbind, Statd() as statd, Isolated() as server:
            if silent.startswith("both"):
                for daemon in (rpcbind, statd):
                    daemon.child.send_signal(signal.SIGSTOP)
            a, b = server.mounts()
            (server.export / "f").write_bytes(b"x" * 100)
            with Process() as one, Process() as two:
                one.do("open", "f", str(a / "f"))
                two.do("open", "f", str(b / "f"))
                stopped = {"rpc.statd": statd, "rpcbind": rpcbind}.get(silent)
                if stopped:
                    stopped.child.send_signal(signal.SIGSTOP)
                assert one.set("f", WRITE) == 0, silent
                two.wait_for("f", WRITE)
                until(lambda: counters(b)["lock_waiters"] == 1, "a waiter")
                two.child.kill()
                two.child.wait(LIMIT)
                one.child.kill()
                one.child.wait(LIMIT)
            until(lambda: not server.locks(), "the end of all locks")
            unmount(a)
            (pid,) = servers_of(b)
            os.kill(pid, signal.SIGTERM)
            until(lambda: not servers_of(b) and not mounted(b), "the end of a mount that was told to end")


READ_AHEAD = r"""
import os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
print('open', flush=True)
sys.stdin.readline()
os.posix_fadvise(file, 0, 4 << 20, os.POSIX_FADV_WILLNEED)
"""


def ends(how, point, pid):
    """Whether a mount and its process can be removed: by umount(8), lazily because that does not look at the
    directory, or by a signal."""
    if how == "SIGTERM":
        os.kill(pid, signal.SIGTERM)
    if how == "SIGKILL":
        kill_mount(point)
        until(lambda: not servers_of(point), "the end of the process")
    if how != "SIGTERM":
        # It is not waited for if it fails, because the kernel may not let it end.
        program = subprocess.Popen(["umount", "-l", point])
        until(lambda: program.poll() is not None, f"umount(2) after {how}")
    until(lambda: not servers_of(point) and not mounted(point) or elsewhere(point), f"the end of the mount by {how}")


def abort(device):
    """Aborts all requests of a mount, which is the only way if the kernel waits for itself."""
    with tempfile.TemporaryDirectory() as place:
        expect(run("mount", "-t", "fusectl", "none", place), 0)
        try:
            (Path(place) / str(os.minor(device)) / "abort").write_text("1")
        except FileNotFoundError:
            pass  # The mount is gone, as expected.
        finally:
            expect(run("umount", place), 0)


def test_a_mount_ends_though_an_unlock_waits_for_pages_that_a_silent_server_does_not_send():
    """Readahead outlives its process, and a notification of the kernel that waits for its pages blocks umount(2)."""
    root()
    for how in ("umount", "SIGTERM", "SIGKILL"):
        with LockServer() as server, Process() as holder:
            (a,) = server.opened(holder, mounts=1, size=8 << 20)
            assert holder.set("f", WRITE, 0, 10) == 0
            (pid,), device = servers_of(a), a.stat().st_dev
            pipe = subprocess.PIPE
            command = [sys.executable, "-c", READ_AHEAD, a / "f"]
            try:
                with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1) as reader:
                    assert reader.stdout.readline() == "open\n"
                    server.pause()
                    reader.stdin.write("\n")
                    assert reader.wait(LIMIT) == 0
                holder.send("fcntl", fcntl.F_SETLK, "f", FREE, 0, 10)
                assert waits(holder, 1)
                holder.child.kill()
                holder.child.wait(LIMIT)
                ends(how, a, pid)
            except BaseException:
                # Only in this case, because the device's number may belong to another mount by now.
                abort(device)
                raise
            finally:
                server.child.send_signal(signal.SIGCONT)
