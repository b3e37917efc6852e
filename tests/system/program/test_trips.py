"""How many calls each operation costs: no more than NFSv3 needs."""

import contextlib
import os
from pathlib import Path

import pytest

from program.support import *  # noqa: F403

CHUNK = 128 << 10


class Counted:
    """A mount, of which a test says what an operation costs."""

    def __init__(self, server, command):
        self.server, self.mnt, self.command = server, server.mnt, command

    def counts(self):
        return {name: int(count) for name, count in (word.split("=") for word in self.command("calls").split() if "=" in word)}

    def made(self, work, *words):
        """The calls that `work` causes, as `NAME=COUNT`, in the order of the alphabet."""
        before = self.counts()
        work(*words)
        after = self.counts()
        changes = {name: count - before.get(name, 0) for name, count in after.items()}
        return " ".join(f"{name}={count}" for name, count in sorted(changes.items()) if count)

    def cost(self, what, expected, work, *words):
        made = self.made(work, *words)
        assert made == expected, f"{what}: {made}, not {expected}"


@contextlib.contextmanager
def counted(fill, options="", *words):
    """A mount of an export that `fill` has made, after the calls that are made once for each mount."""
    with scripted(*words) as (server, command):
        fill(server.export)
        server.mount_well(f"nolock,noacl,nconnect=1{options}")
        # By the mount itself.
        until(lambda: "FSSTAT=1" in command("calls"), "the space")
        absent(server.mnt / "none")
        os.stat(server.mnt)
        yield Counted(server, command)


def absent(path):
    with pytest.raises(FileNotFoundError):
        os.lstat(path)


def read(path):
    file = os.open(path, os.O_RDONLY)
    while os.read(file, CHUNK):
        pass
    os.close(file)


def write(path, data, flags=os.O_CREAT | os.O_TRUNC):
    file = os.open(path, os.O_WRONLY | flags, 0o644)
    # The pieces are alike: where the kernel meets a page of the program that is not in memory, it divides the write.
    piece = bytearray(data[:CHUNK])
    for _ in range(0, len(data), CHUNK):
        os.write(file, piece)
    os.close(file)


def test_reading():
    def fill(export):
        (export / "d").mkdir()
        (export / "d" / "small").write_bytes(bytes(100))
        (export / "d" / "other").write_bytes(bytes(5000))
        (export / "big").write_bytes(bytes(3 << 20))
        (export / "link").symlink_to("d/small")

    with counted(fill) as m:
        small, other, big, link = m.mnt / "d" / "small", m.mnt / "d" / "other", m.mnt / "big", m.mnt / "link"
        m.cost("stat, cold", "LOOKUP=2", os.lstat, small)
        m.cost("stat, warm", "", os.lstat, small)
        m.cost("a name that is not there", "LOOKUP=1", absent, m.mnt / "d" / "no")
        m.cost("the same again", "", absent, m.mnt / "d" / "no")
        # Close-to-open: each open sends one ACCESS, for permissions and attributes.
        m.cost("open, read, close; the name known", "ACCESS=1 READ=1", read, small)
        m.cost("the same again", "ACCESS=1", read, small)
        m.cost("open, read, close; cold", "ACCESS=1 LOOKUP=1 READ=1", read, other)
        m.cost("stat after reading", "", os.lstat, other)
        # Two requests of the kernel, of 128 KiB each, show that the reads are sequential; the rest is read ahead, each
        # READ up to the next multiple of 1 MiB.
        assert m.made(read, big) in ("ACCESS=1 LOOKUP=1 READ=4", "ACCESS=1 LOOKUP=1 READ=5")
        m.cost("3 MiB, warm", "ACCESS=1", read, big)
        m.cost("readlink", "LOOKUP=1 READLINK=1", os.readlink, link)
        m.cost("readlink, warm", "", os.readlink, link)


def test_changing():
    # With chunks at position zero, a WRITE has less than a whole block.
    with counted(lambda export: (export / "old").write_bytes(bytes(100)), ",write_chunk=reduced") as m:
        a, b, d = m.mnt / "a", m.mnt / "b", m.mnt / "d"
        # The LOOKUP is caused by the kernel, which looks the name up before it creates it.
        m.cost("create, write, close", "CREATE=1 LOOKUP=1 WRITE=1", write, a, bytes(1000))
        m.cost("stat after that", "", os.stat, a)
        m.cost("reading it", "ACCESS=1", read, a)
        m.cost("truncate, write, close", "ACCESS=1 SETATTR=1 WRITE=1", write, a, bytes(10))
        m.cost("3 MiB", "COMMIT=1 CREATE=1 LOOKUP=1 WRITE=3", write, b, b"\3" * (3 << 20))
        m.cost("reading that", "ACCESS=1", read, b)
        m.cost("mkdir", "LOOKUP=1 MKDIR=1", os.mkdir, d)
        m.cost("rename", "LOOKUP=1 RENAME=1", os.rename, a, d / "c")
        m.cost("chmod", "SETATTR=1", os.chmod, b, 0o600)
        m.cost("unlink", "REMOVE=1", os.unlink, b)
        m.cost("the name is gone", "", absent, b)
        m.cost("unlink, the name unknown", "LOOKUP=1 REMOVE=1", os.unlink, m.mnt / "old")
        m.cost("unlink in a directory", "REMOVE=1", os.unlink, d / "c")
        m.cost("rmdir", "RMDIR=1", os.rmdir, d)


def test_what_was_written_in_pieces_of_pages_is_not_read_again():
    """The kernel has no page that several writes have filled, as those of a pack that git has fetched."""
    with counted(lambda export: None) as m:
        file = m.mnt / "f"

        def work():
            with open(file, "wb", buffering=0) as out:
                for _ in range(100):
                    out.write(bytes(1000))

        m.cost("100 writes of 1000 bytes, close", "CREATE=1 LOOKUP=1 WRITE=1", work)
        m.cost("reading that", "ACCESS=1", read, file)


def test_write_set_times_and_close():
    with counted(lambda export: (export / "f").touch()) as m:
        file = os.open(m.mnt / "f", os.O_WRONLY)

        def work():
            os.write(file, b"text")
            os.utime(file, (0, 0))
            os.close(file)

        m.cost("write, set times, close", "SETATTR=1 WRITE=1", work)


@pytest.mark.parametrize("step", [1, 2])
def test_writing_parts_of_pages(step):
    """Small writes to many pages take a WRITE each and no READ: only what programs wrote is sent."""
    pages, page = 300, 4096
    with counted(lambda export: (export / "f").write_bytes(b"\7" * pages * page)) as m:
        expected = bytearray(b"\7" * pages * page)
        file = os.open(m.mnt / "f", os.O_WRONLY)

        def work():
            for number in range(0, pages, step):
                os.pwrite(file, b"%08d" % number, number * page + 100)
                expected[number * page + 100 : number * page + 108] = b"%08d" % number
            os.fsync(file)

        made = dict(word.split("=") for word in m.made(work).split())
        os.close(file)
        assert int(made["WRITE"]) == pages // step and "READ" not in made
        assert (m.server.export / "f").read_bytes() == expected


def test_the_server_checks_permissions():
    """With permissions=server the kernel caches no names. Its look-ups are answered from memory."""

    def fill(export):
        (export / "d").mkdir()
        (export / "d" / "file").write_bytes(bytes(100))

    with counted(fill, ",permissions=server") as m:
        file, new = m.mnt / "d" / "file", m.mnt / "d" / "new"
        m.cost("stat, cold", "LOOKUP=2", os.stat, file)
        until(lambda: m.made(os.stat, file) == "", "a stat from memory")
        until(lambda: m.made(read, file) in ("ACCESS=1", "ACCESS=1 READ=1"), "an open with one call")
        until(lambda: m.made(read, file) == "ACCESS=1", "a read from memory")
        m.cost("create, write, close", "CREATE=1 LOOKUP=1 WRITE=1", write, new, bytes(10))
        # A change of the directory is one of its rights, perhaps.
        m.cost("stat after that", "LOOKUP=1", os.stat, new)
        m.cost("unlink", "REMOVE=1", os.unlink, new)


def test_names_outlive_attributes():
    """A name is valid as long as its directory, even if the attributes of its object have expired, as those of files soon
    do."""
    with counted(lambda _: None, ",acregmin=0,acregmax=0") as m:
        a, b, c = m.mnt / "a", m.mnt / "b", m.mnt / "c"
        write(a, bytes(10))
        write(b, bytes(10))
        m.cost("unlink", "REMOVE=1", os.unlink, a)
        m.cost("stat", "GETATTR=1", os.stat, b)
        # The kernel checks permissions, and has no attributes for that.
        m.cost("open", "ACCESS=1 GETATTR=1", lambda: os.close(os.open(b, os.O_RDONLY)))
        m.cost("rename", "LOOKUP=1 RENAME=1", os.rename, b, c)
        m.cost("unlink", "REMOVE=1", os.unlink, c)


def test_listing():
    """No call for each entry: also where names are still valid, and their attributes are not."""
    files = 1000

    def fill(export):
        (export / "d").mkdir()
        for number in range(files):
            (export / "d" / f"file-{number}").write_bytes(bytes(10))

    def listed(folder):
        """The name that came last."""
        with os.scandir(folder) as entries:
            found = [(entry.name, entry.stat().st_size) for entry in entries]
        assert sum(size for _, size in found) == 10 * files
        return found[-1][0]

    with counted(fill) as m:
        made = [word.split("=") for word in m.made(listed, m.mnt / "d").split()]
        pages = sum(int(count) for name, count in made if name.startswith("READDIR"))
        assert pages <= 10 and sum(int(count) for _, count in made) <= pages + 2, made
        m.cost("stat of all", "", lambda: [os.stat(m.mnt / "d" / f"file-{number}") for number in range(files)])
    def few(m, work):
        made = [word.split("=") for word in m.made(work).split()]
        assert sum(int(count) for _, count in made) < files / 4, made

    with counted(fill, ",acregmin=1,acregmax=1") as m:
        last = m.mnt / "d" / listed(m.mnt / "d")
        until(lambda: "GETATTR" in m.made(os.stat, last), "the end of attributes")
        few(m, lambda: listed(m.mnt / "d"))
    with counted(fill, ",acregmin=1,acregmax=1") as m:
        # After a program that lists names alone another one asks for each attribute once, and not again.
        last = m.mnt / "d" / os.listdir(m.mnt / "d")[-1]
        for again in range(5):
            if again > 1:
                few(m, lambda: listed(m.mnt / "d"))
            else:
                listed(m.mnt / "d")
            until(lambda: "GETATTR" in m.made(os.stat, last), "the end of attributes")


def test_a_directory_is_listed_once_for_who_looks_whether_it_is_empty_and_then_lists_it():
    """As `rm -r` does. What has changed meanwhile is listed."""
    with counted(lambda export: [write(export / name, b"") for name in "abc"]) as m:

        def twice(between=lambda: None):
            with os.scandir(m.mnt) as entries:
                next(entries)
            between()
            return sorted(os.listdir(m.mnt))

        m.cost("listing, begun and then whole", "ACCESS=2 READDIRPLUS=1", twice)
        assert twice(lambda: os.unlink(m.mnt / "a")) == ["b", "c"]
        assert twice(lambda: write(m.server.export / "d", b"")) == ["b", "c", "d"]


@pytest.mark.parametrize("pre_op, tries", [("always", 1), ("never", 4)])
def test_what_this_mount_alone_has_written_is_not_read_again(pre_op, tries):
    """Without the state before a WRITE an attribute reply between two of them may look like a change by somebody else, so one
    try of a few is enough."""
    with counted(lambda _: None, ",actimeo=3600", "--pre-op", pre_op) as m:
        for name in map(str, range(tries)):
            expected = bytearray(8 << 20)
            path = Path(m.mnt / name)

            def work(path=path, expected=expected):
                write(path, bytes(expected))
                assert path.read_bytes() == expected
                file = os.open(path, os.O_WRONLY)
                for at in (0, 3 << 20, 7 << 20):
                    os.pwrite(file, b"record", at)
                    expected[at : at + 6] = b"record"
                    os.fsync(file)
                os.close(file)
                assert path.read_bytes() == expected

            if "READ=" not in m.made(work):
                return
        pytest.fail("each of them was read again")
