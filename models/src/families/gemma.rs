//! Gemma 4 as a decoder: its parts are those of `gemma4`.

use super::decoder::{Decoder, DecoderLayer, DecoderParts, TargetFiles};
use super::gemma4::{Config, Layer, PerLayerInputs, load_tower, rounded};
use super::image_rows::ImageRows;
use crate::layers::{Embedding, RmsNorm};
use crate::load::{Layout, LoadError};

/// Where checkpoints keep the text model: of transformers with the parts for images and sound, of
/// mlx, and of transformers alone.
const LAYOUTS: [Layout; 3] = [Layout::WITH_VISION[0], Layout::WITH_VISION[1], Layout::TEXT];

/// Loads it, in the layout of transformers or of mlx.
pub(super) fn load(files: TargetFiles<'_>) -> Result<Decoder, LoadError> {
    let TargetFiles { dir, config: json, mut weights, weight_bytes } = files;
    let config = Config::read(json)?;
    let layout = Layout::of(weights.files(), &LAYOUTS)?;
    let text = layout.text;
    let table = format!("{text}.embed_tokens");
    let dtype = weights.dtype_of(&format!("{table}.weight"));
    let stored = weights.dtype_in_file(&format!("{table}.weight"));
    let embed_tokens = Embedding::load(&mut weights, &table, config.vocab, config.hidden)?;
    let per_layer = PerLayerInputs::load(&mut weights, text, &config)?;
    let layers = (0..config.layers.len())
        .map(|at| Layer::load(&mut weights, text, at, &config).map(DecoderLayer::Gemma))
        .collect::<Result<Vec<_>, _>>()?;
    let norm = RmsNorm::load(&mut weights, &format!("{text}.norm"), config.hidden, config.eps)?;
    let tower = load_tower(dir, json, &mut weights, layout, &config)?;
    let parts = DecoderParts {
        architecture: "gemma4".into(),
        dtype,
        vocab: config.vocab,
        hidden: config.hidden,
        context: config.context,
        ropes: config.ropes(json)?,
        embed_tokens,
        embedding_factor: rounded((config.hidden as f32).sqrt(), stored),
        per_layer,
        kv_layers: config.kv_layers(),
        layers,
        norm,
        softcap: config.softcap,
        image_rows: ImageRows { both_ways: config.both_ways, pad: config.pad },
        tower,
    };
    Decoder::assemble(dir, weights, weight_bytes, parts, layout, config.tied)
}
