"""Servers that are stopped, killed and changed, and callers that are killed meanwhile."""

import errno
import os
import signal
import time
from pathlib import Path

import pytest

from reliability.support import GONE, LIMIT, READY, ROOT, Setup, device_of, gone
from reliability.support import mounted, pattern, ready, run, until, waits

#: The directory of the sockets by which root's commands find the process that serves a mount (fuse/cli/src/ipc/sockets.rs).
SOCKETS = Path("/run/nfsrdma")

#: What a process does when the server falls silent: its preparation, and the call.
DEEDS = {
    "read": ("f = os.open(sys.argv[1] + '/old', os.O_RDONLY)", "os.pread(f, 65536, 1 << 20)"),
    "read_direct": ("f = os.open(sys.argv[1] + '/old', os.O_RDONLY | os.O_DIRECT); m = mmap.mmap(-1, 65536)",
                    "os.preadv(f, [m], 1 << 20)"),
    "write": ("f = os.open(sys.argv[1] + '/new', os.O_WRONLY | os.O_CREAT); b = bytes(1 << 20)",
              "while True: os.write(f, b)"),
    "write_direct": ("f = os.open(sys.argv[1] + '/new', os.O_WRONLY | os.O_CREAT | os.O_DIRECT);"
                     "m = mmap.mmap(-1, 65536)", "os.pwritev(f, [m], 0)"),
    "fsync": ("f = os.open(sys.argv[1] + '/new', os.O_WRONLY | os.O_CREAT); os.write(f, b'x' * 100000)", "os.fsync(f)"),
    "close": ("f = os.open(sys.argv[1] + '/new', os.O_WRONLY | os.O_CREAT); os.write(f, b'x' * 100000)", "os.close(f)"),
    "exit_with_dirty_file": ("f = os.open(sys.argv[1] + '/new', os.O_WRONLY | os.O_CREAT);"
                             "os.write(f, b'x' * 100000)", "time.sleep(1000)"),
    "stat": ("os.stat(sys.argv[1])", "os.stat(sys.argv[1] + '/old')"),
    "statfs": ("pass", "os.statvfs(sys.argv[1])"),
    "readdir": ("pass", "os.listdir(sys.argv[1] + '/dir')"),
    "open": ("pass", "os.open(sys.argv[1] + '/old', os.O_RDONLY)"),
    "create": ("pass", "os.open(sys.argv[1] + '/made', os.O_WRONLY | os.O_CREAT | os.O_EXCL)"),
    "mkdir": ("pass", "os.mkdir(sys.argv[1] + '/made')"),
    "unlink": ("pass", "os.unlink(sys.argv[1] + '/victim')"),
    "rename": ("pass", "os.rename(sys.argv[1] + '/victim', sys.argv[1] + '/other')"),
    "truncate": ("pass", "os.truncate(sys.argv[1] + '/victim', 5)"),
    "mmap": ("f = os.open(sys.argv[1] + '/old', os.O_RDONLY); m = mmap.mmap(f, 0, prot=mmap.PROT_READ)",
             "m[1 << 20]"),
    "mmap_write": ("f = os.open(sys.argv[1] + '/old2', os.O_RDWR); m = mmap.mmap(f, 0)", "m[1 << 20] = 1"),
}  # fmt: skip


def silent(name, number=signal.SIGKILL):
    before, deed = DEEDS[name]
    # The caches must not answer, so that each call asks the server. (noac makes writes synchronous, and nothing would be
    # left to write at fsync.)
    keeps = name in ("fsync", "close", "exit_with_dirty_file")
    with Setup(",cache=16M" if keeps else ",noac,lookupcache=none,cache=16M") as setup:
        old = pattern(4 << 20, name)
        for file in ("old", "old2"):
            (setup.export / file).write_bytes(old)
        (setup.export / "victim").write_bytes(b"victim")
        (setup.export / "dir").mkdir()
        child = setup.helper(f"{before}\n{READY}{deed}")
        ready(child)
        setup.pause()
        waits(child)
        took = gone(child, number)
        setup.go_on()
        # Everything goes on, both for other processes and for what the killed one began.
        assert (setup.mnt / "old").read_bytes() == old
        (setup.mnt / "after").write_bytes(old)
        assert (setup.export / "after").read_bytes() == old
        if keeps:
            until(lambda: (setup.export / "new").read_bytes() == b"x" * 100000, "what was written is at the server")
        result = setup.unmount()
        assert result.returncode == 0, result.stderr
        setup.client_ended()
        return f"gone after {took:.2f} s"


@pytest.mark.parametrize("deed", DEEDS)
def test_killed_in(deed, record_property):
    record_property("result", silent(deed))


def test_terminated_in_read(record_property):
    record_property("result", silent("read", signal.SIGTERM))


def test_quit_in_stat(record_property):
    record_property("result", silent("stat", signal.SIGQUIT))


def test_caught_signals_do_not_interrupt():
    """A program with a signal handler gets its data, as on a kernel NFS mount."""
    with Setup() as setup:
        old = pattern(4 << 20, 1)
        (setup.export / "old").write_bytes(old)
        reading = f"f = os.open(sys.argv[1] + '/old', os.O_RDONLY)\n{READY}d = os.pread(f, 65536, 1 << 20)\n"
        child = setup.helper(
            "got = []\n"
            "signal.signal(signal.SIGTERM, lambda *_: got.append(1))\n"
            "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
            f"{reading}"
            "print(got, d.hex(), flush=True)"
        )
        other = setup.helper(reading)
        for each in (child, other):
            ready(each)
        setup.pause()
        for each in (child, other):
            waits(each)
        child.send_signal(signal.SIGINT)
        child.send_signal(signal.SIGTERM)
        # One that is killed after it does not outlive it.
        gone(other)
        assert child.poll() is None, "a caught signal ended it"
        setup.go_on()
        line = child.stdout.readline()
        assert line == f"[1] {old[1 << 20 : (1 << 20) + 65536].hex()}\n", line[:80]


def soak(record_property, *words):
    """The load of tests/soak/run. How long a call takes is not judged here: other tests have the processors, too."""
    seed = os.environ.get("NFSRDMA_SOAK_SEED")
    result = run(ROOT / "tests/soak/run", "--longest", LIMIT, *words, *(("--seed", seed) if seed else ()), limit=900)
    if result.returncode == 77:
        pytest.skip(result.stderr.strip())
    assert result.returncode == 0, result.stdout + result.stderr
    record_property("result", [line.strip() for line in result.stdout.splitlines() if " times" in line][-1])


#: A load that tries what fsync and close promise, on servers that are killed between WRITE and COMMIT.
KILLING = ["--kill-server", "0-1", "--loads", "files,writes,mapped"]


def test_server_killed(kills, record_property):
    """SIGKILL at random points between WRITE and COMMIT; the server then loses uncommitted data."""
    soak(record_property, *KILLING, "--times", kills)


def test_server_killed_without_its_memory_of_calls(kills, record_property):
    """The same without a duplicate-request cache."""
    soak(record_property, *KILLING, "--times", max(kills // 3, 5), "--responder=--drc=0")


def dirty(setup):
    """A process that has written and has not closed the file."""
    child = setup.helper(
        "f = os.open(sys.argv[1] + '/new', os.O_WRONLY | os.O_CREAT)\n"
        "os.write(f, b'x' * 100000)\n"
        "print('now', flush=True)\n"
        "time.sleep(1000)"
    )
    assert child.stdout.readline() == "now\n", child.stderr.read()
    return child


def test_forced_unmount_of_a_mount_in_use():
    """The first one fails, and ends the session; the second one, with or without -f, still reports the data."""
    for words in (["-f"], []):
        with Setup() as setup:
            child = dirty(setup)
            setup.kill()
            result = setup.unmount("-f", limit=30)
            assert result.returncode != 0 and "in use" in result.stderr and mounted(setup.mnt), result.stderr
            until((SOCKETS / f"{device_of(setup.mnt)}.last").is_socket, "the end of the session")
            child.kill()
            child.wait(GONE)
            result = setup.unmount(*words, limit=30)
            assert not mounted(setup.mnt), result.stderr
            assert result.returncode != 0 and "still writing data" in result.stderr, f"nobody is told of the data: {result}"
            setup.start()
            until(lambda: (setup.export / "new").read_bytes() == b"x" * 100000, "what was written is at the server")
            setup.client_ended()


def test_lazy_unmount_with_a_dead_server(setup):
    child = dirty(setup)
    setup.kill()
    result = setup.unmount("-l", limit=30)
    assert result.returncode == 0, result.stderr
    assert not mounted(setup.mnt)
    # The data is written when the server is back.
    setup.start()
    child.kill()
    child.wait(GONE)
    until(lambda: (setup.export / "new").read_bytes() == b"x" * 100000, "what was written is at the server")
    setup.client_ended()


@pytest.mark.parametrize("size", [4096, 1 << 20, 3000001])
def test_who_fills_a_disk_is_told_by_write(size):
    """A program that writes until the disk is full ends, however many WRITEs the kernel makes of a write(2)."""
    with Setup(tmpfs="8m") as setup:
        (setup.mnt / "kept").write_bytes(b"k" * 100000)
        file = os.open(setup.mnt / "big", os.O_WRONLY | os.O_CREAT)
        with pytest.raises(OSError) as raised:
            for _ in range((1 << 30) // size):
                os.write(file, b"b" * size)
        assert raised.value.errno == errno.ENOSPC
        try:
            os.close(file)
        except OSError as error:
            assert error.errno == errno.ENOSPC, error
        assert (setup.mnt / "kept").read_bytes() == b"k" * 100000
        os.unlink(setup.mnt / "big")
        (setup.mnt / "again").write_bytes(b"a" * 1000000)
        assert (setup.export / "again").read_bytes() == b"a" * 1000000
        result = run("dd", "if=/dev/zero", f"of={setup.mnt / 'big'}", f"bs={size}")
        assert result.returncode == 1 and "No space left on device" in result.stderr, result.stderr
        assert setup.unmount().returncode == 0
        setup.client_ended()


def test_soak(record_property):
    """Faults of server and network."""
    soak(record_property, "--faults", "0-2", "--seconds", "24")


@pytest.mark.parametrize("mask", ["", "resend"], ids=["resends", "older kernel"])
@pytest.mark.parametrize("how", ["--kill-mount 2-5 --options restart=data", "--kill-mount 2-5 --options restart=files,nolock",
                                 "--upgrade 1-3 --options restart=files"])  # fmt: skip
def test_restarts(record_property, monkeypatch, how, mask):
    """What serves two mounts is killed, or exchanged, while programs use them: with the kernel as it is, and taken for one before
    Linux 6.9, which does not give unanswered requests again."""
    monkeypatch.setenv("NFSRDMA_MASK", mask)
    soak(record_property, "--seconds", "25", *how.split())
