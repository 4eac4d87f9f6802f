"""Makes gemma3.json: greedy continuations of Gemma 3 270M's GGUF file by transformers in float32.

    python -m venv .venv-gguf
    .venv-gguf/bin/pip install torch==2.15.0 transformers==5.23.0 gguf==0.19.0
    sh scripts/real-gguf.sh DIR
    .venv-gguf/bin/python tests/golden/gemma3.py DIR/gemma-3-270m-q4_k_m.gguf

transformers reads the file itself and expands every weight to float32. The base of the rotation in the layers with a window is not in the file;
that of transformers is checked to be the publisher's. It is a base model: the prompts are texts to continue.
"""

import json
import sys
from pathlib import Path

import torch
import transformers

TOKENS = 32
PROMPTS = [
    "The capital of France is",
    "Water boils at a temperature of",
    "1, 2, 3, 5, 8, 13,",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Once upon a time, in a small village by the sea, there lived",
    "Das Fahrrad ist ein Verkehrsmittel, das",
    "The three primary colours are red,",
    "To make tea, first boil the water. Then",
    "Die Katze schläft auf dem Sofa. The cat sleeps on the",
    "List of rivers in Europe:\n1. Danube\n2. Rhine\n3.",
]


def main(path):
    path = Path(path)
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    ropes = model.config.rope_parameters
    assert ropes["sliding_attention"]["rope_theta"] == 1e4, ropes
    assert ropes["full_attention"]["rope_theta"] == 1e6, ropes
    cases = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, add_special_tokens=False).input_ids
        ids = [tokenizer.bos_token_id, *(ids if ids[0] != tokenizer.bos_token_id else ids[1:])]
        greedy, margins, cache, fed = [], [], None, ids
        with torch.no_grad():
            while len(greedy) < TOKENS:
                made = model(torch.tensor([fed]), past_key_values=cache, use_cache=True)
                top, cache = made.logits[0, -1].topk(2), made.past_key_values
                margins.append(round(float(top.values[0] - top.values[1]), 4))
                fed = [int(top.indices[0])]
                greedy += fed
        assert tokenizer.eos_token_id not in greedy, f"the model ends behind {prompt!r}: choose another prompt"
        text = tokenizer.decode(greedy, clean_up_tokenization_spaces=False)
        cases.append({"name": prompt, "continue": prompt, "prompt": ids, "greedy": greedy, "margins": margins, "text": text})
        print(repr(prompt), "->", repr(text))
    made = {"transformers": transformers.__version__, "torch": torch.__version__, "cases": cases}
    out = Path(__file__).with_suffix(".json")
    lines = [f'  {json.dumps(key)}: {json.dumps(value)}' for key, value in made.items() if key != "cases"]
    rows = ",\n".join(f"    {json.dumps(case)}" for case in cases)
    out.write_text("{\n" + ",\n".join(lines) + ',\n  "cases": [\n' + rows + "\n  ]\n}\n")


if __name__ == "__main__":
    main(sys.argv[1])
