"""Rounds of calls that overlap in time.

The calls of a round are on one file, by several clients, also by two programs of one mount. They are issued together, each
from a thread of its own, and the round ends when all have returned. Meanwhile the server may be restarted or its clock
stepped. Names do not change during a round; calls that change names are made between rounds.

**The rule.** Each byte of a file takes part in the calls of a round in some order. So the oracle applies the calls in every
order. A read or fstat may show for each byte, and for the end of the file, what any order allows at the place of that call.
Different bytes may follow different orders, because a read(2) is many READs, and a write(2) many WRITEs, between which others
may come. After the round the file may be what any order leaves (`Object.merge`).

**Four exceptions** are allowed (README.md says when they were seen). A read(2) that overlaps with an ftruncate(2) of the same
mount may show zeros from the new end on: while a program of this machine sets the size, Linux ignores the end of file in
replies to READ (FUSE_I_SIZE_UNSTABLE in fuse_do_setattr), though the server has cut the file already, and drops these pages
afterwards. And a read(2) that overlaps with a WRITE of the same mount may show zeros behind an end to which another client has
cut the file: if the WRITE is answered while the READ is under way, Linux ignores the end in the READ's reply
(docs/COHERENCE.md, "What remains"). So it does if a GETATTR or an OPEN is answered then. The zeros are in its pages then, and
later reads show them until the kernel is notified (`Oracle.zeros_behind_end`). A write(2) may put zeros behind an end to which
another client has cut the file, up to the end of that page, if an open(2) or fstat(2) of the same mount overlaps with it: Linux
cuts the page that is filled and not yet sent (`cuts_to_learn`). And a mount may miss a change that a process at the server
makes while one of its own is under way (`Oracle.changed_beside`).

**What keeps it sharp.** Alternatives after a round become certain again at the next `rest`: all descriptors are closed, the
file is read at the server, and every mount that opens it must see these very bytes.
"""

import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from content import FILE_MAX, Content
from oracle import SERVER

GROUPS = 100_000
"""The group of a file identifies it, whatever its fileid is: this and the number of the file."""
MOST = 4
"""The most calls of a round, all of whose orders are tried."""
LENGTHS = [100, 4096, 65536, 1 << 20, 16 << 20]


class Difference(Exception):
    """A difference from the promises, on the file `number`."""

    def __init__(self, what, number):
        super().__init__(what)
        self.number = number


differs = Difference


@dataclass(eq=False)
class Part:
    """A call of a round, its result, and what it may show."""

    kind: str
    actor: int
    d: object
    arguments: tuple = ()
    """Those of the call, but for the file."""
    writes: bool = False
    name: str = ""
    seen: Content = field(default_factory=Content.nothing)
    """The possible contents of the file when the call is made, in any order."""
    mtimes: list = field(default_factory=list)
    value: object = None
    error: object = None
    issued: int = 0
    returned: int = 0

    def changes(self):
        return self.kind in ("write", "truncate")

    def asked(self):
        """The size that it showed by an fstat(2), of its own or after an open; None if it showed none."""
        if self.error or self.kind not in ("fstat", "open"):
            return None
        return (self.value[1] if self.kind == "open" else self.value)[0]


class Rounds:
    def round(self):
        """A round on one file, or an open if there is no file for it."""
        # Mostly an open file, but none without a name, which may disappear during the round.
        named = [number for name in self.oracle.names if (number := self.oracle.current(name)) is not None]
        numbers = [number for number in [d.id for d in self.open] + named if self.oracle.objects[number].names]
        parts = []
        if numbers:
            number, wanted = self.random.choice(numbers), 2 + self.random.randrange(MOST - 1)
            for _ in range(4 * MOST):
                if len(parts) < wanted and (part := self.part(number, parts)):
                    parts.append(part)
        if len(parts) < 2:
            return self.open_name()
        commands = self.plan.variant.commands
        command = self.random.choice(commands) if commands and self.chance(1, 6) else None
        before = self.together(parts, command and (lambda: self.stand.command(command)))
        if command:
            self.say("command", number, f"meanwhile, {before}")
        self.alternatives(number, parts)
        # In the order of their return, for readers of the log.
        parts.sort(key=lambda part: part.returned)
        lines = [self.say(part.kind, number, self.line(part)) for part in parts]
        for part, line in zip(parts, lines):
            self.judge(number, part, line)
        return None

    def together(self, parts, meanwhile):
        """Makes the calls at the same time. Returns what `meanwhile` returns."""
        barrier, clock = threading.Barrier(len(parts) + 1), itertools.count()
        calls = [f"{self.who(part.actor)}: {part.kind} {' '.join(map(str, part.arguments))}" for part in parts]
        self.watch.note(f"step {self.step} of seed {self.plan.seed}: {'; '.join(calls)}")

        def make(part):
            arguments = (part.d.file, *part.arguments) if part.d else part.arguments
            barrier.wait()
            part.issued = next(clock)
            try:
                part.value = self.call(part.actor, part.kind, *arguments)
            except OSError as error:
                part.error = error
            part.returned = next(clock)

        with ThreadPoolExecutor(len(parts)) as pool:
            made = [pool.submit(make, part) for part in parts]
            barrier.wait()
            said = meanwhile() if meanwhile else None
            for one in made:
                one.result()
        return said

    def part(self, number, others):
        """Chooses a call on the file that is compatible with the chosen ones."""
        choice = self.random.randrange(20)
        if choice < 3:
            actor, name = self.actor(), self.random.choice(list(self.oracle.names))
            if self.certain(actor, name) != [number] or len(self.open) + len(others) >= 24:
                return None
            flags = self.random.choice([os.O_RDWR, os.O_RDONLY])
            arguments = (self.path(name), flags | self.direct(actor), 0)
            return Part("open", actor, None, arguments, flags == os.O_RDWR, name)
        d = self.random.choice(self.open) if self.open else None
        # A descriptor that is being closed is not used by another call, and changes by one mount do not overlap.
        if not d or d.id != number or any(other.d is d and other.kind == "close" for other in others):
            return None
        may_change = d.writes and not any(other.actor == d.actor and other.changes() for other in others)
        end = min(self.about_end(d.actor, number), 7 << 20)
        if choice < 7:
            part = "read", self.random.choice([0, self.below(end + 1)]), self.random.choice(LENGTHS)
        elif choice == 7:
            part = ("fstat",)
        elif choice < 13 and may_change:
            offset = self.random.choice([0, end, self.below(min(end + 100, 20_000))])
            part = "write", offset, self.length(), self.next_value()
        elif choice in (13, 14) and may_change:
            part = "truncate", self.new_size(end)
        elif choice in (15, 16):
            part = ("fsync",)
        elif choice > 16 and not any(other.d is d for other in others):
            part = ("close",)
        else:
            return None
        return Part(part[0], d.actor, d, part[1:], d.writes)

    def apply(self, number, part):
        actor = part.actor
        if part.kind in ("read", "fstat"):
            self.oracle.touch(actor, number)
        elif part.kind == "write":
            offset, length, value = part.arguments
            self.oracle.write(actor, number, offset, offset + length, value)
        elif part.kind == "truncate":
            self.oracle.truncate(actor, number, *part.arguments)
        elif part.kind == "open":
            self.oracle.opened(actor, number, part.writes)
        elif part.kind == "fsync" or part.writes:
            self.oracle.flush(actor, number)

    def alternatives(self, number, parts):
        """Computes, over all orders, what the calls may show, and what they leave."""
        before, after = self.oracle.objects[number], None
        # It may be written back during the round.
        dirty = [actor for actor in range(1, self.oracle.actors) if before.is_dirty(actor)]
        for order in itertools.permutations(parts):
            self.oracle.objects[number] = before.copy()
            for part in order:
                part.seen.add(self.oracle.seen(part.actor, number))
                part.mtimes.append(self.oracle.mtime(part.actor, number))
                self.apply(number, part)
            left = self.oracle.objects[number]
            if after:
                left.merge(after)
            after = left
        learned = list(self.cuts_to_learn(before, parts))
        asking = {part.actor for part in parts if part.asked() is not None}
        cuts = [(part.actor, *part.arguments) for part in parts if part.kind == "truncate" and part.actor != SERVER]
        # By write(2), or by a call that writes dirty data.
        wrote = {part.actor for part in parts if part.kind in ("write", "fsync") or (part.kind == "close" and part.writes)}
        self.oracle.objects[number] = after
        for part in parts:
            for actor, size in cuts:
                if actor == part.actor:
                    part.seen.maybe_zero(size, FILE_MAX)
            if part.kind == "read" and part.actor in wrote | asking:
                part.seen.maybe_zero_behind_end()
                self.oracle.zeros_behind_end(part.actor, number)
        for actor, *cut in learned:
            self.oracle.cut_during_write(actor, number, *cut)
        if any(part.actor == SERVER and part.changes() for part in parts):
            for actor in [*wrote, *(actor for actor, _ in cuts), *dirty]:
                self.oracle.changed_beside(actor, number)

    def cuts_to_learn(self, before, parts):
        """The writes of the round during which the kernel may learn of an end to which others have cut the file, by a call that
        shows attributes: the actor, what it wrote, and the end, in bytes. Pages of O_DIRECT are not cut."""
        for part in parts:
            shown = [size for other in parts if other.actor == part.actor and (size := other.asked()) is not None]
            if part.kind == "write" and part.actor != SERVER and shown and not self.direct(part.actor):
                offset, length, _ = part.arguments
                now = [other.arguments[0] for other in parts if other.kind == "truncate" and other.actor != part.actor]
                for end in now + before.cuts_unknown_to(part.actor, shown):
                    yield part.actor, offset, offset + length, end

    def line(self, part):
        number = f" fd{part.d.number}" if part.d else ""
        result = part.error or (f"{len(part.value)} bytes" if part.kind == "read" else part.value)
        head = f"{self.who(part.actor)}: [{part.issued}..{part.returned}] {part.kind}{number}"
        return f"{head} {' '.join(map(str, part.arguments))} = {result}"

    def judge(self, number, part, line):
        if part.error:
            raise differs(line, number)
        if part.kind == "read":
            offset, length = part.arguments
            self.compare(line, number, part.seen, offset, length, part.value)
        elif part.kind == "fstat":
            self.shown(line, number, part.value, part.seen, part.mtimes)
        elif part.kind == "close":
            self.open.remove(part.d)
            if not self.holds(part.actor, number):
                self.oracle.hide(part.actor, number, False)
        elif part.kind == "open":
            self.add_opened(part.actor, number, part.value[0], part.writes)
            self.oracle.confirm(part.actor, part.name)
            # The fstat(2) that follows an open has its own place in the order: only its file is compared.
            if part.value[1][2] != GROUPS + number:
                raise differs(f"{line}: of another file", number)
