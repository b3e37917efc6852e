"""Access control lists through a mount: getfacl and setfacl, the access that they grant, and what new files inherit.

The responder keeps them on the exported files themselves, so each is compared with the ACL in the exported directory.
"""

import errno
import math
import os
import time

import pytest

from program.users import A, B, C, ROOT_USER, by, by_effective, calls, each, outcome, refused, write
from program.support import *  # noqa: F403

ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
UNSUPPORTED = errno.errorcode[errno.EOPNOTSUPP]
CHECKED_BY = ("allow_other,permissions=kernel", "allow_other,permissions=server")


def facl(*words, **more):
    done = run(*words, **more)
    assert done.returncode == 0, f"{words}: status {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


def tools():
    root()
    needs("setfacl")


def getfacl(path):
    """The entries of an ACL, without comments, with their effective rights."""
    return sorted(facl("getfacl", "-cnpE", path).split())


def same(server, name):
    """The entries of a name, which are the same through the mount and at the server."""
    here, there = getfacl(server.mnt / name), getfacl(server.export / name)
    assert here == there, f"{name}: {here} through the mount, {there} at the server"
    return here


@each("", *CHECKED_BY)
def test_acls_go_there_and_back(server):
    tools()
    file, folder = server.mnt / "file", server.mnt / "dir"
    write(file, mode=0o640)
    folder.mkdir(0o750)
    assert same(server, "file") == ["group::r--", "other::---", "user::rw-"]
    facl("setfacl", "-m", f"u:{B.uid}:rw,g:{C.gid}:r", file)
    wanted = ["group::r--", f"group:{C.gid}:r--", "mask::rw-", "other::---", "user::rw-", f"user:{B.uid}:rw-"]
    entries = same(server, "file")
    assert entries == sorted(wanted), entries
    # The group bits of the mode are the mask.
    assert os.stat(file).st_mode & 0o777 == 0o660, oct(os.stat(file).st_mode)
    shown = run("ls", "-l", file).stdout
    assert shown.split()[0].endswith("+"), shown
    assert os.listxattr(file) == [ACCESS], os.listxattr(file)
    file.chmod(0o600)
    entries = same(server, "file")
    assert "mask::---" in entries, entries
    facl("setfacl", "-b", file)
    # setfacl(1) keeps the rights that the mask had left.
    entries = same(server, "file")
    assert entries == ["group::---", "other::---", "user::rw-"], entries
    assert os.listxattr(file) == [], os.listxattr(file)
    facl("setfacl", "-m", f"d:u:{B.uid}:rwx,u:{C.uid}:x", folder)
    entries = same(server, "dir")
    assert f"default:user:{B.uid}:rwx" in entries and f"user:{C.uid}:--x" in entries, entries
    assert sorted(os.listxattr(folder)) == [ACCESS, DEFAULT], os.listxattr(folder)
    # One ACL is changed, and the other stays.
    facl("setfacl", "-k", folder)
    entries = same(server, "dir")
    assert f"user:{C.uid}:--x" in entries and os.listxattr(folder) == [ACCESS], entries
    facl("setfacl", "-m", f"d:u:{B.uid}:r", folder)
    facl("setfacl", "-b", folder)
    assert os.listxattr(folder) == [], os.listxattr(folder)
    # An ACL that is set at the server is seen when the attributes are next fetched.
    facl("setfacl", "-m", f"u:{B.uid}:x", server.export / "file")
    until(lambda: file.read_bytes() and f"user:{B.uid}:--x" in getfacl(file), "the server's ACL")


@each(*CHECKED_BY)
def test_who_an_acl_names_gets_in_and_no_others(server):
    tools()
    file, folder = server.mnt / "file", server.mnt / "dir"
    write(file, mode=0o600)
    folder.mkdir(0o700)
    write(folder / "below", mode=0o644)
    facl("setfacl", "-m", f"u:{B.uid}:r", file)
    facl("setfacl", "-m", f"u:{B.uid}:rx", folder)
    assert by(B, (folder / "below").read_bytes) == by(B, file.read_bytes) == b"secret"
    refused(B, file.write_bytes, b"x")
    refused(B, (folder / "new").write_bytes, b"x")
    for user in (A, C):
        refused(user, file.read_bytes)
        refused(user, os.stat, folder / "below")
        refused(user, os.listdir, folder)
    # A group, and a mask that reduces its rights.
    facl("setfacl", "-m", f"g:{C.gid}:rw", file)
    by(C, file.write_bytes, b"from C")
    facl("setfacl", "-m", "m::r", file)
    assert by(C, file.read_bytes) == b"from C"
    refused(C, file.write_bytes, b"x")
    file.chmod(0o600)
    refused(C, file.read_bytes)
    refused(B, file.read_bytes)
    # Less than the mode grants others.
    file.chmod(0o664)
    facl("setfacl", "-m", f"u:{A.uid}:-", file)
    refused(A, file.read_bytes)
    assert by(C, file.read_bytes) == b"from C"
    facl("setfacl", "-x", f"u:{A.uid}", file)
    assert by(A, file.read_bytes) == b"from C"
    # Also in a directory that the mode opens to everybody: names and attributes are hidden.
    facl("setfacl", "-b", folder)
    folder.chmod(0o755)
    questions = (os.stat, folder / "below"), (os.listdir, folder)
    assert [outcome(A, *question) for question in questions] == ["ok", "ok"]
    facl("setfacl", "-m", f"u:{A.uid}:-", folder)
    for question in (*questions, (os.stat, folder / "absent")):
        refused(A, *question)
    assert [outcome(C, *question) for question in questions] == ["ok", "ok"]
    # Only the owner sets an ACL.
    assert outcome(B, os.setxattr, file, ACCESS, os.getxattr(file, ACCESS)) == "EPERM"


@each("actimeo=3600")
def test_the_kernel_keeps_the_acl_of_the_root_directory(server):
    """It would not, for the node from which it begins, and ask for each path of somebody who does not own the root."""
    file = server.mnt / "file"
    write(file, mode=0o644)
    assert outcome(A, os.stat, file) == "ok"
    with asleep(*servers_of(server.mnt)):
        child = os.fork()
        if child == 0:
            A.become()
            os.stat(file)
            os._exit(0)
        until(lambda: os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT), "a stat without a request")
    assert os.waitpid(child, 0)[1] == 0
    tools()
    facl("setfacl", "-m", f"u:{A.uid}:-", server.mnt)
    assert [outcome(user, os.stat, file) for user in (A, B)] == ["EACCES", "ok"]
    facl("setfacl", "-b", server.mnt)
    assert outcome(A, os.stat, file) == "ok"


def made(folder):
    """Makes one object of each kind in a directory. Returns their modes."""
    os.umask(0o027)
    os.close(os.open(folder / "file", os.O_CREAT | os.O_WRONLY, 0o666))
    os.close(os.open(folder / "exclusive", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o664))
    os.mkdir(folder / "sub", 0o777)
    os.mkfifo(folder / "fifo", 0o666)
    os.symlink("file", folder / "link")


@each("", *CHECKED_BY)
def test_new_files_inherit_as_they_do_at_the_server(server):
    tools()
    for name, acl in (
        ("plain", None),
        ("default", f"d:u:{B.uid}:rwx,d:g:{C.gid}:r-x,d:o::-"),
        ("minimal", "d:u::rwx,d:g::rwx,d:o::rx"),
        ("masked", f"d:u:{B.uid}:rwx,d:m::r"),
    ):
        here, there = server.mnt / name, server.export / f"{name}-local"
        for folder in (here, there):
            folder.mkdir(0o777)
            if acl:
                facl("setfacl", "-m", acl, folder)
            by(ROOT_USER, made, folder)
        for entry in ("file", "exclusive", "sub", "fifo"):
            ours, local = getfacl(here / entry), getfacl(there / entry)
            assert ours == local, f"{name}/{entry}: {ours}, locally {local}"
            assert same(server, f"{name}/{entry}") == local
            mode = [oct(os.stat(folder / entry).st_mode) for folder in (here, there)]
            assert mode[0] == mode[1], f"{name}/{entry}: {mode}"


@each("", *CHECKED_BY)
def test_a_directory_made_by_a_stranger_keeps_the_set_gid_bit_beside_a_default_acl(server):
    """The server itself passes on ACL and bit. Setting an ACL later would clear the bit if the user is not in the
    group."""
    tools()
    for where in (server.mnt, server.export):
        folder = where / ("here" if where == server.mnt else "there")
        folder.mkdir()
        os.chown(folder, 0, C.gid)
        folder.chmod(0o2777)
        facl("setfacl", "-m", f"d:u:{B.uid}:rwx,d:g:{A.gid}:r-x,d:o::rwx", folder)
        by(A, made, folder)
    for name in ("sub", "file", "exclusive", "fifo"):
        ours, local = os.lstat(server.mnt / "here" / name), os.lstat(server.export / "there" / name)
        shown = [(oct(one.st_mode), one.st_gid) for one in (ours, local)]
        assert shown[0] == shown[1], f"{name}: {shown}"
        assert getfacl(server.mnt / "here" / name) == getfacl(server.export / "there" / name)


@each("", *CHECKED_BY)
def test_what_was_written_before_an_acl_took_the_right_to_write_is_kept(server):
    tools()
    file = server.mnt / "file"
    by(A, write, file, b"", 0o644)
    by(A, facl, "setfacl", "-m", f"u:{B.uid}:rw", file)

    def write_lose_and_close():
        fd = by_effective(B, os.open, file, os.O_WRONLY)
        try:
            os.write(fd, b"in time" * 1000)
            # Do not use a process here: its end would close the descriptor, which writes the data.
            by_effective(A, os.removexattr, file, ACCESS)
            os.fsync(fd)
        finally:
            os.close(fd)

    by(ROOT_USER, write_lose_and_close)
    assert (server.export / "file").read_bytes() == b"in time" * 1000
    refused(B, file.write_bytes, b"late")


@each("")
def test_an_acl_that_does_not_fit_inline(server):
    """Its reply comes in a Reply chunk, and its call in a chunk at position zero."""
    tools()
    file = server.export / "file"
    write(file)
    facl("setfacl", "-m", ",".join(f"u:{70000 + n}:r" for n in range(450)), file)
    assert len(same(server, "file")) == 454
    facl("setfacl", "-m", "u:80000:rw", server.mnt / "file")
    assert len(same(server, "file")) == 455
    assert procedures(server)["SETACL"]["calls"] == 1


@each("noacl")
def test_without_acls_by_option(server):
    no_acls(server)
    assert calls(server)["GETACL"] == calls(server)["SETACL"] == 0


@each("", *CHECKED_BY, words=("--no-acl",))
def test_a_server_without_acls_changes_nothing(server):
    no_acls(server)


def no_acls(server):
    file = server.mnt / "file"
    write(file, mode=0o640)
    for name in (ACCESS, DEFAULT, "user.a", "security.capability"):
        got = outcome(ROOT_USER, os.getxattr, file, name)
        # From 6.2 on, Linux assumes that a FUSE file system without extended attributes has no ACLs.
        assert got == UNSUPPORTED or (got == "ENODATA" and name in (ACCESS, DEFAULT)), f"{name}: {got}"
    valid = b"\2\0\0\0" + b"".join(tag + b"\0\4\0\xff\xff\xff\xff" for tag in (b"\1", b"\4", b"\x20"))
    for name, value in ((ACCESS, valid), ("user.a", b"x")):
        got = outcome(ROOT_USER, os.setxattr, file, name, value)
        assert got == UNSUPPORTED, f"{name}: {got}"

    def make():
        os.umask(0o077)
        (server.mnt / "new").write_bytes(b"")
        (server.mnt / "sub").mkdir()

    by(ROOT_USER, make)
    assert os.stat(server.mnt / "new").st_mode & 0o777 == 0o600
    assert os.stat(server.mnt / "sub").st_mode & 0o777 == 0o700


@each("")
def test_attributes_that_are_no_acls_are_not_supported(server):
    file = server.mnt / "file"
    write(file)
    assert outcome(ROOT_USER, os.getxattr, file, ACCESS) == "ENODATA"
    for name in ("user.a", "security.capability", "trusted.b"):
        assert outcome(ROOT_USER, os.getxattr, file, name) == UNSUPPORTED, name
    for name in ("user.a", "trusted.b"):
        assert outcome(ROOT_USER, os.setxattr, file, name, b"x") == UNSUPPORTED, name
        assert outcome(ROOT_USER, os.removexattr, file, name) == UNSUPPORTED, name
    for value in (b"\1\0\0\0", b"\2\0\0\0\1\0", b"\2\0\0\0" + 8 * b"\1"):
        got = outcome(ROOT_USER, os.setxattr, file, ACCESS, value)
        assert got in ("EINVAL", UNSUPPORTED), f"{value}: {got}"
    os.symlink("file", server.mnt / "link")
    with_link = (os.getxattr, server.mnt / "link", ACCESS)
    assert outcome(ROOT_USER, *with_link, follow_symlinks=False) == UNSUPPORTED


@each("")
def test_ping_says_whether_there_are_acls(server):
    said = nfsrdma("ping", server.spec, "-o", server.options())
    expect(said, 0, "NFS_ACL version 3")
    with Server("--no-acl") as other:
        expect(nfsrdma("ping", other.spec, "-o", other.options()), 0, "does not have NFS_ACL")


@each("")
def test_a_list_is_asked_for_once(server):
    """Also that of a directory in which new files are made."""
    tools()
    file, folder = server.mnt / "file", server.mnt / "folder"
    write(file)
    for _ in range(20):
        getfacl(file)
    before = calls(server)["GETACL"]
    folder.mkdir()
    for number in range(20):
        write(folder / f"file{number}")
    after = calls(server)
    assert before <= 4 and after["GETACL"] - before <= 4 and after["CREATE"] == 21, (before, after)


@each("")
def test_a_file_is_asked_for_one_list_only(server):
    """A file has no default ACL. So the largest reply, for which memory is registered, has one list of 1,024 entries (of
    12 bytes each), and not two."""
    write(server.mnt / "file")

    def exposed():
        links = json.loads(stats(server, "--json"))["connections"]
        return sum(link["counters"]["registered_bytes"] for link in links)

    before = exposed()
    assert outcome(ROOT_USER, os.getxattr, server.mnt / "file", ACCESS) == "ENODATA"
    assert 0 < exposed() - before < 13_000


@each("actimeo=2")
def test_a_default_list_set_at_the_server_is_handed_on_though_names_are_made_meanwhile(server):
    tools()
    here, there = server.mnt / "folder", server.export / "folder"
    here.mkdir()
    write(here / "first")
    facl("setfacl", "-m", f"d:u:{B.uid}:rwx", there)
    numbers = iter(range(10_000))

    def inherits():
        """Makes each CREATE change the directory's times, later than the ACL was read."""
        name = f"file{next(numbers)}"
        write(here / name)
        return any(entry.startswith(f"user:{B.uid}:") for entry in getfacl(there / name))

    until(inherits, "a file with the ACL that its directory hands on", limit=30)


@each("", *CHECKED_BY)
def test_a_server_that_has_no_acls_any_more_is_open_by_its_modes(server):
    """The kernel asks for the ACL to check who may, and would return an error to the program."""
    folder, file = server.mnt / "folder", server.mnt / "folder/file"
    by(A, os.mkdir, folder, 0o755)
    by(A, write, file, b"text", 0o644)
    server.stop()
    server.words = ("--no-acl",)
    server.start()
    assert by(B, os.listdir, folder) == ["file"]
    assert by(B, file.read_bytes) == b"text"
    refused(B, os.mkdir, folder / "new")
    by(A, file.chmod, 0o640)
    refused(B, file.read_bytes)


@each("", *CHECKED_BY)
def test_a_default_acl_that_was_taken_away_at_the_server_is_not_given_to_new_files(server):
    tools()
    here, there = server.mnt / "folder", server.export / "folder"
    by(A, os.mkdir, here, 0o755)
    by(A, facl, "setfacl", "-m", f"d:u:{B.uid}:rwx,d:o::rx", here)

    def make(name):
        os.umask(0o077)
        (here / f"{name}-file").write_bytes(b"secret")
        os.close(os.open(here / f"{name}-exclusive", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        os.mkfifo(here / f"{name}-fifo", 0o666)
        os.mkdir(here / f"{name}-sub", 0o777)

    def acls(name):
        return {path.name: getfacl(path) for path in there.glob(f"{name}-*")}

    by(A, make, "first")
    assert all(any(entry.startswith(f"user:{B.uid}:rw") for entry in acl) for acl in acls("first").values())
    # Another one.
    facl("setfacl", "-m", f"d:u:{C.uid}:rwx", "-x", f"d:u:{B.uid}", there)
    by(A, make, "second")
    for name, acl in acls("second").items():
        assert any(entry.startswith(f"user:{C.uid}:rw") for entry in acl), f"{name}: {acl}"
        assert not any(f":{B.uid}:" in entry for entry in acl), f"{name}: {acl}"


@pytest.mark.usefixtures("users")
def test_a_right_that_was_asked_for_before_an_acl_took_it_away_is_not_kept():
    """The answer arrives after that to SETACL, and the two differ in no attribute: the clock ticks by the second."""
    tools()
    with scripted("--one-second-times") as (server, command):
        server.mount_well("permissions=server,allow_other")
        offset = 0
        for turn in range(20):
            folder = server.mnt / f"folder{turn}"
            by(A, os.mkdir, folder, 0o755)
            by(A, write, folder / "file")
            by(A, os.stat, folder / "file")
            acl = facl("getfacl", "-cpE", folder) + f"user:{B.uid}:---\nmask::r-x\n"
            known = int(os.stat(folder).st_ctime)
            command("hold-reply ACCESS 1")
            asking = os.fork()
            if asking == 0:
                status = 1
                try:
                    B.become()
                    status = 0 if os.access(folder, os.X_OK) else 2
                finally:
                    os._exit(status)
            command(f"wait-held 1 {LIMIT * 1000}")
            # The clock shows the second of the directory's last change.
            back = known - math.floor(time.time() + offset)
            offset += back
            if back:
                command(f"clock {back:+d}s")
            by(A, facl, "setfacl", "-n", "--set-file=-", folder, input=acl)
            same_second = int(os.stat(folder).st_ctime) == known
            command("release")
            assert os.waitstatus_to_exitcode(os.waitpid(asking, 0)[1]) == 0
            refused(B, os.stat, folder / "file")
            refused(B, os.stat, folder / "absent")
            if same_second:
                return
        pytest.skip("this machine is too slow: each ACL was set in another second")
