#!/usr/bin/env bash
# packaging/in-container, run as documented, with a bare Debian as its image, $1: whether the compiler that Debian has is
# new enough, whether everything is there to compile, for 64-bit ARM too, and to pack. The programs packed are those
# that were built outside, because compiling them takes long: ./run release does that. Run by ./run, with the network.
set -uo pipefail
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/podman-lib.sh"
top=$(realpath "$(dirname "$0")/../..")
prepare_engine
trap end_engine EXIT
source=$work/source
export NFSRDMA_PROGRAMS=$source/target/programs NFSRDMA_TOOLS=$source/target/programs
check "the engine has Debian's image" offer_engine "$1"
PATH=$work/bin:$PATH
check "the source is cloned" copy_source "$source"
mkdir "$NFSRDMA_PROGRAMS"
cp "$top"/target/package/{root,responder}/usr/bin/* "${CARGO_TARGET_DIR:-$top/target}"/debug/nfsrdma-{pages,notices} "$NFSRDMA_PROGRAMS"
chown -R $plain_user:$plain_user "$source"
cd "$source" || exit 1

mkdir "$work/tools"
ln -s /bin/sh /usr/bin/dirname "$work/tools/"
check "without an engine it says so" refuses "neither podman nor docker is installed" env PATH="$work/tools" packaging/build-deb --in-container

# In one container, because filling it takes most of the time.
cat >target/steps <<'STEPS'
set -e
(
    . packaging/architecture
    echo "== compiles"
    cargo check --locked --quiet -p nfsrdma-verbs
    echo "== tests"
    cargo test --locked --quiet -p nfsrdma-xdr --lib
)
unset NFSRDMA_ARCH
echo "== packs"
packaging/build-deb
NFSRDMA_STAGED=1 packaging/build-rpm
echo "== done"
STEPS
NFSRDMA_ARCH=arm64 packaging/in-container sh target/steps >"$work/said" 2>&1
check "in a bare container" eval "cat '$work/said'; [ $? = 0 ]"
did() { sed -n "/^== $1/,/^==/p" "$work/said" | grep -E "$2"; }
check "the verbs provider compiles for 64-bit ARM" did compiles "^== tests"
check "tests of a crate pass on 64-bit ARM, emulated" did tests "^test result: ok\. [1-9]"
made=$(cd target/package && ls nfsrdma* | LC_ALL=C sort)
check "debs and rpms of both programs are made" gives 4 wc -l <<<"$made"
check "and their paths printed" gives "$made" eval "did packs '^$source/target/package/' | xargs -n 1 basename | LC_ALL=C sort"
check "the deb depends on what its program is linked with" eval 'dpkg-deb -f target/package/nfsrdma_*.deb Depends | grep "libc6 (>= "'
check "all that was made belongs to the owner of the source" gives "" find target ! -user $plain_user ! -path target/steps
finish
