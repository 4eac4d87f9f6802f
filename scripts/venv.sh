#!/bin/sh
# Makes .venv-data, the Python environment of what makes data (golden files, the demo pair), with the packages of
# demo/requirements.txt; makes it again when those change. Neither the build nor the tests use it.
set -eu
. "$(dirname -- "$0")/lib.sh"

venv=.venv-data
requirements=demo/requirements.txt
cmp -s "$requirements" "$venv/requirements.txt" && exit 0

say "Preparing $venv with the packages of $requirements (some GB on Linux)"
python3 -m venv --clear "$venv" ||
    die "python3 cannot make an environment. On Debian this installs what it lacks: sudo apt-get install -y python3-venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$requirements"
# Last, so that an interrupted installation is not taken for a whole one.
cp "$requirements" "$venv/requirements.txt"
