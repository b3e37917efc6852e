"""For the tests of mounts that outlive their program."""

import os
import signal
import threading

import pytest

from program.support import *  # noqa: F403

KILLS = 3

# With the kernel as it is, and with it taken for an older one.
on_kernels = pytest.mark.usefixtures("kernels")


@contextlib.contextmanager
def kept(more="", restart="files"):
    """A server with a mount that outlives its program."""
    with Server() as server:
        result = server.mount(f"restart={restart},nolock{',' if more else ''}{more}", "--log", server.base / "log")
        expect(result, 0, f"{server.spec} mounted on {server.mnt}: ")
        yield server


def served_ns(document):
    return document["restarted_ns"] if document["restarts"] else document["age_ns"]


def settled(server):
    """Waits until the mount can be killed: a process that dies within a second has failed, and the fifth failure ends
    the mount. Returns the document of its counters."""
    return settled_at(server.mnt)


def settled_at(point):
    until(lambda: served_ns(document_of(point)) > 10**9, "a second of service")
    return document_of(point)


def kill(server):
    """Kills the process that serves the mount, and waits for its successor."""
    kill_at(server.mnt)


def kill_at(point):
    before = settled_at(point)
    os.kill(before["pid"], signal.SIGKILL)
    until(lambda: document_of(point)["restarts"] == before["restarts"] + 1, "a successor")
    assert document_of(point)["upgrades"] == before["upgrades"]


@contextlib.contextmanager
def working(*works):
    """Runs each work in a thread, and checks that it does not fail. It is called with a function that says whether to go
    on."""
    over, failed = threading.Event(), []

    def body(work):
        try:
            work(lambda: not over.is_set())
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=body, args=[work]) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(LIMIT)
    assert not any(thread.is_alive() for thread in threads), "a program hangs"
    assert not failed, failed


def killed_under(server, work, kills=KILLS):
    with working(work):
        for _ in range(kills):
            kill(server)


def ends(server, how):
    """Ends the mount in one of the usual ways, and waits until nothing is left."""
    match how:
        case "umount":
            expect(nfsrdma("umount", server.mnt), 0)
        case "lazy":
            expect(nfsrdma("umount", "-l", server.mnt), 0)
        case "force":
            expect(nfsrdma("umount", "-f", server.mnt), 0)
        case _:
            daemon = document(server)["pid"]
            holder, = set(processes_of(server.mnt)) - {daemon}
            os.kill(daemon if how == "SIGTERM" else holder, signal.SIGTERM)
    until(lambda: not mounted(server.mnt), "the end of the mount")
    server.ended()
