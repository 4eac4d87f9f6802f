"""The report of the comparison with llama.cpp, from the lines that bench-llama-cpp.py wrote."""
import collections, json, math, pathlib, statistics

from .cells import ANSWERS, BEGUN, CELLS, DRAFTS, LLAMA, NGRAM, ONE, PROMPT, QUOTED, QUOTING, SHARE, TOKENS, goals, sides
from .processor import described, vectors
from .servers import OURS
from .weights import token_bytes

# How far the ends of an interval may be from the median. A wider interval says nothing about a goal.
NEAR = 0.1
# Two-sided 95 % quantiles of Student's t by degrees of freedom; beyond, the last one is a little too wide.
T95 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093]


def interval(values):
    """Geometric mean, and its 95 % interval, which is not a number if there is one value."""
    logs = [math.log(value) for value in values]
    middle = statistics.fmean(logs)
    if len(logs) < 2:
        return math.exp(middle), math.nan, math.nan
    half = T95[min(len(logs) - 1, len(T95)) - 1] * statistics.stdev(logs) / math.sqrt(len(logs))
    return tuple(math.exp(middle + sign * half) for sign in (0, -1, 1))


def shown(values):
    """The median, then the mean and its interval."""
    middle, low, high = interval(values)
    return f"{statistics.median(values):.2f}, mean {middle:.2f} " + ("(one round)" if math.isnan(low) else f"({low:.2f} to {high:.2f})")


def judged(goal, values):
    """A goal is met if the median reaches it. An interval that ends further from the median than NEAR says nothing."""
    if goal is None:
        return "-"
    middle, (_, low, high) = statistics.median(values or [math.nan]), interval(values or [math.nan])
    near = middle * (1 - NEAR) <= low and high <= middle * (1 + NEAR)
    return f"{goal:g}: " + (("met" if middle >= goal else "missed") if near else "unknown")


def read(path):
    """What is known of the peer; measured lines; lines of rounds that a crash took."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    about = next((line["about"] for line in reversed(lines) if line.get("about")), None)
    lines = [line for line in lines if line.get("cell") in CELLS]
    return about, [line for line in lines if "lost" not in line and line["round"] >= 0], [line for line in lines if "lost" in line]


def best_side(name, lines):
    """llama.cpp as it is fastest in this cell: with lookup it is measured with several lengths of drafts."""
    return max(sides(name)[1:], key=lambda side: statistics.median(line[side] for line in lines))


def row(name, lines, lost, goal):
    cell, ours = CELLS[name], [line[OURS] for line in lines + lost if line.get(OURS) and line["round"] >= 0]
    mine = f"{statistics.median(ours):.1f}" if ours else "-"
    if not lines:
        return f"| {cell.title} | {mine} | crashed | - | {judged(goal, [])} | 0 |"
    side = best_side(name, lines)
    title, theirs = cell.title + side.removeprefix(LLAMA).replace(" ", ", ", 1), statistics.median(line[side] for line in lines)
    ratios = [line[OURS] / line[side] for line in lines]
    return f"| {title} | {mine} | {theirs:.1f} | {shown(ratios)} | {judged(goal, ratios)} | {len(lines)} |"


def report(out, model, gguf, threads):
    about, lines, lost = read(pathlib.Path(out) / "llama-cpp.jsonl")
    wanted = goals(model, vectors(about["ours"])) if about and "ours" in about else {}
    print(f"\ntokens a second, medians of the rounds; {threads} threads each; a goal is met if the median of the ratios reaches it, "
          f"and unknown if their 95 % interval ends further than {NEAR:.0%} from the median\n")
    print(f"| cell | {OURS} | {LLAMA} | ratio: median, mean (95 %) | goal | rounds |\n|---|---|---|---|---|---|")
    by_cell = {name: ([line for line in lines if line["cell"] == name], [line for line in lost if line["cell"] == name]) for name in CELLS}
    for name, (mine, gone) in by_cell.items():
        if mine or gone:
            print(row(name, mine, gone, wanted.get(name)))
    single = [line for line in by_cell[ONE][0] + by_cell[ONE][1] if line.get("bandwidth") and line["round"] >= 0]
    bandwidth(single, {OURS: token_bytes(model), LLAMA: token_bytes(gguf)}, threads, wanted.get(SHARE))
    quoting(by_cell[QUOTING][0])
    print()
    crashes(lost, about)
    noise(lines)
    for name, (mine, _) in by_cell.items():
        if mine and name != PROMPT:
            print(f"{CELLS[name].title}: {statistics.fmean(line['agreed'] for line in mine):.0f} of {TOKENS} tokens until the answers differ")


def bandwidth(lines, sizes, threads, goal):
    """The share of the memory's speed with one stream, which reads every weight of its own file for each token."""
    if not lines:
        return
    each = statistics.median(line["bandwidth"] for line in lines)
    reads = ", ".join(f"{size / 1e6:.1f} MB of {which}'s file (at most {each / size:.0f} tokens a second)" for which, size in sizes.items())
    print(f"\n{threads} threads read {each / 1e9:.1f} GB/s; a token reads {reads}")
    for which, size in sizes.items():
        values = [line[which] * size / line["bandwidth"] for line in lines if line.get(which)]
        if values:
            verdict = f"; goal {judged(goal, values)}" if which == OURS and goal else ""
            print(f"share of that read bandwidth with one stream: {which} {shown(values)}{verdict}")


def quoting(lines):
    if not lines:
        return
    print(f"\nquoting: {ANSWERS} answers a round, each after {QUOTED} tokens twice and {BEGUN} of them again; both sides draft by prompt lookup; "
          f"{LLAMA} with n-grams of {NGRAM} at most, and with {' and '.join(map(str, DRAFTS))} tokens a draft, of which the faster one counts")
    for side in sides(QUOTING):
        drafted, accepted = (sum(line[f"{side} drafts"][at] for line in lines) for at in (0, 1))
        against = "" if side == OURS else f"; ratio {shown([line[OURS] / line[side] for line in lines])}"
        print(f"{side}: {statistics.median(line[side] for line in lines):.1f} tokens a second, {accepted} of {drafted} drafted tokens accepted{against}")


def crashes(lost, about):
    how = collections.Counter(line["lost"] for line in lost if line.get("crash"))
    if not how:
        print(f"{LLAMA} did not crash")
    else:
        ways = ", ".join(f"{count} by {way}" for way, count in how.items())
        print(f"crashes of {LLAMA}: {ways}")
    for name in CELLS:
        mine = [line for line in lost if line["cell"] == name]
        if mine:
            number = lambda line: "warm-up" if line["round"] < 0 else str(line["round"])
            rounds = ", ".join(number(line) + ("" if line.get("crash") else " (not tried)") for line in mine)
            words = next((f"; its last words: {line['words']}" for line in mine if line.get("words")), "")
            print(f"{CELLS[name].title}: lost rounds: {rounds}{words}")
    print(described(about))


def noise(lines):
    for side in dict.fromkeys(side for line in lines for side in sides(line["cell"])):
        values = {key: [line[f"{side} {key}"] for line in lines if f"{side} {key}" in line] for key in ("other_cpu", "stolen")}
        parts = [f"{what} median {statistics.median(values[key]):.2f}, most {max(values[key]):.2f}"
                 for key, what in [("other_cpu", "CPU of other processes:"), ("stolen", "CPU taken by the machine's host:")]]
        print(f"{side}, in cores: {'; '.join(parts)}")
