"""The log: levels at run time, syslog, and the progress of the last flush."""

import contextlib
import os
import re
import signal
import subprocess
import sys

import pytest

from program.support import *  # noqa: F403
from program.support import BIN, NOBODY


def test_log_levels_at_run_time(server):
    log = server.mount_logged()

    def lines(level):
        return log.read_text().count(f" {level} ")

    def work():
        (server.mnt / "a").write_text("1")
        return lines("DEBUG") + lines("TRACE")

    assert work() == 0, log.read_text()
    expect(nfsrdma("log", server.mnt, "trace"), 0)
    until(lambda: work() > 0, "a line of the finer levels")
    expect(nfsrdma("log", server.mnt, "error"), 0)
    quiet = log.read_text()
    work()
    expect(nfsrdma("log", server.mnt, "default"), 0)
    assert log.read_text() == quiet, log.read_text()[len(quiet) :]
    expect(nfsrdma("log", server.mnt, "loud"), 1, "error, warn, info, debug, trace, default")
    expect(nfsrdma("umount", server.mnt), 0)
    assert lines("INFO") >= 2, "it does not speak any more"
    expect(nfsrdma("log", server.mnt, "info"), 1, "is not an nfsrdma mount")


def test_the_log_is_not_for_everybody_to_read(server):
    """It names files in private directories."""
    log = server.base / "log"
    before = os.umask(0o022)
    try:
        expect(server.mount("", "--log", log), 0)
    finally:
        os.umask(before)
    assert log.stat().st_mode & 0o777 == 0o640, oct(log.stat().st_mode)


def test_a_user_cannot_fill_the_log_with_removed_files(server):
    """A hidden name stays if its directory may not be changed any more when the file is closed."""
    log = server.mount_logged()
    (server.mnt / "theirs").mkdir()
    os.chown(server.mnt / "theirs", NOBODY, NOBODY)
    script = (
        "import os, sys\n"
        "for number in range(30):\n"
        "    folder = f'{sys.argv[1]}/{number}'\n"
        "    os.mkdir(folder)\n"
        "    file = os.open(f'{folder}/file', os.O_WRONLY | os.O_CREAT)\n"
        "    os.unlink(f'{folder}/file')\n"
        "    os.chmod(folder, 0o500)\n"
        "    os.close(file)\n"
    )
    expect(as_nobody(sys.executable, "-c", script, server.mnt / "theirs"), 0)
    unmount(server.mnt)
    there = server.export / "theirs"
    assert all(list(folder.glob(".nfs*")) for folder in there.iterdir()) and len(list(there.iterdir())) == 30
    assert log.read_text().count("cannot remove a file that was unlinked while open") == 1, log.read_text()


def test_log_levels_are_the_owners(server):
    server.mount_well()
    expect(as_nobody(BIN / "nfsrdma", "log", server.mnt, "trace"), 1, "only root and the user")


def test_progress_of_the_last_flush(server):
    """Data of a killed process is written at the unmount, and a terminal shows the progress."""
    script = (
        "import os, sys\n"
        "file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)\n"
        "print('open', flush=True), sys.stdin.readline()\n"
        "for _ in range(16): os.write(file, b'x' * (1 << 20))\n"
        "print('written', flush=True), sys.stdin.readline()\n"
    )
    for terminal in (True, False):
        server.mount_well("dirty=64M")
        with subprocess.Popen(
            [sys.executable, "-c", script, server.mnt / "a"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as writer:  # fmt: skip
            assert writer.stdout.readline() == "open\n"
            server.pause()
            writer.stdin.write("\n")
            writer.stdin.flush()
            assert writer.stdout.readline() == "written\n"
            writer.kill()
        master, slave = os.openpty()
        error = slave if terminal else subprocess.PIPE
        with subprocess.Popen([BIN / "nfsrdma", "umount", server.mnt], stderr=error, close_fds=True) as child:
            os.close(slave)
            if terminal:
                shown = b""
                while b"writing data: " not in shown:
                    shown += os.read(master, 4096)
            server.child.send_signal(signal.SIGCONT)
            if terminal:
                try:
                    while piece := os.read(master, 4096):
                        shown += piece
                except OSError:
                    pass  # The other end is closed.
                assert b" MiB" in shown, shown
            else:
                assert child.stderr.read() == b""
            assert child.wait(LIMIT) == 0
        os.close(master)
        server.ended()
        assert (server.export / "a").stat().st_size == 16 << 20
        (server.export / "a").unlink()


@pytest.mark.responder("--fail", "WRITE=NOSPC")
def test_a_failed_write_is_told_in_words(server):
    log = server.mount_logged()
    with contextlib.suppress(OSError):
        (server.mnt / "name").write_bytes(b"x" * 5000)
    lines = [line for line in log.read_text().splitlines() if "could not be written" in line]
    assert len(lines) == 1, lines
    assert "5000 bytes from byte 0 on of /name (file " in lines[0] and "make room at the server" in lines[0], lines
    assert "Some(" not in lines[0] and "fileid" not in lines[0], lines


def test_no_line_of_the_log_has_debug_output():
    """Lines for people (levels info, warn and error) have words: no Debug output, and no number of a file without its
    name beside it. Lines of debug and trace are for readers of the source."""
    macro = re.compile(r"\b(?:info|warn|error)!\(((?:[^()\"]|\"(?:[^\"\\]|\\.)*\"|\((?:[^()\"]|\"(?:[^\"\\]|\\.)*\"|\([^()]*\))*\))*)\)", re.S)
    found, wrong = 0, []
    for crate in ("client", "fuse", "xdr"):
        for path in sorted((ROOT / crate).rglob("src/**/*.rs")):
            if "test" in path.name:
                continue
            for call in macro.finditer(path.read_text().split("#[cfg(test)]")[0]):
                found += 1
                text = call[1]
                fields = re.sub(r"\"(?:[^\"\\]|\\.)*\"", "", text)
                if "?}" in text or re.search(r"(?:^|[,=(]\s*)\?\s*[a-z]|\bfileid\s*(?:,|=)", fields.strip()):
                    wrong.append(f"{path.relative_to(ROOT)}: {' '.join(text.split())}")
    assert found > 60, f"only {found} lines of the log: they are written differently now"
    assert not wrong, "\n".join(wrong)


def test_errors_of_the_system_have_no_number_in_the_log():
    """SIGTERM to a mount in use logs why it cannot be unmounted at once, in words."""
    with Server() as server:
        log = server.mount_logged()
        with open(server.mnt / "held", "w"):
            (pid,) = servers_of(server.mnt)
            os.kill(pid, signal.SIGTERM)
            until(lambda: "busy" in log.read_text(), "the line about the mount in use")
        server.ended()
        assert "os error" not in log.read_text(), log.read_text()


def test_one_of_a_thing_is_singular():
    """Numbers of things are written by `counted` ("1 call", "2 calls"), or where their words are chosen by the number. Such a
    literal is allowed where the number is never 1."""
    things = "attempt|byte|call|connection|discard|entrie|error|event|file|inode|line|lock|message|minute|mount|name|packet"
    things += "|process|range|registration|retransmit|round|second|segment|thread|time|time-out|user|violation|WRITE"
    number = re.compile(rf"\{{[^{{}} ]*\}} (?:more |inline |open )?(?:{things})e?s\b")
    # Sizes that are never 1: of messages, buffers and pools, and what a limit of many is about.
    large = ("Receives of", "buffer pool", "messages of", "FPDUs of", "to a READ", "MOUNT allows", "in a row", "gather a message",
             "map {len} bytes", "BufMut(", "Buf(", "at least {length}", "{MAX_FPDU}", "exceed 512", "no fragment", ":.1} calls/s",
             "names the file)", "packets", "has frames of", "s of at most {max}", "s of {max}", "files may have at most", "small replies", ":.0} calls/s")  # fmt: skip
    several = ("n => format!", "times =>", "ranges =>", "calls =>", "length =>", "enough =>")
    found, wrong = 0, []
    for crate in ("client", "fuse", "xdr"):
        for path in sorted((ROOT / crate).rglob("src/**/*.rs")):
            if "test" in str(path.relative_to(ROOT)):
                continue
            text = path.read_text().split("#[cfg(test)]")[0]
            found += len(re.findall(r"\bcounted\(", text))
            lines = text.splitlines()
            for at, line in enumerate(lines):
                near = "\n".join(lines[max(0, at - 2) : at + 1])
                if number.search(line) and not any(word in near for word in (*large, *several)):
                    wrong.append(f"{path.relative_to(ROOT)}:{at + 1}: {line.strip()}")
    assert found > 20, f"only {found} numbers of things: they are written differently now"
    assert not wrong, "\n".join(wrong)
