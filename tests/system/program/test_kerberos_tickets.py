"""Where the tickets of a mount's users are found, and the processes that look for them, one for each context."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from program.kerberos_support import SERVER_A, SERVER_B, machine, owner  # noqa: F401
from program.realm import NAME
from program.support import LIMIT, alone, blocked, expect, nfsrdma, parent_of, run_inside, servers_of
from program.test_kerberos_mounts import edit, listed, mount_of, put
from program.users import A, B, User, by, refused
from suites import links_of, until

JOIN = """\
import ctypes, os, sys
SYS_KEYCTL, JOIN_SESSION_KEYRING = {"x86_64": 250, "aarch64": 219}[os.uname().machine], 1
ctypes.CDLL(None).syscall(SYS_KEYCTL, JOIN_SESSION_KEYRING, None)
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""Runs a program with a session keyring of its own."""


def test_the_newest_cache_that_is_the_users_own_is_used(machine):
    """Beside the place that krb5.conf names, where programs like sshd put caches, whoever else has put something there."""
    if "NFSRDMA_INSIDE" not in os.environ:
        enter = alone("sh", "-c", 'mkdir -p /run/user && mount -t tmpfs none /run/user && exec "$@"', "sh")
        return run_inside(enter, "test_the_newest_cache_that_is_the_users_own_is_used", "NFSRDMA_INSIDE")
    folder = Path(f"/run/user/{A.uid}")
    folder.mkdir()
    folder.chmod(0o1777)
    for name, principal, user, age in (
        ("krb5cc_old", "alice", A, 20),
        ("krb5cc_new", "bob", A, 10),
        ("other_name", "alice", A, 0),
        ("krb5cc_theirs", "alice", B, 0),
    ):
        machine.kinit(principal, user, "-c", folder / name)
        (folder / name).chmod(0o644)
        then = os.stat(folder / name).st_mtime - age
        os.utime(folder / name, (then, then))
    (folder / "krb5cc_link").symlink_to("other_name")
    (folder / "krb5cc_noise").write_text("noise")
    os.chown(folder / "krb5cc_noise", A.uid, A.gid)
    with mount_of(machine, "krb5") as (server, _):
        by(A, put, server.mnt / "file")
        assert owner(server.export / "file") == SERVER_B
    return None


def test_a_cache_of_somebody_else_is_not_used(machine):
    """Where krb5.conf has the caches of all users in one directory, a user may put one there for another, who must not become
    somebody else at the server."""
    machine.kinit("alice", B)
    planted = machine.ccache(A)
    machine.ccache(B).rename(planted)
    planted.chmod(0o644)
    with mount_of(machine, "krb5") as (server, _):
        refused(A, listed, server.mnt)
        # Nor one that never ends.
        planted.unlink()
        os.mkfifo(planted)
        os.chown(planted, A.uid, A.gid)
        refused(A, listed, server.mnt)
        planted.unlink()
        machine.kinit("bob", A)
        by(A, put, server.mnt / "file")
        assert owner(server.export / "file") == SERVER_B


def test_a_malformed_cache_is_its_users_own(machine):
    cache = machine.kinit("alice", A)
    machine.kinit("bob", B)
    good = cache.read_bytes()
    half = len(good) // 2
    with mount_of(machine, "krb5") as (server, _):
        for bad in (b"noise", b"", good[:half], good[:8] + b"\xff" * (half - 8) + good[half:]):
            cache.write_bytes(bad)
            refused(A, listed, server.mnt)
            by(B, listed, server.mnt)
        cache.write_bytes(good)
        by(A, listed, server.mnt)


@pytest.mark.parametrize("kind", ["DIR:{}/ccaches/of-%{{uid}}", "KEYRING:persistent:%{{uid}}"], ids=["DIR", "KEYRING"])
def test_caches_need_not_be_files(machine, kind):
    edit(machine, f"FILE:{machine.base}/ccaches/krb5cc_%{{uid}}", kind.format(machine.base))
    if machine.try_kinit("alice", A).returncode:
        pytest.skip("no tickets in such caches here")
    try:
        with mount_of(machine, "krb5") as (server, _):
            by(A, put, server.mnt / "file")
            assert owner(server.export / "file") == SERVER_A
    finally:
        machine.kdestroy(A)


def test_the_keyring_of_who_mounts_is_not_everybodys(machine):
    """Where krb5.conf has tickets in the session's keyring: that of the mount has those of root, and users have none there."""
    if "NFSRDMA_INSIDE" not in os.environ:
        test = "test_the_keyring_of_who_mounts_is_not_everybodys"
        return run_inside((sys.executable, "-c", JOIN), test, "NFSRDMA_INSIDE")
    edit(machine, f"FILE:{machine.base}/ccaches/krb5cc_%{{uid}}", "KEYRING:session:tickets")
    if machine.try_kinit("alice").returncode:
        pytest.skip("no tickets in such caches here")
    with mount_of(machine, "krb5") as (server, _):
        refused(A, listed, server.mnt)
    return None


def test_a_realm_of_the_users_own_is_no_reason_to_wait(machine):
    """Only the realm of this host, or of the server, is everybody's."""
    machine.kinit("alice", A)
    with mount_of(machine, "krb5") as (server, _):
        machine.stop()
        path = machine.base / "krb5.conf"
        good = path.read_text()
        edit(machine, f"default_realm = {NAME}", "default_realm = OTHER.TEST", f"localhost = {NAME}", "localhost = OTHER.TEST")
        refused(A, listed, server.mnt)
        edit(machine, f"{NAME} = {{", "OTHER.TEST = {")
        refused(A, listed, server.mnt)
        path.write_text(good)
        edit(machine, f"default_realm = {NAME}", "default_realm = OTHER.TEST")
        programs = []

        def waits():
            # The last refusal holds for as long as it took to come about.
            if not programs or programs[-1].poll() is not None:
                programs.append(subprocess.Popen(["ls", server.mnt], user=A.uid, group=A.gid, extra_groups=[]))
            return blocked(programs[-1].pid)

        until(waits, "a program that waits")
        path.write_text(good)
        machine.start()
        assert programs[-1].wait(LIMIT) == 0


def helpers_of(pid):
    """The processes that make contexts for a mount, by the number of their user."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "cmdline").read_bytes() == b"nfsrdma\0gss-helper\0":
                if parent_of(int(entry.name)) == pid:
                    found[entry.stat().st_uid] = entry
    return found


def check_helper(machine, user, process):
    """It is the user and nothing else."""
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    assert status["Uid"].split() == status["Gid"].split() == [str(user.uid)] * 4
    assert status["Groups"].split() == []
    assert int(status["CapPrm"], 16) == 0 and int(status["NoNewPrivs"]) == 1
    limits = {line[:26].strip(): line[26:].split() for line in (process / "limits").read_text().splitlines()}
    most = {"Max core file size": 0, "Max address space": 512 << 20, "Max cpu time": 10}
    assert {name: limits[name][:2] for name in most} == {name: [str(value)] * 2 for name, value in most.items()}
    assert (process / "environ").read_bytes() == f"KRB5_CONFIG={machine.base}/krb5.conf\0".encode()
    for link in links_of(process.name):
        assert link == "/dev/null" or link.startswith("socket:"), link


def test_users_whose_kdc_is_silent_hold_back_nobody(machine):
    """More of them than contexts are begun at a time."""
    machine.kinit("alice", A)
    slow = [User(61101 + number, 61101 + number) for number in range(9)]
    for user in slow:
        machine.kinit("bob", user)
    with mount_of(machine, "krb5") as (server, command), contextlib.ExitStack() as stack:
        # From then on there is a ticket for the server, which needs no KDC.
        by(A, put, server.mnt / "first")
        (daemon,) = servers_of(server.mnt)
        machine.stop()
        silent = stack.enter_context(socket.create_server(("127.0.0.1", machine.port), backlog=64))
        silent.settimeout(LIMIT)
        programs = []
        for user in slow:
            program = subprocess.Popen(["ls", server.mnt], user=user.uid, group=user.gid, extra_groups=[])
            programs.append(stack.enter_context(program))
            stack.callback(program.kill)
        for _ in slow:
            stack.enter_context(silent.accept()[0])
        command("gss-forget")
        by(A, put, server.mnt / "second")
        assert all(program.poll() is None for program in programs)
        for program in programs:
            program.kill()
        found = helpers_of(daemon)
        assert set(found) <= {user.uid for user in slow} and found
        for user in slow:
            if user.uid in found:
                check_helper(machine, user, found[user.uid])
                os.kill(int(found[user.uid].name), signal.SIGKILL)


def test_what_is_no_request_of_a_mount_is_refused():
    expect(nfsrdma("gss-helper", stdin=subprocess.DEVNULL), 1, "gss-helper is for nfsrdma itself")
