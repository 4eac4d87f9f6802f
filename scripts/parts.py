"""What the programs are made of: a list of parts (CycloneDX 1.5) and the licences of all of them.

    parts.py --sbom FILE --licences FILE [--libraries DIR] [--mlx DIR]

Crates are those that the programs link on this machine's target: normal dependencies from `cargo metadata`, digests from
Cargo.lock. --libraries is the directory of the libraries beside the programs, --mlx the unpacked wheel of MLX. Without a
change of these the files come out the same: the time is that of the last commit, or SOURCE_DATE_EPOCH."""

import argparse
import datetime
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib
import uuid

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Packages with a program that is installed.
PROGRAMS = {"paceline", "paceline-worker", "paceline-pull"}
LICENCE_FILE = re.compile(r"(licen[cs]e|copying|copyright|notice|unlicense)([-._].*)?$", re.IGNORECASE)
# Where Debian has the terms of a library that is bundled, by the beginning of its name.
DEBIAN_PACKAGES = {
    "libopenblas": ["libopenblas0-pthread", "libopenblas0"],
    # Of the reference BLAS and LAPACK, which OpenBLAS contains too.
    "libblas": ["libblas3", "libopenblas0-pthread"],
    "liblapack": ["liblapack3", "libopenblas0-pthread"],
    "libgfortran": ["libgfortran5", "gcc-12-base"],
    "libquadmath": ["libquadmath0", "gcc-12-base"],
}


def output(*words):
    return subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def metadata():
    host = re.search(r"^host: (.*)$", output("rustc", "-vV"), re.MULTILINE).group(1)
    words = ["cargo", "metadata", "--format-version=1", "--locked", f"--filter-platform={host}"]
    try:
        return host, json.loads(output(*words, "--offline"))
    except subprocess.CalledProcessError:
        return host, json.loads(output(*words))


def linked(graph):
    """Packages that are linked into the programs, and each one's own dependencies among them."""
    nodes = {node["id"]: node for node in graph["resolve"]["nodes"]}
    packages = {package["id"]: package for package in graph["packages"]}
    edges, rest = {}, [key for key, package in packages.items() if package["name"] in PROGRAMS]
    found_programs = {packages[key]["name"] for key in rest}
    if found_programs != PROGRAMS:
        sys.exit(f"expected the packages {sorted(PROGRAMS)}, found {sorted(found_programs)}")
    while rest:
        key = rest.pop()
        if key in edges:
            continue
        normal = [dep["pkg"] for dep in nodes[key]["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
        edges[key] = sorted(normal)
        rest += normal
    return {key: packages[key] for key in edges}, edges


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def purl(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def crate_component(package, checksums):
    component = {"type": "library", "bom-ref": purl(package), "name": package["name"], "version": package["version"]}
    if package["description"]:
        component["description"] = " ".join(package["description"].split())
    checksum = checksums.get((package["name"], package["version"]))
    if checksum:
        component["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    expression = (package["license"] or "").replace("/", " OR ")
    if expression:
        component["licenses"] = [{"expression": expression}]
    component["purl"] = purl(package)
    if package["repository"]:
        component["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return component


def libraries_in(directory):
    """The wheel's own directory has other files as well."""
    kinds = re.compile(r"\.(so(\.[0-9.]+)?|dylib|metallib)$")
    return [path for path in sorted(directory.iterdir()) if kinds.search(path.name)] if directory else []


def library_components(libraries, mlx):
    version = wheel_version(mlx)
    components = []
    for path in libraries_in(libraries):
        component = {"type": "file", "bom-ref": f"file:{path.name}", "name": path.name,
                     "hashes": [{"alg": "SHA-256", "content": digest(path)}]}
        if path.name.startswith(("libmlx", "mlx.")) and version:
            component |= {"version": version[1], "purl": f"pkg:pypi/{version[0]}@{version[1]}",
                          "licenses": [{"expression": "MIT"}]}
        components.append(component)
    return components


def wheel_version(mlx):
    for file in sorted(mlx.glob("*.dist-info/METADATA")) if mlx else []:
        text = file.read_text(encoding="utf-8")
        return [re.search(rf"^{key}: (.*)$", text, re.MULTILINE).group(1) for key in ("Name", "Version")]
    return None


def bill(graph, host, packages, edges, libraries, mlx):
    lock = (ROOT / "Cargo.lock").read_bytes()
    entries = tomllib.loads(lock.decode())["package"]
    checksums = {(one["name"], one["version"]): one["checksum"] for one in entries if "checksum" in one}
    version = next(package["version"] for package in packages.values() if package["name"] == "paceline")
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or output("git", "log", "-1", "--format=%ct"))
    files = library_components(libraries, mlx)
    ordered = sorted(packages.items(), key=lambda item: (item[1]["name"], item[1]["version"]))
    seed = hashlib.sha256(lock + json.dumps([host, files]).encode()).hexdigest()
    programs = [purl(package) for _, package in ordered if package["name"] in PROGRAMS]
    root = f"paceline@{version}"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, seed)}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {"type": "application", "bom-ref": root, "name": "paceline", "version": version,
                          "licenses": [{"expression": "MIT OR Apache-2.0"}]},
            "properties": [{"name": "paceline:target", "value": host}],
        },
        "components": [crate_component(package, checksums) for _, package in ordered] + files,
        "dependencies": [{"ref": root, "dependsOn": programs + [file["bom-ref"] for file in files]}]
        + [{"ref": purl(package), "dependsOn": sorted({purl(packages[to]) for to in edges[key]})} for key, package in ordered],
    }


def texts_of(directory):
    found = [path for path in sorted(directory.iterdir()) if path.is_file() and LICENCE_FILE.match(path.name)]
    return [path.read_text(encoding="utf-8", errors="replace").strip() for path in found]


def debian_copyright(name):
    packages = next((found for start, found in DEBIAN_PACKAGES.items() if name.startswith(start)), [])
    files = [pathlib.Path("/usr/share/doc") / package / "copyright" for package in packages]
    return next((file.read_text(encoding="utf-8", errors="replace").strip() for file in files if file.is_file()), None)


def licences(packages, libraries, mlx):
    """Each text once, with the parts that it is for."""
    parts = []
    for package in sorted(packages.values(), key=lambda package: (package["name"], package["version"])):
        if package["source"] is None:
            continue
        title = f"{package['name']} {package['version']} ({package['license'] or 'see its file'})"
        parts.append((title, texts_of(pathlib.Path(package["manifest_path"]).parent)))
    for file in sorted(mlx.glob("*.dist-info/licenses/*")) if mlx else []:
        parts.append((f"MLX {(wheel_version(mlx) or ['', ''])[1]}: {file.name}", [file.read_text(encoding="utf-8").strip()]))
    for path in libraries_in(libraries):
        text = debian_copyright(path.name)
        if text:
            parts.append((path.name, [text]))
    by_text = {}
    for title, texts in parts:
        for text in texts:
            by_text.setdefault(text, []).append(title)
    lines = ["Paceline is licensed under MIT OR Apache-2.0. It contains these parts of others:", ""]
    lines += [f"  {title}" for title, _ in parts] + [""]
    for text, titles in by_text.items():
        lines += ["-" * 100, *titles, "", text, ""]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag, required in (("--sbom", True), ("--licences", True), ("--libraries", False), ("--mlx", False)):
        parser.add_argument(flag, type=pathlib.Path, required=required)
    given = parser.parse_args()
    host, graph = metadata()
    packages, edges = linked(graph)
    sbom = bill(graph, host, packages, edges, given.libraries, given.mlx)
    given.sbom.write_text(json.dumps(sbom, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    given.licences.write_text(licences(packages, given.libraries, given.mlx), encoding="utf-8")


main()
