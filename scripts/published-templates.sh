#!/bin/sh
# published-templates.sh FOLDER: takes the chat templates of pinned packages and renders them with transformers, as FOLDER/cases.json.
# Exit code 75: the registry could not be reached, or does not have the packages.
set -eu
. "$(dirname -- "$0")/lib.sh"

folder=$1
[ ! -f "$folder/cases.json" ] || exit 0
rm -rf "$folder"
mkdir -p "$folder/packages" "$folder/sources"
python3 -m venv "$folder/venv"
python=$folder/venv/bin/python
"$python" -m pip --quiet --disable-pip-version-check install transformers==5.24.0 jinja2==3.1.6 unearth==0.19.0 || exit 75
index=${PIP_INDEX_URL:-$("$python" -m pip config get global.index-url 2>/dev/null || echo https://pypi.org/simple)}
# pip runs the build of a source archive that it downloads, and vllm's needs torch. unearth fetches the file alone.
archive() {
    "$python" -m unearth --index-url "$index" --python-version 3.13 --download "$folder/packages" "$@" >/dev/null || exit 75
}
archive --only-binary trl==1.16.0
archive --no-binary axolotl==0.19.0
archive --no-binary vllm==0.33.0
# Its source has llama.cpp's models/templates.
archive --no-binary llama-cpp-python==0.3.36
for package in "$folder"/packages/*; do
    python3 - "$package" "$folder/sources" <<'END'
import pathlib, sys, tarfile, zipfile
package, out = map(pathlib.Path, sys.argv[1:])
if package.suffix == ".whl":
    archive = zipfile.ZipFile(package)
    files = ((name, archive.read(name)) for name in archive.namelist() if name.endswith(".jinja"))
else:
    archive = tarfile.open(package)
    files = ((member.name, archive.extractfile(member).read()) for member in archive if member.isfile() and member.name.endswith(".jinja"))
for number, (name, content) in enumerate(files):
    path = out / package.name.split("-")[0] / (f"{number}-" + pathlib.PurePath(name).name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
END
done
"$folder/venv/bin/python" text/tests/templates/published.py "$folder/sources" "$folder/cases.part"
mv "$folder/cases.part" "$folder/cases.json"
rm -rf "$folder/packages" "$folder/venv"
