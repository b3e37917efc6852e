#!/usr/bin/env python3
"""What a mounted NFSv3 export must do, whoever serves and whoever mounts it. Runs on the host and in the guest of interop.

    checks.py run DIR [NAME...]      the checks (all, or those named) in a fresh directory below DIR
    checks.py leave DIR              writes the data set and leaves it there
    checks.py sum DIR                one line per entry below DIR: type, mode, links, size, checksum or target
    checks.py fill DIR               a large directory DIR/many, made where that is quick
    checks.py listing DIR            lists DIR/many and compares
    checks.py list                   names of the checks

CHECK_ENTRIES, CHECK_BIG_MIB: sizes. CHECK_DROP=0 leaves the caches of the machine alone, where other tests count calls.

Exit status 0 when everything holds. Standard library only.
"""

import errno
import hashlib
import mmap
import os
import random
import stat
import sys
import threading
import time

MIB = 1 << 20
# Around every boundary that means something: pages, inline thresholds, rsize and wsize, XDR padding, several RPCs.
SIZES = sorted({0, 1, 2, 3, 5, 4096 * 7 + 1, 3 * MIB + 7} | {
    base + delta for base in (512, 1024, 4096, 65536, 131072, 262144, 524288, MIB) for delta in (-1, 0, 1)})
ENTRIES = int(os.environ.get("CHECK_ENTRIES", "20000"))
# Longer than what is read ahead or written at once.
BIG = int(os.environ.get("CHECK_BIG_MIB", "16")) * MIB
# How often each thread of `concurrent` writes and reads 700,000 bytes.
TURNS = 6
DROP = os.environ.get("CHECK_DROP", "1") == "1" and os.geteuid() == 0


def blob(size, seed):
    """Reproducible bytes in which no two blocks are alike."""
    return random.Random(seed).randbytes(size)


def same(got, wanted, what):
    if got != wanted:
        raise AssertionError(f"{what}: got {got!r:.200}, wanted {wanted!r:.200}")


def refused(code, what, call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        same(errno.errorcode.get(error.errno), errno.errorcode[code], what)
        return
    raise AssertionError(f"{what}: succeeded, wanted {errno.errorcode[code]}")


def write_file(path, data):
    """Write, fsync (COMMIT) and close."""
    with open(path, "wb", buffering=0) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view):]
        os.fsync(file.fileno())


def read_file(path):
    """Read past the page caches: the bytes must come from the server."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        parts = []
        while part := os.read(descriptor, MIB):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def drop_caches():
    if not DROP:
        return
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3\n")


def procedures(top):
    """Every NFSv3 procedure once, by the system call that causes it, with an expected error where there is one."""
    a, b = f"{top}/a", f"{top}/b"
    descriptor = os.open(a, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o640)  # CREATE, exclusive
    same(stat.S_IMODE(os.fstat(descriptor).st_mode), 0o640, "mode of an exclusive create")
    same(os.write(descriptor, b"hello"), 5, "WRITE")
    os.fsync(descriptor)  # COMMIT
    os.close(descriptor)
    refused(errno.EEXIST, "exclusive create of what is there", os.open, a, os.O_CREAT | os.O_EXCL)
    same(read_file(a), b"hello", "READ")
    os.close(os.open(b, os.O_CREAT | os.O_WRONLY, 0o600))  # CREATE, unchecked or guarded
    os.chmod(b, 0o4755)  # SETATTR
    same(stat.S_IMODE(os.stat(b).st_mode), 0o4755, "chmod")
    os.utime(b, ns=(1_000_000_007, 2_000_000_123))
    same(os.stat(b).st_mtime_ns, 2_000_000_123, "utimes")
    if os.geteuid() == 0:
        os.chown(b, 1234, 4321)
        same((os.stat(b).st_uid, os.stat(b).st_gid), (1234, 4321), "chown")
    os.truncate(a, 3)
    same(os.stat(a).st_size, 3, "truncate shorter")
    os.truncate(a, 10)
    same(read_file(a), b"hel" + bytes(7), "truncate longer")
    same(os.access(a, os.R_OK | os.W_OK), True, "ACCESS")
    refused(errno.ENOENT, "LOOKUP of nothing", os.stat, f"{top}/nothing")
    os.mkdir(f"{top}/d", 0o750)  # MKDIR
    refused(errno.EEXIST, "mkdir of what is there", os.mkdir, f"{top}/d")
    refused(errno.ENOTDIR, "LOOKUP below a file", os.stat, f"{a}/x")
    os.symlink("a", f"{top}/s")  # SYMLINK
    same(os.readlink(f"{top}/s"), "a", "READLINK")
    os.mkfifo(f"{top}/fifo", 0o600)  # MKNOD
    same(stat.S_ISFIFO(os.lstat(f"{top}/fifo").st_mode), True, "MKNOD")
    os.link(a, f"{top}/d/l")  # LINK
    same(os.stat(a).st_nlink, 2, "LINK")
    refused(errno.EEXIST, "link over what is there", os.link, a, b)
    os.rename(f"{top}/d/l", f"{top}/d/r")  # RENAME
    same(os.path.samefile(a, f"{top}/d/r"), True, "RENAME keeps the file")
    refused(errno.ENOTEMPTY, "rmdir of a full directory", os.rmdir, f"{top}/d")
    same(sorted(os.listdir(top)), ["a", "b", "d", "fifo", "s"], "READDIR")
    for entry in os.scandir(top):  # READDIRPLUS
        same(entry.stat(follow_symlinks=False).st_ino != 0, True, "READDIRPLUS attributes")
    space = os.statvfs(top)  # FSSTAT, PATHCONF
    same(space.f_blocks > 0 and space.f_namemax >= 255, True, f"FSSTAT {space}")
    os.unlink(f"{top}/d/r")  # REMOVE
    same(os.stat(a).st_nlink, 1, "REMOVE of one name")
    os.rmdir(f"{top}/d")  # RMDIR
    refused(errno.ENOENT, "rmdir of nothing", os.rmdir, f"{top}/d")
    refused(errno.ENAMETOOLONG, "a name of 256 bytes", os.mkdir, f"{top}/{'n' * 256}")
    os.mkdir(f"{top}/{'n' * 255}")


def sizes(top):
    """Files of every odd size, written, read back, overwritten in the middle, appended."""
    for size in SIZES:
        data = bytearray(blob(size, size))
        path = f"{top}/{size}"
        write_file(path, data)
        same(os.stat(path).st_size, size, f"size of {size}")
        if size > 8:
            with open(path, "r+b", buffering=0) as file:
                at = size // 2 - 1
                file.seek(at)
                file.write(b"\xa5\x5a\xff")
                data[at:at + 3] = b"\xa5\x5a\xff"
        with open(path, "ab", buffering=0) as file:
            file.write(b"tail")
        data += b"tail"
    drop_caches()
    for size in SIZES:
        data = bytearray(blob(size, size))
        if size > 8:
            at = size // 2 - 1
            data[at:at + 3] = b"\xa5\x5a\xff"
        data += b"tail"
        same(hashlib.sha256(read_file(f"{top}/{size}")).hexdigest(), hashlib.sha256(data).hexdigest(),
             f"contents of the file of {size}")


def big(top):
    """One large file by checksum, then random reads of it."""
    data = blob(BIG, "big")
    write_file(f"{top}/big", data)
    drop_caches()
    same(hashlib.sha256(read_file(f"{top}/big")).hexdigest(), hashlib.sha256(data).hexdigest(), "large file")
    draw = random.Random(7)
    with open(f"{top}/big", "rb", buffering=0) as file:
        for _ in range(40):
            at, size = draw.randrange(BIG), draw.randrange(1, 200_000)
            same(os.pread(file.fileno(), size, at), data[at:at + size], f"read of {size} at {at}")


def sparse(top):
    """Offsets beyond 4 GiB and holes."""
    with open(f"{top}/sparse", "w+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"far", (5 << 30) + 1)
        os.fsync(file.fileno())
        same(os.pread(file.fileno(), 10, 5 << 30), b"\0far", "read beyond 4 GiB")
        same(os.pread(file.fileno(), 4096, 1 << 32), bytes(4096), "hole")
    same(os.stat(f"{top}/sparse").st_size, (5 << 30) + 4, "size beyond 4 GiB")


def unstable(top):
    """Many writes without fsync, then one; the data must be there afterwards."""
    data = bytearray(blob(5 * MIB + 3, "unstable"))
    with open(f"{top}/unstable", "wb", buffering=0) as file:
        for at in range(0, len(data), 37_003):
            file.write(data[at:at + 37_003])
        for at in (0, MIB - 2, 4 * MIB + 1):
            os.pwrite(file.fileno(), b"patched", at)
            data[at:at + 7] = b"patched"
        os.fdatasync(file.fileno())
    drop_caches()
    same(read_file(f"{top}/unstable"), bytes(data), "after COMMIT")


def synchronous(top):
    """O_SYNC writes: FILE_SYNC or a COMMIT each."""
    data = blob(300_001, "sync")
    descriptor = os.open(f"{top}/sync", os.O_CREAT | os.O_WRONLY | os.O_SYNC, 0o644)
    for at in range(0, len(data), 100_000):
        os.pwrite(descriptor, data[at:at + 100_000], at)
    os.close(descriptor)
    same(read_file(f"{top}/sync"), data, "O_SYNC")


def links(top):
    """Symbolic links of every length around the inline threshold, up to what a path can hold."""
    for size in (1, 2, 3, 4, 59, 60, 255, 700, 900, 1000, 1023, 1024, 1025, 2000, 3001, 4000, 4095):
        target = ("long/" * 1000)[:size]
        os.symlink(target, f"{top}/{size}")
    drop_caches()
    for name in os.listdir(top):
        target = ("long/" * 1000)[:int(name)]
        same(os.readlink(f"{top}/{name}"), target, f"link of {name}")


def names():
    return {f"entry-{number:06}-{'x' * (number % 90)}" for number in range(ENTRIES)}


def fill(top):
    os.mkdir(f"{top}/many")
    for name in names():
        os.close(os.open(f"{top}/many/{name}", os.O_CREAT | os.O_WRONLY, 0o644))


def listing(top):
    """A large directory lists completely and once, names alone and with attributes."""
    drop_caches()
    listed = os.listdir(f"{top}/many")
    same(len(listed), ENTRIES, "entries listed")
    same(set(listed) == names(), True, "names listed")
    drop_caches()
    count = 0
    for entry in os.scandir(f"{top}/many"):
        count += 1
        if count % 100 == 0:
            same(entry.stat().st_size, 0, "entry's attributes")
    same(count, ENTRIES, "entries listed with attributes")


def directory(top):
    """A directory that is filled, listed and emptied here."""
    fill(top)
    listing(top)
    for name in names():
        os.unlink(f"{top}/many/{name}")
    same(os.listdir(f"{top}/many"), [], "the emptied directory")


def tree(top):
    """A small deep tree with unicode and long names, renamed and removed."""
    path = top
    for depth in range(12):
        path = f"{path}/{'tiefe-ä-深-' + str(depth)}"
        os.mkdir(path)
        write_file(f"{path}/{'f' * 200}{depth}", blob(depth * 1000 + 1, depth))
    same(sum(len(files) for _, _, files in os.walk(top)), 12, "files in the tree")
    os.rename(f"{top}/tiefe-ä-深-0", f"{top}/renamed")
    for where, directories, files in os.walk(f"{top}/renamed", topdown=False):
        for name in files:
            depth = int(name[200:])
            same(read_file(f"{where}/{name}"), blob(depth * 1000 + 1, depth), name)
            os.unlink(f"{where}/{name}")
        for name in directories:
            os.rmdir(f"{where}/{name}")


def refusals(top):
    """Each refusal has its own errno, and what was refused has not been done in part."""
    file, full, gone = f"{top}/file", f"{top}/full", f"{top}/gone"
    write_file(file, b"x")
    os.makedirs(f"{full}/inner")
    for code, call, *arguments in (
        (errno.ENOTDIR, os.rmdir, file),
        (errno.EISDIR, os.unlink, full),
        (errno.EISDIR, os.open, full, os.O_WRONLY),
        (errno.EEXIST, os.mkdir, file),
        (errno.EEXIST, os.symlink, "x", file),
        (errno.EINVAL, os.rename, full, f"{full}/inside"),
        (errno.ENOTDIR, os.rename, full, file),
        (errno.EISDIR, os.rename, file, full),
        (errno.ENOENT, os.stat, gone),
    ):
        refused(code, f"{call.__name__} of {arguments}", call, *arguments)
    # The name that was not there is there once it has been made, and gone again once it has been removed.
    write_file(gone, b"now")
    same(read_file(gone), b"now", "a name that was not there before")
    os.unlink(gone)
    refused(errno.ENOENT, "the name that was removed", os.stat, gone)
    same((sorted(os.listdir(top)), os.listdir(full), read_file(file)), (["file", "full"], ["inner"], b"x"), "what is left")


def renames(top):
    """A rename replaces, moves whole directories, and keeps what is open."""
    a, b = f"{top}/a", f"{top}/b"
    write_file(a, b"a")
    write_file(b, b"b")
    with open(a, "ab", buffering=0) as file:
        os.rename(a, b)
        refused(errno.ENOENT, "the old name", os.stat, a)
        file.write(b" and more")
    same(read_file(b), b"a and more", "written through a file that was renamed while open")
    os.link(b, a)
    os.rename(a, b)
    same(sorted(os.listdir(top)), ["a", "b"], "a rename of one name of a file to another does nothing")
    os.makedirs(f"{top}/one/two")
    os.mkdir(f"{top}/empty")
    os.rename(b, f"{top}/one/two/file")
    os.rename(f"{top}/one/two", f"{top}/empty")
    same((os.listdir(f"{top}/one"), read_file(f"{top}/empty/file")), ([], b"a and more"), "a directory over an empty one")
    refused(errno.ENOTEMPTY, "over a full directory", os.rename, f"{top}/one", f"{top}/empty")


def model(top):
    """Random reads, writes, truncations and closes of one file agree with bytes in memory."""
    draw, path, most = random.Random(5), f"{top}/model", 2 * MIB
    wanted, file = bytearray(), os.open(path, os.O_CREAT | os.O_RDWR)
    for step in range(150):
        at, size = draw.randrange(most), draw.choice((64, 5_000, 70_000, 400_000))
        kind = draw.randrange(10)
        if kind < 4:
            data = draw.randbytes(draw.randrange(1, size))
            wanted.extend(bytes(max(0, at - len(wanted))))
            wanted[at:at + len(data)] = data
            while data:
                written = os.pwrite(file, data, at)
                at, data = at + written, data[written:]
        elif kind < 8:
            same(os.pread(file, size, at), bytes(wanted[at:at + size]), f"step {step}: {size} bytes at {at}")
        elif kind == 8:
            os.ftruncate(file, at)
            wanted[at:] = bytes(max(0, at - len(wanted)))
        else:
            os.close(file)
            file = os.open(path, os.O_RDWR)
        same(os.fstat(file).st_size, len(wanted), f"step {step}: size")
    os.close(file)
    same(read_file(path), bytes(wanted), "at the end")


def appends(top):
    """Two descriptors that append lose nothing of each other."""
    wanted = b""
    with open(f"{top}/log", "ab", buffering=0) as one, open(f"{top}/log", "ab", buffering=0) as other:
        for number in range(60):
            line = b"line %d %s\n" % (number, b"x" * (number * 7 % 200))
            (one if number % 3 else other).write(line)
            wanted += line
    same(read_file(f"{top}/log"), wanted, "appended by turns")


def direct(top):
    """O_DIRECT and what is cached see each other's data."""
    path, wanted = f"{top}/direct", bytearray(blob(MIB, "direct"))
    write_file(path, wanted)
    cached, past = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR | os.O_DIRECT)

    def whole():
        with mmap.mmap(-1, MIB) as aligned:
            same(os.preadv(past, [aligned], 0), MIB, "length of a direct read")
            return aligned[:]

    same(whole(), bytes(wanted), "direct read")
    with mmap.mmap(-1, 8192) as aligned:
        aligned[:] = b"d" * 8192
        os.pread(cached, 8192, 4096)
        os.pwritev(past, [aligned], 4096)
    wanted[4096:12288] = b"d" * 8192
    same(os.pread(cached, 20_000, 0), bytes(wanted[:20_000]), "cached read after a direct write")
    os.pwrite(cached, b"c" * 5000, 500_000)
    wanted[500_000:505_000] = b"c" * 5000
    same(whole(), bytes(wanted), "direct read of what was not written back")
    os.close(cached)
    os.close(past)
    same(read_file(path), bytes(wanted), "direct")


def mapped(top):
    """What is stored in a shared mapping reaches the file, and what is stored in a private one does not."""
    path, wanted = f"{top}/mapped", bytearray(blob(300_001, "mapped"))
    write_file(path, wanted)
    with open(path, "r+b", buffering=0) as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as private:
            private[10:20] = bytes(10)
        same(read_file(path), bytes(wanted), "after a store to a private mapping")
        with mmap.mmap(file.fileno(), 0) as shared:
            same(shared[:], bytes(wanted), "the mapping")
            for at in (0, 4094, 123_456, 300_000 - 8):
                shared[at:at + 9] = wanted[at:at + 9] = b"by memory"
            shared.flush()
        os.fsync(file.fileno())
    same(read_file(path), bytes(wanted), "after msync")


def threads(count, work):
    """Calls `work(number)` in this many threads."""
    failures = []

    def tried(number):
        try:
            work(number)
        except Exception as error:  # noqa: BLE001 -- reported by the caller's thread
            failures.append(f"{type(error).__name__}: {error}")

    running = [threading.Thread(target=tried, args=(number,)) for number in range(count)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    same(failures, [], "in the threads")


def exclusive(top):
    """Of several exclusive creates of a name one succeeds."""
    won = []

    def create(_):
        for turn in range(12):
            try:
                os.close(os.open(f"{top}/{turn}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            except FileExistsError:
                continue
            won.append(turn)

    threads(4, create)
    same(sorted(won), list(range(12)), "winners")


def churn(top):
    """Threads make, rename, list and remove names in one directory."""

    def work(number):
        for turn in range(12):
            a, b, directory = (f"{top}/{kind}-{number}-{turn}" for kind in "abd")
            write_file(a, f"{number} {turn}".encode())
            os.rename(a, b)
            refused(errno.ENOENT, "a renamed name", os.stat, a)
            same(read_file(b), f"{number} {turn}".encode(), "a renamed file")
            os.mkdir(directory)
            os.rename(b, f"{directory}/inside")
            os.listdir(top)
            os.unlink(f"{directory}/inside")
            os.rmdir(directory)

    threads(5, work)
    same(os.listdir(top), [], "entries left")


def concurrent(top):
    """Several threads write and read their own files at once (credits, out-of-order replies)."""

    def work(number):
        for turn in range(TURNS):
            data = blob(700_000 + number * 13 + turn, (number, turn).__repr__())
            write_file(f"{top}/{number}", data)
            same(read_file(f"{top}/{number}"), data, f"thread {number} turn {turn}")
            os.rename(f"{top}/{number}", f"{top}/{number}.old")

    threads(8, work)


def parts(top):
    """Threads write parts of one file, while others read it: they see what is written, or zeros, or the end."""
    part, path = 200_001, f"{top}/parts"
    data = [blob(part, number) for number in range(4)]
    write_file(path, b"")

    def work(number):
        file = os.open(path, os.O_RDWR)
        draw = random.Random(number)
        if number < 4:
            for at in range(0, part, 33_333):
                os.pwrite(file, data[number][at:at + 33_333], number * part + at)
        else:
            for _ in range(20):
                of, at = draw.randrange(4), draw.randrange(part - 5000)
                got, wanted = os.pread(file, 5000, of * part + at), data[of][at:at + 5000]
                wrong = [byte for byte, other in zip(got, wanted) if byte not in (0, other)]
                same(wrong, [], f"what nobody has written at {at} of part {of}")
        os.close(file)

    threads(7, work)
    same(read_file(path), b"".join(data), "all parts")


def shrinking(top):
    """A directory that is emptied while it is listed shows each name once, and later listings what has changed."""
    for number in range(250):
        write_file(f"{top}/{number}", b"")
    seen = []
    with os.scandir(top) as entries:
        for entry in entries:
            seen.append(entry.name)
            if int(entry.name) % 2:
                os.unlink(entry.path)
    same(sorted(map(int, seen)), list(range(250)), "names listed meanwhile")
    same(sorted(map(int, os.listdir(top))), list(range(0, 250, 2)), "names that are left")
    write_file(f"{top}/one", b"")
    same(len(os.listdir(top)), 126, "names with one made after a listing")


def unlinked(top):
    """An open file stays readable and writable after its last name was removed or replaced (silly rename)."""
    for replaced in (False, True):
        path = f"{top}/open"
        write_file(path, b"still here")
        with open(path, "r+b", buffering=0) as file:
            if replaced:
                write_file(f"{top}/other", b"other")
                os.rename(f"{top}/other", path)
                same(read_file(path), b"other", "what replaced it")
            else:
                os.unlink(path)
                refused(errno.ENOENT, "the unlinked name", os.stat, path)
            same(os.pread(file.fileno(), 100, 0), b"still here", "read after unlink")
            os.pwrite(file.fileno(), b"and now", 6)
            os.fsync(file.fileno())
            same(os.pread(file.fileno(), 100, 0), b"still and now", "written after unlink")
            same(os.fstat(file.fileno()).st_size, 13, "its size")
            write_file(path, b"new")
            same(read_file(path), b"new", "a new file of the name")
        os.unlink(path)
    same([name for name in os.listdir(top) if not name.startswith(".nfs")], [], "nothing left by its own name")


CHECKS = (procedures, refusals, renames, sizes, big, sparse, model, unstable, synchronous, appends, direct, mapped, links, tree,
          concurrent, parts, exclusive, churn, unlinked, shrinking, directory)  # fmt: skip


def run(top, names):
    failed = 0
    for check in CHECKS:
        if names and check.__name__ not in names:
            continue
        where = f"{top}/{check.__name__}.{os.getpid()}"
        os.mkdir(where)
        started = time.monotonic()
        try:
            check(where)
            remove(where)
        except Exception as error:  # noqa: BLE001 -- every check must report, the rest must still run
            failed += 1
            print(f"FAILED {check.__name__}: {type(error).__name__}: {error}", flush=True)
        else:
            print(f"ok {check.__name__} ({time.monotonic() - started:.1f} s)", flush=True)
    return failed


def remove(top):
    for where, directories, files in os.walk(top, topdown=False):
        for name in files:
            os.unlink(f"{where}/{name}")
        for name in directories:
            path = f"{where}/{name}"
            os.unlink(path) if os.path.islink(path) else os.rmdir(path)
    os.rmdir(top)


def leave(top):
    """A data set, which `sum` compares on the other side."""
    os.mkdir(f"{top}/set")
    for size in SIZES:
        write_file(f"{top}/set/{size}", blob(size, size))
    write_file(f"{top}/set/big", blob(BIG, "big"))
    os.symlink("t" * 3000, f"{top}/set/link")
    os.link(f"{top}/set/1", f"{top}/set/hard")
    os.mkfifo(f"{top}/set/fifo", 0o640)
    os.chmod(f"{top}/set/4096", 0o751)


def digest(top):
    lines = []
    for where, directories, files in os.walk(top):
        for name in directories + files:
            path = f"{where}/{name}"
            status = os.lstat(path)
            kind = stat.S_IFMT(status.st_mode)
            what = ""
            if stat.S_ISREG(kind):
                with open(path, "rb") as file:
                    what = f"{status.st_size} {hashlib.file_digest(file, 'sha256').hexdigest()}"
            elif stat.S_ISLNK(kind):
                what = hashlib.sha256(os.readlink(path).encode()).hexdigest()
            links = 0 if stat.S_ISDIR(kind) else status.st_nlink
            lines.append(f"{os.path.relpath(path, top)} {status.st_mode:o} {links} {status.st_uid} {what}".rstrip())
    print("\n".join(sorted(lines)))


def main():
    words = sys.argv[1:]
    if words[:1] == ["list"]:
        print("\n".join(check.__name__ for check in CHECKS))
    elif words[:1] == ["run"] and len(words) > 1:
        unknown = set(words[2:]) - {check.__name__ for check in CHECKS}
        if unknown:
            sys.exit(f"no such check: {', '.join(sorted(unknown))}")
        sys.exit(1 if run(words[1], words[2:]) else 0)
    elif words[:1] == ["leave"] and len(words) == 2:
        leave(words[1])
    elif words[:1] == ["fill"] and len(words) == 2:
        fill(words[1])
    elif words[:1] == ["listing"] and len(words) == 2:
        listing(words[1])
    elif words[:1] == ["sum"] and len(words) == 2:
        digest(words[1])
    else:
        sys.exit(__doc__)


main()
