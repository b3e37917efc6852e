"""Unmounting: what holds when umount(8), `nfsrdma umount` or SIGTERM have done their work."""

import contextlib
import ctypes
import errno
import mmap
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from program.support import *  # noqa: F403
from program.support import BIN, NOBODY

MIB = 1 << 20
HELPER = Path("/sbin/umount.fuse.nfsrdma")
# Of umount2(2).
MNT_EXPIRE = 4


def killed_after_writing(path, size, before=lambda: None):
    """A program opens `path`; after `before` it writes, and is killed before it closes the file."""
    script = (
        "import os, signal, sys\n"
        "file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)\n"
        "print('open', flush=True)\n"
        "sys.stdin.readline()\n"
        "os.write(file, b'k' * int(sys.argv[2]))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with running(sys.executable, "-c", script, path, str(size), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert select.select([child.stdout], [], [], LIMIT)[0], "open(2) does not return"
        assert child.stdout.readline() == "open\n"
        before()
        child.communicate("write\n", timeout=20)
        assert child.returncode == -signal.SIGKILL, child.returncode


@contextlib.contextmanager
def helper():
    """umount(8) finds our helper."""
    if HELPER.exists() or HELPER.is_symlink():
        pytest.skip(f"{HELPER} exists already")
    HELPER.symlink_to((BIN / "nfsrdma").resolve())
    try:
        yield
    finally:
        HELPER.unlink()


def unwritten(server, size=6 * MIB):
    """The server stops answering, and a program that wrote to a file is killed."""
    killed_after_writing(server.mnt / "a", size, server.pause)


def check_written(server, size=6 * MIB):
    found = (server.export / "a").read_bytes()
    assert found == b"k" * size, f"{found.count(b'k')} of {size} bytes are at the server"


def unmounts_when_all_is_written(server):
    """umount(8) without a helper, which returns 0 only if all data is written."""

    def unmounts():
        if run("umount", server.mnt).returncode != 0:
            return False
        check_written(server)
        return True

    until(unmounts, "umount(8) to succeed")
    server.ended()


def no_helper():
    root()
    if HELPER.exists():
        pytest.skip(f"{HELPER} is installed")


@pytest.mark.alone
def test_plain_umount_fails_while_data_are_unwritten():
    """Also where no helper is installed: umount(2) itself answers EBUSY."""
    no_helper()
    with Server() as server:
        server.mount_well()
        unwritten(server)
        with running("umount", server.mnt, stderr=subprocess.PIPE, text=True) as child:
            try:
                # It may ask the server, which is stopped at first.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(1)
                assert child.returncode != 0, "umount(8) says 0 while the server is stopped"
            finally:
                server.child.send_signal(signal.SIGCONT)
            said = child.communicate(timeout=LIMIT)[1]
        if child.returncode == 0:
            check_written(server)
        else:
            assert "busy" in said, said
            unmounts_when_all_is_written(server)


@pytest.mark.alone
def test_plain_umount_after_a_mapping_leaves_nothing_unwritten():
    """The descriptor was closed before the pages became dirty, so no FLUSH followed."""
    no_helper()
    with Server() as server:
        server.mount_well()
        (server.mnt / "a").write_bytes(b"\0" * (6 * MIB))
        with open(server.mnt / "a", "r+b") as file:
            pages = mmap.mmap(file.fileno(), 0)
        pages[:] = b"k" * (6 * MIB)
        pages.close()
        unmounts_when_all_is_written(server)


def test_a_mount_is_found_where_a_directory_above_it_was_renamed():
    """umount(2) respects what is unwritten there, too, and SIGTERM unmounts it."""
    root()
    # umount(8) would ask the server, which is stopped.
    umount2 = (
        "import ctypes, os, sys\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "print(libc.umount2(os.fsencode(sys.argv[1]), 0), ctypes.get_errno())\n"
    )
    with Server() as server:
        old, new = server.base / "old", server.base / "new"
        (old / "mnt").mkdir(parents=True)
        expect(server.mount(at=old / "mnt"), 0)
        (pid,) = servers_of(old / "mnt")
        old.rename(new)
        killed_after_writing(new / "mnt" / "a", 6 * MIB, server.pause)
        said = run(sys.executable, "-c", umount2, new / "mnt").stdout
        assert said == f"-1 {errno.EBUSY}\n", said
        server.child.send_signal(signal.SIGCONT)
        # Not only the size: the last WRITE may be the first that the server does.
        until(lambda: (server.export / "a").read_bytes() == b"k" * (6 * MIB), "the data to be written")
        os.kill(pid, signal.SIGTERM)
        until(lambda: not servers_of(old / "mnt"), "the process to end")
        assert not mounted(new / "mnt")


# In a namespace without other mounts of the type. Our mount is removed with the namespace.
ALL_OF_THE_TYPE = """
import os, subprocess, sys
for source, point, kind, *_ in map(str.split, open('/proc/self/mounts').read().splitlines()):
    if kind == 'fuse.nfsrdma' and point != sys.argv[1]:
        subprocess.run(['umount', '-i', '-l', point], check=True)
sys.exit(subprocess.run(['umount', '-a', '-t', 'fuse.nfsrdma']).returncode)
"""


@pytest.mark.alone
@pytest.mark.parametrize(
    "unmount",
    [
        lambda server: [BIN / "nfsrdma", "umount", server.mnt],
        lambda server: ["umount", server.mnt],
        lambda server: ["umount", server.spec],
        lambda server: alone(sys.executable, "-c", ALL_OF_THE_TYPE, str(server.mnt)),
    ],
    ids=["nfsrdma", "directory", "source", "type"],
)
def test_umount_waits_for_the_data(unmount):
    root()
    with Server() as server, helper():
        server.mount_well()
        device = device_of(server.mnt)
        unwritten(server)
        with running(*unmount(server), stderr=subprocess.PIPE, text=True) as child:
            try:
                until(lambda: child.poll() is not None or asks(device), "umount to wait for the data")
                assert child.returncode is None, f"status {child.returncode} while the server is stopped"
            finally:
                server.child.send_signal(signal.SIGCONT)
            said = child.communicate(timeout=LIMIT)[1]
        assert child.returncode == 0, said
        check_written(server)


def test_the_table_of_umount_8_has_the_mount_as_long_as_it_is_there():
    root()
    table = Path("/run/mount/utab")
    with Server() as server:

        def entries():
            lines = table.read_text().splitlines() if table.exists() else []
            return [line for line in lines if f"TARGET={server.mnt}" in line.split()]

        server.mount_well()
        (line,) = entries()
        assert {f"SRC={server.spec}", "OPTS=_netdev"} <= set(line.split()), line
        expect(nfsrdma("mount", server.spec, server.mnt, "-o", "remount,ro,_netdev"), 0)
        expect(nfsrdma("umount", server.mnt), 0)
        assert entries() == []
        server.mount_well()
        (pid,) = servers_of(server.mnt)
        os.kill(pid, signal.SIGTERM)
        server.ended()
        assert entries() == []


def test_a_forced_umount_does_not_wait_for_the_data():
    with Server() as server:
        server.mount_well()
        unwritten(server)
        nfsrdma("umount", "-f", server.mnt, limit=30)
        assert not mounted(server.mnt)
        server.child.send_signal(signal.SIGCONT)
        server.ended()
        check_written(server)


# --- The process is killed before everything is at the server ---------------------------------

KILLED = "was killed before all data were known to be at the server"


def unmounting(server, *words):
    return running(BIN / "nfsrdma", "umount", *words, server.mnt, stderr=subprocess.PIPE, text=True)


def asks(device):
    """Whether somebody has asked the process that serves this mount, and waits for its answer."""
    lines = map(str.split, Path("/proc/net/unix").read_text().splitlines())
    return any(fields[5] == "03" and f"{device}.control" in fields[-1] for fields in lines)


@pytest.mark.parametrize("when", ["umount waits", "its last flush"])
def test_a_process_that_is_killed_before_its_data_are_safe_has_not_written_everything(when):
    with Server() as server:
        server.mount_well()
        found, device = processes_of(server.mnt), device_of(server.mnt)
        unwritten(server)
        waits = when == "umount waits"
        with unmounting(server, *([] if waits else ["-f"])) as child:
            until(lambda: asks(device) if waits else not mounted(server.mnt), when)
            kill_processes(found)
            said = child.communicate(timeout=LIMIT)[1]
        assert child.returncode == 32 and KILLED in said, f"status {child.returncode}: {said}"
        assert not mounted(server.mnt)


def test_a_killed_process_may_release_its_mount_after_its_sockets():
    """umount does not say that a mount is in use which only the rest of a killed process holds."""
    with Server() as server:
        server.mount_well()
        found, device = processes_of(server.mnt), device_of(server.mnt)
        unwritten(server)
        # In place of the descriptor that the kernel has not closed yet.
        held = contextlib.ExitStack()
        held.callback(os.close, os.open(server.mnt, os.O_PATH))
        with held, unmounting(server) as child:
            until(lambda: asks(device), "umount to wait for the data")
            kill_processes(found)
            asleep = Path(f"/proc/{child.pid}/wchan")
            until(lambda: child.poll() is not None or "nanosleep" in asleep.read_text(), "umount to wait for the mount")
            held.close()
            said = child.communicate(timeout=LIMIT)[1]
        assert child.returncode == 32 and KILLED in said, f"status {child.returncode}: {said}"
        assert not mounted(server.mnt)


def test_what_is_given_up_by_signals_is_told_to_umount_that_waits():
    with Server() as server:
        server.mount_well("", "--log", server.base / "log")
        (pid,), device = servers_of(server.mnt), device_of(server.mnt)
        unwritten(server)
        with unmounting(server) as child:
            until(lambda: asks(device), "umount to wait for the data")
            for number in (1, 2):
                os.kill(pid, signal.SIGTERM)
                words = "flushing and detaching" if number == 1 else "came before the server's answer"
                until(lambda: words in (server.base / "log").read_text(), "the signal to be heard")
            said = child.communicate(timeout=LIMIT)[1]
        assert child.returncode == 32 and " of /a (file " in said, f"status {child.returncode}: {said}"
        server.ended()


def test_sigterm_unmounts_where_no_thread_can_be_made():
    root()
    with Server() as server:
        server.mount_well()
        (pid,) = servers_of(server.mnt)
        # Those of tokio that have nothing to do end after ten seconds.
        until(lambda: of_threads(pid, "comm").count("nfsrdma-rt\n") <= 3, "the idle threads to end")
        with limited_threads(pid):
            try:
                os.kill(pid, signal.SIGTERM)
                until(lambda: not mounted(server.mnt), "the mount to be gone")
                server.ended()
            finally:
                kill_mount(server.mnt)


def test_reads_wait_for_memory_where_no_thread_can_be_made():
    root()
    readers = 300
    with Server() as server:
        data = os.urandom(MIB)
        (server.export / "f").write_bytes(data * readers)
        server.mount_well("cache=16M")
        (pid,) = servers_of(server.mnt)
        descriptor = os.open(server.mnt / "f", os.O_RDONLY | os.O_DIRECT)

        def read(number, found):
            with mmap.mmap(-1, MIB) as memory:
                count = os.preadv(descriptor, [memory], number * MIB)
                found.append(count == MIB and memory[:] == data)

        control = server.base / "control"
        control.mkdir()
        run("mount", "-t", "fusectl", "none", control)
        waiting = control / str(os.minor(server.mnt.stat().st_dev)) / "waiting"
        with limited_threads(pid):
            try:
                server.pause()
                found = []
                threads = [threading.Thread(target=read, args=(number, found)) for number in range(readers)]
                for thread in threads:
                    thread.start()
                until(lambda: int(waiting.read_text()) >= readers, "all reads")
                server.child.send_signal(signal.SIGCONT)
                for thread in threads:
                    thread.join(LIMIT)
                assert found == [True] * readers, found
                os.close(descriptor)
                unmount(server.mnt)
            finally:
                run("umount", control)
                kill_mount(server.mnt)


def test_names_forge_no_lines_in_the_log():
    """A user chooses the name of a file whose data are lost."""
    root()
    with Server() as server:
        export_one_mib(server)
        log = server.mount_logged()
        killed_after_writing(server.mnt / "a\nforged \x1b[2J", 4 * MIB)
        result = nfsrdma("umount", server.mnt)
        assert result.returncode == 32, result
        text = log.read_text()
        assert "of /a?forged ?[2J (file " in text and "\x1b" not in text, text
        assert not [line for line in text.split("\n") if line.startswith("forged")], text


# --- Commands find the process ----------------------------------------------------------------


def test_a_process_is_found_though_the_directory_of_its_sockets_was_removed():
    """As /run/user/UID at the end of a session."""
    if "NFSRDMA_RUN" not in os.environ:
        run_inside(alone("sh", "-c", 'mount -t tmpfs none /run && exec "$@"', "sh"), "test_a_process_is_found_*", "NFSRDMA_RUN")
        return
    with Server() as server:
        server.mount_well()
        expect(nfsrdma("stats", server.mnt), 0)
        shutil.rmtree("/run/nfsrdma")
        until(lambda: nfsrdma("stats", server.mnt).returncode == 0, "the process to answer")
        unwritten(server)
        with unmounting(server) as child:
            until(lambda: asks(device_of(server.mnt)), "umount to wait for the data")
            server.child.send_signal(signal.SIGCONT)
            said = child.communicate(timeout=LIMIT)[1]
        assert child.returncode == 0, said
        check_written(server)

STRANGER = """
import os, resource, socket, sys, time
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
device, held = sys.argv[1], []
names = []
if sys.argv[2] == "squat":
    for kind in ("", "control-", "flush-"):
        for minor in range(int(sys.argv[3]), int(sys.argv[3]) + 400):
            one = socket.socket(socket.AF_UNIX)
            try:
                one.bind(f"\\0nfsrdma-{kind}0:{minor}")
                one.listen(0)
                held.append(one)
            except OSError:
                pass
else:
    for line in open("/proc/net/unix").read().splitlines()[1:]:
        name = line.split()[-1]
        if "nfsrdma" in name and device in name:
            names.append(name)
    for name in names:
        address = "\\0" + name[1:] if name.startswith("@") else name
        for _ in range(6000):
            one = socket.socket(socket.AF_UNIX)
            one.setblocking(False)
            try:
                one.connect(address)
            except OSError:
                break
            held.append(one)
print("ready", flush=True)
time.sleep(600)
"""


@contextlib.contextmanager
def stranger(*words):
    """A user without rights on the mount tries to disturb it."""
    root()

    def many_descriptors():
        resource.setrlimit(resource.RLIMIT_NOFILE, (20000, 20000))

    command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    with running(
        *command, sys.executable, "-c", STRANGER, *words, stdout=subprocess.PIPE, text=True, preexec_fn=many_descriptors,
    ) as child:  # fmt: skip
        assert child.stdout.readline() == "ready\n"
        yield


def test_strangers_cannot_hold_up_an_unmount():
    with Server() as server:
        server.mount_well()
        daemon = servers_of(server.mnt)
        with stranger(device_of(server.mnt), "connect"):
            try:
                expect(nfsrdma("umount", server.mnt, limit=30), 0)
            except subprocess.TimeoutExpired:
                raise AssertionError("nfsrdma umount waits for a stranger") from None
            # Its holder ends after it.
            assert servers_of(server.mnt) != daemon, "umount did not wait for the process"


def test_strangers_cannot_take_the_place_of_the_process():
    with Server() as server:
        server.mount_well()
        minor = os.minor(os.stat(server.mnt).st_dev)
        expect(nfsrdma("umount", server.mnt), 0)
        with stranger("0", "squat", str(minor)):
            server.mount_well()
            expect(nfsrdma("stats", server.mnt), 0)
            # A loss is reported nevertheless.
            unwritten(server)
            (server.export / "a").unlink()
            server.child.send_signal(signal.SIGCONT)
            unmount_tells_the_loss(server)


def test_strangers_cannot_hold_up_an_unmount_by_sockets_of_attempts_to_mount(place):
    """Root's umount of what is not mounted asks the processes of all users whether they try to mount it."""
    root()
    listen = (
        "import os, socket, sys, time\n"
        "os.umask(0o077)\n"
        "os.mkdir('/run/user/65534/nfsrdma')\n"
        "held = []\n"
        "for number in range(40):\n"
        "    held.append(socket.socket(socket.AF_UNIX))\n"
        "    held[-1].bind(f'/run/user/65534/nfsrdma/pending-{number}.control')\n"
        "    held[-1].listen()\n"
        "print('ready', flush=True)\n"
        "os.close(1)\n"
        "time.sleep(600)\n"
    )
    script = (
        "mkdir -p /run/user && mount -t tmpfs none /run/user && install -d -m 700 -o 65534 /run/user/65534 || exit 77\n"
        f"setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups \"$1\" -c \"$2\" >\"$4/ready\" &\n"
        "until grep -q ready \"$4/ready\"; do sleep 0.1; done\n"
        "\"$3\" umount \"$4/mnt\"; status=$?\n"
        "kill $!; exit $status\n"
    )
    words = [sys.executable, listen, BIN / "nfsrdma", place.base]
    try:
        result = run(*alone("sh", "-c", script, "sh", *words))
    except subprocess.TimeoutExpired:
        raise AssertionError("nfsrdma umount waits for strangers") from None
    expect(result, 1, "is not an nfsrdma mount")


def test_strangers_cannot_hide_an_attempt_to_mount_behind_many_names(place):
    """The names that root looks at are limited in number."""
    root()
    options = f"port={free_port()},mountport={free_port()},mountproto=tcp,bg"
    expect(nfsrdma("mount", "127.0.0.1:/x", place.mnt, "-o", options), 0, "background")
    script = (
        "mkdir -p /run/user && mount -t tmpfs none /run/user && install -d -m 700 -o 65534 /run/user/65534/nfsrdma || exit 77\n"
        "for number in $(seq 10000 12000); do : >/run/user/65534/nfsrdma/pending-0$number.control; done\n"
        "exec \"$@\"\n"
    )
    try:
        until(
            lambda: run(*alone("sh", "-c", script, "sh", BIN / "nfsrdma", "umount", place.mnt)).returncode == 0,
            "the attempt to mount to be cancelled",
        )
        assert not servers_of(place.mnt)
    finally:
        kill_mount(place.mnt)


@pytest.mark.alone
def test_strangers_cannot_hold_up_a_mount_by_the_lock_of_the_table():
    """Everybody may lock /run/mount/utab.lock, which everybody may read."""
    root()
    lock = Path("/run/mount/utab.lock")
    with Server() as server:
        server.mount_well()
        if not lock.exists():
            pytest.skip(f"{lock} cannot be written")
        expect(nfsrdma("umount", server.mnt), 0)
        script = (
            "import fcntl, sys, time\n"
            "file = open(sys.argv[1])\n"
            "fcntl.flock(file, fcntl.LOCK_EX)\n"
            "print('ready', flush=True)\n"
            "time.sleep(600)\n"
        )
        command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        with running(*command, sys.executable, "-c", script, lock, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout.readline() == "ready\n"
            server.mount_well()
            unmount(server.mnt)


def tries_again(log):
    """Waits until a mount that is to end has tried to unmount twice more; it does so every second."""
    tried = log.read_text().count("not unmounted yet")
    until(lambda: log.read_text().count("not unmounted yet") >= tried + 2, "two more attempts to unmount")


@pytest.mark.parametrize("where", ["", "below"])
def test_sigterm_leaves_what_is_mounted_on_top(where):
    root()
    with Server() as server:
        log = server.mount_logged("", "-v")
        (server.mnt / "below").mkdir()
        (pid,), point = servers_of(server.mnt), server.mnt / where
        assert run("mount", "-t", "tmpfs", "none", point).returncode == 0
        (point / "theirs").write_text("precious")
        os.kill(pid, signal.SIGTERM)
        tries_again(log)
        assert mounted(point)[2] == "tmpfs", "SIGTERM took away another mount"
        assert (point / "theirs").read_text() == "precious"
        assert servers_of(server.mnt) == [pid], "it no longer serves"
        assert run("umount", point).returncode == 0
        server.ended()
        assert not mounted(server.mnt)


def test_a_mount_that_is_to_end_leaves_what_is_mounted_on_top_alone():
    """It tries to unmount every second. If it opened what is on top of it meanwhile, umount(8) of that would fail."""
    root()
    libc = ctypes.CDLL(None, use_errno=True)

    def unused(point):
        """Unmounts it if nobody has used it since the last call."""
        if libc.umount2(os.fsencode(point), MNT_EXPIRE) == 0:
            return True
        assert ctypes.get_errno() == errno.EAGAIN, os.strerror(ctypes.get_errno())
        return False

    with Server() as server:
        log = server.mount_logged("", "-v")
        (pid,) = servers_of(server.mnt)
        assert run("mount", "-t", "tmpfs", "none", server.mnt).returncode == 0
        os.kill(pid, signal.SIGTERM)
        assert not unused(server.mnt)
        tries_again(log)
        assert unused(server.mnt), "it opens what is mounted on top of it"
        server.ended()


def test_a_copy_in_another_namespace_is_not_waited_for():
    with Server() as server:
        server.mount_well()
        (server.mnt / "a").write_bytes(b"k" * MIB)
        script = "echo ready; read line; cat \"$0\" | wc -c"
        with running(
            *alone("sh", "-c", script, str(server.mnt / "a")), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as child:  # fmt: skip
            assert child.stdout.readline() == "ready\n"
            try:
                result = nfsrdma("umount", server.mnt, limit=20)
            except subprocess.TimeoutExpired:
                raise AssertionError("nfsrdma umount waits for another namespace") from None
            expect(result, 0, "in another mount namespace", "all data are at the server")
            assert not mounted(server.mnt)
            check_written(server, MIB)
            # It is still served there, and ends with the last mount.
            said, _ = child.communicate("go on\n", timeout=LIMIT)
            assert said.strip() == str(MIB), said
        server.ended()


def export_one_mib(server):
    server.stop()
    assert run("mount", "-t", "tmpfs", "-o", "size=1m,mode=777", "none", server.export).returncode == 0
    server.start()


def unmount_tells_the_loss(server):
    result = nfsrdma("umount", server.mnt)
    assert result.returncode == 32, f"status {result.returncode}: {result.stderr}"
    assert "data were lost" in result.stderr and " of /a (file " in result.stderr, result.stderr


def test_what_an_exiting_program_lost_is_told_at_unmount():
    root()
    with Server() as server:
        export_one_mib(server)
        server.mount_well()
        script = "import os, sys; os.write(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT), b'k' * 4194304); os._exit(0)"
        assert run(sys.executable, "-c", script, server.mnt / "a").returncode == 0
        unmount_tells_the_loss(server)
        # A loss that a program was told of is not reported again.
        server.mount_well()
        try:
            with open(server.mnt / "b", "wb", buffering=0) as file:
                file.write(b"k" * (4 * MIB))
        except OSError as error:
            assert error.errno == 28, error
        else:
            raise AssertionError("close(2) said nothing")
        expect(nfsrdma("umount", server.mnt), 0)


@pytest.mark.parametrize("flags", [0, os.O_SYNC], ids=["fsync", "O_SYNC"])
def test_what_a_program_lost_that_is_killed_while_it_waits_is_told_at_unmount(flags):
    """It waits for the server's answer in fsync(2), or in write(2) of a file that is open with O_SYNC."""
    script = (
        "import os, sys; file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | int(sys.argv[2]));"
        " os.write(file, b'k' * 5000); os.fsync(file)"
    )
    with scripted() as (server, command):
        server.mount_well()
        command("hold WRITE 1")
        with running(sys.executable, "-c", script, server.mnt / "a", flags):
            command(f"wait-held 1 {LIMIT * 1000}")
        command("fail WRITE=NOSPC")
        command("release")
        unmount_tells_the_loss(server)


def test_what_a_file_lost_that_is_open_is_told_at_a_forced_unmount():
    """The program has not asked, and cannot any more."""
    root()
    with Server() as server:
        export_one_mib(server)
        server.mount_well("", "--log", server.base / "log")
        file = os.open(server.mnt / "a", os.O_WRONLY | os.O_CREAT)
        try:
            os.write(file, b"k" * (4 * MIB))
            # That writes the data.
            os.stat(server.mnt / "a")
            result = nfsrdma("umount", "-f", server.mnt)
            if mounted(server.mnt):
                # In use: the connection has ended, and the process with it.
                server.ended()
                log = (server.base / "log").read_text()
                assert " of /a (file " in log, log
            else:
                assert result.returncode == 32 and " of /a (file " in result.stderr, result.stderr
        finally:
            with contextlib.suppress(OSError):
                os.close(file)


def test_a_mount_in_the_background_does_not_follow_a_swapped_directory():
    root()
    with Server() as server:
        outer, victim = server.base / "outer", server.base / "victim"
        for place in (outer, victim):
            (place / "mnt").mkdir(parents=True)
        server.stop()
        log = server.base / "log"
        result = server.mount("bg,retry=5", "--log", log, at=outer / "mnt")
        expect(result, 0, "background")
        outer.rename(server.base / "elsewhere")
        outer.symlink_to(victim)
        server.start()
        until(lambda: mounted(victim / "mnt") or not servers_of(outer / "mnt"), "the process to decide")
        assert not mounted(victim / "mnt"), "it mounted where a symbolic link led it"
        assert "somebody replaced it" in log.read_text(), log.read_text()


def test_sigterm_keeps_unlinked_files_until_they_are_closed():
    with Server() as server:
        server.mount_well()
        (pid,) = servers_of(server.mnt)

        def hidden():
            return [path.name for path in server.export.iterdir() if path.name.startswith(".nfs")]

        with open(server.mnt / "a", "w+b", buffering=0) as file:
            file.write(b"1" * MIB)
            (server.mnt / "a").unlink()
            os.kill(pid, signal.SIGTERM)
            until(lambda: not mounted(server.mnt), "the mount to be detached")
            assert len(hidden()) == 1, "the file's data are removed at the server"
            file.write(b"2" * MIB)
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert os.pread(file.fileno(), 2 * MIB, 0) == b"1" * MIB + b"2" * MIB
            assert servers_of(server.mnt) == [pid]
        server.ended()
        assert hidden() == []
