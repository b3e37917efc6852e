"""Users who work on one mount: children of this process with other identities."""

import errno
import os
import pickle
import stat
import subprocess
from dataclasses import dataclass, field

import pytest

from program.support import LIMIT, procedures


@dataclass(frozen=True)
class User:
    uid: int
    gid: int
    groups: tuple = field(default=())

    def become(self):
        os.setgroups(self.groups)
        os.setresgid(self.gid, self.gid, self.gid)
        os.setresuid(self.uid, self.uid, self.uid)


A, B, C = User(61001, 61001), User(61002, 61002), User(61003, 61003)
ROOT_USER = User(0, 0)


def by(user, function, *words, **more):
    """Calls a function as `user`, in a child. Returns its result or raises its OSError."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            user.become()
            os.umask(0)
            try:
                said = (True, function(*words, **more))
            except OSError as error:
                said = (False, error.errno)
            os.write(writer, pickle.dumps(said))
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with open(reader, "rb") as pipe:
        said = pipe.read()
    assert os.waitpid(child, 0)[1] == 0, "the child failed"
    good, result = pickle.loads(said)
    if not good:
        raise OSError(result, os.strerror(result))
    return result


def by_effective(user, function, *words):
    """Calls a function with the effective ids of `user`, in this process, which runs as root."""
    os.setegid(user.gid)
    os.seteuid(user.uid)
    try:
        return function(*words)
    finally:
        os.seteuid(0)
        os.setegid(0)


def outcome(user, function, *words, **more):
    """The name of the errno, or "ok"."""
    try:
        by(user, function, *words, **more)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "ok"


def refused(user, function, *words, number="EACCES", **more):
    got = outcome(user, function, *words, **more)
    assert got == number, f"{function.__name__}{tuple(map(str, words))} of uid {user.uid}: {got}, not {number}"


def opened(path, flags=os.O_RDONLY, mode=0o666, data=None, cut=None):
    """Opens a file, optionally writes or truncates it. Returns the type and the first bytes."""
    fd = os.open(path, flags | os.O_NONBLOCK, mode)
    try:
        if data is not None:
            os.write(fd, data)
        if cut is not None:
            os.ftruncate(fd, cut)
        kind = stat.S_IFMT(os.fstat(fd).st_mode)
        readable = flags & os.O_ACCMODE != os.O_WRONLY and kind == stat.S_IFREG
        return kind, os.pread(fd, 100, 0) if readable else b""
    finally:
        os.close(fd)


def write(path, data=b"secret", mode=0o644):
    path.write_bytes(data)
    path.chmod(mode)


def executed(path, *words):
    done = subprocess.run([str(path), *words], capture_output=True, text=True, check=False, timeout=LIMIT)
    return done.returncode, done.stdout.strip()


def calls(server):
    return {entry["name"]: entry["calls"] for entry in procedures(server).values()}


def each(*options, words=()):
    """Runs a test once for each of the options, with a new server (started with `words`) and mount."""

    def wrap(function):
        names = [option or "default" for option in options]
        function = pytest.mark.parametrize("mount", options, ids=names, indirect=True)(function)
        return pytest.mark.usefixtures("users", "mount")(pytest.mark.responder(*words)(function))

    return wrap
