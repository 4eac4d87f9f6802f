#!/bin/sh
# Makes models/tests/golden/, demo/golden.json, text/tests/templates/fixtures.json, text/tests/golden/ and cpu/src/quantized/golden/ again, with the
# reference implementations in a Python environment.
set -eu
. "$(dirname -- "$0")/lib.sh"

sh scripts/venv.sh
.venv-data/bin/python text/tests/templates/make.py
.venv-data/bin/python text/tests/golden/make_images.py
.venv-data/bin/python cpu/src/quantized/golden/integers.py
exec .venv-data/bin/python models/tests/golden/make.py
