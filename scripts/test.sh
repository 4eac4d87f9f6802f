#!/bin/sh
# The suite: fetches SmolLM2 and the Python clients if they are not there yet, builds everything, then runs every test and
# prints how long that took without the build. The last line is the test runner's summary, with the count of tests that
# were skipped because something could not be fetched. target/test.log keeps the output, target/test-summary.txt that line.
set -eu
. "$(dirname -- "$0")/lib.sh"

# Here, so that no test uses a network. tests/harness/skip.rs reads these variables.
skipped=$(target_dir)/test-skipped.txt
rm -f "$skipped"
export SKIPPED_TESTS="$skipped" SMOLLM2_SKIPPED= HTTP_CLIENTS_SKIPPED=
rc=0
sh scripts/smollm2.sh || rc=$?
case $rc in
    0) ;;
    75) SMOLLM2_SKIPPED="the package registry could not be reached" ;;
    130 | 143) exit "$rc" ;;
    *) say "Without SmolLM2 its tests fail." ;;
esac
rc=0
sh scripts/http-clients.sh "$(target_dir)/debug/http-clients" || rc=$?
case $rc in
    0) ;;
    75) HTTP_CLIENTS_SKIPPED="the package registry could not be reached" ;;
    130 | 143) exit "$rc" ;;
    *) say "Without these clients their tests fail." ;;
esac

headline "Building the programs and the tests"
build_all

log=$(target_dir)/test.log
# shellcheck disable=SC2086
if have cargo-nextest; then
    headline "Running the tests with cargo-nextest"
    begin=$(date +%s)
    rc=0
    run_recorded "$log" cargo nextest run $LOCKED --workspace --no-tests=fail || rc=$?
    end=$(date +%s)
    summary=$(grep 'Summary' "$log" | tail -n 1) || summary="The run ended without a summary."
else
    headline "Running the tests with cargo test (cargo-nextest is not installed)"
    # One thread for all: MLX belongs to one thread of a process (I8), a whole service wants the cores for itself, and
    # the other tests take milliseconds. The targets are those of the build above.
    begin=$(date +%s)
    rc=0
    run_recorded "$log" cargo test $LOCKED --workspace --bins --tests --examples --no-fail-fast -- --test-threads=1 || rc=$?
    end=$(date +%s)
    # cargo test sums up each executable; this is the sum of those, in its words.
    summary=$(awk -v rc="$rc" -v seconds="$((end - begin))" '
        /^test result: / {
            for (i = 2; i <= NF; i++) {
                if ($i == "passed;") passed += $(i - 1)
                if ($i == "failed;") failed += $(i - 1)
                if ($i == "ignored;") ignored += $(i - 1)
            }
        }
        END {
            printf "test result: %s. %d passed; %d failed; %d ignored; finished in %ds\n", (rc == 0 ? "ok" : "FAILED"), passed, failed, ignored, seconds
        }' "$log")
fi

say ""
# On CI a skipped test fails.
if [ -s "$skipped" ]; then
    sed "s/^/SKIPPED: /" "$skipped"
    summary="$summary; SKIPPED: $(($(wc -l <"$skipped")))"
fi
say "The suite took $((end - begin)) s without the build."
printf '%s\n' "$summary" | tee "${log%/*}/test-summary.txt"
exit "$rc"
