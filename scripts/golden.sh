#!/bin/sh
# Makes models/tests/golden/, demo/golden.json and gateway/tests/templates/fixtures.json and gateway/tests/golden/ again, with the reference implementations in a Python environment.
set -eu
. "$(dirname -- "$0")/lib.sh"

sh scripts/venv.sh
.venv-data/bin/python gateway/tests/templates/make.py
.venv-data/bin/python gateway/tests/golden/make_pictures.py
exec .venv-data/bin/python models/tests/golden/make.py
