"""The effects of mount options that docs/CONFIGURATION.md promises; here those of FUSE and of mount(8)."""

import errno
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from program.effects import *  # noqa: F403
from program.support import *  # noqa: F403
from program.wire import Relay


# --- FUSE -------------------------------------------------------------------------------------


@effect("allow_other", "noallow_other")
def test_who_may():
    root()
    with Server() as server:
        (server.export / "open").write_text("1")
        for words, shown, status in (("allow_other", True, 0), ("noallow_other", False, 1)):
            with mount(server, words):
                assert ("allow_other" in flags_of(server.mnt)) == shown
                assert as_nobody("cat", server.mnt / "open").returncode == status, words


@effect("permissions", "default_permissions")
def test_who_checks():
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
            ("dev,permissions=server", "server", True),
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
                    # The kernel knows the modes; otherwise the server is asked.
                    assert (counted["ACCESS"] == 0) == (local == "kernel"), counted["ACCESS"]
                # A remount repeats what /proc/mounts shows, or nothing.
                for again in (f"remount,ro,{mounted(server.mnt)[3]}", "remount,rw"):
                    expect(nfsrdma("mount", server.spec, server.mnt, "-o", again), 0)
                    now = flags_of(server.mnt)
                    assert ("default_permissions" in now) == (local == "kernel"), again
                    assert "nodev" in now or dev, again
                other = "server" if local == "kernel" else "kernel"
                expect(nfsrdma("mount", server.spec, server.mnt, "-o", f"remount,permissions={other}"), 1)


@effect("workers", "threads")
def test_event_loops():
    with Server() as server:
        (server.export / "a").write_bytes(b"x" * 100_000)
        for words, workers, links in (
            ("workers=1", 1, 1),
            ("workers=3", 3, 3),
            ("workers=6", 6, 4),
            ("workers=2,nconnect=5", 2, 5),
            # What lines of fstab for older releases have.
            ("workers=1,threads=64", 1, 1),
        ):
            with mount(server, words) as said:
                names = lambda pid=said["pid"]: of_threads(pid, "comm")
                # A thread gives itself its name.
                until(lambda: sum(name.startswith("worker-") for name in names()) == workers, f"{workers} threads with {words}")
                options = said["options"].split(",")
                assert f"workers={workers}" in options and f"nconnect={links}" in options, (words, options)
                # The first one exists before the mount does; the others follow.
                until(
                    lambda: [link["connected"] for link in document(server)["connections"]] == [True] * links,
                    f"{links} connections with {words}",
                )
                assert (server.mnt / "a").read_bytes() == b"x" * 100_000
                (server.mnt / f"b-{workers}").write_bytes(os.urandom(3 << 20))
        for words in ("workers=0", "workers=17"):
            expect(server.mount(words), 1, f"'{words}' is not allowed: workers takes a number from 1 to 16")


@effect("restart")
def test_who_keeps_a_mount():
    release = [int(number) for number in re.findall(r"\d+", os.uname().release)[:2]]
    chosen = "data" if os.geteuid() == 0 and release >= [6, 9] else "no"
    with Server() as server:
        for given, meant in (("restart=no", "no"), ("restart=files", "files"), ("restart=data", "data"), ("", chosen)):
            with mount(server, given) as said:
                assert f"restart={meant}" in said["options"].split(",")
                parent = (Path("/proc") / str(said["pid"]) / "stat").read_text().rsplit(")", 1)[1].split()[1]
                # Without a holder the mount is a child of nobody, or of what adopts processes here.
                command = (Path("/proc") / parent / "cmdline").read_bytes().split(b"\0")
                assert (os.fsencode(server.mnt) in command) == (meant != "no"), command


def test_a_program_that_others_may_replace_is_not_started_again_for_root(server):
    root()
    program = server.base / "bin" / "nfsrdma"
    program.parent.mkdir()
    shutil.copy2(BIN / "nfsrdma", program)
    os.chown(program, 65534, -1)
    expect(run(program, "mount", server.spec, server.mnt, "-o", server.options()), 0)
    assert "restart=no" in json.loads(stats(server, "--json"))["options"].split(",")


def test_who_watches_a_mount_is_told_of_its_end(server):
    """In the foreground, where a service or a container waits for the process, that is not replaced unless it is asked for."""
    words = [BIN / "nfsrdma", "mount", "-f", server.spec, server.mnt, "-o", server.options()]
    with subprocess.Popen([str(word) for word in words], stdout=subprocess.DEVNULL) as child:
        until(lambda: mounted(server.mnt) and nfsrdma("stats", server.mnt).returncode == 0, "a mount")
        assert json.loads(stats(server, "--json"))["pid"] == child.pid
        child.kill()
        assert child.wait(LIMIT) == -signal.SIGKILL
    until(lambda: not processes_of(server.mnt), "the end of all processes")
    expect(nfsrdma("umount", server.mnt), 0)


@effect("metrics")
def test_metrics_on_a_socket():
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
def test_metrics_where_asked():
    port = free_port()
    with Server() as server, mount(server, f"metrics=127.0.0.3:{port}") as said:
        with socket.create_connection(("127.0.0.3", port), LIMIT) as http:
            http.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert b"200 OK" in rest_of(http)
        fails(errno.ECONNREFUSED, socket.create_connection, ("127.0.0.1", port))
        assert f"metrics=127.0.0.3:{port}" in said["options"]


# --- of mount(8) ------------------------------------------------------------------------------


@effect("ro", "rw", "suid", "nosuid", "dev", "nodev", "exec", "noexec")
def test_kernel_flags():
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
def test_shown_flags():
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
            ("exec,users", {"nosuid", "nodev", "noexec"}, set()),
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
def test_shown_by_the_kernels_client():
    """A line of /proc/mounts of the kernel's client is accepted, and the address of mountd is used."""
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
def test_symbolic_links():
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
def test_security_contexts():
    """Without SELinux they are ignored, as by mount(8)."""
    if Path("/sys/fs/selinux/enforce").exists():
        pytest.skip("this kernel has SELinux, and which contexts it takes is its policy's")
    label = '"system_u:object_r:nfs_t:s0:c1,c2"'
    with Server() as server:
        for name in ("context", "fscontext", "defcontext", "rootcontext"):
            with mount(server, f"{name}={label},ro"):
                assert "ro" in flags_of(server.mnt)
        expect(server.mount("context="), 1, "is not allowed")


@effect("write")
def test_kinds_of_writing():
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
def test_accepted():
    """They change nothing: the options in force and those of the kernel are the same as without them."""
    words = [f"{name}=x" if name == "comment" else name for name in table("accept")]
    with Server() as server:
        found = []
        for options in ("", ",".join(["x-systemd.automount", "X-mount.mkdir", *words])):
            with mount(server, options) as said:
                found.append((said["options"], flags_of(server.mnt)))
        assert found[0] == found[1], found


@effect(kind="refuse")
def test_refused_by_name():
    with Place() as place:
        for name in table("refuse"):
            result = nfsrdma("mount", "127.0.0.1:/x", place.mnt, "-o", name)
            expect(result, 1, f"option '{name}' cannot be honoured: ")
            assert result.stderr.count("\n") == 1 and not mounted(place.mnt), result.stderr


@effect("sloppy")
def test_sloppy():
    with Server() as server:
        expect(server.mount("zork,v4,fsc"), 1, "zork")
        expect(server.mount("sloppy,zork,v4,rsize=x"), 1, "rsize")
        with mount(server, "zork,sloppy,v4,fsc,minorversion=1,rsize=4K") as said:
            assert "rsize=4096" in said["options"].split(",")
