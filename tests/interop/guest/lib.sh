# Read before every job in the guest.
set -e
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
netdev=$(cat /run/netdev)
MOUNTD_PORT=20048
RDMA_PORT=20049

# link siw|rxe: an RDMA link of that type over the network device (siw0 or rxe0).
link() {
    modprobe "$([ "$1" = rxe ] && echo rdma_rxe || echo siw)"
    modprobe -a rdma_cm ib_uverbs rdma_ucm
    rdma link show "${1}0/1" >/dev/null 2>&1 || rdma link add "${1}0" type "$1" netdev "$netdev"
    make_nodes
}

# Device nodes that udev would make: devtmpfs has them, under the names user-space verbs look for.
make_nodes() {
    mkdir -p /dev/infiniband
    local node name
    for node in /sys/class/infiniband_verbs/uverbs* /sys/class/misc/rdma_cm; do
        [ -e "$node/dev" ] || continue
        name=/dev/infiniband/$(basename "$node")
        [ -e "$name" ] || mknod "$name" c "$(cut -d: -f1 "$node/dev")" "$(cut -d: -f2 "$node/dev")"
    done
}

unlink_link() { rdma link delete "${1}0"; }

# knfsd_start [NFSD OPTIONS]: exports /srv/export over TCP and RDMA, mountd at its fixed port.
knfsd_start() {
    modprobe -a nfsd rpcrdma
    mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
    mkdir -p /run/rpcbind /var/lib/nfs/rpc_pipefs
    pidof rpcbind >/dev/null || rpcbind -w
    echo '/srv/export *(rw,insecure,no_root_squash,no_subtree_check,sync,fsid=1)' >/etc/exports
    exportfs -ra
    rpc.nfsd "$@" 4
    echo "rdma $RDMA_PORT" >/proc/fs/nfsd/portlist
    pidof rpc.mountd >/dev/null || rpc.mountd --port "$MOUNTD_PORT"
}

# link_ipv6 ADDRESS: gives the network device an address of that family, usable at once.
link_ipv6() { ip -6 address add "$1/64" dev "$netdev" nodad; }

knfsd_stop() { rpc.nfsd 0; }

# knfsd_end: everything knfsd_start started.
knfsd_end() {
    rpc.nfsd 0
    local daemon
    for daemon in rpc.mountd rpcbind; do
        pidof "$daemon" >/dev/null && kill $(pidof "$daemon") || true
    done
    exportfs -au || true
}

# kernel_mount SERVER PORT MOUNTPORT EXPORT [OPTIONS]: by the kernel's own client, at /mnt.
kernel_mount() {
    modprobe rpcrdma
    mount -t nfs -o "vers=3,rdma,port=$2,nolock,mountproto=tcp,mountport=$3${5:+,$5}" "$1:$4" /mnt
    grep ' /mnt nfs ' /proc/mounts
}

# kernel_mount_tcp SERVER MOUNTPORT EXPORT [OPTIONS]: the same over TCP, at the port of NFS.
kernel_mount_tcp() {
    mount -t nfs -o "vers=3,tcp,port=2049,nolock,mountproto=tcp,mountport=$2${4:+,$4}" "$1:$3" /mnt
    grep ' /mnt nfs ' /proc/mounts
}

# kernel_drop: nothing of the mount stays in this kernel's caches.
kernel_drop() { sync; echo 3 >/proc/sys/vm/drop_caches; }
