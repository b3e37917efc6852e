#!/usr/bin/env bash
# Boots systemd in the clean root with the deb installed. Tests mounts by fstab, by the example unit
# and on demand, and whether a shutdown writes everything back. $1 is the deb. Run by ./run.
set -uo pipefail
. "$(dirname "$0")/lib.sh"
root=$work/root
furnish
mknod -m 666 "$root/dev/autofs" c 10 235

cp "$1" "$root/tmp/nfsrdma.deb"
check "apt installs it beside systemd" \
    inside apt-get -qq -y --no-install-recommends install systemd /tmp/nfsrdma.deb
check "the responder starts" serve
echo world >"$work/export/hello"

mkdir -p "$root"/srv/{data,unit,auto,look,dead}
cat >"$root/etc/fstab" <<FSTAB
server:/export /srv/data nfsrdma _netdev,nofail 0 0
server:/export /srv/dead nfsrdma _netdev,nofail,restart=no 0 0
server:/export /srv/auto nfsrdma noauto,_netdev,x-systemd.automount 0 0
FSTAB
sed 's#/srv/data#/srv/unit#' "$(dirname "$0")/../../packaging/examples/srv-data.mount" \
    >"$root/etc/systemd/system/srv-unit.mount"
cp "$(dirname "$0")"/../../packaging/examples/nfsrdma-dead.{service,timer} "$root/etc/systemd/system/"
for kind in mount automount; do
    sed 's#/srv/data#/srv/look#' "$(dirname "$0")/../../packaging/examples/srv-data.$kind" \
        >"$root/etc/systemd/system/srv-look.$kind"
done

cat >"$root/etc/systemd/system/try.service" <<UNIT
[Unit]
After=remote-fs.target
[Service]
Type=oneshot
ExecStart=/bin/sh /try
StandardOutput=file:/result
StandardError=inherit
[Install]
WantedBy=multi-user.target
UNIT
cat >"$root/try" <<'TRY'
systemctl --failed --no-legend --plain | sed 's/^/failed unit: /'
until findmnt -n /srv/data >/dev/null; do sleep 0.1; done
findmnt -t fuse.nfsrdma -no TARGET
echo "demand: $(cat /srv/auto/hello) $(findmnt -t fuse.nfsrdma -vno SOURCE /srv/auto)"
echo "before: $(systemctl is-active srv-look.mount srv-look.automount | tr '\n' ' ')"
echo "look: $(cat /srv/look/hello) $(systemctl is-active srv-look.mount)"
echo "fstab: $(cat /srv/data/hello)"
echo "unit: $(cat /srv/unit/hello) $(systemctl is-active srv-unit.mount)"
echo "after: $(systemctl show -p After --value srv-data.mount | tr ' ' '\n' | grep -c '^network-online.target$')"
systemctl stop srv-unit.mount && echo "stopped: $(ls -A /srv/unit | wc -l)"
until findmnt -n /srv/dead >/dev/null; do sleep 0.1; done
pid() { nfsrdma stats --json /srv/dead | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p'; }
first=$(pid)
kill -9 "$first"
while cat /srv/dead/hello 2>/dev/null; do sleep 0.1; done
systemctl start nfsrdma-dead.timer nfsrdma-dead.service
echo "dead: $(cat /srv/dead/hello)"
# The process that serves it is not the unit's, which has ended.
echo "again: $([ "$(pid)" != "$first" ] && systemctl is-active nfsrdma-dead.service nfsrdma-dead.timer | tr '\n' ' ')"
# systemd runs its hooks, and writes to a file in the place of the kernel's.
figure() { nfsrdma stats --json /srv/data | tr -d ' \n' | sed 's/.*"'$1'":\([0-9]*\).*/\1/'; }
perl -e 'open F, ">", "/srv/data/draft"; syswrite F, "draft"; sleep' &
until [ -s /srv/data/draft ]; do sleep 0.1; done
connects=$(figure connects)
echo "dirty: $(figure dirty_bytes)"
/usr/lib/systemd/systemd-sleep suspend 2>/slept
echo "slept: $(cat /sys/power/state) $(figure dirty_bytes)"
until [ "$(figure connects)" -gt "$connects" ]; do sleep 0.1; done
echo "awake: $(cat /srv/data/draft)"
kill %1
# Only the unmounting at shutdown flushes this.
head -c 20000000 /dev/urandom | tee /srv/data/late | sha256sum >/sum
systemctl --no-block exit 0
TRY
# What systemd-sleep would write to the kernel.
mkdir "$root/power"
echo freeze mem >"$root/power/state"
inside systemctl -q enable try.service srv-unit.mount srv-look.automount
ln -sf /usr/lib/systemd/system/multi-user.target "$root/etc/systemd/system/default.target"

unified=$(findmnt -t cgroup2 -no TARGET | head -1)
if [ -z "$unified" ]; then
    skip "boot" "this system has no cgroup2 mounted"
    finish
    exit
fi
group=$unified/$(basename "$work")
mkdir "$group"
# As container engines start systemd: in namespaces, with read-only kernel settings, and without the
# capabilities to change clock and modules.
boot='
mount -t proc proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount -o remount,bind,ro "$root/sys"
mount --bind "$root/power" "$root/sys/power"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
exec env -i container=test PATH=/usr/sbin:/usr/bin chroot "$root" \
    setpriv --bounding-set -sys_time,-sys_module,-sys_rawio,-syslog -- /lib/systemd/systemd --log-target=null --show-status=no
'
boot_once() {
    (
        echo 0 >"$group/cgroup.procs"
        root=$root exec timeout -k 10 120 unshare --mount --pid --uts --ipc --cgroup --fork --kill-child \
            --propagation private sh -ec "$boot" </dev/null
    )
}
journal() {
    inside journalctl -q -D /run/log/journal -n 40 --no-pager -o short-monotonic 2>&1
}
boots() {
    local status=0
    boot_once || status=$?
    # Sometimes systemd hangs before its first unit, the journal. That is before any of our units,
    # so try once more.
    if [ $status != 0 ] && [ ! -e "$root/result" ] && [ -z "$(journal)" ]; then
        echo "         | systemd started no unit in $((SECONDS - begun)) s: once more" >&2
        rm -rf "$root/run/systemd"
        status=0
        boot_once || status=$?
    fi
    [ $status = 0 ] || {
        echo "exit status $status (124: it took longer than 120 s) after $((SECONDS - begun)) s; of its units came up:"
        find "$root/run/systemd" -maxdepth 1 2>&1 | sed "s#$root##" | tr '\n' ' '
        echo "; the end of its journal:"
        journal
        return 1
    }
}
begun=$SECONDS
check "it boots and shuts down" boots
find "$group" -depth -type d -exec rmdir {} + 2>/dev/null

result() {
    grep -qxF -- "$1" "$root/result" || { cat "$root/result"; return 1; }
}
check "no unit failed" refuses "" grep "^failed unit" "$root/result"
check "mounted at boot by fstab" result "fstab: world"
check "after the network" result "after: 1"
check "mounted at boot by the example unit" result "unit: world active"
check "the example automount unit waits" result "before: inactive active "
check "and mounts when somebody looks" result "look: world active"
check "a stopped unit is unmounted" result "stopped: 0"
check "the unit for dead mounts mounts one again" result "dead: world"
check "and its timer goes on" result "again: inactive active "
check "what was written before a sleep is at the server then" result "slept: mem 0"
check "and the mount connects anew after it" result "awake: draft"
check "mounted on demand" result "demand: world server:/export"
check "the shutdown wrote everything back" gives "$(cat "$root/sum")" sh -c 'sha256sum <"$0"' "$work/export/late"
check "the responder stops" stop_serving
finish
