"""Trains the vision demo: a small Qwen3-VL model that answers questions about shapes, and a DFlash drafter for it.

    python -m pip install -r demo/requirements.txt
    python demo/vision/train.py --out DIR [--tower-steps 800] [--steps 1200] [--drafter-steps 300] [--seed 0] [--threads 2]

Writes DIR/target and DIR/drafter in published layouts, the target every --save-every steps too. `--target DIR/target` trains only a
drafter for a target that is there; `--init DIR/target` goes on from one. How long it takes and what came out: README.md.

Target: pictures are drawn as they are needed and never come again. First the tower alone, with heads that are thrown away: which
object has its centre in a merged row, and in which ninth of the picture. Then all of it. A row is a picture and several questions
that do not see one another, so that one pass of the tower serves them all; some rows are conversations, some without a picture.
Loss on the answers only, and the tower's own goes on beside it, with more pictures than are asked about.
Drafter: the answers of such rows; random anchors, the tokens after each in one block, the nearer the heavier.
"""

import argparse
import random
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))  # pair.py: the drafter's layers

try:
    import torch
    import torch.nn.functional as F
    from tokenizers import Tokenizer

    import pair
    import shapes
    import vlm
except ImportError as e:
    sys.exit(f"{e}; install what this script needs: python -m pip install -r demo/requirements.txt")

TOWER_PICTURES = 64
PICTURES, MORE_PICTURES, TEXT_ROWS, ROW_TOKENS = 20, 16, 2, 208
CHECK_SEED = 1_000_003  # of the pictures that progress is measured on; measure.py has others

HARD = ["count some", "what is there"]  # asked more often
LABELS = (1 + len(shapes.SHAPES) + len(shapes.DIGITS), 1 + len(shapes.COLOURS), 1 + len(shapes.PLACES))

BLOCK, ANCHORS = 8, 24
# Behind the last deepstack layer, so that there is no doubt whether a tap has its rows added or not.
TAPS = [2, 3]
DRAFTER = {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "num_hidden_layers": 2, "num_target_layers": 4,
           "block_size": BLOCK, "layer_types": ["full_attention"] * 2, "max_window_layers": 2, "tie_word_embeddings": False,
           "dflash_config": {"mask_token_id": vlm.MASK, "target_layer_ids": TAPS}, "hidden_size": 192, "num_attention_heads": 4,
           "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 384, "vocab_size": vlm.VOCABULARY, "rms_norm_eps": 1e-6,
           "rope_theta": 10000.0, "max_position_embeddings": 2048, "hidden_act": "silu", "attention_bias": False, "attention_dropout": 0.0,
           "rope_scaling": None, "initializer_range": 0.02, "use_cache": True, "use_sliding_window": False, "sliding_window": None,
           "bos_token_id": None, "eos_token_id": vlm.STOP, "pad_token_id": vlm.PAD}


# Rows ----------------------------------------------------------------------------------------------------------------

class Row:
    """A sequence that may fork: branches see what is before the fork and themselves, each as if it were alone."""

    def __init__(self):
        self.ids, self.branch, self.index, self.learned, self.positions = [], [], [], [], []
        self.pictures = []  # (first row, picture)
        self.here, self.next, self.at, self.forked, self.asked = 0, 0, 0, None, []

    def text(self, ids, learned=False):
        for i in ids:
            self.put(i, (self.next,) * 3, learned)
            self.next += 1

    def put(self, token, position, learned=False):
        self.ids.append(token)
        self.positions.append(position)
        self.branch.append(self.here)
        self.index.append(self.at)
        self.learned.append(learned)
        self.at += 1

    def picture(self, which, grid):
        self.text([vlm.VISION_START])
        self.pictures.append((len(self.ids), which))
        for y in range(grid[0]):
            for x in range(grid[1]):
                self.put(vlm.IMAGE, (self.next, self.next + y, self.next + x))
        self.next += max(grid)
        self.text([vlm.VISION_END])

    def fork(self):
        if self.forked is None:
            self.forked = (self.next, self.at)
        self.next, self.at = self.forked
        self.here += 1


class Rows:
    """Draws batches of rows."""

    def __init__(self, tokenizer, seed, other=()):
        self.r, self.tokenizer, self.other = random.Random(seed), tokenizer, list(other)
        self.user, self.reply, self.end = (self.encode(s) for s in ("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n", "\n"))

    def encode(self, s):
        return self.tokenizer.encode(s, add_special_tokens=False).ids

    def answer(self, row, kind, answer):
        row.text(self.reply)
        start = len(row.ids)
        row.text([*self.encode(answer), vlm.STOP], learned=True)
        row.asked.append((kind, start, len(row.ids)))

    def turn(self, row, things, kind):
        question, answer = shapes.ask(self.r, things, kind)
        row.text(self.encode(question))
        self.answer(row, kind, answer)

    def kind(self):
        return "describe" if self.r.random() < 0.1 else self.r.choice(shapes.SHORT)

    def questions(self, which, things, grid):
        """A picture and questions that do not see one another."""
        row = Row()
        row.text(self.user)
        row.picture(which, grid)
        kinds = ["describe"] * (self.r.random() < 0.4) + self.r.sample(shapes.SHORT, len(shapes.SHORT)) + self.r.choices(HARD, k=3)
        for kind in kinds:
            if len(row.ids) > ROW_TOKENS - 20:
                break
            row.fork()
            self.turn(row, things, kind)
        return row

    def conversation(self, which, pictures, grid):
        """Turn after turn; the picture first or the question first; sometimes another picture later."""
        row, things = Row(), pictures[which][1]
        row.text(self.user)
        if self.r.random() < 0.3:
            question, answer = shapes.ask(self.r, things, self.kind())
            row.text(self.encode(question))
            row.picture(which, grid)
            self.answer(row, "question first", answer)
        else:
            row.picture(which, grid)
            self.turn(row, things, self.kind())
        while len(row.ids) < ROW_TOKENS - 40:
            row.text(self.end + self.user)
            if self.r.random() < 0.2:
                which = self.r.randrange(len(pictures))
                things = pictures[which][1]
                row.picture(which, grid)
            elif self.r.random() < 0.05:
                question, answer = self.r.choice(list(shapes.FACTS.items()))
                row.text(self.encode(question))
                self.answer(row, "fact", answer)
                continue
            self.turn(row, things, self.kind())
        return row

    def without(self):
        row = Row()
        row.text(self.user)
        while len(row.ids) < ROW_TOKENS - 50:
            row.fork()
            question, answer = shapes.text_turn(self.r, self.other)
            row.text(self.encode(question)[:60])
            self.answer(row, "no picture", answer)
        return row

    def drawn(self, n):
        grid = self.r.choice(shapes.GRIDS)
        return grid, [shapes.picture(self.r, grid) for _ in range(n)]

    def batch(self, pictures=PICTURES, more_pictures=0, text_rows=TEXT_ROWS, conversations=0.2):
        grid, drawn = self.drawn(pictures + more_pictures)
        rows = [self.conversation(i, drawn[:pictures], grid) if self.r.random() < conversations else self.questions(i, things, grid)
                for i, (_, things) in enumerate(drawn[:pictures])] + [self.without() for _ in range(text_rows)]
        return Batch(grid, drawn, rows)


class Pictures:
    """Pictures of one size, and what the tower should know of each merged row: kind, colour and ninth of the object whose
    centre it has, 0 for none."""

    def __init__(self, grid, drawn):
        self.grid, self.pixels = grid, torch.stack([torch.from_numpy(pixels) for pixels, _ in drawn])
        self.known = torch.zeros(len(LABELS), len(drawn), grid[0] * grid[1], dtype=torch.long)
        for i, (_, things) in enumerate(drawn):
            for t in things:
                cell = int(t.centre[0]) // shapes.CELL * grid[1] + int(t.centre[1]) // shapes.CELL
                label = (shapes.SHAPES + shapes.DIGITS).index(t.what), list(shapes.COLOURS).index(t.colour), t.place
                self.known[:, i, cell] = 1 + torch.tensor(label)


class Batch(Pictures):
    def __init__(self, grid, drawn, rows):
        super().__init__(grid, drawn)
        self.rows = rows
        longest = max(len(row.ids) for row in rows)

        def padded(lists, fill):
            return torch.tensor([x + [fill] * (longest - len(x)) for x in lists])

        self.ids = padded([row.ids for row in rows], vlm.PAD)
        self.branch = padded([row.branch for row in rows], -1)
        self.index = padded([row.index for row in rows], 0)
        self.learned = padded([row.learned for row in rows], False)
        self.positions = padded([row.positions for row in rows], (0, 0, 0)).permute(2, 0, 1)
        n = grid[0] * grid[1]
        where = [(i * longest + first, which) for i, row in enumerate(rows) for first, which in row.pictures]
        self.spots = (torch.tensor([a for a, _ in where])[:, None] + torch.arange(n)).flatten()
        self.shown = torch.tensor([which for _, which in where])

    def mask(self):
        mine, its = self.branch[:, :, None], self.branch[:, None, :]
        length = self.ids.shape[1]
        return (((its == mine) | (its == 0)) & torch.ones(length, length, dtype=torch.bool).tril())[:, None]


class Grids(dict):
    def __init__(self, visual):
        self.visual = visual

    def __missing__(self, size):
        self[size] = vlm.Grid(self.visual, *size)
        return self[size]


def forward(model, grids, batch, taps=()):
    """→ (rows after the final norm, taps, the tower's features)."""
    features = vlm.tower(model.model.visual, batch.pixels, grids[batch.grid])
    shown = [f[batch.shown].flatten(0, 1) for f in features]
    hidden, tapped = vlm.text(model.model.language_model, batch.ids, batch.positions, batch.mask(), batch.spots, shown, taps)
    return hidden, tapped, features


# Optimizers ----------------------------------------------------------------------------------------------------------

class Muon:
    """Momentum whose step is made orthogonal by Newton-Schulz iterations (Jordan 2024); matrices of one shape together."""

    def __init__(self, params, lr, momentum=0.95, weight_decay=0.01):
        self.lr, self.momentum, self.weight_decay, self.shapes = lr, momentum, weight_decay, defaultdict(list)
        for p in params:
            self.shapes[p.shape].append(p)
        self.buffers = {shape: torch.zeros(len(group), *shape) for shape, group in self.shapes.items()}

    @staticmethod
    def orthogonal(g):
        x = (g / (g.norm(dim=(1, 2), keepdim=True) + 1e-7)).bfloat16()
        if tall := x.shape[1] > x.shape[2]:
            x = x.mT
        for _ in range(5):
            a = x @ x.mT
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        return (x.mT if tall else x).float()

    @torch.no_grad()
    def step(self, scale):
        for shape, group in self.shapes.items():
            gradient, buffer = torch.stack([p.grad for p in group]), self.buffers[shape]
            buffer.lerp_(gradient, 1 - self.momentum)
            steps = self.orthogonal(gradient.lerp(buffer, self.momentum))
            for p, step in zip(group, steps):
                p.mul_(1 - self.lr * scale * self.weight_decay)
                p.add_(step, alpha=-self.lr * scale * max(1.0, shape[0] / shape[1]) ** 0.5)


class Optimizers:
    """Muon for the hidden matrices, AdamW for embeddings, norms, biases and what is thrown away."""

    def __init__(self, named, muon_lr, adam_lr):
        named = list(named)

        def hidden(name, p):
            return p.ndim == 2 and not any(part in name for part in ("embed", "aside"))

        self.params = [p for _, p in named]
        self.muon = Muon([p for n, p in named if hidden(n, p)], muon_lr)
        self.adam, self.adam_lr = torch.optim.AdamW([p for n, p in named if not hidden(n, p)], adam_lr, betas=(0.9, 0.95), weight_decay=0.0), adam_lr

    def step(self, loss, scale):
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.params, 1.0)
        self.adam.param_groups[0]["lr"] = self.adam_lr * scale
        self.muon.step(scale)
        self.adam.step()
        for p in self.params:
            p.grad = None


def pace(step, steps, warm_up=40, fall=0.5):
    """Scale of the learning rate: up, level, and from `fall` on down to nearly nothing."""
    done = step / steps
    return min(1.0, (step + 1) / warm_up) * (1.0 if done < fall else max(0.02, (1 - done) / (1 - fall)))


# Target --------------------------------------------------------------------------------------------------------------

class Aside(torch.nn.Module):
    """Heads for the tower's own loss: on its merged rows and on what goes to each deepstack layer."""

    def __init__(self, size, n):
        super().__init__()
        self.aside = torch.nn.ModuleList(torch.nn.Linear(size, sum(LABELS)) for _ in range(n))

    def forward(self, features, pictures):
        loss, weight = 0.0, 1.0 + 2.0 * (pictures.known[0] > 0).flatten()
        for head, f in zip(self.aside, features):
            parts = head(f).float().flatten(0, 1).split(LABELS, -1)
            each = sum(F.cross_entropy(part, known.flatten(), reduction="none") for part, known in zip(parts, pictures.known))
            loss = loss + (each * weight).sum() / weight.sum()
        return loss / len(self.aside)


@torch.no_grad()
def check(model, tokenizer, batches=4):
    """Share of answers right in every token, by kind. Whoever is right in every token given the right ones before it is right
    when decoding greedily, and the other way round."""
    rows, grids, right, asked = Rows(tokenizer, CHECK_SEED), Grids(model.model.visual), Counter(), Counter()
    for _ in range(batches):
        batch = rows.batch(text_rows=2)
        hidden, _, _ = forward(model, grids, batch)
        good = vlm.logits(model.model.language_model, hidden[:, :-1]).argmax(-1) == batch.ids[:, 1:]
        for row, ok in zip(batch.rows, good):
            for kind, start, end in row.asked:
                asked[kind] += 1
                right[kind] += bool(ok[start - 1: end - 1].all())
    return {kind: right[kind] / asked[kind] for kind in sorted(asked)}


def train_tower(model, aside, rows, grids, a):
    visual, total, started = model.model.visual, 0.0, time.process_time()
    optimizers = Optimizers([*visual.named_parameters(), *aside.named_parameters()], a.muon_lr, a.adam_lr)
    for step in range(a.tower_steps):
        batch = Pictures(*rows.drawn(TOWER_PICTURES))
        with torch.autocast("cpu", torch.bfloat16):
            loss = aside(vlm.tower(visual, batch.pixels, grids[batch.grid]), batch)
        # No fall: what follows goes on at this pace.
        optimizers.step(loss, pace(step, a.tower_steps, fall=1.0))
        total += loss.item()
        if (step + 1) % 20 == 0:
            print(f"tower step {step + 1}/{a.tower_steps} loss {total / 20:.4f} {time.process_time() - started:.0f} s of processor", flush=True)
            total = 0.0


def train_target(model, tokenizer, a, other):
    rows, grids, visual = Rows(tokenizer, a.seed + 1, other), Grids(model.model.visual), model.model.visual
    aside = Aside(vlm.TEXT["hidden_size"], 1 + len(visual.deepstack_visual_indexes))
    if not a.init:
        train_tower(model, aside, rows, grids, a)
        vlm.save(model, a.out / "target")
    optimizers = Optimizers([*model.named_parameters(), *aside.named_parameters()], a.muon_lr, a.adam_lr)
    sums, started = [0.0, 0.0, 0], time.process_time()
    for step in range(a.steps):
        batch = rows.batch(more_pictures=0 if a.init else MORE_PICTURES)
        learned = batch.learned[:, 1:]
        with torch.autocast("cpu", torch.bfloat16):
            hidden, _, features = forward(model, grids, batch)
            out = vlm.logits(model.model.language_model, hidden[:, :-1][learned])
            # Going on from a target the heads would be new, and would teach the tower nothing at first.
            seen = torch.zeros(()) if a.init else aside(features, batch)
        loss = F.cross_entropy(out, batch.ids[:, 1:][learned])
        optimizers.step(loss + 0.5 * seen, pace(step, a.steps, fall=0.4))
        sums = [sums[0] + loss.item(), sums[1] + seen.item(), sums[2] + 1]
        if (step + 1) % 20 == 0 or step + 1 == a.steps:
            print(f"target step {step + 1}/{a.steps} loss {sums[0] / sums[2]:.4f} tower {sums[1] / sums[2]:.4f} "
                  f"{batch.ids.numel()} tokens, {time.process_time() - started:.0f} s of processor", flush=True)
            sums = [0.0, 0.0, 0]
        if (step + 1) % a.save_every == 0 or step + 1 == a.steps:
            vlm.save(model, a.out / "target", torch.bfloat16)
            vlm.save(model, a.out / "target-float32", torch.float32)  # to see whether rounding changes answers
            print("right:", ", ".join(f"{kind} {share:.3f}" for kind, share in check(model, tokenizer).items()), flush=True)


# Drafter -------------------------------------------------------------------------------------------------------------

def draft_batch(model, grids, batch, r):
    """Anchors in the answers of a batch → what the drafter is given and should answer."""
    anchors = []  # (row, place)
    for i, row in enumerate(batch.rows):
        places = [p for _, start, end in row.asked for p in range(start, end - 1)]
        anchors.append(r.choices(places, k=ANCHORS))
    anchors = torch.tensor(anchors)
    length = batch.ids.shape[1]
    places = anchors[..., None] + torch.arange(BLOCK)                                        # [B, A, BLOCK]
    inside = places.clamp(max=length - 1).flatten(1)
    wanted = batch.ids.gather(1, inside).view_as(places)
    mine = batch.branch.gather(1, anchors)                                                   # [B, A]
    # Up to the answer's end: the stop token is wanted, nothing behind it.
    stopped = (wanted == vlm.STOP).long().cumsum(-1) - (wanted == vlm.STOP).long() > 0
    good = (places < length) & (batch.branch.gather(1, inside).view_as(places) == mine[..., None]) & ~stopped
    weight = torch.exp(-(torch.arange(BLOCK) - 1) / 4.0) * good
    weight[..., 0] = 0.0                                                                     # the bonus token is given
    given = torch.full_like(places, vlm.MASK)
    given[..., 0] = wanted[..., 0]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        _, taps, _ = forward(model, grids, batch, TAPS)
        block = model.model.language_model.embed_tokens(given.flatten(1))
    # A block sees itself and the taps before its anchor that its branch sees. Positions are indices in the sequence: the
    # drafter knows nothing of a picture's two axes.
    index = (batch.index.gather(1, anchors)[..., None] + torch.arange(BLOCK)).flatten(1)
    sees = (torch.arange(length) < anchors[..., None]) & ((batch.branch[:, None] == 0) | (batch.branch[:, None] == mine[..., None]))
    own = torch.arange(ANCHORS).repeat_interleave(BLOCK)
    mask = torch.cat((sees.repeat_interleave(BLOCK, 1), (own[:, None] == own).expand(len(batch.rows), -1, -1)), -1)[:, None]
    return (block, index, taps, batch.index, mask), wanted.flatten(1), weight.flatten(1)


def train_drafter(model, tokenizer, a, other):
    drafter, language = pair.Drafter(SimpleNamespace(**DRAFTER)), model.model.language_model
    # Its rows meet the target's head, so they start on the scale that this head is used to.
    drafter.norm.weight.data.copy_(language.norm.weight.data)
    rows, grids, r = Rows(tokenizer, a.seed + 2, other), Grids(model.model.visual), random.Random(a.seed)
    optimizers = Optimizers([(n.replace("norm", "embed"), p) for n, p in drafter.named_parameters()], a.muon_lr, a.adam_lr)
    total, started = 0.0, time.process_time()
    for step in range(a.drafter_steps):
        given, wanted, weight = draft_batch(model, grids, rows.batch(pictures=20, text_rows=2), r)
        learned = weight > 0
        with torch.autocast("cpu", torch.bfloat16):
            out = vlm.logits(language, drafter(*given)[learned])
        loss = (F.cross_entropy(out, wanted[learned], reduction="none") * weight[learned]).sum() / weight.sum()
        optimizers.step(loss, pace(step, a.drafter_steps))
        total += loss.item()
        if (step + 1) % 20 == 0 or step + 1 == a.drafter_steps:
            print(f"drafter step {step + 1}/{a.drafter_steps} loss {total / 20:.3f} {time.process_time() - started:.0f} s of processor", flush=True)
            total = 0.0
    return drafter.eval()


def other_questions():
    """Questions of the text demo's kinds, which this model should say it knows nothing about."""
    import json
    lines = (HERE.parent / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["messages"][-1]["content"][:100] for line in lines]


def make_tokenizer(path, seed):
    r = random.Random(seed)
    texts = []
    for _ in range(3000):
        _, things = shapes.picture(r, shapes.GRIDS[0])
        texts += [s for kind in shapes.KINDS for s in shapes.ask(r, things, kind)]
    texts += [s for pair_ in shapes.FACTS.items() for s in pair_] * 200 + [shapes.NO_PICTURE, shapes.UNKNOWN] * 200
    texts += ["system\n", "user\n", "assistant\n", " ".join(shapes.OTHER_WORDS)] * 200
    vlm.train_tokenizer(texts, path)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--tower-steps", type=int, default=800)
    p.add_argument("--steps", type=int, default=1200)
    p.add_argument("--drafter-steps", type=int, default=300)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--threads", type=int, help="default: torch's choice")
    p.add_argument("--muon-lr", type=float, default=0.02)
    p.add_argument("--adam-lr", type=float, default=3e-3)
    p.add_argument("--save-every", type=int, default=150)
    p.add_argument("--init", type=Path, help="a target to go on from")
    p.add_argument("--target", type=Path, help="train only a drafter, for this target")
    a = p.parse_args()
    torch.manual_seed(a.seed)
    if a.threads:
        torch.set_num_threads(a.threads)
    other = other_questions()
    if a.target:
        model, tokenizer = vlm.load(a.target), Tokenizer.from_file(str(a.target / "tokenizer.json"))
    else:
        folder = a.out / "target"
        folder.mkdir(parents=True, exist_ok=True)
        if a.init:
            model = vlm.load(a.init).requires_grad_(True)
            (folder / "tokenizer.json").write_bytes((a.init / "tokenizer.json").read_bytes())
        else:
            model = vlm.new_model()
            make_tokenizer(folder / "tokenizer.json", a.seed)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {tokenizer.get_vocab_size()} tokens", flush=True)
        train_target(model, tokenizer, a, other)
        # The drafter learns from the target as it is stored.
        model = vlm.load(folder)
    model.requires_grad_(False)
    if a.drafter_steps:
        pair.save(train_drafter(model, tokenizer, a, other), a.out / "drafter", torch.bfloat16)
        print(f"{a.out / 'drafter'} written", flush=True)


if __name__ == "__main__":
    main()
