#!/usr/bin/env python3
"""Proves that the checks of documents (check-commands.py, check-figures.py, check-settings.py) find what they are for, and nothing else:
small checkouts with planted faults."""
import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "check-commands.py")
LIST = "tests/commands.toml"
TEST = '#[test]\n// Longer than 60 lines: no.\n#[cfg(unix)]\nfn it_runs() {\n    run(&["status", "--json", "drafter", "swap", "--model"]);\n}\n'
STATUS = "'paceline status --json' = \"tests/x.rs::it_runs\"\n"
SWAP = "'paceline drafter swap --model *' = \"tests/x.rs::it_runs\"\n"


def block(*lines, mark=""):
    return "\n".join([f"```{mark}", *lines, "```", ""])


def faults(document, run="", not_run="", code=TEST, **files):
    """The report on a checkout with this document, this list, and a file of tests."""
    others = {name.replace("__", "/"): text for name, text in files.items()}
    written = {"README.md": document, "tests/x.rs": code, **others}
    if run is not None:
        written[LIST] = f"# Rules\n[run]\n{run}[not_run]\n{not_run}"
    with tempfile.TemporaryDirectory() as folder:
        for name, text in written.items():
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        subprocess.run(["git", "init", "-q", folder], check=True)
        done = subprocess.run([sys.executable, "-B", SCRIPT, folder], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if done.returncode not in (0, 1) or "Traceback" in done.stderr or (done.returncode == 1) != bool(done.stderr):
            raise AssertionError(f"expected a report, found code {done.returncode} and: {done.stderr}")
        return done.stderr


class Figures(unittest.TestCase):
    README = "x\n\n| over llama.cpp | AVX-512 | AVX2 |\n|---|---|---|\n| one stream | 1.35 | 0.86 |\n| 8 streams | 1.80 | not measured |\n\ny\n"
    MEASURED = "| what | goal | measured |\n| one stream | 1 | **1.35** (1 to 2) |\n| one stream, AVX2 | 1 | 0.86 |\n| 8 streams | 2 | 1.80 |\n"

    def report(self, readme, measured):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "docs"))
            for name, text in (("README.md", readme), ("docs/performance.md", measured)):
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write(text)
            script = os.path.join(os.path.dirname(SCRIPT), "check-figures.py")
            done = subprocess.run([sys.executable, "-B", script, folder], text=True, capture_output=True)
            self.assertIn(done.returncode, (0, 1), done.stderr)
            return done.stderr

    def test_a_figure_that_is_not_the_measured_one_is_found(self):
        self.assertEqual(self.report(self.README, self.MEASURED), "")
        for wrong, name in (("1.36", "one stream, AVX-512"), ("0.9", "one stream, AVX2")):
            right = "1.35" if name.endswith("512") else "0.86"
            self.assertIn(f"{name}: {wrong}", self.report(self.README.replace(right, wrong), self.MEASURED))
        self.assertIn("no such row", self.report(self.README, self.MEASURED.replace("8 streams", "9 streams")))
        self.assertIn("expected one table", self.report("x", self.MEASURED))


class Settings(unittest.TestCase):
    EXAMPLE = '# Every setting.\n\n[log]\nlevel = "info"    # error | warn\n                  # or a filter\n\n[classes]         # name = label\n'
    PAGE = "# Settings\n\n<!-- Begin: made of paceline.example.toml by scripts/check-settings.py --write -->\n<!-- End -->\n\nMore.\n"

    def report(self, example, *arguments):
        """The report on this example file and the page of the last call."""
        for name, text in (("paceline.example.toml", example), ("docs/settings.md", self.page)):
            os.makedirs(os.path.dirname(os.path.join(self.folder, name)), exist_ok=True)
            with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
                file.write(text)
        script = os.path.join(os.path.dirname(SCRIPT), "check-settings.py")
        done = subprocess.run([sys.executable, "-B", script, self.folder, *arguments], text=True, capture_output=True)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        with open(os.path.join(self.folder, "docs/settings.md"), encoding="utf-8") as file:
            self.page = file.read()
        return done.stderr

    def test_a_setting_that_the_page_has_otherwise_is_found_and_written(self):
        self.page = self.PAGE
        with tempfile.TemporaryDirectory() as self.folder:
            self.assertIn("### log", self.report(self.EXAMPLE))
            self.assertEqual(self.report(self.EXAMPLE, "--write"), "")
            self.assertIn('| `log.level` | `"info"` | error \\| warn; or a filter |\n', self.page)
            self.assertIn("`[classes]`: name = label.\n", self.page)
            self.assertTrue(self.page.endswith("\n\nMore.\n"), self.page)
            self.assertEqual(self.report(self.EXAMPLE), "")
            self.assertIn('`"warn"`', self.report(self.EXAMPLE.replace('"info"', '"warn"')))
            self.assertIn("paceline.example.toml:4: expected KEY = VALUE", self.report(self.EXAMPLE.replace("# error", "error")))
            self.page = "# Settings\n"
            self.assertIn("expected the lines", self.report(self.EXAMPLE))


class Documents(unittest.TestCase):
    def test_more_than_fifteen_commands_that_no_test_runs_are_a_fault(self):
        commands = [f"make r{number}" for number in range(16)]
        rules = "".join(f"r{number}:\n" for number in range(16))
        listed = [f"'{command}' = \"takes hours by design\"\n" for command in commands]
        for count in (15, 16):
            report = faults(block(*commands[:count]), not_run="".join(listed[:count]), Makefile=rules)
            self.assertEqual("expected at most 15 commands" in report, count == 16, report)

    def found(self, document, *commands):
        """Exactly these commands are found missing."""
        report = faults(document)
        lines = [line for line in report.split("\n") if "no test is known" in line]
        self.assertEqual([f"`{command}`" in line for command, line in zip(commands, lines)], [True] * len(commands), report)
        self.assertEqual(len(lines), len(commands), report)

    def test_a_command_of_a_block_and_of_inline_code(self):
        self.found(block("paceline status --json  # all") + "Or `paceline drafter\nstop`.\n", "paceline status --json", "paceline drafter stop")
        self.found(block("brew install x", mark="sh"), "brew install x")

    def test_the_report_has_the_line_to_add(self):
        report = faults("\n" + block("target/release/paceline drafter swap --model DIR --timeout=5"))
        self.assertIn("README.md:3: no test is known to run `paceline drafter swap --model DIR --timeout=5`", report)
        self.assertIn(f"Add one line to {LIST}", report)
        self.assertIn("'paceline drafter swap --model * --timeout=*' = \"tests/FILE.rs::TEST\"", report)

    def test_prose_output_settings_and_programs_alone_are_no_commands(self):
        text = "`paceline`, `paceline/run`, `status`, `paceline.toml` and `PACELINE_CONFIG=x`\n"
        self.assertEqual("", faults(text + block("paceline sings", mark="text") + block("a = 1", mark="toml")))

    def test_the_past_is_not_read(self):
        self.assertEqual("", faults("", **{"CHANGELOG.md": "`make gone`", "docs__adr__1.md": "`make gone`"}))
        self.assertIn("docs/x.md:1", faults("", **{"docs__x.md": "`make gone`"}))

    def test_shell_text_is_taken_apart(self):
        self.found(block("a && b 'x y' | c", "for p in a b; do", "  d $p", "done", "e \\", "  f > g", "export H=i"), "a", "b x y", "c", "d $p", "e f")
        self.found(block("A=1 paceline status"), "A=1 paceline status")
        self.found(block("sudo -u x env B=2 paceline events", "sudo paceline drain"), "B=2 paceline events", "paceline drain")
        self.found(block("w=$(ls x | head -n 1)   # Linux"), "w=$(ls x | head -n 1)")

    def test_indented_code_but_no_lists(self):
        self.found("Text:\n\n    a b\n    c d\n\ntext\n", "a b", "c d")
        self.assertEqual("", faults("- an item\n\n    of two paragraphs\n\ntext\n    and more\n"))


class Entries(unittest.TestCase):
    def test_a_run_command(self):
        self.assertEqual("", faults(block("paceline drafter swap --model DIR", "paceline status --json"), SWAP + STATUS))

    def test_a_star_is_one_word_and_no_flag(self):
        for line in ("paceline drafter swap --model A B", "paceline drafter swap --model", "paceline drafter swap --model --now"):
            self.assertIn(f"`{line}`", faults(block(line), SWAP))

    def test_a_name_needs_no_entry_but_a_longer_command_does(self):
        self.assertEqual("", faults("`paceline drafter` and `paceline drafter …`\n" + block("paceline drafter swap --model X"), SWAP))
        self.assertIn("`paceline drafter`", faults(block("paceline drafter", "paceline drafter swap --model X"), SWAP))
        self.assertIn("`paceline drafters`", faults("`paceline drafters`\n" + block("paceline drafter swap --model X"), SWAP))

    def test_a_command_that_no_document_has(self):
        self.assertIn(f"{LIST}:3: no document has a command like `paceline status --json`", faults("", STATUS))

    def test_two_entries_for_one_command(self):
        self.assertIn("expected one entry", faults("`paceline status --json`", STATUS + STATUS))

    def test_a_test_that_is_not_there(self):
        for test in ("tests/x.rs::it_ran", "tests/x.rs", "tests/y.rs::it_runs", "tests/x.rs::run"):
            self.assertIn(f"{LIST}:3: expected", faults("`paceline status --json`", STATUS.replace("tests/x.rs::it_runs", test)))

    def test_a_function_that_is_no_test(self):
        self.assertIn("none with the name 'it_runs'", faults("`paceline status --json`", STATUS, code=TEST.replace("#[test]", "#[inline]")))

    def test_a_test_that_no_recipe_runs(self):
        for reason, bad in (("needs a GPU", True), ("by hand: prints", True), ("more: minutes", False)):
            code = TEST.replace("#[cfg(unix)]", f'#[ignore = "{reason}"]')
            self.assertEqual(bad, "which is ignored" in faults("`paceline status --json`", STATUS, code=code))

    def test_a_test_without_the_words_of_the_command(self):
        self.assertIn("found nothing of --json", faults("`paceline status --json`", STATUS, code=TEST.replace('"--json"', '"--jsonl"')))
        self.assertIn("found nothing of --json", faults("`paceline status --json`", STATUS, code=TEST.replace('"--json",', "") + "// --json\n"))

    def test_a_reason_of_some_words(self):
        self.assertEqual("", faults(block("brew install x"), "", "'brew ...' = \"changes the machine\"\n"))
        self.assertIn("expected a reason", faults(block("brew install x"), "", "'brew ...' = \"TODO\"\n"))

    def test_no_open_end_for_commands_of_ours(self):
        self.assertIn("expected every word and flag", faults("`paceline status --json`", "", "'paceline ...' = \"for no reason at all\"\n"))

    def test_a_line_that_is_no_entry(self):
        for line in ("paceline status = 'x'", "'paceline status' = 1", "[other]\n'a' = \"b c d\""):
            self.assertIn("expected [run], [not_run]", faults("", line + "\n"))

    def test_no_list(self):
        self.assertIn("expected the list of the documented commands", faults("", None))

    def test_scripts_that_ci_runs(self):
        ci, script = "make test\n", "sh scripts/fetch.sh\n"
        files = {"Makefile": "test:\n\tx\nfetch:\n\tx\n", ".ci__run": ci, "scripts__test.sh": script, "scripts__fetch.sh": "", "scripts__other.sh": "test\n"}
        self.assertEqual("", faults("`make test` and `make fetch`", "'make test' = \".ci/run\"\n'make fetch' = \"scripts/test.sh\"\n", **files))
        self.assertIn("a script that .ci/run runs", faults("`make test`", "'make test' = \"scripts/other.sh\"\n", **files))

    def test_scripts_in_python_that_a_test_names(self):
        entry = "'llm -m paceline' = \"tests/llm.py\"\n"
        script = {"tests__llm.py": 'run("llm", "-m", "paceline")\n'}
        self.assertIn("that a test in Rust names", faults("`llm -m paceline`", entry, **script))
        self.assertEqual("", faults("`llm -m paceline`", entry, code='const SCRIPT: &str = "llm.py";\n', **script))


class Named(unittest.TestCase):
    """What a command names has to be there."""

    def check(self, command, expected, **files):
        report = faults(f"`{command}`", "", f"'{command}' = \"for the best of reasons\"\n", **files)
        self.assertEqual(bool(expected), bool(report), report)
        self.assertIn(expected, report)

    def test_recipes_and_variables_of_the_makefile(self):
        make = {"Makefile": "A = 1\ntest: setup\n\tx\n"}
        self.check("make test A=2", "", **make)
        self.check("make tests", "expected recipes and variables of the Makefile, found tests", **make)
        self.check("make test B=2", "found B=2", **make)

    def test_packages_and_their_targets(self):
        files = {"a__Cargo.toml": '[package]\nname = "a"\n\n[[example]]\nname = "x"\npath = "x.rs"\n', "a__benches__y.rs": ""}
        self.check("cargo run -p a --example x", "", **files)
        self.check("cargo bench -p a --bench y", "", **files)
        self.check("cargo bench -p a --bench x", "expected a target of a, found --bench x", **files)
        self.check("cargo run -p b", "expected a package of the workspace, found b", **files)

    def test_files(self):
        self.check("sh tests/x.rs", "")
        self.check("sh tests/y.rs", "expected a file of the repository, found tests/y.rs")
        self.check("sh target/y", "")


unittest.main()
