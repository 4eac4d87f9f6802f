#!/usr/bin/env python3
"""What llama.cpp's rounding of activations to 8 bits costs: its perplexity of this project's documents and code.

    perplexity-llama-cpp.py --gguf FILE --windows WINDOWS.json --out RESULTS.json --name NAME [--threads 1] [--float32 FILE]

A window has 512 tokens, and the tokens of its second half count, each after all before it in the window. Half of the windows are of docs/*.md,
half of */src/**/*.rs, at even distances over the files in the order of their paths. --windows keeps their token ids, a list of lists, for another
engine; windows that are there are used as they are. --float32 names a file for the same weights as float32 (four bytes for each). llama.cpp
rounds nothing to 8 bits with it, so that the loss is that of the rounding alone: perplexity, the Kullback-Leibler divergence of the
distributions from those of float32, and how often the best token is the same. Keys and values are float16 in both.

Run it with a Python that has llama-cpp-python and numpy.
"""
import argparse, ctypes, json, pathlib, sys

import llama_cpp as ll
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench"))
from peers.clients import ROOT
from peers.llama import Model

LENGTH, COUNTED, BYTES = 512, 256, 8  # tokens of a window; those that count; most bytes of text a token
SOURCES = ["docs/*.md", "*/src/**/*.rs"]


def windows(model, tokens):
    each = -(-tokens // (COUNTED * len(SOURCES)))
    found = []
    for pattern in SOURCES:
        text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(ROOT.glob(pattern)))
        for number in range(each):
            begin = text.index("\n", number * (len(text) - LENGTH * BYTES) // each) + 1
            found.append(model.ids(text[begin : begin + LENGTH * BYTES])[:LENGTH])
    if any(len(ids) != LENGTH for ids in found):
        raise SystemExit(f"expected {LENGTH} tokens in each window, found {[len(ids) for ids in found]}")
    return found


def expand(gguf, path, threads):
    """Writes the weights as float32."""
    params = ll.llama_model_quantize_default_params()
    params.nthread, params.ftype, params.allow_requantize, params.pure = threads, ll.LLAMA_FTYPE_ALL_F32, True, True
    params.output_tensor_type = params.token_embedding_type = ll.GGML_TYPE_F32
    if code := ll.llama_model_quantize(gguf.encode(), path.encode(), ctypes.byref(params)):
        raise SystemExit(f"llama_model_quantize returned {code}")


def log_probabilities(model, ids):
    """Of every token of the vocabulary at the positions whose next token counts."""
    model.enter(1)
    first = LENGTH - COUNTED - 1
    logits = model.logits([(token, at, 0, first <= at < LENGTH - 1) for at, token in enumerate(ids)])
    for row in logits:
        row = row.astype(np.float64)
        row -= row.max()
        yield row - np.log(np.exp(row).sum())


def summary(losses):
    """Means over all tokens, and the loss of each window."""
    each = [float(np.mean(window)) for window in losses]
    return dict(nll=float(np.mean(each)), perplexity=float(np.exp(np.mean(each))), tokens=sum(map(len, losses)), windows=each)


def measure(model, exact, all_ids):
    """Losses of the model; with the exact one its losses, too, and what the two differ in."""
    losses, exact_losses, divergences, same = [], [], [], []
    for number, ids in enumerate(all_ids, 1):
        wanted, mine, theirs = ids[-COUNTED:], [], []
        for token, row, other in zip(wanted, log_probabilities(model, ids), log_probabilities(exact, ids) if exact else [None] * COUNTED):
            mine.append(-row[token])
            if other is not None:
                theirs.append(-other[token])
                divergences.append(float((np.exp(other) * (other - row)).sum()))
                same.append(bool(other.argmax() == row.argmax()))
        losses.append(mine)
        exact_losses.append(theirs)
        print(f"{number} of {len(all_ids)} windows: perplexity {summary(losses)['perplexity']:.4f}"
              + (f", of float32 {summary(exact_losses)['perplexity']:.4f}, divergence {np.mean(divergences):.6f}" if exact else ""), flush=True)
    found = summary(losses)
    if exact:
        found |= dict(float32=summary(exact_losses), kl=float(np.mean(divergences)), kl_most=max(divergences), same_best=float(np.mean(same)))
    return found


def main():
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    add = parser.add_argument
    add("--gguf", required=True)
    add("--windows", required=True, help="file of the token ids, written if it is not there")
    add("--out", required=True, help="JSON file of the results; other names in it stay")
    add("--name", required=True, help="of this result in the file")
    add("--threads", type=int, default=1)
    add("--tokens", type=int, default=20_000, help="that count in all windows together, at least")
    add("--float32", help="file for the expanded weights, written if it is not there")
    a = parser.parse_args()
    model, kept, out = Model(a.gguf, a.threads), pathlib.Path(a.windows), pathlib.Path(a.out)
    if not kept.exists():
        kept.write_text(json.dumps(windows(model, a.tokens)))
    if a.float32 and not pathlib.Path(a.float32).exists():
        expand(a.gguf, a.float32, a.threads)
    found = measure(model, Model(a.float32, a.threads) if a.float32 else None, json.loads(kept.read_text()))
    found |= dict(version=ll.__version__, system=ll.llama_print_system_info().decode(), threads=a.threads)
    results = json.loads(out.read_text()) if out.exists() else {}
    out.write_text(json.dumps({**results, a.name: found}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
