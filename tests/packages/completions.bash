#!/usr/bin/env bash
# Completes some command lines with the script $1; $2 is where something is mounted, with a blank in
# its path.
set -u
. "$1"

# complete LINE WORD...: completing LINE at its end gives exactly WORD... ('=' splits words, as
# readline does).
status=0
completes() {
    local line=$1
    shift
    read -ra COMP_WORDS <<<"${line//=/ = }"
    [[ $line != *" " ]] || COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMP_LINE=$line COMP_POINT=${#line}
    COMPREPLY=()
    local before=""
    [ $COMP_CWORD -eq 0 ] || before=${COMP_WORDS[COMP_CWORD - 1]}
    _nfsrdma_options nfsrdma "${COMP_WORDS[COMP_CWORD]}" "$before"
    if [ "${COMPREPLY[*]-}" != "$*" ]; then
        echo "'$line' gives '${COMPREPLY[*]-}', not '$*'"
        status=1
    fi
}

# The completions that are offered for LINE, whatever they are.
completes_all() {
    local status=0
    completes "$1" | sed "s/^'.*' gives '//; s/', not ''$//"
}

completes "nfsrdma mou" mount
completes "nfsrdma umount --la" --lazy
completes "nfsrdma mount -o nconn" nconnect=
completes "nfsrdma mount -o ro,softe" ro,softerr
completes "nfsrdma mount --options lookupcache=p" positive
completes "nfsrdma mount -o ro,transport=v" verbs
printf -v mounted %q "$2"
completes "nfsrdma umount ${2%/*}/two" "$mounted"
completes "nfsrdma umount --lazy ${2%/*}/two" "$mounted"
completes "nfsrdma stats ${2%/*}/two" "$mounted"
completes "nfsrdma top /srv ${2%/*}/two" "$mounted"
completes "nfsrdma trace --procedure READ ${2%/*}/two" "$mounted"
completes "nfsrdma capture ${2%/*}/two" "$mounted"
completes "nfsrdma stats ${2%/*}/two-mounts-of-that-name"
completes "nfsrdma umount --fo" --force
[[ " $(completes_all "nfsrdma umount ") " == *" $mounted "* ]] || { echo "not offered without a beginning"; status=1; }
exit $status
