#!/usr/bin/env python3
"""Executes the system calls of an actor: in a directory, by this process, or over a TCP connection by another one, that may be
on another machine:

    executor.py ADDRESS:PORT DIR     serves calls in DIR, one connection after the other, for ever; port 0 takes a free one

A call is a line of JSON, its name and arguments; its result is one, too, before the bytes of a read. Paths are relative.
There is no authentication: whoever connects may do with the files of DIR what this process may. Standard library only.
"""

import contextlib
import ctypes
import errno
import itertools
import json
import mmap
import os
import socket
import sys

DATA_MAX = 16 << 20
"""The most bytes that a call reads or writes."""
FILES_MAX = 64
"""The most files that are open at a time."""
MAP_UNIT = 65536
"""At least the page size of all supported machines."""
LIBRARY = ctypes.CDLL(None, use_errno=True)
LIBRARY.mmap64.restype = ctypes.c_void_p


def checked(result):
    if result in (-1, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def attributes(status):
    """The attributes that are compared: size, mtime in seconds, group."""
    return [status.st_size, int(status.st_mtime_ns // 10**9), status.st_gid]


class Local:
    """Makes system calls in a directory of this machine, from any thread. Files are given by numbers."""

    CALLS = (
        "open close chown read write append fsync truncate truncate_path map list set_times fstat lstat rename link unlink mkdir"
        " rmdir".split()
    )

    def __init__(self, root):
        self.root, self.files, self.numbers = os.fspath(root), {}, itertools.count(1)

    def end(self):
        """Closes all files, also those that are gone."""
        for fd in self.files.values():
            with contextlib.suppress(OSError):
                os.close(fd)
        self.files.clear()

    def call(self, name, *arguments):
        if name not in self.CALLS:
            raise OSError(errno.ENOSYS, name)
        return getattr(self, name)(*arguments)

    def path(self, place):
        if len(place) > 255 or not set(place.split("/")).isdisjoint(("", "..")):
            raise OSError(errno.EINVAL, place)
        return os.path.join(self.root, place)

    def file(self, number):
        if number not in self.files:
            raise OSError(errno.EBADF, "no such file")
        return self.files[number]

    def open(self, place, flags, mode):
        """open(2), and then fstat(2)."""
        if len(self.files) >= FILES_MAX:
            raise OSError(errno.EMFILE, "too many files")
        fd, number = os.open(self.path(place), flags, mode), next(self.numbers)
        self.files[number] = fd
        return number, attributes(os.fstat(fd))

    def close(self, file):
        """close(2), whose result is checked, of a file that no other call is using."""
        self.file(file)
        os.close(self.files.pop(file))

    def chown(self, file, group):
        os.fchown(self.file(file), -1, group)

    def read(self, file, offset, length):
        """pread(2), repeated until all bytes are read or the end is reached."""
        fd, parts, done = self.file(file), [], 0
        length = min(length, DATA_MAX)
        while done < length and (part := os.pread(fd, length - done, offset + done)):
            parts.append(part)
            done += len(part)
        return b"".join(parts)

    def write(self, file, offset, length, value):
        """pwrite(2) of so many equal bytes."""
        fd, data, done = self.file(file), memoryview(bytes([value]) * min(length, DATA_MAX)), 0
        while done < len(data):
            done += os.pwrite(fd, data[done:], offset + done)

    def append(self, file, length, value):
        data = bytes([value]) * min(length, DATA_MAX)
        while data:
            data = data[os.write(self.file(file), data) :]

    def fsync(self, file):
        os.fsync(self.file(file))

    def truncate(self, file, size):
        os.ftruncate(self.file(file), size)

    def truncate_path(self, place, size):
        os.truncate(self.path(place), size)

    def map(self, file, offset, length, value):
        """Stores so many equal bytes to a shared mapping, and calls msync(2). They are made by way of /proc/self/mem: there, a
        store behind the end of the file, which another client may have cut, is an error, and causes no SIGBUS."""
        start = offset // MAP_UNIT * MAP_UNIT
        data, done = memoryview(bytes([value]) * min(length, DATA_MAX)), 0
        whole = ctypes.c_size_t(offset - start + len(data))
        access = mmap.PROT_READ | mmap.PROT_WRITE
        at = checked(LIBRARY.mmap64(None, whole, access, mmap.MAP_SHARED, self.file(file), ctypes.c_long(start)))
        memory = os.open("/proc/self/mem", os.O_WRONLY)
        try:
            while done < len(data):
                done += os.pwrite(memory, data[done:], at + offset - start + done)
            checked(LIBRARY.msync(ctypes.c_void_p(at), whole, 4))  # MS_SYNC
        finally:
            os.close(memory)
            LIBRARY.munmap(ctypes.c_void_p(at), whole)

    def list(self, place):
        return os.listdir(self.root if place == "." else self.path(place))

    def set_times(self, file, seconds):
        os.utime(self.file(file), (seconds, seconds))

    def fstat(self, file):
        return attributes(os.fstat(self.file(file)))

    def lstat(self, place):
        return attributes(os.lstat(self.path(place)))

    def rename(self, source, target):
        os.rename(self.path(source), self.path(target))

    def link(self, source, target):
        os.link(self.path(source), self.path(target))

    def unlink(self, place):
        os.unlink(self.path(place))

    def mkdir(self, place):
        os.mkdir(self.path(place))

    def rmdir(self, place):
        os.rmdir(self.path(place))


class Remote:
    """Makes them by another process. An error of the connection is EREMOTEIO, which no call returns."""

    def __init__(self, address, limit):
        host, _, port = address.rpartition(":")
        connection = socket.create_connection((host, int(port)), 20)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(limit)
        self.stream = connection.makefile("rwb")
        # The stream keeps the connection open.
        connection.close()

    def end(self):
        with contextlib.suppress(OSError):
            self.stream.close()

    def call(self, *call):
        try:
            self.stream.write(json.dumps(call).encode() + b"\n")
            self.stream.flush()
            kind, value = json.loads(self.stream.readline())
            data = self.stream.read(value) if kind == "data" else None
        except (OSError, ValueError) as error:
            raise OSError(errno.EREMOTEIO, f"the executor's connection: {error}") from error
        if kind == "failed":
            raise OSError(value, os.strerror(value))
        return value if data is None else data


def serve(connection, local):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream = connection.makefile("rwb")
    for line in stream:
        data = b""
        try:
            value = local.call(*json.loads(line))
            data, answer = (value, ["data", len(value)]) if isinstance(value, bytes) else (b"", ["value", value])
        except OSError as error:
            answer = ["failed", error.errno or errno.EIO]
        stream.write(json.dumps(answer).encode() + b"\n" + data)
        stream.flush()


def main(address, directory):
    host, _, port = address.rpartition(":")
    os.stat(directory)
    with socket.create_server((host, int(port))) as listener:
        print("listening at {}:{}".format(*listener.getsockname()), flush=True)
        while True:
            connection, peer = listener.accept()
            local = Local(directory)
            try:
                with connection:
                    serve(connection, local)
            except (OSError, ValueError, TypeError) as error:
                print(f"executor.py: {peer}: {error}", file=sys.stderr)
            local.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
