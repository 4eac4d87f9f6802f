#!/bin/sh
# Of a release archive: checks the files and copies them to a directory, by default ~/.local. Not needed to try Paceline:
# bin/paceline runs where it was unpacked.
#   ./install.sh [DIRECTORY]               as /usr/local, with sudo before it
#   ./install.sh --uninstall [DIRECTORY]   removes these files again; remove the service first (paceline service uninstall)
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
order=install
if [ "${1:-}" = --uninstall ]; then
    order=uninstall
    shift
fi
to=${1:-${HOME:?is not set}/.local}
case $to in
    -* | '') sed -n 's/^# \{0,1\}//p' "$0" | sed -n '2,6p' >&2; exit 2 ;;
    /*) ;;
    *) to=$PWD/$to ;;
esac
# Files for the prefix; install.sh and SHA256SUMS stay here.
files=$(sed 's/^[0-9a-f]*  //' "$here/SHA256SUMS" | grep -v '^install.sh$')

if [ "$order" = uninstall ]; then
    printf '%s\n' "$files" | while read -r file; do rm -f -- "$to/$file"; done
    # Directories of ours alone, and those that are empty.
    for dir in share/paceline share/doc/paceline lib/paceline; do
        [ ! -d "$to/$dir" ] || find "$to/$dir" -depth -type d -exec rmdir {} + 2>/dev/null || true
    done
    for dir in share/bash-completion/completions share/zsh/site-functions share/fish/vendor_completions.d share/man/man1; do
        rmdir "$to/$dir" "$to/${dir%/*}" 2>/dev/null || true
    done
    for dir in share/doc share lib bin; do rmdir "$to/$dir" 2>/dev/null || true; done
    printf 'Removed from %s.\n' "$to"
    exit 0
fi

if command -v sha256sum >/dev/null 2>&1; then sums=sha256sum; else sums="shasum -a 256"; fi
(cd "$here" && $sums -c SHA256SUMS >/dev/null) || {
    printf 'The files are not those of the release; unpack the archive again.\n' >&2
    exit 1
}
printf '%s\n' "$files" | while read -r file; do
    mkdir -p "$to/$(dirname -- "$file")"
    # A program that runs is replaced and not written to.
    cp -p "$here/$file" "$to/$file.new"
    mv -f "$to/$file.new" "$to/$file"
done
printf 'Installed in %s. Next: %s/bin/paceline serve, or %s/bin/paceline service install\n' "$to" "$to" "$to"
case ":$PATH:" in *":$to/bin:"*) ;; *) printf 'Put %s/bin into your PATH.\n' "$to" ;; esac
