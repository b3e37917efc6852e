"""Servers that imitate habits of other servers: options of nfsrdma-responder, and commands that it gets between calls."""

from typing import NamedTuple


class Variant(NamedTuple):
    name: str
    arguments: tuple = ()
    commands: tuple = ()


HANGUPS = tuple(f"hangup {procedure}" for procedure in "WRITE COMMIT RENAME REMOVE CREATE SETATTR LINK".split())
ALL = [
    Variant("plain"),
    Variant("not-for-write", ("--pre-op", "not-for-write")),
    Variant("never", ("--pre-op", "never")),
    Variant("not-atomic", ("--pre-op", "not-atomic")),
    Variant("clock", ("--clock-offset", "-1h"), ("clock -5s", "clock +5s", "clock -1h", "clock +1h")),
    Variant("one-second", ("--one-second-times",)),
    Variant("equal-fileids", ("--equal-fileids",)),
    Variant("jukebox", ("--fail", "ANY=JUKEBOX/150")),
    Variant("delay", ("--delay", "ANY=1", "--delay", "WRITE=4")),
    Variant("unstable", ("--fake-unstable",), ("restart", "disconnect")),
    Variant("lost-replies", (), HANGUPS),
    Variant(
        "all",
        ("--fake-unstable", "--pre-op", "not-for-write", "--equal-fileids"),
        ("restart", "disconnect", "hangup WRITE", "hangup COMMIT", "clock -5s", "clock +1h"),
    ),
]
GIVEN = Variant("given")
"""A server that was not started here, with unknown habits."""
