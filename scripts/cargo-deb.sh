#!/bin/sh
# Builds cargo-deb, which packs the Debian package, if it is not in PATH: cargo-deb.sh [DIR], by default target/cargo-deb.
# In the dev profile and without its faster compressors: a minute or two, once. Exit code 75: the registry could not be reached.
set -eu
. "$(dirname -- "$0")/lib.sh"

NO_REGISTRY=75 # EX_TEMPFAIL of sysexits.h
VERSION=3.8.0

dir=${1:-$(target_dir)/cargo-deb}
if have cargo-deb || [ -x "$dir/bin/cargo-deb" ]; then exit 0; fi
headline "Building cargo-deb $VERSION"
log=$(mktemp)
trap 'rm -f -- "$log"' EXIT
# Outside of the project, whose .cargo and lock are not for it.
if (cd / && cargo install --quiet --debug --locked --no-default-features --version "$VERSION" --root "$dir" cargo-deb) 2>"$log"; then
    exit 0
fi
cat "$log" >&2
if grep -q 'failed to download\|failed to fetch\|Could not resolve host\|download of config.json failed' "$log"; then exit "$NO_REGISTRY"; fi
die "cargo-deb could not be built (see above)"
