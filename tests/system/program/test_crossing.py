"""Effects of two overlapping operations on each other, on one mount or with another one: each must act as if it were
alone."""

import ctypes
import fcntl
import mmap
import os
import select
import socket
import subprocess
import sys

import pytest

from program.lock_support import WRITE as LOCK
from program.lock_support import LockServer, Process
from program.support import *  # noqa: F403
from program.users import User, by

MIB = 1 << 20


def aligned(data):
    """The same bytes in memory that is aligned to a page."""
    memory = mmap.mmap(-1, len(data))
    memory.write(data)
    return memory


def pattern(size, seed):
    return b"".join(b"%d %07d\n" % (seed, n) for n in range(size // 10))[:size].ljust(size, b".")


@pytest.mark.parametrize("how", ["opened", "set later"])
def test_a_direct_append_of_several_requests_is_whole(how):
    """The kernel sends all requests of one write(2) at once if O_DIRECT was set after open(2)."""
    with scripted("--delay", "WRITE=30") as (server, _):
        server.mount_well()
        path, there, expected = server.mnt / "f", server.export / "f", b""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        with opening(path, flags | (os.O_DIRECT if how == "opened" else 0), 0o666) as file:
            if how == "set later":
                fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND | os.O_DIRECT)
            for turn in range(3):
                data = pattern(4 * MIB + turn * 4096, turn)
                assert os.write(file, aligned(data)) == len(data)
                expected += data
                assert there.stat().st_size == len(expected), turn
        assert there.read_bytes() == expected


def test_a_direct_append_goes_to_the_end_that_another_mount_has_left():
    with LockServer() as server:
        a, b = (os.open(point / "f", os.O_RDWR | os.O_APPEND | os.O_DIRECT | os.O_CREAT, 0o666)
                for point in server.mounts())
        there, expected = server.export / "f", b""
        try:
            for turn in range(6):
                file = (a, b)[turn % 2]
                data = pattern((3 * MIB, 4096)[turn // 3], turn)
                fcntl.flock(file, fcntl.LOCK_EX)
                assert os.write(file, aligned(data)) == len(data)
                fcntl.flock(file, fcntl.LOCK_UN)
                expected += data
                assert there.stat().st_size == len(expected), turn
        finally:
            os.close(a)
            os.close(b)
        assert there.read_bytes() == expected


def test_a_direct_append_does_not_take_the_place_of_a_killed_program_s():
    killed, kept = pattern(4096, 1), pattern(4096, 2)
    code = "import mmap, os, sys; m = mmap.mmap(-1, 4096); m.write(sys.argv[2].encode());" \
        " os.write(os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_DIRECT), m)"
    with scripted() as (server, command):
        server.mount_well()
        there, seen = server.export / "f", server.mnt / "f"
        there.write_bytes(b"")
        with held(command, "hold WRITE 1"):
            with running(sys.executable, "-c", code, seen, killed.decode()):
                command(f"wait-held 1 {LIMIT * 1000}")
            file = os.open(seen, os.O_WRONLY | os.O_APPEND | os.O_DIRECT)
            append = Call(os.write, file, aligned(kept))
            # There is no condition to wait for: the append writes to the wrong place, or waits.
            append.join(0.3)
        assert append.end() == len(kept)
        os.close(file)
        assert there.read_bytes() in (killed + kept, kept)


@pytest.mark.parametrize("direct", [0, os.O_DIRECT], ids=["buffered", "direct"])
def test_a_killed_program_s_direct_write_does_not_go_over_what_is_written_there_later(direct):
    code = "import mmap, os, sys; m = mmap.mmap(-1, 4096); m.write(b'k' * 4096);" \
        " os.pwritev(os.open(sys.argv[1], os.O_WRONLY | os.O_DIRECT), [m], 0)"
    with scripted() as (server, command):
        server.mount_well()
        there, seen = server.export / "f", server.mnt / "f"
        there.write_bytes(b"o" * 8192)
        with held(command, "hold WRITE 1"):
            with running(sys.executable, "-c", code, seen):
                command(f"wait-held 1 {LIMIT * 1000}")
            file = os.open(seen, os.O_WRONLY | direct)
            later = Call(lambda: (os.pwritev(file, [aligned(b"n" * 4096)], 0), os.fsync(file)))
            # It is done before the other one, or waits for it.
            later.join(0.5)
        assert later.end() == (4096, None)
        os.close(file)
        # The killed program's WRITE is over when the mount is gone.
        expect(nfsrdma("umount", server.mnt), 0)
        assert there.read_bytes() == b"n" * 4096 + b"o" * 4096


def test_an_append_that_waits_for_a_truncation_follows_it():
    record = pattern(4096, 1)
    with scripted() as (server, command):
        server.mount_well()
        path = server.mnt / "log"
        (server.export / "log").write_bytes(b"o" * 10_000)
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            assert os.fstat(file).st_size == 10_000
            command("hold SETATTR")
            cut = Call(lambda: os.close(os.open(path, os.O_WRONLY | os.O_TRUNC)))
            command(f"wait-held 1 {LIMIT * 1000}")
            append = Call(os.write, file, record)
            until(lambda: event(server, "write_waits") > 0, "the append to wait")
            command("release")
            assert (cut.end(), append.end()) == (None, len(record))
            os.fsync(file)
        finally:
            command("clear")
            os.close(file)
        assert (server.export / "log").read_bytes() == record


def test_data_are_written_while_another_file_s_do_not_get_there():
    """dirty_age applies to each file."""
    with scripted() as (server, command):
        server.mount_well()
        stuck, other = (open(server.mnt / name, "wb", buffering=0) for name in ("stuck", "other"))
        try:
            command("hold WRITE 1")
            stuck.write(b"stuck")
            command(f"wait-held 1 {LIMIT * 1000}")
            other.write(b"other")
            until(lambda: (server.export / "other").read_bytes() == b"other", "what is old to be written")
            assert (server.export / "stuck").read_bytes() == b""
        finally:
            command("clear")
            stuck.close()
            other.close()


def test_a_file_opened_for_direct_appends_can_be_mapped():
    with Server() as server:
        server.mount_well()
        (server.export / "f").write_bytes(b"a" * 8192)
        reads = os.open(server.mnt / "f", os.O_RDONLY | os.O_APPEND | os.O_DIRECT)
        with mmap.mmap(reads, 8192, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
            assert mapped[4096:] == b"a" * 4096
        os.close(reads)
        writes = os.open(server.mnt / "f", os.O_RDWR | os.O_APPEND | os.O_DIRECT)
        with mmap.mmap(-1, 4096) as memory:
            memory[:] = b"b" * 4096
            assert os.write(writes, memory) == 4096
        with mmap.mmap(writes, 12288, mmap.MAP_SHARED) as mapped:
            assert mapped[8191:8193] == b"ab"
            mapped[:5] = b"first"
            mapped.flush()
        os.close(writes)
        assert (server.export / "f").read_bytes() == b"first" + b"a" * 8187 + b"b" * 4096


def test_a_directory_is_removed_while_a_hidden_file_of_another_one_is():
    with scripted() as (server, command):
        server.mount_well()
        # In two directories, because the kernel serialises removals in one.
        for name in ("a", "of-b", "of-b/b"):
            (server.mnt / name).mkdir()
        file = os.open(server.mnt / "a/f", os.O_WRONLY | os.O_CREAT)
        os.unlink(server.mnt / "a/f")
        command("hold REMOVE 1")
        os.close(file)
        command(f"wait-held 1 {LIMIT * 1000}")
        other = Call(os.rmdir, server.mnt / "of-b/b")
        same = Call(os.rmdir, server.mnt / "a")
        try:
            assert other.end() is None
            assert same.is_alive(), "the hidden name is still there"
        finally:
            command("clear")
        assert same.end() is None
        assert os.listdir(server.export) == ["of-b"] and not os.listdir(server.export / "of-b")


@pytest.mark.parametrize("noticed", [False, True])
def test_a_rename_of_what_another_has_put_in_the_place_moves_that(noticed):
    """A name that was looked up here, and then replaced at the server."""
    with scripted() as (server, _):
        server.mount_well()
        for turn, (old, new) in enumerate((("D1", "D2"), ("D1", "D1"))):
            for name in {old, new}:
                (server.export / name).mkdir(exist_ok=True)
            source, target = f"{old}/a{turn}", f"{new}/b{turn}"
            (server.export / source).write_bytes(b"A")
            (server.export / f"{old}/c").write_bytes(b"B")
            assert (server.mnt / source).read_bytes() == b"A"
            os.rename(server.export / source, server.export / f"{old}/old{turn}")
            os.rename(server.export / f"{old}/c", server.export / source)
            if noticed:
                # The kernel is notified a little later.
                os.close(os.open(server.mnt / old, os.O_RDONLY))
            os.rename(server.mnt / source, server.mnt / target)
            # Another thread notifies the kernel.
            until(lambda: (server.mnt / target).read_bytes() == b"B", "what was moved", 5)
            (server.mnt / target).write_bytes(b"new")
            found = [(server.export / name).read_bytes() for name in (target, f"{old}/old{turn}")]
            assert found == [b"new", b"A"], found


@pytest.mark.parametrize("was", ["absent", "there"])
def test_a_look_up_that_a_change_overtook_is_not_believed(was):
    """The change is noticed while a LOOKUP reply from before it is on its way."""
    with scripted() as (server, command):
        server.mount_well()
        there, seen = server.export / "d/x", server.mnt / "d/x"
        there.parent.mkdir()
        if was == "there":
            there.write_bytes(b"old")
        os.stat(seen.parent)
        command("hold-reply LOOKUP 1")
        look = Call(os.path.exists, seen)
        try:
            command(f"wait-held 1 {LIMIT * 1000}")
            if was == "there":
                there.rename(there.with_name("y"))
            else:
                there.write_bytes(b"new")
            # Opening the directory asks the server. (Listing it would wait for the name.)
            os.close(os.open(seen.parent, os.O_RDONLY))
        finally:
            command("clear")
            command("release")
        # The kernel may have asked again at once.
        look.end()
        assert seen.exists() is (was == "absent")


def test_locks_go_with_a_mount_that_is_aborted():
    """umount -f, while a process holds a lock and another one waits for it."""
    with LockServer() as server:
        (point,) = server.mounts(1)
        (server.export / "f").write_bytes(b"x")
        with Process() as holder, Process() as waiter:
            for process in (holder, waiter):
                assert process.do("open", "f", str(point / "f")) == 0
            assert holder.set("f", LOCK) == 0
            waiter.wait_for("f", LOCK)
            until(lambda: "held:" in server.control("locks"), "the lock at the server")
            # It is busy until the process that has it open is gone.
            nfsrdma("umount", "-f", point)
        until(lambda: not mounted(point) or nfsrdma("umount", "-f", point).returncode == 0, "the end of the mount")
        until(lambda: not servers_of(point), "the end of the serving process")
        assert "held:" not in server.control("locks"), server.control("locks")


def resident(pid):
    return int(next(line.split()[1] for line in open(f"/proc/{pid}/status") if line.startswith("VmRSS:"))) >> 10


def test_seeking_in_a_directory_takes_no_memory():
    with scripted() as (server, _):
        folder = server.export / "d"
        folder.mkdir()
        for number in range(20_000):
            (folder / f"a-name-of-some-length-{number:06}").touch()
        server.mount_well()
        libc = ctypes.CDLL(None, use_errno=True)
        libc.opendir.restype = ctypes.c_void_p
        libc.telldir.restype = ctypes.c_long
        for name in ("readdir", "telldir", "seekdir", "closedir", "readdir64"):
            getattr(libc, name).argtypes = [ctypes.c_void_p] + [ctypes.c_long] * (name == "seekdir")
        libc.readdir.restype = ctypes.c_void_p
        stream = libc.opendir(os.fsencode(server.mnt / "d"))
        places = []
        for number in range(15_000):
            assert libc.readdir(stream)
            if number in (4_000, 12_000):
                places.append(libc.telldir(stream))
        (pid,) = servers_of(server.mnt)
        before = None
        for turn in range(2_000):
            libc.seekdir(stream, places[turn % 2])
            assert libc.readdir(stream)
            if turn == 100:
                before = resident(pid)
        grown = resident(pid) - before
        libc.closedir(stream)
        assert grown < 4, f"{grown} MiB more"


def opened_by(user, path, flags):
    """A descriptor that was opened by another user."""
    here, there = socket.socketpair()
    with here, there:
        by(user, lambda: socket.send_fds(there, [b"x"], [os.open(path, flags, 0o666)]))
        _, (file,), _, _ = socket.recv_fds(here, 1, 1)
    return file


def test_closing_what_another_user_has_opened_flushes_it():
    """`sudo command >file` on a mount that is for its user only: root gets the descriptor, uses and closes it."""
    root()
    needs("fusermount3")
    if Path("/dev/fuse").stat().st_mode & 0o006 != 0o006:
        return with_open_device("test_closing_what_another_user_has_opened_flushes_it")
    with Server() as server:
        os.chown(server.mnt, NOBODY, NOBODY)
        expect(as_nobody(BIN / "nfsrdma", "mount", server.spec, server.mnt, "-o", server.options()), 0)
        file = opened_by(User(NOBODY, NOBODY), server.mnt / "f", os.O_RDWR | os.O_CREAT)
        try:
            assert os.write(file, b"written by root") == 15
            # As dup2(2) and the end of a process do.
            os.close(os.dup(file))
            assert (server.export / "f").read_bytes() == b"written by root"
            assert os.lseek(file, 0, os.SEEK_HOLE) == 15
            fcntl.lockf(file, fcntl.LOCK_EX)
            # As cat(1) does, and programs that wait for their standard input.
            other = opened_by(User(NOBODY, NOBODY), server.mnt / "copy", os.O_RDWR | os.O_CREAT)
            assert os.copy_file_range(file, other, 15, 0) == 15
            os.close(other)
            assert (server.export / "copy").read_bytes() == b"written by root"
            ready = select.poll()
            ready.register(file, select.POLLIN)
            assert ready.poll(60_000) == [(file, select.POLLIN)]
        finally:
            os.close(file)
        expect(as_nobody(BIN / "nfsrdma", "umount", server.mnt), 0)
        server.ended()


def test_a_file_in_an_epoll_set_is_always_ready(mount):
    """FUSE cannot refuse epoll_ctl(2), as file systems of the kernel do. A program that therefore waits for readiness (Go's
    library) must be told of it, for each descriptor and at the end of the file, too."""
    (mount / "f").write_bytes(b"hello")
    files = [os.open(mount / "f", os.O_RDWR | os.O_NONBLOCK) for _ in range(2)]
    both = select.EPOLLIN | select.EPOLLOUT
    with select.epoll() as ready, select.epoll() as edges:
        for file in files:
            ready.register(file, both)
            edges.register(file, both | select.EPOLLET)
        for expected in (b"hello", b""):
            # A time-out would make the list empty.
            assert sorted(ready.poll(60)) == [(file, both) for file in sorted(files)]
            for file in files:
                assert os.read(file, 10) == expected
        assert sorted(edges.poll(60)) == [(file, both) for file in sorted(files)]
    for file in files:
        os.close(file)


def test_mapped_pages_do_not_come_back_behind_a_truncation():
    """The kernel sends pages of a mapping while another program truncates the file by open(2)."""
    code = "import mmap, os, sys; m = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 8192); m[4096] = 109;" \
        " print(flush=True); sys.stdin.readline(); m.flush(); sys.stdin.readline()"
    with scripted() as (server, command):
        there, seen = server.export / "f", server.mnt / "f"
        there.write_bytes(b"o" * 8192)
        server.mount_well()
        with running(sys.executable, "-c", code, seen, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one:
            assert one.stdout.readline() == b"\n"
            with held(command, "hold SETATTR 1"):
                cut = Call(lambda: os.close(os.open(seen, os.O_WRONLY | os.O_TRUNC)))
                command(f"wait-held 1 {LIMIT * 1000}")
                before = event(server, "write_waits")
                one.stdin.write(b"\n")
                one.stdin.flush()
                until(lambda: event(server, "write_waits") > before, "pages that wait for the truncation")
            cut.end()
            one.communicate(b"\n", LIMIT)
            assert one.returncode == 0
        assert (seen.stat().st_size, there.read_bytes()) == (0, b"")


# Writes its own parts of a file in turns by write(2) and by a mapping, and reads them in both ways: FILE, NUMBER, OPERATIONS.
OWNER = """
import mmap, os, random, sys
name, number, operations = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
LEN, PARTS, OWNERS = 1000, 60, 6
chosen = random.Random(number)
file = os.open(name, os.O_RDWR)
mapped = mmap.mmap(file, LEN * PARTS)
known = {part: bytearray(LEN) for part in range(number, PARTS, OWNERS)}
for _ in range(operations):
    turn = chosen.random()
    if turn < .05:
        os.fsync(file)  # Others' data is flushed.
    elif turn < .1:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    part, start = chosen.choice(list(known)), chosen.randrange(LEN)
    at, end = part * LEN + start, min(LEN, start + chosen.choice((1, 10, 100, LEN)))
    by_mapping = chosen.random() < .5
    if chosen.random() < .5:
        data = bytes([chosen.randrange(1, 256)]) * (end - start)
        if by_mapping:
            mapped[at:at + len(data)] = data
        else:
            assert os.pwrite(file, data, at) == len(data)
        known[part][start:end] = data
    else:
        seen = mapped[at:at + end - start] if by_mapping else os.pread(file, end - start, at)
        if seen != known[part][start:end]:
            sys.exit(f"process {number}, bytes {at} to {at + end - start}, by mapping {by_mapping}: not what it wrote")
"""


def test_processes_that_share_pages_lose_nothing_of_write_and_of_mappings():
    """Each process owns bytes of pages in which others have theirs. None opens the file anew, which may drop pages (COHERENCE.md,
    "A READ after a WRITE")."""
    with Server() as server:
        there, seen = server.export / "f", server.mnt / "f"
        there.write_bytes(bytes(60 * 1000))
        server.mount_well("cache=16M,dirty=1M,rsize=4096")
        owners = [subprocess.Popen([sys.executable, "-c", OWNER, seen, str(number), "8000"], stderr=subprocess.PIPE, text=True)
                  for number in range(6)]
        try:
            said = [owner.communicate(timeout=LIMIT)[1] for owner in owners]
        finally:
            for owner in owners:
                owner.kill()
                owner.wait()
        assert said == [""] * 6


def test_a_cut_that_is_learned_during_a_write_takes_no_more_than_the_rest_of_a_page():
    """Linux cuts its pages to the new size, also the page that a write(2) has just filled and not yet sent (COHERENCE.md,
    "What remains"). The write stands still while the second half of its data is read, from another mount."""
    cut, start, page, end = 48197, 11003, 49152, 145230
    with Server() as server, scripted() as (source, command):
        (server.export / "f").write_bytes(b"o" * 856896)
        (source.export / "data").write_bytes(b"h" * (end - page))
        server.mount_well("nolock,noac")
        source.mount_well("nolock")
        with opening(server.mnt / "f", os.O_RDWR) as file, opening(source.mnt / "data", os.O_RDONLY) as data:
            assert os.pread(file, 856896, 0) == b"o" * 856896
            with mmap.mmap(data, end - page, prot=mmap.PROT_READ) as later:
                parts = [b"h" * (page - start), later]
                with held(command, "hold READ 1"):
                    os.truncate(server.export / "f", cut)
                    writer = Call(lambda: os.pwritev(file, parts, start))
                    command(f"wait-held 1 {LIMIT * 1000}")
                    assert (server.mnt / "f").stat().st_size == cut
                assert writer.end() == end - start
            os.fsync(file)
        found = (server.export / "f").read_bytes()
        assert found[:cut] == b"o" * start + b"h" * (cut - start)
        assert found[cut:page] in (b"h" * (page - cut), bytes(page - cut))
        assert found[page:] == b"h" * (end - page)
