"""Finding out whether a mount option has an effect: temporary mounts, counted calls, what the program and the kernel
show."""

import contextlib
import functools
import signal

from program.support import *  # noqa: F403
from program.support import GIVEN

TRIED, KINDS = set(), set()
"""The options that tests in the imported files try, by name or by kind."""


def effect(*names, kind=None):
    """Marks a test that tries these options, and all of a kind. It fails if it does not mount with them."""
    TRIED.update(names)
    KINDS.update([kind] if kind else [])

    def wrap(function):
        @functools.wraps(function)
        def checked(**fixtures):
            GIVEN.clear()
            function(**fixtures)
            missing = {*names, *(table(kind) if kind else ())} - GIVEN
            assert not missing, f"says that it tries {missing}, and does not"

        return checked

    return wrap


def table(kind="flag|value|either|accept|refuse"):
    """The names of the program's options."""
    entries = [line.split() for line in nfsrdma("list-options").stdout.splitlines()]
    assert len(entries) > 3, "the program does not list its options"
    return [name for own, name in entries if own in kind.split("|")]


@contextlib.contextmanager
def mount(server, options, at=None):
    """Mounts temporarily. Yields what the program says about the mount."""
    at = at or server.mnt
    at.mkdir(exist_ok=True)
    expect(server.mount(options, at=at), 0)
    yield document_of(at)
    expect(nfsrdma("umount", at), 0)


class Counted:
    """Counts the calls made in the meantime, by procedure: `counted["READ"]`."""

    def __init__(self, server):
        self.server = server

    def __enter__(self):
        self.before = self.now()
        return self

    def __exit__(self, *_):
        self.after = self.now()

    def now(self):
        return {entry["name"]: entry["calls"] for entry in document(self.server)["procedures"]}

    def __getitem__(self, names):
        return sum(self.after[name] - self.before[name] for name in names.split("+"))


def flags_of(path):
    return set(mounted(path)[3].split(","))


def fails(number, function, *words):
    try:
        function(*words)
    except OSError as error:
        assert error.errno == number, error
    else:
        raise AssertionError(f"{function.__name__} of {words} succeeded")


@contextlib.contextmanager
def stopped(server):
    """The server does not answer in the meantime."""
    server.pause()
    try:
        yield
    finally:
        server.child.send_signal(signal.SIGCONT)
