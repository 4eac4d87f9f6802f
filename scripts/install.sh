#!/bin/sh
# Installs what is built into $DESTDIR$PREFIX (by default /usr/local): programs in bin, MLX's library in lib/paceline, the
# embedded models in share/paceline/demo, licences, list of parts and documents in share/doc/paceline. The programs find all
# of it from their own place, so that the directory may be moved. Not the units of systemd and launchd: `paceline service
# install` writes them.
#   PROFILE=release|dev  BUILD=yes|no  STRIP=yes|no (of line numbers)  BUNDLE=yes|no (OpenBLAS, for machines without it)
set -eu
. "$(dirname -- "$0")/lib.sh"

PREFIX=${PREFIX:-/usr/local}
case $PREFIX in /*) ;; *) die "PREFIX: expected an absolute path, found $PREFIX" ;; esac
PREFIX=${PREFIX%/}
to=${DESTDIR:-}$PREFIX
case $to in *[\ ]*) die "expected a place without spaces, found $to" ;; esac

case ${PROFILE:-release} in
    release) bin=$(target_dir)/release ;;
    dev) bin=$(target_dir)/debug ;;
    *) die "PROFILE is release or dev, found $PROFILE" ;;
esac
# Cargo would build all again for another user, whose cache of crates lies elsewhere.
if [ "${BUILD:-yes}" = yes ] && ! is_built "$bin"; then
    sh scripts/setup.sh
    build_programs "${PROFILE:-release}"
fi
for program in $PROGRAMS; do
    [ -x "$bin/$program" ] || die "expected $bin/$program, found nothing; build first, or leave BUILD=no out"
done

# Every file that is installed, relative to the prefix, for --uninstall.
list=$(mktemp)
trap 'rm -f -- "$list"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
listed() { printf '%s\n' "${1#"$to"/}" >>"$list"; }

# A program that runs is replaced and not written to.
put() {
    install -m "$1" "$2" "$3.new"
    mv -f "$3.new" "$3"
    listed "$3"
}

mkdir -p "$to/bin" "$to/lib/paceline" "$to/share/paceline/demo" "$to/share/doc/paceline" ||
    die "cannot make directories below $to; name another PREFIX, or put sudo before the command"

mlx=$(mlx_dir "$bin") || die "$mlx"
for file in "$mlx"/* "$mlx"/../../*.libs/*; do
    [ -f "$file" ] || continue
    if [ -f "$bin/parts/lib/${file##*/}" ]; then file=$bin/parts/lib/${file##*/}; fi
    case $file in
        *.so | *.so.* | *.dylib | *.metallib) put 644 "$file" "$to/lib/paceline/${file##*/}" ;;
    esac
done
# libmlx for macOS 26.2 and later is linked to it, and looks for it beside itself alone.
if [ "$(uname -s)" = Darwin ] && otool -L "$to/lib/paceline/libmlx.dylib" | grep -q libjaccl &&
    [ ! -f "$to/lib/paceline/libjaccl.dylib" ]; then
    die "expected libjaccl.dylib beside libmlx.dylib in $mlx, found none; empty MLX's cache (PACELINE_MLX_CACHE) and build again"
fi
if [ "${BUNDLE:-no}" = yes ] && [ "$(uname -s)" = Linux ]; then
    # With the run-time libraries of Fortran that it is linked to.
    for name in libopenblas.so libgfortran.so libquadmath.so; do
        found=$(ldd "$bin/paceline-worker" | awk -v name="$name" 'index($1, name ".") == 1 { print $1, $3; exit }')
        [ -n "$found" ] || { [ "$name" != libopenblas.so ] || die "expected OpenBLAS among the libraries of paceline-worker, found none"; continue; }
        put 644 "$(readlink -f "${found#* }")" "$to/lib/paceline/${found%% *}"
    done
fi

for program in $PROGRAMS; do
    install -m 755 "$bin/$program" "$to/bin/$program.new"
    if [ "${STRIP:-no}" = yes ]; then strip -S "$to/bin/$program.new"; fi
    # Where this build found MLX is no business of other machines.
    python3 -B scripts/run_paths.py keep-relative "$to/bin/$program.new"
    mv -f "$to/bin/$program.new" "$to/bin/$program"
    listed "$to/bin/$program"
done
for name in $NAMES; do
    # macOS calls a process by the file that a symbolic link leads to.
    if [ "$(uname -s)" = Darwin ]; then
        ln -f "$to/bin/${name#*=}" "$to/bin/${name%=*}"
    else
        ln -sf "${name#*=}" "$to/bin/${name%=*}"
    fi
    listed "$to/bin/${name%=*}"
done

for part in target drafter smollm2/drafter vision/target vision/drafter vision/images; do
    mkdir -p "$to/share/paceline/demo/$part"
    for file in demo/"$part"/*; do
        [ ! -f "$file" ] || put 644 "$file" "$to/share/paceline/demo/$part/${file##*/}"
    done
done
put 644 demo/prompts.jsonl "$to/share/paceline/demo/prompts.jsonl"

# Where shells and `man` look for them.
bash_dir=$to/share/bash-completion/completions zsh_dir=$to/share/zsh/site-functions
fish_dir=$to/share/fish/vendor_completions.d man_dir=$to/share/man/man1
mkdir -p "$bash_dir" "$zsh_dir" "$fish_dir" "$man_dir"
"$bin/paceline" completions bash >"$bash_dir/paceline"
"$bin/paceline" completions zsh >"$zsh_dir/_paceline"
"$bin/paceline" completions fish >"$fish_dir/paceline.fish"
"$bin/paceline" man "$man_dir"
for file in "$bash_dir/paceline" "$zsh_dir/_paceline" "$fish_dir/paceline.fish" "$man_dir"/paceline*.1; do listed "$file"; done

doc=$to/share/doc/paceline
# In the folders of the source tree, so that their links lead somewhere.
for file in LICENSE-MIT LICENSE-APACHE README.md CHANGELOG.md SECURITY.md ARCHITECTURE.md CONTRIBUTING.md paceline.example.toml \
    docs/*.md docs/openapi.json docs/adr/*.md docs/images/* deploy/README.md demo/vision/images/large.png; do
    mkdir -p "$doc/$(dirname -- "$file")"
    put 644 "$file" "$doc/$file"
done
if [ "${BUNDLE:-no}" = yes ] || [ ! -f "$bin/parts/sbom.cdx.json" ]; then
    python3 -B scripts/parts.py --licences "$doc/THIRD-PARTY.txt" --sbom "$doc/sbom.cdx.json" --libraries "$to/lib/paceline" \
        --mlx "$(CDPATH='' cd -- "$mlx/../.." && pwd)"
    listed "$doc/THIRD-PARTY.txt"
    listed "$doc/sbom.cdx.json"
else
    put 644 "$bin/parts/THIRD-PARTY.txt" "$doc/THIRD-PARTY.txt"
    put 644 "$bin/parts/sbom.cdx.json" "$doc/sbom.cdx.json"
fi
put 644 "$list" "$doc/installed.txt"
say "Installed in $to. Next: $PREFIX/bin/paceline serve, or $PREFIX/bin/paceline service install"
