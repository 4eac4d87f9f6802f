#!/bin/sh
# Two services of the embedded pair and smg before them, on this machine, until Ctrl-C. `paceline` and `smg` are found in
# $PATH (`make many` builds the one and installs the other). try.sh [PORT], where clients reach the router (default 30000).
# What it makes is in a directory of its own and is removed at the end.
set -eu

port=${1:-30000}
READY_WITHIN_S=180 # a cold disk and a first start on a GPU included
STOP_WITHIN_S=40   # running requests get 30 s

say() { printf '%s\n' "$*"; }
die() { printf '%s\n' "$*" >&2; exit 1; }
for program in paceline smg python3; do
    command -v "$program" >/dev/null 2>&1 || die "many: expected $program in \$PATH, found none"
done
# As a shell without this $PATH calls it.
paceline=$(command -v paceline)
case $port in
    '' | *[!0-9]*) die "many: expected the number of a port, found '$port'" ;;
esac

# Not in $TMPDIR: on macOS that path is long, and a socket's path may have about 100 bytes.
dir=$(mktemp -d /tmp/paceline-many.XXXXXX)
started= # process ids: services and router

# A killed process that is not reaped yet answers kill -0. /proc shows its state.
alive() {
    kill -0 "$1" 2>/dev/null || return 1
    [ ! -r "/proc/$1/stat" ] || ! grep -q ') Z ' "/proc/$1/stat" 2>/dev/null
}
none_alive() {
    for pid in $started; do
        ! alive "$pid" || return 1
    done
}
# within SECONDS COMMAND...: asks again and again until the command succeeds.
within() {
    give_up=$(($(date +%s) + $1))
    shift
    until "$@"; do
        [ "$(date +%s)" -lt "$give_up" ] || return 1
        sleep 0.2
    done
}
# However this script ends: no process and no file of it stays.
finish() {
    rc=$?
    trap - EXIT
    trap '' INT TERM HUP
    for signal in TERM TERM KILL; do
        none_alive && break
        # shellcheck disable=SC2086
        kill -"$signal" $started 2>/dev/null || true
        within "$STOP_WITHIN_S" none_alive || true
    done
    if [ "$rc" -ne 0 ] && [ "$rc" -lt 129 ]; then
        for log in "$dir"/*.log; do
            [ -s "$log" ] || continue
            say "--- the end of $(basename -- "$log")"
            tail -n 15 "$log"
        done
    fi
    rm -rf -- "$dir"
    # Ctrl-C is how it is meant to end.
    [ "$rc" -ne 130 ] || rc=0
    exit "$rc"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# No settings of the caller's: they would be those of both services.
for name in $(env | sed -n 's/^\(PACELINE_[A-Z_]*\)=.*/\1/p'); do unset "$name"; done
# Four ports of services and one of the router's figures, held together so that no two are the same.
ports=$(python3 -c '
import socket
held = [socket.create_server(("127.0.0.1", 0)) for _ in range(5)]
print(*(one.getsockname()[1] for one in held))')
# shellcheck disable=SC2086
set -- $ports
figures=$5

# start_service NAME GRPC HTTP
start_service() {
    cat >"$dir/$1.toml" <<SETTINGS
gateway.grpc = "127.0.0.1:$2"
gateway.http = "127.0.0.1:$3"
supervisor.runtime_dir = "$dir/$1"
target.model = "demo-target"
SETTINGS
    paceline serve --config "$dir/$1.toml" >"$dir/$1.log" 2>&1 </dev/null &
    started="$started $!"
}
say "Starting two services and the router"
start_service first "$1" "$2"
start_service second "$3" "$4"
# health NAME PORT: whether the service serves, or the router is ready.
health() {
    python3 - "http://127.0.0.1:$1" <<'PY' 2>/dev/null
import sys, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
sys.exit(opener.open(sys.argv[1], timeout=5).status != 200)
PY
}
# serves NAME PATH: fails at once if a process has ended.
serves() {
    for pid in $started; do
        alive "$pid" || die "many: $1 did not start"
    done
    health "$2"
}
within "$READY_WITHIN_S" serves "the first service" "$2/health" || die "many: the first service was not ready in time"
within "$READY_WITHIN_S" serves "the second service" "$4/health" || die "many: the second service was not ready in time"

# One second instead of a minute between two looks at a service's health: a drained one is left out after three.
smg launch --host 127.0.0.1 --port "$port" --prometheus-port "$figures" --policy cache_aware --mm-processing worker \
    --health-check-interval-secs 1 --worker-startup-check-interval 1 \
    --worker-urls "grpc://127.0.0.1:$1" "grpc://127.0.0.1:$3" >"$dir/router.log" 2>&1 </dev/null &
router=$!
started="$started $router"
within "$READY_WITHIN_S" serves "the router" "$port/readiness" || die "many: the router was not ready in time"

say "Ready: smg at http://127.0.0.1:$port, services at grpc://127.0.0.1:$1 and grpc://127.0.0.1:$3. Ask it:"
say ""
say "  curl http://127.0.0.1:$port/v1/chat/completions -H 'content-type: application/json' \\"
say "    -d '{\"model\": \"demo-target\", \"messages\": [{\"role\": \"user\", \"content\": \"Count from 1 to 20.\"}]}'"
say ""
say "Take the second service out, and put it back:"
say ""
say "  $paceline drain --config $dir/second.toml"
say "  $paceline drain --undo --config $dir/second.toml"
say ""
say "Logs are in $dir. Ctrl-C ends all."
rc=0
wait "$router" || rc=$?
die "many: the router ended with exit code $rc"
