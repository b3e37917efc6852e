"""No cache, neither the kernel's nor ours, gives anybody access that the server would refuse.

Several users work on one mount: program/users.py.
"""

import ctypes
import errno
import mmap
import os
import shutil
import signal
import socket
import stat
import sys
from pathlib import Path

import pytest

from program.support import *  # noqa: F403
from program.users import A, B, C, ROOT_USER, User, by, by_effective, calls, each, executed, opened, outcome, refused, write


# --- 1: directories -----------------------------------------------------------------------------


def use(private):
    """The owner uses a directory in all ways, so that everything is cached."""
    (private / "sub").mkdir()
    write(private / "file")
    write(private / "open", mode=0o666)
    write(private / "sub" / "below")
    for _ in range(2):
        with os.scandir(private) as entries:
            for entry in entries:
                entry.stat()
        for name in ("file", "open", "sub/below"):
            (private / name).read_bytes()
            os.stat(private / name)
        assert not (private / "absent").exists()


def try_all(user, private, names=("file", "open", "sub/below", "absent")):
    for name in names:
        refused(user, os.stat, private / name)
        refused(user, os.lstat, private / name)
        refused(user, opened, private / name)
        refused(user, opened, private / name, os.O_WRONLY)
        refused(user, opened, private / name, os.O_WRONLY | os.O_TRUNC)
        refused(user, opened, private / name, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        refused(user, os.truncate, private / name, 0)
        refused(user, os.link, private / name, private.parent / "link")
        refused(user, os.rename, private / name, private.parent / "moved")
        refused(user, os.unlink, private / name)
    refused(user, opened, private / "new", os.O_CREAT | os.O_RDWR)
    if user != ROOT_USER:
        # The kernel lets root in by itself, which proves nothing.
        refused(user, os.chdir, private)
    assert not by(user, os.access, private / "file", os.F_OK)


@each("", "permissions=server,allow_other")
def test_a_private_directory_stays_private_after_its_owner_used_it(server):
    private = server.mnt / "private"
    by(A, os.mkdir, private, 0o700)
    by(A, use, private)
    try_all(B, private)
    refused(B, os.listdir, private)
    assert (server.export / "private/open").read_bytes() == b"secret"
    # The owner has access as before.
    assert by(A, (private / "file").read_bytes) == b"secret"


@each("", "permissions=server,allow_other")
def test_a_listing_opens_no_way_to_what_it_lists(server):
    """Entries come with attributes, which the kernel caches; mode 0744 permits others only to list."""
    listed = server.mnt / "listed"
    by(A, os.mkdir, listed, 0o755)
    by(A, use, listed)
    by(A, listed.chmod, 0o744)
    for _ in range(3):
        assert sorted(by(B, os.listdir, listed)) == ["file", "open", "sub"]
        try_all(B, listed)


@each("", "permissions=server,allow_other")
def test_a_directory_made_private_is_private_at_once(server):
    private = server.mnt / "private"
    by(A, os.mkdir, private, 0o755)
    by(A, use, private)
    assert by(B, (private / "file").read_bytes) == b"secret"
    # The children inherit it.
    with opening(private, os.O_RDONLY | os.O_DIRECTORY) as held:
        by(B, os.stat, "file", dir_fd=held)
        by(A, private.chmod, 0o700)
        refused(B, os.stat, "file", dir_fd=held)
        refused(B, os.open, "file", os.O_RDONLY, dir_fd=held)
        refused(B, os.stat, "absent", dir_fd=held)
    try_all(B, private)
    by(A, private.chmod, 0o711)
    assert by(B, (private / "file").read_bytes) == b"secret"
    refused(B, os.listdir, private)


@each("", "permissions=server,allow_other")
def test_a_private_directory_is_private_for_who_is_in_it(server):
    """By a descriptor that was opened before, by the magic link to it, and as the current directory."""
    private = server.mnt / "private"
    by(A, os.mkdir, private, 0o755)
    by(A, use, private)
    held = os.open(private, os.O_RDONLY | os.O_DIRECTORY)

    def inside(call, *words):
        os.fchdir(held)
        B.become()
        return call(*words)

    try:
        assert by(ROOT_USER, inside, opened, "open", os.O_RDWR)[1] == b"secret"
        by(A, private.chmod, 0o700)
        link = f"/proc/self/fd/{held}"
        for name in ("open", "file", "sub/below", "absent"):
            for how in (os.O_RDONLY, os.O_WRONLY | os.O_TRUNC, os.O_RDWR | os.O_CREAT | os.O_TRUNC):
                refused(B, os.open, name, how, dir_fd=held)
                refused(ROOT_USER, inside, opened, name, how)
                refused(B, opened, f"{link}/{name}", how)
            refused(ROOT_USER, inside, os.stat, name)
            refused(ROOT_USER, inside, os.truncate, name, 0)
            refused(B, os.truncate, f"{link}/{name}", 0)
        refused(ROOT_USER, inside, os.listdir, ".")
    finally:
        os.close(held)
    assert (server.export / "private/open").read_bytes() == b"secret"


def make_dots(top):
    """A private directory, and beside it a file for all, a file for its owner, and another private directory."""
    private, beside = top / "private", top / "beside"
    by(A, os.mkdir, private, 0o700)
    by(A, use, private)
    by(A, os.mkdir, beside, 0o755)
    by(A, write, beside / "all", b"secret", 0o666)
    by(A, write, beside / "own", b"secret", 0o600)
    by(A, os.mkdir, beside / "shut", 0o700)
    by(A, write, beside / "shut/all", b"secret", 0o666)
    return private, beside


@each("")
def test_dots_need_the_right_to_search(server):
    private, _ = make_dots(server.mnt)
    for path in (".", "..", "../beside/all", "../beside/own"):
        # Not a Path, which would remove a dot.
        refused(B, os.stat, f"{private}/{path}")
        refused(B, opened, f"{private}/{path}")
        refused(B, os.truncate, f"{private}/{path}", 0)
    assert (server.export / "beside/all").read_bytes() == b"secret"


@each("permissions=server,allow_other")
def test_dots_lead_no_further_than_the_way_without_them(server):
    """The kernel follows `.` and `..` by itself, and nobody checks whether the user may do that."""
    private, beside = make_dots(server.mnt)
    for path, same in ((".", private), ("..", server.mnt), ("../beside/all", beside / "all")):
        assert by(B, os.stat, f"{private}/{path}").st_ino == by(B, os.stat, same).st_ino
    refused(B, os.listdir, f"{private}/.")
    refused(B, os.chdir, f"{private}/.")
    for path in ("./open", "./absent", "sub/..", "sub/../open", "../private/open", "../beside/shut/all"):
        refused(B, os.stat, f"{private}/{path}")
        refused(B, os.truncate, f"{private}/{path}", 0)
        refused(B, opened, f"{private}/{path}", os.O_WRONLY | os.O_TRUNC)
    assert by(B, os.stat, f"{private}/../beside/own").st_size == by(B, os.stat, beside / "own").st_size
    for how in (os.O_RDONLY, os.O_WRONLY | os.O_TRUNC):
        refused(B, opened, f"{private}/../beside/own", how)
    refused(B, os.truncate, f"{private}/../beside/own", 0)
    for path in ("private/open", "beside/own", "beside/shut/all"):
        assert (server.export / path).read_bytes() == b"secret"
    # A file for all can be reached by each path.
    by(B, os.truncate, f"{private}/../beside/all", 3)
    assert (server.export / "beside/all").read_bytes() == b"sec"


def above(server, inside, outcome_of_dots):
    """`inside` is below a directory for all, which is below a private one."""
    top = server.mnt / "top"
    by(A, os.mkdir, top, 0o700)
    by(A, os.mkdir, top / "open", 0o755)
    by(A, os.mkdir, top / "open/inside", inside)
    for folder in (top, top / "open"):
        by(A, write, folder / "all", b"secret", 0o666)
        by(A, write, folder / "own", b"secret", 0o600)

    def there(call, *words):
        os.chdir(top / "open/inside")
        B.become()
        return call(*words)

    for path in ("..", "../all", "../own", "../.."):
        got = outcome(ROOT_USER, there, os.stat, path)
        assert got == outcome_of_dots, f"stat {path}: {got}"
    got = outcome(ROOT_USER, there, opened, "../all")
    assert got == outcome_of_dots, f"open ../all: {got}"
    for path in ("../own", "../../all", "../../own"):
        refused(ROOT_USER, there, opened, path)
        refused(ROOT_USER, there, opened, path, os.O_WRONLY | os.O_TRUNC)
        refused(ROOT_USER, there, os.truncate, path, 0)
    for path in ("../../all", "../../absent", "../../open"):
        refused(ROOT_USER, there, os.stat, path)
    refused(ROOT_USER, there, os.listdir, "../..")
    for path in ("open/own", "all", "own"):
        assert (server.export / "top" / path).read_bytes() == b"secret"


@each("", "permissions=server,allow_other")
def test_who_may_search_a_directory_gets_from_it_to_those_above_it(server):
    above(server, 0o755, "ok")


@each("permissions=server,allow_other")
def test_who_is_in_a_directory_gets_to_those_above_it(server):
    """Nobody checks that if the kernel does not. The server still checks each of the directories above."""
    above(server, 0o700, "ok")


@each("")
def test_who_may_not_search_a_directory_gets_from_it_nowhere(server):
    above(server, 0o700, "EACCES")


@each("", "permissions=server,allow_other")
def test_what_moves_into_a_private_directory_is_private_at_once(server):
    public, private = server.mnt / "public", server.mnt / "private"
    by(A, os.mkdir, public, 0o755)
    by(A, os.mkdir, private, 0o700)
    by(A, write, public / "file")
    assert by(B, (public / "file").read_bytes) == b"secret"
    by(A, os.rename, public / "file", private / "file")
    refused(B, os.stat, private / "file")
    refused(B, os.stat, public / "file", number="ENOENT")
    by(A, os.rename, private / "file", public / "file")
    assert by(B, (public / "file").read_bytes) == b"secret"


@each("actimeo=3600", words=("--root-squash",))
def test_root_gets_no_further_than_a_squashing_server_lets_it(server):
    private = server.mnt / "private"
    by(A, os.mkdir, private, 0o700)
    by(A, use, private)
    try_all(ROOT_USER, private)
    refused(ROOT_USER, os.listdir, private)
    # Nor can a user to whom the local administrator gave capabilities that override all modes.
    through = "--inh-caps=+dac_read_search,+dac_override", "--ambient-caps=+dac_read_search,+dac_override"
    looked = run("setpriv", f"--reuid={B.uid}", f"--regid={B.gid}", "--clear-groups", *through, "stat", private / "file")
    assert looked.returncode == 1 and "Permission denied" in looked.stderr, looked
    # The owner's walks through directories are still answered from memory, and so is what "sub" has; a file in the
    # private directory is looked up, since the kernel may want to make its name.
    by(A, os.stat, private / "file")
    before = calls(server)
    for _ in range(20):
        by(A, os.stat, private / "file")
        by(A, os.stat, private / "sub/below")
    made = {name: count - before[name] for name, count in calls(server).items() if count != before[name]}
    assert set(made) == {"LOOKUP"} and made["LOOKUP"] <= 21, made


@each("actimeo=3600")
def test_root_gets_no_further_when_the_server_has_begun_to_squash_it(server):
    folders = [server.mnt / str(user.uid) for user in (A, B, C)]
    for folder, user in zip(folders, (A, B, C)):
        by(user, os.mkdir, folder, 0o700)
        for name in ("first", "second", "third"):
            by(user, write, folder / name)
        os.stat(folder / "first")
    server.stop()
    server.words = ("--root-squash",)
    server.start()
    # The kernel has some names of before.
    private = folders[0]
    refused(ROOT_USER, os.stat, private / "absent")
    (server.export / private.name / "new").write_bytes(b"")
    for name in ("new", "newer"):
        outcome(A, os.mkdir, private / name)
        by(A, os.stat, private / name)
        refused(ROOT_USER, os.stat, private / name)


def refused_beside_a_mount(server, stranger, mnt=None):
    """A's private directory has a mount in it when a stranger is refused."""
    mnt = mnt or server.mnt
    private, other = mnt / "private", mnt / "private/a b/other"
    by(A, os.mkdir, private, 0o700)
    for name in ("a b", "a b/other", "sub"):
        by(A, os.mkdir, private / name)
    libc = ctypes.CDLL(None, use_errno=True)

    def in_the_name_of_a(call, *words):
        # With the right to mount.
        os.setgroups([])
        libc.setfsuid(A.uid)
        libc.setfsgid(A.gid)
        return call(*words)

    path = os.fsencode(other)
    assert by(ROOT_USER, in_the_name_of_a, libc.mount, b"none", path, b"tmpfs", 0, None) == 0
    try:
        for name in ("a b", "a b/other", "a b/other/file"):
            refused(stranger, os.stat, private / name, number="ENOMEM")
        refused(stranger, os.stat, private / "sub")
        refused(stranger, os.stat, private / "absent")
        by(A, os.stat, other)
        assert str(path, "ascii").replace(" ", "\\040") in mounts_below(server.base), "it is not mounted any longer"
    finally:
        by(ROOT_USER, in_the_name_of_a, libc.umount2, path, 2)


@each("", words=("--root-squash",))
def test_what_is_mounted_in_a_private_directory_stays_when_root_is_refused(server):
    refused_beside_a_mount(server, ROOT_USER)


@each("permissions=server,allow_other")
def test_what_is_mounted_in_a_private_directory_stays_when_a_stranger_is_refused(server):
    refused_beside_a_mount(server, B)


@pytest.mark.usefixtures("users")
def test_what_is_mounted_in_a_private_directory_stays_below_a_renamed_directory():
    with Server("--root-squash") as server:
        old, new = server.base / "old", server.base / "new"
        (old / "mnt").mkdir(parents=True)
        expect(server.mount(at=old / "mnt"), 0)
        old.rename(new)
        refused_beside_a_mount(server, ROOT_USER, new / "mnt")
        expect(run("umount", new / "mnt"), 0)


@each("")
def test_root_is_asked_about_once_for_each_owner(server):
    """An ACCESS in the name of root shows whether it may search the directories of one owner, group and mode."""
    for user in (A, B, C):
        by(user, os.mkdir, server.mnt / str(user.uid), 0o700)
    before = calls(server)["ACCESS"]
    for round in range(5):
        for user in (A, B, C):
            outcome(user, os.stat, server.mnt / str(user.uid) / f"absent{round}")
    assert calls(server)["ACCESS"] - before <= 3
    by(A, write, server.mnt / str(A.uid) / "file")
    assert (server.mnt / str(A.uid) / "file").read_bytes() == b"secret"


# --- 2: devices, FIFOs and sockets ----------------------------------------------------------------


@each("")
def test_special_files_open_by_their_modes(server):
    zero = os.makedev(1, 5)
    for mode in (0o600, 0o666):
        name = server.mnt / f"device{mode:o}"
        os.mknod(name, stat.S_IFCHR | mode, zero)
        os.chmod(name, mode)
        os.chown(name, A.uid, A.gid)
        by(A, os.mkfifo, server.mnt / f"fifo{mode:o}", mode)

        def listening(path, mode=mode):
            with socket.socket(socket.AF_UNIX) as own:
                own.bind(str(path))
                os.chmod(path, mode)

        by(A, listening, server.mnt / f"socket{mode:o}")

    def connected(path):
        with socket.socket(socket.AF_UNIX) as own:
            own.connect(str(path))

    for kind, flags in (("device", os.O_RDONLY), ("device", os.O_RDWR), ("fifo", os.O_RDONLY), ("fifo", os.O_RDWR)):
        by(A, opened, server.mnt / f"{kind}600", flags)
        by(B, opened, server.mnt / f"{kind}666", flags)
        refused(B, opened, server.mnt / f"{kind}600", flags)
    # Nobody listens any more, which the caller notices after the check of the mode.
    refused(A, connected, server.mnt / "socket600", number="ECONNREFUSED")
    refused(B, connected, server.mnt / "socket666", number="ECONNREFUSED")
    refused(B, connected, server.mnt / "socket600")


# --- 3: execute without read -----------------------------------------------------------------------


@each("", "permissions=server,allow_other", "nocto")
def test_execute_is_not_read_and_read_is_not_execute(server):
    """A file with mode 0711 can be executed but not read; one with 0744 can be read but not executed."""
    for mode in (0o711, 0o744, 0o4755):
        name = server.mnt / f"{mode:o}"
        shutil.copy(shutil.which("id"), name)
        os.chown(name, A.uid, A.gid)
        os.chmod(name, mode)
    only, no, set_uid = (server.mnt / name for name in ("711", "744", "4755"))
    for _ in range(2):
        assert by(B, executed, only, "-u") == (0, str(B.uid))
        refused(B, opened, only)
        # A program cannot set the kernel's mark of an execve.
        refused(B, opened, only, os.O_RDONLY | 0x20)
        refused(B, executed, no)
        assert by(B, opened, no)[1]
        assert by(B, os.access, only, os.X_OK) and not by(B, os.access, only, os.R_OK)
        assert by(B, os.access, no, os.R_OK) and not by(B, os.access, no, os.X_OK)
        assert by(A, executed, no, "-u") == (0, str(A.uid))
    assert by(B, executed, set_uid, "-u") == (0, str(A.uid))


# --- 4: truncate -----------------------------------------------------------------------------------


@each("", "permissions=server,allow_other")
def test_truncate_needs_the_right_to_write(server):
    file = server.mnt / "file"
    # A user who creates a file may write to it through the descriptor, whatever its mode.
    assert by(A, opened, file, os.O_CREAT | os.O_RDWR, 0o444, b"secret", 5)[1] == b"secre"
    refused(A, os.truncate, file, 1)
    refused(A, opened, file, os.O_WRONLY | os.O_TRUNC)
    refused(B, os.truncate, file, 1)
    assert (server.export / "file").read_bytes() == b"secre"
    by(A, file.chmod, 0o644)
    by(A, os.truncate, file, 3)
    # The right belongs to the descriptor.
    with open(file, "r+b") as handed:
        by(B, os.ftruncate, handed.fileno(), 2)
    assert (server.export / "file").read_bytes() == b"se"


@each("", "permissions=server,allow_other")
def test_truncate_to_the_size_that_is_leaves_the_times(server):
    """POSIX has it so; ftruncate(2) and O_TRUNC set the time of modification."""
    for content in (b"", b"content"):
        file = server.mnt / f"file{len(content)}"
        file.write_bytes(content)
        os.utime(file, (86400, 86400))
        os.truncate(file, len(content))
        assert os.stat(file).st_mtime == 86400, os.stat(file)
        assert os.stat(server.export / file.name).st_mtime == 86400
        os.truncate(file, len(content) + 1)
        assert os.stat(file).st_mtime != 86400, os.stat(file)
        os.truncate(file, len(content))
        os.utime(file, (86400, 86400))
        with open(file, "r+b") as descriptor:
            os.ftruncate(descriptor.fileno(), len(content))
        assert os.stat(file).st_mtime != 86400, os.stat(file)
        # Somebody else extends it, so the size that is cached here is old.
        os.stat(file)
        (server.export / file.name).write_bytes(b"much longer than before")
        os.truncate(file, len(content))
        assert (server.export / file.name).stat().st_size == len(content)


# --- listings ---------------------------------------------------------------------------------------


@each("", "permissions=server,allow_other")
def test_a_directory_that_may_be_read_and_not_searched_can_be_listed(server):
    # It is made at the server, so that no name is cached here.
    made, folder = server.export / "folder", server.mnt / "folder"
    names = ["directory", "file", "other"]
    made.mkdir()
    (made / "directory").mkdir()
    (made / "file").write_bytes(b"")
    (made / "other").write_bytes(b"")
    made.chmod(0o744)
    assert sorted(by(A, os.listdir, folder)) == names
    refused(A, os.stat, folder / "file")
    # A user who may search it gets types and attributes.
    with os.scandir(folder) as entries:
        assert {entry.name for entry in entries if entry.is_dir()} == {"directory"}
    assert sorted(by(A, os.listdir, folder)) == names


# --- 5: a file made between look-up and create ------------------------------------------------------


@each("", "permissions=server,allow_other")
def test_a_file_that_another_made_meanwhile_is_opened_by_its_mode(server):
    shared, there = server.mnt / "shared", server.export / "shared"
    by(A, os.mkdir, shared, 0o777)
    create = os.O_CREAT | os.O_RDONLY

    def meanwhile(name, make, *words):
        """B knows that there is no such name; then it is made at the server."""
        for _ in range(2):
            refused(B, os.stat, shared / name, number="ENOENT")
        by(A, make, there / name, *words)
        return shared / name

    for how in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC):
        path = meanwhile(f"private{how}", write, b"secret", 0o600)
        refused(B, opened, path, os.O_CREAT | how)
        refused(B, opened, path)
        assert (there / path.name).read_bytes() == b"secret"
    assert by(B, opened, meanwhile("public", write, b"text", 0o644), create)[1] == b"text"
    refused(B, opened, meanwhile("public2", write, b"text", 0o644), os.O_CREAT | os.O_RDWR)
    refused(B, opened, meanwhile("public3", write, b"text", 0o666), create | os.O_EXCL, number="EEXIST")
    path = meanwhile("common", write, b"text", 0o666)
    assert by(B, opened, path, os.O_CREAT | os.O_RDWR | os.O_TRUNC) == (stat.S_IFREG, b"")
    assert (there / "common").read_bytes() == b""
    # Objects other than files are handled as after any look-up.
    assert by(B, opened, meanwhile("fifo", os.mkfifo, 0o666), os.O_CREAT | os.O_RDWR)[0] == stat.S_IFIFO
    refused(B, opened, meanwhile("directory", os.mkdir, 0o777), create, number="EISDIR")
    path = meanwhile("link", lambda name: os.symlink("public", name))
    assert by(B, opened, path, create)[1] == b"text"
    path = meanwhile("link2", lambda name: os.symlink("public", name))
    refused(B, opened, path, create | os.O_NOFOLLOW, number="ELOOP")
    path = meanwhile("link3", lambda name: os.symlink("private0", name))
    refused(B, opened, path, create)
    # A name that nobody made is created.
    assert by(B, opened, meanwhile("new", lambda _: None), os.O_CREAT | os.O_RDWR, 0o400, b"own")[1] == b"own"
    assert (there / "new").stat().st_uid == B.uid


@each("timeo=5", "timeo=5,permissions=server,allow_other", words=("--drc", "0", "--fail", "CREATE=LOST:1"))
def test_a_file_whose_making_was_answered_by_nothing_is_opened_as_an_own_one(server):
    """The reply is lost with the connection, and the server executes the call again: EXIST."""
    file = server.mnt / "file"
    assert by(A, opened, file, os.O_CREAT | os.O_RDWR, 0o444, b"own")[1] == b"own"
    assert procedures(server)["CREATE"]["retransmits"] >= 1
    assert (server.export / "file").read_bytes() == b"own"


# --- 6: groups -------------------------------------------------------------------------------------


@each("", "permissions=server,allow_other")
def test_a_group_counts_from_when_it_is_taken_to_when_it_is_dropped(server):
    group = 61900
    team, file = server.mnt / "team", server.mnt / "team/file"
    team.mkdir(mode=0o770)
    write(file, b"team", 0o640)
    for path in (team, file):
        os.chown(path, 0, group)

    def members(times):
        """Alternately with and without the group, in one process."""
        with_group, without = [], []
        os.setresgid(B.gid, B.gid, 0)
        for _ in range(times):
            for groups, seen in (([group], with_group), ([], without)):
                os.seteuid(0)
                os.setgroups(groups)
                os.seteuid(B.uid)
                try:
                    seen.append(file.read_bytes())
                except OSError as error:
                    seen.append(error.errno)
        os.seteuid(0)
        return with_group, without

    with_group, without = by(ROOT_USER, members, 10)
    assert set(with_group) == {b"team"}, with_group
    assert set(without) == {errno.EACCES}, without


@pytest.mark.usefixtures("users")
def test_groups_of_another_pid_namespace_s_process_with_the_same_number_do_not_count(server):
    """The serving process runs in a PID namespace whose /proc is that of the outer one."""
    group = 61900
    team = server.export / "team"
    write(team, b"secret", 0o640)
    os.chown(team, 0, group)
    if run("unshare", "--pid", "--fork", "true").returncode:
        pytest.skip("unshare --pid is not permitted")
    script = """
import os, subprocess, sys
member, uid, path, *mount = sys.argv[1:]
done = subprocess.run(mount, capture_output=True, text=True)
assert done.returncode == 0, done
for _ in range(50):
    open("/proc/sys/kernel/ns_last_pid", "w").write(str(int(member) - 1))
    child = os.fork()
    if child == 0:
        if os.getpid() != int(member):
            os._exit(3)
        os.setgroups([])
        os.setresgid(int(uid), int(uid), int(uid))
        os.setresuid(int(uid), int(uid), int(uid))
        try:
            open(path, "rb").close()
        except PermissionError:
            os._exit(1)
        os._exit(2)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != 3:
        break
print({1: "refused", 2: "opened"}.get(status, status))
subprocess.run(["umount", mount[3]], check=True)
"""
    member = os.fork()
    if member == 0:
        User(B.uid, B.gid, (group,)).become()
        signal.pause()
        os._exit(0)
    try:
        until(lambda: f"Groups:\t{group}" in Path(f"/proc/{member}/status").read_text(), "the member of the group")
        options = server.options("permissions=server,allow_other,nolock")
        mount = (BIN / "nfsrdma", "mount", server.spec, server.mnt, "-o", options)
        words = (sys.executable, "-c", script, member, B.uid, server.mnt / "team", *mount)
        done = run("unshare", "--pid", "--fork", *words)
        assert done.stdout == "refused\n", done
    finally:
        os.kill(member, signal.SIGKILL)
        os.waitpid(member, 0)


@each("")
def test_execute_only_programs_are_not_read_through_their_process(server):
    program = server.mnt / "program"
    shutil.copy(shutil.which("sleep"), program)
    program.chmod(0o711)

    def run_and_read():
        child = os.fork()
        if child == 0:
            B.become()
            os.execv(program, ["sleep", "60"])
        try:
            until(lambda: os.readlink(f"/proc/{child}/exe") == str(program), "the program")
            return [outcome(B, opened, f"/proc/{child}/{name}") for name in ("exe", "mem", "maps")]
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    assert run_and_read() == ["EACCES"] * 3


# --- permission that goes while a file is open -----------------------------------------------------


@each("", "permissions=server,allow_other")
def test_what_the_server_refused_to_take_is_shown_to_nobody(server):
    """A user who may not write any more has written into the kernel's cache; the server refuses the data."""
    file, kept = server.mnt / "file", b"k" * 8192
    by(A, write, file, kept, 0o666)
    by(A, opened, file)

    def write_and_flush(fd):
        os.pwrite(fd, b"refused", 4096)
        os.fsync(fd)

    # The user who opened the descriptor counts.
    theirs, reader = by_effective(B, os.open, file, os.O_RDWR), os.open(file, os.O_RDONLY)
    try:
        by(A, file.chmod, 0o644)
        assert os.pread(reader, 8192, 0) == kept
        refused(B, write_and_flush, theirs)
        until(lambda: os.pread(reader, 8192, 0) == kept, "the data of the server, by an old descriptor")
        assert by(A, file.read_bytes) == kept == (server.export / "file").read_bytes()
        assert os.fstat(reader).st_size == 8192
    finally:
        for fd in (reader, theirs):
            os.close(fd)


# --- 17: times -------------------------------------------------------------------------------------


@each("")
def test_times_out_of_range_become_the_nearest(server):
    file = server.mnt / "file"
    write(file)
    second = 10**9
    latest = 2**32 - 1
    for given, kept in (
        (0, 0),
        (5 * second + 7, 5 * second + 7),
        (latest * second + 999_999_999, latest * second + 999_999_999),
        (-1, 0),
        (-second // 2, 0),
        (-(2**63) * second + 1, 0),
        ((2**63 - 1) * second + 999_999_999, latest * second),
        (-2_177_452_800 * second, 0),  # 1901
        (2**32 * second + 5, latest * second),
        (7_258_118_400 * second, latest * second),  # 2200
    ):
        for node in (file, server.mnt):
            os.utime(node, ns=(given, given))
            got = os.stat(node)
            assert (got.st_atime_ns, got.st_mtime_ns) == (kept, kept), (given, got.st_mtime_ns)
    assert (server.export / "file").stat().st_mtime_ns == latest * second


# --- 18: the largest file --------------------------------------------------------------------------


@each("", "sync", words=("--max-file-size", str(1 << 20)))
def test_writing_beyond_the_servers_largest_file_fails_at_write(server):
    limit = 1 << 20
    for direct in (0, os.O_DIRECT):
        name = server.mnt / f"file{direct}"
        with opening(name, os.O_CREAT | os.O_RDWR | direct) as fd:
            with mmap.mmap(-1, 8192) as block:
                for offset in (limit, limit + 4096, 1 << 50):
                    try:
                        os.pwrite(fd, block, offset)
                    except OSError as error:
                        assert error.errno == errno.EFBIG, error
                    else:
                        raise AssertionError(f"a write at {offset} succeeded")
                try:
                    written = os.pwrite(fd, block, limit - 4096)
                except OSError as error:
                    written = -error.errno
                # The kernel's FUSE turns a short O_DIRECT write into EIO, so nothing is written.
                assert written == (-errno.EFBIG if direct else 4096), f"{written} is what fits"
                assert os.pwrite(fd, block, limit - 8192) == 8192
            try:
                os.ftruncate(fd, limit + 1)
            except OSError as error:
                assert error.errno == errno.EFBIG, error
            else:
                raise AssertionError("a truncation beyond the limit succeeded")
            os.fsync(fd)
            assert os.fstat(fd).st_size == limit
        assert (server.export / name.name).stat().st_size == limit


@each("")
def test_the_limit_is_that_of_the_servers_file_system(server):
    """The mount refuses what the server's file system does not accept."""
    local = os.open(server.export, os.O_TMPFILE | os.O_RDWR)
    remote = os.open(server.mnt / "file", os.O_CREAT | os.O_RDWR)

    def tried(fd, offset):
        try:
            return os.pwrite(fd, b"12", offset)
        except OSError as error:
            return error.errno

    try:
        for bits in range(40, 63):
            for offset in (1 << bits) - 4097, (1 << bits) - 1, 1 << bits:
                here, there = tried(local, offset), tried(remote, offset)
                assert here == there, f"at {offset}: {there}, and {here} at the server"
                os.ftruncate(local, 0)
                os.ftruncate(remote, 0)
        os.fsync(remote)
    finally:
        os.close(local)
        os.close(remote)


# --- LOOKUP without supplementary groups ----------------------------------------------------------


MEMBER = User(61004, 61004, (61009,))


@each("allow_other,permissions=kernel,actimeo=600")
def test_groups_count_in_a_directory_that_has_just_been_closed_to_them(server):
    """The group may have fewer rights than others: whether access is refused depends on the caller's groups."""
    there, here = server.export / "folder", server.mnt / "folder"
    there.mkdir(mode=0o755)
    os.chown(there, A.uid, MEMBER.groups[0])
    for name in ("first", "second", "third"):
        write(there / name)
    by(MEMBER, os.stat, here / "first")
    there.chmod(0o705)
    # The kernel and the mount have the old mode cached, and the reply shows the new one.
    refused(MEMBER, os.stat, here / "second")
    refused(MEMBER, os.stat, here / "third")
    by(B, os.stat, here / "third")


def test_a_refusal_of_a_lookup_without_groups_is_no_answer():
    root()
    for user, asked in ((MEMBER, 2), (B, 1)):
        with Server("--fail", "LOOKUP=ACCESS:1") as server:
            (server.export / "folder").mkdir(mode=0o755)
            server.mount_well("allow_other,permissions=kernel")
            got = outcome(user, os.stat, server.mnt / "folder")
            assert got == ("ok" if user.groups else "EACCES"), f"uid {user.uid}: {got}"
            assert calls(server)["LOOKUP"] == asked, calls(server)
