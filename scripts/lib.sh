# Sourced by every script here: where the project is, where cargo is, how to speak.
# shellcheck shell=sh

ROOT=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cd "$ROOT" || exit 1

# A Rust that was installed a minute ago is not on the caller's PATH yet. Last, so that any other cargo comes first.
PATH=$PATH:${CARGO_HOME:-${HOME:-}/.cargo}/bin
export PATH

# CI builds what Cargo.lock says or fails. Unquoted where it is used: it may be no argument at all.
LOCKED=
if [ -n "${CI:-}" ]; then LOCKED=--locked; fi

say() { printf '%s\n' "$*"; }
headline() { printf '\n== %s\n' "$*"; }
die() { printf '%s\n' "$*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

# Where cargo puts what it builds: the environment and cargo's own configuration may move it.
target_dir() {
    cargo metadata --no-deps --offline --format-version=1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/'
}

# Everything that is built in the dev profile is built by this one command. Other selections of packages or targets
# would give shared dependencies other features, and cargo would compile those once more.
# shellcheck disable=SC2086
build_all() { cargo build $LOCKED --workspace --bins --tests --examples; }

# run_recorded LOG COMMAND...: the command's output on the terminal and in LOG; returns its exit code.
run_recorded() {
    log=$1
    shift
    # tee reads a pipe, so the tools would drop their colours.
    if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-always}"; fi
    mkdir -p "$(dirname -- "$log")"
    { rc=0; "$@" 2>&1 || rc=$?; printf '%s\n' "$rc" >"$log.rc"; } | tee "$log"
    rc=$(cat "$log.rc")
    rm -f "$log.rc"
    return "$rc"
}

# without_colours FILE: its text.
without_colours() {
    escape=$(printf '\033')
    sed "s/$escape\[[0-9;]*m//g" "$1"
}

# all_ran LOG TESTS: whether the runs in LOG, of cargo-nextest or cargo test, had each of these tests; TESTS has the lines
# of ignored.sh. A filter whose test was renamed matches nothing, and other tests pass then.
all_ran() {
    plain=$(mktemp)
    without_colours "$1" >"$plain"
    missing=$(printf '%s\n' "$2" | while read -r package file name; do
        grep -Eq "[ :]$name( \.\.\.|$)" "$plain" || printf '%s of %s, %s\n' "$name" "$package" "$file"
    done)
    rm -f "$plain"
    [ -z "$missing" ] || { say "expected a run of these tests, found none:
$missing"; return 1; }
}
