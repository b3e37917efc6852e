#!/usr/bin/env bash
# packaging/release in two clones at different paths, with a bare Debian as the image of its containers, $1: what it makes
# is complete, starts, and is the same twice. Takes what six builds of the programs take. Run by ./run, with
# the network.
set -uo pipefail
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/podman-lib.sh"
prepare_engine
trap end_engine EXIT
check "the engine has Debian's image" offer_engine "$1"
PATH=$work/bin:$PATH
parts=(packages image static)
if [ ! -d "$(rustc --print target-libdir --target aarch64-unknown-linux-musl)" ]; then
    skip "the static programs" "this Rust lacks the target aarch64-unknown-linux-musl"
    parts=(packages image)
fi
for clone in first other/place; do
    mkdir -p "$work/$clone"
    check "$clone: the source is cloned" copy_source "$work/$clone/source"
    check "$clone: it is released" env -u CARGO_TARGET_DIR "$work/$clone/source/packaging/release" "${parts[@]}"
done
mkdir "$work/lacking"
printf '#!/bin/sh\necho /nonexistent\n' >"$work/lacking/rustc"
chmod 755 "$work/lacking/rustc"
check "a target that Rust lacks is told before anything is built" \
    refuses "rustup target add x86_64-unknown-linux-musl" env PATH="$work/lacking:$PATH" "$work/first/source/packaging/release"
check "so is what the image is made of" refuses "packaging/release packages image" "$work/first/source/packaging/release" image
dist=$work/first/source/target/dist
ls -l "$dist"
count() { ls "$dist"/$1 | wc -l; }
for pattern in 'nfsrdma_*_amd64.deb' 'nfsrdma_*_arm64.deb' 'nfsrdma-responder_*_arm64.deb' 'nfsrdma-[0-9]*.x86_64.rpm' \
    'nfsrdma-[0-9]*.aarch64.rpm' 'nfsrdma_arm64.cdx.json' 'nfsrdma_*.image.tar'; do
    check "there is $pattern" gives 1 count "$pattern"
done
[ ${#parts[@]} = 2 ] || check "there are static programs for two machines" gives 2 count 'nfsrdma-*-linux-static.tar.gz'
architecture() { dpkg-deb -f "$1" Architecture && dpkg-deb --fsys-tarfile "$1" | tar -xO ./usr/bin/nfsrdma >"$work/program" && readelf -h "$work/program"  | grep Machine; }
check "the deb for 64-bit ARM is for that" eval 'architecture "$dist"/nfsrdma_*_arm64.deb | grep -A 1 "^arm64$" | grep "Machine: *AArch64"'
check "the checksums are right" eval 'cd "$dist" && sha256sum --check --quiet SHA256SUMS'
check "every file has one" gives "$(ls "$dist" | grep -v SHA256SUMS | LC_ALL=C sort)" eval 'cut -d" " -f3 "$dist/SHA256SUMS" | LC_ALL=C sort'
check "all but the image are the same elsewhere" diff <(grep -v "image.tar" "$dist/SHA256SUMS") \
    <(grep -v "image.tar" "$work/other/place/source/target/dist/SHA256SUMS")
touch "$work/first/source/unknown"
check "a source that is not that of a commit is refused" refuses "not that of a commit" "$work/first/source/packaging/release"
finish
