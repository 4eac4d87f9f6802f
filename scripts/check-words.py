#!/usr/bin/env python3
"""Fails on words of words.toml in comments, names of tests and documents.

check-words.py [DIRECTORY], a git checkout, by default this one. scripts/words.toml has the words, and for each one what to
write in its place. They are searched in comments of Rust, protobuf, shell, Python and TOML, in names of tests, and in
Markdown. Code does not count, neither in blocks nor between backticks.
"""
import os
import re
import sys
import tomllib

from rust_source import LITERAL, line_of, listed

WORDS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "words.toml")
MARKER = re.compile(r"^\s*(?://[/!]?|/\*[*!]?)")
HASH_COMMENT = re.compile(r"""(?m)^[ \t]*#[^\n]*|[ \t]#[ \t][^\n"']*$""")
FENCED = re.compile(r"(?ms)^ *(```|~~~).*?^ *\1 *$")
INLINE = re.compile(r"`[^`\n]*`")
RUST_TEST = re.compile(r"#\[(?:\w+::)*test\b[^\]]*\]\s*(?:(?:#\[[^\]]*\]|//[^\n]*)\s*)*(?:pub\s+)?(?:async\s+)?fn\s+(\w+)")
PYTHON_TEST = re.compile(r"(?m)^\s*def\s+(test_\w+)")
# In place of code: no word, and no space between words. Before the first word of a doc comment: the beginning.
CODE, BEGINNING = "\0", "\1"


def hidden(text):
    return re.sub(r"\S", CODE, text)


def rust_comments(text):
    """The text with nothing but its comments, each word where it was. Lines of one comment are one text."""
    pieces, at, doc_end = [], 0, None
    for found in LITERAL.finditer(text):
        between = text[at:found.start()]
        pieces.append(hidden(between))
        marker = MARKER.match(found[0])
        if marker:
            is_doc = marker[0].startswith("///")
            is_first = is_doc and (doc_end != at or between.strip())
            pieces.append((BEGINNING if is_first else " ") + " " * (marker.end() - 1) + found[0][marker.end():])
            doc_end = found.end() if is_doc else None
        else:
            pieces.append(hidden(found[0]))
        at = found.end()
    return "".join(pieces) + hidden(text[at:])


def hash_comments(text):
    pieces, at = [], 0
    for found in HASH_COMMENT.finditer(text):
        pieces += [hidden(text[at:found.start()]), found[0].replace("#", " ", 1)]
        at = found.end()
    return "".join(pieces) + hidden(text[at:])


def prose(file, text):
    if file.endswith(".md"):
        text = FENCED.sub(lambda block: hidden(block[0]), text)
    elif file.endswith((".rs", ".proto")):
        text = rust_comments(text)
    else:
        text = hash_comments(text)
    return INLINE.sub(lambda code: CODE * len(code[0]), text)


def main():
    os.chdir(sys.argv[1] if sys.argv[1:] else os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    with open(WORDS, "rb") as file:
        words = {word.lower(): better for word, better in tomllib.load(file).items()}
    forms = [re.sub(r"\\?\^", BEGINNING + r"\\s*", re.escape(word)).replace(r"\ ", r"\s+") for word in words]
    # Without a look at what is before a word, which would make the search four times as slow.
    banned = re.compile(rf"(?:{'|'.join(forms)})(?!\w)")
    faults = []
    for file in listed("*.rs", "*.proto", "*.md", "*.sh", "*.py", "*.toml"):
        with open(file, encoding="utf-8") as source:
            text = source.read()
        tests = (PYTHON_TEST if file.endswith(".py") else RUST_TEST).finditer(text)
        places = [(0, prose(file, text))] + [(test.start(1), test[1].replace("_", " ")) for test in tests]
        for at, where in places:
            where = where.lower()
            for found in banned.finditer(where):
                if not re.match(r"\w", where[found.start() - 1:found.start()]):
                    word = " ".join(found[0].replace(BEGINNING, "^").split()).replace("^ ", "^")
                    faults.append(f"{file}:{line_of(text, at + found.start())}: {word!r}: write {words[word]}")
    sys.exit("\n".join(faults) if faults else 0)


main()
