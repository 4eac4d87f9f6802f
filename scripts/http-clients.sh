#!/bin/sh
# Makes a Python environment of tests/http_clients: the packages of its NAME.txt, in DIRECTORY/NAME.
# http-clients.sh DIRECTORY NAME. Does nothing if the same packages are there already.
# Exit code 75: the registry could not be reached, or does not have the packages.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

NO_REGISTRY=75 # EX_TEMPFAIL of sysexits.h: trying again later may help
usage="usage: http-clients.sh DIRECTORY NAME"
to=${1:?$usage}/${2:?$usage}
requirements=$here/../tests/http_clients/$2.txt

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
