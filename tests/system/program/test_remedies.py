"""Messages that name a remedy: what they say works, and does not lead astray."""

import json
import os

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


def test_a_socket_with_a_long_path_is_told_its_limit(place):
    long = f"unix:/tmp/{'x' * 120}"
    expect(nfsrdma("metrics", "--listen", long), 1, "at most 107 bytes")
    expect(nfsrdma("mount", "srv:/x", place.mnt, "-o", f"metrics={long}"), 1, "at most 107 bytes")


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
