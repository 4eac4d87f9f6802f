"""Measures a pair on demo/prompts.jsonl: right answers, length, tokens per cycle, and that drafted output is plain output.

    python demo/measure.py [--target DIR] [--drafter DIR] [--round-drafter bfloat16] [--blocks 16 8] [--per-kind N]

Greedy, float32 arithmetic, one sequence at a time, one thread. Tokens per cycle: tokens after the first (which prefill gives),
the bonus token of each cycle included, over cycles. No clock is read: what a cycle costs depends on the engine, not on this loop.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path

import torch
from transformers import AutoTokenizer

import pair

HERE = Path(__file__).resolve().parent


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--target", default=HERE / "target")
    p.add_argument("--drafter", default=HERE / "drafter")
    p.add_argument("--round-drafter", metavar="DTYPE", help="round the drafter's weights to this type first")
    p.add_argument("--blocks", type=int, nargs="*", default=[16, 8])
    p.add_argument("--per-kind", type=int, default=40)
    a = p.parse_args()
    torch.set_num_threads(1)
    target = pair.load(pair.Target, a.target)
    drafter = pair.load(pair.Drafter, a.drafter, getattr(torch, a.round_drafter) if a.round_drafter else None)
    tokenizer, stop = AutoTokenizer.from_pretrained(a.target), target.config.eos_token_id

    kinds = defaultdict(list)
    for line in (HERE / "prompts.jsonl").read_text(encoding="utf-8").splitlines():
        prompt = json.loads(line)
        kinds[prompt["kind"]].append(prompt)
    equal = total = 0
    print("| kind | right answers | mean length |" + "".join(f" tokens per cycle, block {b} |" for b in a.blocks))
    print("|---|---|---|" + "---|" * len(a.blocks))
    for kind, prompts in kinds.items():
        right = tokens = 0
        cycles, known = dict.fromkeys(a.blocks, 0), True
        prompts = prompts[: a.per_kind]
        for prompt in prompts:
            ids = tokenizer.apply_chat_template(prompt["messages"], add_generation_prompt=True, return_dict=False)
            plain = pair.decode_plain(target, ids, prompt["max_tokens"], stop)
            known = "expected" in prompt
            right += known and tokenizer.decode(plain, skip_special_tokens=True) == prompt["expected"]
            tokens += len(plain)
            for block in a.blocks:
                drafted, n = pair.decode_drafted(target, drafter, ids, prompt["max_tokens"], stop, block)
                cycles[block] += n
                equal, total = equal + (drafted == plain), total + 1
        answers = f"{right}/{len(prompts)}" if known else "–"
        print(f"| {kind} | {answers} | {tokens / len(prompts):.1f} |"
              + "".join(f" {(tokens - len(prompts)) / cycles[b]:.2f} |" for b in a.blocks), flush=True)
    if total:
        print(f"\nDrafted output equal to plain output: {equal} of {total}.")


if __name__ == "__main__":
    main()
