#!/usr/bin/env bash
# The rpm in a root with its own rpm database: its dependencies are resolved against the root, then
# it is used and erased. Run by ./run.
set -uo pipefail
. "$(dirname "$0")/lib.sh"
root=$work/root
package=$1 responder=$2
furnish

files() {
    find "$root" -xdev \( -path "$root/var/lib/rpm" -o -path "$root/var/log" -o -path "$root/var/cache" \) -prune \
        -o -printf '%y %P %l\n' | sort
}
in_root() { rpm --root "$root" --dbpath /var/lib/rpm "$@"; }

inside apt-get -qq -y --no-install-recommends install fuse3 libibverbs1 librdmacm1 >"$work/apt.log" 2>&1 || {
    cat "$work/apt.log"
    exit 1
}

# The root is Debian's, so an empty package tells rpm what it provides.
cat >"$work/system.spec" <<SPEC
Name: system
Version: 1
Release: 1
Summary: What the root has
License: none
BuildArch: noarch
$(find "$root/usr/lib" -name '*.so*' -type f | /usr/lib/rpm/find-provides | sed 's/^/Provides: /')
Provides: rtld(GNU_HASH)
Provides: fuse3
Provides: util-linux
Provides: /bin/sh
%description
.
%files
SPEC
check "rpm learns what the root has" rpmbuild -bb --quiet --define "_topdir $work/rpmbuild" --define "_dbpath $work/rpmbuild/db" "$work/system.spec"

check "checksums" rpm -K --nosignature "$package"
check "names its licence" gives MIT rpm -qp --qf '%{LICENSE}' "$package"
check "has a changelog" test -n "$(rpm -qp --changelog "$package")"
# On rpm distributions, the package filesystem has these.
mkdir -p "$root/var/lib/rpm" "$root/usr/share/licenses"
check "a database" in_root --initdb
check "without its dependencies it is refused" refuses "fuse3 is needed" in_root -i --ignorearch --ignoreos "$package"
check "the system's package" in_root -i "$work"/rpmbuild/RPMS/noarch/system-*.rpm
files >"$work/before"
check "install" in_root -i "$package"
check "every file is as packaged" in_root -V nfsrdma
check "the program starts" inside nfsrdma --version
check "systemd finds its hook for sleep" test -x "$root/usr/lib/systemd/system-sleep/nfsrdma"
check "and NetworkManager" test -x "$root/usr/lib/NetworkManager/dispatcher.d/pre-down.d/nfsrdma"
check "documentation is marked as such" test -n "$(in_root -qd nfsrdma)"
# A root without documentation has the licences, but not these files.
documents=$(in_root -qd nfsrdma)
for name in man5/nfsrdma.5.gz man8/nfsrdma.8.gz nfsrdma/TROUBLESHOOTING.md nfsrdma/SECURITY.md \
    examples/container/kubernetes/daemonset.yaml; do
    check "documentation: $name" grep -q "/$name\$" <<<"$documents"
done
check "what its documents link to is there" "$(dirname "$0")/../docs" "$root/usr/share/doc/nfsrdma"
check "the licences are marked as such" gives "/usr/share/licenses/nfsrdma/LICENSE
/usr/share/licenses/nfsrdma/THIRD-PARTY-LICENSES" in_root -q --licensefiles nfsrdma
check "the licences of others and the bill of materials are the program's" python3 "$(dirname "$0")/sbom" \
    "$root/usr/share/nfsrdma/sbom.cdx.json" "$root/usr/share/licenses/nfsrdma/THIRD-PARTY-LICENSES" "$root/usr/bin/nfsrdma"
check "the server is installed" in_root -i "$responder"
check "it is as packaged" in_root -V nfsrdma-responder
check "it starts" inside nfsrdma-responder --version
check "the server's licences and bill of materials" python3 "$(dirname "$0")/sbom" \
    "$root/usr/share/nfsrdma-responder/sbom.cdx.json" "$root/usr/share/licenses/nfsrdma-responder/THIRD-PARTY-LICENSES" \
    "$root/usr/bin/nfsrdma-responder"

check "the responder starts" serve
check "mount -t nfsrdma" inside mount -t nfsrdma server:/export /mnt
check "it is mounted, and data goes both ways" mounted_at /mnt
check "umount" inside umount /mnt
check "no process is left" until_true 30 nobody_serves

# rpm takes the same version for another one if it is told that this is an upgrade.
upgrade_under_mounts data in_root -U --force "$package"
check "a killed mount leaves its state" leave_state
check "the responder stops" stop_serving

check "erase" in_root -e nfsrdma nfsrdma-responder
check "the state is gone" refuses "" test -e "$root/var/lib/nfsrdma"
files >"$work/after"
check "nothing is left" diff "$work/before" "$work/after"
finish
