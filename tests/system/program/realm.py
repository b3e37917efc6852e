"""A Kerberos realm of MIT's KDC, for one test: everything it has is in one directory, and it listens on the loopback."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from program.support import LIMIT, NOBODY, run
from suites import free_port, stop, until

NAME = "NFSRDMA.TEST"
PACKAGES = {"krb5kdc": "krb5-kdc", "kadmin.local": "krb5-admin-server", "kinit": "krb5-user"}
SBIN = "/usr/sbin"
"""Where Debian has the programs of a KDC; not in the PATH of everybody."""
SECURE, OFTEN = "aes256-cts-hmac-sha384-192", "aes256-cts-hmac-sha1-96"
ENCTYPES = [OFTEN, "aes128-cts-hmac-sha1-96", SECURE, "aes128-cts-hmac-sha256-128"]
"""The enctypes of every key of a principal. The first is that of session keys, as MIT has it without configuration."""

CLIENT = """\
[libdefaults]
    default_realm = {name}
    default_ccache_name = FILE:{base}/ccaches/krb5cc_%{{uid}}
    default_keytab_name = FILE:{base}/krb5.keytab
    permitted_enctypes = {enctypes}
    dns_lookup_kdc = false
    dns_lookup_realm = false
    dns_canonicalize_hostname = false
    rdns = false
    udp_preference_limit = 1
[realms]
    {name} = {{
        kdc = 127.0.0.1:{port}
    }}
[domain_realm]
    localhost = {name}
"""

KDC = """\
[kdcdefaults]
    kdc_listen = 127.0.0.1:{port}
    kdc_tcp_listen = 127.0.0.1:{port}
[realms]
    {name} = {{
        database_name = {base}/kdc/principal
        key_stash_file = {base}/kdc/stash
        acl_file = {base}/kdc/acl
        supported_enctypes = {keys}
        max_life = 1d
    }}
[logging]
    kdc = FILE:{base}/kdc/log
"""


def program(name):
    """The path of a program of Kerberos; skips the test where it is not installed."""
    found = shutil.which(name, path=os.environ["PATH"] + os.pathsep + SBIN)
    if not found:
        pytest.skip(f"no {name}: apt-get install {' '.join(PACKAGES.values())}")
    return found


class Realm:
    """A realm with these principals, whose passwords are their names. The keytab has the keys of `services`.

    Programs take part in it by the environment `environment`. Each user has the ticket cache that its configuration
    names, as it is with a system's configuration.
    """

    def __init__(self, *principals, services=("nfs/localhost", "host/localhost"), enctypes=ENCTYPES):
        self.principals = principals or ("alice", "bob")
        self.services, self.enctypes = services, enctypes
        self.child = None

    def __enter__(self):
        for name in PACKAGES:
            program(name)
        self.base = Path(tempfile.mkdtemp(prefix="nfsrdma-realm.")).resolve()
        try:
            self.base.chmod(0o755)
            self.keytab = self.base / "krb5.keytab"
            self.kdc, self.ccaches = self.base / "kdc", self.base / "ccaches"
            self.kdc.mkdir(mode=0o700)
            self.ccaches.mkdir()
            self.ccaches.chmod(0o1777)
            if os.geteuid() == 0:
                os.chown(self.kdc, NOBODY, NOBODY)
            self.configure(free_port())
            self.as_kdc("kdb5_util", "create", "-s", "-P", "master")
            self.add(*self.principals)
            self.add_services(*self.services)
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.stop()
        shutil.rmtree(self.base)

    def configure(self, port):
        self.port = port
        known = {
            "name": NAME, "base": self.base, "port": port, "enctypes": " ".join(self.enctypes),
            "keys": " ".join(f"{enctype}:normal" for enctype in ENCTYPES),
        }  # fmt: skip
        (self.base / "krb5.conf").write_text(CLIENT.format(**known))
        (self.base / "kdc.conf").write_text(KDC.format(**known))

    @property
    def environment(self):
        """What a process of the realm is started with. It needs no record of tickets that it has seen."""
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("KRB5")},
            "KRB5_CONFIG": str(self.base / "krb5.conf"),
            "KRB5_KTNAME": str(self.keytab),
            "KRB5RCACHENAME": "none:",
        }

    def how(self):
        """How a program of the KDC is started: by a user who has no rights outside of its directory."""
        user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        return {"env": {**self.environment, "KRB5_KDC_PROFILE": str(self.base / "kdc.conf")}, "cwd": self.kdc, **user}

    def as_kdc(self, name, *words, **more):
        result = run(program(name), *words, **more, **self.how())
        assert result.returncode == 0, f"{name}: {result.stdout}{result.stderr}"
        return result.stdout

    def admin(self, *lines):
        """Gives commands to kadmin.local, which tells of errors by its output alone."""
        return self.as_kdc("kadmin.local", input="".join(f"{line}\n" for line in lines))

    def add(self, *principals):
        """Adds principals whose passwords are their names."""
        self.admin(*(f"addprinc -pw {name} {name}" for name in principals))
        self.expect_principals(*principals)

    def add_services(self, *services, keytab=None):
        """Adds principals with random keys, and puts these into a keytab, which is root's (or of who runs the test)."""
        made = self.kdc / "new.keytab"
        self.admin(*(line for name in services for line in (f"addprinc -randkey {name}", f"ktadd -k {made} {name}")))
        self.expect_principals(*services)
        keytab = keytab or self.keytab
        # A keytab's entries follow two bytes that say how they are written.
        entries = made.read_bytes()
        keytab.write_bytes((keytab.read_bytes() if keytab.exists() else entries[:2]) + entries[2:])
        keytab.chmod(0o600)
        made.unlink()

    def expect_principals(self, *names):
        known = self.admin("listprincs").split()
        assert {f"{name}@{NAME}" for name in names} <= set(known), known

    def start(self):
        """Starts the KDC, at its previous port if it had one."""
        if self.child:
            return
        with open(self.kdc / "said", "ab") as said:
            self.child = subprocess.Popen([program("krb5kdc"), "-n"], stdout=said, stderr=said, **self.how())
        until(lambda: self.answers() or self.child.poll() is not None, "a KDC")
        assert self.child.poll() is None, (self.kdc / "said").read_text()

    def answers(self):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), LIMIT):
            return True
        return False

    def stop(self):
        if self.child:
            stop(self.child)
            self.child = None

    def as_user(self, user, *command, **more):
        """Runs a program as a user of users.py; as who runs the test, if `user` is None."""
        who = {"user": user.uid, "group": user.gid, "extra_groups": list(user.groups)} if user else {}
        return run(*command, env=self.environment, cwd="/", **who, **more)

    def try_kinit(self, name, user=None, *words, password=None):
        return self.as_user(user, program("kinit"), *words, name, input=f"{password or name}\n")

    def kinit(self, name, user=None, *words):
        """Gets a ticket for `name` into the cache of `user`: `kinit WORDS NAME`, as `-l 5s` for a life of five seconds."""
        result = self.try_kinit(name, user, *words)
        assert result.returncode == 0, result.stderr
        return self.ccache(user)

    def kdestroy(self, user=None):
        self.as_user(user, program("kdestroy"), "-q")

    def ccache(self, user=None):
        """The path of a user's ticket cache."""
        return self.ccaches / f"krb5cc_{user.uid if user else os.geteuid()}"
