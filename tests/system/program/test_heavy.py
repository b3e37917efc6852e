"""Heavy use: the cost of many small writes, who has to wait for them, and memory that is returned.

Bounds are ratios and counts, because other programs run on this machine, too.
"""

import mmap
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from program.support import *  # noqa: F403

# They load the machine more than others, and take long beside them.
pytestmark = pytest.mark.alone
PAGE = 4096
MIB = 1 << 20


def resident(pid, field="VmRSS"):
    """The resident memory, in bytes."""
    found = re.search(rf"^{field}:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.M)
    return int(found[1]) << 10


def scatter(server, name, pages):
    """Writes eight bytes to each of `pages` pages, then fsync, in another process, which can be given up."""
    program = (
        "import os, sys\n"
        "f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
        f"for n in range({pages}): os.pwrite(f, b'%08d' % n, n * {PAGE})\n"
        "os.fsync(f)\n"
    )
    subprocess.run([sys.executable, "-c", program, server.mnt / name], check=True, timeout=LIMIT)
    there = (server.export / name).read_bytes()
    assert len(there) == (pages - 1) * PAGE + 8
    assert all(there[page * PAGE : page * PAGE + 8] == b"%08d" % page for page in range(0, pages, 97))


def test_very_many_scattered_small_writes_end(server):
    """Each of them costs the same however many wait. Where the cost grew with their number (0.1.0), 60,000 did not end
    within 240 s; now they take one to two seconds."""
    server.mount_well()
    scatter(server, "many", 60_000)
    # Only the bytes that programs wrote were sent.
    sent = procedures(server)["WRITE"]
    assert sent["calls"] <= 60_000 + 10, sent


def test_names_are_looked_up_while_a_flush_of_many_small_writes_goes_on():
    with Server() as server:
        server.mount_well()

        def look_up(over):
            """Measures look-ups of names that do not exist."""
            times = []
            while not over.is_set():
                begin = time.monotonic()
                assert not (server.mnt / f"none{begin}").exists()
                times.append(time.monotonic() - begin)
            return times

        over, times = threading.Event(), []
        looking = threading.Thread(target=lambda: times.extend(look_up(over)))
        # The flush runs in another process, so that it does not share Python's global lock with the look-ups.
        program = (
            "import os, sys\n"
            "f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
            f"for n in range(15000): os.pwrite(f, b'12345678', n * {PAGE})\n"
            "print(flush=True)\n"
            "os.fsync(f)\n"
        )
        with subprocess.Popen([sys.executable, "-c", program, server.mnt / "f"], stdout=subprocess.PIPE) as child:
            try:
                child.stdout.readline()
                looking.start()
                assert child.wait(LIMIT) == 0
            finally:
                child.kill()
                over.set()
                if looking.ident:
                    looking.join()
        # Half of the credits are reserved for other calls, so the look-ups do not wait for the whole flush.
        assert len(times) >= 15, f"{len(times)} look-ups beside 15,000 WRITEs"


def test_a_signal_is_heard_during_a_flush_of_many_small_writes():
    with scripted() as (server, command):
        log = server.mount_logged()
        (pid,) = servers_of(server.mnt)
        descriptor = os.open(server.mnt / "f", os.O_RDWR | os.O_CREAT)
        # The flush does not end before this is over.
        command("hold-reply WRITE")
        for page in range(12_000):
            os.pwrite(descriptor, b"%08d" % page, page * PAGE)
        os.kill(pid, signal.SIGTERM)
        until(lambda: "SIGTERM: unmounting" in log.read_text(), "the signal in the log")
        command("clear")
        command("release")
        os.close(descriptor)
        server.ended()
        there = (server.export / "f").read_bytes()
        assert all(there[page * PAGE : page * PAGE + 8] == b"%08d" % page for page in range(12_000))


def test_many_failed_writes_are_one_line_in_the_log(server):
    root()
    run("mount", "-t", "tmpfs", "-o", "size=1m", "none", server.export)
    try:
        server.stop()
        server.export.chmod(0o777)
        server.start()
        log = server.mount_logged()
        descriptor = os.open(server.mnt / "f", os.O_RDWR | os.O_CREAT)
        for page in range(3000):
            os.pwrite(descriptor, b"12345678", 2 * page * PAGE)
        try:
            os.fsync(descriptor)
            raise AssertionError("fsync does not tell of the full disk")
        except OSError as error:
            assert error.errno == 28, error
        os.close(descriptor)
        failures = re.search(r'"write_errors":\s*(\d+)', stats(server, "--json"))
        assert int(failures[1]) > 1000, failures[0]
        unmount(server.mnt)
        lines = [line for line in log.read_text().splitlines() if " ERROR " in line]
        assert 1 <= len(lines) <= 3, f"{len(lines)} lines: {lines[:5]}"
    finally:
        server.stop()
        run("umount", "-l", server.export)


def test_memory_stays_within_the_cache_and_comes_back(server):
    server.mount_well("cache=64M")
    (pid,) = servers_of(server.mnt)
    for turn in range(3):
        with open(server.mnt / f"big{turn}", "wb") as file:
            for _ in range(150):
                file.write(os.urandom(MIB))
    for turn in range(3):
        with open(server.mnt / f"big{turn}", "rb") as file:
            while file.read(MIB):
                pass
    for number in range(3000):
        (server.mnt / f"small{number}").write_bytes(b"x" * 5000)
    scatter(server, "scattered", 12_000)
    peak = resident(pid, "VmHWM")
    assert peak <= (64 + 64) * MIB, f"{peak >> 20} MiB at the peak"
    for path in server.mnt.iterdir():
        path.unlink()
    cached = int(re.search(r'"cache_bytes":\s*(\d+)', stats(server, "--json"))[1])
    limit = cached + 32 * MIB
    until(
        lambda: resident(pid) <= limit,
        f"memory given back ({resident(pid) >> 20} MiB, {cached >> 20} MiB cached)",
    )


def test_memory_of_many_names_comes_back(server):
    folder = server.export / "many"
    folder.mkdir()
    folder.chmod(0o777)
    for number in range(20_000):
        (folder / f"name-{number:06}").touch()
    server.mount_well("cache=64M")
    (pid,) = servers_of(server.mnt)
    before = resident(pid)
    listed = sum(1 for entry in os.scandir(server.mnt / "many") if entry.stat().st_size == 0)
    assert listed == 20_000, listed
    peak = resident(pid, "VmHWM")
    assert before + 4 * MIB <= peak <= (64 + 64) * MIB, f"{peak >> 20} MiB for 20,000 names, {before >> 20} MiB before"
    assert run("rm", "-r", server.mnt / "many", limit=5 * LIMIT).returncode == 0
    cached = int(re.search(r'"cache_bytes":\s*(\d+)', stats(server, "--json"))[1])
    limit = cached + 32 * MIB
    until(
        lambda: resident(pid) <= limit,
        f"memory given back ({resident(pid) >> 20} MiB, {cached >> 20} MiB cached)",
    )


def test_names_that_were_only_listed_take_memory_while_their_directory_is_open(server):
    folders, each = 3, 40_000
    for folder in range(folders):
        (server.export / f"d{folder}").mkdir(0o755)
        there = os.open(server.export / f"d{folder}", os.O_RDONLY)
        for number in range(each):
            os.mknod(f"name-{number:06}", 0o100644, dir_fd=there)
        os.close(there)
    server.mount_well("cache=16M")
    (pid,) = servers_of(server.mnt)
    assert len(os.listdir(server.mnt)) == folders
    before = resident(pid)
    for folder in range(folders):
        assert len(os.listdir(server.mnt / f"d{folder}")) == each
    # A listed name is an object with its attributes, some 600 bytes: those of one directory at a time. (They took 139 MiB,
    # and kept them, when all names stayed.)
    peak = resident(pid, "VmHWM") - before
    assert peak <= 80 * MIB, f"{peak >> 20} MiB for the names of {folders} directories, one after the other"
    until(
        lambda: resident(pid) <= before + 12 * MIB,
        f"memory given back ({resident(pid) >> 20} MiB, {before >> 20} MiB before)",
    )
    # The kernel has the names, but is to list them with their objects rather than look each up.
    looked_up = lambda: procedures(server).get("LOOKUP", {"calls": 0})["calls"]
    calls = looked_up()
    with os.scandir(server.mnt / "d0") as entries:
        assert sum(1 for entry in entries if entry.stat(follow_symlinks=False).st_size == 0) == each
    assert looked_up() - calls <= 10, f"{looked_up() - calls} LOOKUPs"


def test_large_writes_beside_small_ones_leave_what_a_local_file_has(server):
    """Data of 256 KiB or more, at a multiple of its length, stays in the buffer into which the kernel's request was
    read: over, below and next to data that is cached, being sent, or mapped."""
    server.mount_well("cache=16M")
    seed = int.from_bytes(os.urandom(4))
    print("seed", seed)
    choice = random.Random(seed)
    size = 8 * MIB
    local = bytearray()

    def put(at, data):
        local.extend(bytes(max(0, at + len(data) - len(local))))
        local[at : at + len(data)] = data

    (server.export / "f").touch()
    with opening(server.mnt / "f", os.O_RDWR) as plain, opening(server.mnt / "f", os.O_RDWR | os.O_DIRECT) as direct:
        for step in range(300):
            match choice.choice(["large", "large", "large", "small", "direct", "read", "map", "cut", "sync"]):
                case "large":
                    length = 1 << choice.randrange(18, 21)
                    at = choice.randrange(size // length) * length
                    data = choice.randbytes(4096) * (length // 4096)
                    assert os.pwrite(plain, data, at) == length
                    put(at, data)
                case "small":
                    at, data = choice.randrange(size - 10_000), choice.randbytes(choice.randrange(1, 10_000))
                    assert os.pwrite(plain, data, at) == len(data)
                    put(at, data)
                case "direct":
                    length = choice.choice([4096, 1 << 18, 3 << 18, 1 << 20])
                    at = choice.randrange((size - length) // 4096) * 4096
                    # O_DIRECT needs memory that is aligned to pages.
                    with mmap.mmap(-1, length) as memory:
                        memory[:] = choice.randbytes(4096) * (length // 4096)
                        assert os.pwrite(direct, memory, at) == length
                        put(at, memory[:])
                case "read":
                    at = choice.randrange(size)
                    assert os.pread(plain, 300_000, at) == local[at : at + 300_000], f"step {step}"
                case "map" if local:
                    with mmap.mmap(plain, len(local)) as mapped:
                        at, data = choice.randrange(len(local)), choice.randbytes(5000)
                        end = min(at + len(data), len(local))
                        mapped[at:end] = data[: end - at]
                        put(at, data[: end - at])
                case "cut":
                    length = choice.randrange(size)
                    os.ftruncate(plain, length)
                    del local[length:]
                    local.extend(bytes(length - len(local)))
                case "sync":
                    os.fsync(plain)
                    assert (server.export / "f").read_bytes() == local, f"step {step}"
        os.fsync(plain)
    assert (server.export / "f").read_bytes() == local
    assert (server.mnt / "f").read_bytes() == local
