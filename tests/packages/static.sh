#!/usr/bin/env bash
# The static program in a root that holds nothing else: started, used, and gone. $work is a
# directory of this run; $1 the program. Run by ./run.
set -uo pipefail
. "$(dirname "$0")/lib.sh"
root=$work/root
mkdir -p "$root"/{dev,etc,mnt,proc,run,sys,usr/bin}
install -m 755 "$1" "$root/usr/bin/nfsrdma"
furnish

linked_with_nothing() { ! readelf -d "$1" | grep NEEDED; }
# Nothing in the root could look at it.
data_go_both_ways() {
    echo "from the server" >"$work/export/there"
    gives "from the server" cat "$root/mnt/there" || return 1
    echo "from the client" >"$root/mnt/here" || return 1
    gives "from the client" cat "$work/export/here"
}

check "it is linked with nothing" linked_with_nothing "$1"
check "the program starts" inside nfsrdma --version
check "the responder starts" serve
check "it mounts by a host's name" inside nfsrdma mount server:/export /mnt
check "data go both ways" data_go_both_ways
check "it tells its statistics" inside nfsrdma stats /mnt
check "it unmounts" inside nfsrdma umount /mnt
check "its process ended" nobody_serves
check "the responder stops" stop_serving
finish
