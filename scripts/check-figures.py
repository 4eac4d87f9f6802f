#!/usr/bin/env python3
"""Fails if a figure of README's table is not the one of docs/performance.md.

check-figures.py [DIRECTORY], by default this project. A row of README's table of processors has a name and a figure for each
processor; the row of docs/performance.md with the same name, for another processor than the first with ", PROCESSOR" behind it,
must begin its measured cell with that figure. "not measured" needs no row.
"""
import os
import re
import sys

HEAD = "| over llama.cpp |"


def rows(text):
    for line in text.splitlines():
        if line.startswith("|"):
            yield [cell.strip() for cell in line.strip().strip("|").split("|")]


def main():
    os.chdir(sys.argv[1] if sys.argv[1:] else os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    with open("README.md", encoding="utf-8") as file:
        tables = [part for part in file.read().split("\n\n") if part.startswith(HEAD)]
    if len(tables) != 1:
        sys.exit(f"README.md: expected one table that begins with {HEAD!r}, found {len(tables)}")
    with open("docs/performance.md", encoding="utf-8") as file:
        measured = {row[0]: row[-1].replace("*", "") for row in rows(file.read()) if len(row) > 2}
    head, _, *listed = rows(tables[0])
    faults = []
    for name, *figures in listed:
        for at, (processor, figure) in enumerate(zip(head[1:], figures)):
            row = name if at == 0 else f"{name}, {processor}"
            if figure == "not measured":
                continue
            found = re.match(r"[0-9.]+", measured.get(row, ""))
            if not found or found[0] != figure:
                there = repr(found[0]) if found else "no such row or figure"
                faults.append(f"README.md: {name}, {processor}: {figure}; docs/performance.md has {there} in the row {row!r}")
    sys.exit("\n".join(faults) if faults else 0)


main()
