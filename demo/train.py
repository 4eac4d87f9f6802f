"""Trains a pair like the embedded one: a Qwen3 target and its DFlash drafter, in published layouts.

    python -m pip install -r demo/requirements.txt
    python demo/train.py --out DIR [--steps 2200] [--drafter-steps N] [--seed 0]

Writes DIR/target and DIR/drafter (config.json, model.safetensors, the target's tokenizer files). The whole recipe is --steps 2200:
9 M tokens, by extrapolation an hour and a half for both models on two CPU cores with bf16 instructions; fewer steps shrink every
stage alike. What has been run and what has not: demo/README.md. The same seed and library versions on the same processor and
thread count give the same weights. Measure the result with demo/measure.py.

Target: next tokens of the answers, packed rows; a short stage on what is copied from the prompt, then the full mix with longer rows.
Drafter: on the target's own continuations; random anchors in a row, the 15 tokens after each, the nearer the heavier.
"""

import argparse
import sys
import time
from pathlib import Path
from types import SimpleNamespace

try:
    import torch
    import torch.nn.functional as F
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import AutoTokenizer
except ImportError as e:
    sys.exit(f"{e}; install what this script needs: python -m pip install -r demo/requirements.txt")

import corpus
import pair

HERE = Path(__file__).resolve().parent

SIZES = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 768,
         "vocab_size": 4096, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 4096, "hidden_act": "silu",
         "attention_bias": False, "attention_dropout": 0.0, "rope_scaling": None, "initializer_range": 0.02, "use_cache": True,
         "use_sliding_window": False, "sliding_window": None, "bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0}
TARGET = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 8, "max_window_layers": 8,
          "tie_word_embeddings": True, **SIZES}
MASK_ID, BLOCK = 3, 16
DRAFTER = {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "num_hidden_layers": 2, "num_target_layers": 8,
           "block_size": BLOCK, "layer_types": ["full_attention"] * 2, "max_window_layers": 2, "tie_word_embeddings": False,
           "dflash_config": {"mask_token_id": MASK_ID, "target_layer_ids": [1, 3, 5, 6]}, **SIZES}
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]  # ids 0 to 3, in this order
IM_START, STOP = 1, 2

TOKENS_A_STEP = 4096
# (share of the steps, mix, row length, learning rate at the stage's end as a share of the peak)
TARGET_STAGES = [(0.12, corpus.COPY_MIX, 256, 1.0), (0.68, corpus.FULL_MIX, 512, 0.5), (0.20, corpus.FULL_MIX, 2048, 0.02)]
# The last stage brings a little prose; its weights and those before it are averaged, which keeps what both are good at.
DRAFTER_STAGES = [(0.47, corpus.DRAFT_MIX, 0.5), (0.43, corpus.DRAFT_MIX, 0.05), (0.10, corpus.DRAFT_MIX_WITH_PROSE, 0.05)]
ROWS_A_STEP, ROW_TOKENS, ANCHORS = 16, 448, 14
CONTINUATION_TOKENS = 500_000  # at the full number of drafter steps


# Tokenizer -----------------------------------------------------------------------------------------------------------

def train_tokenizer(texts, folder):
    """Byte-level BPE with Qwen's split: words, single digits, runs of signs, white space. Single digits, so that sums can be learned."""
    tokenizer = Tokenizer(models.BPE())
    split = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(split), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(s, special=True, normalized=False) for s in SPECIAL]
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=SIZES["vocab_size"], special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    assert tokenizer.get_vocab_size() == SIZES["vocab_size"], "too little text for the vocabulary: take more examples"
    tokenizer.save(str(folder / "tokenizer.json"))


def write_tokenizer(folder, source, examples):
    """The target's tokenizer files: those of `source`, with a newly trained tokenizer.json if `source` is None."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "tokenizer.json"):
        if name != "tokenizer.json" or source:
            (folder / name).write_bytes(((source or HERE / "target") / name).read_bytes())
    if not source:
        train_tokenizer((m["content"] for e in examples for m in [*e.messages, {"content": e.answer}]), folder)
    return AutoTokenizer.from_pretrained(folder)


class Encoder:
    """Examples → (ids, is_answer): the chat template's text, the answer and its stop token counted as answer."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def prompt(self, example):
        return self.tokenizer.apply_chat_template(example.messages, add_generation_prompt=True, return_dict=False)

    def example(self, example):
        prompt = self.prompt(example)
        answer = self.tokenizer(example.answer, add_special_tokens=False)["input_ids"] + [STOP]
        return prompt + answer, [False] * len(prompt) + [True] * len(answer)


def packed_rows(encoder, examples, length):
    """Rows of `length` + 1 ids filled with whole examples, one after another like the turns of a conversation, the rest padding.

    Attention is not cut between examples: a row doubles as a long context, so late positions are trained although every single
    example is short, and the model learns to look for the prompt that it is answering. Each row begins with a fresh example.
    """
    ids, answer = [], []
    for example in examples:
        more, which = encoder.example(example)
        if len(more) > length + 1:
            continue
        if len(ids) + len(more) > length + 1:
            padding = length + 1 - len(ids)
            yield ids + [0] * padding, answer + [False] * padding
            ids, answer = [], []
        ids, answer = ids + more, answer + which


# Optimizers ----------------------------------------------------------------------------------------------------------

# bfloat16 is enough for a direction, and faster where the processor multiplies it; elsewhere ten times slower.
DIRECTIONS = torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported() else torch.float32


class Muon(torch.optim.Optimizer):
    """Momentum whose step is made orthogonal by Newton-Schulz iterations (Jordan 2024): every direction of a matrix learns at one pace."""

    def __init__(self, params, lr, momentum=0.95, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @staticmethod
    def orthogonal(g):
        x = (g / (g.norm() + 1e-7)).to(DIRECTIONS)
        if tall := x.shape[0] > x.shape[1]:
            x = x.T
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        return (x.T if tall else x).float()

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
                buffer.lerp_(p.grad, 1 - group["momentum"])
                step = self.orthogonal(p.grad.lerp(buffer, group["momentum"]))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(step, alpha=-group["lr"] * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)


class Optimizers:
    """Muon for the hidden matrices, AdamW for embedding and norms; warm-up, then a straight line between the stages' ends."""

    def __init__(self, model, muon_lr, adam_lr):
        hidden = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
        rest = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
        self.parts = [(Muon(hidden, muon_lr, weight_decay=0.01), muon_lr),
                      (torch.optim.AdamW(rest, adam_lr, betas=(0.9, 0.95), weight_decay=0.0), adam_lr)]
        self.model = model

    def step(self, loss, scale):
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer, lr in self.parts:
            for group in optimizer.param_groups:
                group["lr"] = lr * scale
            optimizer.step()
            optimizer.zero_grad()

    def state_dict(self):
        return [optimizer.state_dict() for optimizer, _ in self.parts]

    def load_state_dict(self, states):
        for (optimizer, _), state in zip(self.parts, states):
            optimizer.load_state_dict(state)


def stage_plan(stages, steps):
    """→ (stage index, first in stage, scale of the learning rate) of each step."""
    warm_up, done, before, total = max(1, steps // 40), 0, 1.0, 0.0
    for i, stage in enumerate(stages):
        total += stage[0]
        end = steps if i == len(stages) - 1 else round(steps * total)
        for k in range(done, end):
            scale = before + (stage[-1] - before) * (k - done + 1) / (end - done)
            yield i, k == done, scale * min(1.0, (k + 1) / warm_up)
        done, before = end, stage[-1]


class Progress:
    """A line now and then: mean loss since the last line."""

    def __init__(self, what, steps):
        self.what, self.steps, self.sum, self.n, self.started = what, steps, 0.0, 0, time.monotonic()
        self.every = max(1, min(50, steps // 10))

    def add(self, step, loss, note=""):
        self.sum, self.n = self.sum + loss, self.n + 1
        if (step + 1) % self.every == 0 or step + 1 == self.steps:
            seconds = time.monotonic() - self.started
            print(f"{self.what} step {step + 1}/{self.steps} loss {self.sum / self.n:.3f} {note}{seconds:.0f} s", flush=True)
            self.sum = self.n = 0


# Target --------------------------------------------------------------------------------------------------------------

def train_target(encoder, texts, steps, muon_lr, adam_lr):
    target = pair.Target(SimpleNamespace(**TARGET))
    optimizers, progress = Optimizers(target, muon_lr, adam_lr), Progress("target", steps)
    for step, (stage, first, scale) in enumerate(stage_plan(TARGET_STAGES, steps)):
        _, mix, length, _ = TARGET_STAGES[stage]
        if first:
            rows = packed_rows(encoder, texts.stream(mix), length)
        ids, answer = map(torch.tensor, zip(*(next(rows) for _ in range(TOKENS_A_STEP // length))))
        with torch.autocast("cpu", torch.bfloat16):
            hidden, _ = target(ids[:, :-1])
            learned = answer[:, 1:]
            logits = target.logits(hidden[learned])
        loss = F.cross_entropy(logits, ids[:, 1:][learned])
        optimizers.step(loss, scale)
        progress.add(step, loss.item(), f"rows of {length}, ")
    return target.eval().requires_grad_(False)


# Drafter -------------------------------------------------------------------------------------------------------------

@torch.no_grad()
def continuations(target, encoder, examples, temperatures, max_tokens=256):
    """Texts the drafter learns from: each prompt with the target's own continuation → [(ids, first answer row)].

    `temperatures`: one an example; 0 is greedy. Prompts are padded on the left, so that all rows grow at one place.
    """
    prompts = [encoder.prompt(e) for e in examples]
    longest = max(map(len, prompts))
    rows = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    padding = torch.tensor([longest - len(p) for p in prompts])
    temperature = torch.tensor(temperatures)[:, None]
    caches, out, start = target.new_caches(), [list(p) for p in prompts], 0
    running = list(range(len(prompts)))  # row of the batch → text
    for _ in range(max_tokens):
        end = start + rows.shape[1]
        seen, now = torch.arange(end), torch.arange(start, end)[:, None]
        # A row of padding sees itself, because a softmax over nothing is NaN.
        mask = (seen >= padding[:, None, None]) & (seen <= now) | (seen == now)
        positions = (now.T - padding[:, None]).clamp(min=0)
        with torch.autocast("cpu", torch.bfloat16):
            hidden, _ = target(rows, positions, caches, mask[:, None])
            logits = target.logits(hidden[:, -1])
        noise = -torch.empty_like(logits).exponential_().log()
        chosen = torch.where(temperature > 0, logits / temperature.clamp(min=1e-6) + noise, logits).argmax(-1)
        for text, token in zip(running, chosen.tolist()):
            if out[text][-1] != STOP:
                out[text].append(token)
        alive = [i for i, text in enumerate(running) if out[text][-1] != STOP]
        if not alive:
            break
        rows, start = chosen[:, None], end
        if len(alive) <= len(running) // 2:
            # The finished leave, so that a few long texts do not cost as much as all.
            running, keep = [running[i] for i in alive], torch.tensor(alive)
            rows, padding, temperature = rows[keep], padding[keep], temperature[keep]
            for cache in caches:
                cache.keys, cache.values = cache.keys[keep], cache.values[keep]
    return [(text, len(p)) for text, p in zip(out, prompts)]


def drafter_data(target, encoder, texts, mix, tokens, batch=48):
    """About `tokens` tokens of continuations, half greedy and half sampled, and a quarter as many of the corpus' own answers."""
    stream, data, made, r = texts.stream(mix), [], 0, texts.random
    while made < tokens:
        # Sorted by length, so that a batch pads little and ends together.
        examples = sorted((next(stream) for _ in range(4 * batch)), key=lambda e: len(e.messages[-1]["content"]) + 4 * len(e.answer))
        for i in range(0, len(examples), batch):
            part = examples[i: i + batch]
            new = continuations(target, encoder, part, [r.choice((0.0, r.uniform(0.6, 1.0))) for _ in part])
            for example in part[::4]:
                ids, answer = encoder.example(example)
                new.append((ids, answer.index(True)))
            # An anchor needs an answer token and one after it.
            data += [(ids[:ROW_TOKENS], first) for ids, first in new if min(len(ids), ROW_TOKENS) >= first + 2]
            made += sum(len(ids) - first for ids, first in new)
            if made >= tokens:
                break
    return data


def draft_batch(target, rows, r):
    """Rows of ids → what the drafter is given and should answer: ANCHORS blocks a row, each as at some moment of decoding."""
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([row + [0] * (longest - len(row)) for row, _ in rows])
    # The anchor is the bonus token: in the answer, with at least one token after it.
    anchors = torch.tensor([[r.randint(first, len(row) - 2) for _ in range(ANCHORS)] for row, first in rows])
    places = anchors[..., None] + torch.arange(BLOCK)                                     # [B, A, BLOCK]
    lengths = torch.tensor([len(row) for row, _ in rows])
    wanted = ids.gather(1, places.clamp(max=longest - 1).flatten(1)).view_as(places)
    weight = torch.exp(-(torch.arange(BLOCK) - 1) / 7.0) * (places < lengths[:, None, None])
    weight[..., 0] = 0.0                                                                  # the bonus token is given
    inputs = torch.full_like(places, MASK_ID)
    inputs[..., 0] = wanted[..., 0]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        _, taps = target(ids, taps=DRAFTER["dflash_config"]["target_layer_ids"])
        block = target.model.embed_tokens(inputs.flatten(1))
    # A block sees the taps before its anchor and itself.
    blocks = torch.arange(ANCHORS).repeat_interleave(BLOCK)
    sees_context = torch.arange(longest)[None, None] < anchors.repeat_interleave(BLOCK, 1)[..., None]
    sees_block = (blocks[:, None] == blocks[None]).expand(len(rows), -1, -1)
    mask = torch.cat((sees_context, sees_block), -1)[:, None]
    return block, places.flatten(1), taps, torch.arange(longest)[None], mask, wanted.flatten(1), weight.flatten(1)


def train_drafter(target, encoder, texts, steps, tokens, muon_lr, adam_lr):
    drafter = pair.Drafter(SimpleNamespace(**DRAFTER))
    # Its rows meet the target's head, so they start on the scale that this head is used to.
    drafter.norm.load_state_dict(target.model.norm.state_dict())
    optimizers, progress, r = Optimizers(drafter, muon_lr, adam_lr), Progress("drafter", steps), texts.random
    before_last = None
    for step, (stage, first, scale) in enumerate(stage_plan(DRAFTER_STAGES, steps)):
        if first:
            share, mix, _ = DRAFTER_STAGES[stage]
            data = drafter_data(target, encoder, texts, mix, tokens * share)
            print(f"drafter stage {stage + 1}: {len(data)} texts of the target's own and the corpus", flush=True)
            if stage == len(DRAFTER_STAGES) - 1:
                before_last = {k: v.clone() for k, v in drafter.state_dict().items()}
        *given, mask, wanted, weight = draft_batch(target, r.choices(data, k=ROWS_A_STEP), r)
        learned = weight > 0
        with torch.autocast("cpu", torch.bfloat16):
            logits = target.logits(drafter(*given, mask)[learned])
        loss = F.cross_entropy(logits, wanted[learned], reduction="none")
        loss = (loss * weight[learned]).sum() / weight.sum()
        optimizers.step(loss, scale)
        progress.add(step, loss.item())
    if before_last:
        drafter.load_state_dict({k: (v + before_last[k]) / 2 for k, v in drafter.state_dict().items()})
    return drafter.eval()


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--steps", type=int, default=2200, help="target steps of 4096 tokens")
    p.add_argument("--drafter-steps", type=int, help="steps of 16 texts; default: three quarters of --steps")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--threads", type=int, help="default: torch's choice")
    p.add_argument("--tokenizer", type=Path, default=HERE / "target", help="folder of a tokenizer to keep; default: the embedded one")
    p.add_argument("--train-tokenizer", action="store_true", help="train a new one on the corpus instead")
    p.add_argument("--target", type=Path, help="train only a drafter, for this target")
    a = p.parse_args()
    drafter_steps = a.steps * 3 // 4 if a.drafter_steps is None else a.drafter_steps
    torch.manual_seed(a.seed)
    if a.threads:
        torch.set_num_threads(a.threads)

    texts = corpus.Corpus(a.seed, corpus.held_out_prompts(HERE / "prompts.jsonl"))
    if a.target:
        encoder, target = Encoder(AutoTokenizer.from_pretrained(a.target)), pair.load(pair.Target, a.target)
    else:
        stream = texts.stream(corpus.FULL_MIX)
        examples = [next(stream) for _ in range(20_000)] if a.train_tokenizer else []
        encoder = Encoder(write_tokenizer(a.out / "target", None if a.train_tokenizer else a.tokenizer, examples))
        target = train_target(encoder, texts, a.steps, muon_lr=0.02, adam_lr=3e-3)
        pair.save(target, a.out / "target")
        print(f"{a.out / 'target'} written", flush=True)
    if drafter_steps:
        tokens = CONTINUATION_TOKENS * drafter_steps / 1650
        drafter = train_drafter(target, encoder, texts, drafter_steps, tokens, muon_lr=0.02, adam_lr=2e-3)
        pair.save(drafter, a.out / "drafter")
        print(f"{a.out / 'drafter'} written", flush=True)


if __name__ == "__main__":
    main()
