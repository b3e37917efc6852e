"""A mount whose process was killed: mounting again replaces it."""

import errno
import os
from pathlib import Path

import pytest

from program.support import *  # noqa: F403
from program.support import BIN


def is_dead(path):
    try:
        os.statvfs(path)  # the result of stat may be cached
    except OSError as error:
        return error.errno == errno.ENOTCONN
    return False


def kill(server, at=None):
    """Kills the processes of the mount, and waits until the kernel has noticed."""
    at = at or server.mnt
    kill_mount(at)
    until(lambda: not servers_of(at), "the end of the serving process")
    # An ending process frees its memory before it closes its files, one of which is the kernel's side.
    until(lambda: is_dead(at), "the end of the kernel's side")


def mounts_on(path):
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [line for line in lines if line.split()[1] == str(path)]


def works(server, at=None):
    (server.export / "f").write_text(str(os.getpid()))
    return ((at or server.mnt) / "f").read_text() == str(os.getpid())


@pytest.mark.parametrize("options", ["", "bg"])
def test_a_dead_mount_is_replaced(server, options):
    server.mount_well(options)
    kill(server)
    result = server.mount(options)
    expect(result, 0, f"the program of the mount of {server.spec} on {server.mnt} had ended", "mounted on")
    assert result.stderr.count("\n") == 1, result.stderr
    assert len(mounts_on(server.mnt)) == 1, "the dead mount is there still"
    assert works(server)
    # Of one that lives, nothing is replaced.
    expect(server.mount(options), 32, "is already mounted")
    unmount(server.mnt)


def test_dead_mounts_on_top_of_each_other_are_replaced(server):
    """Also by the mount of another export."""
    server.mount_well()
    over = server.export / "over"
    over.mkdir()
    expect(nfsrdma("mount", f"127.0.0.1:{over}", server.mnt, "-o", server.options()), 0)
    kill_mount(server.mnt)
    until(lambda: not servers_of(server.mnt), "the end of the serving processes")
    until(lambda: is_dead(server.mnt), "the end of the kernel's side")
    expect(server.mount(), 0, "had ended")
    assert len(mounts_on(server.mnt)) == 1, mounts_on(server.mnt)
    assert works(server)


def test_a_dead_mount_is_left_alone_if_nothing_is_mounted(server):
    """A bare directory in its place would take what programs write."""
    server.mount_well()
    kill(server)
    before = mounts_on(server.mnt)
    expect(nfsrdma("mount", f"127.0.0.1:{server.export}/none", server.mnt, "-o", server.options("retry=0")), 32)
    server.stop()
    expect(server.mount("retry=0"), 32)
    helper = server.base / "mount.nfsrdma"
    helper.symlink_to(BIN / "nfsrdma")
    expect(run(helper, server.spec, server.mnt, "-f", "-o", server.options()), 0)
    assert mounts_on(server.mnt) == before
    server.start()
    expect(server.mount(), 0, "had ended")
    assert works(server)


def test_what_goes_with_a_dead_mount_is_named(server):
    root()
    (server.export / "below").mkdir()
    server.mount_well()
    bound = server.base / "bound"
    bound.mkdir()
    assert run("mount", "--bind", server.mnt, bound).returncode == 0
    assert run("mount", "-t", "tmpfs", "none", server.mnt / "below").returncode == 0
    kill(server)
    result = server.mount()
    expect(result, 0, f"with it went what was mounted on {server.mnt}/below", f"is dead on {bound}, too")
    assert result.stderr.count("\n") == 1, result.stderr
    assert not mounted(server.mnt / "below") and works(server)
    assert is_dead(bound)


def test_a_path_inside_a_dead_mount(server):
    (server.export / "below").mkdir()
    server.mount_well()
    kill(server)
    result = server.mount(at=server.mnt / "below")
    expect(result, 32, "is inside a mount whose program has ended", "mount that one again first")


def test_all_dead_mounts_of_fstab_are_mounted_again():
    if "NFSRDMA_INSIDE" not in os.environ:
        run_inside(alone("--propagation", "private"), "test_all_dead_mounts_of_fstab_are_mounted_again", "NFSRDMA_INSIDE")
        return
    with Server() as server:
        # What somebody else left dead on this machine is not this test's: gone from this namespace alone.
        leave_others_mounts()
        table = server.base / "fstab"
        table.touch()
        assert run("mount", "--bind", table, "/etc/fstab").returncode == 0
        # Nothing is dead.
        expect(nfsrdma("mount", "--dead"), 0)
        expect(nfsrdma("mount", "--dead", server.spec, server.mnt), 1, "'--dead' is used without any other argument")
        points = [server.base / name for name in ("one", "two words", "lives", "elsewhere")]
        for point in points:
            point.mkdir()
            expect(server.mount(at=point), 0)
        escaped = [str(point).replace(" ", r"\040") for point in points]
        lines = [f"{server.spec} {point} nfsrdma noauto,_netdev,ro,{server.options()} 0 0" for point in escaped[:3]]
        table.write_text("# a comment\n" + "\n".join(lines) + "\n")
        (alive,) = servers_of(points[2])
        for point in (points[0], points[1], points[3]):
            kill(server, point)
        result = nfsrdma("mount", "--dead")
        said = result.stdout + result.stderr
        assert result.returncode == 32, said
        for point in points[:2]:
            assert f"on {point} had ended" in said, said
            assert works(server, point)
            (line,) = mounts_on(str(point).replace(" ", r"\040"))
            assert line.split()[3].startswith("ro,"), "the options are those of its line"
        assert servers_of(points[2]) == [alive]
        assert f"{points[3]} has no line in /etc/fstab" in said and is_dead(points[3]), said
        expect(nfsrdma("umount", points[3]), 0)
        # A server that is away is tried again the next time.
        kill(server, points[0])
        server.stop()
        table.write_text(table.read_text().replace("noauto,", "noauto,retry=0,"))
        result = nfsrdma("mount", "--dead")
        assert result.returncode == 32 and f"dead mounts are left on {points[0]}:" in result.stderr, result
        assert is_dead(points[0])
        server.start()
        expect(nfsrdma("mount", "--dead"), 0)
        assert works(server, points[0])
        for point in points[:3]:
            expect(nfsrdma("umount", point), 0)


@pytest.mark.alone
def test_mount_8_replaces_a_dead_mount():
    root()
    if "NFSRDMA_INSIDE" not in os.environ:
        run_inside(alone("--propagation", "private"), "test_mount_8_replaces_a_dead_mount", "NFSRDMA_INSIDE")
        return
    with Server() as server:
        helper = Path("/sbin/mount.nfsrdma")
        if helper.exists() or helper.is_symlink():
            pytest.skip(f"{helper} exists already")
        helper.symlink_to((BIN / "nfsrdma").resolve())
        try:
            command = ["mount", "-t", "nfsrdma", server.spec, server.mnt, "-o", server.options()]
            expect(run(*command), 0)
            kill(server)
            expect(run(*command), 0, "had ended")
        finally:
            helper.unlink()
        assert works(server) and len(mounts_on(server.mnt)) == 1
