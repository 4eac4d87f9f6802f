#!/bin/sh
# Makes models/tests/golden/, demo/golden.json and text/tests/templates/fixtures.json and text/tests/golden/ again, with the reference implementations in a Python environment.
set -eu
. "$(dirname -- "$0")/lib.sh"

sh scripts/venv.sh
.venv-data/bin/python text/tests/templates/make.py
.venv-data/bin/python text/tests/golden/make_images.py
exec .venv-data/bin/python models/tests/golden/make.py
