"""The oracle: exactly what close-to-open promises of each file and name (RFC 1813 section 4.11).

**Data.** For each file the oracle keeps what the server may have, and what each mount may show. A write is visible on its own
mount at once. It may reach the server, and so other mounts, at any time until fsync or close of that mount, and has reached
it by then. An open shows what the server has at that moment, except for data that the mount itself has not written yet. A
truncation reaches the server at once, and so does every operation on the server's side.

**Names.** A change of a name is at the server at once, and known to the mount that made it. Other mounts may know the old
name as long as attributes of directories are valid. Then the name leads to a file to which it once led, or to an error, but
never to another file.

**Linux's own client** promises less when it caches data, so less is demanded of it (`page_caches`). While it has a file open
for writing, it keeps old data, also at open (and takes the server's change for its own). It writes whole pages, including its
cached bytes around the written ones. And it writes data from before a truncation by O_CREAT and O_TRUNC after that
(`created_empty`).
"""

import copy
import math
import time

from content import FILE_MAX, ZERO, Content, Ranges, bytes_in

RELEASE = 2
"""Within so many seconds a mount learns of a last close, and the hidden name is removed. A file also counts as open for a
while after an open of its name has failed."""
NOTIFIED = 2
"""Within this time the kernel is notified of zeros that it holds behind an end to which another client has cut the file. It
takes less than a tenth of a second on a machine that is not busy (docs/COHERENCE.md, "What remains")."""
PAGE = 4096
WRITE_MAX = (1 << 20) - PAGE
"""The most bytes of one WRITE."""
SERVER = 0
"""The actor that works in the exported directory itself. The mounts have the next numbers."""


def pieces(dirty):
    return [(start, end, value) for start, end, value in dirty if value is not None]


def is_one_write(dirty):
    """Whether dirty data fits in one WRITE."""
    found = pieces(dirty)
    joined = all(before[1] == after[0] for before, after in zip(found, found[1:]))
    return not found or (joined and found[-1][1] - found[0][0] <= WRITE_MAX)


def keep_own(content, view, dirty):
    """Makes `content` equal to `view` in the ranges that are `dirty`, and removes ends before them that `view` does not have."""
    for start, end, _ in (found := pieces(dirty)):
        for first, last, values in view:
            content.set(max(first, start), min(last, end), values)
    end = found[-1][1] if found else 0
    for first, last, values in view:
        if not values & (1 << 256):
            content.change(first, min(last, end), lambda old, values=values: bytes_in(old) or values)


class Object:
    """A file of the run. Lists have an entry for each actor."""

    def __init__(self, actors):
        now = time.monotonic()
        self.server = Content.empty()
        self.views = [Content.empty() for _ in range(actors)]
        """The contents that each may see."""
        self.dirty = [Ranges() for _ in range(actors)]
        """The bytes that each has written and that the server may not have; `dirty_since` when."""
        self.dirty_since = [now] * actors
        self.mtime, self.mtime_by, self.mtime_shown = None, SERVER, [False] * actors
        """The mtime that was set, as long as it must be shown; the actor that set it; those that must see it."""
        self.pages = [Content.nothing() for _ in range(actors)]
        """Bytes that each actor's pages may bring in addition to what it has written."""
        self.keeps_old = [False] * actors
        """Those that had it open for writing with a page cache that keeps old data then; `behind` are bytes that such a cache
        may have behind the end that it knows."""
        self.behind = [Content.nothing() for _ in range(actors)]
        self.zeros_since = [-math.inf] * actors
        """When each actor's pages may last have got zeros behind an end to which another has cut the file."""
        self.names = 0
        self.hidden = [False] * actors
        """The mounts that keep it under a hidden name, because it was removed while open."""
        self.shown = -math.inf
        """When a mount last removed a name of it or closed it. There may be a hidden name for a while after that."""
        self.touched = [now] * actors
        """When each last had a call on it."""
        self.unnoticed = [False] * actors
        """Whether the last change by another may have left the times that this actor knew. If so, it may keep its old data over
        every open, until a change that it notices."""
        self.hid = [-math.inf] * actors
        """When each last had dirty data whose WRITEs may have hidden a change by another."""
        self.outdated = [False] * actors
        """Whether others may have changed it since each actor's last open."""
        self.history = []

    RANGES = ("views", "dirty", "pages", "behind")

    def copy(self):
        made = copy.copy(self)
        made.server, made.history = self.server.copy(), self.history
        for name, value in vars(self).items():
            if name in self.RANGES:
                setattr(made, name, [one.copy() for one in value])
            elif isinstance(value, list) and name != "history":
                setattr(made, name, value[:])
        return made

    def is_dirty(self, actor):
        return any(value is not None for value in self.dirty[actor].values)

    def cuts_unknown_to(self, actor, shown):
        """The ends at the server, in bytes, to which others may have cut the file without `actor`'s knowing. `shown` are the
        ends that its calls have returned meanwhile."""
        # With data of its own that may not be written yet, a smaller end at the server is no cut, unless it is shown, which it
        # is only once the data is written.
        ends, known = shown if self.is_dirty(actor) else self.server.sizes(), self.views[actor].sizes()
        return [end for end in ends if known and end < known[-1]]

    def merge(self, other):
        """Becomes the file that may be either of the two, which result from different orders of overlapping calls."""
        self.server.add(other.server)
        for mine, theirs in ((self.views, other.views), (self.pages, other.pages), (self.behind, other.behind)):
            for one, another in zip(mine, theirs):
                one.add(another)
        # No mount writes a byte twice in a round. So a byte that is dirty in one order and clean in another has the same value
        # in both, and flushing it results in what the view shows.
        for mine, theirs in zip(self.dirty, other.dirty):
            mine.combine(theirs, lambda a, b: b if a is None else a)
        if (self.mtime, self.mtime_by) != (other.mtime, other.mtime_by):
            self.mtime = None
        each = lambda function, name: setattr(self, name, list(map(function, getattr(self, name), getattr(other, name))))
        each(bool.__and__, "mtime_shown")
        for name in ("keeps_old", "unnoticed", "outdated"):
            each(bool.__or__, name)
        each(max, "touched")
        each(max, "hid")
        each(min, "dirty_since")


class Name:
    def __init__(self, actors):
        self.past = [(time.monotonic(), None)]
        """The files to which it led, and since when."""
        self.known = [time.monotonic()] * actors
        """When each actor last knew for certain where it leads."""


class Oracle:
    """The state of a run."""

    def __init__(self, names, actors, names_trusted=3600, tick=0, before_writes=True, clock_is_off=False):
        """`names_trusted`: how many seconds old names may be used; `tick`: changes within so many seconds may have equal times;
        `before_writes`: the server shows the attributes from before a WRITE; `clock_is_off`: mounts see all times shifted, also
        those that are set at the server."""
        self.objects, self.names, self.actors = [], {name: Name(actors) for name in names}, actors
        self.names_trusted, self.tick, self.before_writes = names_trusted, tick, before_writes
        self.clock_is_off = clock_is_off
        self.page_caches, self.hides_by_name = [False] * actors, [False] * actors
        """The actors whose cache behaves like that of Linux's client; those that hide an open file only if it is removed by the
        name by which it was opened, which others may have changed meanwhile, as Linux's client."""
        self.calls_begin()

    def calls_begin(self):
        """Calls begin now: their changes have times from now on, however late they are applied here."""
        self.made = time.monotonic()

    def others(self, actor):
        return [other for other in range(1, self.actors) if other != actor]

    # Names.

    def create(self):
        """Adds a new, empty file."""
        self.objects.append(Object(self.actors))
        return len(self.objects) - 1

    def current(self, name):
        """The file to which a name leads."""
        return self.names[name].past[-1][1]

    def bindings(self, actor, name):
        """The files to which a name may lead for `actor`."""
        found, now, name = [self.current(name)], time.monotonic(), self.names[name]
        # Without any caching, only the current one.
        if actor == SERVER or not self.names_trusted:
            return found
        since = max(now - self.names_trusted, name.known[actor])
        ends = [begin for begin, _ in name.past[1:]] + [now]
        return found + list(dict.fromkeys(to for (_, to), end in zip(name.past, ends) if end > since and to not in found))

    def bind(self, actor, name, to):
        """`actor` changes where a name leads."""
        old, now = self.current(name), time.monotonic()
        if old is not None:
            self.objects[old].names -= 1
            if actor != SERVER:
                self.objects[old].shown = now
        if to is not None:
            self.objects[to].names += 1
        self.names[name].past.append((now, to))
        self.names[name].known[actor] = now

    def confirm(self, actor, name):
        """`actor` found out where the name leads."""
        self.names[name].known[actor] = time.monotonic()

    def hide(self, actor, number, hidden):
        """`actor` keeps a file that it removed while open, or does not keep it any more."""
        if actor != SERVER:
            self.objects[number].shown = time.monotonic()
            self.objects[number].hidden[actor] = hidden

    def closed_at_server(self, number):
        """A file was closed on a server that serves files without names while its own side has them open. It may keep the file
        for a while, as after a mount's last close."""
        self.objects[number].shown = time.monotonic()

    def is_gone(self, number):
        """Whether the server may have lost the file."""
        found = self.objects[number]
        return not found.names and not any(hidden and not by for hidden, by in zip(found.hidden, self.hides_by_name))

    def is_surely_gone(self, number):
        found = self.objects[number]
        return not found.names and not any(found.hidden) and time.monotonic() - found.shown > RELEASE

    # Data.

    def is_at_rest(self, number):
        """Whether all written data is at the server."""
        found = self.objects[number]
        return not any(pages.written() for pages in found.pages) and not any(map(found.is_dirty, range(self.actors)))

    def found(self, number, data):
        """The server has exactly these bytes, and nobody has dirty data."""
        self.objects[number].server = Content.of(data)

    def view(self, actor, number):
        """The contents of a file that `actor` may see."""
        found = self.objects[number]
        return found.server if actor == SERVER else found.views[actor]

    def seen(self, actor, number):
        """What `actor` may see when it reads. If the file is gone at the server, the actor may have dropped data that the
        server refused."""
        seen, found = self.view(actor, number).copy(), self.objects[number]
        # A read may be what tells of a cut, and show zeros itself.
        outdated = actor != SERVER and found.outdated[actor]
        if outdated or time.monotonic() - found.zeros_since[actor] < NOTIFIED:
            seen.maybe_zero_behind_end()
        if actor != SERVER and self.is_gone(number):
            seen.add(found.server)
        return seen

    def _changed(self, actor, number, later=False):
        """`actor` changed the file, at once or (a write by a mount) later."""
        self.objects[number].mtime = None
        self._unnoticed_since(self.made, actor, number, later)
        self.touch(actor, number)

    def _unnoticed_since(self, since, actor, number, may):
        """`actor` changed the file at the server (with `may`: perhaps) after `since`. Actors with a call on it within a tick of
        that, or later, may not notice. Nor may those whose WRITEs hide it."""
        found = self.objects[number]
        for other in range(self.actors):
            if self._hides(found, other):
                found.hid[other] = self.made
            if other != actor:
                # Dirty data may be written at any time, and the reply then shows the times.
                called = found.is_dirty(other) or found.touched[other] + self.tick > since
                unnoticed = (self.tick and called) or found.hid[other] >= since
                found.unnoticed[other] = bool(unnoticed or (may and found.unnoticed[other]))
                found.outdated[other] = True

    def _hides(self, found, actor):
        """Whether dirty data is written in such a way that its writer may take what others change for its own (docs/COHERENCE.md,
        "With which server"): between several WRITEs, or just before one whose reply does not show the attributes from before."""
        return found.is_dirty(actor) and not (self.before_writes and is_one_write(found.dirty[actor]))

    def changed_beside(self, actor, number):
        """A process at the server has changed the file while a change by `actor` may have been under way. nfsrdma-responder takes
        pre-operation attributes just before it makes a change, and not under the kernel's lock of the file as Linux's server
        does. So the change by the process may lie between, and `actor` does not notice it."""
        self.objects[number].unnoticed[actor] = True

    def touch(self, actor, number):
        """A call of `actor` may have shown it the file's times."""
        self.objects[number].touched[actor] = time.monotonic()

    def _maybe_dirty(self, content, found, actor):
        """Dirty data of others than `actor` may arrive at any time."""
        for other in range(self.actors):
            if other != actor:
                content.maybe_put(found.pages[other])
        for other in range(self.actors):
            for piece in pieces(found.dirty[other]) if other != actor else ():
                content.maybe_write(*piece)

    def write(self, actor, number, start, end, value):
        self._changed(actor, number, actor != SERVER)
        found = self.objects[number]
        if not found.is_dirty(actor):
            found.dirty_since[actor] = self.made
        for other in self.others(actor):
            found.views[other].maybe_write(start, end, value)
        if actor == SERVER:
            found.server.write(start, end, value)
            self._maybe_dirty(found.server, found, actor)
        else:
            found.dirty[actor].set(start, end, value)
            beside = any(found.is_dirty(other) for other in range(self.actors) if other != actor)
            changed = beside or (not self.before_writes and found.outdated[actor])
            found.unnoticed[actor] |= changed and self._hides(found, actor)
            found.views[actor].write(start, end, value)
            found.views[actor].uncover(start, found.behind[actor])
            self._maybe_dirty(found.views[actor], found, actor)
            found.server.maybe_write(start, end, value)
        if self.page_caches[actor]:
            self._write_pages(actor, found, start, end)

    def write_mapped(self, actor, number, start, end, value):
        """The same by a mapping: the kernel writes whole pages, including their cached bytes."""
        self.write(actor, number, start, end, value)
        if actor != SERVER:
            self._write_pages(actor, self.objects[number], start, end)

    def _write_pages(self, actor, found, start, end):
        """Cached bytes of `actor` in the pages around the range may be written together with it."""
        pages = Content.nothing()
        for first, last, values in found.views[actor]:
            # Where the end is possible, too, a byte may also be a zero.
            known = bytes_in(values) | (ZERO if bytes_in(values) and values != bytes_in(values) else 0)
            for low, high in ((start // PAGE * PAGE, start), (end, -(-end // PAGE) * PAGE)):
                pages.set(max(first, low), min(last, high), known)
        found.pages[actor].add(pages)
        for content in [found.server, *(found.views[other] for other in self.others(actor))]:
            content.maybe_put(pages)

    def cut_during_write(self, actor, number, start, stop, end):
        """`actor` wrote start..stop, and while the kernel filled its pages it may have learned that others had cut the file to
        `end`. What it had not sent of the page with the end is zeros then (docs/COHERENCE.md, "What remains")."""
        found, start, stop = self.objects[number], max(start, end), min(stop, -(-end // PAGE) * PAGE)
        for first, last, _ in pieces(found.dirty[actor]):
            found.pages[actor].change(max(first, start), min(last, stop), lambda values: values | ZERO)
        for content in [*found.views, found.server]:
            content.maybe_zero(start, stop)

    def zeros_behind_end(self, actor, number):
        """The pages of `actor` may hold zeros behind an end to which others have cut the file, until its kernel is notified."""
        self.objects[number].zeros_since[actor] = time.monotonic()

    def created_empty(self, actor, number):
        """`actor` opened the file with O_CREAT and O_TRUNC. Linux's client (6.12) sends a CREATE, UNCHECKED with a size of zero,
        if it has not looked the name up. It neither writes dirty data before that, nor drops it. So the old contents come back
        with the next WRITE, in whole pages."""
        found = self.objects[number]
        if not self.page_caches[actor] or not found.is_dirty(actor):
            return self.truncate(actor, number, 0)
        dirty, pages, view = (one[actor].copy() for one in (found.dirty, found.pages, found.views))
        self.truncate(actor, number, 0)
        found.views[actor].add(view)
        for content in [*(found.views[other] for other in self.others(actor)), found.server]:
            content.maybe_put(pages)
            for piece in pieces(dirty):
                content.maybe_write(*piece)
        found.dirty[actor], found.pages[actor] = dirty, pages
        return None

    def truncate(self, actor, number, size):
        self._changed(actor, number)
        found = self.objects[number]
        if found.keeps_old[actor]:
            # A truncation to the size that it knows drops nothing.
            if found.views[actor].may_have_size(size):
                found.behind[actor].add(found.views[actor].all_bytes())
            else:
                found.behind[actor].set(size, FILE_MAX, 0)
        found.server.truncate(size)
        found.dirty[actor].set(size, FILE_MAX, None)
        found.pages[actor].set(size, FILE_MAX, 0)
        self._maybe_dirty(found.server, found, actor)
        for other in range(1, self.actors):
            view, cut = found.views[other], found.views[other].copy()
            cut.truncate(size)
            if other == actor:
                found.views[other] = view = cut
                view.uncover(size, found.behind[actor])
            else:
                view.add(cut)
            view.add(found.server)

    def flush(self, actor, number):
        """Data that `actor` wrote is at the server: fsync or close returned 0."""
        if actor == SERVER:
            return
        self.touch(actor, number)
        # The server accepts no data of a file that is gone, and only the writer of lost data gets an error.
        if self.is_gone(number):
            return
        found = self.objects[number]
        if found.is_dirty(actor):
            self._unnoticed_since(found.dirty_since[actor], actor, number, False)
        dirty, found.dirty[actor], found.pages[actor] = found.dirty[actor], Ranges(), Content.nothing()
        keep_own(found.server, found.views[actor], dirty)

    def opened(self, actor, number, writes):
        found = self.objects[number]
        found.keeps_old[actor] |= writes and self.page_caches[actor]
        found.mtime_shown[actor] = True
        if actor == SERVER:
            return
        fresh = found.server.copy()
        keep_own(fresh, found.views[actor], found.dirty[actor])
        if found.unnoticed[actor] or found.keeps_old[actor]:
            fresh.add(found.views[actor])
        found.outdated[actor] = False
        found.views[actor] = fresh
        self.touch(actor, number)

    def set_mtime(self, actor, number, mtime):
        self._changed(actor, number)
        found = self.objects[number]
        others_write = any(found.is_dirty(other) for other in range(self.actors) if other != actor)
        found.mtime_shown = [other == actor for other in range(self.actors)]
        found.mtime, found.mtime_by = None if others_write else mtime, actor

    def mtime(self, actor, number):
        """The mtime that `actor` must see."""
        found = self.objects[number]
        shifted = self.clock_is_off and (actor == SERVER) != (found.mtime_by == SERVER)
        return found.mtime if found.mtime_shown[actor] and not shifted else None
