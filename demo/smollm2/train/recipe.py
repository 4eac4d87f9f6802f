"""Trains drafters for SmolLM2, from nothing to checkpoints that are served.

    sh scripts/venv.sh
    .venv-data/bin/python demo/smollm2/train/recipe.py --out DIR [--kinds eagle3] [--rounds 2] [--minutes 80] [--seed 0]

1. Questions: the model makes user's messages of its own, after the beginning of its template. Others are made by prompts.py.
2. Answers: by the model, half of them greedy, half at temperature 0.8, through the product's engine (models/examples/teacher.rs),
   which also writes the hidden states that a drafter reads.
   Each round of data has other prompts: --rounds 2 keeps the first round and adds a second.
3. The ids that can be proposed: the most frequent ones of these answers.
4. Training of each kind; the learning rate falls over `--steps`. --begin goes on from the weights of an earlier training, such as
   one with fewer rounds.
5. DIR/KIND: the checkpoint, its weights packed in `--bits`, and what it was made of (recipe.json).

Each stage leaves files in DIR, and what is there is not made again: a run that was interrupted goes on where it was, with the same
result. `--minutes` ends a run after a time, at a step from which it can go on. The same seed, versions, processor and threads give the
same weights. Other models: --model DIR, with --layers.
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.append(str(ROOT / "demo"))

try:
    import torch
    from safetensors import safe_open
    from transformers import AutoTokenizer
except ImportError as e:
    sys.exit(f"{e}; make the environment with the packages that this script needs: sh scripts/venv.sh")

import checkpoints  # noqa: E402
from dflash import DFlash  # noqa: E402
from eagle3 import Eagle3  # noqa: E402
from prompts import KINDS, Prompts  # noqa: E402
from small import Small  # noqa: E402
from train import Optimizers, stage_plan  # noqa: E402

DRAFTERS = {"eagle3": Eagle3, "dflash": DFlash, "model": Small}
POSITIONS_A_STEP = 2048
# (share of the steps, learning rate at the stage's end as a share of the peak)
STAGES = [(0.4, 0.6), (0.6, 0.02)]
EVERY = 50  # steps between two checkpoints


# Texts ---------------------------------------------------------------------------------------------------------------

def teacher(a, prompts, out, layers=()):
    """Has the engine answer prompts; files that are there are kept."""
    built = ["cargo", "run", "--release", "--quiet", "--package", "paceline-models", "--example", "teacher", "--"]
    command = [*([a.teacher] if a.teacher else built), a.model, prompts, out, *([",".join(map(str, layers))] if layers else [])]
    subprocess.run(list(map(str, command)), cwd=ROOT, check=True)


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_lines(path, lines):
    if not path.exists():
        unfinished = path.with_suffix(".part")
        unfinished.write_text("".join(json.dumps(line) + "\n" for line in lines))
        unfinished.rename(path)
    return path


def shards(folder):
    """The files of one folder: (lengths, ids, states or None)."""
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            states = file.get_tensor("states") if "states" in file.keys() else None
            yield file.get_tensor("lengths").tolist(), file.get_tensor("ids"), states


def template_ids(tokenizer, messages):
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)


def own_questions(a, tokenizer, seed, folder, count):
    """User's messages that the model makes, each once."""
    marker = "\x00"
    head = tokenizer.apply_chat_template([{"role": "user", "content": marker}], tokenize=False).partition(marker)[0]
    ids = tokenizer(head, add_special_tokens=False)["input_ids"]
    lines = [{"ids": ids, "temperature": 1.0, "seed": seed * 1_000_003 + at, "tokens": 80} for at in range(count)]
    teacher(a, write_lines(folder / "questions.jsonl", lines), folder / "questions")
    questions = {}
    for lengths, ids, _ in shards(folder / "questions"):
        begin = 0
        for first, end in lengths:
            text = tokenizer.decode(ids[begin + first: begin + end].tolist(), skip_special_tokens=True).strip()
            if 15 < len(text) < 400:
                questions[text] = [{"role": "user", "content": text}]
            begin += end
    return list(questions.values())


def answers(a, tokenizer, data_round):
    """The prompts of a round with the model's answers → the folder of them, with the answers in `answers`."""
    folder, seed = a.out / f"data-{data_round}", a.seed + data_round
    folder.mkdir(exist_ok=True)
    path = folder / "prompts.jsonl"
    if not path.exists():
        r, made = random.Random(seed), Prompts(seed)
        conversations = own_questions(a, tokenizer, seed, folder, a.prompts // 2)
        kinds = [KINDS[at % len(KINDS)] for at in range(a.prompts - len(conversations))]
        conversations += [made.one(kind) for kind in kinds]
        r.shuffle(conversations)
        lines = [{"ids": template_ids(tokenizer, messages), "temperature": 0.8 * (at % 2), "seed": seed * 1_000_003 + at, "tokens": 320}
                 for at, messages in enumerate(conversations)]
        write_lines(path, (line for line in lines if len(line["ids"]) < 400))
    teacher(a, path, folder / "answers", a.layers)
    return folder


class Texts:
    """All texts in memory, sorted by length. Every 24th is for the check and not trained on."""

    def __init__(self, folders):
        texts = []
        for lengths, ids, states in (shard for folder in folders for shard in shards(folder / "answers")):
            begin = 0
            for first, end in lengths:
                # Two tokens of an answer at least: one to begin with, one to propose.
                if end >= first + 2:
                    texts.append((first, end, ids[begin: begin + end].long(), states[begin: begin + end]))
                begin += end
        self.check = sorted(texts[::24], key=lambda text: text[1])
        self.train = sorted((text for at, text in enumerate(texts) if at % 24), key=lambda text: text[1])

    def counts(self, vocabulary):
        """How often each id is in the answers."""
        return sum(torch.bincount(ids[first:], minlength=vocabulary) for first, _, ids, _ in self.train)

    @staticmethod
    def batch(texts, begin):
        """Texts from `begin` on, as many as fill a step → (ids [B, T + 1], states [B, T, …], first [B], lengths [B])."""
        taken = []
        while begin < len(texts) and (len(taken) + 1) * texts[begin][1] <= max(POSITIONS_A_STEP, texts[begin][1]):
            taken.append(texts[begin])
            begin += 1
        longest = max(text[1] for text in taken)
        ids = torch.zeros(len(taken), longest, dtype=torch.long)
        states = torch.zeros(len(taken), longest - 1, taken[0][3].shape[1])
        for at, (_, end, own, hidden) in enumerate(taken):
            ids[at, :end], states[at, : end - 1] = own, hidden[: end - 1].float()
        return ids, states, torch.tensor([text[0] for text in taken]), torch.tensor([text[1] for text in taken])


# Training ------------------------------------------------------------------------------------------------------------

def drafter(kind, a, target, ids):
    c = target.config
    sizes = SimpleNamespace(**{key: c[key] for key in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
                                                       "rms_norm_eps", "max_position_embeddings")},
                            head_dim=c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"], rope_theta=10000.0)
    return DRAFTERS[kind](sizes, a.layers, ids, target)


@torch.no_grad()
def check(model, texts):
    """Share of drafts that are the target's choice at each place, on texts that were not trained on."""
    sums, begin = [], 0
    while begin < len(texts.check):
        ids, states, first, lengths = texts.batch(texts.check, begin)
        begin += len(ids)
        _, right = model.losses(ids, states, first, lengths)
        sums = [(x + a, y + b) for (x, y), (a, b) in zip(sums or [(0, 0)] * len(right), right)]
    return [round(x / max(y, 1), 4) for x, y in sums]


def train(kind, a, target, texts, ids):
    """Trains one kind up to a.steps → the drafter, or None if the time is over before."""
    torch.manual_seed(a.seed)
    model = drafter(kind, a, target, ids)
    optimizers, path = Optimizers(model, muon_lr=0.02, adam_lr=2e-3), a.out / f"{kind}.pt"
    done, lines = 0, []
    if a.begin and not path.exists():
        model.load_state_dict(torch.load(a.begin)["model"])
    if path.exists():
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizers.load_state_dict(saved["optimizers"])
        done, lines = saved["done"], saved["lines"]
    scales = [scale for _, _, scale in stage_plan(STAGES, a.steps)]
    began, losses = time.monotonic(), []
    while done < a.steps:
        begin = random.Random(f"{a.seed} {done}").randrange(len(texts.train))
        loss, _ = model.losses(*texts.batch(texts.train, begin), step=done)
        optimizers.step(loss, scales[done])
        losses.append(loss.item())
        done += 1
        over = done == a.stop_at or a.deadline is not None and time.monotonic() > a.deadline
        if done % EVERY == 0 or done == a.steps or over:
            lines.append({"step": done, "loss": round(sum(losses) / len(losses), 4), "right": check(model, texts)})
            print(f"{kind} {json.dumps(lines[-1])} {time.monotonic() - began:.0f} s", flush=True)
            losses = []
            unfinished = path.with_suffix(".part")
            torch.save({"model": model.state_dict(), "optimizers": optimizers.state_dict(), "done": done, "lines": lines}, unfinished)
            os.replace(unfinished, path)
        if over and done < a.steps:
            print(f"{kind}: {done} of {a.steps} steps; the same command goes on from here", flush=True)
            return None, lines
    return model, lines


def write(kind, a, model, lines, target, data):
    config, weights = model.files(target.config["vocab_size"])
    bits = a.bits or (4 if kind == "model" else 8)
    digest = checkpoints.write(a.out / kind, config, weights, bits, a.group, a.model)
    recipe = {"seed": a.seed, "begin_sha256": sha256(a.begin) if a.begin else None, "steps": a.steps, "prompts": a.prompts, "bits": bits,
              "prompts_sha256": [sha256(folder / "prompts.jsonl") for folder in data], "weights_sha256": digest, "last": lines[-1]}
    (a.out / kind / "recipe.json").write_text(json.dumps(recipe, indent=1) + "\n")
    print(f"{a.out / kind} written", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--model", type=Path, default=Path.home() / ".cache/paceline/models/smollm2", help="the target's directory")
    p.add_argument("--layers", default="1,14,26,29", help="layers whose outputs are read, from 0; the last one is the model's last")
    p.add_argument("--kinds", default="eagle3", help="with commas between")
    p.add_argument("--prompts", type=int, default=1800, help="of each round of data")
    p.add_argument("--rounds", type=int, default=1, help="of data")
    p.add_argument("--steps", type=int, default=1200, help=f"of about {POSITIONS_A_STEP} positions")
    p.add_argument("--vocabulary", type=int, default=8192, help="ids that can be proposed")
    p.add_argument("--bits", type=int, help="of a number of a matrix; default: 8, of kind model 4, because its table has all the target's tokens")
    p.add_argument("--group", type=int, default=64)
    p.add_argument("--begin", type=Path, help="a .pt file of an earlier training of the kind")
    p.add_argument("--minutes", type=float, help="end the training after this time")
    p.add_argument("--stop-at", type=int, help="end the training at this step, as if it was interrupted")
    p.add_argument("--teacher", type=Path, help="the built example of this name; default: cargo builds it")
    p.add_argument("--seed", type=int, default=0)
    a = p.parse_args()
    a.layers = [int(layer) for layer in a.layers.split(",")]
    a.deadline = None if a.minutes is None else time.monotonic() + 60 * a.minutes
    a.out = a.out.resolve()
    a.out.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(a.model)
    data = [answers(a, tokenizer, data_round) for data_round in range(a.rounds)]
    texts, target = Texts(data), checkpoints.TargetParts(a.model)
    counts = texts.counts(target.config["vocab_size"])
    wanted = counts.clone()
    wanted[tokenizer.all_special_ids] = counts.max()  # what ends a text can be proposed, however rare it is
    ids = wanted.argsort(descending=True, stable=True)[: a.vocabulary].sort().values
    print(f"{len(texts.train)} texts, {sum(text[1] for text in texts.train)} tokens; {counts[ids].sum() / counts.sum():.4f} of the answers' "
          f"tokens are among {len(ids)}", flush=True)
    kinds = a.kinds.split(",")
    if unknown := [kind for kind in kinds if kind not in DRAFTERS]:
        p.error(f"--kinds: expected some of {', '.join(DRAFTERS)}, found {unknown[0]}")
    for kind in kinds:
        model, lines = train(kind, a, target, texts, ids)
        if model:
            write(kind, a, model, lines, target, data)


if __name__ == "__main__":
    main()
