#!/usr/bin/env python3
"""Cases of what differs, and of which differences are accepted. No mount is needed."""

import errno
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

sys.dont_write_bytecode = True
sys.path.append(str(Path(__file__).resolve().parents[1] / "system"))

import accepted  # noqa: E402
import kernel  # noqa: E402
from calls import Call, Place, Reply, Step  # noqa: E402
from generate import Generator, Known  # noqa: E402
from session import Difference, of_replies, of_states, of_trees  # noqa: E402

FILE = {"type": "file", "size": 1}


def values(found):
    return [(difference.field, difference.mount, difference.local) for difference in found]


def accepts(row, call, *differing):
    return row(Step(0, call), Difference(call.name, *differing))


def test_states_differ_by_field_or_by_being_there():
    assert not of_states("stat", FILE, FILE)
    assert values(of_states("stat", {**FILE, "size": 2}, FILE)) == [("size", "2", "1")]
    assert values(of_states("stat", {"state": "ENOENT"}, FILE)) == [("state", "ENOENT", "a file")]
    assert values(of_states("stat", {**FILE, "rdev": 3}, FILE)) == [("rdev", "3", "nothing")]


def test_replies_differ_by_error_result_and_states():
    step, reply = Step(0, Call("read", slot=0, length=1)), Reply(0, 1, "x", [FILE])
    assert not of_replies(step, reply, reply)
    assert values(of_replies(step, reply, Reply(errno.EIO, states=[FILE]))) == [("errno", "OK", "EIO")]
    assert values(of_replies(step, reply, Reply(0, 2, "y", [FILE]))) == [("value", "1", "2"), ("data", "x", "y")]
    assert values(of_replies(step, reply, Reply(0, 1, "x", [{**FILE, "size": 0}]))) == [("size", "1", "0")]
    assert values(of_replies(step, Reply(data=FILE), Reply(data={**FILE, "size": 0}))) == [("size", "1", "0")]


def test_trees_differ_by_names_and_states():
    tree = lambda **nodes: SimpleNamespace(nodes=nodes)
    assert not of_trees("tree", tree(a=FILE), tree(a=FILE))
    found = of_trees("tree", tree(a=FILE, b={**FILE, "size": 2}), tree(b=FILE, c=FILE))
    assert values(found) == [("state", "a file", "not there"), ("size", "2", "1"), ("state", "not there", "a file")]
    assert [difference.where for difference in found] == ["'a'", "'b'", "'c'"]


def test_only_times_that_nfs_lacks_are_clamped():
    call = Call("utimens")
    assert accepts(accepted.clamped, call, "mtime", "0.000000000", "-1.000000000")
    assert not accepts(accepted.clamped, call, "mtime", "0.000000000", "1.000000000")


def test_only_holes_are_data():
    seek = lambda whence: Call("seek_sparse", slot=0, at=1, whence=whence)
    assert accepts(accepted.sparse, seek(os.SEEK_DATA), "errno", "OK", "ENXIO")
    assert not accepts(accepted.sparse, seek(os.SEEK_HOLE), "errno", "OK", "ENXIO")
    assert not accepts(accepted.sparse, seek(os.SEEK_DATA), "errno", "EIO", "ENXIO")


def test_another_reason_is_one_of_the_kernel_instead_of_a_missing_right():
    call = Call("rmdir", place=Place("/", "d0/x"))
    assert accepts(accepted.another_reason, call, "errno", "ENOENT", "EACCES")
    assert not accepts(accepted.another_reason, call, "errno", "OK", "EACCES")
    assert not accepts(accepted.another_reason, call, "errno", "EINVAL", "EACCES")


def test_attributes_may_be_old_if_the_server_is_not_asked():
    assert accepts(accepted.not_asked, Call("statx", flags=kernel.AT_STATX_DONT_SYNC), "nlink", "2", "1")
    assert not accepts(accepted.not_asked, Call("statx", flags=0), "nlink", "2", "1")


def test_a_step_is_read_as_it_was_written():
    generator, known = Generator(1, 4), Known()
    known.open, known.paths, known.links = [["directory", "other"] * 4] * 4, ["d0/f0"], ["d0/l0"]
    # JSON has no tuples.
    shown = lambda step: repr(step).translate(str.maketrans("()", "[]"))
    for _ in range(1000):
        step = generator.step(known)
        assert shown(Step.read(json.loads(json.dumps(step.written())))) == shown(step)


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print(f"passed   {name}")
