#!/usr/bin/env bash
# Runs the image of the Containerfile under podman as docs/CONTAINERS.md does: rootful, rootless,
# beside another container, killed and started again, stopped. ./podman-image has built the image in
# $work/engine. Run by ./run.
set -uo pipefail
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/podman-lib.sh"
prepare_engine
shared=$work/shared
shared_data=$shared/data

echo world >"$work/export-hello"
echo "127.0.0.1 localhost server" >"$work/hosts"
mount --bind "$work/hosts" /etc/hosts
check "the responder starts" serve
cp "$work/export-hello" "$work/export/hello"

image=localhost/nfsrdma
run=(podman run --cgroups=disabled --network=host --no-hosts -v "$work/hosts:/etc/hosts:ro")
looks() { podman exec "$@"; }
is_mounted() { mountpoint -q "$1"; }

check "the image has an entry point and a health check" gives \
    '[/usr/local/lib/nfsrdma/entrypoint] /usr/local/lib/nfsrdma/healthy SIGTERM' \
    podman image inspect --format '{{.Config.Entrypoint}} {{index .HealthCheck.Test 1}} {{.Config.StopSignal}}' $image
plain=("${run[@]}" --rm --entrypoint)
check "the licence and the licences of others are in the image" \
    "${plain[@]}" sh $image -c 'grep -q "^MIT License" /usr/share/doc/nfsrdma/copyright &&
        grep -q "^tokio .*\[" /usr/share/doc/nfsrdma/copyright'
check "and the bill of materials" "${plain[@]}" grep $image -q '"bomFormat": "CycloneDX"' /usr/share/nfsrdma/sbom.cdx.json
check "the program tells its options" "${run[@]}" --rm $image --help

# --- rootful --------------------------------------------------------------------------------

mkdir -p "$shared"
mount -t tmpfs shared "$shared"
mount --make-shared "$shared"
start_rootful() {
    "${run[@]}" -d --name data --stop-timeout 60 --device /dev/fuse --cap-add SYS_ADMIN \
        -v "$shared:/shared:rshared" -v nfsrdma-state:/var/lib/nfsrdma $image server:/export /shared/data -o allow_other
}
check "rootful: it starts" start_rootful
check "the mount appears on the host" until_true 60 is_mounted "$shared_data"
check "with the data of the server" gives world cat "$shared_data/hello"
write_on_host() { echo "from the host" >"$shared_data/from-host" && sync -f "$shared_data/from-host"; }
check "what the host writes there is on the server" eval 'write_on_host && gives "from the host" cat "$work/export/from-host"'
check "its health check passes" podman healthcheck run data
check "ping in it reaches the server" looks data nfsrdma ping server
check "stats in it tell of the mount" eval 'looks data nfsrdma stats | grep -E "^/shared/data +server:/export +up "'
check "stats of the directory, too" looks data nfsrdma stats /shared/data
check "the log is the container's" eval 'podman logs data 2>&1 | grep server:/export'

beside=("${run[@]}" --rm -v "$shared:/shared:rslave" --entrypoint)
check "a container beside it sees the data" gives world "${beside[@]}" cat $image /shared/data/hello
check "and writes" "${beside[@]}" sh $image -c 'echo beside >/shared/data/from-beside && sync -f /shared/data/from-beside'
check "to the server" gives beside cat "$work/export/from-beside"

# Another program is put in the place of the old one, and the mount goes on with it.
check "a mount that outlives its program starts" "${run[@]}" -d --name lasting --device /dev/fuse --cap-add SYS_ADMIN \
    -v "$shared:/shared:rshared" $image server:/export /shared/lasting -o allow_other,restart=data
check "it appears on the host" until_true 60 is_mounted "$shared/lasting"
exec 8<"$shared/lasting/hello"
check "the program is taken out" podman cp lasting:/usr/bin/nfsrdma "$work/nfsrdma.new"
check "and put in beside itself" podman cp "$work/nfsrdma.new" lasting:/usr/bin/nfsrdma.new
check "it takes its place" looks lasting mv /usr/bin/nfsrdma.new /usr/bin/nfsrdma
check "the mount is upgraded" gives "/shared/lasting: served by $(looks lasting nfsrdma --version) now" \
    looks lasting nfsrdma upgrade --all
check "what was open stays open" gives world cat <&8
exec 8<&-
check "it is stopped" podman stop -t 60 lasting
check "by the program itself, too" gives 0 podman inspect --format '{{.State.ExitCode}}' lasting
podman rm lasting >/dev/null

# Killed, as for lack of memory: the mount stays, but is dead.
"${run[@]}" -d --name work -v "$shared:/shared:rslave" --entrypoint sleep $image 600 >/dev/null
check "killed" podman kill -s KILL data
dead() { ! cat "$shared_data/hello" 2>"$work/said" && grep -q "not connected" "$work/said"; }
check "its mount is dead" until_true 30 dead
check "a dead one is not healthy" refuses "" podman healthcheck run data
check "started again" podman start data
alive() { [ "$(cat "$shared_data/hello" 2>/dev/null)" = world ]; }
check "the mount is back on the host" until_true 60 alive
check "and in the container that ran all the while" until_true 30 gives world looks work cat /shared/data/hello
check "it detached the dead one" eval 'podman logs data 2>&1 | grep "detaching the dead mount on /shared/data"'
check "there is one mount" gives 1 sh -c "grep -c ' $shared_data ' /proc/self/mounts"
check "healthy again" until_true 30 podman healthcheck run data

# Killed with a lock, and removed: another container with the same volume releases the lock.
state=$(podman volume inspect --format '{{.Mountpoint}}' nfsrdma-state)
exec 9<>"$shared_data/hello"
check "a lock is taken" flock -n 9
check "it is noted in the volume" eval 'cat "$state"/*.locks | grep "^+ "'
check "killed with it" podman kill -s KILL data
exec 9<&-
check "and removed" podman rm -f data
check "what it noted is still there" eval 'cat "$state"/*.locks | grep "^+ "'
check "another one starts" start_rootful
check "it mounts in the same place" until_true 60 alive
check "the lock is free" until_true 30 flock -n "$shared_data/hello" true

# Stopped: all data is written before the end.
late() { head -c 20000000 /dev/urandom | tee "$shared_data/late" | sha256sum >"$work/late.sum"; }
check "a file is written and not synced" late
podman kill -s KILL work >/dev/null
podman rm -f work >/dev/null
check "stopped" podman stop -t 60 data
check "by the program itself" gives 0 podman inspect --format '{{.State.ExitCode}}' data
check "everything was written" gives "$(cat "$work/late.sum")" sh -c 'sha256sum <"$0"' "$work/export/late"
check "nothing is mounted any more" refuses "" is_mounted "$shared_data"
check "removed" podman rm data

check "without SYS_ADMIN it tells what is missing" \
    refuses "--cap-add SYS_ADMIN" "${run[@]}" --rm --device /dev/fuse $image server:/export /mnt/nfs
check "without /dev/fuse, too" \
    refuses "--device /dev/fuse" "${run[@]}" --rm --cap-add SYS_ADMIN $image server:/export /mnt/nfs
if podman run --rm --network=host --entrypoint true $image >"$work/said" 2>&1; then
    check "the limits of a cgroup hold" gives 268435456 \
        podman run --rm --network=host --memory 256m --entrypoint cat $image /sys/fs/cgroup/memory.max
else
    skip "the limits of a cgroup" "podman cannot make one here: $(tail -1 "$work/said")"
fi

# --- rootless -------------------------------------------------------------------------------

check "rootless: the user has the image" rootless load -q -i "$work/image.tar"
start_rootless() {
    rootless run -d --name own --cgroups=disabled --network=host --no-hosts -v "$work/hosts:/etc/hosts:ro" \
        --device /dev/fuse --cap-add SYS_ADMIN -v nfsrdma-state:/var/lib/nfsrdma $image server:/export /mnt/nfs
}
check "rootless: it starts" start_rootless
own_is_mounted() { rootless exec own mountpoint -q /mnt/nfs; }
check "it mounts in its namespace" until_true 60 own_is_mounted
check "with the data of the server" gives world rootless exec own cat /mnt/nfs/hello
check "what is written there" rootless exec own sh -c 'echo own >/mnt/nfs/from-rootless'
check "its health check passes" rootless healthcheck run own
check "ping in it reaches the server" rootless exec own nfsrdma ping server
check "stats in it tell of the mount" rootless exec own nfsrdma stats /mnt/nfs
check "killed" rootless kill -s KILL own
check "started again" rootless start own
check "it mounts again" until_true 60 own_is_mounted
check "stopped" rootless stop -t 60 own
check "is on the server" gives own cat "$work/export/from-rootless"
check "removed" rootless rm own

# --- by the engine --------------------------------------------------------------------------

dpkg-deb -x "$work"/context/nfsrdma_*.deb "$work/host"
for dir in bin sbin; do
    check "the host has the package: /usr/$dir" mount -t overlay -o "lowerdir=$work/host/usr/$dir:/usr/$dir" package "/usr/$dir"
done
check "a volume of the engine's own" \
    podman volume create --opt type=nfsrdma --opt device=server:/export --opt o=nconnect=1 named
by_engine=("${run[@]}" --rm -v named:/data --entrypoint)
check "is mounted for a container" gives world "${by_engine[@]}" cat $image /data/hello
check "which writes" "${by_engine[@]}" sh $image -c 'echo volume >/data/from-volume'
check "to the server, too" gives volume cat "$work/export/from-volume"
check "nothing is mounted after its end" refuses "" grep "^server:/export " /proc/self/mounts
check "it is removed" podman volume rm named

check "no process is left" until_true 30 nobody_serves
check "the responder stops" stop_serving
end_engine
finish
