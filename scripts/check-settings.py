#!/usr/bin/env python3
"""Fails if a table of docs/settings.md is not what paceline.example.toml says.

check-settings.py [DIRECTORY], by default this project. check-settings.py --write writes the tables. Each section of
paceline.example.toml, which a test compares with the settings that settings/src/table.rs declares, is a table: key, default,
and the comment.
"""
import os
import re
import sys

SOURCE, PAGE = "paceline.example.toml", "docs/settings.md"
BEGIN, END = f"<!-- Begin: made of {SOURCE} by scripts/check-settings.py --write -->\n", "<!-- End -->\n"
SETTING = re.compile(r"(\w+) = (\"[^\"]*\"|\S+)\s+# (.+)")
MORE = re.compile(r"\s+# (.+)")


def tables(text):
    """The tables, and a fault for each line of a section that is no setting."""
    sections, faults = [], []
    for number, line in enumerate(text.splitlines(), 1):
        section, setting, more = re.match(r"\[(\w+)\](?:\s+# (.+))?", line), SETTING.fullmatch(line), MORE.fullmatch(line)
        if section:
            sections.append((section[1], section[2], []))
        elif setting and sections:
            sections[-1][2].append(setting.groups())
        elif more and sections and sections[-1][2]:
            key, default, meaning = sections[-1][2].pop()
            sections[-1][2].append((key, default, f"{meaning}; {more[1]}"))
        elif line and sections:
            faults.append(f"{SOURCE}:{number}: expected KEY = VALUE # MEANING, found: {line}")
    lines = []
    for name, note, settings in sections:
        lines += [f"### {name}", ""] + ([f"`[{name}]`: {note}.", ""] if note else [])
        if settings:
            rows = (f"| `{name}.{key}` | `{default}` | {{}} |".format(meaning.replace("|", "\\|")) for key, default, meaning in settings)
            lines += ["| key | default | meaning |", "|---|---|---|", *rows, ""]
    return "\n".join(lines) + "\n", faults


def main():
    arguments = [word for word in sys.argv[1:] if word != "--write"]
    os.chdir(arguments[0] if arguments else os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    with open(SOURCE, encoding="utf-8") as file:
        expected, faults = tables(file.read())
    if faults:
        sys.exit("\n".join(faults))
    with open(PAGE, encoding="utf-8") as file:
        page = file.read()
    before, begin, rest = page.partition(BEGIN)
    found, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{PAGE}: expected the lines {BEGIN.strip()} and {END.strip()}")
    if "--write" in sys.argv:
        with open(PAGE, "w", encoding="utf-8") as file:
            file.write(before + begin + expected + end + after)
    elif found != expected:
        pairs = zip(found.splitlines() + [""] * expected.count("\n"), expected.splitlines())
        other = next((want for have, want in pairs if have != want), "an end")
        sys.exit(f"{PAGE}: expected the settings of {SOURCE}, first: {other}\nWrite them: python3 -B scripts/check-settings.py --write")


main()
