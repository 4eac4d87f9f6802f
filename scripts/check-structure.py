#!/usr/bin/env python3
"""Fails on a circle between modules, a long function without a reason, and a wide line of Markdown.

check-structure.py [DIRECTORY], a git checkout, by default this one. CONTRIBUTING.md explains how to read a report.
A module counts together with its parts: the children of one module, each with all below it, must not use each other in a
circle. A part and its own parent make none. A name that a module passes on counts as one of the module that defines it.
Test code and the targets beside `src/` do not count.
"""
import os
import re
import subprocess
import sys
from collections import defaultdict

from rust_source import Crate, closing, first_of, line_of

MOST_LINES, MOST_COLUMNS = 60, 160
REASON = re.compile(r"\s*//.*[Ll]onger than 60 lines[:,] \S")


def reachable(graph, start):
    found, ahead = set(), [start]
    while ahead:
        new = set(graph.get(ahead.pop(), ())) - found
        found |= new
        ahead += new
    return found


def circles(folder, crate):
    graph = defaultdict(lambda: defaultdict(list))
    for user, path, file, line in crate.mentions:
        definer = crate.definer(crate.absolute(user, path))
        level = next((i for i, (a, b) in enumerate(zip(user, definer or ())) if a != b), None)
        if level is not None:
            graph[user[:level + 1]][definer[:level + 1]].append(f"{file}:{line} names {'::'.join(path)}")
    reached = {module: reachable(graph, module) for module in list(graph)}
    for module in sorted(graph):
        circle = sorted(other for other in reached[module] if module in reached.get(other, ()))
        if circle[:1] == [module]:
            yield f"{folder}: a circle of {', '.join('::'.join(each) for each in circle)}"
            for user in circle:
                for used in (each for each in circle if each in graph[user]):
                    places = graph[user][used]
                    more = f" (and {len(places) - 1} more)" if len(places) > 1 else ""
                    yield f"  {'::'.join(user)} → {'::'.join(used)}: {places[0]}{more}"


def long_functions(file, text):
    """The reason stands in the comment directly above, or first in the body."""
    with open(file, encoding="utf-8") as source:
        lines = source.read().split("\n")
    for function in re.finditer(r"\bfn\s+(\w+)", text):
        brace = first_of(text, function.end(), ";{")
        if text[brace] == ";":
            continue
        first, head, last = (line_of(text, at) for at in (function.start(), brace, closing(text, brace)))
        begin, end = first - 1, head
        while re.match(r"\s*(//|#\[)", lines[begin - 1]):
            begin -= 1
        while re.match(r"\s*//", lines[end]):
            end += 1
        if last - first >= MOST_LINES and not any(map(REASON.match, lines[begin:end])):
            yield f"{file}:{first}: fn {function[1]} has {last - first + 1} lines: expected at most {MOST_LINES}, or a reason"


def wide_lines(file):
    """Only lines that can be wrapped: no rows of tables, no code, no definitions of links."""
    fenced = False
    with open(file, encoding="utf-8") as source:
        for number, line in enumerate(source, 1):
            fenced ^= bool(re.match(r"\s*(```|~~~)", line))
            columns = len(line.rstrip("\n"))
            if columns > MOST_COLUMNS and not fenced and not re.match(r"\s*(\||\[[^\]]+\]:)", line):
                yield f"{file}:{number}: {columns} columns, expected at most {MOST_COLUMNS}"


def main():
    os.chdir(sys.argv[1] if sys.argv[1:] else os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    listed = ["git", "ls-files", "-co", "--exclude-standard", "*.md", "*src/lib.rs", "*src/main.rs"]
    faults = []
    for file in sorted(set(subprocess.check_output(listed, text=True).splitlines())):
        if not os.path.exists(file):
            continue
        if file.endswith(".md"):
            faults += wide_lines(file)
            continue
        crate = Crate(file)
        faults += circles(os.path.dirname(file), crate)
        for source, text in crate.sources.items():
            faults += long_functions(source, text)
    sys.exit("\n".join(faults) if faults else 0)


main()
