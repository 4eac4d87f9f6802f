#!/bin/sh
# Fails if a file is longer than it may be: a Rust file of more than 600 lines has more than one subject, and a document that
# grows is read by nobody.
set -eu
. "$(dirname -- "$0")/lib.sh"

MOST=600

long=$(git ls-files -z '*.rs' | xargs -0 wc -l | awk -v most="$MOST" '$2 != "total" && $1 > most { print "  " $1 " " $2 }')
[ -z "$long" ] || die "Files above $MOST lines:
$long"

# FILE WORDS. Blocks marked `text` are pictures and not counted.
while read -r file most; do
    words=$(($(awk '/^```text$/ { picture = 1 } !picture { print } /^```$/ { picture = 0 }' "$file" | wc -w)))
    [ "$words" -le "$most" ] || die "expected at most $most words in $file, found $words"
done <<'END'
README.md 1200
ARCHITECTURE.md 2500
docs/performance.md 2500
SECURITY.md 800
END
