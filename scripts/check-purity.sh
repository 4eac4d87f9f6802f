#!/bin/sh
# Proves by the manifests that the cores under core/ and the table of settings are pure: no crate in their trees does input or
# output, has a runtime or a wire format, or is MLX. The reader of model directories (checkpoint/) and the text side of models
# (text/) read files, but have no runtime and no wire format; the protocols of clients (protocols/) have no runtime and no server.
# Fails and names each crate and the one that it must not have.
set -eu
. "$(dirname -- "$0")/lib.sh"

# Names of crates, as one extended regular expression over the whole name.
NO_RUNTIME='(tokio|tonic|prost|hyper|axum|mlx|paceline-(proto|process|link|models|cpu|supervisor.*|gateway))(-.*)?|mlx-(rs|sys)|nix|mio|socket2'
# The protocols of clients know the messages of proto/, and so prost.
NO_SERVER='(tokio|tonic|hyper|axum|mlx|paceline-(process|link|models|cpu|supervisor.*|gateway))(-.*)?|mlx-(rs|sys)|nix|mio|socket2'
NO_SYSTEM="$NO_RUNTIME|libc|rustix|getrandom|rand"

# forbidden PACKAGE NAMES: what the package must not have and has, one name a line. Platforms other than this one count too.
# Below cpufeatures nothing counts: it asks the processor which instructions it has, on some systems through libc. A core may
# use another one, which is looked at itself.
# shellcheck disable=SC2086
forbidden() {
    tree=$(cargo tree $LOCKED --package "$1" --edges normal --target all --no-dedupe --prefix depth --format ' {p}') || exit 1
    printf '%s\n' "$tree" | awk '
        skipped != "" && $1 > skipped { next }
        { skipped = "" }
        $2 == "cpufeatures" { skipped = $1 }
        { print $2 }' | sort -u | grep -xE "$2" | grep -vxE "$1|paceline-[a-z]*-core" || true
}

# The check must be able to find something. This package is known to have a runtime.
impure=$(forbidden paceline-process "$NO_RUNTIME")
printf '%s\n' "$impure" | grep -qx tokio || die "check-purity.sh: expected to find tokio in paceline-process, found no forbidden crate"

impure=
for manifest in core/*/Cargo.toml settings/Cargo.toml checkpoint/Cargo.toml text/Cargo.toml protocols/Cargo.toml; do
    name=$(sed -n 's/^name = "\(.*\)"/\1/p' "$manifest" | head -n 1)
    case $manifest in
        checkpoint/* | text/*) names=$NO_RUNTIME ;;
        protocols/*) names=$NO_SERVER ;;
        *) names=$NO_SYSTEM ;;
    esac
    found=$(forbidden "$name" "$names" | tr '\n' ' ')
    [ -z "$found" ] || impure="$impure
$name ($manifest) must not depend on: $found"
done
# A pull is blocking code: a runtime would only make its program larger.
found=$(forbidden paceline-pull 'tokio|tonic|hyper' | tr '\n' ' ')
[ -z "$found" ] || impure="$impure
paceline-pull (pull/Cargo.toml) must not depend on: $found"
[ -z "$impure" ] || die "Impure crates:$impure"
