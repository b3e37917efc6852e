"""Our client with Linux's server, Linux's client with our responder, both side by side, and the bytes on the wire."""

import os
import shutil
import tempfile
import threading
from pathlib import Path

import pytest

from interop import locks
from interop.guest import CHECKS, EXPORT, Guest, HERE, MOUNTD, NFS
from interop.host import (Background, Capture, Directory, Knfsd, Mount, Responder, checks, compare, expected,
                          indent, program, run)
from suites import until

# Each set of options, with the checks whose traffic it changes. test_knfsd_siw has CRC and Position Zero chunks.
VARIANTS = {
    "nocrc": "nocrc",
    "reduced": "write_chunk=reduced",
    "reduced-nocrc": "write_chunk=reduced,nocrc",
    "inline-1024": "inline=1024",
    "small": "rsize=4096,wsize=4096",
    "64k": "rsize=65536,wsize=65536",
    "one-credit": "credits=1",
}
# What a guest has whose Linux is a client of the host.
CLIENT = "link siw"
VARIANT_CHECKS = ("procedures", "sizes", "unstable", "links", "concurrent", "directory")


def test_knfsd_siw(knfsd):
    """Our client on the host mounts knfsd in the guest over siw: every check, both sides by checksum."""
    wanted = expected()
    with knfsd.mount() as mount:
        indent(mount.said())
        checks("run", mount.path, CHECK_ENTRIES="300", limit=400)
        checks("leave", mount.path)
        (mount.path / "back").mkdir()
    compare("written by us, at the server", knfsd.sum("set"), wanted)
    knfsd.guest.run(f"python3 /job/checks.py leave {EXPORT}/back; CHECK_ENTRIES=5000 python3 /job/checks.py fill {EXPORT}", 200)
    with knfsd.mount() as mount:
        compare("written by us, read by us", checks("sum", mount.path / "set"), wanted)
        compare("written by the server, read by us", checks("sum", mount.path / "back/set"), wanted)
        checks("listing", mount.path, CHECK_ENTRIES="5000")


@pytest.mark.parametrize("name", VARIANTS)
def test_knfsd_variant(name, knfsd):
    """The same as test_knfsd_siw, with other options."""
    with knfsd.mount(VARIANTS[name]) as mount:
        indent(mount.said())
        checks("run", mount.path, *VARIANT_CHECKS, CHECK_ENTRIES="100", limit=300)
        checks("leave", mount.path, CHECK_BIG_MIB="9")
    with Directory() as local:
        checks("leave", local, CHECK_BIG_MIB="9")
        wanted = checks("sum", local / "set")
    compare("at the server", knfsd.sum("set"), wanted)
    knfsd.guest.run(f"CHECK_ENTRIES=1500 python3 /job/checks.py fill {EXPORT}")
    with knfsd.mount(VARIANTS[name]) as mount:
        compare("read again", checks("sum", mount.path / "set"), wanted)
        checks("listing", mount.path, CHECK_ENTRIES="1500")


def test_knfsd_large():
    """knfsd with enough memory to offer 1 MiB: READ and WRITE of 1 MiB in one call each."""
    with Knfsd(memory="6G") as server:
        with server.mount("rsize=1048576,wsize=1048576") as mount:
            indent(mount.said())
            checks("run", mount.path, "sizes", "big", "unstable", "concurrent")
            checks("leave", mount.path)
        wanted = expected()
        compare("at the server", server.sum("set"), wanted)
        with server.mount("rsize=1048576,wsize=1048576") as mount:
            compare("read again", checks("sum", mount.path / "set"), wanted)


def test_knfsd_probe():
    """A short test of every layer, on a soft mount so that a mistake fails soon: see breaks/run."""
    with Knfsd() as server, Directory() as local:
        checks("leave", local, CHECK_BIG_MIB="1")
        server.guest.run(f"CHECK_ENTRIES=2000 python3 /job/checks.py fill {EXPORT}")
        options = "soft,timeo=30,retrans=0,crc,write_chunk="
        for style in ("pz", "reduced"):
            with server.mount(options + style) as mount:
                checks("run", mount.path, "procedures", "unstable", "links", limit=60)
                checks("leave", mount.path, CHECK_BIG_MIB="1", limit=60)
                checks("listing", mount.path, CHECK_ENTRIES="2000", limit=30)
            compare(style, server.sum("set"), checks("sum", local / "set"))
            server.guest.run(f"rm -r {EXPORT}/set")


def test_knfsd_restart():
    """knfsd is stopped and started inside the guest while a copy to it and a copy from it run."""
    with Knfsd() as server, Directory() as local:
        source, back = local / "source", local / "back"
        source.write_bytes(os.urandom(96 << 20))
        wanted = run(["sha256sum", source]).split()[0]

        def copied_over_a_restart(seen, *arguments):
            """Copy again and again, by dd, until knfsd has been stopped; it is, once `seen` says that the copy has begun."""
            stopped = threading.Event()

            def copies():
                while not stopped.is_set():
                    run(["dd", *arguments, "bs=1M", "status=none"], 400)

            copy = Background(copies)
            until(seen, "the first part of the copy", 120)
            server.guest.run("knfsd_stop; sleep 1")
            stopped.set()
            server.guest.run("knfsd_start")
            copy.result(400)

        with server.mount("timeo=50") as mount:
            indent(mount.said())
            copied_over_a_restart(
                lambda: int(server.guest.run(f"stat -c %s {EXPORT}/copy 2>/dev/null || echo 0")) > 8 << 20,
                f"if={source}", f"of={mount.path}/copy", "conv=notrunc,fsync")
            compare("copied to the server", server.guest.run(f"sha256sum <{EXPORT}/copy").split()[0], wanted)
        with server.mount("timeo=50") as mount:
            copied_over_a_restart(lambda: back.exists() and back.stat().st_size > 8 << 20,
                                  f"if={mount.path}/copy", f"of={back}", "iflag=nocache")
            compare("copied from the server", run(["sha256sum", back]).split()[0], wanted)


EXECUTOR = HERE.parents[1] / "clients/executor.py"
# The ports at which it serves calls in the guest: for the exported directory, and for Linux's own mount.
CALLS_AT_SERVER, CALLS_OF_LINUX = 9101, 9102
# Milliseconds within which ext4 in the guest may give two changes the same time: its clock ticks each 10 ms, or later if the
# guest waits for a processor.
TICK = 20


class Calls:
    """The executor of tests/clients in the guest: makes system calls in `directory`."""

    def __init__(self, guest, port, directory):
        self.guest, self.port, self.directory = guest, port, directory

    def __enter__(self):
        self.job = self.guest.start(f"""echo $$ >/run/calls-{self.port}
            exec python3 -B /job/{EXECUTOR.name} 0.0.0.0:{self.port} {self.directory}""")
        until(lambda: self.job in self.guest.statuses or "listening" in self.guest.output(self.job), "the executor", 60)
        return f"127.0.0.1:{self.port}"

    def __exit__(self, kind=None, *_):
        if kind and (said := self.guest.output(self.job)):
            indent(said)
        self.guest.run(f"kill $(cat /run/calls-{self.port})", check=False)
        self.guest.wait(self.job, 60)


@pytest.mark.parametrize("form, judged", [
    ("tcp", "linux"),
    ("rdma", "linux"),
    ("rdma", "direct"),
], ids=["tcp", "rdma", "direct"])  # fmt: skip
def test_several_clients(form, judged):
    """Two of our mounts on the host, Linux's own in the guest and the exported directory itself make calls in turn, and
    the oracle of tests/clients checks each. It demands less of Linux's mount if `judged` is linux; with O_DIRECT
    (direct), it demands the same as of ours. NFSRDMA_INTEROP_SEED, _RUNS and _CALLS choose other runs."""
    seed, runs, calls = (os.environ.get(f"NFSRDMA_INTEROP_{name}", default)
                         for name, default in (("SEED", "1"), ("RUNS", "5"), ("CALLS", "400")))
    linux = {"rdma": f"kernel_mount 10.0.2.15 {NFS} {MOUNTD} {EXPORT}",
             "tcp": f"kernel_mount_tcp 10.0.2.15 {MOUNTD} {EXPORT}"}[form]
    with Knfsd() as server:
        guest = server.guest
        guest.put(EXECUTOR)
        indent(guest.run(linux))
        with (server.mount() as one, server.mount() as two, Calls(guest, CALLS_AT_SERVER, EXPORT) as directory,
              Calls(guest, CALLS_OF_LINUX, "/mnt") as kernel):
            print(f"    seed {seed}, {runs} runs of {calls} calls", flush=True)
            indent(run([EXECUTOR.with_name("run"), "--at", f"one={one.path}", "--at", f"two={two.path}",
                        "--remote", f"linux={kernel}", "--remote", f"server={directory}",
                        f"--{judged}", "linux", "--tick", TICK, "--seed", seed, "--runs", runs, "--calls", calls],
                       600))
        guest.run("umount /mnt; unlink_link siw")


@pytest.mark.parametrize("options, entries", [("", 8_000), ("rsize=4096,wsize=4096", 5_000)], ids=["default", "small"])
def test_kernel_client(options, entries):
    """The guest's kernel client mounts our responder on the host over siw: every check, both sides by checksum."""
    wanted = expected()
    with (Directory() as directory, Directory() as state, Responder(directory, state) as responder,
          Guest(host_access=True, prepare=CLIENT) as guest):
        guest.put(CHECKS)
        mount = f"kernel_mount 10.0.2.2 {responder.port} {responder.mountport} {directory} {options}"
        indent(guest.run(mount))
        indent(guest.run("CHECK_ENTRIES=500 python3 /job/checks.py run /mnt", 400))
        guest.run("python3 /job/checks.py leave /mnt; umount /mnt", 300)
        checks("fill", directory, CHECK_ENTRIES=str(entries))
        compare("written by the kernel, at the responder", checks("sum", directory / "set"), wanted)
        (directory / "back").mkdir()
        checks("leave", directory / "back")
        guest.run(mount)
        compare("written and read by the kernel", guest.run("python3 /job/checks.py sum /mnt/set", 300), wanted)
        compare("read by the kernel", guest.run("python3 /job/checks.py sum /mnt/back/set", 300), wanted)
        guest.run(f"CHECK_ENTRIES={entries} python3 /job/checks.py listing /mnt; umount /mnt; unlink_link siw")


# Every NFSv3 procedure in few frames; READDIR needs a mount without READDIRPLUS, see below.
WIRE_CHECKS = "procedures synchronous links unlinked"


def wire(capture, name):
    """Checks a capture with tshark, and every frame of it with our codecs."""
    keep = os.environ.get("NFSRDMA_INTEROP_KEEP")
    if keep:
        Path(keep).mkdir(parents=True, exist_ok=True)
        shutil.copy(capture, Path(keep) / f"{name}.pcap")
    if not shutil.which("tshark"):
        pytest.skip("tshark missing")
    script = HERE / "vectors.py"
    indent(run(["python3", "-B", script, "judge", capture]))
    with tempfile.NamedTemporaryFile("w", prefix="nfsrdma-frames.") as frames:
        frames.write(run(["python3", "-B", script, "all", capture, name]))
        frames.flush()
        indent(run([program("nfsrdma-vectors"), frames.name]))


def test_wire_kernel(knfsd):
    """Captured within the guest: the kernel's client and server over siw, decoded by our codecs and by tshark."""
    guest = knfsd.guest
    guest.run(f"""export CHECK_ENTRIES=50
        tcpdump -i lo -s 0 -B 32768 -U -Z root -w /job/wire.pcap tcp port {NFS} >/dev/null 2>/job/tcpdump.log &
        until grep -q 'listening on' /job/tcpdump.log; do sleep 0.1; done
        kernel_mount 10.0.2.15 {NFS} {MOUNTD} {EXPORT} wsize=8192,rsize=8192
        python3 /job/checks.py run /mnt {WIRE_CHECKS} directory; umount /mnt
        kernel_mount 10.0.2.15 {NFS} {MOUNTD} {EXPORT} nordirplus
        python3 /job/checks.py run /mnt directory
        umount /mnt
        sleep 1; kill %1; wait %1; cat /job/tcpdump.log; grep -q '^0 packets dropped' /job/tcpdump.log""", 300)
    wire(guest.share / "wire.pcap", "kernel-to-knfsd")


@pytest.mark.parametrize("options, name", [
    ("crc", "client-to-knfsd"),
    ("nocrc,write_chunk=reduced", "client-to-knfsd-reduced"),
], ids=["whole", "reduced"])  # fmt: skip
def test_wire_client(options, name):
    """Captured on the host's loopback: our client and knfsd."""
    with Directory() as directory, Knfsd() as server:
        with Capture(directory / "wire.pcap", NFS):
            with server.mount(options) as mount:
                checks("run", mount.path, *WIRE_CHECKS.split(), "directory", CHECK_ENTRIES="30")
            with server.mount(options + ",nordirplus,wsize=8192,rsize=8192") as mount:
                checks("run", mount.path, "directory", "synchronous", CHECK_ENTRIES="30")
        wire(directory / "wire.pcap", name)


def test_wire_responder():
    """Captured on the host's loopback: the guest's kernel client and our responder."""
    with (Directory() as directory, Directory() as state, Directory() as captures,
          Responder(directory, state) as responder, Guest(host_access=True, prepare=CLIENT) as guest):
        guest.put(CHECKS)
        mount = f"kernel_mount 10.0.2.2 {responder.port} {responder.mountport} {directory}"
        with Capture(captures / "wire.pcap", responder.port):
            guest.run(f"""export CHECK_ENTRIES=30; {mount} wsize=8192,rsize=8192
                python3 /job/checks.py run /mnt {WIRE_CHECKS} directory; umount /mnt
                {mount} nordirplus; python3 /job/checks.py run /mnt directory; umount /mnt""", 200)
        wire(captures / "wire.pcap", "kernel-to-responder")


def acls(*words):
    return run(["python3", "-B", HERE / "acls.py", *words])


def acl_forms(server, mount, responder, there):
    """Every form of ACL, set through our mount and through Linux's (at /mnt), with knfsd and then with the responder.

    Both clients get the same answers from both servers, and see and leave the same ACLs.
    """
    answers, left = {}, {}
    names = []

    def judge(where, folders):
        """`folders`: the directory in our mount, the same one at the server, and the command that runs there."""
        ours, shows = folders
        answers["us", where], answers["linux", where] = acls("forms", ours, "us"), there("forms", "/mnt", "linux")
        names[:] = [line.split()[0] for line in answers["us", where].splitlines()]
        for maker in ("us", "linux"):
            paths = [f"{maker}.{name}" for name in names]
            left[maker, where] = shows(paths)
            compare(f"forms set by {maker} at {where}, seen by us", acls("show", *[ours / path for path in paths]),
                    left[maker, where])
            compare(f"forms set by {maker} at {where}, seen by Linux's client",
                    there("show", *[f"/mnt/{path}" for path in paths]), left[maker, where])

    judge("knfsd", (mount.path, lambda paths: there("show", *[f"{EXPORT}/{path}" for path in paths])))
    guest = server.guest
    directory = responder.command[1]
    guest.run(f"umount /mnt; mount -t nfs -o vers=3,tcp,port={responder.mountport},nolock,mountproto=tcp,"
              f"mountport={responder.mountport} 10.0.2.2:{directory} /mnt")
    with Mount(directory, responder.port, responder.mountport, "allow_other") as mine:
        judge("the responder", (mine.path, lambda paths: acls("show", *[directory / path for path in paths])))
    indent("\n".join(f"{line:34}{shown.split(' ', 1)[1]}" for line, shown in zip(
        answers["us", "knfsd"].splitlines(), left["us", "knfsd"].splitlines())))
    for what, of in (("answers", answers), ("what is left", left)):
        for who, where in of:
            compare(f"{what}: {who} at {where}, and Linux's client at knfsd", of[who, where], of["linux", "knfsd"])


def test_acl_knfsd():
    """ACLs set by us, by Linux's client and at the server are the same to all three, inherited and checked alike."""
    with (Directory() as directory, Directory() as state, Responder(directory, state) as responder,
          Knfsd(host_access=True) as server):
        directory.chmod(0o777)
        guest = server.guest
        guest.put(HERE / "acls.py")
        indent(guest.run(f"kernel_mount_tcp 127.0.0.1 {MOUNTD} {EXPORT}"))

        def there(*words):
            return guest.run(f"python3 -B /job/acls.py {' '.join(map(str, words))}", 120)

        with server.mount("allow_other") as mount:
            indent(mount.said())
            kinds = ("file", "dir", "many")
            acls("set", mount.path, "us")
            there("set", "/mnt", "linux")
            there("set", EXPORT, "server")
            shown = {}
            for maker in ("us", "linux", "server"):
                def names(folder, maker=maker):
                    return [f"{folder}/{maker}.{kind}" for kind in kinds]
                shown[maker] = there("show", *names(EXPORT))
                compare(f"set by {maker}, seen by Linux's client", there("show", *names("/mnt")), shown[maker])
                compare(f"set by {maker}, seen by us", acls("show", *names(mount.path)), shown[maker])
            compare("set by us and by Linux's client", shown["us"], shown["linux"])
            compare("set by us and at the server", shown["us"], shown["server"])
            acls("inherit", mount.path / "us.dir", "us")
            there("inherit", "/mnt/us.dir", "linux")
            there("inherit", f"{EXPORT}/us.dir", "server")
            kinds = ("file", "dir", "exclusive")
            inherited = {maker: there("show", *[f"{EXPORT}/us.dir/{maker}.{kind}" for kind in kinds])
                         for maker in ("us", "linux", "server")}
            indent(inherited["us"])
            compare("inherited by us and by Linux's client", inherited["us"], inherited["linux"])
            compare("inherited by us and at the server", inherited["us"], inherited["server"])
            for maker in ("us", "linux", "server"):
                got = [acls("read", uid, mount.path / f"{maker}.file").strip() for uid in (61002, 61003, 61004)]
                wanted = [there("read", uid, f"/mnt/{maker}.file").strip() for uid in (61002, 61003, 61004)]
                compare("who may read", " ".join(got), " ".join(wanted))
                compare("who may read", " ".join(got), "by acl EACCES EACCES")
            acl_forms(server, mount, responder, there)
        guest.run("umount /mnt", 60)


def test_locks_knfsd():
    """Our mounts, Linux's own on another machine and the server itself exclude each other; restarts, a filter, a kill."""
    with Directory() as state, Knfsd("locks_start 3; knfsd_start; grace_v4_end") as server:
        locks.knfsd(server, state)
