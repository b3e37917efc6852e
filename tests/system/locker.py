#!/usr/bin/env python3
"""Processes that lock on command, on the host and in the guest of interop.

    locker.py                 reads from its standard input, and answers on its standard output
    locker.py ADDRESS PORT    listens there (port 0: any), prints the address, and forks for each connection

A process reads a JSON array from each line, makes that system call, and answers with its result, or with {"errno": N}. It
ends with its input; one that waits for a lock then is killed with the listener.
"""

import ctypes
import errno
import fcntl
import json
import os
import signal
import socket
import sqlite3
import struct
import sys

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)


class Calls:
    """The calls, each of which is a method with its name."""

    def __init__(self):
        self.files = {}

    def open(self, name, path, mode="r+b"):
        """`path` may be the number of an inherited file."""
        self.files[name] = open(path, mode, buffering=0)  # noqa: SIM115 -- open until the process is told to close it
        return 0

    def close(self, name):
        self.files.pop(name).close()
        return 0

    def fcntl(self, command, name, kind, start, length):
        flock = struct.pack("hhqqi", kind, os.SEEK_SET, start, length, 0)
        return struct.unpack("hhqqi", fcntl.fcntl(self.files[name], command, flock))

    def flock(self, name, how):
        return fcntl.flock(self.files[name], how)

    def once(self, function, name, how, *words):
        """fcntl(2) or flock(2) as one system call: Python's own are repeated after a signal whose handler returns."""
        if words:
            words = (ctypes.create_string_buffer(struct.pack("hhqqi", words[0], os.SEEK_SET, *words[1:], 0)),)
        if getattr(LIBC, function)(self.files[name].fileno(), how, *words) != 0:
            raise OSError(ctypes.get_errno(), function)
        return 0

    def fsync(self, name):
        return os.fsync(self.files[name].fileno())

    def read(self, name, offset, count):
        return os.pread(self.files[name].fileno(), count, offset).decode("latin1")

    def write(self, name, offset, text):
        return os.pwrite(self.files[name].fileno(), text.encode("latin1"), offset)

    def count(self, path, times, how):
        """Adds one to the number in a file `times` times, each under a lock."""
        lock = {"flock": fcntl.flock, "posix": fcntl.lockf}[how]
        file = os.open(path, os.O_RDWR)
        for _ in range(times):
            lock(file, fcntl.LOCK_EX)
            number = int(os.pread(file, 20, 0))
            os.pwrite(file, b"%019d\n" % (number + 1), 0)
            lock(file, fcntl.LOCK_UN)
        os.close(file)
        return 0

    def insert(self, path, writer, rounds):
        """`rounds` transactions in a SQLite database."""
        db = sqlite3.connect(path, timeout=300, isolation_level=None)
        for turn in range(rounds):
            db.execute("BEGIN IMMEDIATE")
            db.execute("INSERT INTO entries VALUES (?, ?, randomblob(3000))", (writer, turn))
            db.execute("UPDATE total SET n = n + 1")
            db.execute("COMMIT")
        db.close()
        return 0

    def entries(self, path):
        """The contents of such a database, and whether it is consistent."""
        db = sqlite3.connect(path, timeout=300)
        (total,) = db.execute("SELECT n FROM total").fetchone()
        rows = db.execute("SELECT writer, turn FROM entries ORDER BY writer, turn").fetchall()
        (whole,) = db.execute("PRAGMA integrity_check").fetchone()
        db.close()
        return [total, rows, whole]


def serve(lines, answers):
    calls = Calls()
    for line in lines:
        name, *words = json.loads(line)
        try:
            result = getattr(calls, name)(*words)
        except OSError as error:
            result = {"errno": error.errno}
        except sqlite3.Error as error:
            result = {"errno": errno.EIO, "text": str(error)}
        answers.write(json.dumps(result) + "\n")
        answers.flush()


def interrupted(*_):
    raise InterruptedError(errno.EINTR, "a signal")  # Python would go on by itself.


def listen(address, port):
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.create_server((address, int(port))) as listener:
        print(f"listening {listener.getsockname()[1]}", flush=True)
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                listener.close()
                with connection, connection.makefile("rw", encoding="utf-8") as stream:
                    serve(stream, stream)
                os._exit(0)
            connection.close()


if sys.argv[1:]:
    listen(*sys.argv[1:])
else:
    signal.signal(signal.SIGUSR1, interrupted)
    signal.signal(signal.SIGALRM, lambda *_: None)
    serve(sys.stdin, sys.stdout)
