"""`nfsrdma stats` in all its forms, and metrics over HTTP."""

import json
import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from program.support import *  # noqa: F403


def test_stats_count_what_was_done(server):
    server.mount_well("wsize=64K,rsize=64K,nconnect=1")
    before = procedures(server)
    payload = os.urandom(1 << 20)
    for name in ("a", "b", "c"):
        (server.mnt / name).write_bytes(payload)
    os.mkdir(server.mnt / "d")
    os.rename(server.mnt / "c", server.mnt / "d" / "c")
    os.unlink(server.mnt / "b")
    try:
        os.rmdir(server.mnt / "missing")
    except FileNotFoundError:
        pass
    (server.export / "at-the-server").write_bytes(payload)
    assert (server.mnt / "at-the-server").read_bytes() == payload
    after = procedures(server)
    assert len(after) == 22 + 2, sorted(after)

    def new(name, field="calls"):
        return after[name][field] - before[name][field]

    assert (new("CREATE"), new("MKDIR"), new("RENAME"), new("REMOVE")) == (3, 1, 1, 1)
    # Full blocks of wsize and rsize. Each file was closed, so all data is at the server.
    assert new("WRITE") >= 48 and new("READ") >= 16, (new("WRITE"), new("READ"))
    assert new("WRITE", "bytes_sent") > 3 << 20 and new("READ", "bytes_received") > 1 << 20
    assert new("LOOKUP", "errors") >= 1, "nobody missed 'missing'"
    for name, entry in after.items():
        assert entry["calls"] == sum(bucket["calls"] for bucket in entry["latency"]), name
        assert entry["errors"] <= entry["calls"] and entry["retransmits"] == 0, entry
        assert entry["total_ns"] == entry["queue_ns"] + entry["round_trip_ns"], entry
        assert (entry["p50_us"] is None) == (entry["calls"] == 0), entry
        assert entry["calls"] == 0 or entry["p50_us"] <= entry["p99_us"], entry
    whole = json.loads(stats(server, "--json"))
    assert (whole["source"], whole["directory"]) == (server.spec, str(server.mnt)), whole
    assert [whole["pid"]] == servers_of(server.mnt)
    assert "wsize=65536" in whole["options"].split(","), whole["options"]
    (link,) = whole["connections"]
    counters = link["counters"]
    assert link["connected"] and link["peer"] == f"127.0.0.1:{server.port}", link
    assert link["credits_granted"] > 0 and link["inline_call"] >= 1024, link
    assert counters["rdma_write_bytes"] >= 1 << 20 and counters["rdma_read_bytes"] >= 3 << 20, counters
    assert counters["connects"] == 1 and counters["write_chunks"] >= 16, counters
    assert counters["registrations"] == counters["local_invalidations"] + link["open_registrations"], counters


def test_stats_in_every_form(server):
    server.mount_well("nconnect=1")
    (server.mnt / "a").write_bytes(b"x" * 100_000)
    page = stats(server)
    for part in (server.spec, "WRITE", "p99", "attributes", "connection 0: iwarp", "RDMA Read", "credits"):
        assert part in page, f"{part!r} is not in {page}"
    lines = stats(server, "--mountstats").splitlines()
    assert lines[0] == f"device {server.spec} mounted on {server.mnt} with fstype nfs statvers=1.1", lines[0]
    (transport,) = (line.split() for line in lines if line.startswith("\txprt:"))
    assert transport[1] == "rdma" and len(transport) == 29, transport
    operations = lines[lines.index("\tper-op statistics") + 1 : -1]
    assert len(operations) == 22 + 2 and all(len(line.split()) == 10 for line in operations), operations
    metrics = stats(server, "--prometheus").splitlines()
    (calls,) = (m for m in metrics if m.startswith("nfsrdma_procedure_calls_total{") and '"CREATE"' in m)
    assert calls.endswith(" 1"), calls
    # Each line is a comment or a sample with a number.
    for line in metrics:
        assert line.startswith("# ") or float(line.rsplit(" ", 1)[1]) >= 0, line
    with running(BIN / "nfsrdma", "stats", server.mnt, "--watch", "1", "--json", stdout=subprocess.PIPE, text=True) as child:
        ages = [json.loads(child.stdout.readline())["age_ns"] for _ in range(2)]
    assert ages[0] < ages[1], ages


def nfs_tools(folder):
    """mountstats and nfsiostat, extracted from Debian's package if necessary, because its installation would start
    services."""
    names = ("mountstats", "nfsiostat")
    tools = [shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") for name in names]
    if None not in tools:
        return tools
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        pytest.skip("needs mountstats and nfsiostat (package nfs-common)")
    # As root, apt-get would download as a user who cannot write here.
    fetched = run("apt-get", "-o", "APT::Sandbox::User=root", "-qq", "download", "nfs-common", cwd=folder)
    if fetched.returncode != 0:
        pytest.skip(f"the package nfs-common cannot be had: {fetched.stderr.splitlines()[-1:]}")
    (package,) = folder.glob("nfs-common_*.deb")
    expect(run("dpkg-deb", "-x", package, folder / "nfs-common"), 0)
    return [folder / "nfs-common/usr/sbin" / name for name in names]


def test_stats_read_by_mountstats_and_nfsiostat(server):
    tools = nfs_tools(server.base)
    server.mount_well("wsize=64K")
    (server.mnt / "a").write_bytes(b"x" * 655_360)
    saved = server.base / "mountstats"
    saved.write_text(stats(server, "--mountstats"))
    calls = procedures(server)["WRITE"]["calls"]
    result = run("python3", tools[0], "mountstats", "-f", saved, server.mnt)
    expect(result, 0, f"Stats for {server.spec} mounted on {server.mnt}:", "WRITE:")
    assert f"{calls} ops" in result.stdout, result.stdout
    # The other commands in docs/OBSERVING.md.
    result = run("python3", tools[0], "nfsstat", "-f", saved)
    expect(result, 0, "Client rpc stats:", "write")
    expect(run("python3", tools[0], "iostat", "-f", saved, server.mnt), 0, f"{server.spec} mounted on {server.mnt}:")
    # nfsiostat cannot be used, since it reads only the table of its own process. The format is right for it.
    script = server.base / "nfsiostat"
    script.write_text(Path(tools[1]).read_text().replace("/proc/self/mountstats", str(saved)))
    result = run("python3", script, server.mnt)
    expect(result, 0, f"{server.spec} mounted on {server.mnt}:", "read:", "write:")


def test_metrics_over_http(server):
    port = free_port()
    server.mount_well(f"metrics={port}")
    (server.mnt / "a").write_text("1")

    def get(request):
        with socket.create_connection(("127.0.0.1", port), LIMIT) as http:
            http.settimeout(LIMIT)
            try:
                http.sendall(request)
                http.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # The server closed the connection first.
            return rest_of(http)

    said = get(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n"), head
    assert f"Content-Length: {len(body)}\r\n".encode() in head, head
    (calls,) = (m for m in body.splitlines() if m.startswith(b"nfsrdma_procedure_calls_total{") and b'"CREATE"' in m)
    assert calls.endswith(b" 1"), calls
    assert get(b"GET / HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 404 Not Found\r\n")
    assert get(b"GET /metrics?name=x HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 200 OK\r\n")
    head, _, body = get(b"HEAD /metrics HTTP/1.1\r\n\r\n").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n") and body == b"", (head, body)
    assert int(re.search(rb"Content-Length: (\d+)", head)[1]) > 1000, head
    refused = get(b"POST /metrics HTTP/1.1\r\n\r\n")
    assert refused.startswith(b"HTTP/1.1 405 ") and b"\r\nAllow: GET, HEAD\r\n" in refused, refused
    assert get(b"\0" * 100).startswith(b"HTTP/1.1 400 ")
    get(b"GET /metrics HTTP/1.1\r\n" + b"x" * 1_000_000)
    other = server.base / "other"
    other.mkdir()
    result = nfsrdma("mount", server.spec, other, "-o", server.options(f"metrics={port}"))
    expect(result, 2, f"cannot serve metrics at 127.0.0.1:{port}: Address already in use; give metrics= another")
    result = nfsrdma("metrics", "--listen", f"127.0.0.1:{port}")
    expect(result, 2, f"cannot serve metrics at 127.0.0.1:{port}: Address already in use; give --listen another")
    assert not mounted(other)
    expect(nfsrdma("umount", server.mnt), 0)


def test_stats_of_the_dead(server):
    server.mount_well()
    kill_mount(server.mnt)
    server.ended()
    expect(nfsrdma("stats", server.mnt), 32, "nobody answers")


def test_stats_refuse_strangers(server):
    server.mount_well()
    expect(as_nobody(BIN / "nfsrdma", "stats", server.mnt), 1, "refuses", "only root and the user")
    expect(nfsrdma("stats", server.mnt), 0)


def test_stats_bear_hostile_clients(server):
    server.mount_well("nconnect=1")
    (pid,) = servers_of(server.mnt)
    descriptors = Path(f"/proc/{pid}/fd")
    before = len(list(descriptors.iterdir()))
    for bytes_ in (b"", b"\n", b"zork\n", b"\xff\xfe\n", b"\0" * 64, b"s" * 1_000_000):
        with control_of(server.mnt) as control:
            try:
                control.sendall(bytes_)
                control.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # The process closed the connection first.
            assert b"error" in rest_of(control), bytes_[:20]
    # Some clients say nothing, some ask and never read: all are disconnected.
    silent = [control_of(server.mnt) for _ in range(40)]
    try:
        for control in silent[::2]:
            try:
                control.sendall(b"stats\n")
            except (BrokenPipeError, ConnectionResetError):
                pass
        until(lambda: nfsrdma("stats", server.mnt).returncode == 0, "an answer beside them")
        until(lambda: len(list(descriptors.iterdir())) <= before, "every conversation to end")
    finally:
        for control in silent:
            control.close()
    assert procedures(server)["FSINFO"]["calls"] >= 1
    (server.mnt / "a").write_text("1")
    expect(nfsrdma("umount", server.mnt), 0)
