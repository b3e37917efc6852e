"""The benchmark in the guest: our program and the kernel's own NFS/RDMA client on the same knfsd, over the same link.

Not a test (`./tests/interop/run --bench [LINK]`): it fails only where something cannot be measured.
"""

from guest import EXPORT, Guest, HERE, MOUNTD, NFS
from host import CaseError, indent, program
from verbs import ADDRESS, programs

# The kernel's mount has no process; this one stands for it, and its columns of CPU and memory say nothing.
KERNEL = """#!/bin/sh
mount -t nfs -o vers=3,rdma,port={nfs},nolock,mountproto=tcp,mountport={mountd} {address}:{export}/bench "$1" || exit 1
while mountpoint -q "$1"; do sleep 0.2; done
"""
LIMIT = 3600


def bench(link, *arguments):
    """Prints the table of `nfsrdma-bench --quick`; `arguments` are handed to it."""
    with Guest(memory="5G", limit=LIMIT) as guest:
        for path in (programs() / "nfsrdma", program("nfsrdma-bench")):
            guest.put(path, path.name)
        script = KERNEL.format(nfs=NFS, mountd=MOUNTD, address=ADDRESS, export=EXPORT)
        guest.run(f"cat >/job/kernel <<'END'\n{script}END\nchmod 755 /job/kernel /job/nfsrdma /job/nfsrdma-bench")
        guest.run(f"link {link}; knfsd_start; modprobe fuse; modprobe rpcrdma; mkdir -p {EXPORT}/bench /srv/mounts")
        command = f"ulimit -l unlimited; /job/nfsrdma-bench --data {EXPORT}/bench --mounts /srv/mounts --quick"
        guest.run(f"{command} --prepare", LIMIT)
        ours = (f"/job/nfsrdma mount -f {ADDRESS}:{EXPORT}/bench {{dir}} "
                f"-o transport=verbs,port={NFS},mountport={MOUNTD},mountproto=tcp,cache=256M")
        table = guest.run(f"{command} --rounds 1 --peer 'nfsrdma={ours}' --peer 'kernel=/job/kernel {{dir}}' "
                          + " ".join(arguments) + " 2>&1", LIMIT)
        indent(table)
        if "| kernel" not in table.replace("  ", ""):
            raise CaseError("the kernel's client is not in the table")
