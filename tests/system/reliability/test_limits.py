"""Limits: open files, descriptors, memory, processes, calls that nobody waits for any more."""

import os
import resource
import shutil

from reliability.support import LIMIT, READY, Setup, begin, pattern, ready, run, state, until

#: Callers that are killed while the server is silent: processes per round, rounds, and rounds after which the server
#: answers.
CALLERS, TIMES, SILENT = 100, 20, 5


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_open_files(files, record_property):
    """The client needs no descriptor for an open file. The limits of a process determine how many processes open them."""
    with Setup() as setup:
        names = min(files, 2000)
        for i in range(names):
            (setup.export / f"f{i}").write_text(f"file {i}")
        before = descriptors(setup.client)
        each = min(files, resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 100, 10000)
        children = [
            setup.helper(
                "import resource\n"
                "first, end, names = map(int, sys.argv[2:5])\n"
                "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
                "resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))\n"
                "files = [(i % names, os.open(f'{sys.argv[1]}/f{i % names}', os.O_RDONLY)) for i in range(first, end)]\n"
                f"{READY}"
                "for i, f in files[::97]: assert os.pread(f, 100, 0) == b'file %d' % i, i\n"
                "print('read', flush=True)\n"
                "sys.stdin.readline()\n"
                "for i, f in files[::97]: assert os.pread(f, 100, 0) == b'file %d' % i, i\n"
                "for _, f in files: os.close(f)\n"
                "print('closed', flush=True)",
                first, min(first + each, files), names,
            )
            for first in range(0, files, each)
        ]  # fmt: skip
        for child in children:
            ready(child)
        open_now = descriptors(setup.client)
        assert open_now <= before + 4, f"{before} descriptors before, {open_now} with {files} files open"
        for child in children:
            begin(child)
            assert child.stdout.readline() == "now\n"
            assert child.stdout.readline() == "read\n", child.stderr.read()
        # They stay open over a restart of the server.
        setup.kill()
        setup.start()
        for child in children:
            begin(child)
        for child in children:
            assert child.stdout.readline() == "closed\n", child.stderr.read()
        setup.quiet()
        record_property("result", f"{files} files open in {len(children)} processes, {open_now} descriptors")


def test_descriptors_exhausted():
    """A client that gets no descriptor cannot reconnect. When it gets one, it does, and nothing is lost."""
    with Setup(",timeo=10,noac") as setup:
        (setup.mnt / "f").write_text("x")
        file = os.open(setup.mnt / "g", os.O_RDWR | os.O_CREAT)
        try:
            os.write(file, b"kept")
            limit = run("prlimit", "--pid", setup.client, "--nofile", "--noheadings", "-o", "SOFT,HARD").stdout.split()
            assert run("prlimit", "--pid", setup.client, f"--nofile=3:{limit[1]}").returncode == 0
            setup.kill()
            setup.start()
            child = setup.helper(f"{READY}print(os.stat(sys.argv[1] + '/f').st_size, flush=True)")
            ready(child)
            begin(child)
            assert child.stdout.readline() == "now\n"
            until(lambda: "not responding" in setup.log(), "that it cannot connect")
            assert child.poll() is None
            assert run("prlimit", "--pid", setup.client, f"--nofile={limit[0]}:{limit[1]}").returncode == 0
            assert child.stdout.readline() == "1\n", child.stderr.read()
            os.fsync(file)
        finally:
            os.close(file)
        assert (setup.export / "g").read_bytes() == b"kept"
        setup.quiet()


def test_memory_short():
    """Many writers and readers with the smallest cache: all wait for their turn, and all get their data."""
    with Setup(",cache=16M,dirty=1M,readahead=8M") as setup:
        code = (
            "import random, hashlib\n"
            "data = random.Random(int(sys.argv[2])).randbytes(6 << 20)\n"
            "path = f'{sys.argv[1]}/f{sys.argv[2]}'\n"
            "for _ in range(2):\n"
            "    with open(path, 'wb') as f:\n"
            "        for at in range(0, len(data), 100000): f.write(data[at:at + 100000])\n"
            "    assert open(path, 'rb').read() == data\n"
            "print('same', flush=True)"
        )
        children = [setup.helper(code, i) for i in range(20)]
        for child in children:
            child.wait(4 * LIMIT)
            assert child.stdout.read() == "same\n", child.stderr.read()
        for i in range(20):
            assert (setup.export / f"f{i}").read_bytes() == pattern(6 << 20, i)
        setup.quiet()


def test_reads_that_are_put_off_leave_memory_to_others():
    """The server puts all READs off (JUKEBOX), as for files that are on tape. More programs read than the pool has memory
    for; others write all the same. When the server gives the data, all get theirs."""
    readers, size = 96, 1 << 20
    with Setup(",cache=16M", ["--fail", "READ=JUKEBOX"]) as setup:
        (setup.export / "f").write_bytes(pattern(readers * size, 1))
        # With O_DIRECT each makes one READ of all that it wants.
        code = (
            "import threading\n"
            f"size, data = {size}, mmap.mmap(-1, {readers * size})\n"
            "f = os.open(sys.argv[1] + '/f', os.O_RDONLY | os.O_DIRECT)\n"
            "def read(n):\n"
            "    assert os.preadv(f, [memoryview(data)[n * size:(n + 1) * size]], n * size) == size\n"
            f"all = [threading.Thread(target=read, args=(n,)) for n in range({readers})]\n"
            "for thread in all: thread.start()\n"
            "for thread in all: thread.join()\n"
            "sys.stdout.buffer.write(data)"
        )
        reader = setup.helper(code)
        # All memory is taken, or all READs are put off.
        pool = setup.stats()["limits"]["pool_bytes"]
        assert pool < readers * size, pool
        until(lambda: setup.calls("READ") >= readers, "READs that are put off")
        writer = setup.helper(
            "f = os.open(sys.argv[1] + '/new', os.O_WRONLY | os.O_CREAT)\n"
            f"for _ in range(8): assert os.write(f, b'w' * {size}) == {size}\n"
            "os.fsync(f)"
        )
        assert writer.wait(LIMIT) == 0, writer.stderr.read()
        assert (setup.export / "new").read_bytes() == b"w" * (8 * size)
        setup.restart()
        with open(setup.base / "read", "wb") as file:
            shutil.copyfileobj(reader.stdout.buffer, file)
        assert reader.wait(4 * LIMIT) == 0, reader.stderr.read()
        assert (setup.base / "read").read_bytes() == pattern(readers * size, 1)
        setup.quiet()


def test_more_callers_than_buffers(callers):
    """The server is silent while thousands of threads ask for the target of a link. None of them fails, and data that a
    program then writes through the cache is kept."""
    threads, size = min(callers, 1000), 4 << 20
    processes = callers // threads
    with Setup(",cache=16M,dirty=8M,actimeo=3600") as setup:
        for n in range(processes * threads):
            (setup.export / f"link{n}").symlink_to(f"target{n}")
        cached = setup.helper(
            "f = os.open(sys.argv[1] + '/cached', os.O_WRONLY | os.O_CREAT)\n"
            f"{READY}"
            f"assert os.write(f, b'c' * {size}) == {size}\n"
            "os.fsync(f)\n"
            "print('kept', flush=True)"
        )
        ready(cached)
        code = (
            "import threading\n"
            f"links = range(int(sys.argv[2]) * {threads}, (int(sys.argv[2]) + 1) * {threads})\n"
            "for n in links: os.lstat(f'{sys.argv[1]}/link{n}')\n"
            "threading.stack_size(64 << 10)\n"
            "said = []\n"
            "def ask(n):\n"
            "    try: said.append(os.readlink(f'{sys.argv[1]}/link{n}') == f'target{n}')\n"
            "    except OSError as error: said.append(error.strerror)\n"
            f"{READY}"
            "all = [threading.Thread(target=ask, args=(n,)) for n in links]\n"
            "for thread in all: thread.start()\n"
            "print('asked', flush=True)\n"
            "for thread in all: thread.join()\n"
            "print({s: said.count(s) for s in said}, flush=True)"
        )
        children = [setup.helper(code, i) for i in range(processes)]
        for child in children:
            ready(child)
        setup.pause()
        for child in children:
            begin(child)
        for child in children:
            assert child.stdout.readline() == "now\n"
            assert child.stdout.readline() == "asked\n"
        begin(cached)
        assert cached.stdout.readline() == "now\n"
        until(lambda: state(cached.pid) in "DS", "an fsync that waits")
        setup.go_on()
        cached.wait(4 * LIMIT)
        assert cached.stdout.read() == "kept\n", cached.stderr.read()
        for child in children:
            child.wait(4 * LIMIT)
            assert child.stdout.read() == f"{{True: {threads}}}\n", child.stderr.read()
        assert (setup.export / "cached").read_bytes() == b"c" * size
        setup.quiet()


#: Starts callers for each line that it reads. Prints when all of them wait, and when all are gone after they were killed.
#: Their files are open before, one for each caller: two callers of one file would wait for each other in the kernel.
CALL = """
top, many = sys.argv[1], int(sys.argv[2])
size = 65536
# Private: each caller has its own after fork.
data = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
files = [os.open(f'{top}/f{i}', os.O_RDWR | os.O_DIRECT) for i in range(many)]
folders = [os.open(f'{top}/d{i}', os.O_RDONLY) for i in range(many)]
deeds = [
    lambda i, time: os.preadv(files[i], [data], 0),
    lambda i, time: os.pwrite(files[i], data, size),
    lambda i, time: os.fstat(files[i]),
    lambda i, time: os.listdir(folders[i]),
    lambda i, time: os.stat(f'{top}/none.{time}.{i}'),
]
def letter(pid):
    with open(f'/proc/{pid}/stat') as file: return file.read().rpartition(')')[2].split()[0]
print('ready', flush=True)
for line in sys.stdin:
    time_ = int(line)
    pids = []
    for i in range(many):
        data[:] = b'%08d' % (time_ * many + i) * (size // 8)
        pid = os.fork()
        if pid == 0:
            try: deeds[i % len(deeds)](i, time_)
            except OSError: pass
            os._exit(7)
        pids.append(pid)
    while not all(letter(pid) in 'DSZ' for pid in pids): time.sleep(0.01)
    for pid in pids: os.kill(pid, signal.SIGKILL)
    ends = {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids}
    print(sorted(ends), flush=True)
"""


def test_thousands_of_callers_killed(record_property):
    """Far more calls than credits, for which nobody waits any more: the connection survives, and all memory comes back."""
    names = ("connects", "violations", "rdma_errors")
    with Setup(",noac,lookupcache=none,cache=16M") as setup:
        old = [pattern(65536, i) for i in range(CALLERS)]
        for i in range(CALLERS):
            (setup.export / f"f{i}").write_bytes(old[i] * 2)
            (setup.export / f"d{i}").mkdir()
            (setup.export / f"d{i}" / f"in{i}").touch()
        child = setup.helper(CALL, CALLERS)
        ready(child)
        before = [setup.counter(n) for n in names]
        most = 0
        for time in range(TIMES):
            if time % SILENT == 0:
                setup.pause()
            begin(child, time)
            said = child.stdout.readline()
            # None got an answer or an error: each was killed while it waited.
            assert said == "[-9]\n", f"{said}{child.stderr.read() if not said else ''}"
            most = max(most, setup.counter("open_registrations"))
            if time % SILENT == SILENT - 1:
                setup.go_on()
                setup.quiet()
        assert most > 0, "no call was under way"
        # It is the same connection, and the server has seen no error.
        assert [setup.counter(n) for n in names] == before, [setup.counter(n) for n in names]
        written = 0
        for i in range(CALLERS):
            whole = (setup.mnt / f"f{i}").read_bytes()
            assert whole == (setup.export / f"f{i}").read_bytes() and whole[:65536] == old[i], i
            # The data of a killed caller's write is there completely, or not at all.
            now = whole[65536:]
            if now != old[i]:
                assert i % 5 == 1 and now == now[:8] * 8192, i
                assert int(now[:8]) in range(i, TIMES * CALLERS, CALLERS), now[:8]
                written += 1
            assert os.listdir(setup.mnt / f"d{i}") == [f"in{i}"]
        assert written, "no WRITE reached the server"
        setup.quiet()
        # It ends at the end of its input, and closes its files.
        child.stdin.close()
        assert child.wait(LIMIT) == 0, child.stderr.read()
        child.stdin = None
        result = setup.unmount()
        assert result.returncode == 0, result.stderr
        setup.client_ended()
        record_property("result", f"{TIMES * CALLERS} killed, up to {most} registrations at a time, {written} of their files written")
