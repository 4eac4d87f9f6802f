"""What was measured, as tables."""
import json, math, pathlib, statistics

from .load import LONG_TOKENS, STREAMS
from .servers import OURS, PEERS


def table(a):
    """Best peer: the one with the best median in that cell. The ratio is taken round by round against it; above 1 we are ahead, in
    times as well."""
    lines = [json.loads(line) for line in open(pathlib.Path(a.out) / "results.jsonl")]
    for label in dict.fromkeys(line["label"] for line in lines):
        mine = [line for line in lines if line["label"] == label]
        rows = [(cell, "tok_s", False) for cell in dict.fromkeys(line["cell"] for line in mine if "tok_s" in line)]
        print(f"\n{label}: tokens per second of wall-clock time; medians of {len({line['round'] for line in mine})} rounds\n")
        report(mine, rows)
        times = [("behind", "short_first_ms", True), ("beside", "short_first_ms", True), ("beside", "gap_ms", True), ("behind", "long_first_ms", True), ("beside", "long_first_ms", True)]
        print(f"\n{label}: milliseconds (a short request behind {LONG_TOKENS} tokens; the same beside {STREAMS} streams; their longest gap)\n")
        report(mine, [row for row in times if any(line["cell"] == row[0] for line in mine)])
        notes(mine)


def report(lines, rows):
    print(f"| at once | {OURS} | " + " | ".join(PEERS) + " | best peer | ratio, median (min to max) |\n|" + "---|" * (len(PEERS) + 4))
    ratios = []
    for cell, key, less in rows:
        seen = {}
        for line in lines:
            if line["cell"] == cell and line.get(key) is not None:
                seen.setdefault(line["server"], {})[line["round"]] = line[key]
        middle = {name: statistics.median(values.values()) for name, values in seen.items()}
        rivals = {name: value for name, value in middle.items() if name != OURS}
        shown = [f"{middle[name]:.0f}" if name in middle else "-" for name in [OURS, *PEERS]]
        verdict = ["-", "-"]
        if rivals and OURS in seen:
            best = (min if less else max)(rivals, key=rivals.get)
            each = [seen[best][n] / mine if less else mine / seen[best][n] for n, mine in seen[OURS].items() if n in seen[best]]
            if each:
                ratios.append(statistics.median(each))
                verdict = [best, f"{ratios[-1]:.2f} ({min(each):.2f} to {max(each):.2f})"]
        name = cell if key == "tok_s" else f"{cell}: {key}"
        print(f"| {name} | " + " | ".join(shown + verdict) + " |")
    if ratios:
        print(f"\ngeometric mean {math.exp(statistics.fmean(map(math.log, ratios))):.2f}, least {min(ratios):.2f}, ahead in {sum(r > 1 for r in ratios)} of {len(ratios)} cells")


def notes(lines):
    """What a reader must know to believe the table."""
    fast = [line for line in lines if "tok_s" in line]
    wanted = {(line["round"], line["cell"]): line for line in fast if line["server"] == OURS}
    for name in [OURS, *PEERS]:
        own = [line for line in fast if line["server"] == name]
        if not own:
            continue
        compared = [(x, y) for line in own if (ours := wanted.get((line["round"], line["cell"]))) for x, y in zip(ours["texts"], line["texts"])]
        counted = [(x, y) for line in own if (ours := wanted.get((line["round"], line["cell"]))) for x, y, s, t in zip(ours["counts"], line["counts"], ours["texts"], line["texts"]) if s == t]
        cycles = sum(line["cycles"] for line in own)
        quiet = [line["quiet_gap_ms"] for line in lines if line["server"] == name and "quiet_gap_ms" in line]
        print(f"{name}: {sum(line['tokens'] for line in own)} tokens in {sum(line['requests'] for line in own)} answers, {sum(line['stopped'] for line in own)} to their own end, "
              f"{sum(x != y for x, y in compared)} of {len(compared)} texts other than ours, {sum(x != y for x, y in counted)} counted otherwise; prompt tokens from a cache {sum(line['cached'] for line in own)}; "
              f"client's CPU {statistics.median(line['client_cpu'] for line in own):.2f} of a core (most {max(line['client_cpu'] for line in own):.2f})"
              + (f"; {(cycles + sum(line['accepted'] for line in own)) / cycles:.2f} tokens a cycle" if cycles else "")
              + (f"; longest gap of the streams before a long prompt came {statistics.median(quiet):.0f} ms" if quiet else ""))
    for key, what in [("other_cpu", "CPU of other processes during a measurement"), ("stolen", "CPU taken by the machine's host")]:
        values = [line[key] for line in lines if key in line]
        if values:
            print(f"{what}: median {statistics.median(values):.2f} of a core, most {max(values):.2f}")
    print(f"CPU of all servers before a measurement: most {max(line['idle_cpu'] for line in lines):.2f} of a core; streams over before the long prompt was read: {sum(line.get('ended_early', 0) for line in lines)}")
    for line in lines:
        if "error" in line or "skipped" in line:
            print(f"round {line['round']}, {line['cell']}, {line['server']}: {line.get('error') or line['skipped']}")
