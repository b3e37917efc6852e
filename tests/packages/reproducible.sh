#!/usr/bin/env bash
# Checks whether the same source gives the same bytes in another directory and with other settings
# of the user. $1 is a directory with the packages built here; $2 is "packed", "rebuilt" or "full".
# Run by ./run.
#
# packed: packs the packages a second time, from the same programs. rebuilt: also builds a program
# with the debug profile, which has all source lines, a second time. full: builds the packages a
# second time from their source, which takes as long as the first time.
set -uo pipefail
. "$(dirname "$0")/lib.sh"
packages=$1 form=$2
top=$(realpath "$(dirname "$0")/../..")
cargo_home=${CARGO_HOME:-$HOME/.cargo}

# Another directory for the source, for cargo's sources and for the results.
elsewhere=$work/second/of/these
mkdir -p "$elsewhere" "$work/home" "$work/programs"
tar -C "$top" --exclude=./target --exclude=./.git -cf - . | tar -C "$elsewhere" -xf -
if [ "$form" = packed ]; then
    ln -s "$cargo_home/registry" "$work/home/registry"
elif ! cp -al "$cargo_home/registry" "$work/home/" 2>/dev/null; then
    # Not a symbolic link: the compiler would name its target, which is its working directory.
    rm -rf "$work/home/registry"
    cp -a "$cargo_home/registry" "$work/home/"
fi
[ ! -e "$cargo_home/config.toml" ] || cp "$cargo_home/config.toml" "$work/home/"
there() {
    (
        cd "$elsewhere" && umask 077 && unset CARGO_TARGET_DIR CARGO_BUILD_BUILD_DIR RUSTFLAGS NFSRDMA_STAGED &&
            export CARGO_HOME=$work/home TZ=Pacific/Kiritimati LC_ALL=C.UTF-8 CARGO_NET_OFFLINE=true && "$@"
    )
}

# The unstripped program, without anything that cargo kept from an earlier build of other sources.
target=$(uname -m)-unknown-linux-musl
[ -d "$(rustc --print target-libdir --target "$target")" ] || target=$(rustc -vV | sed -n 's/^host: //p')
program=$target/debug/nfsrdma
build='RUSTFLAGS=$(packaging/rustflags) CARGO_INCREMENTAL=0 cargo build --locked --quiet --target "$0" -p nfsrdma --bin nfsrdma'
same() {
    cmp "$1" "$2" && return
    echo "the first differences, by lines of text:"
    diff <(strings "$1") <(strings "$2") | head -20
    return 1
}
if [ "$form" = rebuilt ]; then
    check "a program is built here" eval "cd '$top' && sh -c '$build' $target"
    check "and elsewhere" there sh -c "$build" "$target"
    check "both are the same, byte by byte" \
        same "${CARGO_TARGET_DIR:-$top/target}/$program" "$elsewhere/target/$program"
fi
if [ "$form" != full ]; then
    # Pack the programs that were built here.
    for dir in root responder; do
        cp "$packages/$dir"/usr/bin/* "$work/programs/"
    done
    export NFSRDMA_PROGRAMS=$work/programs NFSRDMA_TOOLS=${CARGO_TARGET_DIR:-$top/target}/debug
fi
check "the debs are made elsewhere" there packaging/build-deb
for deb in "$packages"/*.deb; do
    check "$(basename "$deb") is the same" same "$deb" "$elsewhere/target/package/$(basename "$deb")"
done
if command -v rpmbuild >/dev/null; then
    check "the rpms are made elsewhere" there env NFSRDMA_STAGED=1 packaging/build-rpm
    for rpm in "$packages"/*.rpm; do
        check "$(basename "$rpm") is the same" same "$rpm" "$elsewhere/target/package/$(basename "$rpm")"
    done
else
    skip "the rpms are the same" "rpmbuild is not installed"
fi

# The paths of the build that the packaged programs contain.
names_no_place() {
    local place
    for place in "$top/" "$cargo_home/" "$HOME/."; do
        ! grep -aoF -m 3 -- "$place" "$1" || return 1
    done
    grep -aq /usr/src/cargo/registry "$1" || { echo "it names no sources at all"; return 1; }
}
for name in nfsrdma nfsrdma-responder; do
    dir=root
    [ $name = nfsrdma ] || dir=responder
    check "$name names no place of its builder" names_no_place "$packages/$dir/usr/bin/$name"
done
finish
