"""`mount -o remount`: options that change while programs use the mount."""

import os
import signal
import subprocess
import sys

import pytest

from program.outlives_support import document, kept, kill
from program.support import *  # noqa: F403

SOON = 60


def remount(server, options):
    return nfsrdma("mount", server.spec, server.mnt, "-o", f"remount,{options}")


def shown(server, name):
    """The value of an option, as the mount shows it."""
    words = dict(word.partition("=")[::2] for word in document(server)["options"].split(","))
    return words.get(name)


@pytest.mark.parametrize("restart", ["files", "data"])
def test_attributes_are_valid_for_another_time(restart):
    with kept("actimeo=3600", restart) as server:
        (server.export / "f").write_text("first")
        # The first LOOKUP shows that the directory has changed.
        assert (server.mnt / "f").stat().st_size == 5 == (server.mnt / "f").stat().st_size
        (server.export / "f").write_text("changed")
        assert (server.mnt / "f").stat().st_size == 5
        expect(remount(server, "actimeo=0"), 0, "")
        assert document(server)["upgrades"] == 1
        for size in (7, 9, 11):
            (server.export / "f").write_text("x" * size)
            assert (server.mnt / "f").stat().st_size == size
        assert shown(server, "acregmax") == "0"
        kill(server)
        assert shown(server, "acregmax") == "0"
        # What is in force may be repeated, and nothing is exchanged for it.
        serving = document(server)["pid"]
        expect(remount(server, "acregmin=0"), 0, "")
        assert document(server)["pid"] == serving


def test_a_hard_mount_becomes_soft_while_a_program_waits_for_a_silent_server():
    with kept("timeo=6000") as server:
        (server.export / "f").touch()
        server.pause()
        code = "import os, sys; os.stat(sys.argv[1])"
        with running(sys.executable, "-c", code, server.mnt / "f", stderr=subprocess.PIPE) as waiting:
            until(lambda: document(server)["connections"][0]["credits_in_use"], "a call that waits")
            expect(remount(server, "soft,timeo=5,retrans=0"), 0, "")
            said = waiting.communicate(timeout=SOON)[1]
        assert b"Input/output error" in said, said
        server.child.send_signal(signal.SIGCONT)
        expect(remount(server, "hard,timeo=600"), 0, "")
        assert (server.mnt / "f").stat().st_size == 0


@pytest.mark.parametrize("restart", ["files", "data"])
def test_memory_and_connections_change_under_load(restart):
    with kept("cache=64M,nconnect=1", restart) as server:
        with open(server.mnt / "f", "wb", buffering=0) as file:
            sum_ = b""
            for options in ("cache=128M,dirty=48M", "nconnect=3,readahead=256K", "cache=16M,dirty=4M"):
                piece = os.urandom(6 << 20)
                file.write(piece)
                sum_ += piece
                expect(remount(server, options), 0, "")
                assert (server.mnt / "f").read_bytes() == sum_
        assert (server.export / "f").read_bytes() == sum_
        assert (shown(server, "cache"), shown(server, "dirty")) == ("16M", "4M")
        assert len(document(server)["connections"]) == 3
        if restart == "data":
            file = os.open(server.mnt / "g", os.O_CREAT | os.O_WRONLY)
            os.write(file, b"kept")
            kill(server)
            os.fsync(file)
            os.close(file)
            assert (server.export / "g").read_bytes() == b"kept"


def test_what_cannot_change_says_why():
    with kept() as server:
        before = document(server)["pid"]
        for options, why in [
            ("acregmin=1,port=7", "does not change 'port=7', because it was settled with the server when the mount was made"),
            ("noac", "does not change 'noac', because the kernel is told of it once"),
            ("restart=no", "does not change 'restart=no'"),
            ("acregmin=90,acregmax=80", "'acregmin=90' and 'acregmax=80' contradict each other"),
        ]:
            expect(remount(server, options), 1, why)
        assert document(server)["pid"] == before


def test_without_restart_the_options_last(server):
    server.mount_well("restart=no")
    said = f"{server.mnt} has the options that it had: it was mounted without restart="
    expect(remount(server, "acregmin=1"), 32, said)


def test_mount_of_util_linux_changes_options():
    root()
    with kept("acregmin=7") as server:
        expect(run("mount", "-i", "-o", "remount,ro", server.mnt), 0)
        expect(nfsrdma("mount", server.spec, server.mnt, "-o", "remount,rw,acregmin=1,acregmax=2"), 0)
        (server.mnt / "f").touch()
        assert shown(server, "acregmax") == "2"


@pytest.mark.parametrize("restart", ["files", "data"])
def test_memory_that_is_not_to_be_had_leaves_the_options(restart):
    with Server() as server:
        limited = ("prlimit", "--as=8000000000", BIN / "nfsrdma", "mount", server.spec, server.mnt)
        expect(run(*limited, "-o", server.options(f"restart={restart},nolock")), 0)
        with open(server.mnt / "f", "wb") as file:
            serving = document(server)["pid"]
            said = f"{server.mnt} has the options that it had: "
            expect(remount(server, "cache=1T"), 32, said)
            assert document(server)["pid"] == serving
            file.write(b"goes on")
        assert (server.export / "f").read_bytes() == b"goes on"
