"""`nfsrdma bench`: what it measures, that its verdict is right, and that it leaves nothing behind."""

import json
import os
import signal
import subprocess

import pytest

from program.support import *  # noqa: F403
from program.support import BIN
from program.test_locks_net import Machines, networks

ROWS = {
    "write 1 MiB", "read 1 MiB", "read 4 KiB", "write 4 KiB, fsync", "create 4 KiB", "open, close", "list, stat", "remove",
}  # fmt: skip


def bench(directory, *words):
    result = nfsrdma("bench", "--quick", "--json", directory, *words)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def causes(report):
    return [one["cause"] for one in report["causes"]]


def test_bench_measures_and_leaves_nothing():
    with Server() as server:
        server.mount_well()
        inside = server.mnt / "folder"
        inside.mkdir()
        report = bench(inside)
        assert report["seconds"] < 60
        rows = {row["name"]: row for row in report["rows"]}
        assert rows.keys() == ROWS
        for row in rows.values():
            assert row["mount"] > 0, row
            assert row["name"] == "list, stat" or row["possible"] > 0, row
        times = rows["read 4 KiB"]["times"]
        assert 0 < times["p50_us"] <= times["p99_us"] <= times["max_us"]
        assert not {"credits", "packets"} & set(causes(report)), report["causes"]
        # What was read came from the server, and not from the kernel's cache.
        assert procedures(server)["READ"]["bytes_received"] > 1 << 20
        assert not os.listdir(server.export / "folder") and os.listdir(server.export) == ["folder"]
        text = nfsrdma("bench", "--quick", server.mnt)
        expect(text, 0, "possible", "read 1 MiB", "verdict: ", f"{server.spec} on {server.mnt}")
        assert os.listdir(server.export) == ["folder"]


@pytest.mark.responder("--credits", "1")
def test_bench_verdict_one_credit(server):
    server.mount_well()
    report = bench(server.mnt)
    assert causes(report)[0] == "credits" and "1 credit" in report["causes"][0]["text"], report["causes"]


@pytest.mark.parametrize("procedures", [("WRITE",), ("COMMIT",), ("WRITE", "COMMIT")])
def test_bench_verdict_slow_disk(procedures):
    words = [word for name in procedures for word in ("--delay", f"{name}=100")]
    with Server(*words) as server:
        server.mount_well()
        report = bench(server.mnt)
        assert causes(report)[0] == "disk", report["causes"]
        assert "the server's disk is slow" in report["causes"][0]["text"]


def test_bench_verdict_small_packets():
    with networks("one") as within, Machines(within) as server:
        expect(run(*within["one"], "ip", "link", "set", "eth0", "mtu", "600"), 0)
        options = server.options("nolock")
        expect(run(*within["one"], BIN / "nfsrdma", "mount", server.spec, server.mnt, "-o", options), 0)
        result = run(*within["one"], BIN / "nfsrdma", "bench", "--quick", "--json", server.mnt)
        assert result.returncode == 0, result.stderr
        report = json.loads(result.stdout)
        assert causes(report)[0] == "packets" and "at most 600 bytes" in report["causes"][0]["text"], report["causes"]


def test_bench_removes_what_it_made_when_it_is_interrupted():
    with Server() as server:
        server.mount_well()
        for number in (signal.SIGINT, signal.SIGTERM):
            with running(BIN / "nfsrdma", "bench", server.mnt, stderr=subprocess.PIPE, text=True) as child:
                until(lambda: os.listdir(server.export), "a directory of the benchmark")
                child.send_signal(number)
                said = child.stderr.read()
                assert child.wait(LIMIT) == 8, said
            assert "interrupted" in said and said.count("\n") == 1, said
            assert not os.listdir(server.export)


def test_bench_of_what_it_cannot_measure():
    with Server() as server:
        server.mount_well("ro")
        result = nfsrdma("bench", "--quick", server.mnt)
        expect(result, 32, f"cannot write {server.mnt}", "Read-only file system; choose another place")
        expect(nfsrdma("bench", server.base), 1, "is not an nfsrdma mount")
        assert not os.listdir(server.export)
