#!/bin/sh
# Fuzzes what reads bytes from outside: builds all targets in fuzz/ with the installed toolchain and runs each for this many
# seconds (60 by default). A line for each target; fails if one found an input that crashes, hangs or takes too much memory.
# What is found stays under target/fuzz/artifacts, and what is worth going on from under target/fuzz/corpus.
set -eu
. "$(dirname -- "$0")/lib.sh"

seconds=${1:-60}
out=$(target_dir)/fuzz
host=$(rustc -vV | sed -n 's/^host: //p')

headline "Building the fuzz targets"
# The same versions as the product's; cargo adds what only the targets need.
cp Cargo.lock fuzz/Cargo.lock
# What cargo-fuzz passes. Coverage needs no nightly compiler; the address sanitizer does, or this variable.
flags="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
flags="$flags -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
flags="$flags -Cllvm-args=-sanitizer-coverage-trace-compares -Zsanitizer=address"
# --target: what runs during the build (build scripts, macros) is built without the flags.
RUSTC_BOOTSTRAP=1 RUSTFLAGS=$flags CARGO_TARGET_DIR=$out/build \
    cargo build --release --manifest-path fuzz/Cargo.toml --bins --target "$host"
bin=$out/build/$host/release

# Inputs to begin with: what the repository has, and what seeds.rs makes.
seeds=$out/seeds
rm -rf "$seeds"
mkdir -p "$seeds/image" "$seeds/template" "$seeds/safetensors" "$seeds/config"
"$bin/seeds" "$seeds"
cp text/tests/golden/images/* "$seeds/image"
cp -R "$seeds/image" "$seeds/image_header"
cp text/tests/templates/*.jinja "$seeds/template"
cp paceline.example.toml "$seeds/config"

# One that allocates 128 MiB at once or holds 1 GiB has no bound; the sanitizer's own memory is in it.
limits="-timeout=10 -rss_limit_mb=1024 -malloc_limit_mb=128"
export ASAN_OPTIONS="detect_leaks=0:quarantine_size_mb=16:allocator_may_return_null=1"

headline "Running each for $seconds s"
failed=
for file in fuzz/fuzz_targets/*.rs; do
    target=${file##*/}
    target=${target%.rs}
    mkdir -p "$out/corpus/$target" "$out/artifacts/$target" "$seeds/$target"
    log=$out/$target.log
    rc=0
    # shellcheck disable=SC2086
    "$bin/$target" "$out/corpus/$target" "$seeds/$target" $limits -max_total_time="$seconds" -max_len=65536 \
        -artifact_prefix="$out/artifacts/$target/" -print_final_stats=1 >"$log" 2>&1 || rc=$?
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    peak=$(sed -n 's/^stat::peak_rss_mb: *//p' "$log")
    if [ "$rc" = 0 ]; then
        say "$target: ${runs:-0} executions, at most ${peak:-?} MiB"
    else
        tail -n 40 "$log"
        say "$target: FAILED after ${runs:-some} executions; the input is in $out/artifacts/$target, the output in $log"
        failed="$failed, $target"
    fi
done

[ -z "$failed" ] || die "fuzz: FAILED: ${failed#, }"
say "fuzz: passed"
