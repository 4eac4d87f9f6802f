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
# Another user, who installs what this one built, may have no cargo.
target_dir() {
    dir=$(cargo metadata --no-deps --offline --format-version=1 2>/dev/null | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
    printf '%s\n' "${dir:-${CARGO_TARGET_DIR:-$ROOT/target}}"
}

# Everything that is built in the dev profile is built by this one command. Other selections of packages or targets
# would give shared dependencies other features, and cargo would compile those once more.
# shellcheck disable=SC2086
build_all() {
    begin_build "$(target_dir)/debug"
    cargo build $LOCKED --workspace --bins --tests --examples || return
    end_build
}

# The programs that are installed, and the names under which two of them are started as well (programs/).
PROGRAMS="paceline paceline-worker paceline-pull"
NAMES="paceline-supervisor=paceline paceline-gateway=paceline paceline-bench=paceline
    paceline-target=paceline-worker paceline-drafter=paceline-worker"

# The time of the build that the programs in this directory are of; not there while it runs, or if it failed.
built_mark() { printf '%s\n' "$1/.built"; }

# build_programs release|dev [ARGUMENTS...]: the programs alone; sets bin, their directory. All scripts build a release by
# this one command, for the reason above.
# shellcheck disable=SC2086
build_programs() {
    profile=$1
    shift
    case $profile in
        release) bin=$(target_dir)/release ;;
        dev) bin=$(target_dir)/debug ;;
        *) die "PROFILE is release or dev, found $profile" ;;
    esac
    if [ "$profile" = dev ]; then
        build_all
    else
        begin_build "$bin"
        cargo build $LOCKED --release -p paceline -p paceline-worker -p paceline-pull "$@"
        end_build
    fi
}

# begin_build DIR, end_build: around a build of the programs in DIR.
begin_build() {
    built=$1
    mkdir -p "$built"
    mark=$(built_mark "$built")
    rm -f "$mark"
    : >"$mark.new"
}
end_build() {
    # What the programs are made of, while cargo is at hand: `sudo make install` may have none.
    mlx=$(mlx_dir "$built") || die "$mlx"
    rm -rf "$built/parts"
    mkdir -p "$built/parts/lib"
    for file in "$mlx"/*.*; do ln -s "$file" "$built/parts/lib/"; done
    # Its symbols are a seventh of it. Stripped here, so that the list of parts has the digest of what is installed.
    if [ -f "$mlx/libmlx.so" ] && have strip; then
        rm "$built/parts/lib/libmlx.so"
        strip --strip-unneeded -o "$built/parts/lib/libmlx.so" "$mlx/libmlx.so"
    fi
    python3 -B scripts/parts.py --licences "$built/parts/THIRD-PARTY.txt" --sbom "$built/parts/sbom.cdx.json" \
        --libraries "$built/parts/lib" --mlx "$(CDPATH='' cd -- "$mlx/../.." && pwd)"
    mv -f "$mark.new" "$mark"
}

# is_built DIR: whether the programs in this directory are of these sources. What git ignores is none of them, nor is what
# tests leave in hidden directories, nor the workspace of the fuzz targets.
is_built() {
    mark=$(built_mark "$1")
    [ -f "$mark" ] || return 1
    for program in $PROGRAMS; do [ -x "$1/$program" ] || return 1; done
    newer=$(find "$ROOT" \( -path "$ROOT/target" -o -path "$1" -o -path "$ROOT/dist" -o -path "$ROOT/fuzz" -o -path "$ROOT/.*" \
        -o -path "$ROOT/*/.*" -o -name __pycache__ \) -prune -o -type f ! -name '*.md' -newer "$mark" -print | head -n 1)
    [ -z "$newer" ]
}

# mlx_dir DIR: the directory of MLX's library that the programs in DIR were linked to.
mlx_dir() {
    mlx=$(python3 -B scripts/run_paths.py show "$1/paceline-worker" | grep -v '^[$@]' | head -n 1)
    [ -d "$mlx" ] || { say "expected the directory of MLX's library in $1/paceline-worker, found '$mlx'"; return 1; }
    printf '%s\n' "$mlx"
}

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
