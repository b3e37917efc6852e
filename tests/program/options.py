"""Each mount option has the effect that docs/CONFIGURATION.md promises.

A case says by `@effect(...)` which options it tries; it fails if it does not mount with them.
`every_option_is_tried` fails for an option of the program's table that no case tries.
"""

import contextlib
import errno
import fcntl
import functools
import json
import os
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import support
from support import *  # noqa: F403
from ring_support import no_rings_here, rings, switched
from support import BIN
from wire import Datagrams, Relay, mpa

OPTIONS = ROOT / "fuse/cli/src/options"
TABLES = [OPTIONS / "table.rs", *sorted((OPTIONS / "table").glob("*.rs"))]
TRIED = set()


def effect(*names):
    """This case tries these options."""
    TRIED.update(names)

    def wrap(function):
        @functools.wraps(function)
        def checked():
            support.GIVEN.clear()
            function()
            missing = set(names) - support.GIVEN
            assert not missing, f"says that it tries {missing}, and does not"

        return case(checked)

    return wrap


def table(kind="flag|value|either|accept|refuse"):
    """Names in the program's table of options."""
    entries = re.findall(rf'^    ({kind})!\(\s*"([^"]+)"', "".join(path.read_text() for path in TABLES), re.M)
    assert len(entries) > 3, "the table is written differently now"
    return [name for _, name in entries]


@contextlib.contextmanager
def mount(server, options, at=None):
    """Mounts for a while. Gives what the program says about the mount."""
    at = at or server.mnt
    at.mkdir(exist_ok=True)
    expect(server.mount(options, at=at), 0)
    yield json.loads(stats_of(at))
    expect(nfsrdma("umount", at), 0)


def stats_of(at):
    result = nfsrdma("stats", at, "--json")
    expect(result, 0)
    return result.stdout


def document(server):
    return json.loads(stats_of(server.mnt))


class Counted:
    """Calls made while it lasts, by procedure: `counted["READ"]`."""

    def __init__(self, server):
        self.server = server

    def __enter__(self):
        self.before = self.now()
        return self

    def __exit__(self, *_):
        self.after = self.now()

    def now(self):
        return {entry["name"]: entry["calls"] for entry in document(self.server)["procedures"]}

    def __getitem__(self, names):
        return sum(self.after[name] - self.before[name] for name in names.split("+"))


def flags_of(path):
    return set(mounted(path)[3].split(","))


def fails(number, function, *words):
    try:
        function(*words)
    except OSError as error:
        assert error.errno == number, error
    else:
        raise AssertionError(f"{function.__name__} of {words} succeeded")


@contextlib.contextmanager
def stopped(server):
    """The server does not answer."""
    server.child.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.child.send_signal(signal.SIGCONT)


class Later(threading.Thread):
    """A call in a thread of its own."""

    def __init__(self, function, *words):
        super().__init__(daemon=True)
        self.function, self.words, self.error = function, words, None
        self.start()

    def run(self):
        try:
            self.function(*self.words)
        except OSError as error:
            self.error = error.errno

    def outcome(self):
        self.join(LIMIT)
        assert not self.is_alive(), "it still waits"
        return self.error


@case
def every_option_is_tried():
    names = set(table())
    assert names - TRIED == set(), f"no case tries {sorted(names - TRIED)}"
    assert TRIED <= names, f"there is no option {sorted(TRIED - names)}"


# --- transport --------------------------------------------------------------------------------


@effect("rsize", "wsize", "write_chunk")
def sizes():
    payload = os.urandom(1 << 20)
    with Server() as server:
        for rsize, wsize, chunk in ((65536, 32768, "pz"), (131072, 131072, "reduced")):
            (server.export / "from-server").write_bytes(payload)
            with mount(server, f"rsize={rsize},wsize={wsize},write_chunk={chunk},nconnect=1"), Counted(server) as counted:
                (server.mnt / "a").write_bytes(payload)
                assert (server.mnt / "from-server").read_bytes() == payload
                (link,) = document(server)["connections"]
            assert (server.export / "a").read_bytes() == payload
            # None is larger, and few are smaller.
            for name, size in (("READ", rsize), ("WRITE", wsize)):
                least = len(payload) // size
                assert least <= counted[name] <= least * 3 // 2, (name, size, counted[name])
            whole, data = (link["counters"][name] for name in ("position_zero_chunks", "read_chunks"))
            if chunk == "pz":
                assert whole >= counted["WRITE"] and data == 0, (whole, data)
            else:
                assert data >= counted["WRITE"] and whole == 0, (whole, data)
        with mount(server, "rsize=5000,wsize=1") as said:
            assert {"rsize=4096", "wsize=4096"} <= set(said["options"].split(",")), said["options"]
    # Head and data of a WRITE by Position Zero chunk stay within wtmax.
    with Server("--rtmax", "16384", "--wtmax", "8192") as server, mount(server, "rsize=1M,wsize=1M") as said:
        assert {"rsize=16384", "wsize=4096"} <= set(said["options"].split(",")), said["options"]


@effect("proto", "rdma", "port", "nconnect", "vers", "nfsvers", "v3", "sec", "xprtsec")
def transport_and_version():
    with Server() as server, Relay(server.port) as relay:
        own = f"mountport={server.mountport},mountproto=tcp"
        words = f"port={relay.port},proto=rdma,rdma,vers=3,nfsvers=3,v3,sec=sys,xprtsec=none,nconnect=3,{own}"
        expect(nfsrdma("mount", server.spec, server.mnt, "-o", words), 0, "iwarp")
        # Calls side by side need them all.
        (server.mnt / "a").write_bytes(b"x" * (64 << 20))
        assert len(relay.peers) == 3, f"{len(relay.peers)} connections"
        links = document(server)["connections"]
        assert [link["connected"] for link in links] == [True] * 3, links
        assert {link["peer"] for link in links} == {f"127.0.0.1:{relay.port}"}, links
        assert all(link["counters"]["sends"] > 0 for link in links), links
        # sec=sys: the caller's own numbers reach the server.
        server.export.chmod(0o777)
        if os.geteuid() == 0:
            expect(as_nobody("touch", server.mnt / "mine"), 0)
            assert (server.export / "mine").stat().st_uid == NOBODY
        expect(nfsrdma("umount", server.mnt), 0)
        expect(server.mount("proto=rdma6"), 32, "127.0.0.1 has no IPv6 address")
        for words in ("vers=4", "nfsvers=2", "proto=tcp", "sec=krb5p", "xprtsec=tls"):
            expect(server.mount(words), 1, f"'{words}' cannot be honoured")


@effect("proto", "mountproto")
def ipv6():
    if not Path("/proc/net/if_inet6").read_text().strip():
        raise Skip("no IPv6 here")
    with Server("--ipv6", host="[::1]") as server:
        ways = (
            (f"tcp6,mountport={server.mountport}", 0),
            ("rdma6", 0),
            (f"udp6,mountport={server.mountport}", 0),
            # Where only TCP is listened to.
            (f"udp6,mountport={server.port}", 32),
        )
        for proto, status in ways:
            words = f"port={server.port},proto=rdma6,mountproto={proto},retry=0,nconnect=1"
            result = nfsrdma("mount", server.spec, server.mnt, "-o", words)
            expect(result, status)
            if status == 0:
                (link,) = document(server)["connections"]
                assert link["peer"] == f"[::1]:{server.port}", link
                expect(nfsrdma("umount", server.mnt), 0)


@effect("inline", "credits")
def inline_and_credits():
    with Server("--inline", "65536", "--credits", "32") as server:
        with mount(server, "inline=4K,credits=8,nconnect=1"), Counted(server):
            (server.mnt / "a").write_bytes(b"x" * 20_000)
            (link,) = document(server)["connections"]
            assert (link["inline_call"], link["credits_wanted"]) == (4096, 8), link
            assert link["credits_granted"] <= 8, link
            assert link["counters"]["position_zero_chunks"] > 0, link
        with mount(server, "inline=32K,credits=512,wsize=16K,nconnect=1"):
            (server.mnt / "a").write_bytes(b"x" * 20_000)
            (link,) = document(server)["connections"]
            assert (link["inline_call"], link["credits_wanted"]) == (32768, 512), link
            assert link["credits_granted"] == 32, link
            # Such a WRITE fits now.
            assert link["counters"]["position_zero_chunks"] == 0, link


@effect("crc", "nocrc", "fpdu", "transport")
def frames():
    crc_flag = 0x40
    with Server() as server, Relay(server.port) as relay:
        for number, (words, wanted) in enumerate(
            (("crc,transport=iwarp", True), ("nocrc,transport=auto", False), ("nocrc,fpdu=256", False))
        ):
            options = f"port={relay.port},mountport={server.mountport},mountproto=tcp,nconnect=1,{words},inline=16K"
            result = nfsrdma("mount", "-v", server.spec, server.mnt, "-o", options)
            expect(result, 0, "iwarp", "CRC on" if wanted else "CRC off")
            (server.mnt / "a").write_bytes(b"x" * 3000)
            expect(nfsrdma("umount", server.mnt), 0)
            flags, sizes_seen = mpa(relay.said[number])
            assert bool(flags & crc_flag) == wanted, f"{words}: flags {flags:#x}"
            if "fpdu" in words:
                assert max(sizes_seen) <= 256, max(sizes_seen)
            else:
                assert max(sizes_seen) > 1000, max(sizes_seen)
        # Soft-iWARP is not what answers.
        result = server.mount("transport=verbs")
        assert result.returncode in (1, 2, 32) and "verbs" in result.stderr, result
        assert result.stderr.count("\n") == 1, result.stderr
        assert not mounted(server.mnt)


# --- finding the export -----------------------------------------------------------------------


@effect("mountport", "mounthost", "mountproto", "mountvers", "resvport", "noresvport")
def mount_service():
    with Server() as server, Relay(server.mountport, host="127.0.0.2") as other:
        server_only = f"port={server.port},mountproto=tcp,mountvers=3"
        # Nobody listens there on the server's own address.
        result = nfsrdma("mount", server.spec, server.mnt, "-o", f"{server_only},mountport={other.port},retry=0")
        expect(result, 32, "mountd", "refused")
        elsewhere = f"{server_only},mounthost=127.0.0.2,mountport={other.port}"
        ports = {}
        for word in ("noresvport", "resvport"):
            before = len(other.peers)
            expect(nfsrdma("mount", server.spec, server.mnt, "-o", f"{elsewhere},{word}"), 0)
            expect(nfsrdma("umount", server.mnt), 0)
            ports[word] = other.peers[before:]
            assert ports[word], "mounthost was not asked"
        assert min(ports["noresvport"]) >= 1024, ports
        if os.geteuid() == 0:
            assert max(ports["resvport"]) < 1024, ports
        expect(server.mount("mountvers=1"), 1, "MOUNT version 3")
        with Datagrams(server.mountport) as gateway:
            words = f"port={server.port},mountproto=udp,mountport={gateway.port}"
            expect(nfsrdma("mount", server.spec, server.mnt, "-o", words), 0)
            expect(nfsrdma("umount", server.mnt), 0)
            assert gateway.calls >= 2, "MNT and UMNT did not come by UDP"
        # By the NFS connection: no other port is told to the program.
        words = f"port={server.port},mountproto=rdma"
        expect(nfsrdma("mount", server.spec, server.mnt, "-o", words), 0)
        expect(nfsrdma("umount", server.mnt), 0)


@effect("bg", "fg", "retry", "nofail", "fail")
def trying_again():
    with Server() as server:
        server.stop()
        for words in ("fg,retry=0", "bg,retry=0"):
            expect(server.mount(words), 32, "refused")
        expect(server.mount("retry=0,fail,nofail"), 0, "refused", "(nofail)")
        expect(server.mount("retry=0,nofail,fail"), 32, "refused")
        for words in ("fg", "fg,retry=5"):
            support.note_options(["-o", words])
            with subprocess.Popen(
                [BIN / "nfsrdma", "mount", server.spec, server.mnt, "-o", server.options(words)],
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            ) as child:  # fmt: skip
                try:
                    line = child.stderr.readline()
                    assert "refused" in line and "trying again" in line, line
                    assert child.poll() is None
                    server.start()
                    assert child.wait(LIMIT) == 0
                finally:
                    child.kill()
            assert mounted(server.mnt)
            expect(nfsrdma("umount", server.mnt), 0)
            server.stop()
        # `server_comes_later` has the rest of bg.


# --- when the server does not answer ----------------------------------------------------------


@effect("hard", "soft", "softerr", "timeo", "retrans")
def recovery():
    with Server() as server:
        (server.export / "a").touch()
        second, third, fourth = (server.base / name for name in ("second", "third", "fourth"))
        common = "actimeo=0"
        with (
            mount(server, f"{common},soft,timeo=2,retrans=1"),
            mount(server, f"{common},softerr,timeo=2,retrans=0", at=second),
            mount(server, f"{common},soft,timeo=600,retrans=0", at=third),
            mount(server, f"{common},hard,timeo=2,retrans=0", at=fourth),
        ):
            with stopped(server):
                begin = time.monotonic()
                soft, softerr, patient, hard = (
                    Later(os.stat, at / "a") for at in (server.mnt, second, third, fourth)
                )
                assert softerr.outcome() == errno.ETIMEDOUT, softerr.error
                assert soft.outcome() == errno.EIO, soft.error
                assert time.monotonic() - begin >= 0.4, "before two times timeo"

                def timeouts(at):
                    return sum(entry["timeouts"] for entry in json.loads(stats_of(at))["procedures"])

                # As often as a soft mount with these bears.
                until(lambda: timeouts(fourth) >= 1, "the hard mount's call to run out of time")
                assert timeouts(third) == 0, "timeo=600 is over already"
                assert hard.is_alive() and patient.is_alive()
            assert patient.outcome() is None and hard.outcome() is None


@effect("intr", "nointr")
def interrupts():
    """nfs(5): accepted, and without effect since Linux 2.6.25. Deadly signals end a wait either way."""
    script = (
        "import ctypes, os, signal, sys\n"
        "signal.signal(signal.SIGUSR1, lambda *_: None)\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "print('ready', flush=True)\n"
        "sys.exit(ctypes.get_errno() if libc.access(os.fsencode(sys.argv[1]), os.F_OK) else 0)\n"
    )

    def waits(pid):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "SD"

    with Server() as server:
        (server.export / "caught").touch()
        (server.export / "killed").touch()
        for word in ("intr", "nointr"):
            with mount(server, f"{word},actimeo=0"):
                with contextlib.ExitStack() as stack:
                    stack.enter_context(stopped(server))
                    children = []
                    for name in ("caught", "killed"):
                        command = [sys.executable, "-c", script, server.mnt / name]
                        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
                        stack.callback(child.stdout.close)
                        stack.callback(child.wait)
                        stack.callback(child.kill)
                        children.append(child)
                        assert child.stdout.readline() == "ready\n"
                    caught, killed = children
                    until(lambda: all(waits(child.pid) for child in children), "both to wait")
                    caught.send_signal(signal.SIGUSR1)
                    killed.send_signal(signal.SIGTERM)
                    assert killed.wait(LIMIT) == -signal.SIGTERM
                    assert caught.poll() is None
                    server.child.send_signal(signal.SIGCONT)
                    assert caught.wait(LIMIT) == 0, errno.errorcode.get(caught.returncode)


# --- caching ----------------------------------------------------------------------------------


def asked_again(server, path, times=5):
    """How many of some fstat(2) reach the server: no directory on the way has a part in it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fstat(descriptor)
        with Counted(server) as counted:
            for _ in range(times):
                os.fstat(descriptor)
    finally:
        os.close(descriptor)
    return counted["GETATTR"]


@effect("acregmin", "acregmax", "acdirmin", "acdirmax", "actimeo", "ac", "noac", "sync", "async")
def attribute_times():
    with Server() as server:
        (server.export / "file").touch()
        (server.export / "dir").mkdir()
        file, folder = server.mnt / "file", server.mnt / "dir"
        for words, of_files, of_folders in (
            ("acregmin=0,acregmax=0,acdirmin=3600,acdirmax=3600", True, False),
            ("acregmin=3600,acregmax=3600,acdirmin=0,acdirmax=0", False, True),
            ("ac,actimeo=3600", False, False),
            ("actimeo=0", True, True),
            ("noac", True, True),
        ):
            with mount(server, words):
                for path, wanted in ((file, of_files), (folder, of_folders)):
                    seen = asked_again(server, path)
                    assert seen == (5 if wanted else 0), f"{words}: {seen} calls for {path.name}"
        # One second, again and again; with the default of acregmax it would be ever longer.
        with mount(server, "acregmin=1,acregmax=1"):
            for size in (1, 2, 3):
                (server.export / "file").write_bytes(b"x" * size)
                until(lambda: file.stat().st_size == size, f"size {size} to be seen")
        for words, at_once in (("sync", True), ("async", False), ("noac", True), ("sync,async", False)):
            with mount(server, words), open(file, "wb", buffering=0) as out:
                with Counted(server) as counted:
                    for _ in range(200):
                        out.write(b"y" * 128)
                if at_once:
                    assert counted["WRITE"] == 200 and counted["COMMIT"] == 0, (words, counted["WRITE"])
                    assert (server.export / "file").read_bytes() == b"y" * 25_600
                else:
                    # Few: what waits a while is written all the same.
                    assert counted["WRITE"] <= 50, (words, counted["WRITE"])
                if words == "sync":
                    assert "sync" in flags_of(server.mnt), flags_of(server.mnt)


@effect("cto", "nocto")
def close_to_open():
    with Server() as server:
        for word, wanted in (("cto", b"new"), ("nocto", b"old")):
            (server.export / "a").write_bytes(b"old")
            with mount(server, f"{word},actimeo=3600"):
                assert (server.mnt / "a").read_bytes() == b"old"
                (server.export / "a").write_bytes(b"new")
                assert (server.mnt / "a").read_bytes() == wanted, word


@effect("acl", "noacl")
def access_control_lists():
    name, value = "system.posix_acl_access", b"\2\0\0\0" + b"".join(
        bytes([tag, 0, 4, 0]) + ident for tag, ident in
        ((1, b"\xff" * 4), (2, b"\1\0\0\0"), (4, b"\xff" * 4), (16, b"\xff" * 4), (32, b"\xff" * 4)))  # fmt: skip
    with Server() as server:
        file = server.mnt / "a"
        with mount(server, "acl"):
            file.touch()
            os.setxattr(file, name, value)
            assert os.getxattr(file, name) == os.getxattr(server.export / "a", name) == value
        with mount(server, "noacl"):
            fails(errno.EOPNOTSUPP, lambda: os.setxattr(file, name, value))
            assert os.listxattr(server.export / "a") == [name]


@effect("lookupcache", "rdirplus", "nordirplus")
def names():
    with Server() as server:
        (server.export / "there").touch()

        def lookups(path):
            os.path.exists(path)
            with Counted(server) as counted:
                for _ in range(5):
                    os.path.exists(path)
            return counted["LOOKUP"]

        for word, there, missing in (("all", 0, 0), ("pos", 0, 5), ("positive", 0, 5), ("none", 5, 5)):
            with mount(server, f"lookupcache={word},actimeo=3600"):
                assert lookups(server.mnt / "there") == there, word
                assert lookups(server.mnt / "missing") == missing, word
        for word, plus in (("rdirplus", True), ("nordirplus", False)):
            with mount(server, word), Counted(server) as counted:
                assert os.listdir(server.mnt) == ["there"]
            assert (counted["READDIRPLUS"] > 0, counted["READDIR"] > 0) == (plus, not plus), word


@effect("cache", "dirty", "readahead")
def memory():
    size = 40 << 20
    with Server() as server:
        with open(server.export / "large", "wb") as file:
            file.truncate(size)
        # What is under way comes on top of the cache, within a pool that is 32M larger. What was only read, and the
        # kernel has, may take a quarter.
        for words, written, least, most in (
            ("cache=16M", True, 8 << 20, 36 << 20),
            ("cache=128M", True, size, size + (4 << 20)),
            ("cache=128M", False, 24 << 20, 36 << 20),
            ("cache=512M", False, size, size + (4 << 20)),
        ):  # fmt: skip
            with mount(server, words):
                # Not in order: of a long stream little is kept.
                with open(server.mnt / "large", "r+b") as file:
                    for piece in range(0, 40 * 7, 7):
                        if written:
                            assert os.pwrite(file.fileno(), b"x" * (1 << 20), piece % 40 << 20) == 1 << 20
                        else:
                            assert len(os.pread(file.fileno(), 1 << 20, piece % 40 << 20)) == 1 << 20
                    os.fsync(file.fileno())
                used = document(server)["cache"]["cache_bytes"]
                assert least <= used <= most, f"{words}: {used}"
        # In a process of its own: a child of ours would close our descriptor, and wait for that.
        script = (
            "import os, sys\n"
            "file = os.open(sys.argv[1], os.O_WRONLY)\n"
            "print('open', flush=True), sys.stdin.readline()\n"
            "for _ in range(16): os.write(file, b'x' * (1 << 19))\n"
            "print('written', flush=True)\n"
        )
        for words, waits in (("dirty=1M", True), ("dirty=32M", False)):
            (server.export / "b").write_bytes(b"")
            with (
                mount(server, f"wsize=1M,{words}"),
                subprocess.Popen(
                    [sys.executable, "-c", script, server.mnt / "b"],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                ) as writer,
            ):  # fmt: skip
                assert writer.stdout.readline() == "open\n"
                with stopped(server):
                    writer.stdin.write("\n")
                    writer.stdin.flush()
                    if waits:
                        until(lambda: document(server)["cache"]["write_waits"] > 0, "the writer to wait")
                        assert document(server)["cache"]["dirty_bytes"] <= 1 << 20
                    else:
                        assert writer.stdout.readline() == "written\n"
                        assert document(server)["cache"]["write_waits"] == 0
                assert writer.wait(LIMIT) == 0
            assert (server.export / "b").stat().st_size == 8 << 20
        ahead = {}
        for words in ("readahead=0", "readahead=8M"):
            with mount(server, f"{words},rsize=64K"), open(server.mnt / "large", "rb", buffering=0) as file:
                for _ in range(16):
                    file.read(65536)
                ahead[words] = document(server)["cache"]["readahead_bytes"]
        assert ahead["readahead=0"] == 0 and ahead["readahead=8M"] >= 1 << 20, ahead


# --- locks ------------------------------------------------------------------------------------


@effect("lock", "lockport", "nolock", "local_lock")
def locks():
    script = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'r+')\n"
        "for take in fcntl.flock, fcntl.lockf:\n"
        "    try:\n"
        "        take(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "        print('free')\n"
        "    except BlockingIOError:\n"
        "        print('held')\n"
    )
    # "lock" and lockport= by themselves: see locks.py.
    with Server() as server:
        with mount(server, f"lock,lockport={server.mountport}"), open(server.mnt / "a", "w+") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            assert document(server)["cache"]["locks_held"] == 1
    with Server() as server, mount(server, "nolock,local_lock=all"):

        def tried(path):
            result = run(sys.executable, "-c", script, path)
            expect(result, 0)
            return result.stdout.split()

        with open(server.mnt / "a", "w+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            assert tried(server.mnt / "a") == ["held", "free"]
            fcntl.flock(file, fcntl.LOCK_UN)
            fcntl.lockf(file, fcntl.LOCK_EX)
            assert tried(server.mnt / "a") == ["free", "held"]
            # Nobody told the server.
            assert tried(server.export / "a") == ["free", "free"]
        assert tried(server.mnt / "a") == ["free", "free"]


@effect("callbackport")
def callback_port():
    def answers(port):
        """Whether NULL of NLM version 4 is answered there."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as to:
            to.settimeout(1)
            try:
                to.connect(("127.0.0.1", port))
                to.send(struct.pack(">10I", 7, 0, 2, 100021, 4, 0, 0, 0, 0, 0))
                return to.recv(100)[:8] == struct.pack(">II", 7, 1)
            except OSError:
                return False

    with Server() as server:
        port = free_port()
        with mount(server, f"lock,lockport={server.mountport},callbackport={port}"):
            assert not answers(port), "nothing is locked"
            with open(server.mnt / "a", "w+") as file:
                fcntl.lockf(file, fcntl.LOCK_EX)
                until(lambda: answers(port), "the port")
        until(lambda: not answers(port), "the end of the port")
        with (
            mount(server, f"lock,lockport={server.mountport},callbackport=none"),
            open(server.mnt / "a", "w+") as file,
        ):
            fcntl.lockf(file, fcntl.LOCK_EX)
            assert document(server)["cache"]["locks_held"] == 1


# --- FUSE -------------------------------------------------------------------------------------


@effect("allow_other", "noallow_other")
def who_may():
    root()
    with Server() as server:
        (server.export / "open").write_text("1")
        for words, shown, status in (("allow_other", True, 0), ("noallow_other", False, 1)):
            with mount(server, words):
                assert ("allow_other" in flags_of(server.mnt)) == shown
                assert as_nobody("cat", server.mnt / "open").returncode == status, words


@effect("permissions", "default_permissions")
def who_checks():
    root()
    with Server() as server:
        secret = server.export / "secret"
        secret.write_text("1")
        secret.chmod(0o600)
        for words, local, dev in (
            ("", "kernel", True),
            ("noallow_other", "server", True),
            ("default_permissions", "kernel", True),
            ("permissions=kernel", "kernel", True),
            ("noallow_other,permissions=kernel", "kernel", True),
            ("permissions=server", "server", False),
            ("permissions=server,dev", "server", True),
        ):
            with mount(server, words) as said:
                flags = flags_of(server.mnt)
                assert ("default_permissions" in flags) == (local == "kernel"), words
                assert ("nodev" not in flags) == dev, words
                assert f"permissions={local}" in said["options"].split(","), words
                if "noallow_other" not in words:
                    os.stat(server.mnt / "secret")
                    with Counted(server) as counted:
                        assert as_nobody("cat", server.mnt / "secret").returncode == 1
                    # The kernel knows the modes; else the server is asked.
                    assert (counted["ACCESS"] == 0) == (local == "kernel"), counted["ACCESS"]
                # A remount repeats what /proc/mounts shows, or nothing.
                for again in (f"remount,ro,{mounted(server.mnt)[3]}", "remount,rw"):
                    expect(nfsrdma("mount", server.spec, server.mnt, "-o", again), 0)
                    now = flags_of(server.mnt)
                    assert ("default_permissions" in now) == (local == "kernel"), again
                    assert "nodev" in now or dev, again
                other = "server" if local == "kernel" else "kernel"
                expect(nfsrdma("mount", server.spec, server.mnt, "-o", f"remount,permissions={other}"), 1)


@effect("threads")
def reader_threads():
    seen = {}
    with Server() as server:
        for number in (1, 7):
            with mount(server, f"threads={number}") as said:
                # Each reader has a descriptor of /dev/fuse of its own.
                names_of = [os.readlink(link) for link in Path(f"/proc/{said['pid']}/fd").iterdir()]
                seen[number] = sum(name == "/dev/fuse" for name in names_of)
    assert seen[7] - seen[1] == 6, seen


@effect("workers")
def event_loops():
    with Server() as server:
        (server.export / "a").write_bytes(b"x" * 100_000)
        for words, workers, links in (
            ("workers=0", 0, 1),
            ("workers=1", 1, 1),
            ("workers=3", 3, 3),
            ("workers=6", 6, 4),
            ("workers=2,nconnect=5", 2, 5),
        ):
            with mount(server, words) as said:
                names = [(task / "comm").read_text() for task in Path(f"/proc/{said['pid']}/task").iterdir()]
                assert sum(name.startswith("worker-") for name in names) == workers, (words, names)
                assert any(name.startswith("fuse-") for name in names) == (workers == 0), (words, names)
                options = said["options"].split(",")
                assert f"workers={workers}" in options and f"nconnect={links}" in options, (words, options)
                # The first is up before the mount is; the others follow.
                until(
                    lambda: [link["connected"] for link in document(server)["connections"]] == [True] * links,
                    f"{links} connections with {words}",
                )
                assert (server.mnt / "a").read_bytes() == b"x" * 100_000
                (server.mnt / f"b-{workers}").write_bytes(os.urandom(3 << 20))
        expect(server.mount("workers=17"), 1, "'workers=17' is not allowed")


@effect("io_uring")
def requests_by_io_uring():
    with Server() as server:
        (server.export / "a").write_bytes(b"x" * 100_000)
        with switched("Y"):
            with mount(server, "io_uring=off") as said:
                assert rings(said["pid"]) == 0 and "io_uring" not in said["options"], said["options"]
        if reason := no_rings_here():
            raise Skip(reason)
        with switched("Y"):
            with mount(server, "io_uring=on,workers=3") as said:
                assert rings(said["pid"]) == 3 and "io_uring=on" in said["options"].split(","), said["options"]
                assert (server.mnt / "a").read_bytes() == b"x" * 100_000
        expect(server.mount("io_uring=yes"), 1, "'io_uring=yes' is not allowed: io_uring takes on or off")


@effect("metrics")
def metrics_on_a_socket():
    with Server() as server:
        path = server.base / "metrics"
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(path))

        def get():
            with socket.socket(socket.AF_UNIX) as http:
                http.settimeout(LIMIT)
                http.connect(str(path))
                http.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
                return rest_of(http)

        with mount(server, f"metrics=unix:{path}") as said:
            assert f"metrics=unix:{path}" in said["options"].split(",")
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert get().startswith(b"HTTP/1.1 200 OK\r\n") and b"nfsrdma_procedure_calls_total" in get()
            second = server.base / "second"
            second.mkdir()
            expect(server.mount(f"metrics=unix:{path}", at=second), 2, "cannot serve metrics at unix:/")
            assert get().startswith(b"HTTP/1.1 200 "), "the second took it away"
        assert not path.exists(), "the socket is left"
        expect(server.mount("metrics=unix:relative"), 1, "unix:/PATH")


@effect("metrics")
def metrics_where_asked():
    port = free_port()
    with Server() as server, mount(server, f"metrics=127.0.0.3:{port}") as said:
        with socket.create_connection(("127.0.0.3", port), LIMIT) as http:
            http.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert b"200 OK" in rest_of(http)
        fails(errno.ECONNREFUSED, socket.create_connection, ("127.0.0.1", port))
        assert f"metrics=127.0.0.3:{port}" in said["options"]


# --- of mount(8) ------------------------------------------------------------------------------


@effect("ro", "rw", "suid", "nosuid", "dev", "nodev", "exec", "noexec")
def kernel_flags():
    root()
    with Server() as server:
        program = server.export / "id"
        shutil.copy(shutil.which("id"), program)
        program.chmod(0o4755)
        os.mknod(server.export / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        (server.export / "null").chmod(0o666)
        first = "ro,nosuid,nodev,noexec"
        for words, on in ((first, True), (f"{first},rw,suid,dev,exec", False), ("rw,suid,dev,exec", False)):
            with mount(server, words):
                shown = flags_of(server.mnt)
                assert ({"ro", "nosuid", "nodev", "noexec"} <= shown) if on else ("rw" in shown), shown
                assert on or not {"nosuid", "nodev", "noexec"} & shown, shown
                if on:
                    fails(errno.EROFS, (server.mnt / "a").touch)
                    fails(errno.EACCES, run, server.mnt / "id")
                    fails(errno.EACCES, open, server.mnt / "null", "rb")
                else:
                    (server.mnt / "a").touch()
                    assert as_nobody(server.mnt / "id", "-u").stdout == "0\n", "set-user-id has no effect"
                    (server.mnt / "null").read_bytes()
        with mount(server, "nosuid"):
            assert as_nobody(server.mnt / "id", "-u").stdout == f"{NOBODY}\n"


@effect(
    "atime", "noatime", "relatime", "norelatime", "strictatime", "nostrictatime", "diratime", "nodiratime",
    "dirsync", "defaults", "remount", "user", "users", "owner", "group",
)  # fmt: skip
def shown_flags():
    root()
    times = {"noatime", "relatime", "nodiratime"}
    with Server() as server:
        for words, wanted, absent in (
            ("defaults", {"rw", "relatime"}, {"ro", "nosuid", "noexec", "noatime"}),
            ("noatime", {"noatime"}, {"relatime"}),
            ("noatime,atime", {"relatime"}, {"noatime"}),
            ("noatime,relatime", {"relatime"}, {"noatime"}),
            ("noatime,norelatime,nostrictatime", {"noatime"}, {"relatime"}),
            ("strictatime", set(), times),
            ("nodiratime", {"nodiratime"}, set()),
            ("nodiratime,diratime", set(), {"nodiratime"}),
            ("dirsync", {"dirsync"}, set()),
            ("user", {"nosuid", "nodev", "noexec"}, set()),
            ("users,exec", {"nosuid", "nodev"}, {"noexec"}),
            ("owner", {"nosuid", "nodev"}, {"noexec"}),
            ("group,suid", {"nodev"}, {"nosuid", "noexec"}),
        ):
            with mount(server, words):
                shown = flags_of(server.mnt)
                assert wanted <= shown and not absent & shown, f"{words}: {shown}"
        with mount(server, ""):
            expect(server.mount("remount,ro,nodiratime"), 0)
            assert {"ro", "nodiratime"} <= flags_of(server.mnt), flags_of(server.mnt)
            fails(errno.EROFS, (server.mnt / "a").touch)


@effect("addr", "mountaddr", "namlen", "bsize", "nfsprog", "mountprog", "minorversion", "fatal_neterrors")
def shown_by_the_kernels_client():
    """A line of /proc/mounts of the kernel's client is taken; the address of mountd counts."""
    with Server() as server, Relay(server.mountport, host="127.0.0.2") as mountd:
        own = f"port={server.port},mountproto=tcp,mountport={mountd.port},noresvport,retry=0"
        shown = "namlen=255,bsize=4096,nfsprog=100003,mountprog=100005,minorversion=0,fatal_neterrors=default"
        for words, status in (
            (f"addr=127.0.0.1,mountaddr=127.0.0.2,{shown}", 0),
            (f"addr=127.0.0.1,mountaddr=127.0.0.1,{shown}", 32),
        ):
            expect(nfsrdma("mount", server.spec, server.mnt, "-o", f"{own},{words}"), status)
            assert bool(mounted(server.mnt)) == (status == 0)
            if status == 0:
                assert mountd.peers, "mountd was asked elsewhere"
                expect(nfsrdma("umount", server.mnt), 0)
        for words in ("nfsprog=1", "mountprog=1", "minorversion=3", "addr=srv", "namlen=x", "bsize=x"):
            expect(server.mount(words), 1, "is not allowed")
        expect(server.mount("minorversion=1"), 1, "cannot be honoured")
        expect(server.mount("fatal_neterrors=ENETDOWN:ENETUNREACH"), 1, "cannot be honoured")


@effect("nosymfollow", "symfollow")
def symbolic_links():
    root()
    with Server() as server:
        (server.export / "file").write_text("x")
        (server.export / "link").symlink_to("file")
        with mount(server, "nosymfollow"):
            fails(errno.ELOOP, (server.mnt / "link").read_text)
            assert os.readlink(server.mnt / "link") == "file"
        with mount(server, "nosymfollow,symfollow"):
            assert (server.mnt / "link").read_text() == "x"


@effect("context", "fscontext", "defcontext", "rootcontext")
def security_contexts():
    """Where there is no SELinux they are passed over, as mount(8) does."""
    if Path("/sys/fs/selinux/enforce").exists():
        raise Skip("this kernel has SELinux, and which contexts it takes is its policy's")
    label = '"system_u:object_r:nfs_t:s0:c1,c2"'
    with Server() as server:
        for name in ("context", "fscontext", "defcontext", "rootcontext"):
            with mount(server, f"{name}={label},ro"):
                assert "ro" in flags_of(server.mnt)
        expect(server.mount("context="), 1, "is not allowed")


@effect("write")
def kinds_of_writing():
    with Server() as server:
        for words, synchronous in (("write=lazy", False), ("write=eager", False), ("write=wait", True)):
            with mount(server, words), Counted(server) as counted:
                assert ("sync" in flags_of(server.mnt)) == synchronous, words
                with open(server.mnt / "a", "wb", buffering=0) as file:
                    file.write(b"x")
                    if synchronous:
                        assert (server.export / "a").read_bytes() == b"x", "it was not waited for"
            assert counted["WRITE"] == 1
            (server.export / "a").unlink()


@effect("nomigration", "notrunkdiscovery", "softreval", "nosoftreval", "alignwrite", "noalignwrite", "seclabel",
        "lazytime", "nolazytime", "iversion", "noiversion", "mand", "nomand", "silent", "loud", "posix", "noposix",
        "nofsc", "nosharecache", "nouser", "noowner", "nogroup", "auto", "noauto", "_netdev", "comment",
        "quota", "noquota", "usrquota", "grpquota")  # fmt: skip
def accepted():
    """They change nothing: the options in force and those of the kernel are as without them."""
    words = [f"{name}=x" if name == "comment" else name for name in table("accept")]
    with Server() as server:
        found = []
        for options in ("", ",".join(["x-systemd.automount", "X-mount.mkdir", *words])):
            with mount(server, options) as said:
                found.append((said["options"], flags_of(server.mnt)))
        assert found[0] == found[1], found


@effect(*table("refuse"))
def refused_by_name():
    with Place() as place:
        for name in table("refuse"):
            result = nfsrdma("mount", "127.0.0.1:/x", place.mnt, "-o", name)
            expect(result, 1, f"option '{name}' cannot be honoured: ")
            assert result.stderr.count("\n") == 1 and not mounted(place.mnt), result.stderr


@effect("sloppy")
def sloppy():
    with Server() as server:
        expect(server.mount("zork,v4,fsc"), 1, "zork")
        expect(server.mount("sloppy,zork,v4,rsize=x"), 1, "rsize")
        with mount(server, "sloppy,zork,v4,fsc,minorversion=1,rsize=4K") as said:
            assert "rsize=4096" in said["options"].split(",")
