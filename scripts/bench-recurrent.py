#!/usr/bin/env python3
"""What recurrent layers cost: a model of Qwen3.5's shape with about a hundred million random parameters.

    bench-recurrent.py [--binaries target/release] [--rounds 7] [--steps 150] [--format bf16|q4]

The checkpoint is made by random-checkpoint.py under target/. In each round, in an order that moves on:
- blocks of 8 rows with 0, 3 and 7 accepted drafts, over 8 rows of which none may be rejected (`decode_speed`, a bare loop);
- 8 sequences over one, bare;
- one and 8 streams through a service without a drafter (`paceline bench --tables`).
Printed: ratios with their 95 % intervals, for one, 8 and 8 over one. Nothing else should run on the machine. Needs Python's standard library alone.
"""
import argparse, json, math, os, pathlib, re, statistics, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
T95 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262]
PROMPT, BLOCK = 256, 8


def interval(values):
    mean = statistics.fmean(values)
    half = T95[len(values) - 2] * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return f"{mean:.3f} ({mean - half:.3f} to {mean + half:.3f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "target/release")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--format", choices=["bf16", "q4"], default="bf16")
    arguments = parser.parse_args()
    model = ROOT / f"target/random-qwen3_5-100m-{arguments.format}"
    if not (model / "model.safetensors").exists():
        subprocess.run([sys.executable, ROOT / "scripts/random-checkpoint.py", model, "--family", "qwen3_5", "--format", arguments.format], check=True)

    def bare(sequences, *block):
        """Milliseconds of a step, the median."""
        command = [arguments.binaries / "examples/decode_speed", model, sequences, arguments.steps, PROMPT, *block]
        out = subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout
        return float(re.search(r"step median ([\d.]+) ms", out)[1])

    def served():
        """Tokens a second of one stream, and of 8 together."""
        with tempfile.TemporaryDirectory() as directory:
            os.chmod(directory, 0o700)
            environment = os.environ | {"PACELINE_SUPERVISOR__RUNTIME_DIR": directory}
            command = [arguments.binaries / "paceline", "bench", "--tables", "--json", "--model", model, "--lengths", PROMPT,
                       "--concurrency", "1,8", "--max-tokens", arguments.steps, "--runs", 1]
            out = subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True, env=environment).stdout
        rows = json.loads(out)["rows"]
        return [next(row["tg_tok_s"]["values"][0] for row in rows if row["streams"] == streams) for streams in (1, 8)]

    work = {
        "block, none may be rejected": lambda: bare(1, BLOCK, "certain"),
        **{f"block, {accepted} accepted": lambda accepted=accepted: bare(1, BLOCK, accepted) for accepted in (0, 3, 7)},
        "one": lambda: bare(1),
        "eight": lambda: bare(8),
        "served": served,
    }
    rounds = []
    for at in range(arguments.rounds):
        names = list(work)
        names = names[at % len(names):] + names[:at % len(names)]
        rounds.append({name: work[name]() for name in names})
        print(f"round {at + 1}: {json.dumps(rounds[-1])}", flush=True)
    certain = [one["block, none may be rejected"] for one in rounds]
    for accepted in (0, 3, 7):
        times = [one[f"block, {accepted} accepted"] for one in rounds]
        print(f"block of {BLOCK}, {accepted} accepted, over rows that stay: {interval([a / b for a, b in zip(times, certain)])}")
    print(f"bare, 8 sequences over one, tokens a second: {interval([8 * one['one'] / one['eight'] for one in rounds])}")
    print(f"served, one stream over the bare loop: {interval([one['served'][0] * one['one'] / 1e3 for one in rounds])}")
    print(f"served, 8 streams over the bare loop of 8: {interval([one['served'][1] * one['eight'] / 8e3 for one in rounds])}")
    print(f"served, 8 streams over one, tokens a second: {interval([one['served'][1] / one['served'][0] for one in rounds])}")


main()
