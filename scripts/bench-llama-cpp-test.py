#!/usr/bin/env python3
"""Tests of what the comparison with llama.cpp computes and refuses, without llama.cpp and without Paceline."""
import contextlib, io, json, pathlib, struct, sys, tempfile, unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench"))
from peers import llama_table, processor, weights
from peers.cells import CELLS, CODER, GOALS, LLAMA, ONE, PROMPT, QUOTING, SHARE, SMOLLM2, goals, rival, sides
from peers.servers import OURS

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


class Goals(unittest.TestCase):
    def test_the_median_decides_and_a_wide_interval_says_nothing(self):
        near, wide = [1.49, 1.5, 1.5, 1.51, 1.52], [1.0, 1.5, 1.5, 1.6, 2.2]
        self.assertEqual([llama_table.judged(goal, near) for goal in (1.5, 1.51)], ["1.5: met", "1.51: missed"])
        self.assertEqual([llama_table.judged(1.5, values) for values in (wide, [1.6], [])], ["1.5: unknown"] * 3)
        self.assertEqual(llama_table.judged(None, near), "-")
        self.assertEqual(llama_table.shown([1.0, 1.0, 2.0]), "1.00, mean 1.26 (0.47 to 3.41)")
        self.assertEqual(llama_table.shown([1.5]), "1.50, mean 1.50 (one round)")

    def test_goals_belong_to_a_model_and_its_vectors(self):
        with tempfile.TemporaryDirectory() as folder:
            for (kind, hidden), wanted in ((SMOLLM2, GOALS[SMOLLM2][processor.AVX2]), (CODER, GOALS[CODER][processor.AVX2]), (("gemma4", 576), {})):
                (pathlib.Path(folder) / "config.json").write_text(json.dumps(dict(model_type=kind, hidden_size=hidden)))
                self.assertEqual(goals(folder, processor.AVX2), wanted)
                self.assertEqual(goals(folder, processor.NONE), {})
        for by_vectors in GOALS.values():
            for named in by_vectors.values():
                self.assertLessEqual(set(named), {*CELLS, SHARE})


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


class Report(unittest.TestCase):
    def report(self, ours):
        """The report on three rounds in which llama.cpp makes 100 tokens a second."""
        folder = new_folder(self)
        (folder / "config.json").write_text(json.dumps(dict(model_type=SMOLLM2[0], hidden_size=SMOLLM2[1])))
        safetensors(folder / "model.safetensors", {"model.embed_tokens.weight": 10_000_000})
        gguf(folder / "x.gguf", {"token_embd.weight": 8_000_000})
        lines = [dict(about=dict(system=PLAIN, processor="a processor", ours="avx2"))]
        for number in range(3):
            for name in (ONE, PROMPT, QUOTING):
                line = dict(round=number, cell=name, agreed=64, bandwidth=2e9)
                for side in sides(name):
                    speed = ours if side == OURS else 100 - (side == rival(10))
                    line |= {side: speed, f"{side} drafts": [10, 5], f"{side} other_cpu": 0.0, f"{side} stolen": 0.0}
                lines.append(line)
        (folder / "llama-cpp.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        with contextlib.redirect_stdout(io.StringIO()) as out:
            llama_table.report(folder, folder, folder / "x.gguf", 2)
        return out.getvalue()

    def test_rows_and_shares_are_of_each_side(self):
        found = self.report(150)
        share = "share of that read bandwidth with one stream"
        for words in ("| one stream | 150.0 | 100.0 | 1.50, mean 1.50 (1.50 to 1.50) | 1.4: met | 3 |", "| prompt of 1,000 | 150.0 | 100.0 |",
                      "| 2.6: missed | 3 |", "| quoting, drafts of 2 | 150.0 | 100.0 |", "10.0 MB of paceline's file (at most 200 tokens a second)",
                      "8.0 MB of llama.cpp's file (at most 250", f"{share}: {OURS} 0.75, mean 0.75 (0.75 to 0.75); goal 0.58: met", f"{share}: {LLAMA} 0.40,",
                      "processor: a processor\nPaceline uses avx2\nllama.cpp was built with SSE3"):
            self.assertIn(words, found)


if __name__ == "__main__":
    unittest.main()
