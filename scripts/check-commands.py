#!/usr/bin/env python3
"""Fails if a command of the documents is neither run by a test nor listed with the reason why not.

check-commands.py [DIRECTORY], a git checkout, by default this one. The list is tests/commands.toml; its head has the rules.
check-commands.py --list prints each documented command, where it stands, and the entry that covers it.

A command of a document is
- each line of a fenced block that is marked `sh` or by nothing, and of an indented block; prose and output stand in blocks
  that are marked otherwise (`text`);
- inline code that begins with one of PROGRAMS. Inline code that is only the beginning of an entry, such as `paceline drafter`,
  is its name and needs no entry. A program alone is a name, too.
CHANGELOG.md and docs/adr tell of the past and are not read.
"""
import glob
import os
import re
import subprocess
import sys
from collections import namedtuple

LIST = "tests/commands.toml"
# A reason is easier to write than a test.
MOST_NOT_RUN = 15
# Programs that inline code may begin with. Each one is a word of its own.
PROGRAMS = re.compile(
    r"(?:target/\S+/)?paceline(?:-[a-z]+)?|make|cargo|rustup|sh|python3?|pip3?|install|systemctl|systemd-analyze|journalctl|loginctl"
    r"|launchctl|dpkg|apt(?:-get)?|\./[\w-]+\.sh|brew|curl|docker|tmux|ip|grep|claude|cline|codex|copilot|kilo|llm|aider|opencode|qwen"
)
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
WORD = r"""(?:"[^"]*"|'[^']*'|\$\([^)]*\)|<[A-Z_]+>|[^\s"'|&;<>])+"""
TOKEN = re.compile(rf"\s+|#[^\n]*|\|\||&&|[|&;]|\d?(?:>>|>|<)|{WORD}|.", re.S)
ENTRY = re.compile(r"""(?:'([^']+)'|"([^"\\]+)")\s*=\s*(?:"([^"]+)"|'([^']+)')\s*(?:#.*)?""")
NAME = re.compile(r"[a-z][a-z-]*")

Command = namedtuple("Command", "file line words inline")
Entry = namedtuple("Entry", "line table form value")


def documents():
    listed = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard", "*.md"], text=True)
    return [file for file in sorted(set(listed.splitlines())) if os.path.exists(file) and not re.match(r"CHANGELOG|docs/adr/", file)]


def unprivileged(words):
    """A command without `sudo` and `env` before it: the same command, by another user."""
    if words[:1] == ["sudo"]:
        words = words[3:] if words[1:2] == ["-u"] else words[1:]
    return words[1:] if words[:1] == ["env"] else words


def simple_commands(text):
    """The simple commands of shell text, each a list of words: without comments, redirections, and the words of loops."""
    words, skip = [], False
    for token in TOKEN.findall(text + "\n;"):
        if token.isspace() or token.startswith("#"):
            continue
        if re.fullmatch(r"\|\||&&|[|&;]", token):
            while words[:1] and words[0] in ("do", "then", "else", "if", "while", "until", "!"):
                words = words[1:]
            words = unprivileged(words)
            if words and words[0] not in ("for", "done", "fi", "export"):
                yield words
            words, skip = [], False
        elif re.fullmatch(r"\d?(>>|>|<)", token):
            skip = True
        elif skip:
            skip = False
        else:
            word = re.sub(r"""^(["'])([^"']*)\1$""", r"\2", token)
            words.append(re.sub(r"^target/\w+/(?=paceline)", "", word))


def prose(lines):
    """Numbers and lines of the text, and of the blocks of commands as (number, lines)."""
    text, blocks, block, fence, item = [], [], None, None, False
    for number, line in enumerate(lines, 1):
        opened = re.match(r"\s*(```+|~~~+)\s*(\S*)", line)
        if fence:
            if opened and opened[1].startswith(fence) and not opened[2]:
                fence = None
            elif block is not None:
                block.append(line)
            text.append("")
        elif opened:
            fence, block = opened[1], None
            if opened[2] in ("", "sh"):
                block = []
                blocks.append((number + 1, block))
            text.append("")
        elif line.startswith("    ") and not item and not (text and text[-1].strip()):
            if not (blocks and blocks[-1][0] + len(blocks[-1][1]) == number):
                blocks.append((number, []))
            blocks[-1][1].append(line)
            text.append("")
        else:
            if line.strip():
                item = bool(re.match(r"\s*([-*]|\d+\.) |\s+\S", line))
            text.append(line)
    return text, blocks


def commands(file):
    with open(file, encoding="utf-8") as source:
        text, blocks = prose(source.read().split("\n"))
    for first, lines in blocks:
        number, joined = first, ""
        for offset, line in enumerate(lines):
            joined += line
            if joined.endswith("\\"):
                joined = joined[:-1] + " "
                continue
            yield from (Command(file, number, words, False) for words in simple_commands(joined))
            number, joined = first + offset + 1, ""
    whole = "\n".join(text)
    for code in re.finditer(r"(?<!`)`((?:[^`\n]|\n(?!\s*\n))+)`(?!`)", whole):
        for words in simple_commands(code[1].replace("\\|", "|")):
            program = next((word for word in words if not ASSIGNMENT.match(word)), "")
            if PROGRAMS.fullmatch(program):
                yield Command(file, whole.count("\n", 0, code.start()) + 1, words, True)


def entries(faults):
    if not os.path.exists(LIST):
        faults.append(f"{LIST}: expected the list of the documented commands, found no such file")
        return
    table = None
    with open(LIST, encoding="utf-8") as source:
        for number, line in enumerate(map(str.strip, source), 1):
            head, entry = re.fullmatch(r"\[(\w+)\]", line), ENTRY.fullmatch(line)
            if head:
                table = head[1]
            elif entry and table in ("run", "not_run"):
                yield Entry(number, table, tuple((entry[1] or entry[2]).split()), entry[3] or entry[4])
            elif line and not line.startswith("#"):
                faults.append(f"{LIST}:{number}: expected [run], [not_run], or in one of them 'COMMAND' = \"VALUE\" on one line, found: {line}")


def word_fits(form, word):
    """A `*` stands for one or more characters, but never hides a flag."""
    if form.startswith("*") and word.startswith("-"):
        return False
    return re.fullmatch(".+".join(map(re.escape, form.split("*"))), word, re.S) is not None


def fits(form, words):
    if form[-1] == "...":
        form, words = form[:-1], words[:len(form) - 1]
    return len(form) == len(words) and all(map(word_fits, form, words))


def is_name_of(form, words):
    """Inline code that names a command by its first words."""
    words = words[:-1] if words[-1] == "…" else words
    form = form[:-1] if form[-1] == "..." else form
    return len(words) < len(form) and all(map(word_fits, form, words))


def proposal(words):
    """The entry that would fit: subcommands and flags as they are, a star for each value."""
    form, before_flags = [], True
    for index, word in enumerate(words):
        flag = word.startswith("-")
        before_flags &= not flag
        if "=" in word and "*" not in word.split("=")[0]:
            form.append(word.split("=")[0] + "=*")
        elif flag or not form or not PROGRAMS.search(" ".join(words[:index])) or before_flags and NAME.fullmatch(word):
            form.append(word)
        else:
            form.append("*")
    return " ".join(form)


def pieces(form):
    """The fixed parts of an entry that a test has to have, without the program."""
    program = next((index for index, word in enumerate(form) if not ASSIGNMENT.match(word)), 0)
    for index, word in enumerate(form):
        if index != program and word != "...":
            yield from (part for part in re.split(r"[*=/]+", word) if len(part) > 1)


def without_comments(text):
    return re.sub(r"(?m)^\s*(//|#(?!\[)).*$", "", text)


def recipes():
    """Names of the rules in the Makefile, and its variables."""
    if not os.path.exists("Makefile"):
        return [], []
    with open("Makefile", encoding="utf-8") as source:
        text = source.read()
    return re.findall(r"(?m)^([a-z][\w-]*):(?!=)", text), re.findall(r"(?m)^([A-Z_]+)\s*[:?]?=", text)


def scripts_of_ci():
    """`.ci/run`, the scripts of its recipes, and those that these name."""
    with open(".ci/run", encoding="utf-8") as source:
        text = source.read()
    scripts = {".ci/run", *(f"scripts/{name}.sh" for name in re.findall(r"\bmake ([a-z][\w-]*)", text))}
    for script in filter(os.path.exists, list(scripts)):
        with open(script, encoding="utf-8") as source:
            scripts.update(re.findall(r"\bscripts/[\w-]+\.sh\b", source.read()))
    return scripts


def runner_fault(entry):
    """What is wrong with the tests that an entry of [run] names. The words of the command have to be in one of the files."""
    for value in entry.value.split(", "):
        file, _, test = value.partition("::")
        if not os.path.isfile(file):
            return f"expected FILE::TEST, or a script that .ci/run runs, found no file {file}"
        with open(file, encoding="utf-8") as source:
            text = source.read()
        if file.endswith(".rs"):
            found = re.search(rf"((?:^\s*(?:#\[.*\]|//.*)\n)+)\s*(?:async )?fn {re.escape(test)}\(\)", text, re.M) if test else None
            if not found or not re.search(r"#\[(tokio::)?test\b", found[1]):
                return f"expected a test of {file}, found none with the name {test!r}"
            ignored = re.search(r'#\[ignore = "(needs|by hand:)', found[1])
            if ignored:
                return f"expected a test that a recipe runs, found {test}, which is ignored: {ignored[1]} ..."
        elif file.endswith(".py"):
            naming = subprocess.run(["git", "grep", "-q", "--untracked", "-F", os.path.basename(file), "--", "*.rs"], check=False)
            if naming.returncode != 0:
                return f"expected a script that a test in Rust names, found {file}"
        elif file not in scripts_of_ci():
            return f"expected a test, or a script that .ci/run runs, found {file}"
        code = without_comments(text)
        missing = [part for part in pieces(entry.form) if not re.search(rf"(?<![\w-]){re.escape(part)}(?![\w-])", code)]
        if not missing:
            return None
    return f"expected that {entry.value} has all words of the command, found nothing of {', '.join(missing)}"


def entry_fault(entry):
    if entry.form[0] == "*" or entry.form[0] == "...":
        return "expected a program first"
    program = next((word for word in entry.form if not ASSIGNMENT.match(word)), "")
    if program == "paceline" and "..." in entry.form:
        return "expected every word and flag of a command of ours, found '...'"
    if entry.table == "run":
        return runner_fault(entry)
    if len(entry.value.split()) < 3:
        return f"expected a reason in a few words, found {entry.value!r}"
    return None


def package_fault(words):
    """The package and target of `cargo ... -p PACKAGE --example NAME` exist."""
    if "-p" not in words[:-1]:
        return None
    package = words[words.index("-p") + 1]
    for manifest in subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard", "*Cargo.toml"], text=True).splitlines():
        if os.path.exists(manifest):
            with open(manifest, encoding="utf-8") as source:
                text = source.read()
            if re.search(rf'(?m)^name = "{re.escape(package)}"', text.partition("\n\n")[0]):
                break
    else:
        return f"expected a package of the workspace, found {package}"
    folder = os.path.dirname(manifest)
    for kind, place in (("--example", "examples"), ("--bench", "benches"), ("--test", "tests")):
        if kind in words[:-1]:
            name = words[words.index(kind) + 1]
            declared = re.search(rf'\[\[{kind[2:]}\]\]\nname = "{re.escape(name)}"', text)
            if not declared and not any(os.path.exists(f"{folder}/{place}/{name}{end}") for end in (".rs", "/main.rs")):
                return f"expected a target of {package}, found {kind} {name}"
    return None


def document_fault(command, rules, variables, folders):
    """Recipes, packages and files that a command names have to be there."""
    words = [word for word in command.words if not ASSIGNMENT.match(word)]
    if words[:1] == ["make"]:
        unknown = [word for word in words[1:] if not word.startswith(("-", "…")) and word not in rules]
        unknown += [word for word in command.words if ASSIGNMENT.match(word) and word.split("=")[0] not in variables]
        if unknown:
            return f"expected recipes and variables of the Makefile, found {', '.join(unknown)}"
    if words[:1] == ["cargo"] and package_fault(words):
        return package_fault(words)
    for word in words + [word.partition("=")[2] for word in command.words if ASSIGNMENT.match(word)]:
        if word.split("/")[0] in folders and "/" in word and not glob.glob(word):
            return f"expected a file of the repository, found {word}"
    return None


def main():
    arguments = [word for word in sys.argv[1:] if word != "--list"]
    os.chdir(arguments[0] if arguments else os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    faults = []
    listed = list(entries(faults))
    faults += [f"{LIST}:{entry.line}: {fault}" for entry in listed if (fault := entry_fault(entry))]
    not_run = sum(entry.table == "not_run" for entry in listed)
    if not_run > MOST_NOT_RUN:
        faults.append(f"{LIST}: expected at most {MOST_NOT_RUN} commands in [not_run], found {not_run}; let a test run one")
    rules, variables = recipes()
    tracked = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], text=True).splitlines()
    folders = {file.split("/")[0] for file in tracked if "/" in file} - {"target"}
    used, lines = set(), []
    for command in (each for file in documents() for each in commands(file)):
        place, text = f"{command.file}:{command.line}", " ".join(command.words)
        found = [entry for entry in listed if fits(entry.form, command.words)]
        used.update(found[:1])
        named = command.inline and (len(command.words) == 1 or any(is_name_of(entry.form, command.words) for entry in listed))
        lines.append(f"{place}: {text} → {f'{LIST}:{found[0].line}' if found else 'a name' if named else 'nothing'}")
        if len(found) > 1:
            faults.append(f"{place}: expected one entry for `{text}`, found lines {', '.join(str(entry.line) for entry in found)} of {LIST}")
        elif not found and not named:
            faults.append(
                f"{place}: no test is known to run `{text}`. Add one line to {LIST}, with * for each value, either under [run]\n"
                f"    '{proposal(command.words)}' = \"tests/FILE.rs::TEST\"\n"
                f"  or under [not_run] with the reason in the place of the test. If this is no command, mark its block as ```text"
            )
        elif fault := document_fault(command, rules, variables, folders):
            faults.append(f"{place}: `{text}`: {fault}")
    faults += [
        f"{LIST}:{entry.line}: no document has a command like `{' '.join(entry.form)}`: remove the line"
        for entry in listed
        if entry not in used
    ]
    if "--list" in sys.argv:
        print("\n".join(lines))
    sys.exit("\n".join(faults) if faults else 0)


main()
