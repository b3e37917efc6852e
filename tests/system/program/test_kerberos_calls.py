"""With each flavor of Kerberos: calls of every kind, and random ones to one file. Locks are in test_kerberos_mounts.py.

The same with Linux's server is in tests/system/interop/test_kerberos_host.py.
"""

import os
import shutil
import subprocess
import sys

import pytest

from program.kerberos_support import FLAVORS, machine  # noqa: F401
from program.realm import ENCTYPES, Realm
from program.support import LIMIT, ROOT, root, run
from program.test_kerberos_mounts import each_flavor, mount_of, write_and_read
from program.users import A, by

KINDS = "procedures links directory renames appends unlinked model mapped".split()


def as_alice(*command, **variables):
    result = run(*command, env=os.environ | variables, cwd="/", limit=2 * LIMIT, user=A.uid, group=A.gid, extra_groups=[])
    assert result.returncode == 0, result.stdout + result.stderr


@each_flavor
def test_calls_of_every_kind_with_kerberos(machine, flavor):
    machine.kinit("alice", A)
    with mount_of(machine, flavor) as (server, _):
        shutil.copy(ROOT / "tests/system/checks.py", server.base)
        as_alice(
            sys.executable, "-B", server.base / "checks.py", "run", server.mnt / "alice", *KINDS,
            CHECK_ENTRIES="300", CHECK_BIG_MIB="2", CHECK_DROP="0",
        )  # fmt: skip


@each_flavor
def test_random_calls_to_a_file_with_kerberos(machine, flavor):
    tool = subprocess.run([ROOT / "tests/external/run", "--fsx"], stdout=subprocess.PIPE, text=True, check=False)
    if tool.returncode != 0:
        pytest.skip("fsx cannot be built")
    machine.kinit("alice", A)
    with mount_of(machine, flavor) as (server, _):
        program = shutil.copy(tool.stdout.strip(), server.base)
        as_alice(program, "-q", "-N", "1000", "-S", "1", "-P", "/tmp", server.mnt / "alice" / "fsx")


@pytest.mark.parametrize("enctype", ENCTYPES[1:])
def test_each_kind_of_session_key_carries_calls(enctype):
    """Those that the KDCs of today give; the other tests have the first of them."""
    root()
    with Realm(enctypes=[enctype]) as realm:
        realm.kinit("alice", A)
        for flavor in FLAVORS:
            with mount_of(realm, flavor) as (server, _):
                by(A, write_and_read, server.mnt / "alice", 2)
