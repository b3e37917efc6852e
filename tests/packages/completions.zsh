#!/usr/bin/env zsh
# Completes some command lines with the script $1, called _nfsrdma, in a shell at a terminal; $2 is where
# something is mounted, with a blank in its path.
emulate -R zsh
zmodload zsh/zpty || exit 1
dir=${1:A:h}
out=$(mktemp) || exit 1
status_=0
# A separate key shows the line after the completion.
setup="PS1= PS2= ; fpath=($dir \$fpath); autoload -Uz compinit; compinit -u -D; LISTMAX=0; unsetopt beep automenu
_tell() { print -r -- \"\$BUFFER\" >$out; BUFFER=; }; zle -N _tell; bindkey '^X' _tell; bindkey '^I' expand-or-complete; print ready"
zpty shell zsh -f -i
zpty -w shell "$setup"
zpty -r -m shell line '*ready*' || exit 1

# completes LINE WHOLE: completing LINE at its end gives WHOLE.
completes() {
    : >$out
    zpty -n -w shell "$1"$'\t'$'\x18'
    local tries=0 got
    while [[ ! -s $out ]] && ((tries++ < 500)); do
        zpty -r -t shell line
        zselect -t 2
    done
    got=$(<$out)
    if [[ ${got%% #} != "${2%% #}" ]]; then
        print -r -- "'$1' gives '$got', not '$2'"
        status_=1
    fi
}
setopt extendedglob
zmodload zsh/zselect || exit 1

completes "nfsrdma mou" "nfsrdma mount "
completes "nfsrdma umount --la" "nfsrdma umount --lazy "
completes "nfsrdma mount -o nconn" "nfsrdma mount -o nconnect="
completes "nfsrdma mount -o ro,softe" "nfsrdma mount -o ro,softerr"
completes "nfsrdma mount --options lookupcache=p" "nfsrdma mount --options lookupcache=positive"
completes "nfsrdma mount -o ro,transport=v" "nfsrdma mount -o ro,transport=verbs"
for command in umount "umount --lazy" stats "trace --procedure READ" capture; do
    completes "nfsrdma $command ${2:h}/two" "nfsrdma $command ${(q)2} "
done
zpty -d shell
rm -f $out
exit $status_
