"""Messages that name a remedy: what they say works, and does not lead astray."""

import json
import os

import pytest

from program.support import *  # noqa: F403


def test_a_mount_is_found_by_its_source(server):
    """As by umount(8)."""
    server.mount_well()
    assert json.loads(nfsrdma("stats", server.spec, "--json").stdout)["directory"] == str(server.mnt)
    expect(nfsrdma("log", f"{server.spec}"), 0)
    expect(nfsrdma("umount", server.spec), 0)
    assert not mounted(server.mnt)
    server.ended()
    result = nfsrdma("umount", server.spec)
    expect(result, 1, f"{server.spec} is not mounted")
    assert "does not exist" not in result.stderr


def test_a_source_that_is_mounted_twice_is_no_single_mount(server):
    other = server.base / "other"
    other.mkdir()
    server.mount_well()
    expect(server.mount(at=other), 0)
    expect(nfsrdma("umount", server.spec), 1, f"is mounted on {server.mnt}, {other}: give the directory")
    assert mounted(server.mnt) and mounted(other)
    expect(nfsrdma("umount", other), 0)
    expect(nfsrdma("umount", server.spec), 0)


def test_a_directory_is_meant_before_a_source(server):
    """Where both exist."""
    server.mount_well()
    place = server.base / f"{server.host}:"
    at = place / str(server.export)[1:]
    at.mkdir(parents=True)
    here = nfsrdma("umount", server.spec, cwd=server.base)
    expect(here, 1, "is not an nfsrdma mount")
    assert mounted(server.mnt)


def test_all_options_that_are_refused_are_named(place):
    given = "ro,uid=5,sec=none,zork,reconnect,timeo=x"
    result = nfsrdma("mount", "127.0.0.1:/x", place.mnt, "-o", given)
    expect(result, 1, "'uid=5' cannot", "'sec=none' cannot", "unknown option 'zork'", "'timeo=x' is not allowed")
    assert "option 'reconnect' is not needed: a lost connection is always made again" in result.stderr, result.stderr


def test_a_port_in_the_source(place):
    result = nfsrdma("mount", "srv:2049/x", place.mnt)
    expect(result, 1, "2049 is that of NFS over TCP: write srv:/x, for RDMA at port 20049")
    assert "port=2049" not in result.stderr, "it would be asked for RDMA"
    expect(nfsrdma("mount", "srv:4711/x", place.mnt), 1, "write srv:/x with the option port=4711")


@pytest.mark.parametrize("command", ("exports", "ping"))
def test_a_wrong_source_is_told_as_it_was_written(command):
    """exports and ping take a host as well: what was meant to name an export gets the same remedy as by mount."""
    for source in ("", ":/", ":/x", "[::1", "nfs://", "srv/x"):
        expect(nfsrdma(command, source), 1, f"'{source}' names no export")
    expect(nfsrdma(command, "srv:x"), 1, "not 'x': write SERVER:/x\n")
    expect(nfsrdma(command, "srv:2049/x"), 1, "write srv:/x, for RDMA at port 20049")
    expect(nfsrdma(command, "srv:4711:/x"), 1, "write srv:/x with the option port=4711, or nfs://srv:4711/x\n")


def test_a_socket_with_a_long_path_is_told_its_limit(place):
    long = f"unix:/tmp/{'x' * 120}"
    expect(nfsrdma("metrics", "--listen", long), 1, "at most 107 bytes")
    expect(nfsrdma("mount", "srv:/x", place.mnt, "-o", f"metrics={long}"), 1, "at most 107 bytes")


def test_a_user_in_the_source(place):
    expect(nfsrdma("mount", "joe@srv:/x", place.mnt), 1, "write srv:/PATH")


def test_a_directory_of_fstab_is_for_mount_8(place):
    expect(nfsrdma("mount", place.mnt), 1, f"write 'mount {place.mnt}' for the line of {place.mnt} in /etc/fstab")


def test_exports_without_rpcbind():
    if "NFSRDMA_INSIDE" not in os.environ:
        enter = alone("--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
        run_inside(enter, "test_exports_without_rpcbind", "NFSRDMA_INSIDE")
        return
    with Server() as server:
        result = nfsrdma("exports", "127.0.0.1")
        expect(result, 32, "cannot ask rpcbind of 127.0.0.1 (TCP port 111)", "mountport= (20048 on Linux")
        # Not for this command, which then says that it is to be left out.
        assert "mountproto=rdma" not in result.stderr, result.stderr
        expect(nfsrdma("mount", "127.0.0.1:/x", server.mnt, "-o", "retry=0"), 32, "mountproto=rdma needs neither")
        # The remedy.
        expect(nfsrdma("exports", "127.0.0.1", "-o", f"mountport={server.mountport},noresvport"), 0, str(server.export))
