#!/usr/bin/env fish
# Completes some command lines with the script $argv[1]; $argv[2] is where something is mounted, with a
# blank in its path.
source $argv[1]
set failed 0
set argv_ $argv

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
set above (path dirname $argv_[2])
for command in umount "umount --lazy" stats "trace --procedure READ"
    completes "nfsrdma $command $above/two" $argv_[2]
end
exit $failed
