"""`nfsrdma doctor`: that it names what is wrong, and nothing where all is well."""

import contextlib
import json
import os
import shutil
import stat
import subprocess
import tarfile


from program.support import *  # noqa: F403
from program.support import BIN
from program.test_locks_net import Machines, networks


def doctor(*words, within=(), **more):
    """The findings by check, and the exit status."""
    result = run(*within, BIN / "nfsrdma", "doctor", "--json", *words, **more)
    assert result.returncode in (0, 1), result.stdout + result.stderr
    report = json.loads(result.stdout)
    assert (report["problems"] > 0) == (result.returncode == 1), report
    found = {}
    for one in report["checks"]:
        assert one["verdict"] in ("ok", "skip") or one.get("remedy"), f"no remedy: {one}"
        found.setdefault(one["check"], one)
    return found, result.returncode


def expect_fault(found, check, verdict, *parts):
    one = found[check]
    assert one["verdict"] == verdict, one
    for part in parts:
        assert part in f"{one['found']}; {one['remedy']}", one


def of_server(server, *words, more="", **keywords):
    return doctor(server.spec, "-o", server.options(more), *words, **keywords)


def fill(server):
    """A file that takes a whole READ, below a directory."""
    folder = server.export / "folder"
    folder.mkdir()
    (folder / "large").write_bytes(b"x" * (1 << 20))


ALONE = "nolock"
"""Without locks rpcbind is not needed, which other tests and systems may or may not have."""


def test_doctor_finds_nothing_wrong_with_a_good_server():
    with Server() as server:
        fill(server)
        found, status = of_server(server, more=ALONE)
        assert status == 0, found
        wanted = {"fuse", "descriptors", "devices", "mtu", "export", "connect", "null", "credits", "rtmax", "wtmax", "fsinfo",
                  "reads", "readdirplus", "cookies", "verifier", "clock"}  # fmt: skip
        assert wanted <= found.keys(), wanted - found.keys()
        for check in wanted:
            assert found[check]["verdict"] == "ok", found[check]
        assert os.listdir(server.export) == ["folder"]
        found, status = of_server(server, "--write", more=ALONE)
        assert status == 0 and "that of this machine" in found["clock"]["found"], found
        assert os.listdir(server.export) == ["folder"], "the file is removed again"
        text = nfsrdma("doctor", server.spec, "-o", server.options(ALONE))
        expect(text, 0, "ok    fuse ", "ok    reads        1048576 bytes in one READ")
        assert not text.stderr


def test_doctor_takes_the_options_of_a_mount():
    with Server() as server:
        fill(server)
        server.mount_well(ALONE)
        found, status = doctor(server.mnt)
        assert status == 0, found
        assert {found[check]["verdict"] for check in ("process", "version", "faults", "reads")} == {"ok"}
        expect(nfsrdma("umount", server.mnt), 0)
        server.mount_well("nolock,ro,softerr,timeo=50,nconnect=2,rsize=64K,noacl,actimeo=5,restart=files,cache=64M")
        found, status = doctor(server.mnt.name, cwd=server.mnt.parent)
        assert status == 0 and "acl" not in found, found
        expect(nfsrdma("bench", "--quick", server.mnt), 32, "Read-only file system")


def test_doctor_has_a_status_of_its_own_for_wrong_usage():
    for words in (("--zork",), ("a:b:/c",), ("/no/such/place",), ("srv:/x", "-o", "zork"), ("--names",)):
        result = nfsrdma("doctor", *words)
        assert result.returncode == 2 and result.stderr.count("\n") == 1, (words, result.stdout + result.stderr)


@contextlib.contextmanager
def devices(state="4: ACTIVE", gid="fe80:0000:0000:0000:0000:00ff:fe00:0001"):
    """The words that run a program where the kernel shows an RDMA device."""
    with Place() as place:
        port = place.base / "class/infiniband/rxe0/ports/1"
        (port / "gids").mkdir(parents=True)
        (port / "state").write_text(f"{state}\n")
        (port / "link_layer").write_text("Ethernet\n")
        (port / "gids/0").write_text(f"{gid}\n")
        yield alone("sh", "-c", 'mount --bind "$0" /sys/class && exec "$@"', place.base / "class")


def test_doctor_finds_no_fuse():
    within = alone("sh", "-c", 'mount -t tmpfs none /dev && exec "$@"', "sh")
    found, _ = doctor(within=within)
    expect_fault(found, "fuse", "fail", "/dev/fuse is missing", "modprobe fuse")


def test_doctor_finds_too_few_descriptors():
    needs("prlimit")
    found, _ = doctor(within=["prlimit", "--nofile=20:20"])
    expect_fault(found, "descriptors", "fail", "20 descriptors are allowed here", "ulimit -n 256")


def test_doctor_finds_devices_without_files():
    with devices() as within:
        found, _ = doctor(within=within)
        expect_fault(found, "devices", "warn", "rxe0 cannot be used", "modprobe -a rdma_ucm ib_uverbs")
        assert found["port"]["verdict"] == "ok"


def test_doctor_finds_a_port_that_is_down_and_one_without_an_address():
    with devices(state="1: DOWN") as within:
        expect_fault(doctor(within=within)[0], "port", "warn", "rxe0 port 1 is DOWN", "rdma link")
    with devices(gid="0000:0000:0000:0000:0000:0000:0000:0000") as within:
        expect_fault(doctor(within=within)[0], "port", "warn", "has no GID", "ip address add")


def test_doctor_finds_locked_memory():
    root()
    needs("prlimit", "setpriv")
    with devices() as within:
        user = ["prlimit", "--memlock=8388608:8388608", "setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock", "--"]
        found, _ = doctor("-o", "nconnect=2", within=[*within, *user])
        expect_fault(found, "memlock", "warn", "8 MiB may be locked, and 2 connections take 640 MiB", "ulimit -l")


def test_doctor_finds_mountd_and_exports():
    with Server() as server:
        closed = f"port={server.port},mountport={free_port()},mountproto=tcp,nolock,noresvport"
        found, _ = doctor(server.spec, "-o", closed)
        expect_fault(found, "mountd", "fail", "connection refused", "leave out mountport=")
        found, _ = doctor("127.0.0.1:/nothing", "-o", server.options(ALONE))
        expect_fault(found, "export", "fail", "does not export /nothing", "'nfsrdma exports 127.0.0.1' lists")


def test_doctor_finds_rdma_port():
    with Server() as server:
        of = lambda port: f"port={port},mountport={server.mountport},mountproto=tcp,nolock,noresvport"
        found, _ = doctor(server.spec, "-o", of(free_port()))
        expect_fault(found, "connect", "fail", "connection refused", "its log")
        found, _ = doctor(server.spec, "-o", of(server.mountport))
        expect_fault(found, "connect", "fail", "does not speak RDMA", "mount -t nfs")


def test_doctor_finds_one_credit_and_small_sizes():
    with Server("--credits", "1", "--rtmax", "4096") as server:
        found, _ = of_server(server, more=ALONE)
        expect_fault(found, "credits", "warn", "the server grants 1 credit", "threads=")
        expect_fault(found, "rtmax", "warn", "READs of at most 4096 bytes", "max_block_size")


def test_doctor_finds_clock():
    for offset, found in (("-1h", "3600 s behind"), ("1h", "ahead")):
        with Server("--clock-offset", offset) as server:
            fill(server)
            expect_fault(of_server(server, "--write", more=ALONE)[0], "clock", "warn", found, "NTP")
            without = of_server(server, more=ALONE)[0]["clock"]["verdict"]
            # Only a time in the future shows that without a change.
            assert without == ("warn" if offset == "1h" else "ok")


def test_doctor_finds_no_readdirplus_and_whole_seconds():
    with Server("--fail", "READDIRPLUS=NOTSUPP", "--one-second-times") as server:
        found, _ = of_server(server, more=ALONE)
        expect_fault(found, "readdirplus", "warn", "the server has no READDIRPLUS")
        expect_fault(found, "fsinfo", "warn", "whole seconds")


def test_doctor_finds_no_lock_manager():
    with Server("--no-locks") as server:
        found, _ = of_server(server, more=f"lockport={server.mountport}")
        expect_fault(found, "locks", "warn", "does not have NLM version 4", "nolock")


def test_doctor_finds_rpcbind_is_stopped_and_small_packets():
    with networks("one") as within, Machines(within) as server:
        found, _ = of_server(server, within=within["one"])
        expect_fault(found, "rpcbind", "warn", "connection refused", "lockport=")
        of = f"port={server.port},noresvport"
        expect_fault(doctor(server.spec, "-o", of, within=within["one"])[0], "rpcbind", "fail", "mountport=")
        run(*within["one"], "ip", "link", "set", "eth0", "mtu", "600")
        found, _ = of_server(server, more=ALONE, within=within["one"])
        expect_fault(found, "mtu", "warn", "at most 600 bytes", "MTU")


def test_doctor_asks_rpcbind():
    with networks("one") as within, Machines(within, "--portmap-port", "111") as server:
        found, status = doctor(server.spec, "-o", f"port={server.port},noresvport", within=within["one"])
        assert status == 0, found
        assert f"mountd at port {server.mountport}" in found["rpcbind"]["found"], found


def test_doctor_finds_a_write_verifier_that_changes():
    with scripted() as (server, command):
        fill(server)
        command("delay COMMIT 1000")
        words = [BIN / "nfsrdma", "doctor", server.spec, "-o", server.options(ALONE)]
        with running(*words, stdout=subprocess.PIPE, text=True) as child:
            # The first one has been answered.
            until(lambda: came(command, "COMMIT") >= 2, "a second COMMIT")
            command("restart")
            said = child.stdout.read()
        assert "fail  verifier     the write verifier changes within three COMMITs" in said, said


def test_doctor_finds_large_packets_are_lost():
    """The server sends packets of 9,000 bytes, and the machine takes 1,500; then the other way round."""
    with networks("one") as within, Machines(within) as server:
        fill(server)
        found, status = of_server(server, more=ALONE, within=within["one"])
        assert status == 0, found
        inside = lambda *words: expect(run(*within["one"], "ip", *words), 0)
        there = lambda *words: expect(run(*within["server"], "ip", *words), 0)
        there("link", "set", "one", "mtu", "9000", "gso_max_segs", "1")
        inside("route", "change", server.host, "via", "169.254.97.17", "advmss", "8900")
        found, _ = of_server(server, more=ALONE, within=within["one"])
        expect_fault(found, "reads", "fail", "small replies arrive, and one of 1048576 bytes does not", "MTU")
        assert found["null"]["verdict"] == found["export"]["verdict"] == found["calls"]["verdict"] == "ok"
        there("link", "set", "one", "mtu", "1500")
        inside("link", "set", "eth0", "mtu", "9000", "gso_max_segs", "1")
        there("route", "replace", "169.254.97.16/30", "dev", "one", "src", "169.254.97.17", "advmss", "8900")
        found, _ = of_server(server, more=ALONE, within=within["one"])
        expect_fault(found, "calls", "fail", "small calls arrive, and one of 65536 bytes does not", "MTU")


def test_doctor_finds_the_program_was_replaced():
    with Server() as server:
        own = server.base / "nfsrdma"
        shutil.copy(BIN / "nfsrdma", own)
        expect(run(own, "mount", server.spec, server.mnt, "-o", server.options(ALONE)), 0)
        assert doctor(server.mnt)[0]["version"]["verdict"] == "ok"
        shutil.copy(BIN / "nfsrdma", server.base / "new")
        (server.base / "new").rename(own)
        expect_fault(doctor(server.mnt)[0], "version", "warn", f"{own} was replaced", "if it has restart=")


def test_doctor_finds_the_process_is_stopped_and_the_server_is_gone():
    with Server() as server:
        server.mount_well(ALONE)
        with asleep(*servers_of(server.mnt)):
            expect_fault(doctor(server.mnt)[0], "process", "fail", "does not answer", "nfsrdma umount -f")
        server.stop()
        # There may be other mounts on this machine.
        trouble = f"fail  mount        {server.spec} on {server.mnt}: not connected; 'nfsrdma doctor {server.mnt}'"
        until(lambda: trouble in nfsrdma("doctor").stdout, "a mount in trouble")
        until(lambda: doctor(server.mnt)[0]["process"]["verdict"] == "fail", "a mount without a server")
        found, _ = doctor(server.mnt)
        expect_fault(found, "process", "fail", "not connected")
        expect_fault(found, "mountd", "fail", "connection refused")
        server.start()


def test_doctor_bundle_has_no_names_unless_they_are_asked_for():
    with Server() as server:
        fill(server)
        server.mount_well(ALONE)
        file = server.base / "bundle.tar.gz"
        secret = str(server.base.name)
        for words, has_names in (((), False), (("--names",), True)):
            doctor(server.mnt, "--bundle", file, *words)
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            with tarfile.open(file) as archive:
                texts = {Path(one.name).name: archive.extractfile(one).read().decode() for one in archive.getmembers()}
            wanted = {"README.txt", "checks.txt", "checks.json", "stats.json", "system.txt"}
            assert texts.keys() == (wanted | {"log.txt"} if has_names else wanted)
            assert any(secret in text for text in texts.values()) == has_names
            assert "ok    fuse" in texts["checks.txt"]
            json.loads(texts["checks.json"])
            mounts = json.loads(texts["stats.json"])
            assert any(one["state"] == "up" for one in mounts), mounts
            # A file that is there is left alone.
            result = nfsrdma("doctor", "--bundle", file)
            expect(result, 2, f"cannot write {file}: File exists; choose another place")
            file.unlink()
