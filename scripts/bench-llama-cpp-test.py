#!/usr/bin/env python3
"""Tests of what the comparison with llama.cpp computes and refuses, without llama.cpp and without Paceline."""
import json, os, pathlib, struct, sys, tempfile, unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from peers import processor, weights

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


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(path, tensors, alignment=32):
    """A file with metadata of several kinds, and tensors of so many bytes."""
    words = text("words") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("bc")
    numbers = text("numbers") + struct.pack("<IIQ3f", 9, 6, 3, 1, 2, 3)
    single = text("name") + struct.pack("<I", 8) + text("x") + text("flag") + struct.pack("<IB", 7, 1)
    aligned = text("general.alignment") + struct.pack("<II", 4, alignment)
    head, data = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 5) + words + numbers + single + aligned, b""
    for name, size in tensors.items():
        head += text(name) + struct.pack("<IQQIQ", 2, 32, size, 0, len(data))
        data += bytes(size)
        data += bytes(-len(data) % alignment)
    path.write_bytes(head + bytes(-len(head) % alignment) + data)


def safetensors(path, tensors):
    at, header = 0, {"__metadata__": {"format": "pt"}}
    for name, size in tensors.items():
        header[name] = dict(dtype="U8", shape=[size], data_offsets=[at, at + size])
        at += size
    head = json.dumps(header).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + bytes(at))


def new_folder(case):
    folder = tempfile.TemporaryDirectory()
    case.addCleanup(folder.cleanup)
    return pathlib.Path(folder.name)


class Weights(unittest.TestCase):
    def setUp(self):
        self.folder = new_folder(self)

    def test_an_embedding_is_read_by_a_token_only_if_it_is_the_head(self):
        file = self.folder / "x.gguf"
        layer = {"token_embd.weight": 640, "blk.0.attn_output.weight": 64}
        for alignment in (32, 64):
            gguf(file, layer, alignment)
            self.assertEqual(weights.token_bytes(file), 704)
            gguf(file, {**layer, "output.weight": 1280}, alignment)
            self.assertEqual(weights.token_bytes(file), 1344)

    def test_a_checkpoint_may_have_several_files(self):
        safetensors(self.folder / "model-1.safetensors", {"model.embed_tokens.weight": 100, "model.embed_tokens.scales": 10})
        safetensors(self.folder / "model-2.safetensors", {"model.layers.0.self_attn.o_proj.weight": 7})
        self.assertEqual(weights.token_bytes(self.folder), 117)
        safetensors(self.folder / "model-3.safetensors", {"lm_head.weight": 200})
        self.assertEqual(weights.token_bytes(self.folder), 207)


if __name__ == "__main__":
    unittest.main()
