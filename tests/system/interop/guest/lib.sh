# Read before every job in the guest.
set -e
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
netdev=$(cat /run/netdev)
MOUNTD_PORT=20048
RDMA_PORT=20049

# link siw|rxe: an RDMA link of that type over the network device (siw0 or rxe0).
link() {
    rdma link show "${1}0/1" >/dev/null 2>&1 || rdma link add "${1}0" type "$1" netdev "$netdev"
    make_nodes
    # Linux's client fails the program's call with EADDRNOTAVAIL if the port that rdma_cm chooses, at random, for a
    # connection over siw belongs to one in TIME-WAIT. So none is kept.
    [ "$1" != siw ] || echo 0 >/proc/sys/net/ipv4/tcp_max_tw_buckets
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

# knfsd_start [NFSD OPTIONS]: exports /srv/export over TCP and RDMA, mountd at its fixed port; with the flavors in /run/sec.
knfsd_start() {
    mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
    mkdir -p /run/rpcbind /var/lib/nfs/rpc_pipefs
    pidof rpcbind >/dev/null || rpcbind -w
    [ -e /run/sec ] || echo sys >/run/sec
    echo "/srv/export *(rw,insecure,no_root_squash,no_subtree_check,sync,fsid=1,sec=$(cat /run/sec))" >/etc/exports
    exportfs -ra
    rpc.nfsd "$@" 4
    echo "rdma $RDMA_PORT" >/proc/fs/nfsd/portlist
    pidof rpc.mountd >/dev/null || rpc.mountd --port "$MOUNTD_PORT"
}

# kerberos_start FLAVORS: before knfsd_start. This machine is the server of that name, and a client, of the realm whose
# configuration and keys are /job/krb5.conf and /job/krb5.keytab; the export has these flavors, as in exports(5).
KERBEROS_NAME=server.nfsrdma.test
kerberos_start() {
    echo "$1" >/run/sec
    echo "10.0.2.15 $KERBEROS_NAME" >>/etc/hosts
    install -m 644 /job/krb5.conf /etc/
    install -m 600 /job/krb5.keytab /etc/
    printf '[General]\nDomain = nfsrdma.test\n' >/etc/idmapd.conf
    mkdir -p /run/rpc_pipefs
    mount -t rpc_pipefs rpc_pipefs /run/rpc_pipefs
    rpc.svcgssd -n
    rpc.gssd
    chmod 1777 /srv/export
}

# kerberos_user NAME UID [CCACHE]: a user of this machine, who is that of the realm, and whose ticket is in that file.
kerberos_user() {
    grep -q "^$1:" /etc/passwd || echo "$1:x:$2:$2::/:/bin/sh" >>/etc/passwd
    [ -z "$3" ] || install -m 600 -o "$2" -g "$2" "$3" "/tmp/krb5cc_$2"
}

# as UID COMMAND...: as that user.
as() { setpriv --reuid "$1" --regid "$1" --clear-groups "${@:2}"; }

# kerberos_forget: the server forgets every context.
kerberos_forget() { date +%s >/proc/net/rpc/auth.rpcsec.context/flush; }

# link_ipv6 ADDRESS: gives the network device an address of that family, usable at once.
link_ipv6() { ip -6 address add "$1/64" dev "$netdev" nodad; }

# knfsd_stop: what `rpc.nfsd 0` does.
knfsd_stop() { echo 0 >/proc/fs/nfsd/threads; }

# locks_start SECONDS: before knfsd_start. lockd at a fixed port, with that grace period, and rpc.statd.
LOCKD_PORT=20047
locks_start() {
    local settings=/proc/sys/fs/nfs
    echo "$LOCKD_PORT" >$settings/nlm_tcpport
    echo "$LOCKD_PORT" >$settings/nlm_udpport
    echo 3 >$settings/nlm_timeout
    echo "$1" >$settings/nlm_grace_period
    mkdir -p /run/rpcbind
    pidof rpcbind >/dev/null || rpcbind -w
    rpc.statd
}

# grace_v4_end: ends the grace period of NFSv4, which nobody here uses.
grace_v4_end() { echo Y >/proc/fs/nfsd/v4_end_grace; }

# locks_restart SECONDS COMMAND...: knfsd, lockd and rpc.statd, with that grace period; COMMAND runs while they are down.
locks_restart() {
    echo "$1" >/proc/sys/fs/nfs/nlm_grace_period
    shift
    knfsd_stop
    local statd
    statd=$(cat /run/rpc.statd.pid)
    kill "$statd"
    while kill -0 "$statd" 2>/dev/null; do sleep 0.05; done
    "$@"
    rm -f /run/sm-notify.pid
    rpc.statd
    knfsd_start
    grace_v4_end
}

# filter_callbacks: nothing reaches rpcbind at the host, where a callback would ask for our port: seen by trying.
filter_callbacks() {
    tc qdisc add dev "$netdev" clsact
    tc filter add dev "$netdev" egress protocol ip u32 match ip dport 111 0xffff action drop
    local status=0
    timeout 2 bash -c '</dev/tcp/10.0.2.2/111' || status=$?
    [ $status = 124 ]
}
# callbacks_filtered: how many packets that was, the trial included.
callbacks_filtered() {
    tc -s filter show dev "$netdev" egress | awk '/Sent/ {n = $4} END {print n " packets to rpcbind of the host dropped"; exit !n}'
}

# machine_start: another machine, with its own network, host name, rpcbind and rpc.statd; `machine COMMAND...` runs there.
# The server is 10.0.3.1 to it.
machine_start() {
    ip link add tomachine type veth peer name toserver
    ip address add 10.0.3.1/24 dev tomachine
    ip link set tomachine up
    unshare --net --mount --uts --propagation private sleep infinity >/dev/null 2>&1 &
    echo $! >/run/machine
    until [ "$(readlink /proc/self/ns/uts)" != "$(readlink "/proc/$!/ns/uts")" ]; do sleep 0.05; done
    ip link set toserver netns "$!"
    machine bash -ec '
        hostname machine
        ip link set lo up
        ip address add 10.0.3.2/24 dev toserver
        ip link set toserver up
        mount -t tmpfs run /run
        mount -t tmpfs lib /var/lib/nfs
        mkdir -p /run/rpcbind /var/lib/nfs/sm /var/lib/nfs/sm.bak
        rpcbind -w
        rpc.statd'
}
on_machine() { echo nsenter -t "$(cat /run/machine)" "$@"; }
machine() { $(on_machine --net --mount --uts) "$@"; }

# kernel_mount SERVER PORT MOUNTPORT EXPORT [OPTIONS]: by the kernel's own client, at /mnt.
kernel_mount() {
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
