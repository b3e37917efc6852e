"""Several paths to one server: two network namespaces with two pairs of interfaces between them."""

import contextlib
import json
import os
import threading
import time
import uuid

import pytest

from program.effects import document
from program.paths_support import CLIENT, SERVER, Apart
from program.support import *  # noqa: F403

TIMEO = 2
"""In seconds."""


class Paths(Apart, Server):
    """A responder and its mount in namespaces of their own."""

    def __init__(self):
        root()
        needs("ip")
        super().__init__("--listen", "0.0.0.0:0", host=SERVER[0])
        mark = uuid.uuid4().hex[:8]
        self.there, self.here = f"paths-{mark}-server", f"paths-{mark}-client"

    def mount(self, more="", *words, at=None, **keywords):
        command = [*self.within(self.here), BIN / "nfsrdma", "mount", self.spec, at or self.mnt]
        return run(*command, "-o", self.options(more), *words, **keywords)

    def sent(self):
        """The bytes that the client has sent by each path."""
        found = (run("ip", "-n", self.here, "-s", "-j", "link", "show", "dev", f"path{number}") for number in (0, 1))
        return [json.loads(result.stdout)[0]["stats64"]["tx"]["bytes"] for result in found]


def carried(paths):
    """The bytes of data that the mount says it has written by each path."""
    ends = [f"{server}:{paths.port}" for server in SERVER]
    counted = [(link["path"], link["counters"]["rdma_read_bytes"]) for link in document(paths)["connections"]]
    return [sum(count for path, count in counted if path.startswith(f"{end} ")) for end in ends]


class Load(threading.Thread):
    """Makes rounds on a path until it is told to end."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.path, self.rounds, self.longest, self.error, self.over = path, 0, 0, None, threading.Event()
        self.start()

    def run(self):
        try:
            while not self.over.is_set():
                begin = time.monotonic()
                self.round()
                self.longest = max(self.longest, time.monotonic() - begin)
                self.rounds += 1
        except (OSError, AssertionError) as error:
            self.error = error

    def goes_on(self, more, what):
        """Waits for so many more rounds."""
        wanted = self.rounds + more
        until(lambda: self.error or self.rounds >= wanted, f"{more} rounds {what}")
        assert self.error is None, f"{what}: {self.error!r}"

    def end(self):
        self.over.set()
        self.join(LIMIT)
        assert not self.is_alive() and self.error is None, repr(self.error)


class Data(Load):
    """Writes random blocks to a file, each at once to the server, and reads each from the server again."""

    BLOCK = 256 << 10

    def __init__(self, path):
        self.file, self.blocks = os.open(path, os.O_RDWR | os.O_CREAT), {}
        super().__init__(path)

    def round(self):
        at = self.rounds % 64
        self.blocks[at] = os.urandom(self.BLOCK)
        assert os.pwrite(self.file, self.blocks[at], at * self.BLOCK) == self.BLOCK
        os.fsync(self.file)
        os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(self.file, self.BLOCK, at * self.BLOCK) == self.blocks[at]

    def compare(self, exported):
        os.close(self.file)
        written = exported.read_bytes()
        for at, block in self.blocks.items():
            assert written[at * self.BLOCK :][: self.BLOCK] == block, (exported, at)


class Names(Load):
    """Calls that must not be carried out twice."""

    def round(self):
        one, two = (self.path / f"{name}-{self.rounds}" for name in ("one", "two"))
        os.close(os.open(one, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        os.rename(one, two)
        os.link(two, one)
        os.unlink(two)
        os.unlink(one)
        one.mkdir()
        one.rmdir()

    def compare(self, exported):
        left = {name: os.lstat(exported / name) for name in os.listdir(exported)}
        assert not left, f"{left} after {self.rounds} rounds"


@contextlib.contextmanager
def loads(paths, number):
    """Loads on that many files, and one of names. What the server has is compared at the end."""
    (paths.export / "names").mkdir(mode=0o777)
    all = [Names(paths.mnt / "names"), *(Data(paths.mnt / f"f{index}") for index in range(number))]
    try:
        yield all
    finally:
        for load in all:
            load.over.set()
    for load in all:
        load.end()
        load.compare(paths.export / load.path.name)


def up(paths):
    """Whether each connection is up, by the path that it belongs to."""
    found = document(paths)["connections"]
    ends = [f"{server}:{paths.port} from {client}" for server, client in zip(SERVER, CLIENT)]
    assert {link["path"] for link in found} == set(ends), found
    return [[link["connected"] and not link["silent"] for link in found if link["path"] == end] for end in ends]


ENDS = {"client": lambda paths: paths.here, "server": lambda paths: paths.there}


@pytest.mark.alone
@pytest.mark.parametrize(("end", "nconnect"), [("client", 2), ("server", 4)])
def test_a_path_that_is_cut_costs_its_time_and_nothing_else(end, nconnect, record_property):
    half = nconnect // 2
    words = f"remoteports={'~'.join(SERVER)},localports={'~'.join(CLIENT)},timeo={10 * TIMEO},nconnect={nconnect}"
    with Paths() as paths:
        log = paths.base / "log"
        expect(paths.mount(f"{words},nolock", "--log", log), 0)
        until(lambda: up(paths) == [[True] * half] * 2, "connections by both paths")
        with loads(paths, 3) as all:
            before, counted = paths.sent(), carried(paths)
            for load in all:
                load.goes_on(8, "with both paths")
            for number in (0, 1):
                until(lambda: carried(paths)[number] - counted[number] > 1 << 20, f"data counted of path {number}")
                until(lambda: paths.sent()[number] - before[number] > 1 << 20, f"data by path {number}")
            for number in (1, 0):
                with paths.cut(ENDS[end](paths), number):
                    for load in all:
                        load.goes_on(8, f"without path {number}")
                    until(lambda: not any(up(paths)[number]), f"path {number} that is known to be down")
                    for load in all:
                        load.goes_on(8, f"by path {1 - number}")
                    if number == 1:
                        until(lambda: "cannot be made" in log.read_text(), "an attempt to connect that fails")
                until(lambda: up(paths) == [[True] * half] * 2, f"path {number}, which is back")
                again = paths.sent()
                for load in all:
                    load.goes_on(8, "with both paths again")
                until(lambda: paths.sent()[number] - again[number] > 1 << 20, f"data by path {number}, which is back")
        longest = max(load.longest for load in all)
        # A round is several calls one after the other, each of which may meet the path that is down.
        assert longest < 5 * TIMEO + 10, longest
        record_property("result", f"longest round {longest:.1f} s with timeo {TIMEO} s")
        said = log.read_text()
        assert "is made again" in said, said
        assert "not responding" not in said, said
