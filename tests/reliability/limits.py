"""Limits: open files, descriptors, memory, processes, calls nobody waits for."""

import os
import subprocess

from support import LIMIT, READY, Setup, begin, case, pattern, ready, run, state, until

#: Files held open at a time.
FILES = 10000


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


@case
def open_files():
    """The client needs no descriptor for an open file."""
    with Setup() as setup:
        names = min(FILES, 2000)
        for i in range(names):
            (setup.export / f"f{i}").write_text(f"file {i}")
        before = descriptors(setup.client)
        child = setup.helper(
            "import resource\n"
            "many, names = int(sys.argv[2]), int(sys.argv[3])\n"
            "resource.setrlimit(resource.RLIMIT_NOFILE, (many + 100, many + 100))\n"
            "files = [os.open(f'{sys.argv[1]}/f{i % names}', os.O_RDONLY) for i in range(many)]\n"
            f"{READY}"
            "for i in range(0, many, 97): assert os.pread(files[i], 100, 0) == b'file %d' % (i % names), i\n"
            "print('read', flush=True)\n"
            "sys.stdin.readline()\n"
            "for f in files: os.close(f)\n"
            "print('closed', flush=True)",
            FILES, names,
        )  # fmt: skip
        ready(child)
        open_now = descriptors(setup.client)
        assert open_now <= before + 4, f"{before} descriptors before, {open_now} with {FILES} files open"
        begin(child)
        assert child.stdout.readline() == "now\n"
        assert child.stdout.readline() == "read\n", child.stderr.read()
        # And they stay open over a restart of the server.
        setup.kill()
        setup.start()
        begin(child)
        assert child.stdout.readline() == "closed\n", child.stderr.read()
        setup.quiet()
        return f"{FILES} files open, {open_now} descriptors"


@case
def descriptors_exhausted():
    """A client that gets no descriptor cannot connect again; when it gets one, it does, and nothing is lost."""
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


@case
def memory_short():
    """Many writers and readers on the smallest cache: all wait for their turn, all get their data."""
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


@case
def a_thousand_processes():
    """All of them with a call under way at the same time, and each gets its own answer."""
    deed = 'echo "data $1" > "$0/n$1" && read -r line < "$0/n$1" && [ "$line" = "data $1" ] && mv "$0/n$1" "$0/m$1"'
    with Setup(",noac,lookupcache=none") as setup:
        setup.stop()
        children = [
            subprocess.Popen(["sh", "-c", deed, str(setup.mnt), str(i)], stderr=subprocess.PIPE) for i in range(1000)
        ]  # fmt: skip
        setup.helpers += children
        until(lambda: all(state(c.pid) in "DS" for c in children), "1000 processes that wait")
        setup.go_on()
        for child in children:
            assert child.wait(4 * LIMIT) == 0, child.stderr.read()
        assert sorted(os.listdir(setup.export)) == sorted(f"m{i}" for i in range(1000))
        for i in range(1000):
            assert (setup.export / f"m{i}").read_text() == f"data {i}\n"
        setup.quiet()
