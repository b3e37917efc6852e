"""Servers with habits of their own, which options of tests/responder imitate, and connections that end."""

import json
import os

import pytest

from program.support import *  # noqa: F403


def connections(server):
    """The counters of the only connection slot (mounted with nconnect=1)."""
    (link,) = json.loads(stats(server, "--json"))["connections"]
    return link["counters"]


def test_direct_writes_at_depth_keep_the_connection(server):
    needs("fio")
    server.mount_well("nconnect=1")
    result = run(
        "fio", "--name=w", f"--filename={server.mnt}/data", "--direct=1", "--rw=randwrite", "--bs=16k",
        "--iodepth=32", "--ioengine=libaio", "--size=64m", "--io_size=400m", "--norandommap=1",
        "--output-format=json",
        limit=1000,
    )  # fmt: skip
    expect(result, 0)
    (job,) = json.loads(result.stdout)["jobs"]
    assert job["error"] == 0 and job["write"]["total_ios"] >= 25_000, job["write"]["total_ios"]
    counters = connections(server)
    assert (counters["connects"], counters["retransmits"]) == (1, 0), counters


@pytest.mark.responder("--mpa-revision", "1")
def test_a_server_that_knows_mpa_revision_1_only(server):
    server.mount_well("nconnect=1")
    data = os.urandom(3 << 20)
    with open(server.mnt / "file", "wb") as file:
        file.write(data)
    assert (server.export / "file").read_bytes() == data == (server.mnt / "file").read_bytes()
    assert "MPA revision 1" in stats(server, "--json")


@pytest.mark.responder("--odd", "readlink-inline")
def test_symbolic_links_of_a_server_that_answers_inline(server):
    server.mount_well("timeo=20,nconnect=1")
    for length in (1, 100, 1000, 3000, 4000, 4095):
        target = ("d" * 99 + "/") * (length // 100) + "e" * (length % 100)
        os.symlink(target, server.export / f"l{length}")
        read = run("readlink", server.mnt / f"l{length}", limit=20)
        assert read.stdout == target + "\n", (length, read.returncode, read.stdout[:80])
    counters = connections(server)
    assert (counters["connects"], counters["violations"]) == (1, 0), counters


@pytest.mark.responder("--odd", "position-zero-limit")
def test_full_writes_to_a_server_that_reads_a_call_into_wtmax_bytes(server):
    server.mount_well()
    payload = os.urandom(8 << 20)
    with open(server.mnt / "f", "wb", buffering=0) as file:
        file.write(payload)
        os.fsync(file.fileno())
    assert (server.export / "f").read_bytes() == payload, "the server holds something else"
    options = json.loads(stats(server, "--json"))["options"].split(",")
    assert "wsize=1044480" in options, options


@pytest.mark.responder("--odd", "position-zero-limit")
def test_a_write_chunk_of_the_whole_wtmax_where_only_the_data_travel_so(server):
    server.mount_well("write_chunk=reduced")
    payload = os.urandom(8 << 20)
    (server.mnt / "f").write_bytes(payload)
    assert (server.export / "f").read_bytes() == payload
    assert "wsize=1048576" in json.loads(stats(server, "--json"))["options"].split(",")


@pytest.mark.responder("--odd", "unknown-types")
def test_an_object_of_a_type_nfs_does_not_define_spoils_no_directory(server):
    log = server.mount_logged("noac")
    (server.export / "file").write_bytes(b"x")
    os.mkfifo(server.export / "door")
    with os.scandir(server.mnt) as entries:
        names = {entry.name for entry in entries}
    assert {"file", "door"} <= names
    assert os.stat(server.mnt / "file").st_size == 1
    # Linux's client shows no type, which FUSE refuses. It can be looked at, moved and removed.
    assert os.lstat(server.mnt / "door").st_nlink == 1
    expect(run("ls", "-la", server.mnt), 0)
    os.rename(server.mnt / "door", server.mnt / "gate")
    os.unlink(server.mnt / "gate")
    assert sorted(os.listdir(server.export)) == sorted(names - {"door"})
    lines = [line for line in log.read_text().splitlines() if '"door"' in line and "does not define" in line]
    assert len(lines) == 1, log.read_text()


def test_a_status_nfs_does_not_define_is_an_input_output_error_and_a_line_of_the_log():
    with scripted() as (server, command):
        log = server.mount_logged("noac")
        (server.export / "file").write_bytes(b"x")
        command("fail GETATTR=10099")
        for _ in range(3):
            assert "Input/output error" in run("stat", server.mnt / "file").stderr
        command("clear")
        expect(run("stat", server.mnt / "file"), 0)
        text = log.read_text()
    lines = [line for line in text.splitlines() if "makes no sense" in line]
    assert len(lines) == 1 and "GETATTR" in lines[0] and "10099" in lines[0], text


def test_a_call_refused_by_rpc_is_a_line_of_the_log_that_says_why_and_whose_fault_it_is():
    refusals = {
        "GARBAGE_ARGS": ("Input/output error", "could not read the arguments", "nfsrdma capture"),
        "SYSTEM_ERR": ("Input/output error", "an error of its own", "a fault of the server"),
        "PROC_UNAVAIL": ("Input/output error", "does not have the procedure", "switched off"),
        "PROG_MISMATCH": ("Input/output error", "has versions 4 to 4 of the program", "switched off"),
        "RPC_MISMATCH": ("Input/output error", "speaks RPC versions 3 to 3", "a fault of the server"),
        "AUTH_TOOWEAK": ("Permission denied", "did not accept the credential", "sec=sys"),
        "AUTH_BADCRED": ("Permission denied", "did not accept the credential", "its configuration"),
    }
    with scripted() as (server, command):
        (server.export / "file").write_bytes(b"x")
        for refusal, (error, *words) in refusals.items():
            log = server.base / refusal
            expect(server.mount("noac", "--log", log), 0)
            command(f"fail GETATTR={refusal}")
            for _ in range(3):
                assert error in run("stat", server.mnt / "file").stderr
            command("clear")
            expect(run("stat", server.mnt / "file"), 0)
            expect(nfsrdma("umount", server.mnt), 0)
            lines = [line for line in log.read_text().splitlines() if "refused GETATTR: it" in line]
            assert len(lines) == 1 and all(word in lines[0] for word in words), (refusal, log.read_text())

