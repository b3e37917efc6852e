"""Rights that somebody gives at the server, or on another client, to a user whom the kernel here has just refused."""

import errno
import os
import subprocess

import pytest

from program.support import *  # noqa: F403
from program.users import B, ROOT_USER, each, executed, opened, outcome, write

# Nothing that the kernel caches expires during a test.
FOR_EVER = "actimeo=3600"


def becomes_possible(give, user, function, *words):
    """What the kernel refuses works soon after the right was given at the server."""
    for _ in range(2):
        assert outcome(user, function, *words) == "EACCES", f"{function.__name__}{words}"
    give()
    until(lambda: outcome(user, function, *words) == "ok", f"{function.__name__}{words} of uid {user.uid}")


@each(FOR_EVER)
def test_a_mode_that_was_set_at_the_server_lets_users_in(server):
    mnt, export = server.mnt, server.export
    write(mnt / "file", mode=0o600)
    write(mnt / "own", mode=0o400)
    os.chown(mnt / "own", B.uid, B.gid)
    (mnt / "private").mkdir(0o700)
    write(mnt / "private" / "below")
    becomes_possible(lambda: (export / "file").chmod(0o604), B, opened, mnt / "file")
    becomes_possible(lambda: (export / "own").chmod(0o600), B, opened, mnt / "own", os.O_WRONLY)
    becomes_possible(lambda: os.chown(export / "file", B.uid, B.gid), B, opened, mnt / "file", os.O_WRONLY)
    becomes_possible(lambda: (export / "private").chmod(0o701), B, opened, mnt / "private" / "below")
    becomes_possible(lambda: (export / "private").chmod(0o705), B, os.listdir, mnt / "private")


def ask(path, mode):
    if not os.access(path, mode):
        raise PermissionError(errno.EACCES, "access(2)")


@each(f"{FOR_EVER},permissions=server,allow_other")
def test_what_the_server_refused_is_asked_again(server):
    mnt, export = server.mnt, server.export
    write(mnt / "file", mode=0o600)
    (mnt / "private").mkdir(0o700)
    becomes_possible(lambda: (export / "file").chmod(0o604), B, ask, mnt / "file", os.R_OK)
    becomes_possible(lambda: (export / "private").chmod(0o701), B, os.chdir, mnt / "private")


@each(f"{FOR_EVER},nocto,permissions=server,allow_other")
def test_without_close_to_open_what_the_server_refused_is_asked_again(server):
    write(server.mnt / "file", mode=0o600)
    becomes_possible(lambda: (server.export / "file").chmod(0o604), B, opened, server.mnt / "file")


@each(FOR_EVER, f"{FOR_EVER},permissions=server,allow_other")
@pytest.mark.parametrize("user", [B, ROOT_USER], ids=["user", "root"])
def test_a_program_that_was_made_executable_at_the_server_can_be_executed(server, user):
    (server.export / "tool").write_text("#!/bin/sh\nexit 0\n")
    (server.export / "tool").chmod(0o644)
    becomes_possible(lambda: (server.export / "tool").chmod(0o755), user, executed, server.mnt / "tool")


@each(FOR_EVER)
def test_an_acl_that_was_set_at_the_server_lets_users_in(server):
    needs("setfacl")
    write(server.mnt / "file", mode=0o640)
    words = ["setfacl", "-m", f"u:{B.uid}:r", server.export / "file"]
    if subprocess.run([*words[:1], "--test", *words[1:]], capture_output=True, check=False).returncode != 0:
        pytest.skip("the export has no ACLs")
    becomes_possible(lambda: subprocess.run(words, check=True), B, opened, server.mnt / "file")
