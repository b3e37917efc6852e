#!/usr/bin/env fish
# Completes some command lines with the script $argv[1].
source $argv[1]
set failed 0

# completes LINE WORD...: completing LINE at its end gives exactly WORD..., in any order.
function completes
    set -l given (complete -C $argv[1] | string split -f 1 \t | sort)
    set -l wanted (printf '%s\n' $argv[2..] | sort)
    if test "$given" != "$wanted"
        echo "'$argv[1]' gives '$given', not '$wanted'"
        set -g failed 1
    end
end

completes "nfsrdma mou" mount
completes "nfsrdma umount --la" --lazy
completes "nfsrdma mount -o nconn" nconnect=
completes "nfsrdma mount -o ro,softe" ro,softerr
completes "nfsrdma mount --options lookupcache=p" lookupcache=positive
completes "nfsrdma mount -o ro,transport=v" ro,transport=verbs
exit $failed
