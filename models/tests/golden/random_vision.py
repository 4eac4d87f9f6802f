"""A Qwen3-VL checkpoint with random weights in sizes nearer to real ones, for `paceline bench --images` (docs/performance.md).

    python models/tests/golden/random_vision.py OUT

Nobody's golden and kept nowhere: it says how long things take and nothing sensible about images. Tokenizer, template and
processor are those of qwen3-vl-tiny (vision.py). Needs torch, transformers and tokenizers as make.py.
"""

import json
import sys
from pathlib import Path

import vision

SPEC = {
    "text": {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64,
             "intermediate_size": 1536, "max_position_embeddings": 8192},
    "rope": {"rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0, "mrope_section": [12, 10, 10],
                                 "mrope_interleaved": True}},
    "vision": {"depth": 8, "hidden_size": 384, "num_heads": 6, "intermediate_size": 1536, "patch_size": 16,
               "num_position_embeddings": 2304, "deepstack_visual_indexes": [2, 4, 6]},
    "tied": True,
    "dtype": "bfloat16",
    "layout": "transformers",
    "whole": True,
}


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: random_vision.py OUT")
    import torch
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    made = Qwen3VLConfig(**{key: value for key, value in vision.config(SPEC).items() if key not in ("architectures", "model_type")})
    torch.manual_seed(0)
    model = Qwen3VLForConditionalGeneration(made).to(torch.bfloat16)
    tensors = {name: tensor.clone().contiguous() for name, tensor in model.state_dict().items()}
    out = Path(sys.argv[1])
    vision.write_model(out, SPEC, tensors)
    # Images become at most 640 tokens, so that seven runs on two cores take less than two minutes.
    processor = vision.processor_config(SPEC)
    processor["size"]["longest_edge"] = 640 * 32 * 32
    (out / "preprocessor_config.json").write_text(json.dumps(processor, indent=1) + "\n")
    sight = sum(tensor.numel() for name, tensor in tensors.items() if "visual" in name)
    everything = sum(tensor.numel() for name, tensor in tensors.items() if name != "lm_head.weight")
    print(f"{everything - sight:,} parameters that read text, {sight:,} of the tower")


main()
