#!/usr/bin/env python3
"""Fails on public items of the product that nothing needs to be public.

check-dead-items.py [DIRECTORY], a git checkout, by default this one. The items are those with `pub` in the crates that are
libraries: functions, types, traits, constants and statics. Names alone are compared, so an item whose name another
thing has as well is never reported. An item must have one of these, or a line in ALLOWED:
- product code of another file names it; a `pub use` is no such use;
- its own file names it, and so does a test, an example, a benchmark or a target of the fuzzer;
- its own file names it in something public, such as the type of a field;
- tests name it, and a comment says that it is for tests or for fuzzing: its own, the one at the head of its file, or the one
  at the head of the folder's `mod.rs`.
"""
import os
import re
import sys
from collections import defaultdict

from rust_source import closing, code, first_of, line_of, listed, product

# The functions of MLX that this crate replaces are called by mlx-rs, which is not in the repository.
NOT_READ = "mlx-sys/"
# "FILE NAME": the reason. A line whose item is needed, or is gone, is a fault as well.
ALLOWED = {
    "models/src/families/mod.rs load_target": "loading without options, as examples and tests of models/ do it",
}

KIND = r"(?:(?:const|async|unsafe|extern)\s+)*(fn|struct|enum|union|trait|(?<!\*)const|type|(?<!')static)\s+(?:mut\s+)?"
DEFINITION = re.compile(rf"\b{KIND}\w+")
PUBLIC = re.compile(rf"\bpub\s+{KIND}(\w+)")
PASSED_ON = re.compile(r"\bpub(?:\([^)]*\))?\s+use\s+[^;]+;")
# A constant in a format string, and a function in an attribute of serde.
IN_STRING = re.compile(r'\{([A-Za-z_]\w*)(?:\}|:[^:])|(?:with|if|default) = "(\w+)"')
NAME = re.compile(r"[A-Za-z_]\w*")
FOR_TESTS = re.compile(r"\bfor (?:tests|fuzzing)\b", re.I)
TYPES = ("struct", "enum", "union", "trait", "type")


def names(text):
    """Names that code mentions, apart from those that it defines or passes on."""
    return set(NAME.findall(DEFINITION.sub(" ", PASSED_ON.sub(" ", text))))


def read(file):
    with open(file, encoding="utf-8") as source:
        return source.read()


def in_strings(text):
    return {name for found in IN_STRING.finditer(text) for name in found.groups() if name}


def public_parts(text):
    """What others see of a file's items: a type as a whole, of a function and an `impl` what is before its body."""
    for item in PUBLIC.finditer(text):
        end = first_of(text, item.end(), ";{=" if item[1] == "const" else ";{")
        if text[end] == "{" and item[1] in TYPES:
            end = closing(text, end)
        yield item[2], text[item.end():end]
    for item in re.finditer(r"\bimpl\b([^{;]*)\{", text):
        trait, implemented, _ = item[1].partition(" for ")
        yield "", trait if implemented else ""
        # An associated type is public if its trait is.
        yield from (("", each) for each in re.findall(r"\btype\s+\w+\s*=([^;]*);", text[item.end():closing(text, item.end() - 1)]))


def is_for_tests(file, line):
    lines = read(file).split("\n")
    begin = line - 1
    while re.match(r"\s*(///|#\[)", lines[begin - 1]):
        begin -= 1
    own = "\n".join(each for each in lines[begin:line - 1] if "///" in each)
    heads = [read(each) for each in (file, f"{os.path.dirname(file)}/mod.rs") if os.path.exists(each)]
    return any(map(FOR_TESTS.search, [own] + [re.match(r"(?:\s*//![^\n]*\n)*", text)[0] for text in heads]))


def main():
    os.chdir(sys.argv[1] if sys.argv[1:] else os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    sources = {file: text for crate in product() for file, text in crate.sources.items()}
    in_product, anywhere = defaultdict(set), defaultdict(set)
    for file in listed("*.rs"):
        strings = in_strings(read(file))
        for name in names(code(file)) | strings:
            anywhere[name].add(file)
        for name in names(sources[file]) | strings if file in sources else ():
            in_product[name].add(file)
    faults, found = [], set()
    for file, text in sorted(sources.items()):
        if file.endswith("main.rs") or file.startswith(NOT_READ):
            continue
        shown = defaultdict(set)
        for owner, part in public_parts(text):
            for name in NAME.findall(part):
                shown[name].add(owner)
        for item in PUBLIC.finditer(text):
            name, line = item[2], line_of(text, item.start())
            if in_product[name] - {file} or item[1] in TYPES and shown[name] - {name}:
                continue
            tested, used = bool(anywhere[name] - {file}), file in in_product[name]
            if tested and (used or is_for_tests(file, line)):
                continue
            found.add(f"{file} {name}")
            fault = "only tests name it" if tested else "only its own file names it" if used or name in names(text) else "nothing names it"
            if f"{file} {name}" not in ALLOWED:
                faults.append(f"{file}:{line}: pub {item[1]} {name}: {fault}")
    faults += [f"ALLOWED has {each!r}, which is no such item now: remove the line" for each in ALLOWED if each not in found and os.path.exists(each.split()[0])]
    sys.exit("\n".join(faults) if faults else 0)


main()
