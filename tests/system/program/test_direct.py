"""O_DIRECT beside the kernel's pages of the same file."""

import ctypes
import mmap
import os
import subprocess
import sys

from program.support import *  # noqa: F403

PAGE = 4096

READER = r"""
import os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
print(flush=True)
while os.getppid() == int(sys.argv[2]):
    os.pread(file, 4096, 0)
"""


class Iocb(ctypes.Structure):
    """struct iocb (io_submit(2))."""

    _fields_ = [
        ("data", ctypes.c_uint64), ("key", ctypes.c_uint32), ("rw_flags", ctypes.c_int32), ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16), ("fd", ctypes.c_uint32), ("buf", ctypes.c_uint64), ("nbytes", ctypes.c_uint64),
        ("offset", ctypes.c_int64), ("reserved", ctypes.c_uint64), ("flags", ctypes.c_uint32), ("resfd", ctypes.c_uint32),
    ]  # fmt: skip


def call(number, *words):
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(number, *words)
    assert result >= 0, os.strerror(ctypes.get_errno())
    return result


def test_a_buffered_read_after_an_asynchronous_direct_write_shows_it():
    """Two processes read the page all the time; a third writes it with O_DIRECT by io_submit(2), and reads it."""
    setup, destroy, get_events, submit = 206, 207, 208, 209  # x86_64
    if os.uname().machine != "x86_64":
        setup, destroy, submit, get_events = 0, 1, 2, 4
    with Server() as server:
        path = server.export / "f"
        path.write_bytes(b"\0" * PAGE)
        path.chmod(0o666)
        server.mount_well()
        seen = server.mnt / "f"
        readers = []
        context, memory = ctypes.c_uint64(0), mmap.mmap(-1, PAGE)
        call(setup, 1, ctypes.byref(context))
        direct, buffered = os.open(seen, os.O_RDWR | os.O_DIRECT), os.open(seen, os.O_RDONLY)
        try:
            for _ in range(2):
                words = [sys.executable, "-c", READER, seen, str(os.getpid())]
                readers.append(subprocess.Popen(words, stdout=subprocess.PIPE))
                readers[-1].stdout.readline()
            address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            for turn in range(1, 400):
                memory[:] = bytes([turn % 256]) * PAGE
                write = Iocb(opcode=1, fd=direct, buf=address, nbytes=PAGE, offset=0)
                pointer = ctypes.pointer(write)
                assert call(submit, context, ctypes.c_long(1), ctypes.byref(pointer)) == 1
                event = (ctypes.c_int64 * 4)()
                assert call(get_events, context, ctypes.c_long(1), ctypes.c_long(1), event, None) == 1
                assert event[2] == PAGE
                got = os.pread(buffered, PAGE, 0)[0]
                assert got == turn % 256, f"write {turn}: the read shows {got}"
        finally:
            for reader in readers:
                reader.kill()
                reader.wait()
                reader.stdout.close()
            os.close(direct)
            os.close(buffered)
            call(destroy, context)
