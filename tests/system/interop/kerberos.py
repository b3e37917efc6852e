"""knfsd with Kerberos: parts of test_kerberos.py and of others."""

from interop.guest import CHECKS, EXPORT, Guest, HERE, MOUNTD, NFS
from interop.host import indent, program
from program.realm import Realm
from program.users import A, B

FLAVORS = ("krb5", "krb5i", "krb5p")
SERVER = "server.nfsrdma.test"  # guest/lib.sh
USERS = {"alice": A, "bob": B}
OURS, LINUX = "/srv/ours", "/mnt"


def ours(options):
    """The command that mounts the export at OURS."""
    return f"/job/nfsrdma mount {SERVER}:{EXPORT} {OURS} -o port={NFS},mountport={MOUNTD},mountproto=tcp,allow_other,{options}"


def put_realm(guest, realm):
    """What kerberos_start in the guest needs of a realm on the host."""
    guest.put(realm.keytab)
    config = (realm.base / "krb5.conf").read_text()
    for here, there in ((f"{realm.ccaches}", "/tmp"), (f"{realm.base}", "/etc"), ("127.0.0.1", "10.0.2.2")):
        config = config.replace(here, there)
    (guest.share / "krb5.conf").write_text(config)


class Side:
    """A guest whose knfsd exports with these flavors, in a realm whose KDC is on the host. alice and bob have tickets."""

    def __init__(self, flavors=":".join(FLAVORS), link="siw", binary=None, memory="2G"):
        self.flavors, self.binary = flavors, binary
        self.realm = Realm(*USERS, services=(f"nfs/{SERVER}",))
        self.guest = Guest(host_access=True, memory=memory, prepare=f"link {link}")

    def __enter__(self):
        self.realm.__enter__()
        try:
            self.guest.__enter__()
            try:
                for file in (self.binary or program("nfsrdma"), CHECKS, HERE / "rights.py"):
                    self.guest.put(file)
                put_realm(self.guest, self.realm)
                # Others than root do not look into /job.
                self.guest.run(f"""kerberos_start {self.flavors}; knfsd_start
                    cp /job/*.py /srv/; mkdir {OURS}""")
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

    def mount_ours(self, options):
        indent(self.run(ours(options)))

    def mount_linux(self, options):
        return self.run(f"kernel_mount {SERVER} {NFS} {MOUNTD} {EXPORT} {options}")
