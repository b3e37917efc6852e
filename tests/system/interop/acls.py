#!/usr/bin/env python3
"""Sets, shows and tries access control lists, by extended attributes alone; runs on the host and in the guest.

    acls.py set DIR PREFIX    makes a file, a directory and a file with 204 entries, all with ACLs, below DIR
    acls.py forms DIR PREFIX  makes a file or directory for each form of ACL below DIR, tries to give it that, and
                              prints what came of it
    acls.py inherit DIR NAME  makes files and a directory NAME.* in DIR, with the umask 027
    acls.py show PATH...      prints mode and both ACLs of each, by its last name
    acls.py read UID PATH     prints what UID reads there, or the name of the error
"""

import errno
import os
import struct
import sys
from pathlib import Path

ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER = 1, 2, 4, 8, 16, 32
NOBODY = 0xFFFFFFFF


def value(*entries):
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", tag, perm, ident) for tag, perm, ident in entries)


def acl(named, mask):
    return value((USER_OBJ, 6, NOBODY), *((USER, perm, uid) for uid, perm in named), (GROUP_OBJ, 4, NOBODY),
                 (GROUP, 5, 4242), (MASK, mask, NOBODY), (OTHER, 0, NOBODY))


def minimal(group, *mask):
    """Owner, group and others, and a mask if one is given."""
    return value((USER_OBJ, 6, NOBODY), (GROUP_OBJ, group, NOBODY), *((MASK, perm, NOBODY) for perm in mask),
                 (OTHER, 1, NOBODY))


NAMED = acl([(61002, 7)], 5)
# The operation on a new file, or from "dir" on directory: an ACL and its value (None removes it), or a new mode.
FORMS = {
    "three": [(ACCESS, minimal(4))],
    "mask-same": [(ACCESS, minimal(5, 5))],
    "mask-more": [(ACCESS, minimal(4, 7))],
    "mask-less": [(ACCESS, minimal(6, 2))],
    "mask-none": [(ACCESS, minimal(6, 0))],
    "named-without-mask": [(ACCESS, value((USER_OBJ, 6, NOBODY), (USER, 7, 61002), (GROUP_OBJ, 4, NOBODY), (OTHER, 0, NOBODY)))],
    "unsorted": [(ACCESS, value((OTHER, 1, NOBODY), (MASK, 7, NOBODY), (USER, 7, 61003), (USER, 6, 61002),
                                (GROUP_OBJ, 4, NOBODY), (USER_OBJ, 6, NOBODY)))],
    "without-others": [(ACCESS, value((USER_OBJ, 6, NOBODY), (GROUP_OBJ, 4, NOBODY)))],
    "empty": [(ACCESS, NAMED), (ACCESS, value())],
    "chmod": [(ACCESS, NAMED), 0o4671],
    "chmod-less": [(ACCESS, NAMED), 0o600],
    "named-then-three": [(ACCESS, NAMED), (ACCESS, minimal(6))],
    "removed": [(ACCESS, NAMED), (ACCESS, None)],
    "removed-twice": [(ACCESS, None)],
    "default-on-file": [(DEFAULT, NAMED)],
    "dir-three": [(DEFAULT, minimal(4))],
    "dir-mask-same": [(DEFAULT, minimal(5, 5))],
    "dir-mask-more": [(DEFAULT, minimal(4, 7))],
    "dir-both": [(ACCESS, NAMED), (DEFAULT, NAMED)],
    "dir-both-less-access": [(ACCESS, NAMED), (DEFAULT, NAMED), (ACCESS, None)],
    "dir-both-less-default": [(DEFAULT, NAMED), (ACCESS, NAMED), (DEFAULT, None)],
    "dir-default-chmod": [(DEFAULT, NAMED), 0o710],
    "dir-default-empty": [(DEFAULT, NAMED), (DEFAULT, value())],
    "dir-default-removed-twice": [(DEFAULT, None)],
}


def change(path, step):
    if isinstance(step, int):
        os.chmod(path, step)
    elif step[1] is None:
        os.removexattr(path, step[0])
    else:
        os.setxattr(path, *step)


def form(path, steps):
    """The outcome: ok, or the name of the error and of the step."""
    path.mkdir(0o770) if path.name.split(".", 1)[1].startswith("dir") else path.touch(0o640)
    path.chmod(0o750)
    for number, step in enumerate(steps, 1):
        try:
            change(path, step)
        except OSError as error:
            return f"{errno.errorcode[error.errno]} at {number}"
    return "ok"


def entries(path, name):
    try:
        raw = os.getxattr(path, name)
    except OSError as error:
        return errno.errorcode[error.errno]
    found = [struct.unpack_from("<HHI", raw, at) for at in range(4, len(raw), 8)]
    return " ".join(f"{tag:x}:{'' if ident == NOBODY else ident}:{perm}" for tag, perm, ident in found)


def main(verb, *words):
    if verb == "set":
        folder, prefix = Path(words[0]), words[1]
        file, sub, many = folder / f"{prefix}.file", folder / f"{prefix}.dir", folder / f"{prefix}.many"
        file.write_text("by acl")
        sub.mkdir(0o700)
        many.touch()
        os.setxattr(file, ACCESS, acl([(61002, 6), (61003, 1)], 4))
        os.setxattr(sub, ACCESS, acl([(61002, 5)], 5))
        os.setxattr(sub, DEFAULT, acl([(61002, 7), (61003, 4)], 7))
        os.setxattr(many, ACCESS, acl([(70000 + n, n % 8) for n in range(199)], 6))
    elif verb == "forms":
        for name, steps in FORMS.items():
            print(name, form(Path(words[0]) / f"{words[1]}.{name}", steps))
    elif verb == "inherit":
        folder, name = Path(words[0]), words[1]
        os.umask(0o027)
        (folder / f"{name}.file").write_text("new")
        (folder / f"{name}.dir").mkdir()
        os.close(os.open(folder / f"{name}.exclusive", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o604))
    elif verb == "show":
        for path in words:
            mode = oct(os.stat(path).st_mode)
            print(f"{Path(path).name.split('.', 1)[1]} {mode} [{entries(path, ACCESS)}] [{entries(path, DEFAULT)}]")
    elif verb == "read":
        os.setgroups([])
        os.setresgid(*[int(words[0])] * 3)
        os.setresuid(*[int(words[0])] * 3)
        try:
            print(Path(words[1]).read_text())
        except OSError as error:
            print(errno.errorcode[error.errno])
    else:
        sys.exit(__doc__)


main(*sys.argv[1:])
