"""The verbs provider. Everything runs inside the guest, whose rxe and siw are the RDMA devices."""

import pytest

from interop.guest import ADDRESS, CHECKS, EXPORT, Guest, MOUNTD, NFS
from interop.host import CaseError, compare, expected, indent, program, run, verbs_programs
from interop.kerberos import FLAVORS, LINUX, OURS, Side, ours
from program.support import NOBODY
from program.users import A, B, C
from suites import until

ADDRESS_6 = "fd6e:6673::15"
# The kernel's RDMA resources, without what changes with every connection, and without the number of a device.
RESOURCES = "rdma resource show | sed 's/^[0-9]*: //; s/cm_id [0-9]* //'"


def mounting(server=ADDRESS, options="transport=verbs,cache=64M"):
    """The command that mounts the guest's knfsd at /mnt."""
    return (f"ulimit -l unlimited; /job/nfsrdma mount {server}:{EXPORT} /mnt "
            f"-o port={NFS},mountport={MOUNTD},mountproto=tcp,{options}")


class Mounting:
    """A guest with a link, its knfsd, and our program. Records the RDMA resources before the first mount."""

    def __init__(self, link):
        self.guest = Guest(memory="3G", prepare=f"link {link}; knfsd_start")

    def __enter__(self):
        binary = verbs_programs() / "nfsrdma"
        self.guest.__enter__()
        try:
            self.guest.put(CHECKS)
            self.guest.put(binary, "nfsrdma")
            self.before = self.guest.run(RESOURCES)
        except BaseException:
            self.guest.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *exception):
        self.guest.__exit__(*exception)

    def run(self, script, limit=120):
        return self.guest.run(script, limit)

    def nothing_left(self):
        """Checks that no queue pair, completion queue, region, domain or context of ours is left after the unmount."""
        until(lambda: self.guest.run(RESOURCES) == self.before, "an end of all RDMA resources", 30)

    def source(self, size):
        """Makes random data of this many MiB in the guest's /srv/source."""
        self.run(f"dd if=/dev/urandom of=/srv/source bs=1M count={size} status=none")

    def copy(self, source, target):
        """Starts a copy. Returns its job, and a function that waits for it and compares."""
        job = self.guest.start(f"dd if={source} of={target} bs=1M conv=fsync status=none")

        def finish(limit=300):
            status, output = self.guest.wait(job, limit)
            if status != 0:
                raise CaseError(f"copying {source} to {target} failed: {output}")
            self.run(f"cmp {source} {target}")

        return job, finish

    def until_under_way(self, job, path):
        """Waits until the copy has begun to write its target; it must not have ended by then."""
        self.run(f"until [ $(stat -c %s {path} 2>/dev/null || echo 0) -gt 8000000 ]; do sleep 0.05; done", 60)
        self.still_running(job)

    def still_running(self, job):
        self.run("true")  # its answer comes after those of jobs that ended before
        if job in self.guest.statuses:
            raise CaseError(f"the copy was over too early: {self.guest.output(job)}")

    def until_ended(self, limit=30):
        """Waits for the end of our process. If it does not end, reports where its threads are."""
        threads = "cd /proc/$(pidof nfsrdma)/task && for t in *; do echo $t $(cat $t/comm $t/wchan); cat $t/stack; done"
        waiting = f"for i in $(seq {limit * 10}); do pidof nfsrdma >/dev/null || exit 0; sleep 0.1; done"
        self.run(f"{waiting}; {threads}; exit 1", limit + 60)


@pytest.mark.parametrize("link", ["rxe", "siw"])
def test_verbs_mount(link):
    """Our client, built with the verbs provider, runs inside the guest and mounts its knfsd."""
    with Mounting(link) as side:
        indent(side.run(mounting(options="transport=verbs")))
        indent(side.run("rdma resource show; CHECK_ENTRIES=300 python3 /job/checks.py run /mnt", 400))
        side.run("python3 /job/checks.py leave /mnt; /job/nfsrdma umount /mnt", 300)
        compare("at the server", side.run(f"python3 /job/checks.py sum {EXPORT}/set"), expected())
        side.run(mounting())
        compare("read again", side.run("python3 /job/checks.py sum /mnt/set", 300), expected())
        side.run("/job/nfsrdma umount /mnt")
        side.nothing_left()


@pytest.mark.parametrize("link, protection", [("rxe", ("best", "window")), ("siw", ("best",))], ids=["rxe", "siw"])
def test_verbs_conformance(link, protection):
    """The provider contract over verbs, in the guest, as initiator and as listener."""
    binary = verbs_programs() / "examples/verbs-conformance"
    with Guest(memory="3G") as guest:
        guest.put(binary, "verbs-conformance")
        guest.run(f"link {link}")
        run_conformance = "ulimit -l unlimited; /job/verbs-conformance {0} {1} 2>&1 | tail -4; exit ${{PIPESTATUS[0]}}"
        for choice in protection:
            indent(guest.run(run_conformance.format(ADDRESS, choice), 600))


@pytest.mark.parametrize("link", ["rxe"])
def test_verbs_memcheck(link):
    """The provider contract, and the removal of a device, under valgrind: no memory is misused or lost."""
    binary = verbs_programs() / "examples/verbs-conformance"
    watched = "valgrind -q --fair-sched=yes --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite"
    with Guest(memory="3G") as guest:
        guest.put(binary)
        guest.run(f"link {link}")
        command = f"ulimit -l unlimited; exec {watched} /job/{binary.name} {ADDRESS}"

        def passes(job, *wanted):
            status, output = guest.wait(job, 300)
            if status != 0 or not all(line in output.splitlines() for line in wanted):
                raise CaseError(f"status {status}:\n{output[-20000:]}")
            return output

        for choice in ("registration", "window invalidat", "window expos", "window once", "window dropp"):
            output = passes(guest.start(f"{command} {choice} 2>&1"), "all others passed")
            indent(f"{choice}: {output.count(' ... ok ')} cases")
        job = guest.start(f"{command} removal 2>&1")
        until(lambda: "moving" in guest.output(job), "data on the move", 60)
        guest.run(f"sleep 1; rdma link delete {link}0", 60)
        indent(passes(job, "all memory came back"))


@pytest.mark.parametrize("link", ["rxe"])
def test_verbs_responder(link):
    """Our responder serves over verbs in the guest; the guest's kernel client mounts it."""
    binary = verbs_programs() / "nfsrdma-responder"
    with Guest(memory="3G") as guest:
        guest.put(CHECKS)
        guest.put(binary, "nfsrdma-responder")
        guest.run(f"link {link}; mkdir -p /srv/ours")
        guest.start("ulimit -l unlimited; exec /job/nfsrdma-responder /srv/ours --transport verbs "
                    f"--listen {ADDRESS}:{NFS} --tcp {ADDRESS}:2050 --state-dir /run --print-ports >/job/ready 2>&1")
        guest.run("until grep -q ^ready /job/ready; do sleep 0.1; done", 30)
        mount = f"kernel_mount {ADDRESS} {NFS} 2050 /srv/ours"
        indent(guest.run(mount))
        indent(guest.run("CHECK_ENTRIES=300 python3 /job/checks.py run /mnt", 600))
        guest.run("python3 /job/checks.py leave /mnt; umount /mnt", 300)
        compare("at the responder", guest.run("python3 /job/checks.py sum /srv/ours/set"), expected())
        guest.run(mount)
        compare("read again", guest.run("python3 /job/checks.py sum /mnt/set; umount /mnt", 300), expected())


@pytest.mark.parametrize("link", ["rxe"])
def test_verbs_removal(link):
    """The RDMA device goes away under load and comes back; then for good: calls wait, and unmounting works."""
    with Mounting(link) as side:
        side.source(256)
        side.run(mounting())
        job, finish = side.copy("/srv/source", "/mnt/copy")
        side.until_under_way(job, f"{EXPORT}/copy")
        side.run(f"rdma link delete {link}0; sleep 1", 60)
        side.still_running(job)
        side.run(f"link {link}", 60)
        finish()
        side.run(f"cmp /srv/source {EXPORT}/copy; /job/nfsrdma umount /mnt")
        side.nothing_left()
        for ending in ("umount -f /mnt", "/job/nfsrdma umount -f /mnt"):
            gone(side, link, ending, "/mnt/copy", "/srv/back", "/srv/back")
            side.until_ended()
            side.run(f"link {link}; rm /srv/back")
            side.nothing_left()
        # Written data is kept until the server can be reached again, or until the process is told to end.
        gone(side, link, "umount -f /mnt", "/srv/source", "/mnt/kept", f"{EXPORT}/kept")
        size = int(side.run(f"pidof nfsrdma >/dev/null; stat -c %s {EXPORT}/kept"))
        side.run(f"link {link}")
        side.until_ended()
        kept = int(side.run(f"size=$(stat -c %s {EXPORT}/kept); cmp -n $size /srv/source {EXPORT}/kept; echo $size"))
        if kept <= size:
            raise CaseError(f"nothing was written after the device came back: {size} bytes before, {kept} after")
        side.nothing_left()
        killing = "kill -KILL $(pidof dd); while pidof dd >/dev/null; do sleep 0.1; done"
        said = gone(side, link, f"{{ {killing}; /job/nfsrdma umount -f /mnt; }}", "/srv/source", "/mnt/lost",
                    f"{EXPORT}/lost")
        if "is still writing data" not in said:
            raise CaseError(f"nobody was told of the data: {said!r}")
        side.run("kill $(pidof nfsrdma)")
        side.until_ended()
        side.run(f"link {link}")
        side.nothing_left()


def gone(side, link, ending, source, target, seen):
    """Mounts, removes the device under a copy, and unmounts; the copy fails. Returns the output of the unmount."""
    side.run(mounting())
    job, _ = side.copy(source, target)
    side.until_under_way(job, seen)
    side.run(f"rdma link delete {link}0; sleep 1", 60)
    side.still_running(job)
    # The mount is busy until the copy has got its error.
    said = side.run(f"while grep -q ' /mnt ' /proc/mounts; do {ending} 2>&1 || sleep 0.1; done", 60)
    status, _ = side.guest.wait(job, 60)
    if status == 0:
        raise CaseError("a copy to a server that is out of reach succeeded")
    return said


@pytest.mark.parametrize("link", ["rxe"])
def test_verbs_restart(link):
    """knfsd is stopped and started while a copy to it and a copy from it run over verbs."""
    with Mounting(link) as side:
        side.source(256)
        for source, target, seen in (("/srv/source", "/mnt/copy", f"{EXPORT}/copy"),
                                     ("/mnt/copy", "/srv/back", "/srv/back")):
            side.run(mounting(options="transport=verbs,cache=64M,timeo=50"))
            job, finish = side.copy(source, target)
            side.until_under_way(job, seen)
            side.run("knfsd_stop; sleep 1")
            side.still_running(job)
            side.run("knfsd_start")
            finish()
            side.run("/job/nfsrdma umount /mnt")
        side.run(f"cmp /srv/source {EXPORT}/copy; cmp /srv/source /srv/back")
        side.nothing_left()


@pytest.mark.parametrize("link", ["rxe"])
def test_verbs_ipv6(link):
    """The same server at its IPv6 address, chosen by transport=auto, which reports the reason."""
    with Mounting(link) as side:
        side.run(f"link_ipv6 {ADDRESS_6}")
        said = side.run(mounting(f"[{ADDRESS_6}]", "transport=auto,cache=64M") + " -v 2>&1")
        indent(said)
        for part in (f"verbs at [{ADDRESS_6}]:{NFS}", f"verbs because the RDMA device {link}0 reaches {ADDRESS_6}"):
            if part not in said:
                raise CaseError(f"{part!r} is not in {said!r}")
        indent(side.run("python3 /job/checks.py run /mnt procedures unstable links", 200))
        side.run("/job/nfsrdma umount /mnt")
        side.nothing_left()


def test_verbs_kerberos():
    """Each flavor over rxe: small and large transfers, users with and without tickets; Linux's client sees the same files."""
    with Side(link="rxe", binary=verbs_programs() / "nfsrdma", memory="3G") as side:
        side.run("""mkdir /srv/source; cd /srv/source
            for size in 0 1 1000 4095 70001 3145735; do head -c $size /dev/urandom >$size; done""")
        copy, same = f"as {A.uid} cp -r /srv/source", f"as {A.uid} diff -r /srv/source"

        def mount(flavor, more=""):
            side.run(f"ulimit -l unlimited; {ours(f'sec={flavor},transport=verbs,cache=64M{more}')}")

        for flavor in FLAVORS:
            mount(flavor)
            side.run(f"{copy} {OURS}/{flavor}; umount {OURS}; {same} {EXPORT}/{flavor}", 300)
            mount(flavor, ",rsize=32768,wsize=32768")
            side.run(f"{same} {OURS}/{flavor}; {copy} {OURS}/{flavor}.small", 300)
            tried = side.run(f"""mkdir -m 777 {EXPORT}/{flavor}.all
                python3 -B /srv/rights.py {OURS}/{flavor}.all x 0 {A.uid} {B.uid} {C.uid}""", 200)
            side.run(f"umount {OURS}; {same} {EXPORT}/{flavor}.small; [ $(stat -c %u {EXPORT}/{flavor}.small/1) = {A.uid} ]")
            own, others = "access rw, read 4, write ok", "access -, read EACCES, write EACCES"
            for user in (0, A.uid, B.uid, C.uid):
                for file in (0, A.uid, B.uid):
                    rights = own if user == file else others
                    assert f"{user} {file} {rights}, " in tried, tried
            assert f"{C.uid} makes a file: EACCES" in tried, tried
            left = side.run(f"python3 -B /srv/rights.py {EXPORT}/{flavor}.all x").splitlines()
            owners = {line.split()[0]: int(line.split()[1]) for line in left}
            assert owners == {"x.0": NOBODY, f"x.{A.uid}": A.uid, f"x.{B.uid}": B.uid}
        indent(side.mount_linux("sec=krb5p"))
        for flavor in FLAVORS:
            side.run(f"{same} {LINUX}/{flavor}; [ $(stat -c %u {LINUX}/{flavor}/1) = {A.uid} ]", 200)


# Problems of a machine, step by step: the command that causes each, the user, and the expected message with
# transport=verbs, which is also the reason with transport=auto.
WRONG = (
    ("no RDMA modules", "rm -rf /dev/infiniband", "root", "load the driver of one", "this machine has no RDMA device"),
    ("no device", "make_nodes", "root",
     "load the driver of one", "this machine has no RDMA device"),
    ("no permission", "link rxe; chmod 600 /dev/infiniband/*", "user", "run as root", ""),
    ("a limit of locked memory", "chmod 666 /dev/infiniband/*", "user", "ulimit -l unlimited", ""),
    ("the same for root without its capability", "", "contained", "--ulimit memlock=-1", ""),
    ("no file of the connection manager", "rm /dev/infiniband/rdma_cm", "root", "--device /dev/infiniband/rdma_cm", ""),
)
AS = {"root": "", "user": "setpriv --reuid 1000 --regid 1000 --clear-groups",
      "contained": "capsh --drop=cap_ipc_lock --shell=/usr/bin/env --"}


def test_verbs_errors():
    """What is missing on a machine is reported with its remedy; and only this build needs RDMA libraries."""
    binary = verbs_programs() / "nfsrdma"
    for path, wanted in ((program("nfsrdma"), False), (binary, True)):
        libraries = run(["ldd", path])
        for name in ("libibverbs.so", "librdmacm.so"):
            if (name in libraries) != wanted:
                raise CaseError(f"{path} is {'not ' if wanted else ''}linked with {name}: {libraries}")
    with Guest(memory="3G") as guest:
        guest.put(binary, "nfsrdma")
        # A server of MOUNT, so that the device is the first thing that is missing.
        guest.run("install -m 755 /job/nfsrdma /usr/local/bin/; knfsd_start")
        for what, first, whose, remedy, reason in WRONG:
            guest.run(first or "true")
            for transport in ("verbs", "auto") if reason else ("verbs",):
                options = f"transport={transport},port={NFS},mountport={MOUNTD},mountproto=tcp"
                status, said = guest.run(f"ulimit -l 64; {AS[whose]} /usr/local/bin/nfsrdma ping {ADDRESS}:{EXPORT} "
                                         f"-o {options} 2>&1 >/dev/null", check=False)
                indent(f"{what}, transport={transport}: {said}")
                wanted = remedy if transport == "verbs" else f"soft-iWARP because {reason}"
                if status == 0 or said.count("\n") != 1 or not all(part in said for part in wanted.split("...")):
                    raise CaseError(f"{what}: status {status}, {wanted!r} is not in one line: {said!r}")
