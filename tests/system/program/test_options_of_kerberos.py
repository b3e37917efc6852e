"""Mounts with sec=krb5, krb5i and krb5p in a realm of their own: users are who their tickets say."""

import contextlib
import errno
import os

import pytest

from program.effects import effect
from program.realm import Realm
from program.support import Server, expect, nfsrdma, root
from program.users import A, B, C, by

LISTED = "sys:krb5:krb5i:krb5p"


@contextlib.contextmanager
def kerberos(listed=LISTED):
    """A realm in which A has a ticket of alice and B has none, and a server that knows alice as C."""
    root()
    with Realm() as realm:
        realm.kinit("alice", A)
        words = ("--sec", listed, "--keytab", realm.keytab, "--principal", f"alice={C.uid}:{C.gid}")
        with Server(*words, host="localhost", environment=realm.environment) as server:
            yield realm, server


def mount(realm, server, words):
    return server.mount(f"gssport={server.mountport},{words}", env=realm.environment)


def unmount(server):
    expect(nfsrdma("umount", server.mnt), 0)
    server.ended()


@pytest.mark.parametrize("flavor", ["krb5", "krb5i", "krb5p"])
def test_users_are_who_their_tickets_say(flavor):
    payload = os.urandom(3 << 20)
    with kerberos() as (realm, server):
        expect(mount(realm, server, f"sec={flavor}"), 0)
        file = server.mnt / "file"
        by(A, file.write_bytes, payload)
        made = server.export / "file"
        assert made.stat().st_uid == C.uid and made.read_bytes() == payload
        made.chmod(0o600)
        (server.export / "theirs").write_bytes(payload)
        assert by(A, (server.mnt / "theirs").read_bytes) == payload
        with pytest.raises(PermissionError) as refused:
            by(B, os.listdir, server.mnt)
        assert refused.value.errno == errno.EACCES
        unmount(server)


@effect("sec", "gssport")
def test_a_list_of_flavors():
    with kerberos("krb5i") as (realm, server):
        expect(mount(realm, server, "sec=krb5p:krb5i:sys"), 0)
        by(A, (server.mnt / "file").write_text, "text")
        assert (server.export / "file").stat().st_uid == C.uid
        unmount(server)
        # Nobody who asks for protection gets less.
        for wanted in ("krb5p", "sys"):
            expect(mount(realm, server, f"sec={wanted}"), 32, "exports", "with sec=krb5i", f"sec={wanted}")
        expect(mount(realm, server, "ro"), 32, "use sec=krb5i")
