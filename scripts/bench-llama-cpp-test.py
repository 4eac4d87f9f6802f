#!/usr/bin/env python3
"""Tests of what the comparison with llama.cpp computes and refuses, without llama.cpp and without Paceline."""
import os, sys, unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from peers import processor

NATIVE = "CPU : SSE3 = 1 | AVX = 1 | AVX_VNNI = 1 | AVX2 = 1 | FMA = 1 | AVX512 = 1 | AVX512_VNNI = 1 | LLAMAFILE = 1 | "
PLAIN = "CPU : SSE3 = 1 | AVX = 1 | AVX2 = 1 | F16C = 1 | FMA = 1 | AVX512 = 0 | "


class Builds(unittest.TestCase):
    def test_vectors_of_both_must_be_as_wide(self):
        for ours, system in (("avx512", NATIVE), ("avx2", PLAIN), ("neon", "CPU : NEON = 1 | "), ("portable", "CPU : SSE3 = 1 | ")):
            self.assertEqual(processor.difference(ours, system), "", ours)
        self.assertIn("AVX-512 in Paceline and AVX2 in llama.cpp", processor.difference("avx512", PLAIN))
        self.assertIn("AVX2 in Paceline and AVX-512 in llama.cpp", processor.difference("avx2", NATIVE))

    def test_llama_cpp_may_not_lack_products_of_integers_that_paceline_uses(self):
        self.assertEqual(processor.difference("avx512-vnni", NATIVE), "")
        self.assertIn("AVX512_VNNI", processor.difference("avx512-vnni", NATIVE.replace("AVX512_VNNI = 1", "AVX512_VNNI = 0")))
        self.assertIn("AVX_VNNI", processor.difference("avx2, avx-vnni", PLAIN))
        self.assertIn("DOTPROD", processor.difference("neon dotprod", "CPU : NEON = 1 | "))

    def test_a_build_whose_status_does_not_say_chooses_by_the_processor(self):
        avx2 = "flags : fma avx2 f16c avx512f"
        texts = (avx2, avx2 + " avx512bw avx512vl", "Features : fp asimd", "")
        self.assertEqual([processor.chosen(text) for text in texts], ["avx2", "avx512", "neon", "portable"])

    def test_the_name_of_a_processor_has_its_numbers(self):
        text = "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\nstepping\t: 1\n"
        self.assertEqual(processor.name(text), "AMD EPYC (family 25, model 17, stepping 1)")
        self.assertIn("llama.cpp does not use AVX512", processor.instructions(PLAIN, "avx512f"))


if __name__ == "__main__":
    unittest.main()
