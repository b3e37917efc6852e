# Runs podman in directories of $work alone; sourced by bash. It does not see or change the
# machine's own engine. Use it in namespaces of their own (mounts at least).

engine=$work/engine
plain_user=61234

# Engines need one version of cgroups; a machine may have both mounted.
prepare_engine() {
    if [ "$(stat -f -c %T /sys/fs/cgroup)" != cgroup2fs ]; then
        umount -R /sys/fs/cgroup 2>/dev/null
        mount -t cgroup2 cgroup2 /sys/fs/cgroup
    fi
    mkdir -p "$engine"/{etc,storage,home}
    # A plain user with subordinate ids, who exists in this mount namespace only.
    local file
    for file in passwd group subuid subgid; do
        cat "/etc/$file" >"$engine/etc/$file" 2>/dev/null
        case $file in
            passwd) echo "packager:x:$plain_user:$plain_user::$engine/home:/bin/sh" ;;
            group) echo "packager:x:$plain_user:" ;;
            *) echo "packager:1000000:65536" ;;
        esac >>"$engine/etc/$file"
        [ -e "/etc/$file" ] || : >"/etc/$file"
        mount --bind "$engine/etc/$file" "/etc/$file"
    done
    # A separate configuration of the engine, whatever the machine has.
    echo '{ "default": [{ "type": "insecureAcceptAnything" }] }' >"$engine/etc/policy.json"
    cat >"$engine/etc/containers.conf" <<CONF
[engine]
runtime = "crun"
cgroup_manager = "cgroupfs"
events_logger = "file"
CONF
    # The mode that udev sets.
    mknod -m 666 "$engine/fuse" c 10 229 2>/dev/null
    mount --bind "$engine/fuse" /dev/fuse
    export CONTAINERS_CONF=$engine/etc/containers.conf
    # Directories that engines share between users. The resolver's file may be there, too.
    local resolver
    resolver=$(cat /etc/resolv.conf 2>/dev/null)
    mount -t tmpfs run /run
    if [ -L /etc/resolv.conf ] && [ ! -e /etc/resolv.conf ]; then
        mkdir -p "$(dirname "$(readlink -m /etc/resolv.conf)")"
        echo "$resolver" >"$(readlink -m /etc/resolv.conf)"
    fi
    # Engines need short paths.
    mkdir -p /run/root-engine/tmp /run/plain-engine/tmp
    chmod 700 /run/plain-engine
    chown -R $plain_user:$plain_user "$engine/home" /run/plain-engine
}

podman() {
    command podman --root "$engine/storage" --runroot /run/root-engine --tmpdir /run/root-engine/tmp \
        --storage-driver overlay "$@"
}

# The same as the plain user.
rootless() {
    (
        cd "$engine/home" && exec setpriv --reuid $plain_user --regid $plain_user --clear-groups env -i \
            PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME="$engine/home" USER=packager XDG_RUNTIME_DIR=/run/plain-engine \
            CONTAINERS_CONF="$CONTAINERS_CONF" \
            podman --root "$engine/home/storage" --runroot /run/plain-engine/store --tmpdir /run/plain-engine/tmp \
            --storage-driver overlay "$@"
    )
}

# Ends everything, and unmounts.
end_engine() {
    podman rm -fa >/dev/null 2>&1 || :
    rootless rm -fa >/dev/null 2>&1 || :
    umount -R "$engine/storage/overlay" 2>/dev/null || :
    find /sys/fs/cgroup -depth -type d \( -name podman_probe -o -path '*/libpod*' \) -exec rmdir {} + 2>/dev/null || :
}

# Makes $work/bin/podman, for scripts that look for an engine in PATH: this one, with the tar file $1 as Debian's image, a network,
# and this machine's certificates, crates and settings for cargo.
offer_engine() {
    podman import -q "$1" docker.io/library/debian:bookworm || return
    local real settings
    real=$(type -P podman)
    settings=$(env | sed -n 's/^\(CARGO_INCREMENTAL\|CARGO_PROFILE_[A-Z_]*\|NFSRDMA_PROGRAMS\|NFSRDMA_TOOLS\)=.*/-e \1/p' | tr '\n' ' ')
    mkdir "$work/bin"
    cat >"$work/bin/podman" <<PODMAN
#!/bin/sh
case \$1 in
    run)
        shift
        set -- run --cgroups=disabled --network=host --pull=never -v /etc/ssl/certs/ca-certificates.crt:/certificates:ro \\
            -e CARGO_HTTP_CAINFO=/certificates $settings "\$@" ;;
    build)
        shift
        set -- build --network host --cap-add all --isolation chroot --pull=never --build-arg BASE=docker.io/library/debian:bookworm "\$@" ;;
esac
exec $real --root "$engine/storage" --runroot /run/root-engine --tmpdir /run/root-engine/tmp --storage-driver overlay "\$@"
PODMAN
    chmod 755 "$work/bin/podman"
}

# copy_source DIR: a clone of the source, which has what is committed, with the crates that are here.
copy_source() {
    local registry=${CARGO_HOME:-$HOME/.cargo}/registry
    git clone -q "$(dirname "${BASH_SOURCE[0]}")/../.." "$1" || return
    mkdir -p "$1/target/debian-12/cargo/registry"
    cp -a "$registry/cache" "$registry/index" "$1/target/debian-12/cargo/registry/"
}
