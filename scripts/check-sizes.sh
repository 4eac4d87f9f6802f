#!/bin/sh
# Lists Rust files above 600 lines, and fails if there is one: a longer file has more than one subject.
set -eu
. "$(dirname -- "$0")/lib.sh"

MOST=600

long=$(git ls-files -z '*.rs' | xargs -0 wc -l | awk -v most="$MOST" '$2 != "total" && $1 > most { print "  " $1 " " $2 }')
[ -z "$long" ] || die "Files above $MOST lines:
$long"
