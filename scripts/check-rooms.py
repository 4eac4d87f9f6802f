#!/usr/bin/env python3
"""Prints the production lines and the share of each room, and fails if a room has too large a share of the product.

check-rooms.py [DIRECTORY], a git checkout, by default this one. A room is a top-level folder. Its lines are those of the
Rust files that its crates are made of, comments and blank lines included, without items that only tests have.
"""
import os
import sys
from collections import Counter

from rust_source import code, line_of, product, tests

# Percent of all lines.
MOST_OF_A_ROOM = 15
# Rooms with another bound.
MOST = {"models": 18}


def production_lines(file):
    text = code(file)
    return text.count("\n") - sum(line_of(text, end - 1) - line_of(text, begin) + 1 for begin, end in tests(text))


def main():
    os.chdir(sys.argv[1] if sys.argv[1:] else os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    lines = Counter()
    for file in sorted({file for crate in product() for file in crate.sources}):
        lines[file.split("/")[0]] += production_lines(file)
    total, faults = sum(lines.values()), []
    for room, count in lines.most_common():
        share, most = 100 * count / total, MOST.get(room, MOST_OF_A_ROOM)
        print(f"{room:15} {count:7} {share:5.1f} % of at most {most}")
        if share > most:
            faults.append(f"{room}: {share:.1f} % of the production lines, expected at most {most} %: move code to the room that it belongs to")
    print(f"{'all rooms':15} {total:7}")
    sys.exit("\n".join(faults) if faults else 0)


main()
