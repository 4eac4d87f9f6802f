#!/bin/sh
# The long tests and those with timed figures: everything in tests/ that is marked #[ignore], one at a time, the long
# simulation, and ten thousand interleavings of the target's batch.
set -eu
. "$(dirname -- "$0")/lib.sh"

# shellcheck disable=SC2086
cargo build $LOCKED --release --workspace --bins
# The drafter that lies and freezes on demand.
# shellcheck disable=SC2086
cargo build $LOCKED --release -p paceline-tests --example fake_drafter
# The supervisor on a simulated machine: 100,000 schedules.
# shellcheck disable=SC2086
cargo test $LOCKED --release -p paceline-supervisor --lib -- --ignored --nocapture a_hundred_thousand
# The dev profile: freed rows of the KV store are filled with NaN there.
# shellcheck disable=SC2086
cargo test $LOCKED -p paceline-target --test isolation -- --ignored --nocapture
# One stream through the batch engine against a bare loop.
# shellcheck disable=SC2086
cargo test $LOCKED --release -p paceline-target --lib -- --ignored --nocapture one_stream
# Only the files that have such tests: in this profile each is a minute's work for the linker.
tests=
for file in $(grep -rl '#\[ignore = "soak' tests --include='*.rs'); do
    name=${file#tests/}
    name=${name%%/*}
    tests="$tests --test ${name%.rs}"
done
# shellcheck disable=SC2086
PACELINE_SOAK=1 exec cargo test $LOCKED --release -p paceline-tests $tests --no-fail-fast -- --ignored --test-threads=1
