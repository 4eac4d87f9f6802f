#!/bin/sh
# Makes dist/paceline-VERSION-TARGET.tar.gz: programs, MLX's library, OpenBLAS on Linux, the embedded pair, the files for
# systemd and launchd, licences of all parts, a list of parts, checksums, and an install.sh. Beside it: its checksum, the
# list of parts, the install.sh, and a formula of Homebrew. Nothing in it depends on this machine's directories. PROFILE=dev
# tries it with the build of the tests, OUT=DIR puts it elsewhere.
set -eu
. "$(dirname -- "$0")/lib.sh"

out=${OUT:-$ROOT/dist}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
host=$(rustc -vV | sed -n 's/^host: //p')
name=paceline-$version-$host
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH

mkdir -p "$out"
stage=$(mktemp -d "$out/.stage.XXXXXX")
trap 'rm -rf -- "$stage"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

root=$stage/$name
mkdir "$root"
DESTDIR=$root PREFIX=/ STRIP=yes BUNDLE=yes sh scripts/install.sh
for manager in systemd launchd; do
    mkdir -p "$root/share/doc/paceline/$manager"
    install -m 644 deploy/$manager/* "$root/share/doc/paceline/$manager/"
    (cd "$root" && ls -d share/doc/paceline/$manager/*) >>"$root/share/doc/paceline/installed.txt"
done
install -m 755 deploy/install.sh "$root/install.sh"

python3 -B - "$root" "$out/$name.tar.gz" <<'PY'
import gzip, hashlib, os, pathlib, sys, tarfile
root, archive = map(pathlib.Path, sys.argv[1:])
time = int(os.environ["SOURCE_DATE_EPOCH"])
files = sorted(path for path in root.rglob("*") if path.is_file())
sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(root)}\n" for path in files]
(root / "SHA256SUMS").write_text("".join(sums))

# The same files give the same archive: sorted, one time, no names of users.
def plain(entry):
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = time
    entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
    return entry

beside = archive.with_name(archive.name + ".new")
with open(beside, "wb") as file, gzip.GzipFile("", "wb", 6, file, time) as packed, \
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
    for path in [root, *sorted(root.rglob("*"))]:
        tar.add(path, path.relative_to(root.parent), recursive=False, filter=plain)
beside.rename(archive)
digest = hashlib.sha256(archive.read_bytes()).hexdigest()
archive.with_name(archive.name + ".sha256").write_text(f"{digest}  {archive.name}\n")
PY
install -m 644 "$root/share/doc/paceline/sbom.cdx.json" "$out/$name.cdx.json"
install -m 755 deploy/install.sh "$out/install.sh"
digest=$(cut -d ' ' -f 1 "$out/$name.tar.gz.sha256")
repository=$(sed -n 's/^repository = "\(.*\)"/\1/p' Cargo.toml)
sed -e "s|@URL@|$repository/releases/download/v$version/$name.tar.gz|" -e "s|@VERSION@|$version|" -e "s|@SHA256@|$digest|" \
    deploy/homebrew/paceline.rb.in >"$out/paceline.rb"
say "$out/$name.tar.gz"
