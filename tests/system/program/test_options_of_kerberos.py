"""Mounts with sec=krb5, krb5i and krb5p in a realm of their own: users are who their tickets say."""

import contextlib
import errno
import itertools
import json
import os
import subprocess

from program.effects import effect
from program.realm import Realm
from program.support import BIN, LIMIT, Server, expect, nfsrdma, root, run, stats, unmount
from program.users import A, C, by
from suites import until

LISTED = "sys:krb5:krb5i:krb5p"


@contextlib.contextmanager
def kerberos(listed=LISTED):
    """A realm in which A has a ticket of alice, and a server that knows alice as C."""
    root()
    with Realm() as realm:
        realm.kinit("alice", A)
        words = ("--sec", listed, "--keytab", realm.keytab, "--principal", f"alice={C.uid}:{C.gid}")
        with Server(*words, host="localhost", environment=realm.environment) as server:
            yield realm, server


def mount(realm, server, words):
    return server.mount(f"gssport={server.mountport},{words}", env=realm.environment)


@effect("sec", "gssport")
def test_a_list_of_flavors():
    with kerberos("krb5i") as (realm, server):
        expect(mount(realm, server, "sec=krb5p:krb5i:sys"), 0)
        by(A, (server.mnt / "file").write_text, "text")
        assert (server.export / "file").stat().st_uid == C.uid
        unmount(server.mnt)
        # Nobody who asks for protection gets less.
        for wanted in ("krb5p", "sys"):
            expect(mount(realm, server, f"sec={wanted}"), 32, "exports", "with sec=krb5i", f"sec={wanted}")
        expect(mount(realm, server, "ro"), 32, "use sec=krb5i")


def failure(call, *words):
    """The errno of a call; 0 if it succeeds."""
    try:
        call(*words)
    except OSError as error:
        return error.errno
    return 0


def test_umount_waits_for_a_ticket():
    with kerberos() as (realm, server):

        def writes(path):
            realm.kinit("alice", None, "-l", "6s")
            file = os.open(path, os.O_CREAT | os.O_WRONLY)
            names = (f"{path}{number}" for number in itertools.count())
            until(lambda: failure(os.stat, next(names)) == errno.EKEYEXPIRED, "the end of a ticket's life")
            return failure(os.write, file, b"kept"), failure(os.close, file)

        expect(mount(realm, server, "sec=krb5i"), 0)
        assert by(A, writes, server.mnt / "file") == (0, errno.EKEYEXPIRED)
        words = [BIN / "nfsrdma", "umount", server.mnt]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as unmounting:
            assert "are not safe at" in unmounting.stderr.readline()
            realm.kinit("alice", A)
            assert unmounting.wait(LIMIT) == 0
        assert (server.export / "file").read_bytes() == b"kept"
        server.ended()


def test_what_a_mount_says_of_itself():
    with kerberos() as (realm, server):
        options = f"gssport={server.mountport},sec=krb5i"
        said = nfsrdma("ping", server.spec, "-o", server.options(options), env=realm.environment)
        expect(said, 0, "sec=sys:krb5:krb5i:krb5p", "kerberos", "sec=krb5i, user 0")
        expect(mount(realm, server, "sec=krb5p:krb5i,restart=files"), 0)
        by(A, os.listdir, server.mnt)
        said = json.loads(stats(server, "--json"))
        assert "sec=krb5p" in said["options"].split(",") and said["kerberos"]["contexts"] == 2
        assert "Kerberos: 2 contexts, the first expires in " in stats(server)
        metrics = stats(server, "--prometheus")
        assert 'sec="krb5p"}' in metrics and "nfsrdma_kerberos_contexts{" in metrics
        assert "flavor=6,pseudoflavor=390005" in stats(server, "--mountstats")
        unmount(server.mnt)
        expect(run("mv", realm.keytab, f"{realm.keytab}.away"), 0)
        result = mount(realm, server, "sec=krb5,retry=0")
        expect(result, 32, "no Kerberos context with localhost", "root has no Kerberos key")
