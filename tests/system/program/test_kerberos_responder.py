"""The responder's RPCSEC_GSS, by a client that shares nothing with it: bytes, window and errors are those of knfsd."""

import contextlib
import os
import struct

import pytest

from program.realm import ENCTYPES, Realm
from program.rpcsec_gss import (
    ACCESS,
    FSINFO,
    GETATTR,
    INTEGRITY,
    NONE,
    PRIVACY,
    READ,
    SERVICES,
    WRITE,
    Client,
    Denied,
    GssError,
    HungUp,
    Session,
    in_realm,
    opaque,
)
from program.support import Server, root, scripted
from program.users import A, B
from suites import until

ACCES = 13
"""NFS3ERR_ACCES."""
BADCRED, CREDPROBLEM, CTXPROBLEM = 1, 13, 14


@pytest.fixture(scope="module")
def realm():
    root()
    with Realm() as realm:
        realm.kinit("alice", A)
        realm.kinit("bob", B)
        yield realm


@contextlib.contextmanager
def serving(realm, *words, sec="sys:krb5:krb5i:krb5p"):
    """A responder of the realm, which knows alice and not bob, and a function for its control commands."""
    known = ("--sec", sec, "--keytab", realm.keytab, "--principal", f"alice={A.uid}:{A.gid}")
    with scripted(*known, *words, environment=realm.environment) as (server, command):
        yield server, command


def inside(realm, server, test, user=A, *more):
    """Calls `test(client, handle of the export's root, *more)` as a user in the realm."""

    def connect():
        client = Client(server.mountport)
        return test(client, client.mnt(server.export)[0], *more)

    return in_realm(realm, user, connect)


def status_of(results):
    return struct.unpack_from(">I", results)[0]


def denial(session, *words, **wrong):
    """The number of the AUTH_ERROR with which a call is refused; None if it is not."""
    try:
        session.call(*words, **wrong)
    except Denied as denied:
        return denied.args[0]
    return None


@pytest.mark.parametrize("enctypes", [ENCTYPES, *([enctype] for enctype in ENCTYPES[1:])], ids=["all", *ENCTYPES[1:]])
def test_each_flavor_carries_calls(realm, enctypes):
    """Small and large bodies, by each kind of session key that clients of today ask for."""

    def test(client, root_handle, file):
        session = Session(client)
        assert session.window == 128
        lookup = opaque(root_handle) + opaque(b"file")
        found = []
        for service in SERVICES.values():
            assert status_of(session.call(service, GETATTR, opaque(root_handle))) == 0
            results = session.call(service, 3, lookup)
            assert status_of(results) == 0
            length = struct.unpack_from(">I", results, 4)[0]
            handle = results[8 : 8 + length]
            data = bytes([service]) * 300_001
            write = opaque(handle) + struct.pack(">QII", 0, len(data), 2) + opaque(data)
            assert status_of(session.call(service, WRITE, write)) == 0
            read = session.call(service, READ, opaque(handle) + struct.pack(">QI", 0, 1 << 20))
            assert read.endswith(opaque(data))
            found.append(file.read_bytes() == data)
        session.destroy()
        return found

    with contextlib.ExitStack() as stack:
        if enctypes is not ENCTYPES:
            realm = stack.enter_context(Realm(enctypes=enctypes))
            realm.kinit("alice", A)
        server, command = stack.enter_context(serving(realm))
        file = server.export / "file"
        file.touch()
        os.chown(file, A.uid, A.gid)
        assert inside(realm, server, test, A, file) == [True] * 3
        counts = dict(word.split("=") for word in command("gss").split()[1:])
        assert counts["contexts"] == "0" and counts["init"] == counts["destroy"] == "1"
        assert [counts[name] for name in SERVICES] == ["4"] * 3


def test_a_principal_has_the_rights_of_its_user(realm):
    """Who is not known is nobody; the uid of the client's process does not matter."""

    def rights(client, root_handle):
        access = opaque(root_handle) + struct.pack(">I", 0x3F)
        results = Session(client).call(NONE, ACCESS, access)
        assert status_of(results) == 0
        return struct.unpack(">I", results[-4:])[0]

    with serving(realm) as (server, _):
        os.chown(server.export, A.uid, A.gid)
        server.export.chmod(0o700)
        # Read, look up, modify, extend and delete; directories are not executed.
        assert inside(realm, server, rights, A) & 0x1F == 0x1F
        assert inside(realm, server, rights, B) == 0


def test_the_window_is_that_of_knfsd(realm):
    """A number that was seen or is 128 below the highest has no reply, and the connection ends."""

    def test(client, root_handle):
        session, arguments = Session(client), opaque(root_handle)

        def got(sequence):
            try:
                status = status_of(session.call(NONE, GETATTR, arguments, sequence))
                assert status == 0
                return "taken"
            except HungUp:
                session.client = Client(client.port)
                return "hung up"
            except Denied as denied:
                return denied.args[0]

        numbers = [1, 1, 1000, 1000 - 127, 1000 - 128, 1000 - 127, 0, 0x8000_0000, 0x8000_0000, 1000, 0x8000_0001]
        return [got(number) for number in numbers]

    with serving(realm) as (server, command):
        t, h = "taken", "hung up"
        assert inside(realm, server, test) == [t, h, t, t, h, h, h, t, h, h, CTXPROBLEM]
        assert " outside=6" in command("gss")


def test_what_is_refused_and_how(realm):
    def test(client, root_handle):
        session, arguments = Session(client), opaque(root_handle)
        wrong = session.context.mic(b"something else")
        seen = {
            "header": denial(session, NONE, GETATTR, arguments, mic=wrong),
            "handle": denial(session, NONE, GETATTR, arguments, handle=b"unknown"),
            "body of krb5i": denial(session, INTEGRITY, GETATTR, arguments, body=wrong),
            "number of krb5i": denial(session, INTEGRITY, GETATTR, arguments, inner=700),
            "body of krb5p": denial(session, PRIVACY, GETATTR, arguments, body=session.context.wrap(b"wrong")),
            "token of krb5p": denial(session, PRIVACY, GETATTR, arguments, body=b"no token"),
            "number of krb5p": denial(session, PRIVACY, GETATTR, arguments, inner=700),
            "service 0": denial(session, NONE, GETATTR, arguments, number=0),
            "service 9": denial(session, NONE, GETATTR, arguments, number=9),
            "nothing": denial(session, PRIVACY, GETATTR, arguments),
        }
        session.destroy()
        seen["destroyed"] = denial(session, NONE, GETATTR, arguments)
        return seen

    with serving(realm) as (server, _):
        bodies = ["body of krb5i", "number of krb5i", "body of krb5p", "token of krb5p", "number of krb5p"]
        assert inside(realm, server, test) == {
            **dict.fromkeys(["header", "handle", "destroyed"], CREDPROBLEM),
            **dict.fromkeys([*bodies, "service 0", "service 9"], BADCRED),
            "nothing": None,
        }


def test_a_context_is_the_servers_and_not_a_connections(realm):
    """A handle serves other connections and programs, until the server forgets it or its time is over."""

    def test(client, root_handle, forget):
        session, arguments = Session(client), opaque(root_handle)
        session.client = Client(client.port)
        assert status_of(session.call(NONE, GETATTR, arguments)) == 0
        getacl = arguments + struct.pack(">I", 0xF)
        assert status_of(session.call(PRIVACY, 1, getacl, program=100227)) == 0
        forget()
        assert denial(session, NONE, GETATTR, arguments) == CREDPROBLEM
        assert status_of(Session(session.client).call(NONE, GETATTR, arguments)) == 0

    with serving(realm) as (server, command):
        inside(realm, server, test, A, lambda: command("gss-forget"))
    with serving(realm, "--gss-lifetime", "2s") as (server, _):

        def forget():
            client = Client(server.mountport)
            session, arguments = Session(client), opaque(client.mnt(server.export)[0])
            until(lambda: denial(session, NONE, GETATTR, arguments) == CREDPROBLEM, "the end of a context")

        inside(realm, server, test, A, forget)


def test_a_context_ends_with_its_ticket():
    root()

    def test(client, root_handle):
        session, arguments = Session(client), opaque(root_handle)
        assert denial(session, NONE, GETATTR, arguments) is None
        until(lambda: denial(session, NONE, GETATTR, arguments) == CREDPROBLEM, "the end of a context")

        def has_no_ticket():
            try:
                Session(client)
            except GssError:
                return True
            return False

        # The server's seconds and the client's need not change at the same moment.
        until(has_no_ticket, "the end of a ticket for its user")

    with Realm() as realm, serving(realm) as (server, _):
        realm.kinit("alice", A, "-l", "4s")
        inside(realm, server, test)


def test_flavors_are_told_and_enforced(realm):
    """MNT lists them in their order. Another flavor is refused by the results, except for attributes of the root."""

    def test(client, root_handle):
        session, arguments = Session(client), opaque(root_handle)
        access = arguments + struct.pack(">I", 1)
        flavors = client.mnt(server.export)[1]
        outcomes = {name: status_of(session.call(service, ACCESS, access)) for name, service in SERVICES.items()}
        outcomes["sys"] = status_of(client.by_sys(100003, ACCESS, access))
        outcomes["getacl by sys"] = status_of(client.by_sys(100227, 1, access))
        roots = [status_of(client.by_sys(100003, procedure, arguments)) for procedure in (GETATTR, FSINFO)]
        return flavors, outcomes, roots

    with serving(realm, sec="krb5i:krb5p") as (server, _):
        refused = dict.fromkeys(["krb5", "sys", "getacl by sys"], ACCES)
        assert inside(realm, server, test) == ([390004, 390005], {**refused, "krb5i": 0, "krb5p": 0}, [0, 0])
    with serving(realm, sec="sys:krb5") as (server, _):
        allowed = dict.fromkeys(["krb5", "sys", "getacl by sys"], 0)
        assert inside(realm, server, test) == ([1, 390003], {"krb5i": ACCES, "krb5p": ACCES, **allowed}, [0, 0])


def test_a_repeated_call_is_executed_once(realm):
    """The second transmission has another number, and so another MIC and body, but the same XID."""

    def test(client, root_handle):
        session = Session(client)
        # MKDIR, whose repetition would be NFS3ERR_EXIST.
        arguments = opaque(root_handle) + opaque(b"new") + bytes(24)
        return [status_of(session.call(service, 9, arguments, xid=7)) for service in (NONE, INTEGRITY, PRIVACY, NONE)]

    with serving(realm) as (server, _):
        assert inside(realm, server, test) == [0] * 4


def test_faults_come_on_command(realm):
    def test(client, root_handle, command):
        session, arguments = Session(client), opaque(root_handle)

        def after(fault, service=NONE):
            command(f"gss-fault {fault}:1")
            try:
                return denial(session, service, GETATTR, arguments)
            except HungUp:
                session.client = Client(client.port)
                return "hung up"
            except GssError:
                return "not from the server"

        outcomes = [after(fault) for fault in ("CREDPROBLEM", "CTXPROBLEM", "BADCRED", "WINDOW", "VERIFIER")]
        command("gss-fault INIT:1")
        with pytest.raises(GssError, match="the server: 0xd0000, 0x96c73a25"):
            Session(session.client)
        outcomes += [after("BODY", INTEGRITY), after("BODY", PRIVACY), after("FORGET")]
        return outcomes

    with serving(realm) as (server, command):
        wrong = "not from the server"
        expected = [CREDPROBLEM, CTXPROBLEM, BADCRED, "hung up", wrong, wrong, wrong, CREDPROBLEM]
        assert inside(realm, server, test, A, command) == expected


def test_a_token_for_another_service_is_refused(realm):
    """The server says so in the results of INIT; it has no key for it."""

    def test(client, _):
        with pytest.raises(GssError, match="the server"):
            Session(client, "nfs@elsewhere")
        Session(client)

    realm.add_services("nfs/elsewhere", keytab=realm.base / "elsewhere.keytab")
    with serving(realm) as (server, _):
        inside(realm, server, test)


def test_a_server_without_keys_says_so(realm):
    with pytest.raises(AssertionError, match="--sec"):
        with Server("--sec", "krb5", "--keytab", realm.base / "none.keytab", environment=realm.environment):
            pass
