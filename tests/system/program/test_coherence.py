"""Old and new data, and what is kept: docs/COHERENCE.md, with two mounts of a real export."""

import contextlib
import errno
import mmap
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from program.users import A, B, by, by_effective, write
from program.support import *  # noqa: F403

PAGE = 4096


def page(descriptor, number):
    return os.pread(descriptor, PAGE, number * PAGE)


def test_names_are_looked_up_again_once_a_change_by_another_mount_is_noticed():
    """Also before the attributes of their directory have expired."""
    if tuple(map(int, os.uname().release.split(".")[:2])) < (6, 2):
        pytest.skip("kernels before 6.2 cannot be told to look names up again")
    with Server() as server:
        (server.export / "d").mkdir()
        (server.export / "d/removed").write_text("")
        server.mount_well("actimeo=3600")
        here = server.mnt / "d"
        assert [(here / name).exists() for name in ("removed", "made")] == [True, False]
        (server.export / "d/removed").unlink()
        (server.export / "d/made").write_text("")
        assert [(here / name).exists() for name in ("removed", "made")] == [True, False], "nothing has told of it"
        # The reply to this call shows that somebody else has changed the directory.
        (here / "own").write_text("")
        until(lambda: (here / "made").exists(), "the new name")
        until(lambda: not (here / "removed").exists(), "the end of the old one")
        assert sorted(os.listdir(here)) == ["made", "own"]


def test_who_is_told_that_a_name_exists_finds_it_and_who_is_told_that_it_is_gone_does_not():
    """What the mount believes of a name is contradicted by what a call that changes it is answered."""
    with Server() as server:
        here, there = server.mnt, server.export
        server.mount_well("actimeo=3600")
        (there / "file").write_bytes(b"")

        def exclusive(path):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))

        making = {
            "exclusive": exclusive,
            "fifo": os.mkfifo,
            "link": lambda path: os.link(here / "file", path),
            "mkdir": os.mkdir,
            "symlink": lambda path: os.symlink("file", path),
        }
        for name, make in making.items():
            for _ in range(2):
                assert not os.path.lexists(here / name)
            (there / name).mkdir()
            with pytest.raises(FileExistsError):
                make(here / name)
            assert os.path.lexists(here / name), f"{name}: it exists, and is not found"
        assert not os.path.lexists(here / "path")
        (there / "path").mkdir()
        expect(run("mkdir", "-p", here / "path/below"), 0)
        removing = {
            "rename": lambda path: os.rename(path, here / "new"),
            "rmdir": os.rmdir,
            "unlink": os.unlink,
        }
        for name, remove in removing.items():
            path = here / f"no-{name}"
            remove_there, make = (os.rmdir, os.mkdir) if name == "rmdir" else (os.unlink, exclusive)
            make(path)
            os.stat(path)
            remove_there(there / path.name)
            with pytest.raises(FileNotFoundError):
                remove(path)
            assert not os.path.lexists(path), f"{name}: it is gone, and is found"


def test_a_file_whose_entry_did_not_fit_into_a_listing_is_up_to_date():
    """Another client has extended the files of a directory, of which a program then lists only a part."""
    with Server() as server:
        names = [f"{number:04}{'x' * 200}" for number in range(200)]
        for name in names:
            (server.export / name).write_bytes(b"o" * 10)
        server.mount_well("actimeo=3600")
        for name in names:
            assert (server.mnt / name).read_bytes() == b"o" * 10
        for name in names:
            with open(server.export / name, "ab") as file:
                file.write(b"n")
        # Opening the directory shows this change, so it is listed by the server.
        (server.export / "new").touch()
        with os.scandir(server.mnt) as listing:
            next(listing)
            # What comes behind the entries that fit is read ahead.
            until(lambda: event(server, "foreign_changes") > 100, "the changes that the listing shows")
            sizes = {len(read_without_stat(server.mnt / name)) for name in names}
        assert sizes == {11}


def test_a_time_set_before_close_outlives_a_restart_of_the_server():
    with Server() as server:
        server.mount_well()
        for name, size in (("small", 100), ("large", 8 << 20)):
            # A separate program, which can be killed if the server does not come back.
            script = (
                "import os, sys; own = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); size = int(sys.argv[2]);"
                "[os.write(own, b'x' * min(size, 1 << 20)) for _ in range((size + (1 << 20) - 1) >> 20)];"
                "os.utime(own, (1_000_000, 1_000_000)); print(flush=True); sys.stdin.read(); os.close(own)"
            )
            words = [sys.executable, "-c", script, server.mnt / name, str(size)]
            with running(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
                assert program.stdout.readline() == b"\n"
                server.child.send_signal(signal.SIGKILL)
                server.child.wait()
                server.start()
                program.communicate(timeout=LIMIT)
                assert program.returncode == 0, program.returncode
            found = os.stat(server.export / name)
            assert (found.st_mtime, found.st_size) == (1_000_000, size), found


def test_a_set_uid_bit_that_a_write_clears_is_shown_cleared_at_once():
    root()
    with Server() as server:
        file = server.export / "f"
        file.write_bytes(b"program")
        file.chmod(0o4777)
        server.mount_well("allow_other,actimeo=3600")
        path = server.mnt / "f"

        def mode():
            # stat(1) only asks for the mode.
            result = run("stat", "-c", "%a", path)
            expect(result, 0)
            return result.stdout.strip()

        assert mode() == "4777", mode()
        expect(as_nobody("dd", "if=/dev/zero", f"of={path}", "bs=1", "count=1", "conv=notrunc,fsync"), 0)
        at_server = f"{Path(file).stat().st_mode & 0o7777:o}"
        if at_server != "777":
            pytest.skip(f"this server leaves the mode {at_server}")
        until(lambda: mode() == "777", "the mode without the bit")


def test_what_a_first_read_brings_late_does_not_come_back_where_a_file_was_cut():
    with scripted() as (server, command):
        (server.export / "f").write_bytes(b"o" * 2 * PAGE)
        server.mount_well()
        path = server.mnt / "f"
        with opening(path) as own:
            # The READ is executed, and its reply with the old bytes is held back.
            with held(command, "hold-reply READ"):
                reader = Call(page, own, 0)
                command(f"wait-held 1 {LIMIT * 1000}")
                # This waits for the page that the reader has locked, after the server has cut the file.
                cutter = Call(os.truncate, path, 0)
                until(lambda: os.stat(server.export / "f").st_size == 0, "the file cut at the server")
            reader.end(), cutter.end()
            os.ftruncate(own, 2 * PAGE)
            for number in range(2):
                assert page(own, number) == bytes(PAGE), page(own, number)[:1]


def test_who_may_not_write_any_more_costs_nobody_else_data():
    """Two users write to one file, the second one without the right: no data of the first is written in the second
    one's name."""
    root()
    for restarts in (False, True):
        with scripted("--fake-unstable") as (server, command):
            server.mount_well()
            path, size = server.mnt / "f", 128 << 10
            by(A, write, path, b"", 0o666)
            own, theirs = os.open(path, os.O_RDWR), by_effective(B, os.open, path, os.O_RDWR)
            try:
                by_effective(A, os.chmod, path, 0o644)
                os.pwrite(own, b"r" * size, 0)
                os.pwrite(theirs, b"b" * 100, size)
                if restarts:
                    command("restart")
                refused_by = []
                for descriptor in (theirs, own):
                    try:
                        os.fsync(descriptor)
                    except PermissionError:
                        refused_by.append(descriptor)
                # Each open file is told, whoever wrote, as with Linux.
                assert theirs in refused_by, f"{refused_by} of {(theirs, own)} are told"
                found = (server.export / "f").read_bytes()
                assert found == b"r" * size, (restarts, len(found), set(found))
            finally:
                os.close(own)
                os.close(theirs)


def test_what_one_mapped_is_not_written_in_the_name_of_another():
    """The kernel sends mapped pages by any open file that is mapped; here by one of a user who may not write any
    more."""
    root()
    for option in ("", "permissions=server,allow_other"):
        with Server() as server:
            server.mount_well(option)
            path = server.mnt / "f"
            by(A, write, path, b"o" * 2 * PAGE, 0o666)
            files = [by_effective(user, os.open, path, os.O_RDWR) for user in (A, B)]
            try:
                for first, second in ((0, 1), (1, 0)):
                    maps = [mmap.mmap(files[number], 2 * PAGE) for number in (first, second)]
                    own = maps[first]
                    by_effective(A, os.chmod, path, 0o644)
                    text = bytes([ord("a") + first]) * 100
                    own[PAGE : PAGE + 100] = text
                    own.flush()
                    os.fsync(files[0])
                    at_server = (server.export / "f").read_bytes()
                    for each_map in maps:
                        each_map.close()
                    assert at_server[PAGE : PAGE + 100] == text, f"fsync says that it is kept: {at_server[PAGE:PAGE + 3]}"
            finally:
                for descriptor in files:
                    os.close(descriptor)


def seen(condition, seconds=2):
    """Whether it becomes true soon. It is for what happens on a client with the defect, and never on another."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not condition():
        time.sleep(0.01)
    return condition()


def test_what_a_first_read_brings_while_a_truncation_is_under_way_does_not_come_back():
    with scripted() as (server, command):
        (server.export / "f").write_bytes(b"o" * 2 * PAGE)
        server.mount_well()
        path = server.mnt / "f"
        with opening(path) as own:
            # No data of the file is cached when the truncation is sent. It is executed after the READ.
            with held(command, "hold SETATTR"):
                cutter = Call(os.truncate, path, 0)
                command(f"wait-held 1 {LIMIT * 1000}")
                reader = Call(page, own, 0)
                seen(lambda: not reader.is_alive())
            reader.end(), cutter.end()
            os.ftruncate(own, 2 * PAGE)
            for number in range(2):
                assert page(own, number) == bytes(PAGE), page(own, number)[:1]


def test_a_truncation_is_not_undone_by_a_restart_of_the_server():
    with scripted("--fake-unstable") as (server, command):
        server.mount_well()
        path = server.mnt / "f"
        with opening(path, os.O_RDWR | os.O_CREAT) as own:
            for number in range(8):
                os.pwrite(own, b"x" * (1 << 20), number << 20)
            os.ftruncate(own, 100)
            command("restart")
        found = (server.export / "f").read_bytes()
        assert found == b"x" * 100, (len(found), found[:1])
        # Data that was cut off is not written again later either.
        with opening(path) as own:
            os.ftruncate(own, 2 * PAGE)
            command("restart")
            os.fsync(own)
        found = (server.export / "f").read_bytes()
        assert found == b"x" * 100 + bytes(2 * PAGE - 100), len(found)


def test_what_a_read_brings_late_is_not_kept_when_newer_attributes_are_known():
    for change in ("longer", "as long"):
        with scripted() as (server, command):
            (server.export / "f").write_bytes(b"o" * PAGE)
            # Each stat(2) fetches the attributes, and the next open uses them.
            server.mount_well("noac")
            path = server.mnt / "f"
            with opening(path) as own:
                with held(command, "hold-reply READ"):
                    reader = Call(page, own, 0)
                    command(f"wait-held 1 {LIMIT * 1000}")
                    new = b"n" * (2 * PAGE if change == "longer" else PAGE)
                    (server.export / "f").write_bytes(new)
                    # The mount learns the new attributes by this stat(2), while the kernel waits for the page that is being
                    # read.
                    asker = Call(os.stat, path)
                    until(lambda: event(server, "foreign_changes") > 0, "the change seen")
                reader.end(), asker.end()
            for round in range(2):
                with opening(path) as own:
                    found = os.pread(own, 3 * PAGE, 0)
                assert found == new, f"{change}, round {round}: {len(found)} bytes, {found[:1]}"


def test_a_direct_write_is_not_done_again_after_a_truncation():
    with scripted("--fake-unstable") as (server, command):
        server.mount_well()
        path = server.mnt / "f"
        size = 2 << 20
        with opening(path, os.O_RDWR | os.O_CREAT) as own, opening(path, os.O_RDWR | os.O_DIRECT) as direct:
            block = mmap.mmap(-1, size)
            block.write(b"d" * size)
            for what in ("WRITE", "COMMIT", "SETATTR"):
                os.pwrite(own, b"o" * size, 0)
                os.fsync(own)
                with held(command, f"hold {what}"):
                    writer, cutter = Call(os.pwritev, direct, [block], 0), Call(os.ftruncate, own, 0)
                    if what != "COMMIT":
                        command(f"wait-held 1 {LIMIT * 1000}")
                    # Uncommitted data is lost, and written again.
                    command("restart")
                assert (writer.end(), cutter.end()) == (size, None)
                os.fsync(own)
                found = (server.export / "f").read_bytes()
                shown = os.pread(own, 2 * size, 0)
                assert found in (b"", b"d" * size), f"{what} held: {len(found)} bytes, {set(found)}"
                assert shown == found, f"{what} held: {len(shown)} bytes are shown of {len(found)}"


def test_buffers_that_lost_connections_hold_for_long_cost_no_data():
    with scripted("--fake-unstable") as (server, command):
        # With the smallest cache, calls under way hold much of the pool.
        server.mount_well("cache=16M,dirty=8M,timeo=20")
        size, files = 4 << 20, 6

        def write(number):
            with opening(server.mnt / f"f{number}", os.O_RDWR | os.O_CREAT) as own:
                for turn in range(2):
                    text = bytes([65 + 10 * turn + number])
                    for at in range(0, size, 64 << 10):
                        os.pwrite(own, text * (64 << 10), at)
                    os.fsync(own)

        writers = [Call(write, number) for number in range(files)]
        for turn in range(8):
            command(f"hold-reply {('WRITE', 'COMMIT')[turn % 2]}")
            if turn % 4 == 0:
                command("restart")
            command("disconnect")
            command("release")
            command("clear")
        assert [writer.end(4 * LIMIT) for writer in writers] == [None] * files
        for number in range(files):
            found = (server.export / f"f{number}").read_bytes()
            assert found == bytes([75 + number]) * size, f"f{number}: {len(found)} bytes, {set(found)}"


def comes(command, procedure, before, seconds):
    """Waits for a call that may come, or may wait for others."""
    limit = time.monotonic() + seconds
    while came(command, procedure) == before and time.monotonic() < limit:
        time.sleep(0.01)


def test_a_truncation_is_not_undone_by_what_is_written_again_beside_it():
    """The server has lost written data, and gets it again between a truncation and its reply."""
    with scripted("--fake-unstable") as (server, command):
        server.mount_well()
        path = server.mnt / "f"
        with opening(path, os.O_RDWR | os.O_CREAT) as own:
            for number in range(8):
                os.pwrite(own, b"x" * (1 << 20), number << 20)
            until(lambda: came(command, "WRITE") >= 8, "the WRITEs")
            command("restart")
            with held(command, "hold-reply SETATTR"):
                cut = Call(os.ftruncate, own, 100)
                command(f"wait-held 1 {LIMIT * 1000}")
                # Uncommitted data is written after five seconds.
                comes(command, "WRITE", came(command, "WRITE"), 8)
            cut.end()
        command("restart")
        found = (server.export / "f").read_bytes()
        assert found == b"x" * 100, (len(found), found[:1])


def test_a_truncation_is_not_undone_by_a_killed_direct_write_before_it():
    """A program is killed in a write with O_DIRECT, while its WRITE is on its way. Then the file is truncated."""
    script = (
        "import mmap, os, sys; data = mmap.mmap(-1, 8 * 4096); data.write(b'd' * 8 * 4096);"
        "own = os.open(sys.argv[1], os.O_RDWR | os.O_DIRECT); print(flush=True); os.pwritev(own, [data], 0)"
    )
    with scripted() as (server, command):
        (server.export / "f").write_bytes(b"o" * PAGE)
        server.mount_well()
        path = server.mnt / "f"
        with held(command, "hold WRITE 1"):
            program = subprocess.Popen([sys.executable, "-c", script, path], stdout=subprocess.PIPE)
            try:
                assert program.stdout.readline() == b"\n"
                command(f"wait-held 1 {LIMIT * 1000}")
            finally:
                program.kill()
            Call(program.communicate).end()
            # If the SETATTR does not wait for the WRITE, the server executes it first.
            before = came(command, "SETATTR")
            cut = Call(os.truncate, path, 100)
            comes(command, "SETATTR", before, 0.7)
        cut.end()
        assert os.stat(path).st_size == 100
        found = (server.export / "f").read_bytes()
        assert len(found) == 100, (len(found), found[:1])


@contextlib.contextmanager
def to_be_killed(script, *words):
    """Runs a Python script that waits for a command. The yielded function gives the command, waits until the script
    is in a system call that takes long, and kills it."""

    def kill():
        program.stdin.write(b"\n")
        program.stdin.flush()
        assert program.stdout.readline() == b"now\n"
        until(lambda: blocked(program.pid), "a program that waits")
        program.kill()
        assert program.wait(LIMIT) == -signal.SIGKILL, "it did not wait"

    with running(sys.executable, "-c", script, *words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout.readline() == b"ready\n"
        yield kill


TOLD = "print('ready', flush=True); sys.stdin.readline(); print('now', flush=True); "


def test_a_killed_removal_does_not_take_away_what_comes_later():
    """The server answers REMOVE by JUKEBOX; the program is killed, and another file takes the place of the removed
    one."""
    with scripted() as (server, command):
        (server.export / "f").write_bytes(b"old")
        (server.export / "new").write_bytes(b"new")
        server.mount_well()
        command("jukebox REMOVE 1000")
        with to_be_killed(f"import os, sys; {TOLD} os.unlink(sys.argv[1])", server.mnt / "f") as kill:
            kill()
        os.rename(server.mnt / "new", server.mnt / "f")
        before = came(command, "REMOVE")
        command("clear")
        # The next attempt would come within twice the last pause.
        comes(command, "REMOVE", before, 2)
        assert (server.export / "f").read_bytes() == b"new"


def test_what_another_wrote_is_read_once_a_change_of_the_mode_has_shown_it():
    """The reply to a SETATTR makes the kernel drop no pages, whatever time of modification it shows."""
    with Server() as server:
        there, seen = server.export / "f", server.mnt / "f"
        there.write_bytes(b"o" * PAGE)
        server.mount_well("actimeo=3600")
        with opening(seen) as file:
            for turn, text in enumerate((b"x", b"y", b"z")):
                page(file, 0)
                with opening(there) as theirs:
                    os.pwrite(theirs, text * PAGE, 0)
                os.chmod(seen, 0o600 + turn)
                until(lambda text=text: page(file, 0) == text * PAGE, "what was written at the server")


@pytest.mark.responder("--fail", "SETATTR=IO:1")
@pytest.mark.parametrize("mount", ["actimeo=3600", "actimeo=3600,permissions=server"], indirect=True)
def test_a_file_whose_exclusive_create_fails_half_way_is_seen(mount, server):
    """An exclusive CREATE sets the attributes by a SETATTR of its own. That one may fail, and the name is there."""
    assert not (mount / "f").exists() and os.listdir(mount) == []
    with pytest.raises(OSError) as raised:
        os.open(mount / "f", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    assert raised.value.errno == errno.EIO
    assert (server.export / "f").exists()
    # The kernel is notified after the reply to the call that failed.
    until(lambda: (mount / "f").exists(), "the name that was made")
    assert os.listdir(mount) == ["f"]


def test_names_that_a_listing_has_shown_lead_to_what_is_there():
    """Another client has exchanged the files of a directory. The listing comes before the kernel is notified."""
    with Server() as server:
        names = [f"{number:04}{'x' * 200}" for number in range(200)]
        for name in names:
            (server.export / name).write_text(name)
        server.mount_well("actimeo=3600")
        for name in names:
            assert (server.mnt / name).read_text() == name
        for one, other in zip(names[::2], names[1::2]):
            os.rename(server.export / one, server.export / "third")
            os.rename(server.export / other, server.export / one)
            os.rename(server.export / "third", server.export / other)
        assert sorted(os.listdir(server.mnt)) == names
        old = lambda name: (server.mnt / name).read_text() == name
        until(lambda: not any(map(old, names)), "names that lead to what is there")


def test_a_stat_by_name_knows_of_a_write():
    """The server determines the time of a write, so stat(2) writes dirty data first, even where each stat(2) looks the name up."""
    with Server() as server:
        server.mount_well("nolock,lookupcache=none")
        path = server.mnt / "f"
        file = os.open(path, os.O_CREAT | os.O_WRONLY)
        os.utime(file, (10**9, 10**9))
        assert os.stat(path).st_mtime == 10**9
        os.write(file, b"new")
        after = os.stat(path)
        assert after.st_size == 3 and after.st_mtime > 10**9
        assert after.st_mtime_ns == os.fstat(file).st_mtime_ns
        os.close(file)


def test_mappings_follow_what_another_wrote_on_open():
    """An open that finds the file changed has the kernel drop its pages, also those in mappings; but a private page that was
    stored to stays as it was made."""
    with Server() as server:
        server.mount_well("nolock")
        (server.export / "f").write_bytes(b"a" * 8192)
        file = os.open(server.mnt / "f", os.O_RDWR)
        with mmap.mmap(file, 8192) as shared, mmap.mmap(file, 8192, mmap.MAP_PRIVATE) as private:
            assert shared[5000] == private[5000] == ord("a")
            private[0] = ord("P")
            (server.export / "f").write_bytes(b"2" * 8192)
            os.close(os.open(server.mnt / "f", os.O_RDWR))
            assert shared[5000] == private[5000] == ord("2")
            assert (shared[0], private[0]) == (ord("2"), ord("P"))
        os.close(file)
        assert (server.export / "f").read_bytes() == b"2" * 8192


@pytest.mark.parametrize(
    "use",
    [os.stat, lambda path: open(path).close(), lambda path: os.link(path, f"{path}2"), lambda path: os.truncate(path, 0), os.unlink],
    ids=["stat", "open", "link", "truncate", "unlink"],
)
def test_names_of_what_is_gone_are_looked_up_again(use):
    """Names are valid longer than attributes. But if a name leads to a file that is gone, it is looked up again before the program
    gets an error."""
    with Server() as server:
        server.mount_well("nolock,acregmin=0,acregmax=0,acdirmin=3600,acdirmax=3600")
        (server.export / "d").mkdir()
        gone, replaced = server.mnt / "d" / "gone", server.mnt / "d" / "replaced"
        for path in (gone, replaced):
            path.write_text("old")
            assert path.stat().st_size == 3
        (server.export / "d" / "gone").unlink()
        with pytest.raises(FileNotFoundError):
            use(gone)
        (server.export / "new").write_text("another file")
        (server.export / "new").rename(server.export / "d" / "replaced")
        assert replaced.read_text() == "another file"


@pytest.mark.parametrize("beside", ["write", "stat"])
@pytest.mark.parametrize("pages", [1, 4])
def test_zeros_behind_the_end_in_a_read_beside_another_call_do_not_stay(pages, beside):
    """Another client has cut a file, whose last pages are read. What is done meanwhile makes the kernel ignore the end in the
    reply to the READ; the zeros that it then has as data behind the end are dropped soon."""
    page = 4096
    before, after = (2 + pages) * page, 2 * page + 100
    with scripted() as (server, command):
        (server.export / "f").write_bytes(b"7" * before)
        server.mount_well("nolock,acregmin=3600,acregmax=3600,readahead=0")
        file = os.open(server.mnt / "f", os.O_RDWR)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        os.truncate(server.export / "f", after)
        command("hold-reply READ")
        code = "import os, sys; os.pread(int(sys.argv[1]), int(sys.argv[2]), 8192)"
        with subprocess.Popen([sys.executable, "-c", code, str(file), str(pages * page)], pass_fds=[file]) as reader:
            command(f"wait-held 1 {LIMIT * 1000}")
            if beside == "write":
                os.pwrite(file, b"w", 0)
            else:
                os.fstat(file)
            command("clear")
            assert reader.wait(LIMIT) == 0
        wanted = (b"w" if beside == "write" else b"7") + b"7" * (after - 1)
        until(lambda: os.pread(file, before, 0) == wanted and os.fstat(file).st_size == after, "the end")
        os.close(file)
