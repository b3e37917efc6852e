"""Servers and networks that change: objects replaced, exports gone, other limits, silence."""

import errno
import os
import re
import time
import uuid

import pytest

from reliability.support import LIMIT, Setup, begin, pattern, run, until


def fails(deed, *expected):
    try:
        deed()
    except OSError as error:
        assert error.errno in expected, error
        return error
    raise AssertionError(f"it did not fail with {expected}")


def test_stale_open_file_is_reported():
    """A program that has the old file open gets ESTALE for data that is not cached, and never bytes of the new file."""
    with Setup(",cache=16M,readahead=0") as setup:
        old, new = b"o" * (4 << 20), b"n" * (4 << 20)
        (setup.export / "f").write_bytes(old)
        file = os.open(setup.mnt / "f", os.O_RDWR | os.O_DIRECT)
        buffered = os.open(setup.mnt / "f", os.O_RDWR)
        try:
            (setup.export / "new").write_bytes(new)
            os.replace(setup.export / "new", setup.export / "f")
            fails(lambda: os.pread(buffered, 100, 3 << 20), errno.ESTALE)
            # This data cannot be written, which is reported exactly once.
            os.pwrite(buffered, b"x" * 5000, 0)
            fails(lambda: os.fsync(buffered), errno.ESTALE)
            os.fsync(buffered)
        finally:
            os.close(buffered)
            # It may write, and was open when that failed.
            fails(lambda: os.close(file), errno.ESTALE)
        assert (setup.mnt / "f").read_bytes() == new == (setup.export / "f").read_bytes()


def test_an_export_disappears_and_comes_back():
    """While the export is gone, calls fail with ESTALE, also writes; then everything is there again."""
    with Setup(",noac,lookupcache=none") as setup:
        (setup.export / "f").write_text("kept")
        other = setup.base / "other"
        other.mkdir()
        (other / "f").write_text("of another export")
        real = setup.export
        file = os.open(setup.mnt / "f", os.O_RDWR)
        try:
            setup.kill()
            setup.export = other
            setup.start()
            fails(lambda: os.stat(setup.mnt / "f"), errno.ESTALE)
            fails(lambda: os.listdir(setup.mnt), errno.ESTALE)
            fails(lambda: open(setup.mnt / "made", "w"), errno.ESTALE)
            fails(lambda: os.pwrite(file, b"lost", 0), errno.ESTALE)
            setup.kill()
            setup.export = real
            setup.start()
            assert (setup.mnt / "f").read_text() == "kept"
            assert os.pwrite(file, b"new", 0) == 3
        finally:
            os.close(file)
        assert (real / "f").read_text() == "newt"
        assert os.listdir(other) == ["f"] and (other / "f").read_text() == "of another export"
        assert os.listdir(setup.mnt) == ["f"]
        setup.quiet()


def test_a_server_changes_its_limits():
    """READ and inline sizes and credits change with each restart; calls and data do not."""
    settings = [
        ["--rtmax", "32768"],
        ["--inline", "1024"],
        ["--inline", "65536", "--credits", "1"],
        ["--credits", "256", "--rtmax", "4096"],
        ["--inline", "1024", "--credits", "2", "--rtmax", "1000"],
        ["--send-invalidate", "off"],
        [],
    ]
    with Setup(",cache=16M") as setup:
        (setup.export / "dir").mkdir()
        names = sorted(f"{i:04}-{'n' * 60}" for i in range(400))
        for name in names:
            (setup.export / "dir" / name).touch()
        # Not in this process: a server that it starts would first close the file, and wait for the server.
        child = setup.helper(
            "import random\n"
            "f = os.open(sys.argv[1] + '/f', os.O_RDWR | os.O_CREAT)\n"
            "for line in sys.stdin:\n"
            "    step, turn = line.split()\n"
            "    data = random.Random(int(turn)).randbytes(2 << 20)\n"
            "    if step == 'large': os.pwrite(f, data, int(turn) * 100001)\n"
            "    else: os.pwrite(f, data[:1000], 5); os.fsync(f)\n"
            "    print(os.fstat(f).st_size if step == 'small' else 0, flush=True)"
        )

        def step(what, turn):
            begin(child, f"{what} {turn}")
            line = child.stdout.readline()
            assert line, f"{setup.arguments}: {child.stderr.read()}{setup.log()}"
            return int(line)

        model = bytearray(3 << 20)
        for turn, arguments in enumerate(settings):
            # Half of it is written, but not committed, before the server ends.
            data = pattern(2 << 20, turn)
            step("large", turn)
            model[turn * 100001 : turn * 100001 + len(data)] = data
            setup.kill()
            setup.arguments = arguments
            setup.start()
            size = step("small", turn)
            model[5:1005] = data[:1000]
            assert (setup.export / "f").read_bytes() == model[:size], arguments
            # Without any of our caches.
            (setup.export / f"r{turn}").write_bytes(model)
            assert (setup.mnt / f"r{turn}").read_bytes() == model, arguments
            assert sorted(os.listdir(setup.mnt / "dir")) == names, arguments
            os.symlink("x" * 1000, setup.mnt / f"s{turn}")
            assert os.readlink(setup.mnt / f"s{turn}") == "x" * 1000
        seen = {n: setup.counter(n) for n in ("violations", "rdma_errors")}
        assert not any(seen.values()), seen
        setup.quiet()


def test_a_server_takes_smaller_writes():
    """The server comes back with a smaller wtmax: planned WRITEs are cut, all data is written, and later calls fit."""
    with Setup(",cache=16M") as setup:
        (setup.mnt / "other").write_bytes(b"other")
        child = setup.helper(
            "import random\n"
            "f = os.open(sys.argv[1] + '/f', os.O_RDWR | os.O_CREAT)\n"
            "for line in sys.stdin:\n"
            "    step, turn = line.split()\n"
            "    if step == 'write': os.pwrite(f, random.Random(int(turn)).randbytes(3000000), 0)\n"
            "    else: os.fsync(f)\n"
            "    print('done', flush=True)"
        )

        def step(what, turn):
            begin(child, f"{what} {turn}")
            assert child.stdout.readline() == "done\n", f"{turn}: {child.stderr.read()}{setup.log()}"

        # First smaller, then smaller than a page (a power of two), and then as large as at first. The size is less than wtmax,
        # because head and data of a WRITE must fit into that.
        for turn, (wtmax, size) in enumerate((("16384", 12288), ("1000", 512), ("1048576", 1044480))):
            step("write", turn)
            setup.restart("--wtmax", wtmax)
            step("fsync", turn)
            assert (setup.export / "f").read_bytes() == pattern(3000000, turn), size
            # Calls that are planned from now on fit, so none is refused. (The log tells of other limits once a minute.)
            until(lambda size=size: f",wsize={size}," in setup.stats()["options"], f"a limit of {size} bytes")
            refused = setup.counter("rdma_errors")
            data = pattern(1000000, turn)
            (setup.mnt / "g").write_bytes(data)
            assert (setup.export / "g").read_bytes() == data, size
            assert setup.counter("rdma_errors") == refused, size
        assert "takes 12288 of a WRITE" in setup.log()
        assert (setup.mnt / "other").read_bytes() == b"other"
        child.stdin.close()
        assert child.wait(LIMIT) == 0, child.stderr.read()
        child.stdin = None
        setup.quiet()


def test_a_server_that_is_away_is_not_hammered(setup, record_property):
    """The time between attempts to connect grows, and the log says for how long it was away."""
    (setup.mnt / "f").write_text("x")
    setup.kill()
    until(lambda: setup.counter("connect_failures") > 0, "an attempt")
    # 50 ms, doubled each time: four more attempts of each connection take 0.75 s at least, and longer on a slow machine.
    connections, first, start = len(setup.stats()["connections"]), setup.counter("connect_failures"), time.monotonic()
    until(lambda: setup.counter("connect_failures") >= first + 4 * connections, "more attempts")
    took = time.monotonic() - start
    assert took > 0.7, f"4 attempts of {connections} connections within {took:.2f} s"
    setup.start()
    assert (setup.mnt / "f").read_text() == "x"
    until(lambda: re.search(r"connected to server .* again, after \d+ s", setup.log()), "a line in the log")
    record_property("result", f"4 more attempts of each connection took {took:.1f} s")


def test_a_half_open_connection_that_idles():
    """Keep-alive notices a path that is lost without a message, with no call under way."""
    name = "soak" + uuid.uuid4().hex[:6]
    made = run("ip", "netns", "add", name)
    if made.returncode != 0:
        pytest.skip(f"no network namespace: {made.stderr.strip()}")
    try:
        inside = ["ip", "netns", "exec", name]
        for command in (
            f"ip link add {name}a type veth peer name {name}b netns {name}",
            f"ip addr add 169.254.93.1/30 dev {name}a",
            f"ip link set {name}a up",
            f"ip netns exec {name} ip addr add 169.254.93.2/30 dev {name}b",
            f"ip netns exec {name} ip link set {name}b up",
        ):
            result = run(*command.split())
            if result.returncode != 0:
                pytest.skip(f"{command}: {result.stderr.strip()}")
        with Setup(",timeo=10", address="169.254.93.2", within=inside) as setup:
            (setup.mnt / "f").write_text("x")
            setup.quiet()
            calls = setup.counter("sends")
            until(lambda: all(c["connected"] for c in setup.stats()["connections"]), "all connections")
            assert all(c["counters"]["connects"] == 1 for c in setup.stats()["connections"])
            # At the other end, so that this end gets no message.
            run(*inside, "ip", "link", "set", f"{name}b", "down")
            run(*inside, "ip", "addr", "flush", "dev", f"{name}b")
            until(lambda: not all(c["connected"] for c in setup.stats()["connections"]), "that it is noticed")
            assert setup.counter("sends") == calls, "there was a call"
            run(*inside, "ip", "addr", "add", "169.254.93.2/30", "dev", f"{name}b")
            run(*inside, "ip", "link", "set", f"{name}b", "up")
            until(lambda: all(c["connected"] for c in setup.stats()["connections"]), "another connection")
            (setup.mnt / "f").write_text("yes")
            assert (setup.export / "f").read_text() == "yes"
    finally:
        run("ip", "link", "del", f"{name}a")
        run("ip", "netns", "del", name)
