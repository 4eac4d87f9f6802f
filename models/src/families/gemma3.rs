//! Gemma 3's text model (arXiv 2503.19786): Gemma 4's layers with norms that are stored less 1, heads of
//! values without a norm, and a factor of the scores. Source: `models/gemma3` in transformers.

use paceline_checkpoint::families::gemma3;
use paceline_checkpoint::families::gemma4::KINDS;
use serde_json::{Map, Value};

use super::decoder::{Decoder, DecoderLayer, DecoderParts, TargetFiles};
use super::gemma4::{Config, Layer, LayerForm, rounded};
use super::image_rows::ImageRows;
use crate::layers::{Embedding, NormWeight, RmsNorm, Rope};
use crate::load::{ConfigJson, Layout, LoadError};

/// Base of the rotation in layers that attend to all rows, if config.json does not say it.
const BASE: f64 = 1e6;
/// Base of the rotation in sliding layers, if config.json does not say it.
const LOCAL_BASE: f64 = 1e4;

/// Loads it, in the layout that transformers and mlx-lm share.
pub(super) fn load(files: TargetFiles<'_>) -> Result<Decoder, LoadError> {
    let TargetFiles { dir, config: json, mut weights, weight_bytes } = files;
    let config = read(json)?;
    let (layout, norms) = (Layout::TEXT, config.form.norms);
    let text = layout.text;
    let table = format!("{text}.embed_tokens");
    let dtype = weights.dtype_of(&format!("{table}.weight"));
    let stored = weights.dtype_in_file(&format!("{table}.weight"));
    let embed_tokens = Embedding::load(&mut weights, &table, config.vocab, config.hidden)?;
    let layers = (0..config.layers.len())
        .map(|at| Layer::load(&mut weights, text, at, &config).map(DecoderLayer::Gemma))
        .collect::<Result<Vec<_>, _>>()?;
    let norm = format!("{text}.norm");
    let norm = RmsNorm::load_stored(&mut weights, &norm, config.hidden, config.eps, norms)?;
    let parts = DecoderParts {
        architecture: "gemma3_text".into(),
        dtype,
        vocab: config.vocab,
        hidden: config.hidden,
        context: config.context,
        ropes: ropes(json, config.attention[0].head_dim)?,
        embed_tokens,
        embedding_factor: rounded((config.hidden as f32).sqrt(), stored),
        per_layer: None,
        kv_layers: config.kv_layers(),
        layers,
        norm,
        softcap: config.softcap,
        image_rows: ImageRows { both_ways: false, pad: None },
        tower: None,
    };
    Decoder::assemble(dir, weights, weight_bytes, parts, layout, config.tied)
}

fn read(config: &ConfigJson) -> Result<Config, LoadError> {
    for key in ["attn_logit_softcapping", "use_bidirectional_attention"] {
        let found: Option<Value> = config.optional(key)?;
        if found.is_some_and(|found| found != false) {
            let what = "expected null: this version does not compute it".to_owned();
            return Err(config.wrong(key, what).into());
        }
    }
    let scalar: f32 = config.optional("query_pre_attn_scalar")?.unwrap_or(256.0);
    if !(scalar > 0.0 && scalar.is_finite()) {
        let what = format!("expected a number above 0, found {scalar}");
        return Err(config.wrong("query_pre_attn_scalar", what).into());
    }
    let form = LayerForm {
        norms: NormWeight::LessOne,
        score_scale: scalar.powf(-0.5),
        norms_values: false,
        scales_layers: false,
    };
    Config::plain(config, gemma3::layers(config)?, form)
}

/// The rotation of each kind of layers: an object of its own in `rope_parameters` of newer files, else
/// two bases, of which a scaling is that of the layers that attend to all rows.
fn ropes(config: &ConfigJson, head_dim: i32) -> Result<Vec<Rope>, LoadError> {
    let parameters: Option<Map<String, Value>> = config.optional("rope_parameters")?;
    if parameters.is_some_and(|parameters| parameters.contains_key(KINDS[1])) {
        return KINDS.iter().map(|kind| Rope::load_kind(config, kind, head_dim)).collect();
    }
    let local: f64 = config.optional("rope_local_base_freq")?.unwrap_or(LOCAL_BASE);
    Ok(vec![Rope::plain(config, head_dim, local)?, Rope::load_from_base(config, head_dim, BASE)?])
}
