#!/usr/bin/env python3
"""Primitives that each layer adds to MLX's graph, of this project and of mlx-lm, for the same checkpoints.

    graph-cost.py [--write] [--report FILE] [CHECKPOINT...]

The checkpoints are those of models/tests/golden in FIXTURE, or the names given. Counted are one row after a prompt of 64, a
block of 4 rows after it, and a first chunk of 512 rows. A primitive is a node of the graph: a kernel, or a view that
launches nothing. What a GPU has as one primitive (norms, rotary turns, attention, the gated delta rule) counts as one, also
where MLX's CPU would take it apart.

--write writes mlx-lm's counts to FIXTURE, to which models/tests/graph_cost holds this project's. --report reads what the
test `the_graph_of_every_family` printed, and prints both beside each other.

Needs mlx-lm: pip install 'mlx[cpu]' mlx-lm. The layers' weights do not matter, so nothing is computed but the prompt.
"""
import argparse, importlib.metadata, json, pathlib, re, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "models/tests/golden"
FIXTURE = ROOT / "models/tests/graph_cost/mlx-lm.json"
CHECKPOINTS = ["llama-tiny", "llama-tiny-q4", "qwen2-tiny", "qwen3-tiny", "qwen3-tiny-q4", "qwen3-moe-tiny", "qwen3-moe-tiny-q4",
               "qwen3_5-tiny", "qwen3_5-tiny-q4", "qwen3_5_moe-tiny", "qwen3_5_moe-tiny-q4"]
PROMPT = 64
# Rows of a pass, and rows that the cache holds before it.
PASSES = {"row": (1, PROMPT), "block": (4, PROMPT), "chunk": (512, 0)}


def one_primitive(mx, outputs, inputs):
    """Arrays of the outputs' shapes that one primitive computes from all of these."""
    return mx.depends(list(outputs), [array for array in inputs if array is not None] or list(outputs))


def count_as_on_a_gpu(mx):
    """Replaces the operations that are one primitive on a GPU. Their results are wrong, which the count does not change."""
    from mlx_lm.models import gated_delta, qwen3_5

    def attention(q, k, v, *, scale, mask=None, sinks=None, **_):
        return one_primitive(mx, [q], [k, v, mask if isinstance(mask, mx.array) else None, sinks])[0]

    def rule(q, k, v, a, b, A_log, dt_bias, state=None, mask=None, use_kernel=True):
        beta, g = mx.sigmoid(b), gated_delta.compute_g(A_log, a, dt_bias)
        if state is None:
            state = mx.zeros((q.shape[0], v.shape[-2], v.shape[-1], q.shape[-1]), dtype=mx.float32)
        return tuple(one_primitive(mx, [v, state], [q, k, g, beta, mask]))

    before = mx.fast.rms_norm, mx.fast.layer_norm, mx.fast.rope, mx.fast.scaled_dot_product_attention, qwen3_5.gated_delta_update
    mx.fast.rms_norm = lambda x, weight, eps, **_: one_primitive(mx, [x], [weight])[0]
    mx.fast.layer_norm = lambda x, weight, bias, eps, **_: one_primitive(mx, [x], [weight, bias])[0]
    mx.fast.rope = lambda x, *_, freqs=None, **__: one_primitive(mx, [x], [freqs])[0]
    mx.fast.scaled_dot_product_attention, qwen3_5.gated_delta_update = attention, rule

    def restore():
        (mx.fast.rms_norm, mx.fast.layer_norm, mx.fast.rope, mx.fast.scaled_dot_product_attention, qwen3_5.gated_delta_update) = before
    return restore


def primitives(mx, arrays):
    """How many primitives an evaluation would run: the boxes of MLX's own drawing."""
    with tempfile.NamedTemporaryFile("r", suffix=".dot") as file:
        mx.export_to_dot(file.name, *arrays)
        return len(re.findall(r"shape=rectangle", file.read()))


def arrays_of(tree):
    if isinstance(tree, (list, tuple)):
        return [array for part in tree for array in arrays_of(part)]
    return [] if tree is None else [tree]


def forget(mx, entry):
    """Puts arrays that are there in place of those that would have to be computed: MLX's CPU lacks some operations."""
    nothing = lambda array: None if array is None else mx.zeros(array.shape, dtype=array.dtype)
    if hasattr(entry, "keys"):
        entry.keys, entry.values = nothing(entry.keys), nothing(entry.values)
    else:
        entry.cache = [nothing(array) for array in entry.cache]
    mx.eval(states_of(entry))


def states_of(entry):
    return arrays_of([entry.keys, entry.values] if hasattr(entry, "keys") else entry.cache)


def kind_of(layer, entry):
    attends, mlp = hasattr(entry, "keys"), layer.mlp
    return ("attention" if attends else "recurrent") + (", experts" if hasattr(mlp, "switch_mlp") else "")


def layers_of(mx, model, rows, before):
    """The primitives that a layer of each kind adds."""
    from mlx_lm.models.cache import make_prompt_cache

    # Frequencies of rotary turns are no parameters.
    mx.eval([array for module in model.modules() for array in module.values() if isinstance(array, mx.array)])
    cache, text = make_prompt_cache(model), getattr(model, "language_model", model)
    if before:
        model(mx.array([[at % 7 + 5 for at in range(before)]]), cache=cache)
        for entry in cache:
            forget(mx, entry)
    kinds, outputs = {type(layer) for layer in model.layers}, []
    calls = {kind: kind.__call__ for kind in kinds}

    def recorded(kind):
        def call(self, *arguments, **named):
            outputs.append(calls[kind](self, *arguments, **named))
            return outputs[-1]
        return call
    restore = count_as_on_a_gpu(mx)
    try:
        for kind in kinds:
            kind.__call__ = recorded(kind)
        text(mx.array([[at % 7 + 5 for at in range(rows)]]), cache=cache)
    finally:
        restore()
        for kind in kinds:
            kind.__call__ = calls[kind]
    # The first layer's count has the embedding and the mask in it, which no layer repeats.
    counts, roots, below = {}, [], None
    for layer, output, entry in zip(model.layers, outputs, cache):
        roots += states_of(entry)
        total = primitives(mx, roots + [output])
        if below is not None:
            counts.setdefault(kind_of(layer, entry), total - below)
        below = total
    return counts


def of_mlx_lm(names):
    import mlx.core as mx
    from mlx_lm.utils import load_model

    mx.set_default_device(mx.cpu)
    gather_qmm = mx.gather_qmm
    # mlx-lm 0.32.2 names an argument that MLX 0.32.2 does not have yet.
    mx.gather_qmm = lambda *arguments, global_scale=None, **named: gather_qmm(*arguments, **named)
    counts = {}
    for name in names:
        model, _ = load_model(GOLDEN / name, lazy=False, strict=False)
        counts[name] = {of: layers_of(mx, model, *rows) for of, rows in PASSES.items()}
    versions = {package: importlib.metadata.version(package) for package in ("mlx", "mlx-lm")}
    return {"command": "scripts/graph-cost.py --write", "versions": versions, "layers": counts}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--report", type=pathlib.Path)
    parser.add_argument("checkpoints", nargs="*", default=CHECKPOINTS)
    arguments = parser.parse_args()
    found = of_mlx_lm(arguments.checkpoints)
    if arguments.write:
        FIXTURE.write_text(json.dumps(found, indent=1) + "\n")
    ours = {}
    if arguments.report:
        lines = arguments.report.read_text().splitlines()
        for line in (line for line in lines if line.startswith("graph-cost ")):
            _, graph, name, of, counts = line.split(" ", 4)
            ours.setdefault((name, of), {})[graph] = counts
    print("| checkpoint | pass | mlx-lm | ours: cpu | mlx | gpu |\n|---|---|---|---|---|---|")
    for name, passes in found["layers"].items():
        for of, counts in passes.items():
            mine = ours.get((name, of), {})
            print(f"| {name} | {of} | {counts} | {' | '.join(mine.get(graph, '-') for graph in ('cpu', 'mlx', 'gpu'))} |")


if __name__ == "__main__":
    sys.exit(main())
