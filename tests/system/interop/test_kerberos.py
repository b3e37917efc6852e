"""Kerberos with Linux's server, and Linux's own client beside ours. Everything runs in the guest, but for the KDC."""

from interop.guest import CHECKS, EXPORT, Guest, MOUNTD, NFS
from interop.host import compare, indent
from program.realm import Realm
from program.support import NOBODY
from program.users import A, B, C

FLAVORS = ("krb5", "krb5i", "krb5p")
SERVER = "server.nfsrdma.test"  # guest/lib.sh
USERS = {"alice": A, "bob": B}


class Side:
    """A guest whose knfsd exports with these flavors, in a realm whose KDC is on the host. alice and bob have tickets."""

    def __init__(self, flavors=":".join(FLAVORS), link="siw"):
        self.flavors, self.link = flavors, link
        self.realm = Realm(*USERS, services=(f"nfs/{SERVER}",))
        self.guest = Guest(host_access=True)

    def __enter__(self):
        self.realm.__enter__()
        try:
            self.guest.__enter__()
            try:
                self.guest.put(CHECKS)
                self.guest.put(self.realm.keytab)
                config = (self.realm.base / "krb5.conf").read_text()
                for here, there in ((f"{self.realm.ccaches}", "/tmp"), (f"{self.realm.base}", "/etc"), ("127.0.0.1", "10.0.2.2")):
                    config = config.replace(here, there)
                (self.guest.share / "krb5.conf").write_text(config)
                self.guest.run(f"link {self.link}; kerberos_start {self.flavors}; knfsd_start")
                for name in USERS:
                    self.kinit(name)
            except BaseException:
                self.guest.__exit__(None, None, None)
                raise
        except BaseException:
            self.realm.__exit__()
            raise
        return self

    def __exit__(self, *exception):
        try:
            self.guest.__exit__(*exception)
        finally:
            self.realm.__exit__()

    def kinit(self, name, *words):
        """A user gets a ticket."""
        user = USERS[name]
        ticket = self.guest.put(self.realm.kinit(name, user, *words))
        self.guest.run(f"kerberos_user {name} {user.uid} {ticket}")

    def run(self, script, limit=120):
        return self.guest.run(script, limit)

    def mount_linux(self, options):
        return self.run(f"kernel_mount {SERVER} {NFS} {MOUNTD} {EXPORT} {options}")


def test_kerberos_selftest():
    """The kernel's client with the kernel's server: the baseline of the tests here."""
    with Side() as side:
        for flavor in FLAVORS:
            indent(side.mount_linux(f"sec={flavor}"))
            side.run(f"""for uid in {A.uid} {B.uid}; do as $uid touch /mnt/$uid.{flavor}; done; touch /mnt/0.{flavor}
                ! as {C.uid} touch /mnt/{C.uid}.{flavor}; umount /mnt""")
        owners = side.run(f"cd {EXPORT}; stat -c '%n %u' * | sort").split("\n")[:-1]
        wanted = {f"{user}.{flavor} {seen}" for flavor in FLAVORS for user, seen in
                  ((A.uid, A.uid), (B.uid, B.uid), (0, NOBODY))}
        compare("owners at the server", "\n".join(owners), "\n".join(sorted(wanted)))
