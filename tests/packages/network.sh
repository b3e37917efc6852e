#!/usr/bin/env bash
# NetworkManager in the clean root with the deb: before it takes the network down, as for a sleep, it has the mounts write
# back. $1 is the deb. Run by ./run.
set -uo pipefail
. "$(dirname "$0")/lib.sh"
root=$work/root
furnish
# It takes this for a container's, and does not wait until udev has named an interface.
mount -o remount,bind,ro "$root/sys"
cp "$1" "$root/tmp/nfsrdma.deb"
check "apt installs it beside NetworkManager" \
    inside apt-get -qq -y --no-install-recommends install systemd network-manager /tmp/nfsrdma.deb
check "the responder starts" serve

ip link add wire0 type veth peer name wire1
ip link set wire1 up
printf '[main]\nauth-polkit=false\n' >"$root/etc/NetworkManager/conf.d/test.conf"
mkdir -p "$root/run/dbus"
check "there is a bus" inside dbus-daemon --system --fork
inside NetworkManager --debug >"$work/log" 2>&1 &
starter=$!
check "NetworkManager starts" until_true 60 inside nmcli general status
check "it knows an interface" inside nmcli connection add type ethernet ifname wire0 con-name wire autoconnect no \
    ipv4.method manual ipv4.addresses 10.9.9.1/24 ipv6.method disabled
check "and has it up" inside nmcli connection up wire

check "a mount" inside mount -t nfsrdma server:/export /mnt
is_dirty() { grep -q '^nfsrdma_fs_dirty_bytes{.*} [1-9]' <<<"$(inside nfsrdma stats --prometheus /mnt)"; }
# A program of its own: a shell would close the file.
write() { perl -e 'open F, ">", $ARGV[0]; syswrite F, "draft"; sleep' "$root/mnt/$1" & }
write of-vpn
writers=($!)
check "a program writes" until_true 30 is_dirty
check "it is told that a VPN ends" inside /usr/lib/NetworkManager/dispatcher.d/pre-down.d/nfsrdma tun0 vpn-pre-down
check "the data was written then" gives draft cat "$work/export/of-vpn"
write draft
writers+=($!)
check "a program writes again" until_true 30 is_dirty
# It gives up after 25 seconds, which a busy machine may take; NetworkManager goes on.
inside nmcli networking off &
asker=$!
is_down() { ! ip -4 address show wire0 | grep -q 10.9.9.1; }
check "the network is taken down" until_true 120 is_down
check "the data was written before" gives draft cat "$work/export/draft"
kill "${writers[@]}"
wait "${writers[@]}" "$asker" 2>/dev/null
check "umount it" inside umount /mnt
kill "$starter" "$(cat "$root/run/dbus/pid")"
wait "$starter"
check "the responder stops" stop_serving
finish
