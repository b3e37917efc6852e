"""System calls as values: a name and its arguments, and what of them the driver and the workers have to know."""

import os
import types
from typing import NamedTuple

SLOTS = 8
"""The number of descriptors of each worker."""

READING = {"read", "pread", "readv", "getdents"}
WRITING = {"write", "pwrite", "writev", "pwritev2", "ftruncate", "fallocate"}
COPYING = {"copy_file_range", "sendfile"}
LISTING = {"list", "getdents"}
NAMING = {"link", "link_slot", "rename", "mkdir", "rmdir", "mknod", "symlink", "unlink"}
"""Those that remove or make a name."""
LOOKING = {"access", "statx", "contents", "readlink", "statfs", "fstat", "pread", "get_lock", "exec", "seek_sparse"} | LISTING
"""Those that change nothing, neither objects nor the worker."""
OPEN_FLAGS = [name for name in sorted(vars(os)) if name.startswith("O_") and name not in ("O_ACCMODE", "O_NDELAY", "O_RSYNC")]


class Place(NamedTuple):
    """A path, and where it begins: the root of the tree (`/`, as an absolute path), the current directory (`cwd`), or a
    descriptor (its number), as openat(2) and its kin have it. The path's characters are the bytes of the name."""

    at: object
    path: str

    def dotted(self):
        return self.path.rpartition("/")[2] in (".", "..")

    def __repr__(self):
        path = self.path if len(self.path) <= 80 else f"{self.path[:20]}...({len(self.path)} bytes)"
        return f"{self.at}:{path!a}"


def shown(call, name, value):
    if call == "open" and name == "flags":
        return "|".join(flag for flag in OPEN_FLAGS if getattr(os, flag) and value & getattr(os, flag) == getattr(os, flag))
    return f"{value:#o}" if name == "mode" else repr(value)


class Call(types.SimpleNamespace):
    """A call on a slot that is not open is made with descriptor -1."""

    def __init__(self, name="", **arguments):
        super().__init__(name=name, **arguments)

    def __repr__(self):
        arguments = (f"{name}={shown(self.name, name, value)}" for name, value in vars(self).items() if name != "name")
        return f"{self.name}({', '.join(arguments)})"

    def places(self):
        return [value for value in vars(self).values() if isinstance(value, Place)]

    def slots(self):
        """The descriptors to look at after the call."""
        if self.name in COPYING | {"dup"}:
            return [self.source, self.target]
        return [self.slot] if hasattr(self, "slot") and self.name not in ("close", "fstat") else []

    def moves_data(self):
        """The descriptors by which the call reads and writes file data."""
        if self.name in COPYING:
            return self.source, self.target
        if self.name == "mmap":
            return self.slot, self.slot if self.shared and self.fill is not None else None
        return (self.slot if self.name in READING else None), (self.slot if self.name in WRITING else None)


class Step(NamedTuple):
    """A call by one user, and another user who then looks at the paths that do not depend on the caller."""

    user: int
    call: Call
    observer: int = 0
    contents: bool = False
    """Whether the observer also reads the contents."""

    def observed(self):
        return [place for place in self.call.places() if place.at == "/"]

    def written(self):
        return [self.user, vars(self.call), self.observer, self.contents]

    @classmethod
    def read(cls, written):
        user, call, *rest = written
        is_place = lambda value: isinstance(value, list) and len(value) == 2 and isinstance(value[1], str)
        return cls(user, Call(**{name: Place(*value) if is_place(value) else value for name, value in call.items()}), *rest)


class Reply(types.SimpleNamespace):
    """What a worker answers: the call's outcome, and the states of the touched objects."""

    def __init__(self, errno=0, value=-1, data="", states=(), lost=False, refused=None, removed=False):
        """`lost`: the call moves data by a descriptor whose user may not open the file like that any more; `refused`: the
        descriptor by which it wrote data that the server refused; `removed`: a path begins in a directory that was removed."""
        super().__init__(errno=errno, value=value, data=data, states=states, lost=lost, refused=refused, removed=removed)
