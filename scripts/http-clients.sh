#!/bin/sh
# Makes an environment of tests/http_clients in DIRECTORY/NAME: for Python the packages of NAME.txt, for JavaScript those of
# NAME/package.json, with the files beside it. http-clients.sh DIRECTORY NAME. Does nothing if the same is there already.
# Exit code 75: the registry could not be reached, or does not have the packages.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

NO_REGISTRY=75 # EX_TEMPFAIL of sysexits.h: trying again later may help
usage="usage: http-clients.sh DIRECTORY NAME"
to=${1:?$usage}/${2:?$usage}
requirements=$here/../tests/http_clients/$2.txt
javascript=$here/../tests/http_clients/$2

if [ -f "$javascript/package.json" ]; then
    same=yes
    for file in "$javascript"/*; do
        cmp -s "$file" "$to/$(basename "$file")" || same=no
    done
    [ "$same" = no ] || exit 0
    rm -rf -- "$to" "$to.part"
    mkdir -p "$to.part"
    cp "$javascript"/* "$to.part/"
    scripts=--ignore-scripts
    ! grep -q '"install-scripts": true' "$javascript/package.json" || scripts=--foreground-scripts
    if ! npm install --prefix "$to.part" --silent --no-audit --no-fund --no-package-lock "$scripts" >&2; then
        printf '%s\n' "http-clients: $2 could not be fetched from the package registry" >&2
        exit "$NO_REGISTRY"
    fi
    mv "$to.part" "$to"
    exit 0
fi

cmp -s "$requirements" "$to/requirements.txt" && exit 0

log=$(mktemp)
trap 'rm -f -- "$log"' EXIT
mkdir -p "$to"
if ! python3 -m venv --clear "$to" >"$log" 2>&1; then
    cat "$log" >&2
    printf '%s\n' "http-clients: python3 cannot make an environment. On Debian this installs what it lacks: sudo apt-get install -y python3-venv" >&2
    exit 1
fi
if ! "$to/bin/python" -m pip --disable-pip-version-check install --quiet --only-binary=:all: --retries 2 --timeout 30 \
    -r "$requirements" >"$log" 2>&1; then
    printf '%s\n' "http-clients: could not be fetched from the package registry: $(grep -v '^WARNING' "$log" | tail -n 1)" >&2
    exit "$NO_REGISTRY"
fi
# Last, so that an interrupted installation is not taken for a whole one.
cp "$requirements" "$to/requirements.txt"
