"""Servers that cannot be asked for locks or ACLs during the mount, and names for locks that another user has taken."""

import contextlib
import errno
import fcntl
import os
import re
import resource
import select
import socket
import subprocess
import sys

from program.lock_support import *  # noqa: F403
from program.support import *  # noqa: F403
from program.test_monitors import NLM, CalledBack, Isolated, granted_args, in_namespaces, rpc
from program.wire import Relay

RPCBIND = 111
LOCAL = "locks are kept on this machine only"
WAITING = "locks wait until"


@contextlib.contextmanager
def silent_rpcbind():
    """Over TCP it accepts connections and does not answer; nobody listens over UDP."""
    with socket.create_server(("127.0.0.1", RPCBIND)):
        yield


def mount_at(server, name, options=None):
    """The mount point and the log."""
    point, log = server.base / name, server.base / f"{name}.log"
    point.mkdir(exist_ok=True)
    options = server.options() if options is None else options
    expect(nfsrdma("mount", server.spec, point, "-o", options, "--log", log), 0)
    return point, log


def one_gets_it(one, two):
    """Both request a lock; one gets it, and the other waits."""
    ready, _, _ = select.select([one.child.stdout, two.child.stdout], [], [], LIMIT)
    assert ready, "nobody gets the lock"
    first, second = (one, two) if one.child.stdout in ready else (two, one)
    assert first.got() == 0
    return first, second


@in_namespaces
def test_a_server_that_cannot_be_asked_for_locks_gives_none_of_this_machine_only():
    with Isolated() as server, Process() as one, Process() as two:
        (server.export / "f").write_bytes(b"x")
        with silent_rpcbind():
            # At the same time, because each waits for rpcbind.
            calls = [Call(mount_at, server, name) for name in "abc"]
            mounts = [call.end() for call in calls]
            for process, (point, log) in zip((one, two), mounts):
                assert WAITING in log.read_text() and LOCAL not in log.read_text()
                assert process.do("open", "f", str(point / "f")) == 0
                process.wait_for("f", WRITE)
            assert waits(one) and waits(two), "a lock of one machine"
            with Process() as third:
                third.do("open", "f", str(mounts[2][0] / "f"))
                third.wait_for("f", WRITE)
                assert waits(third)
                third.child.kill()
                third.child.wait(LIMIT)
            unmount(mounts[2][0])
        # The responder answers for rpcbind at any port.
        with Relay(server.mountport, port=RPCBIND):
            first, second = one_gets_it(one, two)
            assert waits(second)
            (held,) = [lock for lock in server.locks() if lock.startswith("held:")]
            assert first.set("f", FREE) == 0
            assert second.got() == 0
            (now,) = [lock for lock in server.locks() if lock.startswith("held:")]
            assert now != held
            assert "locks go to 127.0.0.1, NLM over TCP" in (server.base / "a.log").read_text()


@in_namespaces
def test_rpcbind_that_was_there_for_mountd_and_is_away_for_locks_is_waited_for():
    with Isolated() as server, Process() as one:
        (server.export / "f").write_bytes(b"x")
        with Relay(server.mountport, port=RPCBIND, most=1):
            point, log = mount_at(server, "a", f"port={server.port},noresvport")
        assert WAITING in log.read_text() and LOCAL not in log.read_text(), log.read_text()
        one.do("open", "f", str(point / "f"))
        one.wait_for("f", WRITE)
        assert waits(one)
        with Relay(server.mountport, port=RPCBIND):
            assert one.got() == 0
            assert len(server.locks()) == 1


@in_namespaces
def test_a_server_that_says_later_that_it_has_no_locks_gives_none():
    with Isolated("--no-locks") as server, Process() as one:
        (server.export / "f").write_bytes(b"x")
        with silent_rpcbind():
            point, _ = mount_at(server, "a")
        one.do("open", "f", str(point / "f"))
        with Relay(server.mountport, port=RPCBIND):
            for _ in range(2):
                assert one.set("f", WRITE) == -errno.ENOLCK
                assert one.flock("f", fcntl.LOCK_EX) == -errno.ENOLCK


@in_namespaces
def test_a_server_without_rpcbind_that_is_mounted_without_it_has_locks_of_this_machine():
    with Isolated() as server, Process() as one, Process() as two:
        (server.export / "f").write_bytes(b"x")
        point, log = mount_at(server, "a")
        assert LOCAL in log.read_text() and WAITING not in log.read_text()
        for process in (one, two):
            process.do("open", "f", str(point / "f"))
        assert one.set("f", WRITE) == 0
        assert two.set("f", WRITE) == AGAIN
        assert not server.locks()
        # With the option `lock`, there are no local locks instead.
        with silent_rpcbind():
            expect(nfsrdma("mount", server.spec, server.mnt, "-o", server.options("lock,retry=0")), 32, "takes no locks")


NAMES = 65_536
TAKE_NAMES = """
import resource, socket, sys
_, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
taken = []
for number in range(int(sys.argv[1]), int(sys.argv[2])):
    taken.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    taken[-1].bind(f'\\0nfsrdma-svid-{number}')
print('taken', flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def every_name_taken():
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    each = limit - 100
    if each < 2000:
        pytest.skip(f"needs more than {limit} descriptors")
    pipe, takers = subprocess.PIPE, []
    try:
        for first in range(0, NAMES, each):
            words = [sys.executable, "-c", TAKE_NAMES, str(first), str(min(first + each, NAMES))]
            takers.append(subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True))
        for taker in takers:
            assert taker.stdout.readline() == "taken\n"
        yield
    finally:
        for taker in takers:
            taker.kill()
            taker.communicate()


@in_namespaces
def test_a_user_who_takes_every_name_of_lock_owners_keeps_nobody_from_locking():
    with every_name_taken():
        with Isolated() as server, Process() as one, Process() as two:
            (server.export / "f").write_bytes(b"x" * 10)
            for process, name in (one, "a"), (two, "b"):
                point, log = mount_at(server, name, server.options(server.lock_options))
                process.do("open", "f", str(point / "f"))
            assert one.set("f", WRITE, 0, 5) == 0
            assert two.set("f", WRITE, 0, 1) == AGAIN
            assert two.set("f", WRITE, 5, 5) == 0
            assert "taken by chance" in log.read_text()


@in_namespaces
def test_file_handles_of_waiters_are_told_to_no_other_user_s_sockets():
    def named(end, uid):
        os.seteuid(uid)
        try:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            made.bind(f"\0nfsrdma-locks-{end}")
        finally:
            os.seteuid(0)
        return made

    def hears(listener):
        try:
            return listener.recv(1000).startswith(b"granted ")
        except BlockingIOError:
            return False

    with contextlib.ExitStack() as sockets, CalledBack() as server, Process() as one:
        # More than there is room for, so that they may displace others, too.
        strangers = [sockets.enter_context(named(f"stranger{number}", NOBODY)) for number in range(300)]
        friend = sockets.enter_context(named("friend", 0))
        (server.export / "f").write_bytes(b"x")
        (point,) = server.mounts(1)
        one.do("open", "f", str(point / "f"))
        assert one.set("f", WRITE) == 0
        until(lambda: rpc(server.callback, NLM, 4, 0, limit=1) == b"", "the port")
        assert rpc(server.callback, NLM, 4, 10, granted_args(b"h" * 28, 77)) == b""
        until(lambda: hears(friend), "a hint")
        assert not any(map(hears, strangers))


def test_a_lost_answer_about_access_control_lists_is_asked_for_again_and_silence_is_told():
    root()
    with LockServer() as server:
        (server.export / "f").write_bytes(b"x")

        def calls(name):
            return int(re.search(rf"\b{name}=(\d+)", server.control("acl-calls"))[1])

        for dropped, told in (1, False), (1000, True):
            server.control(f"acl-drop {dropped}")
            asked, got = calls("NULL"), calls("GETACL")
            point, log = mount_at(server, f"mount{dropped}")
            server.control("acl-drop 0")
            assert calls("NULL") - asked == 2
            assert ("does not say whether it has access control lists" in log.read_text()) == told, log.read_text()
            with contextlib.suppress(OSError):
                os.getxattr(point / "f", "system.posix_acl_access")
            assert (calls("GETACL") == got) == told, "used as if it were not there, or the reverse"
