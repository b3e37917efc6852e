#!/usr/bin/env bash
# Completes some command lines with the script $1.
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

completes "nfsrdma mou" mount
completes "nfsrdma umount --la" --lazy
completes "nfsrdma mount -o nconn" nconnect=
completes "nfsrdma mount -o ro,softe" ro,softerr
completes "nfsrdma mount --options lookupcache=p" positive
completes "nfsrdma mount -o ro,transport=v" verbs
exit $status
