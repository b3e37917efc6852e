"""A server with Kerberos and two addresses, each by a network of its own: contexts are made by the one that lives."""

import os
import uuid


from program.kerberos_support import SERVER_A, KerberosServer, gss
from program.outlives_support import working
from program.paths_support import SERVER, Apart
from program.realm import Realm
from program.support import LIMIT, alone, came, needs, run_inside, scripted
from program.test_kerberos_mounts import worker
from program.users import A
from suites import until


class TwoPaths(Apart, KerberosServer):
    """The server is in a network namespace of its own, and the client in that of the test."""

    def __enter__(self):
        self.there = f"krb-{uuid.uuid4().hex[:8]}-server"
        return super().__enter__()


def test_contexts_are_made_by_the_path_that_lives():
    if "NFSRDMA_INSIDE" not in os.environ:
        needs("ip")
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
                    with server.cut(server.there, number):
                        init, written = gss(command)["init"], came(command, "WRITE")
                        command("gss-forget")
                        until(lambda: gss(command)["init"] > init, f"a new context without path {number}")
                        until(lambda: came(command, "WRITE") > written + 10, "more writing")
    return None
