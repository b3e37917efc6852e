#!/usr/bin/env bash
# Tests the rules of docs/CONTAINERS.md with namespaces and without an engine, in the root that the
# Containerfile describes. Run by ./run.
set -uo pipefail
. "$(dirname "$0")/lib.sh"
root=$work/root
furnish
check "the responder starts" serve
mkdir -p "$root/mnt/nfs"
inside groupadd -g 1000 alice && inside useradd -u 1000 -g 1000 -m -d /srv/alice alice

# A container's first process, with the capabilities $1 ("" for none), runs the rest.
rootful() {
    local caps=$1
    shift
    unshare --mount --pid --fork --kill-child --propagation slave \
        env -i PATH=/usr/sbin:/usr/bin HOME=/root chroot "$root" \
        setpriv --bounding-set "-all$caps" --inh-caps "-all$caps" -- "$@"
}
# The same for the plain user alice: root of a user namespace.
rootless() {
    local caps=$1
    shift
    setpriv --reuid 1000 --regid 1000 --clear-groups \
        unshare --user --map-root-user --mount --pid --fork --kill-child --propagation slave \
        env -i PATH=/usr/sbin:/usr/bin HOME=/root chroot "$root" \
        setpriv --bounding-set "-all$caps" --inh-caps "-all$caps" -- "$@"
}
# Mounts with the entry point, checks the mount, and ends it by SIGTERM, as an engine does.
life='
set -e
nfsrdma mount --foreground server:/export /mnt/nfs -o "$0" >/run/log 2>&1 &
pid=$!
until mountpoint -q /mnt/nfs; do
    kill -0 $pid 2>/dev/null || { cat /run/log; exit 1; }
    sleep 0.05
done
[ "$(cat /mnt/nfs/hello)" = world ]
echo written >/mnt/nfs/from-container
kill -TERM $pid
wait $pid
! mountpoint -q /mnt/nfs
'
echo world >"$work/export/hello"
chmod 777 "$root/run"
written() {
    gives written cat "$work/export/from-container" && rm -f "$work/export/from-container"
}

check "rootful, SYS_ADMIN only" rootful ,+sys_admin sh -c "$life" rw
check "what it wrote is on the server" written
check "rootful, without SYS_ADMIN, is told what is missing" \
    refuses "--cap-add SYS_ADMIN" rootful "" nfsrdma mount --foreground server:/export /mnt/nfs
rm -f "$root/run/log"
check "rootless, SYS_ADMIN of its user namespace" rootless ,+sys_admin sh -c "$life" noresvport
check "what it wrote is on the server, too" written
rm -f "$root/run/log"
check "rootless, without naming noresvport" rootless ,+sys_admin sh -c "$life" rw
check "rootless, without SYS_ADMIN, is told what is missing" \
    refuses "--cap-add SYS_ADMIN" rootless "" nfsrdma mount --foreground server:/export /mnt/nfs
mv "$root/dev/fuse" "$root/dev/fuse.away"
check "without --device /dev/fuse" \
    refuses "give the container --device /dev/fuse" rootful ,+sys_admin nfsrdma mount server:/export /mnt/nfs
mv "$root/dev/fuse.away" "$root/dev/fuse"

# Propagation: a mount that one container makes in a shared directory is visible in another.
mkdir -p "$root/shared/data"
mount -t tmpfs shared "$root/shared"
mount --make-shared "$root/shared"
mkdir "$root/shared/data"
unshare --mount --propagation unchanged chroot "$root" /usr/bin/nfsrdma mount server:/export /shared/data -o allow_other \
    >"$work/propagated" 2>&1
check "rshared: the mount is seen outside" gives world cat "$root/shared/data/hello"
check "rslave: and in another container" \
    gives world unshare --mount --propagation slave chroot "$root" cat /shared/data/hello
check "its end, too" inside nfsrdma umount /shared/data
check "nothing is mounted any more" refuses "" mountpoint -q "$root/shared/data"
umount "$root/shared"

check "a plain user by fusermount3, as the image has it" as_user sh -c '
    mkdir -p /srv/alice/nfs
    nfsrdma mount server:/export /srv/alice/nfs && cat /srv/alice/nfs/hello && nfsrdma umount /srv/alice/nfs'
check "no process is left" until_true 30 nobody_serves
check "the responder stops" stop_serving
finish
