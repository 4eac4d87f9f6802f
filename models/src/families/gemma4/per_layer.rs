//! Per-layer embeddings of an edge model: for each layer a part of a table's row, which is looked
//! up by the row's id, and a projection of the row's embedding.

use super::config::Config;
use crate::error::Result;
use crate::layers::{Embedding, LayerOps, Linear, RmsNorm};
use crate::load::{LoadError, Weights};

pub(in crate::families) struct PerLayerInputs {
    embed_tokens_per_layer: Embedding,
    per_layer_model_projection: Linear,
    per_layer_projection_norm: RmsNorm,
    layers: i32,
    /// Factor on the table's rows: √ of the width of a layer's part.
    table_factor: f32,
    /// Factor on the projection: hidden^-½.
    projection_factor: f32,
}

impl PerLayerInputs {
    pub(in crate::families) fn load(
        weights: &mut Weights,
        text: &str,
        config: &Config,
    ) -> Result<Option<Self>, LoadError> {
        let Some([width, rows]) = config.per_layer else { return Ok(None) };
        let layers = config.layers.len() as i32;
        let name = |part: &str| format!("{text}.{part}");
        let [table, projection, norm] = [
            name("embed_tokens_per_layer"),
            name("per_layer_model_projection"),
            name("per_layer_projection_norm"),
        ];
        let stored = weights.dtype_in_file(&format!("{table}.weight"));
        Ok(Some(Self {
            embed_tokens_per_layer: Embedding::load(weights, &table, rows, layers * width)?,
            per_layer_model_projection: Linear::load(
                weights,
                &projection,
                layers * width,
                config.hidden,
                false,
            )?,
            per_layer_projection_norm: RmsNorm::load(weights, &norm, width, config.eps)?,
            layers,
            table_factor: super::rounded((width as f32).sqrt(), stored),
            projection_factor: (config.hidden as f32).powf(-0.5),
        }))
    }

    /// `x`: the embedded rows `[R, hidden]` → `[R, layers · width]`.
    pub(in crate::families) fn apply<O: LayerOps>(
        &self,
        ops: &mut O,
        x: &O::Rows,
    ) -> Result<O::Rows> {
        let of_ids = ops.embedded(&self.embed_tokens_per_layer)?;
        let of_ids = ops.scale(&of_ids, self.table_factor)?;
        let projected = ops.product(&self.per_layer_model_projection, x)?;
        let projected = ops.scale(&projected, self.projection_factor)?;
        let norm = &self.per_layer_projection_norm;
        let projected = ops.norm_heads(norm, &(0..self.layers), &projected)?;
        let projected = ops.joined_heads(&projected)?;
        let sum = ops.add(&projected, &of_ids)?;
        ops.scale(&sum, std::f32::consts::FRAC_1_SQRT_2)
    }
}
