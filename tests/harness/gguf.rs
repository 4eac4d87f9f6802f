//! The embedded target as a GGUF file, as llama.cpp's converter would write it in float32 or with
//! matrices of Q8_0.

use std::path::{Path, PathBuf};

use paceline_checkpoint::samples::{SampleGguf, SampleTensor};
use serde_json::Value;

use crate::model::Weights;
use crate::repository;

/// Names of modules of the checkpoint, and in GGUF.
const MODULES: [(&str, &str); 14] = [
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("lm_head", "output"),
];
/// GGUF's number of float32, and of Q8_0.
const TYPES: [u32; 2] = [0, 8];

/// Writes the embedded target into `dir` as `demo.gguf`. `packed`: its matrices are Q8_0.
///
/// # Panics
/// The model has changed so that it cannot be written.
pub fn demo(dir: &Path, packed: bool) -> PathBuf {
    let json = |name: &str| -> Value {
        let text = std::fs::read_to_string(repository().join("demo/target").join(name)).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    let (config, tokenizer) = (json("config.json"), json("tokenizer.json"));
    let settings = json("tokenizer_config.json");
    let mut file = SampleGguf { version: 3, pairs: vec![], tensors: tensors(packed) };
    file.set_text("general.architecture", "qwen3");
    for (key, of) in [
        ("block_count", "num_hidden_layers"),
        ("context_length", "max_position_embeddings"),
        ("embedding_length", "hidden_size"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
        ("attention.key_length", "head_dim"),
        ("attention.value_length", "head_dim"),
    ] {
        file.set_count(&format!("qwen3.{key}"), config[of].as_u64().unwrap() as u32);
    }
    for (key, of) in
        [("attention.layer_norm_rms_epsilon", "rms_norm_eps"), ("rope.freq_base", "rope_theta")]
    {
        file.set_float(&format!("qwen3.{key}"), config[of].as_f64().unwrap() as f32);
    }
    set_tokenizer(&mut file, &tokenizer, &config);
    let template = settings["chat_template"].as_str().unwrap();
    file.set_text("tokenizer.chat_template", template);
    let path = dir.join("demo.gguf");
    std::fs::write(&path, file.bytes()).unwrap();
    path
}

fn set_tokenizer(file: &mut SampleGguf, tokenizer: &Value, config: &Value) {
    file.set_text("tokenizer.ggml.model", "gpt2");
    file.set_text("tokenizer.ggml.pre", "qwen2");
    let vocabulary = tokenizer["model"]["vocab"].as_object().unwrap();
    let mut tokens = vec![""; config["vocab_size"].as_u64().unwrap() as usize];
    for (token, id) in vocabulary {
        tokens[id.as_u64().unwrap() as usize] = token;
    }
    // 1 is an ordinary token, 3 a special one, 4 an added one that is not special.
    let mut kinds = vec![1; tokens.len()];
    for token in tokenizer["added_tokens"].as_array().unwrap() {
        let id = token["id"].as_u64().unwrap() as usize;
        tokens[id] = token["content"].as_str().unwrap();
        kinds[id] = if token["special"] == true { 3 } else { 4 };
    }
    file.set_tokens(&tokens, &kinds);
    let merges = tokenizer["model"]["merges"].as_array().unwrap();
    let merge = |merge: &Value| match merge {
        Value::String(both) => both.clone(),
        both => format!("{} {}", both[0].as_str().unwrap(), both[1].as_str().unwrap()),
    };
    let merges: Vec<String> = merges.iter().map(merge).collect();
    let merges: Vec<&str> = merges.iter().map(String::as_str).collect();
    file.set_texts("tokenizer.ggml.merges", &merges);
    file.set_count("tokenizer.ggml.eos_token_id", config["eos_token_id"].as_u64().unwrap() as u32);
    file.set_flag("tokenizer.ggml.add_bos_token", false);
}

fn tensors(packed: bool) -> Vec<SampleTensor> {
    let weights = Weights::demo();
    let tensor = |name: String| {
        let entry = &weights.header[&name];
        let numbers = |key: &str| -> Vec<u64> {
            entry[key].as_array().unwrap().iter().map(|one| one.as_u64().unwrap()).collect()
        };
        let (shape, offsets) = (numbers("shape"), numbers("data_offsets"));
        let data = weights.data[offsets[0] as usize..offsets[1] as usize].to_vec();
        let kind = TYPES[usize::from(packed && shape.len() == 2)];
        SampleTensor {
            name: name_in_gguf(&name),
            dimensions: shape.into_iter().rev().collect(),
            kind,
            data: if kind == 0 { data } else { q8_0(&data) },
        }
    };
    weights.names().into_iter().map(tensor).collect()
}

fn name_in_gguf(name: &str) -> String {
    let module = name.strip_suffix(".weight").unwrap();
    let (place, module) = match module.strip_prefix("model.layers.") {
        Some(rest) => {
            let (layer, module) = rest.split_once('.').unwrap();
            (format!("blk.{layer}."), module)
        }
        None => (String::new(), module),
    };
    let known = MODULES.iter().find(|(of_checkpoint, _)| *of_checkpoint == module).unwrap();
    format!("{place}{}.weight", known.1)
}

/// Floats as blocks of 32 values of 8 bits with a scale, which is a power of two.
fn q8_0(floats: &[u8]) -> Vec<u8> {
    let numbers: Vec<f32> =
        floats.as_chunks::<4>().0.iter().map(|one| f32::from_le_bytes(*one)).collect();
    let mut blocks = vec![];
    for block in numbers.as_chunks::<32>().0 {
        let largest = block.iter().fold(0.0f32, |largest, one| largest.max(one.abs()));
        // Normal numbers of float16 have exponents from -14 on.
        let exponent = (largest / 127.0).log2().ceil().max(-14.0);
        blocks.extend((((exponent + 15.0) as u16) << 10).to_le_bytes());
        blocks.extend(block.map(|one| (one / exponent.exp2()).round() as i8 as u8));
    }
    blocks
}
