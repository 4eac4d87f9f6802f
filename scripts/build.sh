#!/bin/sh
# Builds the programs and the tests in the dev profile.
set -eu
. "$(dirname -- "$0")/lib.sh"
build_all
say "Built: $(target_dir)/debug/paceline"
