//! The head with which Qwen3.5, 3.6 and 3.8 predict the token after the next: one layer of the
//! family, with the target's embedding, final norm and output head. Names → config → head;
//! mtp_head.rs has the arithmetic, next_token.rs the rows that are read. R rows.
//!
//! ```text
//!  z      = fc [pre_fc_norm_embedding(embedding of the token), pre_fc_norm_hidden(h)]
//!  o      = norm(layer(z))
//!  logits = target's head(o), and o is the h of the next row
//! ```
//!
//! h of a context row is the target's output after its final norm. The link carries outputs of
//! layers, so the head norms them with the target's weight. The arithmetic and its sources: vLLM's
//! `qwen3_5_mtp.py`, and mlx-vlm 0.7.10, `speculative/drafters/qwen3_5_mtp`.
//!
//! The head of GLM-OCR is of the same kind: `mtp_glm.rs`.
//!
//! The head's tensors lie in the target's checkpoint or in files of their own, in these layouts:
//!
//! ```text
//!  transformers, conversions   mtp.…, model.mtp.…, language_model.mtp.…
//!  mlx-vlm                     without a prefix, in a folder of their own
//!  speculators                 mtp_layers.0.… under other names, in a folder of their own
//! ```

use std::path::Path;

use paceline_checkpoint::families::glm::is_glm_ocr;

use super::mtp_glm;
use super::mtp_head::Head;
use super::next_token::NextToken;
use super::{Borrows, DraftFacts, DraftInfo, DrafterFiles, Kind};
use crate::families::{glm_ocr_sizes, hybrid_layer, hybrid_sizes, is_hybrid, stored_norms};
use crate::layers::{Linear, NormWeight, RmsNorm};
use crate::load::{CheckpointError, ConfigJson, LoadError, Tensors};

/// Rows of the longest block: the bonus token's and 3 drafts. Heads are trained for one draft, and
/// those after it read the head's own output. mlx-vlm and vLLM draft 1 to 3 tokens with them. Not
/// measured here.
const BLOCK: i32 = 4;

/// How heads are recognized and loaded.
pub(super) const KIND: Kind = Kind {
    name: "mtp",
    is_config_of: is_mtp,
    info,
    of_target: None,
    own_tensors,
    borrows: |files| match mtp_glm::layer(files) {
        Some(_) => Borrows::GlmEnds,
        None => Borrows::Ends,
    },
    floats: &[],
    load: |files| {
        let head = match is_glm_ocr(files.config)? {
            true => {
                let info = info(files.config, files.dir, files.weight_bytes)?;
                mtp_glm::load(files, info)?
            }
            false => load(files)?,
        };
        Ok(Box::new(NextToken::new(head)))
    },
};

/// Where a checkpoint keeps the parts of a head.
struct Names {
    /// Before every other name.
    prefix: &'static str,
    fc: &'static str,
    norm_embedding: &'static str,
    norm_hidden: &'static str,
    layer: &'static str,
    norm: &'static str,
}

impl Names {
    const fn under(prefix: &'static str) -> Self {
        Self {
            prefix,
            fc: "fc",
            norm_embedding: "pre_fc_norm_embedding",
            norm_hidden: "pre_fc_norm_hidden",
            layer: "layers.0",
            norm: "norm",
        }
    }

    /// The names of a checkpoint's head, if it has one.
    fn of(files: &Tensors) -> Option<&'static Self> {
        let begins = |first: &str| files.shapes().any(|(name, _)| name.starts_with(first));
        LAYOUTS.iter().find(|names| match names.prefix {
            "" => begins("fc.") || begins("pre_fc_norm_"),
            prefix => begins(prefix),
        })
    }
}

/// All layouts.
const LAYOUTS: [Names; 5] = [
    Names::under("mtp."),
    Names::under("model.mtp."),
    Names::under("language_model.mtp."),
    Names {
        prefix: "mtp_layers.",
        fc: "0.input_proj",
        norm_embedding: "0.token_layernorm",
        norm_hidden: "0.hidden_layernorm",
        layer: "0",
        norm: "0.final_layernorm",
    },
    Names::under(""),
];

/// Forgets the tensors of the model around the head.
fn own_tensors(files: &mut Tensors, dir: &Path) -> Result<NormWeight, LoadError> {
    if mtp_glm::layer(files).is_some() {
        return mtp_glm::own_tensors(files);
    }
    let norms = stored_norms(files)?;
    let Some(names) = Names::of(files) else {
        let what = "the checkpoint has no tensors mtp.*, and no layer with eh_proj: many conversions \
                    leave them out; use drafter.model = \"lookup\" or a drafter of its own";
        return Err(LoadError::from(CheckpointError::Broken {
            path: dir.to_path_buf(),
            what: what.into(),
        }));
    };
    files.keep(|name| name.starts_with(names.prefix));
    Ok(norms)
}

/// `speculators_model_type` of the speculators package's heads.
const SPECULATORS: &str = "mtp";
/// `model_type` of mlx-vlm's folders.
const MLX_VLM: &str = "qwen3_5_mtp";

/// Whether a config.json is that of a head, or of a model that may have one. A Qwen3.5 is of no
/// other kind: `model` serves no model with states.
fn is_mtp(config: &ConfigJson) -> Result<bool, LoadError> {
    if let Some(name) = config.optional::<String>("speculators_model_type")? {
        return Ok(name == SPECULATORS);
    }
    // Drafters of other kinds may have the model_type of their target.
    let architectures: Vec<String> = config.optional("architectures")?.unwrap_or_default();
    let is_model = |name: &String| name.contains("ForC");
    if !architectures.iter().all(is_model) || config.part("dflash_config")?.is_some() {
        return Ok(false);
    }
    let model_type: Option<String> = config.optional("model_type")?;
    Ok(model_type.as_deref() == Some(MLX_VLM) || is_hybrid(config)? || is_glm_ocr(config)?)
}

/// The config of the model that the head belongs to, after a check that the head is one that is
/// computed.
fn model_config(config: &ConfigJson) -> Result<ConfigJson, LoadError> {
    if !is_mtp(config)? {
        let model_type: String = config.optional("model_type")?.unwrap_or_default();
        let what = format!(
            "expected that of a Qwen3.5 or a GLM-OCR, {MLX_VLM}, or speculators_model_type \
             {SPECULATORS}; found {model_type:?}: no other family has a head of kind mtp here; use drafter.model = \
             \"lookup\" or a drafter of its own"
        );
        return Err(config.wrong("model_type", what).into());
    }
    let model = config.part("transformer_layer_config")?.unwrap_or_else(|| config.clone());
    let n_layers = model.size_or("mtp_num_hidden_layers", 1)?;
    if n_layers != 1 {
        let what = format!("expected 1, as the heads are published, found {n_layers}");
        return Err(model.wrong("mtp_num_hidden_layers", what).into());
    }
    if model.optional("mtp_use_dedicated_embeddings")?.unwrap_or(false) {
        let what = "expected false: this version computes with the target's embedding";
        return Err(model.wrong("mtp_use_dedicated_embeddings", what.into()).into());
    }
    let key = "mtp_hidden_state_mode";
    match model.optional::<String>(key)?.as_deref() {
        None | Some("post_norm") => Ok(model),
        Some(mode) => {
            let what = format!("expected post_norm, the target's normed states, found {mode}");
            Err(model.wrong(key, what).into())
        }
    }
}

/// Inputs and proposals of the head of a model with this config.
fn info(config: &ConfigJson, dir: &Path, weight_bytes: u64) -> Result<DraftInfo, LoadError> {
    let sizes = match is_glm_ocr(config)? {
        true => glm_ocr_sizes(config)?,
        false => hybrid_sizes(&model_config(config)?)?,
    };
    Ok(DraftInfo {
        hidden: sizes.hidden_size,
        block: BLOCK,
        feature_layers: vec![sizes.n_layers as usize - 1],
        target_layers: Some(sizes.n_layers as usize),
        vocab: Some(sizes.vocab_size),
        context: sizes.context,
        // Rows of images are read as the id that stands for them. What was seen is in the hidden states.
        images: true,
        ..DraftInfo::of_tokens(KIND.name, dir, weight_bytes)
    })
}

fn load(files: DrafterFiles<'_>) -> Result<Head, LoadError> {
    let DrafterFiles { dir, config, weights, norms, weight_bytes, quantize, ends, .. } = files;
    let info = info(config, dir, weight_bytes)?;
    let model = model_config(config)?;
    let missing = |name: &str| LoadError::from(CheckpointError::Missing { name: name.to_owned() });
    let names = Names::of(weights.files()).ok_or_else(|| missing("mtp.fc.weight"))?;
    let target = ends.ok_or_else(|| missing("embed_tokens.weight"))?;
    let mut weights = weights.quantizing(quantize.bits()).with_prefix(names.prefix);
    let dtype = weights.dtype_of(&format!("{}.weight", names.fc));
    let (hidden, eps) = (info.hidden, hybrid_sizes(&model)?.rms_norm_eps);
    let fc = Linear::load(&mut weights, names.fc, hidden, 2 * hidden, false)?;
    let mut norm = |name: &str| RmsNorm::load_stored(&mut weights, name, hidden, eps, norms);
    let [pre_fc_norm_embedding, pre_fc_norm_hidden, norm] =
        [norm(names.norm_embedding)?, norm(names.norm_hidden)?, norm(names.norm)?];
    let layer = hybrid_layer(&mut weights, &format!("{}.", names.layer), &model, norms)?;
    weights.finish()?;
    let facts = DraftFacts { info, kv_layers: vec![layer.kv().into()], dtype };
    Ok(Head {
        facts,
        target,
        pre_fc_norm_embedding,
        pre_fc_norm_hidden,
        fc,
        layer,
        norm,
        hands_on_normed: true,
        reads_at_0: true,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Published configs of models with a head, as far as it matters.
    fn usual() -> Value {
        json!({
            "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
            "text_config": {
                "model_type": "qwen3_5_text", "hidden_size": 32, "num_attention_heads": 4,
                "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 96,
                "num_hidden_layers": 8, "max_position_embeddings": 512,
                "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
                "linear_value_head_dim": 16, "mtp_num_hidden_layers": 1,
                "mtp_use_dedicated_embeddings": false
            }
        })
    }

    fn read(changes: &Value) -> Result<DraftInfo, String> {
        let config = ConfigJson::changed(usual(), changes);
        info(&config, Path::new("head"), 7).map_err(|error| paceline_vocabulary::chain(&error))
    }

    #[test]
    fn a_head_reads_the_last_layer_of_the_model_it_belongs_to() {
        let found = read(&json!({})).expect("read");
        assert_eq!((found.feature_layers, found.target_layers), (vec![7], Some(8)));
        assert_eq!((found.hidden, found.vocab, found.block), (32, Some(96), 4));
        assert!(found.token_ids && !found.embeddings && found.images);
        for model_type in ["qwen3_5_moe", "qwen3_5_mtp"] {
            let other = read(&json!({ "model_type": model_type, "architectures": null }));
            assert_eq!(other.expect("read").feature_layers, [7]);
        }
        let layer = usual()["text_config"].clone();
        let speculators = read(&json!({
            "model_type": null, "text_config": null, "speculators_model_type": "mtp",
            "architectures": ["MTPDraftModel"], "transformer_layer_config": layer,
        }));
        assert_eq!(speculators.expect("read").feature_layers, [7]);
    }

    #[test]
    fn what_is_not_computed_is_refused_with_what_was_found() {
        let text = |key: &str, value: Value| json!({ "text_config": { key: value } });
        for (changes, says) in [
            (json!({ "model_type": "qwen3" }), "found \"qwen3\": no other family"),
            (json!({ "speculators_model_type": "eagle3" }), "speculators_model_type mtp"),
            (json!({ "dflash_config": {} }), "no other family has a head"),
            (json!({ "architectures": ["DFlashDraftModel"] }), "no other family has a head"),
            (text("mtp_num_hidden_layers", 2.into()), "mtp_num_hidden_layers: expected 1"),
            (text("mtp_use_dedicated_embeddings", true.into()), "computes with the target's embed"),
            (text("mtp_hidden_state_mode", "pre_norm".into()), "expected post_norm"),
            (text("attn_output_gate", false.into()), "attn_output_gate: expected true"),
        ] {
            let error = read(&changes).expect_err(says);
            assert!(error.contains(says), "{changes}: {error}");
        }
    }
}
