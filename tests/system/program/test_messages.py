"""The program's messages: every error is in docs/TROUBLESHOOTING.md, names what failed, and does no harm if it
cannot be written."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

from program import support
from program.support import *  # noqa: F403
from program.support import BIN
from program.wire import Relay

SOURCES = ["fuse/cli/src", "client/nfs3/src/mount", "client/rpcrdma/src/rpc/plain.rs", "client/nfs3/src/options.rs"]
GUIDE = ROOT / "docs/TROUBLESHOOTING.md"
# Code that makes an error, or its text.
MAKERS = re.compile(
    r"(?:\busage|\bnot_ours|Failure::new|MountError::new|\bfailed|\brefused|\brefusal|\bdismiss|#\[error|\bmessage = format!|"
    r"\bmessage: format!|\bnotice|\.cannot|\bwhy = )\("
)
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"', re.S)
# Faults of this program: the user can only report them.
INTERNAL = ["cannot write JSON", "the mount has no description", "the connecting task died"]


def code_of(path):
    """The code of a file without tests and comments."""
    text = path.read_text().split("#[cfg(test)]")[0]
    return re.sub(r"^\s*//.*$", "", text, flags=re.M)


def arguments(text, begin):
    """The text from an opening parenthesis to its end."""
    depth, at = 0, begin
    while at < len(text):
        if literal := STRING.match(text, at):
            at = literal.end()
            continue
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            break
        at += 1
    return text[begin:at]


def messages():
    """(file, text) of each message, with `*` for inserted values."""
    found = set()
    for source in SOURCES:
        root = ROOT / source
        for path in sorted(root.rglob("*.rs")) if root.is_dir() else [root]:
            # The reason why an option is refused always follows "cannot be honoured"; CONFIGURATION.md has the reasons.
            if path.name in ("tests.rs", "table.rs") or path.parent.name == "table":
                continue
            text = code_of(path)
            places = [arguments(text, match.end() - 1) for match in MAKERS.finditer(text)]
            for place in places:
                for literal in STRING.findall(place):
                    literal = re.sub(r"\\\n\s*", "", literal).replace('\\"', '"')
                    literal = re.sub(r"\{[^}]*\}", "*", literal)
                    # Literals of one or two words are parts of others: names, protocols.
                    if len(re.findall(r"[A-Za-z]{2,}", literal)) >= 3:
                        found.add((str(path.relative_to(ROOT)), literal))
    assert len(found) > 60, f"only {len(found)} messages: they are made differently now"
    return sorted(found)


def rows():
    """The messages of the guide, split at '...'."""
    guide = []
    for line in GUIDE.read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 3 and cells[0] not in ("Message", "Symptom") and not cells[0].startswith("---"):
            assert cells[2], f"no remedy: {line}"
            # Messages with the same cause share a row. A comma may also be part of a message.
            for one in [cells[0], *cells[0].split(", ")]:
                parts = [part.strip(" :,") for part in one.split("...")]
                guide.append([part.lower() for part in parts if part])
    assert len(guide) > 40, "the guide's tables are written differently now"
    return guide


def covered(message, guide):
    message = message.lower()

    def in_order(parts):
        at = 0
        for part in parts:
            at = message.find(part, at)
            if at < 0:
                return False
            at += len(part)
        return True

    # A message may be the end of another one: the row has both.
    end = re.split("[*;:]", message)[0].strip()
    ends = len(end.split()) >= 2 and any(end in part for parts in guide for part in parts)
    return ends or any(parts and in_order(parts) for parts in guide)


def test_every_error_has_a_remedy():
    guide = rows()
    missing = [
        f"{path}: {message}"
        for path, message in messages()
        if not covered(message, guide) and not any(word in message for word in INTERNAL)
    ]
    assert not missing, "not in docs/TROUBLESHOOTING.md:\n  " + "\n  ".join(missing)


# --- what the program says, and that nothing depends on whether it can ---------------------------


@contextlib.contextmanager
def two_addresses(server):
    """Runs commands for which the name `two` has two addresses: 127.0.0.1, where nobody listens, and 127.0.0.2,
    which is the server's."""
    hosts = server.base / "hosts"
    hosts.write_text("127.0.0.1 two\n127.0.0.2 two\n")

    def run_there(*words, **more):
        support.note_options(words)
        return run_over(hosts, "/etc/hosts", BIN / "nfsrdma", *words, **more)

    with Relay(server.port, host="127.0.0.2") as nfs, Relay(server.mountport, host="127.0.0.2") as mountd:
        yield run_there, f"mountport={mountd.port},mountproto=tcp,retry=0", nfs.port, mountd.port


def test_every_address_of_a_name_is_tried():
    with Server() as server, two_addresses(server) as (there, own, port, mountport):
        spec = f"two:{server.export}"
        result = there("ping", spec, "-o", f"{own},port={port}")
        expect(result, 0, "127.0.0.1, 127.0.0.2", "failed     127.0.0.1: ", "trying the next address", "null ")
        expect(there("exports", "two", "-o", own), 0, f"{server.export} ")
        # The named step is that of the address that got furthest.
        closed = free_port()
        for words in (("mount", spec, server.mnt), ("ping", spec)):
            expect(
                there(*words, "-o", f"{own},port={closed}"), 32, "127.0.0.1 of two failed, too",
                f"cannot connect to two (RDMA, 127.0.0.2:{closed}): connection refused",
            )  # fmt: skip
        for words in (("mount", "two:/nothing", server.mnt), ("ping", "two:/nothing")):
            expect(
                there(*words, "-o", f"{own},port={port}"), 32, "127.0.0.1 of two failed, too",
                "two (127.0.0.2) does not export /nothing to this machine: 'nfsrdma exports two' lists",
            )  # fmt: skip
        # Also the addresses of mounthost.
        own = f"{own},port={server.port},mounthost=two"
        expect(there("ping", f"127.0.0.1:{server.export}", "-o", own), 0, "null ")
        own = f"mountport={free_port()},mountproto=tcp"
        expect(there("exports", "two", "-o", own), 32, "two (127.0.0.1) (TCP port", "127.0.0.2 of two failed, too")


class Speaker(threading.Thread):
    """Listens, answers everything with `words` (or nothing), and closes the connection."""

    def __init__(self, words):
        super().__init__(daemon=True)
        self.words = words
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.start()

    def run(self):
        try:
            while True:
                peer, _ = self.listener.accept()
                with peer:
                    peer.recv(4096)
                    peer.sendall(self.words)
        except OSError:
            pass  # Closed.

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


def test_ports_that_speak_something_else():
    """NFS over TCP and other services are recognised: the error comes at once, not after two minutes, and does not
    say "refused"."""
    with Server() as server, Speaker(b"") as silent, Speaker(b"HTTP/1.1 400 Bad Request\r\n\r\n") as http:
        for port in (server.mountport, silent.port, http.port):
            own = f"port={port},mountport={server.mountport},mountproto=tcp"
            for words in (("mount", server.spec, server.mnt), ("ping", server.spec)):
                result = nfsrdma(*words, "-o", own, limit=30)
                expect(result, 32, "the port is open and does not speak RDMA", "'mount -t nfs' for NFS over TCP")
                assert "refused" not in result.stderr, result.stderr
        for port, what in ((http.port, "check the port"), (silent.port, "check the port")):
            own = f"port={server.port},mountport={port},mountproto=tcp,retry=0"
            result = nfsrdma("mount", server.spec, server.mnt, "-o", own)
            expect(result, 32, f"(TCP port {port})", what, f"leave out mountport={port}")


def test_logs_that_cannot_be_written():
    with Server() as server:
        # A full disk does not affect the mount.
        expect(server.mount("", "--log", "/dev/full", "-vv"), 0)
        (server.mnt / "a").write_text("1")
        unmount(server.mnt)
        assert (server.export / "a").read_text() == "1"


@contextlib.contextmanager
def outputs():
    """Pairs of standard output and standard error that cannot be written."""
    with open("/dev/full", "wb") as full:
        reader, writer = os.pipe()
        os.close(reader)
        try:
            yield [(full, subprocess.PIPE), (subprocess.PIPE, full), (full, full), (writer, writer)]
        finally:
            os.close(writer)


def outcome(words, out, error):
    with subprocess.Popen([str(word) for word in words], stdout=out, stderr=error) as child:
        said = [stream.read().decode() if stream else "" for stream in (child.stdout, child.stderr)]
        status = child.wait(LIMIT)
    assert not any("panicked" in text for text in said), said
    return status, said[1]


def test_output_that_goes_nowhere_changes_nothing():
    with Server() as server, outputs() as sinks:
        spec, own = server.spec, server.options()
        for out, error in sinks:
            for more in ((), ("-v",), ("-vv",)):
                words = [BIN / "nfsrdma", "mount", spec, server.mnt, "-o", own, *more]
                assert outcome(words, out, error)[0] == 0, more
                assert mounted(server.mnt)
                (server.mnt / "a").write_text("1")
                assert outcome([BIN / "nfsrdma", "umount", "-v", server.mnt], out, error)[0] == 0
                assert not mounted(server.mnt)
                server.ended()
            # Failures keep their exit status as well.
            assert outcome([BIN / "nfsrdma", "mount", spec, server.mnt, "-o", "zork"], out, error)[0] == 1
            assert outcome([BIN / "nfsrdma", "umount", server.mnt], out, error)[0] == 1
            assert outcome([BIN / "nfsrdma", "zork"], out, error)[0] == 1
        server.mount_well()
        out, error = sinks[0]
        for words in (("exports", "127.0.0.1", "-o", own), ("ping", spec, "-o", own), ("stats", server.mnt)):
            status, said = outcome([BIN / "nfsrdma", *words], out, error)
            assert status == 2 and "cannot write to standard output: No space left on device" in said, (words, said)
            writer = sinks[3][0]
            assert outcome([BIN / "nfsrdma", *words], writer, subprocess.PIPE) == (0, ""), words
        expect(nfsrdma("umount", server.mnt), 0)
        # In the foreground this process is the mount.
        for out, error in sinks:
            words = [BIN / "nfsrdma", "mount", "-f", "-vv", spec, server.mnt, "-o", own]
            with subprocess.Popen([str(word) for word in words], stdout=out, stderr=error) as child:
                drains = [stream for stream in (child.stdout, child.stderr) if stream]
                for stream in drains:
                    threading.Thread(target=stream.read, daemon=True).start()
                try:
                    until(lambda: mounted(server.mnt), "the mount")
                    (server.mnt / "b").write_text("2")
                    child.send_signal(signal.SIGINT)
                    assert child.wait(LIMIT) == 0
                finally:
                    child.kill()
            assert not mounted(server.mnt)


def test_captures_on_a_full_disk():
    with Server() as server:
        server.mount_well()
        result = nfsrdma("capture", server.mnt, "/dev/full", "--seconds", "5")
        expect(result, 2, "cannot write /dev/full: No space left on device; choose another place, or make room there")
        assert "Error reading" not in result.stderr
        expect(nfsrdma("capture", server.mnt, "/no/such/file"), 2, "No such file or directory; choose another place")


def test_interrupting_a_mount_that_is_tried_again():
    with Server() as server:
        server.stop()
        for to_group in (True, False):
            for number in (signal.SIGINT, signal.SIGTERM):
                with running(
                    BIN / "nfsrdma", "mount", server.spec, server.mnt, "-o", server.options(),
                    stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
                ) as child:  # fmt: skip
                    line = child.stderr.readline()
                    assert "trying again" in line, line
                    if to_group:
                        os.killpg(child.pid, number)
                    else:
                        child.send_signal(number)
                    said = child.stderr.read()
                    assert child.wait(LIMIT) == 8, said
                wanted = f"was interrupted by {signal.Signals(number).name}: nothing is mounted; mount again"
                assert wanted in said and said.count("\n") == 1, said
                server.ended()


def test_stray_signals_do_not_end_a_mount():
    stray = [
        signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO,
        signal.SIGPWR, signal.SIGXCPU, signal.SIGXFSZ, signal.SIGPIPE, signal.SIGRTMIN, signal.SIGRTMAX,
    ]  # fmt: skip
    with Server() as server:
        server.mount_well()
        (pid,) = servers_of(server.mnt)
        for number in stray:
            os.kill(pid, number)
            (server.mnt / "a").write_text(str(number))
            assert (server.export / "a").read_text() == str(number)
        assert servers_of(server.mnt) == [pid]
        unmount(server.mnt)


def test_sighup_opens_the_log_anew():
    with Server() as server:
        log, old = server.base / "log", server.base / "log.1"
        # With a relative name, because the process leaves the directory.
        expect(server.mount("", "--log", "log", cwd=server.base), 0)
        (pid,) = servers_of(server.mnt)
        log.rename(old)
        before = old.read_text()
        os.kill(pid, signal.SIGHUP)
        until(log.exists, "a new log")
        expect(nfsrdma("log", server.mnt, "trace"), 0)
        (server.mnt / "a").write_text("1")
        until(lambda: " TRACE " in log.read_text(), "lines in the new log")
        assert " TRACE " not in old.read_text()[len(before) :]
        assert servers_of(server.mnt) == [pid]
        # If the file cannot be opened again, it keeps writing to the old one.
        log.rename(old)
        log.mkdir()
        os.kill(pid, signal.SIGHUP)
        until(lambda: "goes on where it was" in old.read_text(), "a line about it")
        expect(nfsrdma("umount", server.mnt), 0)


def test_replies_to_interrupted_calls_are_no_errors():
    script = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGUSR1, lambda *_: None)\n"
        "n, mnt, me = 0, sys.argv[1], os.getpid()\n"
        "print(flush=True)\n"
        "while True:\n"
        "    n += 1\n"
        "    for f in (lambda: os.listdir(mnt), lambda: os.stat(mnt + '/f'), lambda: open(mnt + '/f', 'rb').read(),\n"
        "              lambda: open(f'{mnt}/x{me}', 'wb').write(b'y' * 300000), lambda: os.mkdir(f'{mnt}/m{me}-{n}'),\n"
        "              lambda: os.getxattr(mnt + '/f', 'user.x'), lambda: os.open(mnt + '/f', os.O_RDONLY | os.O_DIRECT)):\n"
        "        try: f()\n"
        "        except OSError: pass\n"
    )

    def caller():
        child = subprocess.Popen([sys.executable, "-S", "-c", script, server.mnt], stdout=subprocess.PIPE)
        assert child.stdout.read(1) == b"\n"
        return child

    with Server() as server:
        log = server.base / "log"
        (server.export / "f").write_bytes(os.urandom(8 << 20))
        for number in range(50):
            (server.export / f"d{number}").mkdir()
        expect(server.mount("actimeo=0", "--log", log), 0)
        callers = []
        try:
            for turn in range(1500):
                while len(callers) < 8:
                    callers.append(caller())
                time.sleep(0.005)
                child = callers[turn * 5 % 8]
                child.send_signal(signal.SIGUSR1)
                if turn % 20 == 0:
                    child.kill()
                    child.wait()
                    child.stdout.close()
                    callers.remove(child)
        finally:
            for child in callers:
                child.kill()
                child.wait()
                child.stdout.close()
        # Calls that are under way when the connection is aborted.
        with running(sys.executable, "-S", "-c", script, server.mnt) as caller:
            expect(nfsrdma("umount", "-f", "-l", server.mnt), 0)
        server.ended()
        lines = [line for line in log.read_text().splitlines() if " ERROR " in line]
        assert not lines, "\n".join(lines)


def test_paths_that_are_no_mount_points():
    with Server() as server:
        server.mount_well()
        inside = server.mnt / "folder"
        inside.mkdir()
        for words in (("stats",), ("log",), ("trace",), ("umount",), ("umount", "-v")):
            expect(nfsrdma(*words, inside), 1, f"is inside the nfsrdma mount on {server.mnt}: give {server.mnt}")
            typo = nfsrdma(*words, f"{server.mnt}x")
            expect(typo, 1, f"{server.mnt}x does not exist", "nfsrdma mounts are on ")
            expect(nfsrdma(*words, server.base), 1, f"{server.base} is not an nfsrdma mount: nfsrdma mounts are on ")
            expect(nfsrdma(*words, "/proc"), 1, "/proc is not an nfsrdma mount but one of type proc")
        expect(nfsrdma("log", server.mnt), 0, "info\n")
        expect(nfsrdma("log", server.mnt, "warn"), 0)
        expect(nfsrdma("log", server.mnt), 0, "warn\n")
        expect(nfsrdma("log", server.mnt, "default"), 0)
        expect(nfsrdma("log", server.mnt), 0, "info\n")
        result = nfsrdma("umount", "-v", server.mnt)
        expect(result, 0, f"{server.spec} on {server.mnt}: unmounting", "unmounted; all data are at the server")
        for place in ("/", "/proc", "/dev", "/sys"):
            expect(server.mount(at=place), 1, f"{place} cannot be mounted over", "choose a directory")
