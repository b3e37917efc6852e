# Functions for the suites of this directory, sourced by bash. Suites run in namespaces of their own
# (mounts, processes, network), so that nothing of them outlives them.

passed=0 failed=0 skipped=0

# check WHAT COMMAND...: the command succeeds.
check() {
    local what=$1 out
    shift
    if out=$("$@" 2>&1); then
        passed=$((passed + 1))
        echo "ok       $what"
    else
        failed=$((failed + 1))
        printf 'FAILED   %s: %s\n' "$what" "$*"
        printf '%s\n' "$out" | uniq | sed 's/^/         | /'
    fi
}

skip() {
    skipped=$((skipped + 1))
    echo "skipped  $1: $2"
}

# refuses WORDS COMMAND...: the command fails and prints WORDS.
refuses() {
    local words=$1 out
    shift
    if out=$("$@" 2>&1); then
        echo "succeeded: $out"
        return 1
    fi
    [[ $out == *"$words"* ]] || { echo "said: $out"; return 1; }
}

# gives TEXT COMMAND...: the command prints exactly TEXT.
gives() {
    local text=$1 out
    shift
    out=$("$@") || return 1
    [ "$out" = "$text" ] || { printf '%s\n' "wanted '$text', got '$out'"; return 1; }
}

# until_true SECONDS COMMAND...: waits for a condition.
until_true() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ $SECONDS -lt $end ] || { echo "not within the time: $*"; return 1; }
        read -rt 0.05 <> <(:) || :
    done
}

# Prepares $root as for a container: /proc, /sys, a small /dev with FUSE.
furnish() {
    local dir
    # Copies of other mounts would prevent their file systems from ending.
    awk '$3 ~ /^fuse/ { print $2 }' /proc/mounts | while read -r dir; do
        umount -i -l "$(printf %b "$dir")"
    done
    mount --bind "$root" "$root"
    mount -t proc proc "$root/proc"
    mount -t sysfs sysfs "$root/sys"
    mount -t tmpfs -o mode=755 dev "$root/dev"
    mkdir "$root/dev/pts" "$root/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=666 devpts "$root/dev/pts"
    local name
    for name in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0 fuse:10:229; do
        local IFS=:
        set -- $name
        mknod -m 666 "$root/dev/$1" c "$2" "$3"
    done
    ln -s /proc/self/fd "$root/dev/fd"
    ln -s pts/ptmx "$root/dev/ptmx"
    mount -t tmpfs -o mode=755 run "$root/run"
    printf '127.0.0.1 localhost server\n' >"$root/etc/hosts"
    # Every installed system and every engine has this file, and fusermount3 needs it.
    ln -sf ../proc/self/mounts "$root/etc/mtab"
}

# Runs a command inside $root.
inside() {
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
        chroot "$root" "$@"
}

# The same as the plain user alice.
as_user() {
    inside setpriv --reuid 1000 --regid 1000 --clear-groups "$@"
}

# The files of $root, without those of dpkg and apt, and without copies that groupadd makes.
files() {
    find "$root" -xdev \( -path "$root/var/lib/dpkg" -o -path "$root/var/lib/apt" -o -path "$root/var/cache" \
        -o -path "$root/var/log" -o -path "$root/etc/ld.so.cache" -o -path "$root/etc/gshadow-" -o -path "$root/tmp/*" \) -prune -o -printf '%y %P %l\n' | sort
}

# purge PACKAGE...: purges packages, with those that were installed because of them.
purge() {
    inside apt-get -qq -y purge "$@" && inside apt-get -qq -y -o APT::AutoRemove::RecommendsImportant=false \
        -o APT::AutoRemove::SuggestsImportant=false autoremove --purge
}

# Starts the responder on loopback, at the usual ports, with the export server:/export.
serve() {
    ip link set lo up
    mkdir -p "$work/export" "$work/state"
    chmod 777 "$work/export"
    "$NFSRDMA_RESPONDER" "/export=$work/export" --mount-port 20048 --portmap-port 111 \
        --state-dir "$work/state" --print-ports >"$work/ready" 2>"$work/responder.log" &
    echo $! >"$work/responder.pid"
    until_true 60 grep -q ^ready "$work/ready" || { cat "$work/responder.log"; return 1; }
}

stop_serving() {
    local pid
    pid=$(<"$work/responder.pid")
    kill "$pid"
    until_true 30 not_running "$pid"
}
not_running() { [ ! -e "/proc/$1/exe" ]; }

# By the file of the program, because the process has the name of the link by which it was called.
nobody_serves() {
    ! readlink /proc/[0-9]*/exe | grep -q '/usr/bin/\(nfsrdma\|emulator\)$'
}

# The process that serves /mnt runs the file that is at the program's path now.
installed_serves() {
    local pid
    pid=$(inside nfsrdma stats --json /mnt | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p')
    [ "/proc/$pid/exe" -ef "$root/usr/bin/nfsrdma" ]
}

# Upgrades the package by the command in $2 and so on under a mount without restart=, and under one with restart=$1.
upgrade_under_mounts() {
    local restart=$1 said
    shift
    check "mount, and it does not outlive its program" inside mount -t nfsrdma -o restart=no server:/export /mnt
    check "the package is upgraded all the same" "$@"
    check "that mount goes on" mounted_at /mnt
    check "umount it" inside umount /mnt
    if said=$(inside mount -t nfsrdma -o "restart=$restart" server:/export /mnt 2>&1); then
        exec 9<"$root/mnt/from-server"
        check "a mount that outlives its program is there while the package is upgraded" "$@"
        check "another program goes on with it" inside sh -c 'nfsrdma stats --json /mnt | grep -Eq "\"restarts\": *1,"'
        check "that of the package" installed_serves
        check "the mount goes on, and data goes both ways" mounted_at /mnt
        check "a file that was open is open" cat <&9
        exec 9<&-
        check "umount it, too" inside umount /mnt
        check "no process is left of it" until_true 30 nobody_serves
    else
        skip "an upgrade under a mount" "$said"
    fi
}

# Leaves in $root the state of a mount that was killed while it held a lock.
leave_state() {
    local exe
    # Not to be started again.
    inside mount -t nfsrdma -o restart=no server:/export /mnt || return 1
    echo locked >"$work/export/locked"
    exec 9<>"$root/mnt/locked"
    flock -n 9 || return 1
    for exe in /proc/[0-9]*/exe; do
        [[ $(readlink "$exe") != */usr/bin/nfsrdma ]] || kill -KILL "$(basename "${exe%/exe}")"
    done
    until_true 30 nobody_serves || return 1
    exec 9<&-
    inside nfsrdma umount /mnt && state_is_left
}
state_is_left() { cat "$root"/var/lib/nfsrdma/*.locks | grep "^+ "; }

# The mount is as requested, and the data is the same by both ways of reading it.
mounted_at() {
    local dir=$1 word
    gives "fuse.nfsrdma server:/export" inside findmnt -vno FSTYPE,SOURCE "$dir" || return 1
    inside grep -q " $dir fuse.nfsrdma " /proc/mounts || return 1
    word="$dir $RANDOM$RANDOM"
    echo "$word" >"$work/export/from-server"
    rm -f "$work/export/from-client"
    gives "$word" inside cat "$dir/from-server" || return 1
    echo "$word" | inside tee "$dir/from-client" >/dev/null || return 1
    inside sync -f "$dir/from-client" || return 1
    gives "$word" cat "$work/export/from-client"
}

# Prints the counts, and sets the exit status.
finish() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ]
}
