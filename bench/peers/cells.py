"""Cells of the comparison with llama.cpp: their prompts, their goals, and the speed of an answer."""
import dataclasses, json, pathlib, random

from .clients import ROOT
from .processor import AVX2, AVX512
from .servers import OURS

LLAMA = "llama.cpp"
TOKENS, SHORT, LONG = 128, 40, 1000  # of an answer; of its prompt; of a long prompt
# A quoting prompt: a text twice, then its first tokens once more. The model goes on with the text, whose rest is longer than an answer.
QUOTED, BEGUN, ANSWERS = 400, 80, 3
# llama-cpp-python's prompt lookup: its default n-grams; its default drafts, 10, and 2, which its documentation recommends without a GPU.
NGRAM, DRAFTS = 2, (2, 10)
QUOTING, PROMPT, ONE, SHARE = "quoting", "prompt", "1", "share"


@dataclasses.dataclass(frozen=True)
class Cell:
    """One comparison: streams at once, and tokens of each prompt."""
    title: str
    streams: int
    length: int


CELLS = {
    ONE: Cell("one stream", 1, SHORT),
    "2": Cell("2 streams", 2, SHORT),
    "4": Cell("4 streams", 4, SHORT),
    "8": Cell("8 streams", 8, SHORT),
    "16": Cell("16 streams", 16, SHORT),
    PROMPT: Cell(f"prompt of {LONG:,}", 1, LONG),
    QUOTING: Cell("quoting", 1, 2 * QUOTED),
}

# Ratios over llama.cpp to reach, and the share of the read bandwidth, by (`model_type`, `hidden_size`) and our vectors.
SMOLLM2, CODER = ("llama", 576), ("qwen2", 1536)
AT_ONCE = {"2": 1.2, "4": 1.2, "16": 1.2}
GOALS = {
    SMOLLM2: {AVX512: {**AT_ONCE, ONE: 1.6, "8": 2.5, PROMPT: 3.0, QUOTING: 3.5, SHARE: 0.64},
              AVX2: {**AT_ONCE, ONE: 1.4, "8": 2.2, PROMPT: 2.6, QUOTING: 3.5, SHARE: 0.58}},
    CODER: {vectors: {ONE: 1.3, PROMPT: 1.6, SHARE: 0.76} for vectors in (AVX512, AVX2)},
}


def goals(model, wide):
    """Goals of a checkpoint with these vectors, by cell and SHARE; none for a model without goals."""
    config = json.loads((pathlib.Path(model) / "config.json").read_text())
    return GOALS.get((config.get("model_type"), config.get("hidden_size")), {}).get(wide, {})


def rival(drafts):
    """Name of llama.cpp with drafts of this many tokens."""
    return f"{LLAMA} drafts of {drafts}"


def sides(name):
    """Every side of a cell that is measured in a round."""
    return [OURS, *map(rival, DRAFTS)] if name == QUOTING else [OURS, LLAMA]


class Prompts:
    """Prompts of this project's documents from places that no prompt began at before."""

    def __init__(self, ids_of):
        text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("docs/**/*.md")))
        # Tables and code are not quoted as surely as words are.
        words = " ".join(word for word in text.split() if not set(word) & set("|`<>#"))
        self.ids, self.words, self.gap, self.random = ids_of(text), ids_of(words), ids_of("\n\n"), random.Random(7)
        if len(self.words) <= QUOTED or len(self.ids) <= LONG:
            raise SystemExit(f"expected documents of more than {LONG} tokens, found {len(self.ids)}, of which {len(self.words)} are of plain words")

    def head(self):
        # Half of the first tokens are random, so that no prompt is the beginning of an earlier one.
        return [self.random.choice(self.ids) for _ in range(4)]

    def part(self, ids, length):
        begin = self.random.randrange(len(ids) - length)
        return ids[begin : begin + length]

    def take(self, count, length):
        return [self.head() + self.part(self.ids, length - 4) for _ in range(count)]

    def quoting(self, count):
        parts = [self.part(self.words, QUOTED) for _ in range(count)]
        return [self.head() + part + self.gap + part + self.gap + part[:BEGUN] for part in parts]

    def of(self, name):
        """Fresh prompts for one round of a cell."""
        return self.quoting(ANSWERS) if name == QUOTING else self.take(CELLS[name].streams, CELLS[name].length)


async def measure(name, generate, prompts):
    """Tokens a second of one side in one round; its ids; tokens that it drafted and accepted. `generate` continues prompts together."""
    groups = [[prompt] for prompt in prompts] if name == QUOTING else [prompts]
    wanted = 1 if name == PROMPT else TOKENS
    answers = [await generate(group, wanted) for group in groups]
    ids = [found for answer in answers for found in answer["ids"]]
    times = [each for answer in answers for each in answer["times"]]
    if any(len(found) != wanted for found in ids):
        raise SystemExit(f"cell {name}: expected {wanted} tokens of each answer, found {[len(found) for found in ids]}")
    counts = [sum(answer.get(key, 0) for answer in answers) for key in ("drafted", "accepted")]
    return speed(name, prompts, times), ids, counts


def speed(name, prompts, times):
    """Tokens a second. `times` has (seconds after the submission, number of tokens) of each message of each answer."""
    if name == PROMPT:
        return len(prompts[0]) / times[0][0][0]
    if CELLS[name].streams == 1:
        after_first = sum(TOKENS - each[0][1] for each in times)
        return after_first / sum(each[-1][0] - each[0][0] for each in times)
    return TOKENS * len(times) / max(each[-1][0] for each in times)
