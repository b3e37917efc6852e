#!/usr/bin/env python3
"""A network that fails: a TCP proxy between client and server, for tests/soak/run.

    network.py HOST:PORT

prints the port at which it listens, and obeys commands on its standard input, each answered by the number of bytes that
were swallowed so far: cut, reset, refuse, accept, or two words, for the bytes to the server and for those from it, of `WAYS`.
It ends with its input.
"""

import contextlib
import select
import socket
import struct
import subprocess
import sys
import threading
import time

WAYS = {
    "pass",
    "stall",  # They wait, in order, and so does the end of a connection.
    # They are lost, although everything is acknowledged: a half-open connection. A connection that has lost bytes also loses
    # all that follow.
    "swallow",
    "drip",  # A few at a time.
    "delay",  # Each piece comes late.
    "corrupt",  # One bit is changed, once, but not in the handshake, which no checksum protects.
    "hole",  # One piece is left out, once, but not in the handshake.
}
HANDSHAKE = 600
"""The bytes of each direction that `corrupt` and `hole` leave alone: the MPA frames."""
LOOK = 0.01
"""The interval at which threads check for changes."""
PIECE = 64 << 10


class Network:
    """The proxy as a process of its own."""

    def __init__(self, host, port):
        command = [sys.executable, "-B", __file__, f"{host}:{port}"]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(self.child.stdout.readline())

    def __call__(self, command):
        self.child.stdin.write(command + "\n")
        self.child.stdin.flush()
        return int(self.child.stdout.readline())


class Proxy:
    def __init__(self, server):
        self.server, self.ways, self.lock = server, ["pass", "pass"], threading.Lock()
        self.swallowed = self.generation = 0
        self.abruptly = self.refusing = False
        """Connections of an earlier generation are closed, by RST if abruptly; new ones are reset while refusing."""
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            threading.Thread(target=self.carry, args=(client,), daemon=True).start()

    def obey(self, command):
        words = command.split()
        if words in (["cut"], ["reset"]):
            self.abruptly = words == ["reset"]
            self.generation += 1
        elif words in (["refuse"], ["accept"]):
            self.refusing = words == ["refuse"]
        else:
            assert len(words) == 2 and WAYS.issuperset(words), f"`{command}` is no command"
            with self.lock:
                self.ways = words

    def once(self, index, way):
        """Whether this is the first that is treated so; the next ones pass."""
        with self.lock:
            first, self.ways[index] = self.ways[index] == way, "pass" if self.ways[index] == way else self.ways[index]
        return first

    def carry(self, client):
        generation = self.generation
        ends = [client]
        with contextlib.ExitStack() as stack:
            stack.enter_context(client)
            try:
                if self.refusing:
                    raise ConnectionRefusedError
                ends.append(stack.enter_context(socket.create_connection(self.server, 5)))
                for end in ends:
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    end.settimeout(LOOK)
                back = threading.Thread(target=self.pump, args=(1, generation, *reversed(ends)), daemon=True)
                back.start()
                self.pump(0, generation, *ends)
                back.join()
                reset = self.abruptly and self.generation != generation
            except OSError:
                reset = True
            for end in ends if reset else ():
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def pump(self, index, generation, source, target):
        """Passes on the bytes of one direction until its end."""
        try:
            self.pieces(index, generation, source, target)
        except OSError:
            end(source, target)

    def pieces(self, index, generation, source, target):
        over = lambda: self.generation != generation
        wait = lambda way: self.ways[index] == way and not over() and not time.sleep(LOOK)
        # A stream that lacks bytes must not go on as if it were complete.
        carried, lost = 0, False
        while not over():
            if wait("stall") or not select.select([source], [], [], LOOK)[0]:
                continue
            try:
                piece = source.recv(7 if self.ways[index] == "drip" else PIECE)
            except ConnectionError:
                piece = b""
            while wait("stall"):
                pass
            way = self.ways[index]
            lost |= way == "swallow"
            if not piece:
                # The end of the connection may be swallowed as well.
                while lost and wait("swallow"):
                    pass
                return end(source, target) if lost else target.shutdown(socket.SHUT_WR)
            carried += len(piece)
            self.swallowed += len(piece) if lost else 0
            if lost or (way == "hole" and carried > HANDSHAKE + len(piece) and self.once(index, way)):
                continue
            time.sleep({"drip": 0.001, "delay": 0.03}.get(way, 0))
            if way == "corrupt" and carried > HANDSHAKE + len(piece) and self.once(index, way):
                middle = len(piece) // 2
                piece = piece[:middle] + bytes([piece[middle] ^ 0x10]) + piece[middle + 1 :]
            rest = memoryview(piece)
            while rest and not over():
                with contextlib.suppress(TimeoutError):
                    rest = rest[target.send(rest) :]
        if not self.abruptly:
            end(source, target)
        return None


def end(*connections):
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def main(server):
    host, _, port = server.rpartition(":")
    proxy = Proxy((host, int(port)))
    print(proxy.listener.getsockname()[1], flush=True)
    for line in sys.stdin:
        proxy.obey(line)
        print(proxy.swallowed, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
