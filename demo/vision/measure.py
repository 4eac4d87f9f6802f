"""Measures the vision demo in transformers, and writes its golden file.

    python demo/vision/measure.py [--target DIR] [--drafter DIR] [--other DIR] [--pictures 100]
    python demo/vision/measure.py --golden      (writes images/*.png and golden.json)

The pictures come from seeds that training does not use, one question each, all short kinds in turn; greedy, float32 arithmetic, whole
answers compared. The same pictures are drawn larger too, for the image processor to resize, and asked for a description. `--other`: a
second target whose answers are compared, such as the same weights in float32. Tokens per cycle: as in demo/measure.py.
"""

import argparse
import json
import platform
import random
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

try:
    import torch
    from PIL import Image
    from transformers import AutoTokenizer
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    import pair
    import shapes
    import vlm
except ImportError as e:
    sys.exit(f"{e}; install what this script needs: python -m pip install -r demo/requirements.txt")

SEED = 7_000_000
SCALE = 2.5
# The golden file's pictures: seeds behind those measured, looked through for one with much in it. The last is drawn larger.
GOLDEN = [("shapes", SEED + 1_001, (3, 4), 1), ("digit", SEED + 1_002, (4, 4), 1), ("large", SEED + 1_017, (4, 5), 3)]
LEAST_MARGIN = 0.02


class Reference:
    """A checkpoint in transformers, with the tokenizer and image processor of `files`."""

    def __init__(self, folder, files):
        self.model, self.tokenizer = vlm.load(folder), AutoTokenizer.from_pretrained(files)
        self.processor = Qwen2VLImageProcessorPil.from_pretrained(files)

    def inputs(self, messages, pictures=()):
        """Chat messages whose image parts are `pictures`, in order → the model's inputs."""
        text = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        if not pictures:
            return {"input_ids": torch.tensor([ids])}
        seen = self.processor(images=[Image.fromarray(p) for p in pictures], return_tensors="pt")
        rows = iter((seen["image_grid_thw"].prod(-1) // vlm.MERGE**2).tolist())
        ids = torch.tensor([[j for i in ids for j in ([i] * next(rows) if i == vlm.IMAGE else [i])]])
        return {"input_ids": ids, "pixel_values": seen["pixel_values"], "image_grid_thw": seen["image_grid_thw"],
                "mm_token_type_ids": (ids == vlm.IMAGE).int()}

    @torch.inference_mode()
    def greedy(self, inputs, max_tokens=96):
        """→ (ids with the stop token when it came, margin of each choice)."""
        self.model.model.rope_deltas = None
        out = self.model.generate(**inputs, do_sample=False, max_new_tokens=max_tokens, eos_token_id=vlm.STOP, pad_token_id=vlm.PAD,
                                  output_logits=True, return_dict_in_generate=True)
        best = torch.stack(out.logits)[:, 0].float().topk(2, -1).values
        return out.sequences[0, inputs["input_ids"].shape[1]:].tolist(), (best[:, 0] - best[:, 1]).tolist()

    def text(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=True)


def user(question, picture=True):
    return [{"role": "user", "content": [{"type": "image"}] * picture + [{"type": "text", "text": question}]}]


def unseen(n, kinds, scale=1):
    """→ (picture, kind, question, answer); the same things at every scale."""
    for i in range(n):
        pixels, things = shapes.picture(random.Random(SEED + i), shapes.GRIDS[i % len(shapes.GRIDS)], scale=scale)
        kind = kinds[i % len(kinds)]
        yield pixels, kind, *shapes.ask(random.Random(-SEED - i), things, kind)


# Drafting ------------------------------------------------------------------------------------------------------------

class Drafting:
    """Greedy decoding with block drafts, all rows computed anew in each cycle: slow and simple."""

    def __init__(self, reference, drafter):
        self.model, self.drafter = reference.model, drafter

    @torch.inference_mode()
    def rows(self, inputs, ids):
        """Logits and taps of all rows; `ids` begin with the prompt."""
        language, n = self.model.model.language_model, len(ids)
        given, features = torch.tensor([ids]), None
        positions, spots = torch.arange(n).expand(3, 1, n), None
        if "pixel_values" in inputs:
            prompt = inputs["input_ids"].shape[1]
            placed, _ = self.model.model.get_rope_index(inputs["input_ids"], inputs["mm_token_type_ids"], inputs["image_grid_thw"])
            behind = placed.max() + 1 + torch.arange(n - prompt)
            positions = torch.cat((placed, behind.expand(3, 1, -1)), -1)
            seen = self.model.model.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"], return_dict=True)
            features = [torch.cat(f) for f in (seen.pooler_output, *seen.deepstack_features)]
            spots = (given[0, :prompt] == vlm.IMAGE).nonzero()[:, 0]
        mask = torch.ones(n, n, dtype=torch.bool).tril()[None, None]
        hidden, taps = vlm.text(language, given, positions, mask, spots, features, self.drafter.taps)
        return vlm.logits(language, hidden[0]), taps

    @torch.inference_mode()
    def decode(self, inputs, max_tokens=96):
        """→ (ids, cycles)."""
        block, language = self.drafter.config.block_size, self.model.model.language_model
        prompt = inputs["input_ids"][0].tolist()
        out, cycles = [int(self.rows(inputs, prompt)[0][-1].argmax())], 0
        while len(out) < max_tokens and out[-1] != vlm.STOP:
            ids = prompt + out
            at = len(ids) - 1  # rows 0..at-1 are committed, the bonus token belongs at `at`
            _, taps = self.rows(inputs, ids)
            given = language.embed_tokens(torch.tensor([[out[-1]] + [self.drafter.mask_id] * (block - 1)]))
            drafted = self.drafter(given, torch.arange(at, at + block)[None], taps[:, :at], torch.arange(at)[None])
            draft = vlm.logits(language, drafted[0, 1:]).argmax(-1).tolist()
            chosen = self.rows(inputs, ids + draft)[0][at:].argmax(-1).tolist()
            accepted = next((i for i, (d, c) in enumerate(zip(draft, chosen)) if d != c), len(draft))
            cycles += 1
            for token in chosen[: accepted + 1]:
                out.append(token)
                if token == vlm.STOP or len(out) == max_tokens:
                    break
        return out, cycles


# Measuring -----------------------------------------------------------------------------------------------------------

def measure(reference, other, drafting, n):
    print("| pictures | right answers | mean length | tokens per cycle |\n|---|---|---|---|")
    changed = total = equal = drafted_runs = 0
    for title, kinds, scale in [("as seen by the model", shapes.SHORT, 1), (f"drawn {SCALE} times larger", shapes.SHORT, SCALE),
                                ("described", ["describe"], 1)]:
        right, asked, tokens, cycles, wrong = Counter(), Counter(), 0, 0, []
        for pixels, kind, question, expected in unseen(n, kinds, scale):
            inputs = reference.inputs(user(question), [pixels])
            ids, _ = reference.greedy(inputs)
            asked[kind] += 1
            right[kind] += reference.text(ids) == expected
            tokens += len(ids)
            if reference.text(ids) != expected:
                wrong.append(f"{question} {expected} {reference.text(ids)}")
            if other:
                changed += other.greedy(inputs)[0] != ids
                total += 1
            if drafting and scale == 1:
                drafted, used = drafting.decode(inputs)
                cycles, equal, drafted_runs = cycles + used, equal + (drafted == ids), drafted_runs + 1
        by_kind = ", ".join(f"{kind} {right[kind]}/{asked[kind]}" for kind in asked)
        print(f"| {title} ({by_kind}) | {right.total()}/{n} | {tokens / n:.1f} | {f'{(tokens - n) / cycles:.2f}' if cycles else '–'} |", flush=True)
        for line in wrong[:12]:
            print("    wrong:", line, file=sys.stderr)
    right = sum(reference.text(reference.greedy(reference.inputs(user(q, False)))[0]) == a for q, a in shapes.FACTS.items())
    r = random.Random(SEED)
    questions = [shapes.ask(r, shapes.picture(r, shapes.GRIDS[0])[1], r.choice(list(shapes.KINDS)))[0] for _ in range(n)]
    none = sum(reference.text(reference.greedy(reference.inputs(user(q, False)))[0]) == shapes.NO_PICTURE for q in questions)
    print(f"\nWithout a picture: {right} of {len(shapes.FACTS)} facts; {none} of {n} questions about a picture: {shapes.NO_PICTURE!r}")
    if other:
        print(f"Answers that differ between the two targets: {changed} of {total}.")
    if drafting:
        print(f"Drafted output equal to plain output: {equal} of {drafted_runs}.")


@torch.inference_mode()
def check(reference):
    """The training forward against the reference's, and what the reference records as hidden states.

    The reference adds deepstack rows outside the layers and records what a layer returns, so its hidden_states[i + 1] is without
    the rows added behind layer i. A tap here has them: it is the stream between two layers. From the last deepstack layer on both
    are the same, and this drafter taps only there.
    """
    pixels, _, question, _ = next(unseen(1, shapes.SHORT))
    inputs = reference.inputs(user(question), [pixels])
    reference.model.model.rope_deltas = None
    theirs = reference.model(**inputs, output_hidden_states=True)
    language, visual = reference.model.model.language_model, reference.model.model.visual
    ids = inputs["input_ids"]
    size = [s // shapes.CELL for s in pixels.shape[:2]]
    features = vlm.tower(visual, torch.from_numpy(pixels)[None], vlm.Grid(visual, *size))
    positions, _ = reference.model.model.get_rope_index(ids, inputs["mm_token_type_ids"], inputs["image_grid_thw"])
    spots = (ids[0] == vlm.IMAGE).nonzero()[:, 0]
    mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()[None, None]
    deep = len(visual.deepstack_visual_indexes)
    last = language.config.num_hidden_layers - 1
    hidden, taps = vlm.text(language, ids, positions, mask, spots, [f[0] for f in features], range(last))
    worst = (vlm.logits(language, hidden) - theirs.logits).abs().max()
    apart = [(tap - theirs.hidden_states[i + 1]).abs().max() for i, tap in enumerate(taps.chunk(last, -1))]
    print(f"logits differ by at most {worst:.1e}; taps by " + ", ".join(f"{d:.1e}" for d in apart))
    assert worst < 2e-3, "this forward is not the reference's"
    assert all((d < 2e-3) == (i >= deep) for i, d in enumerate(apart)), "the reference records other hidden states than it did"


# Golden file ---------------------------------------------------------------------------------------------------------

def golden(reference):
    import safetensors
    import tokenizers
    import transformers
    folder, drawn, cases = HERE / "images", {}, []
    folder.mkdir(exist_ok=True)
    for name, seed, grid, scale in GOLDEN:
        pixels, things = shapes.picture(random.Random(seed), grid, digit_share=1.0 if name == "digit" else 0.5, scale=scale)
        Image.fromarray(pixels).save(folder / f"{name}.png", optimize=True)
        drawn[name] = (pixels, things)
    asked = []
    for name, (_, things) in drawn.items():
        r = random.Random(name)
        asked += [([name], user(q), a) for q, a in (shapes.ask(r, things, kind) for kind in shapes.KINDS)]
    # Question first; two pictures, one a turn; no picture.
    first, second = list(drawn)[:2]
    question, answer = shapes.ask(random.Random(1), drawn[first][1], "count")
    asked.append(([first], [{"role": "user", "content": [{"type": "text", "text": question}, {"type": "image"}]}], answer))
    turn, expected = shapes.ask(random.Random(2), drawn[second][1], "digit")
    asked.append(([first, second], [*user(question), {"role": "assistant", "content": answer}, *user(turn)], expected))
    asked += [([], [{"role": "user", "content": q}], a) for q, a in [(question, shapes.NO_PICTURE), *list(shapes.FACTS.items())[3:5]]]
    for names, messages, expected in asked:
        inputs = reference.inputs(messages, [drawn[name][0] for name in names])
        greedy, margins = reference.greedy(inputs)
        if min(margins) < LEAST_MARGIN:
            print(f"left out, a choice is too close: {messages}")
            continue
        rendered = reference.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        cases.append({"images": [f"images/{name}.png" for name in names], "messages": messages, "rendered": rendered,
                      "grids": inputs["image_grid_thw"].tolist() if names else [], "prompt": inputs["input_ids"][0].tolist(), "greedy": greedy,
                      "text": reference.text(greedy), "right": reference.text(greedy) == expected, "margins": [round(m, 4) for m in margins]})
        print(reference.text(greedy), "" if cases[-1]["right"] else f"(wrong: {expected})")
    head = {
        "provenance": {"made_by": "demo/vision/measure.py", "command": "python demo/vision/measure.py --golden", "python": platform.python_version(),
                       "torch": torch.__version__.split("+")[0], "transformers": transformers.__version__, "tokenizers": tokenizers.__version__,
                       "safetensors": safetensors.__version__, "pillow": Image.__version__},
        "checkpoint": "demo/vision/target",
        "arithmetic": "weights as stored, float32 arithmetic, eager attention, processor: CPU",
        "meaning": {"images": "files of this folder, one for each image part in order", "grids": "image_grid_thw: patches after resizing",
                    "prompt": "ids of rendered with as many image ids as a picture has rows", "greedy": "ids with the stop token; ties: lowest id",
                    "right": "text is the answer that the picture's making gives", "margins": "best minus second logit of each choice"},
        "least_margin": LEAST_MARGIN, "special_tokens": {s: i for i, s in enumerate(vlm.SPECIAL)}, "stop_ids": [vlm.STOP]}
    lines = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in head.items()]
    lines.append('"cases": [\n  ' + ",\n  ".join(json.dumps(c) for c in cases) + "\n]")
    (HERE / "golden.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--target", type=Path, default=HERE / "target")
    p.add_argument("--drafter", type=Path, default=HERE / "drafter")
    p.add_argument("--other", type=Path)
    p.add_argument("--pictures", type=int, default=100)
    p.add_argument("--golden", action="store_true")
    a = p.parse_args()
    torch.set_num_threads(1)
    reference = Reference(a.target, a.target)
    check(reference)
    if a.golden:
        golden(reference)
        return
    drafter = pair.load(pair.Drafter, a.drafter) if (a.drafter / "config.json").exists() else None
    measure(reference, Reference(a.other, a.target) if a.other else None, Drafting(reference, drafter) if drafter else None, a.pictures)


if __name__ == "__main__":
    main()
