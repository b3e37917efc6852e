"""Arguments, names of files and what servers say are foreign text: no character of it commands a terminal."""

import json
import os
import re
import subprocess

from program.support import *  # noqa: F403
from program.support import BIN

# C0, DEL and C1; separators of lines and paragraphs; what changes the direction of text. As code points,
# independent of what the program takes for such.
OBEYED = re.compile("[\x00-\x08\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
FOREIGN = "a\x1b[31mb\x07\x7f\x9b2J\u202ec\u2028d\u2066e\t\r"
# Bytes that are no UTF-8, of which a terminal with 8-bit controls obeys the second one.
BYTES = b"a\xff\x9b2J"


def said(*words, stdin=None, shell=None):
    """What a command writes, which must be UTF-8."""
    done = subprocess.run(shell or [BIN / "nfsrdma", *words], input=stdin, capture_output=True, timeout=60, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def commands(text, mnt):
    join = os.fsencode if isinstance(text, bytes) else str
    word = lambda before, after="": join(before) + text + join(after)  # noqa: E731
    yield from ((name, text) for name in ("exports", "ping", "stats", "umount", "log", "trace", "fstab", "top"))
    yield ("exports", "::1", "-o", text)
    yield ("ping", word("127.0.0.1:/"), "-o", "port=9,mountport=9,mountproto=tcp,retry=0")
    yield ("capture", text, "/dev/null")
    yield ("capture", mnt, word("/no/such/directory/"))
    yield ("mount", word("127.0.0.1:/"), mnt, "-o", "port=9,mountport=9,mountproto=tcp,retry=0")
    yield ("mount", "127.0.0.1:/x", word("/no/"))
    yield ("mount", "127.0.0.1:/x", mnt, "-o", text)
    yield ("mount", "127.0.0.1:/x", mnt, "-o", word("rsize="))
    yield ("mount", "127.0.0.1:/x", mnt, "--log", word("/no/such/directory/"))
    yield ("mount", "127.0.0.1:/x", mnt, "-t", text)
    yield ("fstab", word("srv:/", " /mnt nfs rdma"))
    yield ("fstab", word("srv:/x /mnt ", " rdma"))
    yield ("fstab", word("srv:/x /mnt nfs rdma,"))
    yield ("fstab", "mount", "-t", "nfs", word("srv:/"), "/mnt")
    yield ("metrics", "--listen", text)
    yield ("log", "/", text)
    yield ("trace", "/", "--procedure", text)
    yield ("top", "--delay", text)
    yield (word("--"),)
    yield (text,)


def test_arguments_command_no_terminal(place):
    wrong = []
    for text in (FOREIGN, BYTES):
        for words in commands(text, place.mnt):
            _, out, err = said(*words)
            # A message is one line, whatever is in it.
            if OBEYED.search(out + err) or ("\nforged" in out + err):
                wrong.append((words, out + err))
    for command in (("umount", "/no\nforged"), ("exports", "a\nforged"), ("log", "/", "\nforged"), ("x\nforged",)):
        _, out, err = said(*command)
        if len(err.splitlines()) != 1:
            wrong.append((command, err))
    assert not wrong, "\n".join(map(repr, wrong))


def test_names_of_a_mount_command_no_terminal(server):
    """The mount point has such a name, and so has a file, which is traced."""
    mnt = server.base / FOREIGN.replace("/", "")
    mnt.mkdir()
    expect(run(BIN / "nfsrdma", "mount", server.spec, mnt, "-o", server.options()), 0)
    try:
        for words in (["stats"], ["stats", mnt], ["top", "-b", "-n", "1"], ["stats", mnt, "--json"], ["stats", "--json"],
                      ["stats", mnt, "--prometheus"], ["stats", mnt, "--mountstats"]):  # fmt: skip
            status, out, err = said(*words)
            assert status == 0 and not OBEYED.search(out.replace("\t", "") + err), (words, out, err)
            if "--json" in words:
                document = json.loads(out)
                entries = [document] if isinstance(document, dict) else document
                assert str(mnt) in [entry["directory"] for entry in entries], entries
        for form in ([], ["--json"]):
            with subprocess.Popen([BIN / "nfsrdma", "trace", mnt, *form], stdout=subprocess.PIPE) as trace:
                try:
                    first = trace.stdout.readline().decode()
                    (mnt / FOREIGN).touch()
                    lines = [first]
                    while "CREATE" not in lines[-1]:
                        lines.append(trace.stdout.readline().decode())
                        assert lines[-1], lines
                finally:
                    trace.terminate()
            (mnt / FOREIGN).unlink()
            for line in lines:
                assert not OBEYED.search(line), (form, line)
            if form:
                assert json.loads(lines[-1])["arguments"]["name"] == FOREIGN
    finally:
        status, out, err = said("umount", "-v", mnt)
        assert status == 0 and not OBEYED.search(out + err), (status, out, err)
        mnt.rmdir()


def test_links_of_others_are_not_followed(server, mount, place):
    """Who may put a link in the directory does not choose which file root writes."""
    root()
    shared = server.base / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    way = shared / "way"
    way.symlink_to(server.base)
    os.lchown(way, 65534, 65534)
    (server.base / "victim").write_text("before")
    for name in ("victim", "missing", "way/victim", "way/missing"):
        link = shared / name
        if link.parent == shared:
            link.symlink_to(server.base / name)
            os.lchown(link, 65534, 65534)
        for words in (("capture", server.mnt, link, "--packets", "1"), ("mount", server.spec, place.mnt, "--log", link)):
            if words[0] == "mount":
                words = (*words, "-o", f"{server.options()},retry=0")
            result = run(BIN / "nfsrdma", *words)
            assert result.returncode != 0 and "symbolic link of another user" in result.stderr, (words, result)
            assert len(result.stderr.splitlines()) == 1, result
    assert (server.base / "victim").read_text() == "before"
    assert not (server.base / "missing").exists()
    # One's own link is followed.
    own = shared / "own"
    own.symlink_to(server.base / "log")
    expect(run(BIN / "nfsrdma", "mount", server.spec, place.mnt, "--log", own, "-o", server.options()), 0)
    expect(run(BIN / "nfsrdma", "umount", place.mnt), 0)
    assert (server.base / "log").exists()
