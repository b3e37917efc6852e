"""The promises to users of the kernel's client: docs/MIGRATION.md, row by row."""

import contextlib
import functools
import os
import re
import shutil
import subprocess

import pytest

from program.support import *  # noqa: F403
from program.support import BIN

GUIDE = ROOT / "docs/MIGRATION.md"

# Names in the manual page nfs(5) (nfs-utils 2.8), in the kernel's own table (Linux 6.18), and in mount(8).
NFS = """
nfsvers vers soft softerr hard softreval nosoftreval intr nointr timeo retrans rsize wsize ac noac acregmin acregmax
acdirmin acdirmax actimeo bg fg nconnect max_connect rdirplus nordirplus retry sec xprtsec sharecache nosharecache resvport
noresvport lookupcache fsc nofsc trunkdiscovery notrunkdiscovery proto tcp udp rdma port mountport mountproto mounthost
mountvers namlen lock nolock cto nocto acl noacl local_lock minorversion clientaddr migration nomigration write addr
mountaddr bsize posix noposix v2 v3 v4 v4.0 v4.1 v4.2 alignwrite noalignwrite fatal_neterrors cert_serial privkey_serial
srcaddr
""".split()  # fmt: skip
MOUNT = """
async atime noatime auto noauto context fscontext defcontext rootcontext defaults dev nodev diratime nodiratime dirsync exec
noexec group iversion noiversion mand nomand _netdev nofail relatime norelatime strictatime nostrictatime lazytime
nolazytime suid nosuid silent loud owner ro rw sync user nouser users nosymfollow
""".split()  # fmt: skip


def rows():
    """(options, treatment, the rest) of the rows in the tables of options."""
    found = []
    for line in GUIDE.read_text().split("\n## Every option of nfs(5)")[1].splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 3 and cells[0].startswith("`"):
            found.append((re.findall(r"`([^`]+)`", cells[0]), cells[1], cells[2]))
    assert len(found) > 40, "the tables are written differently now"
    return found


def test_every_option_of_the_manual_pages_is_in_the_guide():
    names = {re.split(r"[=]", option)[0] for options, _, _ in rows() for option in options}
    missing = [name for name in (*NFS, *MOUNT) if name not in names]
    assert not missing, f"not in docs/MIGRATION.md: {missing}"


def checked(place, option, *more):
    """How the helper of mount(8) understands an option, without mounting (-f)."""
    return run(place.base / "mount.nfsrdma", "127.0.0.1:/x", place.mnt, "-f", *more, "-o", option)


def test_every_row_of_the_guide_is_true():
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("no /dev/fuse")
    tried = 0
    with Place() as place:
        (place.base / "mount.nfsrdma").symlink_to(BIN / "nfsrdma")
        for options, becomes, rest in rows():
            for option in options:
                tried += 1
                result = checked(place, option, "-v")
                if becomes == "refused":
                    expect(result, 1, "cannot be honoured: ")
                    if option.split("=")[0] in ("sec", "xprtsec"):  # Who asks for protection gets no mount without it.
                        expect(checked(place, option, "-s"), 1, "cannot be honoured: ")
                    else:
                        expect(checked(place, option, "-s"), 0, "is passed over")
                    continue
                expect(result, 0, "options: ")
                if becomes == "translated":
                    other = re.findall(r"`([^`]+)`", rest)[0]
                    same = checked(place, other, "-v")
                    assert result.stderr == same.stderr, f"{option} is not {other}: {result.stderr} {same.stderr}"
                else:
                    assert becomes == "accepted", becomes
        assert not mounted(place.mnt)
    assert tried > 130, tried


def test_a_line_of_proc_mounts_is_taken():
    """A line that the kernel's client shows, word by word; then its translation by `nfsrdma fstab`."""
    root()
    with Server() as server:
        shown = (
            "rw,relatime,vers=3,rsize=1048576,wsize=1048576,namlen=255,hard,proto=rdma,port={0.port},timeo=600,retrans=2,"
            "sec=sys,mountaddr=127.0.0.1,mountvers=3,mountport={0.mountport},mountproto=tcp,local_lock=all,addr=127.0.0.1"
        ).format(server)
        expect(nfsrdma("mount", server.spec, server.mnt, "-o", shown), 0)
        (server.mnt / "a").write_text("1")
        expect(nfsrdma("umount", server.mnt), 0)
        result = nfsrdma("fstab", f"{server.spec} {server.mnt} nfs {shown} 0 0")
        expect(result, 0)
        source, at, kind, options, *rest = result.stdout.split()
        assert (source, at, kind, rest) == (server.spec, str(server.mnt), "nfsrdma", ["0", "0"]), result.stdout
        assert "_netdev" in options.split(",") and "addr=" not in options, options
        # The port of mountd is found at each mount, which needs an rpcbind.
        own = f"{options},mountport={server.mountport}"
        expect(nfsrdma("mount", source, at, "-o", own), 0)
        assert (server.mnt / "a").read_text() == "1"


def test_fstab_says_what_it_leaves_out():
    result = nfsrdma("fstab", "srv:/x /mnt nfs4 vers=4.2,proto=rdma,fsc,bg 0 0")
    expect(result, 0)
    # As systemd does it for the type nfs (systemd.mount(5)).
    instead = "nofail,retry=10000,x-systemd.mount-timeout=infinity,_netdev"
    assert result.stdout == f"srv:/x  /mnt  nfsrdma  proto=rdma,{instead}  0  0\n", result.stdout
    for word in ("nfs4", "vers=4.2", "fsc", "'bg' became"):
        assert f"{word}" in result.stderr, (word, result.stderr)
    assert all(line.startswith("# ") for line in result.stderr.splitlines()), result.stderr
    table = "# comment\n/dev/sda1 / ext4 defaults 0 1\n\nsrv:/x\t/mnt nfs rdma\n"
    result = nfsrdma("fstab", "-", input=table)
    expect(result, 0)
    assert result.stdout == "# comment\n/dev/sda1 / ext4 defaults 0 1\n\nsrv:/x  /mnt  nfsrdma  rdma,_netdev  0  0\n"
    expect(nfsrdma("fstab", "srv:/x", "/mnt", "nfs", "rdma,sec=none"), 1, "AUTH_SYS and Kerberos")
    # All that stands in the way.
    several = ("'sec=none' cannot be honoured", "'timeo=x' is not allowed", "'xprtsec=mtls' cannot be honoured")
    expect(nfsrdma("fstab", "srv:/x /mnt nfs rdma,sec=none,timeo=x,xprtsec=mtls"), 1, *several)
    expect(nfsrdma("fstab", "-", input="srv:/x /mnt nfs rdma,sec=none,timeo=x,xprtsec=mtls"), 1, *several)
    own = nfsrdma("fstab", "srv:/x /mnt nfs rdma,retry=5,bg")
    expect(own, 0, "rdma,retry=5,nofail,x-systemd.mount-timeout=infinity,_netdev")
    command = nfsrdma("fstab", "mount", "-t", "nfs", "-o", "rdma", "srv:/x", "/mnt")
    expect(command, 0, "srv:/x  /mnt  nfsrdma  rdma,_netdev  0  0")


def test_fstab_goes_on_behind_what_it_cannot_translate():
    table = (
        "srv:/a /a nfs rdma,sec=none 0 0\n/dev/sda1 / ext4 defaults 0 1\nsrv:/b /b nfs defaults,port=2049 0 0\n"
        "srv:/c /c nfs4 tcp 0 0\nsrv:/d /d nfs proto=rdma 0 0\nsrv:/e /e nfs rdma,timeo=x 0 0\n/dev/sdb none swap sw"
    )
    result = nfsrdma("fstab", "-", input=table)
    expect(result, 1, "lines 1, 6 are not translated, but kept")
    wanted = table.replace("srv:/d /d nfs proto=rdma 0 0", "srv:/d  /d  nfsrdma  proto=rdma,_netdev  0  0")
    assert result.stdout == f"{wanted}\n", result.stdout
    for said in (
        "# line 1: kept as it is: option 'sec=none' cannot be honoured",
        "# line 3: kept as it is, since it does not ask for RDMA: to translate it, add the option rdma",
        "# line 4: kept as it is, since",
        "# line 6: kept as it is: 'timeo=x'",
    ):
        assert said in result.stderr, result.stderr
    assert result.stderr.count("\n") == 5, result.stderr
    expect(nfsrdma("fstab", "-", input="srv:/b /b nfs\n"), 0)


def test_fstab_leaves_a_line_alone_that_does_not_ask_for_rdma():
    """Nothing in it is wrong for the kernel's client, which is meant to have it."""
    for line in ("srv:/b /b nfs port=2049,ro", "srv:/b /b nfs4 tcp,sec=none,timeo=x 0 0", "mount -t nfs srv:/b /b"):
        result = nfsrdma("fstab", line)
        expect(result, 0, "# kept as it is, since it does not ask for RDMA: to translate it, add the option rdma")
        assert result.stdout == f"{line}\n" and result.stderr.count("\n") == 1, result


def test_fstab_takes_names_of_any_bytes():
    def translated(*words, table=None):
        result = subprocess.run([BIN / "nfsrdma", "fstab", *words], input=table, capture_output=True, timeout=LIMIT)
        return result.returncode, result.stdout, result.stderr

    latin = b"# caf\xe9\r\nLABEL=\xe9 /\xe9 ext4 ro 0 0\n"
    table = latin + b"srv:/\xe9 /mnt/\xe9 nfs rdma\n"
    line = b"srv:/\\351  /mnt/\\351  nfsrdma  rdma,_netdev  0  0\n"
    assert translated("-", table=table) == (0, latin + line, b"")
    assert translated(b"srv:/\xe9 /mnt/\xe9 nfs rdma") == (0, line, b"")
    status, _, said = translated(b"srv:/x /m nfs rdma,x-\xe9")
    assert status == 1 and b"are not in UTF-8: write them in ASCII" in said, said


@contextlib.contextmanager
def etc(place, **files):
    """Runs commands with a copy of /etc that has `files` in it."""
    own = place.base / "etc"
    shutil.copytree("/etc", own, symlinks=True, ignore_dangling_symlinks=True)
    for name, text in files.items():
        (own / name.replace("_conf", ".conf")).write_text(text)

    yield functools.partial(run_over, own, "/etc")


def test_nfsmount_conf_is_read():
    with Server() as server:
        conf = (
            "[ NFSMount_Global_Options ]\nNfsvers=4\nTimeo=111\nRetrans=7\nSoft=True\n"
            '[ Server "127.0.0.1" ]\nTimeo=222\nAcl=False\n'
            f'[ MountPoint "{server.mnt}" ]\nTimeo=333\nrsize=32k\n'
        )
        with etc(server, nfsmount_conf=conf) as there:
            # Mount, show and unmount in the same namespace.
            script = '"$0" mount "$1" "$2" -v -o "$3" && "$0" umount "$2"'
            for given, wanted in (
                ("", {"timeo=333", "retrans=7", "soft", "rsize=32768"}),
                ("timeo=444,hard", {"timeo=444", "retrans=7", "hard", "rsize=32768"}),
            ):
                words = ("sh", "-c", script, BIN / "nfsrdma", server.spec, server.mnt, server.options(given))
                result = there(*words)
                expect(result, 0, "/etc/nfsmount.conf: passed over: option 'nfsvers=4' cannot be honoured")
                (line,) = [line for line in result.stderr.splitlines() if " options: " in line]
                assert wanted <= set(line.split(" options: ")[1].split(",")), line


def test_a_line_without_netdev_is_told(place):
    root()
    with etc(place, fstab=f"127.0.0.1:/x {place.mnt} nfsrdma retry=0 0 0\n") as there:
        own = f"port={free_port()},mountport={free_port()},mountproto=tcp,retry=0"
        result = there(BIN / "nfsrdma", "mount", "127.0.0.1:/x", place.mnt, "-o", own)
        expect(result, 32, "its line in /etc/fstab lacks _netdev")
    shutil.rmtree(place.base / "etc")
    with etc(place, fstab=f"127.0.0.1:/x {place.mnt} nfsrdma retry=0,_netdev 0 0\n") as there:
        result = there(BIN / "nfsrdma", "mount", "127.0.0.1:/x", place.mnt, "-o", own)
        assert "_netdev" not in result.stderr, result.stderr


def test_the_foreground_of_the_helper_has_another_letter(server):
    helper = server.base / "mount.nfsrdma"
    helper.symlink_to(BIN / "nfsrdma")
    words = [helper, server.spec, server.mnt, "-o", server.options()]
    expect(run(*words, "-f"), 0)
    assert not mounted(server.mnt), "-f is fake"
    with running(*words, "-F", stdout=subprocess.PIPE, text=True) as child:
        assert "mounted on" in child.stdout.readline()
        assert mounted(server.mnt) and child.poll() is None
        child.terminate()
        assert child.wait(LIMIT) == 0
    assert not mounted(server.mnt)


def test_updatedb_is_kept_out(place):
    """The command in the guide adds the type to PRUNEFS, once, and changes nothing else."""
    (line,) = [line.strip() for line in GUIDE.read_text().splitlines() if line.startswith("    sed ")]
    conf = place.base / "updatedb.conf"
    before = 'PRUNE_BIND_MOUNTS="yes"\nPRUNEFS="NFS afs nfs4 fuse.sshfs"\nPRUNEPATHS="/tmp /var/spool"\n'
    conf.write_text(before)
    for _ in range(2):
        expect(run("sh", "-c", line.replace("/etc/updatedb.conf", str(conf))), 0)
        assert conf.read_text() == before.replace("fuse.sshfs", "fuse.sshfs fuse.nfsrdma"), conf.read_text()
