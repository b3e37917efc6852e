"""Kerberos with Linux's server, and Linux's own client beside ours. Everything runs in the guest, but for the KDC. Other
tests, with our mounts on the host, are in test_kerberos_host.py, and those over verbs in test_verbs.py."""

import re

import pytest

from interop.guest import EXPORT
from interop.host import CaseError, Directory, checks, compare, indent
from interop.kerberos import FLAVORS, LINUX, OURS, Side, ours
from program.support import NOBODY
from program.users import A, B, C
from suites import until


@pytest.mark.parametrize("flavor", FLAVORS)
def test_kerberos_checks(flavor):
    """A user of our mount makes every kind of call; what either client writes, the other reads, and has the right owner."""
    user = f"as {A.uid} env CHECK_ENTRIES=30 CHECK_BIG_MIB=1 python3 /srv/checks.py"
    with Side() as side, Directory() as local:
        checks("leave", local, CHECK_BIG_MIB="1")
        wanted = re.sub(r"^(\S+ \S+ \S+) 0\b", rf"\1 {A.uid}", checks("sum", local / "set"), flags=re.M)
        side.mount_ours(f"sec={flavor}")
        indent(side.run(f"{user} run {OURS} procedures links directory; {user} leave {OURS}", 400))
        compare("written by us, at the server", side.run(f"{user} sum {EXPORT}/set"), wanted)
        indent(side.mount_linux(f"sec={flavor}"))
        compare("written by us, read by Linux", side.run(f"{user} sum {LINUX}/set", 200), wanted)
        side.run(f"mkdir -m 1777 {EXPORT}/back; {user} leave {LINUX}/back", 200)
        compare("written by Linux, read by us", side.run(f"{user} sum {OURS}/back/set", 200), wanted)


# Who has alice's ticket under another number, and the group that alice has at the server alone.
GUEST, TEAM = 61004, 4242


def test_kerberos_users():
    """Users with and without tickets, root with the machine's keys, and one with another's ticket have the rights that
    Linux's client gives them."""
    users = (0, A.uid, B.uid, C.uid, GUEST)
    with Side() as side:
        side.mount_ours("sec=krb5")
        indent(side.mount_linux("sec=krb5"))
        folder = f"{EXPORT}/shared"
        side.run(f"""mkdir -m 777 {folder}; cd {folder}
            for name in ours linux; do
                touch $name.team $name.root; chmod 660 $name.team; chmod 600 $name.root; chown {B.uid}:{TEAM} $name.team
            done
            echo team:x:{TEAM}:alice >>/etc/group; install -m 600 -o {GUEST} /tmp/krb5cc_{A.uid} /tmp/krb5cc_{GUEST}""")

        def rights(mount, name, *uids):
            return side.run(f"python3 -B /srv/rights.py {mount}/shared {name} {' '.join(map(str, uids))}", 200)

        tried = rights(OURS, "ours", *users)
        indent(tried)
        compare("rights", tried, rights(LINUX, "linux", *users))
        for name in ("ours", "linux"):
            left = rights(EXPORT, name)
            for mount in (OURS, LINUX):
                compare(f"made in {name}, seen in {mount}", rights(mount, name), left)
            owners = {line.split()[0].partition(".")[2]: int(line.split()[1]) for line in left.splitlines()}
            assert owners == {"root": 0, "team": B.uid, "0": NOBODY, f"{A.uid}": A.uid, f"{B.uid}": B.uid, f"{GUEST}": A.uid}
        compare("a group at the server", re.findall(f"^{A.uid} team access ([^,]*)", tried, re.M)[0], "rw")


def test_kerberos_forgotten():
    """The server forgets its contexts, and is restarted, while users write: nobody hears of it, and nothing is lost."""
    with Side() as side:
        side.mount_ours("sec=krb5i,timeo=50")
        side.run("dd if=/dev/urandom of=/srv/source bs=1M count=12 status=none")
        copies = [side.guest.start(f"as {user.uid} dd if=/srv/source of={OURS}/{user.uid} bs=64k conv=fsync status=none")
                  for user in (A, B)]
        size = f"stat -c %s {EXPORT}/{A.uid} 2>/dev/null || echo 0"
        for event in ("kerberos_forget", "knfsd_stop; kerberos_forget; knfsd_start"):
            before = int(side.run(size))
            until(lambda before=before: int(side.run(size)) > before, "the next part of the copy", 200)
            if all(copy in side.guest.statuses for copy in copies):
                raise CaseError(f"the copies were over before {event}")
            side.run(event)
        for copy, user in zip(copies, (A, B)):
            status, output = side.guest.wait(copy, 400)
            assert status == 0, output
            side.run(f"cmp /srv/source {EXPORT}/{user.uid}; [ $(stat -c %u {EXPORT}/{user.uid}) = {user.uid} ]")


def test_kerberos_flavors():
    """Of a list, the flavor that the export has is used; without one that it has, the mount fails by a sentence."""
    with Side("krb5p") as side:
        for given in ("krb5i", "sys"):
            status, said = side.guest.run(ours(f"sec={given},retry=0"), check=False)
            indent(f"sec={given}: {said}")
            assert status != 0 and "use sec=krb5p" in said and said.count("\n") == 1
        side.mount_ours("sec=krb5:krb5p")
        # Linux's server refuses every other flavor where a file is made.
        side.run(f"as {A.uid} touch {OURS}/made; umount {OURS}; [ $(stat -c %u {EXPORT}/made) = {A.uid} ]")
