"""Kerberos with Linux's server in the guest, and our mounts on the host, which is in the realm, too."""

import contextlib
import errno
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from interop.guest import CHECKS, EXPORT, Guest, MOUNTD, NFS, ROOT
from interop.host import CaseError, Mount, indent, run
from interop.kerberos import FLAVORS, modules, put_realm, USERS
from interop.locks import LOCKD
from program.lock_support import AGAIN, FREE, WRITE, Process, waits
from program.realm import Realm
from program.support import root
from program.users import A, B, C, by, outcome
from suites import until

TCP = 2049  # where contexts are made
PIECE = 60_000


class LocalMount(Mount):
    # The name of a key of the server.
    host = "localhost"


class Server:
    """knfsd in the guest, with a key of the realm for this machine's name, and what users on the host need."""

    def __init__(self, guest, realm, base):
        self.guest, self.realm, self.base = guest, realm, base

    def mount(self, options):
        ports = self.guest.ports
        options = f"allow_other,gssport={ports[TCP]},lockport={ports[LOCKD]},{options}"
        return LocalMount(EXPORT, ports[NFS], ports[MOUNTD], options, NFSRDMA_STATE_DIR=str(self.base), **self.realm.environment)

    def forget(self):
        self.guest.run("kerberos_forget")

    def sum(self, *files):
        return self.guest.run(f"cd {EXPORT}; sha256sum {' '.join(files)}")

    def owners(self, *files):
        return [int(uid) for uid in self.guest.run(f"cd {EXPORT}; stat -c %u {' '.join(files)}").split()]


@contextlib.contextmanager
def served():
    """A Server whose export has all flavors. alice, bob and carol have no tickets yet."""
    root()
    users = USERS | {"carol": C}
    with contextlib.ExitStack() as stack:
        realm = stack.enter_context(Realm(*users, services=("nfs/localhost",)))
        guest = stack.enter_context(Guest(forward=(NFS, MOUNTD, TCP, LOCKD), prepare=modules("siw")))
        base = Path(tempfile.mkdtemp(prefix="nfsrdma-kerberos."))
        stack.callback(shutil.rmtree, base)
        base.chmod(0o1777)
        put_realm(guest, realm)
        known = "\n".join(f"kerberos_user {name} {user.uid}" for name, user in users.items())
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


class Writer:
    """A program of a user, which writes a file in pieces and has each written at once."""

    def __init__(self, stack, user, path):
        self.process, self.written, self.path = stack.enter_context(Process(user=user)), 0, path
        assert self.process.do("open", "f", str(path), "wb") == 0

    def piece(self):
        """Writes one. Returns the number of the error that the program is told, or None."""
        text = f"{self.written:020}" * (PIECE // 20)
        told = self.process.do("write", "f", self.written, text)
        if told != PIECE:
            return -told
        self.written += PIECE
        return self.sync()

    def sync(self):
        told = self.process.do("fsync", "f")
        return None if told is None else -told

    def text(self):
        return "".join(f"{at:020}" * (PIECE // 20) for at in range(0, self.written, PIECE))


def test_kerberos_tickets():
    """Tickets expire and are renewed, are destroyed, and cannot be got from a KDC that is down, while programs write."""
    with served() as server, contextlib.ExitStack() as stack:
        realm = server.realm
        realm.kinit("bob", B)
        mounts = [stack.enter_context(server.mount(f"sec={flavor},nolock")).path for flavor in FLAVORS]
        realm.kinit("alice", A, "-l", "20s")
        for flavor, path in zip(FLAVORS, mounts):
            by(A, (path / flavor).mkdir)
        alice = [Writer(stack, A, path / flavor / "alice") for flavor, path in zip(FLAVORS, mounts)]
        bob = [Writer(stack, B, path / f"{flavor}.bob") for flavor, path in zip(FLAVORS, mounts)]

        def all_write(writers, wanted=None):
            told = [writer.piece() for writer in writers]
            assert told == [wanted] * len(told), [told and errno.errorcode[told] for told in told]

        # Everybody writes until alice's ticket has expired: by the server's clock, which is ahead of this machine's.
        server.guest.run("date -s '+3 seconds'")
        waiting = list(alice)
        while waiting:
            told = [writer.piece() for writer in waiting]
            assert set(told) <= {None, errno.EKEYEXPIRED}, told
            waiting = [writer for writer, error in zip(waiting, told) if error is None]
            all_write(bob)
        for path in mounts:
            assert outcome(A, os.listdir, path) == "EKEYEXPIRED"
        realm.kinit("alice", A)
        for writer in alice:
            until(lambda writer=writer: writer.sync() is None, "a new context")
            print(f"    {writer.written // PIECE} pieces written by alice", flush=True)
        all_write(alice)

        # A destroyed ticket counts when the context has ended.
        realm.kdestroy(A)
        all_write(alice)
        server.forget()
        all_write(bob)
        for writer, path in zip(alice, mounts):
            assert writer.piece() == errno.EACCES
            assert outcome(A, os.listdir, path) == "EACCES"
        realm.kinit("alice", A)
        for writer in alice:
            until(lambda writer=writer: writer.sync() is None, "a new context")

        # Without the KDC, tickets for the server still count, and who has none waits.
        realm.kinit("carol", C)
        realm.stop()
        server.forget()
        all_write([*alice, *bob])
        with Process(user=C) as carol:
            carol.send("open", "f", str(mounts[1] / "carol"), "wb")
            all_write([*alice, *bob])
            assert waits(carol, 2)
            realm.start()
            assert carol.receive() == 0
            assert carol.do("write", "f", 0, "carol") == 5 and carol.do("fsync", "f") is None

        for writer, path in zip([*alice, *bob], mounts * 2):
            name = str(writer.path.relative_to(path))
            found = server.guest.run(f"cat {EXPORT}/{name}")
            if found != writer.text():
                raise CaseError(f"{name}: {len(found)} bytes of {writer.written}")
        names = [f"{flavor}/alice" for flavor in FLAVORS] + [f"{flavor}.bob" for flavor in FLAVORS]
        assert server.owners(*names, "carol") == [A.uid] * 3 + [B.uid] * 3 + [C.uid]
