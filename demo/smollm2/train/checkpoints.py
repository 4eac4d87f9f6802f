"""Files of MLX's layout: what a drafter takes from its target, and the drafter as it is served.

A quantized matrix is three tensors: `weight`, unsigned numbers of `bits` bits packed into words of 32, the first number in the lowest
bits; `scales` and `biases`, one for each group of a row. A weight is number · scale + bias.
"""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file


def spread(words, scales, biases, bits, group):
    """A packed matrix [rows, columns] → float32."""
    words = torch.from_numpy(words.numpy().view(np.uint32).astype(np.int64))
    numbers = (words[..., None] >> torch.arange(0, 32, bits)) & (2**bits - 1)
    numbers = numbers.flatten(1).float().view(len(words), -1, group)
    return (numbers * scales.float()[..., None] + biases.float()[..., None]).flatten(1)


def packed(weight, bits, group):
    """A matrix → the three tensors. Scale and bias lead exactly to the smallest and the largest number of a group."""
    parts = weight.detach().float().view(len(weight), -1, group)
    low, high = parts.amin(-1), parts.amax(-1)
    scales = ((high - low) / (2**bits - 1)).clamp(min=1e-8)
    numbers = ((parts - low[..., None]) / scales[..., None]).round().clamp(0, 2**bits - 1)
    numbers = numbers.flatten(1).long().view(len(weight), -1, 32 // bits)
    words = (numbers << torch.arange(0, 32, bits)).sum(-1)
    return torch.from_numpy(words.numpy().astype(np.uint32).view(np.int32)).view(torch.uint32), scales, low


class TargetParts:
    """Embedding, final norm and sizes of a target with a tied head."""

    def __init__(self, folder):
        self.config = json.loads((Path(folder) / "config.json").read_text())
        files = sorted(Path(folder).glob("*.safetensors"))
        weights = {name: tensor for file in files for name, tensor in load_file(file).items()}
        name = "model.embed_tokens"
        how = self.config.get("quantization", {})
        how = {**how, **(how.get(name) or {})}
        if f"{name}.scales" in weights:
            parts = (weights[f"{name}.{part}"] for part in ("weight", "scales", "biases"))
            self.embedding = spread(*parts, how["bits"], how["group_size"])
        else:
            self.embedding = weights[f"{name}.weight"].float()
        self.norm = weights["model.norm.weight"].float()
        head = weights.get("lm_head.weight")
        self.head = self.embedding if head is None else head.float()


def write(folder, config, weights, bits, group, target, floats=()):
    """Writes a drafter. Matrices but those of `floats` are packed, all else is float32; the tokenizer is the target's."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, weight in weights.items():
        module = name.removesuffix(".weight")
        if bits and weight.ndim == 2 and module not in floats:
            for part, tensor in zip(("weight", "scales", "biases"), packed(weight, bits, group)):
                tensors[f"{module}.{part}"] = tensor if part == "weight" else tensor.to(torch.bfloat16)
        else:
            tensors[name] = weight.detach().float().contiguous() if weight.is_floating_point() else weight
    if bits:
        config = {**config, "quantization": {"bits": bits, "group_size": group}}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "mlx"})
    (folder / "model.safetensors").chmod(0o644)  # safetensors makes it readable by its owner alone
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (Path(target) / name).exists():
            shutil.copyfile(Path(target) / name, folder / name)
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
