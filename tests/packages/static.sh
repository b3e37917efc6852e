#!/usr/bin/env bash
# The static program in a root that contains nothing else: it is started, used, and removed. $work
# is a directory of this run; $1 is the program; $2 is an emulator, if the program is for another
# machine. Run by ./run.
set -uo pipefail
. "$(dirname "$0")/lib.sh"
root=$work/root
emulator=${2-}
mkdir -p "$root"/{dev,etc,mnt,proc,run,sys,usr/bin}
install -m 755 "$1" "$root/usr/bin/nfsrdma"
[ ! "$emulator" ] || install -m 755 "$emulator" "$root/usr/bin/emulator"
furnish

program() { inside ${emulator:+/usr/bin/emulator} /usr/bin/nfsrdma "$@"; }
linked_with_nothing() { ! readelf -d "$1" | grep NEEDED; }
# The root has no program that could look at it.
data_go_both_ways() {
    echo "from the server" >"$work/export/there"
    gives "from the server" cat "$root/mnt/there" || return 1
    echo "from the client" >"$root/mnt/here" || return 1
    gives "from the client" cat "$work/export/here" || return 1
    head -c 3000000 /dev/urandom >"$work/export/large"
    cmp "$work/export/large" "$root/mnt/large" || return 1
    cp "$work/export/large" "$root/mnt/copy" || return 1
    cmp "$work/export/large" "$work/export/copy"
}

check "it is linked with nothing" linked_with_nothing "$1"
[ ! "$emulator" ] || check "it is of the other machine" sh -c 'readelf -h "$0" | grep -q "Machine: *AArch64"' "$1"
check "the program starts" program --version
check "the responder starts" serve
check "it mounts by a host's name" program mount server:/export /mnt
check "data go both ways" data_go_both_ways
check "it tells its statistics" program stats /mnt
check "it unmounts" program umount /mnt
check "its process ended" until_true 30 nobody_serves
check "the responder stops" stop_serving
finish
