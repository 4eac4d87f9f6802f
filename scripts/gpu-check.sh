#!/bin/sh
# One command for a GPU that is lent for a quarter of an hour (NVIDIA), or for a Mac: what runs, whether its tokens are right,
# how fast it is. Writes gpu-check.json, gpu-check.md and gpu-check.log into a directory; the page is what a report needs.
# Builds first; `--binaries DIR` takes programs that were built before: paceline, paceline-worker, their other
# names (scripts/lib.sh) and step_widths. Every step has a time limit, and one that fails stops no other.
# All options: sh scripts/gpu-check.sh --help. Needs python3.
set -eu
. "$(dirname -- "$0")/lib.sh"

have python3 || die "python3 is needed: on macOS it comes with xcode-select --install"
binaries=
for argument in "$@"; do
    case $argument in --binaries | --binaries=* | --help | -h) binaries=given ;; esac
done
if [ -z "$binaries" ]; then
    headline "Building (release profile)"
    features=
    if [ "$(uname -s)" = Linux ]; then features="--features paceline-worker/cuda,paceline-models/cuda"; fi
    # shellcheck disable=SC2086
    cargo build $LOCKED --release -p paceline -p paceline-worker -p paceline-pull -p paceline-models --bins --example step_widths $features
    set -- --binaries "$(target_dir)/release" "$@"
fi
exec python3 scripts/gpu-check.py "$@"
