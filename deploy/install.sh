#!/bin/sh
# Of a release archive: checks the files and copies them to a directory, by default ~/.local. Not needed to try Paceline:
# bin/paceline runs where it was unpacked.
#   ./install.sh [DIRECTORY]               as /usr/local, with sudo before it
#   ./install.sh --uninstall [DIRECTORY]   removes these files again; remove the service first (paceline service uninstall)
#   install.sh ARCHIVE|URL [DIRECTORY]     fetches the archive if it is a URL, unpacks it, and installs from it; its digest
#                                          must be the one of $SHA256, or without that of the file ARCHIVE.sha256 beside it
set -eu

usage() { sed -n 's/^# \{0,1\}//p' "$0" | sed -n '2,8p' >&2; exit 2; }
die() { printf '%s\n' "$*" >&2; exit 1; }
if command -v sha256sum >/dev/null 2>&1; then sums=sha256sum; else sums="shasum -a 256"; fi

# fetch URL FILE
fetch() {
    if command -v curl >/dev/null 2>&1; then
        curl -fsSL --retry 2 -o "$2" "$1"
    elif command -v wget >/dev/null 2>&1; then
        wget -q -O "$2" "$1"
    else
        die "expected curl or wget for $1, found neither; fetch the archive yourself and name its file"
    fi || die "cannot fetch $1"
}

from_archive() {
    archive=$1
    shift
    work=$(mktemp -d)
    trap 'rm -rf -- "$work"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    expected=${SHA256:-}
    case $archive in
        http://* | https://*)
            fetch "$archive" "$work/archive"
            if [ -z "$expected" ]; then
                fetch "$archive.sha256" "$work/digest"
                expected=$(cut -d ' ' -f 1 "$work/digest")
            fi
            file=$work/archive
            ;;
        *)
            file=$archive
            [ -n "$expected" ] || [ ! -f "$archive.sha256" ] || expected=$(cut -d ' ' -f 1 "$archive.sha256")
            ;;
    esac
    [ -f "$file" ] || die "expected an archive, found nothing at $file"
    [ -n "$expected" ] || die "expected the digest of $archive in $archive.sha256 or in \$SHA256, found neither"
    found=$($sums <"$file" | cut -d ' ' -f 1)
    [ "$found" = "$expected" ] || die "expected an archive with SHA-256 $expected, found $found; nothing was installed"
    mkdir "$work/unpacked"
    tar -xzf "$file" -C "$work/unpacked" || die "expected a release archive of Paceline, found a file that tar cannot unpack: $archive"
    for inner in "$work/unpacked"/*/install.sh; do
        [ -f "$inner" ] || die "expected a release archive of Paceline, found one without install.sh: $archive"
        sh "$inner" "$@"
    done
}

case ${1:-} in
    *.tar.gz | http://* | https://*) from_archive "$@"; exit ;;
esac
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
order=install
if [ "${1:-}" = --uninstall ]; then
    order=uninstall
    shift
fi
to=${1:-${HOME:?is not set}/.local}
case $to in
    -* | '') usage ;;
    /*) ;;
    *) to=$PWD/$to ;;
esac
# The list of what was installed there, by this script or by `make install`.
list=share/doc/paceline/installed.txt

if [ "$order" = uninstall ]; then
    [ -f "$to/$list" ] || die "expected the list of installed files at $to/$list, found nothing; name the directory of the installation"
    while read -r file; do rm -f -- "$to/$file"; done <"$to/$list"
    rm -f -- "$to/$list"
    # Directories of ours alone, and those that are empty.
    for dir in share/paceline share/doc/paceline lib/paceline; do
        [ ! -d "$to/$dir" ] || find "$to/$dir" -depth -type d -exec rmdir {} + 2>/dev/null || true
    done
    for dir in share/bash-completion/completions share/zsh/site-functions share/fish/vendor_completions.d share/man/man1; do
        rmdir "$to/$dir" 2>/dev/null || true
    done
    parents="share/bash-completion share/zsh share/fish share/doc"
    # Those of /usr/local are the system's.
    [ "$to" = /usr/local ] || parents="$parents share/man share lib bin"
    for dir in $parents; do rmdir "$to/$dir" 2>/dev/null || true; done
    printf 'Removed from %s.\n' "$to"
    exit 0
fi

[ -f "$here/SHA256SUMS" ] || usage
(cd "$here" && $sums -c SHA256SUMS >/dev/null) || die 'The files are not those of the release; unpack the archive again.'
sed 's/^[0-9a-f]*  //' "$here/SHA256SUMS" | grep -v '^install.sh$' | while read -r file; do
    mkdir -p "$to/$(dirname -- "$file")"
    # A program that runs is replaced and not written to. Names of programs are links and stay links.
    cp -pRP "$here/$file" "$to/$file.new"
    mv -f "$to/$file.new" "$to/$file"
done
printf 'Installed in %s. Next: %s/bin/paceline serve, or %s/bin/paceline service install\n' "$to" "$to" "$to"
case ":$PATH:" in *":$to/bin:"*) ;; *) printf 'Put %s/bin into your PATH.\n' "$to" ;; esac
