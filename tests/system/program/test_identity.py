"""The object to which a name, an open file and an inode number belong."""

import errno
import os
import threading

import pytest

from program.support import *  # noqa: F403
from program.support import BIN, root
from program.test_heavy import resident
from program.users import A, ROOT_USER, User, by, each, opened, refused, write


def test_inode_numbers_are_those_of_the_server(server):
    (server.export / "d").mkdir()
    (server.export / "d" / "f").write_text("x")
    (server.export / "d" / "s").symlink_to("f")
    server.mount_well()
    (server.mnt / "made").write_text("x")
    for path in ("", "d", "d/f", "d/s", "made"):
        here, there = os.lstat(server.mnt / path), os.lstat(server.export / path)
        assert here.st_ino == there.st_ino, f"{path!r}: {here.st_ino}, not {there.st_ino}"
    listed = {entry.name: entry.inode() for entry in os.scandir(server.mnt / "d")}
    assert listed == {entry.name: entry.inode() for entry in os.scandir(server.export / "d")}, listed


@pytest.mark.responder("--equal-fileids")
def test_equal_fileids_are_not_one_file(server):
    """Snapshots have other handles, but the same fsid and the same fileids."""
    if "--equal-fileids" not in run(BIN / "nfsrdma-responder", "--help").stdout:
        pytest.skip("this responder has no --equal-fileids")
    for name in ("live", "snapshot"):
        (server.export / name).mkdir()
        (server.export / name / "db").write_text(name)
    server.mount_well()
    live, snapshot = server.mnt / "live" / "db", server.mnt / "snapshot" / "db"
    assert live.stat().st_ino == snapshot.stat().st_ino
    for _ in range(3):
        assert live.read_text() == "live", "the snapshot's bytes in the live file"
        assert snapshot.read_text() == "snapshot", "the live file's bytes in the snapshot"
    live.write_text("changed")
    assert snapshot.read_text() == "snapshot"
    assert (server.export / "snapshot" / "db").read_text() == "snapshot"
    assert (server.export / "live" / "db").read_text() == "changed"
    assert sorted(os.listdir(server.mnt)) == ["live", "snapshot"]


#: The number of times that a file is replaced while others open it.
REPLACED = 700


def test_opens_succeed_while_the_file_is_replaced(server):
    """Atomic replacement on the same mount: each open finds the old file or the new one, and never another one or
    none. The kernel looks a name up once more whose file is gone by the OPEN, and fails if that one is gone, too: this
    may happen to fewer than one of 10,000 opens."""
    server.mount_well()
    target = server.mnt / "target"
    target.write_text("target 0")
    over = threading.Event()
    failures, stale, opened = [], [], [0, 0]

    def replace():
        try:
            for number in range(1, REPLACED + 1):
                new = server.mnt / "new"
                new.write_text(f"target {number}")
                new.rename(target)
                # This file may get the inode number of the replaced one.
                other = server.mnt / "other"
                other.write_text("another file")
                other.unlink()
        except OSError as error:
            failures.append(f"replacing: {error}")
        finally:
            over.set()

    def look(reader):
        while not over.is_set() and len(failures) < 20:
            try:
                with open(target, "rb") as file:
                    # The file is complete, since it was written before it replaced the other one.
                    data = file.read()
                if not data.startswith(b"target "):
                    failures.append(f"opened another file: {data!r}")
                opened[reader] += 1
            except OSError as error:
                kind = stale if error.errno == errno.ESTALE else failures
                kind.append(f"open {opened[reader]}: {errno.errorcode.get(error.errno, error)}")

    threads = [threading.Thread(target=replace), *(threading.Thread(target=look, args=(n,)) for n in range(2))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, f"{len(failures)} of {sum(opened)} opens: {sorted(set(failures))[:8]}"
    assert min(opened) > 0, "the test did not open anything"
    assert len(stale) <= 1 + sum(opened) // 10_000, f"{len(stale)} of {sum(opened)} opens"
    # No hidden name is left.
    until(lambda: os.listdir(server.export) == ["target"], "the hidden files to go")


def test_a_directory_made_again_is_another(server):
    """A directory is removed while in use, and made again with the same inode number at the server."""
    server.mount_well()
    path = server.mnt / "d"
    same = 0
    for turn in range(50):
        path.mkdir()
        with opening(path, os.O_RDONLY | os.O_DIRECTORY) as old:
            before = os.stat(path).st_ino
            path.rmdir()
            # Alternately a directory and a file.
            path.mkdir() if turn % 2 else path.write_text("")
            if os.lstat(server.export / "d").st_ino == before:
                same += 1
            for what, call in (
                ("stat of a name", lambda: os.stat("x", dir_fd=old)),
                ("create", lambda: os.close(os.open("x", os.O_CREAT | os.O_WRONLY, dir_fd=old))),
                ("stat", lambda: os.stat(old)),
                ("list", lambda: os.listdir(old)),
            ):
                try:
                    call()
                    # What the kernel has cached of it may be shown, but no name can be found or made.
                    assert what in ("stat", "list"), f"{what} in a directory that is gone"
                except OSError as error:
                    name = errno.errorcode.get(error.errno)
                    assert name in ("ENOENT", "ESTALE"), f"{what}, turn {turn}: {name}"
            assert not (path / "x").exists()
            assert os.stat(path).st_ino == os.lstat(server.export / "d").st_ino
        path.rmdir() if turn % 2 else path.unlink()
    if same == 0:
        pytest.skip("the exported file system gives no inode number twice")


@each("allow_other,noac", "allow_other,noac,permissions=server")
def test_access_by_a_supplementary_group_alone(server):
    """The server decides by the groups in the call (AUTH_SYS): one, and the last of the sixteen that it has room for."""
    group = 61999
    folder, here = server.export / "shared", server.mnt / "shared"
    folder.mkdir()
    write(folder / "file", mode=0o640)
    for path, mode in ((folder / "file", 0o640), (folder, 0o770)):
        os.chown(path, 0, group)
        path.chmod(mode)
    others = tuple(range(61900, 61915))
    for number, groups in enumerate([(group,), (*others, group)]):
        member, made = User(A.uid, A.gid, groups), f"made-{number}"
        assert by(member, opened, here / "file")[1] == b"secret"
        by(member, opened, here / made, os.O_CREAT | os.O_WRONLY, data=b"by a member")
        assert (folder / made).read_bytes() == b"by a member"
        assert made in by(member, os.listdir, here)
    for groups in ((), others):
        stranger = User(A.uid, A.gid, groups)
        refused(stranger, opened, here / "file")
        refused(stranger, opened, here / "other", os.O_CREAT | os.O_WRONLY)


def test_a_user_in_very_many_groups_takes_little_memory(server):
    """He may be in other groups at each call: a credential that is remembered for each took a quarter of a megabyte."""
    root()
    server.mount_well()
    files = [server.mnt / str(number) for number in range(10)]
    for file in files:
        file.write_bytes(b"")
    [pid] = servers_of(server.mnt)
    before = resident(pid)

    def use():
        for left_out in range(100):
            os.setgroups([gid for gid in range(100_000, 165_536) if gid != 130_000 + left_out])
            os.setegid(A.gid)
            os.seteuid(A.uid)
            os.close(os.open(files[left_out % len(files)], os.O_RDONLY))
            os.seteuid(0)

    by(ROOT_USER, use)
    assert resident(pid) - before < 8 << 20, f"{resident(pid) >> 20} MiB, and {before >> 20} before"
