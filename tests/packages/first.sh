#!/usr/bin/env bash
# The README's two commands, each as the first thing done in a clean Debian root that has the Rust
# toolchain and nothing else: they install what they need. $1 is the tar file of the root. The sources
# and what cargo has built are those outside, at the same paths, so little is compiled again. Run by
# ./run, with the network, in a mount namespace of its own.
set -uo pipefail
. "$(dirname "$0")/lib.sh"
top=$(realpath "$(dirname "$0")/../..")
cargo_home=${CARGO_HOME:-$HOME/.cargo}
rustup_home=${RUSTUP_HOME:-$HOME/.rustup}
# Of a linked worktree, git's files are elsewhere.
git=$(git -C "$top" rev-parse --path-format=absolute --git-common-dir 2>/dev/null) || git=$top

# fresh NAME: lays a clean root, $root.
fresh() {
    root=$work/$1
    mkdir -p "$root"
    tar -C "$root" -xpf "$tar"
    furnish
    local dir
    for dir in "$top" "$git" "$cargo_home" "$rustup_home" "${CARGO_TARGET_DIR-}"; do
        [ -d "$dir" ] || continue
        mkdir -p "$root$dir"
        mount --bind "$dir" "$root$dir"
    done
}
first() {
    inside env PATH="$cargo_home/bin:/usr/sbin:/usr/bin:/sbin:/bin" CARGO_HOME="$cargo_home" RUSTUP_HOME="$rustup_home" \
        CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$top/target}" RUSTFLAGS="${RUSTFLAGS-}" \
        $(env | grep -E '^(CARGO_INCREMENTAL|CARGO_PROFILE_[A-Z_]+)=') sh -c "cd '$top' && $1"
}

tar=$1
fresh quickstart
check "a bare root cannot link" refuses "cc is missing" first packaging/can-link
# What an earlier version of the script left: a compiler without the C library.
check "with a compiler alone it cannot, either" \
    refuses "" first 'apt-get -qq update && apt-get -qq -y --no-install-recommends install gcc >/dev/null 2>&1; packaging/can-link'
first "./packaging/quickstart --exit" >"$work/said" 2>&1
check "./packaging/quickstart repairs that, and shows that it works" eval "cat '$work/said'; [ $? = 0 ]"
check "it says that it is done" grep -q "^== done, and cleaned up" "$work/said"
check "dpkg is not heard" refuses "" grep -E "^(Selecting|Unpacking|Setting up|Preparing)" "$work/said"

fresh tests
check "./tests/run (the suites that build nothing) begins in a bare root" first "./tests/run fmt layers requirements docs"
check "it has installed what links" first packaging/can-link
finish
