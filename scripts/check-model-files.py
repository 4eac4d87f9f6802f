#!/usr/bin/env python3
"""Fails if a room other than checkpoint/ spells the name of a model directory's file.

check-model-files.py [DIRECTORY], a git checkout, by default this one. Names are in `checkpoint::files`, with the bounds of
their readers, so that one room answers what a model directory holds. Tests may spell them.
"""
import os
import re
import sys

from rust_source import LITERAL, code, line_of, product, tests

NAME = re.compile(r'"(?:(?:config|tokenizer|generation_config|preprocessor_config|processor_config|tokenizer_config|chat_template)\.json|model\.safetensors.*)"')


def main():
    os.chdir(sys.argv[1] if sys.argv[1:] else os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    faults = []
    for file in sorted({file for crate in product() for file in crate.sources if not file.startswith("checkpoint/")}):
        with open(file, encoding="utf-8") as source:
            text = source.read()
        of_tests = list(tests(code(file)))
        for found in LITERAL.finditer(text):
            is_test = any(begin <= found.start() < end for begin, end in of_tests)
            if not is_test and NAME.fullmatch(found[0]):
                faults.append(f"{file}:{line_of(text, found.start())}: expected a name of checkpoint::files, found {found[0]}")
    sys.exit("\n".join(faults) if faults else 0)


main()
