"""Kerberos with Linux's server in the guest, and our mounts on the host, which is in the realm, too."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from interop.guest import CHECKS, EXPORT, Guest, MOUNTD, NFS, ROOT
from interop.host import Mount, indent, run
from interop.kerberos import FLAVORS, put_realm, USERS
from interop.locks import LOCKD
from program.lock_support import AGAIN, FREE, WRITE, Process, waits
from program.realm import Realm
from program.support import root
from program.users import A, B, by

TCP = 2049  # where contexts are made


class LocalMount(Mount):
    # The name of a key of the server.
    host = "localhost"


class Server:
    """knfsd in the guest, with a key of the realm for this machine's name, and what users on the host need."""

    def __init__(self, guest, realm, base):
        self.guest, self.realm, self.base = guest, realm, base

    def mount(self, options):
        options = f"allow_other,gssport={TCP},lockport={LOCKD},{options}"
        return LocalMount(EXPORT, NFS, MOUNTD, options, NFSRDMA_STATE_DIR=str(self.base), **self.realm.environment)


@contextlib.contextmanager
def served():
    """A Server whose export has all flavors. alice and bob have no tickets yet."""
    root()
    with contextlib.ExitStack() as stack:
        realm = stack.enter_context(Realm(*USERS, services=("nfs/localhost",)))
        guest = stack.enter_context(Guest(prepare="link siw"))
        base = Path(tempfile.mkdtemp(prefix="nfsrdma-kerberos."))
        stack.callback(shutil.rmtree, base)
        base.chmod(0o1777)
        put_realm(guest, realm)
        known = "\n".join(f"kerberos_user {name} {user.uid}" for name, user in USERS.items())
        guest.run(f"locks_start 1; kerberos_start {':'.join(FLAVORS)}; knfsd_start; grace_v4_end\n{known}")
        yield Server(guest, realm, base)


def as_user(user, *command, limit=300, **variables):
    """Runs a program on the host as a user."""
    who = ("setpriv", f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups")
    return run([*who, *command], limit, cwd="/", env=os.environ | variables)


def locked(one, two):
    """Each of two users, at mounts of their own, gets the lock that the other one leaves."""
    by(A, (one / "lock").write_bytes, b"0")
    by(A, (one / "lock").chmod, 0o666)
    with Process(user=A) as alice, Process(user=B) as bob:
        for process, folder in ((alice, one), (bob, two)):
            assert process.do("open", "f", str(folder / "lock")) == 0
        assert alice.set("f", WRITE, 0, 10) == 0
        assert (bob.set("f", WRITE, 5, 10), bob.set("f", WRITE, 10, 10)) == (AGAIN, 0)
        assert alice.do("write", "f", 0, "alice") == 5
        bob.wait_for("f", WRITE, 0, 10)
        assert waits(bob, 0.3)
        assert alice.set("f", FREE, 0, 10) == 0
        assert bob.got() == 0 and bob.do("read", "f", 0, 5) == "alice"


def test_kerberos_calls():
    """With each flavor: calls of every kind, random ones to one file (fsx), and locks of users at two mounts."""
    tool = subprocess.run([ROOT / "tests/external/run", "--fsx"], stdout=subprocess.PIPE, text=True, check=False)
    if tool.returncode != 0:
        pytest.skip("fsx cannot be built")
    fsx = Path(tool.stdout.strip())
    with served() as server:
        # Where a user can reach them.
        for file in (CHECKS, fsx):
            shutil.copy(file, server.base)
        for name, user in (("alice", A), ("bob", B)):
            server.realm.kinit(name, user)
        for seed, flavor in enumerate(FLAVORS, 1):
            with server.mount(f"sec={flavor},lock") as one, server.mount(f"sec={flavor},lock") as two:
                names = "procedures links directory renames appends unlinked".split()
                indent(as_user(A, "python3", "-B", server.base / "checks.py", "run", one.path, *names,
                               CHECK_ENTRIES="30", CHECK_DROP="0"))
                locked(one.path, two.path)
                as_user(A, server.base / fsx.name, "-q", "-N", "300", "-S", str(seed), "-P", server.base, one.path / "fsx")
