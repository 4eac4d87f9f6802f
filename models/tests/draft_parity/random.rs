//! Drafters with random weights for the target `qwen3-tiny`, wide enough to be quantized.

use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

const HIDDEN: usize = 64;
const VOCAB: usize = 288;

/// Name and shape of every tensor, and config.json.
struct Checkpoint {
    tensors: Vec<(String, Vec<usize>)>,
    config: Value,
}

/// The parts that both kinds have: one layer, two feature layers.
fn backbone() -> Checkpoint {
    let layer = "layers.0";
    let mut tensors = vec![
        ("fc.weight".to_owned(), vec![HIDDEN, 2 * HIDDEN]),
        ("hidden_norm.weight".to_owned(), vec![HIDDEN]),
        ("norm.weight".to_owned(), vec![HIDDEN]),
    ];
    for (part, shape) in [
        ("input_layernorm", vec![HIDDEN]),
        ("post_attention_layernorm", vec![HIDDEN]),
        ("self_attn.q_norm", vec![32]),
        ("self_attn.k_norm", vec![32]),
        ("self_attn.q_proj", vec![64, HIDDEN]),
        ("self_attn.k_proj", vec![32, HIDDEN]),
        ("self_attn.v_proj", vec![32, HIDDEN]),
        ("self_attn.o_proj", vec![HIDDEN, 64]),
        ("mlp.gate_proj", vec![64, HIDDEN]),
        ("mlp.up_proj", vec![64, HIDDEN]),
        ("mlp.down_proj", vec![HIDDEN, 64]),
    ] {
        tensors.push((format!("{layer}.{part}.weight"), shape));
    }
    let config = json!({
        "model_type": "qwen3", "hidden_size": HIDDEN, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
        "intermediate_size": 64, "vocab_size": VOCAB, "max_position_embeddings": 512,
        "rope_theta": 10000.0, "num_target_layers": 3,
    });
    Checkpoint { tensors, config }
}

fn dflash2() -> Checkpoint {
    let Checkpoint { mut tensors, mut config } = backbone();
    for part in ["attention_conv", "mlp_conv"] {
        let name = format!("layers.0.{part}");
        tensors.push((format!("{name}.base_kernel"), vec![2, 2, HIDDEN]));
        tensors.push((format!("{name}.kernel_projection.weight"), vec![2 * 2 * 4, HIDDEN]));
    }
    for part in ["predecessor_codebook", "successor_codebook"] {
        tensors.push((format!("candidate_selector.{part}"), vec![VOCAB, 64]));
    }
    let projection = "candidate_selector.hidden_projection.weight";
    tensors.push((projection.to_owned(), vec![64, HIDDEN]));
    config["architectures"] = json!(["DFlash2DraftModel"]);
    config["dflash_config"] = json!({
        "block_size": 8, "mask_token_id": 3, "target_layer_ids": [0, 2], "conv_kernel_size": 2,
        "conv_group_size": 16, "selector_rank": 64, "selector_top_k": 16,
    });
    Checkpoint { tensors, config }
}

fn dspark() -> Checkpoint {
    let Checkpoint { mut tensors, mut config } = backbone();
    tensors.push(("markov_head.markov_w1.weight".to_owned(), vec![VOCAB, 64]));
    tensors.push(("markov_head.markov_w2.weight".to_owned(), vec![VOCAB, 64]));
    config["architectures"] = json!(["Qwen3DSparkModel"]);
    config["dflash_config"] = json!({
        "block_size": 7, "mask_token_id": 3, "target_layer_ids": [0, 2], "markov_rank": 64,
    });
    Checkpoint { tensors, config }
}

/// Writes a drafter of this kind with weights between −0.2 and 0.2, stored in bfloat16.
pub fn drafter(kind: &str) -> tempfile::TempDir {
    let Checkpoint { tensors, config } = match kind {
        "dflash2" => dflash2(),
        _ => dspark(),
    };
    let dir = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(dir.path().join("config.json"), config.to_string()).expect("written");
    let mut state = 1u64;
    let mut number = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        half::bf16::from_f32(((state >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 0.4)
    };
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
        .into_iter()
        .map(|(name, shape)| {
            let count = shape.iter().product();
            let bytes = (0..count).flat_map(|_| number().to_le_bytes()).collect();
            (name, shape, bytes)
        })
        .collect();
    let views = tensors.iter().map(|(name, shape, bytes)| {
        (name, TensorView::new(Dtype::BF16, shape.clone(), bytes).expect("as many bytes"))
    });
    let file = safetensors::serialize(views, None).expect("serialized");
    std::fs::write(dir.path().join("model.safetensors"), file).expect("written");
    dir
}
