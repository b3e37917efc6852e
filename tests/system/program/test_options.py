"""The effects of mount options that docs/CONFIGURATION.md promises; here those of transport, caching and locks.

A test names the options that it tries by `@effect(...)`. `test_every_option_is_tried` fails for an option in the
program's table that no test in a file test_options*.py tries.
"""

import errno
import fcntl
import importlib
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from program import support
from program.effects import *  # noqa: F403
from program.support import *  # noqa: F403
from program.support import BIN
from program.wire import Datagrams, Relay, mpa


def test_every_option_is_tried():
    for name in ("test_locks", *(path.stem for path in Path(__file__).parent.glob("test_options*.py"))):
        importlib.import_module(f"program.{name}")
    names, tried = set(table()), TRIED.union(*map(table, KINDS))
    assert names - tried == set(), f"no case tries {sorted(names - tried)}"
    assert tried <= names, f"there is no option {sorted(tried - names)}"


# --- transport --------------------------------------------------------------------------------


@effect("rsize", "wsize", "write_chunk")
def test_sizes():
    payload = os.urandom(1 << 20)
    with Server() as server:
        for rsize, wsize, chunk in ((65536, 32768, "pz"), (131072, 131072, "reduced")):
            (server.export / "from-server").write_bytes(payload)
            with mount(server, f"rsize={rsize},wsize={wsize},write_chunk={chunk},nconnect=1"), Counted(server) as counted:
                (server.mnt / "a").write_bytes(payload)
                assert (server.mnt / "from-server").read_bytes() == payload
                (link,) = document(server)["connections"]
            assert (server.export / "a").read_bytes() == payload
            # No call is larger, and few are smaller.
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
    # Head and data of a WRITE by Position Zero chunk fit into wtmax.
    with Server("--rtmax", "16384", "--wtmax", "8192") as server, mount(server, "rsize=1M,wsize=1M") as said:
        assert {"rsize=16384", "wsize=4096"} <= set(said["options"].split(",")), said["options"]


@effect("proto", "rdma", "port", "nconnect", "vers", "nfsvers", "v3", "sec", "xprtsec")
def test_transport_and_version():
    with Server() as server, Relay(server.port) as relay:
        own = f"mountport={server.mountport},mountproto=tcp"
        words = f"port={relay.port},proto=rdma,rdma,vers=3,nfsvers=3,v3,sec=sys,xprtsec=none,nconnect=3,{own}"
        expect(nfsrdma("mount", server.spec, server.mnt, "-o", words), 0, "iwarp")
        # Parallel calls need all connections.
        (server.mnt / "a").write_bytes(b"x" * (64 << 20))
        assert len(relay.peers) == 3, f"{len(relay.peers)} connections"
        links = document(server)["connections"]
        assert [link["connected"] for link in links] == [True] * 3, links
        assert {link["peer"] for link in links} == {f"127.0.0.1:{relay.port}"}, links
        assert all(link["counters"]["sends"] > 0 for link in links), links
        # sec=sys: the server gets the caller's own uid and gid.
        server.export.chmod(0o777)
        if os.geteuid() == 0:
            expect(as_nobody("touch", server.mnt / "mine"), 0)
            assert (server.export / "mine").stat().st_uid == NOBODY
        expect(nfsrdma("umount", server.mnt), 0)
        expect(server.mount("proto=rdma6"), 32, "127.0.0.1 has no IPv6 address")
        for words in ("vers=4", "nfsvers=2", "proto=tcp", "sec=none", "xprtsec=tls"):
            expect(server.mount(words), 1, f"'{words}' cannot be honoured")


def ends(server):
    """Both ends of each connection, when all are up; the server's by its address."""
    links = lambda: document(server)["connections"]
    until(lambda: all(link["connected"] for link in links()), "all connections")
    each = [(link["peer"], link["local"]) for link in links()]
    assert all(peer.endswith(f":{server.port}") for peer, _ in each), each
    return [tuple(end.rpartition(":")[0].removeprefix("127.0.0.") for end in pair) for pair in each]


@effect("remoteports", "localports")
def test_paths():
    with Server("--listen", "0.0.0.0:0") as server:
        with mount(server, "remoteports=127.0.0.1-127.0.0.2~127.0.0.5,localports=127.0.0.8~127.0.0.9") as said:
            assert {"remoteports=127.0.0.1~127.0.0.2~127.0.0.5", "nconnect=3"} <= set(said["options"].split(",")), said
            assert ends(server) == [("1", "8"), ("2", "9"), ("5", "8")]
            assert f"path to 127.0.0.2:{server.port} from 127.0.0.9: 1 of 1 connection up; " in stats_as_text(server)
        with mount(server, "remoteports=127.0.0.2~127.0.0.1,nconnect=5"):
            assert [peer for peer, _ in ends(server)] == ["2", "1", "2", "1", "2"]
        with mount(server, "localports=127.0.0.8,nconnect=2"):
            assert ends(server) == [("1", "8")] * 2
            assert "path to" not in stats_as_text(server)
        with mount(server, "remoteports=dns,nconnect=2"):
            assert [peer for peer, _ in ends(server)] == ["1"] * 2
        for words, status, said in (
            ("remoteports=srv", 1, "'remoteports=srv' is not allowed: remoteports takes dns, or 1 to 16 IP addresses"),
            ("localports=dns", 1, "'localports=dns' is not allowed: localports takes 1 to 16 IP addresses"),
            ("remoteports=127.0.0.1-127.0.0.3,nconnect=2", 1, "'nconnect=2' can hold"),
            ("remoteports=::1,localports=127.0.0.8", 1, "contradict each other"),
            ("remoteports=127.0.0.1,proto=rdma6", 1, "contradict each other"),
            ("localports=192.0.2.1,retry=0", 32, "cannot connect from 192.0.2.1: this machine does not have the address"),
        ):
            expect(server.mount(words), status, said)
    # One of the addresses does not answer: nobody listens there.
    with Server() as server:
        with mount(server, "remoteports=127.0.0.3~127.0.0.1,localports=127.0.0.8"):
            (server.mnt / "a").write_bytes(b"x" * 100_000)
            up = [link["connected"] for link in document(server)["connections"]]
            assert up == [False, True], up
            assert f"connection 0: down, to 127.0.0.3:{server.port} from 127.0.0.8" in stats_as_text(server)


def stats_as_text(server):
    result = nfsrdma("stats", server.mnt)
    expect(result, 0)
    return result.stdout


def test_paths_outlive_the_process():
    root()
    for words in ("remoteports=127.0.0.1~127.0.0.2,localports=127.0.0.8~127.0.0.9", "remoteports=dns,localports=127.0.0.8,nconnect=2"):
        with Server("--listen", "0.0.0.0:0") as server, mount(server, f"{words},restart=files") as first:
            before = ends(server)
            os.kill(first["pid"], signal.SIGKILL)
            until(lambda: document(server)["pid"] != first["pid"], "a successor")
            assert ends(server) == before
            expect(nfsrdma("mount", server.spec, server.mnt, "-o", "remount,nconnect=4"), 0)
            assert ends(server) == before * 2


@effect("proto", "mountproto")
def test_ipv6():
    if not Path("/proc/net/if_inet6").read_text().strip():
        pytest.skip("no IPv6 here")
    with Server("--ipv6", host="[::1]") as server:
        ways = (
            (f"tcp6,mountport={server.mountport}", 0),
            ("rdma6", 0),
            (f"udp6,mountport={server.mountport}", 0),
            # The server listens at TCP only.
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
def test_inline_and_credits():
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
            # Such a WRITE fits inline now.
            assert link["counters"]["position_zero_chunks"] == 0, link


@effect("crc", "nocrc", "fpdu", "transport")
def test_frames():
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
        # The error must not come from soft-iWARP.
        result = server.mount("transport=verbs")
        assert result.returncode in (1, 2, 32) and "verbs" in result.stderr, result
        assert result.stderr.count("\n") == 1, result.stderr
        assert not mounted(server.mnt)


# --- finding the export -----------------------------------------------------------------------


@effect("mountport", "mounthost", "mountproto", "mountvers", "resvport", "noresvport")
def test_mount_service():
    with Server() as server, Relay(server.mountport, host="127.0.0.2") as other:
        server_only = f"port={server.port},mountproto=tcp,mountvers=3"
        # Nobody listens there: the port is taken, and by nobody else, but not for listening.
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            words = f"{server_only},mountport={silent.getsockname()[1]},retry=0"
            expect(nfsrdma("mount", server.spec, server.mnt, "-o", words), 32, "mountd", "refused")
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
        # By the NFS connection: the program gets no other port.
        words = f"port={server.port},mountproto=rdma"
        expect(nfsrdma("mount", server.spec, server.mnt, "-o", words), 0)
        expect(nfsrdma("umount", server.mnt), 0)


@effect("bg", "fg", "retry", "nofail", "fail")
def test_trying_again():
    with Server() as server:
        server.stop()
        for words in ("fg,retry=0", "bg,retry=0"):
            expect(server.mount(words), 32, "refused")
        expect(server.mount("retry=0,fail,nofail"), 0, "refused", "(nofail)")
        expect(server.mount("retry=0,nofail,fail"), 32, "refused")
        for words in ("fg", "fg,retry=5"):
            support.note_options(["-o", words])
            with running(
                BIN / "nfsrdma", "mount", server.spec, server.mnt, "-o", server.options(words),
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            ) as child:  # fmt: skip
                line = child.stderr.readline()
                assert "refused" in line and "trying again" in line, line
                assert child.poll() is None
                server.start()
                assert child.wait(LIMIT) == 0
            assert mounted(server.mnt)
            expect(nfsrdma("umount", server.mnt), 0)
            server.stop()
        # `server_comes_later` tests the rest of bg.


# --- when the server does not answer ----------------------------------------------------------


@effect("hard", "soft", "softerr", "timeo", "retrans")
def test_recovery():
    with Server() as server:
        (server.export / "a").touch()
        second, third, fourth = (server.base / name for name in ("second", "third", "fourth"))
        common = "actimeo=0"
        with (
            mount(server, f"{common},soft,timeo=10,retrans=1"),
            mount(server, f"{common},softerr,timeo=10,retrans=0", at=second),
            mount(server, f"{common},soft,timeo=600,retrans=0", at=third),
            mount(server, f"{common},hard,timeo=10,retrans=0", at=fourth),
        ):
            with stopped(server):
                begin = time.monotonic()
                soft, softerr, patient, hard = (Call(os.stat, at / "a") for at in (server.mnt, second, third, fourth))
                assert (softerr.end(), soft.end()) == (errno.ETIMEDOUT, errno.EIO)
                assert time.monotonic() - begin >= 2, "before two times timeo"

                def timeouts(at):
                    return sum(entry["timeouts"] for entry in document_of(at)["procedures"])

                # After as many time-outs as a soft mount with these options permits.
                until(lambda: timeouts(fourth) >= 1, "the hard mount's call to run out of time")
                assert timeouts(third) == 0, "timeo=600 is over already"
                assert hard.is_alive() and patient.is_alive()
            assert all(isinstance(call.end(), os.stat_result) for call in (patient, hard))


@effect("intr", "nointr")
def test_interrupts():
    """nfs(5): accepted, and without effect. What signals do: `test_killed_in`, `test_caught_signals_do_not_interrupt`."""
    with Server() as server:
        for word in ("intr", "nointr"):
            with mount(server, word) as said:
                assert ("intr" in said["options"].split(",")) == (word == "intr"), said


# --- caching ----------------------------------------------------------------------------------


def asked_again(server, path, times=5):
    """The number of several fstat(2) calls that reach the server. No directory is involved."""
    with opening(path, os.O_RDONLY) as descriptor:
        os.fstat(descriptor)
        with Counted(server) as counted:
            for _ in range(times):
                os.fstat(descriptor)
    return counted["GETATTR"]


@effect("acregmin", "acregmax", "acdirmin", "acdirmax", "actimeo", "ac", "noac", "sync", "async")
def test_attribute_times():
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
        # One second each time; with the default of acregmax the time would grow.
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
                    # A few WRITEs are permitted, because data is written after some time in any case.
                    assert counted["WRITE"] <= 50, (words, counted["WRITE"])
                if words == "sync":
                    assert "sync" in flags_of(server.mnt), flags_of(server.mnt)


@effect("cto", "nocto")
def test_close_to_open():
    with Server() as server:
        for word, wanted in (("cto", b"new"), ("nocto", b"old")):
            (server.export / "a").write_bytes(b"old")
            with mount(server, f"{word},actimeo=3600"):
                assert (server.mnt / "a").read_bytes() == b"old"
                (server.export / "a").write_bytes(b"new")
                assert (server.mnt / "a").read_bytes() == wanted, word


@effect("acl", "noacl")
def test_access_control_lists():
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
def test_names():
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
def test_memory():
    size = 40 << 20
    with Server() as server:
        with open(server.export / "large", "wb") as file:
            file.truncate(size)
        # A COMMIT is sent when a quarter of the cache is written and not on stable storage.
        for words, commits in (("cache=16M", True), ("cache=512M", False)):
            with mount(server, words), open(server.mnt / "large", "r+b", buffering=0) as file:
                for piece in range(40):
                    assert os.pwrite(file.fileno(), b"x" * (1 << 20), piece << 20) == 1 << 20
                os.fsync(file.fileno())
                cache = document(server)["cache"]
                assert (cache["commits_sent"] > 1) == commits, f"{words}: {cache}"
                # What the server has safe, and what the kernel has taken, is not kept.
                assert cache["cache_bytes"] == 0, f"{words}: {cache}"
            with mount(server, words), open(server.mnt / "large", "rb", buffering=0) as file:
                while file.read(1 << 20):
                    pass
                assert document(server)["cache"]["cache_bytes"] == 0, words
        # In a process of its own: a child of this process would close our descriptor, and wait for data.
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
        for words in ("readahead=0", "readahead=8M"):
            with mount(server, f"{words},rsize=64K"), open(server.mnt / "large", "rb", buffering=0) as file:
                for _ in range(16):
                    file.read(65536)
                # The kernel reads 128 KiB ahead by itself.
                fetched = lambda: procedures(server)["READ"]["bytes_received"] - (1 << 20)
                if words == "readahead=0":
                    assert fetched() < 256 << 10
                else:
                    until(lambda: fetched() > 512 << 10, "what is read ahead")


# --- locks ------------------------------------------------------------------------------------


@effect("callbackport")
def test_callback_port():
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
