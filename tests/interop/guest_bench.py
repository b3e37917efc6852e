"""The benchmark in the guest: our program and the kernel's own NFS/RDMA client on the same knfsd, over the same link,
and the FUSE ceiling, which says what of the difference is the emulated machine's way through FUSE.

Not a test (`./tests/interop/run --bench [LINK]`): it fails only where something cannot be measured.
"""

from guest import EXPORT, Guest, HERE, MOUNTD, NFS
from host import CaseError, indent, program
from verbs import ADDRESS, programs

# The kernel's mount has no process; this one stands for it, sleeps until the mount is gone, and its columns of CPU and
# memory say nothing.
KERNEL = """#!/usr/bin/env python3
import select, subprocess, sys
options = "vers=3,rdma,port={nfs},nolock,mountproto=tcp,mountport={mountd}"
subprocess.run(["mount", "-t", "nfs", "-o", options, "{address}:{export}/bench", sys.argv[1]], check=True)
changes = select.poll()
mounts = open("/proc/self/mounts")
changes.register(mounts, select.POLLPRI)
while sys.argv[1] in mounts.read():
    changes.poll()
    mounts.seek(0)
"""
LIMIT = 3600


def bench(link, *arguments):
    """Prints the table of `nfsrdma-bench --quick`; `arguments` are handed to it."""
    with Guest(memory="7G", limit=LIMIT) as guest:
        for path in (programs() / "nfsrdma", programs() / "examples" / "ceiling", program("nfsrdma-bench")):
            guest.put(path, path.name)
        script = KERNEL.format(nfs=NFS, mountd=MOUNTD, address=ADDRESS, export=EXPORT)
        guest.run(f"cat >/job/kernel <<'END'\n{script}END\ncd /job; chmod 755 kernel nfsrdma ceiling nfsrdma-bench")
        guest.run(f"link {link}; knfsd_start; modprobe fuse; modprobe rpcrdma; mkdir -p {EXPORT}/bench /srv/mounts")
        command = f"ulimit -l unlimited; /job/nfsrdma-bench --data {EXPORT}/bench --mounts /srv/mounts --quick"
        guest.run(f"{command} --prepare", LIMIT)
        ours = (f"/job/nfsrdma mount -f {ADDRESS}:{EXPORT}/bench {{dir}} "
                f"-o transport=verbs,port={NFS},mountport={MOUNTD},mountproto=tcp,cache=256M")
        table = guest.run(f"{command} --rounds 1 --peer 'nfsrdma={ours}' --peer 'kernel=/job/kernel {{dir}}' "
                          f"--peer 'ceiling=/job/ceiling {{dir}} {EXPORT}/bench 256' "
                          + " ".join(arguments) + " 2>&1", LIMIT)
        indent(table)
        if "| kernel" not in table.replace("  ", ""):
            raise CaseError("the kernel's client is not in the table")
