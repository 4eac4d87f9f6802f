#!/bin/sh
# The main job on real input: builds the programs, starts the whole service with the embedded pair in a directory of its own,
# asks the first prompt of each kind in demo/prompts.jsonl without and with the drafter, stops and starts the drafter in the
# middle of a stream, stops everything and checks that nothing is left; then shows an image to the embedded vision model in
# the same way; then fetches SmolLM2, a small language model, and asks it four questions, each without the drafter that ships
# for it and as routed. Exit code 0 only if all of that went well, drafts were accepted and no text differs; where SmolLM2 cannot
# be fetched, its part is left out with a line. Last, if Qwen2.5-Coder-1.5B-Instruct is on this machine already, fetched by any
# program that `paceline models` knows, it edits a file.
# PROFILE=dev uses the build that the tests use.
set -eu
. "$(dirname -- "$0")/lib.sh"

READY_WITHIN_S=180 # a cold disk and a first start on Metal included
STOP_WITHIN_S=20

headline "Building (profile ${PROFILE:-release})"
build_programs "${PROFILE:-release}"
paceline=$bin/paceline

# Not in $TMPDIR: on macOS that path is long, and a socket's path may have about 100 bytes.
dir=$(mktemp -d /tmp/paceline-demo.XXXXXX)
log=$dir/serve.log
serve= # pid of `paceline serve`, while there is one
stream= # pid of a `paceline generate` in the background, likewise
verdict=failed

# A killed process that is not reaped yet answers kill -0. /proc shows its state.
alive() {
    kill -0 "$1" 2>/dev/null || return 1
    [ ! -r "/proc/$1/stat" ] || ! grep -q ') Z ' "/proc/$1/stat" 2>/dev/null
}
ended() { [ -s "$dir/exit" ]; }

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
    [ -z "$stream" ] || kill -KILL "$stream" 2>/dev/null || true
    if [ -n "$serve" ] && ! ended; then
        # Drain; then cancel what runs; then kill.
        for pause in "$STOP_WITHIN_S" 10 5; do
            kill -TERM "$serve" 2>/dev/null || true
            within "$pause" ended && break
        done
        ended || kill -KILL "$serve" 2>/dev/null || true
    fi
    if [ "$verdict" != passed ] && [ "$rc" -ne 130 ]; then
        for file in "$dir"/*.log "$dir"/run/*.log; do
            [ -s "$file" ] || continue
            say "--- the end of $(basename -- "$file")"
            tail -n 25 "$file"
        done
        say ""
        say "The demo failed."
        [ "$rc" -ne 0 ] || rc=1
    fi
    rm -rf -- "$dir"
    exit "$rc"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# Processes of the service that is started, and the state of their link.
parts="gateway supervisor target drafter"
link=up

# No configuration file: the embedded pair and the defaults, in a place of its own.
export PACELINE_CONFIG= PACELINE_TARGET__MODEL=demo-target
shown=0
show_log() {
    lines=$(($(wc -l <"$log")))
    [ "$lines" -gt "$shown" ] || return 0
    sed -n "$((shown + 1)),${lines}s/^/  | /p" "$log"
    shown=$lines
}
# shellcheck disable=SC2086
ready() {
    show_log
    if ended; then die "the service ended with exit code $(cat "$dir/exit") before it was ready"; fi
    "$paceline" status --json 2>/dev/null | python3 -c '
import json, sys
status, link, parts = json.load(sys.stdin), sys.argv[1], sys.argv[2:]
ready = all(status[part]["state"] == "ready" for part in parts)
sys.exit(not (ready and link in ("", status["link"]["state"])))' "$link" $parts 2>/dev/null
}
# start_service: sets serve, and run, its runtime directory.
start_service() {
    run=$dir/run
    ports=$(python3 -c '
import socket
held = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(one.getsockname()[1] for one in held))')
    port=${ports% *}
    export PACELINE_SUPERVISOR__RUNTIME_DIR="$run"
    export PACELINE_GATEWAY__GRPC="127.0.0.1:$port" PACELINE_GATEWAY__HTTP="127.0.0.1:${ports#* }"
    rm -f "$dir/exit" "$dir/pid"
    # A shell around it, for its exit code.
    (
        rc=0
        # shellcheck disable=SC2016
        sh -c 'echo $$ >"$1/pid"; exec "$2" serve' sh "$dir" "$paceline" >"$log" 2>&1 </dev/null || rc=$?
        echo "$rc" >"$dir/exit"
    ) &
    within 5 test -s "$dir/pid" || die "the service did not start"
    serve=$(cat "$dir/pid")
    shown=0
    begin=$(date +%s)
    within "$READY_WITHIN_S" ready || die "the service was not ready after $READY_WITHIN_S s"
    show_log
    say "Ready after $(($(date +%s) - begin)) s on 127.0.0.1:$port."
}
# stop_service PIDS...: ends it and checks that it left nothing.
stop_service() {
    kill -TERM "$serve"
    within "$STOP_WITHIN_S" ended || die "the service did not stop within $STOP_WITHIN_S s"
    code=$(cat "$dir/exit")
    [ "$code" = 0 ] || die "the service ended with exit code $code, expected 0"
    for pid in "$@"; do
        if alive "$pid"; then die "process $pid is left"; fi
    done
    sockets=$(find "$run" -type s 2>/dev/null || true)
    [ -z "$sockets" ] || die "sockets are left: $sockets"
    serve=
    say "All processes ended, no socket is left."
}

headline "Starting the service"
start_service

# One messages file for each kind, and a list: kind, tokens at most, file, the last message shortened to a line.
python3 - "$dir" >"$dir/prompts" <<'PY'
import json, sys
seen = set()
for line in open("demo/prompts.jsonl", encoding="utf-8"):
    prompt = json.loads(line)
    kind = prompt["kind"]
    if kind in seen:
        continue
    seen.add(kind)
    path = f"{sys.argv[1]}/{kind}.json"
    with open(path, "w", encoding="utf-8") as file:
        json.dump(prompt["messages"], file)
    text = " ".join(prompt["messages"][-1]["content"].split())
    print(kind, prompt["max_tokens"], path, text if len(text) <= 100 else text[:99] + "…", sep="\t")
PY

# pids: every process of the service, now.
# shellcheck disable=SC2086
pids() {
    "$paceline" status --json | python3 -c '
import json, sys
status = json.load(sys.stdin)
for part in sys.argv[1:]:
    if status[part]["restarts"] != 0:
        sys.exit(f"{part} was restarted on the way: {status[part]}")
    print(status[part]["pid"])' $parts
}
# ask FILE FLAGS...: one request, greedy; its answer as an object in FILE.
ask() {
    file=$1
    shift
    "$paceline" generate --temperature 0 --json "$@" >"$file" </dev/null || die "the request failed: $(cat "$file")"
}
# compare PLAIN OTHER [show|routed]: the figures of two answers to one request; fails unless there were drafts and the tokens are
# the same. Of a routed answer there need not be drafts: on this machine plain steps may be faster.
compare() {
    python3 - "$@" <<'PY'
import json, sys
plain, other = (json.load(open(path, encoding="utf-8")) for path in sys.argv[1:3])
mode = sys.argv[3] if len(sys.argv) > 3 else None
if mode:
    print(plain["text"].strip(), "\n")
speeds = other["tokens_per_s"], plain["tokens_per_s"]
# An answer that is too short to have a speed in one lane is shown without one in both.
have_speeds = None not in speeds
def line(name, answer, more):
    text = f"{answer['tokens_per_s']:.0f}" if have_speeds else "-"
    print(f"  {name:<20}{answer['usage']['completion_tokens']:>5} tokens {text:>7} tok/s  {more}".rstrip())
line("without drafter", plain, "")
cycles, accepted = (other["speculation"][key] for key in ("cycles", "accepted"))
if cycles == 0 and mode != "routed":
    sys.exit(f"no drafts: {other['route']}")
if mode:
    faster = f", {speeds[0] / speeds[1]:.2f} times as fast" if have_speeds else ""
    drafts = f"{(cycles + accepted) / cycles:.2f} tokens per cycle" if cycles else "no drafts"
    line("as routed" if mode == "routed" else "with drafter", other, f"{drafts}{faster}")
else:
    # Long after its natural end an answer is noise for each drafter. The test is that the tokens are the same.
    line("gone and back", other, f"{cycles} cycles")
if plain["speculation"]["cycles"] != 0:
    sys.exit("the plain lane drafted")
if plain["token_ids"] != other["token_ids"]:
    pairs = zip(plain["token_ids"], other["token_ids"])
    sys.exit(f"the tokens differ from token {next((at for at, (a, b) in enumerate(pairs) if a != b), 'the end')} on")
print("  the same tokens, the same text")
PY
}

first_pids=$(pids)
tab=$(printf '\t')
while IFS=$tab read -r kind max_tokens messages text <&3; do
    headline "$kind: $text"
    ask "$dir/plain" --messages "$messages" --max-tokens "$max_tokens" --route plain
    ask "$dir/drafted" --messages "$messages" --max-tokens "$max_tokens" --route speculative
    compare "$dir/plain" "$dir/drafted" show
done 3<"$dir/prompts"

headline "The drafter goes and comes back in the middle of a stream"
# Past its end the model goes on with stories of its own.
set -- --messages "$dir/prose.json" --max-tokens 1500 --ignore-eos
"$paceline" generate --temperature 0 --json "$@" >"$dir/disturbed" </dev/null &
stream=$!
begun() {
    "$paceline" status --json | python3 -c 'import json, sys; sys.exit(json.load(sys.stdin)["requests"]["active"] != 1)'
}
within 20 begun || die "the stream did not begin"
for change in stop start; do
    "$paceline" drafter "$change" || die "paceline drafter $change failed"
    kill -0 "$stream" 2>/dev/null || say "  (the stream is over already: a fast machine)"
done
wait "$stream" || die "the stream failed: $(cat "$dir/disturbed")"
stream=
ask "$dir/undisturbed" "$@" --route plain
compare "$dir/undisturbed" "$dir/disturbed"

headline "Stopping"
# shellcheck disable=SC2046,SC2086
stop_service $first_pids $(pids)

headline "An image: demo/vision/images/large.png"
export PACELINE_TARGET__MODEL=demo-vision
start_service
first_pids=$(pids)
set -- --prompt "Describe the picture." --image demo/vision/images/large.png
say "> Describe the picture."
ask "$dir/plain" "$@" --route plain
ask "$dir/drafted" "$@" --route speculative
compare "$dir/plain" "$dir/drafted" show
# shellcheck disable=SC2086
stop_service $first_pids

headline "A small language model: SmolLM2-135M-Instruct, 4-bit weights"
rc=0
sh scripts/smollm2.sh "$bin" || rc=$?
if [ "$rc" = 75 ]; then
    say "Without a network there is no SmolLM2: this part is left out, all others passed."
    verdict=passed
    exit 0
fi
[ "$rc" = 0 ] || die "SmolLM2 could not be made"

export PACELINE_TARGET__MODEL=smollm2
start_service
first_pids=$(pids)
python3 - demo/smollm2/questions.json "$dir" >"$dir/questions" <<'PY'
import json, sys
with open(sys.argv[1], encoding="utf-8") as file:
    given = json.load(file)
rewrite = given["rewrite"]
for at, text in enumerate([*given["questions"], f"{rewrite['instruction']}\n\n{rewrite['paragraph']}"]):
    path = f"{sys.argv[2]}/question-{at}.json"
    with open(path, "w", encoding="utf-8") as file:
        json.dump([{"role": "user", "content": text}], file)
    print(path, " ".join(text.split()), sep="\t")
PY
while IFS=$tab read -r messages text <&3; do
    say ""
    say "> $text"
    ask "$dir/plain" --messages "$messages" --max-tokens 160 --route plain
    ask "$dir/routed" --messages "$messages" --max-tokens 160
    compare "$dir/plain" "$dir/routed" routed
done 3<"$dir/questions"
# shellcheck disable=SC2086
stop_service $first_pids

# The name of a whole one, as `paceline models` has it.
coder=$("$paceline" models --json | python3 -c '
import json, sys
models = (model["name"] for model in json.load(sys.stdin)["models"] if not model["missing"])
print(next((name for name in models if "qwen2.5-coder" in name.lower() and "1.5b" in name.lower()), ""))')
if [ -z "$coder" ]; then
    verdict=passed
    exit 0
fi
headline "An edit by a coding model that is on this machine: $coder"
export PACELINE_TARGET__MODEL="$coder"
start_service
first_pids=$(pids)
say "> Rename the function line to row. Write the whole file again. (the function compare of this script)"
python3 - scripts/demo.sh >"$dir/edit.json" <<'PY'
import json, re, sys
with open(sys.argv[1], encoding="utf-8") as file:
    code = re.search(r"^def line.*?^print", file.read(), re.DOTALL | re.MULTILINE)[0].removesuffix("print")
text = f"Rename the function line to row. Write the whole file again, with no other change.\n\n```python\n{code}```"
json.dump([{"role": "user", "content": text}], sys.stdout)
PY
ask "$dir/plain" --messages "$dir/edit.json" --max-tokens 400 --route plain
ask "$dir/routed" --messages "$dir/edit.json" --max-tokens 400
compare "$dir/plain" "$dir/routed" routed
# shellcheck disable=SC2086
stop_service $first_pids
verdict=passed
