"""Locks between our mounts on the host, Linux's own client and the server itself: see `knfsd`."""

import errno
import fcntl
import json
import signal
import socket
import time

from interop.guest import EXPORT, MOUNTD, NFS, ROOT
from interop.host import Background, CaseError, Mount, Process, indent, program, run
from program import lock_support
from program.lock_support import AGAIN, F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW, FREE, READ, WRITE
from program.support import pause
from suites import until

LOCKD = 20047  # guest/lib.sh
# The ports of the locker processes in the guest: those of the other machine there, and those of the server itself.
OTHER, SERVER = 9103, 9104
LIMIT = 120
GRACE = 9  # seconds, of lockd after a restart

LOCKER = ROOT / "tests/system/locker.py"
POSIX = (fcntl.F_GETLK, fcntl.F_SETLK, fcntl.F_SETLKW)
OFD = (F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW)
EIO = -errno.EIO


def wants(got, wanted, what):
    if got != wanted:
        raise CaseError(f"{what}: {got}, not {wanted}")


class Locker(lock_support.Process):
    """A process (locker.py) that works in `folder` through a mount of the export. It ends with the block."""

    def __init__(self, port, folder, name):
        self.folder, self.name = folder, name
        self.socket = socket.create_connection(("127.0.0.1", port), LIMIT)
        self.to, self.answers = (self.socket.makefile(mode, encoding="utf-8") for mode in "wr")

    def __exit__(self, *_):
        # A process that waits for a lock does not notice the end of its connection, but ends with its listener.
        for each in (self.to, self.answers, self.socket):
            each.close()

    def path(self, file):
        return f"{self.folder}/{file}"

    def open(self, file, mode="r+b", name="f"):
        wants(self.do("open", name, self.path(file), mode), 0, f"{self.name} opens {file}")

    def lock(self, kind, start=0, length=0, kinds=POSIX, name="f"):
        result = self.do("fcntl", kinds[1], name, kind, start, length)
        return result if isinstance(result, int) else 0

    def holder(self, kind, start=0, length=0, kinds=POSIX, name="f"):
        """F_GETLK: kind, start and length of the conflicting lock."""
        kind, _, start, length, _ = self.do("fcntl", kinds[0], name, kind, start, length)
        return kind if kind == FREE else (kind, start, length)

    def wait(self, kind, start=0, length=0, kinds=POSIX, name="f"):
        """Requests a lock. The answer must be received later."""
        self.send("fcntl", kinds[2], name, kind, start, length)

    def waits(self):
        """Whether there is no answer yet."""
        return lock_support.waits(self, 0.5)

    def flock(self, how, name="f"):
        return super().flock(name, how)


class Places:
    """Where processes lock: `a`, `b`: our mounts; `linux`: Linux's mount on another machine; `server`: the server
    itself."""

    def __init__(self, server, a, b, here):
        self.server, self.mounts = server, {"a": a, "b": b}
        self.folders = {"a": a.path, "b": b.path, "linux": "/mnt", "server": EXPORT}
        self.here = here

    def process(self, place):
        port = {"linux": OTHER, "server": SERVER}.get(place, self.here)
        return Locker(port, self.folders[place], place)

    def make(self, file, text="x" * 100):
        """Makes the file at the server again, so that no lock of it is left."""
        self.server.guest.run(f"rm -f {EXPORT}/{file}; printf '{text}' >{EXPORT}/{file}; chmod 666 {EXPORT}/{file}")


class Listener(Process):
    """locker.py on the host."""

    def __init__(self):
        super().__init__(["python3", "-B", LOCKER, "127.0.0.1", "0"])

    def __enter__(self):
        super().__enter__()
        self.until(lambda: "\n" in self.said(), "the listener", 60)
        return int(self.said().split()[1])


def counters(mount):
    return json.loads(run([program("nfsrdma"), "stats", mount.path, "--json"]))["cache"]


def exclusion(places, first, second):
    """Ranges, ranges to the end of the file, pieces, upgrades, downgrades, GETLK; whole files by flock(2).

    Returns whether TEST reported the shared lock of the other to `first`: in Linux 6.12.117, TEST is GRANTED despite one.
    """
    file = f"range-{first}-{second}"
    places.make(file)
    with places.process(first) as one, places.process(second) as two:
        for process in (one, two):
            process.open(file)

        def expect(process, wanted, *words, of=Locker.lock):
            wants(of(process, *words), wanted, f"{first} and {second}: {process.name} {of.__name__} {words}")

        for kinds in (POSIX, OFD):
            expect(one, 0, WRITE, 10, 10, kinds)
            expect(two, AGAIN, READ, 15, 1, kinds)
            expect(two, 0, READ, 20, 0, kinds)
            expect(two, 0, READ, 0, 10, kinds)
            expect(one, AGAIN, WRITE, 1 << 40, 0, kinds)
            seen = one.holder(WRITE, 30, 5, kinds)
            if seen not in ((READ, 20, 0), FREE):
                raise CaseError(f"{first} and {second}: {first} sees {seen}")
            expect(two, (WRITE, 10, 10), READ, 5, 10, kinds, of=Locker.holder)
            expect(two, FREE, READ, 20, 0, kinds, of=Locker.holder)
            expect(two, 0, FREE, 0, 0, kinds)
            expect(one, 0, FREE, 13, 2, kinds)
            expect(two, 0, WRITE, 13, 2, kinds)
            expect(two, AGAIN, WRITE, 12, 1, kinds)
            expect(two, AGAIN, WRITE, 15, 1, kinds)
            expect(two, 0, FREE, 0, 0, kinds)
            expect(one, 0, READ, 0, 0, kinds)
            expect(two, 0, READ, 0, 0, kinds)
            expect(one, AGAIN, WRITE, 0, 0, kinds)
            expect(two, 0, FREE, 0, 0, kinds)
            expect(one, 0, WRITE, 0, 0, kinds)
            expect(two, AGAIN, READ, 0, 0, kinds)
            expect(one, 0, READ, 0, 0, kinds)
            expect(two, 0, READ, 0, 0, kinds)
            expect(two, 0, FREE, 0, 0, kinds)
            expect(one, 0, FREE, 0, 0, kinds)
        if "server" in (first, second):
            return seen != FREE  # There flock(2) is no lock of fcntl(2), as it is with NFS.
        shared, exclusive = fcntl.LOCK_SH | fcntl.LOCK_NB, fcntl.LOCK_EX | fcntl.LOCK_NB
        expect(one, 0, shared, of=Locker.flock)
        expect(two, 0, shared, of=Locker.flock)
        expect(two, AGAIN, exclusive, of=Locker.flock)
        expect(two, 0, fcntl.LOCK_UN, of=Locker.flock)
        expect(one, 0, exclusive, of=Locker.flock)
        expect(two, AGAIN, shared, of=Locker.flock)
        expect(two, AGAIN, READ, 50, 1)
        expect(one, 0, fcntl.LOCK_UN, of=Locker.flock)
        expect(two, 0, exclusive, of=Locker.flock)
        expect(two, 0, fcntl.LOCK_UN, of=Locker.flock)
    return seen != FREE


def waiter(places, first, second, ways=(("unlock", POSIX), ("close", OFD), ("end", POSIX))):
    """`second` gets the lock that it waits for when `first` unlocks, closes the file, or ends."""
    file = f"wait-{first}-{second}"
    places.make(file)
    took = []
    with places.process(second) as two:
        two.open(file)
        for how, kinds in ways:
            with places.process(first) as one:
                one.open(file)
                wants(one.lock(WRITE, 0, 50, kinds), 0, f"{first} locks for {second}")
                two.wait(WRITE, 20, 0, kinds)
                if not two.waits():
                    raise CaseError(f"{second} got what {first} holds: {two.got()}")
                begin = time.monotonic()
                if how == "unlock":
                    wants(one.lock(FREE, 0, 50, kinds), 0, f"{first} unlocks")
                elif how == "close":
                    wants(one.do("close", "f"), 0, f"{first} closes")
            # The process has ended.
            wants(two.got(), 0, f"{second} waits until {first} {how}s")
            took.append(time.monotonic() - begin)
            wants(two.lock(FREE, 0, 0, kinds), 0, f"{second} unlocks")
    print(f"    {second} waits for {first}: {', '.join(f'{seconds:.1f}' for seconds in took)} s", flush=True)


def counter(places, who, how, times=10):
    file = f"count-{how}"
    places.make(file, f"{0:019d}\\n")
    begin = time.monotonic()
    processes = [places.process(place) for place in who]
    try:
        for process in processes:
            process.send("count", process.path(file), times, how)
        for process in processes:
            wants(process.receive(), 0, f"{process.name} counts")
    finally:
        for process in processes:
            process.__exit__()
    total = int(places.server.guest.run(f"cat {EXPORT}/{file}"))
    wants(total, times * len(who), f"the number that {', '.join(who)} counted by {how}")
    print(f"    {total} increments under {how} by {' '.join(who)}: {time.monotonic() - begin:.0f} s", flush=True)


def lost_connection(places):
    """Connections of NLM end, but the server has not restarted: no lock is lost, shared or not."""
    before = {name: counters(mount)["lock_grace_waits"] for name, mount in places.mounts.items()}
    places.make("connection")
    with places.process("a") as one, places.process("b") as two, places.process("linux") as linux:
        for process in (one, two, linux):
            process.open("connection")
        wants((one.lock(READ, 0, 10), one.lock(WRITE, 20, 10), two.lock(READ, 40, 10)), (0, 0, 0), "locks")
        places.server.guest.run(f"ss -K state established sport = {LOCKD} dst 10.0.2.2")
        # Outside a grace period, the server refuses a reclaim like this.
        for name, mount in places.mounts.items():
            claims = 2 if name == "a" else 1
            until(lambda mount=mount, least=before[name] + claims: counters(mount)["lock_grace_waits"] >= least, "claims")
        wants((one.lock(READ, 70, 1), two.lock(READ, 80, 1)), (0, 0), "locks after the claims")
        wants(linux.lock(WRITE, 0, 10), AGAIN, "a lock that Linux cannot have")
        wants((one.do("read", "f", 0, 1), two.do("read", "f", 40, 1)), ("x", "x"), "no lock is lost")
    for name, mount in places.mounts.items():
        wants(counters(mount)["locks_lost"], 0, f"locks lost by {name}")


def restart(places):
    """knfsd, lockd and rpc.statd are restarted under locks; `a` misses the grace period, and `b` loses a file."""
    guest, a, b = places.server.guest, places.mounts["a"], places.mounts["b"]
    for file in ("late", "kept", "removed"):
        places.make(file)
    before = counters(b)
    with (places.process("a") as late, places.process("b") as kept, places.process("b") as removed,
          places.process("linux") as linux):
        for process, file in ((late, "late"), (kept, "kept"), (removed, "removed")):
            process.open(file)
            linux.open(file, name=file)
        wants((late.lock(WRITE, 0, 10), kept.lock(WRITE, 0, 10), kept.lock(READ, 20, 10), removed.lock(WRITE, 0, 10)),
              (0, 0, 0, 0), "locks")
        wants(linux.lock(READ, 20, 10, name="kept"), 0, "a lock of Linux")
        pause(a.child.pid)
        try:
            indent(guest.run(f"locks_restart {GRACE} rm {EXPORT}/removed"))
            kept.wait(WRITE, 80, 1)
            # Linux's client waits for the end of the grace period, too.
            wants(linux.lock(WRITE, 0, 10, name="late"), 0, "Linux takes what nobody has claimed")
        finally:
            a.child.send_signal(signal.SIGCONT)
        wants(kept.got(), 0, "a new lock, after the grace period")
        after = counters(b)
        if after["lock_grace_waits"] == before["lock_grace_waits"]:
            raise CaseError("the new lock saw no grace period")
        if after["locks_reclaimed"] - before["locks_reclaimed"] < 2 or after["locks_lost"] != before["locks_lost"] + 1:
            raise CaseError(f"not two reclaimed and one lost: {after}")
        wants((linux.lock(READ, 0, 1, name="kept"), linux.lock(READ, 25, 1, name="kept"), kept.lock(WRITE, 25, 1)),
              (AGAIN, 0, AGAIN), "locks from before the restart")
        wants(kept.do("read", "f", 0, 1), "x", "whose lock was reclaimed reads on")
        until(lambda: counters(a)["locks_lost"] == 1, "the loss")
        for process, also in ((late, EIO), (removed, -errno.ESTALE)):
            got = process.do("read", "f", 0, 1), process.do("write", "f", 0, "y"), process.lock(READ, 50, 1)
            if not set(got) <= {EIO, also}:
                raise CaseError(f"whose lock was lost is told so: {process.name}: {got}")
        wants(late.lock(FREE), EIO, "and has to let go")
        wants((late.do("read", "f", 0, 1), late.lock(WRITE, 0, 10)), ("x", AGAIN), "before it begins again")
        print(f"    {after['locks_reclaimed'] - before['locks_reclaimed']} locks reclaimed, 2 lost", flush=True)


def killed(places, mount):
    """Our process is killed. Its locks stay until a new mount releases exactly these."""
    for file in ("orphan", "other"):
        places.make(file)
    with places.process("linux") as linux, places.process("b") as other:
        linux.open("orphan")
        linux.open("other", name="other")
        other.open("other")
        wants(other.lock(WRITE), 0, "a lock of another mount")
        # The kill must not end a connection that siw has not accepted: its listener would be gone (docs/INTEROP.md).
        with mount("nconnect=1") as first:
            places.folders["killed"] = first.path
            with places.process("killed") as process:
                process.open("orphan")
                wants(process.lock(WRITE), 0, "a lock")
                first.child.kill()
                first.child.wait()
                run(["umount", "-l", first.path])
            wants(linux.lock(WRITE), AGAIN, "the lock of a mount that was killed")
        with mount():
            until(lambda: linux.lock(WRITE) == 0, "the end of the locks of a mount that was killed")
        wants(linux.lock(WRITE, name="other"), AGAIN, "a lock of a mount that lives")


class Processes:
    """locker.py in the guest, on the server or the other machine."""

    def __init__(self, guest, port, within):
        self.guest = guest
        self.job = guest.start(f"exec {within} python3 -B /job/locker.py 0.0.0.0 {port}")

    def __enter__(self):
        until(lambda: self.job in self.guest.statuses or "listening" in self.guest.output(self.job), "the listener", 60)

    def __exit__(self, kind=None, *_):
        if kind and (said := self.guest.output(self.job)):
            indent(said)


def knfsd(server, state):
    """All checks above; `state` is a directory for the journals of our mounts."""
    guest = server.guest
    guest.put(LOCKER)
    # Callbacks and notices of a restart are dropped, so waiters have to ask again.
    indent(guest.run(f"""filter_callbacks; machine_start
        machine mount -t nfs -o vers=3,tcp,port=2049,mountproto=tcp,mountport={MOUNTD} 10.0.3.1:{EXPORT} /mnt
        machine grep ' /mnt nfs ' /proc/mounts"""))

    def mount(*more):
        options = ",".join((f"lock,lockport={LOCKD}", *more))
        return Mount(EXPORT, NFS, MOUNTD, options, NFSRDMA_STATE_DIR=str(state))

    with (mount() as a, mount() as b, Listener() as here, Processes(guest, SERVER, ""),
          Processes(guest, OTHER, "$(on_machine --mount --uts)")):
        indent(a.said())
        places = Places(server, a, b, here)
        pairs = (("linux", "server"), ("a", "linux"), ("linux", "a"), ("a", "server"), ("server", "a"), ("a", "b"))
        told = {pair: exclusion(places, *pair) for pair in pairs if pair[0] != "server"}
        wants(len(set(told.values())), 1, f"who is told of shared locks: {told}")
        if not told["linux", "server"]:
            print("    nobody is told by TEST of shared locks: a defect of this server's lockd", flush=True)
        exclusion(places, "server", "a")
        for pair in pairs[2:]:
            waiter(places, *pair)
        # Linux's client asks again only after 30 s, and its lockd calls nobody back. So these run at the same time.
        work = [Background(call) for call in (
            lambda: waiter(places, "a", "linux", (("unlock", POSIX),)),
            lambda: counter(places, ("a", "b", "linux", "server"), "posix"),
            lambda: counter(places, ("a", "b", "linux"), "flock"))]
        for call in work:
            call.result(240)
        lost_connection(places)
        killed(places, mount)
        restart(places)
        indent(guest.run("callbacks_filtered"))
