//! Configuration and tokenizer, made of the metadata of a GGUF file.

use serde_json::{Value, json};

use super::weights::{EMBEDDING, GROUP, HEADS, KV_HEADS, LAYERS};
use crate::error::{FormatError, shown};
use crate::gguf::{Metadata, error};

const WIDTH: &str = "llama.embedding_length";
const CONTEXT: &str = "llama.context_length";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPES: &str = "tokenizer.ggml.token_type";
const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";
const PADDING: &str = "tokenizer.ggml.padding_token_id";
const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
/// GGUF's type of a special token.
const CONTROL: u64 = 3;

/// config.json as transformers and mlx-lm read it.
pub(super) fn config(metadata: &Metadata<'_>) -> Result<Value, FormatError> {
    let (width, heads) = (metadata.count(WIDTH)?, metadata.count(HEADS)?);
    let head_width = width.checked_div(heads).ok_or_else(|| error(HEADS, "at least 1", "0"))?;
    let quantization = json!({
        "group_size": GROUP,
        "bits": 4,
        "mode": "affine",
        EMBEDDING: { "group_size": GROUP, "bits": 8, "mode": "affine" },
    });
    Ok(json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": metadata.count("llama.vocab_size")?,
        "hidden_size": width,
        "intermediate_size": metadata.count("llama.feed_forward_length")?,
        "num_hidden_layers": metadata.count(LAYERS)?,
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.count(KV_HEADS)?,
        "head_dim": head_width,
        "max_position_embeddings": metadata.count(CONTEXT)?,
        "rms_norm_eps": metadata.float("llama.attention.layer_norm_rms_epsilon")?,
        "rope_theta": metadata.float("llama.rope.freq_base")?,
        "rope_scaling": null,
        "hidden_act": "silu",
        "attention_bias": false,
        "mlp_bias": false,
        "tie_word_embeddings": true,
        "torch_dtype": "float16",
        "bos_token_id": metadata.count(BOS)?,
        "eos_token_id": metadata.count(EOS)?,
        "pad_token_id": metadata.count(PADDING)?,
        "quantization": quantization,
        "quantization_config": quantization,
    }))
}

/// tokenizer.json: a byte-level BPE that splits digits, and special tokens.
pub(super) fn tokenizer(metadata: &Metadata<'_>) -> Result<Value, FormatError> {
    for (key, expected) in [("tokenizer.ggml.model", "gpt2"), ("tokenizer.ggml.pre", "smollm")] {
        let found = metadata.text(key)?;
        if found != expected {
            return Err(error(key, shown(expected), shown(found)));
        }
    }
    let (tokens, types) = (metadata.texts(TOKENS)?, metadata.counts(TOKEN_TYPES)?);
    if types.len() != tokens.len() {
        let expected = format!("a type for each of {} tokens", tokens.len());
        return Err(error(TOKEN_TYPES, expected, types.len().to_string()));
    }
    let special = tokens.iter().zip(types).enumerate().filter(|(_, (_, kind))| *kind == CONTROL);
    let special = special.map(|(id, (text, _))| {
        json!({
            "id": id,
            "content": text,
            "single_word": false,
            "lstrip": false,
            "rstrip": false,
            "normalized": false,
            "special": true,
        })
    });
    let byte_level = |add_prefix_space: bool| {
        json!({
            "type": "ByteLevel",
            "add_prefix_space": add_prefix_space,
            "trim_offsets": true,
            "use_regex": true,
        })
    };
    let vocabulary = tokens.iter().enumerate().map(|(id, text)| ((*text).to_owned(), id.into()));
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": special.collect::<Vec<_>>(),
        "normalizer": null,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{ "type": "Digits", "individual_digits": true }, byte_level(false)],
        },
        "post_processor": null,
        "decoder": byte_level(true),
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "vocab": Value::Object(vocabulary.collect()),
            "merges": metadata.texts("tokenizer.ggml.merges")?,
        },
    }))
}

/// tokenizer_config.json: the chat template and the roles of the special tokens.
pub(super) fn tokenizer_config(metadata: &Metadata<'_>) -> Result<Value, FormatError> {
    let tokens = metadata.texts(TOKENS)?;
    let token = |key: &str| {
        let id = metadata.count(key)?;
        let token = usize::try_from(id).ok().and_then(|id| tokens.get(id).copied());
        token.ok_or_else(|| error(key, format!("one of {} tokens", tokens.len()), id.to_string()))
    };
    Ok(json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": token(BOS)?,
        "eos_token": token(EOS)?,
        "pad_token": token(PADDING)?,
        "unk_token": token(UNKNOWN)?,
        "model_max_length": metadata.count(CONTEXT)?,
        "clean_up_tokenization_spaces": false,
        "chat_template": metadata.text("tokenizer.chat_template")?,
    }))
}

/// generation_config.json. The GGUF file names no sampling, so the answers are greedy.
pub(super) fn generation_config(metadata: &Metadata<'_>) -> Result<Value, FormatError> {
    Ok(json!({
        "bos_token_id": metadata.count(BOS)?,
        "eos_token_id": [metadata.count(EOS)?],
        "pad_token_id": metadata.count(PADDING)?,
        "do_sample": false,
    }))
}
