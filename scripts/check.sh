#!/bin/sh
# What each change must pass: format, sizes, structure, names, words, purity of the cores, lints, licences and sources of the
# dependencies, tests of the cores. Runs all of them before it fails, so that one run reports everything.
set -eu
. "$(dirname -- "$0")/lib.sh"

failed=
step() {
    name=$1
    shift
    headline "$name"
    "$@" || failed="$failed, $name"
}

# The pure crates, and the shells whose unit tests are quick. None of them needs MLX, so this also runs where
# the model crates cannot be built.
cores="-p paceline-proto -p paceline-system -p paceline-process -p paceline-link -p paceline-supervisor -p paceline-gateway -p paceline-launcher"
for manifest in core/*/Cargo.toml settings/Cargo.toml checkpoint/Cargo.toml text/Cargo.toml protocols/Cargo.toml; do
    cores="$cores -p $(sed -n 's/^name = "\(.*\)"/\1/p' "$manifest" | head -n 1)"
done
core_tests() {
    # shellcheck disable=SC2086
    if have cargo-nextest; then
        cargo nextest run $LOCKED $cores --lib
    else
        say "cargo-nextest is not installed: cargo test instead"
        cargo test $LOCKED $cores --lib
    fi
}

# shellcheck disable=SC2086
lints() { cargo clippy $LOCKED --workspace --all-targets -- -D warnings; }

# fuzz/ is a workspace of its own.
format() { cargo fmt --all --check && rustfmt --edition 2024 --check fuzz/seeds.rs fuzz/fuzz_targets/*.rs; }

# After this the tests can be built without a network, whatever was built before (scripts/setup.sh fetches them).
crates_are_here() { cargo fetch --quiet --offline --locked --target "$(rustc -vV | sed -n 's/^host: //p')"; }

step "Format" format
step "All crates are here" crates_are_here
step "Sizes of files" sh scripts/check-sizes.sh
step "Structure" python3 -B scripts/check-structure.py
step "Planted faults of structure" python3 -B scripts/check-structure-test.py
step "Names that stand for several types" python3 -B scripts/check-names.py
step "Model files have one room" python3 -B scripts/check-model-files.py
step "Public items that nothing needs" python3 -B scripts/check-dead-items.py
step "Lines and shares of the rooms" python3 -B scripts/check-rooms.py
step "Words" python3 -B scripts/check-words.py
step "Planted faults of names, items, rooms and words" python3 -B scripts/check-product-test.py
step "Commands of the documents" python3 -B scripts/check-commands.py
step "Figures of README" python3 -B scripts/check-figures.py
step "Tables of settings" python3 -B scripts/check-settings.py
step "Planted faults of documents" python3 -B scripts/check-commands-test.py
step "Comparison with llama.cpp" python3 -B scripts/bench-llama-cpp-test.py
step "Reasons of ignored tests" sh scripts/ignored.sh
step "Purity of the cores" sh scripts/check-purity.sh
[ "${LINTS:-yes}" = no ] || step "Lints" lints
step "Licences, bans and sources of dependencies" sh scripts/deny.sh bans licenses sources
[ "${TESTS:-yes}" = no ] || step "Tests of the cores" core_tests

[ -z "$failed" ] || die "Failed: ${failed#, }"
say "All checks passed."
