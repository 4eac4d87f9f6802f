#!/usr/bin/env python3
"""Fails if more names than before stand for several types of the product.

check-names.py [--list] [DIRECTORY], a git checkout, by default this one. --list prints each such name, the number of its
types, and where they are. A type is a struct, enum, union, trait or alias, public or not. Types with one name count if they
lie in different modules. Twins for several systems, in one module, count once.
"""
import os
import re
import sys
from collections import defaultdict

from rust_source import line_of, product

# Names that stand for two or more types: a quarter less than at the first count. The bound may only fall.
MOST = 173

TYPE = re.compile(r"[{}]|\b(struct|enum|union|trait|type)\s+(\w+)")


def types(text):
    """Name and place of each type that a module defines. A `type` within braces belongs to a trait."""
    depth = 0
    for found in TYPE.finditer(text):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if found[2] and (found[1] != "type" or depth == 0):
            yield found[2], found.start()


def several():
    """Names that stand for several types, those with most types first, and the places of the types."""
    places = defaultdict(dict)
    for crate in product():
        root = os.path.dirname(next(iter(crate.sources)))
        for module, file, text in crate.texts:
            for name, at in types(text):
                places[name].setdefault((root, module), f"{file}:{line_of(text, at)}")
    found = [(name, sorted(where.values())) for name, where in places.items() if len(where) > 1]
    return sorted(found, key=lambda each: (-len(each[1]), each[0]))


def main():
    directories = [word for word in sys.argv[1:] if word != "--list"]
    os.chdir(directories[0] if directories else os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    found = several()
    if "--list" in sys.argv:
        for name, where in found:
            print(f"{len(where)} {name}: {', '.join(where)}")
    print(f"{len(found)} names stand for {sum(len(where) for _, where in found)} types; at most {MOST} names may")
    if len(found) < MOST:
        print(f"set MOST to {len(found)} in scripts/check-names.py")
    if len(found) > MOST:
        sys.exit(f"expected at most {MOST} names for several types, found {len(found)}: rename a new type, check-names.py --list has all")


main()
