"""Mounts with Kerberos, as users meet them: tickets of several users, how they end, and a server that refuses them."""

import base64
import contextlib
import errno
import os
import resource
import shutil
import signal
import subprocess
import time

import pytest

from program.kerberos_support import FLAVORS, SERVER_A, SERVER_B, Ccache, gss, kerberos_server, machine, owner  # noqa: F401
from program.lock_support import Process, waits
from program.outlives_support import document, kill, working
from program.realm import NAME
from program.support import BIN, LIMIT, NOBODY, alone, came, expect, mounted, nfsrdma, run, run_inside, running, serving, stats
from program.test_trace import Listening
from program.users import A, B, C, ROOT_USER, by, by_effective, outcome, refused
from suites import until

each_flavor = pytest.mark.parametrize("flavor", FLAVORS)
BLOCK = 64 << 10


@contextlib.contextmanager
def mount_of(machine, flavor, options="", *words, **more):
    """A mount with a flavor, of an export in which alice and bob have a directory each, and all may write to the root."""
    with kerberos_server(machine, *words, **more) as (server, command):
        server.export.chmod(0o1777)
        for user, number, name in ((A, SERVER_A, "alice"), (B, SERVER_B, "bob")):
            (server.export / name).mkdir(mode=0o700)
            os.chown(server.export / name, number, number)
        server.mount_well(f"sec={flavor}{',' if options else ''}{options}", "--log", server.base / "log")
        try:
            yield server, command
        except BaseException:
            print((server.base / "log").read_text())
            raise


def put(path, data=b"data", mode=0o644):
    with open(path, "wb", buffering=0) as file:
        os.fchmod(file.fileno(), mode)
        file.write(data)
        os.fsync(file.fileno())


def get(path):
    with open(path, "rb", buffering=0) as file:
        return file.readall()


def listed(path):
    return sorted(os.listdir(path))


def write_and_read(folder, times, name="file"):
    """What a program does all the time: makes files, writes, syncs, lists, reads."""
    for number in range(times):
        data = bytes([number % 256]) * (3 * BLOCK + number)
        path = folder / f"{name}{number % 5}"
        put(path, data)
        # Not from the kernel's pages: another open file's reads may be.
        assert get(path) == data, f"pass {number}"
        assert path.name in listed(folder)
        os.rename(path, folder / f"{name}-renamed")
        os.unlink(folder / f"{name}-renamed")


def worker(user, folder, name="file"):
    """A work for `working`, in children: it goes on until it is told to stop."""

    def work(going_on):
        number = 0
        while going_on():
            by(user, write_and_read, folder, 5, f"{name}{number}-")
            number += 1
        assert number, "no pass ended"

    return work


# Whose ticket.


@each_flavor
def test_users_own_what_they_write(machine, flavor):
    """Each has the rights of his ticket at the server, which knows him by another number; the export does not take AUTH_SYS."""
    machine.kinit("alice", A)
    machine.kinit("bob", B)
    with mount_of(machine, flavor) as (server, command):
        large = os.urandom(1 << 20)
        for user, number, name in ((A, SERVER_A, "alice"), (B, SERVER_B, "bob")):
            mine = server.mnt / name
            by(user, put, mine / "secret", large, 0o600)
            by(user, put, server.mnt / f"of-{name}", name.encode())
            by(user, os.mkdir, mine / "sub")
            by(user, os.symlink, "secret", mine / "link")
            there = server.export / name
            assert [owner(there / part) for part in ("secret", "sub")] == [number] * 2
            assert (there / "secret").read_bytes() == large
            assert by(user, get, mine / "link") == large
            assert by(user, os.stat, mine / "secret").st_uid == number
            assert by(user, listed, mine) == ["link", "secret", "sub"]
        # What alice may read, and what is cached of it, is not bob's.
        for user, other in ((A, "bob"), (B, "alice")):
            refused(user, get, server.mnt / other / "secret")
            refused(user, os.stat, server.mnt / other / "secret")
            refused(user, listed, server.mnt / other)
            refused(user, put, server.mnt / other / "new")
            assert by(user, get, server.mnt / f"of-{other}") == other.encode()
            refused(user, os.unlink, server.mnt / f"of-{other}", number="EPERM")
        counts = gss(command)
        assert counts["contexts"] == 3 and counts["denied"] == 0, "root, alice and bob"
        assert counts[flavor] > 0 and sum(counts[name] for name in FLAVORS) == counts[flavor]
        expect(nfsrdma("umount", server.mnt), 0)
        # The server keeps nothing of a mount that has ended.
        until(lambda: gss(command)["contexts"] == 0, "the end of the contexts")


def test_who_has_no_ticket_is_refused_though_auth_sys_would_do(machine):
    """Also where others' names, attributes and data are cached."""
    machine.kinit("alice", A)
    with mount_of(machine, "krb5", sec="sys:krb5") as (server, _):
        folder = server.mnt / "open"
        by(A, os.mkdir, folder, 0o777)
        by(A, os.chmod, folder, 0o777)
        by(A, put, folder / "file", b"for all", 0o666)
        assert by(A, get, folder / "file") == b"for all"
        for what in (get, os.stat, put):
            refused(C, what, folder / "file")
        refused(C, listed, folder)
        refused(C, os.unlink, folder / "file")
        refused(C, os.mkdir, folder / "new")
        assert listed(server.export / "open") == ["file"]
        # A ticket heals it, without a new mount.
        machine.add("carol")
        machine.kinit("carol", C)
        assert by(C, get, folder / "file") == b"for all"
        by(C, put, folder / "carols")
        assert owner(server.export / "open" / "carols") == 65534, "carol is not known to the server"


def test_root_has_the_key_of_the_machine(machine):
    """Whom the server takes it for is the server's business: nobody, mostly."""
    with mount_of(machine, "krb5i") as (server, _):
        put(server.mnt / "by-root")
        assert owner(server.export / "by-root") == NOBODY == os.stat(server.mnt / "by-root").st_uid
        refused(ROOT_USER, listed, server.mnt / "alice")
    with mount_of(machine, "krb5p", root_is=0, options="") as (server, _):
        put(server.mnt / "alice" / "by-root")
        assert owner(server.export / "alice" / "by-root") == 0


def test_another_ticket_counts_from_the_next_context_on(machine):
    """As with Linux: a context goes on while it is valid. Destroyed tickets end nothing before, either."""
    machine.kinit("alice", A)
    with mount_of(machine, "krb5") as (server, command):
        by(A, put, server.mnt / "one")
        machine.kinit("bob", A)
        by(A, put, server.mnt / "two")
        command("gss-forget")
        by(A, put, server.mnt / "three")
        assert [owner(server.export / name) for name in ("one", "two", "three")] == [SERVER_A, SERVER_A, SERVER_B]
        refused(A, listed, server.mnt / "alice")
        machine.kdestroy(A)
        by(A, put, server.mnt / "four")
        command("gss-forget")
        refused(A, put, server.mnt / "five")
        refused(A, get, server.mnt / "four")
        machine.kinit("alice", A)
        assert by(A, get, server.mnt / "four") == b"data"
        assert owner(server.export / "four") == SERVER_B


# What names cost.


def test_names_that_are_known_cost_no_calls(machine):
    """As with AUTH_SYS, though the kernel may keep no names: who may search a directory is known here, and what is in it."""
    machine.kinit("alice", A)
    with mount_of(machine, "krb5") as (server, command):
        folder = server.mnt / "alice"
        names = [folder / f"file{number}" for number in range(50)]
        for name in names:
            by(A, put, name)

        def cost(work):
            counted = lambda: sum(came(command, name) for name in ("LOOKUP", "GETATTR", "ACCESS"))
            before = counted()
            by(A, lambda: [work(name) for name in names])
            return counted() - before

        # What is known of the directory may have become too old meanwhile.
        for work, most in ((os.stat, 4), (lambda name: os.access(name, os.R_OK), 54), (get, 54)):
            until(lambda work=work, most=most: cost(work) <= most, "names from memory")
        until(lambda: cost(lambda name: os.access(name, os.R_OK)) <= 4, "rights from memory")


def test_names_that_others_take_away_are_noticed(machine):
    """Another client removes a file, which can be made again, and replaces it, which is opened then."""
    machine.kinit("alice", A)
    with mount_of(machine, "krb5", "actimeo=3600") as (server, _):
        path, there = server.mnt / "alice" / "file", server.export / "alice" / "file"
        by(A, put, path)
        by(A, os.stat, path)
        there.unlink()
        made = lambda: os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        until(lambda: outcome(A, made) == "ok", "a name that can be made")
        for number in range(50):
            by(A, os.stat, path)
            new = there.with_name("new")
            new.write_text(f"{number}")
            os.chown(new, SERVER_A, SERVER_A)
            new.rename(there)
            assert by(A, get, path) == f"{number}".encode()


# What happens to contexts and connections under load.


FORGOTTEN = [*((flavor, "gss-forget") for flavor in FLAVORS), ("krb5", "disconnect"), ("krb5p", "restart")]


@pytest.mark.parametrize("flavor, what", FORGOTTEN)
def test_nobody_notices_what_the_server_forgets(machine, flavor, what):
    """Its contexts, its connections, or both with what was not committed: a restart."""
    machine.kinit("alice", A)
    machine.kinit("bob", B)
    with mount_of(machine, flavor, "", "--fake-unstable") as (server, command):
        with working(worker(A, server.mnt / "alice"), worker(B, server.mnt / "bob")):
            for _ in range(8):
                seen = came(command, "WRITE")
                command(what)
                until(lambda: came(command, "WRITE") > seen + 10, "more writing")
        counts = gss(command)
        if what == "gss-forget":
            assert counts["init"] >= 8, "a context was made anew"
        assert counts["outside"] == 0, "a number was behind the window, or came again"


REFUSED = [*((flavor, "CREDPROBLEM") for flavor in FLAVORS), ("krb5", "CTXPROBLEM"), ("krb5i", "BADCRED"), ("krb5p", "FORGET"),
           ("krb5i", "WINDOW")]  # fmt: skip


@pytest.mark.parametrize("flavor, fault", REFUSED)
def test_calls_that_the_server_refuses_once_are_made_again(machine, flavor, fault):
    machine.kinit("alice", A)
    with mount_of(machine, flavor) as (server, command):
        by(A, write_and_read, server.mnt / "alice", 1)
        command(f"gss-fault {fault}:12/7")
        by(A, write_and_read, server.mnt / "alice", 20)
        counts = gss(command)
        assert counts["outside"] == 12 if fault == "WINDOW" else counts["denied"] >= 12


@each_flavor
def test_calls_that_are_put_off_are_made_again(machine, flavor):
    machine.kinit("alice", A)
    later = [word for name in ("WRITE", "CREATE", "READDIRPLUS", "RENAME") for word in ("--fail", f"{name}=JUKEBOX:1")]
    with mount_of(machine, flavor, "", *later) as (server, _):
        by(A, write_and_read, server.mnt / "alice", 2)


@each_flavor
def test_what_is_larger_than_memory_and_long_lists_are_carried(machine, flavor):
    """Data that fill the cache can be sealed and written. A list comes by a Reply chunk."""
    machine.kinit("alice", A)
    data = os.urandom(48 << 20)
    names = sorted(f"a-name-that-is-long-{number}" for number in range(500))
    with mount_of(machine, flavor, "cache=16M") as (server, _):
        path = server.mnt / "alice" / "large"
        by(A, put, path, data)
        assert (server.export / "alice" / "large").read_bytes() == data
        assert by(A, lambda: get(path) == data)
        many = server.export / "many"
        many.mkdir()
        for name in names:
            (many / name).touch()
        assert by(A, listed, server.mnt / "many") == names


def test_contexts_that_are_forgotten_in_a_row_cost_no_call(machine):
    """Each before a call is made under it. A server that forgets all of them is waited for, and asked about once a second."""
    machine.kinit("alice", A)
    with mount_of(machine, "krb5i") as (server, command):
        by(A, write_and_read, server.mnt / "alice", 1)
        for fault in ("CREDPROBLEM", "CTXPROBLEM"):
            command(f"gss-fault {fault}:4")
            by(A, write_and_read, server.mnt / "alice", 1)
        before = gss(command)["init"]
        command("gss-fault CREDPROBLEM:8")
        by(A, write_and_read, server.mnt / "alice", 1)
        assert 8 <= gss(command)["init"] - before <= 9


UNPROVEN = [*((flavor, "VERIFIER") for flavor in FLAVORS), ("krb5i", "BODY"), ("krb5p", "BODY")]


@pytest.mark.parametrize("flavor, fault", UNPROVEN)
def test_what_the_server_did_not_say_is_not_believed(machine, flavor, fault):
    """A reply whose MIC is wrong counts as lost: the call is sent again when its time is over."""
    machine.kinit("alice", A)
    with mount_of(machine, flavor, "timeo=10") as (server, command):
        by(A, write_and_read, server.mnt / "alice", 1)
        command(f"gss-fault {fault}:3/5")
        by(A, write_and_read, server.mnt / "alice", 4)


def test_the_kdc_is_needed_for_new_tickets_only(machine):
    """Contexts are made anew from tickets that there are. What was written by who needs another one is held."""
    machine.kinit("alice", A)
    machine.kinit("bob", B)
    with mount_of(machine, "krb5p") as (server, command), Process(user=B) as bob:
        by(A, put, server.mnt / "alice" / "first")
        assert bob.do("open", "f", str(server.mnt / "bob" / "file"), "wb") == 0
        # His ticket for the service is away.
        machine.kinit("bob", B)
        with working(worker(A, server.mnt / "alice")):
            machine.stop()
            before = gss(command)["init"]
            command("gss-forget")
            until(lambda: gss(command)["init"] > before, "a new context without the KDC")
            assert bob.do("write", "f", 0, "text") == 4
            bob.send("fsync", "f")
            assert waits(bob, 2)
            machine.start()
            assert bob.receive() is None
        assert (server.export / "bob" / "file").read_text() == "text"
        until(lambda: outcome(B, get, server.mnt / "bob" / "file") == "ok", "a context for bob")


# Tickets that end.


def test_a_ticket_expires_while_a_program_writes(machine):
    """fsync says so. What was accepted is held, and written when there is a new ticket."""
    machine.kinit("alice", A, "-l", "5s")
    with mount_of(machine, "krb5p") as (server, _), Process(user=A) as program:
        assert program.do("open", "f", str(server.mnt / "alice" / "log"), "wb") == 0
        written, told = 0, None
        while told is None:
            piece = f"{written:020}" * 3000
            told = program.do("write", "f", written, piece)
            if told == len(piece):
                written += told
                told = program.do("fsync", "f")
        assert told == -errno.EKEYEXPIRED
        refused(A, listed, server.mnt / "alice", number="EKEYEXPIRED")
        assert (server.export / "alice" / "log").stat().st_size <= written
        machine.kinit("alice", A)
        until(lambda: program.do("fsync", "f") is None, "a new context")
        expected = "".join(f"{at:020}" * 3000 for at in range(0, written, 60000))
        assert (server.export / "alice" / "log").read_text() == expected
        assert program.do("write", "f", written, "more") == 4 and program.do("fsync", "f") is None
        assert by(A, listed, server.mnt / "alice") == ["log"]


def test_a_ticket_is_destroyed_while_a_program_writes(machine):
    """Its context goes on. When the server has lost that, the program is refused, and the next ticket writes what was accepted."""
    machine.kinit("alice", A)
    with mount_of(machine, "krb5") as (server, command), Process(user=A) as program:
        assert program.do("open", "f", str(server.mnt / "alice" / "log"), "wb") == 0
        assert program.do("write", "f", 0, "one ") == 4 and program.do("fsync", "f") is None
        machine.kdestroy(A)
        assert program.do("write", "f", 4, "two ") == 4 and program.do("fsync", "f") is None
        command("gss-forget")
        assert program.do("write", "f", 8, "three") == 5
        assert program.do("fsync", "f") == -errno.EACCES
        machine.kinit("alice", A)
        until(lambda: program.do("fsync", "f") is None, "a new context")
        assert (server.export / "alice" / "log").read_text() == "one two three"


def test_an_odd_ticket_is_its_users_own_matter(machine):
    """The server's daemon fails over it: the connection of each INIT ends. Nobody else's data waits with those of its user,
    whose calls fail after some attempts, as who has no ticket. What he wrote is kept."""
    machine.kinit("alice", A)
    machine.kinit("bob", B)
    with mount_of(machine, "krb5") as (server, command), Process(user=A) as alice, Process(user=B) as bob:
        names = [f"f{number}" for number in range(20)]
        for name in names:
            assert bob.do("open", name, str(server.mnt / "bob" / name), "wb") == 0
        assert alice.do("open", "f", str(server.mnt / "alice" / "file"), "wb") == 0
        command("gss-shun bob")
        command("gss-forget")
        for name in names:
            assert bob.do("write", name, 0, "text") == 4
        closed = lambda: gss(command)["outside"]
        until(lambda: closed() >= 1, "write-back of bob's files")
        assert alice.do("write", "f", 0, "text") == 4
        until(lambda: (server.export / "alice" / "file").read_text() == "text", "write-back of alice's file")
        assert closed() < 10, "bob's were waiting"
        assert bob.do("fsync", "f0") == -errno.EACCES
        assert closed() >= 10
        refused(B, listed, server.mnt / "bob")
        by(A, write_and_read, server.mnt / "alice", 1)
        command("gss-clear")
        until(lambda: bob.do("fsync", "f0") is None, "a context for bob")
        for name in names:
            assert bob.do("fsync", name) is None
            assert (server.export / "bob" / name).read_text() == "text"


def test_who_is_refused_every_context_waits_alone(machine):
    """As for a server that is silent, and it is asked once a second. Others go on, and who is killed leaves."""
    machine.kinit("alice", A)
    machine.kinit("bob", B)
    with mount_of(machine, "krb5i") as (server, command), Process(user=B) as bob:
        log = server.base / "log"
        by(A, write_and_read, server.mnt / "alice", 1)
        assert bob.do("open", "f", str(server.mnt / "bob" / "file"), "wb") == 0
        command("gss-refuse bob")
        assert bob.do("write", "f", 0, "text") == 4
        bob.send("fsync", "f")
        killed = subprocess.Popen(["ls", server.mnt / "bob"], user=B.uid, group=B.gid, extra_groups=[])
        until(lambda: "wait for a Kerberos context" in log.read_text(), "a call that waits")
        begin, before = time.monotonic(), gss(command)["init"]
        until(lambda: document(server)["waits"]["calls"], "calls that wait long")
        by(A, write_and_read, server.mnt / "alice", 3)
        assert gss(command)["init"] - before <= time.monotonic() - begin + 2
        assert waits(bob)
        killed.kill()
        assert killed.wait(LIMIT) == -signal.SIGKILL
        command("gss-clear")
        assert bob.receive() is None
        assert (server.export / "bob" / "file").read_text() == "text"
        until(lambda: "any longer" in log.read_text(), "the end of the wait")
        said = [line for line in log.read_text().splitlines() if "wait for a Kerberos context" in line]
        assert len(said) == 1 and f"user {B.uid} " in said[0], said


@pytest.mark.parametrize("flavor", ["krb5", "krb5p"])
def test_the_clock_of_the_server_is_ahead(machine, flavor):
    """Its time counts: tickets that are valid there are used, and one that is over there has expired, and is no refusal."""
    machine.kinit("alice", A, "-l", "4m")
    machine.kinit("bob", B)
    with mount_of(machine, flavor) as (server, command), Process(user=A) as alice:
        assert alice.do("open", "f", str(server.mnt / "alice" / "log"), "wb") == 0
        for _ in range(2):
            command("gss-clock 60")
            by(A, write_and_read, server.mnt / "alice", 1)
            command("gss-forget")
        command("gss-clock 290")
        assert alice.do("write", "f", 0, "text") == 4
        assert alice.do("fsync", "f") == -errno.EKEYEXPIRED
        refused(A, listed, server.mnt / "alice", number="EKEYEXPIRED")
        by(B, write_and_read, server.mnt / "bob", 1)
        machine.kinit("alice", A)
        until(lambda: alice.do("fsync", "f") is None, "a new context")
        assert (server.export / "alice" / "log").read_text() == "text"


def test_the_clock_of_the_server_is_wrong(machine):
    """By more than realms permit: contexts go on, and new ones are waited for."""
    machine.kinit("alice", A)
    with mount_of(machine, "krb5i") as (server, command), Process(user=A) as alice:
        assert alice.do("open", "f", str(server.mnt / "alice" / "file"), "wb") == 0
        command("gss-clock 3600")
        by(A, write_and_read, server.mnt / "alice", 1)
        command("gss-forget")
        assert alice.do("write", "f", 0, "text") == 4
        alice.send("fsync", "f")
        until(lambda: "NTP" in (server.base / "log").read_text(), "the reason")
        assert waits(alice)
        command("gss-clock 0")
        assert alice.receive() is None
        assert (server.export / "alice" / "file").read_text() == "text"


# A mount's other parts.


def test_a_program_that_is_killed_has_contexts_again(machine):
    """With restart=data: nothing is lost, and users keep their tickets."""
    machine.kinit("alice", A)
    machine.kinit("bob", B)
    with mount_of(machine, "krb5p", "restart=data,nolock") as (server, command):
        with working(worker(A, server.mnt / "alice"), worker(B, server.mnt / "bob")):
            for _ in range(3):
                kill(server)
        refused(C, listed, server.mnt / "alice")
        assert gss(command)["init"] >= 4
        assert "lost" not in (server.base / "log").read_text()


def test_what_a_killed_program_had_not_sent_is_written_as_its_writer(machine):
    machine.kinit("alice", A)
    with mount_of(machine, "krb5i", "restart=data,nolock") as (server, command):
        data = os.urandom(1 << 20)
        path = server.mnt / "alice" / "file"

        def write():
            file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
            os.fsync(file)
            command("hold WRITE")
            os.write(file, data)
            holder, daemon = serving(server.mnt)
            return file, holder, daemon

        file, holder, daemon = by_effective(A, write)
        os.kill(daemon, signal.SIGKILL)
        until(lambda: (serving(server.mnt) or (holder, daemon))[1] != daemon, "a successor")
        command("release")
        os.fsync(file)
        os.close(file)
        assert (server.export / "alice" / "file").read_bytes() == data
        assert owner(server.export / "alice" / "file") == SERVER_A


# What nobody must find.


def secrets_of(machine):
    """Keys and tickets of alice: names and bytes."""
    cache = Ccache(machine.ccache(A))
    services = [f"krbtgt/{NAME}@{NAME}", f"nfs/localhost@{NAME}"]
    found = {f"key {name}": cache.keys[name] for name in services}
    found |= {f"ticket {name}": cache.tickets[name][-48:] for name in services}
    assert all(len(secret) >= 16 for secret in found.values())
    return found


def shown(secrets, text):
    """Which secrets are in a text, as they are or as digits."""
    low = text.lower()
    forms = lambda secret: (secret, secret.hex().encode(), base64.b64encode(secret)[:20], ", ".join(map(str, secret)).encode())
    return [name for name, secret in secrets.items() if any(form in text or form in low for form in forms(secret))]


def memory_of(pid):
    """What a process has in memory, region by region."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            place, rights, *_ = line.split()
            if not rights.startswith("rw"):
                continue
            start, end = (int(part, 16) for part in place.split("-"))
            with contextlib.suppress(OSError, OverflowError):
                memory.seek(start)
                yield memory.read(end - start)


def test_no_secret_is_in_what_the_program_writes(machine):
    """The log with everything, the trace, the capture, statistics, and the record from which a successor goes on."""
    machine.kinit("alice", A)
    with mount_of(machine, "krb5p", "restart=data,nolock,cache=64M") as (server, command):
        expect(nfsrdma("log", server.mnt, "trace"), 0)
        outputs = {}
        with Listening(server, "trace") as trace, Listening(server, "capture") as capture:
            by(A, write_and_read, server.mnt / "alice", 3)
            command("gss-forget")
            by(A, write_and_read, server.mnt / "alice", 3)
            outputs["trace"], outputs["capture"] = trace.out, capture.out
            secrets = secrets_of(machine)
            # It has the context's keys, and never what alice could get other tickets with.
            granting = {name: secret for name, secret in secrets.items() if "krbtgt" in name}
            assert not [name for memory in memory_of(document(server)["pid"]) for name in granting if granting[name] in memory]
            kill(server)
            by(A, write_and_read, server.mnt / "alice", 1)
        outputs["log"] = server.base / "log"
        assert outputs["log"].stat().st_size > 0
        for name, path in outputs.items():
            assert not shown(secrets, path.read_bytes()), name
        said = stats(server, "--json") + stats(server)
        assert not shown(secrets, said.encode())


def leaves_no_core(machine, server, words, at_work):
    """Aborts the program as soon as `at_work` returns."""
    unlimited = lambda: resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    more = {"cwd": server.base, "env": machine.environment, "stdout": subprocess.PIPE, "preexec_fn": unlimited}
    with running(BIN / "nfsrdma", *words, "-o", server.options("sec=krb5p"), **more) as child:
        at_work(child)
        child.send_signal(signal.SIGABRT)
        _, child.returncode = os.waitpid(child.pid, 0)
    assert os.WTERMSIG(child.returncode) == signal.SIGABRT and not os.WCOREDUMP(child.returncode)


def test_no_core_of_a_ping_has_a_key(machine):
    """It makes a context of root's to test it."""
    with kerberos_server(machine) as (server, _):
        server.pause()
        leaves_no_core(machine, server, ("ping", server.spec), lambda child: child.stdout.readline())


def test_no_core_has_a_key(machine):
    """The keys of contexts are in the program's memory. Without Kerberos there is none, either: it has others' data."""
    machine.kinit("alice", A)
    with kerberos_server(machine) as (server, _):

        def at_work(child):
            until(lambda: mounted(server.mnt) or child.poll() is not None, "a mount")
            by(A, put, server.mnt / "file")

        leaves_no_core(machine, server, ("mount", "-f", server.spec, server.mnt), at_work)


# What is not as it should be.


WRONG = {
    "no keytab": (lambda machine: machine.keytab.unlink(), "keytab"),
    "a keytab for other things": (lambda machine: (machine.keytab.unlink(), machine.add_services("HTTP/localhost")), "keytab"),
    "an old key": (lambda machine: machine.admin("change_password -randkey nfs/localhost"), "keytab"),
    "no KDC": (lambda machine: machine.stop(), "KDC"),
    "a realm without KDC": (lambda machine: edit(machine, f"{NAME} = {{", "ELSEWHERE.TEST = {"), "krb5.conf"),
    "a server in another realm": (lambda machine: edit(machine, f"localhost = {NAME}", "localhost = ELSEWHERE.TEST"), "nfs/HOST"),
    "a broken krb5.conf": (lambda machine: edit(machine, "[realms]", "[realms"), "krb5.conf"),
}


def edit(machine, *pairs):
    path = machine.base / "krb5.conf"
    text = path.read_text()
    for old, new in zip(pairs[::2], pairs[1::2]):
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_with_the_realm_is_one_sentence(machine, what):
    spoil, part = WRONG[what]
    with kerberos_server(machine) as (server, _):
        spoil(machine)
        result = server.mount("sec=krb5,retry=0")
        expect(result, 32, part)
        assert not mounted(server.mnt)


def test_users_find_in_the_log_why_they_are_refused(machine):
    """Once for each user and reason: a program gets no more than a number."""
    with mount_of(machine, "krb5") as (server, _):
        log = server.base / "log"
        for _ in range(3):
            for user in (A, B):
                refused(user, listed, server.mnt)
        # The server's keytab is an old one.
        machine.admin("change_password -randkey nfs/localhost")
        machine.kinit("bob", C)
        for _ in range(3):
            refused(C, listed, server.mnt)
        said = [line.partition("mnt: ")[2] for line in log.read_text().splitlines() if "has no Kerberos context" in line]
        for user, part in zip((A, B, C), ("kinit", "kinit", "the server refuses the Kerberos ticket"), strict=True):
            assert sum(line.startswith(f"user {user.uid} ") and part in line for line in said) == 1, said
        assert len(said) == 3


def test_what_is_wrong_at_the_server_is_one_sentence(machine):
    with kerberos_server(machine) as (server, command):
        # The clocks differ.
        command("gss-fault INIT:100")
        expect(server.mount("sec=krb5,retry=0"), 32, "clock")
        command("gss-clear")
        # What is not proven is not believed.
        command("gss-fault PROOF:100")
        expect(server.mount("sec=krb5,retry=0"), 32, "Kerberos")
        command("gss-clear")
        # A name that the realm does not know.
        server.host = "127.0.0.1"
        expect(server.mount("sec=krb5,retry=0"), 32, "nfs/HOST")
        server.host = "localhost"


def test_without_options_the_usual_places_count(machine):
    """/etc/krb5.conf, /etc/krb5.keytab and the server's port 2049, by mount(8) as from fstab."""
    if "NFSRDMA_INSIDE" not in os.environ:
        enter = alone("--net", "--propagation", "private", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
        return run_inside(enter, "test_without_options_the_usual_places_count", "NFSRDMA_INSIDE")
    machine.kinit("alice", A)
    shutil.copytree("/etc", machine.base / "etc", symlinks=True)
    run("mount", "--bind", machine.base / "etc", "/etc")
    for name in ("krb5.conf", "krb5.keytab"):
        shutil.copy(machine.base / name, "/etc")
    with kerberos_server(machine) as (server, _):
        server.stop()
        server.mountport = 2049
        server.start()
        expect(nfsrdma("mount", server.spec, server.mnt, "-o", f"port={server.port},mountproto=rdma,sec=krb5p"), 0)
        by(A, put, server.mnt / "file")
        assert owner(server.export / "file") == SERVER_A
    run("umount", "/etc")
    return None
