#!/bin/sh
# Kills, freezes and restarts processes of a service under clients that go on, for MINUTES minutes and by SEED.
# chaos.sh MINUTES SEED
set -eu
. "$(dirname -- "$0")/lib.sh"

CHAOS_SECONDS=$(($1 * 60))
CHAOS_SEED=$2
export CHAOS_SECONDS CHAOS_SEED
build_all
# shellcheck disable=SC2086
exec cargo test $LOCKED --workspace --test chaos -- --ignored --nocapture
