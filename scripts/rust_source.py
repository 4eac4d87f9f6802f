"""Reads the production code of a crate: its modules, what they define and import, and which paths they write.

It finds names by patterns, not by a parser. A macro that is called by its name alone is not seen. A name that a module
passes on by a glob counts as one of that module.
"""
import os
import re
import subprocess
import sys
from collections import defaultdict

# Comments, strings of all kinds, characters. A lifetime is none of them.
LITERAL = re.compile(r"""//[^\n]*|/\*.*?\*/|\bb?r(\#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?'(?:\\[^\n]*?|[^\\'\n])'""", re.S)
PATH = re.compile(r"(?<![\w:])[A-Za-z_]\w*(?:::\w+)+")
NAMED = re.compile(rf"{PATH.pattern}|[\w/]+\.rs")
ITEM = re.compile(r"\s*(?:pub|fn|mod|use|struct|enum|impl|const|static|type|trait|extern|async|unsafe|let|macro_rules)\b")
# Of tests alone, or of those of other crates as well by a feature, whose name is blank here.
TEST = re.compile(r"#\[cfg\((?:(?:all\()?test\b|any\(test, feature = +\))")
OTHER_FILE = re.compile(r"#\[path = +([\w/]+\.rs) +\]\s*(?:pub\S* )?$")


def listed(*patterns):
    """Files of the checkout that git does not ignore."""
    found = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard", *patterns], text=True)
    return [file for file in sorted(set(found.splitlines())) if os.path.exists(file)]


def product():
    """The crates of the product: without the crate of the tests, examples and targets of the fuzzer."""
    return [Crate(root) for root in listed("*src/lib.rs", "*src/main.rs") if not re.match("(tests|examples|fuzz)/", root)]


def blank(text):
    return re.sub(r"[^\n]", " ", text)


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def closing(text, at):
    """Where the bracket at `at` is closed."""
    depth = 0
    for bracket in re.compile(r"[\[({})\]]").finditer(text, at):
        depth += 1 if bracket[0] in "([{" else -1
        if depth == 0:
            return bracket.start()
    sys.exit(f"line {line_of(text, at)}: expected that the bracket is closed, found the end of the file")


def first_of(text, at, ends):
    """Where the first of the characters `ends` is, outside of parentheses and square brackets."""
    while text[at] not in ends:
        at = closing(text, at) + 1 if text[at] in "([" else at + 1
    return at


def item_end(text, at):
    """Where the item, statement or field ends whose attributes begin at `at`."""
    while attribute := re.compile(r"\s*#\[").match(text, at):
        at = closing(text, attribute.end() - 1) + 1
    end = first_of(text, at, ";{}" if ITEM.match(text, at) else ";,{})]")
    return closing(text, end) if text[end] == "{" else end if text[end] in ";," else end - 1


def code(file):
    """A file's text with blanks for comments and literals. Paths in strings stay: attributes have such."""
    with open(file, encoding="utf-8") as source:
        return LITERAL.sub(lambda m: f" {m[0][1:-1]} " if NAMED.fullmatch(m[0][1:-1]) else blank(m[0]), source.read())


def tests(text):
    """Begin and end of each item that only tests have."""
    at = 0
    while test := TEST.search(text, at):
        at = item_end(text, test.start()) + 1
        yield test.start(), at


def production(file):
    """A file's code with blanks for tests."""
    text = code(file)
    for begin, end in tests(text):
        text = text[:begin] + blank(text[begin:end]) + text[end:]
    return text


def used(tree, above=()):
    """Name and path of all that the tree of a `use` brings. The name of a glob is `*`."""
    head, brace, rest = tree.strip().partition("{")
    path, _, name = head.partition(" as ")
    path = above + tuple(re.findall(r"[\w*]+", path))
    if not brace:
        path = path[:-1] if path[-1] == "self" else path
        yield name.strip() or path[-1], path
        return
    depth, begin = 0, 0
    for at, sign in enumerate(rest):
        if sign in ",}" and depth == 0:
            if rest[begin:at].strip():
                yield from used(rest[begin:at], path)
            begin = at + 1
        depth += {"{": 1, "}": -1}.get(sign, 0)


class Crate:
    """The modules of a crate. A module is the tuple of the names that lead to it; the root is the empty one."""

    def __init__(self, root):
        self.sources = {}  # file → its production code
        self.items = {}  # module → names that it defines
        self.texts = []  # module, file, production code of the module without its children
        self.imports = defaultdict(list)  # module, local name → paths
        self.mentions = []  # module, path as written there, file, line
        self.read((), root, production(root), os.path.dirname(root))

    def read(self, module, file, text, folder):
        """Reads a module and its children. `text` has blanks for what is outside of the module."""
        self.sources.setdefault(file, text)
        items = self.items.setdefault(module, set())
        for child in re.finditer(r"\bmod\s+(\w+)\s*([;{])", text):
            begin, below = child.end(), f"{folder}/{child[1]}"
            if text[begin - 1] == ";":
                other = OTHER_FILE.search(text, max(0, child.start() - 200), child.start())
                path = os.path.join(os.path.dirname(file), other[1]) if other else below + ".rs"
                path = path if os.path.exists(path) else below + "/mod.rs"
                self.read(module + (child[1],), path, production(path), below)
            elif text[begin - 1] == "{":  # else it is within an inline module that was read before
                end = closing(text, begin - 1)
                self.read(module + (child[1],), file, blank(text[:begin]) + text[begin:end], below)
                text = text[:begin] + blank(text[begin:end]) + text[end:]
        self.texts.append((module, file, text))
        items.update(re.findall(r"\b(?:fn|struct|enum|union|trait|type|const|static)\s+(\w+)", text))
        for line in re.finditer(r"\buse\s+([^;]+);", text):
            for name, path in used(line[1]):
                self.imports[module, name].append(path)
                self.mentions.append((module, path, file, line_of(text, line.start())))
            text = text[:line.start()] + blank(line[0]) + text[line.end():]
        for path in PATH.finditer(text):
            self.mentions.append((module, tuple(path[0].split("::")), file, line_of(text, path.start())))

    def absolute(self, module, path):
        """A path that `module` writes, from the root of the crate. None if it leads out of the crate."""
        if path[0] in ("crate", "self", "super"):
            above = () if path[0] == "crate" else module[:len(module) - path.count("super")]
            return above + tuple(name for name in path if name not in ("crate", "self", "super"))
        if module + path[:1] in self.items:
            return module + path
        imported = next((each for each in self.imports[module, path[0]] if each[0] != path[0]), None)
        return imported and self.absolute(module, imported + path[1:])

    def definer(self, path, hops=9):
        """The module that defines what an absolute path names. None if that is another crate."""
        if path is None:
            return None
        module = ()
        for index, name in enumerate(path):
            if module + (name,) in self.items:
                module += (name,)
                continue
            imported = [] if name in self.items[module] or not hops else self.imports[module, name]
            found = [self.definer(self.absolute(module, each + path[index + 1:]), hops - 1) for each in imported]
            return next((each for each in found if each is not None), module)
        return module
