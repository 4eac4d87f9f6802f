#!/bin/sh
# Makes models/tests/golden/ and demo/golden.json again, with the reference implementations in a Python environment.
set -eu
. "$(dirname -- "$0")/lib.sh"

sh scripts/venv.sh
exec .venv-data/bin/python models/tests/golden/make.py
