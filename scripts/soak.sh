#!/bin/sh
# The long tests and those with timed figures: everything in tests/ that is marked #[ignore], one at a time, and
# the long simulation.
set -eu
. "$(dirname -- "$0")/lib.sh"

# shellcheck disable=SC2086
cargo build $LOCKED --release --workspace --bins
# The supervisor on a simulated machine: 100,000 schedules.
# shellcheck disable=SC2086
cargo test $LOCKED --release -p paceline-supervisor --lib -- --ignored --nocapture a_hundred_thousand
# shellcheck disable=SC2086
PACELINE_SOAK=1 exec cargo test $LOCKED --release -p paceline-tests --no-fail-fast -- --ignored --test-threads=1
