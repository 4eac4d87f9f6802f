#!/usr/bin/env python3
"""Fails if a room other than checkpoint/ answers what a model directory holds.

check-model-files.py [DIRECTORY], a git checkout, by default this one. Names of files are in `checkpoint::files`, with the
bounds of their readers. No program asks another one what a model takes: `checkpoint::plan` says it. What is known of one
family is in its row of `checkpoint::families`. Tests may spell all of them.
"""
import os
import re
import sys

from rust_source import LITERAL, code, line_of, product, tests

NAME = re.compile(r'"(?:(?:config|tokenizer|generation_config|preprocessor_config|processor_config|tokenizer_config|chat_template)\.json|model\.safetensors.*)"')
# Flags by which a program would ask a worker what a model is.
QUESTION = re.compile(r'"--(?:inspect|image-limits)"')
# What only a family's row has: a beginning of its name, and the parts that its checkpoints have and that are not read.
OF_FAMILY = re.compile(r'starts_with\("gemma4"\)|^const \w+: Unserved\b', re.MULTILINE)


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
            if not is_test and QUESTION.fullmatch(found[0]):
                faults.append(f"{file}:{line_of(text, found.start())}: expected checkpoint::plan to be asked, found {found[0]}")
        for found in OF_FAMILY.finditer(text) if file.startswith("models/") else ():
            faults.append(f"{file}:{line_of(text, found.start())}: expected it in checkpoint::families, found {found[0]}")
    sys.exit("\n".join(faults) if faults else 0)


main()
