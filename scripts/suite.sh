# Sourced by test.sh and test-more.sh after lib.sh: what both do before, during and after a run of tests.
# shellcheck shell=sh

# begin_suite NAME: files of this run are $target/NAME.log, NAME-skipped.txt and NAME-summary.txt.
begin_suite() {
    suite=$1
    target=$(target_dir)
    log=$target/$suite.log
    # tests/harness/skip.rs adds a line for each skipped test.
    export SKIPPED_TESTS="$target/$suite-skipped.txt"
    rm -f "$SKIPPED_TESTS"
    times=
}

# timed NAME COMMAND...: the command's exit code; its time is in the table of end_suite.
timed() {
    part=$1
    shift
    part_begin=$(date +%s)
    part_rc=0
    "$@" || part_rc=$?
    part_seconds=$(($(date +%s) - part_begin))
    times="$times$(printf '  %5d s  %s' "$part_seconds" "$part")
"
    return "$part_rc"
}

# fetch VARIABLE THING COMMAND...: the command fetches or makes the thing, here, so that no test uses a network. VARIABLE is why
# it could not be fetched, or empty; tests/harness/skip.rs reads it.
fetch() {
    variable=$1 thing=$2
    shift 2
    rc=0
    timed "fetching $thing" "$@" || rc=$?
    reason=
    case $rc in
        0) ;;
        69) reason="this machine lacks what it takes (see above)" ;;
        75) reason="the package registry could not be reached" ;;
        130 | 143) exit "$rc" ;;
        *) say "Without $thing their tests fail." ;;
    esac
    export "$variable=$reason"
}

# run_tests LIBTEST_ARGUMENTS NEXTEST_ARGUMENTS...: runs tests of the whole workspace. Sets rc and summary.
run_tests() {
    libtest=$1
    shift
    rc=0
    # shellcheck disable=SC2086
    if have cargo-nextest; then
        headline "Running the tests with cargo-nextest"
        timed "the tests" run_recorded "$log" cargo nextest run $LOCKED --workspace --no-tests=fail "$@" || rc=$?
        summary=$(grep 'Summary' "$log" | tail -n 1) || summary="The run ended without a summary."
    else
        headline "Running the tests with cargo test (cargo-nextest is not installed)"
        # One thread for all: MLX belongs to one thread of a process (I8), a whole service wants the cores for itself, and
        # the other tests take milliseconds. The targets are those of build_all.
        timed "the tests" run_recorded "$log" \
            cargo test $LOCKED --workspace --bins --tests --examples --no-fail-fast -- --test-threads=1 $libtest || rc=$?
        # cargo test sums up each executable; this is the sum of those, in its words.
        summary=$(awk -v rc="$rc" -v seconds="$part_seconds" '
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
}

# times_of_executables: what the tests of each executable took together, by the log of cargo-nextest. Tests of several
# executables may run at the same time.
times_of_executables() {
    without_colours "$log" | awk '
        /^ *[A-Z]+ \[ *[0-9.]+s\]/ && !seen[$(NF - 1), $NF]++ {
            match($0, /[0-9.]+s\]/)
            seconds[$(NF - 1)] += substr($0, RSTART, RLENGTH - 2)
            count[$(NF - 1)]++
        }
        END { for (name in seconds) printf "  %5d s  %s, %d tests\n", seconds[name], name, count[name] }' | sort -k 3
}

# end_suite COMMAND: prints the skipped tests, the time of each part, what the command prints of it, and last the summary.
# Ends with the code of run_tests.
end_suite() {
    say ""
    # On CI a skipped test fails.
    if [ -s "$SKIPPED_TESTS" ]; then
        sed "s/^/SKIPPED: /" "$SKIPPED_TESTS"
        summary="$summary; SKIPPED: $(($(wc -l <"$SKIPPED_TESTS")))"
    fi
    say "Time of each part of make $suite:"
    printf '%s' "$times"
    "$1"
    printf '%s\n' "$summary" | tee "$target/$suite-summary.txt"
    exit "$rc"
}
