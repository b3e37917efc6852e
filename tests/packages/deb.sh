#!/usr/bin/env bash
# The deb in a clean Debian root: it is installed, used as a new user would, and purged. $work is a
# directory of this run; $1 is the deb, $2 that of the responder. Run by ./run.
set -uo pipefail
. "$(dirname "$0")/lib.sh"
root=$work/root
deb=$1 responder=$2
furnish

depends() { dpkg-deb -f "$deb" Depends | grep -qw -- "$1"; }

check "depends on fuse3" depends fuse3
mkdir "$work/content"
dpkg-deb -x "$deb" "$work/content"
if readelf -d "$work/content/usr/bin/nfsrdma" | grep -q libibverbs; then
    check "depends on libibverbs1" depends libibverbs1
    check "depends on librdmacm1" depends librdmacm1
else
    skip "depends on libibverbs1 and librdmacm1" "packaged without the feature verbs"
fi

inside groupadd -g 1000 alice && inside useradd -u 1000 -g 1000 -m -d /srv/alice alice
mkdir "$root/srv/alice/data" "$root/srv/alice/own"
chown 1000:1000 "$root/srv/alice/data" "$root/srv/alice/own"
files >"$work/before"
cp "$deb" "$root/tmp/nfsrdma.deb"
check "apt installs it, with its dependencies" \
    inside apt-get -qq -y --no-install-recommends install /tmp/nfsrdma.deb
rm "$root/tmp/nfsrdma.deb"
check "every file is as packaged" inside dpkg --verify nfsrdma
check "the program starts" inside nfsrdma --version
check "mount(8) finds its helpers" inside test -x /sbin/mount.nfsrdma -a -x /sbin/mount.fuse.nfsrdma
check "umount(8) finds its helper" inside test -x /sbin/umount.fuse.nfsrdma
check "systemd finds its hook for sleep" inside test -x /lib/systemd/system-sleep/nfsrdma
check "which does nothing without mounts" gives "" inside /lib/systemd/system-sleep/nfsrdma pre suspend

# minbase leaves documents out, so look for these in the package itself.
for page in nfsrdma.5 nfsrdma.8 mount.nfsrdma.8 mount.fuse.nfsrdma.8 umount.nfsrdma.8 umount.fuse.nfsrdma.8; do
    path=$work/content/usr/share/man/man${page##*.}/$page.gz
    check "man page $page" gzip -tq "$path"
    if command -v mandoc >/dev/null; then
        check "mandoc finds no fault in it" mandoc -T lint -W warning "$path"
    fi
done
for file in changelog.Debian.gz copyright CONFIGURATION.md TROUBLESHOOTING.md SECURITY.md INSTALL.md README.md \
    CHANGELOG.md RELIABILITY.md PERFORMANCE.md GLOSSARY.md demo.svg \
    examples/fstab examples/auto.nfsrdma examples/container/Containerfile examples/container/entrypoint \
    examples/container/kubernetes/{daemonset,sidecar,consumer}.yaml; do
    check "documentation: $file" test -s "$work/content/usr/share/doc/nfsrdma/$file"
done
links="$(dirname "$0")/../docs"
check "what its documents link to is there" "$links" "$work/content/usr/share/doc/nfsrdma"
# Everybody can read installed files; only programs and scripts are executable.
check "modes are those of a package" gives "" find "$work/content" ! -type l ! -perm -444
doc=usr/share/doc
check "the licences of others and the bill of materials are the program's" python3 "$(dirname "$0")/sbom" \
    "$work/content/usr/share/nfsrdma/sbom.cdx.json" "$work/content/$doc/nfsrdma/copyright" "$work/content/usr/bin/nfsrdma"
check "both stay in a root that leaves documents out" \
    inside sh -c 'grep -q "^MIT License" /usr/share/doc/nfsrdma/copyright && test -s /usr/share/nfsrdma/sbom.cdx.json'
check "whom to write to is left to who makes the package" \
    gives "nfsrdma authors <authors@nfsrdma.invalid>" dpkg-deb -f "$deb" Maintainer

# The server has a package of its own.
mkdir "$work/server"
dpkg-deb -x "$responder" "$work/server"
check "the server's licences and bill of materials" python3 "$(dirname "$0")/sbom" \
    "$work/server/usr/share/nfsrdma-responder/sbom.cdx.json" "$work/server/$doc/nfsrdma-responder/copyright" \
    "$work/server/usr/bin/nfsrdma-responder"
check "the server's man page" gzip -tq "$work/server/usr/share/man/man8/nfsrdma-responder.8.gz"
if command -v mandoc >/dev/null; then
    check "mandoc finds no fault in it" mandoc -T lint -W warning "$work/server/usr/share/man/man8/nfsrdma-responder.8.gz"
fi
for file in changelog.Debian.gz copyright README.md; do
    check "the server's documentation: $file" test -s "$work/server/$doc/nfsrdma-responder/$file"
done
check "what they link to is there" "$links" "$work/server/$doc/nfsrdma-responder"
cp "$responder" "$root/tmp/responder.deb"
check "apt installs the server" inside apt-get -qq -y --no-install-recommends install /tmp/responder.deb
rm "$root/tmp/responder.deb"
check "it starts" inside nfsrdma-responder --version
check "and nothing was started" refuses "" sh -c 'readlink /proc/[0-9]*/exe | grep nfsrdma-responder'

check "the responder starts" serve
mkdir -p "$root/mnt" "$root/srv/data"

check "mount -t nfsrdma, which says nothing" gives "" inside mount -t nfsrdma server:/export /mnt
check "it is mounted, and data goes both ways" mounted_at /mnt
check "df" inside df --output=source,target /mnt
check "df names the server" gives server:/export inside sh -c 'df --output=source /mnt | tail -1'
check "findmnt -t fuse.nfsrdma" gives /mnt inside findmnt -t fuse.nfsrdma -no TARGET
check "stats" inside sh -c 'nfsrdma stats /mnt | grep "^server:/export on /mnt"'
check "the log's level" inside nfsrdma log /mnt debug
check "remount read-only" inside mount -o remount,ro /mnt
check "it is read-only" refuses "Read-only" inside touch /mnt/no
check "a remount that cannot be is refused" refuses "remount" inside mount -o remount,rsize=4096 /mnt
check "umount" inside umount /mnt
check "nothing is mounted" refuses "" inside mountpoint -q /mnt
check "no process is left" until_true 30 nobody_serves

check "mount -t fuse.nfsrdma" inside mount -t fuse.nfsrdma -o ro,nosuid server:/export /mnt
check "its options are in /proc/mounts" inside grep -Eq ' /mnt fuse.nfsrdma ro,nosuid,' /proc/mounts
check "umount, as mounted" inside umount /mnt

# An upgrade of the package; the same version will do.
cp "$deb" "$root/tmp/nfsrdma.deb"
upgrade_under_mounts files inside dpkg -i /tmp/nfsrdma.deb
rm "$root/tmp/nfsrdma.deb"

# Completions offer existing mounts.
mkdir "$root/srv/two words"
check "mount on a path with a blank" inside mount -t nfsrdma server:/export "/srv/two words"
check "completions of bash" bash "$(dirname "$0")/completions.bash" "$work/content/usr/share/bash-completion/completions/nfsrdma" "$root/srv/two words"
for shell in zsh:zsh/vendor-completions/_nfsrdma fish:fish/vendor_completions.d/nfsrdma.fish; do
    if command -v "${shell%%:*}" >/dev/null; then
        check "completions of ${shell%%:*}" "${shell%%:*}" "$(dirname "$0")/completions.${shell%%:*}" \
            "$work/content/usr/share/${shell#*:}" "$root/srv/two words"
    else
        skip "completions of ${shell%%:*}" "it is not installed"
    fi
done
check "umount it" inside umount "/srv/two words"
rmdir "$root/srv/two words"

check "an unknown option is refused by name" \
    refuses "unknown option 'nconect'; did you mean 'nconnect'?" inside mount -t nfsrdma -o nconect=2 server:/export /mnt
check "an export that is not there" refuses "/nothing" inside mount -t nfsrdma server:/nothing /mnt

printf '%s\n' "server:/export /srv/data nfsrdma _netdev,nofail,noatime,nconnect=2 0 0" \
    "server:/export /srv/alice/data nfsrdma noauto,user,_netdev 0 0" >"$root/etc/fstab"
check "mount by fstab" inside mount /srv/data
check "the fstab mount works" mounted_at /srv/data
check "remount by fstab, read-only" inside mount -o remount,ro /srv/data
check "it is read-only by fstab" inside grep -Eq ' /srv/data fuse.nfsrdma ro,noatime,' /proc/mounts
check "mount -a leaves it alone" inside mount -a
check "umount by fstab" inside umount /srv/data
check "mount -a -O _netdev" inside mount -a -O _netdev
check "umount -a -t fuse.nfsrdma" inside umount -a -t fuse.nfsrdma
check "the fstab mount is gone" refuses "" inside mountpoint -q /srv/data

check "a user mounts by fstab" as_user mount /srv/alice/data
check "and sees the data" as_user cat /srv/alice/data/from-server
check "nosuid and nodev are forced" as_user grep -Eq ' /srv/alice/data fuse.nfsrdma rw,nosuid,nodev,noexec' /proc/mounts
check "root does not see it" refuses "" inside ls /srv/alice/data
check "the user unmounts" as_user umount /srv/alice/data
check "a user mounts by fusermount3" as_user nfsrdma mount server:/export /srv/alice/own
check "what the user writes is the user's" as_user touch /srv/alice/own/mine
check "on the server too" gives 1000 stat -c %u "$work/export/mine"
check "the user unmounts by the program" as_user nfsrdma umount /srv/alice/own
check "a user cannot mount over others' directories" refuses "" as_user nfsrdma mount server:/export /srv/data

# autofs with the map of the examples.
if grep -qw autofs /proc/filesystems; then
    mknod -m 600 "$root/dev/autofs" c 10 235
    check "autofs is installed" inside apt-get -qq -y --no-install-recommends install autofs
    cp "$work/content/usr/share/doc/nfsrdma/examples/auto.nfsrdma" "$root/etc/"
    mkdir -p "$root/etc/auto.master.d"
    echo "/nfsrdma /etc/auto.nfsrdma --timeout=600" >"$root/etc/auto.master.d/nfsrdma.autofs"
    # In a process group of its own, because the kernel must know the group in this PID namespace.
    check "automount starts" inside setsid -w automount
    check "a look mounts" inside cat /nfsrdma/data/from-server
    check "by the map" gives server:/export inside findmnt -t fuse.nfsrdma -vno SOURCE /nfsrdma/data
    check "umount" inside umount /nfsrdma/data
    check "automount ends" inside sh -c 'kill $(pidof automount)'
    check "it is gone" until_true 30 inside sh -c '! pidof automount'
    inside apt-get -qq -y purge autofs >/dev/null 2>&1
    rm -rf "$root/etc/auto.nfsrdma" "$root/etc/auto.master.d" "$root/nfsrdma"
else
    skip "autofs" "this kernel has none"
fi

# systemd, with this host's tools.
examples=$(dirname "$0")/../../packaging/examples
if command -v systemd-analyze >/dev/null; then
    check "the example units are right" systemd-analyze verify --man=no "$examples"/srv-data.mount "$examples"/srv-data.automount
    # If the program is not installed on this host, use another one in its place.
    sed 's#/usr/bin/nfsrdma#/bin/true#' "$examples"/../prometheus/nfsrdma-metrics.service >"$work/nfsrdma-metrics.service"
    check "and that of the metrics" systemd-analyze verify --man=no "$work/nfsrdma-metrics.service"
    sed 's#/usr/bin/nfsrdma#/bin/true#' "$examples"/nfsrdma-dead.service >"$work/nfsrdma-dead.service"
    cp "$examples"/nfsrdma-dead.timer "$work/"
    check "and those for dead mounts" systemd-analyze verify --man=no "$work/nfsrdma-dead.service" "$work/nfsrdma-dead.timer"
else
    skip "the example units are right" "no systemd-analyze"
fi
generator=/usr/lib/systemd/system-generators/systemd-fstab-generator
if [ -x "$generator" ]; then
    mkdir -p "$work/units/"{normal,early,late}
    sed -n 's/^server:/&/p' "$examples/fstab" | head -1 >"$work/fstab"
    check "the example of fstab makes a unit" \
        env SYSTEMD_FSTAB="$work/fstab" "$generator" "$work/units/normal" "$work/units/early" "$work/units/late"
    check "of the right type" grep -qx Type=nfsrdma "$work/units/normal/srv-data.mount"
    check "known to be of the network" grep -Eq '^Options=.*_netdev' "$work/units/normal/srv-data.mount"
    check "and right" systemd-analyze verify --man=no "$work/units/normal/srv-data.mount"
    check "wanted at boot" test -e "$work/units/normal/remote-fs.target.wants/srv-data.mount"
else
    skip "fstab through systemd" "no systemd-fstab-generator"
fi

# The record of locks of a killed mount is kept until the package is purged.
check "a killed mount leaves its state" leave_state
check "remove" inside apt-get -qq -y remove nfsrdma
check "the state stays" state_is_left

# Purged while mounted: the mount goes on, like every running program.
check "purge, and its dependencies go" purge nfsrdma nfsrdma-responder
: >"$root/etc/fstab"
rm -rf "$root/srv/data"
check "the responder stops" stop_serving
check "the state is gone" refuses "" test -e "$root/var/lib/nfsrdma"
files >"$work/after"
check "nothing is left" diff "$work/before" "$work/after"
check "no process is left at the end" nobody_serves
finish
