#!/bin/sh
# A checkpoint that today's transformers saved is rotated by another base, without an error.
#
# Packages:  mlx-lm 0.32.2 (the newest) with mlx 0.32.4, transformers 5.24.0 (the newest)
# Input:     configs of several families with a base of 500,000, and one of Llama 3 with its scaling, as transformers
#            saves them: in `rope_parameters`, without `rope_theta` and `rope_scaling`
# Expected:  every loaded model rotates by the base that was saved, or the load fails by name
# Seen:      qwen3 does. Llama, Mistral, OLMo 2, SmolLM3 and Phi 3 rotate by 10,000, Qwen2 by 1,000,000: the defaults of
#            their modules, which know the old keys alone. Llama 3's scaling is dropped as well. Only families without
#            a default (granite) fail. With `rope_theta` written beside it the same file is loaded right
# Matters:   a model that was fine-tuned and saved with transformers 5 computes other logits from the second token on
# Output:
#   llama    saved 500000, used 10000
#   mistral  saved 500000, used 10000
#   olmo2    saved 500000, used 10000
#   smollm3  saved 500000, used 10000
#   phi3     saved 500000, used 10000
#   qwen2    saved 500000, used 1000000
#   qwen3    saved 500000, used 500000
#   granite  saved 500000, missing argument rope_theta
#   llama with the scaling of Llama 3: used RoPE with base 10000
#   llama with rope_theta beside it: used 500000
#   llama, logits of 64 tokens as saved and with rope_theta beside it: other ones
set -eu
sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python=$folder/venv/bin/python
"$python" -m pip --quiet --disable-pip-version-check install mlx-lm==0.32.2 'mlx[cpu]==0.32.4' transformers==5.24.0 || exit 75

sed -n '/^# Output:/,/^set/s/^#   //p' "$0" >"$folder/expected"
"$python" - "$folder" >"$folder/seen" 2>"$folder/errors" <<'END' || { cat "$folder/errors"; exit 1; }
import importlib
import json
import pathlib
import re
import sys

import mlx.core as mx
from mlx_lm.utils import load_model
from transformers import AutoConfig

mx.set_default_device(mx.cpu)
SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 512,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}
PLAIN = {"rope_type": "default", "rope_theta": 500000.0}
LLAMA_3 = {
    **PLAIN, "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}


def saved(name, kind, rope, beside=None):
    """A directory with the config as transformers saves it."""
    folder = pathlib.Path(sys.argv[1]) / name
    AutoConfig.for_model(kind, rope_parameters=dict(rope), **SIZES).save_pretrained(folder)
    file = folder / "config.json"
    config = json.loads(file.read_text())
    assert config["rope_parameters"]["rope_theta"] == 500000.0 and "rope_theta" not in config
    config.update(beside or {})
    file.write_text(json.dumps(config))
    return folder, config


def loaded(folder, config):
    """The model with random weights, read again as any checkpoint is."""
    family = {"mistral": "llama"}.get(config["model_type"], config["model_type"])
    module = importlib.import_module(f"mlx_lm.models.{family}")
    mx.random.seed(0)
    module.Model(module.ModelArgs.from_dict(config)).save_weights(str(folder / "model.safetensors"))
    return load_model(folder)[0]


def rotation(model):
    return next(module for name, module in model.named_modules() if name.endswith("rope"))


for kind in ["llama", "mistral", "olmo2", "smollm3", "phi3", "qwen2", "qwen3", "granite"]:
    try:
        used = f"used {rotation(loaded(*saved(kind, kind, PLAIN))).base:.0f}"
    except TypeError as error:
        used = "missing argument " + re.search("'(\\w+)'", str(error))[1]
    print(f"{kind:8} saved 500000, {used}")

scaled = rotation(loaded(*saved("scaled", "llama", LLAMA_3)))
print(f"llama with the scaling of Llama 3: used {type(scaled).__name__} with base {scaled.base:.0f}")
beside = loaded(*saved("beside", "llama", PLAIN, {"rope_theta": 500000.0}))
print(f"llama with rope_theta beside it: used {rotation(beside).base:.0f}")
tokens = mx.arange(64)[None]
alone = loaded(*saved("alone", "llama", PLAIN))
same = mx.allclose(alone(tokens), beside(tokens), rtol=1e-3, atol=1e-5).item()
print(f"llama, logits of 64 tokens as saved and with rope_theta beside it: {'the same' if same else 'other ones'}")
END
printf 'Output of this run:\n'
cat "$folder/seen"
cmp "$folder/expected" "$folder/seen"
