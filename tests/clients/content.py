"""The possible contents of a file: a set of values for each position, one of which is "behind the end of the file". Sizes
follow from them: a file may have the size `n` if `n` may be behind its end and the byte before it may not."""

import bisect
import functools
import re

FILE_MAX = 16 << 20
"""The largest file of a run, in bytes."""
END = 1 << 256
"""A set is a number whose bits are its values: bit 256 is "behind the end", the others are bytes."""
ZERO = 1


def byte(value):
    return 1 << value


def bytes_in(values):
    return values & ~END


def extended(values):
    """After an extension of the file, positions behind the end are zeros."""
    return bytes_in(values) | ZERO if values & END else values


def perhaps_extended(values):
    return values | ZERO if values & END else values


def perhaps_zero(values):
    """Where there may be a byte, or the end, there may also be a zero."""
    return values | ZERO if values & END and bytes_in(values) else values


@functools.lru_cache(None)
def allowed(values):
    return bytes(value for value in range(256) if values & byte(value))


@functools.lru_cache(None)
def other_than(value):
    return re.compile(b"[^%s]" % re.escape(bytes([value])), re.S)


def shown(values):
    return "{" + " ".join([f"{value:#04x}" for value in allowed(values)] + ["end"] * bool(values & END)) + "}"


class Ranges:
    """A value for each position of a file: where each begins, from 0 on; neighbours differ."""

    def __init__(self, value=None, starts=None, values=None):
        self.starts, self.values = ([0], [value]) if starts is None else (starts, values)

    def copy(self):
        return type(self)(None, self.starts[:], self.values[:])

    def __eq__(self, other):
        return self.starts == other.starts and self.values == other.values

    def get(self, at):
        return self.values[bisect.bisect_right(self.starts, at) - 1]

    def __iter__(self):
        """The ranges with one value: start, end, value."""
        return zip(self.starts, self.starts[1:] + [FILE_MAX], self.values)

    def _split(self, at):
        """The index of what begins at `at`."""
        if at >= FILE_MAX:
            return len(self.starts)
        index = bisect.bisect_left(self.starts, at)
        if index == len(self.starts) or self.starts[index] != at:
            self.starts.insert(index, at)
            self.values.insert(index, self.values[index - 1])
        return index

    def change(self, start, end, function):
        """Changes the values of a range by a function."""
        if start >= end:
            return
        first, last = self._split(start), self._split(end)
        self.values[first:last] = map(function, self.values[first:last])
        for index in range(min(last, len(self.starts) - 1), max(first, 1) - 1, -1):
            if self.values[index] == self.values[index - 1]:
                del self.starts[index], self.values[index]

    def set(self, start, end, value):
        self.change(start, end, lambda _: value)

    def combine(self, other, function):
        for start, end, theirs in list(other):
            self.change(start, end, lambda mine, theirs=theirs: function(mine, theirs))


class Content(Ranges):
    """The possible contents of a file."""

    @classmethod
    def empty(cls):
        return cls(END)

    @classmethod
    def nothing(cls):
        """No possible value at all, to which others are added."""
        return cls(0)

    @classmethod
    def of(cls, data):
        """Exactly these bytes."""
        starts, values, at = [], [], 0
        while at < len(data):
            starts.append(at)
            values.append(byte(data[at]))
            found = other_than(data[at]).search(data, at)
            at = found.start() if found else len(data)
        return cls(None, starts + [len(data)], values + [END])

    def written(self):
        """The ranges with possible bytes."""
        return [(start, end, values) for start, end, values in self if bytes_in(values)]

    def maybe_put(self, other):
        """Any of the bytes of `other` may have been written."""
        for start, end, values in other.written():
            self.change(0, end, perhaps_extended)
            self.change(start, end, lambda mine, values=values: mine | values)

    def all_bytes(self):
        bytes_only = self.copy()
        bytes_only.change(0, FILE_MAX, bytes_in)
        return bytes_only

    def maybe_zero(self, start, end):
        """Each possible byte of the range may also be a zero."""
        self.change(start, end, lambda values: values | ZERO if bytes_in(values) else values)

    def maybe_zero_behind_end(self):
        self.change(0, FILE_MAX, perhaps_zero)

    def uncover(self, end, other):
        """The bytes of `other` below `end` are possible, too."""
        for start, stop, values in other.written():
            self.change(start, min(stop, end), lambda mine, values=values: mine | values)

    def write(self, start, end, value):
        """The range has the value now. If the file was shorter, zeros lie between."""
        self.change(0, start, extended)
        self.set(start, end, byte(value))

    def maybe_write(self, start, end, value):
        """The write may have happened, or not, or parts of it, its last ones first."""
        written = self.copy()
        written.write(start, end, value)
        self.change(0, end, perhaps_extended)
        self.add(written)

    def truncate(self, size):
        self.change(0, size, extended)
        self.set(size, FILE_MAX, END)

    def add(self, other):
        self.combine(other, int.__or__)

    def may_have_size(self, size):
        return size < FILE_MAX and bool(self.get(size) & END) and (size == 0 or bool(bytes_in(self.get(size - 1))))

    def sizes(self):
        """The possible sizes at which the possible values change, in order."""
        return [start for start in self.starts if self.may_have_size(start)]

    def size(self):
        """The size, if only one is possible."""
        size = 0
        for _, end, values in self:
            if values == END:
                return size
            if values & END or not values:
                return None
            size = end
        return None

    def last(self):
        """The end of the last possible byte."""
        return max((end for _, end, _ in self.written()), default=0)

    def check(self, offset, wanted, data):
        """What is wrong with bytes that were read at `offset`, where `wanted` were wanted; None if nothing is."""
        end = offset + len(data)
        for start, stop, values in self:
            part = data[max(start - offset, 0) : max(stop - offset, 0)]
            if part.translate(None, allowed(values)):
                at = next(at for at, value in enumerate(part) if not values & byte(value))
                return f"at {max(start, offset) + at} is {part[at]:#04x}, not of {shown(values)}"
        if len(data) < wanted and not self.get(end) & END:
            return f"the file ends at {end}, where {shown(self.get(end))} is"
        return None
