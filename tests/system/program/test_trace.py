"""`nfsrdma trace` and `nfsrdma capture`: their output, how tshark reads it, and slow listeners."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
from collections import Counter


from program.support import *  # noqa: F403


class Listening:
    """Runs `nfsrdma trace` or `capture` on a mount in use, with output to a file. It ends here at the latest."""

    def __init__(self, server, command, *words):
        self.out = server.base / f"{command}.{len(list(server.base.iterdir()))}"
        self.err = self.out.with_suffix(".err")
        capture = command == "capture"
        words = [command, server.mnt, *([self.out] if capture else []), *words]
        with open(os.devnull if capture else self.out, "wb") as out, open(self.err, "wb") as err:
            self.child = subprocess.Popen([BIN / "nfsrdma", *map(str, words)], stdout=out, stderr=err)
        # Both report the existing connection before anything else.
        try:
            until(lambda: self.child.poll() is not None or self.begun(), f"{words} at work")
            assert self.child.poll() is None, self.err.read_text()
        except BaseException:
            self.__exit__()
            raise

    def begun(self):
        return self.out.exists() and self.out.stat().st_size > 0

    def wait(self, status=0):
        assert self.child.wait(LIMIT) == status, self.err.read_text()
        return self.err.read_text()

    def lines(self):
        return [json.loads(line) for line in self.out.read_text().splitlines()]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGCONT)
            self.child.kill()
        self.child.wait()


def tshark(file, *words):
    needs("tshark")
    result = run("tshark", "-2", "-n", "-r", file, "-o", "tcp.try_heuristic_first:TRUE", *words, limit=180)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def replies(file):
    """The RPC replies in a file that is still being written: its end may be cut."""
    needs("tshark")
    words = ("-2", "-n", "-r", file, "-o", "tcp.try_heuristic_first:TRUE", "-Y", "nfs && rpc.msgtyp == 1")
    return len(run("tshark", *words, limit=180).stdout.splitlines())


def work(server):
    """Makes a copy, a listing and an error. Returns how often each procedure was called."""
    before = procedures(server)
    payload = os.urandom(300_001)
    (server.mnt / "copy").write_bytes(payload)
    (server.export / "original").write_bytes(payload)
    assert (server.mnt / "original").read_bytes() == payload
    (server.mnt / "link").symlink_to("original")
    assert os.readlink(server.mnt / "link") == "original"
    for i in range(100):
        (server.export / f"entry-with-a-name-of-some-length-{i}").touch()
    (server.mnt / "dir").mkdir()
    assert len(os.listdir(server.mnt)) == 104
    try:
        (server.mnt / "missing").rmdir()
    except FileNotFoundError:
        pass
    after = procedures(server)
    made = {name: after[name]["calls"] - before[name]["calls"] for name in after}
    errors = sum(after[name]["errors"] - before[name]["errors"] for name in after)
    return Counter({name: calls for name, calls in made.items() if calls}), errors


def test_trace_tells_each_call(server):
    server.mount_well("rsize=64K,wsize=64K,nconnect=1")
    with contextlib.ExitStack() as stack:
        everything, wrong, some, text, quiet = (
            stack.enter_context(Listening(server, "trace", *words.split()))
            for words in ("--json", "--json --errors", "--json --procedure read,WRITE", "--sent", "--slow 1000000")
        )
        calls, errors = work(server)
        quiet.child.send_signal(signal.SIGINT)
        quiet.wait(-signal.SIGINT)
        assert quiet.err.read_text() == "" and quiet.out.read_text().count("\n") == 1, quiet.out.read_text()
        expect(nfsrdma("umount", server.mnt), 0)
        for listener in (everything, wrong, some, text):
            listener.wait()
    first, *lines, end = everything.lines()
    assert first["event"] == "connected" and first["peer"] == f"127.0.0.1:{server.port}", first
    assert end == {"event": "end"}, end
    # It does not matter whether the connection or the mount ends first.
    if lines[-1]["event"] == "disconnected":
        lines.pop()
    assert {line["event"] for line in lines} == {"call"}, lines
    told = Counter(line["procedure"] for line in lines)
    # Before its end, the mount may make more calls than were counted.
    assert calls <= told and sum(told.values()) <= sum(calls.values()) + 20, (calls, told)
    for line in lines:
        transport, reply = line["transport"], line["reply"]
        assert transport["connection"] == 1 and transport["transmission"] == 1, line
        assert 1 <= transport["credits_in_use"] <= transport["credits_granted"], line
        assert reply["round_trip_ns"] > 0, line
    reads = [line for line in lines if line["procedure"] == "READ"]
    assert sum(line["reply"]["written_bytes"] for line in reads) == 300_001
    assert {chunk["kind"] for line in reads for chunk in line["transport"]["chunks"]} == {"write"}
    writes = [line for line in lines if line["procedure"] == "WRITE"]
    assert sum(line["arguments"]["count"] for line in writes) == 300_001
    assert {line["arguments"]["offset"] for line in writes} == set(range(0, 300_001, 65536))
    names = {line["arguments"].get("name") for line in lines}
    assert {"copy", "original", "dir", "missing"} <= names, names
    wrong = [line for line in wrong.lines() if line["event"] == "call"]
    assert len(wrong) >= errors >= 1 and all(line["reply"]["error"] for line in wrong), wrong
    assert any(
        (line["arguments"].get("name"), line["reply"]["status"]) == ("missing", "NOENT") for line in wrong
    ), wrong
    some = Counter(line["procedure"] for line in some.lines() if line["event"] == "call")
    assert some == Counter(READ=told["READ"], WRITE=told["WRITE"]), some
    lines = text.out.read_text().splitlines()
    assert lines[0].endswith("iwarp") and lines[-1] == "-- the mount ended", (lines[0], lines[-1])
    # Each call has a line when it is sent, and a line when it has ended.
    about = [line for line in lines if ", credits " in line]
    assert len(about) == 2 * sum(told.values()), len(about)


def test_capture_is_dissected(server):
    server.mount_well("rsize=64K,wsize=64K,nconnect=1,noacl")
    with (
        Listening(server, "capture") as whole,
        Listening(server, "capture", "--snaplen", "256") as cut,
        Listening(server, "capture", "--packets", "20") as few,
    ):
        calls, _ = work(server)
        few.wait()
        # Perhaps not everything is in the file yet.
        until(lambda: replies(whole.out) >= sum(calls.values()), "all replies in the file")
        whole.child.send_signal(signal.SIGTERM)
        said = whole.wait()
        assert "events lost" in said and " 0 events lost" in said, said
        expect(nfsrdma("umount", server.mnt), 0)
        assert "the mount ended" in cut.wait()
    assert whole.out.stat().st_mode & 0o777 == 0o600
    malformed = tshark(whole.out, "-Y", "_ws.malformed")
    assert not malformed, malformed
    # The call of a WRITE is dissected where its data arrives, by RDMA Read.
    fields = ("-T", "fields", "-E", "occurrence=f", "-e", "nfs.procedure_v3")
    names = list(procedures_in_order())
    for kind in ("0", "1"):
        seen = Counter(
            names[int(line)]
            for line in tshark(whole.out, "-Y", f"nfs && rpc.msgtyp == {kind}", *fields)
        )
        assert seen == calls, (kind, seen, calls)
    opcodes = Counter(tshark(whole.out, "-Y", "iwarp_rdma", "-T", "fields", "-e", "iwarp_rdma.opcode"))
    assert len(opcodes) >= 5, f"no Sends, Reads and Writes in {opcodes}"
    # The set-up of the connection as it was on the wire: a request and a reply of revision 2 with IRD and ORD (RFC
    # 6581), both with the private data of RFC 8797, that ask for CRCs, which the packets have.
    shown = ("-T", "fields", "-e", "iwarp_mpa.rev", "-e", "iwarp_mpa.crc_flag", "-e", "iwarp_mpa.privatedata")
    setup = [line.split("\t") for line in tshark(whole.out, "-Y", "iwarp_mpa.req || iwarp_mpa.rep", *shown)]
    assert [(rev, crc) for rev, crc, _ in setup] == [("2", "1")] * 2, setup
    assert all(data.replace(":", "")[8:].startswith("f6ab0e18") for _, _, data in setup), setup
    checks = [line for line in tshark(whole.out, "-O", "iwarp_mpa", "-Y", "iwarp_mpa.fpdu") if "CRC check" in line]
    assert checks and all("Good CRC32" in line for line in checks), checks[:3]
    assert len(tshark(few.out)) == 20
    # The data of READ replies is cut off, and tshark misses it.
    malformed = [line for line in tshark(cut.out, "-Y", "_ws.malformed") if "READ Reply" not in line]
    assert not malformed, malformed
    assert cut.out.stat().st_size < whole.out.stat().st_size / 4


def procedures_in_order():
    return (
        "NULL GETATTR SETATTR LOOKUP ACCESS READLINK READ WRITE CREATE MKDIR SYMLINK MKNOD REMOVE RMDIR RENAME LINK "
        "READDIR READDIRPLUS FSSTAT FSINFO PATHCONF COMMIT"
    ).split()


def test_a_slow_listener_delays_nobody(server):
    server.mount_well("wsize=8K")
    with Listening(server, "trace", "--json") as trace, Listening(server, "capture") as capture:
        for listener in (trace, capture):
            listener.child.send_signal(signal.SIGSTOP)
        before = procedures(server)["WRITE"]["calls"]
        payload = os.urandom(1 << 20)
        with open(server.mnt / "large", "wb") as file:
            for _ in range(100):
                file.write(payload)
        written = procedures(server)["WRITE"]["calls"] - before
        assert (server.export / "large").stat().st_size == 100 << 20
        for listener in (trace, capture):
            listener.child.send_signal(signal.SIGCONT)
        until(lambda: any(line["event"] == "lost" for line in complete(trace)), "news of a loss")
        # The capture misses what it has not read a second after the unmount.
        names = (server.mnt / f"caught-up-{number}" for number in itertools.count())
        until(lambda: not next(names).exists() and b"caught-up-" in capture.out.read_bytes(), "the capture caught up")
        expect(nfsrdma("umount", server.mnt), 0)
        trace.wait()
        said = capture.wait()
    lines = trace.lines()
    lost = sum(line["events"] for line in lines if line["event"] == "lost")
    heard = sum(line.get("procedure") == "WRITE" for line in lines)
    assert lost > 0 and heard < written <= heard + lost, (heard, lost, written)
    assert lines[-1] == {"event": "end"}
    assert " 0 events lost" not in said, said


def complete(listener):
    """The lines written so far, without an incomplete one."""
    whole, _, _ = listener.out.read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def test_captures_that_are_refused(server):
    server.mount_well()
    result = nfsrdma("capture", server.mnt, server.mnt / "file")
    expect(result, 1, "is on the mount it is to record")
    assert not (server.mnt / "file").exists()
    expect(nfsrdma("trace", server.base), 1, "is not an nfsrdma mount")
    expect(nfsrdma("trace", server.mnt, "--procedure", "OPEN"), 1, "no procedure of NFS version 3")
    other = as_nobody(BIN / "nfsrdma", "trace", server.mnt)
    if "execute" not in other.stderr:
        expect(other, 1, "only root and the user who mounted it")


def test_a_capture_is_not_written_where_others_can_read_it(server):
    root()
    server.mount_well()
    theirs, own = server.base / "theirs", server.base / "own"
    theirs.write_bytes(b"theirs")
    os.chown(theirs, NOBODY, NOBODY)
    theirs.chmod(0o666)
    expect(nfsrdma("capture", server.mnt, theirs, "--packets", "1"), 1, "belongs to another user")
    assert theirs.read_bytes() == b"theirs"
    own.write_bytes(b"older" * 100_000)
    own.chmod(0o644)
    with running(BIN / "nfsrdma", "capture", server.mnt, own, "--packets", "1") as capture:
        until(lambda: os.listdir(server.mnt) or capture.poll() is not None, "a packet")
        capture.wait(LIMIT)
    assert capture.returncode == 0 and 0 < own.stat().st_size < 100_000
    assert own.stat().st_mode & 0o777 == 0o600


def test_a_call_refused_by_rpc_is_shown_in_words():
    with scripted() as (server, command):
        (server.export / "file").write_bytes(b"x")
        server.mount_well("noac")
        with Listening(server, "trace") as tracer:
            for refusal, words in {"GARBAGE_ARGS": "it could not read the arguments", "AUTH_BADCRED": "it did not accept"}.items():
                command(f"fail GETATTR={refusal}")
                assert run("stat", server.mnt / "file").returncode != 0
                command("clear")
                until(lambda said=f"refused: {words}": said in tracer.out.read_text(), f"{words} in the trace")
