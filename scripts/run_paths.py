"""The run paths of a program: where the dynamic linker looks for its libraries.

    run_paths.py show FILE             one path a line
    run_paths.py keep-relative FILE    removes the paths that do not begin at the program ($ORIGIN, @executable_path)

ELF is read and changed here, because no tool for it is on every Linux; for Mach-O Apple's own tools are there."""

import re
import struct
import subprocess
import sys

DT_NULL, DT_STRTAB, DT_RPATH, DT_RUNPATH = 0, 5, 15, 29
PT_LOAD, PT_DYNAMIC = 1, 2


def elf_paths(data):
    """Offset in the file and text of the run paths of a 64-bit little-endian ELF; None if it has none."""
    if data[4] != 2 or data[5] != 1:
        sys.exit("expected a 64-bit little-endian ELF, found another")
    table, size, count = struct.unpack_from("<Q", data, 32)[0], *struct.unpack_from("<HH", data, 54)
    segments = []
    for at in range(count):
        kind, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", data, table + at * size)
        segments.append((kind, offset, address, length))

    def place(address):
        for kind, offset, start, length in segments:
            if kind == PT_LOAD and start <= address < start + length:
                return offset + address - start
        sys.exit(f"expected address {address:#x} in a segment of the file, found none")

    strings, paths = None, None
    for kind, offset, _, length in segments:
        if kind != PT_DYNAMIC:
            continue
        for at in range(offset, offset + length, 16):
            tag, value = struct.unpack_from("<QQ", data, at)
            if tag == DT_NULL:
                break
            if tag == DT_STRTAB:
                strings = place(value)
            if tag in (DT_RPATH, DT_RUNPATH):
                paths = value
    if strings is None or paths is None:
        return None
    begin = strings + paths
    return begin, data[begin : data.index(b"\0", begin)].decode()


def is_relative(path):
    return path.startswith(("$ORIGIN", "@executable_path", "@loader_path"))


def macho_paths(file):
    lines = subprocess.run(["otool", "-l", file], check=True, capture_output=True, text=True).stdout
    return re.findall(r"cmd LC_RPATH\n.*\n +path (.*) \(offset \d+\)", lines)


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("show", "keep-relative"):
        sys.exit(__doc__)
    order, file = sys.argv[1:]
    with open(file, "rb") as opened:
        data = bytearray(opened.read())
    is_elf = data[:4] == b"\x7fELF"
    if is_elf:
        found = elf_paths(data)
        begin, text = found or (0, "")
        paths = text.split(":") if text else []
    else:
        paths = macho_paths(file)
    if order == "show":
        print("\n".join(paths))
        return
    kept = [path for path in paths if is_relative(path)]
    if kept == paths:
        return
    if not is_elf:
        for path in set(paths) - set(kept):
            subprocess.run(["install_name_tool", "-delete_rpath", path, file], check=True)
        # A change takes the signature away, and Apple's processors run nothing unsigned.
        subprocess.run(["codesign", "--force", "--sign", "-", file], check=True)
        return
    if paths[: len(kept)] != kept or not kept:
        sys.exit(f"{file}: expected the relative run paths before the others, found {text}")
    # Only ends the text earlier: another text of the table may be the end of this one.
    data[begin + len(":".join(kept).encode())] = 0
    with open(file, "r+b") as opened:
        opened.write(data)


main()
