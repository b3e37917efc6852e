"""Relays between a mount and its server that record what was sent. This file has no tests."""

import contextlib
import socket
import struct
import threading


class Relay:
    """Accepts TCP connections at a port of its own, and passes everything on to `to`, a port of 127.0.0.1. It
    accepts `most` connections, and then refuses more."""

    KEPT = 4 << 20

    def __init__(self, to, host="127.0.0.1", port=0, most=None):
        self.most = most
        self.to = to
        self.peers = []
        """The port numbers of the peers that connected."""
        self.said = []
        """The bytes that each of them sent, as far as they were kept."""
        self.listener = socket.create_server((host, port))
        self.port = self.listener.getsockname()[1]
        self.open = [self.listener]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        try:
            while self.most is None or len(self.peers) < self.most:
                client, peer = self.listener.accept()
                server = socket.create_connection(("127.0.0.1", self.to))
                self.open += [client, server]
                kept = bytearray()
                self.said.append(kept)
                self.peers.append(peer[1])
                threading.Thread(target=self.pump, args=(client, server, kept), daemon=True).start()
                threading.Thread(target=self.pump, args=(server, client, None), daemon=True).start()
            self.listener.close()
        except OSError:
            pass  # Closed.

    def pump(self, source, sink, kept):
        try:
            while piece := source.recv(1 << 16):
                if kept is not None and len(kept) < self.KEPT:
                    kept += piece
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # One of the two is gone.

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for each in self.open:
            each.close()


class Datagrams:
    """Receives RPC calls by UDP, and passes them on to `to`, a TCP port of 127.0.0.1 (RFC 5531 section 11)."""

    def __init__(self, to):
        self.to = to
        self.calls = self.losing = 0
        """How many came, and how many answers are still to be lost."""
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        while True:
            call, peer = self.socket.recvfrom(65536)
            if not call:
                return
            self.calls += 1
            # A server that restarts answers nobody. As with any lost datagram, the caller sends again.
            with contextlib.suppress(OSError, EOFError):
                answer = self.ask(call)
                if self.losing:
                    self.losing -= 1
                else:
                    self.socket.sendto(answer, peer)

    def ask(self, call):
        with socket.create_connection(("127.0.0.1", self.to)) as server, server.makefile("rb") as reply:
            server.sendall(struct.pack(">I", 1 << 31 | len(call)) + call)
            head = reply.read(4)
            if len(head) < 4:
                raise EOFError
            (mark,) = struct.unpack(">I", head)
            assert mark >> 31, "a reply of one fragment was expected"
            record = reply.read(mark & 0x7FFFFFFF)
            if len(record) < mark & 0x7FFFFFFF:
                raise EOFError
            return record

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
            end.sendto(b"", ("127.0.0.1", self.port))
        self.thread.join()
        self.socket.close()


def mpa(said):
    """The flags of an MPA request (RFC 5044 section 7.1), and the sizes of the FPDUs after it."""
    assert said[:16] == b"MPA ID Req Frame", bytes(said[:16])
    flags, private = said[16], struct.unpack(">H", said[18:20])[0]
    at, sizes = 20 + private, []
    while at + 2 <= len(said):
        (length,) = struct.unpack(">H", said[at : at + 2])
        # The length, the ULPDU, padding to four bytes, and the CRC (RFC 5044 section 4.1).
        size = (2 + length + 3) // 4 * 4 + 4
        sizes.append(size)
        at += size
    return flags, sizes
