"""Commands that show all mounts: `stats` without a mount, `top`, traces with paths, metrics of a host, the log."""

import fcntl
import fnmatch
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pytest

from program.support import *  # noqa: F403
from program.support import BIN, LIMIT, ROOT

PACKAGING = ROOT / "packaging"


def listed():
    """All mounts in the output of `stats --json`, by directory."""
    result = nfsrdma("stats", "--json")
    expect(result, 0)
    return {entry["directory"]: entry for entry in json.loads(result.stdout)}


def test_stats_list_all_mounts():
    with Server() as first, Server() as second:
        first.mount_well("rsize=64K")
        second.mount_well()
        (first.mnt / "file").write_bytes(b"x" * 2_000_000)
        titles = ["TARGET", "SOURCE", "STATE", "AGE", "CALLS", "READ", "WRITTEN", "PID"]
        table, long = nfsrdma("stats"), nfsrdma("stats", "-v")
        expect(table, 0)
        # Mounts of others may be there, and have a note.
        assert table.stdout.splitlines()[0].split()[:9] in (titles, [*titles, "NOTE"]), table.stdout
        assert "rsize" not in table.stdout, table.stdout
        for server in (first, second):
            (line,) = (line for line in table.stdout.splitlines() if line.startswith(f"{server.mnt} "))
            words = re.split(r"  +", line)
            assert words[:3] == [str(server.mnt), server.spec, "up"] and words[-1] == str(servers_of(server.mnt)[0]), line
            assert int(words[4]) > 0 and (words[6] == "2.0 MB") == (server is first), line
        assert long.stdout.splitlines()[0].split()[:9] == [*titles, "OPTIONS"], long.stdout
        assert "rsize=65536" in next(line for line in long.stdout.splitlines() if line.startswith(f"{first.mnt} "))
        entry = listed()[str(first.mnt)]
        assert (entry["state"], entry["stats"]["source"]) == ("up", first.spec), entry
        both = nfsrdma("stats", "--mountstats").stdout
        assert all(f"mounted on {server.mnt} with" in both for server in (first, second)), both
        # A mount whose process was killed is listed, and does not hide others.
        kill_mount(second.mnt)
        second.ended()
        entries = listed()
        assert entries[str(second.mnt)]["state"] == "silent" and entries[str(first.mnt)]["state"] == "up", entries
        (line,) = (line for line in nfsrdma("stats").stdout.splitlines() if line.startswith(f"{second.mnt} "))
        assert re.search(f" {second.spec} +silent .*  no answer: its process has ended", line), line


class Busy:
    """Reads and writes on a mount until the block is left."""

    def __init__(self, folder):
        self.folder, self.stop = folder, threading.Event()
        self.thread = threading.Thread(target=self.work)

    def work(self):
        file = self.folder / "busy"
        while not self.stop.is_set():
            file.write_bytes(b"x" * (1 << 20))
            with open(file, "rb") as reader:
                os.posix_fadvise(reader.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                reader.read()
            os.stat(file)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()


def blocks(*words):
    """The output of a command that goes on until the block is left, split at empty lines."""
    with subprocess.Popen([BIN / "nfsrdma", *map(str, words)], stdout=subprocess.PIPE, text=True) as child:
        block = []
        try:
            for line in child.stdout:
                if line.strip():
                    block.append(line.rstrip("\n"))
                elif block:
                    yield block
                    block = []
        finally:
            child.kill()


def test_stats_watch_has_rates():
    with Server() as server:
        server.mount_well()
        with Busy(server.mnt):
            for block in blocks("stats", server.mnt, "--watch", "1"):
                rates = re.match(r"in the last [\d.]+ s: read .*/s, write ([\d.]+) [kM]?B/s, ([\d.]+) calls/s", block[0])
                if rates and float(rates[1]) > 0 and float(rates[2]) > 0:
                    break
            for block in blocks("stats", server.mnt, "--watch", "1"):
                titles = [line for line in block if line.startswith("procedure ") and "calls/s" in line]
                if titles and any(line.startswith("WRITE ") for line in block):
                    assert "sent/s" in titles[0] and "received/s" in titles[0], titles
                    break
            # Of all mounts, a line each.
            for block in blocks("stats", "--watch", "1"):
                if block[1:] and block[1].startswith("MOUNT ") and row(block, server.mnt)[2] != "-":
                    break


def row(block, mount):
    """The words of a mount's line; its name may be cut."""
    (words,) = (line.split() for line in block if line.split()[0][-8:] == str(mount)[-8:])
    return words


def test_top_is_plain_text_elsewhere():
    with Server() as server:
        # Names that fit into a line, and that differ at their ends.
        at = server.base / "a-mount"
        at.mkdir()
        expect(server.mount(at=at), 0)
        with Busy(at):
            result = nfsrdma("top", "-n", "2", "-d", "1", at)
        expect(result, 0)
        assert "\x1b" not in result.stdout
        two = [block.splitlines() for block in result.stdout.strip().split("\n\n")]
        assert len(two) == 2, result.stdout
        for block in two:
            assert re.match(r"\d\d:\d\d:\d\d UTC, 1 mount$", block[0]), block
            assert block[1].split() == ["MOUNT", "SERVER", "rdMB/s", "wrMB/s", "ops/s", "p50ms", "p99ms", "credits", "dirty", "hits"]
        assert any(float(row(block, at)[4]) > 0 for block in two), two
        expect(nfsrdma("top", server.base, "-n", "1"), 1, "is not an nfsrdma mount")
        expect(nfsrdma("umount", at), 0)


class Screen:
    """A program in a terminal, and what it shows. It implements as much of a terminal as ratatui uses: moving to a cell,
    clearing, and the alternate screen."""

    SEQUENCE = re.compile(r"\x1b\[([?>=]?[\d;]*)([A-Za-z])|\x1b[78=>]|\x1b\].*?\x07|[\r\n]|([^\x1b\r\n])", re.S)

    def __init__(self, *words, columns=80, lines=24):
        self.size, self.x, self.y, self.raw, self.alternate = (columns, lines), 0, 0, "", False
        self.clear()
        self.master, self.slave = self.descriptors = list(pty.openpty())
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.before = termios.tcgetattr(self.slave)
        self.child = subprocess.Popen(
            [BIN / "nfsrdma", *map(str, words)], stdin=self.slave, stdout=self.slave, stderr=self.slave,
            env={**os.environ, "TERM": "xterm-256color"}, start_new_session=True,
        )  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.kill()
        self.child.wait()
        self.hang_up()

    def hang_up(self):
        """Closes the terminal."""
        while self.descriptors:
            os.close(self.descriptors.pop())

    def clear(self):
        self.cells = [[" "] * self.size[0] for _ in range(self.size[1])]

    def read(self, pause=0.2):
        """Reads the output that comes within the pause; there may be more."""
        until_then = time.monotonic() + pause
        while (left := until_then - time.monotonic()) > 0 and select.select([self.master], [], [], left)[0]:
            try:
                self.raw += os.read(self.master, 65536).decode(errors="replace")
            except OSError:
                return
            # A sequence may not be complete yet.
            end = re.search(r"(\x1b(\[[?>=]?[\d;]*)?)?$", self.raw).start()
            for numbers, verb, text in self.SEQUENCE.findall(self.raw[:end]):
                self.obey(numbers, verb, text)
            self.raw = self.raw[end:]

    def obey(self, numbers, verb, text):
        if verb == "H":
            self.y, self.x = (max(int(number or 1), 1) - 1 for number in f"{numbers};1".split(";")[:2])
        elif verb == "J" or numbers == "?1049":
            self.alternate = verb == "h" or verb == "J" and self.alternate
            self.clear()
        elif text and self.y < self.size[1]:
            if self.x < self.size[0]:
                self.cells[self.y][self.x] = text
            self.x += 1

    def text(self):
        self.read()
        return "\n".join("".join(line).rstrip() for line in self.cells)

    def until(self, *parts):
        def shown():
            assert self.child.poll() is None, f"it ended: {self.text()}"
            text = self.text()
            return all(part in text for part in parts)

        until(shown, f"{parts} on the screen")
        return self.text()

    def press(self, keys):
        os.write(self.master, keys.encode())

    def end(self):
        """The exit status, after a check that the terminal was restored."""
        status = self.child.wait(LIMIT)
        self.read()
        assert not self.alternate, "the alternate screen was not left"
        assert termios.tcgetattr(self.slave) == self.before, "the terminal is not as it was"
        return status


def documented_screen():
    """The lines of the screen in docs/OBSERVING.md."""
    text = (ROOT / "docs/OBSERVING.md").read_text()
    return re.search(r"^```\n(nfsrdma top  .*?)\n```$", text, re.M | re.S)[1].split("\n")


def test_top_draws_a_screen():
    with Server() as server, Server() as other:
        for each in (server, other):
            each.mount_well()
        with Busy(server.mnt), Screen("top", "-d", "1", server.mnt, other.mnt) as screen:
            shown = screen.until("2 mounts", "last minute", "ops/s", "q quit")
            lines = shown.splitlines()
            assert len(lines) <= 24 and max(map(len, lines)) <= 80, shown
            titles = lines[1].split()
            assert titles[:5] == ["MOUNT", "SERVER", "rdMB/s", "wrMB/s", "ops/s"], shown
            # The screen in the documentation has the same frame.
            documented = documented_screen()
            assert len(documented) == 24 and max(map(len, documented)) <= 80, documented
            # Longer names leave less room for columns.
            there = [documented[1].split()[: len(titles)], documented[-1]]
            assert [titles, lines[-1]] == there, f"docs/OBSERVING.md does not show {shown}"
            for title in ("last minute: ", "read MB/s", "write MB/s", "ops/s", "p99"):
                at = [next(i for i, line in enumerate(each) if line.startswith(title)) for each in (lines, documented)]
                assert at[0] == at[1], f"docs/OBSERVING.md has {title!r} elsewhere: {shown}"
            screen.until("█")
            screen.press("p")
            shown = screen.until("procedures: ", "PROCEDURE", "WRITE")
            screen.press("u")
            screen.until("users: ", "PROCESS", "python", str(os.getpid()))
            screen.press("c")
            shown = screen.until("connections: ", f"127.0.0.1:{server.port}")
            screen.press("j")
            screen.until(f"127.0.0.1:{other.port}")
            # One mount ends, and one is mounted again.
            expect(nfsrdma("umount", other.mnt), 0)
            screen.until("1 mount")
            other.mount_well()
            screen.until("2 mounts")
            screen.press("q")
            assert screen.end() == 0
    with Server() as server:
        server.mount_well()
        with Screen("top", "-d", "1", server.mnt, columns=40, lines=10) as screen:
            shown = screen.until("1 mount", "rdMB/s", "q quit")
            assert max(map(len, shown.splitlines())) <= 40, shown
            screen.press("\x03")
            assert screen.end() == 0


def test_top_gives_the_terminal_back():
    with Place():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            with Screen("top", "/proc/no-mount") as screen:
                assert screen.child.wait(LIMIT) == 1, "a mistake is told before the terminal is taken"
            with Screen("top") as screen:
                screen.until("q quit")
                assert screen.alternate and termios.tcgetattr(screen.slave) != screen.before
                screen.child.send_signal(number)
                assert screen.end() == -number
        with Screen("top", "-n", "1", "-d", "1") as screen:
            assert screen.end() == 0


def test_top_ends_with_its_terminal():
    """Also where SIGHUP does not come, as with a program under nohup(1)."""
    with Place(), Screen("top") as screen:
        screen.until("q quit")
        screen.hang_up()
        screen.child.wait(LIMIT)  # 0, or the failure to draw on the terminal.


def test_top_is_not_frozen_by_a_hung_mount():
    with Server() as server, Server() as hung:
        server.mount_well()
        hung.mount_well()
        # Without `top`, which has its name, too.
        pids = servers_of(hung.mnt)
        with Busy(server.mnt), Screen("top", "-d", "1", server.mnt, hung.mnt) as screen:
            screen.until("2 mounts", "█")
            with asleep(*pids):
                screen.until("no answer of its process for")
                # The other mount is still updated.
                seen = {clock_of(screen.text())}
                until(lambda: seen.add(clock_of(screen.text())) or len(seen) > 2, "another second on the screen")
                screen.press("q")
                assert screen.end() == 0
                result = nfsrdma("top", "-b", "-n", "2", "-d", "1", server.mnt, hung.mnt, limit=LIMIT)
                expect(result, 0)
                assert "hung" not in result.stdout and result.stdout.count("2 mounts") == 2, result.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="acting as another user needs root")
def test_top_shows_which_users_and_processes_load_the_server():
    reads = "import os, sys\nwhile True: os.stat(sys.argv[1]), os.path.exists(sys.argv[1] + os.urandom(4).hex())"
    with Server() as server:
        (server.export / "f").write_bytes(b"x")
        expect(server.mount("noac"), 0)
        words = [sys.executable, "-c", reads, server.mnt / "f"]
        with running(*words, user=65534, group=65534, extra_groups=[]) as child:
            for block in blocks("top", "--batch", "--users", "-d", "1", server.mnt):
                at = next((n for n, line in enumerate(block) if line.startswith(f"users of {server.spec} on ")), None)
                rows = [line.split() for line in block[at + 2 :]] if at else []
                if rows and rows[0][1:3] == ["nobody", str(child.pid)] and float(rows[0][3]) > 0:
                    break
            assert block[at + 1].split() == ["PROCESS", "USER", "pid", "calls/s", "recvMB/s", "sentMB/s", "mean", "ms"], block
            assert rows[0][0].startswith("python"), rows
            # Nobody listens any longer, and no calls are reported.
            assert not any(line.startswith("users of") for line in nfsrdma("top", "-n", "1", "-d", "1", server.mnt).stdout.splitlines())


def clock_of(screen):
    return re.search(r"\d\d:\d\d:\d\d UTC", screen)[0]


def test_background_mounts_are_listed_and_cancelled():
    with Server() as server:
        server.stop()
        result = server.mount("bg")
        expect(result, 0, "in the background")
        entry = until_listed(server, "pending")
        assert entry["pending"]["background"] and "port" in entry["pending"]["options"], entry
        line = next(line for line in nfsrdma("stats").stdout.splitlines() if str(server.mnt) in line)
        assert line.startswith(f"{server.mnt}  {server.spec}  pending ") and re.search("  being tried.*, [0-9]+ attempt", line), line
        assert str(server.mnt)[-10:] in nfsrdma("top", "-n", "1", "-d", "1").stdout
        if shutil.which("setpriv") and os.geteuid() == 0:
            other = as_nobody(BIN / "nfsrdma", "umount", server.mnt)
            assert other.returncode != 0 and servers_of(server.mnt), "anybody may cancel it"
        result = nfsrdma("umount", server.mnt)
        expect(result, 0, f"no longer tries to mount {server.spec} on {server.mnt}")
        server.ended()
        assert str(server.mnt) not in listed()
        expect(nfsrdma("umount", server.mnt), 1, "is not an nfsrdma mount")
        # An attempt that succeeds becomes an ordinary mount.
        expect(server.mount("bg"), 0)
        until_listed(server, "pending")
        server.start()
        until_listed(server, "up")
        unmount(server.mnt)


def test_a_background_mount_on_a_name_in_latin_1_is_cancelled():
    with Server() as server:
        at = os.fsencode(server.base) + b"/caf\xe9"
        os.mkdir(at)
        server.stop()
        expect(server.mount("bg", at=os.fsdecode(at)), 0, "in the background")

        def pending():
            return [entry for name, entry in listed().items() if str(server.base) in name]

        until(lambda: pending(), "it in the list")
        result = subprocess.run([BIN / "nfsrdma", "umount", at], capture_output=True, timeout=LIMIT)
        assert (result.returncode, b"no longer tries" in result.stderr) == (0, True), result
        server.ended()
        assert not pending()


def test_what_is_tried_is_listed_once():
    """With the directories of users in an order in which root's is not first."""
    with Server() as server:
        server.stop()
        expect(server.mount("bg"), 0)
        until_listed(server, "pending")
        script = (
            'mount -t tmpfs none /run/user && mkdir /run/user/0 /run/user/4242 && ls -U /run/user >&2 && "$0" stats --json'
        )
        result = run(*alone("sh", "-c", script, BIN / "nfsrdma"))
        if not result.stderr.startswith("4242\n"):
            pytest.skip("they come in another order")
        entries = [entry for entry in json.loads(result.stdout) if entry["directory"] == str(server.mnt)]
        assert len(entries) == 1, entries
        expect(nfsrdma("umount", server.mnt), 0)


def until_listed(server, state):
    until(lambda: listed().get(str(server.mnt), {}).get("state") == state, f"{state} in the list")
    return listed()[str(server.mnt)]


def test_trace_names_paths_and_callers():
    with Server() as server:
        (server.export / "dir").mkdir(mode=0o777)
        (server.export / "dir").chmod(0o777)
        (server.export / "dir/other").write_bytes(b"x" * 100_000)
        server.mount_well("rsize=64K")
        trace = server.base / "trace"
        with open(trace, "wb") as out:
            with running(BIN / "nfsrdma", "trace", "--json", server.mnt, stdout=out) as child:
                until(lambda: trace.stat().st_size > 0, "the trace at work")
                script = f"echo 12345 > {server.mnt}/dir/old; mv {server.mnt}/dir/old {server.mnt}/dir/new"
                writer = subprocess.Popen(["sh", "-c", f"{script}; echo $$"], stdout=subprocess.PIPE, text=True)
                writer.communicate(timeout=LIMIT)
                with open(server.mnt / "dir/other", "rb") as file:
                    file.read()
                (server.mnt / "dir/new").chmod(0o600)

                def calls():
                    whole, _, _ = trace.read_text().rpartition("\n")
                    lines = [json.loads(line) for line in whole.splitlines()]
                    return [line for line in lines if line["event"] == "call"]

                until(lambda: any(c["procedure"] == "SETATTR" for c in calls()), "the last call in the trace")
                made = calls()
        by = {name: [call for call in made if call["procedure"] == name] for name in ("CREATE", "READ", "SETATTR")}
        (create,) = by["CREATE"]
        assert (create["arguments"]["path"], create["arguments"]["name"]) == ("/dir", "old"), create
        assert (create["pid"], create["uid"]) == (writer.pid, os.geteuid()), (create, writer.pid)
        assert {call["arguments"].get("path") for call in by["READ"]} == {"/dir/other"}, by["READ"]
        assert os.getpid() in {call.get("pid") for call in by["READ"]}, by["READ"]
        # The current name, and not the earlier one.
        assert by["SETATTR"][-1]["arguments"].get("path") == "/dir/new", by["SETATTR"]
        expect(nfsrdma("umount", server.mnt), 0)


def fetch(port):
    with socket.create_connection(("127.0.0.1", port), LIMIT) as http:
        http.settimeout(LIMIT)
        http.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        head, _, body = rest_of(http).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK"), head
    return body.decode()


class HostMetrics:
    """`nfsrdma metrics` at a free port."""

    def __enter__(self):
        self.child = subprocess.Popen(
            [BIN / "nfsrdma", "metrics", "--listen", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True
        )
        line = self.child.stderr.readline()
        self.port = int(re.search(r"http://127\.0\.0\.1:(\d+)/metrics", line)[1])
        return self

    def __exit__(self, *_):
        self.child.send_signal(signal.SIGTERM)
        try:
            assert self.child.wait(LIMIT) == 0
        finally:
            self.child.kill()
            self.child.wait()
            self.child.stderr.close()

    def sample(self, name, **labels):
        """The values of a metric with these labels."""
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        lines = [line for line in fetch(self.port).splitlines() if line.startswith(f"{name}{{")]
        return [float(line.rsplit(" ", 1)[1]) for line in lines if all(label in line for label in wanted)]


def test_metrics_of_all_mounts():
    with Server() as first, Server() as second, HostMetrics() as metrics:
        for server in (first, second):
            server.mount_well()
            (server.mnt / "a").write_text("1")
            try:
                (server.mnt / "missing").stat()
            except FileNotFoundError:
                pass
            mount = str(server.mnt)
            until(lambda: metrics.sample("nfsrdma_mount_up", mount=mount) == [1], "the mount in the metrics")
            assert metrics.sample("nfsrdma_procedure_calls_total", mount=mount, procedure="CREATE") == [1]
            (missing,) = metrics.sample(
                "nfsrdma_procedure_errors_by_status_total", mount=mount, procedure="LOOKUP", status="NOENT"
            )
            assert missing >= 1
            assert metrics.sample("nfsrdma_process_cpu_seconds_total", mount=mount)[0] > 0
            assert metrics.sample("nfsrdma_process_resident_memory_bytes", mount=mount)[0] > 1 << 20
            (cache,) = metrics.sample("nfsrdma_fs_cache_limit_bytes", mount=mount)
            (dirty,) = metrics.sample("nfsrdma_fs_dirty_limit_bytes", mount=mount)
            assert cache > dirty > 0
            buckets = metrics.sample("nfsrdma_procedure_duration_seconds_bucket", mount=mount, procedure="CREATE")
            assert len(buckets) == 13 and buckets == sorted(buckets) and buckets[-1] == 1, buckets
            assert not metrics.sample("nfsrdma_procedure_duration_seconds_bucket", mount=mount, procedure="MKNOD")
        with asleep(*servers_of(second.mnt)):
            up = lambda server: metrics.sample("nfsrdma_mount_up", mount=str(server.mnt))
            until(lambda: up(second) == [0], "that a mount does not answer")
            assert up(first) == [1]
        for server in (first, second):
            expect(nfsrdma("umount", server.mnt), 0)


def promtool(*words, **more):
    needs("promtool")
    return run("promtool", *words, **more)


def test_metrics_pass_promtool():
    with Server() as server:
        server.mount_well()
        (server.mnt / "a").write_text("1")
        for words in ((server.mnt,), ()):
            text = nfsrdma("stats", *words, "--prometheus").stdout
            assert text.count("\nnfsrdma_procedure_duration_seconds_count{") >= 1, text
            result = promtool("check", "metrics", input=text)
            assert result.returncode == 0, result.stdout + result.stderr


def test_alert_rules_pass_promtool():
    rules = PACKAGING / "prometheus/nfsrdma.rules.yml"
    expect(promtool("check", "rules", rules), 0, "SUCCESS")
    result = promtool("test", "rules", PACKAGING / "prometheus/nfsrdma.rules.test.yml")
    expect(result, 0, "SUCCESS")


def test_dashboard_and_rules_ask_for_metrics_that_exist():
    with Server() as server:
        server.mount_well()
        (server.mnt / "a").write_text("1")
        server.stop()
        offered = set(re.findall(r"^# TYPE (\w+) ", nfsrdma("stats", "--prometheus").stdout, re.M))
        server.start()
    # The table of metrics lists all of them.
    table = re.findall(r"^\| (`nfsrdma_.*?) \|", (ROOT / "docs/OBSERVING.md").read_text(), re.M)
    documented = [name for cell in table for name in re.findall(r"`(\w+\*?\w*)`", cell)]
    missing = [name for name in offered if not any(fnmatch.fnmatch(name, pattern) for pattern in documented)]
    assert not missing, f"not in docs/OBSERVING.md: {missing}"
    # These exist only while something is wrong.
    offered |= {"nfsrdma_mount_pending_seconds", "nfsrdma_procedure_errors_by_status_total"}
    dashboard = json.loads((PACKAGING / "grafana/nfsrdma.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(asked) >= 10
    asked.append((PACKAGING / "prometheus/nfsrdma.rules.yml").read_text())
    for expression in asked:
        for name in re.findall(r"\bnfsrdma_[a-z_0-9]+", expression):
            family = re.sub(r"_(bucket|sum|count)$", "", name)
            assert name in offered or family in offered, f"{name} of {expression!r} is no metric"


def test_dashboard_and_rules_keep_hosts_apart():
    """Mounts of many hosts have the same directory: rules that group by mount also group by instance, and show it."""
    dashboard = json.loads((PACKAGING / "grafana/nfsrdma.json").read_text())
    targets = [target for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(targets) >= 10
    for target in targets:
        assert target["legendFormat"].startswith("{{instance}} {{mount}}"), target["legendFormat"]
    rules = (PACKAGING / "prometheus/nfsrdma.rules.yml").read_text()
    expressions = [target["expr"] for target in targets]
    expressions += [" ".join(text.split()) for text in re.findall(r"^ +expr:(.*(?:\n {10,}\S.*)*)", rules, re.M)]
    sums = 0
    for expression in expressions:
        for labels in re.findall(r"\b(?:sum|max|min|avg|count)\b(?: by \(([^)]*)\))?", expression):
            sums += 1
            assert {"instance", "mount"} <= set(labels.split(", ")), f"{expression!r} mixes up hosts"
    assert sums >= 10, sums


def test_the_unit_of_metrics_takes_its_address_from_where_the_guide_says():
    """As shipped, it is for this host only, at the port that the example for Prometheus has."""
    unit = (PACKAGING / "prometheus/nfsrdma-metrics.service").read_text()
    name, address = re.search(r"^Environment=(\w+)=(\S+)$", unit, re.M).groups()
    (start,) = re.findall(r"^ExecStart=(.*)$", unit, re.M)
    assert start.endswith(f" --listen ${{{name}}}"), start
    host, port = address.split(":")
    assert host == "127.0.0.1", address
    scrape = (PACKAGING / "prometheus/scrape.yml").read_text()
    targets = re.findall(r'"[\w.]+:(\d+)"', scrape)
    assert targets and set(targets) == {port}, targets
    assert name in scrape, scrape
    assert re.search(rf"^    Environment={name}=[\d.]+:{port}$", (ROOT / "docs/OBSERVING.md").read_text(), re.M)


def test_log_lines_name_the_mount():
    with Server() as server:
        log = server.mount_logged("timeo=1,retrans=1")
        server.pause()
        with running("stat", server.mnt / "missing", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as stat:
            until(lambda: "not responding" in log.read_text(), "news of a server that does not respond")
            server.child.send_signal(signal.SIGCONT)
            stat.wait(LIMIT)
        until(lambda: " OK" in log.read_text(), "news of a server that responds again")
        expect(nfsrdma("umount", server.mnt), 0)
        text = log.read_text()
        stamp = r"\d{4}-\d\d-\d\dT[\d:.]+Z"
        for line in text.splitlines():
            name = re.escape(f"{server.spec} on {server.mnt}: ")
            assert re.match(rf"{stamp} (ERROR|WARN |INFO ) {name}", line), line
            assert "nfsrdma_" not in line and "::" not in line, line
        assert f"{server.mnt}: server 127.0.0.1 not responding, still trying\n" in text, text
        assert f"{server.mnt}: server 127.0.0.1 OK\n" in text, text


def test_the_success_line_fits_a_terminal():
    with Server() as server:
        at = Path(f"/tmp/nfsrdma-{os.getpid()}")
        at.mkdir()
        try:
            result = server.mount(at=at)
            expect(result, 0)
            head = f"{server.spec} mounted on {at}: "
            (line,) = result.stdout.splitlines()
            assert line.startswith(head + "iwarp") and len(line) <= max(80, len(head) + 5), line
            expect(nfsrdma("umount", at), 0)
            result = server.mount("", "-v", at=at)
            expect(result, 0, "credits ", "options: ")
            expect(nfsrdma("umount", at), 0)
        finally:
            subprocess.run(["umount", "-l", at], check=False, stderr=subprocess.DEVNULL)
            kill_mount(at)
            at.rmdir()
