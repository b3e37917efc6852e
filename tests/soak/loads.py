"""The programs that use a mount while tests/soak/run kills what serves it, its server, or the network. Each is a function that makes one round of its
work in a directory of its own, and fails if it sees anything that it would not see on a local file system."""

import contextlib
import errno
import fcntl
import json
import mmap
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

LIMIT = 180


class Told(Exception):
    """A program was told that data are lost which it had written, and not synchronised (EIO)."""


class Work:
    """The directory of a load through the mount, the same through another mount, and at the server."""

    def __init__(self, name, here, there, server, seed, tools):
        self.name, self.tools, self.random = name, Path(tools), random.Random(seed)
        self.here, self.there, self.server = (Path(top) / name for top in (here, there, server))
        self.longest, self.rounds, self.told, self.result = (0.0, ""), 0, 0, None
        self.files = []  # which stay open

    def call(self, function, *words, **more):
        """A system call, whose time is noted."""
        began = time.monotonic()
        try:
            return function(*words, **more)
        finally:
            self.longest = max(self.longest, (time.monotonic() - began, function.__name__))

    def run(self, *command, where=None):
        done = subprocess.run(
            [str(word) for word in command], cwd=where or self.here, capture_output=True, text=True, timeout=LIMIT, check=False
        )
        said = done.stderr + done.stdout
        if done.returncode and any(sign in said for sign in ("Input/output error", "os error 5", "value: EIO")):
            raise Told(said)
        assert done.returncode == 0, f"{command}: status {done.returncode}: {said[:1000]} ... {said[-1000:]}"
        return done.stdout

    def fresh(self, name):
        """An empty directory."""
        path = self.here / name
        if path.exists():
            self.remove(path)
        path.mkdir()
        return path

    @staticmethod
    def remove(path):
        """A tree whose files are closed: the hidden name of one that was unlinked before goes a moment after its close."""
        for _ in range(100):
            shutil.rmtree(path, ignore_errors=True)
            if not path.exists():
                return
            time.sleep(0.1)
        shutil.rmtree(path)


def pulse(work):
    """Small calls, each of which must come to an end soon."""
    at = work.here / f"p{work.random.randrange(10)}"
    text = work.random.randbytes(work.random.randrange(1, 20000))
    file = work.call(os.open, at, os.O_CREAT | os.O_TRUNC | os.O_RDWR)
    try:
        assert work.call(os.write, file, text) == len(text)
        work.call(os.fsync, file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        assert work.call(os.pread, file, len(text) + 1, 0) == text, "other data"
    finally:
        work.call(os.close, file)
    assert work.call(os.stat, at).st_size == len(text)
    assert at.name in work.call(os.listdir, work.here)
    work.call(os.unlink, at)
    time.sleep(0.005)


def names(work):
    """Names are made, renamed and removed."""
    top, call = work.here / f"d{work.random.randrange(5)}", work.call
    call(os.mkdir, top)
    call(os.symlink, "x", top / "s")
    assert call(os.readlink, top / "s") == "x"
    for number in range(5):
        call(os.close, call(os.open, top / f"f{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640))
    call(os.link, top / "f0", top / "l")
    for number in range(4):
        call(os.rename, top / f"f{number}", top / "r")
    call(os.rename, top / "r", top / "f4")
    assert sorted(call(os.listdir, top)) == ["f4", "l", "s"]
    with open(top / "f4", "rb"):
        call(os.unlink, top / "f4")
    for name in ("l", "s"):
        call(os.unlink, top / name)
    call(os.rmdir, top)
    assert not os.path.lexists(top)


def reads(work):
    """A file that was written once is read again and again, from a file that stays open, too."""
    at, size = work.here / "f", 16 << 20
    if work.result is None:
        work.data = work.random.randbytes(size)
        written(work, at, work.data)
        work.result, work.files = "", [open(at, "rb")]  # noqa: SIM115
    with open(at, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        place = 0
        while part := work.call(file.read, 1 << 18):
            assert part == work.data[place : place + len(part)], f"other data from {place}"
            place += len(part)
        assert place == size
    for _ in range(100):
        place = work.random.randrange(size)
        assert work.call(os.pread, work.files[0].fileno(), 4096, place) == work.data[place : place + 4096]


def written(work, at, data):
    """Writes a file, and synchronises it."""
    while True:
        try:
            file = work.call(os.open, at, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[work.call(os.write, file, rest[: 1 << 20]) :]
                work.call(os.fsync, file)
            finally:
                work.call(os.close, file)
            return
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            work.told += 1


def writes(work):
    """What fsync or close has confirmed is at the server."""
    name = f"w{work.random.randrange(5)}"
    data = work.random.randbytes(work.random.randrange(1, 2 << 20))
    written(work, work.here / name, data)
    assert (work.server / name).read_bytes() == data, "synchronised data are not at the server"


def mapped(work):
    """Writes by a mapping."""
    at, size = work.here / "m", 1 << 20
    if work.result is None:
        written(work, at, bytes(size))
        work.result, work.data = "", bytearray(size)
    with open(at, "r+b") as file, mmap.mmap(file.fileno(), size) as memory:
        for _ in range(20):
            place, length = work.random.randrange(size - 5000), work.random.randrange(1, 5000)
            part = work.random.randbytes(length)
            memory[place : place + length] = work.data[place : place + length] = part
        while True:
            try:
                work.call(memory.flush)
                break
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                work.told += 1
                # The kernel takes the pages for clean.
                memory[:] = bytes(work.data)
        assert memory[:] == work.data, "other data in the mapping"
    assert (work.server / "m").read_bytes() == work.data, "mapped data are not at the server"


def places(random, size, direct):
    """An offset and a length for a file of this size, sometimes behind its end."""
    offset = random.randrange(LARGEST if random.random() < 0.12 else size + 1)
    length = random.choice((1, 100, 4096, 70000, 300000))
    return (offset & ~4095, length + 4095 & ~4095) if direct else (offset, random.randrange(length) + 1)


class Files:
    """Random operations on a few files, each compared with what is known of them; after fsync(2), close(2) and msync(2) at
    the server, too."""

    def __init__(self, work):
        self.here, self.server, self.random, self.call = work.here, work.server, work.random, work.call
        self.known = {}  # the bytes by name; two names of a file have the same
        self.open = []  # (descriptor, bytes, flags)

    def some(self, *without):
        fit = [each for each in self.open if not any(each[2] & flag for flag in without)]
        return self.random.choice(fit) if fit else self.create()

    def name(self):
        return f"f{self.random.randrange(6)}"

    def same(self, what, got, known):
        at = next((i for i, (a, b) in enumerate(zip(got, known)) if a != b), min(len(got), len(known)))
        assert got == known, f"{what}: {len(got)} bytes, not {len(known)}; other data at {at}"

    def at_server(self, known, after):
        for name, each in self.known.items():
            if each is known:
                self.same(f"{name} at the server after {after}", (self.server / name).read_bytes(), known)
                return

    def create(self):
        if len(self.open) > 5:
            self.close()
        name, flags = self.name(), self.random.choice((os.O_RDWR, os.O_RDWR, os.O_RDWR | os.O_APPEND, os.O_RDWR | os.O_DIRECT))
        if name not in self.known:
            self.known[name], flags = bytearray(), flags | os.O_CREAT | os.O_EXCL
        elif self.random.random() < 0.1:
            flags |= os.O_TRUNC
            del self.known[name][:]
        self.open.append((self.call(os.open, self.here / name, flags, 0o644), self.known[name], flags))
        return self.open[-1]

    def create_again(self):
        for name in self.known:
            with contextlib.suppress(FileExistsError):
                os.close(self.call(os.open, self.here / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                raise AssertionError(f"{name} was made although it is there")

    def close(self):
        each = self.open.pop(self.random.randrange(len(self.open)))
        self.call(os.close, each[0])
        if not each[2] & os.O_DIRECT:
            self.at_server(each[1], "close")

    def sync(self):
        file, known, _ = self.some()
        self.call(self.random.choice((os.fsync, os.fdatasync)), file)
        self.at_server(known, "fsync")

    def write(self):
        file, known, flags = self.some()
        offset, length = places(self.random, len(known), flags & os.O_DIRECT)
        offset = len(known) if flags & os.O_APPEND else offset
        if offset > LARGEST:
            return
        with mmap.mmap(-1, length) as data:  # at a page, as O_DIRECT wants it
            data[:] = self.random.randbytes(length)
            assert self.call(os.pwrite, file, data, offset) == length
            known.extend(bytes(max(0, offset - len(known))))
            known[offset : offset + length] = data[:]

    def read(self):
        file, known, flags = self.some()
        offset, length = places(self.random, len(known), flags & os.O_DIRECT)
        with mmap.mmap(-1, length) as data:
            count = self.call(os.preadv, file, [data], offset)
            self.same(f"read at {offset}", data[:count], known[offset : offset + length])

    def truncate(self):
        file, known, _ = self.some()
        size = self.random.choice((0, self.random.randrange(LARGEST), self.random.randrange(len(known) + 1)))
        names = [name for name, each in self.known.items() if each is known]
        self.call(os.truncate, self.here / names[0] if names and self.random.random() < 0.5 else file, size)
        del known[size:]
        known.extend(bytes(size - len(known)))

    def map(self):
        file, known, _ = self.some(os.O_DIRECT, os.O_APPEND)
        if not known:
            return
        with mmap.mmap(file, len(known)) as memory:
            at = self.random.randrange(len(known))
            self.same("a mapping", memory[at : at + 9000], known[at : at + 9000])
            data = self.random.randbytes(min(self.random.randrange(9000), len(known) - at))
            memory[at : at + len(data)] = known[at : at + len(data)] = data
            self.call(memory.flush)
        self.at_server(known, "msync")

    def unlink(self):
        if self.known:
            name = self.random.choice(list(self.known))
            self.call(os.unlink, self.here / name)
            del self.known[name]

    def rename(self):
        if self.known:
            old, new = self.random.choice(list(self.known)), self.name()
            self.call(os.rename, self.here / old, self.here / new)
            # Of two names of one file both stay (rename(2)).
            if self.known.get(new) is not self.known[old]:
                self.known[new] = self.known.pop(old)

    def link(self):
        if self.known:
            old, new = self.random.choice(list(self.known)), self.name()
            if new not in self.known:
                self.call(os.link, self.here / old, self.here / new)
                self.known[new] = self.known[old]

    def look(self):
        for name in (f"f{number}" for number in range(6)):
            if name in self.known:
                assert self.call(os.stat, self.here / name).st_size == len(self.known[name]), f"the size of {name}"
            else:
                assert not os.path.lexists(self.here / name), f"{name} is there"
        listed = [name for name in self.call(os.listdir, self.here) if not name.startswith(".nfs")]
        assert sorted(listed) == sorted(self.known), f"{listed} are listed, not {list(self.known)}"

    def whole(self):
        for name, known in self.known.items():
            self.same(name, (self.here / name).read_bytes(), known)

    DEEDS = ((create, 8), (create_again, 1), (close, 5), (sync, 4), (write, 14), (read, 12), (truncate, 4), (map, 5), (unlink, 2),
             (rename, 3), (link, 2), (look, 4), (whole, 3))  # fmt: skip


#: The most bytes before which such a file is written.
LARGEST = 2 << 20


def files(work):
    """Some random operations; in the end everything is closed, and compared at the server."""
    work.result = work.result or ""
    model = work.model = getattr(work, "model", None) or Files(work)
    deeds, weights = zip(*Files.DEEDS)
    try:
        for deed in work.random.choices(deeds, weights, k=40):
            if model.open or deed is not Files.close:
                deed(model)
        while model.open:
            model.close()
    except AssertionError as error:
        raise AssertionError(f"{deed.__name__}: {error}") from error
    model.whole()
    for known in model.known.values():
        model.at_server(known, "all closes")


def fsx(work):
    """Random operations on one file, compared (the program of tests/external)."""
    program = work.tools / "fsx"
    if not program.exists():
        work.result = "not there: tests/external/run installs it"
        time.sleep(0.5)
        return
    config = Path(__file__).resolve().parents[1] / "external" / "fsx.toml"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(work.here / "fsx")
    work.run(program, "-q", "-f", config, "-N", "300", "-S", work.random.randrange(1 << 30), "-P", "/tmp", work.here / "fsx")


def fio(work):
    """Written blocks with checksums."""
    engine = work.random.choice(["psync", "mmap", "libaio --direct=1", "posixaio"]).split()
    said = work.run(
        "fio", "--output-format=json", "--name=v", "--directory=.", "--size=4m", "--rw=randwrite", "--bsrange=4k-64k", "--verify=crc32c",
        "--verify_fatal=1", "--end_fsync=1", "--thread", "--unlink=1", f"--randseed={work.random.randrange(1 << 30)}",
        f"--ioengine={engine[0]}", *engine[1:],
    )  # fmt: skip
    job = json.loads(said[said.index("{") :])["jobs"][0]
    for way in ("read", "write", "sync"):
        work.longest = max(work.longest, (job[way]["lat_ns"].get("max", 0) / 1e9, way))


def git(work):
    """A repository with commits, and its clone."""
    top = work.fresh("repository")
    who = ("-c", "user.name=n", "-c", "user.email=e@example.com", "-c", "core.fsync=all", "-c", "gc.auto=0")
    work.run("git", "init", "-q", where=top)
    for number in range(3):
        for file in range(10):
            (top / f"f{file}").write_bytes(work.random.randbytes(3000))
        work.run("git", *who, "add", ".", where=top)
        work.run("git", *who, "commit", "-qm", f"{number}", where=top)
    clone = work.fresh("clone")
    work.run("git", *who, "clone", "-q", "--no-local", top, clone)
    for each in (top, clone):
        work.run("git", "fsck", "--strict", where=each)
        assert work.run("git", "status", "--porcelain", where=each) == ""
    assert len(work.run("git", "log", "--oneline", where=clone).splitlines()) == 3


def sqlite(work):
    """Transactions, of which each is there once as it was confirmed."""
    known = work.result = work.result or {"rows": 0}
    base = sqlite3.connect(work.here / "db", timeout=LIMIT, isolation_level=None)
    try:
        base.execute("create table if not exists t (n integer primary key, v blob)")
        # What was told to be lost may have been committed all the same.
        count, = base.execute("select count(*) from t").fetchone()
        assert known["rows"] <= count <= known["rows"] + known.pop("perhaps", 0), f"{count} rows, not {known['rows']}"
        known["rows"], known["perhaps"] = count, 3
        work.call(base.execute, "begin immediate")
        for row in range(count, count + 3):
            base.execute("insert into t values (?, ?)", (row, work.random.randbytes(1000)))
        work.call(base.execute, "commit")
        known["rows"], known["perhaps"] = count + 3, 0
        if work.random.random() < 0.2:
            assert base.execute("pragma integrity_check").fetchone() == ("ok",)
    except sqlite3.OperationalError as error:
        if "disk I/O error" not in str(error):
            raise
        raise Told(str(error)) from error
    finally:
        base.close()


def count(work, lock):
    """Adds 1 to the number in a file that others count in, under a lock."""
    file = os.open(work.here.parent / f"{work.name.partition('-')[0]}.count", os.O_RDWR | os.O_CREAT)
    try:
        work.call(lock, file, fcntl.LOCK_EX)
        number = int(os.pread(file, 100, 0) or b"0") + 1
        while True:
            try:
                os.pwrite(file, b"%020d" % number, 0)
                os.fsync(file)
                break
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                work.told += 1
        lock(file, fcntl.LOCK_UN)
    finally:
        with contextlib.suppress(OSError):
            os.close(file)
    work.result = (work.result or 0) + 1
    time.sleep(work.random.random() / 50)


def flock(work):
    """Counts under a lock of flock(2)."""
    count(work, fcntl.flock)


def posix(work):
    """Counts under a lock of fcntl(2)."""
    count(work, fcntl.lockf)


def held(work):
    """A lock that is held all the time, which nobody else gets."""
    if work.result is None:
        work.files = [open(top / "held", "ab") for top in (work.here, work.there)]  # noqa: SIM115
        fcntl.lockf(work.files[0], fcntl.LOCK_EX, 100, 50)
        work.result = ""
    try:
        work.call(fcntl.lockf, work.files[1], fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 100)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
    else:
        raise AssertionError("the lock was given to somebody else")
    work.call(fcntl.lockf, work.files[1], fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 10)
    fcntl.lockf(work.files[1], fcntl.LOCK_UN, 10, 10)
    time.sleep(0.02)


LOADS = {f.__name__: f for f in (pulse, names, reads, writes, mapped, files, fsx, fio, git, sqlite, flock, posix, held)}
#: Those that are about locks, of which some run on each mount.
LOCKS = {"flock": 2, "posix": 2, "held": 1}


def main(load, name, *words):
    """Makes rounds until the input ends. Prints a line for each second in which there were some, and a last one."""
    work, over = Work(name, *words), threading.Event()
    work.here.mkdir()

    def listen():
        sys.stdin.read()
        over.set()

    threading.Thread(target=listen, daemon=True).start()
    said, failure = 0.0, None
    try:
        while not over.is_set():
            try:
                LOADS[load](work)
                work.rounds += 1
            except Told:
                work.told += 1
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                work.told += 1
            if time.monotonic() > said + 1:
                said = time.monotonic()
                print(json.dumps({"rounds": work.rounds}), flush=True)
        for file in work.files:
            file.close()
        work.remove(work.here)
    except BaseException as error:  # noqa: BLE001
        failure = f"{type(error).__name__}: {error}"
    seconds, call = work.longest
    print(json.dumps({"rounds": work.rounds, "told": work.told, "longest": seconds, "call": call, "result": work.result,
                      "failure": failure, "over": True}), flush=True)  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
