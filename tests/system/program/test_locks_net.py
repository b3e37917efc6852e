"""Locks between two machines: network namespaces, each with its own address and mount of one server in a third."""

import contextlib
import uuid

from program.lock_support import *  # noqa: F403
import pytest

from program.support import *  # noqa: F403

ADDRESS = "169.254.97.9"
"""The port of the server, which is in a network namespace of its own."""


def ip(*words):
    result = run("ip", *words)
    if result.returncode != 0:
        pytest.skip(f"ip {' '.join(words)}: {result.stderr.strip()}")


@contextlib.contextmanager
def networks(*machines):
    """A network namespace for the server and one for each machine. Yields the words that run a program in each.

    The server's ends of the links have the names of the machines.
    """
    root()
    needs("ip")
    mark = uuid.uuid4().hex[:8]
    names = {machine: f"locks-{mark}-{machine}" for machine in ("server", *machines)}
    try:
        for name in names.values():
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", names["server"], "address", "add", f"{ADDRESS}/32", "dev", "lo")
        for number, machine in enumerate(machines):
            inside, gate = names[machine], f"169.254.97.{17 + 4 * number}"
            ip("-n", inside, "link", "add", "eth0", "type", "veth", "peer", "name", machine, "netns", names["server"])
            for space, device, address in ((names["server"], machine, gate), (inside, "eth0", f"169.254.97.{18 + 4 * number}")):
                ip("-n", space, "address", "add", f"{address}/30", "dev", device)
                ip("-n", space, "link", "set", device, "up")
            ip("-n", inside, "route", "add", ADDRESS, "via", gate)
        # `ip netns exec` would hide the mounts, which must be visible here.
        yield {machine: ["nsenter", f"--net=/run/netns/{name}"] for machine, name in names.items()}
    finally:
        for name in names.values():
            run("ip", "netns", "delete", name)


class Machines(LockServer):
    """A responder in a namespace of its own. A machine's mount point has the name of the machine."""

    def __init__(self, within, *words):
        super().__init__("--listen", f"{ADDRESS}:0", *words)
        self.within, self.host = within, ADDRESS

    def start(self):
        self.control_path = self.base / "control"
        words = [self.control_path if word == "CONTROL" else word for word in self.words]
        command = [*self.within["server"], BIN / "nfsrdma-responder", self.export, *words]
        self.child, self.port, self.mountport = start_responder(command, self.base, self.port, self.mountport)

    def mount_on(self, machine):
        point = self.base / machine
        point.mkdir(exist_ok=True)
        # Each machine has its own record of its locks.
        state = self.base / f"state-{machine}"
        result = run(*self.within[machine], BIN / "nfsrdma", "mount", self.spec, point, "-o",
                     self.options(self.lock_options), env={**os.environ, "NFSRDMA_STATE_DIR": str(state)})  # fmt: skip
        expect(result, 0)
        return point


def test_locks_of_two_machines_exclude_each_other():
    with networks("one", "two") as within, Machines(within) as server, Process() as one, Process() as two:
        points = [server.mount_on(machine) for machine in ("one", "two")]
        (server.export / "f").write_bytes(b"x" * 100)
        for process, point in zip((one, two), points):
            assert process.do("open", "f", str(point / "f")) == 0
        for first, second in ((one, two), (two, one)):
            for set_, get, wait in (
                (fcntl.F_SETLK, fcntl.F_GETLK, fcntl.F_SETLKW),
                (F_OFD_SETLK, F_OFD_GETLK, F_OFD_SETLKW),
            ):
                assert first.set("f", WRITE, 10, 10, set_) == 0
                assert second.set("f", READ, 15, 0, set_) == AGAIN
                assert second.set("f", READ, 20, 0, set_) == 0
                assert first.get("f", WRITE, 30, 5, get)[:3] == (READ, 20, 0)
                assert second.get("f", READ, 0, 0, get)[:3] == (WRITE, 10, 10)
                assert second.set("f", WRITE, 20, 0, set_) == 0, "upgrade"
                assert second.set("f", READ, 20, 0, set_) == 0, "downgrade"
                assert first.set("f", READ, 30, 1, set_) == 0
                assert first.set("f", FREE, 30, 1, set_) == 0
                second.wait_for("f", WRITE, 0, 0, wait)
                assert waits(second)
                assert first.set("f", FREE, 0, 0, set_) == 0
                assert second.got() == 0
                assert first.set("f", WRITE, 1 << 40, 1, set_) == AGAIN
                assert second.set("f", FREE, 0, 0, set_) == 0
            assert first.flock("f", fcntl.LOCK_EX | fcntl.LOCK_NB) == 0
            assert second.flock("f", fcntl.LOCK_SH | fcntl.LOCK_NB) == AGAIN
            second.send("flock", "f", fcntl.LOCK_EX)
            assert waits(second)
            assert first.flock("f", fcntl.LOCK_UN) == 0
            assert second.receive() is None
            assert second.flock("f", fcntl.LOCK_UN) == 0
        for how in ("posix", "flock"):
            count_under_a_lock(server, points, how, children=4, times=20)


def test_a_machine_keeps_its_locks_while_the_server_cannot_be_reached_and_only_it_unlocks_what_it_left():
    with networks("one", "two") as within, Machines(within) as server, Process() as one, Process() as two:
        a, b = server.mount_on("one"), server.mount_on("two")
        for name in "fg":
            (server.export / name).write_bytes(b"x" * 100)
        one.do("open", "f", str(a / "f"))
        two.do("open", "f", str(b / "f"))
        assert one.set("f", WRITE, 0, 50) == one.set("f", READ, 50, 20) == 0
        expect(run(*within["server"], "ip", "link", "set", "one", "down"), 0)
        assert two.set("f", READ, 0, 1) == AGAIN
        two.wait_for("f", WRITE, 50, 20)
        assert waits(two)
        one.send("fcntl", fcntl.F_SETLK, "f", WRITE, 90, 1)
        assert waits(one), "a lock without a server"
        expect(run(*within["server"], "ip", "link", "set", "one", "up"), 0)
        assert one.got() == 0
        assert one.do("write", "f", 0, "y") == 1
        assert waits(two)
        assert one.set("f", FREE, 50, 20) == 0
        assert two.got() == 0
        assert counters(a)["locks_lost"] == counters(b)["locks_lost"] == 0
        # Its process is killed. A new mount of another machine releases nothing, its own new mount does.
        kill_mount(a)
        until(lambda: not servers_of(a), "the end of the process")
        expect(run("umount", "-l", a), 0)
        assert two.do("close", "f") == 0
        expect(run("umount", b), 0)
        until(lambda: not servers_of(b), "the end of the other")
        b = server.mount_on("two")
        two.do("open", "f", str(b / "f"))
        assert two.set("f", READ, 0, 1) == AGAIN
        server.mount_on("one")
        assert two.set("f", WRITE, 0, 0) == 0
