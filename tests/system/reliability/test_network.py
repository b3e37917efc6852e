"""The network that fails does what it says: otherwise tests of faults would prove nothing."""

import contextlib
import socket
import threading

import pytest

from network import Network
from suites import stop, until


def serve(listener):
    """Returns what it gets."""

    def echo(connection):
        with contextlib.suppress(ConnectionError):
            while data := connection.recv(4096):
                connection.sendall(data)

    while True:
        threading.Thread(target=echo, args=(listener.accept()[0],), daemon=True).start()


@pytest.fixture
def network():
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, args=(listener,), daemon=True).start()
    network = Network(*listener.getsockname())
    yield network
    stop(network.child)


def connect(network):
    return socket.create_connection(("127.0.0.1", network.port), 20)


def echoed(connection, data):
    connection.sendall(data)
    got = b""
    while len(got) < len(data):
        got += connection.recv(len(data)) or pytest.fail("the end")
    return got


def test_network_cuts(network):
    first = connect(network)
    assert echoed(first, b"hello") == b"hello"
    network("reset")
    with pytest.raises(ConnectionResetError):
        first.recv(1)
    assert echoed(connect(network), b"x") == b"x"
    network("refuse")
    with pytest.raises(ConnectionError):
        echoed(connect(network), b"x")


def test_network_corrupts_one_bit_behind_the_handshake(network):
    connection = connect(network)
    network("corrupt pass")
    got = b"".join(echoed(connection, bytes(4000)) for _ in range(3))
    assert int.from_bytes(got, "big").bit_count() == 1


def test_what_the_network_swallows_stays_lost(network):
    connection, other = connect(network), connect(network)
    network("swallow pass")
    connection.sendall(b"gone")
    until(lambda: network("swallow pass") == 4, "swallowed bytes")
    network("pass pass")
    connection.sendall(b"gone too")
    assert echoed(other, b"here") == b"here"
    until(lambda: network("pass pass") == 12, "more swallowed bytes")
    connection.setblocking(False)
    with pytest.raises(BlockingIOError):
        connection.recv(1)
