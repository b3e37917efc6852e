"""Messages, exit statuses, and the life of a mount."""

import contextlib
import json
import mmap
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from program.support import *  # noqa: F403
from program.support import BIN

# --- without a server -------------------------------------------------------------------------


def test_no_device(place):
    script = f"mount -t tmpfs none /dev && exec {BIN}/nfsrdma mount 127.0.0.1:/x {place.mnt}"
    expect(run(*alone("sh", "-c", script)), 2, "/dev/fuse is missing", "modprobe fuse", "--device /dev/fuse")


def test_few_descriptors(server):
    """The limit is raised where that is permitted; else a sentence says what to do."""
    expect(run("prlimit", "--nofile=8:8", BIN / "nfsrdma", "mount", server.spec, server.mnt, "-o", server.options()),
           2, "only 8 are allowed here: raise the limit with 'ulimit -n 256'")  # fmt: skip
    assert not mounted(server.mnt)
    options = server.options("restart=files,nolock")
    expect(run("prlimit", "--nofile=8:40", BIN / "nfsrdma", "mount", server.spec, server.mnt, "-o", options),
           2, "a mount needs 64 descriptors, and only 40 are allowed here")  # fmt: skip
    expect(run("prlimit", "--nofile=8:4096", BIN / "nfsrdma", "mount", server.spec, server.mnt, "-o", server.options()),
           0, "mounted on")  # fmt: skip
    expect(nfsrdma("umount", server.mnt), 0)


def test_a_log_in_the_mount_itself_is_refused(server):
    (server.mnt / "below").mkdir()
    for log in (server.mnt / "log", server.mnt / "below" / "log"):
        expect(server.mount("", "--log", log), 1, "would be in the mount itself: choose a file outside")
    link = server.base / "link"
    link.symlink_to(server.mnt)
    expect(server.mount("", "--log", link / "log"), 1, "would be in the mount itself")
    assert not mounted(server.mnt)


def test_dns_that_does_not_answer_yet_is_waited_for(place):
    root()
    # A network namespace without interfaces reaches no name server.
    command = ["unshare", "--net", BIN / "nfsrdma", "mount", "server.invalid:/x", place.mnt]
    with running(*command, stderr=subprocess.PIPE, text=True) as child:
        said = child.stderr.readline()
        assert "DNS does not answer" in said, said
        assert "trying again for 2 minutes" in said, said
        child.send_signal(signal.SIGINT)
        assert child.wait(LIMIT) == 8


def test_background(place):
    options = f"port={free_port()},mountport={free_port()},mountproto=tcp,bg"
    result = nfsrdma("mount", "127.0.0.1:/x", place.mnt, "-o", options)
    expect(result, 0, "background")
    (pid,) = servers_of(place.mnt)
    os.kill(pid, signal.SIGTERM)
    until(lambda: not servers_of(place.mnt), "the end after SIGTERM")


def test_fake(place):
    helper = place.base / "mount.nfsrdma"
    helper.symlink_to(BIN / "nfsrdma")
    expect(run(helper, "127.0.0.1:/x", place.mnt, "-f", "-o", "ro"), 0)
    expect(run(helper, "127.0.0.1:/x", place.mnt, "-f", "-o", "zork"), 1, "mount.nfsrdma: unknown option 'zork'")
    expect(run(helper, "127.0.0.1:/x", place.mnt, "-f", "-s", "-o", "zork"), 0, "passed over")


# --- with a server ----------------------------------------------------------------------------


def test_one_line(server):
    # One line; with -v the rest is printed, too.
    result = server.mount("", "-v")
    expect(result, 0, f"{server.spec} mounted on {server.mnt}: iwarp")
    assert result.stdout.count("\n") == 1, result.stdout
    parts = ("iwarp", "rsize", "wsize", "inline", "credits", "CRC", "a handle for each call", "soft-iWARP because")
    for part in parts:
        assert part in result.stderr, f"{part} is not in {result.stderr!r}"
    source, _, kind, flags, *_ = mounted(server.mnt)
    assert (source, kind) == (server.spec, "fuse.nfsrdma"), (source, kind)
    if os.geteuid() == 0:
        assert "allow_other" in flags.split(","), flags
    (server.mnt / "a").write_text("1")
    assert (server.export / "a").read_text() == "1"
    daemon = servers_of(server.mnt)
    expect(nfsrdma("umount", server.mnt), 0)
    assert not mounted(server.mnt)
    # Its holder ends after it.
    assert servers_of(server.mnt) != daemon, "umount did not wait for the process"


def test_ping_and_exports(server):
    result = nfsrdma("exports", "127.0.0.1", "-o", server.options())
    expect(result, 0, str(server.export), "everybody")
    for target, more in (("127.0.0.1", ""), (server.spec, ""), (server.spec, "mountproto=rdma")):
        words = f"port={server.port},{more}" if more else server.options()
        result = nfsrdma("ping", target, "-o", words)
        expect(result, 0, "resolve", "connect", "iWARP", "null", "credits")
        assert ("export" in result.stdout) == (target == server.spec), result.stdout
        null = re.search(r"^null +([\d.]+) ms  5 calls, min/avg/max ([\d.]+)/([\d.]+)/([\d.]+) ms, credits \d+$", result.stdout, re.M)
        assert null, result.stdout
        shown, least, mean, most = map(float, null.groups())
        assert least <= mean <= most and shown < 3 * mean + 0.01, "it is the latency of a call, not the sum of all"
    server.stop()
    expect(nfsrdma("ping", server.spec, "-o", server.options()), 32, "mountd: ", "refused")
    expect(nfsrdma("ping", "127.0.0.1", "-o", server.options()), 32, "connect: ", "refused")


def test_twice(server):
    root()
    server.mount_well()
    expect(server.mount(), 32, "is already mounted on")
    # mount -a does not see what shows a directory of its file system, and calls the helper.
    helper = server.base / "mount.nfsrdma"
    helper.symlink_to(BIN / "nfsrdma")
    expect(run(helper, server.spec, server.mnt, "-o", server.options()), 0, "is already mounted on")
    # Also where something covers it, or the server does not answer.
    assert run("mount", "-t", "tmpfs", "tmpfs", server.mnt).returncode == 0
    expect(run(helper, server.spec, server.mnt, "-o", server.options()), 0, "is already mounted on")
    sources = run("findmnt", "-vno", "SOURCE", server.mnt).stdout.split()
    assert run("umount", server.mnt).returncode == 0 and sources == [server.spec, "tmpfs"]
    server.pause()
    expect(run(helper, server.spec, server.mnt, "-o", server.options()), 0, "is already mounted on")
    server.child.send_signal(signal.SIGCONT)


def test_what_is_mounted_elsewhere_as_well_is_named(server):
    root()
    server.mount_well()
    (server.mnt / "sub").mkdir()
    other = server.base / "other"
    other.mkdir()
    assert run("mount", "--bind", server.mnt / "sub", other).returncode == 0
    (other / "a").write_text("1")
    result = nfsrdma("umount", server.mnt)
    expect(result, 0, f"is mounted on {other} as well: unmount that, too; all data are at the server")
    assert not mounted(server.mnt)
    assert (server.export / "sub" / "a").read_text() == "1"
    assert run("umount", other).returncode == 0
    server.ended()


def test_a_server_that_accepts_fewer_connections_is_used_by_those():
    root()
    with Server("--max-connections", "1") as server:
        # MOUNT by the same connection: the server may still count one that has just been closed.
        options = f"port={server.port},mountproto=rdma,nconnect=2,workers=2,credits=1,noac"
        expect(nfsrdma("mount", server.spec, server.mnt, "-o", options), 0)
        for number in range(64):
            (server.mnt / str(number)).touch()
        # Enough at a time for both workers, and more than the connection has credits for.
        script = (
            "import os, sys, threading\n"
            "def look(path):\n"
            "    for _ in range(50): os.stat(path)\n"
            "all = [threading.Thread(target=look, args=(f'{sys.argv[1]}/{n}',)) for n in range(64)]\n"
            "[one.start() for one in all]\n"
            "[one.join() for one in all]\n"
        )
        run(sys.executable, "-c", script, server.mnt, limit=60)
        expect(nfsrdma("umount", server.mnt), 0)


def test_a_mount_inside_one_whose_server_is_away_goes_on(server):
    root()
    with Server() as outer:
        # Nothing of the path is valid for any time: each use of it asks the outer server.
        outer.mount_well("noac")
        inner = outer.mnt / "inner"
        inner.mkdir()
        expect(server.mount("", at=inner), 0)
        file = os.open(inner / "file", os.O_WRONLY | os.O_CREAT)
        # After a FLUSH, what is written may outlive the descriptor: the process needs a reference to the mount.
        os.close(os.dup(file))
        outer.pause()
        script = f"import os; os.write({file}, b'written'); os.fsync({file})"
        child = subprocess.Popen([sys.executable, "-c", script], pass_fds=[file])
        try:
            assert child.wait(20) == 0
            assert (server.export / "file").read_text() == "written"
        finally:
            # First, because a program that hangs cannot be killed before.
            outer.child.send_signal(signal.SIGCONT)
            child.kill()
            child.wait(LIMIT)
            os.close(file)
        expect(nfsrdma("umount", inner), 0)


@pytest.mark.alone
def test_by_mount_8(server):
    root()
    helper = Path("/sbin/mount.nfsrdma")
    if helper.exists() or helper.is_symlink():
        pytest.skip(f"{helper} exists already")
    helper.symlink_to((BIN / "nfsrdma").resolve())
    try:
        command = ["mount", "-t", "nfsrdma", server.spec, server.mnt, "-o"]
        result = run(*command, server.options("zork"))
        expect(result, 1)
        assert result.stderr.count("\n") == 1 and "'zork'" in result.stderr, result.stderr
        result = run(*command, server.options(), "-v")
        expect(result, 0, "mounted on", "options: rw,")
        assert run("umount", server.mnt).returncode == 0
        result = run(*command, server.options("ro,nosuid,noatime"))
        expect(result, 0)
        # Like mount.nfs, it prints nothing on success.
        assert result.stdout + result.stderr == "", result
        flags = mounted(server.mnt)[3].split(",")
        assert {"ro", "nosuid", "noatime"} <= set(flags), flags
    finally:
        helper.unlink()
    try:
        (server.mnt / "a").touch()
    except OSError as error:
        assert error.errno == 30, error
    else:
        raise AssertionError("a read-only mount was written to")
    assert run("umount", server.mnt).returncode == 0
    server.ended()


def test_unmount_in_use(server):
    server.mount_well()
    with open(server.mnt / "a", "wb"):
        expect(nfsrdma("umount", server.mnt), 32, "is in use", "fuser -vm")
        assert mounted(server.mnt)
        expect(nfsrdma("umount", "-l", server.mnt), 0)
        assert not mounted(server.mnt)
    server.ended()


def test_foreground(server):
    words = "mount", server.spec, server.mnt, "-f", "-o", server.options()
    with (
        open(server.base / "log", "w+") as log,
        running(BIN / "nfsrdma", *words, stdout=subprocess.PIPE, stderr=log, text=True) as child,
    ):
        line = child.stdout.readline()
        assert "mounted on" in line, line
        assert mounted(server.mnt)
        child.send_signal(signal.SIGINT)
        assert child.wait(LIMIT) == 0, (server.base / "log").read_text()
    assert not mounted(server.mnt)


@pytest.mark.parametrize(("restart", "most"), [("no", 8), ("data", 9)])
def test_an_idle_mount_has_few_threads(server, restart, most):
    """One more keeps a pipe open by which the holder sees that the process lives."""
    root()
    (server.export / "f").write_text("before")
    # Two event loops and two connections, as on a machine with two CPUs.
    server.mount_well(f"workers=2,nconnect=2,actimeo=0,restart={restart}")
    (pid,) = servers_of(server.mnt)
    with open(server.mnt / "f") as file:
        assert file.read() == "before"
        os.listdir(server.mnt)
        # Somebody else changes a file and a directory that the kernel knows.
        (server.export / "f").write_text("afterwards")
        (server.export / "g").write_text("new")
        assert (server.mnt / "f").read_text() == "afterwards"
        assert (server.mnt / "g").read_text() == "new"
    (server.mnt / "g").write_bytes(os.urandom(1 << 20))

    def names():
        return sorted(name.strip() for name in of_threads(pid, "comm"))

    try:
        # Threads that are started when they are needed end ten seconds later.
        until(lambda: len(names()) <= most, "the idle threads to end")
    except AssertionError as error:
        raise AssertionError(f"{error}: {names()}") from error
    assert len(names()) <= most, names()


def test_a_remount_changes_access_times_as_told_and_keeps_them_otherwise(server):
    root()
    server.mount_well("noatime,nodiratime")
    times = {"noatime", "relatime", "nodiratime"}
    for words, expected in (
        ("ro", {"noatime", "nodiratime"}),
        ("rw,relatime", {"relatime", "nodiratime"}),
        ("diratime", {"relatime"}),
        ("noatime", {"noatime"}),
        ("atime", {"relatime"}),
        ("strictatime", set()),
        ("ro", set()),
        ("rw,nodiratime,relatime", {"relatime", "nodiratime"}),
    ):
        expect(nfsrdma("mount", server.spec, server.mnt, "-o", f"remount,{words}"), 0)
        shown = set(mounted(server.mnt)[3].split(","))
        assert shown & times == expected, f"{words}: {shown}"
        counted = set(json.loads(stats(server, "--json"))["options"].split(","))
        assert counted & (times | {"ro", "rw"}) == shown & (times | {"ro", "rw"}), f"{words}: {counted}"


def test_umount_r_makes_a_mount_that_is_in_use_read_only(server):
    root()
    server.mount_well("nosuid,noatime")
    # As umount(8) calls it.
    helper = server.base / "umount.nfsrdma"
    helper.symlink_to(BIN / "nfsrdma")
    (server.mnt / "f").write_bytes(b"x")
    with open(server.mnt / "f", "r+b"):
        expect(run(helper, server.mnt, "-r"), 32, "is in use")
        assert "rw" in mounted(server.mnt)[3].split(",")
    with open(server.mnt / "f", "rb") as file:
        expect(run(helper, server.mnt), 32, "is in use")
        expect(run(helper, server.mnt, "-r"), 0, "is in use: it is read-only now")
        assert {"ro", "nosuid", "noatime"} <= set(mounted(server.mnt)[3].split(","))
        assert file.read() == b"x"
    expect(run(helper, server.mnt, "-r"), 0)
    assert not mounted(server.mnt)


def test_statfs_shows_what_the_server_says(server):
    server.mount_well()
    there, here = os.statvfs(server.export), os.statvfs(server.mnt)
    assert (here.f_namemax, here.f_files) == (there.f_namemax, there.f_files)
    assert here.f_ffree == here.f_favail


def test_programs_are_told_to_use_large_buffers_for_files(server):
    server.mount_well()
    with open(server.mnt / "f", "wb") as file:
        assert os.fstat(file.fileno()).st_blksize == 65536
        assert os.stat(server.mnt).st_blksize == 4096
        for _ in range(1 << 14):
            file.write(b"0123456789abcdef")
    status = os.stat(server.mnt / "f")
    assert (status.st_size, status.st_blksize) == (1 << 18, 65536)
    assert status.st_blocks * 512 == os.stat(server.export / "f").st_blocks * 512
    # The size is no condition for O_DIRECT.
    buffer = mmap.mmap(-1, 4096)
    buffer[:] = b"d" * 4096
    file = os.open(server.mnt / "f", os.O_RDWR | os.O_DIRECT)
    assert os.pwrite(file, buffer, 4096) == 4096
    assert os.preadv(file, [buffer], 4096) == 4096 and buffer[:] == b"d" * 4096
    os.close(file)


def test_a_page_of_a_mapping_takes_few_others_along(server):
    with open(server.export / "large", "wb") as file:
        file.truncate(64 << 20)
    server.mount_well()
    places = range(8 << 20, 64 << 20, 8 << 20)
    with open(server.mnt / "large", "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        assert not any(data[at] for at in places)
    fetched = procedures(server)["READ"]["bytes_received"]
    assert fetched <= len(places) * (256 << 10), fetched


def test_as_a_user():
    root()
    needs("fusermount3")
    if Path("/dev/fuse").stat().st_mode & 0o006 != 0o006:
        return with_open_device("test_as_a_user")
    with Server() as server:
        os.chown(server.mnt, NOBODY, NOBODY)
        result = as_nobody(BIN / "nfsrdma", "mount", server.spec, server.mnt, "-o", server.options())
        expect(result, 0, "mounted on")
        source, _, kind, flags, *_ = mounted(server.mnt)
        assert (source, kind) == (server.spec, "fuse.nfsrdma")
        assert {"nosuid", "nodev", f"user_id={NOBODY}"} <= set(flags.split(",")), flags
        expect(as_nobody("touch", server.mnt / "mine"), 0)
        assert (server.export / "mine").stat().st_uid == NOBODY
        expect(as_nobody(BIN / "nfsrdma", "umount", server.mnt), 0)
        server.ended()
    # If the user has no directory under /run/user, the directory of the sockets is kept for the next mount.
    for directory in Path("/tmp").glob(f"nfsrdma-{NOBODY}-*"):
        with contextlib.suppress(OSError):
            directory.rmdir()


def test_the_helpers_enter_the_namespace_that_mount_8_names(server):
    """mount -N and umount -N pass a file of the namespace, and run the helpers outside of it."""
    root()
    with running(*alone("--propagation", "private", "sh", "-c", "echo; exec sleep 1000"), stdout=subprocess.PIPE) as there:
        there.stdout.readline()
        namespace = f"/proc/{there.pid}/ns/mnt"
        seen = lambda: run("nsenter", f"--mount={namespace}", "grep", "-c", f" {server.mnt} ", "/proc/self/mounts").stdout.strip()
        for name in ("mount.nfsrdma", "umount.nfsrdma"):
            (server.base / name).symlink_to(BIN / "nfsrdma")
        missing = run(server.base / "mount.nfsrdma", server.spec, server.mnt, "-N", "/proc/1/ns/none", "-o", server.options())
        expect(missing, 1, "cannot enter the mount namespace /proc/1/ns/none", "/proc/PID/ns/mnt")
        # Its nsswitch.conf would name the libraries for name resolution.
        name = run(server.base / "mount.nfsrdma", f"localhost:{server.export}", server.mnt, "-N", namespace, "-o", server.options())
        expect(name, 1, "-N takes no names of servers", "write the address of localhost")
        kept = run(server.base / "mount.nfsrdma", server.spec, server.mnt, "-N", namespace, "-o", server.options() + ",restart=files")
        expect(kept, 1, "restart= does not work with -N")
        expect(run(server.base / "mount.nfsrdma", server.spec, server.mnt, "-N", namespace, "-o", server.options()), 0)
        assert (mounted(server.mnt), seen()) == (None, "1"), "it is mounted in this namespace"
        expect(run(server.base / "umount.nfsrdma", server.mnt, "-N", namespace), 0)
        assert seen() == "0"
        server.ended()
