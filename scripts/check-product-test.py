#!/usr/bin/env python3
"""Proves that the checks of names and rooms find what they are for, and nothing else."""
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


unittest.main()
