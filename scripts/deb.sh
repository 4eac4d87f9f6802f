#!/bin/sh
# Makes the Debian package in dist/ by cargo-deb ([package.metadata.deb] of programs/paceline/Cargo.toml): stages an installation in
# target/deb, and packs that. PROFILE=dev tries it with the build of the tests, OUT=DIR puts it elsewhere.
set -eu
. "$(dirname -- "$0")/lib.sh"

# The oldest glibc that MLX's library runs with, and what the package asks for.
GLIBC=2.35

have cargo-deb || die "expected cargo-deb in PATH, found none. This installs it: cargo install --locked cargo-deb"
out=${OUT:-$ROOT/dist}
mkdir -p "$out"
stage=$ROOT/target/deb
rm -rf -- "$stage"
DESTDIR=$stage PREFIX=/usr STRIP=yes sh scripts/install.sh
gzip -9n "$stage/usr/share/doc/paceline/CHANGELOG.md"

needs=$(for file in "$stage"/usr/bin/* "$stage"/usr/lib/paceline/*; do objdump -T "$file"; done |
    sed -n 's/.*(\{0,1\}GLIBC_\([0-9.]*\).*/\1/p' | sort -uV | tail -n 1)
newest=$(printf '%s\n%s\n' "$needs" "$GLIBC" | sort -V | tail -n 1)
[ "$newest" = "$GLIBC" ] || [ "${PROFILE:-release}" = dev ] ||
    die "expected programs for glibc $GLIBC, which the package asks for, found some for $needs; build on an older system"

# A trial is packed quickly and not small. Quiet: it would warn that cargo does not build what is staged.
quick=
[ "${PROFILE:-release}" = release ] || quick="--fast --compress-type gz --compress-system"
# shellcheck disable=SC2086
cargo-deb --quiet --no-build --no-strip $quick -p paceline --output "$out/"
rm -rf -- "$stage"
