"""The differences that are accepted. All others are defects.

Each row is stated in docs/SEMANTICS.md, "Differences from a local file system", with its reason: NFSv3 (RFC 1813) forces
the difference, or Linux's own NFSv3 client has it as well. Each is as narrow as possible.
"""

import errno
import os
from pathlib import Path
from typing import Callable, NamedTuple

import kernel
from calls import LISTING

SEMANTICS = Path(__file__).resolve().parents[2] / "docs/SEMANTICS.md"


class Refusal(NamedTuple):
    """A call that the mount refuses, but that a local file system may execute. It is made on the mount first. If it is
    refused in the way of the row, it is not made on the local file system, so that the two trees stay alike."""

    name: str
    matches: Callable  # (call) -> bool
    errnos: tuple
    met: Callable = lambda reply, hidden: True
    changes_nothing: bool = False
    """Whether the touched objects can be compared after the refusal."""
    server_checks: bool = False
    """Whether this row is for mounts with permissions=server."""


def of_removed(reply, _):
    return all(state.get("nlink") == 0 for state in reply.states)


def of_removed_directory(reply, _):
    first = reply.states[0] if reply.states else {}
    return first.get("state") == "ESTALE" or (first.get("type") == "directory" and first.get("nlink") == 0)


def by_dot(call):
    """Whether the call names a directory that the worker holds by no name."""
    return any(place.at != "/" and set(place.path.split("/")) <= {"", "."} for place in call.places())


REFUSALS = [
    Refusal(
        "no O_TMPFILE",
        lambda call: call.name == "open" and call.flags & os.O_TMPFILE == os.O_TMPFILE,
        (errno.EOPNOTSUPP,),
        changes_nothing=True,
    ),
    Refusal("no flags of renameat2", lambda call: call.name == "rename" and call.flags, (errno.EINVAL,), changes_nothing=True),
    Refusal("no fallocate", lambda call: call.name == "fallocate", (errno.EOPNOTSUPP,), changes_nothing=True),
    Refusal(
        "no extended attributes",
        lambda call: call.name in ("setxattr", "getxattr", "removexattr") and call.attribute.startswith("user."),
        (errno.EOPNOTSUPP,),
        changes_nothing=True,
    ),
    Refusal(
        "a directory of hidden files is not empty",
        lambda call: call.name in ("rmdir", "rename"),
        (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY),
        lambda _, hidden: hidden(),
    ),
    Refusal(
        "a removed object cannot be changed",
        lambda call: call.name in ("fchmod", "fchown", "futimens", "fsetacl", "fgetacl"),
        (errno.ESTALE,),
        of_removed,
    ),
    Refusal("the ACL of a removed object is not known", lambda call: call.name == "fgetacl", (errno.ENODATA,), of_removed),
    Refusal("a removed directory cannot be used", by_dot, (errno.ESTALE,), of_removed_directory),
    Refusal(
        "permission at each READ and WRITE",
        lambda call: call.moves_data() != (None, None),
        (errno.EACCES,),
        lambda reply, _: reply.lost,
        changes_nothing=True,
    ),
    Refusal(
        "permissions=server: a removed directory is asked for",
        lambda call: call.name == "fchdir",
        (errno.ESTALE,),
        of_removed_directory,
        server_checks=True,
    ),
]


def refusable(call, server_checks):
    """Whether the call is made on the mount first."""
    return any(row.matches(call) for row in REFUSALS if server_checks or not row.server_checks)


def refused(call, reply, hidden):
    """The row by which the mount may refuse `call`. `hidden` finds out whether a directory has hidden names only."""
    row = next((row for row in REFUSALS if row.matches(call) and reply.errno in row.errnos), None)
    return row if row and row.met(reply, hidden) else None


def clamped(step, d):
    """The first or last time of NFSv3 for a time that it cannot represent."""
    second = lambda value: value.split(".")[0]
    return (
        d.field in ("atime", "mtime")
        and second(d.mount) in ("0", "4294967295")
        and d.local != "now"
        and not 0 <= int(second(d.local)) <= 0xFFFFFFFF
    )


def sparse(step, d):
    if step.call.name != "seek_sparse":
        return False
    # The file is a single hole.
    no_data = step.call.whence == os.SEEK_DATA and (d.mount, d.local) == ("OK", "ENXIO")
    return d.field == "value" or (d.field == "errno" and no_data)


def hidden_name_removed(step, d):
    # Whole trees are compared after any call.
    sets = not d.call.endswith("tree") and d.succeeded and step.call.name in ("utimens", "futimens")
    return d.field == "mtime" and d.kind == "directory" and d.may_hide and not sets and d.mount == "now"


def no_acl_of_removed(step, d):
    values, gone = sorted((d.mount, d.local)), "OK" if step.call.name == "fchdir" else "ENOENT"
    return d.field in ("errno", "state") and d.removed and values == sorted((gone, "EACCES"))


def types_unknown(step, d):
    if step.call.name not in LISTING or d.field != "data":
        return False
    ours, theirs = d.mount.split(" "), d.local.split(" ")
    name = lambda entry: entry.rpartition(":")[0]
    alike = lambda a, b: a == b or (a == f"{name(a)}:0" and name(a) == name(b))
    return len(ours) == len(theirs) and all(map(alike, ours, theirs))


def not_asked(step, d):
    asked = step.call.name != "statx" or not step.call.flags & kernel.AT_STATX_DONT_SYNC
    return not asked and d.field in ("mode", "nlink") and not d.observed


FOUND_BEFORE = {"ENOENT", "ENOTDIR", "EISDIR", "EBUSY", "EBADF", "ENAMETOOLONG", "EEXIST", "ELOOP", "EPERM"}


def another_reason(step, d):
    """The kernel finds its own reason to fail before the server is asked."""
    # If contents cannot be read, no data follows the errno.
    ours, theirs = d.mount.rstrip("/"), d.local.rstrip("/")
    dots = step.call.name == "rmdir" and step.call.place.dotted() and ours in ("EINVAL", "ENOTEMPTY")
    return d.field in ("errno", "state", "contents") and theirs in ("EACCES", "EPERM") and (ours in FOUND_BEFORE or dots)


TOLERANCES = {
    "times from 1970 to 2106": clamped,
    "holes are data": sparse,
    "the removal of a hidden name changes its directory": hidden_name_removed,
    "times of a FIFO": lambda _, d: d.field in ("atime", "mtime") and d.kind == "fifo" and d.local == "now",
    "the ACL of a removed directory": no_acl_of_removed,
    "types in a directory that may not be searched": types_unknown,
    "attributes that were not asked for": not_asked,
    "permissions=server: another reason to fail": another_reason,
}
"""Rows by which a field may differ, given the step and the difference."""


def tolerated(step, difference, server_checks):
    """The row that accepts `difference`."""
    rows = (name for name, row in TOLERANCES.items() if server_checks or row is not another_reason)
    return next((name for name in rows if TOLERANCES[name](step, difference)), None)


LEFT_NAME = "a hidden name is left"
DENIED = ("EACCES", "EPERM", "NFS3ERR_ACCES", "NFS3ERR_PERM", "permission", "Perm", "Access")


def leaves_hidden_name(line):
    """Whether a line of the client's log reports that a hidden name could not be removed."""
    return "unlinked while open" in line and any(word in line for word in DENIED)


def refused_data(line):
    """Whether a line of the client's log reports that the server did not permit a WRITE."""
    return "data could not be written" in line and "server answered Access" in line


LEFT_OUT = {
    "a mapping or a copy after permission was lost",
    "a mask without users or groups",
    "permissions=server: special files",
    "permissions=server: sticky directories",
    "set-id bits and mappings",
    "sendfile within a file",
    "truncate to the size that is",
    "groups at the time of open",
    "time of a mapping that is written",
    "set-gid bit of an exclusive create",
    "time of access",
}
"""What is not done on either tree, because the result would depend on the client's cache."""
INSTEAD = {"chown without an owner", "permissions=server: dots"}
"""What is replaced on the local file system by another call, or by none, whose result must be that of the mount."""


def left_out(name):
    """An error as which such a call counts."""
    assert name in LEFT_OUT, name
    return OSError(errno.ECANCELED, name)


def check_documentation():
    text = SEMANTICS.read_text()
    rows = {row.name for row in REFUSALS} | TOLERANCES.keys() | LEFT_OUT | INSTEAD | {LEFT_NAME}
    missing = [name for name in sorted(rows) if f"({name})" not in text]
    assert not missing, f"docs/SEMANTICS.md lacks {missing}"
