"""Parts of the tests of Kerberos mounts: a realm, a server in it, and its mounts."""

import contextlib
import shutil
import struct

import pytest

from program.realm import Realm
from program.support import Server, root, scripted

FLAVORS = ("krb5", "krb5i", "krb5p")
SERVER_A, SERVER_B = 61011, 61012
"""Whom the server takes alice and bob for: it knows them by other numbers than this machine."""


class KerberosServer(Server):
    """A server of a realm at localhost. Its mounts have the realm's configuration, and the keytab as that of the machine."""

    def options(self, more=""):
        own = super().options(f"gssport={self.mountport}")
        return f"{own},{more}" if more else own

    def mount(self, more="", *words, at=None, **keywords):
        return super().mount(more, *words, at=at, env=self.environment, **keywords)


@contextlib.contextmanager
def kerberos_server(realm, *words, sec="krb5:krb5i:krb5p", root_is=None):
    """A server of the realm at localhost, and a function for its control commands. Alice and bob own what they make there."""
    known = [f"alice={SERVER_A}:{SERVER_A}", f"bob={SERVER_B}:{SERVER_B}"]
    if root_is is not None:
        known += [f"nfs/localhost={root_is}:{root_is}", f"host/localhost={root_is}:{root_is}"]
    principals = [word for name in known for word in ("--principal", name)]
    # The server's keys are not those of the machine, which a test may take away.
    keys = realm.base / "server.keytab"
    shutil.copy(realm.keytab, keys)
    words = ("--sec", sec, "--keytab", keys, *principals, *words)
    with scripted(*words, kind=KerberosServer, environment=realm.environment, host="localhost") as (server, command):
        yield server, command


def gss(command):
    """What the server counts: contexts, init, destroy, krb5, krb5i, krb5p, denied, outside."""
    return {name: int(count) for name, count in (word.split("=") for word in command("gss").split()[1:])}


def owner(path):
    return path.stat().st_uid


@pytest.fixture
def machine():
    """A realm with the users A (alice) and B (bob), who have no tickets yet. Its keytab is that of this machine."""
    root()
    with Realm() as realm:
        yield realm


class Ccache:
    """The secrets in a user's ticket cache, which is a file (MIT Kerberos documentation, "Credential cache file format")."""

    def __init__(self, path):
        self.bytes, self.at = path.read_bytes(), 0
        assert self.take(2) == b"\x05\x04"
        self.take(self.number(">H"))
        self.principal()
        self.keys, self.tickets = {}, {}
        while self.at < len(self.bytes):
            self.credential()

    def take(self, count):
        self.at += count
        assert self.at <= len(self.bytes)
        return self.bytes[self.at - count : self.at]

    def number(self, form=">I"):
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def data(self):
        return self.take(self.number())

    def principal(self):
        _, count = self.number(), self.number()
        realm, *components = (self.data().decode() for _ in range(count + 1))
        return f"{'/'.join(components)}@{realm}"

    def credential(self):
        self.principal()
        service = self.principal()
        self.take(2)
        key = self.data()
        # Times, whether it is of another ticket's session, and flags.
        self.take(4 * 4 + 1 + 4)
        for _ in range(2):
            for _ in range(self.number()):
                self.take(2)
                self.data()
        ticket = self.data()
        self.data()
        if "X-CACHECONF" not in service:
            self.keys[service], self.tickets[service] = key, ticket
