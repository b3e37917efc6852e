"""Random calls in a small name space, so that users meet; and what is known of the calls so far."""

import functools
import operator
import os
import random
import stat
from fcntl import F_RDLCK, F_UNLCK, F_WRLCK

import kernel
from calls import SLOTS, Call, Place, Step
from kernel import AT_SYMLINK_NOFOLLOW, NO_ID

USERS = [
    (0, 0, [0]),
    (10001, 20001, [20001, 20003]),
    (10002, 20002, [20002, 20003]),
    (10003, 20003, [20003, 20004]),
]
"""uid, gid and supplementary groups. The groups overlap."""
GROUPS = [20001, 20002, 20003, 20004]
DIRECTORIES = ["d0", "d1", "d2", "d3"]
NAMES = ["f0", "f1", "f2", "f3", "f4", "d0", "d1", "d2", "d3", "l0", "l1", "x"]
MODES = [int(mode, 8) for mode in (
    "000 100 111 200 400 440 444 600 620 640 644 660 664 666 700 711 744 750 755 770 775 777 604 077").split()]  # fmt: skip
OPEN_MODES = [0o777, 0o755, 0o775, 0o1777, 0o2777, 0o700, 0o711, 0o733]
SPECIAL = [0o1000, 0o2000, 0o4000, 0o6000, 0o7000, 0o2000, 0o1000]
XATTRS = ["user.a", "system.posix_acl_access", "system.posix_acl_default"]
LENGTHS = [0, 1, 10, 511, 4096, 5000, 12288, 70_000]
OFFSETS = [0, 0, 1, 100, 4095, 4096, 8192, 65_536, 150_000, 1 << 20]
SIZES = [0, 0, 1, 100, 4096, 5000, 9000, 70_000, 1 << 20, -1, (1 << 63) - 1, 1 << 33]
# From 1901 to 2200, far from now.
SECONDS = [
    -2_177_452_800, -1, 0, 1, 86_400, 1_000_000_000, (1 << 31) - 1, 1 << 31, (1 << 32) - 2, (1 << 32) - 1, 1 << 32,
    7_258_118_400,
]  # fmt: skip
OPENED = {
    os.O_CREAT: 35, os.O_EXCL: 8, os.O_TRUNC: 15, os.O_APPEND: 10, os.O_DIRECTORY: 4, os.O_NOFOLLOW: 6, os.O_SYNC: 4,
    os.O_DSYNC: 4, os.O_NOATIME: 4, os.O_DIRECT: 3,
}  # fmt: skip
"""How many of a hundred open(2) have each flag."""
RWF_DSYNC, RWF_SYNC, RWF_APPEND = 2, 4, 16

# How often each call is chosen.
CALLS = {
    "open": 99, "close": 30, "dup": 8, "read": 15, "pread": 19, "readv": 8, "write": 23, "pwrite": 23, "writev": 8,
    "pwritev2": 11, "lseek": 15, "seek_sparse": 8, "truncate": 15, "ftruncate": 19, "fallocate": 8, "copy_file_range": 11,
    "sendfile": 8, "mmap": 19, "sync": 15, "getdents": 19, "mkdir": 41, "rmdir": 27, "mknod": 20, "symlink": 24,
    "readlink": 14, "link": 34, "link_slot": 10, "unlink": 44, "rename": 65, "list": 20, "chdir": 14, "fchdir": 3,
    "program": 10, "exec": 14, "chmod": 39, "fchmod": 14, "chown": 25, "fchown": 8, "utimens": 20, "futimens": 8,
    "access": 31, "statx": 28, "fstat": 14, "contents": 17, "lock": 14, "get_lock": 3, "acl": 11, "statfs": 4,
    "setxattr": 3, "getxattr": 6, "listxattr": 2, "removexattr": 3, "umask": 14, "groups_are": 20,
}  # fmt: skip


class Known:
    """Which descriptors are open, and which paths recently led to an object, by the answers of the local file system."""

    MOST = 24

    def __init__(self):
        self.open = [[None] * SLOTS for _ in USERS]
        self.paths, self.links, self.programs = [], [], []

    def may_hide(self):
        """Whether a descriptor is open, so that a removal may leave a hidden name."""
        return any("other" in slots for slots in self.open)

    def _remember(self, paths, place):
        if place.at == "/" and place.path and place.path not in paths:
            paths.append(place.path)
            del paths[: -self.MOST]

    def note(self, step, made):
        """Records a call with its result."""
        call, slots = step.call, self.open[step.user]
        if call.name == "close":
            slots[call.slot] = None
        if made.errno:
            return
        if call.name == "open":
            slots[call.slot] = "directory" if made.states[-1].get("type") == "directory" else "other"
        if call.name == "dup":
            slots[call.target] = slots[call.source]
        if call.name in ("unlink", "rmdir", "rename"):
            gone = call.source if call.name == "rename" else call.place
            self.paths = [path for path in self.paths if path != gone.path]
        if call.name in ("open", "mkdir", "mknod", "symlink", "program"):
            self._remember(self.paths, call.place)
        if call.name in ("link", "link_slot", "rename"):
            self._remember(self.paths, call.target)
        for name, paths in (("symlink", self.links), ("program", self.programs)):
            if call.name == name:
                self._remember(paths, call.place)


class Generator:
    """Each method named as a call has its arguments."""

    def __init__(self, seed, users, without=(), acls=True, server_checks=False):
        self.random, self.users, self.acls, self.server_checks = random.Random(seed), users, acls, server_checks
        weights = {name: weight for name, weight in CALLS.items() if name not in without and (acls or name != "acl")}
        self.names, self.weights = list(weights), list(weights.values())

    def step(self, known):
        user = self.random.randrange(self.users)
        self.known, self.held = known, known.open[user]
        name = self.random.choices(self.names, self.weights)[0]
        call = getattr(self, name)()
        call = call if isinstance(call, Call) else Call(name, **call)
        observer = (user + 1 + self.random.randrange(self.users - 1)) % self.users
        return Step(user, call, observer, self.chance(1, 6))

    # Parts of calls.

    def chance(self, part, of):
        return self.random.randrange(of) < part

    def pick(self, *choices):
        return self.random.choice(choices)

    def name(self):
        odd = ["n" * 255, "n" * 256, "\u00e4\n\u00ff\u0001 \\", ".", ""]
        number = self.random.randrange(150)
        return odd[number] if number < len(odd) else self.pick(*NAMES)

    def name_in(self):
        """A name in an open directory. With permissions=server nobody checks the right to search it for a dot, and there is no
        path without dots to compare with."""
        name = self.name()
        return NAMES[0] if self.server_checks and name == "." else name

    def path(self):
        """A path, which often leads to an object as far as is known."""
        if self.known.paths and self.chance(2, 5):
            return self.pick(*self.known.paths)
        name, a, b, number = self.name(), self.pick(*DIRECTORIES), self.pick(*DIRECTORIES), self.random.randrange(100)
        for below, path in (
            (15, name),
            (70, f"{a}/{name}"),
            (90, f"{a}/{b}/{name}"),
            (92, f"{a}/../{b}/{name}"),
            (95, f"{a}/l{self.random.randrange(2)}/{name}"),
            (96, f"./{a}//{name}"),
            (97, f"{a}/{name}/"),
            (98, f"{a}/{name}/."),
        ):
            if number < below:
                return path
        if number == 98 and self.chance(1, 4):
            return "./" * self.pick(1000, 2020, 2045, 2100) + f"{a}/{name}"
        return f"{a}/{b}/{self.pick(*DIRECTORIES)}/{name}"

    def place(self):
        if self.chance(1, 10):
            return Place(self.slot(), self.name_in())
        return self.plain_place()

    def plain_place(self):
        """A place for calls that have no *at form."""
        return Place("cwd", self.name_in()) if self.chance(1, 10) else Place("/", self.path())

    def slot(self, *kinds):
        """A slot, which is mostly an open one, of one of these kinds."""
        held = [slot for slot, kind in enumerate(self.held) if (kind in kinds if kinds else kind)]
        return self.any_slot() if not held or self.chance(1, 40) else self.pick(*held)

    def any_slot(self):
        return self.random.randrange(SLOTS)

    def file(self):
        return self.slot("other") if self.chance(4, 5) else self.slot()

    def mode(self):
        return self.pick(*MODES) | (self.pick(*SPECIAL) if self.chance(1, 6) else 0)

    def directory_mode(self):
        """Modes that mostly leave a directory accessible."""
        return self.pick(*OPEN_MODES) if self.chance(3, 4) else self.mode()

    def fill(self):
        return ord("a") + self.random.randrange(26)

    def length(self):
        return self.pick(*LENGTHS)

    def offset(self):
        return self.pick(*OFFSETS)

    def owner(self):
        owner = lambda ids: NO_ID if self.chance(1, 4) else self.pick(0, *ids)
        return {"uid": owner(user[0] for user in USERS[1:]), "gid": owner(GROUPS)}

    def time(self):
        number = self.random.randrange(10)
        if number < 2:
            return 0, (kernel.UTIME_NOW, kernel.UTIME_OMIT)[number]
        if number == 2 and self.chance(1, 5):
            return 5, 1_000_000_000
        return self.pick(*SECONDS), self.pick(0, 1, 999_999_999, 123_456_789, 500_000_000)

    def times(self):
        return [(0, kernel.UTIME_NOW)] * 2 if self.chance(1, 8) else [self.time(), self.time()]

    def entries(self):
        """An ACL with some of the users and groups: tag (linux/posix_acl.h), permissions and id. Sometimes it is invalid."""
        permissions = lambda: self.pick(0, 1, 4, 5, 6, 7, 7)
        some = lambda tag, ids, of: [(tag, permissions(), one) for one in ids if self.chance(1, of)]
        users = some(2, [user[0] for user in USERS[: self.users]], 3)
        groups = some(8, [user[1] for user in USERS[1 : self.users]], 4)
        # "a mask without users or groups"
        mask = [(0x10, permissions(), NO_ID)] if users or groups else []
        entries = [(1, self.pick(6, 7, 7, 4, 0), NO_ID), *users, (4, permissions(), NO_ID), *groups, *mask]
        entries.append((0x20, permissions(), NO_ID))
        if self.chance(1, 20):
            which, kind = self.random.randrange(len(entries)), self.random.randrange(3)
            if kind == 0:
                del entries[0]
            elif kind == 1:
                entries.append(entries[which])
            else:
                tag, _, owner = entries[which]
                entries[which] = tag, 0o70, owner
        return entries

    # Files.

    def open_flags(self):
        access = self.pick(os.O_RDONLY, os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR)
        if self.chance(1, 12):
            kind = self.pick(os.O_PATH, os.O_DIRECTORY, os.O_TMPFILE, os.O_PATH | os.O_NOFOLLOW)
            return kind | (access if self.chance(1, 2) else 0)
        return functools.reduce(operator.or_, (flag for flag, part in OPENED.items() if self.chance(part, 100)), access)

    def open(self):
        return {"slot": self.any_slot(), "place": self.place(), "flags": self.open_flags(), "mode": self.mode()}

    def close(self):
        return {"slot": self.file()}

    def dup(self):
        return {"source": self.file(), "target": self.any_slot()}

    def read(self):
        return {"slot": self.file(), "length": self.length()}

    def pread(self):
        return {**self.read(), "at": self.offset()}

    def readv(self):
        return {"slot": self.file(), "lengths": [self.length(), self.length()]}

    def write(self):
        return {**self.read(), "fill": self.fill()}

    def pwrite(self):
        return {**self.pread(), "fill": self.fill()}

    def writev(self):
        return {**self.readv(), "fill": self.fill()}

    def pwritev2(self):
        flags = self.pick(0, RWF_DSYNC, RWF_SYNC, RWF_APPEND, 0x8000)
        return {**self.write(), "at": self.offset() - 1, "flags": flags}

    def lseek(self):
        at, whence = self.pick(0, 0, 1, 100, 4096, 70_000, -1, -100), self.pick(os.SEEK_SET, os.SEEK_CUR, os.SEEK_SET, 77)
        return {"slot": self.file(), "at": at, "whence": whence}

    def seek_sparse(self):
        return {"slot": self.file(), "at": self.offset(), "whence": self.pick(os.SEEK_DATA, os.SEEK_HOLE)}

    def truncate(self):
        return {"place": self.plain_place(), "length": self.pick(*SIZES)}

    def ftruncate(self):
        return {"slot": self.file(), "length": self.pick(*SIZES)}

    def fallocate(self):
        return {"slot": self.file(), "how": self.pick(0, 0, 1, 3, 8, 16, 2), "at": self.offset(), "length": self.length()}

    def copy_file_range(self):
        at = {"source_at": self.offset(), "target_at": self.offset(), "length": self.length()}
        return {"source": self.file(), "target": self.slot("other"), **at}

    def sendfile(self):
        return {"source": self.file(), "target": self.slot("other"), "at": self.offset(), "length": self.length()}

    def mmap(self):
        fill = self.fill() if self.chance(1, 2) else None
        part = {"page": self.pick(0, 0, 1, 16), "length": self.pick(1, 100, 4096, 8192, 5000)}
        return {"slot": self.file(), **part, "shared": self.chance(1, 2), "fill": fill, "msync": self.chance(1, 3)}

    def sync(self):
        return {"slot": self.file(), "how": self.pick("fsync", "fdatasync", "sync_file_range")}

    # Names.

    def getdents(self):
        return {"slot": self.slot("directory"), "size": self.pick(512, 4096, 32_768)}

    def mkdir(self):
        return {"place": self.place(), "mode": self.directory_mode()}

    def at_a_place(self):
        return {"place": self.place()}

    rmdir = unlink = contents = at_a_place

    def at_a_plain_place(self):
        return {"place": self.plain_place()}

    list = statfs = listxattr = at_a_plain_place

    def mknod(self):
        kind = self.pick(stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFREG, stat.S_IFDIR, 0)
        # No driver has the second number.
        devices = {stat.S_IFCHR: self.pick((1, 3), (1, 5), (1, 7), (240, 77)), stat.S_IFBLK: (240, 78)}
        return {"place": self.place(), "mode": kind | self.mode(), "device": devices.get(kind, (0, 0))}

    def symlink(self):
        # With permissions=server, dots in the middle are tested by paths.
        path = self.name() if self.server_checks else self.path()[:4095]
        long = "t" * self.pick(255, 1023, 1024, 4095)
        to = self.pick("l0", "l1", f"../{self.pick(*DIRECTORIES)}", path, "d0", "f0", self.name_in(), long)
        link = Place("/", f"{self.pick(*DIRECTORIES)}/l{self.random.randrange(2)}")
        return {"to": to, "place": link if self.chance(1, 2) else self.place()}

    def readlink(self):
        known = self.known.links
        return {"place": self.place() if not known or self.chance(1, 3) else Place("/", self.pick(*known))}

    def link(self):
        return {"source": self.place(), "target": self.place(), "flags": self.pick(0, 0, 0, kernel.AT_SYMLINK_FOLLOW)}

    def link_slot(self):
        return {"slot": self.slot(), "target": self.place(), "by_proc": self.chance(2, 3)}

    def rename(self):
        return {"source": self.place(), "target": self.place(), "flags": self.pick(1, 2, 3, 4, 8) if self.chance(1, 10) else 0}

    def chdir(self):
        """A directory, which is never above the root of the tree."""
        a, b = self.pick(*DIRECTORIES), self.pick(*DIRECTORIES)
        return {"place": self.pick(Place("/", a), Place("/", f"{a}/{b}"), Place("cwd", a), Place("/", ""))}

    def fchdir(self):
        return {"slot": self.slot("directory")}

    def program(self):
        return {"place": self.plain_place(), "mode": self.mode(), "script": self.chance(1, 3)}

    def exec(self):
        known = self.known.programs
        return {"place": self.plain_place() if not known or self.chance(1, 4) else Place("/", self.pick(*known))}

    # Attributes.

    def chmod(self):
        return {"place": self.place(), "mode": self.directory_mode() if self.chance(1, 2) else self.mode()}

    def fchmod(self):
        return {"slot": self.slot(), "mode": self.mode()}

    def nofollow(self):
        return self.pick(0, 0, AT_SYMLINK_NOFOLLOW)

    def chown(self):
        return {"place": self.place(), **self.owner(), "flags": self.nofollow()}

    def fchown(self):
        return {"slot": self.slot(), **self.owner()}

    def utimens(self):
        return {"place": self.place(), "times": self.times(), "flags": self.nofollow()}

    def futimens(self):
        return {"slot": self.slot(), "times": self.times()}

    def access(self):
        flags = self.pick(0, kernel.AT_EACCESS, AT_SYMLINK_NOFOLLOW)
        return {"place": self.place(), "wanted": self.random.randrange(8), "flags": flags}

    def statx(self):
        how = self.pick(0, kernel.AT_STATX_FORCE_SYNC, kernel.AT_STATX_DONT_SYNC, kernel.AT_EMPTY_PATH)
        masks = kernel.BASIC, kernel.MODE, kernel.SIZE, kernel.NLINK | kernel.MTIME, kernel.UID | kernel.GID
        return {"place": self.place(), "flags": self.nofollow() | how, "mask": self.pick(*masks)}

    def fstat(self):
        return {"slot": self.slot()}

    def range(self, *kinds):
        return {"slot": self.slot(), "kind": self.pick(*kinds), "start": self.offset(), "length": self.length()}

    def lock(self):
        return {**self.range("flock", "posix", "ofd"), "operation": self.pick(F_RDLCK, F_WRLCK, F_UNLCK)}

    def get_lock(self):
        return self.range("posix", "ofd")

    def acl(self):
        default, entries, number = self.chance(1, 3), self.entries(), self.random.randrange(10)
        if number < 7:
            return Call("setacl", place=self.plain_place(), default=default, entries=entries)
        if number < 9:
            return Call("fsetacl", slot=self.slot(), default=default, entries=entries)
        return Call("fgetacl", slot=self.slot(), default=default)

    def setxattr(self):
        return {"place": self.plain_place(), "attribute": self.pick("user.a", "user.b"), "length": self.random.randrange(100)}

    def getxattr(self):
        return {"place": self.plain_place(), "attribute": self.pick(*XATTRS[: 3 if self.acls else 1])}

    removexattr = getxattr

    def umask(self):
        return {"mode": self.pick(0o022, 0o077, 0o002, 0, 0o777, 0o027)}

    def groups_are(self):
        return {"groups": [group for group in GROUPS if self.chance(1, 2)]}


def beginning():
    """The calls that make the initial tree: directories of all kinds, and some files."""
    mkdir = lambda user, path, mode: (user, Call("mkdir", place=Place("/", path), mode=mode))
    chmod = lambda user, path, mode: (user, Call("chmod", place=Place("/", path), mode=mode))
    steps = [
        *(make(0, "d0", mode) for make, mode in ((mkdir, 0o777), (chmod, 0o1777))),
        *(make(0, "d1", 0o777) for make in (mkdir, chmod)),
        mkdir(1, "d1/d0", 0o755),
        mkdir(2, "d1/d1", 0o700),
        mkdir(0, "d2", 0o777),
        (0, Call("chown", place=Place("/", "d2"), uid=10001, gid=20003, flags=0)),
        chmod(1, "d2", 0o2775),
        mkdir(3, "d1/d2", 0o777),
        mkdir(0, "d3", 0o777),
        chmod(0, "d3", 0o2777),
    ]
    for user, path, mode in ((1, "d1/f0", 0o644), (2, "d0/f1", 0o660), (3, "d2/f2", 0o640), (1, "d3/f3", 0o666)):
        opened = Call("open", slot=0, place=Place("/", path), flags=os.O_RDWR | os.O_CREAT, mode=mode)
        calls = opened, Call("write", slot=0, length=5000, fill=ord("a") + user), Call("close", slot=0)
        steps += [(user, call) for call in calls]
    steps.append((2, Call("symlink", to="../d1/f0", place=Place("/", "d3/l0"))))
    return [Step(*step) for step in steps]
