"""A client of RPCSEC_GSS version 1 over TCP that shares nothing with ours, with every byte in the hands of the test.

Its contexts are those of the system's library, by ctypes. As the library reads its configuration from the environment of
its process, whoever uses this is a process of its own (`in_realm`).
"""

import ctypes
import itertools
import os
import pickle
import socket
import struct

NULL, INIT, DESTROY = 0, 1, 3
DATA = 0
NONE, INTEGRITY, PRIVACY = 1, 2, 3
SERVICES = {"krb5": NONE, "krb5i": INTEGRITY, "krb5p": PRIVACY}
NFS, MOUNT, NFS_ACL = 100003, 100005, 100227
GETATTR, ACCESS, READ, WRITE, FSINFO = 1, 4, 6, 7, 19
FLAVOR_SYS, FLAVOR_GSS = 1, 6
MUTUAL = 2
NO_CREDENTIAL = None


class Buffer(ctypes.Structure):
    _fields_ = [("length", ctypes.c_size_t), ("value", ctypes.c_void_p)]

    @classmethod
    def of(cls, data):
        held = ctypes.create_string_buffer(data, len(data))
        made = cls(len(data), ctypes.cast(held, ctypes.c_void_p))
        made.held = held
        return made

    def take(self, library):
        """The bytes that the library has made, which are freed."""
        data = ctypes.string_at(self.value, self.length) if self.length else b""
        library.gss_release_buffer(ctypes.byref(ctypes.c_uint32()), ctypes.byref(self))
        return data


class Oid(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint32), ("elements", ctypes.c_void_p)]


def oid(data):
    held = ctypes.create_string_buffer(data, len(data))
    made = Oid(len(data), ctypes.cast(held, ctypes.c_void_p))
    made.held = held
    return made


KERBEROS = oid(bytes.fromhex("2a864886f712010202"))
HOST_SERVICE = oid(bytes.fromhex("2a864886f71201020104"))


class GssError(Exception):
    pass


class Context:
    """A context with a service like nfs@localhost, by the tickets of this process's user."""

    def __init__(self, service):
        self.library = ctypes.CDLL("libgssapi_krb5.so.2")
        self.handle, self.target = ctypes.c_void_p(), ctypes.c_void_p()
        name = Buffer.of(service.encode())
        self.call("gss_import_name", ctypes.byref(name), ctypes.byref(HOST_SERVICE), ctypes.byref(self.target))

    def call(self, function, *words):
        minor = ctypes.c_uint32()
        found = getattr(self.library, function)
        found.restype = ctypes.c_uint32
        major = found(ctypes.byref(minor), *words)
        if major >> 16:
            raise GssError(f"{function}: {major:#x}, {minor.value:#x}")
        return major

    def step(self, token=b""):
        """The token for the server; `b""` once the context is complete."""
        given, made = Buffer.of(token), Buffer()
        self.call(
            "gss_init_sec_context", NO_CREDENTIAL, ctypes.byref(self.handle), self.target, ctypes.byref(KERBEROS),
            ctypes.c_uint32(MUTUAL), ctypes.c_uint32(0), None, ctypes.byref(given), None, ctypes.byref(made), None, None,
        )  # fmt: skip
        return made.take(self.library)

    def mic(self, data):
        given, made = Buffer.of(data), Buffer()
        self.call("gss_get_mic", self.handle, 0, ctypes.byref(given), ctypes.byref(made))
        return made.take(self.library)

    def verify(self, data, mic):
        given, token = Buffer.of(data), Buffer.of(mic)
        self.call("gss_verify_mic", self.handle, ctypes.byref(given), ctypes.byref(token), None)

    def wrap(self, data):
        given, made = Buffer.of(data), Buffer()
        self.call("gss_wrap", self.handle, 1, 0, ctypes.byref(given), None, ctypes.byref(made))
        return made.take(self.library)

    def unwrap(self, token):
        given, made, encrypted = Buffer.of(token), Buffer(), ctypes.c_int()
        self.call("gss_unwrap", self.handle, ctypes.byref(given), ctypes.byref(made), ctypes.byref(encrypted), None)
        data = made.take(self.library)
        assert encrypted.value, "a token that is not encrypted"
        return data


def opaque(data):
    return struct.pack(">I", len(data)) + data + bytes(-len(data) % 4)


def take_opaque(data):
    """An opaque at the beginning, and what follows it."""
    (length,) = struct.unpack_from(">I", data)
    end = 4 + length + -length % 4
    return data[4 : 4 + length], data[end:]


class Denied(Exception):
    """MSG_DENIED with AUTH_ERROR, whose number is the argument."""


class HungUp(Exception):
    """The connection ended instead of a reply."""


class Client:
    """A connection to the server, on which calls of any flavor are made."""

    def __init__(self, port):
        self.port = port
        self.socket = socket.create_connection(("127.0.0.1", port), 30)
        self.xids = itertools.count(0x1000)

    def head(self, program, procedure, flavor, credential, xid=None):
        xid = next(self.xids) if xid is None else xid
        call = struct.pack(">IIIIII", xid, 0, 2, program, 3, procedure)
        return call + struct.pack(">I", flavor) + opaque(credential)

    def exchange(self, message):
        """Sends a call. Returns the verifier of its reply, and the results."""
        try:
            self.socket.sendall(struct.pack(">I", 0x8000_0000 | len(message)) + message)
            reply = self.take(struct.unpack(">I", self.take(4))[0] & 0x7FFF_FFFF)
        except (ConnectionError, EOFError) as error:
            raise HungUp from error
        xid, kind, status = struct.unpack_from(">III", reply)
        assert (xid, kind) == (struct.unpack_from(">I", message)[0], 1), reply
        if status:
            reason, number = struct.unpack_from(">II", reply, 12)
            assert (status, reason) == (1, 1), reply
            raise Denied(number)
        (flavor,) = struct.unpack_from(">I", reply, 12)
        verifier, rest = take_opaque(reply[16:])
        (accepted,) = struct.unpack_from(">I", rest)
        assert accepted == 0, f"accept_stat {accepted}"
        return (flavor, verifier), rest[4:]

    def take(self, length):
        data = b""
        while len(data) < length:
            piece = self.socket.recv(length - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    def plain(self, program, procedure, arguments=b"", flavor=0, credential=b""):
        """A call with AUTH_NONE, or another flavor whose credential is given. Returns the results."""
        message = self.head(program, procedure, flavor, credential) + bytes(8) + arguments
        return self.exchange(message)[1]

    def by_sys(self, program, procedure, arguments, uid=0):
        credential = struct.pack(">I", 1) + opaque(b"test") + struct.pack(">III", uid, uid, 0)
        return self.plain(program, procedure, arguments, FLAVOR_SYS, credential)

    def mnt(self, path):
        """The handle of an export, and its flavors."""
        results = self.plain(MOUNT, 1, opaque(os.fsencode(path)))
        assert results[:4] == bytes(4), results
        handle, rest = take_opaque(results[4:])
        count, *flavors = struct.unpack(f">{len(rest) // 4}I", rest)
        assert count == len(flavors)
        return handle, flavors


class Session:
    """A context with a server."""

    def __init__(self, client, service="nfs@localhost", program=NFS):
        self.client, self.context, self.sequence = client, Context(service), 0
        self.token = self.context.step()
        credential = struct.pack(">IIIII", 1, INIT, 0, NONE, 0)
        message = client.head(program, NULL, FLAVOR_GSS, credential) + bytes(8) + opaque(self.token)
        verifier, results = client.exchange(message)
        self.handle, rest = take_opaque(results)
        self.major, self.minor, self.window = struct.unpack_from(">III", rest)
        token, rest = take_opaque(rest[12:])
        assert rest == b""
        if self.major:
            raise GssError(f"the server: {self.major:#x}, {self.minor:#x}")
        assert self.context.step(token) == b""
        assert verifier[0] == FLAVOR_GSS
        self.context.verify(struct.pack(">I", self.window), verifier[1])

    def next(self):
        self.sequence += 1
        return self.sequence

    def message(self, service, procedure, arguments, sequence, **wrong):
        """The bytes of a call; `wrong` replaces parts of it."""
        handle, kind = wrong.get("handle", self.handle), wrong.get("kind", DATA)
        credential = struct.pack(">IIII", 1, kind, sequence, wrong.get("number", service)) + opaque(handle)
        head = self.client.head(wrong.get("program", NFS), procedure, FLAVOR_GSS, credential, wrong.get("xid"))
        mic = wrong.get("mic") or self.context.mic(head)
        data = struct.pack(">I", wrong.get("inner", sequence)) + arguments
        if service == NONE:
            body = arguments
        elif service == INTEGRITY:
            body = opaque(data) + opaque(wrong.get("body") or self.context.mic(data))
        else:
            body = opaque(wrong.get("body") or self.context.wrap(data))
        return head + struct.pack(">I", FLAVOR_GSS) + opaque(mic) + body

    def call(self, service, procedure, arguments, sequence=None, **wrong):
        """Makes a call, and checks what its reply is protected by. Returns the results."""
        sequence = self.next() if sequence is None else sequence
        return self.send(self.message(service, procedure, arguments, sequence, **wrong), service, sequence)

    def send(self, message, service, sequence):
        (flavor, mic), results = self.client.exchange(message)
        assert flavor == FLAVOR_GSS
        self.context.verify(struct.pack(">I", sequence), mic)
        if service == NONE:
            return results
        data, rest = take_opaque(results)
        if service == INTEGRITY:
            mic, rest = take_opaque(rest)
            self.context.verify(data, mic)
        else:
            data = self.context.unwrap(data)
        assert rest == b""
        assert struct.unpack_from(">I", data)[0] == sequence
        return data[4:]

    def destroy(self):
        return self.call(NONE, NULL, b"", kind=DESTROY)


def in_realm(realm, user, function, *words):
    """Calls a function in a child, as a user of users.py and with the realm's configuration. Returns its result."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.environ.update(realm.environment)
            os.environ.pop("KRB5CCNAME", None)
            if user:
                user.become()
            try:
                said = (True, function(*words))
            except BaseException as error:
                import traceback

                said = (False, "".join(traceback.format_exception(error)))
            with open(writer, "wb") as pipe:
                pickle.dump(said, pipe)
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with open(reader, "rb") as pipe:
        said = pipe.read()
    assert os.waitpid(child, 0)[1] == 0, "the child failed"
    good, result = pickle.loads(said)
    assert good, result
    return result
