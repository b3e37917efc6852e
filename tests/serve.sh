# shellcheck shell=bash
# Runs a responder, and mounts its export, in their own directory `base`. Sourced by the runners of
# tests/external and tests/bench. `bin` is the directory of the programs. Everything is removed when the shell that sourced
# this ends.

base=$(realpath "$(mktemp -d "${TMPDIR:-/tmp}/nfsrdma-$(basename "$(dirname "$0")").XXXXXX")")
chmod 755 "$base"
server=
[ -v on ] || on=()

stop() {
    if grep -qs " $base/mnt " /proc/self/mounts; then
        timeout 120 "$bin/nfsrdma" umount "$base/mnt" || umount -l "$base/mnt"
    fi
    if [ -n "$server" ]; then
        kill "$server" 2>/dev/null
        wait "$server" 2>/dev/null
        server=
    fi
}

finish() {
    stop
    rm -rf --one-file-system "$base"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# serve EXPORT ARGUMENT...: starts a responder, by the command in the array `on` if there is one. Its process is $server,
# its ports are $rdma and $nfs. If it does not start, prints why and returns false.
serve() {
    mkdir -p "$base/state"
    # Not the output of the last one, in case this one opens the file late.
    : >"$base/ports"
    "${on[@]}" "$bin/nfsrdma-responder" "$@" --rdma-port 0 --nfs-port 0 --state-dir "$base/state" \
        --print-ports >"$base/ports" 2>"$base/server.log" &
    server=$!
    for _ in $(seq 1200); do
        grep -q '^ready ' "$base/ports" && break
        kill -0 "$server" 2>/dev/null || break
        sleep 0.05
    done
    rdma=$(sed -nE 's/^ready.* rdma=([0-9]+).*/\1/p' "$base/ports")
    nfs=$(sed -nE 's/^ready.* nfs=([0-9]+).*/\1/p' "$base/ports")
    [ -n "$rdma" ] && return
    kill -0 "$server" 2>/dev/null && echo "it still runs" || { wait "$server"; echo "it ended with status $?"; }
    echo "the responder did not start: $(cat "$base/ports" "$base/server.log")"
    false
}

# serve_empty MODE ARGUMENT...: the same with an empty $base/export of this mode.
serve_empty() {
    rm -rf --one-file-system "$base/export" "$base/state"
    mkdir -p "$base/export" "$base/mnt"
    chmod "$1" "$base/export"
    serve "$base/export" "${@:2}"
}

# mount_export HOST OPTIONS: mounts it at $base/mnt; the log is $base/client.log.
mount_export() {
    local mount=$nfs
    [[ $2 == *mountproto=rdma* ]] && mount=$rdma
    timeout 60 "$bin/nfsrdma" mount "$1:$base/export" "$base/mnt" --log "$base/client.log" \
        -o "port=$rdma,mountport=$mount${2:+,$2}"
}
