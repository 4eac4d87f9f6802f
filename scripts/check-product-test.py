#!/usr/bin/env python3
"""Proves that the checks of names, files of models, rooms, public items and words find what they are for, and nothing else."""
import os
import re
import unittest

from planted import report

FOLDER = os.path.dirname(os.path.abspath(__file__))
LIB = "pub mod a;\npub mod b;\n"


def constant(script, name):
    with open(os.path.join(FOLDER, script), encoding="utf-8") as source:
        return int(re.search(rf"^{name} = (\d+)$", source.read(), re.M)[1])


class Names(unittest.TestCase):
    MOST = constant("check-names.py", "MOST")

    def faults(self, a="", b="", names=MOST, **others):
        """A crate whose modules `a` and `b` have types with the same names: one more, with `a` and `b`, is too many."""
        common = "".join(f"struct N{at};\n" for at in range(names))
        files = {"lib": LIB, "a": common + a, "b": common + b, **others}
        return report("check-names.py", {f"crate/src/{name}.rs": text for name, text in files.items()})

    def test_one_name_more_than_before(self):
        self.assertEqual("", self.faults())
        self.assertIn(f"found {self.MOST + 1}", self.faults(names=self.MOST + 1))
        for a, b in (("pub enum X {}\n", "trait X {}\n"), ("pub type X = u8;\n", "fn f() { struct X; }\n"), ("mod m { type X = u8; }\n", "struct X;\n")):
            self.assertIn(f"found {self.MOST + 1}", self.faults(a, b))

    def test_types_of_traits_twins_of_systems_and_tests_do_not_count(self):
        impl = "impl Iterator for N0 {\n    type Item = u8;\n}\n"
        self.assertEqual("", self.faults(impl, impl))
        twins = '#[cfg(unix)]\nmod host;\n#[cfg(not(unix))]\n#[path = "elsewhere.rs"]\nmod host;\n'
        self.assertEqual("", self.faults(lib=LIB + twins, host="struct X;\n", elsewhere="struct X;\n"))
        self.assertEqual("", self.faults("struct X;\n", "#[cfg(test)]\nmod tests {\n    struct X;\n}\n"))

    def test_examples_and_the_crate_of_tests_are_no_product(self):
        files = {f"{room}/src/lib.rs": "".join(f"struct N{at};\n" for at in range(self.MOST + 1)) for room in ("a", "tests", "examples/b", "fuzz")}
        self.assertEqual("", report("check-names.py", files))


class ModelFiles(unittest.TestCase):
    def faults(self, text, room="text"):
        return report("check-model-files.py", {f"{room}/src/lib.rs": text})

    def test_a_name_of_a_models_file_outside_its_room(self):
        for name in ("config.json", "tokenizer.json", "model.safetensors.index.json"):
            spelled = f'const X: &str = "{name}";\n'
            self.assertIn(f'text/src/lib.rs:1: expected a name of checkpoint::files, found "{name}"', self.faults(spelled))
            self.assertEqual("", self.faults(spelled, "checkpoint"))
            self.assertEqual("", self.faults(f"#[cfg(test)]\nmod tests {{\n    {spelled}}}\n"))
        self.assertEqual("", self.faults('// "config.json"\nconst X: &str = "no config.json";\n'))

    def test_a_worker_that_is_asked_what_a_model_takes(self):
        for flag in ("--inspect", "--image-limits"):
            asked = f'const X: &str = "{flag}";\n'
            self.assertIn(f'text/src/lib.rs:1: expected checkpoint::plan to be asked, found "{flag}"', self.faults(asked))
        self.assertEqual("", self.faults('const X: &str = "--device";\n'))

    def test_a_fact_of_one_family_outside_its_row(self):
        for fact in ('fn x(n: &str) -> bool { n.starts_with("gemma4") }\n', "const QWEN: Unserved = Unserved {};\n"):
            self.assertIn("models/src/lib.rs:1: expected it in checkpoint::families", self.faults(fact, "models"))
            self.assertEqual("", self.faults(fact, "checkpoint"))


class Rooms(unittest.TestCase):
    MOST = constant("check-rooms.py", "MOST_OF_A_ROOM")

    def faults(self, lines, more=""):
        """A room of this number of lines beside rooms that have the rest of 100."""
        rest = [10] * ((100 - lines) // 10) + [(100 - lines) % 10]
        rooms = {"big": "x();\n" * lines + more} | {f"room{at}": "x();\n" * count for at, count in enumerate(rest)}
        return report("check-rooms.py", {f"{room}/src/lib.rs": text for room, text in rooms.items()})

    def test_a_room_above_its_share(self):
        self.assertEqual("", self.faults(self.MOST))
        self.assertIn(f"big: {self.MOST + 1}.0 % of the production lines, expected at most {self.MOST} %", self.faults(self.MOST + 1))

    def test_comments_count_and_tests_do_not(self):
        self.assertIn("big", self.faults(self.MOST, "// A line.\n"))
        self.assertEqual("", self.faults(self.MOST, "#[cfg(test)]\nmod tests {\n" + "x();\n" * 50 + "}\n"))

    def test_files_of_tests_do_not_count(self):
        files = {f"room{at}/src/lib.rs": "x();\n" * 10 + "#[cfg(test)] mod tests;\n" for at in range(10)}
        self.assertEqual("", report("check-rooms.py", files | {"room0/src/tests.rs": "x();\n" * 100}))


class Items(unittest.TestCase):
    def faults(self, a, b="", **others):
        files = {"src/lib": LIB, "src/a": a, "src/b": b, **{name.replace("__", "/"): text for name, text in others.items()}}
        return report("check-dead-items.py", {f"crate/{name}.rs": text for name, text in files.items()})

    def test_an_item_that_nothing_names(self):
        for kind, item in (("fn", "pub const fn Dead() {}\n"), ("struct", "pub struct Dead;\n"), ("const", "pub const Dead: u8 = 1;\n")):
            self.assertIn(f"crate/src/a.rs:1: pub {kind} Dead: nothing names it", self.faults(item))
            self.assertIn("nothing names it", self.faults(item, "// Dead\nfn f() { g(\"Dead\"); }\n"))
            self.assertIn("nothing names it", self.faults(item, "pub use crate::a::Dead;\n"))
            self.assertEqual("", self.faults(item, "use crate::a::Dead;\n"))

    def test_a_method_that_nothing_names(self):
        self.assertIn("a.rs:3: pub fn dead", self.faults("struct A;\nimpl A {\n    pub fn dead(&self) {}\n}\n"))

    def test_an_item_that_only_its_own_file_names(self):
        self.assertIn("pub fn f: only its own file names it", self.faults("pub fn f() {}\nfn g() { f() }\n"))
        self.assertIn("pub struct F: only its own file names it", self.faults("pub struct F;\nimpl F {}\nfn g(_: F) {}\n"))

    def test_a_type_in_something_public(self):
        g = "pub fn g() -> F { F }\n"
        self.assertEqual("", self.faults("pub struct F;\n" + g, "use crate::a::g;\n"))
        self.assertEqual("", self.faults("pub struct F;\npub struct G { pub f: F }\n", "use crate::a::G;\n"))
        self.assertEqual("", self.faults("pub struct F;\nimpl Iterator for G { type Item = F; }\n"))
        self.assertIn("pub struct F", self.faults("pub struct F;\n#[cfg(test)]\n" + g, "use crate::a::g;\n"))

    def test_names_in_format_strings_and_attributes(self):
        self.assertEqual("", self.faults("pub const MOST: u8 = 1;\n", 'fn f() { println!("at most {MOST}"); }\n'))
        self.assertEqual("", self.faults("pub fn one() {}\n", '#[serde(default = "one")]\nstruct S;\n'))

    def test_an_item_that_only_tests_name(self):
        tests = {"tests__x": "fn t() { f(); }\n"}
        self.assertIn("pub fn f: only tests name it", self.faults("pub fn f() {}\n", **tests))
        self.assertIn("only tests name it", self.faults("pub fn f() {}\n", "#[cfg(test)]\nmod tests {\n    use crate::a::f;\n}\n"))
        self.assertEqual("", self.faults("/// Does it. For tests.\n#[inline]\npub fn f() {}\n", **tests))
        self.assertEqual("", self.faults("//! Samples for tests.\n\npub fn f() {}\n", **tests))
        self.assertEqual("", self.faults("#[cfg(test)]\npub fn f() {}\n", **tests))
        self.assertEqual("", self.faults("pub fn f() {}\nfn g() { f() }\n", **tests))

    def test_a_line_of_the_list_that_is_not_needed(self):
        self.assertIn("remove the line", report("check-dead-items.py", {"models/src/families/mod.rs": "", "models/src/lib.rs": "mod families;\n"}))


class Words(unittest.TestCase):
    def faults(self, text, file="src/lib.rs"):
        return report("check-words.py", {file: text})

    def test_comments_of_all_languages_and_documents(self):
        for file, text in (
            ("a.rs", "x(); // Somebody asks.\n"),
            ("a.rs", "/* In a block:\n   somebody asks. */\n"),
            ("a.rs", "/// A sentence that ends with some\nfn f() {} //! somebody\n"),
            ("a.proto", "// Somebody asks.\n"),
            ("a.sh", "# Somebody asks.\n"),
            ("a.py", "x = 1  # Somebody asks.\n"),
            ("a.toml", "a = 1 # somebody\n"),
            ("a.md", "# Title\n\n| asked by somebody |\n"),
        ):
            self.assertIn("'somebody': write which process", self.faults(text, file))

    def test_a_phrase_in_two_lines(self):
        self.assertIn("src/lib.rs:2: 'so many'", self.faults("fn f() {}\n/// Parts of so\n/// many rows.\n"))
        self.assertIn("a.md:1: 'so many'", self.faults("parts of so\nmany rows\n", "a.md"))

    def test_a_word_at_the_head_of_a_doc_comment(self):
        self.assertIn("src/lib.rs:2: '^which'", self.faults("fn f() {}\n    /// Which keys.\n"))
        self.assertEqual("", self.faults("/// The keys\n/// which it has.\nfn f() {}\n// Which keys.\n"))

    def test_names_of_tests(self):
        for attributes in ("#[test]\n", "#[tokio::test(start_paused = true)]\nasync ", '#[test]\n#[ignore = "more: pip"]\n// Slow.\n'):
            self.assertIn("'whoever'", self.faults(f"{attributes}fn whoever_asks_gets_it() {{}}\n"))
        self.assertIn("'whoever'", self.faults("def test_whoever_asks():\n    pass\n", "a.py"))

    def test_code_does_not_count(self):
        self.assertEqual("", self.faults('fn somebody() { g("// somebody", somebody); } // `somebody`\n'))
        self.assertEqual("", self.faults("```\nsomebody\n```\nsays `somebody`\n", "a.md"))
        self.assertEqual("", self.faults('x = "somebody"\n', "a.py"))
        self.assertEqual("", self.faults("// Seat so. Many do; so\nfn many() {}\n// so `x` many\n"))


unittest.main()
