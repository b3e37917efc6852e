#!/usr/bin/env python3
"""Tries what several users may do in a mount. Runs in the guest.

    rights.py DIR NAME UID...   each user makes DIR/NAME.UID, and then tries everything with the files of all; prints
                                what came of it, one line for each user and file, without NAME
    rights.py DIR NAME          prints owner, mode and size of the files with this NAME

Exit status 0, whatever the users may do. Standard library only.
"""

import errno
import os
import sys


def write(path):
    with open(path, "r+b", buffering=0) as file:
        file.write(b"changed")
        os.fsync(file.fileno())


def read(path):
    with open(path, "rb", buffering=0) as file:
        return len(file.read(100))


def may(path):
    return "".join(letter for letter, bit in (("r", os.R_OK), ("w", os.W_OK)) if os.access(path, bit)) or "-"


def renamed(path):
    os.rename(path, f"{path}.new")
    os.rename(f"{path}.new", path)


TRIES = {"access": may, "read": read, "write": write, "chmod": lambda path: os.chmod(path, 0o640),
         "utime": lambda path: os.utime(path, (1, 2)), "rename": renamed}


def outcome(function, path):
    try:
        return function(path) or "ok"
    except OSError as error:
        return errno.errorcode[error.errno]


def make(path):
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(b"made")


def by(uid, work):
    """Runs `work` as a user, whose output comes before what follows."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        os.umask(0)
        work()
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)


def main(top, name, *uids):
    files = sorted(file for file in os.listdir(top) if file.startswith(f"{name}."))
    if not uids:
        for file in files:
            found = os.stat(f"{top}/{file}")
            print(file, found.st_uid, f"{found.st_mode:o}", found.st_size)
        return
    for uid in map(int, uids):
        by(uid, lambda uid=uid: print(uid, "makes a file:", outcome(make, f"{top}/{name}.{uid}")))
    files = sorted(file for file in os.listdir(top) if file.startswith(f"{name}."))

    def all_tries(uid):
        for file in files:
            found = [f"{what} {outcome(function, f'{top}/{file}')}" for what, function in TRIES.items()]
            print(uid, file.removeprefix(f"{name}."), ", ".join(found))

    for uid in map(int, uids):
        by(uid, lambda uid=uid: all_tries(uid))


main(*sys.argv[1:])
