#!/bin/sh
# Makes .venv-data, the Python environment of what makes data (golden files, the demo pair), with the packages of
# demo/requirements.txt; makes it again when those change. The build does not use it, and of the tests that of the recipe alone.
# Exit code 75: the registry could not be reached, or does not have the packages.
set -eu
. "$(dirname -- "$0")/lib.sh"

venv=.venv-data
requirements=demo/requirements.txt
cmp -s "$requirements" "$venv/requirements.txt" && exit 0

say "Preparing $venv with the packages of $requirements (some GB on Linux)"
python3 -m venv --clear "$venv" ||
    die "python3 cannot make an environment. On Debian this installs what it lacks: sudo apt-get install -y python3-venv"
if ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$requirements"; then
    say "The packages could not be fetched from the package registry."
    exit 75 # EX_TEMPFAIL of sysexits.h: trying again later may help
fi
# Last, so that an interrupted installation is not taken for a whole one.
cp "$requirements" "$venv/requirements.txt"
