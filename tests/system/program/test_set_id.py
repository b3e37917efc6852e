"""Set-id bits, and programs whose real user is another than the one they act as."""

import mmap
import os

from program.support import *  # noqa: F403
from program.users import A, ROOT_USER, User, by, each, write

TEAM = 61900


def mode(path):
    return f"{os.stat(path).st_mode & 0o7777:o}"


@each("", "permissions=server,allow_other")
def test_access_of_a_set_user_id_program_counts_the_groups_of_its_user(server):
    """access(2) asks for the real user, in whose name the process does nothing else."""
    there, team = server.export / "team", server.mnt / "team"
    there.mkdir(mode=0o750)
    os.chown(there, 0, TEAM)
    for name, bits in (("both", 0o660), ("read", 0o640), ("others", 0o604)):
        write(there / name, mode=bits)
        os.chown(there / name, 0, TEAM)

    def asked(groups):
        os.setgroups(groups)
        os.setresgid(A.gid, 0, 0)
        os.setresuid(A.uid, 0, 0)
        asks = (os.F_OK, os.R_OK, os.W_OK)
        return {name: [os.access(team / name, ask) for ask in asks] for name in ("both", "read", "others")}

    found = by(ROOT_USER, asked, (TEAM,))
    assert found == {"both": [True, True, True], "read": [True, True, False], "others": [True, False, False]}, found
    assert not any(map(any, by(ROOT_USER, asked, ()).values()))


@each("", "noacl", "permissions=server,allow_other")
def test_what_a_user_writes_clears_the_set_id_bits(server):
    """By the server, as for Linux's client: who opened the file is who writes, and root may keep them."""
    member = User(A.uid, A.gid, (TEAM,))

    def direct(descriptor):
        with mmap.mmap(-1, 4096) as page:
            os.pwritev(descriptor, [page], 0)

    changes = {
        "written": lambda descriptor: os.pwrite(descriptor, b"another", 0),
        "cut": lambda descriptor: os.ftruncate(descriptor, 3),
        "direct": direct,
    }

    def use(path, change, flags):
        descriptor = os.open(path, flags)
        changes[change](descriptor)
        os.fsync(descriptor)
        os.close(descriptor)

    for name in changes:
        for bits, writer, left in (
            (0o4757, A, "757"),
            (0o2717, A, "717"),
            (0o6777, member, "777"),
            (0o4755, ROOT_USER, "4755"),
        ):
            path = server.mnt / f"{name}{bits:o}{writer.uid}{len(writer.groups)}"
            path.touch()
            os.chown(path, 0, TEAM)
            path.chmod(bits)
            by(writer, use, path, name, os.O_RDWR | (os.O_DIRECT if name == "direct" else 0))
            found = mode(path), mode(server.export / path.name)
            assert found == (left, left), f"{path.name}: {found}, not {left}"
