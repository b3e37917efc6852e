"""A server with two addresses, each by a pair of interfaces of its own between two network namespaces."""

import contextlib
import json

from program.support import run
from program.test_locks_net import ip

SERVER = ("169.254.98.1", "169.254.99.1")
CLIENT = ("169.254.98.2", "169.254.99.2")
"""The addresses of the pairs."""


def space_of(name):
    """The words for ip(8) to work in a namespace; `None` is that of the caller."""
    return ("-n", name) if name else ()


class Apart:
    """Makes a server one that is reached by two pairs of interfaces. The ends of a pair are called `path0` and `path1`.

    `there` is the server's namespace, `here` that of its clients, or `None` for that of the caller.
    """

    there, here = None, None

    def __enter__(self):
        try:
            for name in filter(None, (self.there, self.here)):
                ip("netns", "add", name)
                ip("-n", name, "link", "set", "lo", "up")
            for number, (server, client) in enumerate(zip(SERVER, CLIENT)):
                self.join(f"path{number}", server, client)
            return super().__enter__()
        except BaseException:
            self.forget()
            raise

    def __exit__(self, *words):
        try:
            super().__exit__(*words)
        finally:
            self.forget()

    def join(self, device, server, client):
        there, here = space_of(self.there), space_of(self.here)
        ip(*here, "link", "add", device, "type", "veth", "peer", "name", device, "netns", self.there)
        for space, address in ((there, server), (here, client)):
            ip(*space, "address", "add", f"{address}/30", "dev", device)
            ip(*space, "link", "set", device, "up")
        # Linux would keep packets for an address that it does not find any longer, for three seconds, also those of a
        # connection that is closed. A call in them is carried out when the path is back.
        (found,) = json.loads(run("ip", *there, "-j", "link", "show", "dev", device).stdout)
        ip(*here, "neighbour", "replace", server, "lladdr", found["address"], "nud", "permanent", "dev", device)

    def forget(self):
        for name in filter(None, (self.there, self.here)):
            run("ip", "netns", "delete", name)

    def within(self, name):
        # `ip netns exec` would hide the mounts, which must be visible here.
        return ["nsenter", f"--net=/run/netns/{name}"]

    def enter(self):
        return self.within(self.there)

    @contextlib.contextmanager
    def cut(self, side, number):
        """Nothing goes by a path until the end of the block: its end in the namespace `side` is down."""
        ip("-n", side, "link", "set", f"path{number}", "down")
        try:
            yield
        finally:
            ip("-n", side, "link", "set", f"path{number}", "up")
