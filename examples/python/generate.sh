#!/bin/sh
# Puts what client.py imports into a directory: the packages of requirements.txt, and the modules that protoc makes of proto/.
# generate.sh DIRECTORY. What is there already stays; then no network is needed.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
proto=$here/../../proto
to=${1:?usage: generate.sh DIRECTORY}

mkdir -p "$to"
if ! cmp -s "$here/requirements.txt" "$to/requirements.txt"; then
    rm -rf "$to/packages"
    # --target needs neither a virtual environment nor a system that lets pip write.
    python3 -m pip install --quiet --disable-pip-version-check --target "$to/packages" -r "$here/requirements.txt"
    # Last, so that an interrupted installation is not taken for a whole one.
    cp "$here/requirements.txt" "$to/requirements.txt"
fi
PYTHONPATH=$to/packages python3 -m grpc_tools.protoc -I "$proto" --python_out="$to" --grpc_python_out="$to" paceline/v1/inference.proto
