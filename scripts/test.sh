#!/bin/sh
# The suite: builds everything, fetches SmolLM2 if it is not there yet, then runs every test that is not ignored. Ends with
# the time of each part and the test runner's summary, with the count of tests that were skipped because something could
# not be fetched. target/test.log keeps the output, target/test-summary.txt the summary.
set -eu
. "$(dirname -- "$0")/lib.sh"
. "$(dirname -- "$0")/suite.sh"

begin_suite test
headline "Building the programs and the tests"
timed "the build" build_all
fetch SMOLLM2_SKIPPED SmolLM2 sh scripts/smollm2.sh "$target/debug"
run_tests ""
end_suite true
