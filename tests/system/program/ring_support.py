"""Mounts whose requests come by io_uring.

The kernel's switch is global. So it is set only while a mount is being made, under a lock, and restored at once: a
mount keeps what was negotiated at its beginning.
"""

import contextlib
import errno
import fcntl
import json
import os
import sys
from pathlib import Path

import pytest

from program.support import links_of, root, run, servers_of, stats

SWITCH = Path("/sys/module/fuse/parameters/enable_uring")
REASON = "requests come by /dev/fuse and not by io_uring"


@contextlib.contextmanager
def switched(value):
    """Sets the kernel's switch to on ("Y") or off ("N") in the meantime."""
    root()
    if not SWITCH.exists():
        pytest.skip("this kernel has no FUSE over io_uring")
    with SWITCH.open() as switch:
        fcntl.flock(switch, fcntl.LOCK_EX)
        before = switch.read().strip()
        try:
            SWITCH.write_text(value)
        except OSError as error:
            pytest.skip(f"{SWITCH} cannot be written: {error.strerror}")
        try:
            yield
        finally:
            SWITCH.write_text(before)


def rings(pid):
    """The number of io_urings of a process."""
    return links_of(pid).count("anon_inode:[io_uring]")


def no_rings_here():
    """The reason why io_uring is not available at all, or nothing."""
    disabled = Path("/proc/sys/kernel/io_uring_disabled")
    if disabled.exists() and disabled.read_text().strip() != "0":
        return f"kernel.io_uring_disabled is {disabled.read_text().strip()}"
    # io_uring_setup(2) without arguments: EFAULT where it is permitted.
    words = "import ctypes, sys; c = ctypes.CDLL(None, use_errno=True); c.syscall(425, 1, 0); sys.exit(ctypes.get_errno())"
    status = run(sys.executable, "-c", words).returncode
    return None if status == errno.EFAULT else f"io_uring_setup: {os.strerror(status)}"


def ring_mount(server, more="", workers=2):
    """Mounts with a ring for each worker; the serving process."""
    if reason := no_rings_here():
        pytest.skip(reason)
    words = f"io_uring=on,workers={workers}"
    with switched("Y"):
        server.mount_well(f"{words},{more}" if more else words)
    (pid,) = servers_of(server.mnt)
    assert rings(pid) == workers, f"{rings(pid)} rings"
    assert "io_uring=on" in json.loads(stats(server, "--json"))["options"].split(",")
    return pid
