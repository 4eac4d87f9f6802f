#!/usr/bin/env python3
"""Proves that check-structure.py finds what it is for, and nothing else: small checkouts with planted faults."""
import unittest

from planted import report

LIB = "pub mod a;\npub mod b;\n"
LONG = "pub fn long() {\n" + "    step();\n" * 60 + "}\n"
WIDE = "word " * 40 + "\n"


def faults(files):
    return report("check-structure.py", files)


class Circles(unittest.TestCase):
    def crate(self, a, b, **others):
        parts = {name.replace("__", "/"): text for name, text in others.items()}
        files = {"lib": LIB, "a": a, "b": b, **parts}
        return faults({f"crate/src/{name}.rs": text for name, text in files.items()})

    def test_two_modules_that_use_each_other(self):
        report = self.crate("use crate::b::B;\npub struct A;\n", "pub struct B;\npub fn f(a: super::a::A) {}\n")
        self.assertIn("crate/src: a circle of a, b\n  a → b: crate/src/a.rs:1 names crate::b::B\n", report)
        self.assertIn("  b → a: crate/src/b.rs:2 names super::a::A\n", report)

    def test_a_list_of_names_and_a_module_by_another_name(self):
        self.assertIn("a circle", self.crate("use crate::{b::{self as other, B}};\npub fn a() {}\n", "use super::a as x;\npub struct B;\n"))

    def test_a_part_counts_as_its_module(self):
        self.assertIn("a circle of a, b", self.crate("mod part;\npub struct A;\n", "use crate::a::A;\n", a__part="use crate::b;\n"))

    def test_a_name_that_the_parent_passes_on(self):
        lib = LIB + "pub use a::A;\npub use self::b::*;\n"
        self.assertIn("a circle of a, b", self.crate("use crate::b::B;\npub struct A;\n", "use crate::A;\npub struct B;\n", lib=lib))

    def test_a_path_in_an_attribute(self):
        self.assertIn("a circle", self.crate("use crate::b::B;\n", 'pub struct B;\n#[serde(with = "crate::a::x")]\nstruct C;\n'))

    def test_inline_modules(self):
        self.assertIn("a circle of a::x, a::y", self.crate("mod x { use super::y::Y; struct X; }\nmod y { use super::x::X; struct Y; }\n", ""))

    def test_a_part_may_use_its_parent(self):
        self.assertEqual("", self.crate("mod part;\nuse part::P;\npub struct A;\n", "", a__part="use super::A;\npub struct P;\n"))

    def test_tests_comments_and_strings_do_not_count(self):
        for b in (
            "#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n",
            '#[cfg(all(test, unix))]\n#[path = "x.rs"]\nmod tests;\n',
            "#[cfg(test)]\nuse crate::a::A;\n",
            "#[cfg(test)]\npub fn f(a: [u8; 3]) -> crate::a::A { todo!() }\n",
            "struct S { #[cfg(test)] a: crate::a::A, b: u8 }\n",
            "// use crate::a::A;\n/// [`crate::a::A`]\nconst C: &str = \"see crate::a::A\";\nconst D: char = '\"';\n",
        ):
            self.assertEqual("", self.crate("use crate::b::B;\npub struct A;\n", "pub struct B;\n" + b))


class Functions(unittest.TestCase):
    def lib(self, text):
        return faults({"crate/src/lib.rs": text})

    def test_more_than_60_lines_without_a_reason(self):
        self.assertIn("crate/src/lib.rs:2: fn long has 62 lines", self.lib("/// Steps.\n" + LONG))
        self.assertIn("fn long has 62 lines", self.lib("// Longer than 60 lines:\n" + LONG))
        self.assertIn("fn long has 62 lines", self.lib(LONG.replace("long()", "long<const N: usize>(a: [u8; 3])")))

    def test_a_reason_above_or_first_in_the_body(self):
        reason = "// Longer than 60 lines: one story.\n"
        self.assertEqual("", self.lib(reason + "#[inline]\n" + LONG))
        self.assertEqual("", self.lib(LONG.replace("{\n", "{\n" + reason)))

    def test_60_lines_and_tests_of_any_length(self):
        self.assertEqual("", self.lib(LONG.replace("    step();\n", "", 2)))
        self.assertEqual("", self.lib("#[cfg(test)]\nmod tests {\n" + LONG + "}\n"))


class Markdown(unittest.TestCase):
    def test_a_wide_line(self):
        self.assertIn("docs/x.md:2: 200 columns", faults({"docs/x.md": "\n" + WIDE}))

    def test_rows_of_tables_code_and_links_may_be_wide(self):
        self.assertEqual("", faults({"x.md": f"| {WIDE}\n```\n{WIDE}```\n[link]: {WIDE}\n" + "→" * 160 + "\n"}))
        self.assertIn("x.md:3: 200 columns", faults({"x.md": f"```\n```\n{WIDE}"}))


unittest.main()
