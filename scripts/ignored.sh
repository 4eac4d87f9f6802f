#!/bin/sh
# Lists the tests that are ignored for a reason of one kind: PACKAGE FILE NAME, one a line. ignored.sh WORD
# Without a word it lists nothing. It always fails if a test gives another reason than these:
#   more: ...      runs in make test-more and make soak
#   soak: ...      runs in make soak alone
#   needs ...      needs a checkpoint or a device that no recipe has
#   by hand: ...   writes a file, or prints a table for a person
set -eu
. "$(dirname -- "$0")/lib.sh"

# FILE NAME REASON for each. The name is that of the next function: the sources have the reason, the test runners do not.
# fuzz/ is a workspace of its own.
found=$(git ls-files -co --exclude-standard '*.rs' ':!fuzz' | sort | while read -r file; do
    [ ! -f "$file" ] || awk -v file="$file" '
        /^[[:space:]]*#\[ignore/ {
            reason = $0
            if (!sub(/^[^"]*"/, "", reason) || !sub(/"\].*$/, "", reason)) reason = "none"
            at = FNR
            next
        }
        at && /(^|[[:space:]])fn[[:space:]]/ {
            name = $0
            sub(/^(.*[[:space:]])?fn[[:space:]]+/, "", name)
            if (match(name, /^[A-Za-z0-9_]+/)) print file, substr(name, 1, RLENGTH), reason
            else print file, "line-" at, "no name: expected fn NAME after the attribute"
            at = 0
        }' "$file"
done)

bad=$(printf '%s\n' "$found" | awk 'NF && $3 != "more:" && $3 != "soak:" && $3 != "needs" && !($3 == "by" && $4 == "hand:")')
[ -z "$bad" ] || die "expected that the reason of an ignored test begins with 'more: ', 'soak: ', 'needs ' or 'by hand: ', found:
$bad"

[ -n "${1:-}" ] || exit 0
printf '%s\n' "$found" | while read -r file name word _; do
    [ "$word" = "$1:" ] || continue
    crate=$(dirname -- "$file")
    while [ ! -f "$crate/Cargo.toml" ]; do crate=$(dirname -- "$crate"); done
    printf '%s %s %s\n' "$(sed -n 's/^name = "\(.*\)"/\1/p' "$crate/Cargo.toml" | head -n 1)" "$file" "$name"
done
