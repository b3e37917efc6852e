"""Errors that must reach the program, lost replies, and privileges of the process.

The responder's --fail makes calls fail, or loses their replies.
"""

import errno
import os
import resource
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from reliability.support import BIN, LIMIT, READY, Setup, gone, mounted, of_threads, pattern, ready, state, until, waits


def fails(*failures):
    return [word for failure in failures for word in ("--fail", failure)]


def code(deed, *words):
    """The errno of a call; 0 if it succeeds."""
    try:
        deed(*words)
    except OSError as error:
        return error.errno
    return 0


#: A status of the server, and the errno that the program gets.
STATUSES = {"NOSPC": errno.ENOSPC, "DQUOT": errno.EDQUOT, "IO": errno.EIO, "ROFS": errno.EROFS, "FBIG": errno.EFBIG}


@pytest.mark.parametrize("deed", ["write", "fsync", "close"])
@pytest.mark.parametrize("status", STATUSES)
def test_told_once(status, deed):
    """Two descriptors of a file, one of which writes: which gets the error, when, and how often."""
    expected = STATUSES[status]
    with Setup() as setup:
        (setup.export / "f").write_bytes(b"o" * 300000)
        (setup.export / "other").write_bytes(b"")
        os.chmod(setup.export / "f", 0o666)
        idle = os.open(setup.mnt / "f", os.O_RDWR)
        writer = os.open(setup.mnt / "f", os.O_RDWR)
        assert os.pwrite(writer, b"kept", 0) == 4 and code(os.fsync, writer) == 0
        # No WRITE has failed until here; from here on every WRITE fails.
        setup.restart(*fails(f"WRITE={status}"))
        if deed == "write":
            flagged = os.open(setup.mnt / "f", os.O_RDWR | os.O_SYNC)
            assert code(os.pwrite, flagged, b"x" * 5000, 100000) == expected
            assert code(os.fsync, flagged) == 0 and code(os.close, flagged) == 0, "told again"
        else:
            assert os.pwrite(writer, b"x" * 5000, 100000) == 5000
        if deed == "fsync":
            assert code(os.fsync, writer) == expected
            assert code(os.fsync, writer) == 0, "told twice"
        # Who syncs what others have written has to know; a descriptor that was opened later need not.
        later = os.open(setup.mnt / "f", os.O_RDWR)
        assert [code(os.fsync, idle), code(os.fsync, idle)] == [expected, 0]
        if deed != "close":
            assert code(os.fsync, later) == 0, "told to a descriptor that was opened later"
        # Who may write is told by close(2), too, of what has failed since the open.
        assert code(os.close, later) == (expected if deed == "close" else 0)
        # The rest of the file is unchanged, also its cached part.
        assert os.pread(idle, 10, 0) == b"keptoooooo"
        assert code(os.close, writer) == (0 if deed == "fsync" else expected)
        assert code(os.close, idle) == 0
        assert (setup.export / "f").read_bytes() == b"kept" + b"o" * 299996
        # And it is shown as the server has it: lost data is not shown any more.
        assert (setup.mnt / "f").read_bytes() == b"kept" + b"o" * 299996
        # When the server accepts data again, the mount works again.
        setup.restart()
        (setup.mnt / "other").write_bytes(b"y" * 100000)
        assert (setup.export / "other").read_bytes() == b"y" * 100000
        result = setup.unmount()
        assert result.returncode == 0, result.stderr
        setup.client_ended()


@pytest.mark.parametrize("how", ["exec", "close", "exit"])
def test_a_child_that_closes_what_it_inherited_takes_no_error_away(setup, how):
    """Its close(2) writes what its parent has written, and nobody looks at the result."""
    setup.restart(*fails("WRITE=NOSPC"))
    file = os.open(setup.mnt / "f", os.O_RDWR | os.O_CREAT)
    assert os.write(file, b"x" * 5000) == 5000
    if how == "exec":
        subprocess.run(["true"], check=True)
    else:
        child = os.fork()
        if child == 0:
            if how == "close":
                code(os.close, file)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    assert [code(os.fsync, file), code(os.fsync, file)] == [errno.ENOSPC, 0]
    # It was told: neither the last close nor the unmount tell it again.
    assert code(os.close, file) == 0
    result = setup.unmount()
    assert result.returncode == 0, result.stderr


def test_some_writes_fail_and_the_others_are_kept():
    """Some WRITEs of 8 MiB are refused: write(2) and fsync report it, and all other data is there."""
    # Position Zero chunks would make WRITEs smaller than a block.
    with Setup(",wsize=1M,write_chunk=reduced") as setup:
        setup.restart(*fails("WRITE=IO:2"))
        file = os.open(setup.mnt / "f", os.O_RDWR | os.O_CREAT)
        data = pattern(8 << 20, 5)
        told = 0
        for at in range(0, len(data), 1 << 20):
            while error := code(os.pwrite, file, data[at : at + (1 << 20)], at):
                assert error == errno.EIO
                told += 1
        # Twice each, if the kernel may have dropped the error, because a write(2) is several WRITEs.
        assert told <= 4
        assert [code(os.fsync, file), code(os.fsync, file)] == [errno.EIO, 0]
        there = (setup.export / "f").read_bytes()
        size = 1 << 20
        blocks = [there[at : at + size] == data[at : at + size] for at in range(0, len(data), size)]
        assert 6 <= blocks.count(True) < 8, blocks
        # Written again, it is complete.
        assert os.pwrite(file, data, 0) == len(data) and code(os.fsync, file) == 0
        assert (setup.export / "f").read_bytes() == data
        assert code(os.close, file) == 0


def test_a_failed_commit_is_told_once(setup):
    setup.restart(*fails("COMMIT=IO:1"))
    file = os.open(setup.mnt / "f", os.O_RDWR | os.O_CREAT)
    for at in range(4):
        os.pwrite(file, b"c" * (1 << 20), at << 20)
    assert [code(os.fsync, file), code(os.fsync, file), code(os.close, file)] == [errno.EIO, 0, 0]


def unwritable(setup):
    """A process that has written and has not closed the file."""
    (setup.mnt / "dir").mkdir()
    child = setup.helper(
        "f = os.open(sys.argv[1] + '/dir/new', os.O_WRONLY | os.O_CREAT)\n"
        "os.pwrite(f, b'x' * 5000, 4096)\n"
        "print('now', flush=True)\n"
        "time.sleep(1000)"
    )
    assert child.stdout.readline() == "now\n", child.stderr.read()
    return child


def test_unmounting_says_which_file_and_range_is_lost(setup):
    """Data of a killed process that the server refuses is reported in the log, and on the terminal of the unmount."""
    child = unwritable(setup)
    setup.pause()
    gone(child)
    setup.restart(*fails("WRITE=DQUOT"))
    result = setup.unmount()
    assert result.returncode != 0 and not mounted(setup.mnt)
    setup.client_ended()
    for where, text in (("log", (setup.base / "client.log").read_text()), ("terminal", result.stderr)):
        assert "bytes 4096 to 9096 of /dir/new " in text and "lost" in text, f"{where}: {text}"
    assert "DQuot" in result.stderr, result.stderr


@pytest.mark.parametrize("arguments", [[], ["--drc", "0"]], ids=["remembered", "forgotten"])
def test_lost_replies(arguments):
    """Each non-idempotent call, whose first reply is lost after the server executed it: with and without its cache of duplicate requests."""
    names = ("MKNOD", "SETATTR", "LINK", "RENAME", "SYMLINK", "RMDIR", "MKDIR", "CREATE", "REMOVE", "WRITE")
    with Setup(",timeo=5,cache=16M", arguments) as setup:
        export, mnt = setup.export, setup.mnt
        for name in ("a", "b", "c", "w"):
            (export / name).write_bytes(name.encode())
        (export / "d").mkdir()
        setup.restart(*arguments, *fails(*(f"{name}=LOST:1" for name in names)))
        os.mkfifo(mnt / "fifo", 0o640)
        assert stat.S_ISFIFO(os.lstat(export / "fifo").st_mode)
        os.chmod(mnt / "a", 0o604)
        assert stat.S_IMODE(os.stat(export / "a").st_mode) == 0o604
        os.link(mnt / "a", mnt / "a2")
        assert os.stat(export / "a2").st_ino == os.stat(export / "a").st_ino
        os.rename(mnt / "b", mnt / "b2")
        assert sorted(os.listdir(export)).count("b2") == 1 and not (export / "b").exists()
        os.symlink("target", mnt / "s")
        assert os.readlink(export / "s") == "target"
        os.rmdir(mnt / "d")
        assert not (export / "d").exists()
        os.mkdir(mnt / "made")
        assert (export / "made").is_dir()
        with open(mnt / "new", "xb") as file:
            file.write(b"new")
        assert (export / "new").read_bytes() == b"new"
        os.unlink(mnt / "c")
        assert not (export / "c").exists()
        (mnt / "w").write_bytes(b"twice is as good as once")
        assert (export / "w").read_bytes() == b"twice is as good as once"
        # Somebody else has made it, and the call is not a retransmission, so the error is right.
        assert code(os.mkdir, mnt / "made") == errno.EEXIST
        assert code(os.rmdir, mnt / "d") == errno.ENOENT
        assert code(os.link, mnt / "a", mnt / "a2") == errno.EEXIST
        assert setup.unmount().returncode == 0
        setup.client_ended()


def test_the_process_keeps_only_the_capabilities_it_needs(setup):
    """Also its bounding set, in every thread; it cannot be dumped; programs that it starts gain nothing."""
    needed = sum(1 << bit for bit in (2, 10, 14, 19, 21))
    (setup.mnt / "f").write_bytes(b"f")
    own = dict(line.split(":\t") for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    threads = of_threads(setup.client, "status")
    assert len(threads) > 2
    for status in threads:
        has = dict(line.split(":\t") for line in status.splitlines() if ":\t" in line)
        for kind in ("CapEff", "CapPrm"):
            assert int(has[kind], 16) == int(own[kind], 16) & needed, (has["Name"], kind, has[kind])
        assert int(has["CapBnd"], 16) & ~needed == 0, has["CapBnd"]
        assert int(has["CapInh"], 16) == 0 and int(has["CapAmb"], 16) == 0
        assert has["NoNewPrivs"] == "1"
    # Everything still works: reconnecting, and the end.
    setup.kill()
    setup.start()
    (setup.mnt / "g").write_bytes(b"g")
    os.kill(setup.client, signal.SIGTERM)
    until(lambda: not mounted(setup.mnt), "the end of the mount")
    setup.client_ended()
    assert (setup.export / "g").read_bytes() == b"g"


def test_a_core_dump_holds_no_file_data():
    """There is no dump, where other processes leave one; and buffers with file data would not be in it."""
    pattern = Path("/proc/sys/kernel/core_pattern").read_text()
    if pattern.startswith(("|", "/")):
        pytest.skip("cores go elsewhere here: kernel.core_pattern")

    def cores():
        return {path for path in Path("/").iterdir() if "core" in path.name}

    old = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY if old[1] < 0 else old[1], old[1]))
    try:
        with Setup() as setup:
            control = subprocess.Popen(["sleep", "1000"], cwd=setup.base)
            setup.helpers.append(control)
            until(lambda: state(control.pid) == "S", "a process to abort")
            control.send_signal(signal.SIGABRT)
            control.wait(LIMIT)
            if not [path for path in setup.base.iterdir() if "core" in path.name]:
                pytest.skip("no process leaves a core here")
            (setup.mnt / "f").write_bytes(b"nobody is to find this in a core" * 1000)
            regions = Path(f"/proc/{setup.client}/smaps").read_text()
            assert any(line.startswith("VmFlags") and " dd" in line for line in regions.splitlines())
            before = cores()
            os.kill(setup.client, signal.SIGABRT)
            setup.client_ended()
            assert cores() == before, cores() - before
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, old)


def test_options_are_on_no_command_line_of_a_child(setup):
    """A program that is started (fusermount3, for a plain user) gets the mount's source, and no option of the mount."""
    assert setup.unmount().returncode == 0
    setup.client_ended()
    shim = setup.base / "bin"
    shim.mkdir()
    said = setup.base / "said"
    (shim / "fusermount3").write_text(f'#!/bin/sh\necho "$@" >> {said}\nexit 1\n')
    (shim / "fusermount3").chmod(0o755)
    said.touch()
    said.chmod(0o666)
    point = setup.base / "own"
    point.mkdir()
    # Without this capability mount(2) fails, as for a plain user.
    result = subprocess.run(
        ["capsh", "--drop=cap_sys_admin", "--", "-c", 'exec "$@"', "-",
         BIN / "nfsrdma", "mount", f"127.0.0.1:{setup.export}", point, "-o",
         f"port={setup.port},mountport={setup.mountport},mountproto=tcp,noresvport,cache=17M,timeo=77"],
        env={"PATH": f"{shim}:/usr/sbin:/usr/bin:/sbin:/bin"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    words = said.read_text()
    assert result.returncode != 0 and words, result.stderr
    assert "fsname=" in words and not any(w in words for w in ("17M", "timeo", "port=", "mountproto")), words


def test_a_silent_server_and_a_mapping_of_a_file_that_is_flushed(record_property):
    """A process with a mapping of a file can be killed in close, and its data arrives, while another one waits in fsync: the pages of
    the mapping do not wait for that flush."""
    with Setup(",cache=16M") as setup:
        (setup.export / "old").write_bytes(bytes(1 << 20))
        opening = "f = os.open(sys.argv[1] + '/old', os.O_RDWR)\n"
        writer = setup.helper(opening + READY + "os.pwrite(f, b'other', 0); os.fsync(f); time.sleep(1000)")
        child = setup.helper(
            opening + "m = mmap.mmap(f, 0); m[4096]\n" + READY + "m[4096:4101] = b'first'; os.close(f); time.sleep(1000)"
        )
        ready(writer)
        ready(child)
        setup.pause()
        waits(writer)
        waits(child)
        took = gone(child)
        setup.go_on()
        wanted = {0: b"other", 4096: b"first"}
        until(lambda: all((setup.export / "old").read_bytes()[at:at + 5] == text for at, text in wanted.items()),
              "what was written, and in the mapping")  # fmt: skip
        record_property("result", f"gone after {took:.2f} s")
