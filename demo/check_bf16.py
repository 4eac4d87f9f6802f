"""Would the target's greedy answers change if its weights were stored as bfloat16? Decodes every prompt of prompts.jsonl both ways.

    python demo/check_bf16.py        (some five minutes; float32 arithmetic in both runs, only the weights are rounded)
"""

import json
from collections import Counter
from pathlib import Path

import torch
from transformers import AutoTokenizer

import pair

HERE = Path(__file__).resolve().parent


def main():
    torch.set_num_threads(1)
    stored, rounded = pair.load(pair.Target, HERE / "target"), pair.load(pair.Target, HERE / "target", torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(HERE / "target")
    asked, changed, right, right_rounded = Counter(), Counter(), Counter(), Counter()
    for line in (HERE / "prompts.jsonl").read_text(encoding="utf-8").splitlines():
        prompt = json.loads(line)
        kind = prompt["kind"]
        ids = tokenizer.apply_chat_template(prompt["messages"], add_generation_prompt=True, return_dict=False)
        a, b = (pair.decode_plain(m, ids, prompt["max_tokens"], stored.config.eos_token_id) for m in (stored, rounded))
        asked[kind] += 1
        changed[kind] += a != b
        for count, answer in ((right, a), (right_rounded, b)):
            count[kind] += tokenizer.decode(answer, skip_special_tokens=True) == prompt.get("expected")
    print("| kind | prompts | right as stored | right rounded | answers that differ |\n|---|---|---|---|---|")
    for kind in asked:
        # Prose has no right answer.
        judged = f"{right[kind]} | {right_rounded[kind]}" if right[kind] else "– | –"
        print(f"| {kind} | {asked[kind]} | {judged} | {changed[kind]} |")


if __name__ == "__main__":
    main()
