"""A server with Kerberos and two addresses, each by a network of its own: contexts are made by the one that lives."""

import contextlib
import os
import shutil
import uuid

import pytest

from program.kerberos_support import SERVER_A, KerberosServer, gss
from program.outlives_support import working
from program.realm import Realm
from program.support import BIN, LIMIT, alone, came, run, run_inside, scripted, start_responder
from program.test_kerberos_mounts import worker
from program.test_locks_net import ip
from program.test_paths import CLIENT, SERVER
from program.users import A
from suites import until


class TwoPaths(KerberosServer):
    """The server is in a network namespace of its own, and the client in that of the test."""

    def __enter__(self):
        self.there = f"krb-{uuid.uuid4().hex[:8]}-server"
        try:
            ip("netns", "add", self.there)
            ip("-n", self.there, "link", "set", "lo", "up")
            for number, (server, client) in enumerate(zip(SERVER, CLIENT)):
                device = f"path{number}"
                ip("link", "add", device, "type", "veth", "peer", "name", device, "netns", self.there)
                for space, address in ((["-n", self.there], server), ([], client)):
                    ip(*space, "address", "add", f"{address}/30", "dev", device)
                    ip(*space, "link", "set", device, "up")
            return super().__enter__()
        except BaseException:
            self.forget()
            raise

    def __exit__(self, *words):
        try:
            super().__exit__(*words)
        finally:
            self.forget()

    def forget(self):
        run("ip", "netns", "delete", self.there)

    def start(self):
        command = ["nsenter", f"--net=/run/netns/{self.there}", BIN / "nfsrdma-responder", self.export, *self.words]
        ports = (self.port, self.mountport)
        self.child, self.port, self.mountport = start_responder(command, self.base, *ports, env=self.environment)

    @contextlib.contextmanager
    def cut(self, number):
        """Nothing goes by a path until the end of the block."""
        ip("-n", self.there, "link", "set", f"path{number}", "down")
        try:
            yield
        finally:
            ip("-n", self.there, "link", "set", f"path{number}", "up")


def test_contexts_are_made_by_the_path_that_lives():
    if "NFSRDMA_INSIDE" not in os.environ:
        if not shutil.which("ip"):
            pytest.skip("needs ip (iproute2)")
        enter = alone("--net", "--propagation", "private", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
        return run_inside(enter, "test_contexts_are_made_by_the_path_that_lives", "NFSRDMA_INSIDE", 2 * LIMIT)
    with Realm(services=(f"nfs/{SERVER[0]}",)) as realm:
        realm.kinit("alice", A)
        words = ("--listen", "0.0.0.0:0", "--sec", "krb5i", "--keytab", realm.keytab)
        words += ("--principal", f"alice={SERVER_A}:{SERVER_A}")
        more = {"kind": TwoPaths, "environment": realm.environment, "host": SERVER[0]}
        with scripted(*words, **more) as (server, command):
            server.mount_well(f"sec=krb5i,remoteports={'~'.join(SERVER)},nconnect=2,timeo=20,nolock")
            with working(worker(A, server.mnt)):
                for number in (0, 1):
                    with server.cut(number):
                        init, written = gss(command)["init"], came(command, "WRITE")
                        command("gss-forget")
                        until(lambda: gss(command)["init"] > init, f"a new context without path {number}")
                        until(lambda: came(command, "WRITE") > written + 10, "more writing")
    return None
