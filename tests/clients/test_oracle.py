#!/usr/bin/env python3
"""Cases of what each mount may see of others' changes, and what it may not: the oracle neither misses a difference nor invents
one. No server is needed."""

import random
import sys
import time

sys.dont_write_bytecode = True

from content import Content  # noqa: E402
from oracle import SERVER, Oracle  # noqa: E402


class Story(Oracle):
    """An oracle of two mounts and one file, whose name is `a`."""

    def __init__(self, *page_caches, **more):
        super().__init__(["a", "b"], 3, **more)
        self.bind(1, "a", self.create())
        for actor in page_caches:
            self.page_caches[actor] = True

    def do(self, *calls):
        """Calls as `write 1 0 4 7`: what, who, and more."""
        for call in calls:
            what, *arguments = call.split()
            actor, *rest = map(int, arguments)
            getattr(self, what)(actor, 0, *rest)

    def sees(self, actor, *data):
        return self.view(actor, 0).check(0, 100, bytes(data)) is None

    def byte(self, actor, at, value):
        return self.view(actor, 0).check(at, 1, bytes([value])) is None


def test_a_write_is_seen_after_close_and_open():
    o = Story()
    o.do("write 1 0 2 7")
    assert o.sees(1, 7, 7) and not o.sees(1) and o.sees(2, 7, 7) and o.sees(2)
    o.do("flush 1")
    assert o.sees(2), "not opened since"
    assert not o.sees(SERVER)
    o.do("opened 2 0")
    assert o.sees(2, 7, 7) and not o.sees(2)


def test_what_is_synced_to_a_file_that_is_gone_may_be_lost():
    o = Story()
    o.do("write 1 0 4 7")
    o.bind(2, "a", None)
    o.do("flush 1")
    assert o.sees(SERVER) and o.sees(SERVER, 7, 7, 7, 7)


def test_of_two_writers_either_may_be_the_last():
    o = Story()
    o.do("write 1 0 1 7", "write 2 0 1 8", "flush 1", "flush 2", "opened 1 0", "opened 2 0")
    for actor in (1, 2):
        assert o.sees(actor, 7) and o.sees(actor, 8) and not o.sees(actor)


def test_what_was_written_early_may_get_the_time_of_what_another_wrote_later():
    o, past = Story(tick=1), time.monotonic() - 2
    o.objects[0].touched = [past] * 3
    o.do("write 2 0 2 7", "opened 1 1", "write 1 0 4 8", "flush 1", "flush 2")
    o.found(0, bytes([7, 7, 8, 8]))
    o.do("opened 1 0")
    assert o.sees(1, 7, 7, 8, 8) and o.sees(1, 8, 8, 8, 8)
    # A second later the time differs, which the next open shows.
    o.objects[0].touched = [past] * 3
    o.objects[0].dirty_since = [past] * 3
    o.do("write 2 2 4 9", "flush 2")
    o.found(0, bytes([7, 7, 9, 9]))
    o.do("opened 1 0")
    assert o.sees(1, 7, 7, 9, 9) and not o.sees(1, 8, 8, 8, 8)


def test_what_was_written_between_the_writes_of_another_may_stay_unnoticed_whoever_closes_first():
    o = Story()
    for calls in (["write 1 0 1 7"], ["write 2 10 11 8", "write 2 20 21 8"], ["flush 2"], ["flush 1", "opened 2 0"]):
        o.calls_begin()
        o.do(*calls)
    assert o.byte(2, 0, 7) and o.byte(2, 0, 0)
    o.calls_begin()
    o.do("write 1 1 2 9", "flush 1", "opened 2 0")
    assert o.byte(2, 0, 7) and not o.byte(2, 0, 0), "it was changed after the WRITEs"


def test_what_a_process_at_the_server_changed_beside_a_change_may_stay_unnoticed_until_the_next():
    o = Story()
    o.do("write 1 0 4 7", "flush 1", "opened 1 1", "write 0 0 4 8", "truncate 1 3", "changed_beside 1")
    o.found(0, bytes([8] * 3))
    o.do("opened 1 0")
    assert o.sees(1, 8, 8, 8) and o.sees(1, 7, 7, 7)
    o.do("write 0 0 3 9", "opened 1 0")
    assert o.sees(1, 9, 9, 9) and not o.sees(1, 7, 7, 7)


def test_one_after_the_other_the_later_counts():
    o = Story()
    o.do("write 1 0 4 7", "flush 1", "opened 2 0", "write 2 1 2 8", "flush 2", "write 1 2 3 9", "flush 1", "opened 1 0")
    assert o.sees(1, 7, 8, 9, 7) and not o.sees(1, 7, 7, 9, 7)


def test_a_truncation_is_at_the_server_at_once():
    o = Story()
    o.do("write 1 0 4 7", "truncate 1 2", "flush 1", "opened 2 0")
    assert o.sees(2, 7, 7) and not o.sees(2, 7, 7, 7, 7)
    o.do("truncate 2 3")
    assert o.sees(SERVER, 7, 7, 0) and not o.sees(SERVER, 7, 7, 7)


def test_a_name_of_others_may_be_old_and_one_of_ones_own_not():
    o = Story()
    other = o.create()
    assert o.bindings(1, "a") == [0]
    o.bind(2, "a", other)
    assert o.bindings(2, "a") == [other] and 0 in o.bindings(1, "a")
    o.confirm(1, "a")
    assert o.bindings(1, "a") == [other] == o.bindings(SERVER, "a")
    assert o.is_gone(0) and not o.is_gone(other)


def test_zeros_behind_a_cut_end_are_seen_only_by_whose_pages_may_hold_them():
    o, zero = Story(), lambda actor, at: o.seen(actor, 0).check(at, 1, b"\0") is None
    o.do("write 1 0 9000 7", "flush 1", "opened 1 0", "zeros_behind_end 1")
    assert not zero(1, 6000), "nobody has cut it"
    o.do("truncate 2 5000")
    assert zero(1, 6000) and not zero(1, 4000) and not zero(2, 6000)


def test_a_cut_that_is_learned_during_a_write_may_zero_the_rest_of_its_page_until_it_is_written_again():
    o, zeros = Story(), lambda actor: [o.byte(actor, at, 0) for at in (4999, 5000, 8191, 8192)]
    o.do("write 1 0 9000 7", "flush 1", "opened 1 1", "truncate 2 5000")
    assert o.objects[0].cuts_unknown_to(1, []) == [5000]
    o.do("write 1 4000 9000 8")
    assert o.objects[0].cuts_unknown_to(1, []) == [], "its own"
    assert o.objects[0].cuts_unknown_to(1, [5000, 13_000]) == [5000]
    o.do("cut_during_write 1 4000 9000 5000")
    assert zeros(1) == [False, True, True, False]
    o.do("flush 1", "opened 2 0")
    for actor in (SERVER, 1, 2):
        assert zeros(actor) == [False, True, True, False] and o.byte(actor, 5000, 8)
    o.do("write 1 5000 8192 9", "flush 1")
    assert o.byte(SERVER, 5000, 9) and not o.byte(SERVER, 5000, 0)


def test_a_page_cache_may_keep_old_data_and_bring_whole_pages():
    o = Story(2)
    o.do("write 1 0 4 7", "flush 1", "opened 2 0")
    assert o.sees(2, 7, 7, 7, 7) and not o.sees(2)
    o.do("write 1 0 4 8", "flush 1", "opened 2 0")
    assert not o.sees(2, 7, 7, 7, 7), "it only reads"
    o.do("opened 2 1", "write 1 0 4 9", "flush 1", "opened 2 0")
    assert o.sees(2, 8, 8, 8, 8) and o.sees(2, 9, 9, 9, 9)
    assert o.sees(SERVER, 9, 9, 9, 9) and not o.sees(SERVER, 8, 8, 8, 8)
    o.do("write 2 1 2 5", "flush 2")
    assert o.sees(SERVER, 8, 5, 8, 8) and o.sees(SERVER, 9, 5, 9, 9)
    assert not o.sees(SERVER, 7, 5, 7, 7) and not o.sees(SERVER, 9, 9, 9, 9)


def test_bytes_between_two_pieces_of_a_page_stay_what_another_wrote():
    o = Story()
    o.do("write 2 0 100 7", "flush 2", "opened 1 0", "write 1 10 20 1", "write 1 30 40 2")
    o.do("write 2 25 27 5", "flush 2", "flush 1")
    assert o.byte(SERVER, 25, 5) and not o.byte(SERVER, 25, 7)


def test_a_page_cache_may_bring_back_what_it_had_not_written_when_it_created_the_file_empty():
    for dirty in (True, False):
        o = Story(2)
        o.do("opened 2 1", "write 2 0 4 7", "flush 2", *["write 2 1 2 8"] * dirty, "created_empty 2")
        for actor in (SERVER, 1, 2):
            assert o.sees(actor) and o.sees(actor, 7, 8, 7, 7) == dirty
        o.do("flush 2")
        assert o.sees(SERVER, 7, 8, 7, 7) == dirty
        o.do("truncate 2 0")
        assert not o.sees(SERVER, 7, 8, 7, 7)


def test_a_page_cache_may_show_again_what_it_kept_over_a_truncation_that_changed_nothing():
    o = Story(2)
    o.do("opened 2 1", "write 2 0 4 7", "flush 2", "truncate 0 0", "truncate 2 0")
    assert o.sees(2) and not o.sees(2, 7, 7, 7, 7)
    o.do("truncate 2 4")
    assert o.sees(2, 0, 0, 0, 0) and o.sees(2, 7, 7, 7, 7) and not o.sees(SERVER, 7, 7, 7, 7)
    o.do("truncate 2 2", "truncate 2 4")
    assert not o.sees(2, 7, 7, 7, 7) and o.sees(2, 7, 7, 0, 0)


def test_a_time_that_was_set_holds_until_somebody_writes():
    o = Story()
    o.do("write 1 0 4 7", "set_mtime 1 1000")
    assert (o.mtime(1, 0), o.mtime(2, 0)) == (1000, None)
    o.do("flush 1", "opened 2 0")
    assert o.mtime(2, 0) == 1000
    o.do("write 2 0 4 8")
    assert o.mtime(1, 0) is None
    o.do("set_mtime 1 1001")
    assert o.mtime(1, 0) is None, "the write may come later"


def test_a_write_that_may_have_happened_leaves_both():
    content = Content.empty()
    content.write(0, 4, 1)
    content.maybe_write(6, 8, 2)
    assert content.may_have_size(4) and content.may_have_size(8) and not content.may_have_size(3)
    assert content.size() is None
    fits = [content.check(0, 10, bytes(data)) is None for data in (
        (1, 1, 1, 1), (1, 1, 1, 1, 0, 0, 2, 2), (1, 1, 1, 1, 0, 0, 0, 2), (1, 1, 1, 1, 9), (1, 1))]  # fmt: skip
    assert fits == [True, True, True, False, False]


def test_zeros_behind_the_end_are_only_where_it_may_be():
    content, cut = Content.empty(), Content.empty()
    content.write(0, 8, 1)
    cut.write(0, 4, 1)
    content.add(cut)
    fits = lambda *data: content.check(0, 10, bytes(data)) is None
    assert not fits(1, 1, 1, 1, 0, 0, 0, 0)
    content.maybe_zero_behind_end()
    assert fits(1, 1, 1, 1, 0, 0, 0, 0)
    assert not fits(1, 1, 1, 0, 0, 0, 0, 0) and not fits(1, 1, 1, 1, 0, 0, 0, 0, 0)


def test_certain_changes_are_exact():
    """Changes without alternatives match those of a plain array of bytes."""
    choose = random.Random(1)
    for _ in range(200):
        content, model = Content.empty(), bytearray()
        for _ in range(20):
            at, length, value = choose.randrange(60), choose.randrange(20), choose.randrange(1, 255)
            if choose.random() < 0.5:
                content.truncate(at)
                model = model[:at].ljust(at, b"\0")
            elif length:
                content.write(at, at + length, value)
                model = model.ljust(at + length, b"\0")
                model[at : at + length] = bytes([value]) * length
            assert content.size() == len(model) and content == Content.of(model)
            assert content.check(0, 200, model) is None
            wrong = model[:-1] + bytes([model[-1] ^ 1]) if model else b"x"
            assert content.check(0, 200, wrong) is not None


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print(f"passed   {name}")
