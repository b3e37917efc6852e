"""One run: makes system calls, and has the oracle check each of them. Here are the single calls."""

import collections
import errno
import os
import random
import time
from dataclasses import dataclass

from oracle import SERVER, Oracle
from rounds import GROUPS, Rounds, differs

NAMES = ["f0", "f1", "f2", "d/f0", "d/f1"]
"""The names of the run. They are few, so that actors meet."""
OPEN_MAX = 12
"""The most descriptors that are open at a time."""
REST = 25
"""Where rounds of calls overlap, all descriptors are closed after so many steps."""
WHOLE = 16 << 20
OPENS = [how.split() for how in ("", "", "", "w", "w", "trunc w", "creat w", "creat w", "creat excl w", "creat trunc w")]
OPEN = 18
"""How many of a hundred single calls are open(2), or read(2) instead where the most are open."""
SINGLE = {
    "read": 22, "write": 20, "close": 11, "fsync": 4, "ftruncate": 4, "fstat": 4, "utimes": 2, "stat": 3, "list": 2, "append": 2,
    "map": 1, "rename": 2, "truncate": 1, "unlink": 2, "link": 2,
}  # fmt: skip
"""How often each is chosen, apart from open(2)."""
OF_DESCRIPTOR = {"read", "write", "close", "fsync", "ftruncate", "fstat", "utimes", "map"}


@dataclass(eq=False)
class Descriptor:
    number: int
    actor: int
    id: int
    file: int
    writes: bool


def name_of(error):
    return errno.errorcode.get(error.errno, str(error.errno))


class Run(Rounds):
    def __init__(self, plan, stand, watch):
        self.plan, self.stand, self.watch = plan, stand, watch
        self.random = random.Random(plan.seed)
        self.open, self.opened, self.value, self.step = [], 0, 0, 0
        self.said, self.counts = [], collections.Counter()
        words = plan.variant.arguments
        options = plan.options.split(",")
        trusted = 0 if "noac" in options else 1.5 if "actimeo=1" in options else 3600
        self.oracle = Oracle(
            NAMES,
            len(stand.actors),
            # Two changes of a directory within a tick look like one.
            3600 if plan.variant.name == "one-second" else trusted,
            self.tick(),
            # Linux's server does not, either.
            before_writes=not (plan.given or {"not-for-write", "never"} & set(words)),
            clock_is_off=any(command.startswith("clock") for command in plan.variant.commands),
        )
        for number in self.present():
            who = self.who(number)
            self.oracle.page_caches[number] = number != SERVER and who in plan.linux
            self.oracle.hides_by_name[number] = number != SERVER and who in plan.linux + plan.direct
        self.directory = self.make_directories()

    def tick(self):
        if self.plan.variant.name == "one-second":
            return 2.1
        # Changes by others while a WRITE is on its way may be missed (docs/COHERENCE.md).
        if self.plan.overlapping and self.plan.variant.name in ("not-atomic", "not-for-write", "never", "all"):
            return 0.1
        # The times of held data come from a finer clock than those of writes on the server's side.
        if self.plan.overlapping and "--fake-unstable" in self.plan.variant.arguments:
            return 0.02
        return self.plan.tick / 1000

    # The frame of a run.

    def make_directories(self):
        """The directories of the run, made on the server's side or by the first mount."""
        actor, directory = self.present()[0], ""
        # A new directory, whose names nobody has cached in an earlier run.
        for number in range(1000) if self.plan.given else ():
            try:
                directory = f"run-{self.plan.seed}-{number}/"
                self.call(actor, "mkdir", directory[:-1])
                break
            except FileExistsError:
                continue
        self.call(actor, "mkdir", directory + "d")
        return directory

    def remove_directories(self):
        """Removes what the run has made in a directory that others use as well."""
        calls = [("unlink", self.path(name)) for name in NAMES] + [("rmdir", self.path("d")), ("rmdir", self.directory[:-1])]
        for call in calls if self.plan.given else ():
            try:
                self.call(self.present()[0], *call)
            except OSError:
                pass  # A missing name, or a directory with hidden names.

    def all(self):
        while self.step < self.plan.calls:
            self.step += 1
            self.watch.note(f"step {self.step} of seed {self.plan.seed}")
            self.between()
            self.oracle.calls_begin()
            if self.plan.overlapping and self.chance(3, 4):
                self.round()
            else:
                self.one()
            if self.plan.overlapping and self.step % REST == 0:
                self.oracle.calls_begin()
                self.rest()
        self.close_all()
        for actor in self.present():
            for name in NAMES:
                self.read_all(actor, name)

    def close_all(self):
        while self.open:
            self.watch.note("closing")
            self.close(self.open[0])

    def rest(self):
        """Closes all descriptors, and compares what every mount then sees with the file at the server."""
        self.close_all()
        for name in NAMES:
            number = self.oracle.current(name)
            if number is None or not self.stand.actors[SERVER] or not self.oracle.is_at_rest(number):
                continue
            try:
                file, _ = self.call(SERVER, "open", self.path(name), os.O_RDONLY, 0)
                data = self.call(SERVER, "read", file, 0, WHOLE)
                self.call(SERVER, "close", file)
            except OSError as error:
                raise differs(f"server: {name}: {error}", number) from None
            line = self.say("compare", number, f"server: all of {name} = {len(data)} bytes")
            self.compare(line, number, self.oracle.seen(SERVER, number), 0, WHOLE, data)
            self.oracle.found(number, data)
        for actor in self.present():
            for name in NAMES:
                self.read_all(actor, name)

    def say(self, what, number, line):
        """Notes a call of this kind, on this file, for the report."""
        self.counts[what] += 1
        noted = f"{self.step:5} {line}"
        if self.plan.verbose:
            print(noted)
        if number is not None:
            self.oracle.objects[number].history.append(noted)
        self.said.append(noted)
        return line

    def between(self):
        """Lets something happen to the server, or some time pass."""
        commands = self.plan.variant.commands
        if commands and self.chance(1, 12):
            line = self.stand.command(self.random.choice(commands))
            for found in self.oracle.objects:
                found.history.append(f"{self.step:5} {line}")
            self.say("command", None, line)
        if self.chance(1, 8):
            time.sleep(0.012)
        if self.plan.variant.name == "one-second" and self.chance(1, 60):
            time.sleep(2.2)

    def chance(self, part, of):
        return self.random.randrange(of) < part

    def actor(self):
        server = self.chance(1, 7) and self.stand.actors[SERVER]
        return SERVER if server else 1 + self.random.randrange(len(self.stand.actors) - 1)

    def present(self):
        """All actors that make calls."""
        return [number for number, actor in enumerate(self.stand.actors) if actor]

    def call(self, actor, *call):
        return self.stand.actors[actor].executor.call(*call)

    def who(self, actor):
        return self.stand.actors[actor].name

    def path(self, name):
        return self.directory + name

    def direct(self, actor):
        """O_DIRECT for those that have to use it."""
        return os.O_DIRECT if self.who(actor) in self.plan.direct else 0

    def holds(self, actor, number):
        return any(d.actor == actor and d.id == number for d in self.open)

    def certain(self, actor, *names):
        """The files to which names lead for `actor`; None if that is not certain."""
        found = [self.oracle.bindings(actor, name) for name in names]
        return [only[0] for only in found] if all(len(only) == 1 for only in found) else None

    def next_value(self):
        self.value = self.value % 250 + 1
        return self.value

    def length(self):
        most = self.random.choice([8, 8, 100, 5000, 5000, 40_000, 300_000, 8 << 20])
        # Large ones take long, so they are rare.
        return 1 + self.random.randrange(4096 if most > 300_000 and self.chance(3, 4) else most)

    def about_end(self, actor, number):
        return self.oracle.view(actor, number).last()

    def below(self, end):
        return self.random.randrange(end)

    def new_size(self, end):
        return self.random.choice([0, end // 2, min(end + 1000, 8 << 20), self.below(end + 100)])

    def by(self, d, what):
        return f"{self.who(d.actor)}: {what} fd{d.number}"

    def compare(self, line, number, seen, offset, length, data):
        if why := seen.check(offset, length, data):
            raise differs(f"{line}: {why}", number)

    # Single calls.

    def one(self):
        full = len(self.open) >= OPEN_MAX
        if not self.open or (self.chance(OPEN, 100) and not full):
            return self.open_name()
        weights = {**SINGLE, "read": SINGLE["read"] + OPEN} if full else SINGLE
        what = self.random.choices(list(weights), list(weights.values()))[0]
        return getattr(self, what)(*([self.random.choice(self.open)] if what in OF_DESCRIPTOR else []))

    def open_name(self):
        self.try_open(self.actor(), self.random.choice(NAMES), *self.random.choice(OPENS))

    def try_open(self, actor, name, *how):
        create, exclusive, truncate, writes = (flag in how for flag in ("creat", "excl", "trunc", "w"))
        flags = (os.O_RDWR if writes else os.O_RDONLY) | self.direct(actor)
        flags |= create * os.O_CREAT | exclusive * os.O_EXCL | truncate * os.O_TRUNC
        legal, current = self.oracle.bindings(actor, name), self.oracle.current(name)
        head = f"{self.who(actor)}: open {name} {'|'.join(how) or 'rdonly'}"
        try:
            file, (_, _, group) = self.call(actor, "open", self.path(name), flags, 0o644)
        except OSError as error:
            self.say("open", current, f"{head} = {name_of(error)}")
            old = any(one not in (None, current) for one in legal)
            fine = {
                errno.EEXIST: exclusive and any(one is not None for one in legal),
                errno.ENOENT: not create and (None in legal or old),
                errno.ESTALE: old,
            }
            if not fine.get(error.errno):
                raise differs(f"{head} = {name_of(error)}, it may be {legal}", current) from None
            return None
        number = group - GROUPS
        if number < 0:
            number = self.oracle.create()
            self.oracle.bind(actor, name, number)
            try:
                self.call(actor, "chown", file, GROUPS + number)
            except OSError as error:
                raise differs(f"{head}, fchown = {error}", number) from None
            if not create or current is not None:
                raise differs(f"{head} made a file where {current} is", current)
        if number >= len(self.oracle.objects):
            raise differs(f"{head}: a file nobody made, group {group}", None)
        line = self.say("open", number, f"{head} = fd{self.opened + 1} of file {number}")
        made = create and number != current and self.oracle.current(name) == number
        if exclusive and current == number:
            raise differs(f"{line}: exclusive, and it was there", number)
        if not made and number not in legal:
            raise differs(f"{line}, it may be {legal}", number)
        # knfsd finds a file without names by its handle as long as it is open there.
        kept = self.plan.given and self.holds(SERVER, number)
        if self.oracle.is_surely_gone(number) and not kept:
            raise differs(f"{line}, which was removed", number)
        if self.oracle.current(name) == number:
            self.oracle.confirm(actor, name)
        self.oracle.opened(actor, number, writes)
        if truncate:
            self.oracle.created_empty(actor, number) if create else self.oracle.truncate(actor, number, 0)
        return self.add_opened(actor, number, file, writes)

    def add_opened(self, actor, number, file, writes):
        self.opened += 1
        self.open.append(Descriptor(self.opened, actor, number, file, writes))
        return self.open[-1]

    def failed(self, d, what, error):
        """Checks an error of a call by a descriptor, which is permitted if the file is gone."""
        line = self.say(what, d.id, f"{self.by(d, what)} = {name_of(error)}")
        if error.errno != errno.ESTALE or not self.oracle.is_gone(d.id):
            raise differs(line, d.id)
        self.open.remove(d)
        try:
            self.call(d.actor, "close", d.file)
        except OSError:
            pass

    def made(self, d, what, *call):
        """The result of a call by a descriptor, in a list; None if it failed because the file is gone."""
        try:
            return [self.call(d.actor, call[0], d.file, *call[1:])]
        except OSError as error:
            self.failed(d, what, error)
            return None

    def read(self, d):
        end = self.about_end(d.actor, d.id)
        offset = self.random.choice([0, self.below(end + 1), self.below(end + 1)])
        self.read_at(d, offset, self.random.choice([1, 8, 100, 4096, 65536, 1 << 20, 9 << 20]))

    def read_at(self, d, offset, length):
        if found := self.made(d, "read", "read", offset, length):
            line = self.say("read", d.id, f"{self.by(d, 'read')} {offset}+{length} = {len(found[0])}")
            self.oracle.touch(d.actor, d.id)
            self.compare(line, d.id, self.oracle.seen(d.actor, d.id), offset, length, found[0])

    def write(self, d):
        if not d.writes:
            return self.read(d)
        end = min(self.about_end(d.actor, d.id), 7 << 20)
        # The last: small pieces in a few pages, as of several writers.
        near = min(end + 100, 9000)
        offset = self.random.choice([0, end, self.below(end + 5000), self.below(end + 1) // 8 * 8, self.below(near)])
        length, value = self.length(), self.next_value()
        made = self.made(d, "write", "write", offset, length, value)
        # Part of it may have been done before the file was gone.
        self.oracle.write(d.actor, d.id, offset, offset + length, value)
        if made:
            self.say("write", d.id, f"{self.by(d, 'write')} {offset}+{length} {value:#04x}")
        return None

    def close(self, d):
        self.open.remove(d)
        try:
            self.call(d.actor, "close", d.file)
            self.say("close", d.id, self.by(d, "close"))
            # A descriptor that cannot write has no data to write back.
            if d.writes:
                self.oracle.flush(d.actor, d.id)
        except OSError as error:
            line = self.say("close", d.id, f"{self.by(d, 'close')} = {name_of(error)}")
            if not self.oracle.is_gone(d.id):
                raise differs(line, d.id) from None
        if not self.holds(d.actor, d.id):
            self.oracle.hide(d.actor, d.id, False)
            if d.actor == SERVER and self.plan.given:
                self.oracle.closed_at_server(d.id)

    def fsync(self, d):
        if self.made(d, "fsync", "fsync"):
            self.say("fsync", d.id, self.by(d, "fsync"))
            self.oracle.flush(d.actor, d.id)

    def ftruncate(self, d):
        if not d.writes:
            return self.fstat(d)
        size = self.new_size(self.about_end(d.actor, d.id))
        if self.made(d, "ftruncate", "truncate", size):
            self.say("ftruncate", d.id, f"{self.by(d, 'ftruncate')} {size}")
            self.oracle.truncate(d.actor, d.id, size)
        return None

    def truncate(self):
        """truncate(2), by path."""
        actor, name = self.actor(), self.random.choice(NAMES)
        number = (self.certain(actor, name) or [None])[0]
        if number is None:
            return self.stat()
        end = self.about_end(actor, number)
        size = self.random.choice([end // 2, self.below(end + 100), self.below(end + 100)])
        self.named(actor, f"truncate {name} {size}", number, "truncate_path", self.path(name), size)
        return self.oracle.truncate(actor, number, size)

    def named(self, actor, text, number, *call):
        """A call by path, which must succeed."""
        line, error = f"{self.who(actor)}: {text}", None
        try:
            self.call(actor, *call)
        except OSError as found:
            error = found
        self.say(text.split()[0], number, line if not error else f"{line} = {name_of(error)}")
        if error:
            raise differs(f"{line} = {error}", number)

    def map(self, d):
        """Stores to a shared mapping, and msync(2)."""
        # If the end of the file is not certain, a store may be behind it.
        size = self.oracle.view(d.actor, d.id).size()
        special = self.who(d.actor) in self.plan.linux + self.plan.direct
        if not d.writes or not size or special or self.oracle.is_gone(d.id):
            return self.read(d)
        offset, value = self.below(size), self.next_value()
        length = min(1 + self.below(20_000), size - offset)
        if self.made(d, "map", "map", offset, length, value):
            self.say("map", d.id, f"{self.by(d, 'map')} {offset}+{length} {value:#04x}, msync")
            self.oracle.write_mapped(d.actor, d.id, offset, offset + length, value)
            self.oracle.flush(d.actor, d.id)
        return None

    def list(self):
        """readdir(3): the listed names must be the existing ones."""
        actor, directory = self.actor(), self.random.choice(["", "d"])
        place = (self.directory + directory).rstrip("/") or "."
        head = f"{self.who(actor)}: list {place}"
        try:
            listed = self.call(actor, "list", place)
        except OSError as error:
            raise differs(f"{head} = {name_of(error)}", None) from None
        self.say("list", None, f"{head} = {listed}")
        # A listing that was cached between two changes within one second stays valid after the second change, because the
        # directory's time is the same.
        coarse = self.plan.variant.name == "one-second" and actor != SERVER
        for name in NAMES:
            parent, _, last = name.rpartition("/")
            if parent == directory:
                times, legal = listed.count(last), self.oracle.bindings(actor, name)
                fine = {0: coarse or None in legal, 1: coarse or any(one is not None for one in legal)}
                if not fine.get(times):
                    raise differs(f"{head} = {listed}: {name} may be {legal}", self.oracle.current(name))

    def utimes(self, d):
        mtime = 1_000_000_000 + self.below(1_000_000)
        if self.made(d, "utimes", "set_times", mtime):
            self.say("utimes", d.id, f"{self.by(d, 'utimes')} {mtime}")
            self.oracle.set_mtime(d.actor, d.id, mtime)

    def fstat(self, d):
        if found := self.made(d, "fstat", "fstat"):
            size, mtime, group = found[0]
            line = self.say("fstat", d.id, f"{self.by(d, 'fstat')} = size {size} mtime {mtime}")
            self.oracle.touch(d.actor, d.id)
            self.shown(line, d.id, found[0], self.oracle.seen(d.actor, d.id), [self.oracle.mtime(d.actor, d.id)])

    @staticmethod
    def shown(line, number, attributes, seen, mtimes):
        """Checks what a call shows of a file: it has one of these times, where one must be shown."""
        size, mtime, group = attributes
        if group != GROUPS + number:
            raise differs(f"{line}: of another file", number)
        if not seen.may_have_size(size):
            raise differs(f"{line}: no size it may have", number)
        if not any(one in (None, mtime) for one in mtimes):
            raise differs(f"{line}: {mtimes} was set", number)

    def stat(self):
        actor, name = self.actor(), self.random.choice(NAMES)
        legal, current = self.oracle.bindings(actor, name), self.oracle.current(name)
        head = f"{self.who(actor)}: stat {name}"
        try:
            size, _, group = self.call(actor, "lstat", self.path(name))
        except OSError as error:
            line = self.say("stat", current, f"{head} = {name_of(error)}")
            old = any(one not in (None, current) for one in legal)
            if not {errno.ENOENT: None in legal or old, errno.ESTALE: old}.get(error.errno):
                raise differs(f"{line}, it may be {legal}", current) from None
            return
        number = group - GROUPS
        line = self.say("stat", current, f"{head} = file {number} size {size}")
        if number not in legal:
            raise differs(f"{line}, it may be {legal}", current)
        if number == current:
            self.oracle.touch(actor, number)
            if not self.oracle.view(actor, number).may_have_size(size):
                raise differs(f"{line}: no size it may have", number)

    def append(self):
        actor, name = self.actor(), self.random.choice(NAMES)
        # Linux's client refuses O_APPEND together with O_DIRECT by EINVAL.
        if self.direct(actor):
            return self.stat()
        d = self.try_open(actor, name, "w")
        if not d:
            return None
        size = self.oracle.view(actor, d.id).size()
        if size is None or size >= 7 << 20:
            return None
        try:
            file, (_, _, group) = self.call(actor, "open", self.path(name), os.O_WRONLY | os.O_APPEND, 0)
        except OSError as error:
            # The first call may have opened the file by an old name, which this mount has looked up again since.
            if error.errno == errno.ENOENT and self.oracle.current(name) != d.id:
                return None
            return self.failed(d, "append", error)
        # With an old name, the second call may reach another file.
        if group != GROUPS + d.id:
            self.call(actor, "close", file)
            return None
        length, value = 1 + self.below(300), self.next_value()
        try:
            try:
                self.call(actor, "append", file, length, value)
                self.say("append", d.id, f"{self.who(actor)}: append to fd{d.number} {length} {value:#04x}")
                self.oracle.write(actor, d.id, size, size + length, value)
            finally:
                self.call(actor, "close", file)
        except OSError as error:
            return self.failed(d, "append", error)
        self.oracle.flush(actor, d.id)
        return self.read_at(d, max(size - 10, 0), 4096)

    def rename(self):
        actor, source, target = self.actor(), self.random.choice(NAMES), self.random.choice(NAMES)
        number, old = self.certain(actor, source, target) or (None, None)
        if number is None or source == target or old == number:
            return
        self.named(actor, f"rename {source} {target}", number, "rename", self.path(source), self.path(target))
        if old is not None:
            self.oracle.objects[old].history.append(f"{self.step:5} {self.who(actor)}: rename {source} {target}: replaced")
            if self.holds(actor, old):
                self.oracle.hide(actor, old, True)
        self.oracle.bind(actor, target, number)
        self.oracle.bind(actor, source, None)

    def unlink(self):
        actor, name = self.actor(), self.random.choice(NAMES)
        number = (self.certain(actor, name) or [None])[0]
        if number is None:
            return
        self.named(actor, f"unlink {name}", number, "unlink", self.path(name))
        if self.holds(actor, number):
            self.oracle.hide(actor, number, True)
        self.oracle.bind(actor, name, None)

    def link(self):
        actor, source, target = self.actor(), self.random.choice(NAMES), self.random.choice(NAMES)
        number, old = self.certain(actor, source, target) or (None, 0)
        if number is not None and old is None:
            self.named(actor, f"link {source} {target}", number, "link", self.path(source), self.path(target))
            self.oracle.bind(actor, target, number)

    def read_all(self, actor, name):
        """Reads the file to which a name leads."""
        self.watch.note(f"reading {name}")
        d = self.try_open(actor, name)
        for step in (self.fstat, lambda d: self.read_at(d, 0, WHOLE), self.close):
            # If its file turns out to be gone, it is not open any more.
            if d in self.open:
                step(d)
