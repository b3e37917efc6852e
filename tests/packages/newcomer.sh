#!/usr/bin/env bash
# A newcomer's first steps with the deb in a clean Debian root: the first commands of the README in
# the package, an outage of the server, and removing everything. $work is a directory of this run;
# $1 is the deb. Run by ./run.
set -uo pipefail
. "$(dirname "$0")/lib.sh"
root=$work/root
deb=$1
furnish

# newcomer COMMAND: runs the command as typed, in a directory that has the deb where building it leaves it.
newcomer() { inside env APT_CONFIG=/tmp/apt.conf sh -c "cd /tmp && $1"; }
# Whatever went wrong, leave no mount and no silent server for later suites.
recover() {
    ! not_running "$(<"$work/responder.pid")" || serve
    inside timeout -k 5 60 nfsrdma umount -f /mnt
}
no_mount() { ! grep fuse.nfsrdma /proc/mounts; }
# The root has no syslog daemon: messages to syslog go to $work/syslog.
listen() {
    python3 -u -c '
import socket, sys
log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
log.bind(sys.argv[1])
while True:
    print(log.recv(65536).decode())
' "$root/dev/log" >"$work/syslog" 2>&1 &
    until_true 30 test -S "$root/dev/log"
}
logged() { grep -q "<[0-9]*>nfsrdma\[[0-9]*\]: server:/export on /mnt: $1" "$work/syslog"; }

# Answer as a user would, and install no recommended packages, which would have to be fetched.
printf '%s "%s";\n' APT::Get::Assume-Yes true APT::Install-Recommends false Dpkg::Use-Pty 0 >"$root/tmp/apt.conf"
files >"$work/before"
mkdir -p "$root/tmp/target/package"
cp "$deb" "$root/tmp/target/package/"
mkdir "$work/content"
dpkg-deb -x "$deb" "$work/content"
mapfile -t lines < <(sed -n '/^## Install and mount$/,/^## Try/ { /^```sh$/,/^```$/ { /^```/! { s/^sudo //; p } } }' \
    "$work/content/usr/share/doc/nfsrdma/README.md")
check "the README's first commands are those tried here" \
    gives "packaging/build-deb --in-container;apt install ./target/package/nfsrdma_*_amd64.deb;mount -t nfsrdma server:/export /mnt;nfsrdma top;umount /mnt;" \
    printf '%s;' "${lines[@]}"
# bare.sh tries the first of them.
lines=("${lines[@]:1}")
check "the responder starts" serve
check "the system's log is heard" listen
echo "hello, newcomer" >"$work/export/hello"

check "${lines[0]}" newcomer "${lines[0]/amd64/$(dpkg --print-architecture)}"
check "${lines[1]}" newcomer "${lines[1]}"
check "the export's files are there" gives "hello, newcomer" inside cat /mnt/hello
check "the log says that it is mounted" until_true 30 logged "mounted: "
# On a terminal it draws a screen until q is pressed.
check "${lines[2]} (-b -n 1)" eval "newcomer '${lines[2]} -b -n 1' >'$work/top'"
check "it shows the mount's rates" grep -Eq '^/mnt +(server +)?[0-9.]+ +[0-9.]+ +[0-9]+ ' "$work/top"
check "${lines[3]}" newcomer "${lines[3]}"
check "no process is left" until_true 30 nobody_serves

# An outage. By default the log reports it after six minutes (timeo, retrans).
check "mount, to hear of an outage sooner" newcomer "mount -t nfsrdma -o timeo=10,retrans=1 server:/export /mnt"
check "it is connected" eval "inside nfsrdma stats | grep -E '^/mnt +server:/export +up '"
kill -KILL "$(<"$work/responder.pid")"
check "the server is killed" until_true 30 not_running "$(<"$work/responder.pid")"
inside timeout -k 5 240 sh -c 'cat /mnt/hello && echo told >/mnt/answer' >"$work/read" 2>&1 &
reader=$!
check "the log says that the server does not respond" until_true 60 logged "server server not responding, still trying: "
check "stats says so of the mount" eval "inside nfsrdma stats | grep -E '^/mnt +server:/export +down .*not connected'"
check "and of each connection" eval "inside nfsrdma stats /mnt | grep '^connection 0: down, to '"
check "so does top" eval "newcomer '${lines[2]} -b -n 1' | grep -E '^/mnt +no connection to the server, [1-9][0-9]* calls? waits?'"
check "who reads waits" refuses "" not_running "$reader"
check "the server is started again" serve
check "the log says that it is back" until_true 60 logged "server server OK$"
check "who read goes on" until_true 60 not_running "$reader"
check "with what was asked for" gives "hello, newcomer" cat "$work/read"
check "and what was written is there" until_true 30 test -s "$work/export/answer"
check "stats says that it is connected" eval "inside nfsrdma stats | grep -E '^/mnt +server:/export +up '"
check "umount" inside timeout -k 5 120 umount /mnt
check "no process is left after the outage" until_true 30 nobody_serves
nobody_serves || recover
check "no mount is left" no_mount

check "purge" purge nfsrdma
check "the responder stops" stop_serving
check "nothing is left" diff "$work/before" <(files)
finish
