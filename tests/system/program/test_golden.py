"""The program's messages for wrong inputs, compared exactly with tests/system/program/golden/wrong-inputs.txt.

    NFSRDMA_GOLDEN=write ./tests/system/run program wrong_inputs

writes the file again; read the difference before you commit it. Addresses, ports and directories that differ between
runs are replaced by words. Every message has to name a remedy; a reference to the help or to the usage is not enough.
"""

import difflib
import fcntl
import os
import re
import socket
import struct

from program.support import *  # noqa: F403
from program.support import BIN

GOLDEN = ROOT / "tests/system/program/golden/wrong-inputs.txt"

SOURCES = """
data|srv:|:/x|:|[::1]|[::1]/x|[::1|[srv]:/x|[]:/x|[fe80::1]:/x|[fe80::1%]:/x|fe80::1:/x|2001:db8::1:/x|srv:data|srv:./x
srv:20049:/x|srv:2049/x|[::1]:2049/x|srv:2049:x|[::1]:20049:/x|http://srv/x|https://srv/x|HTTP://srv/x|ftp://srv/x|sftp://srv/x|smb://srv/x
file:///x|rdma://srv/x|nfsrdma://srv/x|nfs://|nfs://srv|nfs:///x|nfs://srv:0/x|nfs://srv:99999/x|nfs://srv:x/x
nfs://[::1]7/x|nfs://[x]/x|nfs://srv/%zz|nfs://srv/%0|nfs://srv/a%00b|a b:/x|-srv:/x|/dev/sda1|srv,srv2:/x|\\\\srv\\x
//srv/x|user@host/x|joe@srv:/x|srv:4711/x|nfs://a b/x|srv|[::1]:2050:x|nfs://[fe80::1]/x|-o:/x
""".replace("\n", "|").strip("|").split("|")  # fmt: skip

OPTIONS = """
rsize|rsize=|rsize=x|rsize=-1|rsize=1.5|wsize=x|wsize=|port=x|port=65536|port=-1|port|proto=ib|proto=|proto=tcp|proto=tcp6
proto=udp|proto=udp6|tcp|udp|vers=2|vers=4|vers=4.0|vers=4.1|vers=4.2|vers=5|vers=|vers=3.1|nfsvers=4|nfsvers=x|v2|v4
v4.0|v4.1|v4.2|minorversion=1|minorversion=7|clientaddr=10.0.0.1|migration|max_connect=4|trunkdiscovery|srcaddr=10.0.0.1
fatal_neterrors=ENETDOWN:ENETUNREACH|fatal_neterrors=x|addr=srv|mountaddr=x|namlen=x|bsize=x|nfsprog=1|mountprog=1
mounthost=|mounthost=a b|mountport=x|mountport=99999|mountproto=quic|mountproto=|mountvers=1|mountvers=2|mountvers=4|hard=1
soft=x|timeo=0|timeo=x|timeo=|retrans=x|retrans=-1|retry=x|retry=|bg=1|acregmin=x|acregmax=|acdirmin=1h|acdirmax=x
actimeo=x|lookupcache=some|lookupcache=|rdirplus=x|write=soon|nconnect=0|nconnect=17|nconnect=x|fsc|fsc=tag|sharecache
remoteports=srv|remoteports=10.0.0.1~10.0.0.2-10.0.0.1|localports=dns
sec=none|sec=lkey:spkm|sec=x|sec=|sec=sys:x|sec=krb5:x|gssport=x|xprtsec=tls|xprtsec=mtls|xprtsec=x|cert_serial=1
privkey_serial=1|context=|fscontext=|permissions=|permissions=all|transport=tcp|transport=|write_chunk=x|inline=1500
inline=1|inline=1M|credits=0|credits=5000|credits=x|fpdu=1|fpdu=x|cache=1K|cache=2T|cache=x|dirty=1|dirty=x|readahead=2G
readahead=x|workers=0|workers=17|workers=x|metrics=0|metrics=x|metrics=unix:x|metrics=70000|allow_other=1|frobnicate|rszie=1
sotf|RO|Rsize=1|nocrcs|acregmim=1|retires=2|bind|ro, soft| ro|ro ,soft|hard,soft|soft,softerr|bg,fg|rsize=4096,rsize=8192
ac,noac|noac,acregmax=60|cto,nocto|crc,nocrc|actimeo=5,acdirmin=6|rdirplus,nordirplus|proto=rdma,proto=rdma6|intr,nointr
resvport,noresvport|acregmin=9,acregmax=8|acdirmin=9,acdirmax=8|dirty=64M,cache=32M|permissions=kernel,permissions=server
transport=verbs,nocrc|transport=verbs,fpdu=512|user_id=0|allow_other,noallow_other|uid=5|umask=022|reconnect
acl,noacl|transport=iwarp,transport=auto|permissions=server,default_permissions|nolock,local_lock=none|lock,local_lock=all
local_lock=some|lookupcache=po|sloppy,sec=none|xprtsec=mtls,sloppy|ro,uid=5,sec=none,zork,reconnect,timeo=x
""".replace("\n", "|").strip("|").split("|")  # fmt: skip

FSTAB = """
srv:/x|srv:/x /mnt|srv:/x /mnt ext4 ro 0 0|/dev/sda1 / ext4 defaults 0 1|# srv:/x /mnt nfs|srv:x /mnt nfs rdma|http://srv/x /mnt nfs rdma
srv:/x /mnt nfs rdma,sec=none 0 0|srv:/x /mnt nfs rdma,xprtsec=mtls 0 0|srv:/x /mnt nfs rdma,timeo=x 0 0|srv:/x /mnt nfs rdma,hard,soft 0 0
srv:2049:/x /mnt nfs rdma|mount srv:/x|mount -t ext4 srv:/x /mnt
""".replace("\n", "|").strip("|").split("|")  # fmt: skip

COMMANDS = [
    "", "zork", "version", "list", "showmount srv", "remount MNT", "status", "unmount MNT", "mount -a", "umount -a", "mont srv:/x MNT", "mount", "mount srv:/x", "mount srv:/x MNT MNT", "mount -t nfs srv:/x MNT",
    "mount -t nfs4 srv:/x MNT", "mount -t ext4 srv:/x MNT", "mount -o ro, soft srv:/x MNT", "mount srv:/x MNT -o",
    "mount srv:/x MNT -r -w", "mount --zork srv:/x MNT", "mount srv:/x MNT --log", "umount", "umount MNT MNT",
    "umount --zork MNT", "exports", "ping", "ping srv srv", "ping a,b", "ping http://srv/", "ping srv:20049", "ping fe80::1",
    "exports srv -o zork", "exports 127.0.0.1 -o mountproto=rdma", "ping srv -o port=x", "log MNT loud", "log",
    "trace MNT --procedure REED", "trace", "trace MNT --sent --errors", "trace MNT --slow x", "capture MNT",
    "capture MNT f --snaplen 3", "capture MNT f --seconds 0", "capture MNT f --packets 0", "capture MNT f --size x",
    "fstab", "stats MNT --json --prometheus", "stats MNT --watch 0", "stats MNT --watch x",
    "stats MNT --json --mountstats --prometheus", "stats MNT --jsno", "stats MNT --json --json", "stats MNT --json=1",
    "stats MNT --watch 86401", "--zork", "help zork", "trace MNT --procedure OPEN", "trace MNT --slow 4294967296",
    "trace MNT --slow", "trace MNT --slow -1", "top -n -1", "capture MNT f --size -1", "stats --watch -1",
    "trace MNT --sent --slow 5", "capture MNT f --seconds x",
    "capture MNT f --packets x", "capture MNT f --snaplen x", "capture MNT f --size", "log MNT debgu", "top --delay 0",
    "top --delay 3601", "top -n 0", "top -n x", "metrics", "metrics --listen nowhere", "metrics --listen unix:x",
    "umount ", "mount MNT", "exports :/x", "ping [::1", "exports nfs://", "ping srv/x", "exports srv:x", "ping srv:2049/x",
    "exports srv:4711:/x",
]  # fmt: skip
"""The shell splits at blanks."""

PLACES = ["MISSING", "BASE", "FILE", "/proc"]
"""A directory on which nothing of ours is mounted."""

REMEDY = re.compile(
    r"\b(write|put|give|leave|choose|use|check|see|make|takes|load|install|raise|close|listed|lists|shows|"
    r"did you mean|do without|be root|start|allow|turn)\b|sloppy passes|'(?:nfsrdma|mount|modprobe|fuser|findmnt) |mount (?:again|it|the one)|\[MOUNTS\]|is listed|\nCommands:\n|ip route"
)


class Inputs:
    """Runs wrong inputs, and collects the messages."""

    def __init__(self, server, helper):
        self.server, self.helper, self.said, self.without = server, helper, [], []

    def words(self, text):
        base = self.server.base
        meant = {"MNT": self.server.mnt, "MISSING": base / "missing", "BASE": base, "FILE": base / "file"}
        return [meant.get(word, word) for word in text]

    def plain(self, text):
        text = text.replace(str(self.server.mnt), "MNT").replace(str(self.server.export), "EXPORT")
        text = text.replace(str(self.server.base), "BASE")
        for number, name in ((self.server.port, "RDMA-PORT"), (self.server.mountport, "MOUNT-PORT")):
            text = re.sub(rf"\b{number}\b", name, text)
        text = re.sub(r"nfsrdma mounts are on [^\n]*|nothing is mounted by nfsrdma here: see [^\n]*", "[MOUNTS]", text)
        # Where the test has no network, there is no DNS that could know a name.
        text = text.replace("DNS does not answer; check the name", "no such host; check the name")
        text = text.replace("and [MOUNTS]", "[MOUNTS]").replace(": [MOUNTS]", ", [MOUNTS]")
        # The provider that was tried depends on the build and the machine.
        return re.sub(r" \((soft-iWARP|verbs) because [^\n]*\)", "", text)

    def run(self, *words, program=None):
        result = run(program or BIN / "nfsrdma", *self.words(words), limit=60)
        assert result.returncode not in (0, 4, 101) and result.returncode > 0, (words, result)
        assert result.stderr, (words, result)
        assert not mounted(self.server.mnt), words
        said = self.plain(result.stderr)
        if not REMEDY.search(said):
            self.without.append(said)
        shown = " ".join(f"'{word}'" if " " in str(word) or not str(word) else str(word) for word in words)
        name = "nfsrdma" if program is None else program.name
        self.said.append(self.plain(f"$ {name} {shown}") + f"\n{said.rstrip()}\nstatus {result.returncode}\n")


def run_all(inputs):
    server = inputs.server
    for source in SOURCES:
        inputs.run("mount", "--", source, "MNT")
    for option in OPTIONS:
        inputs.run("127.0.0.1:/x", "MNT", "-o", option, program=inputs.helper)
    for words in COMMANDS:
        inputs.run(*words.split(" ")) if words else inputs.run()
    for line in FSTAB:
        inputs.run("fstab", line)
    for place in PLACES:
        for command in ("umount", "stats", "log", "trace"):
            inputs.run(command, place)
        inputs.run("capture", place, "/dev/null")
        inputs.run("mount", "srv:/x", place, "-o", "remount,ro")
    for place in ("MISSING", "FILE", "/", "/proc", "/dev", "/sys"):
        inputs.run("mount", "127.0.0.1:/x", place, "-o", "retry=0")
    inputs.run("127.0.0.1:/x", "MNT", "-t", "nfs", program=inputs.helper)
    inputs.run("127.0.0.1:/x", program=inputs.helper)
    inputs.run("127.0.0.1:/x", "MNT", "--zork", program=inputs.helper)
    inputs.run("mount", "nfs://127.0.0.1:1/x", "MNT", "-o", "port=2")
    # These need a running server.
    own = f"{server.options()},retry=0"
    spec = server.spec
    for words in (
        ("mount", "127.0.0.1:/nothing", "MNT", "-o", own),
        ("ping", "127.0.0.1:/nothing", "-o", own),
        ("mount", spec, "MNT", "-o", f"port={server.mountport},mountport={server.mountport},mountproto=tcp"),
        ("mount", spec, "MNT", "-o", f"port={server.port},mountport={server.port},mountproto=tcp,retry=0"),
        ("mount", spec, "MNT", "-o", f"port=9,mountport={server.mountport},mountproto=tcp,retry=0"),
        ("mount", spec, "MNT", "-o", f"port={server.port},mountport=9,mountproto=tcp,retry=0"),
        ("exports", "127.0.0.1", "-o", "mountport=9,mountproto=tcp"),
        ("ping", "127.0.0.1", "-o", "port=9"),
        ("mount", "no.such.host.invalid:/x", "MNT", "-o", "retry=0"),
        ("exports", "no.such.host.invalid"),
        ("ping", "no.such.host.invalid"),
        ("mount", spec, "MNT", "-o", f"{own},proto=rdma6"),
        ("mount", spec, "MNT", "--log", "/no/such/file", "-o", own),
        ("mount", spec, "MNT", "--log", "BASE", "-o", own),
    ):
        inputs.run(*words)


def test_wrong_inputs():
    root()
    # This needs a closed port 9 and an address that cannot be reached, and so a network namespace of its own.
    if "NFSRDMA_GOLDEN_INSIDE" not in os.environ:
        run_inside(alone("--net"), "test_wrong_inputs", "NFSRDMA_GOLDEN_INSIDE", 10 * LIMIT)
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        # SIOCSIFFLAGS, IFF_UP (netdevice(7)).
        fcntl.ioctl(control, 0x8914, struct.pack("16sH14x", b"lo", 1))
    with Server() as server:
        helper = server.base / "mount.nfsrdma"
        helper.symlink_to(BIN / "nfsrdma")
        (server.base / "file").touch()
        inputs = Inputs(server, helper)
        run_all(inputs)
        for words in (
            ("mount", "10.1.2.3:/x", "MNT", "-o", "mountport=1,mountproto=tcp,retry=0"),
            ("mount", "10.1.2.3:/x", "MNT", "-o", "retry=0"),
            ("mount", "10.1.2.3:/x", "MNT", "-o", "mountproto=rdma,retry=0"),
            ("ping", "10.1.2.3"),
            ("exports", "10.1.2.3"),
        ):
            inputs.run(*words)
    assert not inputs.without, "no remedy:\n" + "".join(inputs.without)
    assert len(inputs.said) >= 200, len(inputs.said)
    text = "\n".join(inputs.said)
    if os.environ.get("NFSRDMA_GOLDEN") == "write":
        GOLDEN.write_text(text)
    golden = GOLDEN.read_text().splitlines()
    difference = list(difflib.unified_diff(golden, text.splitlines(), "golden", "now", lineterm="", n=1))
    assert not difference, "\n".join(["said otherwise (NFSRDMA_GOLDEN=write takes it over):", *difference])
